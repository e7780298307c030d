//! Asks the `git` program which paths the rules on disk ignore.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd};

use rustix::fs::FileType;

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::files::{paths, read_beneath};
use crate::program::{GitProgram, GitTask, listing_task, run_task};
use crate::repository_paths::RepositoryPaths;

/// Prints the paths that are ignored.
const SCRIPT: &str = r#"set -eu
top=$(pwd -P)
export GIT_DIR="$top/.git" GIT_WORK_TREE="$top"
git check-ignore --no-index -z --stdin < "$INPUT/paths" || [ $? -eq 1 ]
"#;

/// Reports for each directory, then for each other path, whether the innermost repository that contains it ignores
/// it. Paths inside a `.git` are ignored if and only if the parent directory of the `.git` is.
///
/// # Errors
/// Git failed.
pub(crate) fn query_ignored(
    program: &dyn GitProgram,
    places: &RepositoryPaths,
    directories: &[&[u8]],
    paths: &[&[u8]],
) -> Result<Vec<bool>, GitError> {
    let io = |error: std::io::Error| GitError::Io { path: places.worktree.clone(), problem: error.to_string() };
    let top = read_beneath::open_canonical(&places.worktree).map_err(io)?;
    let repositories: BTreeSet<Vec<u8>> =
        listing_task::list(program, places)?.nested.into_iter().map(|nested| nested.path.0).collect();
    let queried = directories.iter().map(|path| (*path, true)).chain(paths.iter().map(|path| (*path, false)));
    let questions: Vec<Option<IgnoreLookup>> = queried
        .map(|(path, is_directory)| ignore_lookup(top.as_fd(), &repositories, path, is_directory))
        .collect::<Result<_, _>>()
        .map_err(io)?;
    let mut grouped: BTreeMap<&[u8], BTreeSet<&[u8]>> = BTreeMap::new();
    for question in questions.iter().flatten() {
        grouped.entry(&question.repository).or_default().insert(&question.path);
    }
    let mut ignored = BTreeSet::new();
    for (repository, queried) in grouped {
        let input = BTreeMap::from([("paths", queried.iter().flat_map(|path| [path, &b"\0"[..]].concat()).collect())]);
        let task = GitTask { script: SCRIPT, directory: RepoPath(repository.to_vec()), input };
        let printed = run_task(program, places, &task)
            .map_err(|error| GitError::Unreadable { path: places.worktree.clone(), problem: error.to_string() })?;
        let printed_paths = printed.split(|b| *b == 0).filter(|path| !path.is_empty());
        ignored.extend(printed_paths.map(|path| IgnoreLookup { repository: repository.to_vec(), path: path.to_vec() }));
    }
    Ok(questions.into_iter().map(|question| question.is_some_and(|question| ignored.contains(&question))).collect())
}

/// A path relative to the repository that is asked about it. A path that ends in `/` is a directory.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct IgnoreLookup {
    repository: Vec<u8>,
    path: Vec<u8>,
}

/// Returns the question for git about `path`, or `None` if the path is certainly not ignored.
fn ignore_lookup(
    top: BorrowedFd<'_>,
    repositories: &BTreeSet<Vec<u8>>,
    path: &[u8],
    is_directory: bool,
) -> std::io::Result<Option<IgnoreLookup>> {
    let in_git = paths::ancestors(path).chain([path]).find(|part| paths::file_name(part) == b".git");
    let parent = |path: &[u8]| path.iter().rposition(|b| *b == b'/').map_or(Vec::new(), |slash| path[..slash].to_vec());
    let directory = match in_git {
        Some(dot_git) => Some(parent(dot_git)),
        None if is_directory => Some(path.to_vec()),
        // Git would see the existing directory at this path and evaluate the path as a directory.
        None if directory_exists(top, path)? => Some(parent(path)),
        None => None,
    };
    let queried = directory.as_deref().unwrap_or(path);
    // The rules inside a repository do not apply to its own directory, which is covered.
    let above = paths::ancestors(queried).chain(directory.as_deref());
    let repository = above.filter(|place| repositories.contains(*place)).last().unwrap_or_default();
    let inside = if repository.is_empty() { queried } else { queried.get(repository.len() + 1..).unwrap_or_default() };
    if inside.is_empty() {
        return Ok(None);
    }
    let path = if directory.is_some() { [inside, b"/"].concat() } else { inside.to_vec() };
    Ok(Some(IgnoreLookup { repository: repository.to_vec(), path }))
}

/// Checks whether `path` is a directory.
fn directory_exists(top: BorrowedFd<'_>, path: &[u8]) -> std::io::Result<bool> {
    let found = read_beneath::open_entry(top, path)?;
    Ok(found.is_some_and(|(_, stat)| FileType::from_raw_mode(stat.st_mode) == FileType::Directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_up_paths_in_innermost_repository() {
        let room = tempfile::tempdir().expect("temp");
        std::fs::create_dir_all(room.path().join("a/was-dir")).expect("makes");
        let top = read_beneath::open_canonical(&room.path().canonicalize().expect("there")).expect("opens");
        let repositories = BTreeSet::from([b"r".to_vec(), b"r/s".to_vec()]);
        let of = |path: &str| {
            let (path, is_directory) = path.strip_suffix('/').map_or((path, false), |path| (path, true));
            let question = ignore_lookup(top.as_fd(), &repositories, path.as_bytes(), is_directory).expect("looks");
            question.map(|q| (String::from_utf8(q.repository).expect("text"), String::from_utf8(q.path).expect("text")))
        };
        let some = |repository: &str, path: &str| Some((repository.to_owned(), path.to_owned()));
        assert_eq!(of("a/b"), some("", "a/b"));
        assert_eq!(of("r/x"), some("r", "x"));
        assert_eq!(of("r/s/x/y"), some("r/s", "x/y"));
        assert_eq!(of("a/was-dir"), some("", "a/"));
        assert_eq!(of("a/b/.git/config"), some("", "a/b/"));
        assert_eq!((of("new/"), of("r/new/"), of("r/")), (some("", "new/"), some("r", "new/"), None));
        assert_eq!((of(".git/config"), of("r/.git/x"), of("a")), (None, None, None));
    }
}
