//! Runs the stages of a request in order, and skips those that make no sense after a failed one.

use std::cmp::Reverse;
use std::time::{Duration, Instant};

use proctor_core::sql::{
    Judgement, SqlAudit, SqlCode, SqlDiagnostic, SqlLineIndex, SqlRequest, SqlRetry, SqlSeverity, SqlTiming,
    SqlVerdict, StageName, StageRecord, StageState, StatementView, VERSION, render_feedback,
};
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;

use crate::allow_lists::NameLists;
use crate::engine::SqlEngine;
use crate::hidden_names::HiddenNames;
use crate::stage::{ChainContext, REDUCE_ADVICE, SqlStage, Statement};
use crate::stages;

/// The maximum number of findings in a judgement.
const MAX_FINDINGS: usize = 64;
/// The maximum number of statements in a judgement.
const MAX_STATEMENTS: usize = 256;

/// An ordered list of stages. Callers can reorder, shorten and extend it.
pub struct Chain {
    stages: Vec<Box<dyn SqlStage + Send + Sync>>,
}

impl Chain {
    /// Creates a chain of built-in stages in the given order.
    pub fn new(names: &[StageName]) -> Self {
        Self { stages: names.iter().filter_map(|name| stages::built_in_stage(*name)).collect() }
    }

    /// Appends a stage.
    #[must_use]
    pub fn with(mut self, stage: impl SqlStage + Send + Sync + 'static) -> Self {
        self.stages.push(Box::new(stage));
        self
    }

    /// Judges a text. Always returns a judgement; its verdict is `ok` only if every stage passed.
    pub fn judge(&self, request: &SqlRequest, engine: &mut dyn SqlEngine) -> Judgement {
        self.judge_since(Instant::now(), request, engine)
    }

    /// Judges a text whose time limit started at `begun`.
    pub fn judge_since(&self, begun: Instant, request: &SqlRequest, engine: &mut dyn SqlEngine) -> Judgement {
        self.judge_statements(begun, request, engine).0
    }

    /// Judges a text as [`judge_since`](Self::judge_since) does. Also returns its statements.
    pub(crate) fn judge_statements(
        &self,
        begun: Instant,
        request: &SqlRequest,
        engine: &mut dyn SqlEngine,
    ) -> (Judgement, Vec<Statement>) {
        let deadline = begun + request.limits.wall_time();
        let (dialect, version) = (engine.dialect(), engine.version());
        let mut case = ChainContext {
            request,
            lists: NameLists::new(&request.allow, request.dialect),
            lines: SqlLineIndex::new(&request.sql),
            engine,
            statements: Vec::new(),
            diagnostics: Vec::new(),
            execution: None,
            deadline,
        };
        let mut records: Vec<StageRecord> = Vec::new();
        let mut timing = SqlTiming::default();
        if dialect != request.dialect {
            let message = format!("the engine is {version}, but the text is for {}", request.dialect.display_name());
            case.add_finding(SqlDiagnostic::error(StageName::Extract, SqlCode::EngineFailed, message));
        }
        for stage in &self.stages {
            let name = stage.name();
            if let Some(reason) = skip_reason(name, &mut case, &records) {
                records.push(StageRecord::new(name, StageState::Skipped, Some(reason)));
                continue;
            }
            let at = Instant::now();
            let (state, reason) = match stage.run(&mut case) {
                Ok(()) => (StageState::Passed, None),
                Err(error) => (StageState::Failed, Some(error.to_string())),
            };
            timing.stages_us.push((name, elapsed_micros(at)));
            records.push(StageRecord::new(name, state, reason));
        }
        if self.stages.is_empty() {
            case.add_finding(SqlDiagnostic::error(StageName::Extract, SqlCode::EngineFailed, "no stage was requested"));
        } else if !self.stages.iter().any(|stage| stage.name() == StageName::Safety) {
            case.add_finding(safety_unchecked_warning());
        }
        for record in &mut records {
            if record.state == StageState::Passed && case.is_rejected_by(record.stage) {
                record.state = StageState::Rejected;
            }
        }
        timing.total_us = elapsed_micros(begun);
        let judgement = finish_judgement(request, version, &mut case, records, timing);
        (judgement, case.statements)
    }
}

/// Judges a text with the stages that its request names.
pub fn judge(request: &SqlRequest, engine: &mut dyn SqlEngine) -> Judgement {
    Chain::new(request.stages()).judge(request, engine)
}

/// Judges a text with the stages that its request names. Its time limit started at `begun`.
pub fn judge_since(begun: Instant, request: &SqlRequest, engine: &mut dyn SqlEngine) -> Judgement {
    Chain::new(request.stages()).judge_since(begun, request, engine)
}

/// Returns the judgement of a request that no engine could judge: the engine is missing, or it died.
pub fn error_judgement(request: &SqlRequest, engine: &str, code: SqlCode, message: String) -> Judgement {
    let stages: Vec<StageRecord> = request
        .stages()
        .iter()
        .map(|stage| StageRecord::new(*stage, StageState::Skipped, Some(message.clone())))
        .collect();
    let found = SqlDiagnostic::error(StageName::Extract, code, message);
    build_judgement(request, engine.to_owned(), Vec::new(), stages, vec![found], None, SqlTiming::default())
}

/// Returns the judgement of a request that exceeded a limit before anything else was known: a rejection.
pub fn limit_judgement(request: &SqlRequest, code: SqlCode, message: String, took: Duration) -> Judgement {
    let stages: Vec<StageRecord> = request
        .stages()
        .iter()
        .map(|stage| StageRecord::new(*stage, StageState::Skipped, Some(message.clone())))
        .collect();
    let found = SqlDiagnostic::error(StageName::Run, code, message).with_advice(REDUCE_ADVICE);
    let timing = SqlTiming { total_us: u64::try_from(took.as_micros()).unwrap_or(u64::MAX), stages_us: Vec::new() };
    build_judgement(request, request.dialect.display_name().to_owned(), Vec::new(), stages, vec![found], None, timing)
}

/// Returns the warning that the stage `safety` was not requested, so that `ok` does not mean that the text may run.
fn safety_unchecked_warning() -> SqlDiagnostic {
    let message = "its effects were not checked: the stage `safety` was not requested";
    SqlDiagnostic::warning(StageName::Safety, SqlCode::SafetyUnchecked, message, 100)
        .with_advice("Request it before you run the statement.")
}

pub(crate) fn elapsed_micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// Returns the reason why a stage makes no sense now; `None` if it does.
fn skip_reason(stage: StageName, case: &mut ChainContext<'_>, records: &[StageRecord]) -> Option<String> {
    const SYNTAX_STAGES: [StageName; 3] = [StageName::Extract, StageName::Tokenize, StageName::Parse];
    // The stage `semantic` still runs: its findings help to fix what took too long, and it does not use the engine.
    if stage != StageName::Semantic && case.check_deadline(stage) {
        return Some("the time limit was reached".to_owned());
    }
    let broken = SYNTAX_STAGES.iter().find(|form| **form < stage && case.is_rejected_by(**form));
    if let Some(broken) = broken {
        return Some(format!("`{}` found that this is not a statement", broken.as_str()));
    }
    if let Some(failed) = records.iter().find(|record| record.state == StageState::Failed) {
        return Some(format!("`{}` failed", failed.stage.as_str()));
    }
    if stage == StageName::Run && case.is_rejected() {
        return Some("rejected statements are not run".to_owned());
    }
    None
}

fn finish_judgement(
    request: &SqlRequest,
    engine: String,
    case: &mut ChainContext<'_>,
    stages: Vec<StageRecord>,
    timing: SqlTiming,
) -> Judgement {
    let shown = case.statements.iter().take(MAX_STATEMENTS);
    let mut statements: Vec<StatementView> = shown.map(|statement| statement_view(case, statement)).collect();
    let mut diagnostics = std::mem::take(&mut case.diagnostics);
    if let Some(hidden) = HiddenNames::new(case.engine.catalog(), &case.lists, &request.sql, request.dialect) {
        diagnostics.iter_mut().for_each(|found| hidden.mask_diagnostic(found));
        statements.iter_mut().for_each(|view| hidden.mask_view(view));
    }
    sort_findings(&mut diagnostics);
    if diagnostics.len() > MAX_FINDINGS {
        // Errors come before warnings, so that the reason for a rejection is never cut off.
        diagnostics.sort_by_key(|found| Reverse(found.severity));
        diagnostics.truncate(MAX_FINDINGS);
    }
    build_judgement(request, engine, statements, stages, diagnostics, case.execution.take(), timing)
}

/// Sorts findings by stage, position, severity and code. The wording of a message has no effect on its place; equal
/// findings stay in the order in which their stage found them.
fn sort_findings(diagnostics: &mut [SqlDiagnostic]) {
    diagnostics.sort_by_key(|found| {
        (found.stage, found.span.map_or(0, |span| span.start), Reverse(found.severity), found.code)
    });
}

/// Returns a judgement with the record of a verifier, which ran after the stage `after`, and with its findings.
pub(crate) fn with_verifier(
    request: &SqlRequest,
    judgement: Judgement,
    after: StageName,
    record: StageRecord,
    findings: Vec<SqlDiagnostic>,
) -> Judgement {
    let Judgement { statements, mut stages, mut diagnostics, execution, audit, timing, .. } = judgement;
    // Verifiers after the same stage keep their order.
    let until = StageName::ALL.iter().position(|stage| *stage == after);
    let is_before = |known: &StageRecord| StageName::ALL.iter().position(|stage| *stage == known.stage) <= until;
    let at =
        stages.iter().rposition(|known| known.stage != StageName::Custom && is_before(known)).map_or(0, |at| at + 1);
    let at = at + stages[at..].iter().take_while(|known| known.stage == StageName::Custom).count();
    stages.insert(at, record);
    diagnostics.extend(findings);
    build_judgement(request, audit.engine, statements, stages, diagnostics, execution, timing)
}

fn build_judgement(
    request: &SqlRequest,
    engine: String,
    statements: Vec<StatementView>,
    stages: Vec<StageRecord>,
    diagnostics: Vec<SqlDiagnostic>,
    execution: Option<proctor_core::sql::SqlExecution>,
    timing: SqlTiming,
) -> Judgement {
    let verdict = Judgement::derive_verdict(&stages, &diagnostics);
    let audit = SqlAudit {
        sql: Sha256Hex::digest(request.sql.as_bytes()),
        request: Sha256Hex::digest(&canonical::to_vec(request)),
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
        feedback: render_feedback(verdict, &diagnostics),
        retry: retry_advice(verdict, &diagnostics),
        diagnostics,
        execution,
        audit,
        digest: Sha256Hex::digest(b""),
        timing,
    };
    judgement.with_digest()
}

fn statement_view(case: &ChainContext<'_>, statement: &Statement) -> StatementView {
    let owned = |names: std::collections::BTreeSet<&str>| names.into_iter().map(str::to_owned).collect();
    let bound = statement.bound();
    StatementView {
        span: case.span(statement.range.clone()),
        kind: bound.map_or("unknown", |bound| bound.kind().as_str()).to_owned(),
        tables: bound.map(|bound| owned(bound.tables())).unwrap_or_default(),
        functions: bound.map(|bound| owned(bound.functions())).unwrap_or_default(),
    }
}

fn retry_advice(verdict: SqlVerdict, diagnostics: &[SqlDiagnostic]) -> SqlRetry {
    let say = |worth, why: &str| SqlRetry { worth, why: why.to_owned() };
    let is_warned = diagnostics
        .iter()
        .any(|found| found.severity == SqlSeverity::Warning && found.code != SqlCode::SafetyUnchecked);
    let is_unchecked = diagnostics.iter().any(|found| found.code == SqlCode::SafetyUnchecked);
    let is_refused = |found: &&SqlDiagnostic| found.severity == SqlSeverity::Error && found.stage == StageName::Safety;
    match verdict {
        SqlVerdict::Error => say(false, "the check failed for a reason unrelated to the statement"),
        SqlVerdict::Reject if diagnostics.iter().any(|found| is_refused(&found)) => {
            say(true, "only a statement with smaller effects can pass: a reformulation will not")
        }
        SqlVerdict::Reject => say(true, "the feedback lists each error"),
        SqlVerdict::Ok if is_warned => {
            say(true, "it can run; the warnings list possible differences from the question")
        }
        SqlVerdict::Ok if is_unchecked => say(false, "the stages that ran found no problem, but `safety` did not run"),
        SqlVerdict::Ok => say(false, "no stage found a problem"),
    }
}

#[cfg(test)]
mod tests {
    use proctor_core::sql::SqlSpan;

    use super::*;

    #[test]
    fn findings_are_sorted_by_position_then_code() {
        let at = |start| Some(SqlSpan { start, end: start + 1, line: 1, column: 1 });
        let found = |code, message: &str, start| {
            SqlDiagnostic::error(StageName::Bind, code, message.to_owned()).with_span(at(start))
        };
        let warning = SqlDiagnostic::warning(StageName::Bind, SqlCode::UnknownTable, "a".to_owned(), 50);
        let mut findings = [
            found(SqlCode::UnknownFunction, "a", 9),
            warning.with_span(at(4)),
            found(SqlCode::UnknownColumn, "a", 4),
            found(SqlCode::UnknownTable, "z", 4),
            found(SqlCode::UnknownTable, "b", 4),
        ];
        sort_findings(&mut findings);
        let order = findings.map(|found| (found.span.map(|span| span.start), found.code, found.message));
        let expected = [
            (4, SqlCode::UnknownTable, "z"),
            (4, SqlCode::UnknownTable, "b"),
            (4, SqlCode::UnknownColumn, "a"),
            (4, SqlCode::UnknownTable, "a"),
            (9, SqlCode::UnknownFunction, "a"),
        ];
        assert_eq!(order, expected.map(|(start, code, message)| (Some(start), code, message.to_owned())));
    }
}
