//! Formats the answer of `sql_verify`: the verdict first, then the feedback for a model, and as many findings as fit.

use proctor_core::sql::{Judgement, SqlDiagnostic, SqlExecution, SqlSeverity, SqlVerdict};
use rmcp::model::CallToolResult;
use schemars::JsonSchema;
use serde::Serialize;

use super::tool_answer::{AnswerDraft, MAX_UNTRUSTED_TEXT, fit_to_limit};

/// A judgement, truncated to the size limit of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SqlAnswer {
    /// Only `ok` means that the statement may be shown or run.
    pub(super) verdict: SqlVerdict,
    /// Main reason for the verdict.
    pub(super) reason: String,
    /// Description of the changes to make.
    pub(super) feedback: String,
    /// True if another attempt makes sense.
    pub(super) retry: bool,
    /// Findings, most severe first, as many as fit.
    pub(super) diagnostics: Vec<SqlDiagnostic>,
    /// Number of findings that did not fit.
    pub(super) diagnostics_more: usize,
    /// Result of running the statement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) execution: Option<SqlExecution>,
    /// Engine that judged the statement.
    pub(super) engine: String,
    /// Hash of the whole judgement.
    pub(super) digest: String,
}

/// Returns the answer of a call. A rejection is a normal answer; a statement that could not be judged is an error.
pub(super) fn call_result(judgement: &Judgement) -> CallToolResult {
    let ordered = ordered_findings(judgement);
    let mut result = fit_to_limit(|budget| draft_answer(judgement, &ordered, budget));
    result.is_error = Some(judgement.verdict == SqlVerdict::Error);
    result
}

/// Returns the verdict and its main reason as one sentence.
pub(super) fn judgement_reason(judgement: &Judgement) -> String {
    reason(judgement, &ordered_findings(judgement))
}

/// Returns the findings, the most severe first.
fn ordered_findings(judgement: &Judgement) -> Vec<&SqlDiagnostic> {
    let mut ordered: Vec<&SqlDiagnostic> = judgement.diagnostics.iter().collect();
    ordered.sort_by_key(|found| std::cmp::Reverse(found.severity));
    ordered
}

fn draft_answer(judgement: &Judgement, ordered: &[&SqlDiagnostic], budget: usize) -> AnswerDraft<SqlAnswer> {
    let shown = ordered.len() * budget / MAX_UNTRUSTED_TEXT;
    let diagnostics: Vec<SqlDiagnostic> = ordered.iter().take(shown).map(|found| (*found).clone()).collect();
    let reason = reason(judgement, ordered);
    // The author of the statement knows its columns, so the list may be shortened.
    let execution = judgement.execution.clone().map(|execution| SqlExecution {
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
        digest: judgement.digest.to_string(),
    };
    let text = match value.feedback.is_empty() {
        true => reason,
        false => format!("{reason}\n\n{}", value.feedback),
    };
    AnswerDraft { text, value, links: Vec::new() }
}

fn reason(judgement: &Judgement, ordered: &[&SqlDiagnostic]) -> String {
    let first = ordered.first().map_or("", |found| found.message.as_str());
    let policy = judgement.policy.as_str();
    match judgement.verdict {
        SqlVerdict::Ok if ordered.iter().any(|found| found.severity == SqlSeverity::Warning) => {
            format!("OK with warnings, under the policy `{policy}`: {first}")
        }
        SqlVerdict::Ok => format!("OK: no problem was found under the policy `{policy}`."),
        SqlVerdict::Reject => format!("REJECTED: {first}"),
        SqlVerdict::Error => format!("NOT JUDGED: {first}"),
    }
}
