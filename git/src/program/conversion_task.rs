//! Asks the `git` program for the blobs of files that it converts.

use std::collections::BTreeMap;

use crate::files::paths;
use crate::files::repo_path::RepoPath;
use crate::index::GitIndex;
use crate::program::{GitProgram, GitProgramError, GitTask, TreeEntries, index_info, parse_staged_line, run_task};
use crate::repository_paths::RepositoryPaths;

/// Adds the files of the work tree to a temporary index, with a temporary object directory. Its entries have no
/// stat data, so git reads every file. Attribute files are entries too, since git falls back to them in the index.
const SCRIPT: &str = r#"set -eu
top=$(pwd -P)
export GIT_DIR="$top/.git" GIT_WORK_TREE="$top"
attributes=$(git config --type=path core.attributesFile || true)
if [ -n "$attributes" ] && [ ! -e "$attributes" ]; then
  echo "core.attributesFile names a file that is not there in the sandbox" >&2
  exit 1
fi
scratch=$(mktemp -d)
borrowed=$(git rev-parse --path-format=absolute --git-path objects)
mkdir -p "$scratch/objects/info"
printf '%s\n' "$borrowed" > "$scratch/objects/info/alternates"
export GIT_INDEX_FILE="$scratch/index" GIT_OBJECT_DIRECTORY="$scratch/objects"
git update-index -z --index-info < "$INPUT/entries"
git update-index -z --skip-worktree --stdin < "$INPUT/absent"
git add --sparse -u >&2
git ls-files --stage -z
"#;

/// Returns the tree entries that git makes of the files at `unclear`. A path without an entry was deleted.
///
/// # Errors
/// Git failed.
pub fn convert_files(
    program: &dyn GitProgram,
    places: &RepositoryPaths,
    index: &GitIndex,
    convertible: &[&[u8]],
) -> Result<TreeEntries, GitProgramError> {
    let attributes: Vec<&[u8]> = index
        .entries_by_path()
        .map(|entries| entries[0].path.0.as_slice())
        .filter(|path| is_attributes_file(path))
        .collect();
    let mut queried: Vec<&[u8]> = convertible.iter().chain(&attributes).copied().collect();
    queried.sort_unstable();
    queried.dedup();
    let skipped = |path: &&[u8]| index.entries_at(path).iter().any(|entry| entry.skip_worktree);
    let absent: Vec<u8> =
        attributes.iter().filter(|path| skipped(path)).flat_map(|path| [path, &b"\0"[..]].concat()).collect();
    let input = BTreeMap::from([("entries", index_info(index, queried.into_iter())), ("absent", absent)]);
    let task = GitTask { script: SCRIPT, directory: RepoPath(index.at.0.clone()), input };
    parse_entries(&run_task(program, places, &task)?).ok_or(GitProgramError::MalformedOutput)
}

fn is_attributes_file(path: &[u8]) -> bool {
    paths::file_name(path) == b".gitattributes"
}

fn parse_entries(output: &[u8]) -> Option<TreeEntries> {
    let lines = output.split(|b| *b == 0).filter(|line| !line.is_empty());
    lines.map(|line| parse_staged_line(line).map(|(mode, id, _, path)| (path.to_vec(), (mode, id)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_malformed_output() {
        let id = "45b983be36b73c0788dc9cbcb76cbb80fc7bb057";
        let printed = format!("100644 {id} 0\ta\tb\n\0120000 {id} 0\tc\0");
        let read_paths = parse_entries(printed.as_bytes()).expect("reads").into_keys().collect::<Vec<_>>();
        assert_eq!(read_paths, [b"a\tb\n".to_vec(), b"c".to_vec()]);
        for bad in ["100644 45b9 0\ta\0", "x", "100644 \ta\0"] {
            assert_eq!(parse_entries(bad.as_bytes()), None, "{bad}");
        }
    }
}
