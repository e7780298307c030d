//! Notes whether a step looked at the commits, the branches or the index of its repository. A run with such a step answers
//! no request about the same tree, because another commit, branch or index can change the result.

use std::sync::atomic::{AtomicBool, Ordering};

use proctor_core::model::trace::{AccessedPath, PathState};
use proctor_core::reuse::StoredResult;
use proctor_sandbox::ViewTrace;

use crate::step::reuse::strip_directory;
use crate::step::tree_inputs::ObservedTree;

/// The entries of a git directory that are the same for all commits, branches and states of the index.
const CONSTANT: [&[u8]; 9] = [
    b"objects",
    b"info",
    b"config",
    b"config.worktree",
    b"hooks",
    b"description",
    b"commondir",
    b"gitdir",
    b"branches",
];

/// Whether the observed steps of a run looked at the git directory.
#[derive(Debug, Default)]
pub(crate) struct GitReads(AtomicBool);

impl GitReads {
    /// Notes the accesses of a step that was executed.
    pub(crate) fn note_view(&self, view: Option<&ViewTrace>, tree: Option<ObservedTree<'_>>) {
        let (Some(Ok(trace)), Some(tree)) = (view, tree) else { return };
        let top = tree.directory.as_os_str().as_encoded_bytes();
        let is_in_git =
            |entry: &AccessedPath| strip_directory(&entry.path, top).is_some_and(|path| depends_on_commit(entry, path));
        self.note(trace.entries().iter().any(is_in_git));
    }

    /// Notes the accesses of a step whose result is used.
    pub(crate) fn note_result(&self, result: &StoredResult) {
        self.note(result.inputs.tree().any(|(entry, _)| {
            let path = entry.path.strip_prefix(b"/").unwrap_or(&entry.path);
            depends_on_commit(entry, path)
        }));
    }

    /// Returns whether a step looked at the git directory.
    pub(crate) fn has_any(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn note(&self, is_in_git: bool) {
        self.0.fetch_or(is_in_git, Ordering::Relaxed);
    }
}

/// Returns whether the result of an access to a path of the tree can differ between commits with the same tree, between
/// branches, or between states of the index.
fn depends_on_commit(entry: &AccessedPath, path: &[u8]) -> bool {
    let mut names = path.split(|byte| *byte == b'/').skip_while(|name| *name != b".git").skip(1);
    let is_content = matches!(entry.state, PathState::File { .. } | PathState::Link { .. }) || entry.listing.is_some();
    is_content && names.next().is_some_and(|name| !CONSTANT.contains(&name))
}

#[cfg(test)]
mod tests {
    use proctor_core::model::trace::{AccessedPath, ListingDigest};

    use super::*;

    #[test]
    fn only_commits_branches_and_the_index_depend_on_the_commit() {
        let entry = |state, listing| AccessedPath { path: b"/x".to_vec(), state, stamp: None, read: false, listing };
        let file = entry(PathState::File { mode: 0o644, size: 1, uid: 0, gid: 0 }, None);
        let directory = PathState::Directory { mode: 0o755, uid: 0, gid: 0 };
        let listed = entry(directory.clone(), Some(ListingDigest::from_entries(Vec::<(&[u8], _)>::new())));
        for path in [&b".git/HEAD"[..], b".git/index", b".git/refs/heads/main", b".git/packed-refs", b"sub/.git/HEAD"] {
            assert!(depends_on_commit(&file, path));
            assert!(!depends_on_commit(&entry(PathState::Absent, None), path), "it is absent in each of them");
        }
        for path in [&b".git/config"[..], b".git/objects/0a/1", b".git/info/exclude", b".git", b"HEAD", b".gitignore"] {
            assert!(!depends_on_commit(&file, path));
        }
        assert!(
            depends_on_commit(&listed, b".git/refs/tags") && !depends_on_commit(&entry(directory, None), b".git/refs")
        );
    }
}
