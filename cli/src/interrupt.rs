//! Ctrl-C and SIGTERM: the first asks everything to end, a Ctrl-C after it ends us at once.
//! The processes of a step die with us; the kernel sees to that.

use std::io;

use proctor_core::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// What the caller's signals ask of a run.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    cancel: CancellationToken,
    first: Option<&'static str>,
}

/// What a signal led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The run was asked to end, by the signal of this name.
    ToEnd(&'static str),
    /// It had been asked before, and is still ending.
    Again,
    /// The caller waits no longer.
    ToLeave,
}

impl Interrupts {
    /// Listens from now on; the first signal cancels `cancel`.
    ///
    /// # Errors
    /// The signals cannot be listened to.
    pub(crate) fn listen(cancel: CancellationToken) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            cancel,
            first: None,
        })
    }

    /// Waits for the next signal. Can be dropped and called again without losing one.
    pub(crate) async fn next(&mut self) -> Asked {
        let name = tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        };
        let asked = answer(self.first, name);
        if let Asked::ToEnd(name) = asked {
            self.first = Some(name);
            self.cancel.cancel();
        }
        asked
    }

    /// The signal that asked the run to end, where one did.
    pub(crate) fn first(&self) -> Option<&'static str> {
        self.first
    }
}

fn answer(first: Option<&'static str>, name: &'static str) -> Asked {
    match (first, name) {
        (None, name) => Asked::ToEnd(name),
        (Some(_), "SIGINT") => Asked::ToLeave,
        (Some(_), _) => Asked::Again,
    }
}

/// What `work` comes to; `None` where Ctrl-C, SIGTERM or SIGHUP came before.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    let Ok(mut interrupts) = Interrupts::listen(CancellationToken::new()) else { return Some(work.await) };
    tokio::select! {
        done = work => Some(done),
        _ = interrupts.next() => None,
    }
}

/// Ends this process now.
pub(crate) fn leave() -> ! {
    std::process::exit(i32::from(EXIT_INTERRUPTED))
}

/// From now on a panic is a short message and, on the main thread, exit code 5.
pub(crate) fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        use std::io::Write as _;
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("a panic without a message");
        let message = proctor_core::evidence::escape_output(what.as_bytes());
        // Standard error may be gone; a panic in here would abort.
        let _ = writeln!(
            io::stderr(),
            "error: internal error at {place}: {message}\nhint: this is a bug in proctor; please report it, with the command that you ran"
        );
        if std::thread::current().name() == Some("main") {
            std::process::exit(i32::from(EXIT_INCONCLUSIVE));
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_asks_and_a_later_ctrl_c_insists() {
        assert_eq!(answer(None, "SIGINT"), Asked::ToEnd("SIGINT"));
        assert_eq!(answer(None, "SIGTERM"), Asked::ToEnd("SIGTERM"));
        assert_eq!(answer(Some("SIGTERM"), "SIGINT"), Asked::ToLeave);
        assert_eq!(answer(Some("SIGINT"), "SIGTERM"), Asked::Again);
    }
}
