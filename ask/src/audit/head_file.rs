//! Stores the head of an audit trail in its own file, atomically.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

use proctor_core::text::canonical;

use super::record::{Head, VERSION};

/// Maximum size of the file, in bytes.
const MAX_BYTES: u64 = 4_096;

/// Reads the head; `None` if there is no file.
///
/// # Errors
/// The file cannot be read, or is not a head.
pub(super) fn read(file: &Path) -> io::Result<Option<Head>> {
    let open = match File::open(file) {
        Ok(open) => open,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    open.take(MAX_BYTES).read_to_end(&mut bytes)?;
    let head: Head = serde_json::from_slice(&bytes)?;
    if head.version == VERSION { Ok(Some(head)) } else { Err(io::Error::other("an unknown version")) }
}

/// Replaces the head.
///
/// # Errors
/// The file cannot be written.
pub(super) fn write(file: &Path, head: &Head) -> io::Result<()> {
    let directory = file.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(directory)?;
    new.write_all(&canonical::to_vec(head))?;
    new.as_file().sync_all()?;
    new.persist(file)?;
    File::open(directory)?.sync_all()
}
