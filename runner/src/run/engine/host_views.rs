//! The part of the host that the steps of a run see. A daemon determines it when it accepts a run, and the run does not
//! repeat that if it starts at once.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use proctor_core::model::enforcement::Tolerated;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{FsCredentials, StepUser};
use tokio::time::Instant;

use super::Engine;
use crate::error::EngineError;
use crate::host::repository::Repository;
use crate::run::run_context::HostView;

/// How long a run may use what was found when it was accepted. A run that waits longer searches again.
const MAX_AGE: Duration = Duration::from_secs(1);

/// What was found when a run was accepted. It belongs to the engine of one caller and request.
#[derive(Debug, Default)]
pub(super) struct AdmissionFindings(Mutex<Option<Findings>>);

#[derive(Debug, Clone)]
struct Findings {
    search: Search,
    host_view: HostView,
    /// The digest of the plan, and of the tools that it finds; `None` if some of them are in the tree, because steps see
    /// the private copy of the run.
    tools: Option<(Sha256Hex, Sha256Hex)>,
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

    fn get(&self, repo: &Path, reader: Option<FsCredentials>) -> Option<Findings> {
        let findings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        findings.as_ref().filter(|found| found.search.is_current(repo, reader)).cloned()
    }
}

impl Engine {
    /// Returns the parts of the host that steps of `user` over `repo` see. With a required owner, files are looked up
    /// with that user's rights, so that a caller reaches no file that it could not reach itself.
    pub(super) fn host_view(&self, repo: &Path, user: StepUser, tolerated: Tolerated) -> Result<HostView, EngineError> {
        let reader = self.reader(user);
        HostView::for_repository(&self.config, &self.launcher, &self.state, &self.state_path, repo, reader, tolerated)
    }

    /// Like [`Engine::host_view`], for a run that may have just been accepted.
    pub(super) fn host_view_of_run(
        &self,
        repo: &Path,
        user: StepUser,
        tolerated: Tolerated,
    ) -> Result<HostView, EngineError> {
        match self.admission_findings.get(repo, self.reader(user)) {
            Some(found) => Ok(HostView { tolerated, ..found.host_view }),
            None => self.host_view(repo, user, tolerated),
        }
    }

    /// Returns the digest of the tools of a plan, if it was determined when the run was accepted.
    pub(super) fn accepted_tools(
        &self,
        repo: &Path,
        reader: Option<FsCredentials>,
        plan_sha256: &Sha256Hex,
    ) -> Option<Sha256Hex> {
        let (plan, tools) = self.admission_findings.get(repo, reader)?.tools?;
        (plan == *plan_sha256).then_some(tools)
    }

    pub(super) fn host_view_over(&self, repository: &Repository) -> Result<(HostView, StepUser), EngineError> {
        let user = StepUser::choose(self.launcher.host(), &repository.facts)?;
        Ok((self.host_view(repository.path(), user, self.config.operator.may_miss.clone())?, user))
    }

    pub(super) fn reader(&self, user: StepUser) -> Option<FsCredentials> {
        self.owner.map(|uid| FsCredentials { uid, gid: user.ids_in_sandbox().1 })
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
