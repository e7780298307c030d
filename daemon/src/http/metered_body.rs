//! Splits the body of a response into slices, and keeps the turn of the request active until the body is sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::connection_state::ActiveRequest;

/// Maximum number of bytes written at a time. Each slice must be accepted within the write deadline, so a steady
/// reader gets the whole body, however long that takes.
pub(super) const MAX_SLICE_BYTES: usize = 64 << 10;

/// A response body, and the turn that ends when the body is sent or aborted.
#[derive(Debug)]
pub(super) struct MeteredBody {
    body: Body,
    /// Bytes of the body that were not sent yet.
    unsent: Bytes,
    _active_request: ActiveRequest,
}

impl MeteredBody {
    pub(super) fn new(body: Body, turn: ActiveRequest) -> Self {
        Self { body, unsent: Bytes::new(), _active_request: turn }
    }
}

impl HttpBody for MeteredBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.unsent.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.unsent = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = self.unsent.len().min(MAX_SLICE_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.unsent.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.unsent.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.unsent.len() as u64, self.body.size_hint());
        let mut hint = SizeHint::new();
        hint.set_lower(body.lower() + rest);
        if let Some(upper) = body.upper() {
            hint.set_upper(upper + rest);
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::super::connection_state::ConnectionState;
    use super::*;

    #[tokio::test]
    async fn sends_long_body_in_slices() {
        let whole: Vec<u8> = (0..3 * MAX_SLICE_BYTES + 1).map(|n| n.to_le_bytes()[1]).collect();
        let mut body = MeteredBody::new(Body::from(whole.clone()), ConnectionState::new(7).begin_request());
        let mut received = Vec::new();
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some((whole.len() - received.len()) as u64));
            let slice = body.frame().await.expect("more").expect("no error").into_data().expect("data");
            assert!(!slice.is_empty() && slice.len() <= MAX_SLICE_BYTES, "{}", slice.len());
            received.extend_from_slice(&slice);
        }
        assert!(received == whole && body.frame().await.is_none());
    }
}
