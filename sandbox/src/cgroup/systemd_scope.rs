//! Requests a scope from systemd through its `busctl`: a delegated cgroup into which systemd moves this process, like
//! `systemd-run --scope` does before it starts a program. Used only if systemd runs, and if no better option works.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags};

use super::membership::{CgroupMembership, CgroupVersion};
use crate::cgroup::control_files::has_limit_controllers;
use crate::cgroup::unusable::{CgroupUnusable, DiscoveryPaths, ScopeError, is_service};
use crate::wait;

/// Total timeout for systemd.
const SYSTEMD_TIMEOUT: Duration = Duration::from_millis(1500);
/// The longest error output of `busctl` to keep, in bytes.
const MAX_ERROR_OUTPUT: u64 = 4096;

/// The manager of this machine's cgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CgroupManager {
    /// No manager: any process with write permission may use the cgroups.
    Unmanaged,
    /// systemd: only cgroups that it delegates may be used.
    Systemd,
}

/// Returns the manager of this machine's cgroups.
pub(super) fn detect_manager(roots: &DiscoveryPaths) -> CgroupManager {
    if roots.systemd.is_dir() { CgroupManager::Systemd } else { CgroupManager::Unmanaged }
}

/// Returns whether systemd could provide a better location. A system service stays in its cgroup, since its unit
/// configures delegation. Services of a user's manager have no delegation mark (observed with systemd 252), so they
/// make the request too.
pub(super) fn can_request_scope(manager: CgroupManager, places: &[CgroupMembership]) -> bool {
    let unified = places.iter().find(|place| place.version == CgroupVersion::V2);
    let movable = |dir: &Path| !is_service(dir) || is_owned_by_user(dir);
    manager == CgroupManager::Systemd
        && unified.is_some_and(|place| has_limit_controllers(&place.mount_point) && movable(&place.dir))
}

fn is_owned_by_user(dir: &Path) -> bool {
    let user = rustix::process::geteuid();
    !user.is_root() && std::fs::metadata(dir).is_ok_and(|found| found.uid() == user.as_raw())
}

/// Makes systemd create the scope and move this process into it.
pub(super) fn enter(roots: &DiscoveryPaths) -> Result<(), CgroupUnusable> {
    let until = Instant::now() + SYSTEMD_TIMEOUT;
    let unit = own_unit();
    request_scope(&roots.busctl, &unit)?;
    Ok(wait_until_moved(&roots.cgroup, &unit, until)?)
}

/// Returns the name of this process's scope, which is created with `Delegate=yes`.
pub(super) fn own_unit() -> String {
    format!("proctor-{}.scope", std::process::id())
}

fn request_scope(busctl: &Path, unit: &str) -> Result<(), ScopeError> {
    let child = start_unit_command(busctl, unit).spawn();
    let child = child.map_err(|error| ScopeError::NotStarted { busctl: busctl.to_owned(), error })?;
    let (mut child, in_time) = wait_with_timeout(child).map_err(ScopeError::NotWaited)?;
    let success = in_time.ok_or(ScopeError::NoAnswer(SYSTEMD_TIMEOUT))?;
    if success {
        return Ok(());
    }
    let mut complaint = String::new();
    if let Some(stderr) = child.stderr.take() {
        drop(stderr.take(MAX_ERROR_OUTPUT).read_to_string(&mut complaint));
    }
    Err(ScopeError::Refused(complaint.trim().replace('\n', " ")))
}

/// Waits for the child, and kills it after a timeout. Returns whether it succeeded, or `None` if it was killed.
fn wait_with_timeout(mut child: Child) -> std::io::Result<(Child, Option<bool>)> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let ended = pid.and_then(|pid| {
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()?;
        wait::wait_readable(pidfd.as_fd(), SYSTEMD_TIMEOUT).ok()
    });
    if ended.is_none() {
        child.kill()?;
    }
    let status = child.wait()?;
    Ok((child, ended.map(|()| status.success())))
}

/// Builds the call of `StartTransientUnit(name, mode, properties, aux)`, org.freedesktop.systemd1(5).
#[expect(clippy::disallowed_methods, reason = "queries the service manager once, through its own program")]
fn start_unit_command(busctl: &Path, unit: &str) -> Command {
    let user = rustix::process::geteuid();
    let pid = std::process::id().to_string();
    let mut command = Command::new(busctl);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    if !user.is_root() {
        command.arg("--user").env("XDG_RUNTIME_DIR", format!("/run/user/{}", user.as_raw()));
    }
    command.args(["--allow-interactive-authorization=no", "call", "org.freedesktop.systemd1"]);
    command.args(["/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager", "StartTransientUnit"]);
    command.args(["ssa(sv)a(sa(sv))", unit, "fail", "4"]);
    command.args(["Description", "s", "Proctor's groups for attempts"]);
    command.args(["Delegate", "b", "true", "CollectMode", "s", "inactive-or-failed"]);
    command.args(["PIDs", "au", "1", &pid, "0"]);
    command
}

/// Waits until this process was moved. The answer of systemd names a job whose last action is the move. A process
/// that does not listen on the bus sees the move only in its `/proc` entry.
fn wait_until_moved(cgroup: &Path, unit: &str, until: Instant) -> Result<(), ScopeError> {
    let moved = || std::fs::read_to_string(cgroup).is_ok_and(|text| is_in_unit(&text, unit));
    while !moved() {
        if Instant::now() >= until {
            return Err(ScopeError::NotMoved { unit: unit.to_owned() });
        }
        pause();
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the kernel does not notify a process that it was moved")]
fn pause() {
    std::thread::sleep(Duration::from_millis(2));
}

/// Returns whether `/proc/self/cgroup` places this process in the unit's own cgroup of v2.
fn is_in_unit(memberships: &str, unit: &str) -> bool {
    let unified = memberships.lines().find_map(|line| line.strip_prefix("0::"));
    unified.is_some_and(|path| Path::new(path).file_name().is_some_and(|name| name == unit))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write plain files")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn recognizes_own_scope() {
        assert!(is_in_unit("1:name=systemd:/x\n0::/user.slice/proctor-7.scope\n", "proctor-7.scope"));
        assert!(!is_in_unit("0::/user.slice/proctor-77.scope\n", "proctor-7.scope"));
        assert!(!is_in_unit("0::/proctor-7.scope/below\n", "proctor-7.scope"));
        assert!(!is_in_unit("", "proctor-7.scope"));
    }

    /// Creates a program to replace `busctl`.
    fn fake_busctl(text: &str) -> (tempfile::TempDir, std::path::PathBuf) {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("busctl");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        (dir, path)
    }

    #[test]
    fn reports_busctl_error() {
        let (_dir, busctl) = fake_busctl("echo 'Call failed: no bus' >&2; exit 1");
        assert_eq!(request_scope(&busctl, "x.scope").expect_err("no bus").to_string(), "Call failed: no bus");
        let absent = request_scope(Path::new("/absent/busctl"), "x.scope").expect_err("not there").to_string();
        assert!(absent.contains("/absent/busctl"), "{absent}");
    }

    #[test]
    fn gives_up_on_hanging_manager() {
        let (_dir, busctl) = fake_busctl("exec sleep 100");
        let started = Instant::now();
        let why = request_scope(&busctl, "x.scope").expect_err("hangs").to_string();
        assert!(why.contains("no answer"), "{why}");
        assert!(started.elapsed() < SYSTEMD_TIMEOUT * 4, "{:?}", started.elapsed());
    }

    #[test]
    fn times_out_if_not_moved() {
        let (dir, busctl) = fake_busctl("exit 0");
        std::fs::write(dir.path().join("cgroup"), "0::/elsewhere\n").expect("write");
        let roots = DiscoveryPaths { cgroup: dir.path().join("cgroup"), busctl, ..DiscoveryPaths::default() };
        let why = enter(&roots).expect_err("not moved").to_string();
        assert!(why.contains("did not move this process"), "{why}");
    }

    #[test]
    fn does_not_request_scope_without_systemd() {
        let roots = DiscoveryPaths { systemd: "/absent".into(), ..DiscoveryPaths::default() };
        assert_eq!(detect_manager(&roots), CgroupManager::Unmanaged);
        assert!(!can_request_scope(CgroupManager::Systemd, &[]));
    }
}
