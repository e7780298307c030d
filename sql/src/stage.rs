//! Defines the trait of a stage, and the state of a text that passes through the chain.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Diagnostic, Execution, Lines, Request, Severity, Span, SqlCode, StageName};
use sqlparser::ast;

use crate::advice::advise;
use crate::catalog::Catalog;
use crate::engine::{Bound, Engine, Refusal, RunOn};
use crate::{lists, redact};

/// One statement of the text.
#[derive(Debug, Clone)]
pub struct Statement {
    /// The byte range of the statement in the text.
    pub range: Range<usize>,
    /// The syntax tree; `None` if the parser cannot read the statement.
    pub tree: Option<ast::Statement>,
    /// The answer of the engine; `None` before the engine was asked.
    pub prepared: Option<Result<Bound, Refusal>>,
    /// Findings about the names in the statement, if the engine refused it.
    pub names: Vec<Diagnostic>,
    /// The first name that the statement needs and that is not on the lists of the request, as the engine reports it.
    pub off_list: Option<Refusal>,
}

impl Statement {
    /// Returns what the statement does; `None` if the engine did not prepare it.
    pub fn bound(&self) -> Option<&Bound> {
        self.prepared.as_ref()?.as_ref().ok()
    }
}

/// A text that passes through the chain, with everything that is known about it.
pub struct Case<'a> {
    /// The request.
    pub request: &'a Request,
    /// The line index of the text.
    pub lines: Lines,
    /// The engine.
    pub engine: &'a mut dyn Engine,
    /// The statements, once a stage has found them.
    pub statements: Vec<Statement>,
    /// The findings so far.
    pub diagnostics: Vec<Diagnostic>,
    /// The result of running the text, if it ran.
    pub execution: Option<Execution>,
    /// The time at which the whole judgement must have ended.
    pub deadline: Instant,
}

/// A stage of the chain. It adds its findings to the case; an error among them is a rejection.
pub trait Stage {
    /// Returns the name of the stage.
    fn name(&self) -> StageName;

    /// Runs the stage.
    ///
    /// # Errors
    /// The stage could not do its work: the engine or Proctor failed. A wrong statement is not an error but a finding.
    fn run(&self, case: &mut Case<'_>) -> Result<(), String>;
}

impl Case<'_> {
    /// Returns the whole text.
    pub fn text(&self) -> &str {
        &self.request.sql
    }

    /// Returns the text of a statement.
    pub fn text_of(&self, statement: &Statement) -> &str {
        &self.request.sql[statement.range.clone()]
    }

    /// Returns the position of a byte range in the text.
    pub fn span(&self, range: Range<usize>) -> Span {
        self.lines.span(&self.request.sql, range.start, range.end)
    }

    /// Adds a finding, unless the case already has it.
    pub fn found(&mut self, diagnostic: Diagnostic) {
        let diagnostic = diagnostic.rejecting_at(self.request.reject_at);
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    /// Reports whether a stage found an error.
    pub fn is_rejected_by(&self, stage: StageName) -> bool {
        self.diagnostics.iter().any(|found| found.stage == stage && found.severity == Severity::Error)
    }

    /// Reports whether any stage found an error.
    pub fn is_rejected(&self) -> bool {
        self.diagnostics.iter().any(|found| found.severity == Severity::Error)
    }

    /// Reports whether the deadline has passed. The stage must then stop; the time limit is added as an error, unless
    /// the case already has an error about a limit.
    pub(crate) fn is_late(&mut self, stage: StageName) -> bool {
        let is_late = Instant::now() > self.deadline;
        let is_told = self.diagnostics.iter().any(|found| found.severity == Severity::Error && is_limit(found.code));
        if is_late && !is_told {
            let message = format!("it did not end within {} ms", self.request.limits.time_ms);
            self.found(Diagnostic::error(stage, SqlCode::TimeLimit, message).advice(LESS));
        }
        is_late
    }

    /// Returns the part of the catalog that findings may describe according to the lists of the request.
    pub(crate) fn visible(&self) -> Cow<'_, Catalog> {
        let catalog = self.engine.catalog();
        match lists::are_given(&self.request.allow) {
            true => Cow::Owned(redact::visible(catalog, &self.request.allow)),
            false => Cow::Borrowed(catalog),
        }
    }

    /// Returns the limits and the deadline of the request.
    pub fn bounds(&self) -> (proctor_core::sql::Limits, Instant) {
        (self.request.limits, self.deadline)
    }

    /// Converts a refusal of a statement that starts at byte `from` of the text to a finding.
    pub fn refused(&self, stage: StageName, refusal: &Refusal, from: usize) -> Diagnostic {
        let span = refusal.place.clone().map(|place| self.span(from + place.start..from + place.end));
        let mut found = Diagnostic::error(stage, refusal.code, refusal.message.clone())
            .at(span)
            .candidates(refusal.candidates.clone());
        found.engine_code.clone_from(&refusal.engine_code);
        found.subject.clone_from(&refusal.subject);
        let said = refusal.engine_code.as_deref().unwrap_or(&refusal.message);
        let advice = advise(self.request.dialect, said);
        found.advice = advice.is_known.then_some(advice.advice);
        found
    }
}

/// The advice about a statement that exceeds a limit.
pub(crate) const LESS: &str = "Join by conditions, filter, or bound it, so that it needs less.";

/// Reports whether a code means that a limit was exceeded.
pub(crate) fn is_limit(code: SqlCode) -> bool {
    use SqlCode::{EndlessRecursion, MemoryLimit, ResultLimit, StepLimit, TimeLimit};
    matches!(code, TimeLimit | StepLimit | MemoryLimit | ResultLimit | EndlessRecursion)
}

/// Returns the bounds of a case for its engine.
pub(crate) fn on(bounds: &(proctor_core::sql::Limits, Instant)) -> RunOn<'_> {
    RunOn { limits: &bounds.0, deadline: bounds.1, is_to_end: false }
}
