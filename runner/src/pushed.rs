//! What a push sends, read without an engine: nothing runs for it.

use std::path::Path;

use proctor_snapshot::GitHelper;
use proctor_snapshot::protocol::{Push, Pushed};

use crate::error::EngineError;
use crate::repository::Repository;
use crate::request::Helpers;

/// The commits that `push` sends from a repository. Blocks until they are known.
///
/// # Errors
/// The repository cannot be read, an id is none of its own, or there are more commits than asked for.
pub fn pushed(helpers: &Helpers, repo: &Path, push: &Push) -> Result<Pushed, EngineError> {
    let repository = Repository::open(repo)?;
    Ok(GitHelper::new(helpers.git.clone()).pushed(repository.path(), push)?)
}
