//! Writes a new spec to `spec/verification.yaml` atomically. It follows no link, and replaces an existing spec only
//! on request.

use std::io::{ErrorKind, Write as _};

use proctor_core::spec::PATH;
use proctor_runner::{Directory, StoreError};
use rustix::fs::{AtFlags, FileType, statat};

use crate::error::CliError;

const DIR: &str = "spec";
const FILE: &str = "verification.yaml";

/// Checks that a spec can be written, before any other work is done.
///
/// # Errors
/// Another entry exists at the path.
pub(super) fn check_writable(repo: &Directory, force: bool) -> Result<(), CliError> {
    match file_type(repo, DIR)? {
        None => return Ok(()),
        Some(FileType::Directory) => {}
        Some(FileType::Symlink) => return Err(blocked_error(DIR, "is a symbolic link, and is not followed")),
        Some(_) => return Err(blocked_error(DIR, "is not a directory")),
    }
    let directory = repo.descend(DIR).map_err(|error| store_error(&error))?;
    match file_type(&directory, FILE)? {
        None => Ok(()),
        Some(FileType::RegularFile) if force => Ok(()),
        Some(FileType::RegularFile) => Err(already_exists_error()),
        Some(FileType::Symlink) => Err(blocked_error(PATH, "is a symbolic link, and is not followed")),
        Some(_) => Err(blocked_error(PATH, "is not a file")),
    }
}

/// Writes the spec.
///
/// # Errors
/// A spec was created in the meantime, or a system call fails.
pub(super) fn write(repo: &Directory, text: &str, force: bool) -> Result<(), CliError> {
    let directory = repo.ensure(DIR, 0o755).map_err(|error| store_error(&error))?;
    let mut file = directory.create_temporary(FILE).map_err(|error| store_error(&error))?;
    let written = file.file.write_all(text.as_bytes()).and_then(|()| file.file.sync_all());
    written.map_err(|source| store_error(&StoreError::Io { action: "write", path: PATH.to_owned(), source }))?;
    let is_new = match force {
        true => file.publish(FILE).map(|()| true),
        false => file.publish_new(FILE),
    };
    if is_new.map_err(|error| store_error(&error))? { Ok(()) } else { Err(already_exists_error()) }
}

/// Converts an error of the store.
pub(super) fn store_error(error: &StoreError) -> CliError {
    let kind = match error {
        StoreError::Io { source, .. } => Some(source.kind()),
        _ => None,
    };
    let hint = match kind {
        Some(ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) => {
            "`--dry-run` prints the spec; write it as a user with write permission"
        }
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => "free space, and start again",
        _ => "`--dry-run` prints the spec without writing it",
    };
    CliError::Environment { message: error.to_string(), hint: hint.to_owned() }
}

fn file_type(directory: &Directory, name: &str) -> Result<Option<FileType>, CliError> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => {
            let path = format!("{}/{name}", directory.name());
            Err(store_error(&StoreError::Io { action: "examine", path, source: errno.into() }))
        }
    }
}

fn already_exists_error() -> CliError {
    CliError::Usage {
        message: format!("`{PATH}` already exists"),
        hint: "`--dry-run` prints what would be written; `--force` replaces the file".to_owned(),
    }
}

fn blocked_error(path: &str, what: &str) -> CliError {
    CliError::Usage {
        message: format!("no spec can be written: `{path}` {what}"),
        hint: format!("move `{path}` away; a spec is a regular file at `{PATH}`"),
    }
}
