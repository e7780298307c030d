//! What is wrong with a spec, as it is found: bounded, so that a hostile spec cannot make saying
//! so costly.

use super::diagnostic::{self, Code, Diagnostic, Severity};
use super::span::Span;

/// How many errors are listed; what is beyond is counted.
const MAX_ERRORS: usize = 256;
/// How many warnings are listed; what is beyond is counted.
const MAX_WARNINGS: usize = 64;

/// What is wrong so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    errors: Vec<Diagnostic>,
    warnings: Vec<Diagnostic>,
    unlisted_errors: usize,
    unlisted_warnings: usize,
}

impl Report {
    /// Adds an error.
    pub(crate) fn add(&mut self, error: Diagnostic) {
        self.add_with(|| error);
    }

    /// Adds the error that `make` tells, which is not asked where no more errors are listed.
    pub(super) fn add_with(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.is_full() {
            self.unlisted_errors += 1;
        } else {
            self.errors.push(make());
        }
    }

    /// Adds the warning that `make` tells, which is not asked where no more warnings are listed.
    pub(super) fn warn_with(&mut self, make: impl FnOnce() -> Diagnostic) {
        if self.warnings.len() >= MAX_WARNINGS {
            self.unlisted_warnings += 1;
        } else {
            self.warnings.push(make());
        }
    }

    /// Whether no more errors will be listed.
    pub(super) fn is_full(&self) -> bool {
        self.errors.len() >= MAX_ERRORS
    }

    /// Whether the spec cannot be used.
    pub(super) fn has_errors(&self) -> bool {
        self.unlisted_errors > 0 || !self.errors.is_empty()
    }

    /// Adds what rules found, as far as they could see what they speak of.
    pub(super) fn add_undoubted(&mut self, of_rules: Self) {
        let Self { mut errors, mut warnings, unlisted_errors, unlisted_warnings } = of_rules;
        let seen = |problem: &Diagnostic| problem.span.is_some_and(|span| !self.is_in_doubt(span));
        warnings.retain(seen);
        errors.retain(seen);
        errors.into_iter().for_each(|error| self.add(error));
        self.warnings.append(&mut warnings);
        self.unlisted_errors += unlisted_errors;
        self.unlisted_warnings += unlisted_warnings;
    }

    /// Whether nothing can be said of the whole of `span`: an error was found in it, or it is
    /// that of a value that is not there.
    fn is_in_doubt(&self, span: Span) -> bool {
        span == Span::default() || self.errors.iter().filter_map(|error| error.span).any(|found| span.contains(found))
    }

    /// All of it, sorted by where it stands. There is an error in it where [`Self::has_errors`].
    pub(crate) fn finish(mut self) -> Vec<Diagnostic> {
        let mut found = self.errors;
        found.append(&mut self.warnings);
        diagnostic::sort(&mut found);
        let unlisted = [
            (self.unlisted_errors, "errors", Severity::Error),
            (self.unlisted_warnings, "warnings", Severity::Warning),
        ];
        for (count, what, severity) in unlisted.into_iter().filter(|(count, ..)| *count > 0) {
            let message = format!("{count} more {what} are not listed");
            found.push(Diagnostic { severity, ..Diagnostic::unplaced(Code::TooManyProblems, message) });
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> Diagnostic {
        Diagnostic::error(Code::Zero, Span { start: 1, end: 2, line: 1, column: 2 }, "x")
    }

    #[test]
    fn no_number_of_warnings_is_an_error() {
        let mut report = Report::default();
        (0..1000).for_each(|_| report.warn_with(|| Diagnostic { severity: Severity::Warning, ..error() }));
        assert!(!report.has_errors());
        let found = report.finish();
        assert_eq!(found.len(), MAX_WARNINGS + 1);
        assert!(found.iter().all(|problem| problem.severity == Severity::Warning));
    }

    #[test]
    fn errors_beyond_the_list_are_errors_still() {
        let mut of_rules = Report::default();
        (0..300).for_each(|_| of_rules.add(error()));
        let mut report = Report::default();
        report.add(error());
        report.add_undoubted(of_rules);
        assert!(report.has_errors());
        let found = report.finish();
        assert_eq!(found.len(), 2, "those of rules are in doubt, and those not listed are counted");
        assert_eq!(found[1].message, "44 more errors are not listed");
    }
}
