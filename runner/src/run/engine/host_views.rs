//! The part of the host that the steps of a run see.

use std::path::Path;

use proctor_core::model::enforcement::Tolerated;
use proctor_sandbox::{FsCredentials, StepUser};

use super::Engine;
use crate::error::EngineError;
use crate::host::repository::Repository;
use crate::run::run_context::HostView;

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

    pub(super) fn host_view_over(&self, repository: &Repository) -> Result<(HostView, StepUser), EngineError> {
        let user = StepUser::choose(self.launcher.host(), &repository.facts)?;
        Ok((self.host_view(repository.path(), user, self.config.operator.may_miss.clone())?, user))
    }

    pub(super) fn reader(&self, user: StepUser) -> Option<FsCredentials> {
        self.owner.map(|uid| FsCredentials { uid, gid: user.ids_in_sandbox().1 })
    }
}
