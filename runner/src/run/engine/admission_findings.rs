//! Keeps the findings of a daemon about the host when it accepted a run, so that a run that starts at once need not
//! search again.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::FsCredentials;
use tokio::time::Instant;

use crate::run::run_context::HostView;

/// Maximum age of findings that a run may use. A run that waits longer searches again.
const MAX_AGE: Duration = Duration::from_secs(1);

/// The findings when a run was accepted. They belong to the engine of one caller and request.
#[derive(Debug, Default)]
pub(super) struct AdmissionFindings(Mutex<Option<Findings>>);

#[derive(Debug, Clone)]
pub(super) struct Findings {
    search: Search,
    pub(super) host_view: HostView,
    tools: AcceptedTools,
}

/// The tools that the plan of a request finds.
#[derive(Debug, Clone)]
pub(super) struct AcceptedTools {
    /// The digest of the plan.
    pub(super) plan: Sha256Hex,
    /// The digest of the tools.
    pub(super) digest: Sha256Hex,
    /// True if some of them are in the tree, whose private copy the steps of the run see.
    pub(super) is_any_in_tree: bool,
}

/// The tools with which a request was accepted.
#[derive(Debug)]
pub(super) struct ToolsOfRequest {
    pub(super) digest: Sha256Hex,
    pub(super) is_any_in_tree: bool,
    /// True if the search took place a moment ago.
    pub(super) is_current: bool,
}

/// The search that led to the findings.
#[derive(Debug, Clone)]
struct Search {
    at: Instant,
    /// The path at which steps see the tree.
    repo: PathBuf,
    reader: Option<FsCredentials>,
}

impl Search {
    /// Returns whether this search is for the same repository and user, and recent enough.
    fn is_current(&self, repo: &Path, reader: Option<FsCredentials>) -> bool {
        self.at.elapsed() <= MAX_AGE && self.repo == repo && self.reader == reader
    }
}

impl AdmissionFindings {
    /// Keeps the findings for a repository.
    pub(super) fn keep(&self, repo: &Path, host_view: HostView, tools: AcceptedTools) {
        let search = Search { at: Instant::now(), repo: repo.to_owned(), reader: host_view.reader };
        let findings = Findings { search, host_view, tools };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(findings);
    }

    /// Returns the tools with which a request for this plan was accepted, however long ago.
    pub(super) fn tools(&self, repo: &Path, plan_sha256: &Sha256Hex) -> Option<ToolsOfRequest> {
        let findings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Findings { search, tools, .. } = findings.as_ref().filter(|found| found.search.repo == repo)?;
        (tools.plan == *plan_sha256).then(|| ToolsOfRequest {
            digest: tools.digest.clone(),
            is_any_in_tree: tools.is_any_in_tree,
            is_current: search.at.elapsed() <= MAX_AGE,
        })
    }

    /// Returns the tools of a plan as they were a moment ago; `None` if some of them are in the tree.
    pub(super) fn current_tools(
        &self,
        repo: &Path,
        reader: Option<FsCredentials>,
        plan_sha256: &Sha256Hex,
    ) -> Option<Sha256Hex> {
        let AcceptedTools { plan, digest, is_any_in_tree } = self.get(repo, reader)?.tools;
        (plan == *plan_sha256 && !is_any_in_tree).then_some(digest)
    }

    /// Returns recent findings for a repository and a user.
    pub(super) fn get(&self, repo: &Path, reader: Option<FsCredentials>) -> Option<Findings> {
        let findings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        findings.as_ref().filter(|found| found.search.is_current(repo, reader)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn findings_expire_and_belong_to_one_repository_and_user() {
        let (repo, reader) = (Path::new("/srv/r"), Some(FsCredentials { uid: 1, gid: 1 }));
        let search = Search { at: Instant::now(), repo: repo.to_owned(), reader };
        assert!(search.is_current(repo, reader));
        assert!(!search.is_current(Path::new("/srv/other"), reader));
        assert!(!search.is_current(repo, None));
        tokio::time::advance(MAX_AGE).await;
        assert!(search.is_current(repo, reader));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!search.is_current(repo, reader));
    }
}
