//! Opens the database file of a request.

use std::path::Path;

use proctor_core::sql::{SqlCode, SqlPolicy, SqlRequest};
use rusqlite::{Connection, OpenFlags};

use super::sqlite_errors;
use crate::engine::EngineRefusal;

/// Opens a file read-only, or a copy of it in memory if the request writes or adds a schema.
pub(super) fn open_database_file(file: &Path, request: &SqlRequest) -> Result<Connection, EngineRefusal> {
    let broken = |what: String| EngineRefusal::new(SqlCode::SchemaBroken, what);
    let size = std::fs::metadata(file)
        .map_err(|error| broken(format!("the database `{}` cannot be read: {error}", file.display())))?
        .len();
    for suffix in ["-wal", "-journal"] {
        let mut beside = file.as_os_str().to_owned();
        beside.push(suffix);
        if std::fs::metadata(&beside).is_ok_and(|beside| beside.len() > 0) {
            let what = format!(
                "the database `{}` has unmerged changes in `{}`; close the programs that write to it, or run `PRAGMA wal_checkpoint(TRUNCATE)` there",
                file.display(),
                Path::new(&beside).display()
            );
            return Err(broken(what));
        }
    }
    if request.policy == SqlPolicy::Read && request.schema.is_empty() {
        let uri = format!("file:{}?mode=ro&immutable=1", escape_uri_path(file));
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        return Connection::open_with_flags(uri, flags).map_err(|error| sqlite_errors::engine_failure(&error));
    }
    if size > request.limits.memory / 2 {
        return Err(broken(format!(
            "the database `{}` has {size} bytes; a write is tested on a copy in memory, which can have at most {} bytes",
            file.display(),
            request.limits.memory / 2
        )));
    }
    let read = std::fs::File::open(file)
        .map_err(|error| broken(format!("the database `{}` cannot be read: {error}", file.display())))?;
    let mut connection = Connection::open_in_memory().map_err(|error| sqlite_errors::engine_failure(&error))?;
    let size = usize::try_from(size).unwrap_or(usize::MAX);
    connection
        .deserialize_read_exact("main", read, size, false)
        .map_err(|error| sqlite_errors::engine_failure(&error))?;
    Ok(connection)
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
