//! Finds the specs that a hook verifies with `--each-spec`.

use std::path::{Path, PathBuf};

use proctor_core::model::plan::RelPath;
use proctor_runner::{
    CommitRef, CommitSpecQuery, CommitSpecs, RangeBase, WorktreePlace, WorktreeSpecs, commit_specs, worktree_specs,
};

use crate::args::HookRunArgs;
use crate::caller::Caller;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;

/// Maximum number of specs of one commit: each one is a run.
const MAX_SPECS: usize = 256;

/// A search for specs.
#[derive(Debug, Clone, Copy)]
pub(super) struct HookSpecs<'a> {
    pub args: &'a HookRunArgs,
    pub caller: &'a Caller,
    /// The top of the worktree.
    pub top: &'a Path,
}

impl HookSpecs<'_> {
    /// Returns the specs of a commit. `base` is the commit from which its changes count, and `former` are the ids that the
    /// commit replaces.
    pub(super) fn of_commit(
        self,
        commit: CommitRef,
        base: Option<RangeBase>,
        former: Vec<String>,
    ) -> Result<CommitSpecs, CliError> {
        let query = CommitSpecQuery { commit, base, former, skips_unaffected: self.args.options.affected_specs };
        let found = commit_specs(self.config()?, self.top, &query).map_err(engine_error)?;
        check_count(found.verified.len())?;
        Ok(found)
    }

    /// Returns the specs of the worktree.
    pub(super) fn of_worktree(self) -> Result<WorktreeSpecs, CliError> {
        let found = worktree_specs(self.config()?, self.top).map_err(engine_error)?;
        check_count(found.present.len())?;
        Ok(found)
    }

    fn config(self) -> Result<proctor_runner::EngineConfig, CliError> {
        let operator = installation::operator(&self.args.backend.operator, self.caller)?;
        engine::config(&self.args.backend.state, operator, self.caller)
    }

    /// Returns the first directory that a daemon cannot verify by its path: the worktree lacks it, or has a link there.
    pub(super) fn first_without_path(self, specs: &[CommitSpecs]) -> Option<&RelPath> {
        let has_path = |directory: &RelPath| {
            let path = self.top.join(directory.as_str());
            directory.is_repository() || path.canonicalize().is_ok_and(|found| found == path && found.is_dir())
        };
        specs.iter().flat_map(|specs| &specs.verified).find(|directory| !has_path(directory))
    }
}

fn check_count(count: usize) -> Result<(), CliError> {
    match count <= MAX_SPECS {
        true => Ok(()),
        false => Err(CliError::Usage {
            message: format!("there are {count} specs, and a hook verifies at most {MAX_SPECS}"),
            hint: "install the hook without `--each-spec`, with a spec at the top".to_owned(),
        }),
    }
}

/// Returns the top of the worktree that contains a directory.
pub(super) fn worktree_top(directory: &Path) -> Result<PathBuf, CliError> {
    let place = WorktreePlace::find(directory).map_err(|error| CliError::Usage {
        message: error.to_string(),
        hint: "run the hook in the worktree of a repository".to_owned(),
    })?;
    Ok(place.top)
}
