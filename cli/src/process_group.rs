//! Starts a program in a new process group. This is the only file that uses `command-group`.

use std::io;
use std::process::{Command, ExitStatus};

use command_group::{CommandGroup as _, GroupChild};

/// A process group that this process started. Dropping it leaves the processes running.
#[derive(Debug)]
pub(crate) struct ProcessGroup(GroupChild);

impl ProcessGroup {
    /// Starts a program. Signals of the terminal do not reach its group.
    ///
    /// # Errors
    /// The program cannot be started.
    pub(crate) fn spawn(command: &mut Command) -> io::Result<Self> {
        command.group_spawn().map(Self)
    }

    /// Returns the id of the group, which is that of its first process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Returns the exit status of the first process if every process of the group that is a child of this one has ended.
    ///
    /// # Errors
    /// The processes cannot be waited for.
    pub(crate) fn try_wait(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }
}

#[cfg(test)]
mod tests {
    use rustix::process::{WaitId, WaitIdOptions};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a program for the test")]
    fn leads_a_group_of_its_own() {
        let mut group = ProcessGroup::spawn(Command::new("sh").args(["-c", "exit 3"])).expect("started");
        assert_ne!(i64::from(group.id()), i64::from(rustix::process::getpgrp().as_raw_nonzero().get()));
        let first = rustix::process::Pid::from_raw(group.id().cast_signed()).expect("an id");
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        rustix::process::waitid(WaitId::Pid(first), ended).expect("its own child");
        let status = group.try_wait().expect("its own child");
        assert_eq!(status.and_then(|status| status.code()), Some(3));
    }
}
