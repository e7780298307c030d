//! Receives the signals by which the worker asks the agent to end.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use super::agent_error::AgentError;
use crate::sys::{self, BlockedSignals};

/// SIGTERM, SIGINT and SIGHUP, which are blocked and received through a descriptor.
pub(super) struct TerminationSignals {
    descriptor: SignalFd,
    received: Cell<bool>,
    _blocked: BlockedSignals,
}

impl TerminationSignals {
    /// Blocks the signals in this thread, and in the threads that it starts later.
    pub(super) fn block() -> Result<Self, AgentError> {
        let cannot = "cannot receive signals";
        let blocked = sys::block_termination_signals().map_err(AgentError::system(cannot))?;
        let signals: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let descriptor = SignalFd::with_flags(&signals, flags).map_err(AgentError::system(cannot))?;
        Ok(Self { descriptor, received: Cell::new(false), _blocked: blocked })
    }

    /// Returns whether one of the signals has arrived so far.
    pub(super) fn is_pending(&self) -> bool {
        if matches!(self.descriptor.read_signal(), Ok(Some(_))) {
            self.received.set(true);
        }
        self.received.get()
    }
}

impl AsFd for TerminationSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
