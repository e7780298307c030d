//! Adds the findings of the operator's verifiers to a judgement. Each verifier is a program that runs in a separate
//! sandbox. A verifier that fails makes the verdict `error`: a statement that it could not check is not `ok`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use proctor_core::model::enforcement::Tolerated;
use proctor_core::record::evidence::escape_output;
use proctor_core::spec::VerifierSettings;
use proctor_core::sql::{
    Dialect, Judgement, Percent, SqlCode, SqlDiagnostic, SqlLineIndex, SqlPolicy, SqlRequest, SqlSeverity, SqlTiming,
    SqlVerdict, StageName, StageRecord, StageState, StatementView,
};
use proctor_sandbox::Launcher;
use serde::{Deserialize, Serialize};

use crate::chain;
use crate::sandboxed_command::{CommandError, SandboxedCommand};

/// Version of the documents that verifiers read.
const INPUT_VERSION: u32 = 1;
/// Maximum number of findings of one verifier that a judgement shows.
const MAX_FINDINGS: usize = 100;
/// Maximum length of a text in a finding, in characters.
const MAX_TEXT: usize = 1_000;
/// The confidence of a warning whose verifier states none, in percent.
const DEFAULT_CONFIDENCE: u8 = 70;

/// The document on standard input of a verifier.
#[derive(Serialize)]
struct VerifierInput<'a> {
    version: u32,
    sql: &'a str,
    dialect: Dialect,
    policy: SqlPolicy,
    schema: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    question: Option<&'a str>,
    statements: &'a [StatementView],
    diagnostics: &'a [SqlDiagnostic],
}

/// The document on standard output of a verifier.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VerifierOutput {
    diagnostics: Vec<VerifierFinding>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct VerifierFinding {
    severity: SqlSeverity,
    message: String,
    /// The verifier's own code.
    code: Option<String>,
    /// The byte range in the text.
    start: Option<usize>,
    end: Option<usize>,
    subject: Option<String>,
    #[serde(default)]
    candidates: Vec<String>,
    advice: Option<String>,
    confidence: Option<Percent>,
}

/// The reason why a verifier gave no findings.
#[derive(Debug, thiserror::Error)]
enum VerifierError {
    #[error(transparent)]
    Command(#[from] CommandError),
    #[error("its output is not a document with `diagnostics`: {0}")]
    NotADocument(#[source] serde_json::Error),
    #[error("one of its findings has no `message`")]
    NoMessage,
    #[error("an internal task of proctor failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// The verifiers of the operator.
pub(crate) struct CustomVerifiers {
    settings: Arc<[VerifierSettings]>,
    launcher: Arc<Launcher>,
    tolerated: Tolerated,
}

impl CustomVerifiers {
    pub(crate) fn new(settings: Vec<VerifierSettings>, launcher: Arc<Launcher>, tolerated: Tolerated) -> Self {
        Self { settings: settings.into(), launcher, tolerated }
    }

    /// Reports whether there is a verifier for a dialect.
    pub(crate) fn has_any_for(&self, dialect: Dialect) -> bool {
        self.settings.iter().any(|verifier| verifier.dialects.contains(&dialect))
    }

    /// Returns the judgement of the built-in stages with the records and the findings of the verifiers.
    pub(crate) async fn extend(&self, request: &SqlRequest, mut judgement: Judgement) -> Judgement {
        for (index, verifier) in self.settings.iter().enumerate() {
            if !verifier.dialects.contains(&request.dialect) {
                continue;
            }
            let (record, findings) = match skip_reason(&judgement, verifier.after) {
                Some(reason) => (StageRecord::new(StageName::Custom, StageState::Skipped, Some(reason)), Vec::new()),
                None => {
                    let begun = Instant::now();
                    let result = self.run(index, request, &judgement).await;
                    add_duration(&mut judgement.timing, chain::elapsed_micros(begun));
                    result
                }
            };
            let record = StageRecord { verifier: Some(verifier.name.clone()), ..record };
            judgement = chain::with_verifier(request, judgement, verifier.after, record, findings);
        }
        judgement
    }

    /// Returns the judgement `last` with the records and findings that `extend` added to an earlier judgement of the same
    /// text.
    pub(crate) fn carry_over(&self, request: &SqlRequest, earlier: &Judgement, mut last: Judgement) -> Judgement {
        let is_custom = |found: &&SqlDiagnostic| found.stage == StageName::Custom;
        let mut findings: Vec<SqlDiagnostic> = earlier.diagnostics.iter().filter(is_custom).cloned().collect();
        for record in earlier.stages.iter().filter(|record| record.stage == StageName::Custom) {
            let verifier = self.settings.iter().find(|verifier| Some(&verifier.name) == record.verifier.as_ref());
            let after = verifier.map_or(StageName::Semantic, |verifier| verifier.after);
            last = chain::with_verifier(request, last, after, record.clone(), std::mem::take(&mut findings));
        }
        for (_, micros) in earlier.timing.stages_us.iter().filter(|(stage, _)| *stage == StageName::Custom) {
            add_duration(&mut last.timing, *micros);
        }
        last
    }

    async fn run(
        &self,
        index: usize,
        request: &SqlRequest,
        judgement: &Judgement,
    ) -> (StageRecord, Vec<SqlDiagnostic>) {
        let verifier = &self.settings[index];
        match self.findings(index, request, judgement).await {
            Ok(findings) => {
                let is_rejected = findings.iter().any(|found| found.severity == SqlSeverity::Error);
                let state = if is_rejected { StageState::Rejected } else { StageState::Passed };
                (StageRecord::new(StageName::Custom, state, None), findings)
            }
            Err(error) => {
                let reason = error.to_string();
                let message = format!("the verifier `{}` failed: {reason}", verifier.name);
                let found = SqlDiagnostic::error(StageName::Custom, SqlCode::VerifierFailed, message)
                    .with_subject(verifier.name.clone());
                (StageRecord::new(StageName::Custom, StageState::Failed, Some(reason)), vec![found])
            }
        }
    }

    async fn findings(
        &self,
        index: usize,
        request: &SqlRequest,
        judgement: &Judgement,
    ) -> Result<Vec<SqlDiagnostic>, VerifierError> {
        let document = VerifierInput {
            version: INPUT_VERSION,
            sql: &request.sql,
            dialect: request.dialect,
            policy: request.policy,
            schema: &request.schema,
            question: request.question.as_deref(),
            statements: &judgement.statements,
            diagnostics: &judgement.diagnostics,
        };
        let input = serde_json::to_vec(&document).map_err(|error| CommandError::Io(error.into()))?;
        let (settings, launcher, tolerated) =
            (Arc::clone(&self.settings), Arc::clone(&self.launcher), self.tolerated.clone());
        let output = tokio::task::spawn_blocking(move || {
            let verifier = &settings[index];
            let command = SandboxedCommand::new(&verifier.command, BTreeMap::new(), launcher, &tolerated)?;
            command.run(&input, Instant::now() + verifier.timeout)
        })
        .await??;
        read_findings(&output, request, &self.settings[index].name)
    }
}

/// Adds the duration of a verifier, in microseconds.
fn add_duration(timing: &mut SqlTiming, micros: u64) {
    timing.stages_us.push((StageName::Custom, micros));
    timing.total_us = timing.total_us.saturating_add(micros);
}

/// Returns the reason why a verifier makes no sense after these stages.
fn skip_reason(judgement: &Judgement, after: StageName) -> Option<String> {
    if judgement.verdict == SqlVerdict::Error {
        return Some("the statement could not be judged".to_owned());
    }
    let until = StageName::ALL.iter().position(|stage| *stage == after).unwrap_or(StageName::ALL.len());
    let before = &StageName::ALL[..(until + 1).min(StageName::ALL.len())];
    let failed = judgement.stages.iter().find(|record| {
        (before.contains(&record.stage) || record.stage == StageName::Custom) && record.state == StageState::Rejected
    })?;
    let name = failed.verifier.as_deref().unwrap_or(failed.stage.as_str());
    Some(format!("`{name}` found an error"))
}

/// Parses the output of a verifier.
fn read_findings(output: &[u8], request: &SqlRequest, name: &str) -> Result<Vec<SqlDiagnostic>, VerifierError> {
    let output: VerifierOutput = serde_json::from_slice(output).map_err(VerifierError::NotADocument)?;
    let lines = SqlLineIndex::new(&request.sql);
    let mut found = output.diagnostics;
    // Errors come first, so that the reason for a rejection is never cut off.
    found.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    found.truncate(MAX_FINDINGS);
    found.into_iter().map(|finding| finding.into_diagnostic(request, &lines, name)).collect()
}

impl VerifierFinding {
    fn into_diagnostic(
        self,
        request: &SqlRequest,
        lines: &SqlLineIndex,
        name: &str,
    ) -> Result<SqlDiagnostic, VerifierError> {
        let message = plain(&self.message);
        if message.is_empty() {
            return Err(VerifierError::NoMessage);
        }
        let message = format!("{name}: {message}");
        let (stage, code) = (StageName::Custom, SqlCode::CustomFinding);
        let confidence = self.confidence.map_or(DEFAULT_CONFIDENCE, Percent::get);
        let mut found = match self.severity {
            SqlSeverity::Error => SqlDiagnostic::error(stage, code, message),
            SqlSeverity::Warning => SqlDiagnostic::warning(stage, code, message, confidence),
            SqlSeverity::Note => SqlDiagnostic::note(stage, code, message),
        };
        if let Some(start) = self.start {
            found = found.with_span(Some(lines.span(&request.sql, start, self.end.unwrap_or(start))));
        }
        found.engine_code = self.code.as_deref().map(plain);
        found.subject = self.subject.as_deref().map(plain);
        found.candidates = self.candidates.iter().take(10).map(|name| plain(name)).collect();
        found.advice = self.advice.as_deref().map(plain);
        Ok(found.with_reject_threshold(request.reject_at))
    }
}

/// Returns a text as one bounded line without control characters.
fn plain(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().take(MAX_TEXT).collect();
    escape_output(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(output: &str) -> Result<Vec<SqlDiagnostic>, VerifierError> {
        read_findings(output.as_bytes(), &SqlRequest::new(Dialect::Sqlite, "SELECT é, b"), "pii")
    }

    #[test]
    fn findings_become_diagnostics() {
        let found = read(
            r#"{"diagnostics":[{"severity":"warning","message":"w\u001b[31m\n x","confidence":90},
            {"severity":"error","message":"no","code":"E1","start":8,"end":999,"candidates":["c"],"advice":"a"}]}"#,
        )
        .expect("a document");
        assert_eq!(found[0].message, "pii: no");
        assert_eq!(found[0].severity, SqlSeverity::Error);
        assert_eq!(found[0].engine_code.as_deref(), Some("E1"));
        let span = found[0].span.expect("a span");
        assert_eq!((span.start, span.end), (7, 12), "clamped to the text and to characters");
        assert_eq!((found[1].severity, found[1].confidence), (SqlSeverity::Warning, 90));
        assert!(!found[1].message.contains(['\u{1b}', '\n']), "{}", found[1].message);
    }

    #[test]
    fn other_output_is_a_failure() {
        for output in [
            "",
            "ok",
            "[]",
            "{}",
            r#"{"diagnostics":[{"severity":"fatal","message":"m"}]}"#,
            r#"{"diagnostics":[{"severity":"error"}]}"#,
            r#"{"diagnostics":[{"severity":"error","message":" \n"}]}"#,
            r#"{"diagnostics":[{"severity":"error","message":"m","confidence":101}]}"#,
            r#"{"diagnostics":[{"severity":"error","message":"m","start":-1}]}"#,
            r#"{"diagnostics":[],"verdict":"ok"}"#,
            r#"{"diagnostics":[]} trailing"#,
        ] {
            assert!(read(output).is_err(), "{output}");
        }
        assert!(read(r#"{"diagnostics":[]}"#).expect("a document").is_empty());
    }

    #[test]
    fn errors_are_kept_if_there_are_too_many_findings() {
        let warning = r#"{"severity":"warning","message":"w"},"#.repeat(300);
        let output = format!(r#"{{"diagnostics":[{warning}{{"severity":"error","message":"no"}}]}}"#);
        let found = read(&output).expect("a document");
        assert_eq!(found.len(), MAX_FINDINGS);
        assert_eq!(found[0].severity, SqlSeverity::Error);
    }
}
