//! Opens the database file of a request, with the changes in the files next to it.
//!
//! Sources: <https://sqlite.org/wal.html#read_only_databases>, <https://sqlite.org/c3ref/deserialize.html>.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use proctor_core::sql::{SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits};
use rusqlite::{Connection, OpenFlags, ffi};

use super::sqlite_errors;
use crate::engine::EngineRefusal;
use crate::worker_files::beside;

/// The positions in the header of a database that show whether it has a write-ahead log.
const FORMAT_VERSIONS: std::ops::Range<usize> = 18..20;
/// The value at these positions for a database with a rollback journal, and with a write-ahead log.
const JOURNAL_FORMAT: u8 = 1;
const WAL_FORMAT: u8 = 2;
/// The size of the header of a database, in bytes.
const HEADER_BYTES: usize = 100;

/// Opens a file read-only, or a copy of it in memory if the request writes or adds a schema.
pub(super) fn open_database_file(file: &Path, request: &SqlRequest) -> Result<Connection, EngineRefusal> {
    let mut source = open_for_reading(file, &request.limits)?;
    if request.policy == SqlPolicy::Read && request.schema.is_empty() {
        return Ok(source);
    }
    copy_to_memory(&mut source, file, &request.limits)
}

/// Opens a file to change it.
pub(super) fn open_for_writing(file: &Path, limits: &SqlResourceLimits) -> Result<Connection, EngineRefusal> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(file, flags);
    let connection = opened.map_err(|error| broken(file, &format!("cannot be opened for writing: {error}")))?;
    wait_for_locks(&connection, limits)?;
    Ok(connection)
}

/// Copies a database to memory, as the connection sees it.
pub(super) fn copy_to_memory(
    source: &mut Connection,
    file: &Path,
    limits: &SqlResourceLimits,
) -> Result<Connection, EngineRefusal> {
    let refused = |error: rusqlite::Error| sqlite_errors::engine_failure(&error);
    let number = |pragma| source.query_row(pragma, [], |row| row.get::<_, i64>(0)).map_err(refused);
    let size = number("PRAGMA page_count")?.saturating_mul(number("PRAGMA page_size")?);
    let (size, max_size) = (u64::try_from(size).unwrap_or(u64::MAX), limits.memory / 2);
    if size > max_size {
        return Err(broken(
            file,
            &format!(
                "has {size} bytes; a write is tested on a copy in memory, which can have at most {max_size} bytes"
            ),
        ));
    }
    let mut copy = Connection::open_in_memory().map_err(refused)?;
    if size == 0 {
        return Ok(copy);
    }
    let bytes = source.serialize("main").map_err(refused)?;
    let (header, rest) = bytes.split_at(HEADER_BYTES.min(bytes.len()));
    // SQLite opens no database in memory that has a write-ahead log.
    let mut header = header.to_vec();
    header.get_mut(FORMAT_VERSIONS).into_iter().for_each(|versions| versions.fill(JOURNAL_FORMAT));
    let length = header.len() + rest.len();
    copy.deserialize_read_exact("main", header.as_slice().chain(rest), length, false).map_err(refused)?;
    Ok(copy)
}

fn open_for_reading(file: &Path, limits: &SqlResourceLimits) -> Result<Connection, EngineRefusal> {
    let parameters = match needed_access(file)? {
        FileAccess::Shared => "mode=ro",
        FileAccess::Unchanging => "mode=ro&immutable=1",
    };
    let uri = format!("file:{}?{parameters}", escape_uri_path(file));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(uri, flags);
    let connection = opened.map_err(|error| sqlite_errors::engine_failure(&error))?;
    wait_for_locks(&connection, limits)?;
    // The first read finds changes that only a program with write access can complete or undo.
    match connection.query_row("SELECT count(*) FROM sqlite_schema", [], |_| Ok(())) {
        Err(rusqlite::Error::SqliteFailure(error, _)) if needs_recovery(error.extended_code) => {
            Err(unfinished_changes(file, "the files next to it"))
        }
        // Other errors are reported when the schema is read.
        _ => Ok(connection),
    }
}

/// Reports whether an error means that a program with write access must open the database first.
fn needs_recovery(code: i32) -> bool {
    matches!(
        code,
        ffi::SQLITE_READONLY_ROLLBACK
            | ffi::SQLITE_READONLY_RECOVERY
            | ffi::SQLITE_READONLY_CANTINIT
            | ffi::SQLITE_READONLY_CANTLOCK
    )
}

/// How a file is opened for reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileAccess {
    /// Uses locks, because other programs may write the file.
    Shared,
    /// Without locks: no program has it open for writing.
    Unchanging,
}

/// Returns how a file must be opened so that SQLite sees all changes that were committed.
///
/// # Errors
/// The file cannot be read, or SQLite could not see all changes.
fn needed_access(file: &Path) -> Result<FileAccess, EngineRefusal> {
    let cannot_read = |error: io::Error| broken(file, &format!("cannot be read: {error}"));
    let mut header = Vec::new();
    let opened = File::open(file).map_err(cannot_read)?;
    opened.take(HEADER_BYTES as u64).read_to_end(&mut header).map_err(cannot_read)?;
    if header.get(FORMAT_VERSIONS.start).is_none_or(|version| *version != WAL_FORMAT) {
        return Ok(FileAccess::Shared);
    }
    let log = beside(file, "-wal");
    let log_bytes = std::fs::metadata(&log).map(|log| log.len()).ok();
    let has_index = beside(file, "-shm").exists();
    match (log_bytes, has_index) {
        (Some(_), true) => Ok(FileAccess::Shared),
        // Without the index no program has the log open.
        (None | Some(0), _) => Ok(FileAccess::Unchanging),
        (Some(_), false) => Err(unfinished_changes(file, &format!("`{}`", log.display()))),
    }
}

fn unfinished_changes(file: &Path, place: &str) -> EngineRefusal {
    broken(
        file,
        &format!(
            "has unmerged changes in {place}; close the programs that write to it, or run `PRAGMA wal_checkpoint(TRUNCATE)` there"
        ),
    )
}

/// Lets SQLite wait for the locks of other programs.
fn wait_for_locks(connection: &Connection, limits: &SqlResourceLimits) -> Result<(), EngineRefusal> {
    let wait = limits.wall_time().min(Duration::from_secs(60));
    connection.busy_timeout(wait).map_err(|error| sqlite_errors::engine_failure(&error))
}

fn broken(file: &Path, what: &str) -> EngineRefusal {
    EngineRefusal::new(SqlCode::SchemaBroken, format!("the database `{}` {what}", file.display()))
}

/// Returns a path, escaped for a URI of SQLite.
fn escape_uri_path(file: &Path) -> String {
    use std::os::unix::ffi::OsStrExt as _;
    let mut text = String::new();
    for byte in file.as_os_str().as_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'-' | b'_' => text.push(char::from(*byte)),
            other => text += &format!("%{other:02x}"),
        }
    }
    text
}
