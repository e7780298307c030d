//! Defines the trait of a stage, and the state of a text that passes through the chain.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{
    SqlCode, SqlDiagnostic, SqlExecution, SqlLineIndex, SqlRequest, SqlSeverity, SqlSpan, StageName,
};
use sqlparser::ast;

use crate::advice::advise;
use crate::allow_lists::{self, NameLists};
use crate::catalog::Catalog;
use crate::engine::{BoundStatement, EngineRefusal, ExecutionBounds, SqlEngine, is_limit_code};
use crate::hidden_names;

/// One statement of the text.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The byte range of the statement in the text.
    pub range: Range<usize>,
    /// The syntax tree; `None` if the parser cannot read the statement.
    pub tree: Option<ast::Statement>,
    /// The answer of the engine; `None` before the engine was asked.
    pub prepared: Option<Result<BoundStatement, EngineRefusal>>,
    /// Findings about the names in the statement, if the engine refused it.
    pub name_findings: Vec<SqlDiagnostic>,
    /// The first name that the statement needs and that is not on the lists of the request, as the engine reports it.
    pub off_list_refusal: Option<EngineRefusal>,
}

impl Statement {
    /// Returns what the statement does; `None` if the engine did not prepare it.
    pub fn bound(&self) -> Option<&BoundStatement> {
        self.prepared.as_ref()?.as_ref().ok()
    }
}

/// A text that passes through the chain, with everything that is known about it.
pub struct ChainContext<'a> {
    /// The request.
    pub request: &'a SqlRequest,
    /// The lists of tables and columns of the request.
    pub lists: NameLists,
    /// The line index of the text.
    pub lines: SqlLineIndex,
    /// The engine.
    pub engine: &'a mut dyn SqlEngine,
    /// The statements, once a stage has found them.
    pub statements: Vec<Statement>,
    /// The findings so far.
    pub diagnostics: Vec<SqlDiagnostic>,
    /// The result of running the text, if it ran.
    pub execution: Option<SqlExecution>,
    /// The time at which the whole judgement must have ended.
    pub deadline: Instant,
}

/// The reason why a stage could not do its work.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StageError {
    /// The engine failed, or a limit ended an internal statement.
    #[error(transparent)]
    Engine(#[from] EngineRefusal),
    /// Proctor ran a statement that no policy allows. This is a bug of Proctor.
    #[error("a statement that no policy allows was about to run")]
    ForbiddenStatement,
}

/// A stage of the chain. It adds its findings to the case; an error among them is a rejection.
pub trait SqlStage {
    /// Returns the name of the stage.
    fn name(&self) -> StageName;

    /// Runs the stage.
    ///
    /// # Errors
    /// The stage could not do its work: the engine or Proctor failed. A wrong statement is not an error but a finding.
    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError>;
}

impl ChainContext<'_> {
    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.request.sql
    }

    /// Returns the text of a statement.
    pub fn statement_text(&self, statement: &Statement) -> &str {
        &self.request.sql[statement.range.clone()]
    }

    /// Returns the position of a byte range in the text.
    pub fn span(&self, range: Range<usize>) -> SqlSpan {
        self.lines.span(&self.request.sql, range.start, range.end)
    }

    /// Adds a finding, unless the case already has it.
    pub fn add_finding(&mut self, diagnostic: SqlDiagnostic) {
        let diagnostic = diagnostic.with_reject_threshold(self.request.reject_at);
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    /// Reports whether a stage found an error.
    pub fn is_rejected_by(&self, stage: StageName) -> bool {
        self.diagnostics.iter().any(|found| found.stage == stage && found.severity == SqlSeverity::Error)
    }

    /// Reports whether any stage found an error.
    pub fn is_rejected(&self) -> bool {
        self.diagnostics.iter().any(|found| found.severity == SqlSeverity::Error)
    }

    /// Reports whether the deadline has passed. The stage must then stop; the time limit is added as an error, unless
    /// the case already has an error about a limit.
    pub(crate) fn check_deadline(&mut self, stage: StageName) -> bool {
        let is_late = Instant::now() > self.deadline;
        let is_reported =
            self.diagnostics.iter().any(|found| found.severity == SqlSeverity::Error && is_limit_code(found.code));
        if is_late && !is_reported {
            let message = format!("it did not end within {} ms", self.request.limits.time_ms);
            self.add_finding(SqlDiagnostic::error(stage, SqlCode::TimeLimit, message).with_advice(REDUCE_ADVICE));
        }
        is_late
    }

    /// Returns the part of the catalog that findings may describe according to the lists of the request.
    pub(crate) fn visible_catalog(&self) -> Cow<'_, Catalog> {
        let catalog = self.engine.catalog();
        match allow_lists::has_name_lists(&self.lists) {
            true => Cow::Owned(hidden_names::visible_catalog(catalog, &self.lists)),
            false => Cow::Borrowed(catalog),
        }
    }

    /// Returns the limits and the deadline of the request.
    pub fn limits_and_deadline(&self) -> (proctor_core::sql::SqlResourceLimits, Instant) {
        (self.request.limits, self.deadline)
    }

    /// Converts a refusal of a statement that starts at byte `from` of the text to a finding.
    pub fn refusal_finding(&self, stage: StageName, refusal: &EngineRefusal, from: usize) -> SqlDiagnostic {
        refusal_diagnostic(self.request, stage, refusal, |place| self.span(from + place.start..from + place.end))
    }
}

/// Converts a refusal to a finding. `span` converts a range of the statement to one of the text.
pub(crate) fn refusal_diagnostic(
    request: &SqlRequest,
    stage: StageName,
    refusal: &EngineRefusal,
    span: impl FnOnce(Range<usize>) -> SqlSpan,
) -> SqlDiagnostic {
    let mut found = SqlDiagnostic::error(stage, refusal.code, refusal.message.clone())
        .with_span(refusal.range.clone().map(span))
        .with_candidates(refusal.candidates.clone());
    found.engine_code.clone_from(&refusal.engine_code);
    found.subject.clone_from(&refusal.subject);
    let message = refusal.engine_code.as_deref().unwrap_or(&refusal.message);
    let advice = advise(request.dialect, message);
    found.advice = advice.is_known.then_some(advice.advice);
    found
}

/// The advice about a statement that exceeds a limit.
pub(crate) const REDUCE_ADVICE: &str = "Reduce the work: add join conditions, filters or a LIMIT.";

/// Returns the bounds of a case for its engine.
pub(crate) fn execution_bounds(bounds: &(proctor_core::sql::SqlResourceLimits, Instant)) -> ExecutionBounds<'_> {
    ExecutionBounds { limits: &bounds.0, deadline: bounds.1, continues_past_row_limit: false }
}
