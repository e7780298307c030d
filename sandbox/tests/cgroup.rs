//! Tests groups in the real cgroups of this machine, with programs that exceed their limits. The location of the
//! groups is found by trial. Tests that this machine cannot run are ignored, and their names say why.
//!
//! Each test runs in a separate process, since a process has one location of groups, and finding it may move the process.
#![expect(clippy::disallowed_methods, reason = "trials start processes and build plain files")]

mod cgroup_roles;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use proctor_core::model::plan::{Limit, Limits};
use proctor_sandbox::cgroup::{AttemptCgroup, CgroupLocation, DiscoveryPaths};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};

use cgroup_roles::run_named_role;

type CgroupTestResult = Result<(), Failed>;
type CgroupTestFn = fn() -> CgroupTestResult;

macro_rules! checks {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}

/// Tests that run on every machine on which groups can be created.
const LOCATION_TESTS: &[(&str, CgroupTestFn)] = checks![
    limits_memory_and_counts_kill,
    counts_memory_files_as_memory,
    limits_processes_and_counts_refusal,
    counts_cpu_time_of_unreaped_processes,
    sets_no_limits_for_unlimited_plan,
    kills_whole_group,
    removes_two_hundred_groups,
    removes_busy_group_later,
    sweeps_groups_of_dead_owner,
    keeps_groups_of_live_owner,
    shares_location_within_process,
];

/// Tests that need root to create a cgroup of v2 for another user.
const DELEGATION_TESTS: &[(&str, CgroupTestFn)] =
    checks![divides_and_restores_delegated_cgroup, does_not_move_other_processes];

/// Tests that need root to become another user.
const ROOT_TESTS: &[(&str, CgroupTestFn)] = checks![reports_missing_location_to_ordinary_user];

/// Tests that run on every machine.
const UNCONDITIONAL_TESTS: &[(&str, CgroupTestFn)] = checks![reports_missing_cgroups];

const ROLE_FLAG: &str = "--part";
/// The ordinary user of the tests; it need not exist.
const USER: u32 = 1001;
const MIB: u64 = 1 << 20;
/// The memory limit of a balloon, and the amount that it allocates.
const MEMORY_LIMIT: u64 = 32 * MIB;
const BALLOON_BYTES: usize = 96 << 20;
/// Lifetime of processes that a failed test leaves behind.
const LEFTOVER_LIFETIME: Duration = Duration::from_secs(60);
/// CPU time that the burner uses, in milliseconds.
const BURN_MS: i64 = 100;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == ROLE_FLAG) {
        return run_role(&words[1..].iter().map(String::as_str).collect::<Vec<_>>());
    }
    let root = missing_user_change();
    let delegated = root.clone().or_else(|| v2_mount_point().err());
    let mut trials = Vec::new();
    for (checks, missing) in [
        (LOCATION_TESTS, missing_cgroup_location()),
        (DELEGATION_TESTS, delegated),
        (ROOT_TESTS, root),
        (UNCONDITIONAL_TESTS, None),
    ] {
        trials.extend(checks.iter().map(|(name, _)| trial(name, missing.as_deref())));
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial(name: &'static str, missing: Option<&str>) -> Trial {
    match missing {
        Some(reason) => Trial::test(format!("{name} ({reason})"), || Ok(())).with_ignored_flag(true),
        None => Trial::test(name, move || {
            let output = this_program(&["check", name])?.stderr(Stdio::piped()).output()?;
            match output.status.success() {
                true => Ok(()),
                false => Err(String::from_utf8_lossy(&output.stderr).into_owned().into()),
            }
        }),
    }
}

/// Returns why the tests cannot become the ordinary user, found by trial: in a sandbox, root cannot become another
/// user.
fn missing_user_change() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    let changes = setpriv("true").output().is_ok_and(|output| output.status.success());
    (!changes).then(|| "needs setpriv to become another user".to_owned())
}

/// Returns why groups cannot be created on this machine, found in a separate process, which the search may move.
fn missing_cgroup_location() -> Option<String> {
    let found = this_program(&["find"]).and_then(spawn).and_then(|mut child| {
        release_child(&mut child)?;
        child.wait_with_output()
    });
    match found {
        Ok(output) if output.status.success() => None,
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            Some(format!("needs a cgroup: {}", said.lines().next().unwrap_or_default()))
        }
        Err(error) => Some(error.to_string()),
    }
}

/// Returns the mount point of v2 if it has the controllers that limit resources.
fn v2_mount_point() -> Result<PathBuf, String> {
    let mountinfo = fs::read_to_string("/proc/self/mountinfo").map_err(|error| error.to_string())?;
    let at = mountinfo.lines().find_map(|line| {
        let (front, back) = line.split_once(" - ")?;
        back.starts_with("cgroup2 ").then(|| front.split(' ').nth(4)).flatten()
    });
    let root = PathBuf::from(at.ok_or("needs cgroup v2")?);
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).map_err(|error| error.to_string())?;
    let has = |name| controllers.split_whitespace().any(|controller| controller == name);
    if has("memory") && has("pids") { Ok(root) } else { Err("needs memory and pids in cgroup v2".to_owned()) }
}

fn limits_memory_and_counts_kill() -> CgroupTestResult {
    expect_memory_kill("heap")
}

fn counts_memory_files_as_memory() -> CgroupTestResult {
    expect_memory_kill("memfd")
}

fn expect_memory_kill(kind: &str) -> CgroupTestResult {
    let group = CgroupLocation::find()?.create_group()?;
    let held = group.set_limits(&limits(Limit::Max(MEMORY_LIMIT), Limit::Max(64)))?;
    let phrase = held.memory.ok_or("memory is not held")?;
    assert!(phrase.contains(&MEMORY_LIMIT.to_string()), "{phrase}");
    let status = GroupMember::start(&group, &["balloon", kind])?.wait()?;
    assert_eq!(status.signal(), Some(9), "{status}");
    let usage = group.usage();
    assert!(usage.oom_kills.is_some_and(|kills| kills > 0), "{usage:?}");
    assert!(usage.memory_peak.is_none_or(|peak| peak > MEMORY_LIMIT / 2 && peak <= MEMORY_LIMIT), "{usage:?}");
    Ok(())
}

fn limits_processes_and_counts_refusal() -> CgroupTestResult {
    let group = CgroupLocation::find()?.create_group()?;
    let held = group.set_limits(&limits(Limit::Unlimited, Limit::Max(8)))?;
    assert!(held.pids.is_some_and(|phrase| phrase.contains('9')) && held.memory.is_none());
    assert_eq!(group.usage().pids_denied, Some(0));
    let mut inmate = GroupMember::start(&group, &["threads", "64"])?;
    // The first thread of the process and eight more. The limit includes PID 1, which does not exist in this test.
    assert_eq!(inmate.line()?, "8 EAGAIN");
    assert!(inmate.wait()?.success());
    assert_eq!(group.usage().pids_denied, Some(1));
    Ok(())
}

fn counts_cpu_time_of_unreaped_processes() -> CgroupTestResult {
    let group = CgroupLocation::find()?.create_group()?;
    let held = group.set_limits(&limits(Limit::Unlimited, Limit::Unlimited))?;
    let before = group.usage();
    let mut inmate = GroupMember::start(&group, &["leave-a-burner"])?;
    // The burner keeps the pipe open until it ends.
    inmate.read_to_end()?;
    assert!(inmate.wait()?.success());
    let spent = group.usage().cpu_usec.zip(before.cpu_usec).map(|(after, before)| after - before);
    match held.cpu_accounting {
        true => assert!(spent.is_some_and(|spent| spent >= 1000 * BURN_MS.unsigned_abs()), "{spent:?}"),
        false => assert_eq!(spent, None),
    }
    Ok(())
}

fn sets_no_limits_for_unlimited_plan() -> CgroupTestResult {
    let group = CgroupLocation::find()?.create_group()?;
    let held = group.set_limits(&limits(Limit::Unlimited, Limit::Unlimited))?;
    assert_eq!((held.memory, held.pids), (None, None));
    assert_eq!(group.usage().oom_kills, Some(0));
    Ok(())
}

fn kills_whole_group() -> CgroupTestResult {
    let group = CgroupLocation::find()?.create_group()?;
    let inmates = [(); 3].map(|()| GroupMember::start(&group, &["hold"]));
    let mut inmates = inmates.into_iter().collect::<Result<Vec<_>, _>>()?;
    if group.kill()? {
        for inmate in inmates {
            assert_eq!(inmate.wait()?.signal(), Some(9));
        }
    } else {
        // Nothing was killed, as reported.
        assert!(inmates.iter_mut().all(|inmate| matches!(inmate.child.try_wait(), Ok(None))));
    }
    Ok(())
}

fn removes_two_hundred_groups() -> CgroupTestResult {
    let seat = CgroupLocation::find()?;
    let ours: Vec<PathBuf> = seat.dirs().into_iter().map(Path::to_owned).collect();
    let groups = (0..200).map(|_| seat.create_group()).collect::<Result<Vec<_>, _>>()?;
    let made: Vec<PathBuf> = groups.iter().flat_map(AttemptCgroup::dirs).map(Path::to_owned).collect();
    assert!(made.len() >= 200 && made.iter().all(|dir| dir.is_dir()));
    groups.into_iter().for_each(AttemptCgroup::remove);
    assert_eq!(existing_dirs(&made), [""; 0]);
    assert!(ours.iter().all(|dir| dir.is_dir()));
    drop(seat);
    assert_eq!(existing_dirs(&ours), [""; 0]);
    Ok(())
}

fn removes_busy_group_later() -> CgroupTestResult {
    let seat = CgroupLocation::find()?;
    let group = seat.create_group()?;
    let mut dirs: Vec<PathBuf> = group.dirs().into_iter().map(Path::to_owned).collect();
    dirs.extend(seat.dirs().into_iter().map(Path::to_owned));
    let mut inmate = GroupMember::start(&group, &["hold"])?;
    let dies = group.join_fds().unified.is_some();
    group.remove();
    if !dies {
        inmate.child.kill()?;
    }
    assert_eq!(inmate.wait()?.signal(), Some(9));
    drop(seat);
    assert_eq!(existing_dirs(&dirs), [""; 0]);
    Ok(())
}

fn sweeps_groups_of_dead_owner() -> CgroupTestResult {
    let mut owner = GroupOwner::start()?;
    assert_eq!(existing_dirs(&owner.dirs).len(), owner.dirs.len());
    owner.child.kill()?;
    owner.child.wait()?;
    // The inmate was the owner's child, so this process cannot reap it.
    let inmate = rustix::process::Pid::from_raw(owner.member_pid).ok_or("no process")?;
    let pidfd = rustix::process::pidfd_open(inmate, rustix::process::PidfdFlags::empty())?;
    if !owner.unified {
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL)?;
    }
    drop(CgroupLocation::find()?);
    wait_for_end(&pidfd)?;
    wait_until_reaped(inmate)?;
    // The first search may have finished before the process that it killed ended.
    drop(CgroupLocation::find()?);
    assert_eq!(existing_dirs(&owner.dirs), [""; 0]);
    Ok(())
}

/// Waits until the new parent of a dead process has reaped it. Until then its group is busy.
fn wait_until_reaped(process: rustix::process::Pid) -> CgroupTestResult {
    let until = Instant::now() + Duration::from_secs(10);
    while rustix::process::test_kill_process(process).is_ok() {
        if Instant::now() > until {
            return Err("no process waits for the group of a dead owner".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn wait_for_end(pidfd: &OwnedFd) -> CgroupTestResult {
    let mut waited = [PollFd::new(pidfd, PollFlags::IN)];
    let most = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&most)))? {
        0 => Err("what a dead owner left is alive".into()),
        _ => Ok(()),
    }
}

fn keeps_groups_of_live_owner() -> CgroupTestResult {
    let mut owner = GroupOwner::start()?;
    drop(CgroupLocation::find()?);
    assert_eq!(existing_dirs(&owner.dirs).len(), owner.dirs.len());
    owner.child.stdin.take();
    assert!(owner.child.wait()?.success());
    assert_eq!(existing_dirs(&owner.dirs), [""; 0]);
    Ok(())
}

fn shares_location_within_process() -> CgroupTestResult {
    let (first, second) = (CgroupLocation::find()?, CgroupLocation::find()?);
    assert_eq!(first.dirs(), second.dirs());
    let dirs: Vec<PathBuf> = first.dirs().into_iter().map(Path::to_owned).collect();
    let (one, other) = (first.create_group()?, second.create_group()?);
    assert_ne!(one.dirs(), other.dirs());
    drop((first, one));
    assert_eq!(existing_dirs(&dirs).len(), dirs.len());
    drop((second, other));
    assert_eq!(existing_dirs(&dirs), [""; 0]);
    let third = CgroupLocation::find()?;
    assert_eq!(existing_dirs(&dirs), [""; 0]);
    assert!(third.dirs().iter().all(|dir| dir.is_dir()));
    Ok(())
}

fn reports_missing_location_to_ordinary_user() -> CgroupTestResult {
    let mut child = spawn(as_user(&["find", "without-systemd"])?)?;
    release_child(&mut child)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("cgroup v") && said.contains("hint: "), "{said}");
    Ok(())
}

fn reports_missing_cgroups() -> CgroupTestResult {
    let absent = PathBuf::from("/proctor-absent");
    let roots =
        DiscoveryPaths { cgroup: absent.clone(), mountinfo: absent.clone(), systemd: absent.clone(), busctl: absent };
    let why = CgroupLocation::find_with_paths(&roots).err().ok_or("a seat out of nothing")?;
    assert!(why.reason.contains("cgroup v2: no mount") && why.reason.contains("cgroup v1: no mount"), "{why}");
    assert!(why.hint.contains("/sys/fs/cgroup"), "{why}");
    Ok(())
}

fn divides_and_restores_delegated_cgroup() -> CgroupTestResult {
    let place = DelegatedCgroup::create()?;
    let inmate = place.start(&["divide"])?;
    let output = inmate.wait_with_output()?;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(place.dir.join("cgroup.subtree_control"))?.trim(), "");
    let below = fs::read_dir(&place.dir)?.flatten().filter(|entry| entry.path().is_dir()).count();
    assert_eq!(below, 0);
    Ok(())
}

/// Runs as the ordinary user who owns the cgroup, as the only process in it.
fn use_delegated_cgroup() -> CgroupTestResult {
    let own = || fs::read_to_string("/proc/self/cgroup").map(|text| text.trim().to_owned());
    let before = own()?;
    let seat = CgroupLocation::find_with_paths(&without_systemd())?;
    assert_eq!(seat.describe(), "cgroup v2: memory, pids, cpu");
    assert!(own()?.ends_with("/daemon"), "{}", own()?);
    let group = seat.create_group()?;
    let held = group.set_limits(&limits(Limit::Max(MEMORY_LIMIT), Limit::Max(8)))?;
    assert!(held.cpu_accounting && held.pids.is_some());
    let status = GroupMember::start(&group, &["balloon", "heap"])?.wait()?;
    assert_eq!(status.signal(), Some(9), "{status}");
    assert!(group.usage().oom_kills.is_some_and(|kills| kills > 0));
    drop((group, seat));
    assert_eq!(own()?, before);
    Ok(())
}

fn does_not_move_other_processes() -> CgroupTestResult {
    let place = DelegatedCgroup::create()?;
    let mut neighbour = place.start(&["hold"])?;
    let output = place.start(&["find", "without-systemd"])?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    neighbour.kill()?;
    neighbour.wait()?;
    assert!(!output.status.success() && said.contains("contains 1 other processes"), "{said}");
    Ok(())
}

/// A cgroup of v2 that root has handed over to the ordinary user.
struct DelegatedCgroup {
    dir: PathBuf,
}

impl DelegatedCgroup {
    fn create() -> Result<Self, Failed> {
        let root = v2_mount_point()?;
        fs::write(root.join("cgroup.subtree_control"), "+memory +pids")?;
        let place = Self { dir: root.join(format!("trial-{}", std::process::id())) };
        fs::create_dir(&place.dir)?;
        for file in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            chown(place.dir.join(file), Some(USER), Some(USER))?;
        }
        Ok(place)
    }

    /// Starts this program in the cgroup, as that user.
    fn start(&self, part: &[&str]) -> Result<Child, Failed> {
        let mut child = spawn(as_user(part)?)?;
        fs::write(self.dir.join("cgroup.procs"), child.id().to_string())?;
        release_child(&mut child)?;
        Ok(child)
    }
}

impl Drop for DelegatedCgroup {
    fn drop(&mut self) {
        // If the directory cannot be removed, the test itself has failed and reports why.
        drop(fs::remove_dir(&self.dir));
    }
}

/// A process in a group.
struct GroupMember {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl GroupMember {
    /// Starts this program in one of its parts, and lets it continue when it is inside the group.
    fn start(group: &AttemptCgroup, part: &[&str]) -> Result<Self, Failed> {
        let mut child = spawn(this_program(part)?)?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let entrance = group.join_fds();
        let pid = child.id().to_string();
        for tasks in entrance.tasks {
            rustix::io::write(tasks, pid.as_bytes())?;
        }
        if let Some(dir) = entrance.unified {
            let procs = rustix::fs::openat(dir, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(procs, pid.as_bytes())?;
        }
        release_child(&mut child)?;
        Ok(Self { child, stdout })
    }

    fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn read_to_end(&mut self) -> CgroupTestResult {
        self.stdout.read_to_end(&mut Vec::new())?;
        Ok(())
    }

    fn wait(mut self) -> Result<ExitStatus, Failed> {
        Ok(self.child.wait()?)
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        // A process that has already ended is not an error.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Another process that has a seat, a group, and a process in the group.
struct GroupOwner {
    child: Child,
    member_pid: i32,
    unified: bool,
    dirs: Vec<PathBuf>,
}

impl GroupOwner {
    fn start() -> Result<Self, Failed> {
        let mut child = spawn(this_program(&["own"])?)?;
        release_child(&mut child)?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        let mut line = || -> Result<String, Failed> { Ok(lines.next().ok_or("the owner has ended")??) };
        let (inmate, unified) = (line()?.parse()?, line()? == "true");
        let dirs = line()?.split(' ').map(PathBuf::from).collect();
        Ok(Self { child, member_pid: inmate, unified, dirs })
    }
}

/// Runs one of the parts of this program.
fn run_role(part: &[&str]) -> ExitCode {
    let checks = [LOCATION_TESTS, DELEGATION_TESTS, ROOT_TESTS, UNCONDITIONAL_TESTS].concat();
    let played = match part {
        ["check", name] => checks.iter().find(|(known, _)| known == name).map_or(Ok(()), |(_, check)| check()),
        [part, more @ ..] => wait_for_release().and_then(|()| run_named_role(part, more)),
        [] => Err("no part".into()),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("{}", failed.message().unwrap_or("failed"));
            ExitCode::FAILURE
        }
    }
}

fn without_systemd() -> DiscoveryPaths {
    DiscoveryPaths { systemd: "/proctor-absent".into(), ..DiscoveryPaths::default() }
}

fn this_program(part: &[&str]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ROLE_FLAG).args(part);
    Ok(command)
}

fn as_user(part: &[&str]) -> std::io::Result<Command> {
    let mut command = setpriv(std::env::current_exe()?);
    command.arg(ROLE_FLAG).args(part);
    Ok(command)
}

fn setpriv(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={USER}")).arg(format!("--regid={USER}")).arg("--clear-groups").arg(program);
    command
}

fn spawn(mut command: Command) -> std::io::Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}

/// Lets a part begin, and leaves its input open.
fn release_child(child: &mut Child) -> std::io::Result<()> {
    child.stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(b"g"))
}

fn wait_for_release() -> CgroupTestResult {
    Ok(std::io::stdin().read_exact(&mut [0])?)
}

/// Returns the names of the directories that still exist.
fn existing_dirs(dirs: &[PathBuf]) -> Vec<String> {
    dirs.iter().filter(|dir| dir.exists()).map(|dir| dir.display().to_string()).collect()
}

fn limits(memory: Limit, pids: Limit) -> Limits {
    Limits { memory, pids, ..Limits::UNLIMITED }
}
