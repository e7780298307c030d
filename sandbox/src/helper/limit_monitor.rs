//! Enforces limits of the whole step that the kernel does not enforce: PID 1 sums up the usage of all processes of
//! its namespace periodically, and ends the step when the sum exceeds a limit.
//!
//! The limit is not strict: a step can exceed it between two checks. If a control group limits memory, only CPU time
//! is checked here.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use proctor_core::model::outcome::LimitKind;
use proctor_core::model::plan::Limit;
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::time::Timespec;

use super::descendants;
use super::group_cpu_time::GroupCpuTime;
use super::memory_sources::{MemorySources, SharedMemoryLimit, SocketMemory};
use super::process_clocks::ProcessClocks;
use crate::host::default_memory_limit;
use crate::wire::ClaimRequest;

/// Interval between two checks of memory. A step can exceed the limit by the amount that it allocates in that time.
const MEMORY_INTERVAL: Duration = Duration::from_millis(20);
/// Interval between two checks of memory if the plan sets no limit. The limit is then a share of the machine's
/// memory, which leaves a reserve.
const DEFAULT_MEMORY_INTERVAL: Duration = Duration::from_millis(200);
/// Interval between two checks of CPU time.
const CPU_INTERVAL: Duration = Duration::from_millis(100);
/// The number of open files that are searched for memory that no process maps: twice the default limit of open files
/// of one process.
const MAX_FILES: usize = 1 << 17;
/// Minimum ratio of the time between two checks to the duration of a check.
const PAUSE_RATIO: u32 = 4;
/// Clock ticks per second in /proc (`USER_HZ`, proc_pid_stat(5)).
const TICKS_PER_SECOND: u64 = 100;

/// The limits to check, and the state of the checks.
#[derive(Debug)]
pub(super) struct LimitMonitor {
    /// Limit in bytes.
    memory: Option<u64>,
    /// Interval between two checks of memory.
    memory_interval: Duration,
    /// The limit of a control group that counts socket buffers separately.
    shared_limit: Option<SharedMemoryLimit>,
    sources: Rc<MemorySources>,
    /// Limit in seconds.
    cpu: Option<u64>,
    /// CPU time of the control group before the command; `None` without a group that counts it.
    earlier_group_time: Option<Duration>,
    processes: MonitoredProcesses,
    /// `true` if the System V segments belong to the step alone.
    own_segments: bool,
    cpu_history: CpuHistory,
    /// The clocks of the processes before the last complete check; `None` if they cannot be read.
    clocks: Option<ProcessClocks>,
    /// CPU time of the processes of earlier commands, in clock ticks.
    earlier_ticks: u64,
    last_check: Instant,
    /// Minimum time after `last` until the next check.
    pause: Duration,
}

/// The processes that belong to the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MonitoredProcesses {
    /// All processes of the PID namespace except PID 1.
    Namespace,
    /// The descendants of this process.
    Descendants,
}

impl LimitMonitor {
    /// Returns the monitor for PID 1 of a namespace with its own /proc.
    pub(super) fn new(claim: &ClaimRequest, sources: Rc<MemorySources>) -> Self {
        Self::build(claim, MonitoredProcesses::Namespace, true, sources)
    }

    /// Returns the monitor for PID 1 of a namespace that sees the /proc of another one.
    pub(super) fn for_shared_proc(claim: &ClaimRequest, sources: Rc<MemorySources>) -> Self {
        Self::build(claim, MonitoredProcesses::Descendants, true, sources)
    }

    /// Returns the monitor for a process without its own namespaces.
    pub(super) fn for_descendants(claim: &ClaimRequest) -> Self {
        Self::build(claim, MonitoredProcesses::Descendants, false, Rc::default())
    }

    fn build(claim: &ClaimRequest, whose: MonitoredProcesses, own_segments: bool, sources: Rc<MemorySources>) -> Self {
        let bounded = |limit| match limit {
            Limit::Max(most) => Some(most),
            Limit::Unlimited => None,
        };
        let limits = claim.command.limits;
        let in_group = claim.held.bounds_memory;
        let (memory, memory_patience) = match limits.memory {
            _ if in_group => (None, MEMORY_INTERVAL),
            Limit::Max(most) => (Some(most), MEMORY_INTERVAL),
            Limit::Unlimited => (Some(default_memory_limit()), DEFAULT_MEMORY_INTERVAL),
        };
        let shared = bounded(limits.memory).filter(|_| in_group && sources.group.is_some()).map(SharedMemoryLimit::new);
        Self {
            memory,
            memory_interval: memory_patience,
            shared_limit: shared,
            earlier_group_time: sources.cpu_time.as_ref().and_then(GroupCpuTime::read),
            sources,
            cpu: bounded(limits.cpu_seconds),
            processes: whose,
            own_segments,
            cpu_history: CpuHistory::default(),
            clocks: None,
            earlier_ticks: reaped_ticks(),
            last_check: Instant::now(),
            pause: MEMORY_INTERVAL,
        }
    }

    /// Returns the longest time that PID 1 may wait for other events; `None` for no limit.
    pub(super) fn max_wait(&self) -> Option<&'static Timespec> {
        const fn timespec(duration: Duration) -> Timespec {
            Timespec { tv_sec: 0, tv_nsec: duration.subsec_nanos() as i64 }
        }
        static MEMORY: Timespec = timespec(MEMORY_INTERVAL);
        static DEFAULT_MEMORY: Timespec = timespec(DEFAULT_MEMORY_INTERVAL);
        static CPU: Timespec = timespec(CPU_INTERVAL);
        let memory = self.memory.is_some() || self.shared_limit.is_some();
        match (memory && self.memory_interval == MEMORY_INTERVAL, self.cpu) {
            (true, _) => Some(&MEMORY),
            (false, Some(_)) => Some(&CPU),
            (false, None) => memory.then_some(&DEFAULT_MEMORY),
        }
    }

    /// Returns the limit that the step exceeds.
    pub(super) fn check(&mut self) -> Option<LimitKind> {
        // A step that forks constantly also wakes PID 1 constantly.
        if self.max_wait().is_none() || self.last_check.elapsed() < self.pause {
            return None;
        }
        let began = Instant::now();
        let limit = self.exceeded_limit();
        self.last_check = Instant::now();
        self.pause = MEMORY_INTERVAL.max((self.last_check - began) * PAUSE_RATIO);
        limit
    }

    fn exceeded_limit(&mut self) -> Option<LimitKind> {
        let sources = &self.sources;
        if self.shared_limit.as_mut().zip(sources.group.as_ref()).is_some_and(|(bound, group)| bound.is_exceeded(group))
        {
            return Some(LimitKind::Memory);
        }
        if self.exceeds_group_time() {
            return Some(LimitKind::CpuSeconds);
        }
        // Only a process that runs uses more, so an idle step needs no complete check.
        if self.clocks.as_ref().is_some_and(ProcessClocks::are_unchanged) {
            return None;
        }
        self.clocks = match self.processes {
            MonitoredProcesses::Namespace => ProcessClocks::read(|| list_all_but_init().ok()),
            // Their ids in /proc may be those of another namespace.
            MonitoredProcesses::Descendants => None,
        };
        // A process whose files cannot be read has ended in the meantime.
        let mut sum =
            UsageSum::measure(self.processes, self.memory.is_some(), self.earlier_ticks, &mut self.cpu_history)
                .unwrap_or_default();
        if self.memory.is_some() && self.own_segments {
            sum.bytes += read_proc("sysvipc", "shm").as_deref().map(unattached_segment_bytes).unwrap_or_default();
            sum.bytes += read_proc("sysvipc", "msg").as_deref().map(queued_bytes).unwrap_or_default();
            sum.bytes += read_proc("sysvipc", "sem").as_deref().map(semaphore_bytes).unwrap_or_default();
            sum.bytes += self.sources.sockets.as_ref().map(SocketMemory::bytes).unwrap_or_default();
        }
        let above = |limit: Option<u64>, used: u64| limit.is_some_and(|most| used > most);
        if above(self.memory, sum.bytes) {
            return Some(LimitKind::Memory);
        }
        let ticks = self.cpu.map(|seconds| seconds.saturating_mul(TICKS_PER_SECOND));
        above(ticks, sum.ticks).then_some(LimitKind::CpuSeconds)
    }
}

impl LimitMonitor {
    /// Returns whether the control group has used more CPU time than the limit. The sums over processes miss short-lived
    /// children of processes that ignore SIGCHLD.
    fn exceeds_group_time(&self) -> bool {
        let now = self.sources.cpu_time.as_ref().and_then(GroupCpuTime::read);
        let used = now.zip(self.earlier_group_time).map(|(now, before)| now.saturating_sub(before));
        used.zip(self.cpu).is_some_and(|(used, most)| used > Duration::from_secs(most))
    }
}

/// The total usage of all processes of a step.
#[derive(Debug, Default, PartialEq, Eq)]
struct UsageSum {
    bytes: u64,
    ticks: u64,
}

impl UsageSum {
    fn measure(monitored: MonitoredProcesses, memory: bool, before: u64, history: &mut CpuHistory) -> io::Result<Self> {
        let mut sum = Self { bytes: 0, ticks: reaped_ticks().saturating_sub(before) };
        let mut now = BTreeMap::new();
        let mut unmapped = MemoryFiles::default();
        let processes = match monitored {
            MonitoredProcesses::Namespace => list_all_but_init()?,
            MonitoredProcesses::Descendants => {
                descendants::list_pids()?.into_iter().map(|pid| pid.to_string()).collect()
            }
        };
        for name in processes {
            if let Some(times) = read_proc(&name, "stat").as_deref().and_then(parse_times) {
                sum.ticks += times.own + times.children;
                now.insert((name.clone(), times.start), times.own);
            }
            if memory {
                sum.bytes += process_memory(&name);
                unmapped.add(&name);
            }
        }
        if memory {
            sum.bytes += unmapped.bytes;
        }
        // Each of the two sums misses some processes, and neither counts a process twice.
        sum.ticks = sum.ticks.max(history.update(now));
        Ok(sum)
    }
}

/// A process by its id and start time, which distinguishes it from a later process with the same id.
type ProcessKey = (String, u64);

/// The CPU time of processes at the last check. If a process ignores SIGCHLD, the kernel adds the usage of its
/// children to no process (`RUSAGE_CHILDREN` of getrusage(2)).
#[derive(Debug, Default)]
struct CpuHistory {
    alive: BTreeMap<ProcessKey, u64>,
    /// The time of processes that have ended.
    ended: u64,
}

impl CpuHistory {
    /// Returns the clock ticks of all processes ever seen, including those that exist `now`.
    fn update(&mut self, now: BTreeMap<ProcessKey, u64>) -> u64 {
        let gone = self.alive.iter().filter(|(process, _)| !now.contains_key(*process)).map(|(_, ticks)| ticks);
        self.ended += gone.sum::<u64>();
        self.alive = now;
        self.ended + self.alive.values().sum::<u64>()
    }
}

/// Returns the ids of all processes except PID 1, which is proctor's own.
fn list_all_but_init() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if name.bytes().all(|byte| byte.is_ascii_digit()) && name != "1" {
            names.push(name);
        }
    }
    Ok(names)
}

fn read_proc(dir: &str, name: &str) -> Option<String> {
    // Some of these files contain a process's name, which may be any bytes.
    let bytes = std::fs::read(format!("/proc/{dir}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the CPU time of processes that have ended and were reaped, by this process or by their parents.
fn reaped_ticks() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return 0 };
    let milliseconds = usage.user_time().num_milliseconds() + usage.system_time().num_milliseconds();
    milliseconds.unsigned_abs() * TICKS_PER_SECOND / 1000
}

/// The times of a process in a stat line, in clock ticks.
#[derive(Debug, PartialEq, Eq)]
struct CpuTimes {
    own: u64,
    /// The time of the children that the process has reaped.
    children: u64,
    start: u64,
}

/// Parses utime, stime, cutime, cstime and starttime of a stat line: fields 14 to 17 and 22. The second field, the
/// name in parentheses, may contain any characters.
fn parse_times(stat: &str) -> Option<CpuTimes> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(CpuTimes { own: field(14)? + field(15)?, children: field(16)? + field(17)?, start: field(22)? })
}

/// Returns the memory of a process. A shared page is charged proportionally to each process if the kernel provides
/// that figure; otherwise it is charged to each in full.
fn process_memory(pid: &str) -> u64 {
    let fields = |name, keys: &[&str]| {
        let text = read_proc(pid, name)?;
        let of = |line: &str| keys.iter().any(|key| line.starts_with(key)).then(|| kilobytes(line))?;
        Some(text.lines().filter_map(of).sum::<u64>() << 10)
    };
    let resident = fields("status", &["RssAnon:", "RssShmem:"]).unwrap_or_default();
    // Includes page tables: they grow when a process reads a sparse mapping, although none of its pages are the
    // process's own.
    let tables = fields("status", &["VmPTE:"]).unwrap_or_default();
    // The exact figure makes the kernel walk the address space, which is not worthwhile for small processes.
    const SMALL: u64 = 8 << 20;
    if resident < SMALL {
        return resident + tables;
    }
    fields("smaps_rollup", &["Pss_Anon:", "Pss_Shmem:", "SwapPss:"]).unwrap_or(resident) + tables
}

fn kilobytes(line: &str) -> Option<u64> {
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Returns the resident bytes of System V segments that no process has attached: `rss` and `nattch` of
/// /proc/sysvipc/shm (sysvipc(7)). An attached segment is counted with its process.
fn unattached_segment_bytes(table: &str) -> u64 {
    let unattached = |line: &str| {
        let fields: Vec<u64> = line.split_whitespace().map_while(|field| field.parse().ok()).collect();
        // key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap
        let (attached, resident) = (fields.get(6)?, fields.get(14)?);
        (*attached == 0).then_some(*resident)
    };
    table.lines().filter_map(unattached).sum()
}

/// Returns the size of the messages in System V queues, which the kernel charges to no process: `cbytes` of
/// /proc/sysvipc/msg (sysvipc(7)), and the kernel's header of each message.
fn queued_bytes(table: &str) -> u64 {
    // key msqid perms cbytes qnum lspid lrpid uid gid cuid cgid stime rtime ctime
    let queued = |line: &str| {
        let figures: Vec<u64> = line.split_whitespace().skip(3).take(2).map_while(|field| field.parse().ok()).collect();
        Some(figures.first()? + figures.get(1)? * MESSAGE_HEADER)
    };
    table.lines().skip(1).filter_map(queued).sum()
}

/// Returns the size of the System V semaphores: `nsems` of /proc/sysvipc/sem (sysvipc(7)).
fn semaphore_bytes(table: &str) -> u64 {
    // key semid perms nsems uid gid cuid cgid otime ctime
    let count = |line: &str| line.split_whitespace().nth(3)?.parse::<u64>().ok();
    table.lines().skip(1).filter_map(count).sum::<u64>() * SEMAPHORE_SIZE
}

/// Size of the kernel's `struct msg_msg`, in bytes.
const MESSAGE_HEADER: u64 = 48;
/// Size of the kernel's `struct sem`, in bytes.
const SEMAPHORE_SIZE: u64 = 64;

/// Sums up the size of memory files (`memfd_create(2)`), which processes can fill without mapping them.
#[derive(Debug, Default)]
struct MemoryFiles {
    counted: BTreeSet<(u64, u64)>,
    examined: usize,
    bytes: u64,
}

impl MemoryFiles {
    fn add(&mut self, pid: &str) {
        let path = format!("/proc/{pid}/fd");
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let Ok(dir) = rustix::fs::openat(CWD, path.as_str(), flags, Mode::empty()) else { return };
        let Ok(entries) = rustix::fs::Dir::read_from(&dir) else { return };
        for entry in entries.flatten() {
            self.examined += 1;
            if self.examined > MAX_FILES {
                return;
            }
            let mut target = [0; 16];
            let Ok(length) = rustix::fs::readlinkat_raw(&dir, entry.file_name(), &mut target[..]) else { continue };
            if !target[..length].starts_with(b"/memfd:") {
                continue;
            }
            let Ok(stat) = rustix::fs::statat(&dir, entry.file_name(), AtFlags::empty()) else { continue };
            if self.counted.insert((stat.st_dev, stat.st_ino)) {
                self.bytes += stat.st_blocks.unsigned_abs() * 512;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_times_for_any_process_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 0 0 0 11 22 33 44 20 0 1 0 5 1000 10";
        assert_eq!(parse_times(stat), Some(CpuTimes { own: 33, children: 77, start: 5 }));
        assert_eq!(parse_times("7 (x"), None);
    }

    #[test]
    fn keeps_cpu_time_of_ended_processes() {
        let process = |pid: &str, start, ticks| ((pid.to_owned(), start), ticks);
        let mut seen = CpuHistory::default();
        assert_eq!(seen.update([process("2", 10, 5), process("3", 11, 7)].into()), 12);
        assert_eq!(seen.update([process("2", 10, 6), process("3", 20, 1)].into()), 14, "the id is another's");
        assert_eq!(seen.update(BTreeMap::new()), 14);
    }

    #[test]
    fn counts_unattached_segments() {
        let table = "       key      shmid perms       size  cpid  lpid nattch   uid   gid  cuid  cgid  atime  dtime  ctime  rss  swap\n\
            1 0 1600 9000 1 1 0 0 0 0 0 1 1 1 8192 0\n2 1 1600 9000 1 1 2 0 0 0 0 1 1 1 4096 0\n";
        assert_eq!(unattached_segment_bytes(table), 8192);
    }

    #[test]
    fn counts_queued_messages_and_semaphores() {
        let table = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      stime      rtime      ctime\n\
            0 0 600 16000 2 1 0 0 0 0 0 1 0 1\n 0 1 600 8000 1 1 0 0 0 0 0 1 0 1\n";
        assert_eq!(queued_bytes(table), 24000 + 3 * MESSAGE_HEADER);
        let table = "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n\
            0 0 600 32000 0 0 0 0 0 1\n";
        assert_eq!(semaphore_bytes(table), 32000 * SEMAPHORE_SIZE);
    }

    #[test]
    fn counts_memory_file_once() {
        let file = rustix::fs::memfd_create("held", rustix::fs::MemfdFlags::CLOEXEC).expect("made");
        let again = rustix::io::dup(&file).expect("doubled");
        rustix::io::write(&file, &[1; 8192]).expect("written");
        let mut unmapped = MemoryFiles::default();
        unmapped.add(&std::process::id().to_string());
        drop(again);
        assert!(unmapped.bytes >= 8192 && unmapped.bytes < (1 << 20), "{unmapped:?}");
    }
}
