//! Asks the `git` program for the blobs of files that it converts.

use std::collections::BTreeMap;

use super::{GitProgram, GitTask, Places, TreeEntries, ask, index_info, staged};
use crate::git::index::Index;
use crate::git::protocol::RepoPath;
use crate::paths;

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
/// The reason why git failed.
pub(crate) fn converted(
    program: &dyn GitProgram,
    places: &Places,
    index: &Index,
    unclear: &[&[u8]],
) -> Result<TreeEntries, String> {
    let attributes: Vec<&[u8]> =
        index.paths().map(|entries| entries[0].path.0.as_slice()).filter(|path| is_attributes(path)).collect();
    let mut asked: Vec<&[u8]> = unclear.iter().chain(&attributes).copied().collect();
    asked.sort_unstable();
    asked.dedup();
    let skipped = |path: &&[u8]| index.at_path(path).iter().any(|entry| entry.skip_worktree);
    let absent: Vec<u8> =
        attributes.iter().filter(|path| skipped(path)).flat_map(|path| [path, &b"\0"[..]].concat()).collect();
    let input = BTreeMap::from([("entries", index_info(index, asked.into_iter())), ("absent", absent)]);
    let task = GitTask { script: SCRIPT, directory: RepoPath(index.at.0.clone()), input };
    let told = ask(program, places, &task)?;
    read(&told).ok_or_else(|| "git answered in words that are not understood".to_owned())
}

fn is_attributes(path: &[u8]) -> bool {
    paths::name(path) == b".gitattributes"
}

fn read(told: &[u8]) -> Option<TreeEntries> {
    let lines = told.split(|b| *b == 0).filter(|line| !line.is_empty());
    lines.map(|line| staged(line).map(|(mode, id, _, path)| (path.to_vec(), (mode, id)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_whole_or_not_at_all() {
        let id = "45b983be36b73c0788dc9cbcb76cbb80fc7bb057";
        let told = format!("100644 {id} 0\ta\tb\n\0120000 {id} 0\tc\0");
        let read_paths = read(told.as_bytes()).expect("reads").into_keys().collect::<Vec<_>>();
        assert_eq!(read_paths, [b"a\tb\n".to_vec(), b"c".to_vec()]);
        for bad in ["100644 45b9 0\ta\0", "x", "100644 \ta\0"] {
            assert_eq!(read(bad.as_bytes()), None, "{bad}");
        }
    }
}
