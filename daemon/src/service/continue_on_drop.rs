//! Runs a future in the task of a caller, and continues it to its end if the caller disconnects.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that continues in a separate task if it is dropped before it ends. Until it is dropped, it needs no
/// separate task and no switch between threads.
pub(super) struct ContinueOnDrop<F: Future<Output: Send> + Send + 'static>(Option<Pin<Box<F>>>);

impl<F: Future<Output: Send> + Send + 'static> ContinueOnDrop<F> {
    pub(super) fn new(future: F) -> Self {
        Self(Some(Box::pin(future)))
    }
}

impl<F: Future<Output: Send> + Send + 'static> Future for ContinueOnDrop<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // A future that panics must not be polled again, so it is put back only after it has returned.
        let Some(mut future) = self.0.take() else { return Poll::Pending };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            self.0 = Some(future);
        }
        polled
    }
}

impl<F: Future<Output: Send> + Send + 'static> Drop for ContinueOnDrop<F> {
    fn drop(&mut self) {
        // Without a runtime, the process is about to end.
        if let (Some(future), Ok(runtime)) = (self.0.take(), Handle::try_current()) {
            drop(runtime.spawn(future));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn returns_the_output() {
        assert_eq!(ContinueOnDrop::new(async { 7 }).await, 7);
    }

    #[tokio::test]
    async fn dropped_future_runs_to_its_end() {
        let (go, gone) = oneshot::channel::<()>();
        let (done, seen) = oneshot::channel();
        let mut future = ContinueOnDrop::new(async move {
            let _ = gone.await;
            let _ = done.send("ended");
        });
        assert!((&mut future).now_or_never().is_none(), "it waits");
        drop(future);
        go.send(()).expect("the future still waits");
        assert_eq!(seen.await, Ok("ended"));
    }

    #[tokio::test]
    async fn panicked_future_is_not_polled_again() {
        let (done, seen) = oneshot::channel::<()>();
        let mut future = ContinueOnDrop::new(async move {
            let _done = done;
            panic!("on purpose");
        });
        let polled = std::panic::AssertUnwindSafe(&mut future).catch_unwind().await;
        assert!(polled.is_err());
        drop(future);
        assert!(seen.await.is_err(), "the future was dropped");
    }
}
