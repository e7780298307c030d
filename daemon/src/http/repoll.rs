//! Polls a future again immediately if it wakes its own task during a poll.
//!
//! `hyper` passes the body of a request between two parts of the same connection and wakes the task of the connection
//! for that. The runtime puts a task that wakes itself at the end of a queue and wakes another thread to take it,
//! which costs more than the rest of a small request.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// Maximum number of consecutive polls. After that, the future yields to other tasks.
const MAX_POLLS: usize = 8;

/// No poll is active: a wake goes to the task.
const IDLE: u8 = 0;
/// A poll is active: a wake is recorded.
const POLLING: u8 = 1;
/// A wake was recorded during the poll.
const WOKEN: u8 = 2;

/// A future whose own wakes do not reach the runtime.
pub(super) struct RepollingFuture<F> {
    future: Pin<Box<F>>,
    wakes: Arc<WakeFilter>,
    waker: Waker,
}

struct WakeFilter {
    state: AtomicU8,
    task: AtomicWaker,
}

impl<F: Future> RepollingFuture<F> {
    pub(super) fn new(future: F) -> Self {
        let wakes = Arc::new(WakeFilter { state: AtomicU8::new(IDLE), task: AtomicWaker::new() });
        Self { future: Box::pin(future), waker: Arc::clone(&wakes).into(), wakes }
    }
}

impl<F: Future> Future for RepollingFuture<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, wakes, waker } = &mut *self;
        wakes.task.register(cx.waker());
        for _ in 0..MAX_POLLS {
            wakes.state.store(POLLING, Ordering::SeqCst);
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(waker)) {
                return Poll::Ready(output);
            }
            let ended = wakes.state.compare_exchange(POLLING, IDLE, Ordering::SeqCst, Ordering::SeqCst);
            if ended.is_ok() {
                return Poll::Pending;
            }
        }
        wakes.state.store(IDLE, Ordering::SeqCst);
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl Wake for WakeFilter {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let noted = self.state.compare_exchange(POLLING, WOKEN, Ordering::SeqCst, Ordering::SeqCst);
        if noted == Err(IDLE) {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Polls a future that wakes itself in each of its first `own` polls. Returns whether it was ready, how often it
    /// was polled and how often its task was woken.
    fn poll_once(own: usize, last: Poll<()>) -> (bool, usize, usize) {
        let (task, mut polls) = (Arc::new(WakeCounter::default()), 0);
        let future = poll_fn(|cx| {
            polls += 1;
            if polls > own {
                return last;
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        });
        let mut future = RepollingFuture::new(future);
        let poll = Pin::new(&mut future).poll(&mut Context::from_waker(&Arc::clone(&task).into()));
        drop(future);
        (poll.is_ready(), polls, task.0.load(Ordering::SeqCst))
    }

    #[test]
    fn polls_again_without_waking_the_task() {
        assert_eq!(poll_once(0, Poll::Pending), (false, 1, 0));
        assert_eq!(poll_once(2, Poll::Ready(())), (true, 3, 0));
        assert_eq!(poll_once(2, Poll::Pending), (false, 3, 0));
    }

    #[test]
    fn yields_to_other_tasks_after_a_bounded_number_of_polls() {
        assert_eq!(poll_once(usize::MAX, Poll::Pending), (false, MAX_POLLS, 1));
    }

    #[test]
    fn wake_between_polls_reaches_task() {
        let (task, mut kept) = (Arc::new(WakeCounter::default()), None);
        let future = poll_fn(|cx| {
            kept = Some(cx.waker().clone());
            Poll::<()>::Pending
        });
        let mut future = RepollingFuture::new(future);
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&Arc::clone(&task).into())).is_pending());
        drop(future);
        kept.expect("it was polled").wake();
        assert_eq!(task.0.load(Ordering::SeqCst), 1);
    }
}
