//! Starts a PostgreSQL server for one worker, in the sandbox of the worker: a private data directory, a Unix socket in
//! it, no network, and no durability. The server ends with the worker.
//!
//! A data directory is copied from a template, which `initdb` creates once for each installed version. Each database
//! belongs to its own role without privileges, as which its statements run. A schema can thus change no settings of other
//! databases, and cannot see or end their connections.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use rustix::process::Signal;

use super::session::{Session, SessionError};
use crate::server_files::{self, START_TIMEOUT, ServerDirectory, ServerError, ServerFiles, ServerProcess};

/// A role that gets the privileges of a list of tables.
pub(super) const LISTED_ROLE: &str = "proctor_listed";
/// The role of the server's own administration, which runs no statement of a request.
const ADMIN: &str = "proctor_admin";
/// The directories of distributions, which contain a directory for each major version.
const VERSIONED_DIRECTORIES: &[(&str, &str)] =
    &[("/usr/lib/postgresql", "bin"), ("/usr/lib64/postgresql", "bin"), ("/usr/libexec/postgresql", "")];
/// Other directories of the server programs.
const PLAIN_DIRECTORIES: &[&str] = &["/usr/libexec/postgresql", "/usr/bin", "/usr/local/bin", "/usr/local/pgsql/bin"];
/// The words in the log of a server that accepts connections.
const READY: &str = "ready to accept connections";
/// The memory that a process of the server needs to start, in bytes.
const MIN_PROCESS_MEMORY: u64 = 64 << 20;
/// The version of the content of a template.
const TEMPLATE_VERSION: u32 = 2;
/// The oldest supported major version. It introduced statements as bodies of functions, which a bound statement is read
/// from.
const OLDEST_VERSION: u32 = 14;
/// The error about a missing server.
pub(super) const NOT_INSTALLED: ServerError = ServerError::NotInstalled { server: "PostgreSQL", oldest: "14" };
/// The settings of each server. Nothing has to survive a crash.
const SETTINGS: &[&str] = &[
    "listen_addresses=",
    "fsync=off",
    "full_page_writes=off",
    "synchronous_commit=off",
    "wal_level=minimal",
    "max_wal_senders=0",
    "max_wal_size=64MB",
    "min_wal_size=32MB",
    "autovacuum=off",
    "shared_buffers=16MB",
    "max_connections=16",
    "max_worker_processes=0",
    "max_parallel_workers=0",
    "max_parallel_workers_per_gather=0",
    "max_prepared_transactions=0",
    "dynamic_shared_memory_type=mmap",
    "huge_pages=off",
    "jit=off",
    "temp_file_limit=64MB",
    "logging_collector=off",
    "log_min_messages=log",
    "log_checkpoints=off",
    "lc_messages=C",
    "update_process_title=off",
    "bgwriter_lru_maxpages=0",
];

/// The server programs of one installed version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresPrograms {
    directory: PathBuf,
}

impl From<SessionError> for ServerError {
    fn from(error: SessionError) -> Self {
        Self::Administration(super::postgres_errors::describe(&error))
    }
}

impl PostgresPrograms {
    /// Finds the newest supported version.
    ///
    /// # Errors
    /// None is installed.
    pub fn find() -> Result<Self, ServerError> {
        let mut versions: Vec<(u32, PathBuf)> = Vec::new();
        for (parent, inner) in VERSIONED_DIRECTORIES {
            let entries = std::fs::read_dir(parent).into_iter().flatten().flatten();
            let numbered =
                entries.filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join(inner))));
            versions.extend(numbered.filter(|(version, _)| *version >= OLDEST_VERSION));
        }
        versions.sort();
        let newest_first = versions.into_iter().rev().map(|(_, directory)| directory);
        let all = newest_first.chain(PLAIN_DIRECTORIES.iter().map(PathBuf::from));
        all.map(|directory| Self { directory })
            .find(|programs| ["postgres", "initdb"].iter().all(|name| programs.program(name).is_file()))
            .ok_or(NOT_INSTALLED)
    }

    /// Returns the path of the server program.
    pub fn server(&self) -> PathBuf {
        self.program("postgres")
    }

    /// Returns a file name for a template, which is different after an update of the programs.
    ///
    /// # Errors
    /// A program cannot be read.
    pub fn template_name(&self) -> io::Result<String> {
        server_files::template_name("postgres", TEMPLATE_VERSION, &self.program("postgres"))
    }

    /// Returns the path of a program.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }
}

/// A running server with its data directory.
pub struct Server {
    process: ServerProcess,
}

impl Server {
    /// Starts a server from a template, or from a new data directory if there is none.
    ///
    /// # Errors
    /// A program fails, or the server does not accept connections.
    pub(super) fn start(programs: &PostgresPrograms, files: &ServerFiles) -> Result<Arc<Self>, ServerError> {
        let directory = ServerDirectory::create("pg")?;
        match &files.template {
            Some(file) => directory.unpack(file)?,
            None => create_data(programs, &directory.data())?,
        }
        let memory = files.process_memory.map(|bytes| bytes.max(MIN_PROCESS_MEMORY));
        let server = server_files::with_process_memory(memory, || {
            Self::start_in(programs, directory, files.socket_directory.as_deref())
        })?;
        if files.template.is_none() {
            prepare_roles(&server)?;
        }
        Ok(Arc::new(server))
    }

    fn start_in(
        programs: &PostgresPrograms,
        directory: ServerDirectory,
        sockets: Option<&Path>,
    ) -> Result<Self, ServerError> {
        let sockets = sockets.map(|sockets| directory.short_path(sockets)).transpose()?;
        let command = server_command(programs, &directory.data(), sockets.as_deref());
        Ok(Self { process: directory.start(command, "postgres", READY, Signal::QUIT)? })
    }

    /// Reports whether the process of the server has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Returns the directory of the server's socket.
    pub(super) fn socket_directory(&self) -> PathBuf {
        self.process.data()
    }

    /// Creates an empty database with the role that owns it.
    pub(super) fn create_database(&self, name: &str) -> Result<(), ServerError> {
        let owner = owner_of(name);
        let create = format!("CREATE DATABASE {name} OWNER {owner} TEMPLATE template1");
        let admin = self.administration()?;
        admin.run(&format!("CREATE ROLE {owner} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"))?;
        admin.run(&format!("GRANT {LISTED_ROLE} TO {owner}"))?;
        admin.run(&format!("{create} STRATEGY file_copy")).or_else(|_| admin.run(&create))
    }

    /// Removes a database with its role, and ends its connections.
    pub(super) fn drop_database(&self, name: &str) -> Result<(), ServerError> {
        let admin = self.administration()?;
        admin.run(&format!("DROP DATABASE {name} WITH (FORCE)"))?;
        admin.run(&format!("DROP ROLE {}", owner_of(name)))
    }

    fn administration(&self) -> Result<Administration, ServerError> {
        Ok(Administration(Session::connect(&self.socket_directory(), ADMIN, "postgres")?))
    }
}

/// A connection of the server's own administration.
struct Administration(Session);

impl Administration {
    fn run(&self, sql: &str) -> Result<(), ServerError> {
        self.0.execute(sql, Instant::now() + START_TIMEOUT)?;
        Ok(())
    }
}

/// Returns the role that owns a database. It has no privileges on the server.
pub(super) fn owner_of(database: &str) -> String {
    format!("owner_{database}")
}

/// Creates a data directory.
fn create_data(programs: &PostgresPrograms, data: &Path) -> Result<(), ServerError> {
    let mut command = server_files::server_command(&programs.program("initdb"));
    command.arg("-D").arg(data).args(["-U", ADMIN, "-A", "trust", "-E", "UTF8", "--locale=C"]);
    command.args(["--no-sync", "--no-instructions", "--wal-segsize=1"]);
    server_files::run_to_end(command, "initdb")
}

fn server_command(programs: &PostgresPrograms, data: &Path, sockets: Option<&Path>) -> Command {
    let mut command = server_files::server_command(&programs.program("postgres"));
    let directories = [Some(data), sockets].into_iter().flatten().map(|directory| directory.display().to_string());
    command.arg("-D").arg(data).arg("-k").arg(directories.collect::<Vec<_>>().join(","));
    SETTINGS.iter().for_each(|setting| {
        command.args(["-c", setting]);
    });
    command
}

/// Creates a data directory, prepares its roles, and writes it as an archive.
///
/// # Errors
/// A program fails, or the archive cannot be written.
pub fn write_template(programs: &PostgresPrograms, out: impl Write) -> Result<(), ServerError> {
    let directory = ServerDirectory::create("pg")?;
    create_data(programs, &directory.data())?;
    let server = Server::start_in(programs, directory, None)?;
    prepare_roles(&server)?;
    server.process.shut_down(Signal::INT)?.write_archive(out)
}

/// Creates the role that all databases share. Large parts of a new server that no request needs are removed.
fn prepare_roles(server: &Server) -> Result<(), ServerError> {
    let admin = server.administration()?;
    for sql in [
        format!("CREATE ROLE {LISTED_ROLE} NOLOGIN"),
        "ALTER DATABASE template0 IS_TEMPLATE false".to_owned(),
        "DROP DATABASE template0".to_owned(),
        "REVOKE ALL ON DATABASE postgres FROM PUBLIC".to_owned(),
    ] {
        admin.run(&sql)?;
    }
    Ok(())
}
