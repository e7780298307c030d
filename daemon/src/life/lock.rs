//! Lock file next to a socket. Of two daemons that want the same path, one gets the lock, and the other reports its
//! holder.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

/// Maximum number of bytes read from the file: more than any process ID has.
const MAX_PID: u64 = 32;

/// An acquired lock, released when it is dropped. The file stays, because removing it could remove the lock of a
/// successor.
#[derive(Debug)]
pub(super) struct Lock {
    file: File,
}

/// Reason why the lock was not acquired.
#[derive(Debug)]
pub(super) enum NotLocked {
    /// Another process holds the lock; its process ID if known.
    Taken(Option<u32>),
    /// The file at this path is not a lock file of this user.
    NotOurs,
    /// A system call failed.
    Failed(io::Error),
}

impl Lock {
    /// Acquires the lock `name` in a directory to which only this user can write. Never waits.
    pub(super) fn take(dir: impl AsFd, name: &str) -> Result<Self, NotLocked> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(dir, name, flags, Mode::from_raw_mode(0o600));
        let mut file = match opened {
            Ok(fd) if is_ours(&fd) => File::from(fd),
            // A symbolic link, a directory, a FIFO without a reader, or a socket.
            Ok(_) | Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(NotLocked::NotOurs),
            Err(error) => return Err(NotLocked::Failed(error.into())),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(NotLocked::Taken(holder(&mut file))),
            Err(error) => return Err(NotLocked::Failed(error.into())),
        }
        sign(&mut file).map_err(NotLocked::Failed)?;
        Ok(Self { file })
    }

    /// Returns whether the file `name` in the directory is still this lock.
    pub(super) fn is_at(&self, dir: impl AsFd, name: &str) -> bool {
        let (Ok(held), Ok(found)) = (fstat(&self.file), statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)) else {
            return false;
        };
        (held.st_dev, held.st_ino) == (found.st_dev, found.st_ino)
    }
}

/// Returns the process that holds the lock next to `socket`, if any. This identifies a daemon whose socket file was
/// removed or that does not accept connections.
pub fn lock_holder(socket: &Path) -> Option<u32> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let fd = rustix::fs::open(Path::new(&path), flags, Mode::empty()).ok().filter(is_ours)?;
    let mut file = File::from(fd);
    by_the_kernel(&file).or_else(|| {
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
        if locked == Err(Errno::WOULDBLOCK) { written(&mut file) } else { None }
    })
}

fn is_ours(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_nlink == 1
    })
}

fn sign(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Returns the holder according to the kernel. The text in the file may be missing or belong to an earlier holder, so
/// it is only the fallback.
fn holder(file: &mut File) -> Option<u32> {
    by_the_kernel(file).or_else(|| written(file))
}

fn written(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn by_the_kernel(file: &File) -> Option<u32> {
    let stat = fstat(file).ok()?;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    locked_by(&table, (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev), stat.st_ino))
}

/// Finds the process that has locked a file with flock(2) in the table of proc_locks(5). The file is identified by
/// major and minor device number and inode. Returns `None` if the table lacks the file, as on file systems with
/// several devices.
fn locked_by(table: &str, (major, minor, inode): (u32, u32, u64)) -> Option<u32> {
    let file = format!("{major:02x}:{minor:02x}:{inode}");
    table.lines().map(|line| line.split_ascii_whitespace().collect::<Vec<_>>()).find_map(|fields| match fields[..] {
        [_, "FLOCK", _, _, pid, at, ..] if at == file => pid.parse().ok(),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_is_told_of_the_first() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let first = Lock::take(&handle, "l").expect("free");
        let NotLocked::Taken(pid) = Lock::take(&handle, "l").expect_err("taken") else { panic!("another reason") };
        assert_eq!(pid, Some(std::process::id()));
        drop(first);
        Lock::take(&handle, "l").expect("free again");
    }

    #[test]
    fn who_has_not_signed_yet_is_named_and_not_the_one_before() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let mut first = Lock::take(&handle, "l").expect("free");
        if by_the_kernel(&first.file).is_none() {
            // On btrfs and overlayfs, stat(2) reports a different device than the kernel's table, so only the text in
            // the file identifies the holder.
            return;
        }
        for written in ["", "1\n"] {
            first.file.set_len(0).expect("emptied");
            first.file.rewind().expect("at its start");
            first.file.write_all(written.as_bytes()).expect("written");
            let NotLocked::Taken(pid) = Lock::take(&handle, "l").expect_err("taken") else { panic!("another reason") };
            assert_eq!(pid, Some(std::process::id()), "{written:?}");
        }
    }

    #[test]
    fn names_the_process_that_holds_the_lock_of_a_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let socket = dir.path().join("s");
        assert_eq!(lock_holder(&socket), None);
        let lock = Lock::take(&handle, "s.lock").expect("free");
        assert_eq!(lock_holder(&socket), Some(std::process::id()));
        assert!(lock.is_at(&handle, "s.lock") && !lock.is_at(&handle, "t.lock"));
        drop(lock);
        assert_eq!(lock_holder(&socket), None, "a file that is left names no process");
    }

    #[test]
    fn the_table_is_read_by_the_whole_name_of_the_file() {
        let table = "1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 fe:00:123 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 10 fe:00:12 0 EOF\n3: FLOCK  ADVISORY  WRITE 9 fe:00:12 0 EOF\n";
        assert_eq!(locked_by(table, (0xfe, 0, 12)), Some(9));
        assert_eq!(locked_by(table, (0xfe, 0, 13)), None);
    }

    #[test]
    fn what_is_no_file_of_ours_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        std::os::unix::fs::symlink("/dev/null", dir.path().join("link")).expect("made");
        std::fs::create_dir(dir.path().join("dir")).expect("made");
        rustix::fs::mkfifoat(&handle, "fifo", Mode::from_raw_mode(0o600)).expect("made");
        for name in ["link", "dir", "fifo"] {
            assert!(matches!(Lock::take(&handle, name), Err(NotLocked::NotOurs)), "{name}");
        }
    }
}
