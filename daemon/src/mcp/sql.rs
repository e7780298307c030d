//! What `sql.verify` answers: the verdict first, what a model needs to do better, and as many findings as there is room
//! for.

use proctor_core::sql::{Diagnostic, Execution, Judgement, Severity, Verdict};
use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::Serialize;

use super::answer::{Draft, MOST_TEXT, fitting};

/// A judgement, cut to what a call may answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SqlAnswer {
    /// Only `ok` means that it may be shown or run.
    pub(super) verdict: Verdict,
    /// The first thing to know about it.
    pub(super) reason: String,
    /// What to mend, in words.
    pub(super) feedback: String,
    /// Whether it makes sense to try again.
    pub(super) retry: bool,
    /// What was found, the worst first, as far as there is room.
    pub(super) diagnostics: Vec<Diagnostic>,
    /// How many more there are.
    pub(super) diagnostics_more: usize,
    /// What running it came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) execution: Option<Execution>,
    /// Which engine judged it.
    pub(super) engine: String,
    /// The hash of the whole judgement.
    pub(super) digest: String,
}

/// The answer of a call. A rejection is one; what could not be judged is an error.
pub(super) fn answer(judgement: &Judgement) -> CallToolResult {
    let mut ordered: Vec<&Diagnostic> = judgement.diagnostics.iter().collect();
    ordered.sort_by_key(|found| std::cmp::Reverse(found.severity));
    let mut result = fitting(|room| draft(judgement, &ordered, room));
    result.is_error = Some(judgement.verdict == Verdict::Error);
    result
}

fn draft(judgement: &Judgement, ordered: &[&Diagnostic], room: usize) -> Draft<SqlAnswer> {
    let shown = ordered.len() * room / MOST_TEXT;
    let diagnostics: Vec<Diagnostic> = ordered.iter().take(shown).map(|found| (*found).clone()).collect();
    let reason = reason(judgement, ordered);
    // A result of many columns is no news to who wrote it.
    let execution = judgement.execution.clone().map(|execution| Execution {
        columns: execution.columns.into_iter().take(shown.max(8)).collect(),
        ..execution
    });
    let value = SqlAnswer {
        verdict: judgement.verdict,
        reason: reason.clone(),
        feedback: judgement.feedback.clone(),
        retry: judgement.retry.worth,
        diagnostics_more: ordered.len() - diagnostics.len(),
        diagnostics,
        execution,
        engine: judgement.audit.engine.clone(),
        digest: judgement.digest.as_str().to_owned(),
    };
    let text = match value.feedback.is_empty() {
        true => reason,
        false => format!("{reason}\n\n{}", value.feedback),
    };
    Draft { text, value, links: Vec::new() }
}

fn reason(judgement: &Judgement, ordered: &[&Diagnostic]) -> String {
    let first = ordered.first().map_or("", |found| found.message.as_str());
    let policy = judgement.policy.as_str();
    match judgement.verdict {
        Verdict::Ok if ordered.iter().any(|found| found.severity == Severity::Warning) => {
            format!("OK with warnings, under the policy `{policy}`: {first}")
        }
        Verdict::Ok => format!("OK: nothing speaks against it, under the policy `{policy}`."),
        Verdict::Reject => format!("REJECTED: {first}"),
        Verdict::Error => format!("NOT JUDGED: {first}"),
    }
}
