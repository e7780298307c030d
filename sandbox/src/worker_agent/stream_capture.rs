//! Reads an output stream of a command: hashes and counts all bytes, and keeps the beginning and the end.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use proctor_core::text::digest::Sha256Hex;
use rustix::io::Errno;
use sha2::{Digest as _, Sha256};

use crate::agent::AgentStream;

/// Number of bytes that one read can return.
const CHUNK: usize = 64 << 10;
/// Maximum number of bytes that are kept of a stream, whatever the request asks for.
const MAX_KEPT_BYTES: u64 = 256 << 20;

/// The part of a stream that was read so far.
#[derive(Debug)]
pub(super) struct StreamCapture {
    hasher: Sha256,
    bytes: u64,
    is_closed: bool,
    is_complete: bool,
    head: Vec<u8>,
    max_head: usize,
    tail: VecDeque<u8>,
    max_tail: usize,
}

impl StreamCapture {
    /// Returns a capture that keeps the first and the last half of `max` bytes.
    pub(super) fn with_both_ends(max: u64) -> Self {
        let max = usize::try_from(max.min(MAX_KEPT_BYTES)).unwrap_or(usize::MAX);
        Self::new(max - max / 2, max / 2)
    }

    /// Returns a capture that keeps the first `max` bytes.
    pub(super) fn with_beginning(max: usize) -> Self {
        Self::new(max, 0)
    }

    fn new(max_head: usize, max_tail: usize) -> Self {
        let (head, tail) = (Vec::new(), VecDeque::new());
        Self { hasher: Sha256::new(), bytes: 0, is_closed: false, is_complete: false, head, max_head, tail, max_tail }
    }

    /// Returns whether the stream has ended, or cannot be read any more.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Reads once. The descriptor must be ready.
    pub(super) fn read_from(&mut self, stream: BorrowedFd<'_>) {
        let mut buffer = vec![0; CHUNK];
        match rustix::io::read(stream, &mut buffer) {
            Ok(0) => (self.is_closed, self.is_complete) = (true, true),
            Ok(count) => self.push(&buffer[..count]),
            Err(Errno::INTR | Errno::AGAIN) => {}
            // The stream stays incomplete, which the report says.
            Err(_) => self.is_closed = true,
        }
    }

    fn push(&mut self, chunk: &[u8]) {
        self.hasher.update(chunk);
        self.bytes += chunk.len() as u64;
        let (head, rest) = chunk.split_at(chunk.len().min(self.max_head - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend(&rest[rest.len() - rest.len().min(self.max_tail)..]);
        self.tail.drain(..self.tail.len().saturating_sub(self.max_tail));
    }

    /// Returns the beginning as text, with invalid UTF-8 replaced.
    pub(super) fn beginning(&self) -> String {
        String::from_utf8_lossy(&self.head).into_owned()
    }

    /// Returns the description of the stream, and the content of its output file.
    pub(super) fn finish(self) -> (AgentStream, Vec<u8>) {
        let mut content = self.head;
        let head_bytes = content.len() as u64;
        content.extend(self.tail);
        let is_whole = content.len() as u64 == self.bytes;
        let stream = AgentStream {
            bytes: self.bytes,
            head_bytes: if is_whole { self.bytes } else { head_bytes },
            sha256: Some(Sha256Hex::from_raw(self.hasher.finalize().into())),
            complete: self.is_complete,
        };
        (stream, content)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    fn capture(max: u64, chunks: &[&[u8]]) -> (AgentStream, Vec<u8>) {
        let mut capture = StreamCapture::with_both_ends(max);
        chunks.iter().for_each(|chunk| capture.push(chunk));
        capture.finish()
    }

    #[test]
    fn keeps_a_short_stream() {
        let (stream, content) = capture(10, &[b"abcde", b"fghij"]);
        assert_eq!((stream.bytes, stream.head_bytes, content.as_slice()), (10, 10, &b"abcdefghij"[..]));
        assert_eq!(stream.sha256, Some(Sha256Hex::digest(b"abcdefghij")));
    }

    #[test]
    fn keeps_both_ends_of_a_long_stream() {
        for chunks in [&[&b"abcdefghijk"[..]][..], &[b"abcd", b"ef", b"ghi", b"jk"], &[b"a", b"bcdefghij", b"k"]] {
            let (stream, content) = capture(6, chunks);
            assert_eq!((stream.bytes, stream.head_bytes, content.as_slice()), (11, 3, &b"abcijk"[..]));
            assert_eq!(stream.sha256, Some(Sha256Hex::digest(b"abcdefghijk")));
        }
        let (stream, content) = capture(0, &[b"abc"]);
        assert_eq!((stream.bytes, stream.head_bytes, content.len()), (3, 0, 0));
    }

    #[test]
    fn reads_until_the_end() {
        let (ours, theirs) = rustix::pipe::pipe().expect("a pipe");
        rustix::io::write(&theirs, b"text \xff").expect("written");
        let mut capture = StreamCapture::with_beginning(6);
        capture.read_from(ours.as_fd());
        assert!(!capture.is_closed());
        drop(theirs);
        capture.read_from(ours.as_fd());
        assert!(capture.is_closed());
        assert_eq!(capture.beginning(), "text \u{fffd}");
        assert!(capture.finish().0.complete);
    }
}
