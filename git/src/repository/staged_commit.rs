//! Computes the commit that an index would make. The trees and the commit are kept in memory and never written to
//! the repository. The same staged content on the same HEAD results in the same commit.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use git2::{Index, IndexEntry, IndexEntryExtendedFlag, ObjectType, Odb, Oid, Signature, Time};
use proctor_core::model::drift::display_path;

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::protocol::{CommitRef, NamedCommit, StagedCommit, StagedIndex, StagedObjects};
use crate::repository::open_repository::{OpenRepository, libgit2_error};

/// Priority of the in-memory backend for reading and writing objects: before all backends of libgit2.
const BACKEND_PRIORITY: i32 = 1_000;
/// Maximum number of conflicting paths that are named.
const MAX_NAMED_CONFLICTS: usize = 5;
/// The largest index that is read, in bytes.
const MAX_INDEX: u64 = 512 << 20;
/// The first version of the index format whose entries have extended flags.
const EXTENDED_FLAGS_VERSION: u32 = 3;
/// The message of the commit.
const MESSAGE: &str = "what is staged";

/// Computes the commit. Nothing is written to disk.
pub(crate) fn staged_commit(top: &OpenRepository, wanted: &StagedIndex) -> Result<StagedCommit, GitError> {
    add_memory_backend(top)?;
    let commit = write_commit(top, wanted)?;
    let name = NamedCommit { id: commit.to_string(), subject: MESSAGE.to_owned() };
    let objects = new_objects(top, commit).map_err(|error| libgit2_error(&top.worktree, &error))?;
    Ok(StagedCommit { name, objects, git_dir: top.git_dir.clone() })
}

/// Returns the objects of a new commit that the repository lacks.
fn new_objects(top: &OpenRepository, commit: Oid) -> Result<StagedObjects, git2::Error> {
    let all = top.repository.odb()?;
    // Without the backend in memory.
    let stored = Odb::new()?;
    stored.add_disk_alternate(&top.common_dir.join("objects").to_string_lossy())?;
    let (mut trees, mut pending) = (Vec::new(), vec![top.repository.find_commit(commit)?.tree_id()]);
    let mut seen = HashSet::new();
    while let Some(id) = pending.pop() {
        if !seen.insert(id) || stored.exists(id) {
            continue;
        }
        trees.push(RepoPath(all.read(id)?.data().to_vec()));
        let tree = top.repository.find_tree(id)?;
        pending.extend(tree.iter().filter(|entry| entry.kind() == Some(ObjectType::Tree)).map(|entry| entry.id()));
    }
    trees.reverse();
    Ok(StagedObjects { trees, commit: RepoPath(all.read(commit)?.data().to_vec()) })
}

/// Adds a staged commit to the objects of `top`. Does nothing for a commit that is in the repository.
pub(crate) fn add_staged_commit(top: &OpenRepository, wanted: &CommitRef) -> Result<(), GitError> {
    let Some(objects) = &wanted.staged else { return Ok(()) };
    add_memory_backend(top)?;
    let failed = |error: git2::Error| libgit2_error(&top.worktree, &error);
    let all = top.repository.odb().map_err(failed)?;
    for tree in &objects.trees {
        all.write(ObjectType::Tree, &tree.0).map_err(failed)?;
    }
    match all.write(ObjectType::Commit, &objects.commit.0).map_err(failed)?.to_string() == wanted.id {
        true => Ok(()),
        false => Err(staged_error(top, "its objects result in a different commit", "commit again")),
    }
}

fn add_memory_backend(top: &OpenRepository) -> Result<(), GitError> {
    let failed = |error: git2::Error| libgit2_error(&top.worktree, &error);
    let objects = top.repository.odb().map_err(failed)?;
    // The repository's object database owns the backend from now on.
    objects.add_new_mempack_backend(BACKEND_PRIORITY).map(drop).map_err(failed)
}

/// Adds the trees and the commit to the object database, which keeps new objects in memory.
fn write_commit(top: &OpenRepository, wanted: &StagedIndex) -> Result<Oid, GitError> {
    let into = &top.repository;
    let failed = |error: git2::Error| libgit2_error(&top.worktree, &error);
    let mut index = read_index(top, wanted)?;
    let tree = index.write_tree_to(into).and_then(|id| into.find_tree(id)).map_err(failed)?;
    let head = top.repository.head().and_then(|head| head.peel_to_commit()).ok();
    let parents = match head {
        Some(head) => vec![into.find_commit(head.id()).map_err(failed)?],
        None => Vec::new(),
    };
    let signature = Signature::new("proctor", "proctor@localhost", &Time::new(0, 0)).map_err(failed)?;
    into.commit(None, &signature, &signature, MESSAGE, &tree, &parents.iter().collect::<Vec<_>>()).map_err(failed)
}

/// Reads the index from a file of the repository's owner. Entries that are only intended to be added are removed.
fn read_index(top: &OpenRepository, wanted: &StagedIndex) -> Result<Index, GitError> {
    let file: PathBuf = wanted.file.clone().unwrap_or_else(|| top.git_dir.join("index"));
    let found = match file.symlink_metadata() {
        // Nothing has been added yet.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
        Err(error) => return Err(crate::config::bounded_read::io_error(&file, &error)),
        Ok(found) => Some(found),
    };
    let is_ours = |found: &std::fs::Metadata| {
        found.is_file() && found.len() <= MAX_INDEX && found.uid() == rustix::process::geteuid().as_raw()
    };
    if !found.as_ref().is_none_or(is_ours) {
        return Err(staged_error(
            top,
            &format!(
                "`{}` is not an index that belongs to the repository's owner",
                display_path(file.as_os_str().as_encoded_bytes())
            ),
            "unset `GIT_INDEX_FILE`",
        ));
    }
    let mut index = Index::open(&file).map_err(|error| crate::repository::open_repository::index_error(top, &error))?;
    check_merged(top, &index)?;
    let is_intended = |entry: &IndexEntry| entry.flags_extended & IndexEntryExtendedFlag::INTENT_TO_ADD.bits() != 0;
    // Entries of older versions have no extended flags, and a large index has many entries.
    let intended: Vec<Vec<u8>> = match index.version() < EXTENDED_FLAGS_VERSION {
        true => Vec::new(),
        false => index.iter().filter(is_intended).map(|entry| entry.path).collect(),
    };
    for path in intended {
        use std::os::unix::ffi::OsStrExt as _;
        let path = Path::new(std::ffi::OsStr::from_bytes(&path));
        index.remove(path, 0).map_err(|error| libgit2_error(&top.worktree, &error))?;
    }
    Ok(index)
}

fn check_merged(top: &OpenRepository, index: &Index) -> Result<(), GitError> {
    if !index.has_conflicts() {
        return Ok(());
    }
    let conflicts = index.conflicts().map_err(|error| libgit2_error(&top.worktree, &error))?;
    let sides = conflicts.flatten().filter_map(|conflict| conflict.our.or(conflict.their).or(conflict.ancestor));
    let named: Vec<String> =
        sides.take(MAX_NAMED_CONFLICTS).map(|entry| format!("`{}`", display_path(&entry.path))).collect();
    let problem = format!("there are unmerged paths, such as {}", named.join(", "));
    Err(staged_error(top, &problem, "resolve them, and add them; `git status` lists them"))
}

fn staged_error(top: &OpenRepository, problem: &str, mend: &str) -> GitError {
    GitError::Revision {
        path: top.worktree.clone(),
        revision: MESSAGE.to_owned(),
        problem: problem.to_owned(),
        mend: mend.to_owned(),
    }
}
