//! Runs a profile in a daemon, and forwards its events as a run in this process would have sent them.

use std::time::Duration;

use proctor_client::error::ClientError;
use proctor_core::api::{
    ChangeDelivery, LoggedEvent, Problem, Reuse, RunSubmission, RunView, SubmissionOutcome, SubmittedRun,
};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::{EXIT_INTERRUPTED, Verdict};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_daemon::client::{Client, RunEventReader};
use proctor_runner::PatchResult;
use tokio::sync::mpsc;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::completed_run::{CompletedRun, ReusedRun};
use crate::daemon::{client_error, lost_run_error, problem_error};
use crate::error::CliError;
use crate::progress::last_lines::{self, LastLinesSender};

/// Maximum number of events that are held back until the run starts.
const MAX_EARLY_EVENTS: usize = 64;
/// Delay before a cancel request is repeated after a lost connection.
const CANCEL_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A run in a daemon.
pub(super) struct DaemonRun {
    /// Connection to the daemon.
    pub client: Client,
    /// The request.
    pub submission: RunSubmission,
    /// Receiver of the steps' last lines, if they are shown.
    pub lines: Option<LastLinesSender>,
}

impl DaemonRun {
    /// Submits the run and follows it until it ends. A cancellation is forwarded.
    ///
    /// # Errors
    /// The run does not exist, its end is unknown, or it was left to an earlier request for the same run.
    pub(super) async fn run(
        mut self,
        events: mpsc::Sender<RunEvent>,
        cancel: CancellationToken,
    ) -> Result<CompletedRun, CliError> {
        let submitted = tokio::select! {
            // Prefer an answer that has already arrived, even after a cancellation: it names the run to cancel.
            biased;
            submitted = self.submit() => submitted.map_err(client_error)?,
            () = cancel.cancelled() => return Err(cancelled_early_error()),
        };
        if submitted.how == SubmissionOutcome::Verified && self.submission.reuse == Reuse::Verified {
            return reused_result(submitted.run);
        }
        let id = submitted.run.id.clone();
        if let Some(lines) = self.lines.take() {
            last_lines::track_daemon(self.client.clone(), id.clone(), lines);
        }
        let mut forwarder = EventForwarder::new(id.clone(), events);
        let mut log = self.client.events(&id, 0);
        let end = self.follow(&mut log, &mut forwarder, submitted.how, &cancel).await?;
        let ended = forwarder.finish(end).await?;
        Ok(CompletedRun { patch: self.fetch_patch(&id).await, ..ended })
    }

    /// Submits the run. If the connection broke before the answer, the request is repeated: its idempotency key makes
    /// both requests mean the same run, whether or not the first one arrived. A request that timed out is not
    /// repeated.
    async fn submit(&self) -> Result<SubmittedRun, ClientError> {
        let Some(key) = new_idempotency_key() else { return self.client.submit(&self.submission, None).await };
        match self.client.submit(&self.submission, Some(&key)).await {
            Err(ClientError::ConnectionBroken { .. }) => self.client.submit(&self.submission, Some(&key)).await,
            answered => answered,
        }
    }

    async fn follow(
        &self,
        log: &mut RunEventReader,
        forwarder: &mut EventForwarder,
        how: SubmissionOutcome,
        cancel: &CancellationToken,
    ) -> Result<RunEnd, CliError> {
        let id = forwarder.id.clone();
        let ending = async {
            cancel.cancelled().await;
            if how == SubmissionOutcome::Joined { Err(left_running_error(&id)) } else { self.cancel_run(&id).await }
        };
        tokio::pin!(ending);
        let mut is_cancel_answered = false;
        loop {
            tokio::select! {
                event = log.next() => {
                    let event = event.map_err(|error| lost_run_error(error, &id))?;
                    let LoggedEvent { event, .. } = event.ok_or_else(|| truncated_log_error(&id))?;
                    if let RunEvent::RunFinished { verdict, exit_code, .. } = event {
                        return Ok(RunEnd { verdict, exit_code, event });
                    }
                    forwarder.forward(event).await;
                }
                cancelled = &mut ending, if !is_cancel_answered => {
                    cancelled?;
                    is_cancel_answered = true;
                }
            }
        }
    }

    /// Repeats the cancel request until the daemon has answered. If the daemon is gone for good, the event stream
    /// fails and ends this loop too.
    async fn cancel_run(&self, id: &RunId) -> Result<(), CliError> {
        loop {
            match self.client.cancel(id).await {
                Ok(_) => return Ok(()),
                // A daemon that is restarting needs some time until it listens.
                Err(error) if error.is_retryable() => sleep(CANCEL_RETRY_DELAY).await,
                Err(error) => return Err(lost_run_error(error, id)),
            }
        }
    }

    /// Fetches the patch, if one was requested.
    async fn fetch_patch(&self, id: &RunId) -> Option<PatchResult> {
        if self.submission.changes != ChangeDelivery::Patch {
            return None;
        }
        Some(match self.client.patch(id).await {
            Ok(bytes) => PatchResult::Written(bytes.to_vec()),
            Err(error) => PatchResult::Refused(error.to_string()),
        })
    }
}

/// Returns the result of a reused run. A run that did not pass must not be reused.
fn reused_result(run: RunView) -> Result<CompletedRun, CliError> {
    match (run.verdict, run.exit_code) {
        (Some(Verdict::Passed), Some(0)) => {
            Ok(CompletedRun::from_reused_run(ReusedRun { run: run.id, ended: run.finished_at }))
        }
        _ => Err(CliError::Internal(format!(
            "the daemon reported that run {} verifies the tree, but the run did not pass",
            run.id
        ))),
    }
}

/// Returns a random idempotency key, or `None` if the system has no random numbers.
fn new_idempotency_key() -> Option<String> {
    let mut random = [0; 16];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).ok()?;
    (filled == random.len()).then(|| format!("proctor-run-{}", random.map(|byte| format!("{byte:02x}")).concat()))
}

/// Forwards the events of the log that a run in this process would have sent.
struct EventForwarder {
    id: RunId,
    events: mpsc::Sender<RunEvent>,
    has_started: bool,
    early_events: Vec<RunEvent>,
    refused: Option<Problem>,
}

impl EventForwarder {
    fn new(id: RunId, events: mpsc::Sender<RunEvent>) -> Self {
        Self { id, events, has_started: false, early_events: Vec::new(), refused: None }
    }

    /// Forwards an event. Events before the start of the run are held back until it starts.
    async fn forward(&mut self, event: RunEvent) {
        match event {
            RunEvent::RunRefused { problem } => self.refused = Some(problem),
            RunEvent::RunQueued { .. } => self.send(event).await,
            RunEvent::RunStarted { .. } => {
                self.has_started = true;
                self.send(event).await;
                for event in std::mem::take(&mut self.early_events) {
                    self.send(event).await;
                }
            }
            event if self.has_started => self.send(event).await,
            event if self.early_events.len() < MAX_EARLY_EVENTS => self.early_events.push(event),
            _ => {}
        }
    }

    async fn send(&self, event: RunEvent) {
        // Ignore the error: the receiver has stopped listening.
        let _ = self.events.send(event).await;
    }

    /// Returns the result of the run. Its last event is forwarded only if the run started.
    async fn finish(self, end: RunEnd) -> Result<CompletedRun, CliError> {
        if let Some(problem) = self.refused {
            return Err(problem_error(problem));
        }
        if (end.verdict == Verdict::Passed) != (end.exit_code == 0) || end.exit_code == 0 && !self.has_started {
            let message = format!(
                "the daemon reported contradictory results for run {}: verdict {}, exit code {}",
                self.id,
                end.verdict.as_str(),
                end.exit_code
            );
            return Err(CliError::Internal(message));
        }
        if !self.has_started {
            return Err(never_started_error(&self.early_events, end.exit_code));
        }
        self.send(end.event).await;
        Ok(CompletedRun {
            verdict: end.verdict,
            exit_code: end.exit_code,
            doubts: Vec::new(),
            patch: None,
            reused: None,
        })
    }
}

/// The last event of a run, with its content.
struct RunEnd {
    verdict: Verdict,
    exit_code: u8,
    event: RunEvent,
}

fn never_started_error(early: &[RunEvent], exit_code: u8) -> CliError {
    let doubt = early.iter().find_map(|event| match event {
        RunEvent::Doubted { message, .. } => Some(message.clone()),
        _ => None,
    });
    CliError::Engine {
        message: doubt.unwrap_or_else(|| "the run ended before it began; nothing was verified".to_owned()),
        hint: Some("run again".to_owned()),
        exit_code,
        code: CommandCode::NeverBegan.code(),
    }
}

fn truncated_log_error(id: &RunId) -> CliError {
    CliError::Internal(format!("the log of run {id} ended without its last event"))
}

/// Returns the error for a cancellation before the daemon had named the run.
fn cancelled_early_error() -> CliError {
    CliError::Engine {
        message: "the run was interrupted before the daemon had answered; the daemon may have accepted it".to_owned(),
        hint: Some("`proctor status` lists runs, and `proctor cancel <run>` cancels one".to_owned()),
        exit_code: EXIT_INTERRUPTED,
        code: CommandCode::Unheard.code(),
    }
}

fn left_running_error(id: &RunId) -> CliError {
    CliError::Engine {
        message: format!("run {id} continues because an earlier request also needs it"),
        hint: Some(format!("`proctor cancel {id}` cancels it")),
        exit_code: EXIT_INTERRUPTED,
        code: CommandCode::LeftRunning.code(),
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::ErrorKind;
    use std::path::PathBuf;
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::fixture::{finished, started};
    use proctor_client::daemon_address::{DaemonAddress, DaemonTrust};
    use proctor_core::api::ProblemType;
    use proctor_core::decision::verdict::InconclusiveReason;
    use proctor_core::model::names::ProfileName;
    use proctor_core::model::tier::Tier;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixListener;

    fn run_end(verdict: Verdict, exit_code: u8) -> RunEnd {
        RunEnd { verdict, exit_code, event: finished(verdict, Tier::ONE, exit_code) }
    }

    /// Returns the events that are forwarded for a log, and the result.
    async fn forwarded(log: Vec<RunEvent>, end: RunEnd) -> (Vec<RunEvent>, Result<CompletedRun, CliError>) {
        let (sender, mut events) = mpsc::channel(64);
        let mut forwarder = EventForwarder::new(RunId::new("r1").expect("an id"), sender);
        for event in log {
            forwarder.forward(event).await;
        }
        let ended = forwarder.finish(end).await;
        let mut sent = Vec::new();
        while let Some(event) = events.recv().await {
            sent.push(event);
        }
        (sent, ended)
    }

    fn doubt(message: &str) -> RunEvent {
        RunEvent::Doubted { doubt: InconclusiveReason::Interrupted, message: message.to_owned() }
    }

    #[tokio::test]
    async fn forwards_events_from_start_to_end() {
        let log = vec![RunEvent::Cancelling { by: "x".into() }, started(&[("a", &["s"])])];
        let (forwarded_events, ended) = forwarded(log, run_end(Verdict::Inconclusive, 130)).await;
        let names: Vec<_> =
            forwarded_events.iter().map(|event| serde_json::to_value(event).expect("JSON")["event"].clone()).collect();
        assert_eq!(names, ["run_started", "cancelling", "run_finished"]);
        assert_eq!(ended.expect("a run").exit_code, 130);
    }

    #[tokio::test]
    async fn run_that_never_started_is_an_error() {
        let (events, ended) =
            forwarded(vec![doubt("the daemon was killed")], run_end(Verdict::Inconclusive, 130)).await;
        let error = ended.expect_err("no run");
        assert_eq!((events.len(), error.exit_code(), error.to_string().as_str()), (0, 130, "the daemon was killed"));
        let problem = Problem::new(ProblemType::Unavailable, "this machine lacks it");
        let (events, ended) =
            forwarded(vec![RunEvent::RunRefused { problem }], run_end(Verdict::Inconclusive, 5)).await;
        assert_eq!((events.len(), ended.expect_err("refused").to_string()), (0, "this machine lacks it".to_owned()));
    }

    #[tokio::test]
    async fn rejects_contradictory_run_end() {
        for (verdict, code) in [(Verdict::Passed, 1), (Verdict::Failed, 0), (Verdict::Inconclusive, 0)] {
            let (_, ended) = forwarded(vec![started(&[("a", &["s"])])], run_end(verdict, code)).await;
            assert_eq!(ended.expect_err("a contradiction").exit_code(), 5);
        }
        let (_, ended) = forwarded(Vec::new(), run_end(Verdict::Passed, 0)).await;
        assert_eq!(ended.expect_err("it never began").exit_code(), 5);
    }

    #[tokio::test]
    async fn retries_cancel_after_lost_connection() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let client = Client::new(DaemonAddress { socket, trust: DaemonTrust::AnyUser });
        let submission =
            serde_json::from_value(serde_json::json!({ "repo": "/r", "profile": "pr" })).expect("a request");
        let remote = DaemonRun { client, submission, lines: None };
        let id = RunId::new("r1").expect("an id");
        let answer = async {
            drop(listener.accept().await.expect("the first time"));
            let (mut stream, _) = listener.accept().await.expect("once more");
            let count = stream.read(&mut [0; 4096]).await.expect("a request");
            let problem = serde_json::to_string(&Problem::new(ProblemType::NotFound, "heard")).expect("JSON");
            let head = format!("HTTP/1.1 404 Not Found\r\nContent-Length: {}\r\n\r\n", problem.len());
            stream.write_all((head + &problem).as_bytes()).await.expect("an answer");
            count
        };
        let (cancelled, count) = tokio::join!(remote.cancel_run(&id), answer);
        assert!(count > 0);
        assert_eq!(cancelled.expect_err("a problem").to_string(), "heard");
    }

    fn daemon_run(socket: PathBuf) -> DaemonRun {
        let submission = RunSubmission::new("/r".into(), ProfileName::new("pr").expect("a name"));
        DaemonRun {
            client: Client::new(DaemonAddress { socket, trust: DaemonTrust::AnyUser }),
            submission,
            lines: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_repeat_a_request_that_timed_out() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let (events, _) = mpsc::channel(1);
        let error = daemon_run(socket).run(events, CancellationToken::new()).await.expect_err("silence");
        assert!(error.to_string().contains("within 600 s"), "{error}");
        listener.accept().await.expect("the one request");
        let another = listener.into_std().expect("the same").accept().expect_err("no other one");
        assert_eq!(another.kind(), ErrorKind::WouldBlock);
    }

    #[tokio::test]
    async fn cancels_before_the_daemon_answers() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let ((events, _), cancel) = (mpsc::channel(1), CancellationToken::new());
        let connection = async {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            assert!(stream.read(&mut [0; 4096]).await.expect("a request") > 0);
            stream
        };
        let mut running = pin!(daemon_run(socket).run(events, cancel.clone()));
        let _unanswered = tokio::select! {
            stream = connection => stream,
            _ = &mut running => panic!("there is no answer"),
        };
        cancel.cancel();
        let ended = poll_fn(|context| Poll::Ready(running.as_mut().poll(context))).await;
        let Poll::Ready(Err(error)) = ended else { panic!("it waits for the answer") };
        assert_eq!((error.exit_code(), error.hints().len()), (EXIT_INTERRUPTED, 1));
        assert!(error.to_string().contains("may have accepted it"), "{error}");
    }

    #[tokio::test]
    async fn repeats_a_broken_request_with_the_same_key() {
        let dir = tempfile::tempdir().expect("a directory");
        let socket = dir.path().join("s");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let body = serde_json::to_string(&Problem::new(ProblemType::Unavailable, "heard twice")).expect("JSON");
        let refusal = format!(
            "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let daemon = tokio::spawn(async move {
            let mut keys = Vec::new();
            // The first request arrives, and its answer is lost.
            for answer in ["", &refusal] {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let mut request = vec![0; 4096];
                let read = stream.read(&mut request).await.expect("a request");
                let request = String::from_utf8_lossy(&request[..read]).into_owned();
                keys.extend(request.lines().find(|line| line.starts_with("idempotency-key: ")).map(str::to_owned));
                stream.write_all(answer.as_bytes()).await.expect("it is read");
            }
            keys
        });
        let (events, _) = mpsc::channel(1);
        let error = daemon_run(socket).run(events, CancellationToken::new()).await.expect_err("refused");
        assert_eq!(error.to_string(), "heard twice");
        let keys = daemon.await.expect("it has answered");
        assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    }
}
