//! The thread that buries helpers: what is left of an attempt when all of its processes are gone
//! is the kernel's taking its namespaces apart, which nobody has to wait for.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::cgroup::Group;
use crate::wait::Helper;

/// Buries helpers. When it is dropped, all of them are buried.
#[derive(Debug)]
pub(crate) struct Reaper {
    jobs: Option<Sender<Remains>>,
    thread: Option<JoinHandle<()>>,
}

/// What is left of an attempt.
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

    /// Takes a helper that has nothing more to do, and the control group that it leaves.
    pub(crate) fn take(&self, helper: Option<Helper>, group: Option<Group>) {
        let Some(jobs) = &self.jobs else { return bury((helper, group)) };
        if let Err(refused) = jobs.send((helper, group)) {
            bury(refused.0);
        }
    }
}

fn bury((helper, group): Remains) {
    if let Some(mut helper) = helper {
        // One that cannot be killed is left to the kernel: it must not hold the others.
        drop(helper.end());
    }
    // A group can be removed when nobody is in it.
    drop(group);
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.jobs.take();
        if let Some(thread) = self.thread.take() {
            // It has panicked: then nothing is left to wait for.
            drop(thread.join());
        }
    }
}
