//! Receives signals.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The handled signals.
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

/// Meaning of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalRequest {
    /// SIGHUP: reload the config.
    Reload,
    /// The named signal: shut down.
    Shutdown(&'static str),
}

impl Signals {
    /// Starts to receive signals.
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for the next signal. Cancellation is safe: no signal is lost.
    pub(super) async fn next(&mut self) -> SignalRequest {
        tokio::select! {
            _ = self.interrupt.recv() => SignalRequest::Shutdown("SIGINT"),
            _ = self.terminate.recv() => SignalRequest::Shutdown("SIGTERM"),
            _ = self.hangup.recv() => SignalRequest::Reload,
        }
    }
}
