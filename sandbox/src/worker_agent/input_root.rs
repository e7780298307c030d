//! Represents the directory of the action, and the directory in which the agent works.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;

use super::agent_error::AgentError;
use crate::agent::{CHANGES_CONTENT_FILE, REPORT_FILE, STDERR_FILE, STDOUT_FILE};
use crate::removal::remove_dir;

/// Name of the directory in the input root in which the agent works.
const WORK_DIRECTORY: &str = "proctor-work";
/// Types of file systems on which no tree is copied: FUSE, NFS, 9P, CIFS and SMB. They are slow, and may support
/// neither overlays nor the times that show changes.
const REMOTE_FILE_SYSTEMS: [u64; 5] = [0x6573_5546, 0x6969, 0x0102_1997, 0xff53_4d42, 0xfe53_4d42];
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

    /// Returns its absolute path.
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

/// The directory for the copy of the tree and the state of the sandboxes. It is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct WorkDirectory {
    parent: OwnedFd,
    name: CString,
    path: PathBuf,
}

impl WorkDirectory {
    /// Creates it in the input root. If that is on a remote file system, or cannot be written, creates it in `TMPDIR`
    /// or `/tmp`.
    pub(super) fn create(root: &InputRoot) -> Result<Self, AgentError> {
        let is_remote = rustix::fs::fstatfs(&root.dir)
            .is_ok_and(|system| REMOTE_FILE_SYSTEMS.contains(&u64::try_from(system.f_type).unwrap_or_default()));
        if !is_remote && let Ok(made) = Self::create_in(&root.path, WORK_DIRECTORY) {
            return Ok(made);
        }
        let parent = temporary_directory();
        let mut last = Errno::EXIST;
        for number in 0..MAX_TRIES {
            match Self::create_in(&parent, &format!("{WORK_DIRECTORY}-{}-{number}", std::process::id())) {
                Err(Errno::EXIST) => {}
                Err(errno) => {
                    last = errno;
                    break;
                }
                Ok(made) => return Ok(made),
            }
        }
        Err(AgentError::path("cannot create a directory for the copy of the tree in", parent)(last))
    }

    fn create_in(parent: &Path, name: &str) -> Result<Self, Errno> {
        // The sandbox accepts no path with a symbolic link.
        let path = std::fs::canonicalize(parent).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let parent = rustix::fs::open(&path, DIRECTORY, Mode::empty())?;
        rustix::fs::mkdirat(&parent, name, Mode::RWXU)?;
        Ok(Self { parent, name: CString::new(name).map_err(|_| Errno::INVAL)?, path: path.join(name) })
    }

    /// Returns its absolute path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Creates a directory in it.
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

#[expect(clippy::disallowed_methods, reason = "the agent is a program of its own, which reads its own environment")]
fn temporary_directory() -> PathBuf {
    let set = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute() && path.is_dir());
    set.unwrap_or_else(|| "/tmp".into())
}

/// Returns the home directory of the worker's user, which commands must not see.
#[expect(clippy::disallowed_methods, reason = "the agent is a program of its own, which reads its own environment")]
pub(super) fn home_directory() -> Option<PathBuf> {
    let home = std::fs::canonicalize(std::env::var_os("HOME")?).ok()?;
    Some(home).filter(|path| path.parent().is_some())
}
