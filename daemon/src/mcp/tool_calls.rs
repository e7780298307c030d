//! Implements the tools: takes checked arguments and returns a bounded answer.

use std::time::Duration;

use proctor_core::api::{
    GateQuery, PlanRequest, Problem, ProblemType, RunSubmission, RunView, StepView, SubmissionOutcome,
};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::cache::CacheTrust;
use proctor_core::model::names::RunId;
use proctor_core::model::run_scope::ScopeRequest;
use proctor_core::model::tier::Tier;
use proctor_core::telemetry::TraceContext;
use rmcp::RoleServer;
use rmcp::model::{CallToolResult, JsonObject};
use rmcp::service::RequestContext;

use super::backend::Backend;
use super::resource_uri::ResourceUri;
use super::resources::trim_partial_character;
use super::run_answer::{self, OutputTail, UNTRUSTED_NOTE};
use super::run_wait::{self, RunWaitResult};
use super::tool_answer::{AnswerDraft, LogPart, error_result, fit_to_limit};
use super::tools::McpTool;
use super::untrusted::{KeptEnd, UntrustedText, one_line};
use super::{ask_tool, descriptions, explain, hints, sql_answer, sql_data_answer, tool_input};
use crate::service::{OutputId, OutputUnit, StdStream};

/// Requester named in the record when a client cancels a run over the protocol.
const REQUESTER: &str = "an MCP client";
/// Number of bytes read from the end of each output for an answer.
const TAIL_BYTES: usize = 4 << 10;
/// Number of output bytes read for `antigravity_verify_logs`.
const LOG_BYTES: usize = 8 << 10;
/// Maximum number of event pages that are read to explain a run.
const MAX_PAGES: usize = 64;

/// A tool call.
pub(super) struct ToolCall<'a, B> {
    pub(super) backend: &'a B,
    pub(super) context: &'a RequestContext<RoleServer>,
}

/// Reason why a call fails.
enum ToolCallError {
    /// The arguments are invalid.
    Arguments(String),
    /// The backend reported a problem.
    Problem(Box<Problem>),
}

impl From<Problem> for ToolCallError {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

type ToolCallResult = Result<CallToolResult, ToolCallError>;

impl<B: Backend> ToolCall<'_, B> {
    /// Executes a tool.
    pub(super) async fn execute(&self, tool: McpTool, arguments: Option<JsonObject>) -> CallToolResult {
        let answer = match tool {
            McpTool::Verify => self.verify(arguments).await,
            McpTool::Status => self.status(arguments).await,
            McpTool::Cancel => self.cancel(arguments).await,
            McpTool::Logs => self.logs(arguments).await,
            McpTool::Explain => self.explain(arguments).await,
            McpTool::Sql => self.sql(arguments).await,
            McpTool::SqlRun => self.sql_run(arguments).await,
            McpTool::SqlSchema => self.sql_schema(arguments).await,
            McpTool::Ask => self.ask(arguments).await,
        };
        answer.unwrap_or_else(|refusal| call_error_result(&refusal))
    }

    async fn verify(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::Verify = parse_arguments(arguments)?;
        let submitted = self.backend.submit(submission(&request), self.trace_context()).await?;
        let (id, how) = (submitted.run.id.clone(), submitted.how);
        // The error must name the run, so that the client can ask for it again.
        let waited = self.wait(submitted.run, request.wait_s).await;
        match waited.map_err(|problem| Problem { detail: format!("{}; the run is {id}", problem.detail), ..problem })? {
            RunWaitResult::Returned(run) => {
                let mut result = self.run_result(&run, Some(how), request.links).await;
                // An inconclusive run is an error: the tree could not be verified.
                result.is_error = Some(run.verdict == Some(Verdict::Inconclusive));
                Ok(result)
            }
            RunWaitResult::Cancelled => {
                // Only these requests count among the requesters of the run.
                if matches!(how, SubmissionOutcome::Queued | SubmissionOutcome::Joined) {
                    self.backend.abandon(&id, REQUESTER).await?;
                }
                Ok(error_result(format!("NOT VERIFIED: the call was cancelled. The run is {id}.")))
            }
        }
    }

    /// Returns the trace context from `_meta` of the call. An invalid one is ignored.
    fn trace_context(&self) -> Option<TraceContext> {
        let meta = &self.context.meta;
        TraceContext::parse(meta.get_traceparent()?, meta.get_tracestate())
    }

    async fn sql(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::Sql = parse_arguments(arguments)?;
        let judgement = self.backend.judge_sql(request.into_request(), self.trace_context()).await?;
        Ok(sql_answer::call_result(&judgement))
    }

    async fn ask(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let arguments = parse_arguments(arguments)?;
        match ask_tool::call(self.backend, arguments, self.trace_context(), self.context).await {
            Some(result) => Ok(result?),
            None => Ok(error_result("NOT ANSWERED: the call was cancelled.".to_owned())),
        }
    }

    async fn sql_run(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::SqlRun = parse_arguments(arguments)?;
        let answer = self.backend.run_sql(request.into_request(), self.trace_context()).await?;
        Ok(sql_data_answer::rows_result(&answer))
    }

    async fn sql_schema(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::SqlSchema = parse_arguments(arguments)?;
        let answer = self.backend.describe_sql(request.into_request(), self.trace_context()).await?;
        Ok(sql_data_answer::schema_result(&answer))
    }

    async fn status(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::Status = parse_arguments(arguments)?;
        let run = self.backend.watch(&request.run_id, None, Duration::ZERO).await?.run;
        self.wait_and_report(run, request.wait_s, request.links).await
    }

    async fn cancel(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::Cancel = parse_arguments(arguments)?;
        let run = self.backend.cancel(&request.run_id, REQUESTER).await?;
        self.wait_and_report(run, request.wait_s, request.links).await
    }

    async fn wait_and_report(&self, run: RunView, wait_s: u64, links: bool) -> ToolCallResult {
        match self.wait(run, wait_s).await? {
            RunWaitResult::Returned(run) => Ok(self.run_result(&run, None, links).await),
            RunWaitResult::Cancelled => Ok(error_result("The call was cancelled.".to_owned())),
        }
    }

    async fn wait(&self, run: RunView, wait_s: u64) -> Result<RunWaitResult, Problem> {
        run_wait::wait_for_end(self.backend, run, Duration::from_secs(wait_s), self.context).await
    }

    async fn run_result(&self, run: &RunView, how: Option<SubmissionOutcome>, links: bool) -> CallToolResult {
        let mut tails = Vec::new();
        for (output, bytes) in run_answer::outputs_to_read(run) {
            tails.push(self.read_tail(&run.id, output, bytes).await);
        }
        run_answer::render_run(run, how, &tails, links)
    }

    /// Reads the end of an output. If it cannot be read, the answer has an empty one.
    async fn read_tail(&self, id: &RunId, of: OutputId, bytes: u64) -> OutputTail {
        let end = self.read_end(id, of, bytes, TAIL_BYTES).await.map(|(end, _, _)| end).unwrap_or_default();
        OutputTail { output: of, bytes, end: UntrustedText::from_output(&end) }
    }

    /// Returns the last `most` bytes of an output, their offset, and the total length. `guess` is the expected
    /// length; the actual one may differ, because marks that replace secrets may be longer.
    async fn read_end(
        &self,
        id: &RunId,
        output: OutputId,
        guess: u64,
        max_bytes: usize,
    ) -> Result<(Vec<u8>, u64, u64), Problem> {
        let start = |total: u64| total.saturating_sub(max_bytes as u64);
        let mut offset = start(guess);
        let (mut part, total) = self.backend.output(id, output, offset, max_bytes).await?;
        if part.has_more || start(total) != offset {
            offset = start(total);
            part = self.backend.output(id, output, offset, max_bytes).await?.0;
        }
        let partial = part.bytes.iter().take(3).take_while(|byte| offset > 0 && **byte & 0xc0 == 0x80).count();
        Ok((part.bytes.split_off(partial), offset + partial as u64, total))
    }

    async fn logs(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::Logs = parse_arguments(arguments)?;
        let run = self.backend.watch(&request.run_id, None, Duration::ZERO).await?.run;
        let (unit, step) = choose_step(&run, &request).ok_or_else(|| no_output(&request.run_id))?;
        let stream = request.stream.map_or_else(|| informative_stream(step), StdStream::from);
        let of = OutputId { unit, n: step.n, stream };
        let kept = match stream {
            StdStream::Stdout => step.stdout.as_ref(),
            StdStream::Stderr => step.stderr.as_ref(),
        };
        // The output length of a running step is not known yet; `end` asks for it.
        let is_running = step.attempt > 0 && step.outcome.is_none();
        let running = is_running.then_some(0);
        let kept = kept.map(|view| view.kept_bytes).or(running).ok_or_else(|| no_output(&request.run_id))?;
        let (keep, (bytes, start, total)) = match request.offset {
            None => (KeptEnd::End, self.read_end(&run.id, of, kept, LOG_BYTES).await?),
            Some(offset) => {
                let (part, total) = self.backend.output(&run.id, of, offset, LOG_BYTES).await?;
                (KeptEnd::Start, (trim_partial_character(part.bytes, part.has_more), offset.min(total), total))
            }
        };
        Ok(OutputExcerpt { run: &run, step, output: of, bytes: &bytes, start, total, keep }.to_result())
    }

    async fn explain(&self, arguments: Option<JsonObject>) -> ToolCallResult {
        let request: tool_input::Explain = parse_arguments(arguments)?;
        match (request.run_id, request.repo_root) {
            (Some(id), _) => {
                let (run, log) = self.read_log(&id).await?;
                Ok(explain::explain_run(&run, log, request.links))
            }
            (None, repo) => {
                let repo = repo.unwrap_or_default();
                let plan = PlanRequest { repo: repo.clone(), profile: Some(request.profile.clone()) };
                let plan = self.backend.plan(plan).await?;
                let gate = GateQuery {
                    repo: repo.clone(),
                    profile: request.profile,
                    changeset_id: request.changeset_id,
                    max_tier: Tier::TWO,
                    max_age: None,
                    accept_unattested: false,
                    max_cache_trust: CacheTrust::Default,
                    strict_inputs: false,
                    this_machine: false,
                };
                Ok(explain::explain_plan(&repo, &plan, &self.backend.gate(gate).await?))
            }
        }
    }

    /// Returns a run and the facts in its events, up to [`MAX_PAGES`] pages.
    async fn read_log(&self, id: &RunId) -> Result<(RunView, explain::EventFacts), Problem> {
        let (mut log, mut seen) = (explain::EventFacts::default(), 0);
        let mut pages = 0;
        loop {
            let watched = self.backend.watch(id, Some(seen), Duration::ZERO).await?;
            for logged in watched.events.iter().flatten() {
                seen = logged.seq;
                log.add_event(&logged.event);
            }
            pages += 1;
            log.is_truncated = watched.more_events;
            if !log.is_truncated || pages == MAX_PAGES {
                return Ok((watched.run, log));
            }
        }
    }
}

fn parse_arguments<T: tool_input::ToolArguments>(arguments: Option<JsonObject>) -> Result<T, ToolCallError> {
    tool_input::parse(arguments).map_err(|error| ToolCallError::Arguments(error.to_string()))
}

fn submission(arguments: &tool_input::Verify) -> RunSubmission {
    let least = RunSubmission::new(arguments.repo_root.clone().unwrap_or_default(), arguments.profile.clone());
    RunSubmission {
        changeset_id: arguments.changeset_id.clone(),
        skills: arguments.skills,
        scope: ScopeRequest {
            selected: arguments.steps.clone(),
            changed_since: arguments.changed_since.clone(),
            ..ScopeRequest::default()
        },
        no_caches: arguments.no_caches,
        ..least
    }
}

/// Selects the step or check: the requested one, else the first that did not pass, else the first.
fn choose_step<'a>(run: &'a RunView, arguments: &tool_input::Logs) -> Option<(OutputUnit, &'a StepView)> {
    let unit = OutputUnit::from(arguments.of);
    let steps = match unit {
        OutputUnit::Check => &run.checks,
        OutputUnit::Step => &run.steps,
    };
    let unpassed = || steps.iter().find(|step| descriptions::is_unsuccessful(step));
    let step = match arguments.n {
        Some(n) => steps.iter().find(|step| step.n == n),
        None => unpassed().or_else(|| steps.first()),
    };
    step.map(|step| (unit, step))
}

/// Selects the more informative stream: standard error unless it is empty.
fn informative_stream(step: &StepView) -> StdStream {
    match &step.stderr {
        Some(stderr) if stderr.kept_bytes > 0 => StdStream::Stderr,
        _ => StdStream::Stdout,
    }
}

fn no_output(id: &RunId) -> ToolCallError {
    ToolCallError::Arguments(format!(
        "the run `{id}` has no such step or check, or it has not ended; antigravity_verify_explain lists what the run did"
    ))
}

/// A part of an output to show.
struct OutputExcerpt<'a> {
    run: &'a RunView,
    step: &'a StepView,
    output: OutputId,
    bytes: &'a [u8],
    /// Offset of the first byte.
    start: u64,
    total: u64,
    keep: KeptEnd,
}

impl OutputExcerpt<'_> {
    fn to_result(&self) -> CallToolResult {
        fit_to_limit(|budget| self.draft(budget))
    }

    fn draft(&self, budget: usize) -> AnswerDraft<LogPart> {
        let (bytes, start) = self.part(budget);
        let end = start + bytes.len() as u64;
        let (stream, named) = (self.output.stream.as_str(), descriptions::step_name(self.step));
        let span = format!("bytes {start} to {end} of {} of {stream} of {named}", self.total);
        let next_offset = (end < self.total).then_some(end);
        let value = LogPart {
            run_id: self.run.id.clone(),
            of: self.output.unit.as_str(),
            n: self.output.n,
            name: named,
            stream,
            offset: start,
            next_offset,
            total_bytes: self.total,
            text: UntrustedText::from_output(bytes).with_marks(&span),
            uri: ResourceUri::Output(self.run.id.clone(), self.output, 0).to_string(),
        };
        let more = next_offset.map(|next| format!("\nMore: offset {next}.")).unwrap_or_default();
        let text = format!(
            "{}: {}\n{UNTRUSTED_NOTE}\n{}{more}",
            value.name,
            descriptions::describe_end(self.step),
            value.text
        );
        AnswerDraft { text, value, links: vec![] }
    }

    /// Returns the bytes that fit in `room`, from the kept end, and their offset. Escaping makes them longer; the
    /// caller then retries with less room.
    fn part(&self, budget: usize) -> (&[u8], u64) {
        let max_bytes = budget.min(self.bytes.len());
        match self.keep {
            KeptEnd::Start => {
                let cut = char_boundary(self.bytes, max_bytes, |cut| cut.saturating_sub(1));
                (&self.bytes[..cut], self.start)
            }
            KeptEnd::End => {
                let cut = char_boundary(self.bytes, self.bytes.len() - max_bytes, |cut| cut + 1);
                (&self.bytes[cut..], self.start + cut as u64)
            }
        }
    }
}

/// Returns a character boundary near `cut`, at most three steps away.
fn char_boundary(bytes: &[u8], cut: usize, step: impl Fn(usize) -> usize) -> usize {
    let within = |cut: &usize| bytes.get(*cut).is_none_or(|byte| byte & 0xc0 != 0x80);
    std::iter::successors(Some(cut), |cut| Some(step(*cut))).take(4).find(within).unwrap_or(cut)
}

fn call_error_result(error: &ToolCallError) -> CallToolResult {
    match error {
        ToolCallError::Arguments(error) => {
            let error = one_line(error);
            error_result(format!("NOT VERIFIED: the arguments are not valid: {error}.\nHint: {}", hints::ARGUMENTS))
        }
        ToolCallError::Problem(problem) => {
            let first = format!("NOT DONE (nothing is verified): {}", problem.kind.title());
            let hint = hints::for_problem(problem);
            if quotes_only_request(problem.kind) {
                return error_result(format!("{first}\n{}.\nHint: {hint}", one_line(&problem.detail)));
            }
            let details = UntrustedText::from_text(&run_answer::problem_lines(problem).join("\n"));
            let details = details.truncate(MAX_ERROR_DETAILS, KeptEnd::Start).with_marks("details");
            error_result(format!("{first}\nHint: {hint}\n{UNTRUSTED_NOTE}\n{details}"))
        }
    }
}

/// Returns whether the detail of a problem quotes only the caller's request. Other details may quote the repository.
fn quotes_only_request(kind: ProblemType) -> bool {
    matches!(
        kind,
        ProblemType::InvalidRequest
            | ProblemType::Forbidden
            | ProblemType::Conflict
            | ProblemType::TooLarge
            | ProblemType::TooManyRequests
    )
}

/// Maximum size of the details in a refusal, in bytes.
const MAX_ERROR_DETAILS: usize = 6 << 10;
