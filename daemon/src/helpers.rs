//! Locates the helper programs.

use std::path::Path;

use proctor_client::installation::{InstallationError, find_program};
use proctor_runner::HelperPrograms;

/// Finds the helper programs next to the executable or in `../libexec/proctor`.
///
/// # Errors
/// A helper is in neither directory.
pub fn find_helpers(bin_dir: &Path) -> Result<HelperPrograms, InstallationError> {
    Ok(HelperPrograms {
        sandbox: find_program("proctor-sandbox", bin_dir)?,
        git: find_program("proctor-git", bin_dir)?,
        sql: find_program("proctor-sql", bin_dir)?,
    })
}
