//! Opens engines from what a worker has: DuckDB's library, and the servers that it starts.

use std::path::{Path, PathBuf};

use proctor_core::sql::{Dialect, SqlCode, SqlRequest};
use proctor_duckdb::LibraryNotFound;

use crate::duckdb::DuckDb;
use crate::engine::{EngineRefusal, SqlEngine};
use crate::mysql::{LocalMariadb, MariadbPrograms, MariadbServer, Mysql};
use crate::postgres::{LocalPostgres, Postgres, PostgresPrograms, PostgresServer};
use crate::provisioner::Provisioned;
use crate::server_files::ServerFiles;
use crate::sqlite::Sqlite;

/// The sources from which engines are opened.
pub struct EngineSources {
    /// The path of DuckDB's shared library, or the reason why it is missing.
    pub(crate) duckdb: Result<PathBuf, LibraryNotFound>,
    pub(crate) postgres: PostgresServer,
    pub(crate) mariadb: MariadbServer,
}

impl EngineSources {
    /// `duckdb` is the path of the shared library, or the reason why it is missing.
    pub fn new(duckdb: Result<PathBuf, LibraryNotFound>, templates: ServerTemplates) -> Self {
        Self::with_server_options(duckdb, templates, None, None)
    }

    /// As [`EngineSources::new`]. Servers create a socket for other programs of the user in `socket_directory`; each of
    /// their processes may use `process_memory` bytes.
    pub(crate) fn with_server_options(
        duckdb: Result<PathBuf, LibraryNotFound>,
        templates: ServerTemplates,
        socket_directory: Option<&Path>,
        process_memory: Option<u64>,
    ) -> Self {
        let files = |template| {
            let socket_directory = socket_directory.map(Path::to_owned);
            ServerFiles { template, socket_directory, process_memory }
        };
        Self {
            duckdb,
            postgres: Provisioned::new(LocalPostgres::new(PostgresPrograms::find(), files(templates.postgres))),
            mariadb: Provisioned::new(LocalMariadb::new(MariadbPrograms::find(), files(templates.mariadb))),
        }
    }
}

/// Opens the engine of a request, with its schema.
///
/// # Errors
/// The engine is missing, or the schema cannot be set up.
pub fn open_engine(request: &SqlRequest, sources: &mut EngineSources) -> Result<Box<dyn SqlEngine>, EngineRefusal> {
    match request.dialect {
        Dialect::Sqlite => Ok(Box::new(Sqlite::open(request)?)),
        Dialect::Postgres => Ok(Box::new(Postgres::open(&mut sources.postgres, request)?)),
        Dialect::Mysql => Ok(Box::new(Mysql::open(&mut sources.mariadb, request)?)),
        Dialect::Duckdb => match &sources.duckdb {
            Ok(library) => Ok(Box::new(DuckDb::open(library, request)?)),
            Err(missing) => Err(EngineRefusal::new(SqlCode::EngineMissing, missing.to_string())),
        },
    }
}

/// Archives of data directories for servers. Without one, a server creates its directory, which takes seconds.
#[derive(Debug, Default)]
pub struct ServerTemplates {
    /// The archive for PostgreSQL.
    pub postgres: Option<PathBuf>,
    /// The archive for MariaDB.
    pub mariadb: Option<PathBuf>,
}
