//! Request body with a deadline and a memory limit.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep, timeout};

use super::limits::{DISCARD_PAUSE, MAX_DISCARDED};
use super::memory_budget::{MemoryBudgetExceeded, MemoryReservation};

/// A body that fails with [`io::ErrorKind::TimedOut`] if it is incomplete at the deadline, and with
/// [`MemoryBudgetExceeded`] if the caller's memory limit is reached. The time starts with the first read.
pub(super) struct LimitedRequestBody {
    /// `None` after the deadline, or once the value is dropped.
    body: Option<Incoming>,
    time_limit: Duration,
    deadline: Option<Pin<Box<Sleep>>>,
    reservation: Arc<MemoryReservation>,
    /// `true` if the rest of an unread body is read and discarded.
    discards_rest: bool,
}

impl LimitedRequestBody {
    pub(super) fn new(body: Incoming, patience: Duration, room: Arc<MemoryReservation>, lingers: bool) -> Self {
        Self { body: Some(body), time_limit: patience, deadline: None, reservation: room, discards_rest: lingers }
    }
}

impl Drop for LimitedRequestBody {
    /// Discards the rest of the body, within bounds, if the request was answered early: the client may read the
    /// answer only after it has sent everything. A body that missed its deadline gets no more time.
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| self.discards_rest && !body.is_end_stream()) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(discard(body, self.time_limit));
        }
    }
}

async fn discard(mut body: Incoming, time_limit: Duration) {
    let mut left = MAX_DISCARDED;
    let reading = async {
        while let Ok(Some(Ok(frame))) = timeout(DISCARD_PAUSE, body.frame()).await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(less) => left = less,
                None => break,
            }
        }
    };
    // The deadline ends the wait for a client that stops sending.
    let _ = timeout(time_limit, reading).await;
}

impl Body for LimitedRequestBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| {
                let frame = frame?;
                self.reservation.grow(frame.data_ref().map_or(0, Bytes::len))?;
                Ok(frame)
            }));
        }
        let patience = self.time_limit;
        let late = self.deadline.get_or_insert_with(|| Box::pin(sleep(patience)));
        ready!(late.as_mut().poll(cx));
        self.body = None;
        Poll::Ready(Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map(Incoming::size_hint).unwrap_or_default()
    }
}

/// Returns whether a body failed because it missed its deadline.
pub(super) fn is_timed_out(error: &(dyn std::error::Error + 'static)) -> bool {
    let is_timeout = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    };
    is_timeout(error) || error.source().is_some_and(is_timed_out)
}

/// Returns the error if a body failed because of the memory limit.
pub(super) fn memory_budget_exceeded<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> Option<&'a MemoryBudgetExceeded> {
    error.downcast_ref().or_else(|| error.source().and_then(memory_budget_exceeded))
}
