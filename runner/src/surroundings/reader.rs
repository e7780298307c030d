//! Whose rights on files count where something is looked up for another user: root would find for
//! that one what the one may not reach.

use std::io;
use std::thread;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// A user and a group, with whose rights files are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reader {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Reader {
    /// Does `work` with these rights, and in no group beside this one.
    ///
    /// # Errors
    /// We may not take them on. `work` is not done then.
    pub(super) fn look<T: Send>(self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.uid == rustix::process::geteuid().as_raw() {
            return Ok(work());
        }
        // They are a thread's own, and end with it whatever becomes of the work. The user is changed
        // for files alone: who became the user for signals too could be ended by them, and we with it.
        thread::scope(|scope| {
            let looking = scope.spawn(|| self.take_on().map(|()| work()));
            looking.join().unwrap_or_else(|_| Err(io::Error::other("the look ended badly")))
        })
    }

    /// The kernel does not say whether it obeyed; a second call answers what the first one did.
    fn take_on(self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_thread_groups(&[])?;
        setfsgid(gid);
        setfsuid(uid);
        match setfsgid(gid) == gid && setfsuid(uid) == uid {
            true => Ok(()),
            false => Err(io::Error::other(format!("files cannot be used as user {uid} and group {gid}"))),
        }
    }
}
