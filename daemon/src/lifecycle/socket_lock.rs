//! Lock file next to a socket. If two daemons use the same path, one gets the lock, and the other reports its holder.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

/// Maximum number of bytes read from the file: more than any process ID has.
const MAX_PID: u64 = 32;

/// An acquired lock, released when it is dropped. The file is kept, because removing it could remove the lock of a
/// successor.
#[derive(Debug)]
pub(super) struct SocketLock {
    file: File,
}

/// Reason why the lock was not acquired.
#[derive(Debug)]
pub(super) enum SocketLockError {
    /// Another process holds the lock; its process ID if known.
    HeldBy(Option<u32>),
    /// The file at this path is not a lock file of this user.
    NotALockFile,
    /// A system call failed.
    Failed(io::Error),
}

impl SocketLock {
    /// Acquires the lock `name` in a directory to which only this user can write. Never waits.
    pub(super) fn acquire(dir: impl AsFd, name: &str) -> Result<Self, SocketLockError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = openat(dir, name, flags, Mode::from_raw_mode(0o600));
        let mut file = match opened {
            Ok(fd) if is_own_file(&fd) => File::from(fd),
            // A symbolic link, a directory, a FIFO without a reader, or a socket.
            Ok(_) | Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(SocketLockError::NotALockFile),
            Err(error) => return Err(SocketLockError::Failed(error.into())),
        };
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(SocketLockError::HeldBy(find_holder(&mut file))),
            Err(error) => return Err(SocketLockError::Failed(error.into())),
        }
        write_pid(&mut file).map_err(SocketLockError::Failed)?;
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
    let fd = rustix::fs::open(Path::new(&path), flags, Mode::empty()).ok().filter(is_own_file)?;
    let mut file = File::from(fd);
    kernel_holder(&file).or_else(|| {
        let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared);
        if locked == Err(Errno::WOULDBLOCK) { read_pid(&mut file) } else { None }
    })
}

fn is_own_file(fd: &OwnedFd) -> bool {
    fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
            && stat.st_uid == rustix::process::geteuid().as_raw()
            && stat.st_nlink == 1
    })
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

/// Returns the holder according to the kernel. The text in the file may be missing or belong to an earlier holder, so
/// it is only the fallback.
fn find_holder(file: &mut File) -> Option<u32> {
    kernel_holder(file).or_else(|| read_pid(file))
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(MAX_PID).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

fn kernel_holder(file: &File) -> Option<u32> {
    let stat = fstat(file).ok()?;
    let table = std::fs::read_to_string("/proc/locks").ok()?;
    holder_in_table(&table, (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev), stat.st_ino))
}

/// Finds the process that has locked a file with flock(2) in the table of proc_locks(5). The file is identified by
/// major and minor device number and inode. Returns `None` if the table lacks the file, as on file systems with
/// several devices.
fn holder_in_table(table: &str, (major, minor, inode): (u32, u32, u64)) -> Option<u32> {
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
    fn second_lock_reports_first_holder() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let first = SocketLock::acquire(&handle, "l").expect("free");
        let SocketLockError::HeldBy(pid) = SocketLock::acquire(&handle, "l").expect_err("taken") else {
            panic!("another reason")
        };
        assert_eq!(pid, Some(std::process::id()));
        drop(first);
        SocketLock::acquire(&handle, "l").expect("free again");
    }

    #[test]
    fn reports_kernel_holder_instead_of_written_pid() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let mut first = SocketLock::acquire(&handle, "l").expect("free");
        if kernel_holder(&first.file).is_none() {
            // On btrfs and overlayfs, stat(2) reports a different device than the kernel's table, so only the text in
            // the file identifies the holder.
            return;
        }
        for written in ["", "1\n"] {
            first.file.set_len(0).expect("emptied");
            first.file.rewind().expect("at its start");
            first.file.write_all(written.as_bytes()).expect("written");
            let SocketLockError::HeldBy(pid) = SocketLock::acquire(&handle, "l").expect_err("taken") else {
                panic!("another reason")
            };
            assert_eq!(pid, Some(std::process::id()), "{written:?}");
        }
    }

    #[test]
    fn names_the_process_that_holds_the_lock_of_a_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        let socket = dir.path().join("s");
        assert_eq!(lock_holder(&socket), None);
        let lock = SocketLock::acquire(&handle, "s.lock").expect("free");
        assert_eq!(lock_holder(&socket), Some(std::process::id()));
        assert!(lock.is_at(&handle, "s.lock") && !lock.is_at(&handle, "t.lock"));
        drop(lock);
        assert_eq!(lock_holder(&socket), None, "a file that is left names no process");
    }

    #[test]
    fn matches_whole_file_name_in_lock_table() {
        let table = "1: POSIX  ADVISORY  WRITE 7 fe:00:12 0 EOF\n2: FLOCK  ADVISORY  WRITE 8 fe:00:123 0 EOF\n\
                     2: -> FLOCK  ADVISORY  WRITE 10 fe:00:12 0 EOF\n3: FLOCK  ADVISORY  WRITE 9 fe:00:12 0 EOF\n";
        assert_eq!(holder_in_table(table, (0xfe, 0, 12)), Some(9));
        assert_eq!(holder_in_table(table, (0xfe, 0, 13)), None);
    }

    #[test]
    fn rejects_foreign_lock_files() {
        let dir = tempfile::tempdir().expect("a directory");
        let handle = File::open(dir.path()).expect("open");
        std::os::unix::fs::symlink("/dev/null", dir.path().join("link")).expect("made");
        std::fs::create_dir(dir.path().join("dir")).expect("made");
        rustix::fs::mkfifoat(&handle, "fifo", Mode::from_raw_mode(0o600)).expect("made");
        for name in ["link", "dir", "fifo"] {
            assert!(matches!(SocketLock::acquire(&handle, name), Err(SocketLockError::NotALockFile)), "{name}");
        }
    }
}
