//! One stage of the chain, and what is known so far of the text that goes through it.

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
    /// Where it stands in the text, in bytes.
    pub range: Range<usize>,
    /// Its tree, where the parser reads it.
    pub tree: Option<ast::Statement>,
    /// What the engine says of it, once it was asked.
    pub prepared: Option<Result<Bound, Refusal>>,
    /// What the engine has against the names in it, where it refused it.
    pub names: Vec<Diagnostic>,
    /// The first name that it needs and that is not on the lists of the request, as the engine reports it.
    pub off_list: Option<Refusal>,
}

impl Statement {
    /// What it does, where the engine could prepare it.
    pub fn bound(&self) -> Option<&Bound> {
        self.prepared.as_ref()?.as_ref().ok()
    }
}

/// A text on its way.
pub struct Case<'a> {
    /// What was asked.
    pub request: &'a Request,
    /// Where the lines of its text begin.
    pub lines: Lines,
    /// Who knows.
    pub engine: &'a mut dyn Engine,
    /// Its statements, once a stage has found them.
    pub statements: Vec<Statement>,
    /// What was found.
    pub diagnostics: Vec<Diagnostic>,
    /// What running came to.
    pub execution: Option<Execution>,
    /// When all of it must have ended.
    pub deadline: Instant,
}

/// A stage. It adds what it finds to the case; an error among that is its rejection.
pub trait Stage {
    /// Which it is.
    fn name(&self) -> StageName;

    /// Does its work.
    ///
    /// # Errors
    /// Why it could not: a fault of the engine or of ours, never of the statement.
    fn run(&self, case: &mut Case<'_>) -> Result<(), String>;
}

impl Case<'_> {
    /// The text.
    pub fn text(&self) -> &str {
        &self.request.sql
    }

    /// The text of a statement.
    pub fn text_of(&self, statement: &Statement) -> &str {
        &self.request.sql[statement.range.clone()]
    }

    /// A place in the text, in bytes.
    pub fn span(&self, range: Range<usize>) -> Span {
        self.lines.span(&self.request.sql, range.start, range.end)
    }

    /// Adds a finding.
    pub fn found(&mut self, diagnostic: Diagnostic) {
        let diagnostic = diagnostic.rejecting_at(self.request.reject_at);
        if !self.diagnostics.contains(&diagnostic) {
            self.diagnostics.push(diagnostic);
        }
    }

    /// Whether a stage found an error.
    pub fn is_rejected_by(&self, stage: StageName) -> bool {
        self.diagnostics.iter().any(|found| found.stage == stage && found.severity == Severity::Error)
    }

    /// Whether any did.
    pub fn is_rejected(&self) -> bool {
        self.diagnostics.iter().any(|found| found.severity == Severity::Error)
    }

    /// Whether its time is over; a stage that has work left then stops, and that is an error found by it.
    pub(crate) fn is_late(&mut self, stage: StageName) -> bool {
        let is_late = Instant::now() > self.deadline;
        let is_told = self.diagnostics.iter().any(|found| found.severity == Severity::Error && is_limit(found.code));
        if is_late && !is_told {
            let message = format!("it did not end within {} ms", self.request.limits.time_ms);
            self.found(Diagnostic::error(stage, SqlCode::TimeLimit, message).advice(LESS));
        }
        is_late
    }

    /// The catalog as far as the lists of the request allow to describe it.
    pub(crate) fn visible(&self) -> Cow<'_, Catalog> {
        let catalog = self.engine.catalog();
        match lists::are_given(&self.request.allow) {
            true => Cow::Owned(redact::visible(catalog, &self.request.allow)),
            false => Cow::Borrowed(catalog),
        }
    }

    /// The bounds that hold.
    pub fn bounds(&self) -> (proctor_core::sql::Limits, Instant) {
        (self.request.limits, self.deadline)
    }

    /// What an engine has against a statement that begins at `from`, as a finding.
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

/// What to do about a statement that takes too much.
pub(crate) const LESS: &str = "Join by conditions, filter, or bound it, so that it needs less.";

/// Whether a finding says that something took too much.
pub(crate) fn is_limit(code: SqlCode) -> bool {
    use SqlCode::{EndlessRecursion, MemoryLimit, ResultLimit, StepLimit, TimeLimit};
    matches!(code, TimeLimit | StepLimit | MemoryLimit | ResultLimit | EndlessRecursion)
}

/// The bounds of a case, for its engine.
pub(crate) fn on(bounds: &(proctor_core::sql::Limits, Instant)) -> RunOn<'_> {
    RunOn { limits: &bounds.0, deadline: bounds.1, is_to_end: false }
}
