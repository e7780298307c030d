//! Collects the problems of a spec. The number of diagnostics is limited, so a hostile spec cannot make reporting
//! expensive.

use super::diagnostic::{self, Code, Diagnostic, Severity};
use super::span::Span;

/// Maximum number of errors that are listed; further ones are only counted.
const MAX_ERRORS: usize = 256;
/// Maximum number of warnings that are listed; further ones are only counted.
const MAX_WARNINGS: usize = 64;

/// The problems found so far.
#[derive(Debug, Default)]
pub(crate) struct DiagnosticCollector {
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
    unlisted_errors: usize,
    unlisted_warnings: usize,
}

impl DiagnosticCollector {
    /// Adds an error.
    pub(crate) fn add(&mut self, error: Diagnostic) {
        self.add_with(|| error);
    }

    /// Adds the error that `make` returns. Does not call `make` if the list of errors is full.
    pub(super) fn add_with(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.is_full() {
            self.unlisted_errors += 1;
        } else {
            self.errors.push(make());
        }
    }

    /// Adds the warning that `make` returns. Does not call `make` if the list of warnings is full.
    pub(super) fn warn_with(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.warnings.len() >= MAX_WARNINGS {
            self.unlisted_warnings += 1;
        } else {
            self.warnings.push(make());
        }
    }

    /// Returns whether the list of errors is full.
    pub(super) fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    /// Returns whether there are errors, which make the spec unusable.
    pub(super) fn has_errors(&self) -> bool {
        self.unlisted_errors > 0 || !self.errors.is_empty()
    }

    /// Adds the problems of another file.
    pub(super) fn add_file(&mut self, other: Self, file: u16) {
        let Self { errors, warnings, unlisted_errors, unlisted_warnings } = other;
        let place = |mut problem: Diagnostic| {
            problem.span = problem.span.map(|span| span.in_file(file));
            problem.labels.iter_mut().for_each(|label| label.span = label.span.in_file(file));
            problem
        };
        errors.into_iter().map(place).for_each(|error| self.add(error));
        warnings.into_iter().map(place).for_each(|warning| self.warn_with(|| warning));
        self.unlisted_errors += unlisted_errors;
        self.unlisted_warnings += unlisted_warnings;
    }

    /// Adds the problems that rules found, except those about parts of the spec that have decoding errors.
    pub(super) fn add_independent(&mut self, rule_problems: Self) {
        let Self { mut errors, mut warnings, unlisted_errors, unlisted_warnings } = rule_problems;
        let is_independent = |problem: &Diagnostic| problem.span.is_some_and(|span| !self.may_be_consequence(span));
        warnings.retain(is_independent);
        errors.retain(is_independent);
        errors.into_iter().for_each(|error| self.add(error));
        self.warnings.append(&mut warnings);
        self.unlisted_errors += unlisted_errors;
        self.unlisted_warnings += unlisted_warnings;
    }

    /// Returns whether a problem at `span` may be a mere consequence of an earlier error. That is the case if there is
    /// an error within `span`, or if `span` is the default one of a missing value.
    fn may_be_consequence(&self, span: Span) -> bool {
        span == Span::default() || self.errors.iter().filter_map(|error| error.span).any(|found| span.contains(found))
    }

    /// Returns all diagnostics, sorted by position. They include an error if [`Self::has_errors`].
    pub(crate) fn finish(mut self) -> Vec<Diagnostic> {
        let mut found = self.errors;
        found.append(&mut self.warnings);
        diagnostic::sort_by_position(&mut found);
        let unlisted = [
            (self.unlisted_errors, "errors", Severity::Error),
            (self.unlisted_warnings, "warnings", Severity::Warning),
        ];
        for (count, what, severity) in unlisted.into_iter().filter(|(count, ..)| *count > 0) {
            let message = format!("{count} more {what} are not listed");
            found.push(Diagnostic { severity, ..Diagnostic::without_span(Code::TooManyProblems, message) });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample_error() -> Diagnostic {
        Diagnostic::error(Code::Zero, Span { start: 1, end: 2, line: 1, column: 2, file: 0 }, "x")
    }

    #[test]
    fn warnings_never_count_as_errors() {
        let mut report = DiagnosticCollector::default();
        (0..1000).for_each(|_| report.warn_with(|| Diagnostic { severity: Severity::Warning, ..sample_error() }));
        assert!(!report.has_errors());
        let found = report.finish();
        assert_eq!(found.len(), MAX_WARNINGS + 1);
        assert!(found.iter().all(|problem| problem.severity == Severity::Warning));
    }

    #[test]
    fn unlisted_errors_still_count() {
        let mut rule_problems = DiagnosticCollector::default();
        (0..300).for_each(|_| rule_problems.add(sample_error()));
        let mut report = DiagnosticCollector::default();
        report.add(sample_error());
        report.add_independent(rule_problems);
        assert!(report.has_errors());
        let found = report.finish();
        assert_eq!(found.len(), 2, "those of rules are in doubt, and those not listed are counted");
        assert_eq!(found[1].message, "44 more errors are not listed");
    }
}
