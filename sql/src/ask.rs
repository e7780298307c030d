//! Sends requests to a worker over its socket. Returns the answer, or the reason why none arrived in time.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proctor_core::sql::{Judgement, Request, SqlCode};
use tokio::io::AsyncWriteExt as _;

use crate::stream::QuietStream;
use crate::{chain, wire};

/// The longest time that a worker may take to start.
const START: Duration = Duration::from_secs(30);
/// The time beyond its limit that a request may take. A worker that can enforce the limit answers within this time.
/// Some operations of an engine, such as constant folding, cannot be interrupted.
const GRACE: Duration = Duration::from_millis(500);

/// The client's end of a worker's socket.
pub(crate) struct Line(UnixStream);

/// The client's end of a worker's socket for asynchronous callers. It does not block a thread while the worker judges.
pub(crate) struct AsyncLine {
    socket: QuietStream,
    /// A buffer for the bytes of a request, and then for those of its answer.
    buffer: Vec<u8>,
}

/// The reason why a worker gave no answer.
pub(crate) enum Silence {
    /// The answer did not arrive in time. The value is the time that the client waited.
    Late(Duration),
    /// The worker has exited, or has sent something that is not an answer.
    Gone(io::Error),
}

impl Line {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Waits until the worker is ready.
    ///
    /// # Errors
    /// The worker does not report in time, or is another program.
    pub(crate) fn hello(&self) -> io::Result<()> {
        let until = Instant::now() + START;
        match wire::read::<String>(Until { socket: &self.0, until })? {
            Some(said) if said == wire::HELLO => Ok(()),
            Some(other) => Err(io::Error::other(format!("it is another program: it answered {other:?}"))),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends a request and waits for its answer within the time limit of the request.
    ///
    /// # Errors
    /// The worker gives no answer. It must not be used again.
    pub(crate) fn ask(&self, request: &Request) -> Result<Judgement, Silence> {
        let begun = Instant::now();
        let limit = request.limits.time() + GRACE;
        let asked = self
            .0
            .set_write_timeout(Some(limit))
            .and_then(|()| wire::write(&self.0, request))
            .and_then(|()| wire::read::<Judgement>(Until { socket: &self.0, until: begun + limit }));
        match asked {
            Ok(Some(judgement)) => intact(judgement),
            Ok(None) => Err(Silence::Gone(io::ErrorKind::UnexpectedEof.into())),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(Silence::Late(begun.elapsed()))
            }
            Err(error) => Err(Silence::Gone(error)),
        }
    }
}

impl AsyncLine {
    /// Converts a line on which no request has been sent yet. Must be called within a runtime.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub(crate) fn of(line: Line) -> io::Result<Self> {
        line.0.set_read_timeout(None)?;
        Ok(Self { socket: QuietStream::new(line.0)?, buffer: Vec::new() })
    }

    /// Sends a request and waits for its answer within the time limit of the request.
    ///
    /// # Errors
    /// The worker gives no answer. It must not be used again.
    pub(crate) async fn ask(&mut self, request: &Request) -> Result<Judgement, Silence> {
        let begun = Instant::now();
        let exchange = async {
            wire::frame_into(&mut self.buffer, request)?;
            self.socket.write_all(&self.buffer).await?;
            wire::receive::<Judgement>(&mut self.socket, &mut self.buffer).await
        };
        match tokio::time::timeout(request.limits.time() + GRACE, exchange).await {
            Ok(Ok(Some(judgement))) => intact(judgement),
            Ok(Ok(None)) => Err(Silence::Gone(io::ErrorKind::UnexpectedEof.into())),
            Ok(Err(error)) => Err(Silence::Gone(error)),
            Err(_) => Err(Silence::Late(begun.elapsed())),
        }
    }
}

/// Checks that the digest of a judgement matches its content.
fn intact(judgement: Judgement) -> Result<Judgement, Silence> {
    match judgement.is_intact() {
        true => Ok(judgement),
        false => Err(Silence::Gone(io::Error::other("the answer was damaged on its way"))),
    }
}

/// Returns the judgement of a request whose worker was killed because it exceeded the time limit.
pub(crate) fn late(request: &Request, took: Duration) -> Judgement {
    let message = format!("it did not end within {} ms, and its worker was ended", request.limits.time_ms);
    chain::ended(request, SqlCode::TimeLimit, message, took)
}

/// Returns the judgement of a request during which the engine died.
pub(crate) fn died(request: &Request, why: &str) -> Judgement {
    chain::unjudged(request, request.dialect.title(), SqlCode::EngineDied, format!("the engine died: {why}"))
}

/// A reader with one deadline for all reads of a socket, even if data keeps arriving.
struct Until<'a> {
    socket: &'a UnixStream,
    until: Instant,
}

impl io::Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut socket = self.socket;
        socket.read(buffer)
    }
}
