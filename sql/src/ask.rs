//! One worker, asked over its socket: what it answers, or why it does not, within its time.

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proctor_core::sql::{Judgement, Request, SqlCode};
use tokio::io::AsyncWriteExt as _;

use crate::stream::QuietStream;
use crate::{chain, wire};

/// How long a worker may take to be there.
const START: Duration = Duration::from_secs(30);
/// How much longer than its limit a request may take. A worker that keeps the limit by itself has answered by then; in
/// some of what an engine does, such as folding constants, nothing can interrupt it.
const GRACE: Duration = Duration::from_millis(500);

/// Our end of a worker's socket.
pub(crate) struct Line(UnixStream);

/// The same end for asynchronous callers, which do not block a thread while the worker judges.
pub(crate) struct AsyncLine(QuietStream);

/// Why there is no answer.
pub(crate) enum Silence {
    /// It did not come in its time; that long it was waited for.
    Late(Duration),
    /// The worker is gone, or says what is no answer.
    Gone(io::Error),
}

impl Line {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Waits until the worker is there.
    ///
    /// # Errors
    /// It is not, or it is another program.
    pub(crate) fn hello(&self) -> io::Result<()> {
        let until = Instant::now() + START;
        match wire::read::<String>(Until { socket: &self.0, until })? {
            Some(said) if said == wire::HELLO => Ok(()),
            Some(other) => Err(io::Error::other(format!("it is another program: it answered {other:?}"))),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Asks, and waits for the answer as long as it may take.
    ///
    /// # Errors
    /// There is none. The worker is not to be asked again.
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
    /// Converts a line on which no request was sent yet. Must be called within a runtime.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub(crate) fn of(line: Line) -> io::Result<Self> {
        line.0.set_read_timeout(None)?;
        Ok(Self(QuietStream::new(line.0)?))
    }

    /// Sends a request and waits for its answer, within the time limit of the request.
    ///
    /// # Errors
    /// The worker gives no answer. It must not be asked again.
    pub(crate) async fn ask(&mut self, request: &Request) -> Result<Judgement, Silence> {
        let begun = Instant::now();
        let exchange = async {
            self.0.write_all(&wire::frame(request)?).await?;
            wire::receive::<Judgement>(&mut self.0).await
        };
        match tokio::time::timeout(request.limits.time() + GRACE, exchange).await {
            Ok(Ok(Some(judgement))) => intact(judgement),
            Ok(Ok(None)) => Err(Silence::Gone(io::ErrorKind::UnexpectedEof.into())),
            Ok(Err(error)) => Err(Silence::Gone(error)),
            Err(_) => Err(Silence::Late(begun.elapsed())),
        }
    }
}

/// Checks that a judgement has the digest of its content.
fn intact(judgement: Judgement) -> Result<Judgement, Silence> {
    match judgement.is_intact() {
        true => Ok(judgement),
        false => Err(Silence::Gone(io::Error::other("the answer was damaged on its way"))),
    }
}

/// The judgement of a request whose worker was ended because it was late: its limit's own.
pub(crate) fn late(request: &Request, took: Duration) -> Judgement {
    let message = format!("it did not end within {} ms, and its worker was ended", request.limits.time_ms);
    chain::ended(request, SqlCode::TimeLimit, message, took)
}

/// The judgement of a request of which the engine died.
pub(crate) fn died(request: &Request, why: &str) -> Judgement {
    chain::unjudged(request, request.dialect.title(), SqlCode::EngineDied, format!("the engine died: {why}"))
}

/// A socket that is read until a moment, however often something comes.
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
