//! Reaps helper processes on a background thread. After all processes of an attempt have ended, the kernel still
//! tears down its namespaces, and no run has to wait for that.

use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use crate::cgroup::AttemptCgroup;
use crate::wait::HelperProcess;

/// Reaps helpers. Dropping it waits until all of them are reaped.
#[derive(Debug)]
pub(crate) struct Reaper {
    jobs: Option<Sender<FinishedAttempt>>,
    thread: Option<JoinHandle<()>>,
}

/// The remains of an attempt.
type FinishedAttempt = (Option<HelperProcess>, Option<AttemptCgroup>);

impl Reaper {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system cannot start another thread.
    pub(crate) fn start() -> io::Result<Self> {
        let (jobs, inbox) = channel();
        let bury_all = move || inbox.into_iter().for_each(reap);
        let thread = thread::Builder::new().name("reaper".to_owned()).spawn(bury_all)?;
        Ok(Self { jobs: Some(jobs), thread: Some(thread) })
    }

    /// Takes over a helper that has nothing more to do, and the attempt's control group.
    pub(crate) fn reap_later(&self, helper: Option<HelperProcess>, group: Option<AttemptCgroup>) {
        let Some(jobs) = &self.jobs else { return reap((helper, group)) };
        if let Err(refused) = jobs.send((helper, group)) {
            reap(refused.0);
        }
    }
}

fn reap((helper, group): FinishedAttempt) {
    if let Some(mut helper) = helper {
        // A helper that cannot be killed is left to the kernel, so that it does not delay the others.
        drop(helper.wait_or_kill());
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
