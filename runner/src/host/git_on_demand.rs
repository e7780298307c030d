//! Provides the `git` program to code without an engine. The sandbox launcher starts only when libgit2 cannot read
//! a repository.

use std::fmt;
use std::sync::{Arc, OnceLock};

use proctor_git::helper::GitHelper;
use proctor_git::program::{GitOutput, GitProgram, GitProgramError, GitTask};
use proctor_git::repository_paths::RepositoryPaths;

use crate::error::{EngineError, one_line};
use crate::host::sandboxed_git::SandboxedGit;
use crate::run::request::EngineConfig;

/// Returns a helper that runs the `git` program like an engine with this `config`.
pub(crate) fn git_on_demand(config: EngineConfig) -> GitHelper {
    let helper = GitHelper::new(config.helpers.git.clone());
    helper.with_program(Arc::new(GitOnDemand { config, sandboxed: OnceLock::new() }))
}

/// The `git` program in its sandbox, started on first use.
struct GitOnDemand {
    config: EngineConfig,
    sandboxed: OnceLock<Result<SandboxedGit, EngineError>>,
}

impl fmt::Debug for GitOnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GitOnDemand").finish_non_exhaustive()
    }
}

impl GitProgram for GitOnDemand {
    fn run(&self, places: &RepositoryPaths, task: &GitTask) -> Result<GitOutput, GitProgramError> {
        let made = self.sandboxed.get_or_init(|| SandboxedGit::open(&self.config));
        made.as_ref().map_err(|error| GitProgramError::NotRun(one_line(error).into()))?.run(places, task)
    }
}
