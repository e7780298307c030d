//! Reads the commits of a push, without an engine, because no step runs.

use std::path::Path;

use proctor_snapshot::protocol::{Push, Pushed};

use crate::error::EngineError;
use crate::git_on_demand::git_on_demand;
use crate::repository::Repository;
use crate::request::EngineConfig;

/// Returns the commits that `push` sends from a repository. Blocks.
///
/// # Errors
/// The repository cannot be read, an id is not in it, or there are more commits than requested.
pub fn pushed(config: EngineConfig, repo: &Path, push: &Push) -> Result<Pushed, EngineError> {
    let repository = Repository::open(repo)?;
    Ok(git_on_demand(config).pushed(repository.path(), push)?)
}
