//! Enforces a deadline for work on a connection: after the deadline it interrupts the connection repeatedly until the
//! work ends.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use proctor_duckdb::Interrupter;

/// The time between two interrupts. An interrupt that arrives between two statements has no effect, so it is repeated.
const INTERRUPT_INTERVAL: Duration = Duration::from_millis(5);

/// Does some work on the connection. An operation that is still running at the deadline fails with an error of the
/// engine.
pub(super) fn run_until<T>(deadline: Instant, interrupter: Interrupter, work: impl FnOnce() -> T) -> T {
    let (working, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut timeout = deadline.saturating_duration_since(Instant::now());
            while ended.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
                interrupter.interrupt();
                timeout = INTERRUPT_INTERVAL;
            }
        });
        let done = work();
        drop(working);
        done
    })
}
