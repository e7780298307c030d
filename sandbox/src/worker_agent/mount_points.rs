//! Creates directories of the worker at which sandboxes mount the tree and the home directory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// Directories that a sandbox covers with an empty file system, in which it can create mount points.
const COVERED: [&str; 5] = ["/root", "/home", "/run", "/tmp", "/var/tmp"];

/// The directories that this agent created. Those that no other agent uses are removed when this value is dropped.
///
/// An agent holds a shared lock on each directory. Removing the mount point of another agent's sandbox would unmount
/// the tree there.
#[derive(Debug, Default)]
pub(super) struct MountPoints {
    /// The created directories, the outer ones first.
    created: Vec<(PathBuf, OwnedFd)>,
    /// The locks on directories that existed.
    locks: Vec<OwnedFd>,
}

impl MountPoints {
    /// Returns whether a sandbox can mount a directory at this absolute path. Creates the mount point, and directories
    /// above it, unless the sandbox does that itself.
    pub(super) fn ensure(&mut self, path: &Path) -> bool {
        if COVERED
            .iter()
            .any(|cover| path != Path::new(cover) && path.starts_with(cover) && is_real_dir(Path::new(cover)))
        {
            return true;
        }
        let mut so_far = PathBuf::from("/");
        for name in path.components().skip(1) {
            so_far.push(name);
            match rustix::fs::mkdir(&so_far, Mode::from_raw_mode(0o755)) {
                Ok(()) => match lock(&so_far) {
                    Some(lock) => self.created.push((so_far.clone(), lock)),
                    None => return false,
                },
                Err(Errno::EXIST | Errno::ROFS) if is_real_dir(&so_far) => {}
                Err(_) => return false,
            }
        }
        if !self.created.iter().any(|(created, _)| created == path) {
            self.locks.extend(lock(path));
        }
        // Another agent may have removed the directory before it was locked.
        is_real_dir(path)
    }
}

impl Drop for MountPoints {
    fn drop(&mut self) {
        self.locks.clear();
        for (path, lock) in self.created.drain(..).rev() {
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                return;
            }
            // A directory with other content stays.
            let _ = rustix::fs::rmdir(&path);
        }
    }
}

/// Returns whether the path names a directory and not a link to one. A sandbox follows no links.
fn is_real_dir(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

fn lock(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared).ok()?;
    Some(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory outside of those that sandboxes cover.
    fn directory() -> tempfile::TempDir {
        tempfile::Builder::new().tempdir_in(env!("CARGO_MANIFEST_DIR")).expect("a directory")
    }

    #[test]
    fn removes_only_what_it_created() {
        let dir = directory();
        std::fs::create_dir(dir.path().join("old")).expect("made");
        let mut points = MountPoints::default();
        assert!(points.ensure(&dir.path().join("old")) && points.ensure(&dir.path().join("old/new/inner")));
        assert!(dir.path().join("old/new/inner").is_dir());
        drop(points);
        assert!(dir.path().join("old").is_dir() && !dir.path().join("old/new").exists());
    }

    #[test]
    fn keeps_directories_that_another_agent_uses() {
        let dir = directory();
        let (mut first, mut second) = (MountPoints::default(), MountPoints::default());
        let path = dir.path().join("a/b");
        assert!(first.ensure(&path) && second.ensure(&path));
        drop(first);
        assert!(path.is_dir());
    }

    #[test]
    fn refuses_files_and_links() {
        let dir = directory();
        std::fs::create_dir(dir.path().join("real")).expect("made");
        std::os::unix::fs::symlink("real", dir.path().join("link")).expect("made");
        std::os::unix::fs::symlink("file", dir.path().join("file")).expect("made");
        let mut points = MountPoints::default();
        assert!(!points.ensure(&dir.path().join("link/x")) && !points.ensure(&dir.path().join("file")));
        assert!(points.ensure(Path::new("/tmp/anything/at/all")), "the sandbox creates it");
    }
}
