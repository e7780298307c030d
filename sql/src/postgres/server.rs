//! Starts a PostgreSQL server for one worker, in the sandbox of the worker: a private data directory, a Unix socket in
//! it, no network, and no durability. The server ends with the worker.
//!
//! A data directory is copied from a template, which `initdb` creates once for each installed version. Databases belong
//! to a role without privileges, as which all statements of requests run.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use proctor_core::text::digest::Sha256Hex;
use rustix::process::{Pid, Signal};

use super::session::{Session, SessionError};

/// The role that owns the databases of requests. It has no privileges on the server.
pub(super) const OWNER: &str = "proctor";
/// A role that gets the privileges of a list of tables.
pub(super) const LISTED_ROLE: &str = "proctor_listed";
/// The role of the server's own administration, which runs no statement of a request.
const ADMIN: &str = "proctor_admin";
/// The directories of distributions, which contain a directory for each major version.
const VERSIONED_DIRECTORIES: &[(&str, &str)] =
    &[("/usr/lib/postgresql", "bin"), ("/usr/lib64/postgresql", "bin"), ("/usr/libexec/postgresql", "")];
/// Other directories of the server programs.
const PLAIN_DIRECTORIES: &[&str] = &["/usr/libexec/postgresql", "/usr/bin", "/usr/local/bin", "/usr/local/pgsql/bin"];
/// The longest time for the start or the end of a server, or for the creation of a template.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The words in the server's log when it accepts connections.
const READY: &str = "ready to accept connections";
/// The size of the end of an output that is kept, in bytes.
const KEPT_OUTPUT: usize = 600;
/// The version of the content of a template.
const TEMPLATE_VERSION: u32 = 1;
/// The oldest supported major version. It introduced statements as bodies of functions, which a bound statement is read
/// from.
const OLDEST_VERSION: u32 = 14;
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

/// The reason why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No supported version is installed.
    #[error("no PostgreSQL server of version {OLDEST_VERSION} or later is installed")]
    NotInstalled,
    /// A program or a file cannot be used.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The error of the system.
        source: io::Error,
    },
    /// A program failed.
    #[error("`{program}` failed: {message}")]
    Failed {
        /// The name of the program.
        program: &'static str,
        /// The last lines of its output.
        message: String,
    },
    /// The server does not accept connections in time.
    #[error("the server did not start: {message}")]
    NotReady {
        /// The last lines of its output.
        message: String,
    },
    /// The server refuses a statement of its administration.
    #[error("the server cannot be administered: {0}")]
    Administration(String),
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
            .ok_or(ServerError::NotInstalled)
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
        let meta = self.program("postgres").metadata()?;
        let state = format!(
            "{TEMPLATE_VERSION} {} {} {} {} {}",
            self.directory.display(),
            meta.len(),
            meta.ino(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        Ok(format!("postgres-{}.tar", &Sha256Hex::digest(state.as_bytes()).as_str()[..16]))
    }

    fn program(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    #[expect(clippy::disallowed_methods, reason = "a worker starts its server in its own sandbox")]
    fn command(&self, name: &'static str) -> Command {
        let mut command = Command::new(self.program(name));
        command.env_clear().env("LC_ALL", "C").env("PATH", "/usr/bin:/bin").stdin(Stdio::null());
        command
    }
}

/// A running server with its data directory.
pub(super) struct Server {
    directory: tempfile::TempDir,
    process: Mutex<Child>,
    log: ServerLog,
}

/// The log of a server, which a thread reads.
struct ServerLog {
    end: Arc<Mutex<Vec<u8>>>,
    ready: Mutex<Receiver<()>>,
}

impl Server {
    /// Starts a server from a template, or from a new data directory if there is none.
    ///
    /// # Errors
    /// A program fails, or the server does not accept connections.
    pub(super) fn start(programs: &PostgresPrograms, template: Option<&Path>) -> Result<Arc<Self>, ServerError> {
        let directory = create_directory()?;
        let data = directory.path().join(DATA);
        match template {
            Some(file) => unpack(file, &data)?,
            None => create_data(programs, &data)?,
        }
        let server = Self::run(programs, directory)?;
        if template.is_none() {
            prepare_roles(&server)?;
        }
        Ok(Arc::new(server))
    }

    /// Reports whether the process of the server has ended.
    pub(super) fn has_ended(&self) -> bool {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.try_wait().map_or(true, |status| status.is_some())
    }

    /// Returns the directory of the server's socket.
    pub(super) fn socket_directory(&self) -> PathBuf {
        self.directory.path().join(DATA)
    }

    /// Creates an empty database that belongs to [`OWNER`].
    pub(super) fn create_database(&self, name: &str) -> Result<(), ServerError> {
        self.administer(&format!("CREATE DATABASE {name} OWNER {OWNER} TEMPLATE template1 STRATEGY file_copy"))
            .or_else(|_| self.administer(&format!("CREATE DATABASE {name} OWNER {OWNER} TEMPLATE template1")))
    }

    /// Removes a database and ends its connections.
    pub(super) fn drop_database(&self, name: &str) -> Result<(), ServerError> {
        self.administer(&format!("DROP DATABASE {name} WITH (FORCE)"))
    }

    fn administer(&self, sql: &str) -> Result<(), ServerError> {
        let session = Session::connect(&self.socket_directory(), ADMIN, "postgres")?;
        session.execute(sql, Instant::now() + START_TIMEOUT)?;
        Ok(())
    }

    /// Starts the process of a server, and waits until it accepts connections.
    fn run(programs: &PostgresPrograms, directory: tempfile::TempDir) -> Result<Self, ServerError> {
        let io = |source| ServerError::Io { what: "`postgres` cannot be started", source };
        let data = directory.path().join(DATA);
        let mut command = programs.command("postgres");
        command.arg("-D").arg(&data).arg("-k").arg(&data);
        SETTINGS.iter().for_each(|setting| {
            command.args(["-c", setting]);
        });
        let mut process = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(io)?;
        let output = process.stderr.take().ok_or_else(|| io(io::ErrorKind::BrokenPipe.into()))?;
        let server = Self { directory, process: Mutex::new(process), log: ServerLog::read(output) };
        server.log.wait_until_ready()?;
        Ok(server)
    }

    /// Ends the server in an orderly way, so that its data directory is complete.
    fn shut_down(mut self) -> Result<tempfile::TempDir, ServerError> {
        let io = |source| ServerError::Io { what: "the server cannot be ended", source };
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        rustix::process::kill_process(Pid::from_child(process), Signal::INT).map_err(|errno| io(errno.into()))?;
        let status = process.wait().map_err(io)?;
        if !status.success() {
            return Err(ServerError::Failed { program: "postgres", message: self.log.end() });
        }
        let unused = create_directory()?;
        Ok(std::mem::replace(&mut self.directory, unused))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An immediate end; the data directory is removed anyway.
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        let _ = rustix::process::kill_process(Pid::from_child(process), Signal::QUIT);
        let _ = process.wait();
    }
}

impl ServerLog {
    /// Reads an output until its end, in a thread.
    fn read(output: ChildStderr) -> Self {
        let end = Arc::new(Mutex::new(Vec::new()));
        let (sender, ready) = std::sync::mpsc::channel();
        let kept = Arc::clone(&end);
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if String::from_utf8_lossy(&line).contains(READY) {
                    // Later lines of this kind, after a crash of a backend, have no receiver.
                    let _ = sender.send(());
                }
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&line);
                kept.push(b'\n');
                let surplus = kept.len().saturating_sub(KEPT_OUTPUT);
                kept.drain(..surplus);
            }
        });
        Self { end, ready: Mutex::new(ready) }
    }

    fn wait_until_ready(&self) -> Result<(), ServerError> {
        let ready = self.ready.lock().unwrap_or_else(PoisonError::into_inner);
        ready.recv_timeout(START_TIMEOUT).map_err(|_| ServerError::NotReady { message: self.end() })
    }

    fn end(&self) -> String {
        last_lines(&self.end.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The name of the data directory.
const DATA: &str = "data";

fn create_directory() -> Result<tempfile::TempDir, ServerError> {
    tempfile::Builder::new()
        .prefix("pg")
        .tempdir()
        .map_err(|source| ServerError::Io { what: "the directory of the server cannot be created", source })
}

/// Creates a data directory with the roles of a worker.
fn create_data(programs: &PostgresPrograms, data: &Path) -> Result<(), ServerError> {
    let mut command = programs.command("initdb");
    command.arg("-D").arg(data).args(["-U", ADMIN, "-A", "trust", "-E", "UTF8", "--locale=C"]);
    command.args(["--no-sync", "--no-instructions", "--wal-segsize=1"]);
    let done = command.output().map_err(|source| ServerError::Io { what: "`initdb` cannot be started", source })?;
    if !done.status.success() {
        let message = last_lines(&[done.stdout, done.stderr].concat());
        return Err(ServerError::Failed { program: "initdb", message });
    }
    Ok(())
}

/// Creates a data directory, prepares its roles, and writes it as an archive.
///
/// # Errors
/// A program fails, or the archive cannot be written.
pub fn write_template(programs: &PostgresPrograms, out: impl Write) -> Result<(), ServerError> {
    let io = |source| ServerError::Io { what: "the template cannot be written", source };
    let directory = create_directory()?;
    let data = directory.path().join(DATA);
    create_data(programs, &data)?;
    let server = Server::run(programs, directory)?;
    prepare_roles(&server)?;
    let directory = server.shut_down()?;
    let mut archive = tar::Builder::new(out);
    archive.follow_symlinks(false);
    archive.append_dir_all(DATA, directory.path().join(DATA)).map_err(io)?;
    archive.into_inner().and_then(|mut out| out.flush()).map_err(io)
}

/// Creates the roles of a worker. Large parts of a new server that no request needs are removed.
fn prepare_roles(server: &Server) -> Result<(), ServerError> {
    for sql in [
        format!("CREATE ROLE {OWNER} LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION"),
        format!("CREATE ROLE {LISTED_ROLE} NOLOGIN"),
        format!("GRANT {LISTED_ROLE} TO {OWNER}"),
        "ALTER DATABASE template0 IS_TEMPLATE false".to_owned(),
        "DROP DATABASE template0".to_owned(),
        "REVOKE ALL ON DATABASE postgres FROM PUBLIC".to_owned(),
    ] {
        server.administer(&sql)?;
    }
    Ok(())
}

fn unpack(file: &Path, data: &Path) -> Result<(), ServerError> {
    let io = |source| ServerError::Io { what: "the template cannot be unpacked", source };
    let parent = data.parent().unwrap_or(data);
    let mut archive = tar::Archive::new(File::open(file).map_err(io)?);
    archive.set_preserve_mtime(false);
    archive.unpack(parent).map_err(io)?;
    // The server refuses a directory that others may enter.
    rustix::fs::chmod(data, rustix::fs::Mode::RWXU).map_err(|errno| io(errno.into()))
}

/// Returns the end of an output as one line.
fn last_lines(output: &[u8]) -> String {
    let end = &output[output.len().saturating_sub(KEPT_OUTPUT)..];
    String::from_utf8_lossy(end).trim().replace('\n', "; ")
}
