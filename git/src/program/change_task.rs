//! Asks the `git` program in which files a tree differs from a commit.

use std::collections::BTreeMap;

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::program::{GitProgram, GitTask, run_task};
use crate::protocol::{ChangedFiles, CommitRef};
use crate::repository::changed_files::DEFAULT_BASE;
use crate::repository::revision;
use crate::repository_paths::RepositoryPaths;

/// Prints the id of the base on a line, then the changed paths, an empty path, and the deleted paths.
const SCRIPT: &str = r#"set -eu
top=$(pwd -P)
export GIT_DIR="$top/.git" GIT_WORK_TREE="$top" GIT_GRAFT_FILE=/dev/null
base=$(git rev-parse --verify -q --end-of-options "$(cat "$INPUT/base")^{commit}") || exit 3
if [ -e "$INPUT/target" ]; then target=$(cat "$INPUT/target"); else target=HEAD; fi
merged=$(git merge-base "$base" "$target") || merged=$base
printf '%s\n' "$merged"
compare() {
  filter=$1; shift
  git diff -z --name-only --no-renames --no-ext-diff --no-textconv --ignore-submodules=all --diff-filter="$filter" "$@" --
}
changes() {
  if [ -e "$INPUT/target" ]; then
    compare "$1" "$merged" "$target"
  else
    compare "$1" "$merged"
  fi
}
changes d
if [ ! -e "$INPUT/target" ]; then git ls-files -z --others --exclude-standard; fi
printf '\\0'
changes D
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
    let mut take_paths =
        || printed_paths.by_ref().take_while(|path| !path.is_empty()).map(|path| RepoPath(path.to_vec())).collect();
    Ok(ChangedFiles { base: String::from_utf8_lossy(id).into_owned(), paths: take_paths(), deleted: take_paths() })
}
