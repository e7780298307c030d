//! Runs the process of a database server in a private directory, and stores prepared data directories as archives. The
//! modules of the servers decide which programs run and with which settings.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::text::digest::Sha256Hex;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, setrlimit};

/// The longest time for the start or the end of a server, or for the creation of a template.
pub(crate) const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The size of the end of an output that is kept, in bytes.
const KEPT_OUTPUT: usize = 600;
/// The bytes after an archive, which show that it is complete: a truncated one can end with zeros too.
pub(crate) const ARCHIVE_END: &[u8] = b"proctor: end of the archive\n";
/// The name of the data directory in an archive and in the directory of a server.
const DATA_DIRECTORY: &str = "data";
/// The name of the link to the directory of a socket that other programs reach.
const SOCKET_LINK: &str = "s";

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
        /// The last lines of the output of the program.
        message: String,
    },
    /// The server does not accept connections in time.
    #[error("the server did not start: {message}")]
    NotReady {
        /// The last lines of the output of the program.
        message: String,
    },
    /// The server refuses a statement of its administration.
    #[error("the server cannot be administered: {0}")]
    Administration(String),
}

/// The files outside of its private directory that a server uses.
#[derive(Debug, Clone, Default)]
pub struct ServerFiles {
    /// The archive from which the data directory is copied; without an archive, the server creates a new directory,
    /// which takes seconds.
    pub template: Option<PathBuf>,
    /// The directory for a socket that other programs of the user reach.
    pub socket_directory: Option<PathBuf>,
    /// The memory that each process of the server may use, in bytes, if the server has no setting for a limit.
    pub process_memory: Option<u64>,
}

/// Returns the command of a server program: a fixed environment and no input.
#[expect(clippy::disallowed_methods, reason = "a worker starts its server in its own sandbox")]
pub(crate) fn server_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("LC_ALL", "C").env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null());
    command
}

/// Starts something whose processes each get an error when they ask for more memory than `bytes`.
///
/// # Errors
/// The limit cannot be set, or the start fails.
pub(crate) fn with_process_memory<T>(
    bytes: Option<u64>,
    start: impl FnOnce() -> Result<T, ServerError>,
) -> Result<T, ServerError> {
    let Some(bytes) = bytes else { return start() };
    let what = "the memory of the server cannot be limited";
    let set = |limit| setrlimit(Resource::Data, limit).map_err(|errno| ServerError::Io { what, source: errno.into() });
    let before = getrlimit(Resource::Data);
    // New processes inherit the limit of this one, which has it only for the moment.
    set(Rlimit { current: Some(before.maximum.map_or(bytes, |maximum| maximum.min(bytes))), ..before })?;
    let started = start();
    set(before)?;
    started
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

    /// Returns a short path of a directory, since the path of a socket has a maximum length.
    ///
    /// # Errors
    /// The link cannot be created.
    pub(crate) fn short_path(&self, directory: &Path) -> Result<PathBuf, ServerError> {
        let link = self.0.path().join(SOCKET_LINK);
        let what = "the link to the directory of the socket cannot be created";
        let linked = std::os::unix::fs::symlink(directory, &link);
        linked.map(|()| link).map_err(|source| ServerError::Io { what, source })
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
        let mut out = archive.into_inner().map_err(io)?;
        out.write_all(ARCHIVE_END).and_then(|()| out.flush()).map_err(io)
    }

    /// Starts a server, and waits until a line of its log contains `ready`. `end` is the signal that ends it at once.
    ///
    /// # Errors
    /// The program cannot be started, ends, or is not ready in time.
    pub(crate) fn start(
        self,
        mut command: Command,
        program: &'static str,
        ready: &'static str,
        end: Signal,
    ) -> Result<ServerProcess, ServerError> {
        let io = |source| ServerError::Io { what: "the server cannot be started", source };
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().map_err(io)?;
        let output = child.stderr.take().ok_or_else(|| io(io::ErrorKind::BrokenPipe.into()))?;
        let log = ServerLog::read(output, ready);
        let server = ServerProcess { directory: self, process: Mutex::new(child), log, program, end };
        server.log.wait_until_ready()?;
        Ok(server)
    }
}

/// The log of a server, which a thread reads until the server ends.
struct ServerLog {
    end: Arc<Mutex<Vec<u8>>>,
    ready: Mutex<Receiver<()>>,
}

impl ServerLog {
    fn read(output: ChildStderr, ready_words: &'static str) -> Self {
        let end = Arc::new(Mutex::new(Vec::new()));
        let (sender, ready) = std::sync::mpsc::channel();
        let kept = Arc::clone(&end);
        std::thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                if String::from_utf8_lossy(&line).contains(ready_words) {
                    // The receiver is gone if the server prints this line again after a crash of one of its processes.
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

/// The process of a server. It ends when the value is dropped.
pub(crate) struct ServerProcess {
    directory: ServerDirectory,
    process: Mutex<Child>,
    log: ServerLog,
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
            return Err(ServerError::Failed { program: self.program, message: self.log.end() });
        }
        let unused = ServerDirectory::create("unused")?;
        Ok(std::mem::replace(&mut self.directory, unused))
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

/// Returns the name of a database of a worker. Its databases have numbers from zero.
pub(crate) fn database_name(number: u64) -> String {
    format!("judged_{number}")
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
    Ok(format!("{prefix}-{}.tar", Sha256Hex::digest(state.as_bytes()).prefix(16)))
}

/// Returns the end of an output as one line.
fn last_lines(output: &[u8]) -> String {
    let end = &output[output.len().saturating_sub(KEPT_OUTPUT)..];
    String::from_utf8_lossy(end).trim().replace('\n', "; ")
}
