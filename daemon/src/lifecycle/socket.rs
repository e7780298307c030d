//! Manages the daemon's socket: one that the service manager passes, or one that the daemon creates and removes.
//!
//! The daemon creates its socket under a lock, in a directory to which only its user can write and which steps cannot
//! see. An existing file at the path is removed only if it is a socket of this user on which no process listens.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use listenfd::ListenFd;
use rustix::fs::{AtFlags, FileType, Mode, chmodat, fchmod, fstat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with};
use tracing::{info, warn};

use super::socket_lock::{SocketLock, SocketLockError};
use crate::settings::{AllowedUsers, socket_problem};
use proctor_client::installation::{ProcessEnvironment, show};

/// Maximum number of connections in the kernel's queue.
const BACKLOG: i32 = 1024;
/// Mode of a socket to which only the daemon's user can connect.
const OWN_MODE: u32 = 0o600;
/// Mode of a socket to which other users can connect. The daemon checks the user of each connection.
const OPEN_MODE: u32 = 0o666;
/// Permissions that a directory additionally needs for other users to reach a socket in it.
const SEARCH_BITS: u32 = 0o011;

/// Reason why the socket cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    /// The path, or the existing file there, is not usable.
    #[error("the socket `{}` cannot be used: {reason}\nhint: {hint}", show(path))]
    Unusable {
        /// Path of the socket.
        path: PathBuf,
        /// Description of the problem.
        reason: String,
        /// Suggested remedy.
        hint: &'static str,
    },
    /// Another daemon uses the socket.
    #[error(
        "another daemon{} uses the socket `{}`\nhint: `proctor daemon status` shows it, `proctor daemon stop` stops it; or choose another socket with `--socket`",
        pid.map(|pid| format!(" (process {pid})")).unwrap_or_default(), show(path)
    )]
    InUse {
        /// Path of the socket.
        path: PathBuf,
        /// Process ID of the other daemon, if known.
        pid: Option<u32>,
    },
    /// The service manager passed an unusable descriptor.
    #[error(
        "the service manager handed over {0}\nhint: the unit of the socket must have one `ListenStream=` with an absolute path in a separate directory"
    )]
    Inherited(String),
    /// A system call failed.
    #[error("the socket `{}` cannot be created: {what}: {error}", show(path))]
    System {
        /// Path of the socket.
        path: PathBuf,
        /// Failed operation.
        what: &'static str,
        /// Error reported by the system.
        error: io::Error,
    },
}

impl SocketError {
    /// Returns whether the error is permanent, so a retry does not help.
    pub(super) fn is_usage(&self) -> bool {
        matches!(self, Self::Unusable { .. } | Self::Inherited(_))
    }
}

/// Location where the daemon will listen. It is reserved for this process.
#[derive(Debug)]
pub(super) enum ReservedSocket {
    /// A socket on which the service manager already listens.
    Inherited(StdListener, PathBuf),
    /// A path at which the socket is created later.
    Own(ReservedPath),
}

/// A reserved path for a socket, in a directory to which only this user can write.
#[derive(Debug)]
pub(super) struct ReservedPath {
    path: PathBuf,
    name: String,
    dir: File,
    lock: SocketLock,
}

/// The socket while the daemon listens on it.
#[derive(Debug)]
pub(super) struct ListeningSocket {
    listener: StdListener,
    path: PathBuf,
    own: Option<OwnSocket>,
}

/// A socket that this process created and removes.
#[derive(Debug)]
struct OwnSocket {
    reserved_path: ReservedPath,
    /// Device and inode of the socket.
    identity: (u64, u64),
}

impl ReservedSocket {
    /// Returns the socket that the service manager passed, if any.
    pub(super) fn inherited(mut fds: ListenFd) -> Result<Option<Self>, SocketError> {
        match fds.len() {
            0 => return Ok(None),
            1 => {}
            count => return Err(SocketError::Inherited(format!("{count} sockets"))),
        }
        let taken = fds.take_unix_listener(0).map_err(|error| SocketError::Inherited(error.to_string()))?;
        let Some(listener) = taken else { return Err(SocketError::Inherited("no socket".to_owned())) };
        let address = listener.local_addr().ok();
        let path = address.as_ref().and_then(std::os::unix::net::SocketAddr::as_pathname);
        // Steps could reach an abstract socket unless their network is isolated, so it is refused.
        let Some(path) = path else { return Err(SocketError::Inherited("a socket without a path".to_owned())) };
        let path = path.to_owned();
        match unhidable_reason(parent(&path), None) {
            Some(reason) => Err(SocketError::Inherited(format!("`{}`: {reason}", show(&path)))),
            None => Ok(Some(Self::Inherited(listener, path))),
        }
    }

    /// Returns another handle of the service manager's socket.
    pub(super) fn try_clone_listener(&self) -> Option<StdListener> {
        match self {
            Self::Inherited(listener, _) => listener.try_clone().ok(),
            Self::Own(_) => None,
        }
    }

    /// Reserves a path for the socket. Creates only the directory and the lock.
    pub(super) fn reserve(path: &Path, environment: &ProcessEnvironment) -> Result<Self, SocketError> {
        ReservedPath::reserve(path, environment).map(Self::Own)
    }

    /// Returns the directory that contains the socket.
    pub(super) fn directory(&self) -> Option<&Path> {
        match self {
            Self::Inherited(_, path) => path.parent(),
            Self::Own(place) => place.path.parent(),
        }
    }

    /// Starts to listen.
    pub(super) fn listen(self, admitted: &AllowedUsers) -> Result<ListeningSocket, SocketError> {
        let listening = match self {
            Self::Inherited(listener, path) => {
                let failed = |error| SocketError::System { path: path.clone(), what: "it blocks", error };
                listener.set_nonblocking(true).map_err(failed)?;
                ListeningSocket { listener, path, own: None }
            }
            Self::Own(place) => {
                let (listener, identity) = place.bind()?;
                ListeningSocket {
                    listener,
                    path: place.path.clone(),
                    own: Some(OwnSocket { reserved_path: place, identity }),
                }
            }
        };
        listening.set_permissions(admitted);
        Ok(listening)
    }
}

impl ReservedPath {
    /// Acquires the lock of a socket's path. Creates the directory if necessary.
    fn reserve(path: &Path, environment: &ProcessEnvironment) -> Result<Self, SocketError> {
        if let Some(reason) = socket_problem(path) {
            return Err(unusable(path, reason, "name another one with `--socket`"));
        }
        let (path, name) = resolve_path(path)?;
        if let Some(reason) = unhidable_reason(parent(&path), environment.home.as_deref()) {
            return Err(unusable(&path, reason, "choose one in a separate directory"));
        }
        let dir = open_private_directory(&path)?;
        let lock = SocketLock::acquire(&dir, &lock_name(&name)).map_err(|reason| lock_error(&path, reason))?;
        let place = Self { path, name, dir, lock };
        place.has_stale_socket()?;
        Ok(place)
    }

    /// Removes the socket of an earlier daemon and binds a new one.
    fn bind(&self) -> Result<(StdListener, (u64, u64)), SocketError> {
        if self.has_stale_socket()? {
            info!(socket = show(&self.path), "removing a stale socket");
            unlinkat(&self.dir, &self.name, AtFlags::empty())
                .map_err(|error| self.system_error("the stale socket cannot be removed", error))?;
        }
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let socket =
            socket_with(kind.0, kind.1, kind.2, None).map_err(|error| self.system_error("no socket", error))?;
        // The file that bind(2) creates inherits the mode of the socket, so no other user can connect at any time.
        fchmod(&socket, Mode::from_raw_mode(OWN_MODE)).map_err(|error| self.system_error("its mode", error))?;
        let address = SocketAddrUnix::new(&self.path).map_err(|error| self.system_error("its path", error))?;
        bind(&socket, &address).map_err(|error| self.system_error("bind", error))?;
        let identity = self.identity().ok_or_else(|| self.system_error("it was removed again", Errno::NOENT))?;
        listen(&socket, BACKLOG).map_err(|error| self.system_error("listen", error))?;
        Ok((StdListener::from(socket), identity))
    }

    /// Returns whether a stale socket exists at the path, on which no process listens.
    fn has_stale_socket(&self) -> Result<bool, SocketError> {
        let stat = match statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(false),
            Err(error) => return Err(self.system_error("the existing file cannot be examined", error)),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::Socket {
            let reason = format!("{} is at its path", describe_file_type(kind));
            return Err(unusable(&self.path, reason, "move it away, or name another socket with `--socket`"));
        }
        if stat.st_uid != rustix::process::geteuid().as_raw() {
            let reason = format!("a socket of user {} is at its path", stat.st_uid);
            return Err(unusable(&self.path, reason, "name another one with `--socket`"));
        }
        self.is_stale()
    }

    fn is_stale(&self) -> Result<bool, SocketError> {
        let kind = (AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let socket =
            socket_with(kind.0, kind.1, kind.2, None).map_err(|error| self.system_error("no socket", error))?;
        let address = SocketAddrUnix::new(&self.path).map_err(|error| self.system_error("its path", error))?;
        match connect(&socket, &address) {
            Err(Errno::CONNREFUSED) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Ok(()) => Err(SocketError::InUse { path: self.path.clone(), pid: peer_pid(&socket) }),
            // The queue of that socket is full.
            Err(Errno::AGAIN) => Err(SocketError::InUse { path: self.path.clone(), pid: None }),
            Err(error) => Err(self.system_error("it is unknown whether a daemon uses it", error)),
        }
    }

    /// Returns whether the path still refers to the directory and the lock that this process holds.
    fn is_held(&self) -> bool {
        let at_path = parent(&self.path).metadata().map(|found| (found.dev(), found.ino())).ok();
        let held = self.dir.metadata().map(|found| (found.dev(), found.ino())).ok();
        at_path.is_some() && at_path == held && self.lock.is_at(&self.dir, &lock_name(&self.name))
    }

    fn identity(&self) -> Option<(u64, u64)> {
        let stat = statat(&self.dir, &self.name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some((stat.st_dev, stat.st_ino))
    }

    fn system_error(&self, what: &'static str, error: Errno) -> SocketError {
        SocketError::System { path: self.path.clone(), what, error: error.into() }
    }

    /// Sets the permissions so that either other users or only this user can reach the socket.
    fn set_permissions(&self, admitted: &AllowedUsers) -> Result<(), Errno> {
        let mode = if admitted.has_others() { OPEN_MODE } else { OWN_MODE };
        chmodat(&self.dir, &self.name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        let dir_mode = fstat(&self.dir)?.st_mode & 0o7777;
        if admitted.has_others() && dir_mode & SEARCH_BITS != SEARCH_BITS {
            fchmod(&self.dir, Mode::from_raw_mode(dir_mode | SEARCH_BITS))?;
        }
        Ok(())
    }
}

impl ListeningSocket {
    /// Returns another handle of the listener.
    pub(super) fn listener(&self) -> io::Result<StdListener> {
        self.listener.try_clone()
    }

    /// Returns the path of the socket.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this process created the socket.
    pub(super) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    /// Returns whether callers reach this socket at its path. Always true for a socket of the service manager.
    pub(super) fn is_in_place(&self) -> bool {
        let Some(own) = &self.own else { return true };
        own.reserved_path.is_held() && own.reserved_path.identity() == Some(own.identity)
    }

    /// Recreates the socket at its path and returns the new listener.
    ///
    /// # Errors
    /// Another daemon has taken the path, or the socket cannot be created.
    pub(super) fn restore(
        &mut self,
        environment: &ProcessEnvironment,
        admitted: &AllowedUsers,
    ) -> Result<StdListener, SocketError> {
        let path = self.path.clone();
        let failed = |error| SocketError::System { path: path.clone(), what: "no handle", error };
        if let Some(own) = &mut self.own {
            if own.reserved_path.identity() == Some(own.identity) {
                // Only the lock or the directory was lost. The old socket would look like that of another daemon.
                unlinkat(&own.reserved_path.dir, &own.reserved_path.name, AtFlags::empty())
                    .map_err(|error| own.reserved_path.system_error("the stale socket cannot be removed", error))?;
            }
            if !own.reserved_path.is_held() {
                own.reserved_path = ReservedPath::reserve(&path, environment)?;
            }
            (self.listener, own.identity) = own.reserved_path.bind()?;
        }
        self.set_permissions(admitted);
        self.listener.try_clone().map_err(failed)
    }

    /// Makes the socket reachable for the admitted users. The service manager determines the mode of its own socket.
    pub(super) fn set_permissions(&self, admitted: &AllowedUsers) {
        let Some(own) = &self.own else { return };
        if let Err(error) = own.reserved_path.set_permissions(admitted) {
            warn!("the permissions of the socket cannot be changed: {error}");
        }
    }

    /// Removes the socket if it is still the one that this process created.
    pub(super) fn remove(self) {
        let Some(OwnSocket { reserved_path: place, identity }) = self.own else { return };
        if place.identity() != Some(identity) {
            warn!("the file at the path of the socket belongs to another program and is kept");
            return;
        }
        if let Err(error) = unlinkat(&place.dir, &place.name, AtFlags::empty()) {
            warn!("the socket could not be removed: {error}");
        }
        // Release the lock last, so that another daemon takes the path only now.
        drop(place.lock);
    }
}

fn lock_name(name: &str) -> String {
    format!("{name}.lock")
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

/// Creates the directory if necessary, and returns the path without symbolic links, as needed to hide it from steps.
fn resolve_path(path: &Path) -> Result<(PathBuf, String), SocketError> {
    let failed = |what, error| SocketError::System { path: path.to_owned(), what, error };
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(name) = name else {
        return Err(unusable(path, "its name is not UTF-8".to_owned(), "name another one with `--socket`"));
    };
    let made = DirBuilder::new().recursive(true).mode(0o700).create(parent(path));
    made.map_err(|error| failed("its directory cannot be created", error))?;
    let dir = parent(path).canonicalize().map_err(|error| failed("its directory cannot be found", error))?;
    let path = dir.join(name);
    match socket_problem(&path) {
        Some(reason) => Err(unusable(&path, reason, "name another one with `--socket`")),
        None => Ok((path, name.to_owned())),
    }
}

/// Opens the directory, and checks that only this user and root can write to it.
fn open_private_directory(path: &Path) -> Result<File, SocketError> {
    let failed = |what, error| SocketError::System { path: path.to_owned(), what, error };
    let dir = File::open(parent(path)).map_err(|error| failed("its directory cannot be opened", error))?;
    let metadata = dir.metadata().map_err(|error| failed("its directory cannot be examined", error))?;
    let hint = "choose one in a directory that belongs to you and that others cannot write to";
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Err(unusable(path, format!("its directory belongs to user {}", metadata.uid()), hint));
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(unusable(path, "others can write to its directory".to_owned(), hint));
    }
    Ok(dir)
}

/// Returns why a directory cannot be hidden from steps: it contains other files that they need.
fn unhidable_reason(dir: &Path, home: Option<&Path>) -> Option<String> {
    const SHARED: [&str; 9] = ["/", "/run", "/tmp", "/var", "/var/run", "/var/tmp", "/usr", "/etc", "/home"];
    let is_shared = SHARED.iter().any(|shared| dir == Path::new(shared));
    let holds_home = home.is_some_and(|home| home.starts_with(dir));
    (is_shared || holds_home)
        .then(|| format!("its directory `{}` is hidden from steps, but contains more than the socket", show(dir)))
}

fn describe_file_type(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        _ => "a device file",
    }
}

fn unusable(path: &Path, reason: String, hint: &'static str) -> SocketError {
    SocketError::Unusable { path: path.to_owned(), reason, hint }
}

fn lock_error(path: &Path, reason: SocketLockError) -> SocketError {
    match reason {
        SocketLockError::HeldBy(pid) => SocketError::InUse { path: path.to_owned(), pid },
        SocketLockError::Failed(error) => SocketError::System { path: path.to_owned(), what: "its lock", error },
        SocketLockError::NotALockFile => {
            let reason = "its lock file was not created by Proctor".to_owned();
            unusable(path, reason, "move the file whose name ends with `.lock` away")
        }
    }
}

fn peer_pid(socket: &OwnedFd) -> Option<u32> {
    let credentials = socket_peercred(socket).ok()?;
    u32::try_from(credentials.pid.as_raw_nonzero().get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn test_environment() -> ProcessEnvironment {
        ProcessEnvironment {
            env: Default::default(),
            unreadable: Vec::new(),
            home: None,
            cwd: PathBuf::from("/"),
            bin_dir: PathBuf::from("/usr/bin"),
            uid: 1000,
            user_dirs: PathBuf::from("/nonexistent"),
        }
    }
    use std::os::unix::net::UnixStream;

    fn reserve(path: &Path) -> Result<ReservedSocket, SocketError> {
        ReservedSocket::reserve(path, &test_environment())
    }

    fn only_own_user() -> AllowedUsers {
        AllowedUsers::new(rustix::process::geteuid().as_raw(), [])
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().expect("there").mode() & 0o777
    }

    #[test]
    fn creates_private_socket_and_removes_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run/p.sock");
        let listening = reserve(&path).expect("free").listen(&only_own_user()).expect("listens");
        assert_eq!((mode(&path), mode(parent(&path))), (0o600, 0o700));
        UnixStream::connect(&path).expect("connects");
        listening.set_permissions(&AllowedUsers::new(own_uid(), [own_uid() + 1]));
        assert_eq!((mode(&path), mode(parent(&path))), (0o666, 0o711));
        listening.set_permissions(&only_own_user());
        assert_eq!(mode(&path), 0o600);
        listening.remove();
        assert!(!path.exists());
    }

    fn own_uid() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    #[test]
    fn second_daemon_reports_first_and_replaces_stale_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.sock");
        let first = reserve(&path).expect("free").listen(&only_own_user()).expect("listens");
        let error = reserve(&path).expect_err("taken");
        assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
        // State after a kill: the lock is released, but the file is still there.
        drop(first);
        assert!(path.exists());
        reserve(&path).expect("stale").listen(&only_own_user()).expect("listens").remove();
    }

    #[test]
    fn keeps_unlocked_socket_of_another_process() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.sock");
        let _other = StdListener::bind(&path).expect("bound");
        assert!(matches!(reserve(&path), Err(SocketError::InUse { pid: Some(_), .. })));
    }

    #[test]
    fn keeps_files_that_are_not_sockets() {
        let dir = tempfile::tempdir().expect("a directory");
        std::os::unix::fs::symlink("/dev/null", dir.path().join("link")).expect("made");
        std::fs::create_dir(dir.path().join("dir")).expect("made");
        std::fs::hard_link("/proc/self/exe", dir.path().join("file")).ok();
        File::options().create(true).append(true).open(dir.path().join("plain")).expect("made");
        for (name, word) in [("link", "a symbolic link"), ("dir", "a directory"), ("plain", "a file")] {
            let error = reserve(&dir.path().join(name)).expect_err("no socket");
            assert!(error.to_string().contains(word) && error.is_usage(), "{error}");
            assert!(dir.path().join(name).symlink_metadata().is_ok(), "{name}");
        }
    }

    #[test]
    fn listens_again_after_its_files_were_removed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run/p.sock");
        let environment = test_environment();
        let mut listening = reserve(&path).expect("free").listen(&only_own_user()).expect("listens");
        let removals: [fn(&Path); 4] = [
            |path| std::fs::remove_file(path).expect("removed"),
            |path| std::fs::remove_file(path.with_file_name("p.sock.lock")).expect("removed"),
            |path| std::fs::remove_dir_all(parent(path)).expect("removed"),
            |path| std::fs::rename(parent(path), path.ancestors().nth(2).expect("there").join("away")).expect("moved"),
        ];
        for (n, remove) in removals.iter().enumerate() {
            assert!(listening.is_in_place(), "{n}");
            remove(&path);
            assert!(!listening.is_in_place(), "{n}");
            listening.restore(&environment, &only_own_user()).expect("restored");
            UnixStream::connect(&path).expect("connects");
            assert_eq!(mode(&path), 0o600);
            assert!(reserve(&path).is_err(), "{n}: a second daemon is refused");
        }
        listening.remove();
        assert!(!path.exists());
    }

    #[test]
    fn does_not_replace_a_daemon_that_took_its_path() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run/p.sock");
        let environment = test_environment();
        let mut listening = reserve(&path).expect("free").listen(&only_own_user()).expect("listens");
        std::fs::remove_dir_all(parent(&path)).expect("removed");
        let second = reserve(&path).expect("free again").listen(&only_own_user()).expect("listens");
        assert!(matches!(listening.restore(&environment, &only_own_user()), Err(SocketError::InUse { .. })));
        assert!(second.is_in_place());
    }

    #[test]
    fn does_not_remove_replaced_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("p.sock");
        let listening = reserve(&path).expect("free").listen(&only_own_user()).expect("listens");
        std::fs::rename(&path, dir.path().join("moved")).expect("moved");
        let _other = StdListener::bind(&path).expect("bound");
        listening.remove();
        assert!(path.exists());
    }

    #[test]
    fn rejects_writable_or_shared_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).expect("a mode");
        let error = reserve(&dir.path().join("p.sock")).expect_err("writable");
        assert!(error.to_string().contains("others can write"), "{error}");
        for path in ["/p.sock", "/tmp/p.sock", "/home/p.sock"] {
            assert!(reserve(Path::new(path)).expect_err("shared").is_usage(), "{path}");
        }
        assert!(reserve(&dir.path().join("x".repeat(200))).expect_err("long").is_usage());
    }
}
