//! Whose rights on files count where something is looked up for another user: root would find for
//! that one what the one may not reach.

use std::io;
use std::thread;

use nix::unistd::{Gid, Uid, setfsgid, setfsuid};

/// A user and a group, with whose rights files are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

impl Reader {
    /// Does `work` with these rights, and in no group beside this one.
    ///
    /// # Errors
    /// We may not take them on. `work` is not done then.
    pub fn look<T: Send>(self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        if self.uid == rustix::process::geteuid().as_raw() {
            return Ok(work());
        }
        // They are a thread's own, and end with it whatever becomes of the work. The user is changed
        // for files alone: who became the user for signals too could be ended by them, and we with it.
        let take_on = || {
            rustix::thread::set_thread_groups(&[])?;
            self.take_on()
        };
        thread::scope(|scope| {
            let looking = scope.spawn(move || take_on().map(|()| work()));
            looking.join().unwrap_or_else(|_| Err(io::Error::other("the look ended badly")))
        })
    }

    /// The same in a process of root's that has one thread and has left its groups.
    pub(crate) fn look_here<T>(self, work: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.take_on()?;
        let done = work();
        Self { uid: 0, gid: 0 }.take_on()?;
        done
    }

    /// The kernel does not say whether it obeyed; a second call answers what the first one did.
    fn take_on(self) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        setfsgid(gid);
        setfsuid(uid);
        match setfsgid(gid) == gid && setfsuid(uid) == uid {
            true => Ok(()),
            false => Err(io::Error::other(format!("files cannot be used as user {uid} and group {gid}"))),
        }
    }
}
