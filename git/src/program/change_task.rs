//! Asks the `git` program in which files a tree differs from a commit.

use std::collections::{BTreeMap, BTreeSet};

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::program::{GitProgram, GitTask, run_task};
use crate::protocol::{ChangedFiles, CommitRef};
use crate::repository::changed_files::DEFAULT_BASE;
use crate::repository::revision;
use crate::repository_paths::RepositoryPaths;

/// Prints the id of the base on a line, then the changed paths, an empty path, the deleted paths of the index, an empty path,
/// and the paths of the base that the tree lacks.
///
/// A worktree is compared a second time, with a new index and without attributes. Steps see the bytes and modes of the
/// files, which flags in the index (`skip-worktree`) and conversions can hide from git.
const SCRIPT: &str = r#"set -eu
top=$(pwd -P)
export GIT_DIR="$top/.git" GIT_WORK_TREE="$top" GIT_GRAFT_FILE=/dev/null
base=$(git rev-parse --verify -q --end-of-options "$(cat "$INPUT/base")^{commit}") || exit 3
if [ -e "$INPUT/target" ]; then target=$(cat "$INPUT/target"); else target=HEAD; fi
merged=$(git merge-base "$base" "$target") || merged=$base
printf '%s\n' "$merged"
list="diff -z --name-only --no-renames --no-ext-diff --no-textconv --ignore-submodules=all"
if [ -e "$INPUT/target" ]; then
  git $list --diff-filter=d "$merged" "$target" --
  printf '\0'
  git $list --diff-filter=D "$merged" "$target" --
  printf '\0'
  git $list --diff-filter=D "$merged" "$target" --
  exit 0
fi
git $list --diff-filter=d "$merged" --
git ls-files -z --others --exclude-standard
deleted=$(mktemp)
git $list --diff-filter=D "$merged" -- > "$deleted"
GIT_INDEX_FILE=$(mktemp -d)/index
GIT_ATTR_SOURCE=$(git hash-object -t tree /dev/null)
export GIT_INDEX_FILE GIT_ATTR_SOURCE
git read-tree "$merged"
bytes="-c core.autocrlf=false -c core.attributesFile=/dev/null -c core.fileMode=true -c core.sparseCheckout=false"
git $bytes $list --diff-filter=d "$merged" --
printf '\0'
cat "$deleted"
printf '\0'
git $bytes $list --diff-filter=D "$merged" --
"#;

/// Returns the files in which the tree of `target`, or the worktree, differs from the merge base of `base` and the
/// verified commit.
///
/// # Errors
/// Git failed, or `base` names no commit.
pub(crate) fn changed_files(
    program: &dyn GitProgram,
    places: &RepositoryPaths,
    base: Option<&str>,
    target: Option<&CommitRef>,
) -> Result<ChangedFiles, GitError> {
    let base = base.unwrap_or(DEFAULT_BASE);
    let unreadable = |problem: String| GitError::Unreadable { path: places.worktree.clone(), problem };
    if !revision::is_well_formed(base) || revision::parse_range(base).is_some() {
        return Err(unreadable("the base of the changes is not a revision".to_owned()));
    }
    let mut input = BTreeMap::from([("base", base.as_bytes().to_vec())]);
    if let Some(commit) = target {
        input.insert("target", commit.id.as_bytes().to_vec());
    }
    let task = GitTask { script: SCRIPT, directory: RepoPath(Vec::new()), input };
    let printed = run_task(program, places, &task).map_err(|error| unreadable(error.to_string()))?;
    let end = printed.iter().position(|byte| *byte == b'\n');
    let (id, rest) = end.map(|end| (&printed[..end], &printed[end + 1..])).unwrap_or_default();
    let mut printed_paths = rest.split(|byte| *byte == 0);
    let mut take_paths = || -> Vec<RepoPath> {
        printed_paths.by_ref().take_while(|path| !path.is_empty()).map(|path| RepoPath(path.to_vec())).collect()
    };
    let (paths, mut deleted): (_, Vec<RepoPath>) = (take_paths(), take_paths());
    // A path counts as deleted only if both the index and the worktree lack it. A file that is only missing in the
    // index exists, and a sparse checkout leaves out files that are not deleted.
    let lacking: BTreeSet<RepoPath> = take_paths().into_iter().collect();
    deleted.retain(|path| lacking.contains(path));
    Ok(ChangedFiles { base: String::from_utf8_lossy(id).into_owned(), paths, deleted })
}
