//! A directory held by its fd, in which files appear whole or not at all.

mod staged;

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use proctor_snapshot::{Links, open_beneath};
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, Uid};

use super::StoreError;

pub(crate) use staged::{Durable, STAGED_AT_ONCE, Staged, sync_all};

/// A directory of ours; clones share its fd.
#[derive(Debug, Clone)]
pub struct Directory {
    fd: Arc<OwnedFd>,
    /// For messages only: every operation goes through the fd.
    name: String,
}

/// How many readers in a row may be looking whether a directory is held when it is to be held.
const LOOKERS: usize = 100;
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::CLOEXEC);

impl Directory {
    /// Opens the directory at an absolute path that the operator or the caller named. Links on
    /// the way are theirs and are followed.
    ///
    /// # Errors
    /// It is not there, or is no directory.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let name = path.display().to_string();
        let fd = fs::open(path, DIRECTORY, Mode::empty()).map_err(StoreError::io("open", &name))?;
        Ok(Self { fd: Arc::new(fd), name })
    }

    /// A directory that is open already; `name` is for messages.
    pub(crate) fn from_fd(fd: OwnedFd, name: String) -> Self {
        Self { fd: Arc::new(fd), name }
    }

    /// What tells this directory from every other: device and inode.
    ///
    /// # Errors
    /// The system refuses.
    pub fn identity(&self) -> Result<(u64, u64), StoreError> {
        let stat = fs::fstat(&self.fd).map_err(StoreError::io("stat", &self.name))?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Opens the directory `path` below this one, following no link.
    ///
    /// # Errors
    /// It is not there, is no directory, or a part of the path is a symlink.
    pub fn descend(&self, path: &str) -> Result<Self, StoreError> {
        let fd = open_beneath(self.fd.as_fd(), Path::new(path), DIRECTORY, Links::Refuse)
            .map_err(StoreError::io("open", self.path_of(path)))?;
        Ok(Self { fd: Arc::new(fd), name: self.path_of(path) })
    }

    /// Opens the directory `name` in this one, made with `mode` and the owner of this one
    /// where it is not there yet.
    ///
    /// # Errors
    /// It is a symlink or no directory, or cannot be made.
    pub fn ensure(&self, name: &str, mode: u32) -> Result<Self, StoreError> {
        let (directory, made) = self.ensure_unsynced(name, mode)?;
        if made {
            self.sync()?;
        }
        Ok(directory)
    }

    /// Opens the directory `name` as [`Directory::ensure`] does; one that is made has all bits of `mode`, whatever our
    /// umask is.
    ///
    /// # Errors
    /// As [`Directory::ensure`].
    pub(crate) fn ensure_with_mode(&self, name: &str, mode: u32) -> Result<Self, StoreError> {
        let (directory, made) = self.ensure_unsynced(name, mode)?;
        if made {
            let mode = Mode::from_raw_mode(mode);
            fs::fchmod(&directory, mode).map_err(StoreError::io("set the mode of", directory.name()))?;
            self.sync()?;
        }
        Ok(directory)
    }

    /// The same; whether it was made now, so that this one has to be synced before anybody may
    /// rely on that.
    ///
    /// # Errors
    /// As [`Directory::ensure`].
    pub(crate) fn ensure_unsynced(&self, name: &str, mode: u32) -> Result<(Self, bool), StoreError> {
        match fs::mkdirat(&self.fd, name, Mode::from_raw_mode(mode)) {
            Ok(()) => {
                let made = self.descend(name)?;
                made.take_owner_of(self)?;
                Ok((made, true))
            }
            Err(rustix::io::Errno::EXIST) => Ok((self.descend(name)?, false)),
            Err(errno) => Err(StoreError::io("create", self.path_of(name))(errno)),
        }
    }

    /// Demands that the directory `held`, which was opened at `name`, still stands there: what is written to it
    /// by its descriptor is found by that name.
    ///
    /// # Errors
    /// Something else stands there, or nothing.
    pub(crate) fn demand_still(&self, name: &str, held: &Self) -> Result<(), StoreError> {
        let stat = fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(StoreError::io("find", self.path_of(name)))?;
        if fs::FileType::from_raw_mode(stat.st_mode).is_symlink() {
            return Err(StoreError::Symlink { path: self.path_of(name) });
        }
        if (stat.st_dev, stat.st_ino) != held.identity()? {
            let source = std::io::Error::other("another one was put in its place");
            return Err(StoreError::Io { action: "write into", path: self.path_of(name), source });
        }
        Ok(())
    }

    /// Puts a file with `bytes` at `name`: temp file in this directory, fsync, rename, fsync of
    /// the directory. A kill at any point leaves the old file or the new one whole.
    ///
    /// # Errors
    /// `name` is a symlink, or the system refuses.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.stage(name, bytes)?.settle()?.publish()?;
        self.sync()
    }

    /// A file that is not there yet for anyone but us; dropped unpublished, it goes away.
    ///
    /// # Errors
    /// The system refuses.
    pub fn temporary(&self, purpose: &str) -> Result<Temporary, StoreError> {
        self.temporary_as(purpose, OFlags::WRONLY)
    }

    /// Returns a file for reading and writing whose name is removed already.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn unnamed(&self, purpose: &str) -> Result<File, StoreError> {
        // Dropping the entry removes the name.
        Ok(self.temporary_as(purpose, OFlags::RDWR)?.file)
    }

    fn temporary_as(&self, purpose: &str, access: OFlags) -> Result<Temporary, StoreError> {
        let name = format!(".{purpose}.{:016x}{TEMPORARY}", random_u64()?);
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC | access;
        let fd = fs::openat(&self.fd, &name, flags, Mode::from_raw_mode(0o644))
            .map_err(StoreError::io("create", self.path_of(&name)))?;
        let entry = TemporaryEntry { directory: self.clone(), name, published: false };
        let temp = Temporary { entry, file: File::from(fd) };
        self.give_owner(temp.file.as_fd())?;
        Ok(temp)
    }

    /// The bytes of the file `name`, `None` where there is none. Follows no link, and opens
    /// nothing but a regular file.
    ///
    /// # Errors
    /// It is a symlink or something else than a file, is larger than `limit`, or cannot be read.
    pub fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let Some(file) = self.open_file(name)? else { return Ok(None) };
        let mut bytes = Vec::new();
        let read = file.take(limit + 1).read_to_end(&mut bytes);
        read.map_err(|source| StoreError::Io { action: "read", path: self.path_of(name), source })?;
        if bytes.len() as u64 > limit {
            return Err(StoreError::TooLarge { path: self.path_of(name), limit });
        }
        Ok(Some(bytes))
    }

    /// The file `name` for reading, `None` where there is none. Follows no link, and opens nothing
    /// but a regular file.
    ///
    /// # Errors
    /// It is a symlink or something else than a file, or cannot be opened.
    pub fn open_file(&self, name: &str) -> Result<Option<File>, StoreError> {
        // Opening a device can do something, and opening a fifo tells its writer.
        if self.is_other_than_a_file(name)? {
            return Err(self.no_regular_file(name));
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let fd = match fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(StoreError::io("open", self.path_of(name))(errno)),
        };
        let stat = fs::fstat(&fd).map_err(StoreError::io("stat", self.path_of(name)))?;
        if !fs::FileType::from_raw_mode(stat.st_mode).is_file() {
            return Err(self.no_regular_file(name));
        }
        Ok(Some(File::from(fd)))
    }

    fn is_other_than_a_file(&self, name: &str) -> Result<bool, StoreError> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let kind = fs::FileType::from_raw_mode(stat.st_mode);
                Ok(!kind.is_file() && !kind.is_symlink())
            }
            Err(rustix::io::Errno::NOENT) => Ok(false),
            Err(errno) => Err(StoreError::io("stat", self.path_of(name))(errno)),
        }
    }

    fn no_regular_file(&self, name: &str) -> StoreError {
        let source = std::io::Error::other("it is not a regular file");
        StoreError::Io { action: "read", path: self.path_of(name), source }
    }

    /// When the file `name` was written, in seconds and nanoseconds since 1970; `None` where
    /// there is none.
    ///
    /// # Errors
    /// The system refuses.
    pub fn written(&self, name: &str) -> Result<Option<(i64, i64)>, StoreError> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some((stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(StoreError::io("stat", self.path_of(name))(errno)),
        }
    }

    /// Removes the file `name`, where it is still there.
    ///
    /// # Errors
    /// The system refuses.
    pub fn remove(&self, name: &str) -> Result<(), StoreError> {
        match fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(errno) => Err(StoreError::io("remove", self.path_of(name))(errno)),
        }
    }

    /// Whether somebody holds this directory by [`Directory::try_lock`] at this moment. It is
    /// asked by taking a lock that readers share, for no longer than that.
    ///
    /// # Errors
    /// The file system has no locks.
    pub(crate) fn is_locked(&self) -> Result<bool, StoreError> {
        // A lock belongs to an open file: this one must not be let go with ours.
        let apart = self.descend(".")?;
        match fs::flock(&apart.fd, fs::FlockOperation::NonBlockingLockShared) {
            Ok(()) => Ok(false),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(errno) => Err(StoreError::io("lock", &self.name)(errno)),
        }
    }

    /// Holds this directory against every other holder, until the last clone of it is dropped;
    /// `false` where another one holds it.
    ///
    /// # Errors
    /// The file system has no locks.
    pub(crate) fn try_lock(&self) -> Result<bool, StoreError> {
        for _ in 0..LOOKERS {
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

    /// Removes temporary files that a killed process left. Only for who holds the lock: another
    /// one's may be under way.
    ///
    /// # Errors
    /// The system refuses.
    pub fn sweep(&self) -> Result<(), StoreError> {
        for name in self.names()?.into_iter().filter(|name| is_temporary(name)) {
            fs::unlinkat(&self.fd, &name, AtFlags::empty()).map_err(StoreError::io("remove", self.path_of(&name)))?;
        }
        Ok(())
    }

    /// The names in this directory, sorted.
    ///
    /// # Errors
    /// The system refuses.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let entries = self.entries(usize::MAX)?;
        Ok(entries.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect())
    }

    /// The names in this directory, of whatever bytes, sorted; no more than `most`, in which case
    /// there may be others.
    ///
    /// # Errors
    /// The system refuses.
    pub(crate) fn entries(&self, most: usize) -> Result<Vec<Vec<u8>>, StoreError> {
        let entries = fs::Dir::read_from(&self.fd).map_err(StoreError::io("list", &self.name))?;
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(StoreError::io("list", &self.name))?;
            let name = entry.file_name().to_bytes();
            if !matches!(name, b"." | b"..") {
                names.push(name.to_owned());
            }
            if names.len() >= most {
                break;
            }
        }
        names.sort();
        Ok(names)
    }

    /// The directory as a path for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.name)
    }

    /// The mode of the file that a write would replace, which the new one keeps; `None` where
    /// there is none. A rename would replace a symlink and not follow it; but a link there
    /// means that someone wants our document elsewhere, and saying so beats replacing it.
    fn replaceable(&self, name: &str) -> Result<Option<Mode>, StoreError> {
        match fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if fs::FileType::from_raw_mode(stat.st_mode).is_symlink() => {
                Err(StoreError::Symlink { path: self.path_of(name) })
            }
            Ok(stat) => Ok(Some(Mode::from_raw_mode(stat.st_mode & 0o666))),
            Err(rustix::io::Errno::NOENT) => Ok(None),
            Err(errno) => Err(StoreError::io("stat", self.path_of(name))(errno)),
        }
    }

    /// Makes durable which names there are in it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn sync(&self) -> Result<(), StoreError> {
        fs::fsync(&self.fd).map_err(StoreError::io("sync", &self.name))
    }

    /// Under root, what we put into a user's repository belongs to that user.
    fn give_owner(&self, file: BorrowedFd<'_>) -> Result<(), StoreError> {
        if !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let ours = fs::fstat(&self.fd).map_err(StoreError::io("stat", &self.name))?;
        let owner = (Some(Uid::from_raw(ours.st_uid)), Some(Gid::from_raw(ours.st_gid)));
        fs::fchown(file, owner.0, owner.1).map_err(StoreError::io("give the owner to a file in", &self.name))
    }

    fn take_owner_of(&self, parent: &Self) -> Result<(), StoreError> {
        parent.give_owner(self.fd.as_fd())
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A file under a random name, on its way to its real one.
#[derive(Debug)]
pub struct Temporary {
    entry: TemporaryEntry,
    /// Where its bytes go.
    pub file: File,
}

/// The random name. Dropped unpublished, it goes away.
#[derive(Debug)]
struct TemporaryEntry {
    directory: Directory,
    name: String,
    published: bool,
}

impl Temporary {
    /// Makes it appear as `name`, durable. Its bytes must have been synced.
    ///
    /// # Errors
    /// The system refuses; the file goes away.
    pub fn publish(self, name: &str) -> Result<(), StoreError> {
        let directory = self.entry.directory.clone();
        self.publish_in(&directory, name)
    }

    /// The same, in another directory of the same file system.
    ///
    /// # Errors
    /// As [`Temporary::publish`].
    pub fn publish_in(self, directory: &Directory, name: &str) -> Result<(), StoreError> {
        self.entry.move_to(directory, name)?;
        directory.sync()
    }
}

impl TemporaryEntry {
    fn move_to(mut self, directory: &Directory, name: &str) -> Result<(), StoreError> {
        fs::renameat(&self.directory.fd, &self.name, &directory.fd, name)
            .map_err(StoreError::io("write", directory.path_of(name)))?;
        self.published = true;
        Ok(())
    }
}

impl Temporary {
    /// Makes it appear as `name`, durable, where nothing has that name; `false` where something
    /// has. Its bytes must have been synced.
    ///
    /// # Errors
    /// The system refuses; the file goes away.
    pub fn publish_new(mut self, name: &str) -> Result<bool, StoreError> {
        let fd = &self.entry.directory.fd;
        let moved = match fs::renameat_with(fd, &self.entry.name, fd, name, fs::RenameFlags::NOREPLACE) {
            // A file system that does not know of it (NFS) refuses a link over a name as well.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => {
                fs::linkat(fd, &self.entry.name, fd, name, AtFlags::empty())
            }
            moved => {
                self.entry.published = moved.is_ok();
                moved
            }
        };
        match moved {
            Ok(()) => self.entry.directory.sync().map(|()| true),
            Err(rustix::io::Errno::EXIST) => Ok(false),
            Err(errno) => Err(StoreError::io("write", self.entry.directory.path_of(name))(errno)),
        }
    }
}

impl Drop for TemporaryEntry {
    fn drop(&mut self) {
        if !self.published
            && let Err(errno) = fs::unlinkat(&self.directory.fd, &self.name, AtFlags::empty())
        {
            tracing::warn!(name = self.name, %errno, "a temporary file stays behind");
        }
    }
}

/// What the names of files and directories that go soon end in.
pub(crate) const TEMPORARY: &str = ".tmp";

/// Whether `name` is one that [`Directory::temporary`] gives, or in its form.
pub(crate) fn is_temporary(name: &str) -> bool {
    let random = name.strip_prefix('.').and_then(|rest| rest.strip_suffix(TEMPORARY)?.rsplit_once('.'));
    random.is_some_and(|(_, digits)| digits.len() == 16 && digits.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Random bits from the kernel.
///
/// # Errors
/// The kernel has none.
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
    fn a_write_replaces_the_whole_file_and_leaves_nothing_else() {
        let (_temp, directory) = directory();
        directory.write("a.json", b"old").expect("writes");
        directory.write("a.json", b"new").expect("writes");
        assert_eq!(directory.read("a.json", 10).expect("reads").as_deref(), Some(&b"new"[..]));
        assert_eq!(directory.names().expect("lists"), ["a.json"]);
    }

    #[test]
    fn a_new_file_replaces_nothing() {
        let (temp, directory) = directory();
        let make = |text: &[u8]| {
            let mut made = directory.temporary("a").expect("makes");
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
    fn a_planted_symlink_is_refused_and_its_target_stays() {
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
    fn one_holder_at_a_time_and_what_a_killed_one_left_goes() {
        let (temp, directory) = directory();
        assert!(directory.try_lock().expect("locks"));
        let other = Directory::open(temp.path()).expect("opens");
        assert!(!other.try_lock().expect("asks"));
        std::mem::forget(directory.temporary("a.json").expect("makes"));
        directory.write(".a.tmp", b"somebody's").expect("writes");
        directory.sweep().expect("sweeps");
        assert_eq!(directory.names().expect("lists"), [".a.tmp"]);
    }

    #[test]
    fn a_directory_that_was_exchanged_is_noticed() {
        let (temp, directory) = directory();
        let held = directory.ensure("verify", 0o755).expect("makes");
        directory.demand_still("verify", &held).expect("it is");
        std::fs::rename(temp.path().join("verify"), temp.path().join("elsewhere")).expect("moves");
        directory.demand_still("verify", &held).expect_err("nothing");
        symlink("elsewhere", temp.path().join("verify")).expect("links");
        assert!(matches!(directory.demand_still("verify", &held), Err(StoreError::Symlink { .. })));
        std::fs::remove_file(temp.path().join("verify")).expect("removes");
        directory.ensure("verify", 0o755).expect("makes");
        directory.demand_still("verify", &held).expect_err("another one");
    }

    #[test]
    fn a_file_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt as _;
        let (temp, directory) = directory();
        directory.write("a.json", b"old").expect("writes");
        let path = temp.path().join("a.json");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("sets");
        directory.write("a.json", b"new").expect("writes");
        assert_eq!(std::fs::metadata(path).expect("there").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn nothing_is_reached_outside() {
        let (_temp, directory) = directory();
        assert!(directory.descend("..").is_err());
        assert!(directory.descend("/etc").is_err());
    }

    #[test]
    fn an_unpublished_file_goes_away_and_a_large_one_is_refused() {
        let (_temp, directory) = directory();
        drop(directory.temporary("a.json").expect("makes"));
        assert_eq!(directory.names().expect("lists"), Vec::<String>::new());
        directory.write("big", &[0; 11]).expect("writes");
        assert!(matches!(directory.read("big", 10), Err(StoreError::TooLarge { .. })));
        assert_eq!(directory.read("none", 10).expect("reads"), None);
    }
}
