//! Reads the state of the host from /proc and /sys: processes, namespaces, mounts, cgroups, descriptors, memory.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::{Pid, PidfdFlags};

/// Returns one line about the machine and the user.
///
/// # Errors
/// The kernel's name is not UTF-8.
pub(crate) fn describe(what: &str) -> Result<String> {
    let system = rustix::system::uname();
    let release = system.release().to_str().context("the kernel release is not UTF-8")?;
    let processors = std::thread::available_parallelism()?;
    let user = if rustix::process::geteuid().is_root() { "root" } else { "an ordinary user" };
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().unwrap_or_default();
    Ok(format!("\n{what}: Linux {release}, {processors} processors, load {load}, as {user}"))
}

/// Returns the processes that have `marker` among their arguments.
///
/// # Errors
/// cannot read /proc.
pub(crate) fn processes_with_argument(marker: &str) -> Result<Vec<Pid>> {
    let is_marked = |dir: &Path| {
        // A process that has just exited has no arguments.
        let line = fs::read(dir.join("cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == marker.as_bytes())
    };
    Ok(processes()?.into_iter().filter(|(_, dir)| is_marked(dir)).map(|(pid, _)| pid).collect())
}

/// Opens a pidfd for each process; skips processes that have exited already.
///
/// # Errors
/// No descriptor is available.
pub(crate) fn open_pidfds(pids: &[Pid]) -> Result<Vec<OwnedFd>> {
    let open = |pid: &Pid| match rustix::process::pidfd_open(*pid, PidfdFlags::empty()) {
        Err(rustix::io::Errno::SRCH) => None,
        other => Some(other.context("cannot watch a process")),
    };
    pids.iter().filter_map(open).collect()
}

/// Returns all processes with their directories.
fn processes() -> Result<Vec<(Pid, PathBuf)>> {
    let entries = fs::read_dir("/proc").context("cannot read /proc")?;
    let process = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Some((Pid::from_raw(number)?, entry.path()))
    };
    Ok(entries.filter_map(Result::ok).filter_map(process).collect())
}

/// Returns everything that an attempt could leave on the machine; each has a unique name.
///
/// # Errors
/// cannot read /proc.
pub(crate) fn leftover_candidates(state: &Path, marker: &str) -> Result<BTreeSet<String>> {
    let mut things = BTreeSet::new();
    for (pid, dir) in processes()? {
        let links = fs::read_dir(dir.join("ns")).into_iter().flatten().filter_map(Result::ok);
        let names = links.filter_map(|link| fs::read_link(link.path()).ok());
        things.extend(names.map(|name| format!("namespace {}", name.display())));
        if is_child(&dir) {
            things.insert(format!("child {pid}"));
        }
    }
    things.extend(processes_with_argument(marker)?.into_iter().map(|pid| format!("process {pid}")));
    things.extend(descriptors()?.into_iter().map(|descriptor| format!("descriptor {descriptor}")));
    let mounts = fs::read_to_string("/proc/self/mountinfo").context("cannot read the mounts")?;
    things.extend(mounts.lines().map(|line| format!("mount {line}")));
    directories(Path::new("/sys/fs/cgroup"), &mut |path| {
        things.insert(format!("cgroup {}", path.display()));
    });
    files(state, &mut |path| {
        things.insert(format!("file {}", path.display()));
    });
    Ok(things)
}

/// Returns whether the process is our child; this includes zombies.
fn is_child(process: &Path) -> bool {
    let status = fs::read_to_string(process.join("status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok());
    parent == Some(rustix::process::getpid().as_raw_nonzero().get())
}

/// Visits every directory below `at`, without following links. Skips directories that disappear during the
/// traversal.
fn directories(at: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(at).into_iter().flatten().filter_map(Result::ok) {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            visit(&entry.path());
            directories(&entry.path(), visit);
        }
    }
}

/// Visits everything below `at`, without following links.
fn files(at: &Path, visit: &mut impl FnMut(&Path)) {
    for entry in fs::read_dir(at).into_iter().flatten().filter_map(Result::ok) {
        visit(&entry.path());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files(&entry.path(), visit);
        }
    }
}

/// Returns our own descriptors with their targets.
fn descriptors() -> Result<Vec<String>> {
    let entries = fs::read_dir("/proc/self/fd").context("cannot list the descriptors of this process")?;
    let number_and_target = |entry: fs::DirEntry| {
        // Skip the descriptor of this directory listing, which is closed afterwards.
        let target = fs::read_link(entry.path()).ok().filter(|target| !target.ends_with("fd"))?;
        Some(format!("{} to {}", entry.file_name().to_string_lossy(), target.display()))
    };
    Ok(entries.filter_map(Result::ok).filter_map(number_and_target).collect())
}

/// Returns the number of open descriptors of a process.
///
/// # Errors
/// The process does not exist, or it belongs to another user.
pub(crate) fn open_descriptors(pid: u32) -> Result<usize> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd")).with_context(|| format!("cannot read process {pid}"))?;
    Ok(entries.count())
}

/// Returns the resident memory of a process, in bytes.
///
/// # Errors
/// The process does not exist.
pub(crate) fn resident(pid: u32) -> Result<u64> {
    let resident = kibibytes(&format!("/proc/{pid}/status"), "VmRSS:");
    Ok(resident.with_context(|| format!("/proc does not report the memory of process {pid}"))? << 10)
}

/// Returns the available memory of the machine, in bytes.
pub(crate) fn available_memory() -> u64 {
    kibibytes("/proc/meminfo", "MemAvailable:").unwrap_or(0) << 10
}

/// Returns the peak resident memory of this process since its start or since [`reset_peak`], in bytes.
///
/// # Errors
/// /proc does not contain the value.
pub(crate) fn peak_memory() -> Result<u64> {
    let peak = kibibytes("/proc/self/status", "VmHWM:").context("/proc does not report the memory of this process")?;
    Ok(peak << 10)
}

/// Resets the peak memory to the current use (`clear_refs` of proc(5), value 5).
///
/// # Errors
/// The kernel does not allow resetting the peak.
#[expect(clippy::disallowed_methods, reason = "a file in /proc is a kernel interface")]
pub(crate) fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the memory peak")
}

fn kibibytes(file: &str, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().strip_suffix(" kB")?.parse().ok())
}

/// Returns whether a process runs the program of this name.
pub(crate) fn is_named(pid: Pid, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
}

/// Waits for a moment.
///
/// # Errors
/// The wait was interrupted.
pub(crate) fn pause(moment: Duration) -> Result<()> {
    let timeout = rustix::time::Timespec::try_from(moment)?;
    rustix::event::poll(&mut [], Some(&timeout)).context("the wait was interrupted")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program;

    /// Number of times that the test looks for its child.
    const LOOKS: usize = 1_000;

    #[test]
    fn finds_leftovers() {
        let state = tempfile::tempdir().expect("temp");
        let marker = format!("0.{}000009", rustix::process::getpid());
        let before = leftover_candidates(state.path(), &marker).expect("looks");
        let mut child = program::silent_command("sleep", &["300", &marker]).spawn().expect("starts");
        let (_reader, _writer) = std::io::pipe().expect("pipe");
        std::fs::create_dir(state.path().join("left")).expect("makes");
        // The parent continues before the kernel has set the child's command line.
        let has_process = |found: &BTreeSet<String>| found.iter().any(|thing| thing.starts_with("process "));
        let look = || leftover_candidates(state.path(), &marker).expect("looks");
        let after = (0..LOOKS).map(|_| look()).find(has_process).unwrap_or_else(look);
        child.kill().and_then(|()| child.wait()).expect("ends");
        for kind in ["child", "process", "descriptor", "file"] {
            let count = after.difference(&before).filter(|thing| thing.split(' ').next() == Some(kind)).count();
            assert_eq!(count, if kind == "descriptor" { 2 } else { 1 }, "{kind}");
        }
    }
}
