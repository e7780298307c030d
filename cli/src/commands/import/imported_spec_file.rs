//! Writes the imported spec to `spec/verification.yaml` atomically. It follows no link, and replaces an existing spec
//! only on request.

use std::io::Write as _;

use proctor_core::spec::{MAX_BYTES, PATH};
use proctor_runner::{Directory, StoreError};

use crate::error::CliError;

const DIR: &str = "spec";
const FILE: &str = "verification.yaml";

/// Reads the existing spec; `None` if there is none.
///
/// # Errors
/// The file is not a regular file, is too large, is not UTF-8, or cannot be read.
pub(super) fn read(repo: &Directory) -> Result<Option<String>, CliError> {
    let directory = repo.ensure(DIR, 0o755).map_err(|error| store_error(&error))?;
    let bytes = directory.read(FILE, MAX_BYTES as u64).map_err(|error| store_error(&error))?;
    bytes.map(String::from_utf8).transpose().map_err(|_| CliError::Usage {
        message: format!("`{PATH}` is not UTF-8"),
        hint: "`proctor validate` shows the position".to_owned(),
    })
}

/// Writes the spec.
///
/// # Errors
/// A spec already exists, another kind of file is in the way, or a system call fails.
pub(super) fn write(repo: &Directory, text: &str, force: bool) -> Result<(), CliError> {
    let directory = repo.ensure(DIR, 0o755).map_err(|error| store_error(&error))?;
    let there = directory.open_file(FILE).map_err(|error| store_error(&error))?;
    if there.is_some() && !force {
        return Err(CliError::Usage {
            message: format!("`{PATH}` already exists"),
            hint: "`--into` adds the skills to it, and `--force` replaces it; `--dry-run` prints the result".to_owned(),
        });
    }
    let mut file = directory.create_temporary(FILE).map_err(|error| store_error(&error))?;
    let written = file.file.write_all(text.as_bytes()).and_then(|()| file.file.sync_all());
    written.map_err(|source| store_error(&StoreError::Io { action: "write", path: PATH.to_owned(), source }))?;
    file.publish(FILE).map_err(|error| store_error(&error))
}

/// Converts an error of the store.
pub(super) fn store_error(error: &StoreError) -> CliError {
    let hint = "`--dry-run` prints the spec without writing it".to_owned();
    CliError::Environment { message: error.to_string(), hint }
}
