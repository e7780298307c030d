//! Represents one control group: its entrance, limits, counters and removal.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use proctor_core::model::plan::{Limit, Limits};
use rustix::fs::{Mode, OFlags};

use super::membership::{CgroupVersion, Controllers};
use super::{control_files, subtree};
use crate::cgroup::location_state::LocationState;

/// The first process of a group is PID 1 of the sandbox, which is proctor's own.
const OWN_PROCESSES: u64 = 1;
/// Text of the record for version 1, until PID 1 subtracts these buffers.
pub(crate) const SEPARATE_SOCKET_BUFFERS: &str = "buffers of network sockets are counted separately";
/// The largest number that `pids.max` accepts: the kernel's `PID_MAX_LIMIT`.
const MAX_PIDS: u64 = 4 << 20;

/// The group of one attempt, in each tree of its [`CgroupLocation`](super::CgroupLocation). Dropping it removes the
/// group, and kills the processes still in it if the kernel supports that.
#[derive(Debug)]
pub struct AttemptCgroup {
    location: Arc<LocationState>,
    tree_cgroups: Vec<TreeCgroup>,
    /// Opened when the limits are set, because a caller waits at the end of an attempt.
    counters: OnceLock<CgroupCounters>,
}

/// The files that show whether a limit was reached. `None` if there is no such file.
#[derive(Debug)]
struct CgroupCounters {
    memory_peak: Option<File>,
    memory_events: Option<File>,
    pids_events: Option<File>,
}

impl CgroupCounters {
    fn open(memory: Option<&TreeCgroup>, pids: Option<&TreeCgroup>) -> Self {
        let open = |room: Option<&TreeCgroup>, file: fn(&TreeCgroup) -> &'static str| {
            room.and_then(|room| File::open(room.dir.join(file(room))).ok())
        };
        Self {
            memory_peak: open(memory, TreeCgroup::memory_peak_file),
            memory_events: open(memory, TreeCgroup::memory_events_file),
            pids_events: open(pids, |_| "pids.events"),
        }
    }

    fn read(&self) -> CgroupUsage {
        CgroupUsage {
            cpu_usec: None,
            memory_peak: self.memory_peak.as_ref().and_then(control_files::read_number_from),
            oom_kills: self.memory_events.as_ref().and_then(|file| control_files::read_keyed_from(file, "oom_kill")),
            pids_denied: self.pids_events.as_ref().and_then(|file| control_files::read_keyed_from(file, "max")),
        }
    }
}

/// The group in one tree.
#[derive(Debug)]
struct TreeCgroup {
    version: CgroupVersion,
    controllers: Controllers,
    dir: PathBuf,
    /// For v1 the file `tasks`, opened for writing; for v2 the directory.
    join_fd: OwnedFd,
}

/// The descriptors with which the first process of a group enters it. The process must use all of them, in any order,
/// before it has threads or children, and before it enters a cgroup namespace: if v2 is mounted with `nsdelegate`, no
/// process can join a group outside of its own namespace (ENOENT, cgroups(7)).
#[derive(Debug)]
pub struct CgroupJoinFds<'a> {
    /// The directory for `CLONE_INTO_CGROUP` of `clone3(2)`. Entering through `cgroup.procs` takes longer, since the
    /// kernel waits for all processors.
    pub unified: Option<BorrowedFd<'a>>,
    /// The `tasks` files, opened for writing: writing `0` to a file moves the writing thread.
    pub tasks: Vec<BorrowedFd<'a>>,
}

/// How the limits are enforced, as phrases for the record. `None` if the plan sets no such limit, or no tree has the
/// controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnforcedCgroupLimits {
    /// Memory of all processes together, including tmpfs, memory files and shared memory.
    pub memory: Option<String>,
    /// Processes and threads of all users together.
    pub pids: Option<String>,
    /// `true` if [`CgroupUsage::cpu_usec`] will include the CPU time of all processes, even of those that were not
    /// reaped.
    pub cpu_accounting: bool,
}

/// The current counters of a group; `None` for values that could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CgroupUsage {
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

impl AttemptCgroup {
    pub(super) fn create(trees: &Arc<LocationState>, number: u64) -> io::Result<Self> {
        // On an error, dropping the group removes the directories made so far.
        let mut group = Self {
            location: Arc::clone(trees),
            tree_cgroups: Vec::with_capacity(trees.trees.len()),
            counters: OnceLock::new(),
        };
        for branch in &trees.trees {
            let dir = branch.subtree.dir().join(number.to_string());
            group.tree_cgroups.push(TreeCgroup::create(dir, branch.version, branch.controllers)?);
        }
        Ok(group)
    }

    /// Returns the descriptors for entering the group.
    pub fn join_fds(&self) -> CgroupJoinFds<'_> {
        let doors = |version| self.tree_cgroups.iter().filter(move |room| room.version == version);
        CgroupJoinFds {
            unified: doors(CgroupVersion::V2).map(|room| room.join_fd.as_fd()).next(),
            tasks: doors(CgroupVersion::V1).map(|room| room.join_fd.as_fd()).collect(),
        }
    }

    /// Opens the file that limits memory and the file that counts socket buffers, if the kernel counts the two
    /// separately (version 1).
    pub(crate) fn open_socket_buffer_files(&self) -> Option<[File; 2]> {
        let room = self.tree_cgroup_with(|holds| holds.memory).filter(|room| room.version == CgroupVersion::V1)?;
        let limit = OpenOptions::new().write(true).open(room.dir.join("memory.limit_in_bytes")).ok()?;
        Some([limit, File::open(room.dir.join("memory.kmem.tcp.usage_in_bytes")).ok()?])
    }

    /// Opens the file that counts the CPU time of all processes, including those that no parent has waited for.
    pub(crate) fn open_cpu_file(&self) -> Option<File> {
        let room = self.tree_cgroup_with(|holds| holds.cpu)?;
        let name = match room.version {
            CgroupVersion::V1 => "cpuacct.usage",
            CgroupVersion::V2 => "cpu.stat",
        };
        File::open(room.dir.join(name)).ok()
    }

    /// Limits memory to a share of the machine's memory, for plans without a limit. This protects the machine and is
    /// not recorded as a control: memory that the kernel counts separately stays uncounted. Returns whether the group
    /// can limit memory.
    pub(crate) fn apply_default_memory_limit(&self, bytes: u64) -> io::Result<bool> {
        let Some(room) = self.tree_cgroup_with(|holds| holds.memory) else { return Ok(false) };
        let bytes = bytes.to_string();
        let (file, (second, text)) = match room.version {
            CgroupVersion::V1 => ("memory.limit_in_bytes", ("memory.memsw.limit_in_bytes", bytes.as_str())),
            CgroupVersion::V2 => ("memory.max", ("memory.oom.group", "1")),
        };
        control_files::write(&room.dir, file, &bytes)?;
        control_files::write_if_exists(&room.dir, second, text)?;
        Ok(true)
    }

    /// Sets the limits of memory and processes, once. PID 1 is added to the limit of the step's processes.
    ///
    /// # Errors
    /// The kernel refuses a limit, or reports another value afterwards.
    pub fn set_limits(&self, limits: &Limits) -> io::Result<EnforcedCgroupLimits> {
        let memory = match (limits.memory, self.tree_cgroup_with(|holds| holds.memory)) {
            (Limit::Max(bytes), Some(room)) => Some(room.limit_memory(bytes)?),
            _ => None,
        };
        let pids = match (limits.pids, self.tree_cgroup_with(|holds| holds.pids)) {
            (Limit::Max(most), Some(room)) => Some(room.limit_pids(most)?),
            _ => None,
        };
        // The limits of a group are set once, so the cell is empty.
        drop(self.counters.set(self.open_counters()));
        Ok(EnforcedCgroupLimits { memory, pids, cpu_accounting: self.tree_cgroup_with(|holds| holds.cpu).is_some() })
    }

    /// Returns the current counters. Call it before the group is removed.
    pub fn usage(&self) -> CgroupUsage {
        CgroupUsage {
            cpu_usec: self.tree_cgroup_with(|holds| holds.cpu).and_then(TreeCgroup::cpu_usec),
            ..self.usage_without_cpu()
        }
    }

    /// Returns the counters of limited resources, without the CPU time: summing that up over all processors takes the
    /// kernel longer than everything else.
    pub fn usage_without_cpu(&self) -> CgroupUsage {
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
    pub(crate) fn reset_counters(&mut self) -> bool {
        let usage = self.usage_without_cpu();
        let met = |count: Option<u64>| count.is_some_and(|count| count > 0);
        if met(usage.oom_kills) || met(usage.pids_denied) {
            return false;
        }
        let Some(room) = self.tree_cgroup_with(|holds| holds.memory) else { return true };
        let Some(peak) = room.reset_memory_peak() else { return false };
        if let Some(counters) = self.counters.get_mut() {
            counters.memory_peak = Some(peak);
        }
        true
    }

    fn open_counters(&self) -> CgroupCounters {
        let memory = self.tree_cgroup_with(|holds| holds.memory);
        CgroupCounters::open(memory, self.tree_cgroup_with(|holds| holds.pids))
    }

    /// Sends SIGKILL to all processes of the group at once. Returns `false` if the kernel cannot do that: before
    /// Linux 5.14, or without v2.
    ///
    /// # Errors
    /// The kernel supports it and refuses.
    pub fn kill(&self) -> io::Result<bool> {
        match self.tree_cgroups.iter().find(|room| room.version == CgroupVersion::V2) {
            Some(room) => control_files::write_if_exists(&room.dir, "cgroup.kill", "1"),
            None => Ok(false),
        }
    }

    /// Returns the group's directory in each tree.
    pub fn dirs(&self) -> Vec<&Path> {
        self.tree_cgroups.iter().map(|room| room.dir.as_path()).collect()
    }

    /// Removes the group, as dropping it does. A group whose last task has not left yet is removed later: with the
    /// next group, with the location, or by the next owner.
    pub fn remove(self) {
        drop(self);
    }

    fn tree_cgroup_with(&self, is_wanted: impl Fn(Controllers) -> bool) -> Option<&TreeCgroup> {
        self.tree_cgroups.iter().find(|room| is_wanted(room.controllers))
    }
}

impl Drop for AttemptCgroup {
    fn drop(&mut self) {
        for room in &self.tree_cgroups {
            match std::fs::remove_dir(&room.dir) {
                Err(error) if subtree::is_busy(&error) => {
                    subtree::kill(&room.dir);
                    self.location.add_leftover(room.dir.clone());
                }
                // Another process has removed it, or permission was lost; neither can be fixed here.
                Ok(()) | Err(_) => {}
            }
        }
    }
}

impl TreeCgroup {
    fn create(dir: PathBuf, version: CgroupVersion, holds: Controllers) -> io::Result<Self> {
        subtree::create_group_dir(&dir)?;
        match open_join_fd(&dir, version) {
            Ok(door) => Ok(Self { version, controllers: holds, dir, join_fd: door }),
            Err(error) => {
                drop(std::fs::remove_dir(&dir));
                Err(error)
            }
        }
    }

    fn limit_memory(&self, bytes: u64) -> io::Result<String> {
        match self.version {
            CgroupVersion::V1 => self.limit_memory_v1(bytes),
            CgroupVersion::V2 => self.limit_memory_v2(bytes),
        }
    }

    /// Limits memory by version 1. The limit including swap may not be below the one without, so it is set second.
    /// TCP buffers are counted separately; without a limit they would use up the host's TCP memory.
    fn limit_memory_v1(&self, bytes: u64) -> io::Result<String> {
        let text = bytes.to_string();
        control_files::write(&self.dir, "memory.limit_in_bytes", &text)?;
        let with_swap = control_files::write_if_exists(&self.dir, "memory.memsw.limit_in_bytes", &text)?;
        control_files::write_if_exists(&self.dir, "memory.kmem.tcp.limit_in_bytes", &text)?;
        self.verify_limit("memory.limit_in_bytes", bytes)?;
        let swap = if with_swap { "swap included" } else { "swap not counted" };
        Ok(format!(
            "cgroup v1 memory.limit_in_bytes {bytes}, of all processes together, {swap}, {SEPARATE_SOCKET_BUFFERS}"
        ))
    }

    fn limit_memory_v2(&self, bytes: u64) -> io::Result<String> {
        control_files::write(&self.dir, "memory.max", &bytes.to_string())?;
        let no_swap = control_files::write_if_exists(&self.dir, "memory.swap.max", "0")?;
        let together = control_files::write_if_exists(&self.dir, "memory.oom.group", "1")?;
        self.verify_limit("memory.max", bytes)?;
        let swap = if no_swap { "no swap" } else { "swap not counted" };
        let end = if together { ", which end together" } else { "" };
        Ok(format!("cgroup v2 memory.max {bytes}, of all processes together{end}, {swap}, buffers of sockets included"))
    }

    fn limit_pids(&self, most: u64) -> io::Result<String> {
        let all = most.saturating_add(OWN_PROCESSES).min(MAX_PIDS);
        control_files::write(&self.dir, "pids.max", &all.to_string())?;
        self.verify_limit("pids.max", all)?;
        let version = match self.version {
            CgroupVersion::V1 => "v1",
            CgroupVersion::V2 => "v2",
        };
        Ok(format!("cgroup {version} pids.max {all}, PID 1 of the sandbox among them"))
    }

    /// Checks that a limit is in force. The kernel rounds down to whole pages, and never up.
    fn verify_limit(&self, file: &str, most: u64) -> io::Result<()> {
        match control_files::read(&self.dir, file) {
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
            CgroupVersion::V1 => {
                control_files::read_number(&self.dir, "cpuacct.usage").map(|nanoseconds| nanoseconds / 1000)
            }
            CgroupVersion::V2 => control_files::read_keyed(&self.dir, "cpu.stat", "usage_usec"),
        }
    }

    fn memory_peak_file(&self) -> &'static str {
        match self.version {
            CgroupVersion::V1 => "memory.max_usage_in_bytes",
            CgroupVersion::V2 => "memory.peak",
        }
    }

    /// Resets the peak and returns the file that shows it. In version 2 (Linux 6.12) the reset applies only to this
    /// open file.
    fn reset_memory_peak(&self) -> Option<File> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.dir.join(self.memory_peak_file())).ok()?;
        file.write_all(b"0").ok()?;
        Some(file)
    }

    fn memory_events_file(&self) -> &'static str {
        match self.version {
            CgroupVersion::V1 => "memory.oom_control",
            CgroupVersion::V2 => "memory.events",
        }
    }
}

fn open_join_fd(dir: &Path, version: CgroupVersion) -> io::Result<OwnedFd> {
    match version {
        CgroupVersion::V1 => Ok(OpenOptions::new().write(true).open(dir.join("tasks"))?.into()),
        CgroupVersion::V2 => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            Ok(rustix::fs::open(dir, flags, Mode::empty())?)
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write plain files")]
mod tests {
    use super::*;

    /// Returns a directory of plain files that imitate the kernel's control files.
    fn fake_tree_cgroup(version: CgroupVersion, files: &[(&str, &str)]) -> (tempfile::TempDir, TreeCgroup) {
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::write(dir.path().join("tasks"), "").expect("write");
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).expect("write");
        }
        let holds = Controllers { memory: true, pids: true, cpu: true };
        let door = open_join_fd(dir.path(), version).expect("door");
        let room = TreeCgroup { version, controllers: holds, dir: dir.path().to_owned(), join_fd: door };
        (dir, room)
    }

    fn read_control_file(room: &TreeCgroup, file: &str) -> String {
        control_files::read(&room.dir, file).expect("read")
    }

    #[test]
    fn v2_limits_swap_and_enables_group_kill() {
        let files = [("memory.max", ""), ("memory.swap.max", ""), ("memory.oom.group", ""), ("pids.max", "")];
        let (_dir, room) = fake_tree_cgroup(CgroupVersion::V2, &files);
        let phrase = room.limit_memory(1 << 20).expect("limit");
        assert!(phrase.contains("memory.max 1048576") && phrase.contains("end together, no swap"), "{phrase}");
        assert_eq!(
            ["memory.max", "memory.swap.max", "memory.oom.group"].map(|f| read_control_file(&room, f)),
            ["1048576", "0", "1"]
        );
        let phrase = room.limit_pids(64).expect("limit");
        assert!(phrase.contains("pids.max 65"), "{phrase}");
        assert_eq!(read_control_file(&room, "pids.max"), "65");
    }

    #[test]
    fn v1_limits_memory_with_swap() {
        let files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.kmem.tcp.limit_in_bytes"]
            .map(|name| (name, ""));
        let (_dir, room) = fake_tree_cgroup(CgroupVersion::V1, &files);
        let phrase = room.limit_memory(4096).expect("limit");
        assert!(phrase.contains("swap included"), "{phrase}");
        assert_eq!(read_control_file(&room, "memory.memsw.limit_in_bytes"), "4096");
        assert_eq!(read_control_file(&room, "memory.kmem.tcp.limit_in_bytes"), "4096");
    }

    #[test]
    fn reports_missing_swap_accounting() {
        for (version, file) in [(CgroupVersion::V1, "memory.limit_in_bytes"), (CgroupVersion::V2, "memory.max")] {
            let (_dir, room) = fake_tree_cgroup(version, &[(file, "")]);
            let phrase = room.limit_memory(4096).expect("limit");
            assert!(phrase.contains("swap not counted") && !phrase.contains("end together"), "{phrase}");
        }
    }

    #[test]
    fn rejects_ineffective_limit() {
        let (_dir, room) = fake_tree_cgroup(CgroupVersion::V2, &[("memory.max", "999999")]);
        // A plain file keeps the digits that a shorter text does not overwrite.
        let error = room.limit_memory(1).expect_err("199999").to_string();
        assert!(error.contains("199999"), "{error}");
        assert!(room.limit_pids(1).is_err(), "there is no pids.max");
    }

    #[test]
    fn caps_pids_at_kernel_maximum() {
        let (_dir, room) = fake_tree_cgroup(CgroupVersion::V1, &[("pids.max", "")]);
        room.limit_pids(u64::MAX).expect("limit");
        assert_eq!(read_control_file(&room, "pids.max"), "4194304");
    }

    #[test]
    fn reads_counters_of_both_versions() {
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
        for (version, files) in [(CgroupVersion::V1, v1), (CgroupVersion::V2, v2)] {
            let (_dir, room) = fake_tree_cgroup(version, &files);
            let counted = CgroupCounters::open(Some(&room), None).read();
            let seen = (counted.memory_peak, counted.oom_kills, room.cpu_usec());
            assert_eq!(seen, (Some(4096), Some(2), Some(5000)), "{version:?}");
        }
        let (_dir, bare) = fake_tree_cgroup(CgroupVersion::V2, &[]);
        assert_eq!((CgroupCounters::open(Some(&bare), None).read(), bare.cpu_usec()), (CgroupUsage::default(), None));
    }
}
