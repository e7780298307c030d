//! Provides a Unix stream that wakes its task only for the events that the task waits for.
//!
//! A stream of tokio is registered for reading and for writing. The kernel then reports the socket as writable each
//! time that the other side reads, so that an exchange of a request and an answer wakes the runtime twice as often as
//! necessary. This stream is registered for reading, and for writing only while the socket is full.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// A connected Unix stream of a task.
#[derive(Debug)]
pub struct QuietStream {
    socket: AsyncFd<UnixStream>,
    /// A second descriptor of the socket, registered for writing while the socket is full.
    write_waiter: Option<AsyncFd<OwnedFd>>,
}

impl QuietStream {
    /// Registers a socket with the runtime. Must be called within a runtime.
    ///
    /// # Errors
    /// The socket cannot be registered.
    pub fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self { socket: register(socket, Interest::READABLE)?, write_waiter: None })
    }

    /// Writes, or waits until the socket accepts some of the `given` bytes.
    fn poll_write_with(
        &mut self,
        cx: &mut Context<'_>,
        total: usize,
        write: impl Fn(&UnixStream) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        loop {
            if let Some(full) = &self.write_waiter {
                let mut guard = ready!(full.poll_write_ready(cx))?;
                let Ok(wrote) = guard.try_io(|_| write(self.socket.get_ref())) else { continue };
                drop(guard);
                // A socket that accepted all bytes is not full any more.
                if wrote.as_ref().is_ok_and(|wrote| *wrote == total) {
                    self.write_waiter = None;
                }
                return Poll::Ready(wrote);
            }
            match write(self.socket.get_ref()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let socket = self.socket.get_ref().as_fd().try_clone_to_owned()?;
                    self.write_waiter = Some(register(socket, Interest::WRITABLE)?);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                wrote => return Poll::Ready(wrote),
            }
        }
    }
}

/// Registers a descriptor with the runtime for one kind of event.
#[expect(deprecated, reason = "deprecated for types that may change their descriptor; this module passes owned ones")]
fn register<T: AsRawFd>(descriptor: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, interest)
}

impl AsyncRead for QuietStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.socket.poll_read_ready(cx))?;
            let unfilled = buffer.initialize_unfilled();
            let length = unfilled.len();
            match ready.try_io(|socket| socket.get_ref().read(unfilled)) {
                Ok(Ok(read)) => {
                    // The socket is empty: the next read waits for an event instead of failing first.
                    if (1..length).contains(&read) {
                        ready.clear_ready();
                    }
                    buffer.advance(read);
                    return Poll::Ready(Ok(()));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(error)) => return Poll::Ready(Err(error)),
                Err(_) => {}
            }
        }
    }
}

impl AsyncWrite for QuietStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_with(cx, bytes.len(), |mut socket| socket.write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let given = parts.iter().map(|part| part.len()).sum();
        self.get_mut().poll_write_with(cx, given, |mut socket| socket.write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.socket.get_ref().shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn pair() -> (QuietStream, QuietStream) {
        let (one, other) = UnixStream::pair().expect("a pair");
        (QuietStream::new(one).expect("registers"), QuietStream::new(other).expect("registers"))
    }

    #[tokio::test]
    async fn delivers_more_bytes_than_socket_buffer() {
        let (mut one, mut other) = pair();
        let sent: Vec<u8> = (0..4_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        let expected = sent.clone();
        let writing = tokio::spawn(async move {
            one.write_all(&sent).await.expect("writes");
            let parts = [IoSlice::new(b"last "), IoSlice::new(b"words")];
            assert_eq!(one.write_vectored(&parts).await.expect("writes"), 10);
            one.shutdown().await.expect("shuts down");
            one
        });
        let mut found = Vec::new();
        other.read_to_end(&mut found).await.expect("reads");
        assert!(found == [expected.as_slice(), b"last words"].concat());
        drop(writing.await.expect("ends"));
    }

    #[tokio::test]
    async fn full_socket_becomes_writable_after_read() {
        let (mut one, mut other) = pair();
        let chunk = [7_u8; 64 << 10];
        let mut written = 0;
        while let Poll::Ready(wrote) = poll_fn(|cx| Poll::Ready(Pin::new(&mut one).poll_write(cx, &chunk))).await {
            written += wrote.expect("writes");
        }
        assert!(written > 0 && one.write_waiter.is_some());
        let mut found = vec![0; written];
        other.read_exact(&mut found).await.expect("reads");
        assert_eq!(one.write(&chunk[..100]).await.expect("writes"), 100);
        assert!(one.write_waiter.is_none());
    }

    #[tokio::test]
    async fn closed_peer_ends_reads_and_writes() {
        let (mut one, other) = pair();
        drop(other);
        assert_eq!(one.read(&mut [0; 8]).await.expect("the end"), 0);
        assert_eq!(one.write(b"x").await.expect_err("nobody reads").kind(), io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn reads_each_message_of_exchange() {
        let (mut one, mut other) = pair();
        let answering = tokio::spawn(async move {
            let mut byte = [0];
            while other.read(&mut byte).await.expect("reads") == 1 {
                other.write_all(&[byte[0] + 1]).await.expect("writes");
            }
        });
        for number in 0..100 {
            one.write_all(&[number]).await.expect("writes");
            let mut answer = [0; 16];
            assert_eq!(one.read(&mut answer).await.expect("reads"), 1);
            assert_eq!(answer[0], number + 1);
        }
        drop(one);
        answering.await.expect("ends");
    }
}
