//! Goes through the work tree of one repository for what is neither tracked nor ignored, and for the
//! repositories inside. What becomes of them is decided elsewhere.

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

/// How many bytes of names are asked for at a time.
const NAMES: usize = 32 << 10;

/// What a walk found, by paths relative to its repository.
#[derive(Default)]
pub(super) struct Walked {
    pub(super) untracked: Vec<Vec<u8>>,
    pub(super) repositories: Vec<Vec<u8>>,
    /// Files that are ignored and have a say in what the tree is.
    pub(super) rules: Vec<Vec<u8>>,
    /// The ignored files and directories that lie in directories which are not ignored.
    pub(super) ignored: Vec<Vec<u8>>,
    /// What was looked into, and what it was like before.
    pub(super) directories: Vec<(Vec<u8>, Stamp)>,
    /// The rules outside of the tree that decided.
    pub(super) external_rules: Vec<ExternalRules>,
    /// Directories, there or not, that become repositories as soon as their `.git` has a HEAD.
    pub(super) heads_to_come: Vec<Vec<u8>>,
}

impl Walked {
    /// Returns the number of paths that were found.
    fn found(&self) -> usize {
        self.untracked.len() + self.ignored.len() + self.directories.len()
    }
}

/// What is on disk and neither tracked nor ignored. `tracked` is sorted; `skipped` are the files of rules that the index
/// skips.
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

/// A directory that is not ignored, the rules that hold around it, and what is tracked there.
struct Place<'a> {
    path: Vec<u8>,
    rules: Directory,
    /// Sorted, and more than that for a directory that was not entered yet: it is looked for among what is tracked in
    /// the directory that it is in, which are few.
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

/// The names in a directory that matter, each with its type.
type Names = Vec<(Vec<u8>, FileType)>;

impl<'a> Walk<'a> {
    /// Looks into a directory; a repository inside is noted and not entered.
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

    /// Opens a directory, with what it is like before it is looked into; nothing where none is there any more.
    fn open(&mut self, path: &[u8]) -> Result<Option<(OwnedFd, Stamp)>, GitError> {
        let failed = |error: &std::io::Error| io(&on_disk(self.opened, path), error);
        match beneath::open(self.opened.top.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => {
                let stat = fstat(&directory).map_err(|errno| failed(&errno.into()))?;
                Ok(Some((directory, Stamp::of(&stat))))
            }
            Err(error) if beneath::is_nothing(&error) => Ok(None),
            // What is in a repository inside is for git to read.
            Err(error) if path.is_empty() || !self.is_repository(path)? => Err(failed(&error)),
            Err(_) => Ok(None),
        }
    }

    /// Whether a directory is a repository inside, and notes it where the index does not.
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

    /// The names in a directory, without those of files that are `tracked` in it.
    fn names(&mut self, directory: BorrowedFd<'_>, path: &[u8], tracked: &[&[u8]]) -> Result<Names, GitError> {
        let failed = |errno: Errno| io(&on_disk(self.opened, path), &errno.into());
        let skip = if path.is_empty() { 0 } else { path.len() + 1 };
        let mut names = Vec::new();
        let mut listed = RawDir::new(directory, &mut self.names);
        while let Some(entry) = listed.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // It is gone.
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

    /// Git ignores no file by a `.gitignore` that is a link; libgit2 follows it, and would hide
    /// paths that git shows.
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

    /// The rules around what is in a directory, where the walk goes into it.
    fn directory(&self, path: &[u8], rules: &Directory) -> Result<Option<Directory>, GitError> {
        // A submodule is none of the rules' concern, but what is in one that is not checked out is.
        if self.is_submodule(path) {
            return Ok(Some(rules.clone().within(Verdict::default())));
        }
        let verdict = self.own.judge(self.opened, rules, path, true)?;
        Ok((!verdict.is_ignored()).then(|| rules.clone().within(verdict)))
    }
}

/// The part of sorted paths that lies below a directory.
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
