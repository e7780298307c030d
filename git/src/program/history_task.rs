//! Asks the `git` program for commits of a repository that libgit2 cannot read: refs that are not stored in files,
//! and objects with sha256 ids. `program_output.rs` parses the output.

use std::collections::BTreeMap;

use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::program::{GitProgram, GitTask, run_task};
use crate::protocol::{GitRequest, Push};
use crate::repository::revision;
use crate::repository_paths::RepositoryPaths;

/// Prints each part after a line with its name, its exit code and its length. The names of the input files select
/// the parts. Commit-graph and grafts are disabled so that they do not change the history.
const SCRIPT: &str = r#"set -eu
top=$(pwd -P)
export GIT_DIR="$top/.git" GIT_WORK_TREE="$top" GIT_GRAFT_FILE=/dev/null
scratch=$(mktemp -d)
touch "$scratch/ids"
requested() { [ -e "$INPUT/$1" ]; }
g() { git -c core.commitGraph=false -c advice.graftFileDeprecated=false "$@"; }
part() {
  name=$1; shift
  if "$@" > "$scratch/out"; then code=0; else code=$?; fi
  printf '%s %s %s\n' "$name" "$code" "$(wc -c < "$scratch/out")"
  cat "$scratch/out"
}
walk() { g rev-list --topo-order --reverse --max-count="$(cat "$INPUT/limit")" "$@"; }
kinds() { g cat-file --batch-check='%(objectname) %(objecttype)'; }

if requested refs; then part refs g for-each-ref --format='%(objectname) %(refname)'; fi

for end in from to; do
  if requested "$end"; then
    id=$(g rev-parse --verify -q "$(cat "$INPUT/$end")") || id=
    part "$end.kind" g cat-file -t "$id"
    part "$end" g rev-parse --verify -q "$id^{commit}"
    cat "$scratch/out" > "$scratch/$end"
    cat "$scratch/out" >> "$scratch/ids"
    if requested "$end.plain"; then
      for namespace in tags heads remotes; do
        part "$end.$namespace" g rev-parse --verify -q "refs/$namespace/$(cat "$INPUT/$end.plain")^{}"
      done
    fi
  fi
done
if requested range; then
  part walk walk "$(cat "$scratch/from")$(cat "$INPUT/range")$(cat "$scratch/to")" --
  cat "$scratch/out" >> "$scratch/ids"
fi

if requested tips; then
  cat "$INPUT/tips" > "$scratch/round"
  while [ -s "$scratch/round" ]; do
    kinds < "$scratch/round" > "$scratch/found"
    cat "$scratch/found" >> "$scratch/kinds"
    : > "$scratch/round"
    sed -n 's/ tag$//p' "$scratch/found" | while read -r tag; do
      g cat-file tag "$tag" | sed -n '1s/^object //p' >> "$scratch/round"
    done
  done
  sed -n 's/ [a-z]*$//p' "$scratch/kinds" >> "$scratch/ids"
fi
if requested known; then
  {
    sed -n 's/ commit$//p' "$scratch/kinds"
    kinds < "$INPUT/known" | sed -n 's/^\(.*\) \(commit\|tag\)$/^\1/p'
    g for-each-ref --format='^%(objectname)' refs/remotes
  } > "$scratch/revisions"
  if grep -q '^[^^]' "$scratch/revisions"; then
    part walk walk --ignore-missing --stdin < "$scratch/revisions"
    cat "$scratch/out" >> "$scratch/ids"
  else
    part walk true
  fi
fi

if requested commit; then
  cat "$INPUT/commit" >> "$scratch/ids"
  if requested tree; then
    g rev-list --objects --no-object-names --no-walk --missing=allow-any --ignore-missing \
      "$(cat "$INPUT/commit")" -- >> "$scratch/ids"
  fi
  if requested others; then cat "$INPUT/others" >> "$scratch/ids"; fi
fi
if requested objects; then
  sort -u "$scratch/ids" > "$scratch/sorted"
  part objects g cat-file --batch --buffer < "$scratch/sorted"
fi
"#;

/// Runs the script for `request` in the repository at `places`, whose objects have this `format`, and returns the
/// output.
///
/// # Errors
/// Git failed.
pub(crate) fn query_history(
    program: &dyn GitProgram,
    places: &RepositoryPaths,
    request: &GitRequest,
    format: ObjectFormat,
) -> Result<Vec<u8>, GitError> {
    let mut input = script_input(request);
    if format != ObjectFormat::Sha1 {
        // libgit2 reads sha1 objects even if it cannot read the refs.
        input.insert("objects", Vec::new());
    }
    let task = GitTask { script: SCRIPT, directory: RepoPath(Vec::new()), input };
    run_task(program, places, &task)
        .map_err(|error| GitError::Unreadable { path: places.worktree.clone(), problem: error.to_string() })
}

fn script_input(request: &GitRequest) -> BTreeMap<&'static str, Vec<u8>> {
    match request {
        GitRequest::Resolve { revision, limit, .. } => revision_input(revision, *limit),
        GitRequest::Pushed { push, .. } => push_input(push),
        GitRequest::Content { commit, .. }
        | GitRequest::Files { commit, .. }
        | GitRequest::Tree { commit, .. }
        | GitRequest::Blobs { commit, .. } => {
            BTreeMap::from([("commit", id_lines([&commit.id])), ("tree", Vec::new())])
        }
        GitRequest::Objects { wanted, .. } => {
            let others = wanted.tags.iter().chain(&wanted.blobs);
            let others = others.flat_map(|id| format!("{id}\n").into_bytes()).collect();
            let commit = format!("{}\n", wanted.commit).into_bytes();
            BTreeMap::from([("commit", commit), ("tree", Vec::new()), ("others", others)])
        }
        GitRequest::History { .. } => BTreeMap::from([("refs", Vec::new())]),
        GitRequest::List { .. }
        | GitRequest::Ignored { .. }
        | GitRequest::Staged { .. }
        | GitRequest::Changed { .. } => BTreeMap::new(),
    }
}

fn revision_input(text: &str, limit: usize) -> BTreeMap<&'static str, Vec<u8>> {
    let mut input = BTreeMap::new();
    // The parser of the output rejects a revision that is not well-formed.
    if !revision::is_well_formed(text) {
        return input;
    }
    let mut end = |name: &'static str, plain_name: &'static str, text: &str| {
        input.insert(name, text.as_bytes().to_vec());
        if let Some(plain) = revision::ambiguous_name(text) {
            input.insert(plain_name, plain.as_bytes().to_vec());
        }
    };
    match revision::parse_range(text) {
        None => end("to", "to.plain", text),
        Some(range) => {
            end("from", "from.plain", range.from);
            end("to", "to.plain", range.to);
            input.insert("range", if range.symmetric { b"...".to_vec() } else { b"..".to_vec() });
            input.insert("limit", (limit + 1).to_string().into_bytes());
        }
    }
    input
}

fn push_input(push: &Push) -> BTreeMap<&'static str, Vec<u8>> {
    let mut input = BTreeMap::from([("tips", id_lines(&push.tips))]);
    if push.each {
        input.insert("known", id_lines(&push.known));
        input.insert("limit", (push.limit + 1).to_string().into_bytes());
    }
    input
}

/// Writes one line per id. A text that is not an id is omitted, so that it is not found.
fn id_lines<'a>(ids: impl IntoIterator<Item = &'a String>) -> Vec<u8> {
    let are_ids = ids.into_iter().filter_map(|id| ObjectId::from_hex(id.as_bytes()));
    are_ids.flat_map(|id| format!("{id}\n").into_bytes()).collect()
}
