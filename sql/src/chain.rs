//! Runs the stages of a request in order, and skips those that make no sense after a failed one.

use std::time::{Duration, Instant};

use proctor_core::canonical;
use proctor_core::digest::Sha256Hex;
use proctor_core::sql::{
    Audit, Diagnostic, Judgement, Lines, Request, Retry, Severity, SqlCode, StageName, StageRecord, StageState,
    StatementView, Timing, VERSION, Verdict, feedback,
};

use crate::engine::Engine;
use crate::redact::Hidden;
use crate::stage::{Case, LESS, Stage, Statement};
use crate::stages;

/// The maximum number of findings in a judgement.
const MOST_FINDINGS: usize = 64;
/// The maximum number of statements in a judgement.
const MOST_STATEMENTS: usize = 256;

/// An ordered list of stages. Callers can reorder, shorten and extend it.
pub struct Chain {
    stages: Vec<Box<dyn Stage + Send + Sync>>,
}

impl Chain {
    /// Creates a chain of built-in stages in the given order.
    pub fn of(names: &[StageName]) -> Self {
        Self { stages: names.iter().map(|name| stages::of(*name)).collect() }
    }

    /// Appends a stage.
    #[must_use]
    pub fn with(mut self, stage: impl Stage + Send + Sync + 'static) -> Self {
        self.stages.push(Box::new(stage));
        self
    }

    /// Judges a text. Always returns a judgement; its verdict is `ok` only if every stage passed.
    pub fn judge(&self, request: &Request, engine: &mut dyn Engine) -> Judgement {
        self.judge_since(Instant::now(), request, engine)
    }

    /// Judges a text whose time limit started at `begun`.
    pub fn judge_since(&self, begun: Instant, request: &Request, engine: &mut dyn Engine) -> Judgement {
        let deadline = begun + request.limits.time();
        let (dialect, version) = (engine.dialect(), engine.version());
        let mut case = Case {
            request,
            lines: Lines::of(&request.sql),
            engine,
            statements: Vec::new(),
            diagnostics: Vec::new(),
            execution: None,
            deadline,
        };
        let mut records: Vec<StageRecord> = Vec::new();
        let mut timing = Timing::default();
        if dialect != request.dialect {
            let message = format!("the engine is {version}, and the text is for {}", request.dialect.title());
            case.found(Diagnostic::error(StageName::Extract, SqlCode::EngineFailed, message));
        }
        for stage in &self.stages {
            let name = stage.name();
            if let Some(reason) = not_now(name, &mut case, &records) {
                records.push(StageRecord { stage: name, state: StageState::Skipped, reason: Some(reason) });
                continue;
            }
            let at = Instant::now();
            let (state, reason) = match stage.run(&mut case) {
                Ok(()) => (StageState::Passed, None),
                Err(reason) => (StageState::Failed, Some(reason)),
            };
            timing.stages_us.push((name, micros(at)));
            records.push(StageRecord { stage: name, state, reason });
        }
        if self.stages.is_empty() {
            case.found(Diagnostic::error(StageName::Extract, SqlCode::EngineFailed, "no stage was asked for"));
        } else if !self.stages.iter().any(|stage| stage.name() == StageName::Safety) {
            case.found(unchecked());
        }
        for record in &mut records {
            if record.state == StageState::Passed && case.is_rejected_by(record.stage) {
                record.state = StageState::Rejected;
            }
        }
        timing.total_us = micros(begun);
        said(request, version, case, records, timing)
    }
}

/// Judges a text with the stages that its request names.
pub fn judge(request: &Request, engine: &mut dyn Engine) -> Judgement {
    Chain::of(request.stages()).judge(request, engine)
}

/// Judges a text with the stages that its request names. Its time limit started at `begun`.
pub fn judge_since(begun: Instant, request: &Request, engine: &mut dyn Engine) -> Judgement {
    Chain::of(request.stages()).judge_since(begun, request, engine)
}

/// Returns the judgement of a request that no engine could judge: the engine is missing, or it died.
pub fn unjudged(request: &Request, engine: &str, code: SqlCode, message: String) -> Judgement {
    let stages: Vec<StageRecord> = request
        .stages()
        .iter()
        .map(|stage| StageRecord { stage: *stage, state: StageState::Skipped, reason: Some(message.clone()) })
        .collect();
    let found = Diagnostic::error(StageName::Extract, code, message);
    told(request, engine.to_owned(), Vec::new(), stages, vec![found], None, Timing::default())
}

/// Returns the judgement of a request that exceeded a limit before anything else was known: a rejection.
pub fn ended(request: &Request, code: SqlCode, message: String, took: Duration) -> Judgement {
    let stages: Vec<StageRecord> = request
        .stages()
        .iter()
        .map(|stage| StageRecord { stage: *stage, state: StageState::Skipped, reason: Some(message.clone()) })
        .collect();
    let found = Diagnostic::error(StageName::Run, code, message).advice(LESS);
    let timing = Timing { total_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX), stages_us: Vec::new() };
    told(request, request.dialect.title().to_owned(), Vec::new(), stages, vec![found], None, timing)
}

/// Returns the warning that the stage `safety` was not requested, so that `ok` does not mean that the text may run.
fn unchecked() -> Diagnostic {
    let message = "its effects were not checked: the stage `safety` was not requested";
    Diagnostic::warning(StageName::Safety, SqlCode::SafetyUnchecked, message, 100)
        .advice("Request it before you run the statement.")
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Returns the reason why a stage makes no sense now; `None` if it does.
fn not_now(stage: StageName, case: &mut Case<'_>, records: &[StageRecord]) -> Option<String> {
    const FORM: [StageName; 3] = [StageName::Extract, StageName::Tokenize, StageName::Parse];
    // The stage `semantic` still runs: its findings help to fix what took too long, and it does not use the engine.
    if stage != StageName::Semantic && case.is_late(stage) {
        return Some("the time was over".to_owned());
    }
    let broken = FORM.iter().find(|form| **form < stage && case.is_rejected_by(**form));
    if let Some(broken) = broken {
        return Some(format!("`{}` found that this is no statement", broken.as_str()));
    }
    if let Some(failed) = records.iter().find(|record| record.state == StageState::Failed) {
        return Some(format!("`{}` could not do its work", failed.stage.as_str()));
    }
    if stage == StageName::Run && case.is_rejected() {
        return Some("what is rejected is not run".to_owned());
    }
    None
}

fn said(request: &Request, engine: String, mut case: Case<'_>, stages: Vec<StageRecord>, timing: Timing) -> Judgement {
    let shown = case.statements.iter().take(MOST_STATEMENTS);
    let mut statements: Vec<StatementView> = shown.map(|statement| view(&case, statement)).collect();
    let mut diagnostics = std::mem::take(&mut case.diagnostics);
    if let Some(hidden) = Hidden::new(case.engine.catalog(), &request.allow, &request.sql, request.dialect) {
        diagnostics.iter_mut().for_each(|found| hidden.redact(found));
        statements.iter_mut().for_each(|view| hidden.redact_view(view));
    }
    diagnostics.sort_by(|one, other| {
        let place = |found: &Diagnostic| (found.stage, found.span.map_or(0, |span| span.start));
        place(one).cmp(&place(other)).then(other.severity.cmp(&one.severity)).then(one.message.cmp(&other.message))
    });
    if diagnostics.len() > MOST_FINDINGS {
        // Errors come before warnings, so that the reason for a rejection is never cut off.
        diagnostics.sort_by_key(|found| std::cmp::Reverse(found.severity));
        diagnostics.truncate(MOST_FINDINGS);
    }
    told(request, engine, statements, stages, diagnostics, case.execution.take(), timing)
}

fn told(
    request: &Request,
    engine: String,
    statements: Vec<StatementView>,
    stages: Vec<StageRecord>,
    diagnostics: Vec<Diagnostic>,
    execution: Option<proctor_core::sql::Execution>,
    timing: Timing,
) -> Judgement {
    let verdict = Judgement::fold(&stages, &diagnostics);
    let audit = Audit {
        sql: Sha256Hex::of(request.sql.as_bytes()),
        request: Sha256Hex::of(&canonical::to_vec(request)),
        engine,
        proctor: env!("CARGO_PKG_VERSION").to_owned(),
    };
    let judgement = Judgement {
        version: VERSION,
        verdict,
        dialect: request.dialect,
        policy: request.policy,
        statements,
        stages,
        feedback: feedback(verdict, &diagnostics),
        retry: retry(verdict, &diagnostics),
        diagnostics,
        execution,
        audit,
        digest: Sha256Hex::of(b""),
        timing,
    };
    judgement.sealed()
}

fn view(case: &Case<'_>, statement: &Statement) -> StatementView {
    let owned = |names: std::collections::BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
    let bound = statement.bound();
    StatementView {
        span: case.span(statement.range.clone()),
        kind: bound.map_or("unknown", |bound| bound.kind().as_str()).to_owned(),
        tables: bound.map(|bound| owned(bound.tables())).unwrap_or_default(),
        functions: bound.map(|bound| owned(bound.functions())).unwrap_or_default(),
    }
}

fn retry(verdict: Verdict, diagnostics: &[Diagnostic]) -> Retry {
    let say = |worth, why: &str| Retry { worth, why: why.to_owned() };
    let is_warned =
        diagnostics.iter().any(|found| found.severity == Severity::Warning && found.code != SqlCode::SafetyUnchecked);
    let is_unchecked = diagnostics.iter().any(|found| found.code == SqlCode::SafetyUnchecked);
    let is_refused = |found: &&Diagnostic| found.severity == Severity::Error && found.stage == StageName::Safety;
    match verdict {
        Verdict::Error => say(false, "it could not be judged; that is not the statement's fault"),
        Verdict::Reject if diagnostics.iter().any(|found| is_refused(&found)) => {
            say(true, "only a statement that does less can pass: another spelling of the same will not")
        }
        Verdict::Reject => say(true, "the feedback names each error"),
        Verdict::Ok if is_warned => say(true, "it can run; the warnings say what may not be what was asked for"),
        Verdict::Ok if is_unchecked => say(false, "the stages that ran found no problem, but `safety` did not run"),
        Verdict::Ok => say(false, "nothing speaks against it"),
    }
}
