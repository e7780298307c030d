//! Renders judgements for a screen: each finding with its source line, in the style of rustc, and the verdict as the
//! last line.

use annotate_snippets::Level;
use proctor_core::sql::{
    Dialect, ExecutionData, Judgement, SqlDiagnostic, SqlExecution, SqlSeverity, SqlVerdict, StageName, StageState,
};
use proctor_sql::advice::Advice;

use super::judged_text::Judged;
use crate::diagnostics::{self, SnippetSource};
use crate::style::{BAD, DIM, GOOD, UNSURE, paint};
use crate::text::{count, escape_line};

/// Renders the findings of all files, followed by the verdicts of all files.
pub(super) fn render(judged: &[Judged]) -> String {
    let blocks: String = judged.iter().map(findings_block).collect();
    let lines: String = judged.iter().map(|judged| last_line(judged, display_name(judged))).collect();
    blocks + &lines
}

fn display_name(judged: &Judged) -> &str {
    if judged.file == "-" { "standard input" } else { &judged.file }
}

fn findings_block(judged: &Judged) -> String {
    let render_finding = |found: &SqlDiagnostic| {
        let level = match found.severity {
            SqlSeverity::Error => Level::ERROR,
            SqlSeverity::Warning => Level::WARNING,
            SqlSeverity::Note => Level::NOTE,
        };
        let range = found.span.map(|span| span.start..span.end);
        let text = SnippetSource { source: &judged.text, path: display_name(judged) };
        let mut block = diagnostics::render_snippet(level, &found.id.to_string(), &found.message, range, text) + "\n";
        block.extend(hints(found).iter().map(|hint| diagnostics::render_hint(hint)));
        block + "\n"
    };
    judged.judgement.diagnostics.iter().map(render_finding).collect()
}

fn hints(found: &SqlDiagnostic) -> Vec<String> {
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
    let number_of = |severity| judgement.diagnostics.iter().filter(|found| found.severity == severity).count();
    let (errors, warnings) = (number_of(SqlSeverity::Error), number_of(SqlSeverity::Warning));
    let (style, word) = match judgement.verdict {
        SqlVerdict::Ok => (GOOD, "ok"),
        SqlVerdict::Reject => (BAD, "rejected"),
        SqlVerdict::Error => (UNSURE, "not judged"),
    };
    let mut parts = vec![escape_line(name)];
    if errors > 0 {
        parts.push(count(errors, "error"));
    }
    if warnings > 0 {
        parts.push(count(warnings, "warning"));
    }
    parts.extend(judgement.execution.as_ref().map(execution_text));
    parts.push(format!("policy {}, {}", judgement.policy.as_str(), escape_line(&judgement.audit.engine)));
    let is_requested = |stage: &StageName| judgement.stages.iter().any(|record| record.stage == *stage);
    let not_requested: Vec<&str> =
        StageName::ALL.iter().filter(|stage| !is_requested(stage)).map(|stage| stage.as_str()).collect();
    if !not_requested.is_empty() {
        parts.push(paint(UNSURE, format!("not checked: {}", not_requested.join(", "))));
    }
    let skipped: Vec<&str> = judgement
        .stages
        .iter()
        .filter(|record| record.state == StageState::Skipped)
        .map(|record| record.stage.as_str())
        .collect();
    if !skipped.is_empty() {
        parts.push(paint(DIM, format!("skipped: {}", skipped.join(", "))));
    }
    format!("{}: {}\n", paint(style, word), parts.join(", "))
}

fn execution_text(execution: &SqlExecution) -> String {
    let on = match execution.data {
        ExecutionData::Scratch => "rows generated from the schema",
        ExecutionData::Database => "the database",
    };
    match execution.affected.first() {
        Some(affected) => {
            format!("would change {} of {} rows of {} ({on})", affected.rows, affected.of, escape_line(&affected.table))
        }
        None => {
            let more = if execution.truncated { " and more" } else { "" };
            let rows = count(usize::try_from(execution.rows).unwrap_or(usize::MAX), "row");
            format!("{rows}{more} ({on})")
        }
    }
}

/// Renders whether one engine is available.
pub(super) fn engine_line(dialect: Dialect, judgement: &Judgement) -> String {
    let (style, word, what) = match judgement.verdict {
        SqlVerdict::Ok => (GOOD, "there", judgement.audit.engine.clone()),
        SqlVerdict::Reject | SqlVerdict::Error => {
            (UNSURE, "absent", judgement.diagnostics.first().map(|found| found.message.clone()).unwrap_or_default())
        }
    };
    format!("{:<8} {}: {}\n", dialect.as_str(), paint(style, word), escape_line(&what))
}

/// Renders the explanation of an engine's error.
pub(super) fn render_advice(advice: &Advice) -> String {
    let engine = advice.dialect.display_name();
    let mut text = format!("{} ({engine}): {}\n", paint(BAD, advice.code_name()), escape_line(&advice.means));
    text += &format!("{} {}\n", paint(crate::style::HINT, "hint:"), escape_line(&advice.advice));
    text
}
