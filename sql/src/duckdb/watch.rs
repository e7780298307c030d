//! A deadline for what a connection does: behind it the connection is interrupted, again and again until it stops.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use proctor_duckdb::Interrupter;

/// How long behind an interruption the next one comes: one that fell between two statements was for nobody.
const AGAIN: Duration = Duration::from_millis(5);

/// Does some work on the connection; what of it is under way at the deadline ends with an error of the engine.
pub(super) fn until<T>(deadline: Instant, interrupter: Interrupter, work: impl FnOnce() -> T) -> T {
    let (working, ended) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut patience = deadline.saturating_duration_since(Instant::now());
            while ended.recv_timeout(patience) == Err(RecvTimeoutError::Timeout) {
                interrupter.interrupt();
                patience = AGAIN;
            }
        });
        let done = work();
        drop(working);
        done
    })
}
