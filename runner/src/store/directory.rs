//! Writes files atomically in a directory that is held open by its descriptor: a file appears whole or not at all.

mod staged;
mod temporary_file;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use proctor_git::files::path_resolution::{LinkPolicy, open_beneath};
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Timespec, Timestamps, Uid};

use super::StoreError;

pub(crate) use staged::{DurableFile, MAX_STAGED, RenamedFile, StagedFile, SyncTarget, sync_all};
use temporary_file::TemporaryEntry;
pub use temporary_file::TemporaryFile;

/// A directory that is held open; clones share its descriptor.
#[derive(Debug, Clone)]
pub struct Directory {
    fd: Arc<OwnedFd>,
    /// For messages only: every operation goes through the descriptor.
    name: String,
}

/// Maximum number of attempts to take the exclusive lock while only readers in [`Directory::is_locked`] hold
/// theirs.
const MAX_LOCK_ATTEMPTS: usize = 100;
const DIRECTORY_FLAGS: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

impl Directory {
    /// Opens the directory at an absolute path that the operator or the caller named, and follows its symbolic
    /// links.
    ///
    /// # Errors
    /// The path does not exist or is not a directory.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        let fd = fs::open(path, DIRECTORY_FLAGS, Mode::empty()).map_err(StoreError::io("open", &name))?;
        Ok(Self { fd: Arc::new(fd), name })
    }

    /// Wraps an open directory; `name` is for messages.
    pub(crate) fn from_fd(fd: OwnedFd, name: String) -> Self {
        Self { fd: Arc::new(fd), name }
    }

    /// Returns the device and inode, which identify the directory.
    ///
    /// # Errors
    /// `fstat` fails.
    pub fn identity(&self) -> Result<(u64, u64), StoreError> {
        let stat = fs::fstat(&self.fd).map_err(StoreError::io("stat", &self.name))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Opens the directory `path` below this one and follows no link.
    ///
    /// # Errors
    /// The path does not exist, is not a directory, or has a symlink as a component.
    pub fn descend(&self, path: &str) -> Result<Self, StoreError> {
        let fd = open_beneath(self.fd.as_fd(), Path::new(path), DIRECTORY_FLAGS, LinkPolicy::Reject)
            .map_err(StoreError::io("open", self.path_of(path)))?;
        Ok(Self { fd: Arc::new(fd), name: self.path_of(path) })
    }

    /// Opens the directory `name` in this one. If it does not exist, creates it with `mode` and the owner of this
    /// directory.
    ///
    /// # Errors
    /// `name` is a symlink or not a directory, or cannot be created.
    pub fn ensure(&self, name: &str, mode: u32) -> Result<Self, StoreError> {
        let (directory, made) = self.ensure_unsynced(name, mode)?;
        if made {
            self.sync()?;
        }
        Ok(directory)
    }

    /// Opens the directory `name` as [`Directory::ensure`] does. A new directory gets all bits of `mode`,
    /// regardless of the umask.
    ///
    /// # Errors
    /// Same as [`Directory::ensure`].
    pub(crate) fn ensure_with_mode(&self, name: &str, mode: u32) -> Result<Self, StoreError> {
        let (directory, made) = self.ensure_unsynced(name, mode)?;
        if made {
            let mode = Mode::from_raw_mode(mode);
            fs::fchmod(&directory, mode).map_err(StoreError::io("set the mode of", directory.name()))?;
            self.sync()?;
        }
        Ok(directory)
    }

    /// Opens the directory `name` as [`Directory::ensure`] does, without the sync, and returns whether it was
    /// created. A caller that relies on a new directory after a crash must sync this one first.
    ///
    /// # Errors
    /// Same as [`Directory::ensure`].
    pub(crate) fn ensure_unsynced(&self, name: &str, mode: u32) -> Result<(Self, bool), StoreError> {
        match fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {
                let made = self.descend(name)?;
                made.inherit_owner(self)?;
                Ok((made, true))
            }
            Err(rustix::io::Errno::EXIST) => Ok((self.descend(name)?, false)),
            Err(errno) => Err(StoreError::io("create", self.path_of(name))(errno)),
        }
    }

    /// Checks that `name` still refers to the open directory `held`, so that files written through its descriptor
    /// can be found by this name.
    ///
    /// # Errors
    /// `name` does not exist, or refers to something else.
    pub(crate) fn require_same(&self, name: &str, held: &Self) -> Result<(), StoreError> {
        let stat = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(StoreError::io("find", self.path_of(name)))?;
        if fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
            return Err(StoreError::Symlink { path: self.path_of(name) });
        }
        if (stat.st_dev, stat.st_ino) != held.identity()? {
            let source = std::io::Error::other("another object was put at its path");
            return Err(StoreError::Io { action: "write into", path: self.path_of(name), source });
        }
        Ok(())
    }

    /// Writes `bytes` to the file `name`: temporary file in this directory, fsync, rename, fsync of the directory.
    /// A kill at any point leaves either the old or the new file, complete.
    ///
    /// # Errors
    /// `name` is a symlink, or a system call fails.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.stage(name, bytes)?.into_durable()?.publish()?;
        self.sync()
    }

    /// Creates a temporary file, which is removed on drop unless it is published.
    ///
    /// # Errors
    /// A system call fails.
    pub fn create_temporary(&self, purpose: &str) -> Result<TemporaryFile, StoreError> {
        self.create_temporary_with(purpose, OFlags::WRONLY)
    }

    /// Returns a file for reading and writing whose name is already removed.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn create_unlinked(&self, purpose: &str) -> Result<File, StoreError> {
        // Dropping the entry removes the name.
        Ok(self.create_temporary_with(purpose, OFlags::RDWR)?.file)
    }

    fn create_temporary_with(&self, purpose: &str, access: OFlags) -> Result<TemporaryFile, StoreError> {
        self.create_new(format!(".{purpose}.{:016x}{TEMPORARY_SUFFIX}", random_u64()?), access)
    }

    /// Creates the file `name`, which must not exist. It is removed on drop unless it is published.
    fn create_new(&self, name: String, access: OFlags) -> Result<TemporaryFile, StoreError> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | access;
        let fd = fs::openat(&self.fd, &name, flags, Mode::from_raw_mode(0o644))
            .map_err(StoreError::io("create", self.path_of(&name)))?;
        let entry = TemporaryEntry { directory: self.clone(), name, published: false };
        let temp = TemporaryFile { entry, file: File::from(fd) };
        self.set_owner(temp.file.as_fd())?;
        Ok(temp)
    }

    /// Returns the content of the file `name`; `None` if it does not exist. Follows no link and opens regular files
    /// only.
    ///
    /// # Errors
    /// `name` is a symlink or not a regular file, is larger than `limit`, or cannot be read.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let Some((file, size)) = self.open_sized(name)? else { return Ok(None) };
        // One more byte lets the reader notice the end without another allocation.
        let mut bytes = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or(0) + 1);
        let read = file.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|source| StoreError::Io { action: "read", path: self.path_of(name), source })?;
        if bytes.len() as u64 > limit {
            return Err(StoreError::TooLarge { path: self.path_of(name), limit });
        }
        Ok(Some(bytes))
    }

    /// Opens the file `name` for reading; `None` if it does not exist. Follows no link and opens regular files
    /// only.
    ///
    /// # Errors
    /// `name` is a symlink or not a regular file, or cannot be opened.
    pub fn open_file(&self, name: &str) -> Result<Option<File>, StoreError> {
        Ok(self.open_sized(name)?.map(|(file, _)| file))
    }

    /// Opens a file like [`Directory::open_file`], and returns its size, too.
    fn open_sized(&self, name: &str) -> Result<Option<(File, u64)>, StoreError> {
        // Opening a device can have side effects, and opening a FIFO wakes its writer.
        if self.is_special(name)? {
            return Err(self.not_regular_error(name));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(StoreError::io("open", self.path_of(name))(errno)),
        };
        let stat = fs::fstat(&fd).map_err(StoreError::io("stat", self.path_of(name)))?;
        if !fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(self.not_regular_error(name));
        }
        Ok(Some((File::from(fd), u64::try_from(stat.st_size).unwrap_or(0))))
    }

    fn is_special(&self, name: &str) -> Result<bool, StoreError> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let kind = fs::FileType::from_raw_mode(stat.st_mode);
                Ok(!kind.is_file() && !kind.is_symlink())
            }
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(StoreError::io("stat", self.path_of(name))(errno)),
        }
    }

    fn not_regular_error(&self, name: &str) -> StoreError {
        let source = std::io::Error::other("it is not a regular file");
        StoreError::Io { action: "read", path: self.path_of(name), source }
    }

    /// Returns the modification time of the file `name`, in seconds and nanoseconds since 1970; `None` if it does
    /// not exist.
    ///
    /// # Errors
    /// A system call fails.
    pub fn modified_at(&self, name: &str) -> Result<Option<(i64, i64)>, StoreError> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(StoreError::io("stat", self.path_of(name))(errno)),
        }
    }

    /// Sets the time of modification of the file `name`, if it exists, to the current time.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn touch(&self, name: &str) -> Result<(), StoreError> {
        let now = Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
        let times = Timestamps { last_access: Timespec { tv_nsec: fs::UTIME_OMIT, ..now }, last_modification: now };
        match fs::utimensat(&self.fd, name, &times, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(StoreError::io("touch", self.path_of(name))(errno)),
        }
    }

    /// Removes the file `name` if it exists.
    ///
    /// # Errors
    /// A system call fails.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(StoreError::io("remove", self.path_of(name))(errno)),
        }
    }

    /// Returns whether this directory is currently locked by [`Directory::try_lock`]. The check takes a shared lock
    /// for a moment.
    ///
    /// # Errors
    /// The file system does not support locks.
    pub(crate) fn is_locked(&self) -> Result<bool, StoreError> {
        // A lock belongs to an open file description. A second one keeps the check from releasing a lock that
        // `self` holds.
        let separate = self.descend(".")?;
        match fs::flock(&separate.fd, fs::FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(StoreError::io("lock", &self.name)(errno)),
        }
    }

    /// Takes the exclusive lock on this directory until its last clone is dropped; `false` if another holder has
    /// it.
    ///
    /// # Errors
    /// The file system does not support locks.
    pub(crate) fn try_lock(&self) -> Result<bool, StoreError> {
        for _ in 0..MAX_LOCK_ATTEMPTS {
            match fs::flock(&self.fd, fs::FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(true),
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(StoreError::io("lock", &self.name)(errno)),
            }
            if self.is_locked()? {
                return Ok(false);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }

    /// Removes temporary files that a killed process left. Only the lock holder may call this: without the lock, it
    /// could remove files that another process is writing.
    ///
    /// # Errors
    /// A system call fails.
    pub fn remove_temporaries(&self) -> Result<(), StoreError> {
        for name in self.names()?.into_iter().filter(|name| is_temporary(name)) {
            fs::unlinkat(&self.fd, &name, AtFlags::empty()).map_err(StoreError::io("remove", self.path_of(&name)))?;
        }
        Ok(())
    }

    /// Returns the names in this directory that are valid UTF-8, sorted.
    ///
    /// # Errors
    /// A system call fails.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let entries = self.entries(usize::MAX)?;
        Ok(entries.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect())
    }

    /// Returns the names in this directory as raw bytes, sorted. If it returns `most` names, there may be more.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn entries(&self, limit: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let entries = fs::Dir::read_from(&self.fd).map_err(StoreError::io("list", &self.name))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(StoreError::io("list", &self.name))?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_owned());
            }
            if names.len() >= limit {
                break;
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the path of the directory, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// Returns the mode of the file that a write would replace, which the new file keeps; `None` if there is no
    /// file. A symlink is an error: a rename would replace the link without following it, but the link means that
    /// the user wants the document in another place.
    fn replaced_mode(&self, name: &str) -> Result<Option<Mode>, StoreError> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if fs::FileType::from_raw_mode(stat.st_mode).is_symlink() => {
                Err(StoreError::Symlink { path: self.path_of(name) })
            }
            Ok(stat) => Ok(Some(Mode::from_raw_mode(stat.st_mode & 0o666))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(StoreError::io("stat", self.path_of(name))(errno)),
        }
    }

    /// Makes the names in this directory durable.
    ///
    /// # Errors
    /// A system call fails.
    pub fn sync(&self) -> Result<(), StoreError> {
        fs::fsync(&self.fd).map_err(StoreError::io("sync", &self.name))
    }

    /// Gives `file` the owner of this directory when we are root, so that files in a user's repository belong to
    /// the user.
    fn set_owner(&self, file: BorrowedFd<'_>) -> Result<(), StoreError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let ours = fs::fstat(&self.fd).map_err(StoreError::io("stat", &self.name))?;
        let owner = (Some(Uid::from_raw(ours.st_uid)), Some(Gid::from_raw(ours.st_gid)));
        fs::fchown(file, owner.0, owner.1).map_err(StoreError::io("change the owner of a file in", &self.name))
    }

    fn inherit_owner(&self, parent: &Self) -> Result<(), StoreError> {
        parent.set_owner(self.fd.as_fd())
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Suffix of the names of short-lived files and directories.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

/// Returns whether `name` has the form of the names that [`Directory::create_temporary`] creates.
pub(crate) fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(TEMPORARY_SUFFIX)?.rsplit_once('.'));
    random.is_some_and(|(_, digits)| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Returns random bits from the kernel.
///
/// # Errors
/// `getrandom(2)` fails.
pub(crate) fn random_u64() -> Result<u64, StoreError> {
    let mut bytes = [0u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(StoreError::io("read random bits from", "getrandom(2)"))?;
    Ok(u64::from_ne_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temp = tempfile::tempdir().expect("temp");
        let directory = Directory::open(temp.path()).expect("opens");
        (temp, directory)
    }

    #[test]
    fn write_replaces_whole_file_and_leaves_no_temporary() {
        let (_temp, directory) = directory();
        directory.write("a.json", b"old").expect("writes");
        directory.write("a.json", b"new").expect("writes");
        assert_eq!(directory.read("a.json", 10).expect("reads").as_deref(), Some(&b"new"[..]));
        assert_eq!(directory.names().expect("lists"), ["a.json"]);
    }

    #[test]
    fn publish_new_does_not_replace_existing_file() {
        let (temp, directory) = directory();
        let make = |text: &[u8]| {
            let mut made = directory.create_temporary("a").expect("makes");
            made.file.write_all(text).expect("writes");
            made.publish_new("a").expect("publishes")
        };
        assert_eq!([make(b"first"), make(b"second")], [true, false]);
        assert_eq!(directory.read("a", 10).expect("reads").as_deref(), Some(&b"first"[..]));
        std::fs::remove_file(temp.path().join("a")).expect("removes");
        symlink("/nowhere", temp.path().join("a")).expect("links");
        assert!(!make(b"third"));
        assert_eq!(directory.names().expect("lists"), ["a"]);
    }

    #[test]
    fn refuses_symlink_and_leaves_its_target() {
        let (temp, directory) = directory();
        let outside = tempfile::tempdir().expect("temp");
        let target = outside.path().join("victim");
        symlink(&target, temp.path().join("a.json")).expect("links");
        assert!(matches!(directory.write("a.json", b"x"), Err(StoreError::Symlink { .. })));
        assert!(matches!(directory.read("a.json", 10), Err(StoreError::Symlink { .. })));
        symlink(outside.path(), temp.path().join("verify")).expect("links");
        assert!(matches!(directory.ensure("verify", 0o755), Err(StoreError::Symlink { .. })));
        assert!(!target.exists());
    }

    #[test]
    fn locks_exclusively_and_removes_leftover_temporaries() {
        let (temp, directory) = directory();
        assert!(directory.try_lock().expect("locks"));
        let other = Directory::open(temp.path()).expect("opens");
        assert!(!other.try_lock().expect("asks"));
        std::mem::forget(directory.create_temporary("a.json").expect("makes"));
        directory.write(".a.tmp", b"somebody's").expect("writes");
        directory.remove_temporaries().expect("sweeps");
        assert_eq!(directory.names().expect("lists"), [".a.tmp"]);
    }

    #[test]
    fn detects_replaced_directory() {
        let (temp, directory) = directory();
        let held = directory.ensure("verify", 0o755).expect("makes");
        directory.require_same("verify", &held).expect("it is");
        std::fs::rename(temp.path().join("verify"), temp.path().join("elsewhere")).expect("moves");
        directory.require_same("verify", &held).expect_err("nothing");
        symlink("elsewhere", temp.path().join("verify")).expect("links");
        assert!(matches!(directory.require_same("verify", &held), Err(StoreError::Symlink { .. })));
        std::fs::remove_file(temp.path().join("verify")).expect("removes");
        directory.ensure("verify", 0o755).expect("makes");
        directory.require_same("verify", &held).expect_err("another one");
    }

    #[test]
    fn write_keeps_file_mode() {
        use std::os::unix::fs::PermissionsExt as _;
        let (temp, directory) = directory();
        directory.write("a.json", b"old").expect("writes");
        let path = temp.path().join("a.json");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("sets");
        directory.write("a.json", b"new").expect("writes");
        assert_eq!(std::fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn does_not_descend_outside() {
        let (_temp, directory) = directory();
        assert!(directory.descend("..").is_err());
        assert!(directory.descend("/etc").is_err());
    }

    #[test]
    fn removes_unpublished_file_and_refuses_large_file() {
        let (_temp, directory) = directory();
        drop(directory.create_temporary("a.json").expect("makes"));
        assert_eq!(directory.names().expect("lists"), Vec::<String>::new());
        directory.write("big", &[0; 11]).expect("writes");
        assert!(matches!(directory.read("big", 10), Err(StoreError::TooLarge { .. })));
        assert_eq!(directory.read("none", 10).expect("reads"), None);
    }
}
