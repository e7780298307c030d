//! Handles signals: the first SIGINT, SIGTERM or SIGHUP requests cancellation, and a later Ctrl-C exits at once. The
//! kernel kills the processes of a step when this process ends.

use std::io;

use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The termination signals of this process during a run.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    cancel: CancellationToken,
    first_signal: Option<&'static str>,
}

/// The effect of a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SignalEffect {
    /// The run was asked to end, by the signal of this name.
    Cancel(&'static str),
    /// A repeated signal; the run is still ending.
    Repeated,
    /// Ctrl-C during the cancellation: the user does not want to wait any longer.
    ExitNow,
}

impl Interrupts {
    /// Starts to listen; the first signal cancels `cancel`.
    ///
    /// # Errors
    /// The signal handlers cannot be installed.
    pub(crate) fn listen(cancel: CancellationToken) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            cancel,
            first_signal: None,
        })
    }

    /// Waits for the next signal. It is cancel-safe: dropping the future loses no signal.
    pub(crate) async fn next(&mut self) -> SignalEffect {
        let name = tokio::select! {
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.hangup.recv() => "SIGHUP",
        };
        let effect = signal_effect(self.first_signal, name);
        if let SignalEffect::Cancel(name) = effect {
            self.first_signal = Some(name);
            self.cancel.cancel();
        }
        effect
    }

    /// Returns the name of the signal that requested cancellation, if there was one.
    pub(crate) fn first_signal(&self) -> Option<&'static str> {
        self.first_signal
    }
}

fn signal_effect(first: Option<&'static str>, name: &'static str) -> SignalEffect {
    match (first, name) {
        (None, name) => SignalEffect::Cancel(name),
        (Some(_), "SIGINT") => SignalEffect::ExitNow,
        (Some(_), _) => SignalEffect::Repeated,
    }
}

/// Runs `work` to completion and returns its result, or `None` if SIGINT, SIGTERM or SIGHUP arrived first.
pub(crate) async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    let Ok(mut interrupts) = Interrupts::listen(CancellationToken::new()) else { return Some(work.await) };
    tokio::select! {
        done = work => Some(done),
        _ = interrupts.next() => None,
    }
}

/// Exits immediately with the code for an interrupted run.
pub(crate) fn exit_interrupted() -> ! {
    std::process::exit(i32::from(EXIT_INTERRUPTED))
}

/// Installs a panic hook that prints a short message. A panic on the main thread exits with code 5.
pub(crate) fn install_panic_hook() {
    std::panic::set_hook(Box::new(|info| {
        use std::io::Write as _;
        let place = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
        let what = info.payload_as_str().unwrap_or("a panic without a message");
        let message = proctor_core::record::evidence::escape_output(what.as_bytes());
        // Ignore the error: standard error may be closed, and a panic inside the hook would abort the process.
        let _ = writeln!(
            io::stderr(),
            "error: internal error at {place}: {message}\nhint: this is a bug in Proctor; please report it with the command that you ran"
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
    fn first_signal_cancels_and_later_ctrl_c_exits() {
        assert_eq!(signal_effect(None, "SIGINT"), SignalEffect::Cancel("SIGINT"));
        assert_eq!(signal_effect(None, "SIGTERM"), SignalEffect::Cancel("SIGTERM"));
        assert_eq!(signal_effect(Some("SIGTERM"), "SIGINT"), SignalEffect::ExitNow);
        assert_eq!(signal_effect(Some("SIGINT"), "SIGTERM"), SignalEffect::Repeated);
    }
}
