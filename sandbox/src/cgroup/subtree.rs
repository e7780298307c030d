//! Manages proctor's directory in one cgroup tree, which contains the groups of all attempts: creates it, keeps it
//! locked as long as its owner lives, removes it, and sweeps the directories of dead owners.

use std::fs::{self, DirBuilder, DirEntry};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::control_files;

/// Prefix of the name of each directory that Proctor creates for its groups.
const PREFIX: &str = "proctor-";
/// The group of the daemon process, if it must be in a group below the directory.
pub(super) const DAEMON_GROUP: &str = "daemon";
/// Total time limit for the removal of a directory and its empty groups.
const REMOVE_TIMEOUT: Duration = Duration::from_millis(500);
/// How many times a sweeper may remove a directory that was just created.
const MAX_CREATE_ATTEMPTS: usize = 5;

/// A locked directory that contains groups. It is removed when dropped.
#[derive(Debug)]
pub(super) struct Subtree {
    dir: PathBuf,
    _lock: OwnedFd,
}

impl Subtree {
    /// Creates a directory below `base` for this process.
    pub(super) fn create(base: &Path) -> io::Result<Self> {
        for _ in 0..MAX_CREATE_ATTEMPTS {
            let dir = base.join(new_name()?);
            create_group_dir(&dir)?;
            match lock(&dir) {
                Ok(Some(lock)) => return Ok(Self { dir, _lock: lock }),
                // A sweeper removed it as abandoned, between the two calls.
                Ok(None) => {}
                Err(error) => {
                    drop(fs::remove_dir(&dir));
                    return Err(error);
                }
            }
        }
        let message = format!("other processes repeatedly remove Proctor's directory in `{}`", base.display());
        Err(io::Error::new(io::ErrorKind::ResourceBusy, message))
    }

    /// Returns the path.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Subtree {
    fn drop(&mut self) {
        // The next owner sweeps whatever remains.
        drop(remove_until(&self.dir, Instant::now() + REMOVE_TIMEOUT));
    }
}

/// Creates the directory of a group, closed to other users: a user who can open it can lock it.
pub(super) fn create_group_dir(dir: &Path) -> io::Result<()> {
    let above = dir.parent().unwrap_or(dir).display();
    let made = DirBuilder::new().mode(0o700).create(dir);
    made.map_err(|error| io::Error::new(error.kind(), format!("making a group in `{above}`: {error}")))
}

/// Removes what dead owners left behind: the groups of their attempts, with the processes still in them, and their
/// directories. Searches below `base` and below its siblings, since each session, service and scope has its own
/// cgroup; `top` has no siblings. Stops at `until`.
pub(super) fn sweep_around(base: &Path, top: &Path, until: Instant) {
    sweep(base, until);
    let Some(above) = base.parent().filter(|_| base != top) else { return };
    let Ok(siblings) = fs::read_dir(above) else { return };
    for sibling in siblings.flatten().filter(is_dir) {
        sweep(&sibling.path(), until);
    }
}

fn is_dir(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_dir())
}

fn sweep(base: &Path, until: Instant) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        if Instant::now() >= until {
            return;
        }
        if !entry.file_name().to_str().is_some_and(is_subtree_name) {
            continue;
        }
        let dir = entry.path();
        // A held lock means that the owner lives.
        if let Ok(Some(_lock)) = lock(&dir) {
            remove_abandoned(&dir, until);
        }
    }
}

/// Removes the directory of one dead owner. The owner's own group is only removed and never killed, since a process
/// in it need not belong to a step.
fn remove_abandoned(dir: &Path, until: Instant) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for group in entries.flatten().filter(is_dir) {
        if group.file_name() != DAEMON_GROUP {
            kill(&group.path());
        }
        drop(remove_until(&group.path(), until));
    }
    drop(fs::remove_dir(dir));
}

/// Kills the processes of a group if the kernel supports that: Linux 5.14, v2. Some of them may not have ended when
/// this returns.
pub(super) fn kill(dir: &Path) -> bool {
    control_files::write(dir, "cgroup.kill", "1").is_ok()
}

/// Removes a group, with retries until `until`. The last task of a dead process leaves its group a moment after the
/// process was reaped.
pub(super) fn remove_until(dir: &Path, until: Instant) -> io::Result<()> {
    loop {
        match fs::remove_dir(dir) {
            Err(error) if is_busy(&error) && Instant::now() < until => pause(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => return other,
        }
    }
}

/// Returns whether a group could not be removed because it is not empty.
pub(super) fn is_busy(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ResourceBusy | io::ErrorKind::DirectoryNotEmpty)
}

#[expect(clippy::disallowed_methods, reason = "cgroup v1 does not report when the last task has left a group")]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

/// Locks the directory; `None` if another process holds the lock, or the directory is gone.
fn lock(dir: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let opened = match rustix::fs::open(dir, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened?,
    };
    match rustix::fs::flock(&opened, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => return Ok(None),
        locked => locked?,
    }
    // The directory may have been removed before it was locked.
    let inode = rustix::fs::fstat(&opened)?.st_ino;
    Ok(fs::symlink_metadata(dir).is_ok_and(|now| now.ino() == inode).then_some(opened))
}

/// Returns a new name. The process id helps human readers; the random part makes the name unique across PID
/// namespaces.
fn new_name() -> io::Result<String> {
    let mut random = [0; 4];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    Ok(format!("{PREFIX}{}-{:08x}", std::process::id(), u32::from_ne_bytes(random)))
}

/// Returns whether a name was made by [`new_name`]. Other names may have the same prefix, such as that of proctor's
/// systemd scope.
fn is_subtree_name(name: &str) -> bool {
    let parts = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    parts.is_some_and(|(pid, random)| {
        pid.parse::<u32>().is_ok() && random.len() == 8 && u32::from_str_radix(random, 16).is_ok()
    })
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests build plain directories")]
mod tests {
    use super::*;

    fn short_deadline() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn keeps_subtree_of_live_owner() {
        let base = tempfile::tempdir().expect("tempdir");
        let subtree = Subtree::create(base.path()).expect("subtree");
        create_group_dir(&subtree.dir().join("1")).expect("group");
        sweep(base.path(), short_deadline());
        assert!(subtree.dir().join("1").exists());
        fs::remove_dir(subtree.dir().join("1")).expect("remove");
        let dir = subtree.dir().to_owned();
        drop(subtree);
        assert!(!dir.exists());
    }

    #[test]
    fn sweeps_only_abandoned_subtrees() {
        let base = tempfile::tempdir().expect("tempdir");
        let others = ["proctor-3.scope/1", "proctor-4-0000000g/1", "proctor-tests/1", "other/1"];
        for dir in ["proctor-1-01234567/1", "proctor-1-01234567/daemon", "proctor-2-89abcdef"].iter().chain(&others) {
            fs::create_dir_all(base.path().join(dir)).expect("mkdir");
        }
        let (file, link) = ("proctor-5-01234567", "proctor-6-01234567");
        fs::write(base.path().join(file), "").expect("write");
        std::os::unix::fs::symlink("other", base.path().join(link)).expect("symlink");
        sweep(base.path(), short_deadline());
        assert!(others.iter().all(|dir| base.path().join(dir).exists()));
        assert!(base.path().join(file).exists() && base.path().join(link).is_symlink());
        let left = fs::read_dir(base.path()).expect("list").count();
        assert_eq!(left, others.len() + 2);
    }

    #[test]
    fn sweeps_siblings_but_not_parents() {
        let top = tempfile::tempdir().expect("tempdir");
        let dirs = ["ours", "sibling/proctor-1-01234567/1", "sibling/deep/proctor-1-01234567"];
        let [ours, sibling, deep] = dirs.map(|dir| top.path().join(dir));
        [&ours, &sibling, &deep].into_iter().for_each(|dir| fs::create_dir_all(dir).expect("mkdir"));
        sweep_around(&ours, &ours, short_deadline());
        assert!(sibling.exists());
        sweep_around(&ours, top.path(), short_deadline());
        assert!(!sibling.exists() && !top.path().join("sibling/proctor-1-01234567").exists() && deep.exists());
    }

    #[test]
    fn recognizes_own_names() {
        assert!(is_subtree_name(&new_name().expect("random")));
        for other in ["proctor-1", "proctor-1.scope", "proctor--01234567", "proctor-1-0123456", "x-1-01234567"] {
            assert!(!is_subtree_name(other), "{other}");
        }
    }

    #[test]
    fn removal_stops_at_deadline() {
        let base = tempfile::tempdir().expect("tempdir");
        fs::write(base.path().join("file"), "").expect("write");
        let error = remove_until(base.path(), short_deadline()).expect_err("not empty");
        assert!(is_busy(&error), "{error}");
        remove_until(&base.path().join("absent"), short_deadline()).expect("gone already");
    }
}
