//! Records what the observed steps of a run read outside the tree. A run answers no later request about the same tree
//! if a step looked at the commits, the branches or the index, or if the files of the host that a step read have
//! changed since.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::model::trace::{AccessedPath, PathState};
use proctor_core::record::attestation::ObservedResult;
use proctor_core::record::evidence::ResultOrigin;
use proctor_core::reuse::StoredResult;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::ViewTrace;
use proctor_snapshot::EntryTree;

use crate::step::host_stamps::replaced_image;
use crate::step::recent_observations::{RecentInputs, RecentObservations};
use crate::step::reuse::strip_directory;
use crate::step::tree_inputs::{ObservedTree, TreeInputs};
use crate::store::StoreError;
use crate::store::directory::Directory;
use crate::store::results::StepResults;

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

/// The reads of the observed steps of a run.
#[derive(Debug, Default)]
pub(crate) struct RunReads {
    /// True if a step looked at the commits, the branches or the index, or if it is not known what a step read.
    may_depend_on_commit: AtomicBool,
    /// The stored results of the steps.
    results: Mutex<BTreeSet<ObservedResult>>,
}

impl RunReads {
    /// Records the accesses of an executed step.
    pub(crate) fn note_view(&self, view: Option<&ViewTrace>, tree: Option<ObservedTree<'_>>) {
        let (Some(Ok(trace)), Some(tree)) = (view, tree) else { return };
        let top = tree.directory.as_os_str().as_encoded_bytes();
        let is_in_git =
            |entry: &AccessedPath| strip_directory(&entry.path, top).is_some_and(|path| depends_on_commit(entry, path));
        self.may_depend_on_commit.fetch_or(trace.entries().iter().any(is_in_git), Ordering::Relaxed);
    }

    /// Records a stored result that was used or stored.
    pub(crate) fn note_result(&self, result: &StoredResult) {
        let is_in_git = |(entry, _): (&AccessedPath, _)| {
            let path = entry.path.strip_prefix(b"/").unwrap_or(&entry.path);
            depends_on_commit(entry, path)
        };
        self.may_depend_on_commit.fetch_or(result.inputs.tree().any(is_in_git), Ordering::Relaxed);
        if result.worker.is_none() {
            let observed = ObservedResult { key: result.key.clone(), inputs_sha256: result.inputs_sha256.clone() };
            self.results.lock().unwrap_or_else(PoisonError::into_inner).insert(observed);
        }
    }

    /// Notes that a step was executed without a view although others of its kind are observed: the first view failed, for
    /// example because files of the host were exchanged, or the first attempt.
    pub(crate) fn note_unobserved(&self) {
        self.may_depend_on_commit.store(true, Ordering::Relaxed);
    }

    /// Returns whether a step looked at the git directory, or whether it is not known what a step read.
    pub(crate) fn may_depend_on_commit(&self) -> bool {
        self.may_depend_on_commit.load(Ordering::Relaxed)
    }

    /// Returns the stored results of the steps.
    pub(crate) fn results(&self) -> Vec<ObservedResult> {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// Returns the reason why the steps of an earlier run could have a different result now: a file of the host has
/// changed, or the result of another machine is no longer trusted. `None` if there is no reason.
///
/// # Errors
/// The results cannot be read.
pub(crate) fn first_change_since(
    state: &Directory,
    observed: &[ObservedResult],
    trusts: impl Fn(&ResultOrigin) -> bool,
) -> Result<Option<String>, StoreError> {
    let results = StepResults::open(state, u64::MAX)?;
    let (entries, recent) = (EntryTree::default(), RecentObservations::default());
    let tree = TreeInputs(ObservedTree { entries: &entries, directory: Path::new("/"), inputs: None });
    let now = RecentInputs { inputs: &tree, recent: &recent };
    for ObservedResult { key, inputs_sha256 } in observed {
        let Some(result) = stored_result(&results, key, inputs_sha256)? else {
            return Ok(Some("the result of a step is no longer stored".to_owned()));
        };
        if result.origin.as_ref().is_some_and(|origin| !trusts(origin)) {
            return Ok(Some("the key of another machine is no longer trusted".to_owned()));
        }
        let change = result.inputs.first_host_change(&now).or_else(|| replaced_image(&result.images, &result.inputs));
        if let Some(change) = change {
            return Ok(Some(change.to_string()));
        }
    }
    Ok(None)
}

fn stored_result(
    results: &StepResults,
    key: &Sha256Hex,
    inputs_sha256: &Sha256Hex,
) -> Result<Option<Arc<StoredResult>>, StoreError> {
    for result in results.candidates(key)? {
        let result = result?;
        if result.inputs_sha256 == *inputs_sha256 && result.worker.is_none() {
            return Ok(Some(result));
        }
    }
    Ok(None)
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

    #[test]
    fn a_run_holds_while_its_results_are_stored_trusted_and_unchanged() {
        let (temp, outside) = (tempfile::tempdir().expect("temp"), tempfile::tempdir().expect("temp"));
        let state = Directory::open(temp.path()).expect("opens");
        let absent = outside.path().join("absent");
        let mut result = crate::store::results::tests::result("key", absent.to_str().expect("UTF-8"));
        let observed = [ObservedResult { key: result.key.clone(), inputs_sha256: result.inputs_sha256.clone() }];
        let change = |trusted: bool| first_change_since(&state, &observed, |_| trusted).expect("reads");
        assert!(change(true).is_some(), "it is not stored");
        let results = StepResults::open(&state, u64::MAX).expect("opens");
        results.store(&result).expect("stores");
        assert_eq!(change(false), None);
        std::os::unix::fs::symlink("target", &absent).expect("links");
        assert!(change(true).is_some(), "the path exists now");
        std::fs::remove_file(&absent).expect("removes");
        result.origin = Some(ResultOrigin { key_id: Sha256Hex::digest(b"key"), host: "h".to_owned() });
        results.store(&result).expect("stores");
        assert!(change(false).is_some() && change(true).is_none());
    }
}
