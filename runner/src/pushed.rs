//! What a push sends, read without an engine: no step runs for it.

use std::path::Path;

use proctor_snapshot::protocol::{Push, Pushed};

use crate::error::EngineError;
use crate::git_on_demand::git_on_demand;
use crate::repository::Repository;
use crate::request::EngineConfig;

/// The commits that `push` sends from a repository. Blocks until they are known.
///
/// # Errors
/// The repository cannot be read, an id is none of its own, or there are more commits than asked for.
pub fn pushed(config: EngineConfig, repo: &Path, push: &Push) -> Result<Pushed, EngineError> {
    let repository = Repository::open(repo)?;
    Ok(git_on_demand(config).pushed(repository.path(), push)?)
}
