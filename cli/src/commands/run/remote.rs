//! A run that a daemon does: what is asked for, and its events as this process would have told them.

use std::collections::BTreeMap;

use proctor_core::api::{ChangesAsked, How, LoggedEvent, Problem, RunSubmission};
use proctor_core::event::RunEvent;
use proctor_core::names::RunId;
use proctor_core::verdict::{EXIT_INTERRUPTED, Verdict};
use proctor_daemon::client::{Client, ClientError, Events};
use proctor_runner::Patch;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Ended;
use crate::daemon::{client_error, lost, problem_error};
use crate::error::CliError;

/// How many bytes the caller's environment may have to be sent: what a daemon takes in one request,
/// without what JSON adds to it at worst.
const MAX_ENV: usize = 256 << 10;
/// How many events before the beginning are kept until it comes.
const MAX_EARLY: usize = 64;

/// Why a run is not asked of a daemon that [`takes`] it not.
pub(super) const TOO_LARGE: &str = "the environment is too large to be sent to the daemon";

/// Whether an environment can be sent.
pub(super) fn takes(env: &BTreeMap<String, String>) -> bool {
    env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>() <= MAX_ENV
}

/// A run of a daemon.
pub(super) struct Remote {
    /// The way to the daemon.
    pub client: Client,
    /// What is asked for.
    pub submission: RunSubmission,
}

impl Remote {
    /// Asks for the run and follows it to its end. A cancel is handed on.
    ///
    /// # Errors
    /// There is no run, its end cannot be known, or it was left to those who asked for it before.
    pub(super) async fn run(
        self,
        events: mpsc::Sender<RunEvent>,
        cancel: CancellationToken,
    ) -> Result<Ended, CliError> {
        let submitted = self.client.submit(&self.submission, None).await.map_err(client_error)?;
        let id = submitted.run.id.clone();
        let mut telling = Telling::new(id.clone(), events);
        let mut log = self.client.events(&id, 0);
        let end = self.follow(&mut log, &mut telling, submitted.how, &cancel).await?;
        let ended = telling.end(end).await?;
        Ok(Ended { patch: self.patch(&id).await, ..ended })
    }

    async fn follow(
        &self,
        log: &mut Events,
        telling: &mut Telling,
        how: How,
        cancel: &CancellationToken,
    ) -> Result<End, CliError> {
        let mut asked_to_end = false;
        loop {
            tokio::select! {
                event = log.next() => {
                    let event = event.map_err(|error| lost(error, &telling.id))?;
                    let LoggedEvent { event, .. } = event.ok_or_else(|| endless(&telling.id))?;
                    if let RunEvent::RunFinished { verdict, exit_code, .. } = event {
                        return Ok(End { verdict, exit_code, event });
                    }
                    telling.tell(event).await;
                }
                () = cancel.cancelled(), if !asked_to_end => {
                    asked_to_end = true;
                    if how == How::Joined {
                        return Err(left(&telling.id));
                    }
                    // Whatever is wrong with the connection, the log of events tells too.
                    if let Err(ClientError::Problem(problem)) = self.client.cancel(&telling.id).await {
                        return Err(problem_error(*problem));
                    }
                }
            }
        }
    }

    /// The patch, where one was asked for.
    async fn patch(&self, id: &RunId) -> Option<Patch> {
        if self.submission.changes != ChangesAsked::Patch {
            return None;
        }
        Some(match self.client.patch(id).await {
            Ok(bytes) => Patch::Made(bytes.to_vec()),
            Err(error) => Patch::Refused(error.to_string()),
        })
    }
}

/// What of the log goes on to the screen: what a run in this process would have told.
struct Telling {
    id: RunId,
    events: mpsc::Sender<RunEvent>,
    began: bool,
    early: Vec<RunEvent>,
    refused: Option<Problem>,
}

impl Telling {
    fn new(id: RunId, events: mpsc::Sender<RunEvent>) -> Self {
        Self { id, events, began: false, early: Vec::new(), refused: None }
    }

    /// Tells what happened, from the beginning of the run on.
    async fn tell(&mut self, event: RunEvent) {
        match event {
            RunEvent::RunRefused { problem } => self.refused = Some(problem),
            RunEvent::RunQueued { .. } => self.send(event).await,
            RunEvent::RunStarted { .. } => {
                self.began = true;
                self.send(event).await;
                for event in std::mem::take(&mut self.early) {
                    self.send(event).await;
                }
            }
            event if self.began => self.send(event).await,
            event if self.early.len() < MAX_EARLY => self.early.push(event),
            _ => {}
        }
    }

    async fn send(&self, event: RunEvent) {
        // Who no longer listens has been told all that it wanted.
        let _ = self.events.send(event).await;
    }

    /// What the run came to; its last event is told only where it began.
    async fn end(self, end: End) -> Result<Ended, CliError> {
        if let Some(problem) = self.refused {
            return Err(problem_error(problem));
        }
        if (end.verdict == Verdict::Passed) != (end.exit_code == 0) || end.exit_code == 0 && !self.began {
            let said =
                format!("run {} is said to have ended with {} ({})", self.id, end.verdict.as_str(), end.exit_code);
            return Err(CliError::Internal(said));
        }
        if !self.began {
            return Err(never_began(&self.early, end.exit_code));
        }
        self.send(end.event).await;
        Ok(Ended { verdict: end.verdict, exit_code: end.exit_code, doubts: Vec::new(), patch: None })
    }
}

/// The last event of a run, and what it says.
struct End {
    verdict: Verdict,
    exit_code: u8,
    event: RunEvent,
}

fn never_began(early: &[RunEvent], exit_code: u8) -> CliError {
    let doubt = early.iter().find_map(|event| match event {
        RunEvent::Doubted { message, .. } => Some(message.clone()),
        _ => None,
    });
    CliError::Engine {
        message: doubt.unwrap_or_else(|| "the run ended before it began; nothing was verified".to_owned()),
        hint: Some("run again".to_owned()),
        exit_code,
    }
}

fn endless(id: &RunId) -> CliError {
    CliError::Internal(format!("the log of run {id} ended without its last event"))
}

fn left(id: &RunId) -> CliError {
    CliError::Engine {
        message: format!("run {id} goes on: another request had asked for it before this one"),
        hint: Some(format!("`proctor cancel {id}` ends it")),
        exit_code: EXIT_INTERRUPTED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{finished, started};
    use proctor_core::api::ProblemType;
    use proctor_core::tier::Tier;
    use proctor_core::verdict::Doubt;

    fn end(verdict: Verdict, exit_code: u8) -> End {
        End { verdict, exit_code, event: finished(verdict, Tier::ONE, exit_code) }
    }

    /// What is told of a log, and what it comes to.
    async fn told(log: Vec<RunEvent>, end: End) -> (Vec<RunEvent>, Result<Ended, CliError>) {
        let (sender, mut events) = mpsc::channel(64);
        let mut telling = Telling::new(RunId::new("r1").expect("an id"), sender);
        for event in log {
            telling.tell(event).await;
        }
        let ended = telling.end(end).await;
        let mut told = Vec::new();
        while let Some(event) = events.recv().await {
            told.push(event);
        }
        (told, ended)
    }

    fn doubt(message: &str) -> RunEvent {
        RunEvent::Doubted { doubt: Doubt::Interrupted, message: message.to_owned() }
    }

    #[tokio::test]
    async fn a_run_is_told_from_its_beginning_to_its_end() {
        let log = vec![RunEvent::Cancelling { by: "x".into() }, started(&[("a", &["s"])])];
        let (told, ended) = told(log, end(Verdict::Inconclusive, 130)).await;
        let names: Vec<_> =
            told.iter().map(|event| serde_json::to_value(event).expect("JSON")["event"].clone()).collect();
        assert_eq!(names, ["run_started", "cancelling", "run_finished"]);
        assert_eq!(ended.expect("a run").exit_code, 130);
    }

    #[tokio::test]
    async fn what_never_began_is_the_error_that_it_would_be_here() {
        let (events, ended) = told(vec![doubt("the daemon was killed")], end(Verdict::Inconclusive, 130)).await;
        let error = ended.expect_err("no run");
        assert_eq!((events.len(), error.exit_code(), error.to_string().as_str()), (0, 130, "the daemon was killed"));
        let problem = Problem::new(ProblemType::Unavailable, "this machine lacks it");
        let (events, ended) = told(vec![RunEvent::RunRefused { problem }], end(Verdict::Inconclusive, 5)).await;
        assert_eq!((events.len(), ended.expect_err("refused").to_string()), (0, "this machine lacks it".to_owned()));
    }

    #[tokio::test]
    async fn an_end_that_contradicts_itself_is_no_pass() {
        for (verdict, code) in [(Verdict::Passed, 1), (Verdict::Failed, 0), (Verdict::Inconclusive, 0)] {
            let (_, ended) = told(vec![started(&[("a", &["s"])])], end(verdict, code)).await;
            assert_eq!(ended.expect_err("a contradiction").exit_code(), 5);
        }
        let (_, ended) = told(Vec::new(), end(Verdict::Passed, 0)).await;
        assert_eq!(ended.expect_err("it never began").exit_code(), 5);
    }
}
