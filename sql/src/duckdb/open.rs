//! Opens a database for a request. The engine is locked down before it reads anything untrusted: afterwards it can
//! access no file, no network, no extension and no setting.

use std::path::Path;
use std::time::Instant;

use proctor_core::sql::{Limits, Policy, Request, SqlCode};
use proctor_duckdb::{Connection, Library};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::says::Said;
use super::{DuckDb, catalog, execute, watch};
use crate::catalog::Table;
use crate::engine::{Engine as _, Refusal};

/// The name of a database in memory.
const IN_MEMORY: &str = "memory";
/// The name of the database of a file while it is copied.
const GIVEN: &str = "given_database";

/// Settings that no statement can undo. `temp_directory` comes first, since it cannot be set any more without external
/// access.
const LOCKED: &[(&str, &str)] = &[
    ("temp_directory", ""),
    ("autoinstall_known_extensions", "false"),
    ("autoload_known_extensions", "false"),
    ("allow_community_extensions", "false"),
    ("allow_unsigned_extensions", "false"),
    ("allow_persistent_secrets", "false"),
    ("threads", "1"),
];
/// Settings that are applied last.
const CLOSED: &[(&str, &str)] = &[("enable_external_access", "false"), ("lock_configuration", "true")];

/// The data size of the process beyond the memory limit of the engine, in bytes. DuckDB's allocator reserves about
/// twice the memory that it uses.
const OVERHEAD: u64 = 3 << 29;

impl DuckDb {
    /// Opens a database for a request: its file, if it names one, then its schema. Memory and depth are limited
    /// permanently, and so is the memory of the whole process.
    ///
    /// # Errors
    /// The library cannot be used, the file is not a database or is too large, or the schema cannot be set up.
    pub fn open(library: &Path, request: &Request) -> Result<Self, Refusal> {
        let missing = |error| Refusal::new(SqlCode::EngineMissing, format!("`{}`: {error}", library.display()));
        let library = Library::load(library).map_err(missing)?;
        bound_process(request.limits.memory);
        let (connection, is_written) = match &request.database {
            Some(file) => of_file(&library, Path::new(file), request)?,
            None => (connected(&library, None, &request.limits, &[])?, true),
        };
        let deadline = Instant::now() + request.limits.time();
        if is_written {
            set_up(&connection, &request.schema, deadline)?;
        }
        Self::over(connection, library.version(), !is_written)
    }
}

/// Executes the parts of a schema.
pub(super) fn set_up(connection: &Connection, schema: &[String], deadline: Instant) -> Result<(), Refusal> {
    for (number, text) in schema.iter().enumerate() {
        let made = watch::until(deadline, connection.interrupter(), || execute(connection, text));
        if let Err(error) = made {
            let refusal = Said::of_text(&error, text).refusal(text);
            let message = format!("the schema (part {}) cannot be set up: {}", number + 1, refusal.message);
            return Err(Refusal { code: SqlCode::SchemaBroken, message, place: None, ..refusal });
        }
    }
    // Commits a transaction that the schema left open.
    let _ = execute(connection, "COMMIT");
    Ok(())
}

/// Limits the data size of the process. DuckDB does not count the memory that functions allocate, such as `repeat('x',
/// 1000000000)`. Beyond this limit the kernel refuses the allocation, and DuckDB reports that it is out of memory.
fn bound_process(memory: u64) {
    let maximum = getrlimit(Resource::Data).maximum;
    let wanted = memory.saturating_add(OVERHEAD);
    let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
    // If the limit cannot be set, the limits of the sandbox remain.
    let _ = setrlimit(Resource::Data, Rlimit { current, maximum });
}

fn connected(
    library: &Library,
    file: Option<&Path>,
    limits: &Limits,
    more: &[(&str, &str)],
) -> Result<Connection, Refusal> {
    let (memory, depth) = (format!("{}B", limits.memory), limits.depth.to_string());
    let bounds = [("memory_limit", memory.as_str()), ("max_expression_depth", depth.as_str())];
    let settings: Vec<(&str, &str)> = LOCKED.iter().chain(&bounds).chain(more).chain(CLOSED).copied().collect();
    let database = library.open(file, &settings).map_err(|error| broken(&error))?;
    database.connect().map_err(|error| broken(&error))
}

fn broken(error: &str) -> Refusal {
    let refusal = Said::of_text(error, "").refusal("");
    Refusal {
        code: SqlCode::SchemaBroken,
        message: format!("the database cannot be set up: {}", refusal.message),
        ..refusal
    }
}

/// Opens a file read-only, or a copy of it in memory if the request writes or adds a schema.
fn of_file(library: &Library, file: &Path, request: &Request) -> Result<(Connection, bool), Refusal> {
    let cannot =
        |what: String| Refusal::new(SqlCode::SchemaBroken, format!("the database `{}` {what}", file.display()));
    let size = std::fs::metadata(file).map_err(|error| cannot(format!("cannot be read: {error}")))?.len();
    if request.policy == Policy::Read && request.schema.is_empty() {
        return Ok((connected(library, Some(file), &request.limits, &[("access_mode", "READ_ONLY")])?, false));
    }
    let most = request.limits.memory / 4;
    if size > most {
        return Err(cannot(format!(
            "has {size} bytes, and a write is tried on a copy in memory, of {most} bytes at most"
        )));
    }
    copied(library, file, &request.limits).map(|connection| (connection, true))
}

/// Copies a file to memory. External access is enabled until the copy is complete; only the statements of this function
/// run before it is disabled.
fn copied(library: &Library, file: &Path, limits: &Limits) -> Result<Connection, Refusal> {
    let (memory, depth) = (format!("{}B", limits.memory), limits.depth.to_string());
    let bounds = [("memory_limit", memory.as_str()), ("max_expression_depth", depth.as_str())];
    let settings: Vec<(&str, &str)> = LOCKED.iter().chain(&bounds).copied().collect();
    let database = library.open(None, &settings).map_err(|error| broken(&error))?;
    let connection = database.connect().map_err(|error| broken(&error))?;
    let done = |connection: &Connection, step: &str| execute(connection, step).map_err(|error| broken(&error));
    let name = file.to_string_lossy().replace('\'', "''");
    done(&connection, &format!("ATTACH '{name}' AS {GIVEN} (READ_ONLY)"))?;
    done(&connection, &format!("COPY FROM DATABASE {GIVEN} TO {IN_MEMORY} (SCHEMA)"))?;
    let copy = DuckDb::over(connection, library.version(), false)?;
    fill(&copy)?;
    done(&copy.connection, &format!("DETACH {GIVEN}"))?;
    CLOSED.iter().try_for_each(|(name, value)| done(&copy.connection, &format!("SET {name} = {value}")))?;
    Ok(copy.connection)
}

/// Copies the rows of all tables. A table whose rows refer to missing rows is tried again later.
fn fill(copy: &DuckDb) -> Result<(), Refusal> {
    let mut rest: Vec<&Table> = copy.catalog().tables.iter().filter(|table| !table.is_view).collect();
    while !rest.is_empty() {
        let (before, mut failed) = (rest.len(), String::new());
        rest.retain(|table| {
            let names = table.columns.iter().filter(|column| !column.is_generated);
            let names = names.map(|column| catalog::quoted(&column.name)).collect::<Vec<_>>().join(", ");
            let (schema, name) = table
                .name
                .split_once('.')
                .filter(|_| copy.held.quoted.contains_key(&table.name))
                .unwrap_or(("main", table.name.as_str()));
            let table = format!("{}.{}", catalog::quoted(schema), catalog::quoted(name));
            let insert = format!("INSERT INTO {IN_MEMORY}.{table} ({names}) SELECT {names} FROM {GIVEN}.{table}");
            execute(&copy.connection, &insert).map_err(|error| failed = error).is_err()
        });
        if rest.len() == before {
            return Err(broken(&failed));
        }
    }
    Ok(())
}
