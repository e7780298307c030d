//! Renders the answer to a question for a screen, except for its rows.

use std::fmt::Write as _;

use proctor_core::sql::{AskAnswer, AskAttempt, AskVerdict, SqlDiagnostic, SqlSeverity};

use crate::style::{BAD, DIM, GOOD, UNSURE, paint};
use crate::text::{count, escape_line, escape_text};

/// Renders the statement or the best attempt, its findings, and the verdict as the last line.
pub(super) fn render(answer: &AskAnswer) -> String {
    let mut text = String::new();
    match (&answer.statement, best_attempt(answer)) {
        (Some(statement), _) => text += &escape_text(&format!("{}\n", statement.trim_end())),
        (None, Some(best)) => text += &render_best(best),
        (None, None) => {}
    }
    if let Some(changed) = answer.result.as_ref().and_then(|result| result.changed).filter(|changed| *changed > 0) {
        let rows = count(usize::try_from(changed).unwrap_or(usize::MAX), "changed row");
        let _ = writeln!(text, "{rows}, undone");
    }
    let findings = answer.judgement.iter().flat_map(|judgement| &judgement.diagnostics);
    text.extend(findings.filter(|found| found.severity != SqlSeverity::Note).map(finding_line));
    text + &last_line(answer)
}

fn best_attempt(answer: &AskAnswer) -> Option<&AskAttempt> {
    answer.attempts.iter().find(|attempt| Some(attempt.number) == answer.best)
}

/// Renders an attempt that was not accepted. Each line is marked, so that no reader mistakes the attempt for an answer.
fn render_best(best: &AskAttempt) -> String {
    let mut text = format!("best attempt ({}, {}; do not run it):\n", best.number, best.outcome.as_str());
    for line in best.statement.as_deref().unwrap_or_default().lines() {
        let _ = writeln!(text, "  -- {}", escape_line(line));
    }
    text
}

fn finding_line(found: &SqlDiagnostic) -> String {
    let style = if found.severity == SqlSeverity::Error { BAD } else { UNSURE };
    let place = found.span.map(|span| format!(" at {}:{}", span.line, span.column)).unwrap_or_default();
    let mut line = format!(
        "{}{place}: {}",
        paint(style, format!("{}[{}]", found.severity.as_str(), found.id)),
        escape_line(&found.message)
    );
    if !found.candidates.is_empty() {
        let _ = write!(line, " (did you mean `{}`?)", escape_line(&found.candidates.join("`, `")));
    }
    line + "\n"
}

fn last_line(answer: &AskAnswer) -> String {
    let (style, word) = match answer.verdict {
        AskVerdict::Answered => (GOOD, "answered"),
        AskVerdict::GaveUp => (BAD, "gave up"),
        AskVerdict::Error => (UNSURE, "error"),
    };
    let mut parts = vec![escape_line(&answer.reason), count(answer.attempts.len(), "attempt")];
    let about = if answer.tokens.estimated { "about " } else { "" };
    parts.push(format!("{about}{} tokens", answer.tokens.total()));
    parts.push(format!("audit {}", answer.id));
    format!("{}: {}\n", paint(style, word), paint(DIM, parts.join(", ")))
}
