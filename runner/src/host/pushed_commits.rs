//! Reads the commits of a push, without an engine, because no step runs.

use std::path::Path;

use proctor_git::protocol::{Push, ResolvedPush};

use crate::error::EngineError;
use crate::host::git_on_demand::git_on_demand;
use crate::host::repository::Repository;
use crate::run::request::EngineConfig;

/// Returns the commits that `push` sends from a repository. Blocks.
///
/// # Errors
/// The repository cannot be read, an id is not in it, or there are more commits than requested.
pub fn pushed_commits(config: EngineConfig, repo: &Path, push: &Push) -> Result<ResolvedPush, EngineError> {
    let repository = Repository::find(repo)?;
    Ok(git_on_demand(config).resolve_push(repository.path(), push)?)
}
