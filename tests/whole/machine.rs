//! The machine that the tests run on: programs, users, and what runs on it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use crate::binaries;
use crate::process::Running;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};

/// The search path of everything that the tests start.
pub(crate) const PATH: &str = "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin";
/// The user without privileges. No such account need exist.
pub(crate) const UNPRIVILEGED_ID: u32 = 1001;

/// A command with an empty environment but `PATH`: the one place where the tests start programs.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    #[expect(clippy::disallowed_methods, reason = "the tests drive the binaries as a user does, outside any sandbox")]
    let mut command = Command::new(program);
    command.env_clear().env("PATH", PATH);
    command
}

/// A command of the clients that `scripts/clients` installs, by its path below them. What is written for
/// node finds the one that was installed for it.
pub(crate) fn client_command(path: &str) -> Command {
    let mut command = command(binaries::client(path));
    let node = binaries::client("node/node_modules/.bin");
    command.env("PATH", format!("{}:{PATH}", node.display()));
    command
}

/// Writes a file of a test; what a repository or a user would have.
pub(crate) fn write(path: &Path, bytes: impl AsRef<[u8]>) {
    std::fs::create_dir_all(path.parent().expect("a file has a directory")).expect("a directory of the test");
    #[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
    std::fs::write(path, bytes).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}

/// Lets every user enter a directory and read it.
pub(crate) fn open_to_all(dir: &Path) {
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).expect("a mode for a directory of the test");
}

/// Lets every user read a file.
pub(crate) fn open_file_to_all(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o644)).expect("a mode for a file of the test");
}

/// Whether the tests run as root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether a program lies on [`PATH`], or at the path that `name` is.
pub(crate) fn has_program(name: &str) -> bool {
    program(name).is_some()
}

/// Where a program lies, links followed.
pub(crate) fn program(name: &str) -> Option<PathBuf> {
    let found = PATH.split(':').map(|dir| Path::new(dir).join(name)).find(|path| path.is_file())?;
    found.canonicalize().ok()
}

/// The toolchain of rustup that built the tests; `None` where something else did.
pub(crate) fn rust_toolchain() -> Option<PathBuf> {
    let toolchain = Path::new(env!("CARGO")).parent()?.parent()?;
    (toolchain.parent()?.ends_with("toolchains") && rustup().is_some()).then(|| toolchain.to_owned())
}

/// Rustup itself, which is also each of its proxies.
fn rustup() -> Option<PathBuf> {
    let homes = [option_env!("CARGO_HOME").map(PathBuf::from), std::env::home_dir().map(|home| home.join(".cargo"))];
    homes.into_iter().flatten().map(|home| home.join("bin/rustup")).find(|path| path.is_file())
}

/// Makes a home in which rustup's proxies lead to a toolchain that lies elsewhere.
pub(crate) fn rust_home(home: &Path, toolchain: &Path) {
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

/// What compiling needs of a toolchain, as hard links where those can be had. Whoever gives
/// the files away gives the toolchain itself away.
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

/// The user id of an account of the machine.
pub(crate) fn uid_of(account: &str) -> u32 {
    let mut asked = command("id");
    asked.args(["-u", account]);
    Running::start(asked).wait().exits(0).stdout.trim().parse().expect("a number")
}

/// Whether files can be given to another user, tried: the root of a sandbox has nobody to give them to.
pub(crate) fn can_give_away() -> bool {
    static ANSWER: LazyLock<bool> = LazyLock::new(|| {
        let dir = tempfile::tempdir().expect("a directory for a probe");
        std::os::unix::fs::lchown(dir.path(), Some(UNPRIVILEGED_ID), Some(UNPRIVILEGED_ID)).is_ok()
    });
    *ANSWER
}

/// Lets everybody run a file of the test.
pub(crate) fn make_executable(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode for a file of the test");
}

/// Gives everything below `dir`, and itself, to a user.
pub(crate) fn give_to(dir: &Path, id: u32) {
    for path in walk(dir) {
        std::os::unix::fs::lchown(&path, Some(id), Some(id)).expect("root may change owners");
    }
}

/// `dir` and everything below it; links are not followed.
pub(crate) fn walk(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_owned()];
    let is_dir = dir.symlink_metadata().is_ok_and(|meta| meta.is_dir());
    let entries = if is_dir { std::fs::read_dir(dir).ok() } else { None };
    for entry in entries.into_iter().flatten().flatten() {
        found.extend(walk(&entry.path()));
    }
    found
}

/// The processes of the machine whose command line or environment holds `marker`.
pub(crate) fn processes_with(marker: &str) -> Vec<u32> {
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
        bytes.windows(marker.len()).any(|window| window == marker.as_bytes())
    })
}

/// A process that has `marker` as a word of its command line and is not `seen`.
pub(crate) fn process_called(marker: &str, seen: u32) -> Option<u32> {
    let in_cmdline = |pid: &u32| {
        let bytes = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        bytes.split(|byte| *byte == 0).any(|word| word == marker.as_bytes())
    };
    processes_with(marker).into_iter().filter(|pid| *pid != seen).find(in_cmdline)
}

/// The effective user id of a process, as the host sees it.
pub(crate) fn host_uid_of(pid: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the process is there");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).expect("a Uid line");
    line.split_whitespace().nth(1).and_then(|id| id.parse().ok()).expect("an effective uid")
}

/// Sends a signal to a process of ours, or of the step that a case started.
pub(crate) fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a pid");
    rustix::process::kill_process(pid, signal).expect("a signal to a process of this test");
}

/// The same where it may have ended by now.
pub(crate) fn signal_if_there(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, signal);
    }
}

/// Waits, bounded, until every process with `marker` has ended.
pub(crate) fn wait_until_gone(marker: &str, bound: Duration) -> Result<(), Vec<u32>> {
    let deadline = Instant::now() + bound;
    loop {
        let left = processes_with(marker);
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
