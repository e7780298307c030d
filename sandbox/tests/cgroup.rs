//! Tests groups in the real cgroups of this machine, with programs that exceed their limits. The location of the
//! groups is found by trial. Tests that this machine cannot run are ignored, and their names say why.
//!
//! Each test runs in a separate process, since a process has one seat and may be moved to another group by it.
#![expect(clippy::disallowed_methods, reason = "trials start processes and build plain files")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::chown;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};
use proctor_core::plan::{Limit, Limits};
use proctor_sandbox::cgroup::{Group, Roots, Seat};
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::time::ClockId;

type Done = Result<(), Failed>;
type Check = fn() -> Done;

macro_rules! checks {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name)),*] };
}

/// Tests that run on every machine with a seat.
const SEATED: &[(&str, Check)] = checks![
    memory_is_bounded_and_the_kill_is_counted,
    memory_files_count_as_memory,
    processes_are_bounded_and_the_refusal_is_counted,
    time_of_those_not_waited_for_is_counted,
    a_plan_without_bounds_holds_none,
    a_whole_group_is_killed,
    two_hundred_groups_leave_nothing,
    a_group_that_is_in_use_is_removed_later,
    a_dead_owners_groups_are_swept,
    a_live_owners_groups_stay,
    a_process_has_one_seat,
];

/// Tests that need root to create a cgroup of v2 for another user.
const DELEGATED: &[(&str, Check)] = checks![a_delegated_cgroup_is_divided_and_given_back, others_are_not_moved];

/// Tests that need root to become another user.
const ROOT: &[(&str, Check)] = checks![an_ordinary_user_is_told_why_there_is_none];

/// Tests that run on every machine.
const ANYWHERE: &[(&str, Check)] = checks![a_machine_without_cgroups_is_told_so];

const PART: &str = "--part";
/// The ordinary user of the tests; it need not exist.
const USER: u32 = 1001;
const MIB: u64 = 1 << 20;
/// The memory limit of a balloon, and the amount that it allocates.
const BOUND: u64 = 32 * MIB;
const BALLOON: usize = 96 << 20;
/// Lifetime of processes that a failed test leaves behind.
const LONGEST: Duration = Duration::from_secs(60);
/// CPU time that the burner uses, in milliseconds.
const BURN_MS: i64 = 100;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == PART) {
        return play(&words[1..].iter().map(String::as_str).collect::<Vec<_>>());
    }
    let root = no_user();
    let delegated = root.clone().or_else(|| unified_root().err());
    let mut trials = Vec::new();
    for (checks, missing) in [(SEATED, no_seat()), (DELEGATED, delegated), (ROOT, root), (ANYWHERE, None)] {
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
fn no_user() -> Option<String> {
    if !rustix::process::geteuid().is_root() {
        return Some("needs root".to_owned());
    }
    let changes = setpriv("true").output().is_ok_and(|output| output.status.success());
    (!changes).then(|| "needs setpriv to become another user".to_owned())
}

/// Returns why groups cannot be created on this machine, found in a separate process, which the search may move.
fn no_seat() -> Option<String> {
    let found = this_program(&["find"]).and_then(spawn).and_then(|mut child| {
        go(&mut child)?;
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
fn unified_root() -> Result<PathBuf, String> {
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

fn memory_is_bounded_and_the_kill_is_counted() -> Done {
    balloon("heap")
}

fn memory_files_count_as_memory() -> Done {
    balloon("memfd")
}

fn balloon(kind: &str) -> Done {
    let group = Seat::find()?.group()?;
    let held = group.limit(&limits(Limit::Max(BOUND), Limit::Max(64)))?;
    let phrase = held.memory.ok_or("memory is not held")?;
    assert!(phrase.contains(&BOUND.to_string()), "{phrase}");
    let status = Inmate::start(&group, &["balloon", kind])?.end()?;
    assert_eq!(status.signal(), Some(9), "{status}");
    let usage = group.usage();
    assert!(usage.oom_kills.is_some_and(|kills| kills > 0), "{usage:?}");
    assert!(usage.memory_peak.is_none_or(|peak| peak > BOUND / 2 && peak <= BOUND), "{usage:?}");
    Ok(())
}

fn processes_are_bounded_and_the_refusal_is_counted() -> Done {
    let group = Seat::find()?.group()?;
    let held = group.limit(&limits(Limit::Unlimited, Limit::Max(8)))?;
    assert!(held.pids.is_some_and(|phrase| phrase.contains('9')) && held.memory.is_none());
    assert_eq!(group.usage().pids_denied, Some(0));
    let mut inmate = Inmate::start(&group, &["threads", "64"])?;
    // Its first thread and eight more. The limit has room for PID 1, which does not exist in this test.
    assert_eq!(inmate.line()?, "8 EAGAIN");
    assert!(inmate.end()?.success());
    assert_eq!(group.usage().pids_denied, Some(1));
    Ok(())
}

fn time_of_those_not_waited_for_is_counted() -> Done {
    let group = Seat::find()?.group()?;
    let held = group.limit(&limits(Limit::Unlimited, Limit::Unlimited))?;
    let before = group.usage();
    let mut inmate = Inmate::start(&group, &["leave-a-burner"])?;
    // The burner keeps the pipe open until it ends.
    inmate.rest()?;
    assert!(inmate.end()?.success());
    let spent = group.usage().cpu_usec.zip(before.cpu_usec).map(|(after, before)| after - before);
    match held.cpu_accounting {
        true => assert!(spent.is_some_and(|spent| spent >= 1000 * BURN_MS.unsigned_abs()), "{spent:?}"),
        false => assert_eq!(spent, None),
    }
    Ok(())
}

fn a_plan_without_bounds_holds_none() -> Done {
    let group = Seat::find()?.group()?;
    let held = group.limit(&limits(Limit::Unlimited, Limit::Unlimited))?;
    assert_eq!((held.memory, held.pids), (None, None));
    assert_eq!(group.usage().oom_kills, Some(0));
    Ok(())
}

fn a_whole_group_is_killed() -> Done {
    let group = Seat::find()?.group()?;
    let inmates = [(); 3].map(|()| Inmate::start(&group, &["hold"]));
    let mut inmates = inmates.into_iter().collect::<Result<Vec<_>, _>>()?;
    if group.kill()? {
        for inmate in inmates {
            assert_eq!(inmate.end()?.signal(), Some(9));
        }
    } else {
        // Nothing was killed, as reported.
        assert!(inmates.iter_mut().all(|inmate| matches!(inmate.child.try_wait(), Ok(None))));
    }
    Ok(())
}

fn two_hundred_groups_leave_nothing() -> Done {
    let seat = Seat::find()?;
    let ours: Vec<PathBuf> = seat.dirs().into_iter().map(Path::to_owned).collect();
    let groups = (0..200).map(|_| seat.group()).collect::<Result<Vec<_>, _>>()?;
    let made: Vec<PathBuf> = groups.iter().flat_map(Group::dirs).map(Path::to_owned).collect();
    assert!(made.len() >= 200 && made.iter().all(|dir| dir.is_dir()));
    groups.into_iter().for_each(Group::remove);
    assert_eq!(left(&made), [""; 0]);
    assert!(ours.iter().all(|dir| dir.is_dir()));
    drop(seat);
    assert_eq!(left(&ours), [""; 0]);
    Ok(())
}

fn a_group_that_is_in_use_is_removed_later() -> Done {
    let seat = Seat::find()?;
    let group = seat.group()?;
    let mut dirs: Vec<PathBuf> = group.dirs().into_iter().map(Path::to_owned).collect();
    dirs.extend(seat.dirs().into_iter().map(Path::to_owned));
    let mut inmate = Inmate::start(&group, &["hold"])?;
    let dies = group.entrance().unified.is_some();
    group.remove();
    if !dies {
        inmate.child.kill()?;
    }
    assert_eq!(inmate.end()?.signal(), Some(9));
    drop(seat);
    assert_eq!(left(&dirs), [""; 0]);
    Ok(())
}

fn a_dead_owners_groups_are_swept() -> Done {
    let mut owner = Owner::start()?;
    assert_eq!(left(&owner.dirs).len(), owner.dirs.len());
    owner.child.kill()?;
    owner.child.wait()?;
    // The inmate was the owner's child, so this process cannot reap it.
    let inmate = rustix::process::Pid::from_raw(owner.inmate).ok_or("no process")?;
    let pidfd = rustix::process::pidfd_open(inmate, rustix::process::PidfdFlags::empty())?;
    if !owner.unified {
        rustix::process::pidfd_send_signal(&pidfd, rustix::process::Signal::KILL)?;
    }
    drop(Seat::find()?);
    wait_for_end(&pidfd)?;
    waited_for(inmate)?;
    // The first search may have finished before the process that it killed ended.
    drop(Seat::find()?);
    assert_eq!(left(&owner.dirs), [""; 0]);
    Ok(())
}

/// Waits until the new parent of a dead process has reaped it. Until then its group is busy.
fn waited_for(process: rustix::process::Pid) -> Done {
    let until = Instant::now() + Duration::from_secs(10);
    while rustix::process::test_kill_process(process).is_ok() {
        if Instant::now() > until {
            return Err("no process waits for the group of a dead owner".into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

fn wait_for_end(pidfd: &OwnedFd) -> Done {
    let mut waited = [PollFd::new(pidfd, PollFlags::IN)];
    let most = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    match rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&most)))? {
        0 => Err("what a dead owner left is alive".into()),
        _ => Ok(()),
    }
}

fn a_live_owners_groups_stay() -> Done {
    let mut owner = Owner::start()?;
    drop(Seat::find()?);
    assert_eq!(left(&owner.dirs).len(), owner.dirs.len());
    owner.child.stdin.take();
    assert!(owner.child.wait()?.success());
    assert_eq!(left(&owner.dirs), [""; 0]);
    Ok(())
}

fn a_process_has_one_seat() -> Done {
    let (first, second) = (Seat::find()?, Seat::find()?);
    assert_eq!(first.dirs(), second.dirs());
    let dirs: Vec<PathBuf> = first.dirs().into_iter().map(Path::to_owned).collect();
    let (one, other) = (first.group()?, second.group()?);
    assert_ne!(one.dirs(), other.dirs());
    drop((first, one));
    assert_eq!(left(&dirs).len(), dirs.len());
    drop((second, other));
    assert_eq!(left(&dirs), [""; 0]);
    let third = Seat::find()?;
    assert_eq!(left(&dirs), [""; 0]);
    assert!(third.dirs().iter().all(|dir| dir.is_dir()));
    Ok(())
}

fn an_ordinary_user_is_told_why_there_is_none() -> Done {
    let mut child = spawn(as_user(&["find", "without-systemd"])?)?;
    go(&mut child)?;
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("cgroup v") && said.contains("hint: "), "{said}");
    Ok(())
}

fn a_machine_without_cgroups_is_told_so() -> Done {
    let absent = PathBuf::from("/proctor-absent");
    let roots = Roots { cgroup: absent.clone(), mountinfo: absent.clone(), systemd: absent.clone(), busctl: absent };
    let why = Seat::find_in(&roots).err().ok_or("a seat out of nothing")?;
    assert!(why.reason.contains("cgroup v2: no mount") && why.reason.contains("cgroup v1: no mount"), "{why}");
    assert!(why.hint.contains("/sys/fs/cgroup"), "{why}");
    Ok(())
}

fn a_delegated_cgroup_is_divided_and_given_back() -> Done {
    let place = Delegated::make()?;
    let inmate = place.start(&["divide"])?;
    let output = inmate.wait_with_output()?;
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::read_to_string(place.dir.join("cgroup.subtree_control"))?.trim(), "");
    let below = fs::read_dir(&place.dir)?.flatten().filter(|entry| entry.path().is_dir()).count();
    assert_eq!(below, 0);
    Ok(())
}

/// Runs as the ordinary user who owns the cgroup, as the only process in it.
fn divide() -> Done {
    let own = || fs::read_to_string("/proc/self/cgroup").map(|text| text.trim().to_owned());
    let before = own()?;
    let seat = Seat::find_in(&without_systemd())?;
    assert_eq!(seat.describe(), "cgroup v2: memory, pids, cpu");
    assert!(own()?.ends_with("/daemon"), "{}", own()?);
    let group = seat.group()?;
    let held = group.limit(&limits(Limit::Max(BOUND), Limit::Max(8)))?;
    assert!(held.cpu_accounting && held.pids.is_some());
    let status = Inmate::start(&group, &["balloon", "heap"])?.end()?;
    assert_eq!(status.signal(), Some(9), "{status}");
    assert!(group.usage().oom_kills.is_some_and(|kills| kills > 0));
    drop((group, seat));
    assert_eq!(own()?, before);
    Ok(())
}

fn others_are_not_moved() -> Done {
    let place = Delegated::make()?;
    let mut neighbour = place.start(&["hold"])?;
    let output = place.start(&["find", "without-systemd"])?.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    neighbour.kill()?;
    neighbour.wait()?;
    assert!(!output.status.success() && said.contains("contains 1 other processes"), "{said}");
    Ok(())
}

/// A cgroup of v2 that root has handed over to the ordinary user.
struct Delegated {
    dir: PathBuf,
}

impl Delegated {
    fn make() -> Result<Self, Failed> {
        let root = unified_root()?;
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
        go(&mut child)?;
        Ok(child)
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // If the directory cannot be removed, the test itself has failed and reports why.
        drop(fs::remove_dir(&self.dir));
    }
}

/// A process in a group.
struct Inmate {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Inmate {
    /// Starts this program in one of its parts, and lets it continue when it is inside the group.
    fn start(group: &Group, part: &[&str]) -> Result<Self, Failed> {
        let mut child = spawn(this_program(part)?)?;
        let stdout = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let entrance = group.entrance();
        let pid = child.id().to_string();
        for tasks in entrance.tasks {
            rustix::io::write(tasks, pid.as_bytes())?;
        }
        if let Some(dir) = entrance.unified {
            let procs = rustix::fs::openat(dir, "cgroup.procs", OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(procs, pid.as_bytes())?;
        }
        go(&mut child)?;
        Ok(Self { child, stdout })
    }

    fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        self.stdout.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    fn rest(&mut self) -> Done {
        self.stdout.read_to_end(&mut Vec::new())?;
        Ok(())
    }

    fn end(mut self) -> Result<ExitStatus, Failed> {
        Ok(self.child.wait()?)
    }
}

impl Drop for Inmate {
    fn drop(&mut self) {
        // A process that has already ended is no error.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Another process that has a seat, a group, and a process in the group.
struct Owner {
    child: Child,
    inmate: i32,
    unified: bool,
    dirs: Vec<PathBuf>,
}

impl Owner {
    fn start() -> Result<Self, Failed> {
        let mut child = spawn(this_program(&["own"])?)?;
        go(&mut child)?;
        let mut lines = BufReader::new(child.stdout.take().ok_or("no pipe")?).lines();
        let mut line = || -> Result<String, Failed> { Ok(lines.next().ok_or("the owner has ended")??) };
        let (inmate, unified) = (line()?.parse()?, line()? == "true");
        let dirs = line()?.split(' ').map(PathBuf::from).collect();
        Ok(Self { child, inmate, unified, dirs })
    }
}

/// Prints the seat and group of this process, and gives them up when its input ends.
fn own() -> Done {
    let seat = Seat::find()?;
    let group = seat.group()?;
    let inmate = Inmate::start(&group, &["stay"])?;
    let dirs: Vec<_> = group.dirs().into_iter().chain(seat.dirs()).map(|dir| dir.display().to_string()).collect();
    println!("{}\n{}\n{}", inmate.child.id(), group.entrance().unified.is_some(), dirs.join(" "));
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Runs one of the parts of this program.
fn play(part: &[&str]) -> ExitCode {
    let checks = [SEATED, DELEGATED, ROOT, ANYWHERE].concat();
    let played = match part {
        ["check", name] => checks.iter().find(|(known, _)| known == name).map_or(Ok(()), |(_, check)| check()),
        [part, more @ ..] => wait_for_go().and_then(|()| perform(part, more)),
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

fn perform(part: &str, more: &[&str]) -> Done {
    match (part, more) {
        ("find", []) => find(&Roots::default()),
        ("find", [_]) => find(&without_systemd()),
        ("own", []) => own(),
        ("divide", []) => divide(),
        ("hold", []) => Ok(std::io::stdin().read_to_end(&mut Vec::new()).map(drop)?),
        ("stay", []) => {
            std::thread::park_timeout(LONGEST);
            Ok(())
        }
        ("balloon", ["heap"]) => {
            std::hint::black_box(vec![1_u8; BALLOON]);
            Ok(())
        }
        ("balloon", ["memfd"]) => fill_memory_file(),
        ("threads", [most]) => start_threads(most.parse()?),
        ("leave-a-burner", []) => Ok(go(&mut this_program(&["burn"])?.stdin(Stdio::piped()).spawn()?)?),
        ("burn", []) => {
            burn();
            Ok(())
        }
        _ => Err(format!("no part `{part}`").into()),
    }
}

fn find(roots: &Roots) -> Done {
    match Seat::find_in(roots) {
        Ok(seat) => {
            println!("{}", seat.describe());
            Ok(())
        }
        Err(why) => {
            println!("{why}");
            Err("no seat".into())
        }
    }
}

fn without_systemd() -> Roots {
    Roots { systemd: "/proctor-absent".into(), ..Roots::default() }
}

fn fill_memory_file() -> Done {
    let mut file = fs::File::from(rustix::fs::memfd_create("balloon", rustix::fs::MemfdFlags::CLOEXEC)?);
    let chunk = vec![1_u8; 1 << 20];
    (0..BALLOON / chunk.len()).try_for_each(|_| file.write_all(&chunk))?;
    Ok(())
}

fn start_threads(most: usize) -> Done {
    for started in 0..most {
        if let Err(error) = std::thread::Builder::new().stack_size(1 << 16).spawn(std::thread::park) {
            let again = error.raw_os_error() == Some(rustix::io::Errno::AGAIN.raw_os_error());
            println!("{started} {}", if again { "EAGAIN".to_owned() } else { error.to_string() });
            return Ok(());
        }
    }
    println!("{most} without an error");
    Ok(())
}

fn burn() {
    loop {
        let spent = rustix::time::clock_gettime(ClockId::ProcessCPUTime);
        if spent.tv_sec * 1000 + spent.tv_nsec / 1_000_000 > BURN_MS {
            return;
        }
    }
}

fn this_program(part: &[&str]) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(PART).args(part);
    Ok(command)
}

fn as_user(part: &[&str]) -> std::io::Result<Command> {
    let mut command = setpriv(std::env::current_exe()?);
    command.arg(PART).args(part);
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
fn go(child: &mut Child) -> std::io::Result<()> {
    child.stdin.as_mut().map_or(Ok(()), |stdin| stdin.write_all(b"g"))
}

fn wait_for_go() -> Done {
    Ok(std::io::stdin().read_exact(&mut [0])?)
}

/// Returns the names of the directories that still exist.
fn left(dirs: &[PathBuf]) -> Vec<String> {
    dirs.iter().filter(|dir| dir.exists()).map(|dir| dir.display().to_string()).collect()
}

fn limits(memory: Limit, pids: Limit) -> Limits {
    let unlimited = Limit::Unlimited;
    Limits { memory, pids, disk: unlimited, output: unlimited, cpu_seconds: unlimited, open_files: unlimited }
}
