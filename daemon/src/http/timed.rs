//! The body of a request, whose end must come within a deadline, and for which there must be room.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::time::{Sleep, sleep};

use super::room::{NoRoom, Room};

/// A body that fails with [`io::ErrorKind::TimedOut`] where it is not whole in time, and with [`NoRoom`] where
/// there is none for what came. The time begins when somebody wants to read it.
pub(super) struct Timed {
    body: Incoming,
    patience: Duration,
    late: Option<Pin<Box<Sleep>>>,
    room: Arc<Room>,
}

impl Timed {
    pub(super) fn new(body: Incoming, patience: Duration, room: Arc<Room>) -> Self {
        Self { body, patience, late: None, room }
    }
}

impl Body for Timed {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| {
                let frame = frame?;
                self.room.grow(frame.data_ref().map_or(0, Bytes::len))?;
                Ok(frame)
            }));
        }
        let patience = self.patience;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(patience)));
        late.as_mut().poll(cx).map(|()| Some(Err(io::Error::from(io::ErrorKind::TimedOut).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
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
