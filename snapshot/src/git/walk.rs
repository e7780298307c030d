//! Searches the work tree of one repository for paths that are neither tracked nor ignored, and for nested
//! repositories. The caller processes the results.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use git2::Oid;
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, fstat, statat};
use rustix::io::Errno;

use super::GitError;
use super::config::io;
use super::ignore::{Directory, ExternalRules, RepositoryRules, SkippedRules, Verdict, on_disk};
use super::listing::MAX_PATHS;
use super::object::ObjectId;
use super::reader::{Opened, holds_repository};
use crate::beneath;
use crate::paths;
use crate::stamp::Stamp;
use proctor_core::drift::display_path;

/// Size of the buffer for directory entries, in bytes.
const NAMES: usize = 32 << 10;

/// The results of a walk, with paths relative to its repository.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) untracked: Vec<Vec<u8>>,
    pub(super) repositories: Vec<Vec<u8>>,
    /// Ignored files that affect the tree.
    pub(super) rules: Vec<Vec<u8>>,
    /// The ignored files and directories whose parent directory is not ignored.
    pub(super) ignored: Vec<Vec<u8>>,
    /// The directories that were searched, with their stat data from before the search.
    pub(super) directories: Vec<(Vec<u8>, Stamp)>,
    /// The rules outside the tree that affect the result.
    pub(super) external_rules: Vec<ExternalRules>,
    /// Existing or missing directories that become repositories as soon as their `.git` contains a HEAD.
    pub(super) heads_to_come: Vec<Vec<u8>>,
}

impl Walked {
    /// Returns the number of paths that were found.
    fn found(&self) -> usize {
        self.untracked.len() + self.ignored.len() + self.directories.len()
    }
}

/// Finds the paths on disk that are neither tracked nor ignored. `tracked` is sorted; `skipped` contains the ignore
/// files with `skip-worktree` in the index.
pub(super) fn walk(
    opened: &Opened,
    tracked: &[&[u8]],
    gitlinks: &[(Vec<u8>, ObjectId)],
    skipped: &HashMap<Vec<u8>, Oid>,
) -> Result<Walked, GitError> {
    let own = RepositoryRules::read(opened)?;
    let mut to_come = vec![Place { path: Vec::new(), rules: own.outermost(), tracked }];
    let names = vec![MaybeUninit::uninit(); NAMES];
    let walked = Walked { external_rules: own.external.clone(), ..Walked::default() };
    let mut walk = Walk { opened, own, tracked, gitlinks, skipped: SkippedRules::Known(skipped), walked, names };
    while let Some(place) = to_come.pop() {
        walk.enter(place, &mut to_come)?;
        if walk.walked.found() + to_come.len() > MAX_PATHS {
            return Err(too_many(opened));
        }
    }
    Ok(walk.walked)
}

/// A directory that is not ignored, with the rules of its parent and its tracked paths.
struct Place<'a> {
    path: Vec<u8>,
    rules: Directory,
    /// Sorted. Until the directory is entered, the slice contains all tracked paths of its parent. These are few,
    /// so that finding the paths of the directory among them is fast.
    tracked: &'a [&'a [u8]],
}

struct Walk<'a> {
    opened: &'a Opened,
    own: RepositoryRules,
    tracked: &'a [&'a [u8]],
    gitlinks: &'a [(Vec<u8>, ObjectId)],
    skipped: SkippedRules<'a>,
    walked: Walked,
    names: Vec<MaybeUninit<u8>>,
}

/// The relevant names in a directory, each with its type.
type Names = Vec<(Vec<u8>, FileType)>;

impl<'a> Walk<'a> {
    /// Searches a directory. A nested repository is recorded and not entered.
    fn enter(&mut self, place: Place<'a>, to_come: &mut Vec<Place<'a>>) -> Result<(), GitError> {
        let Some((directory, stamp)) = self.open(&place.path)? else { return Ok(()) };
        let tracked = below(place.tracked, &place.path);
        let names = self.names(directory.as_fd(), &place.path, tracked)?;
        let has_git = !place.path.is_empty() && names.iter().any(|(name, _)| name == b".git");
        if has_git && self.is_repository(&place.path)? {
            return Ok(());
        }
        let path = place.path;
        let own_file = names.iter().find(|(name, _)| name == b".gitignore").map(|(_, kind)| *kind);
        if own_file == Some(FileType::Symlink) {
            self.check_link(&paths::join(&path, b".gitignore"))?;
        }
        let rules = self.own.with_file(self.opened, place.rules, &path, own_file, self.skipped)?;
        for (name, kind) in names.into_iter().filter(|(name, _)| name != b".git") {
            let inner = paths::join(&path, &name);
            if kind != FileType::Directory {
                self.leaf(inner, &name, &rules)?;
            } else if let Some(rules) = self.directory(&inner, &rules)? {
                to_come.push(Place { path: inner, rules, tracked });
            } else {
                self.walked.ignored.push(inner);
            }
        }
        self.walked.directories.push((path, stamp));
        Ok(())
    }

    /// Opens a directory and returns its stat data from before the search. Returns `None` if it does not exist any
    /// more.
    fn open(&mut self, path: &[u8]) -> Result<Option<(OwnedFd, Stamp)>, GitError> {
        let failed = |error: &std::io::Error| io(&on_disk(self.opened, path), error);
        match beneath::open(self.opened.top.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => {
                let stat = fstat(&directory).map_err(|errno| failed(&errno.into()))?;
                Ok(Some((directory, Stamp::of(&stat))))
            }
            Err(error) if beneath::is_nothing(&error) => Ok(None),
            // A nested repository is read separately.
            Err(error) if path.is_empty() || !self.is_repository(path)? => Err(failed(&error)),
            Err(_) => Ok(None),
        }
    }

    /// Checks whether a directory is a nested repository, and records it if the index does not contain it.
    fn is_repository(&mut self, path: &[u8]) -> Result<bool, GitError> {
        let place = on_disk(self.opened, path);
        let is_one = holds_repository(&place)?;
        if is_one && !self.is_submodule(path) {
            self.walked.repositories.push(path.to_vec());
        }
        if !is_one && place.join(".git").is_dir() {
            self.walked.heads_to_come.push(path.to_vec());
        }
        Ok(is_one)
    }

    fn is_submodule(&self, path: &[u8]) -> bool {
        self.gitlinks.iter().any(|(gitlink, _)| gitlink == path)
    }

    /// Returns the names in a directory, except files that are `tracked`.
    fn names(&mut self, directory: BorrowedFd<'_>, path: &[u8], tracked: &[&[u8]]) -> Result<Names, GitError> {
        let failed = |errno: Errno| io(&on_disk(self.opened, path), &errno.into());
        let skip = if path.is_empty() { 0 } else { path.len() + 1 };
        let mut names = Vec::new();
        let mut listed = RawDir::new(directory, &mut self.names);
        while let Some(entry) = listed.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // The directory was removed.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(failed(errno)),
            };
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                    Err(Errno::NOENT) => continue,
                    Err(errno) => return Err(failed(errno)),
                },
                known => known,
            };
            let is_tracked = || tracked.binary_search_by(|path| path[skip..].cmp(name)).is_ok();
            if kind == FileType::Directory || name == b".gitignore" || name == b".git" || !is_tracked() {
                names.push((name.to_vec(), kind));
            }
            if names.len() > MAX_PATHS {
                return Err(too_many(self.opened));
            }
        }
        Ok(names)
    }

    /// Refuses a `.gitignore` that is a link to a file. Git ignores such a file, but libgit2 follows the link and
    /// would hide paths that git shows.
    fn check_link(&self, path: &[u8]) -> Result<(), GitError> {
        if on_disk(self.opened, path).metadata().map_or(true, |target| target.is_dir()) {
            return Ok(());
        }
        Err(GitError::Unsupported {
            path: self.opened.worktree.clone(),
            what: format!("a symbolic link as `{}`", display_path(path)),
            mend: "replace it by a file; git itself does not follow it".into(),
        })
    }

    fn leaf(&mut self, path: Vec<u8>, name: &[u8], rules: &Directory) -> Result<(), GitError> {
        if self.tracked.binary_search(&path.as_slice()).is_ok() {
            return Ok(());
        }
        if !self.own.judge(self.opened, rules, &path, false)?.is_ignored() {
            self.walked.untracked.push(path);
            return Ok(());
        }
        if matches!(name, b".gitignore" | b".gitattributes") {
            self.walked.rules.push(path.clone());
        }
        self.walked.ignored.push(path);
        Ok(())
    }

    /// Returns the rules for the content of a directory, or `None` if the directory is ignored.
    fn directory(&self, path: &[u8], rules: &Directory) -> Result<Option<Directory>, GitError> {
        // Ignore rules do not apply to a submodule itself, but they apply to the files in a submodule that is not
        // checked out.
        if self.is_submodule(path) {
            return Ok(Some(rules.clone().within(Verdict::default())));
        }
        let verdict = self.own.judge(self.opened, rules, path, true)?;
        Ok((!verdict.is_ignored()).then(|| rules.clone().within(verdict)))
    }
}

/// Returns the range of sorted paths below a directory.
fn below<'a, 'p>(sorted: &'a [&'p [u8]], directory: &[u8]) -> &'a [&'p [u8]] {
    if directory.is_empty() {
        return sorted;
    }
    let (from, to) = paths::range_below(directory);
    let from = sorted.partition_point(|path| *path < from.as_slice());
    &sorted[from..from + sorted[from..].partition_point(|path| *path < to.as_slice())]
}

fn too_many(opened: &Opened) -> GitError {
    GitError::TooMany { path: opened.worktree.clone(), limit: MAX_PATHS, what: "paths".into() }
}
