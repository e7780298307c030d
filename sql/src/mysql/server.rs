//! Starts a MariaDB server for one worker, in the sandbox of the worker: a private data directory, a Unix socket in it,
//! no network, and no durability. The server ends with the worker.
//!
//! A data directory is copied from a template, which `mariadb-install-db` creates once for each installed version. Each
//! request has a database, and two users who have no other privileges: the statements run as its owner, and the probe
//! gets only the privileges that a statement needs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::process::Signal;

use super::catalog_reader::quote_identifier;
use super::database_users::{owner_of, probe_of};
use super::mysql_errors;
use super::session::{Session, SessionError, SessionOptions};
use crate::server_files::{self, START_TIMEOUT, ServerDirectory, ServerError, ServerFiles, ServerProcess};

/// The user of the server's own administration, which runs no statement of a request.
const ADMIN: &str = "root";
/// The directories of the server program.
const SERVER_DIRECTORIES: &[&str] = &["/usr/sbin", "/usr/libexec", "/usr/bin", "/usr/local/sbin", "/usr/local/bin"];
/// The directories of the program that creates a data directory.
const INSTALL_DIRECTORIES: &[&str] = &["/usr/bin", "/usr/local/bin", "/usr/sbin"];
/// The version of the content of a template.
const TEMPLATE_VERSION: u32 = 1;
/// The oldest supported version. It introduced prepared statements for every command.
const OLDEST_VERSION: (u32, u32) = (10, 6);
/// The words in the log of a server that accepts connections.
const READY: &str = "ready for connections";
/// The error about a missing server.
pub(super) const NOT_INSTALLED: ServerError = ServerError::NotInstalled { server: "MariaDB", oldest: "10.6" };
/// The settings of the files of a data directory, which do not change after its creation.
const FILE_SETTINGS: &[&str] = &[
    "--loose-innodb-log-file-size=4M",
    "--loose-innodb-data-file-path=ibdata1:3M:autoextend",
    "--loose-innodb-autoextend-increment=1",
    "--loose-innodb-undo-tablespaces=0",
    "--loose-innodb-temp-data-file-path=ibtmp1:1M:autoextend",
];
/// The settings of each server. Nothing has to survive a crash.
const SETTINGS: &[&str] = &[
    "--skip-networking",
    "--skip-log-bin",
    "--skip-slave-start",
    "--skip-symbolic-links",
    "--local-infile=0",
    "--event-scheduler=OFF",
    "--performance-schema=0",
    "--lower-case-table-names=0",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_general_ci",
    "--loose-max-recursive-iterations=4294967295",
    "--max-connections=64",
    "--max-allowed-packet=16M",
    "--lock-wait-timeout=5",
    "--key-buffer-size=64K",
    "--aria-pagecache-buffer-size=1M",
    "--aria-sync-log-dir=NEVER",
    "--sync-frm=0",
    "--table-open-cache=200",
    "--table-definition-cache=400",
    "--loose-innodb-buffer-pool-size=24M",
    "--loose-innodb-flush-log-at-trx-commit=0",
    "--loose-innodb-flush-method=nosync",
    "--loose-innodb-doublewrite=0",
    "--loose-innodb-use-native-aio=0",
    "--loose-innodb-read-io-threads=1",
    "--loose-innodb-write-io-threads=1",
    "--loose-innodb-purge-threads=1",
    "--loose-innodb-stats-persistent=0",
    "--loose-innodb-lock-wait-timeout=5",
    "--loose-innodb-fast-shutdown=1",
];

/// The server programs of the installed version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MariadbPrograms {
    server: PathBuf,
    install: PathBuf,
}

impl From<SessionError> for ServerError {
    fn from(error: SessionError) -> Self {
        Self::Administration(mysql_errors::describe(&error))
    }
}

impl MariadbPrograms {
    /// Finds the installed programs.
    ///
    /// # Errors
    /// They are not installed.
    pub fn find() -> Result<Self, ServerError> {
        let find = |directories: &[&str], name: &str| {
            let files = directories.iter().map(|directory| Path::new(directory).join(name));
            files.into_iter().find(|file| file.is_file())
        };
        let server = find(SERVER_DIRECTORIES, "mariadbd").ok_or(NOT_INSTALLED)?;
        let install = find(INSTALL_DIRECTORIES, "mariadb-install-db").ok_or(NOT_INSTALLED)?;
        Ok(Self { server, install })
    }

    /// Returns the path of the server program.
    pub fn server(&self) -> PathBuf {
        self.server.clone()
    }

    /// Returns a file name for a template, which is different after an update of the programs.
    ///
    /// # Errors
    /// A program cannot be read.
    pub fn template_name(&self) -> io::Result<String> {
        server_files::template_name("mariadb", TEMPLATE_VERSION, &self.server)
    }
}

/// A running server with its data directory.
pub struct Server {
    // Ends before the process of the server.
    admin: Mutex<Session>,
    process: ServerProcess,
    socket: PathBuf,
}

impl Server {
    /// Starts a server from a template, or from a new data directory if there is none.
    ///
    /// # Errors
    /// A program fails, or the server does not accept connections.
    pub(super) fn start(programs: &MariadbPrograms, files: &ServerFiles) -> Result<Arc<Self>, ServerError> {
        let directory = ServerDirectory::create("my")?;
        match &files.template {
            Some(file) => directory.unpack(file)?,
            None => create_data(programs, &directory.data())?,
        }
        let server = Self::start_in(programs, directory, files.socket_directory.as_deref())?;
        if files.template.is_none() {
            remove_unused_objects(&server)?;
        }
        Ok(Arc::new(server))
    }

    fn start_in(
        programs: &MariadbPrograms,
        directory: ServerDirectory,
        sockets: Option<&Path>,
    ) -> Result<Self, ServerError> {
        let sockets = sockets.map(|sockets| directory.short_path(sockets)).transpose()?;
        let socket = socket_file(&sockets.unwrap_or_else(|| directory.data()));
        let command = server_command(programs, &directory.data(), &socket);
        let process = directory.start(command, "mariadbd", READY, Signal::KILL)?;
        let admin = Session::connect(SessionOptions { socket: &socket, user: ADMIN, database: None })?;
        let server = Self { admin: Mutex::new(admin), process, socket };
        let version = server.admin().query_texts("SELECT version()", Instant::now() + START_TIMEOUT)?;
        if version_numbers(version.first().and_then(|row| row.first()?.as_deref()).unwrap_or_default()) < OLDEST_VERSION
        {
            return Err(NOT_INSTALLED);
        }
        Ok(server)
    }

    /// Reports whether the process of the server has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.process.has_ended()
    }

    /// Connects as a user of a database.
    pub(super) fn connect(&self, user: &str, database: &str) -> Result<Session, SessionError> {
        Session::connect(SessionOptions { socket: &self.socket, user, database: Some(database) })
    }

    /// Returns the connection of the administration.
    pub(super) fn admin(&self) -> MutexGuard<'_, Session> {
        self.admin.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs statements of the administration.
    pub(super) fn administer(&self, statements: &[String], deadline: Instant) -> Result<(), SessionError> {
        let mut admin = self.admin();
        statements.iter().try_for_each(|sql| admin.execute_batch(sql, deadline))
    }

    /// Creates an empty database with its users.
    pub(super) fn create_database(&self, database: &str) -> Result<(), SessionError> {
        let (owner, probe) = (owner_of(database), probe_of(database));
        let name = quote_identifier(database);
        let statements = [
            format!("CREATE DATABASE {name}"),
            format!("CREATE USER {owner}@localhost, {probe}@localhost"),
            format!("GRANT ALL PRIVILEGES ON {name}.* TO {owner}@localhost"),
        ];
        self.administer(&statements, Instant::now() + START_TIMEOUT)
    }

    /// Takes back all privileges of the probe, except one that lets it connect to the database.
    pub(super) fn reset_probe(&self, database: &str, deadline: Instant) -> Result<(), SessionError> {
        let (name, probe) = (quote_identifier(database), probe_of(database));
        let statements = [
            format!("REVOKE ALL PRIVILEGES, GRANT OPTION FROM {probe}@localhost"),
            format!("GRANT EVENT ON {name}.* TO {probe}@localhost"),
        ];
        self.administer(&statements, deadline)
    }

    /// Removes the content of a database.
    pub(super) fn clear_database(&self, database: &str) -> Result<(), SessionError> {
        let name = quote_identifier(database);
        let statements = [format!("DROP DATABASE {name}"), format!("CREATE DATABASE {name}")];
        self.administer(&statements, Instant::now() + START_TIMEOUT)
    }

    /// Removes a database with its users.
    pub(super) fn drop_database(&self, database: &str) -> Result<(), SessionError> {
        let statements = [
            format!("DROP DATABASE IF EXISTS {}", quote_identifier(database)),
            format!("DROP USER {}@localhost, {}@localhost", owner_of(database), probe_of(database)),
        ];
        self.administer(&statements, Instant::now() + START_TIMEOUT)
    }
}

/// Returns the path of the socket in a directory.
pub(super) fn socket_file(directory: &Path) -> PathBuf {
    directory.join("socket")
}

fn create_data(programs: &MariadbPrograms, data: &Path) -> Result<(), ServerError> {
    let mut command = server_files::server_command(&programs.install);
    command.arg("--no-defaults").arg(format!("--datadir={}", data.display()));
    command.args(["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]);
    command.args(FILE_SETTINGS);
    server_files::run_to_end(command, "mariadb-install-db")
}

fn server_command(programs: &MariadbPrograms, data: &Path, socket: &Path) -> Command {
    let mut command = server_files::server_command(&programs.server);
    command.arg("--no-defaults").args(FILE_SETTINGS).args(SETTINGS);
    command.arg(format!("--datadir={}", data.display()));
    command.arg(format!("--tmpdir={}", data.display()));
    command.arg(format!("--socket={}", socket.display()));
    command.arg(format!("--pid-file={}", data.join("pid").display()));
    command
}

/// Creates a data directory, removes what no request needs, and writes it as an archive.
///
/// # Errors
/// A program fails, or the archive cannot be written.
pub fn write_template(programs: &MariadbPrograms, out: impl Write) -> Result<(), ServerError> {
    let directory = ServerDirectory::create("my")?;
    create_data(programs, &directory.data())?;
    let server = Server::start_in(programs, directory, None)?;
    remove_unused_objects(&server)?;
    let Server { admin, process, .. } = server;
    drop(admin);
    process.shut_down(Signal::TERM)?.write_archive(out)
}

/// Removes the databases and users that no request needs.
fn remove_unused_objects(server: &Server) -> Result<(), ServerError> {
    let deadline = Instant::now() + START_TIMEOUT;
    let query = "SELECT concat(quote(User), '@', quote(Host)) FROM mysql.global_priv \
        WHERE NOT (User = 'root' AND Host = 'localhost') AND User NOT IN ('mariadb.sys', 'PUBLIC')";
    let users = server.admin().query_texts(query, deadline)?;
    let drops = users.into_iter().flatten().flatten().map(|user| format!("DROP USER {user}"));
    let databases = ["sys", "test", "performance_schema"].map(|name| format!("DROP DATABASE IF EXISTS {name}"));
    let all: Vec<String> = drops.chain(databases).collect();
    Ok(server.administer(&all, deadline)?)
}

/// Returns the major and minor number of a version such as `10.11.6-MariaDB`.
fn version_numbers(version: &str) -> (u32, u32) {
    let numbers: Vec<u32> = version.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    (numbers.first().copied().unwrap_or(0), numbers.get(1).copied().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_numbers_of_versions() {
        let versions = ["10.11.6-MariaDB-0+deb12u1", "11.4.2-MariaDB", "8.0.36", "", "x.1"];
        assert_eq!(versions.map(version_numbers), [(10, 11), (11, 4), (8, 0), (0, 0), (0, 0)]);
    }
}
