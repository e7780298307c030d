//! Creates directories of the worker at which sandboxes mount the tree and the home directory.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, XattrFlags};
use rustix::io::Errno;

/// Directories that a sandbox covers with an empty file system, in which it can create mount points.
const COVERED: [&str; 5] = ["/root", "/home", "/run", "/tmp", "/var/tmp"];

/// The attribute of a directory that an agent created.
const MARK: &str = "user.proctor.agent";
/// Number of tries if other agents create or remove the same directories at the same time.
const MAX_TRIES: usize = 16;

/// The directories that agents created for this one and maybe others. Those that no other agent uses are removed when
/// this value is dropped.
///
/// An agent holds a shared lock on each of these directories. Removing the mount point of another agent's sandbox would
/// unmount the tree there.
#[derive(Debug)]
pub(super) struct MountPoints {
    /// Directories in which the sandbox creates mount points.
    covered: &'static [&'static str],
    /// The outer directories come first.
    created: Vec<(PathBuf, OwnedFd)>,
}

impl MountPoints {
    pub(super) fn new() -> Self {
        Self { covered: &COVERED, created: Vec::new() }
    }

    /// Returns whether a sandbox can mount a directory at this absolute path. Creates the mount point, and directories
    /// above it, unless the sandbox does that itself.
    pub(super) fn ensure(&mut self, path: &Path) -> bool {
        let is_in = |cover: &&str| path != Path::new(cover) && path.starts_with(cover) && is_real_dir(Path::new(cover));
        self.covered.iter().any(is_in) || (0..MAX_TRIES).any(|_| self.create_all(path).is_ok())
    }

    fn create_all(&mut self, path: &Path) -> rustix::io::Result<()> {
        let mut so_far = PathBuf::from("/");
        for name in path.components().skip(1) {
            so_far.push(name);
            if self.created.iter().any(|(created, _)| *created == so_far) {
                continue;
            }
            match rustix::fs::mkdir(&so_far, Mode::from_raw_mode(0o755)) {
                Ok(()) => {
                    // Without the mark, only this agent removes the directory.
                    let _ = rustix::fs::setxattr(&so_far, MARK, b"", XattrFlags::empty());
                    self.created.push((so_far.clone(), lock(&so_far)?));
                }
                Err(_) if is_real_dir(&so_far) => {
                    if rustix::fs::getxattr(&so_far, MARK, &mut [0; 0][..]).is_ok() {
                        self.created.push((so_far.clone(), lock(&so_far)?));
                    }
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

impl Drop for MountPoints {
    fn drop(&mut self) {
        for (path, lock) in self.created.drain(..).rev() {
            if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                return;
            }
            // A directory that contains anything else is not removed.
            let _ = rustix::fs::rmdir(&path);
        }
    }
}

/// Returns whether the path names a directory and not a link to one. A sandbox follows no links.
fn is_real_dir(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|found| found.is_dir())
}

/// Locks a directory. Fails if it was removed before.
fn lock(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    rustix::fs::flock(&dir, FlockOperation::NonBlockingLockShared)?;
    let (locked, named) = (rustix::fs::fstat(&dir)?, rustix::fs::lstat(path)?);
    if (locked.st_dev, locked.st_ino) == (named.st_dev, named.st_ino) { Ok(dir) } else { Err(Errno::NOENT) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mount_points() -> MountPoints {
        MountPoints { covered: &[], created: Vec::new() }
    }

    #[test]
    fn removes_only_what_it_created() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("old")).expect("made");
        let mut points = mount_points();
        assert!(points.ensure(&dir.path().join("old")) && points.ensure(&dir.path().join("old/new/inner")));
        assert!(dir.path().join("old/new/inner").is_dir());
        drop(points);
        assert!(dir.path().join("old").is_dir() && !dir.path().join("old/new").exists());
    }

    #[test]
    fn keeps_directories_that_another_agent_uses() {
        let dir = tempfile::tempdir().expect("a directory");
        let (mut first, mut second) = (mount_points(), mount_points());
        let path = dir.path().join("a/b");
        assert!(first.ensure(&path) && second.ensure(&path));
        drop(first);
        assert!(path.is_dir());
        drop(second);
        assert!(!dir.path().join("a").exists(), "the last agent removes them");
    }

    #[test]
    fn refuses_files_and_links() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(dir.path().join("real")).expect("made");
        std::os::unix::fs::symlink("real", dir.path().join("link")).expect("made");
        std::os::unix::fs::symlink("file", dir.path().join("file")).expect("made");
        let mut points = mount_points();
        assert!(!points.ensure(&dir.path().join("link/x")) && !points.ensure(&dir.path().join("file")));
    }

    #[test]
    fn leaves_covered_directories_to_the_sandbox() {
        let path = Path::new("/tmp/proctor-mount-points/inner");
        assert!(MountPoints::new().ensure(path) && !path.exists());
    }
}
