//! Represents one control group: its entrance, limits, counters and removal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use proctor_core::plan::{Limit, Limits};
use rustix::fs::{Mode, OFlags};

use super::control;
use super::place::{Holds, Version};
use super::seat::Trees;
use super::subtree;

/// The first process of a group is PID 1 of the sandbox, which is proctor's own.
const OWN_PROCESSES: u64 = 1;
/// Text of the record for version 1, until PID 1 subtracts these buffers.
pub(crate) const APART: &str = "buffers of network sockets counted apart";
/// The largest number that `pids.max` accepts: the kernel's `PID_MAX_LIMIT`.
const MOST_PIDS: u64 = 4 << 20;

/// The group of one attempt, in each tree of its [`Seat`](super::Seat). Dropping it removes the group, and kills the
/// processes still in it if the kernel supports that.
#[derive(Debug)]
pub struct Group {
    trees: Arc<Trees>,
    rooms: Vec<Room>,
    /// Opened when the limits are set, because a caller waits at the end of an attempt.
    counters: OnceLock<Counters>,
}

/// The files that show whether a limit was reached. `None` if there is no such file.
#[derive(Debug)]
struct Counters {
    memory_peak: Option<File>,
    memory_events: Option<File>,
    pids_events: Option<File>,
}

impl Counters {
    fn open(memory: Option<&Room>, pids: Option<&Room>) -> Self {
        let open = |room: Option<&Room>, file: fn(&Room) -> &'static str| {
            room.and_then(|room| File::open(room.dir.join(file(room))).ok())
        };
        Self {
            memory_peak: open(memory, Room::memory_peak),
            memory_events: open(memory, Room::memory_events),
            pids_events: open(pids, |_| "pids.events"),
        }
    }

    fn read(&self) -> Usage {
        Usage {
            cpu_usec: None,
            memory_peak: self.memory_peak.as_ref().and_then(control::number_in),
            oom_kills: self.memory_events.as_ref().and_then(|file| control::keyed_in(file, "oom_kill")),
            pids_denied: self.pids_events.as_ref().and_then(|file| control::keyed_in(file, "max")),
        }
    }
}

/// The group in one tree.
#[derive(Debug)]
struct Room {
    version: Version,
    holds: Holds,
    dir: PathBuf,
    /// For v1 the file `tasks`, opened for writing; for v2 the directory.
    door: OwnedFd,
}

/// The descriptors with which the first process of a group enters it. The process must use all of them, in any order,
/// before it has threads or children, and before it enters a cgroup namespace: if v2 is mounted with `nsdelegate`, no
/// process can join a group outside of its own namespace (ENOENT, cgroups(7)).
#[derive(Debug)]
pub struct Entrance<'a> {
    /// The directory for `CLONE_INTO_CGROUP` of `clone3(2)`. Entering through `cgroup.procs` takes longer, since the
    /// kernel waits for all processors.
    pub unified: Option<BorrowedFd<'a>>,
    /// The `tasks` files, opened for writing: writing `0` to a file moves the writing thread.
    pub tasks: Vec<BorrowedFd<'a>>,
}

/// How the limits are enforced, as phrases for the record. `None` if the plan sets no such limit, or no tree has the
/// controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Memory of all processes together, including tmpfs, memory files and shared memory.
    pub memory: Option<String>,
    /// Processes and threads of all users together.
    pub pids: Option<String>,
    /// `true` if [`Usage::cpu_usec`] will include the CPU time of all processes, even of those that were not reaped.
    pub cpu_accounting: bool,
}

/// The current counters of a group; `None` for values that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// CPU time of all processes, user and system, in microseconds.
    pub cpu_usec: Option<u64>,
    /// The peak memory usage in bytes, including page cache.
    pub memory_peak: Option<u64>,
    /// The number of processes killed for lack of memory, in the group or on the machine. If it is above 0, the
    /// step's result does not depend on its program alone.
    pub oom_kills: Option<u64>,
    /// The number of processes or threads that the limit kept from starting.
    pub pids_denied: Option<u64>,
}

impl Group {
    pub(super) fn make(trees: &Arc<Trees>, number: u64) -> io::Result<Self> {
        // On an error, dropping the group removes the directories made so far.
        let mut group = Self {
            trees: Arc::clone(trees),
            rooms: Vec::with_capacity(trees.branches.len()),
            counters: OnceLock::new(),
        };
        for branch in &trees.branches {
            let dir = branch.subtree.dir().join(number.to_string());
            group.rooms.push(Room::make(dir, branch.version, branch.holds)?);
        }
        Ok(group)
    }

    /// Returns the descriptors for entering the group.
    pub fn entrance(&self) -> Entrance<'_> {
        let doors = |version| self.rooms.iter().filter(move |room| room.version == version);
        Entrance {
            unified: doors(Version::V2).map(|room| room.door.as_fd()).next(),
            tasks: doors(Version::V1).map(|room| room.door.as_fd()).collect(),
        }
    }

    /// Opens the file that limits memory and the file that counts socket buffers, if the kernel counts the two
    /// separately (version 1).
    pub(crate) fn apart(&self) -> Option<[File; 2]> {
        let room = self.room(|holds| holds.memory).filter(|room| room.version == Version::V1)?;
        let limit = OpenOptions::new().write(true).open(room.dir.join("memory.limit_in_bytes")).ok()?;
        Some([limit, File::open(room.dir.join("memory.kmem.tcp.usage_in_bytes")).ok()?])
    }

    /// Limits memory to a share of the machine's memory, for plans without a limit. This protects the machine and is
    /// not recorded as a control: memory that the kernel counts separately stays uncounted. Returns whether the group
    /// can limit memory.
    pub(crate) fn limit_to_share(&self, bytes: u64) -> io::Result<bool> {
        let Some(room) = self.room(|holds| holds.memory) else { return Ok(false) };
        let bytes = bytes.to_string();
        let (file, (second, text)) = match room.version {
            Version::V1 => ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", bytes.as_str())),
            Version::V2 => ("memory.max", ("memory.oom.group", "1")),
        };
        control::write(&room.dir, file, &bytes)?;
        control::write_if_there(&room.dir, second, text)?;
        Ok(true)
    }

    /// Sets the limits of memory and processes, once. PID 1 is added to the limit of the step's processes.
    ///
    /// # Errors
    /// The kernel refuses a limit, or reports another value afterwards.
    pub fn limit(&self, limits: &Limits) -> io::Result<Held> {
        let memory = match (limits.memory, self.room(|holds| holds.memory)) {
            (Limit::Max(bytes), Some(room)) => Some(room.limit_memory(bytes)?),
            _ => None,
        };
        let pids = match (limits.pids, self.room(|holds| holds.pids)) {
            (Limit::Max(most), Some(room)) => Some(room.limit_pids(most)?),
            _ => None,
        };
        // The limits of a group are set once, so the cell is empty.
        drop(self.counters.set(self.open_counters()));
        Ok(Held { memory, pids, cpu_accounting: self.room(|holds| holds.cpu).is_some() })
    }

    /// Returns the current counters. Call it before the group is removed.
    pub fn usage(&self) -> Usage {
        Usage { cpu_usec: self.room(|holds| holds.cpu).and_then(Room::cpu_usec), ..self.bounded_usage() }
    }

    /// Returns the counters of limited resources, without the CPU time: summing that up over all processors takes the
    /// kernel longer than everything else.
    pub fn bounded_usage(&self) -> Usage {
        let opened;
        let counters = match self.counters.get() {
            Some(counters) => counters,
            None => {
                opened = self.open_counters();
                &opened
            }
        };
        counters.read()
    }

    /// Resets the counters for another command; `false` if they cannot be reset. A command that reached a limit
    /// leaves a nonzero count, and its sandbox is not reused.
    pub(crate) fn counts_anew(&mut self) -> bool {
        let usage = self.bounded_usage();
        let met = |count: Option<u64>| count.is_some_and(|count| count > 0);
        if met(usage.oom_kills) || met(usage.pids_denied) {
            return false;
        }
        let Some(room) = self.room(|holds| holds.memory) else { return true };
        let Some(peak) = room.peak_anew() else { return false };
        if let Some(counters) = self.counters.get_mut() {
            counters.memory_peak = Some(peak);
        }
        true
    }

    fn open_counters(&self) -> Counters {
        let memory = self.room(|holds| holds.memory);
        Counters::open(memory, self.room(|holds| holds.pids))
    }

    /// Sends SIGKILL to all processes of the group at once. Returns `false` if the kernel cannot do that: before
    /// Linux 5.14, or without v2.
    ///
    /// # Errors
    /// The kernel supports it and refuses.
    pub fn kill(&self) -> io::Result<bool> {
        match self.rooms.iter().find(|room| room.version == Version::V2) {
            Some(room) => control::write_if_there(&room.dir, "cgroup.kill", "1"),
            None => Ok(false),
        }
    }

    /// Returns the group's directory in each tree.
    pub fn dirs(&self) -> Vec<&Path> {
        self.rooms.iter().map(|room| room.dir.as_path()).collect()
    }

    /// Removes the group, as dropping it does. A group whose last task has not left yet is removed later: with the
    /// next group, with the seat, or by the next owner.
    pub fn remove(self) {
        drop(self);
    }

    fn room(&self, held: impl Fn(Holds) -> bool) -> Option<&Room> {
        self.rooms.iter().find(|room| held(room.holds))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for room in &self.rooms {
            match std::fs::remove_dir(&room.dir) {
                Err(error) if subtree::is_busy(&error) => {
                    subtree::kill(&room.dir);
                    self.trees.leave(room.dir.clone());
                }
                // Another process has removed it, or permission was lost; neither can be fixed here.
                Ok(()) | Err(_) => {}
            }
        }
    }
}

impl Room {
    fn make(dir: PathBuf, version: Version, holds: Holds) -> io::Result<Self> {
        subtree::make(&dir)?;
        match open_door(&dir, version) {
            Ok(door) => Ok(Self { version, holds, dir, door }),
            Err(error) => {
                drop(std::fs::remove_dir(&dir));
                Err(error)
            }
        }
    }

    fn limit_memory(&self, bytes: u64) -> io::Result<String> {
        match self.version {
            Version::V1 => self.limit_memory_v1(bytes),
            Version::V2 => self.limit_memory_v2(bytes),
        }
    }

    /// Limits memory by version 1. The limit including swap may not be below the one without, so it is set second.
    /// TCP buffers are counted separately; without a limit they would use up the host's TCP memory.
    fn limit_memory_v1(&self, bytes: u64) -> io::Result<String> {
        let text = bytes.to_string();
        control::write(&self.dir, "memory.limit_in_bytes", &text)?;
        let with_swap = control::write_if_there(&self.dir, "memory.memsw.limit_in_bytes", &text)?;
        control::write_if_there(&self.dir, "memory.kmem.tcp.limit_in_bytes", &text)?;
        self.holds_now("memory.limit_in_bytes", bytes)?;
        let swap = if with_swap { "swap included" } else { "swap not counted" };
        Ok(format!("cgroup v1 memory.limit_in_bytes {bytes}, of all processes together, {swap}, {APART}"))
    }

    fn limit_memory_v2(&self, bytes: u64) -> io::Result<String> {
        control::write(&self.dir, "memory.max", &bytes.to_string())?;
        let no_swap = control::write_if_there(&self.dir, "memory.swap.max", "0")?;
        let together = control::write_if_there(&self.dir, "memory.oom.group", "1")?;
        self.holds_now("memory.max", bytes)?;
        let swap = if no_swap { "no swap" } else { "swap not counted" };
        let end = if together { ", which end together" } else { "" };
        Ok(format!("cgroup v2 memory.max {bytes}, of all processes together{end}, {swap}, buffers of sockets included"))
    }

    fn limit_pids(&self, most: u64) -> io::Result<String> {
        let all = most.saturating_add(OWN_PROCESSES).min(MOST_PIDS);
        control::write(&self.dir, "pids.max", &all.to_string())?;
        self.holds_now("pids.max", all)?;
        let version = match self.version {
            Version::V1 => "v1",
            Version::V2 => "v2",
        };
        Ok(format!("cgroup {version} pids.max {all}, PID 1 of the sandbox among them"))
    }

    /// Checks that a limit is in force. The kernel rounds down to whole pages, and never up.
    fn holds_now(&self, file: &str, most: u64) -> io::Result<()> {
        match control::read(&self.dir, file) {
            Some(text) if text.trim().parse::<u64>().is_ok_and(|now| now <= most) => Ok(()),
            other => {
                let now = other.unwrap_or_default();
                let path = self.dir.join(file);
                let message = format!("`{}` is `{}` after {most} was written to it", path.display(), now.trim());
                Err(io::Error::other(message))
            }
        }
    }

    fn cpu_usec(&self) -> Option<u64> {
        match self.version {
            Version::V1 => control::number(&self.dir, "cpuacct.usage").map(|nanoseconds| nanoseconds / 1000),
            Version::V2 => control::keyed(&self.dir, "cpu.stat", "usage_usec"),
        }
    }

    fn memory_peak(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.max_usage_in_bytes",
            Version::V2 => "memory.peak",
        }
    }

    /// Resets the peak and returns the file that shows it. In version 2 (Linux 6.12) the reset applies only to this
    /// open file.
    fn peak_anew(&self) -> Option<File> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.dir.join(self.memory_peak())).ok()?;
        file.write_all(b"0").ok()?;
        Some(file)
    }

    fn memory_events(&self) -> &'static str {
        match self.version {
            Version::V1 => "memory.oom_control",
            Version::V2 => "memory.events",
        }
    }
}

fn open_door(dir: &Path, version: Version) -> io::Result<OwnedFd> {
    match version {
        Version::V1 => Ok(OpenOptions::new().write(true).open(dir.join("tasks"))?.into()),
        Version::V2 => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(rustix::fs::open(dir, flags, Mode::empty())?)
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write plain files")]
mod tests {
    use super::*;

    /// Returns a room of plain files, which imitate the kernel's control files.
    fn room(version: Version, files: &[(&str, &str)]) -> (tempfile::TempDir, Room) {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::write(dir.path().join("tasks"), "").expect("write");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("write");
        }
        let holds = Holds { memory: true, pids: true, cpu: true };
        let door = open_door(dir.path(), version).expect("door");
        let room = Room { version, holds, dir: dir.path().to_owned(), door };
        (dir, room)
    }

    fn text(room: &Room, file: &str) -> String {
        control::read(&room.dir, file).expect("read")
    }

    #[test]
    fn on_plain_files_v2_bounds_swap_and_kills_together() {
        let files = [("memory.max", ""), ("memory.swap.max", ""), ("memory.oom.group", ""), ("pids.max", "")];
        let (_dir, room) = room(Version::V2, &files);
        let phrase = room.limit_memory(1 << 20).expect("limit");
        assert!(phrase.contains("memory.max 1048576") && phrase.contains("end together, no swap"), "{phrase}");
        assert_eq!(
            ["memory.max", "memory.swap.max", "memory.oom.group"].map(|f| text(&room, f)),
            ["1048576", "0", "1"]
        );
        let phrase = room.limit_pids(64).expect("limit");
        assert!(phrase.contains("pids.max 65"), "{phrase}");
        assert_eq!(text(&room, "pids.max"), "65");
    }

    #[test]
    fn on_plain_files_v1_bounds_memory_with_swap() {
        let files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"]
            .map(|name| (name, ""));
        let (_dir, room) = room(Version::V1, &files);
        let phrase = room.limit_memory(4096).expect("limit");
        assert!(phrase.contains("swap included"), "{phrase}");
        assert_eq!(text(&room, "memory.memsw.limit_in_bytes"), "4096");
        assert_eq!(text(&room, "memory.kmem.tcp.limit_in_bytes"), "4096");
    }

    #[test]
    fn on_plain_files_a_kernel_without_swap_accounting_is_not_praised() {
        for (version, file) in [(Version::V1, "memory.limit_in_bytes"), (Version::V2, "memory.max")] {
            let (_dir, room) = room(version, &[(file, "")]);
            let phrase = room.limit_memory(4096).expect("limit");
            assert!(phrase.contains("swap not counted") && !phrase.contains("end together"), "{phrase}");
        }
    }

    #[test]
    fn on_plain_files_a_bound_that_does_not_hold_is_an_error() {
        let (_dir, room) = room(Version::V2, &[("memory.max", "999999")]);
        // A plain file keeps the digits that a shorter text does not overwrite.
        let error = room.limit_memory(1).expect_err("199999").to_string();
        assert!(error.contains("199999"), "{error}");
        assert!(room.limit_pids(1).is_err(), "there is no pids.max");
    }

    #[test]
    fn on_plain_files_the_greatest_bound_is_what_the_kernel_takes() {
        let (_dir, room) = room(Version::V1, &[("pids.max", "")]);
        room.limit_pids(u64::MAX).expect("limit");
        assert_eq!(text(&room, "pids.max"), "4194304");
    }

    #[test]
    fn on_plain_files_both_interfaces_are_read() {
        let v1 = [
            ("memory.max_usage_in_bytes", "4096\n"),
            ("memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
            ("cpuacct.usage", "5000999\n"),
        ];
        let v2 = [
            ("memory.peak", "4096\n"),
            ("memory.events", "low 0\noom 5\noom_kill 2\noom_group_kill 1\n"),
            ("cpu.stat", "usage_usec 5000\nuser_usec 1\n"),
        ];
        for (version, files) in [(Version::V1, v1), (Version::V2, v2)] {
            let (_dir, room) = room(version, &files);
            let counted = Counters::open(Some(&room), None).read();
            let seen = (counted.memory_peak, counted.oom_kills, room.cpu_usec());
            assert_eq!(seen, (Some(4096), Some(2), Some(5000)), "{version:?}");
        }
        let (_dir, bare) = room(Version::V2, &[]);
        assert_eq!((Counters::open(Some(&bare), None).read(), bare.cpu_usec()), (Usage::default(), None));
    }
}
