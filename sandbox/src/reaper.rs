//! Reaps helper processes on a background thread. After all processes of an attempt have ended, the kernel still
//! tears down its namespaces, and no run has to wait for that.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::cgroup::Group;
use crate::wait::Helper;

/// Reaps helpers. Dropping it waits until all of them are reaped.
#[derive(Debug)]
pub(crate) struct Reaper {
    jobs: Option<Sender<Remains>>,
    thread: Option<JoinHandle<()>>,
}

/// The remains of an attempt.
type Remains = (Option<Helper>, Option<Group>);

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no thread left.
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, inbox) = channel();
        let bury_all = move || inbox.into_iter().for_each(bury);
        let thread = thread::Builder::new().name("reaper".to_owned()).spawn(bury_all)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Takes over a helper that has nothing more to do, and the attempt's control group.
    pub(crate) fn take(&self, helper: Option<Helper>, group: Option<Group>) {
        let Some(jobs) = &self.jobs else { return bury((helper, group)) };
        if let Err(refused) = jobs.send((helper, group)) {
            bury(refused.0);
        }
    }
}

fn bury((helper, group): Remains) {
    if let Some(mut helper) = helper {
        // A helper that cannot be killed is left to the kernel, so that it does not delay the others.
        drop(helper.end());
    }
    // A group can be removed once it is empty.
    drop(group);
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // An error means that the thread has panicked, and there is nothing left to wait for.
            drop(thread.join());
        }
    }
}
