//! Executes actions on a server.
//!
//! A server answers with a stream of states of one operation. If the stream breaks, the client asks for the same
//! operation again, or restarts the action if the server has lost the operation. The client also restarts an action
//! whose operation ended with a temporary error. If the server has no worker, or its scheduler is restarting, the
//! client retries for some time.

use std::time::{Duration, Instant};

use prost::Message as _;
use tonic::Code;

use crate::blob::BlobDigest;
use crate::client::{AnswerStream, Attempts, Client, Method, random_u64};
use crate::error::{EXECUTE_NAME, QUEUE_WAIT, RemoteError, WAIT_NAME};
use crate::messages::{
    Any, CancelOperationRequest, Empty, ExecuteOperationMetadata, ExecuteRequest, ExecuteResponse, Operation, SHA256,
    WaitExecutionRequest,
};
use crate::retry::RetryPolicy;

const EXECUTE: Method = Method { name: EXECUTE_NAME, path: "/build.bazel.remote.execution.v2.Execution/Execute" };
const WAIT: Method = Method { name: WAIT_NAME, path: "/build.bazel.remote.execution.v2.Execution/WaitExecution" };
const CANCEL: Method = Method { name: "CancelOperation", path: "/google.longrunning.Operations/CancelOperation" };
const RESPONSE_TYPE: &str = "/build.bazel.remote.execution.v2.ExecuteResponse";
const METADATA_TYPE: &str = "/build.bazel.remote.execution.v2.ExecuteOperationMetadata";
/// The number of the stage in which the action waits for a worker.
const QUEUED: i32 = 2;
/// The number of the stage in which a worker executes the action.
const EXECUTING: i32 = 3;
/// The same for an action that has ended.
const COMPLETED: i32 = 4;
/// Number of times that an action may return to the queue and get new deadlines. Servers have similar limits.
const MAX_REQUEUES: u32 = 10;

/// Time for which a server that executes an action may be unavailable, for example to restart.
const MAX_RESTART: Duration = Duration::from_secs(10);
/// Time between two attempts to connect to such a server.
const RESTART_PAUSE: Duration = Duration::from_millis(250);
/// Maximum number of waits for a restarting server during one execution.
const MAX_RECONNECTIONS: u32 = 10;

/// An action to be executed. Its blobs must be stored already.
#[derive(Debug, Clone)]
pub struct ExecutionRequest {
    /// The digest of the action.
    pub action: BlobDigest,
    /// True if the server must not use a stored result of the action.
    pub skip_cache: bool,
    /// The deadlines.
    pub limits: ExecutionLimits,
}

/// The deadlines of an execution. They are independent of each other, because a queue says nothing about the action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExecutionLimits {
    /// From the request to the start of the action.
    pub queue: Duration,
    /// From the start of the action to its end, transfers on the worker included.
    pub run: Duration,
}

/// The progress of an execution.
#[derive(Debug)]
struct Progress {
    limits: ExecutionLimits,
    requested: Instant,
    started: Option<Instant>,
    /// The name of the operation, if the server has reported it.
    operation: Option<String>,
    /// Number of received states.
    states: u64,
    /// Number of times that the action returned to the queue.
    requeues: u32,
    /// Number of waits for the server after it had accepted the action.
    reconnections: u32,
    /// Since when the server cannot execute the action, and the number of its answers since then.
    busy: Option<(Instant, u32)>,
    /// True if the operation has ended.
    ended: bool,
}

impl Progress {
    fn new(limits: ExecutionLimits) -> Self {
        let requested = Instant::now();
        Self {
            limits,
            requested,
            started: None,
            operation: None,
            states: 0,
            requeues: 0,
            reconnections: 0,
            busy: None,
            ended: false,
        }
    }

    /// Returns whether to wait until the server is available again. There is no wait for a server that has not accepted
    /// the action.
    fn may_reconnect(&mut self) -> bool {
        self.reconnections += 1;
        self.states > 0 && self.reconnections <= MAX_RECONNECTIONS
    }

    /// Returns the pause before the next request to a busy server; `None` if the server has been busy for too long.
    fn busy_pause(&mut self, now: Instant, policy: &RetryPolicy) -> Option<Duration> {
        let (end, _, _) = self.deadline();
        let (since, answers) = self.busy.get_or_insert((now, 0));
        *answers += 1;
        let pause = policy.pause(*answers, random_u64());
        (now + pause < end.min(*since + policy.max_busy)).then_some(pause)
    }

    /// Returns the end of the current phase, its name, and its limit.
    fn deadline(&self) -> (Instant, &'static str, Duration) {
        match self.started {
            None => (self.requested + self.limits.queue, QUEUE_WAIT, self.limits.queue),
            Some(started) => (started + self.limits.run, "the action", self.limits.run),
        }
    }

    fn observe(&mut self, operation: &Operation, now: Instant) {
        self.states += 1;
        if !operation.name.is_empty() {
            self.operation = Some(operation.name.clone());
        }
        let stage = operation.metadata.as_ref().filter(|any| any.type_url.ends_with(METADATA_TYPE));
        let stage = stage.and_then(|any| ExecuteOperationMetadata::decode(any.value.as_slice()).ok());
        match (self.started, stage.map_or(0, |metadata| metadata.stage)) {
            (None, EXECUTING | COMPLETED) => self.started = Some(now),
            // The worker has failed, and the server looks for another one.
            (Some(_), QUEUED) if self.requeues < MAX_REQUEUES => {
                self.requeues += 1;
                (self.started, self.requested) = (None, now);
            }
            _ => {}
        }
        if operation.done {
            // The same operation would report the same result again.
            self.ended = true;
            (self.operation, self.started) = (None, None);
        }
    }
}

impl Client {
    /// Executes an action, and waits for its end. An answer means that the action ran, or that its stored result was
    /// used; its result contains the exit code. If `cancelled` ends first, or a deadline passes, the operation is
    /// cancelled.
    ///
    /// # Errors
    /// The server did not execute the action to its end.
    pub async fn execute(
        &self,
        request: &ExecutionRequest,
        cancelled: impl Future<Output = ()>,
    ) -> Result<ExecuteResponse, RemoteError> {
        let mut progress = Progress::new(request.limits);
        let ended = tokio::select! {
            ended = self.follow(request, &mut progress) => ended,
            () = cancelled => Err(RemoteError::Cancelled),
        };
        if matches!(ended, Err(RemoteError::Cancelled | RemoteError::Deadline { .. }))
            && let Some(name) = progress.operation
        {
            self.cancel(name).await;
        }
        ended
    }

    /// Asks the server to cancel an operation. Servers need not implement this, so that a failure changes nothing.
    async fn cancel(&self, name: String) {
        if let Err(error) = self.unary_once::<_, Empty>(CANCEL, CancelOperationRequest { name }).await {
            tracing::debug!(%error, "an operation cannot be cancelled");
        }
    }

    async fn follow(
        &self,
        request: &ExecutionRequest,
        progress: &mut Progress,
    ) -> Result<ExecuteResponse, RemoteError> {
        let mut attempts = Attempts::default();
        loop {
            let states = progress.states;
            let followed = match self.open(request, progress.operation.clone()).await {
                Ok(stream) => self.follow_stream(stream, progress).await,
                Err(error) => Err(error),
            };
            let has_ended = std::mem::take(&mut progress.ended);
            if progress.states > states && !has_ended {
                // A long execution may lose its connection often.
                attempts = Attempts::default();
                progress.busy = None;
            }
            match followed {
                Ok(response) => return Ok(response),
                // The server has lost the operation.
                Err(error) if error.has_code(Code::NotFound) && progress.operation.take().is_some() => {
                    (progress.started, progress.requested) = (None, Instant::now());
                    self.pause_or_fail(&mut attempts, self.lost()).await?;
                }
                // An action that has reached its timeout would reach it again.
                Err(error) if has_ended && error.has_code(Code::DeadlineExceeded) => return Err(error),
                Err(error) => {
                    let (end, _, _) = progress.deadline();
                    if end <= Instant::now() {
                        return Err(error);
                    }
                    let is_lost = matches!(error, RemoteError::Unreachable { .. });
                    if is_lost && progress.may_reconnect() {
                        if self.wait_for_server(end).await {
                            continue;
                        }
                        return Err(error);
                    }
                    // An action that a worker had started is not retried here: it may be the reason why the workers
                    // failed.
                    if !has_ended
                        && error.is_busy()
                        && let Some(pause) = progress.busy_pause(Instant::now(), &self.retry_policy())
                    {
                        tracing::debug!(%error, ?pause, "an action is sent again to a busy server");
                        tokio::time::sleep(pause).await;
                        continue;
                    }
                    self.pause_or_fail(&mut attempts, error).await?;
                }
            }
        }
    }

    /// Waits until the server accepts connections again. Returns `false` if it does not do so in time, or until `end`.
    async fn wait_for_server(&self, end: Instant) -> bool {
        let end = end.min(Instant::now() + MAX_RESTART);
        loop {
            // Without this pause, a connection that is being closed would count as available.
            tokio::time::sleep(RESTART_PAUSE).await;
            if self.can_connect().await {
                return true;
            }
            if Instant::now() >= end {
                return false;
            }
        }
    }

    fn lost(&self) -> RemoteError {
        let problem = "the server has lost the operation".to_owned();
        RemoteError::Unreachable { endpoint: self.endpoint().to_owned(), problem }
    }

    async fn open(
        &self,
        request: &ExecutionRequest,
        operation: Option<String>,
    ) -> Result<AnswerStream<Operation>, RemoteError> {
        match operation {
            Some(name) => self.stream_once(WAIT, WaitExecutionRequest { name }).await,
            None => {
                let message = ExecuteRequest {
                    instance_name: self.instance().to_owned(),
                    skip_cache_lookup: request.skip_cache,
                    action_digest: Some(request.action.to_message()),
                    digest_function: SHA256,
                };
                self.stream_once(EXECUTE, message).await
            }
        }
    }

    async fn follow_stream(
        &self,
        mut stream: AnswerStream<Operation>,
        progress: &mut Progress,
    ) -> Result<ExecuteResponse, RemoteError> {
        loop {
            let (end, what, limit) = progress.deadline();
            let rest = end.saturating_duration_since(Instant::now());
            let operation = match stream.next(rest).await {
                Ok(Some(operation)) => operation,
                Ok(None) => return Err(self.broken_stream()),
                Err(RemoteError::Deadline { .. }) => return Err(self.deadline_error(what, limit)),
                Err(error) => return Err(error),
            };
            progress.observe(&operation, Instant::now());
            if operation.done {
                return self.completed(operation);
            }
        }
    }

    fn broken_stream(&self) -> RemoteError {
        let problem = "the stream of an execution ended before the action".to_owned();
        RemoteError::Unreachable { endpoint: self.endpoint().to_owned(), problem }
    }

    /// Reads the response of an operation that has ended. A failure of the server can come with exit code 0, so the
    /// statuses are checked first.
    fn completed(&self, operation: Operation) -> Result<ExecuteResponse, RemoteError> {
        self.require_ok(EXECUTE, operation.error.as_ref())?;
        let response = operation.response.ok_or_else(|| self.violation(EXECUTE, "the operation has no result"))?;
        let response = decode_response(&response).map_err(|problem| self.violation(EXECUTE, problem))?;
        self.require_ok(EXECUTE, response.status.as_ref())?;
        if response.result.is_none() {
            return Err(self.violation(EXECUTE, "the action has no result"));
        }
        Ok(response)
    }
}

fn decode_response(any: &Any) -> Result<ExecuteResponse, String> {
    if !any.type_url.ends_with(RESPONSE_TYPE) {
        return Err("the operation has a result of another type".to_owned());
    }
    ExecuteResponse::decode(any.value.as_slice()).map_err(|error| error.to_string())
}
