//! Keeps what a daemon found on the host when it accepted a run. The run does not search again if it starts at once.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::FsCredentials;
use tokio::time::Instant;

use crate::run::run_context::HostView;

/// How long a run may use what was found when it was accepted. A run that waits longer searches again.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What was found when a run was accepted. It belongs to the engine of one caller and request.
#[derive(Debug, Default)]
pub(super) struct AdmissionFindings(Mutex<Option<Findings>>);

#[derive(Debug, Clone)]
pub(super) struct Findings {
    search: Search,
    pub(super) host_view: HostView,
    /// The digest of the plan, and of the tools that it finds; `None` if some of them are in the tree, because steps see
    /// the private copy of the run.
    pub(super) tools: Option<(Sha256Hex, Sha256Hex)>,
}

/// A search for what steps see.
#[derive(Debug, Clone)]
struct Search {
    at: Instant,
    /// The path at which steps see the tree.
    repo: PathBuf,
    reader: Option<FsCredentials>,
}

impl Search {
    /// Returns whether the same search would hardly find anything else now.
    fn is_current(&self, repo: &Path, reader: Option<FsCredentials>) -> bool {
        self.at.elapsed() <= MAX_AGE && self.repo == repo && self.reader == reader
    }
}

impl AdmissionFindings {
    /// Keeps what was found for a repository.
    pub(super) fn keep(&self, repo: &Path, host_view: HostView, tools: Option<(Sha256Hex, Sha256Hex)>) {
        let search = Search { at: Instant::now(), repo: repo.to_owned(), reader: host_view.reader };
        let findings = Findings { search, host_view, tools };
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(findings);
    }

    /// Returns what was found a moment ago.
    pub(super) fn get(&self, repo: &Path, reader: Option<FsCredentials>) -> Option<Findings> {
        let findings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        findings.as_ref().filter(|found| found.search.is_current(repo, reader)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_search_holds_for_the_same_repository_and_reader_and_for_a_second() {
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
