//! Lists what a work tree consists of: tracked paths, untracked ones, and repositories inside it.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use git2::{ObjectType, Oid, Tree};
use walkdir::{DirEntry, WalkDir};

use super::GitError;
use super::config::io;
use super::ignore::{directory_is_ignored, leaf_is_ignored, on_disk};
use super::index::from_libgit2;
use super::object::ObjectId;
use super::protocol::{Listing, Nested, RepoPath};
use super::reader::{Opened, PathSet, holds_repository, is_real_directory, unreadable};
use crate::paths;
use proctor_core::drift::display_path;

/// The mode of a submodule in the index.
pub(super) const GITLINK_MODE: u32 = 0o160_000;
/// How many paths a tree may have, nested repositories included.
const MAX_PATHS: usize = 4_000_000;
/// How deep repositories and directories may lie in each other; what reads them recurses.
const MAX_DEPTH: usize = 256;

/// Lists the work tree of `top`.
pub(super) fn list(top: &Opened) -> Result<Listing, GitError> {
    let mut found = Collected::default();
    let head = collect(top, b"", 0, &mut found)?;
    let as_paths = |set: PathSet| set.into_iter().map(RepoPath).collect();
    Ok(Listing {
        worktree: top.worktree.clone(),
        git_dir: top.git_dir.clone(),
        common_dir: top.common_dir.clone(),
        head_commit: head.map(|id| id.to_string()),
        branch: branch(top)?,
        tracked: as_paths(found.tracked),
        untracked: as_paths(found.untracked),
        nested: found.nested,
        indexes: found.indexes,
    })
}

#[derive(Default)]
struct Collected {
    tracked: PathSet,
    untracked: PathSet,
    nested: Vec<Nested>,
    indexes: Vec<super::index::Index>,
}

impl Collected {
    fn check(&self, top: &Path) -> Result<(), GitError> {
        if self.tracked.len() + self.untracked.len() + self.nested.len() <= MAX_PATHS {
            return Ok(());
        }
        Err(GitError::TooMany { path: top.to_owned(), limit: MAX_PATHS, what: "paths".into() })
    }
}

/// Adds what the repository at `prefix` consists of, and the repositories inside it. Answers the
/// commit that it is at.
fn collect(opened: &Opened, prefix: &[u8], depth: usize, found: &mut Collected) -> Result<Option<Oid>, GitError> {
    if depth > MAX_DEPTH {
        let what = "levels of nested repositories".into();
        return Err(GitError::TooMany { path: opened.worktree.clone(), limit: MAX_DEPTH, what });
    }
    let index = opened.index()?;
    let head = head_commit(opened)?;
    found.indexes.push(from_libgit2::read(opened, prefix, &index, head)?);
    let tree = found.indexes.last().and_then(super::index::Index::tree);
    let mut tracked = PathSet::new();
    let mut gitlinks = Vec::new();
    for entry in index.iter() {
        if entry.mode == GITLINK_MODE {
            gitlinks.push((entry.path, entry.id));
        } else {
            tracked.insert(entry.path);
        }
    }
    add_head_paths(opened, head, tree, &mut tracked)?;
    let walked = walk(opened, &tracked, &gitlinks)?;
    found.tracked.extend(whole_paths(opened, prefix, &tracked)?);
    found.untracked.extend(whole_paths(opened, prefix, &walked.untracked)?);
    found.check(&opened.worktree)?;
    for (path, recorded) in gitlinks {
        if is_real_directory(opened, &path)? {
            nest(opened, prefix, &path, Some(recorded), depth, found)?;
        }
    }
    for path in walked.repositories {
        nest(opened, prefix, &path, None, depth, found)?;
    }
    Ok(head)
}

/// The paths of one repository, relative to the outermost.
fn whole_paths(opened: &Opened, prefix: &[u8], inside: &PathSet) -> Result<Vec<Vec<u8>>, GitError> {
    let whole: Vec<_> = inside.iter().map(|path| paths::join(prefix, path)).collect();
    if whole.iter().any(|path| paths::ancestors(path).count() > MAX_DEPTH) {
        let what = "levels of directories".into();
        return Err(GitError::TooMany { path: opened.worktree.clone(), limit: MAX_DEPTH, what });
    }
    Ok(whole)
}

/// Adds the repository at `path` inside `outer`. One that is not checked out stands at the
/// commit that is recorded for it.
fn nest(
    outer: &Opened,
    prefix: &[u8],
    path: &[u8],
    recorded: Option<Oid>,
    depth: usize,
    found: &mut Collected,
) -> Result<(), GitError> {
    let place = on_disk(outer, path);
    let whole = paths::join(prefix, path);
    let at = found.nested.len();
    found.nested.push(Nested { path: RepoPath(whole.clone()), commit: recorded.map(|id| id.to_string()) });
    if holds_repository(&place)? {
        let inner = collect(&Opened::open(&place)?, &whole, depth + 1, found)?;
        found.nested[at].commit = inner.map(|id| id.to_string());
    }
    Ok(())
}

/// The commit of HEAD; none before the first.
fn head_commit(opened: &Opened) -> Result<Option<Oid>, GitError> {
    match opened.repository.head() {
        Ok(head) => Ok(head.target()),
        Err(error) if matches!(error.code(), git2::ErrorCode::UnbornBranch | git2::ErrorCode::NotFound) => Ok(None),
        Err(error) => Err(unreadable(&opened.worktree, &error)),
    }
}

/// The branch that HEAD names, as text for people.
fn branch(opened: &Opened) -> Result<Option<String>, GitError> {
    let head = opened.repository.find_reference("HEAD").map_err(|error| unreadable(&opened.worktree, &error))?;
    let name = head.symbolic_target_bytes().and_then(|name| name.strip_prefix(b"refs/heads/"));
    Ok(name.map(proctor_core::drift::display_path))
}

/// Adds what HEAD tracks and the index does not: `git rm --cached` hides nothing from us.
fn add_head_paths(
    opened: &Opened,
    head: Option<Oid>,
    index: Option<ObjectId>,
    tracked: &mut PathSet,
) -> Result<(), GitError> {
    let failed = |error: git2::Error| unreadable(&opened.worktree, &error);
    let Some(head) = head else { return Ok(()) };
    let tree = opened.repository.find_commit(head).and_then(|commit| commit.tree()).map_err(failed)?;
    if index.is_some() && ObjectId::from_raw(tree.id().as_bytes()) == index {
        return Ok(());
    }
    add_tree(opened, &tree, b"", 0, tracked)
}

fn add_tree(
    opened: &Opened,
    tree: &Tree<'_>,
    prefix: &[u8],
    depth: usize,
    tracked: &mut PathSet,
) -> Result<(), GitError> {
    let too_many =
        |limit, what: &str| GitError::TooMany { path: opened.worktree.clone(), limit, what: what.to_owned() };
    if depth > MAX_DEPTH {
        return Err(too_many(MAX_DEPTH, "levels of directories in HEAD"));
    }
    for entry in tree {
        let name = entry.name_bytes();
        // A tree object can hold names that no file can have.
        if matches!(name, b"" | b"." | b".." | b".git") || name.contains(&b'/') {
            continue;
        }
        let path = paths::join(prefix, name);
        match entry.kind() {
            Some(ObjectType::Tree) => {
                let inner = opened.repository.find_tree(entry.id());
                let inner = inner.map_err(|error| unreadable(&opened.worktree, &error))?;
                add_tree(opened, &inner, &path, depth + 1, tracked)?;
            }
            Some(ObjectType::Blob) => {
                tracked.insert(path);
            }
            _ => {}
        }
        if tracked.len() > MAX_PATHS {
            return Err(too_many(MAX_PATHS, "paths"));
        }
    }
    Ok(())
}

#[derive(Default)]
struct Walked {
    untracked: PathSet,
    repositories: Vec<Vec<u8>>,
}

/// What is on disk and neither tracked nor ignored.
fn walk(opened: &Opened, tracked: &PathSet, gitlinks: &[(Vec<u8>, Oid)]) -> Result<Walked, GitError> {
    let mut walked = Walked::default();
    let mut entries = WalkDir::new(&opened.worktree).min_depth(1).follow_links(false).sort_by_file_name().into_iter();
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(error) if vanished(&error) => continue,
            Err(error) => return Err(walk_failed(&opened.worktree, error)),
        };
        let path = relative(&opened.worktree, &entry);
        let enters = match entry.file_type().is_dir() {
            true => enters(opened, &entry, path, gitlinks, &mut walked)?,
            false => {
                check_rules_file(opened, &entry, path)?;
                if entry.file_name() != ".git" && !tracked.contains(path) && !leaf_is_ignored(opened, path)? {
                    walked.untracked.insert(path.to_vec());
                }
                continue;
            }
        };
        if !enters {
            entries.skip_current_dir();
        }
        if walked.untracked.len() > MAX_PATHS {
            return Err(GitError::TooMany { path: opened.worktree.clone(), limit: MAX_PATHS, what: "paths".into() });
        }
    }
    Ok(walked)
}

/// Whether the walk goes into a directory; a repository inside it is noted and not entered.
fn enters(
    opened: &Opened,
    entry: &DirEntry,
    path: &[u8],
    gitlinks: &[(Vec<u8>, Oid)],
    walked: &mut Walked,
) -> Result<bool, GitError> {
    if entry.file_name() == ".git" {
        return Ok(false);
    }
    let is_submodule = gitlinks.iter().any(|(gitlink, _)| gitlink == path);
    if !is_submodule && directory_is_ignored(opened, path)? {
        return Ok(false);
    }
    // A submodule that is not checked out may hold files, which steps see.
    let nested = holds_repository(entry.path())?;
    if nested && !is_submodule {
        walked.repositories.push(path.to_vec());
    }
    Ok(!nested)
}

/// Git ignores no file by a `.gitignore` that is a link; libgit2 follows it, and would hide
/// paths that git shows.
fn check_rules_file(opened: &Opened, entry: &DirEntry, path: &[u8]) -> Result<(), GitError> {
    let is_link = entry.file_name() == ".gitignore" && entry.file_type().is_symlink();
    if !is_link || entry.path().metadata().is_ok_and(|target| target.is_dir()) || !entry.path().exists() {
        return Ok(());
    }
    Err(GitError::Unsupported {
        path: opened.worktree.clone(),
        what: format!("a symbolic link as `{}`", display_path(path)),
        mend: "replace it by a file; git itself does not follow it".into(),
    })
}

fn relative<'a>(top: &Path, entry: &'a DirEntry) -> &'a [u8] {
    entry.path().strip_prefix(top).unwrap_or(entry.path()).as_os_str().as_bytes()
}

fn vanished(error: &walkdir::Error) -> bool {
    error.io_error().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

fn walk_failed(top: &Path, error: walkdir::Error) -> GitError {
    let path = error.path().unwrap_or(top).to_owned();
    io(&path, &error.into())
}
