//! Searches the work tree of one repository for paths that are neither tracked nor ignored, and for nested
//! repositories. The caller processes the results.

use std::collections::HashMap;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use git2::Oid;
use proctor_core::model::drift::display_path;
use rustix::fs::{AtFlags, FileType, OFlags, RawDir, fstat, statat};
use rustix::io::Errno;

use crate::config::bounded_read::io_error;
use crate::error::GitError;
use crate::files::file_stat::FileStat;
use crate::files::{paths, read_beneath};
use crate::ignore::external_rules::ExternalRules;
use crate::ignore::rule_levels::{DirectoryRules, RepositoryRules, SkippedRules};
use crate::ignore::{IgnoreVerdict, absolute_path};
use crate::object::object_id::ObjectId;
use crate::repository::open_repository::{OpenRepository, is_repository};

/// Size of the buffer for directory entries, in bytes.
const NAME_BUFFER_BYTES: usize = 32 << 10;

/// The results of a walk, with paths relative to its repository.
#[derive(Default)]
pub(crate) struct WalkResult {
    pub(crate) untracked: Vec<Vec<u8>>,
    pub(crate) repositories: Vec<Vec<u8>>,
    /// Ignored files that affect the tree.
    pub(crate) rules: Vec<Vec<u8>>,
    /// The ignored files and directories whose parent directory is not ignored.
    pub(crate) ignored: Vec<Vec<u8>>,
    /// The directories that were searched, with their stat data from before the search.
    pub(crate) directories: Vec<(Vec<u8>, FileStat)>,
    /// The rules outside the tree that affect the result.
    pub(crate) external_rules: Vec<ExternalRules>,
    /// Existing or missing directories that become repositories as soon as their `.git` contains a HEAD.
    pub(crate) missing_heads: Vec<Vec<u8>>,
}

impl WalkResult {
    /// Returns the number of paths that were found.
    fn path_count(&self) -> usize {
        self.untracked.len() + self.ignored.len() + self.directories.len()
    }
}

/// Finds the paths on disk that are neither tracked nor ignored. `tracked` is sorted; `skipped` contains the ignore
/// files with `skip-worktree` in the index.
pub(crate) fn walk(
    opened: &OpenRepository,
    tracked: &[&[u8]],
    gitlinks: &[(Vec<u8>, ObjectId)],
    skipped: &HashMap<Vec<u8>, Oid>,
) -> Result<WalkResult, GitError> {
    let own = RepositoryRules::read(opened)?;
    let mut to_come = vec![PendingDirectory { path: Vec::new(), rules: own.outermost(), tracked }];
    let names = vec![MaybeUninit::uninit(); NAME_BUFFER_BYTES];
    let walked = WalkResult { external_rules: own.external.clone(), ..WalkResult::default() };
    let mut walk = WorktreeWalk {
        opened,
        repository_rules: own,
        tracked,
        gitlinks,
        skipped: SkippedRules::Known(skipped),
        result: walked,
        name_buffer: names,
    };
    while let Some(place) = to_come.pop() {
        walk.search_directory(place, &mut to_come)?;
        if walk.result.path_count() + to_come.len() > MAX_PATHS {
            return Err(too_many(opened));
        }
    }
    Ok(walk.result)
}

/// A directory that is not ignored, with the rules of its parent and its tracked paths.
struct PendingDirectory<'a> {
    path: Vec<u8>,
    rules: DirectoryRules,
    /// Sorted. Until the directory is entered, the slice contains all tracked paths of its parent. These are few,
    /// so that finding the paths of the directory among them is fast.
    tracked: &'a [&'a [u8]],
}

struct WorktreeWalk<'a> {
    opened: &'a OpenRepository,
    repository_rules: RepositoryRules,
    tracked: &'a [&'a [u8]],
    gitlinks: &'a [(Vec<u8>, ObjectId)],
    skipped: SkippedRules<'a>,
    result: WalkResult,
    name_buffer: Vec<MaybeUninit<u8>>,
}

/// The relevant names in a directory, each with its type.
type WalkedNames = Vec<(Vec<u8>, FileType)>;

impl<'a> WorktreeWalk<'a> {
    /// Searches a directory. A nested repository is recorded and not entered.
    fn search_directory(
        &mut self,
        place: PendingDirectory<'a>,
        to_come: &mut Vec<PendingDirectory<'a>>,
    ) -> Result<(), GitError> {
        let Some((directory, stamp)) = self.open(&place.path)? else { return Ok(()) };
        let tracked = paths_below(place.tracked, &place.path);
        let names = self.read_names(directory.as_fd(), &place.path, tracked)?;
        let has_git = !place.path.is_empty() && names.iter().any(|(name, _)| name == b".git");
        if has_git && self.is_repository(&place.path)? {
            return Ok(());
        }
        let path = place.path;
        let own_file = names.iter().find(|(name, _)| name == b".gitignore").map(|(_, kind)| *kind);
        if own_file == Some(FileType::Symlink) {
            self.check_link(&paths::join(&path, b".gitignore"))?;
        }
        let rules = self.repository_rules.with_ignore_file(self.opened, place.rules, &path, own_file, self.skipped)?;
        for (name, kind) in names.into_iter().filter(|(name, _)| name != b".git") {
            let inner = paths::join(&path, &name);
            if kind != FileType::Directory {
                self.record_leaf(inner, &name, &rules)?;
            } else if let Some(rules) = self.rules_below(&inner, &rules)? {
                to_come.push(PendingDirectory { path: inner, rules, tracked });
            } else {
                self.result.ignored.push(inner);
            }
        }
        self.result.directories.push((path, stamp));
        Ok(())
    }

    /// Opens a directory and returns its stat data from before the search. Returns `None` if it does not exist any
    /// more.
    fn open(&mut self, path: &[u8]) -> Result<Option<(OwnedFd, FileStat)>, GitError> {
        let failed = |error: &std::io::Error| io_error(&absolute_path(self.opened, path), error);
        match read_beneath::open(self.opened.top.as_fd(), path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => {
                let stat = fstat(&directory).map_err(|errno| failed(&errno.into()))?;
                Ok(Some((directory, FileStat::from_stat(&stat))))
            }
            Err(error) if read_beneath::is_missing_error(&error) => Ok(None),
            // A nested repository is read separately.
            Err(error) if path.is_empty() || !self.is_repository(path)? => Err(failed(&error)),
            Err(_) => Ok(None),
        }
    }

    /// Checks whether a directory is a nested repository, and records it if the index does not contain it.
    fn is_repository(&mut self, path: &[u8]) -> Result<bool, GitError> {
        let place = absolute_path(self.opened, path);
        let is_one = is_repository(&place)?;
        if is_one && !self.is_submodule(path) {
            self.result.repositories.push(path.to_vec());
        }
        if !is_one && place.join(".git").is_dir() {
            self.result.missing_heads.push(path.to_vec());
        }
        Ok(is_one)
    }

    fn is_submodule(&self, path: &[u8]) -> bool {
        self.gitlinks.iter().any(|(gitlink, _)| gitlink == path)
    }

    /// Returns the names in a directory, except files that are `tracked`.
    fn read_names(
        &mut self,
        directory: BorrowedFd<'_>,
        path: &[u8],
        tracked: &[&[u8]],
    ) -> Result<WalkedNames, GitError> {
        let failed = |errno: Errno| io_error(&absolute_path(self.opened, path), &errno.into());
        let skip = if path.is_empty() { 0 } else { path.len() + 1 };
        let mut names = Vec::new();
        let mut listed = RawDir::new(directory, &mut self.name_buffer);
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
        if absolute_path(self.opened, path).metadata().map_or(true, |target| target.is_dir()) {
            return Ok(());
        }
        Err(GitError::Unsupported {
            path: self.opened.worktree.clone(),
            what: format!("a symbolic link as `{}`", display_path(path)),
            mend: "replace it by a file; git itself does not follow it".into(),
        })
    }

    fn record_leaf(&mut self, path: Vec<u8>, name: &[u8], rules: &DirectoryRules) -> Result<(), GitError> {
        if self.tracked.binary_search(&path.as_slice()).is_ok() {
            return Ok(());
        }
        if !self.repository_rules.evaluate(self.opened, rules, &path, false)?.is_ignored() {
            self.result.untracked.push(path);
            return Ok(());
        }
        if matches!(name, b".gitignore" | b".gitattributes") {
            self.result.rules.push(path.clone());
        }
        self.result.ignored.push(path);
        Ok(())
    }

    /// Returns the rules for the content of a directory, or `None` if the directory is ignored.
    fn rules_below(&self, path: &[u8], rules: &DirectoryRules) -> Result<Option<DirectoryRules>, GitError> {
        // Ignore rules do not apply to a submodule itself, but they apply to the files in a submodule that is not
        // checked out.
        if self.is_submodule(path) {
            return Ok(Some(rules.clone().with_verdict(IgnoreVerdict::default())));
        }
        let verdict = self.repository_rules.evaluate(self.opened, rules, path, true)?;
        Ok((!verdict.is_ignored()).then(|| rules.clone().with_verdict(verdict)))
    }
}

/// Returns the range of sorted paths below a directory.
fn paths_below<'a, 'p>(sorted: &'a [&'p [u8]], directory: &[u8]) -> &'a [&'p [u8]] {
    if directory.is_empty() {
        return sorted;
    }
    let (from, to) = paths::range_below(directory);
    let from = sorted.partition_point(|path| *path < from.as_slice());
    &sorted[from..from + sorted[from..].partition_point(|path| *path < to.as_slice())]
}

fn too_many(opened: &OpenRepository) -> GitError {
    GitError::TooMany { path: opened.worktree.clone(), limit: MAX_PATHS, what: "paths".into() }
}

/// Maximum number of paths of a tree, including nested repositories.
pub(crate) const MAX_PATHS: usize = 4_000_000;
