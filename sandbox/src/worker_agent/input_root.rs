//! Represents the directory of the action, and the directory in which the agent works.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::agent_error::AgentError;
use crate::agent::{
    CHANGES_CONTENT_FILE, GIT_DIRECTORY, NEEDED_PATHS_DIRECTORY, REPORT_FILE, STDERR_FILE, STDOUT_FILE, TREE_DIRECTORY,
};
use crate::removal::remove_dir;

/// Name of the directory in the input root in which the agent works.
const WORK_DIRECTORY: &str = "proctor-work";
/// Types of file systems on which no tree is copied: FUSE, NFS, 9P, CIFS and SMB. They are slow, and may support
/// neither overlays nor the times that show changes.
const REMOTE_FILE_SYSTEMS: [u64; 5] = [0x6573_5546, 0x6969, 0x0102_1997, 0xff53_4d42, 0xfe53_4d42];
const TMPFS: u64 = 0x0102_1994;
const PAGE: u64 = 4096;
/// The largest tree that is copied to memory.
const SMALL: TreeSize = TreeSize { bytes: 128 << 20, entries: 50_000 };
/// The directories in the input root that are copied.
const INPUTS: [&str; 3] = [TREE_DIRECTORY, GIT_DIRECTORY, NEEDED_PATHS_DIRECTORY];
/// Number of names that are tried for a directory outside of the input root.
const MAX_TRIES: usize = 16;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// The input root: the directory in which the worker starts the agent.
#[derive(Debug)]
pub(super) struct InputRoot {
    path: PathBuf,
    dir: OwnedFd,
}

impl InputRoot {
    /// Opens the current directory.
    pub(super) fn current() -> Result<Self, AgentError> {
        let path = std::env::current_dir().map_err(AgentError::system("cannot find the current directory"))?;
        let dir =
            rustix::fs::openat(CWD, ".", DIRECTORY, Mode::empty()).map_err(AgentError::path("cannot open", &path))?;
        Ok(Self { path, dir })
    }

    /// Returns the absolute path of the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the outputs of an earlier agent. If one of them is a link to a file of the worker, the file stays.
    pub(super) fn remove_outputs(&self) -> Result<(), AgentError> {
        for name in [REPORT_FILE, STDOUT_FILE, STDERR_FILE, CHANGES_CONTENT_FILE] {
            match rustix::fs::unlinkat(&self.dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(AgentError::path("cannot remove", self.path.join(name))(errno)),
            }
        }
        Ok(())
    }

    /// Opens an input file.
    pub(super) fn open_input(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOCTTY;
        Ok(rustix::fs::openat(&self.dir, name, flags, Mode::empty())?.into())
    }

    /// Opens an input directory.
    pub(super) fn open_directory(&self, name: &str) -> Result<OwnedFd, AgentError> {
        rustix::fs::openat(&self.dir, name, DIRECTORY, Mode::empty())
            .map_err(AgentError::path("cannot open", self.path.join(name)))
    }

    /// Creates a new output file.
    pub(super) fn create_output(&self, name: &str) -> Result<File, AgentError> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let created = rustix::fs::openat(&self.dir, name, flags, Mode::from_raw_mode(0o644));
        created.map(File::from).map_err(AgentError::path("cannot create", self.path.join(name)))
    }

    /// Gives an output its final name.
    pub(super) fn rename_output(&self, from: &str, to: &str) -> Result<(), AgentError> {
        rustix::fs::renameat(&self.dir, from, &self.dir, to)
            .map_err(AgentError::path("cannot create", self.path.join(to)))
    }
}

/// The size of a tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct TreeSize {
    bytes: u64,
    entries: u64,
}

impl TreeSize {
    /// Returns the size of everything in those of the directories that exist; `None` if it is not small, or cannot be read.
    fn of_small<const N: usize>(tops: [PathBuf; N]) -> Option<Self> {
        let mut open: Vec<PathBuf> = tops.into_iter().filter(|top| top.is_dir()).collect();
        let mut size = Self::default();
        while let Some(directory) = open.pop() {
            for entry in std::fs::read_dir(directory).ok()? {
                let entry = entry.ok()?;
                let metadata = entry.metadata().ok()?;
                size.entries += 1;
                if metadata.is_dir() {
                    open.push(entry.path());
                } else {
                    // A file takes whole pages of memory.
                    size.bytes += metadata.len().next_multiple_of(PAGE);
                }
                if size.bytes > SMALL.bytes || size.entries > SMALL.entries {
                    return None;
                }
            }
        }
        Some(size)
    }
}

/// Returns whether a directory is on a tmpfs from which programs can run, with space for a tree, the copy of it that a
/// sandbox without namespaces makes, and the step's own files.
fn has_memory_for(directory: &Path, size: TreeSize) -> bool {
    let (Ok(system), Ok(flags)) = (rustix::fs::statfs(directory), rustix::fs::statvfs(directory)) else { return false };
    let is_tmpfs = u64::try_from(system.f_type).is_ok_and(|kind| kind == TMPFS);
    let free = u64::try_from(system.f_bsize).unwrap_or_default().saturating_mul(system.f_bavail);
    let has_inodes = system.f_files == 0 || system.f_ffree >= 3 * size.entries;
    let runs_programs = !flags.f_flag.contains(rustix::fs::StatVfsMountFlags::NOEXEC);
    is_tmpfs && has_inodes && runs_programs && free >= 3 * size.bytes + SMALL.bytes
}

/// The directory for the copy of the tree and the state of the sandboxes. It is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct WorkDirectory {
    parent: OwnedFd,
    name: CString,
    path: PathBuf,
}

impl WorkDirectory {
    /// Creates the directory. A small tree is copied to memory, if `TMPDIR`, `/tmp` or `/dev/shm` is a tmpfs with
    /// enough space, because creating a file on a disk takes much longer. Otherwise, the directory is in the input
    /// root. If that is on a remote file system, or cannot be written, it is in `TMPDIR` or `/tmp`.
    pub(super) fn create(root: &InputRoot) -> Result<Self, AgentError> {
        if let Some(size) = TreeSize::of_small(INPUTS.map(|name| root.path.join(name))) {
            let candidates = [temporary_directory(), "/tmp".into(), "/dev/shm".into()];
            let in_memory = candidates.iter().filter(|candidate| has_memory_for(candidate, size));
            if let Some(made) = in_memory.filter_map(|candidate| Self::create_in_temporary(candidate).ok()).next() {
                return Ok(made);
            }
        }
        let is_remote = rustix::fs::fstatfs(&root.dir)
            .is_ok_and(|system| REMOTE_FILE_SYSTEMS.contains(&u64::try_from(system.f_type).unwrap_or_default()));
        if !is_remote && let Ok(made) = Self::create_in(&root.path, WORK_DIRECTORY) {
            return Ok(made);
        }
        let parent = temporary_directory();
        Self::create_in_temporary(&parent)
            .map_err(AgentError::path("cannot create a directory for the copy of the tree in", parent))
    }

    /// Creates the directory inside a directory that other actions use, too.
    fn create_in_temporary(parent: &Path) -> Result<Self, Errno> {
        for number in 0..MAX_TRIES {
            match Self::create_in(parent, &format!("{WORK_DIRECTORY}-{}-{number}", std::process::id())) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
        Err(Errno::EXIST)
    }

    fn create_in(parent: &Path, name: &str) -> Result<Self, Errno> {
        // The sandbox accepts no path with a symbolic link.
        let path = std::fs::canonicalize(parent).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let parent = rustix::fs::open(&path, DIRECTORY, Mode::empty())?;
        rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
        Ok(Self { parent, name: CString::new(name).map_err(|_| Errno::INVAL)?, path: path.join(name) })
    }

    /// Returns the absolute path of the directory.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a directory in this directory.
    pub(super) fn create_directory(&self, name: &str) -> Result<PathBuf, AgentError> {
        let path = self.path.join(name);
        rustix::fs::mkdir(&path, Mode::from_raw_mode(0o755)).map_err(AgentError::path("cannot create", &path))?;
        Ok(path)
    }
}

impl Drop for WorkDirectory {
    fn drop(&mut self) {
        // The worker discards the input root, and there is nothing else to do about files that stay.
        let _ = remove_dir(self.parent.as_fd(), &self.name);
    }
}

#[expect(clippy::disallowed_methods, reason = "the agent is a separate program, which reads its own environment")]
fn temporary_directory() -> PathBuf {
    let set = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
    set.unwrap_or_else(|| "/tmp".into())
}

/// Returns the home directory of the worker's user, which commands must not see.
#[expect(clippy::disallowed_methods, reason = "the agent is a separate program, which reads its own environment")]
pub(super) fn home_directory() -> Option<PathBuf> {
    let home = std::fs::canonicalize(std::env::var_os("HOME")?).ok()?;
    Some(home).filter(|path| path.parent().is_some())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests use plain files")]
mod tests {
    use super::*;

    #[test]
    fn size_counts_pages_and_entries_of_small_trees() {
        let dir = tempfile::tempdir().expect("a directory");
        let tree = dir.path().join("tree");
        std::fs::create_dir_all(tree.join("sub")).expect("made");
        std::fs::write(tree.join("sub/file"), "x").expect("written");
        std::os::unix::fs::symlink("/", tree.join("link")).expect("made");
        let size = |tops| TreeSize::of_small::<2>(tops);
        let expected = TreeSize { bytes: 2 * PAGE, entries: 3 };
        assert_eq!(size([tree.clone(), dir.path().join("absent")]), Some(expected), "a link is not followed");
        let large = std::fs::File::create(tree.join("large")).expect("made");
        large.set_len(SMALL.bytes).expect("sparse");
        assert_eq!(size([tree, dir.path().join("absent")]), None);
    }

    #[test]
    fn memory_must_be_a_tmpfs_with_space() {
        let none = TreeSize::default();
        assert!(!has_memory_for(Path::new("/proc"), none));
        let all = TreeSize { bytes: u64::MAX / 8, entries: 1 };
        assert!(!has_memory_for(Path::new("/dev/shm"), all));
    }
}
