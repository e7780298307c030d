//! Implements the tools: takes checked arguments and returns a bounded answer.

use std::time::Duration;

use proctor_core::api::{GateAsked, How, PlanAsked, Problem, ProblemType, RunSubmission, RunView, StepView};
use proctor_core::cache::CacheTrust;
use proctor_core::names::RunId;
use proctor_core::telemetry::TraceContext;
use proctor_core::tier::Tier;
use proctor_core::verdict::Verdict;
use rmcp::RoleServer;
use rmcp::model::{CallToolResult, JsonObject};
use rmcp::service::RequestContext;

use super::answer::{Draft, LogPart, fitting, refusal};
use super::backend::Backend;
use super::present::{self, CAUTION, Tail};
use super::resources::whole_characters;
use super::tools::Tool;
use super::untrusted::{Keep, Untrusted, one_line};
use super::uri::Address;
use super::waiting::{self, Waited};
use super::{explain, hints, input, sql, words};
use crate::service::{OutputOf, Stdio, Unit};

/// Requester named in the record when a client cancels a run over the protocol.
const BY: &str = "an MCP client";
/// Number of bytes read from the end of each output for an answer.
const TAIL: usize = 4 << 10;
/// Number of output bytes read for `antigravity_verify_logs`.
const LOG: usize = 8 << 10;
/// Maximum number of event pages that are read to explain a run.
const MAX_PAGES: usize = 64;

/// A tool call.
pub(super) struct Call<'a, B> {
    pub(super) backend: &'a B,
    pub(super) context: &'a RequestContext<RoleServer>,
}

/// Reason why a call fails.
enum Refusal {
    /// The arguments are invalid.
    Arguments(String),
    /// The backend reported a problem.
    Problem(Box<Problem>),
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::Problem(Box::new(problem))
    }
}

type Answer = Result<CallToolResult, Refusal>;

impl<B: Backend> Call<'_, B> {
    /// Executes a tool.
    pub(super) async fn of(&self, tool: Tool, arguments: Option<JsonObject>) -> CallToolResult {
        let answer = match tool {
            Tool::Verify => self.verify(arguments).await,
            Tool::Status => self.status(arguments).await,
            Tool::Cancel => self.cancel(arguments).await,
            Tool::Logs => self.logs(arguments).await,
            Tool::Explain => self.explain(arguments).await,
            Tool::Sql => self.sql(arguments).await,
        };
        answer.unwrap_or_else(|refusal| refused(&refusal))
    }

    async fn verify(&self, arguments: Option<JsonObject>) -> Answer {
        let asked: input::Verify = read(arguments)?;
        let submitted = self.backend.submit(submission(&asked), self.trace()).await?;
        let (id, how) = (submitted.run.id.clone(), submitted.how);
        // The error must name the run, so that the client can ask for it again.
        let waited = self.wait(submitted.run, asked.wait_s).await;
        match waited.map_err(|problem| Problem { detail: format!("{}; the run is {id}", problem.detail), ..problem })? {
            Waited::Shown(run) => {
                let mut result = self.shown(&run, Some(how), asked.links).await;
                // An inconclusive run is an error: the tree could not be verified.
                result.is_error = Some(run.verdict == Some(Verdict::Inconclusive));
                Ok(result)
            }
            Waited::CalledOff => {
                // Only these requests count among the requesters of the run.
                if matches!(how, How::Queued | How::Joined) {
                    self.backend.abandon(&id, BY).await?;
                }
                Ok(refusal(format!("NOT VERIFIED: the call was cancelled. The run is {id}.")))
            }
        }
    }

    /// Returns the trace context from `_meta` of the call. An invalid one is ignored.
    fn trace(&self) -> Option<TraceContext> {
        let meta = &self.context.meta;
        TraceContext::parse(meta.get_traceparent()?, meta.get_tracestate())
    }

    async fn sql(&self, arguments: Option<JsonObject>) -> Answer {
        let asked: input::Sql = read(arguments)?;
        let judgement = self.backend.judge_sql(asked.request()).await?;
        Ok(sql::answer(&judgement))
    }

    async fn status(&self, arguments: Option<JsonObject>) -> Answer {
        let asked: input::Status = read(arguments)?;
        let run = self.backend.watch(&asked.run_id, None, Duration::ZERO).await?.run;
        self.shown_after(run, asked.wait_s, asked.links).await
    }

    async fn cancel(&self, arguments: Option<JsonObject>) -> Answer {
        let asked: input::Cancel = read(arguments)?;
        let run = self.backend.cancel(&asked.run_id, BY).await?;
        self.shown_after(run, asked.wait_s, asked.links).await
    }

    async fn shown_after(&self, run: RunView, wait_s: u64, links: bool) -> Answer {
        match self.wait(run, wait_s).await? {
            Waited::Shown(run) => Ok(self.shown(&run, None, links).await),
            Waited::CalledOff => Ok(refusal("The call was cancelled.".to_owned())),
        }
    }

    async fn wait(&self, run: RunView, wait_s: u64) -> Result<Waited, Problem> {
        waiting::for_end(self.backend, run, Duration::from_secs(wait_s), self.context).await
    }

    async fn shown(&self, run: &RunView, how: Option<How>, links: bool) -> CallToolResult {
        let mut tails = Vec::new();
        for (of, bytes) in present::worth_reading(run) {
            tails.push(self.tail(&run.id, of, bytes).await);
        }
        present::run(run, how, &tails, links)
    }

    /// Reads the end of an output. If it cannot be read, the answer has an empty one.
    async fn tail(&self, id: &RunId, of: OutputOf, bytes: u64) -> Tail {
        let end = self.end(id, of, bytes, TAIL).await.map(|(end, _, _)| end).unwrap_or_default();
        Tail { of, bytes, end: Untrusted::of_output(&end) }
    }

    /// Returns the last `most` bytes of an output, their offset, and the total length. `guess` is the expected
    /// length; the actual one may differ, because marks that replace secrets may be longer.
    async fn end(&self, id: &RunId, of: OutputOf, guess: u64, most: usize) -> Result<(Vec<u8>, u64, u64), Problem> {
        let start = |total: u64| total.saturating_sub(most as u64);
        let mut offset = start(guess);
        let (mut part, total) = self.backend.output(id, of, offset, most).await?;
        if part.more || start(total) != offset {
            offset = start(total);
            part = self.backend.output(id, of, offset, most).await?.0;
        }
        let partial = part.bytes.iter().take(3).take_while(|byte| offset > 0 && **byte & 0xc0 == 0x80).count();
        Ok((part.bytes.split_off(partial), offset + partial as u64, total))
    }

    async fn logs(&self, arguments: Option<JsonObject>) -> Answer {
        let asked: input::Logs = read(arguments)?;
        let run = self.backend.watch(&asked.run_id, None, Duration::ZERO).await?.run;
        let (unit, step) = chosen(&run, &asked).ok_or_else(|| nothing_printed(&asked.run_id))?;
        let stream = asked.stream.map_or_else(|| telling(step), Stdio::from);
        let of = OutputOf { unit, n: step.n, stream };
        let kept = match stream {
            Stdio::Stdout => step.stdout.as_ref(),
            Stdio::Stderr => step.stderr.as_ref(),
        };
        // The output length of a running step is not known yet; `end` asks for it.
        let is_running = step.attempt > 0 && step.outcome.is_none();
        let running = is_running.then_some(0);
        let kept = kept.map(|view| view.kept_bytes).or(running).ok_or_else(|| nothing_printed(&asked.run_id))?;
        let (keep, (bytes, start, total)) = match asked.offset {
            None => (Keep::End, self.end(&run.id, of, kept, LOG).await?),
            Some(offset) => {
                let (part, total) = self.backend.output(&run.id, of, offset, LOG).await?;
                (Keep::Start, (whole_characters(part.bytes, part.more), offset.min(total), total))
            }
        };
        Ok(Shown { run: &run, step, of, bytes: &bytes, start, total, keep }.result())
    }

    async fn explain(&self, arguments: Option<JsonObject>) -> Answer {
        let asked: input::Explain = read(arguments)?;
        match (asked.run_id, asked.repo_root) {
            (Some(id), _) => {
                let (run, log) = self.log(&id).await?;
                Ok(explain::run(&run, log, asked.links))
            }
            (None, repo) => {
                let repo = repo.unwrap_or_default();
                let plan = PlanAsked { repo: repo.clone(), profile: Some(asked.profile.clone()) };
                let plan = self.backend.plan(plan).await?;
                let gate = GateAsked {
                    repo: repo.clone(),
                    profile: asked.profile,
                    changeset_id: asked.changeset_id,
                    max_tier: Tier::TWO,
                    max_age: None,
                    accept_unattested: false,
                    max_cache_trust: CacheTrust::Default,
                    strict_inputs: false,
                };
                Ok(explain::plan(&repo, &plan, &self.backend.gate(gate).await?))
            }
        }
    }

    /// Returns a run and the facts in its events, up to [`MAX_PAGES`] pages.
    async fn log(&self, id: &RunId) -> Result<(RunView, explain::Log), Problem> {
        let (mut log, mut seen) = (explain::Log::default(), 0);
        let mut pages = 0;
        loop {
            let watched = self.backend.watch(id, Some(seen), Duration::ZERO).await?;
            for logged in watched.events.iter().flatten() {
                seen = logged.seq;
                log.take(&logged.event);
            }
            pages += 1;
            log.goes_on = watched.more_events;
            if !log.goes_on || pages == MAX_PAGES {
                return Ok((watched.run, log));
            }
        }
    }
}

fn read<T: input::Arguments>(arguments: Option<JsonObject>) -> Result<T, Refusal> {
    input::read(arguments).map_err(Refusal::Arguments)
}

fn submission(asked: &input::Verify) -> RunSubmission {
    let least = RunSubmission::new(asked.repo_root.clone().unwrap_or_default(), asked.profile.clone());
    RunSubmission {
        changeset_id: asked.changeset_id.clone(),
        skills: asked.skills,
        no_caches: asked.no_caches,
        ..least
    }
}

/// Selects the step or check: the requested one, else the first that did not pass, else the first.
fn chosen<'a>(run: &'a RunView, asked: &input::Logs) -> Option<(Unit, &'a StepView)> {
    let unit = Unit::from(asked.of);
    let steps = match unit {
        Unit::Check => &run.checks,
        Unit::Step => &run.steps,
    };
    let wanting = || steps.iter().find(|step| words::is_wanting(step));
    let step = match asked.n {
        Some(n) => steps.iter().find(|step| step.n == n),
        None => wanting().or_else(|| steps.first()),
    };
    step.map(|step| (unit, step))
}

/// Selects the more informative stream: standard error unless it is empty.
fn telling(step: &StepView) -> Stdio {
    match &step.stderr {
        Some(stderr) if stderr.kept_bytes > 0 => Stdio::Stderr,
        _ => Stdio::Stdout,
    }
}

fn nothing_printed(id: &RunId) -> Refusal {
    Refusal::Arguments(format!(
        "the run `{id}` has no such step or check, or it has not ended; antigravity_verify_explain lists what the run did"
    ))
}

/// A part of an output to show.
struct Shown<'a> {
    run: &'a RunView,
    step: &'a StepView,
    of: OutputOf,
    bytes: &'a [u8],
    /// Offset of the first byte.
    start: u64,
    total: u64,
    keep: Keep,
}

impl Shown<'_> {
    fn result(&self) -> CallToolResult {
        fitting(|room| self.draft(room))
    }

    fn draft(&self, room: usize) -> Draft<LogPart> {
        let (bytes, start) = self.part(room);
        let end = start + bytes.len() as u64;
        let (stream, named) = (self.of.stream.as_str(), words::named(self.step));
        let span = format!("bytes {start} to {end} of {} of {stream} of {named}", self.total);
        let next_offset = (end < self.total).then_some(end);
        let value = LogPart {
            run_id: self.run.id.clone(),
            of: self.of.unit.as_str(),
            n: self.of.n,
            name: named,
            stream,
            offset: start,
            next_offset,
            total_bytes: self.total,
            text: Untrusted::of_output(bytes).marked(&span),
            uri: Address::Output(self.run.id.clone(), self.of, 0).to_string(),
        };
        let more = next_offset.map(|next| format!("\nMore: offset {next}.")).unwrap_or_default();
        let text = format!("{}: {}\n{CAUTION}\n{}{more}", value.name, words::manner(self.step), value.text);
        Draft { text, value, links: vec![] }
    }

    /// Returns the bytes that fit in `room`, from the kept end, and their offset. Escaping makes them longer; the
    /// caller then retries with less room.
    fn part(&self, room: usize) -> (&[u8], u64) {
        let most = room.min(self.bytes.len());
        match self.keep {
            Keep::Start => {
                let cut = boundary(self.bytes, most, |cut| cut.saturating_sub(1));
                (&self.bytes[..cut], self.start)
            }
            Keep::End => {
                let cut = boundary(self.bytes, self.bytes.len() - most, |cut| cut + 1);
                (&self.bytes[cut..], self.start + cut as u64)
            }
        }
    }
}

/// Returns a character boundary near `cut`, at most three steps away.
fn boundary(bytes: &[u8], cut: usize, step: impl Fn(usize) -> usize) -> usize {
    let within = |cut: &usize| bytes.get(*cut).is_none_or(|byte| byte & 0xc0 != 0x80);
    std::iter::successors(Some(cut), |cut| Some(step(*cut))).take(4).find(within).unwrap_or(cut)
}

fn refused(refusal_: &Refusal) -> CallToolResult {
    match refusal_ {
        Refusal::Arguments(error) => {
            let error = one_line(error);
            refusal(format!("NOT VERIFIED: the arguments are not valid: {error}.\nHint: {}", hints::ARGUMENTS))
        }
        Refusal::Problem(problem) => {
            let first = format!("COULD NOT DO IT (nothing is verified): {}", problem.kind.title());
            let hint = hints::for_problem(problem);
            if is_about_the_request(problem.kind) {
                return refusal(format!("{first}\n{}.\nHint: {hint}", one_line(&problem.detail)));
            }
            let details = Untrusted::of_text(&present::problem_lines(problem).join("\n"));
            let details = details.cut(MAX_REFUSAL, Keep::Start).marked("details");
            refusal(format!("{first}\nHint: {hint}\n{CAUTION}\n{details}"))
        }
    }
}

/// Returns whether the detail of a problem quotes only the caller's request. Other details may quote the repository.
fn is_about_the_request(kind: ProblemType) -> bool {
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
const MAX_REFUSAL: usize = 6 << 10;
