//! What signals ask of the daemon.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that mean something.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// What a signal asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// SIGHUP: to read the config again.
    ToReload,
    /// The signal of this name: to end.
    ToEnd(&'static str),
}

impl Signals {
    /// Listens from now on.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next. Can be dropped and called again without losing one.
    pub(super) async fn next(&mut self) -> Asked {
        tokio::select! {
            _ = self.interrupt.recv() => Asked::ToEnd("SIGINT"),
            _ = self.terminate.recv() => Asked::ToEnd("SIGTERM"),
            _ = self.hangup.recv() => Asked::ToReload,
        }
    }
}
