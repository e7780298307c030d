//! Starts database servers of a test as an ordinary user, since servers refuse to run as root.
#![expect(clippy::disallowed_methods, reason = "a test starts servers that Proctor does not use")]

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// The account that runs a server if the test runs as root.
const SERVER_ACCOUNT: &str = "nobody";
/// The longest time for the start of a server.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server. It ends when the value is dropped.
pub(crate) struct OracleServer {
    process: Child,
    end: Signal,
}

impl OracleServer {
    /// Starts a server, and waits until a line of its log contains `ready`. `end` is the signal that ends it at once.
    pub(crate) fn start(mut command: Command, ready: &'static str, end: Signal) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("a server");
        let log = process.stderr.take().expect("a log");
        let server = Self { process, end };
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            // The rest of the log is read too, since the server would wait otherwise.
            for line in BufReader::new(log).lines().map_while(Result::ok).filter(|line| line.contains(ready)) {
                let _ = sender.send(line);
            }
        });
        receiver.recv_timeout(START_TIMEOUT).expect("the server starts");
        server
    }
}

impl Drop for OracleServer {
    fn drop(&mut self) {
        let _ = kill_process(Pid::from_child(&self.process), self.end);
        let _ = self.process.wait();
    }
}

/// Creates a directory for the user of a server.
pub(crate) fn server_directory(parent: &Path, name: &str) -> PathBuf {
    let directory = parent.join(name);
    std::fs::create_dir(&directory).expect("a directory");
    if is_root() {
        // The user must be able to reach the directory.
        std::fs::set_permissions(parent, std::fs::Permissions::from_mode(0o711)).expect("a mode");
        let id = Command::new("id").args(["-u", SERVER_ACCOUNT]).output().expect("the account has a number");
        let uid = String::from_utf8_lossy(&id.stdout).trim().parse().expect("a number");
        std::os::unix::fs::chown(&directory, Some(uid), None).expect("an owner");
    }
    directory
}

/// Returns a command that runs as an ordinary user.
pub(crate) fn as_server_user(program: &Path) -> Command {
    let mut command = if is_root() { Command::new("setpriv") } else { Command::new(program) };
    if is_root() {
        command.args(["--reuid", SERVER_ACCOUNT, "--clear-groups", "--"]).arg(program);
    }
    command.current_dir("/");
    command
}

/// Runs a program that prepares a data directory.
pub(crate) fn run_to_end(mut command: Command) {
    let done = command.output().expect("a program of the server");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
