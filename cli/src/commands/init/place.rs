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
/// Something is in the way.
pub(super) fn demand_room(repo: &Directory, force: bool) -> Result<(), CliError> {
    match kind(repo, DIR)? {
        None => return Ok(()),
        Some(FileType::Directory) => {}
        Some(FileType::Symlink) => return Err(in_the_way(DIR, "is a symbolic link, and is not followed")),
        Some(_) => return Err(in_the_way(DIR, "is no directory")),
    }
    let directory = repo.descend(DIR).map_err(|error| refused(&error))?;
    match kind(&directory, FILE)? {
        None => Ok(()),
        Some(FileType::RegularFile) if force => Ok(()),
        Some(FileType::RegularFile) => Err(exists()),
        Some(FileType::Symlink) => Err(in_the_way(PATH, "is a symbolic link, and is not followed")),
        Some(_) => Err(in_the_way(PATH, "is no file")),
    }
}

/// Writes the spec.
///
/// # Errors
/// A spec was created in the meantime, or the system refuses.
pub(super) fn write(repo: &Directory, text: &str, force: bool) -> Result<(), CliError> {
    let directory = repo.ensure(DIR, 0o755).map_err(|error| refused(&error))?;
    let mut file = directory.temporary(FILE).map_err(|error| refused(&error))?;
    let written = file.file.write_all(text.as_bytes()).and_then(|()| file.file.sync_all());
    written.map_err(|source| refused(&StoreError::Io { action: "write", path: PATH.to_owned(), source }))?;
    let is_new = match force {
        true => file.publish(FILE).map(|()| true),
        false => file.publish_new(FILE),
    };
    if is_new.map_err(|error| refused(&error))? { Ok(()) } else { Err(exists()) }
}

/// Converts an error of the store.
pub(super) fn refused(error: &StoreError) -> CliError {
    let kind = match error {
        StoreError::Io { source, .. } => Some(source.kind()),
        _ => None,
    };
    let hint = match kind {
        Some(ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied) => {
            "`--dry-run` prints the spec; write it as a user who may"
        }
        Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => "make room, and start again",
        _ => "`--dry-run` prints the spec without writing it",
    };
    CliError::Environment { message: error.to_string(), hint: hint.to_owned() }
}

fn kind(directory: &Directory, name: &str) -> Result<Option<FileType>, CliError> {
    match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
        Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(errno) => {
            let path = format!("{}/{name}", directory.name());
            Err(refused(&StoreError::Io { action: "look at", path, source: errno.into() }))
        }
    }
}

fn exists() -> CliError {
    CliError::Usage {
        message: format!("`{PATH}` already exists"),
        hint: "`--dry-run` prints what would be written; `--force` replaces the file".to_owned(),
    }
}

fn in_the_way(path: &str, what: &str) -> CliError {
    CliError::Usage {
        message: format!("no spec can be written: `{path}` {what}"),
        hint: format!("move `{path}` away; a spec is a regular file at `{PATH}`"),
    }
}
