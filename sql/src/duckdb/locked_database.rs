//! Opens a database for a request. The engine is locked down before it reads anything untrusted: afterwards it can
//! access no file, no network, no extension and no setting.

use std::fmt::Display;
use std::path::Path;
use std::time::Instant;

use proctor_core::sql::{SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits};
use proctor_duckdb::{Connection, Library};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::duckdb_errors::ParsedError;
use super::internal_queries::execute;
use super::schema_parts::apply_schema;
use super::{DuckDb, catalog_reader};
use crate::catalog::{CatalogTable, split_name};
use crate::engine::{EngineRefusal, SqlEngine as _};

/// The name of a database in memory.
const IN_MEMORY: &str = "memory";
/// The name of the database of a file while it is copied.
const SOURCE_DATABASE: &str = "given_database";

/// Settings that no statement can undo. `temp_directory` comes first, since it cannot be set any more without external
/// access.
const LOCKED_SETTINGS: &[(&str, &str)] = &[
    ("temp_directory", ""),
    ("autoinstall_known_extensions", "false"),
    ("autoload_known_extensions", "false"),
    ("allow_community_extensions", "false"),
    ("allow_unsigned_extensions", "false"),
    ("allow_persistent_secrets", "false"),
    ("threads", "1"),
];
/// Settings that are applied last.
const FINAL_SETTINGS: &[(&str, &str)] = &[("enable_external_access", "false"), ("lock_configuration", "true")];

/// The data size of the process beyond the memory limit of the engine, in bytes. DuckDB's allocator reserves about
/// twice the memory that it uses.
const MEMORY_OVERHEAD: u64 = 3 << 29;

impl DuckDb {
    /// Opens a database for a request: its file, if it names one, then its schema. Memory and depth are limited
    /// permanently, and so is the memory of the whole process.
    ///
    /// # Errors
    /// The library cannot be used, the file is not a database or is too large, or the schema cannot be set up.
    pub fn open(library: &Path, request: &SqlRequest) -> Result<Self, EngineRefusal> {
        let missing = |error| EngineRefusal::new(SqlCode::EngineMissing, format!("`{}`: {error}", library.display()));
        let library = Library::load(library).map_err(missing)?;
        limit_process_memory(request.limits.memory);
        let (connection, is_written) = match &request.database {
            Some(file) => open_file(&library, Path::new(file), request)?,
            None => (connect_locked(&library, None, &request.limits, &[])?, true),
        };
        let deadline = Instant::now() + request.limits.wall_time();
        if is_written {
            apply_schema(&connection, &request.schema, deadline)?;
        }
        Self::from_connection(connection, library.version(), !is_written)
    }
}

impl DuckDb {
    /// Opens the database file of a request to change it. DuckDB locks the file as long as the engine exists.
    ///
    /// # Errors
    /// The library cannot be used, or the file cannot be opened for writing.
    pub fn open_for_commit(library: &Path, request: &SqlRequest) -> Result<Self, EngineRefusal> {
        let missing = |error| EngineRefusal::new(SqlCode::EngineMissing, format!("`{}`: {error}", library.display()));
        let library = Library::load(library).map_err(missing)?;
        limit_process_memory(request.limits.memory);
        let file = Path::new(request.database.as_deref().unwrap_or_default());
        // DuckDB would create an absent file.
        if !file.is_file() {
            let message = format!("the database `{}` does not exist", file.display());
            return Err(EngineRefusal::new(SqlCode::SchemaBroken, message));
        }
        let connection = connect_locked(&library, Some(file), &request.limits, &[("access_mode", "READ_WRITE")])?;
        let engine = Self::from_connection(connection, library.version(), false)?;
        Ok(Self { is_for_commit: true, ..engine })
    }
}

/// Limits the data size of the process. DuckDB does not count the memory that functions allocate, such as `repeat('x',
/// 1000000000)`. Beyond this limit the kernel refuses the allocation, and DuckDB reports that it is out of memory.
fn limit_process_memory(memory: u64) {
    let maximum = getrlimit(Resource::Data).maximum;
    let wanted = memory.saturating_add(MEMORY_OVERHEAD);
    let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
    // If the limit cannot be set, the limits of the sandbox remain.
    let _ = setrlimit(Resource::Data, Rlimit { current, maximum });
}

fn connect_locked(
    library: &Library,
    file: Option<&Path>,
    limits: &SqlResourceLimits,
    more: &[(&str, &str)],
) -> Result<Connection, EngineRefusal> {
    let (memory, depth) = (format!("{}B", limits.memory), limits.depth.to_string());
    let bounds = [("memory_limit", memory.as_str()), ("max_expression_depth", depth.as_str())];
    let settings: Vec<(&str, &str)> =
        LOCKED_SETTINGS.iter().chain(&bounds).chain(more).chain(FINAL_SETTINGS).copied().collect();
    let database = library.open(file, &settings).map_err(|error| database_refusal(&error))?;
    database.connect().map_err(|error| database_refusal(&error))
}

fn database_refusal(error: &impl Display) -> EngineRefusal {
    let refusal = ParsedError::from_error(error, "").to_refusal("");
    EngineRefusal {
        code: SqlCode::SchemaBroken,
        message: format!("the database cannot be set up: {}", refusal.message),
        ..refusal
    }
}

/// Opens a file read-only, or a copy of it in memory if the request writes or adds a schema.
fn open_file(library: &Library, file: &Path, request: &SqlRequest) -> Result<(Connection, bool), EngineRefusal> {
    let cannot =
        |what: String| EngineRefusal::new(SqlCode::SchemaBroken, format!("the database `{}` {what}", file.display()));
    let size = std::fs::metadata(file).map_err(|error| cannot(format!("cannot be read: {error}")))?.len();
    if request.policy == SqlPolicy::Read && request.schema.is_empty() {
        return Ok((connect_locked(library, Some(file), &request.limits, &[("access_mode", "READ_ONLY")])?, false));
    }
    let max_size = request.limits.memory / 4;
    if size > max_size {
        return Err(cannot(format!(
            "has {size} bytes; a write is tested on a copy in memory, which can have at most {max_size} bytes"
        )));
    }
    copy_to_memory(library, file, &request.limits).map(|connection| (connection, true))
}

/// Copies a file to memory. External access is enabled until the copy is complete; only the statements of this function
/// run before it is disabled.
fn copy_to_memory(library: &Library, file: &Path, limits: &SqlResourceLimits) -> Result<Connection, EngineRefusal> {
    let (memory, depth) = (format!("{}B", limits.memory), limits.depth.to_string());
    let bounds = [("memory_limit", memory.as_str()), ("max_expression_depth", depth.as_str())];
    let settings: Vec<(&str, &str)> = LOCKED_SETTINGS.iter().chain(&bounds).copied().collect();
    let database = library.open(None, &settings).map_err(|error| database_refusal(&error))?;
    let connection = database.connect().map_err(|error| database_refusal(&error))?;
    let execute_step =
        |connection: &Connection, step: &str| execute(connection, step).map_err(|error| database_refusal(&error));
    let name = file.to_string_lossy().replace('\'', "''");
    execute_step(&connection, &format!("ATTACH '{name}' AS {SOURCE_DATABASE} (READ_ONLY)"))?;
    execute_step(&connection, &format!("COPY FROM DATABASE {SOURCE_DATABASE} TO {IN_MEMORY} (SCHEMA)"))?;
    let copy = DuckDb::from_connection(connection, library.version(), false)?;
    copy_rows(&copy)?;
    execute_step(&copy.connection, &format!("DETACH {SOURCE_DATABASE}"))?;
    FINAL_SETTINGS
        .iter()
        .try_for_each(|(name, value)| execute_step(&copy.connection, &format!("SET {name} = {value}")))?;
    Ok(copy.connection)
}

/// Copies the rows of all tables. A table whose rows refer to missing rows is tried again later.
fn copy_rows(copy: &DuckDb) -> Result<(), EngineRefusal> {
    let mut rest: Vec<&CatalogTable> = copy.catalog().tables.iter().filter(|table| !table.is_view).collect();
    while !rest.is_empty() {
        let (before, mut failed) = (rest.len(), String::new());
        rest.retain(|table| {
            let names = table.columns.iter().filter(|column| !column.is_generated);
            let names =
                names.map(|column| catalog_reader::quote_identifier(&column.name)).collect::<Vec<_>>().join(", ");
            let parts = split_name(&table.name, &['"']);
            let default = ["main".to_owned()];
            let parts = default[..usize::from(parts.len() == 1)].iter().chain(&parts);
            let table = parts.map(|part| catalog_reader::quote_identifier(part)).collect::<Vec<_>>().join(".");
            let insert =
                format!("INSERT INTO {IN_MEMORY}.{table} ({names}) SELECT {names} FROM {SOURCE_DATABASE}.{table}");
            execute(&copy.connection, &insert).map_err(|error| failed = error.to_string()).is_err()
        });
        if rest.len() == before {
            return Err(database_refusal(&failed));
        }
    }
    Ok(())
}
