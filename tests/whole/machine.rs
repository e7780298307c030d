//! Helpers for the machine that runs the tests: programs, users, files and processes.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::binaries;
use crate::process::RunningProcess;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

/// The search path of all processes that the tests start.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
/// Id of the unprivileged user. The account need not exist.
pub(crate) const UNPRIVILEGED_ID: u32 = 1001;

/// Returns a command with an empty environment except `PATH`. This is the only function of the tests that starts
/// programs.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    // With a name instead of a path, the standard library forks this large process instead of calling `posix_spawn`.
    let program = program.as_ref();
    let path = program.to_str().and_then(path_in_search_path);
    #[expect(clippy::disallowed_methods, reason = "the tests drive the binaries as a user does, outside any sandbox")]
    let mut command = Command::new(path.as_deref().map_or(program, Path::as_os_str));
    command.env_clear().env("PATH", PATH);
    command
}

/// Returns a command for a client that `scripts/clients` installs. Programs for Node find the Node that was installed
/// with them.
pub(crate) fn client_command(path: &str) -> Command {
    let mut command = command(binaries::client_program(path));
    let node = binaries::client_program("node/node_modules/.bin");
    command.env("PATH", format!("{}:{PATH}", node.display()));
    command
}

/// Writes a file that belongs to a test's repository or user.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().expect("a file has a directory")).expect("a directory of the test");
    #[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
    std::fs::write(path, bytes).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}

/// Makes a directory readable for all users.
pub(crate) fn make_dir_public(dir: &Path) {
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).expect("a mode for a directory of the test");
}

/// Makes a file readable for all users.
pub(crate) fn make_file_public(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).expect("a mode for a file of the test");
}

/// Checks whether the tests run as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Checks whether a program exists in [`PATH`], or at the path `name`.
pub(crate) fn has_program(name: &str) -> bool {
    find_program(name).is_some()
}

/// Returns the path of a program, with links resolved.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    path_in_search_path(name)?.canonicalize().ok()
}

fn path_in_search_path(name: &str) -> Option<PathBuf> {
    PATH.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())
}

/// Returns the rustup toolchain that built the tests, or `None` if they were built without rustup.
pub(crate) fn rust_toolchain() -> Option<PathBuf> {
    let toolchain = Path::new(env!("CARGO")).parent()?.parent()?;
    (toolchain.parent()?.ends_with("toolchains") && rustup().is_some()).then(|| toolchain.to_owned())
}

/// Returns the rustup binary, which also serves as each of its proxies.
fn rustup() -> Option<PathBuf> {
    let homes = [option_env!("CARGO_HOME").map(PathBuf::from), std::env::home_dir().map(|home| home.join(".cargo"))];
    homes.into_iter().flatten().map(|home| home.join("bin/rustup")).find(|path| path.is_file())
}

/// Creates a home in which rustup's proxies use an existing toolchain.
pub(crate) fn create_rust_home(home: &Path, toolchain: &Path) {
    let (bin, toolchains) = (home.join(".cargo/bin"), home.join(".rustup/toolchains"));
    for dir in [&bin, &toolchains] {
        std::fs::create_dir_all(dir).expect("a directory of the test");
    }
    std::fs::copy(rustup().expect("the case needs it"), bin.join("rustup")).expect("a copy of rustup");
    for proxy in ["cargo", "rustc", "rustdoc"] {
        std::os::unix::fs::symlink("rustup", bin.join(proxy)).expect("a link of the test");
    }
    std::os::unix::fs::symlink(toolchain, toolchains.join("linked")).expect("a link of the test");
    write(&home.join(".rustup/settings.toml"), "version = \"12\"\ndefault_toolchain = \"linked\"\n");
}

/// Copies the parts of a toolchain that a build needs, as hard links if possible. Changing the owner of a hard link
/// would change the original too.
pub(crate) fn copy_toolchain(from: &Path, to: &Path) {
    let sources = from.join("lib/rustlib/src");
    let files = ["bin", "lib"].into_iter().flat_map(|dir| walk(&from.join(dir)));
    for file in files.filter(|path| !path.is_dir() && !path.starts_with(&sources)) {
        let target = to.join(file.strip_prefix(from).expect("the walk began there"));
        std::fs::create_dir_all(target.parent().expect("a file has a directory")).expect("a directory of the test");
        if std::fs::hard_link(&file, &target).is_err() {
            std::fs::copy(&file, &target).expect("a copy of a file of the toolchain");
        }
    }
}

/// Returns the user id of a system account.
pub(crate) fn account_uid(account: &str) -> u32 {
    let mut id_command = command("id");
    id_command.args(["-u", account]);
    RunningProcess::start(id_command).wait().exits(0).stdout.trim().parse().expect("a number")
}

/// Checks whether files can be given to another user, which fails for root inside a sandbox.
pub(crate) fn can_change_owner() -> bool {
    static ANSWER: LazyLock<bool> = LazyLock::new(|| {
        let dir = tempfile::tempdir().expect("a directory for a probe");
        std::os::unix::fs::lchown(dir.path(), Some(UNPRIVILEGED_ID), Some(UNPRIVILEGED_ID)).is_ok()
    });
    *ANSWER
}

/// Makes a file executable for all users.
pub(crate) fn make_executable(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode for a file of the test");
}

/// Changes the owner of `dir` and everything below it.
pub(crate) fn change_owner(dir: &Path, id: u32) {
    for path in walk(dir) {
        std::os::unix::fs::lchown(&path, Some(id), Some(id)).expect("root may change owners");
    }
}

/// Returns `dir` and everything below it, without following links.
pub(crate) fn walk(dir: &Path) -> Vec<PathBuf> {
    walk_without(dir, None)
}

/// Returns `dir` and everything below it except the entries with the name `excluded`, without following links.
pub(crate) fn walk_without(dir: &Path, excluded: Option<&str>) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    if dir.symlink_metadata().is_ok_and(|meta| meta.is_dir()) {
        add_entries(dir, excluded.map(OsStr::new), &mut found);
    }
    found
}

fn add_entries(dir: &Path, excluded: Option<&OsStr>, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if Some(&*entry.file_name()) == excluded {
            continue;
        }
        let path = entry.path();
        // The directory contains the type, so the file needs no call of its own.
        let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
        found.push(path.clone());
        if is_dir {
            add_entries(&path, excluded, found);
        }
    }
}

/// Returns the processes whose command line or environment contains `marker`.
pub(crate) fn processes_with_marker(marker: &str) -> Vec<u32> {
    let this = std::process::id();
    let pids = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| *pid != this && has_marker(*pid, marker)).collect()
}

fn has_marker(pid: u32, marker: &str) -> bool {
    ["cmdline", "environ"].into_iter().any(|file| {
        let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        // The standard library is optimised even in a debug build, unlike a search over windows.
        String::from_utf8_lossy(&bytes).contains(marker)
    })
}

/// Returns a process other than `seen` that has `marker` as an argument.
pub(crate) fn process_with_argument(marker: &str, excluded_pid: u32) -> Option<u32> {
    let in_cmdline = |pid: &u32| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        bytes.split(|byte| *byte == 0).any(|word| word == marker.as_bytes())
    };
    processes_with_marker(marker).into_iter().filter(|pid| *pid != excluded_pid).find(in_cmdline)
}

/// Returns the effective user id of a process on the host.
pub(crate) fn host_uid(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a Uid line");
    line.split_whitespace().nth(1).and_then(|id| id.parse().ok()).expect("an effective uid")
}

/// Sends a signal to a process that a case started.
pub(crate) fn send_signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("a signal to a process of this test");
}

/// Sends a signal to a process that may have exited.
pub(crate) fn send_signal_if_alive(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Waits at most `bound` until all processes with `marker` have exited.
pub(crate) fn wait_for_processes_to_exit(marker: &str, bound: Duration) -> Result<(), Vec<u32>> {
    let deadline = Instant::now() + bound;
    loop {
        let left = processes_with_marker(marker);
        let Some(first) = left.first() else { return Ok(()) };
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(left);
        }
        wait_for_exit(*first, remaining);
    }
}

fn wait_for_exit(pid: u32, bound: Duration) {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return };
    if let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) {
        let timeout = Timespec::try_from(bound).expect("a bound of seconds");
        let _ = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&timeout));
    }
}
