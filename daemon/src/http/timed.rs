//! The body of a request, whose end must come within a deadline, and for which there must be room.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep, timeout};

use super::room::{NoRoom, Room};
use super::{LINGER, MAX_DISCARDED};

/// A body that fails with [`io::ErrorKind::TimedOut`] where it is not whole in time, and with [`NoRoom`] where
/// there is none for what came. The time begins when somebody wants to read it.
pub(super) struct Timed {
    /// None once it was given up.
    body: Option<Incoming>,
    patience: Duration,
    late: Option<Pin<Box<Sleep>>>,
    room: Arc<Room>,
    /// Whether the rest is read where nobody wants it.
    lingers: bool,
}

impl Timed {
    pub(super) fn new(body: Incoming, patience: Duration, room: Arc<Room>, lingers: bool) -> Self {
        Self { body: Some(body), patience, late: None, room, lingers }
    }
}

impl Drop for Timed {
    /// Reads on, within bounds, where the request was answered before its body was there: the client may read the
    /// answer only after it has sent everything. A body that came too late gets no more time.
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| self.lingers && !body.is_end_stream()) else { return };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(discard(body, self.patience));
        }
    }
}

async fn discard(mut body: Incoming, patience: Duration) {
    let mut left = MAX_DISCARDED;
    let reading = async {
        while let Ok(Some(Ok(frame))) = timeout(LINGER, body.frame()).await {
            match left.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
                Some(less) => left = less,
                None => break,
            }
        }
    };
    // Who does not send is not waited for.
    let _ = timeout(patience, reading).await;
}

impl Body for Timed {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        if let Poll::Ready(frame) = Pin::new(body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| {
                let frame = frame?;
                self.room.grow(frame.data_ref().map_or(0, Bytes::len))?;
                Ok(frame)
            }));
        }
        let patience = self.patience;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(patience)));
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

/// Whether what went wrong with a body is that it came too late.
pub(super) fn is_late(error: &(dyn std::error::Error + 'static)) -> bool {
    let of_io = |error: &(dyn std::error::Error + 'static)| {
        error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::TimedOut)
    };
    of_io(error) || error.source().is_some_and(is_late)
}

/// What went wrong with a body, where that is that there is no room for it.
pub(super) fn no_room<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a NoRoom> {
    error.downcast_ref().or_else(|| error.source().and_then(no_room))
}
