//! Sends requests to a worker over its socket. Returns the answer, or the reason why none arrived in time.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use proctor_core::sql::SqlCode;
use tokio::io::AsyncWriteExt as _;

use crate::quiet_stream::QuietStream;
use crate::wire;
use crate::worker_request::{Unanswered, WorkerRequest};

/// The longest time that a worker may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The part of a message about a request that keeps its effects and got no answer.
const UNKNOWN_EFFECTS: &str = "either all of its changes were kept or none of them; it is unknown which";

/// The client's end of a worker's socket.
pub(crate) struct WorkerConnection(UnixStream);

/// The client's end of a worker's socket for asynchronous callers. It does not block a thread while the worker judges.
pub(crate) struct AsyncWorkerConnection {
    socket: QuietStream,
    /// A buffer for the bytes of a request, and then for those of its answer.
    buffer: Vec<u8>,
}

/// The reason why a worker gave no answer.
pub(crate) enum WorkerError {
    /// The answer did not arrive in time. The value is the time that the client waited.
    TimedOut(Duration),
    /// The worker has exited, or has sent something that is not an answer.
    Disconnected(io::Error),
}

impl WorkerConnection {
    pub(crate) fn new(socket: UnixStream) -> Self {
        Self(socket)
    }

    /// Ends the connection; the worker then exits.
    pub(crate) fn close(&self) {
        // A worker that has exited has closed it already.
        let _ = self.0.shutdown(std::net::Shutdown::Both);
    }

    /// Waits until the worker is ready.
    ///
    /// # Errors
    /// The worker does not report in time, or is another program.
    pub(crate) fn wait_until_ready(&self) -> io::Result<()> {
        let until = Instant::now() + START_TIMEOUT;
        match wire::read_frame::<String>(DeadlineReader { socket: &self.0, deadline: until })? {
            Some(message) if message == wire::READY_MESSAGE => Ok(()),
            Some(other) => Err(io::Error::other(format!("it is another program: its answer was {other:?}"))),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Sends a request and waits for its answer within the time limit of the request.
    ///
    /// # Errors
    /// The worker gives no answer. It must not be used again.
    pub(crate) fn send_request<Q: WorkerRequest>(&self, request: &Q) -> Result<Q::Answer, WorkerError> {
        let begun = Instant::now();
        let limit = request.answer_time();
        let exchange = || {
            let mut frame = Vec::new();
            wire::encode_request_into(&mut frame, Q::KIND, request)?;
            self.0.set_write_timeout(Some(limit))?;
            let mut socket = &self.0;
            socket.write_all(&frame)?;
            wire::read_frame::<Q::Answer>(DeadlineReader { socket: &self.0, deadline: begun + limit })
        };
        match exchange() {
            Ok(Some(answer)) => verified::<Q>(answer),
            Ok(None) => Err(WorkerError::Disconnected(io::ErrorKind::UnexpectedEof.into())),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(WorkerError::TimedOut(begun.elapsed()))
            }
            Err(error) => Err(WorkerError::Disconnected(error)),
        }
    }
}

impl AsyncWorkerConnection {
    /// Converts a connection on which no request has been sent yet. Must be called within a runtime.
    ///
    /// # Errors
    /// The socket cannot be registered with the runtime.
    pub(crate) fn from_blocking(connection: WorkerConnection) -> io::Result<Self> {
        connection.0.set_read_timeout(None)?;
        Ok(Self { socket: QuietStream::new(connection.0)?, buffer: Vec::new() })
    }

    /// Sends a request and waits for its answer within the time limit of the request.
    ///
    /// # Errors
    /// The worker gives no answer. It must not be used again.
    pub(crate) async fn send_request<Q: WorkerRequest>(&mut self, request: &Q) -> Result<Q::Answer, WorkerError> {
        let begun = Instant::now();
        let exchange = async {
            wire::encode_request_into(&mut self.buffer, Q::KIND, request)?;
            self.socket.write_all(&self.buffer).await?;
            wire::read_frame_async::<Q::Answer>(&mut self.socket, &mut self.buffer).await
        };
        match tokio::time::timeout(request.answer_time(), exchange).await {
            Ok(Ok(Some(answer))) => verified::<Q>(answer),
            Ok(Ok(None)) => Err(WorkerError::Disconnected(io::ErrorKind::UnexpectedEof.into())),
            Ok(Err(error)) => Err(WorkerError::Disconnected(error)),
            Err(_) => Err(WorkerError::TimedOut(begun.elapsed())),
        }
    }
}

/// Checks that the digest of a judgement in an answer matches its content.
fn verified<Q: WorkerRequest>(answer: Q::Answer) -> Result<Q::Answer, WorkerError> {
    match Q::is_intact(&answer) {
        true => Ok(answer),
        false => Err(WorkerError::Disconnected(io::Error::other("the answer was damaged during transmission"))),
    }
}

/// Returns the reason why there is no answer of a worker that was killed because it exceeded the time limit.
pub(crate) fn timed_out(request: &impl WorkerRequest, took: Duration) -> Unanswered {
    let message = format!("it did not end within {} ms, so its worker was ended", request.limits().time_ms);
    match request.is_committing() {
        true => Unanswered::Failed(SqlCode::EngineDied, format!("{message}; {UNKNOWN_EFFECTS}")),
        false => Unanswered::Limit(SqlCode::TimeLimit, message, took),
    }
}

/// Returns the reason why there is no answer of an engine that died.
pub(crate) fn engine_died(request: &impl WorkerRequest, why: &str) -> Unanswered {
    let effects = if request.is_committing() { format!("; {UNKNOWN_EFFECTS}") } else { String::new() };
    Unanswered::Failed(SqlCode::EngineDied, format!("the engine died: {why}{effects}"))
}

/// A reader with one deadline for all reads of a socket, even if data keeps arriving.
struct DeadlineReader<'a> {
    socket: &'a UnixStream,
    deadline: Instant,
}

impl io::Read for DeadlineReader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.socket.set_read_timeout(Some(left))?;
        let mut socket = self.socket;
        socket.read(buffer)
    }
}
