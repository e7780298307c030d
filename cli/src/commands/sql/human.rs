//! Renders judgements for a screen: each finding with its source line, in the style of rustc, and the verdict as the
//! last line.

use annotate_snippets::Level;
use proctor_core::sql::{Diagnostic, Dialect, Execution, Ground, Judgement, Severity, StageName, StageState, Verdict};
use proctor_sql::advice::Advice;

use super::Judged;
use crate::diagnostics::{self, Drawn};
use crate::style::{BAD, DIM, GOOD, UNSURE, paint};
use crate::text::{count, shown_line};

/// Renders the findings of all files, followed by the verdicts of all files.
pub(super) fn render(judged: &[Judged]) -> String {
    let blocks: String = judged.iter().map(findings).collect();
    let lines: String = judged.iter().map(|judged| last_line(judged, judged_name(judged))).collect();
    blocks + &lines
}

fn judged_name(judged: &Judged) -> &str {
    if judged.file == "-" { "standard input" } else { &judged.file }
}

fn findings(judged: &Judged) -> String {
    let of = |found: &Diagnostic| {
        let level = match found.severity {
            Severity::Error => Level::ERROR,
            Severity::Warning => Level::WARNING,
            Severity::Note => Level::NOTE,
        };
        let place = found.span.map(|span| span.start..span.end);
        let text = Drawn { source: &judged.text, path: judged_name(judged) };
        let mut block = diagnostics::drawn(level, &found.id.to_string(), &found.message, place, text) + "\n";
        block.extend(hints(found).iter().map(|hint| diagnostics::hint(hint)));
        block + "\n"
    };
    judged.judgement.diagnostics.iter().map(of).collect()
}

fn hints(found: &Diagnostic) -> Vec<String> {
    let mut hints = Vec::new();
    match found.candidates.as_slice() {
        [] => {}
        [only] => hints.push(format!("did you mean `{only}`?")),
        several => hints.push(format!("did you mean one of `{}`?", several.join("`, `"))),
    }
    hints.extend(found.advice.clone());
    hints
}

fn last_line(judged: &Judged, name: &str) -> String {
    let judgement = &judged.judgement;
    let of = |severity| judgement.diagnostics.iter().filter(|found| found.severity == severity).count();
    let (errors, warnings) = (of(Severity::Error), of(Severity::Warning));
    let (style, word) = match judgement.verdict {
        Verdict::Ok => (GOOD, "ok"),
        Verdict::Reject => (BAD, "rejected"),
        Verdict::Error => (UNSURE, "not judged"),
    };
    let mut parts = vec![shown_line(name)];
    if errors > 0 {
        parts.push(count(errors, "error"));
    }
    if warnings > 0 {
        parts.push(count(warnings, "warning"));
    }
    parts.extend(judgement.execution.as_ref().map(ran));
    parts.push(format!("policy {}, {}", judgement.policy.as_str(), shown_line(&judgement.audit.engine)));
    let is_asked = |stage: &StageName| judgement.stages.iter().any(|record| record.stage == *stage);
    let unasked: Vec<&str> =
        StageName::ALL.iter().filter(|stage| !is_asked(stage)).map(|stage| stage.as_str()).collect();
    if !unasked.is_empty() {
        parts.push(paint(UNSURE, format!("not checked: {}", unasked.join(", "))));
    }
    let skipped: Vec<&str> = judgement
        .stages
        .iter()
        .filter(|record| record.state == StageState::Skipped)
        .map(|record| record.stage.as_str())
        .collect();
    if !skipped.is_empty() {
        parts.push(paint(DIM, format!("not looked at: {}", skipped.join(", "))));
    }
    format!("{}: {}\n", paint(style, word), parts.join(", "))
}

fn ran(execution: &Execution) -> String {
    let on = match execution.ground {
        Ground::Scratch => "rows made from the schema",
        Ground::Database => "the database",
    };
    match execution.touched.first() {
        Some(touched) => {
            format!("would touch {} of {} rows of {} ({on})", touched.rows, touched.of, shown_line(&touched.table))
        }
        None => {
            let more = if execution.truncated { " and more" } else { "" };
            let rows = count(usize::try_from(execution.rows).unwrap_or(usize::MAX), "row");
            format!("{rows}{more} ({on})")
        }
    }
}

/// Renders whether one engine is available.
pub(super) fn engine(dialect: Dialect, judgement: &Judgement) -> String {
    let (style, word, what) = match judgement.verdict {
        Verdict::Ok => (GOOD, "there", judgement.audit.engine.clone()),
        Verdict::Reject | Verdict::Error => {
            (UNSURE, "absent", judgement.diagnostics.first().map(|found| found.message.clone()).unwrap_or_default())
        }
    };
    format!("{:<8} {}: {}\n", dialect.as_str(), paint(style, word), shown_line(&what))
}

/// Renders the explanation of an engine's error.
pub(super) fn advice(advice: &Advice) -> String {
    let mut text = format!("{}: {}\n", paint(BAD, advice.code_name()), shown_line(&advice.means));
    text += &format!("{} {}\n", paint(crate::style::HINT, "hint:"), shown_line(&advice.advice));
    text
}
