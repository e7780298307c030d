//! Runs the process of a database server in a private directory, and stores prepared data directories as archives. The
//! modules of the servers decide which programs run and with which settings.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use proctor_core::text::digest::Sha256Hex;
use rustix::process::{Pid, Signal};

/// The longest time for the start or the end of a server, or for the creation of a template.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause between two attempts to connect to a starting server.
const RETRY_INTERVAL: Duration = Duration::from_millis(2);
/// The file in the data directory with the output of the server.
const LOG_FILE: &str = "proctor.log";
/// The name of the data directory in an archive and in the directory of a server.
const DATA_DIRECTORY: &str = "data";

/// The reason why a server does not run.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// No supported version is installed.
    #[error("no {server} server of version {oldest} or later is installed")]
    NotInstalled {
        /// The name of the server.
        server: &'static str,
        /// The oldest supported version.
        oldest: &'static str,
    },
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
    #[error("the server did not start within {} s: {message}", START_TIMEOUT.as_secs())]
    NotReady {
        /// The last lines of its output.
        message: String,
    },
    /// The server refuses a statement of its administration.
    #[error("the server cannot be administered: {0}")]
    Administration(String),
}

/// Returns the command of a server program: a fixed environment and no input.
#[expect(clippy::disallowed_methods, reason = "a worker starts its server in its own sandbox")]
pub(crate) fn server_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    command
}

/// Runs a program that prepares a data directory.
///
/// # Errors
/// The program cannot be started, or fails.
pub(crate) fn run_to_end(mut command: Command, program: &'static str) -> Result<(), ServerError> {
    let done = command.output().map_err(|source| ServerError::Io { what: "a server program cannot run", source })?;
    if done.status.success() {
        return Ok(());
    }
    Err(ServerError::Failed { program, message: last_lines(&[done.stdout, done.stderr].concat()) })
}

/// A private directory with the data of a server.
pub(crate) struct ServerDirectory(tempfile::TempDir);

impl ServerDirectory {
    /// Creates a directory without data.
    ///
    /// # Errors
    /// The directory cannot be created.
    pub(crate) fn create(prefix: &str) -> Result<Self, ServerError> {
        let created = tempfile::Builder::new().prefix(prefix).tempdir();
        let what = "the directory of the server cannot be created";
        Ok(Self(created.map_err(|source| ServerError::Io { what, source })?))
    }

    /// Returns the data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.0.path().join(DATA_DIRECTORY)
    }

    /// Unpacks an archive of [`Self::write_archive`].
    ///
    /// # Errors
    /// The archive cannot be read, or a file cannot be written.
    pub(crate) fn unpack(&self, archive: &Path) -> Result<(), ServerError> {
        let io = |source| ServerError::Io { what: "the template cannot be unpacked", source };
        let mut archive = tar::Archive::new(File::open(archive).map_err(io)?);
        archive.set_preserve_mtime(false);
        archive.unpack(self.0.path()).map_err(io)?;
        // A server may refuse a directory that others may enter.
        rustix::fs::chmod(self.data(), rustix::fs::Mode::RWXU).map_err(|errno| io(errno.into()))
    }

    /// Writes the data directory as an archive.
    ///
    /// # Errors
    /// A file cannot be read, or the archive cannot be written.
    pub(crate) fn write_archive(&self, out: impl Write) -> Result<(), ServerError> {
        let io = |source| ServerError::Io { what: "the template cannot be written", source };
        let mut archive = tar::Builder::new(out);
        archive.follow_symlinks(false);
        archive.append_dir_all(DATA_DIRECTORY, self.data()).map_err(io)?;
        archive.into_inner().and_then(|mut out| out.flush()).map_err(io)
    }

    /// Starts a server whose output goes to a file in the data directory. `end` is the signal that ends it at once.
    ///
    /// # Errors
    /// The program cannot be started.
    #[expect(clippy::disallowed_methods, reason = "the output of a server is lost with its private directory")]
    pub(crate) fn start(
        self,
        mut command: Command,
        program: &'static str,
        end: Signal,
    ) -> Result<ServerProcess, ServerError> {
        let io = |source| ServerError::Io { what: "the server cannot be started", source };
        let log = File::create(self.data().join(LOG_FILE)).map_err(io)?;
        let child = command.stdout(log.try_clone().map_err(io)?).stderr(log).spawn().map_err(io)?;
        Ok(ServerProcess { directory: self, process: Mutex::new(child), program, end })
    }
}

/// The process of a server. It ends when the value is dropped.
pub(crate) struct ServerProcess {
    directory: ServerDirectory,
    process: Mutex<Child>,
    program: &'static str,
    end: Signal,
}

impl ServerProcess {
    /// Returns the data directory.
    pub(crate) fn data(&self) -> PathBuf {
        self.directory.data()
    }

    /// Reports whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.try_wait().map_or(true, |status| status.is_some())
    }

    /// Waits until the server accepts a connection.
    ///
    /// # Errors
    /// The server ends, or the time is over.
    #[expect(clippy::disallowed_methods, reason = "a starting server reports no event when it accepts connections")]
    pub(crate) fn wait_until_ready(&self, accepts: impl Fn() -> bool) -> Result<(), ServerError> {
        let until = Instant::now() + START_TIMEOUT;
        while !accepts() {
            if self.has_ended() || Instant::now() > until {
                return Err(ServerError::NotReady { message: self.last_output() });
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        Ok(())
    }

    /// Ends the server in an orderly way, so that its data directory is complete. Returns the directory.
    ///
    /// # Errors
    /// The server cannot be ended, or fails at its end.
    pub(crate) fn shut_down(mut self, signal: Signal) -> Result<ServerDirectory, ServerError> {
        let io = |source| ServerError::Io { what: "the server cannot be ended", source };
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        rustix::process::kill_process(Pid::from_child(process), signal).map_err(|errno| io(errno.into()))?;
        let status = process.wait().map_err(io)?;
        if !status.success() {
            return Err(ServerError::Failed { program: self.program, message: self.last_output() });
        }
        // The log is no part of the data.
        let _ = std::fs::remove_file(self.data().join(LOG_FILE));
        let unused = ServerDirectory::create("unused")?;
        Ok(std::mem::replace(&mut self.directory, unused))
    }

    fn last_output(&self) -> String {
        last_lines(&std::fs::read(self.data().join(LOG_FILE)).unwrap_or_default())
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        // An immediate end; the data directory is removed anyway.
        let process = self.process.get_mut().unwrap_or_else(PoisonError::into_inner);
        if !matches!(process.try_wait(), Ok(Some(_))) {
            let _ = rustix::process::kill_process(Pid::from_child(process), self.end);
            let _ = process.wait();
        }
    }
}

/// Returns a file name for a template, which is different after an update of the server program or of `version`, the
/// version of the content.
///
/// # Errors
/// The program cannot be read.
pub(crate) fn template_name(prefix: &str, version: u32, program: &Path) -> io::Result<String> {
    let meta = program.metadata()?;
    let (path, bytes, inode) = (program.display(), meta.len(), meta.ino());
    let state = format!("{version} {path} {bytes} {inode} {} {}", meta.mtime(), meta.mtime_nsec());
    Ok(format!("{prefix}-{}.tar", &Sha256Hex::digest(state.as_bytes()).as_str()[..16]))
}

/// Returns the end of an output.
fn last_lines(output: &[u8]) -> String {
    /// The number of bytes that are shown.
    const SHOWN: usize = 600;
    let end = &output[output.len().saturating_sub(SHOWN)..];
    String::from_utf8_lossy(end).trim().replace('\n', "; ")
}
