//! Splits the body of a response into slices, and keeps the turn of the request active until the body is sent.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use super::seat::Turn;

/// Maximum number of bytes written at a time. Each slice must be accepted within the write deadline, so a steady
/// reader gets the whole body, however long that takes.
pub(super) const SLICE: usize = 64 << 10;

/// A response body, and the turn that ends when the body is sent or aborted.
#[derive(Debug)]
pub(super) struct Metered {
    body: Body,
    /// Bytes of the body that were not sent yet.
    rest: Bytes,
    _turn: Turn,
}

impl Metered {
    pub(super) fn new(body: Body, turn: Turn) -> Self {
        Self { body, rest: Bytes::new(), _turn: turn }
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        let length = self.rest.len().min(SLICE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let (rest, body) = (self.rest.len() as u64, self.body.size_hint());
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

    use super::super::seat::Seat;
    use super::*;

    #[tokio::test]
    async fn a_long_answer_goes_out_in_slices_and_is_the_same() {
        let whole: Vec<u8> = (0..3 * SLICE + 1).map(|n| n.to_le_bytes()[1]).collect();
        let mut body = Metered::new(Body::from(whole.clone()), Seat::new(7).begin());
        let mut told = Vec::new();
        while !body.is_end_stream() {
            assert_eq!(body.size_hint().exact(), Some((whole.len() - told.len()) as u64));
            let slice = body.frame().await.expect("more").expect("no error").into_data().expect("data");
            assert!(!slice.is_empty() && slice.len() <= SLICE, "{}", slice.len());
            told.extend_from_slice(&slice);
        }
        assert!(told == whole && body.frame().await.is_none());
    }
}
