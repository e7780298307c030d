//! Looks up files with the rights of another user. Root would otherwise find files for a user who has no access to
//! them.

use std::io;
use std::thread;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// A user and a group whose rights apply to a lookup of files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsCredentials {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl FsCredentials {
    /// Runs `work` with these rights and with no supplementary groups.
    ///
    /// # Errors
    /// The process may not assume these rights. `work` does not run in that case.
    pub fn run<T: Send>(self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.uid == rustix::process::geteuid().as_raw() {
            return Ok(work());
        }
        // The rights belong to a separate thread, and end with it even if the work panics. Only the user for file
        // access changes: if the thread's real user changed too, that user could signal the thread, and thereby kill
        // the daemon.
        let apply = || {
            rustix::thread::set_thread_groups(&[])?;
            self.apply()
        };
        thread::scope(|scope| {
            let worker = scope.spawn(move || apply().map(|()| work()));
            worker.join().unwrap_or_else(|_| Err(io::Error::other("examining the file failed unexpectedly")))
        })
    }

    /// Does the same in a root process that has one thread and has dropped its supplementary groups.
    pub(crate) fn run_on_this_thread<T>(self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.apply()?;
        let done = work();
        Self { uid: 0, gid: 0 }.apply()?;
        done
    }

    /// Sets the rights for file access. The kernel does not report whether it obeyed, but a second call returns the
    /// id that the first one set.
    fn apply(self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setfsgid(gid);
        setfsuid(uid);
        match setfsgid(gid) == gid && setfsuid(uid) == uid {
            true => Ok(()),
            false => Err(io::Error::other(format!("files cannot be used as user {uid} and group {gid}"))),
        }
    }
}
