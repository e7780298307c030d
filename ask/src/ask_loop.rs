//! The loop from a question to an answer: prompt, model, judgement, correction, run. It ends after a bounded number of
//! attempts, tokens and seconds.

mod progress;
mod step_audit;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proctor_core::spec::AskSettings;
use proctor_core::sql::{
    AskAnswer, AskAttempt, AskEnd, AskRequest, AttemptOutcome, Judgement, MAX_SAMPLES, ResultRows, SchemaRequest,
    SqlRequest, SqlRunRequest, SqlVerdict, TokenCounts, VERSION,
};
use proctor_runner::Clock;
use tokio::time::{Instant, timeout_at};

use crate::answer_reader::{UnreadableAnswer, read_statement};
use crate::attempt_log::AttemptLog;
use crate::audit::{AuditError, AuditTrail};
use crate::backend::SqlBackend;
use crate::prompt::{PreviousAttempt, PromptWriter};
use crate::provider::{Completion, NamedProvider, Prompt, ProviderError};
use step_audit::StepAudit;

pub use progress::AskProgress;

/// Maximum number of statements that are judged `ok` and fail when they run.
const MAX_RUN_FAILURES: u32 = 2;

/// Receives the steps of a loop.
pub type ProgressSink<'a> = &'a mut (dyn FnMut(AskProgress) + Send);

/// The parts that a loop uses.
pub struct Asker<'a> {
    /// Describes, judges and runs.
    pub backend: &'a dyn SqlBackend,
    /// The language model.
    pub provider: &'a NamedProvider,
    /// The audit trail.
    pub audit: Arc<Mutex<AuditTrail>>,
    /// The bounds of the operator.
    pub settings: &'a AskSettings,
    /// The time of day.
    pub clock: Clock,
    /// The caller, for the audit trail.
    pub caller: String,
}

/// The prompt of a question, for `--explain`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExplainedPrompt {
    /// The prompt.
    pub prompt: Prompt,
    /// The number of tables in the prompt.
    pub shown_tables: usize,
    /// The number of tables of the schema.
    pub tables: usize,
}

/// Returns the first prompt of a question without calling a model.
///
/// # Errors
/// The schema cannot be described. The value is the reason.
pub async fn explain(backend: &dyn SqlBackend, request: &AskRequest) -> Result<ExplainedPrompt, String> {
    let writer = describe(backend, request).await?;
    Ok(ExplainedPrompt { prompt: writer.first(), shown_tables: writer.shown, tables: writer.tables })
}

/// Describes the database, and prepares the prompts.
///
/// # Errors
/// The schema cannot be described. The value is the reason.
async fn describe(backend: &dyn SqlBackend, request: &AskRequest) -> Result<PromptWriter, String> {
    let answer = backend.describe(&schema_request(request)).await;
    match (answer.schema, answer.error) {
        (Some(schema), None) if schema.tables.is_empty() => Err("the schema has no table that may be used".to_owned()),
        (Some(schema), None) => Ok(PromptWriter::new(request, &answer.engine, &schema)),
        (_, Some(error)) => Err(error),
        (None, None) => Err("the engine returned no schema".to_owned()),
    }
}

fn schema_request(request: &AskRequest) -> SchemaRequest {
    SchemaRequest {
        dialect: request.dialect,
        schema: request.schema.clone(),
        database: request.database.clone(),
        allow: request.allow.clone(),
        samples: request.samples.min(MAX_SAMPLES),
        limits: request.limits,
    }
}

/// The end of a loop.
struct LoopEnd {
    end: AskEnd,
    reason: String,
    /// The rows of the statement that ran.
    answer: Option<Box<(String, Judgement, ResultRows)>>,
}

impl LoopEnd {
    fn new(end: AskEnd, reason: impl Into<String>) -> Self {
        Self { end, reason: reason.into(), answer: None }
    }

    fn time() -> Self {
        Self::new(AskEnd::Time, "the maximum time was reached")
    }
}

impl From<AuditError> for LoopEnd {
    fn from(error: AuditError) -> Self {
        Self::new(AskEnd::Audit, error.to_string())
    }
}

/// The result of an attempt, if the loop continues.
enum FailedAttempt {
    Unreadable { answer: String, why: UnreadableAnswer },
    Rejected { statement: String, judgement: Box<Judgement> },
    Failed { statement: String, error: String },
}

impl FailedAttempt {
    fn correction(&self, writer: &PromptWriter) -> Prompt {
        match self {
            Self::Unreadable { answer, why } => {
                writer.correction(PreviousAttempt::Unreadable { answer, why: &why.to_string() })
            }
            Self::Rejected { statement, judgement } => {
                writer.correction(PreviousAttempt::Rejected { statement, findings: &judgement.diagnostics })
            }
            Self::Failed { statement, error } => writer.correction(PreviousAttempt::Failed { statement, error }),
        }
    }
}

/// The bounds of one loop.
struct Bounds {
    attempts: u32,
    tokens: u64,
    deadline: Instant,
}

impl Bounds {
    /// Combines the bounds of the caller and the operator.
    fn new(request: &AskRequest, settings: &AskSettings, now: Instant) -> Self {
        let seconds = request.bounds.seconds.map_or(settings.max_time, Duration::from_secs);
        Self {
            attempts: request.bounds.attempts.unwrap_or(settings.max_attempts).min(settings.max_attempts).max(1),
            tokens: request.bounds.tokens.unwrap_or(settings.max_tokens).min(settings.max_tokens),
            deadline: now + seconds.min(settings.max_time),
        }
    }
}

/// One running loop.
struct AskRun<'a, 'b> {
    asker: &'a Asker<'a>,
    request: &'a AskRequest,
    bounds: Bounds,
    audit: StepAudit,
    log: AttemptLog,
    progress: ProgressSink<'b>,
    run_failures: u32,
}

impl Asker<'_> {
    /// Answers a question.
    pub async fn ask(&self, request: &AskRequest, progress: ProgressSink<'_>) -> AskAnswer {
        let begun = Instant::now();
        let bounds = Bounds::new(request, self.settings, begun);
        let audit = StepAudit::new(Arc::clone(&self.audit), self.clock);
        let mut run =
            AskRun { asker: self, request, bounds, audit, log: AttemptLog::default(), progress, run_failures: 0 };
        let end = match run.run().await {
            Ok(end) | Err(end) => end,
        };
        run.finish(end, begun).await
    }
}

impl AskRun<'_, '_> {
    async fn run(&mut self) -> Result<LoopEnd, LoopEnd> {
        self.audit.question(self.request, self.asker.provider, &self.asker.caller).await?;
        (self.progress)(AskProgress::Describing);
        let described = timeout_at(self.bounds.deadline, describe(self.asker.backend, self.request)).await;
        let writer =
            described.map_err(|_| LoopEnd::new(AskEnd::Schema, "the schema could not be described in time"))?;
        let writer = writer.map_err(|error| LoopEnd::new(AskEnd::Schema, error))?;
        (self.progress)(AskProgress::Described { shown: writer.shown, tables: writer.tables });
        let mut prompt = writer.first();
        for number in 1..=self.bounds.attempts {
            match self.attempt(number, &prompt).await? {
                AttemptResult::End(end) => return Ok(*end),
                AttemptResult::Continue(previous) => prompt = previous.correction(&writer),
            }
        }
        let attempts = self.bounds.attempts;
        Ok(LoopEnd::new(AskEnd::Attempts, format!("no statement was accepted in {attempts} attempts")))
    }

    /// Makes one attempt.
    ///
    /// # Errors
    /// The loop cannot continue. The value is the reason.
    async fn attempt(&mut self, number: u32, prompt: &Prompt) -> Result<AttemptResult, LoopEnd> {
        let begun = Instant::now();
        let left = self.bounds.tokens.saturating_sub(self.log.tokens.total());
        let needed = prompt.estimated_tokens();
        if needed >= left {
            let reason =
                format!("the prompt needs about {needed} tokens, and {left} of {} are left", self.bounds.tokens);
            return Err(LoopEnd::new(AskEnd::Tokens, reason));
        }
        self.audit.prompt(number, prompt).await?;
        (self.progress)(AskProgress::Prompting { number, attempts: self.bounds.attempts });
        let answer = self.complete(number, prompt).await?;
        let tokens = answer.tokens(prompt);
        (self.progress)(AskProgress::Answered { number, tokens });
        self.audit.answer(number, &answer, tokens).await?;
        let draft = AttemptDraft { number, tokens, begun };
        let statement = match read_statement(&answer.text) {
            // The end of a cut statement is missing, even if the rest looks complete.
            Ok(_) | Err(_) if answer.is_truncated => Err(UnreadableAnswer::Truncated),
            read => read,
        };
        match statement {
            Err(why) => {
                (self.progress)(AskProgress::Unreadable { number, why });
                let attempt = AskAttempt { error: Some(why.to_string()), ..draft.attempt(AttemptOutcome::Unreadable) };
                self.log.push(attempt, None);
                Ok(AttemptResult::Continue(FailedAttempt::Unreadable { answer: answer.text, why }))
            }
            Ok(statement) if self.log.is_repeated(&statement) => {
                let attempt = AskAttempt { statement: Some(statement), ..draft.attempt(AttemptOutcome::Repeated) };
                self.log.push(attempt, None);
                Err(LoopEnd::new(AskEnd::Repeated, "the model repeated a statement that was not accepted"))
            }
            Ok(statement) => self.try_statement(draft, statement).await,
        }
    }

    /// Returns the answer of the model.
    ///
    /// # Errors
    /// The model gave no answer. The value is the end of the loop.
    async fn complete(&mut self, number: u32, prompt: &Prompt) -> Result<Completion, LoopEnd> {
        let deadline = self.bounds.deadline;
        let answer = timeout_at(deadline, self.asker.provider.provider.complete(prompt, deadline)).await;
        let error = match answer {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(error)) => error,
            Err(_) => ProviderError::Deadline,
        };
        (self.progress)(AskProgress::Unanswered { number, outcome: error.outcome() });
        self.audit.failed_answer(number, &error.to_string()).await?;
        // A late answer after a rejected statement means that the loop was too slow; a late first answer is a failure.
        let is_late = Instant::now() >= deadline && number > 1;
        Err(if is_late { LoopEnd::time() } else { LoopEnd::new(AskEnd::Provider, error.to_string()) })
    }

    /// Judges a statement, and runs it if the verdict is `ok`.
    ///
    /// # Errors
    /// The loop cannot continue. The value is the reason.
    async fn try_statement(&mut self, draft: AttemptDraft, statement: String) -> Result<AttemptResult, LoopEnd> {
        let number = draft.number;
        let request = self.sql_request(&statement);
        (self.progress)(AskProgress::Judging { number });
        let judged = timeout_at(self.bounds.deadline, self.asker.backend.judge(&request)).await;
        let judgement = judged.map_err(|_| LoopEnd::time())?;
        self.audit.judgement(number, &statement, &judgement).await?;
        (self.progress)(AskProgress::judged(number, &judgement));
        if judgement.verdict != SqlVerdict::Ok {
            return self.refuse(&draft, statement, judgement);
        }
        (self.progress)(AskProgress::Running { number });
        let run = SqlRunRequest { request, commit: false };
        let answer =
            timeout_at(self.bounds.deadline, self.asker.backend.run(&run)).await.map_err(|_| LoopEnd::time())?;
        self.audit.execution(number, &statement, &answer).await?;
        let judgement = answer.judgement;
        match (judgement.verdict, answer.result) {
            (SqlVerdict::Ok, Some(result)) if answer.error.is_none() => {
                let attempt = draft.judged(AttemptOutcome::Answered, &statement, &judgement);
                self.log.push(attempt, Some(judgement.clone()));
                let reason = "the statement was judged `ok` and ran".to_owned();
                let answer = Some(Box::new((statement, judgement, result)));
                Ok(AttemptResult::End(Box::new(LoopEnd { end: AskEnd::Answered, reason, answer })))
            }
            (SqlVerdict::Ok, _) => {
                let error = answer.error.unwrap_or_else(|| "the engine returned no result".to_owned());
                (self.progress)(AskProgress::RunFailed { number });
                let attempt = AskAttempt {
                    error: Some(error.clone()),
                    ..draft.judged(AttemptOutcome::RunFailed, &statement, &judgement)
                };
                self.log.push(attempt, Some(judgement));
                self.run_failures += 1;
                if self.run_failures >= MAX_RUN_FAILURES {
                    return Err(LoopEnd::new(AskEnd::RunFailed, format!("the statement failed when it ran: {error}")));
                }
                Ok(AttemptResult::Continue(FailedAttempt::Failed { statement, error }))
            }
            // The database may have changed after the first judgement.
            _ => self.refuse(&draft, statement, judgement),
        }
    }

    /// Handles a statement that was not judged `ok`.
    ///
    /// # Errors
    /// The statement could not be judged. This is never a judgement.
    fn refuse(
        &mut self,
        draft: &AttemptDraft,
        statement: String,
        judgement: Judgement,
    ) -> Result<AttemptResult, LoopEnd> {
        if judgement.verdict == SqlVerdict::Error {
            let reason = judgement.diagnostics.iter().find(|found| found.code.is_engine_problem());
            let reason = reason.map_or("a stage did not complete", |found| found.message.as_str());
            let reason = format!("the statement could not be judged: {reason}");
            self.log.push(draft.judged(AttemptOutcome::NotJudged, &statement, &judgement), None);
            return Err(LoopEnd::new(AskEnd::Engine, reason));
        }
        self.log.push(draft.judged(AttemptOutcome::Rejected, &statement, &judgement), Some(judgement.clone()));
        Ok(AttemptResult::Continue(FailedAttempt::Rejected { statement, judgement: Box::new(judgement) }))
    }

    fn sql_request(&self, statement: &str) -> SqlRequest {
        let request = self.request;
        SqlRequest {
            schema: request.schema.clone(),
            database: request.database.clone(),
            policy: request.policy,
            allow: request.allow.clone(),
            limits: request.limits,
            question: Some(request.question.clone()),
            reject_at: request.reject_at,
            ..SqlRequest::new(request.dialect, statement)
        }
    }

    /// Writes the end to the audit trail, and returns the answer.
    async fn finish(mut self, mut end: LoopEnd, begun: Instant) -> AskAnswer {
        if let Err(error) = self.audit.end(end.end, &end.reason, self.log.attempts.len()).await {
            // An answer without its audit record is not shown.
            end = error.into();
        }
        let (attempts, tokens, best) = std::mem::take(&mut self.log).into_parts();
        let best_number = best.as_ref().map(|(number, _)| *number);
        let (statement, judgement, result) = match end.answer.map(|answer| *answer) {
            Some((statement, judgement, result)) => (Some(statement), Some(judgement), Some(result)),
            None => (None, best.map(|(_, judgement)| judgement), None),
        };
        AskAnswer {
            version: VERSION,
            id: self.audit.id().to_owned(),
            verdict: end.end.verdict(),
            end: end.end,
            reason: end.reason,
            dialect: self.request.dialect,
            provider: self.asker.provider.name.clone(),
            model: self.asker.provider.model.clone(),
            statement,
            judgement,
            result,
            attempts,
            best: best_number,
            tokens,
            ms: elapsed_ms(begun),
        }
    }
}

/// The result of an attempt.
enum AttemptResult {
    End(Box<LoopEnd>),
    Continue(FailedAttempt),
}

/// An attempt whose result is not known yet.
struct AttemptDraft {
    number: u32,
    tokens: TokenCounts,
    begun: Instant,
}

impl AttemptDraft {
    fn attempt(&self, outcome: AttemptOutcome) -> AskAttempt {
        AskAttempt {
            number: self.number,
            outcome,
            statement: None,
            verdict: None,
            diagnostics: Vec::new(),
            error: None,
            tokens: self.tokens,
            ms: elapsed_ms(self.begun),
        }
    }

    fn judged(&self, outcome: AttemptOutcome, statement: &str, judgement: &Judgement) -> AskAttempt {
        AskAttempt {
            statement: Some(statement.to_owned()),
            verdict: Some(judgement.verdict),
            diagnostics: judgement.diagnostics.clone(),
            ..self.attempt(outcome)
        }
    }
}

fn elapsed_ms(begun: Instant) -> u64 {
    u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX)
}
