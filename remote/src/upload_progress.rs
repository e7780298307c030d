//! Detects a server that no longer reads an upload.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The deadlines of an upload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UploadLimits {
    /// For the whole upload.
    pub(crate) total: Duration,
    /// From one message until the connection takes the next one.
    pub(crate) idle: Duration,
    /// From the last message to the answer.
    pub(crate) answer: Duration,
}

/// The messages that the connection has taken so far. It takes no message while the server does not read.
#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    messages: AtomicU64,
    has_ended: AtomicBool,
}

impl UploadProgress {
    /// Counts a message.
    pub(crate) fn note_message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that there are no more messages.
    pub(crate) fn note_end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }

    fn state(&self) -> (u64, bool) {
        (self.messages.load(Ordering::Relaxed), self.has_ended.load(Ordering::Relaxed))
    }

    /// Waits until nothing has changed for the time of the limit, and returns this limit.
    pub(crate) async fn wait_for_stall(&self, limits: UploadLimits) -> Duration {
        loop {
            let before = self.state();
            let (_, has_ended) = before;
            let limit = if has_ended { limits.answer } else { limits.idle };
            tokio::time::sleep(limit).await;
            if self.state() == before {
                return limit;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{Instant, sleep};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const LIMITS: UploadLimits = UploadLimits { total: SECOND, idle: SECOND, answer: Duration::from_secs(9) };

    #[tokio::test(start_paused = true)]
    async fn progress_postpones_the_deadline() {
        let (progress, began) = (UploadProgress::default(), Instant::now());
        let work = async {
            for _ in 0..10 {
                progress.note_message();
                sleep(SECOND / 2).await;
            }
            std::future::pending::<()>().await;
        };
        let limit = tokio::select! {
            limit = progress.wait_for_stall(LIMITS) => limit,
            () = work => Duration::ZERO,
        };
        assert_eq!(limit, LIMITS.idle);
        assert!((5..8).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn answer_has_its_own_deadline() {
        let (progress, began) = (UploadProgress::default(), Instant::now());
        progress.note_message();
        progress.note_end();
        assert_eq!(progress.wait_for_stall(LIMITS).await, LIMITS.answer);
        assert_eq!(began.elapsed(), LIMITS.answer);
    }
}
