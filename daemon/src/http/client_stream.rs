//! Reads and writes the bytes of one connection. A write that the client does not accept before the deadline ends the
//! connection. A request that cannot be parsed is answered with a problem too.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use proctor_core::api::{Problem, ProblemType};
use proctor_runner::QuietStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::connection_state::ConnectionState;
use super::limits::{DISCARD_PAUSE, MAX_BODY, MAX_DISCARDED, MAX_FIELDS, MAX_HEAD};
use super::response::raw_problem_response;

/// Byte stream of one connection.
pub(super) struct ClientStream {
    stream: QuietStream,
    state: Arc<ConnectionState>,
    write_timeout: Duration,
    /// Write deadline; it runs while the client has not accepted all bytes.
    write_deadline: Option<Pin<Box<Sleep>>>,
    /// Response sent instead of the one that `hyper` generates.
    replacement: Option<Bytes>,
    /// Bytes read since the last response.
    head_read: HeadRead,
    /// Number of bytes discarded after the final response, and the deadline for that.
    discarded: usize,
    discard_deadline: Option<Pin<Box<Sleep>>>,
}

/// Amount of a request head that was read; it shows why the head was refused.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct HeadRead {
    bytes: usize,
    lines: usize,
}

impl ClientStream {
    pub(super) fn new(stream: QuietStream, state: Arc<ConnectionState>, patience: Duration) -> Self {
        Self {
            stream,
            state,
            write_timeout: patience,
            write_deadline: None,
            replacement: None,
            head_read: HeadRead::default(),
            discarded: 0,
            discard_deadline: None,
        }
    }

    /// Handles the result of a write of `given` bytes. Only a complete write resets the deadline; otherwise a client
    /// that reads one byte a minute would never time out.
    fn check_write(
        &mut self,
        cx: &mut Context<'_>,
        wrote: Poll<io::Result<usize>>,
        given: usize,
    ) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(count)) = &wrote
            && *count == given
        {
            self.write_deadline = None;
            return wrote;
        }
        let patience = self.write_timeout;
        let stalled = self.write_deadline.get_or_insert_with(|| Box::pin(sleep(patience)));
        match (wrote, stalled.as_mut().poll(cx)) {
            (Poll::Pending, Poll::Ready(())) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            (wrote, _) => wrote,
        }
    }

    /// Replaces the bodyless response of `hyper` to a head that it could not parse. No other response is being
    /// written then.
    fn replace_response(&mut self, response: &[u8]) -> bool {
        if self.replacement.is_some() {
            return true;
        }
        if !self.state.has_request()
            && let Some(problem) = unreadable_head_problem(response, self.head_read)
        {
            self.replacement = Some(raw_problem_response(&problem));
            return true;
        }
        false
    }

    /// Discards further input, within bounds, after the final response. A client that still sends when the connection
    /// is closed might lose the response.
    fn poll_discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut buffer = [0_u8; 4096];
        while self.discarded < MAX_DISCARDED {
            let mut read = ReadBuf::new(&mut buffer);
            match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
                Poll::Ready(Ok(())) if !read.filled().is_empty() => self.discarded += read.filled().len(),
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    let lingers = self.discard_deadline.get_or_insert_with(|| Box::pin(sleep(DISCARD_PAUSE)));
                    return lingers.as_mut().poll(cx);
                }
            }
        }
        Poll::Ready(())
    }

    fn poll_replacement(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(mut rest) = self.replacement.take_if(|words| !words.is_empty()) {
            let wrote = Pin::new(&mut self.stream).poll_write(cx, &rest);
            let wrote = self.check_write(cx, wrote, rest.len());
            if let Poll::Ready(Ok(count)) = &wrote {
                rest.advance(*count);
            }
            self.replacement = Some(rest);
            if ready!(wrote)? == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the problem for a request head over the limit; `how` describes the excess.
pub(super) fn head_too_large(how: &str) -> Problem {
    Problem::new(ProblemType::HeadTooLarge, format!("the head of the request {how}"))
}

/// Returns the problem for an unreadable head, from the response of `hyper` and the amount that was read.
fn unreadable_head_problem(response: &[u8], head: HeadRead) -> Option<Problem> {
    let status = response.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    match status {
        b"400" => {
            let problem = Problem::new(ProblemType::InvalidRequest, "the request does not use HTTP/1.1");
            Some(problem.with_hint("use an HTTP client such as `curl --unix-socket`"))
        }
        b"414" | b"431" => {
            let HeadRead { bytes, lines } = head;
            Some(match () {
                () if bytes >= MAX_HEAD => head_too_large(&format!("is larger than {MAX_HEAD} bytes, the maximum")),
                () if lines > MAX_FIELDS => head_too_large(&format!("has more than {MAX_FIELDS} fields, the maximum")),
                // A head that was read while an earlier request was being answered was not counted.
                () if lines == 0 => {
                    head_too_large(&format!("is larger than {MAX_HEAD} bytes, or has more than {MAX_FIELDS} fields"))
                }
                // The remaining cause is a `Content-Length` that overflows.
                () => Problem::new(
                    ProblemType::TooLarge,
                    format!("the declared body of the request is larger than {MAX_BODY} bytes, the maximum"),
                ),
            })
        }
        _ => None,
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
        if !self.state.has_request() {
            let read = &buf.filled()[before..];
            self.head_read.bytes = self.head_read.bytes.saturating_add(read.len());
            self.head_read.lines =
                self.head_read.lines.saturating_add(read.iter().filter(|byte| **byte == b'\n').count());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if self.replace_response(buf) {
            return Poll::Ready(Ok(buf.len()));
        }
        let wrote = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.check_write(cx, wrote, buf.len())
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let given = bufs.iter().map(|buf| buf.len()).sum();
        if self.replace_response(bufs.iter().find(|buf| !buf.is_empty()).map_or(&[], |buf| buf)) {
            return Poll::Ready(Ok(given));
        }
        let wrote = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.check_write(cx, wrote, given)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(cx))?;
        ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
        self.state.record_flush();
        self.head_read = HeadRead::default();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_replacement(cx))?;
        ready!(Pin::new(&mut self.stream).poll_shutdown(cx))?;
        if self.replacement.is_some() {
            ready!(self.poll_discard(cx));
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_status_of_hyper_response_to_problem() {
        let status = |head_text: &str| {
            unreadable_head_problem(head_text.as_bytes(), HeadRead::default()).map(|problem| problem.status)
        };
        assert_eq!(status("HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n"), Some(400));
        assert_eq!(status("HTTP/1.1 431 Request Header Fields Too Large\r\n\r\n"), Some(431));
        assert_eq!(status("HTTP/1.1 414 URI Too Long\r\n\r\n"), Some(431));
        assert_eq!(status("HTTP/1.1 100 Continue\r\n\r\n"), None);
        assert_eq!(status("HTTP/1.1 4"), None);
    }

    #[test]
    fn names_the_bound_that_a_head_exceeds() {
        let detail = |bytes, lines| {
            let problem =
                unreadable_head_problem(b"HTTP/1.1 431 Request Header Fields Too Large\r\n", HeadRead { bytes, lines });
            problem.map(|problem| (problem.status, problem.detail)).expect("a problem")
        };
        for (read, status, word) in [
            ((MAX_HEAD, 3), 431, "65536 bytes"),
            ((2_000, 103), 431, "more than 100 fields"),
            ((90, 4), 413, "body of the request is larger than"),
        ] {
            let found = detail(read.0, read.1);
            assert!(found.0 == status && found.1.contains(word), "{read:?}: {found:?}");
        }
    }
}
