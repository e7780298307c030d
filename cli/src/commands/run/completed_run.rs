//! The result of a run.

use std::pin::Pin;

use proctor_core::decision::verdict::{InconclusiveDetail, Verdict};
use proctor_core::model::names::RunId;
use proctor_core::record::run_record::RunRecord;
use proctor_runner::{FinishedRun, PatchResult};

use crate::args::RunFormat;
use crate::error::CliError;
use crate::screen::Screen;

/// The result of a run, from a daemon or from this process.
#[derive(Debug)]
pub(in crate::commands) struct CompletedRun {
    pub(super) verdict: Verdict,
    pub(super) exit_code: u8,
    /// Reasons for an inconclusive verdict that no event reported.
    pub(super) doubts: Vec<InconclusiveDetail>,
    /// Changes of the steps, if a patch was requested.
    pub(super) patch: Option<PatchResult>,
    /// The earlier run whose result was reused. In that case nothing ran and there are no events.
    pub(in crate::commands) reused: Option<ReusedRun>,
}

/// An earlier run.
#[derive(Debug, Clone)]
pub(in crate::commands) struct ReusedRun {
    /// Id of the run.
    pub run: RunId,
    /// Time of the end, if known.
    pub ended: Option<String>,
}

impl CompletedRun {
    /// Returns the result of an earlier run that passed.
    pub(super) fn from_reused_run(earlier: ReusedRun) -> Self {
        Self { verdict: Verdict::Passed, exit_code: 0, doubts: Vec::new(), patch: None, reused: Some(earlier) }
    }
}

impl From<FinishedRun> for CompletedRun {
    fn from(report: FinishedRun) -> Self {
        let FinishedRun { verdict, exit_code, inconclusive_reasons: doubts, patch, .. } = report;
        Self { verdict, exit_code, doubts, patch, reused: None }
    }
}

/// The future that carries out a run.
pub(super) type RunFuture = Pin<Box<dyn Future<Output = Result<CompletedRun, CliError>> + Send>>;

/// Shows the result and returns the exit code.
pub(in crate::commands) fn print_result(
    format: RunFormat,
    record: &RunRecord,
    report: &CompletedRun,
    text: &str,
    screen: &mut Screen,
) -> Result<u8, CliError> {
    match format {
        RunFormat::Human => {
            // A blank line separates the progress from a report of several lines.
            if screen.has_live_progress && text.lines().count() > 1 {
                screen.err("\n");
            }
            screen.out(text);
        }
        RunFormat::Json => screen.out_json(record)?,
        // The other formats are written together with the report files, when the exit code is known.
        _ => {}
    }
    check_agreement(record, report)
}

/// Returns the exit code if the last shown event agrees with the engine's result.
pub(super) fn check_agreement(record: &RunRecord, report: &CompletedRun) -> Result<u8, CliError> {
    let shown = record.finished.as_ref().map(|finished| (finished.verdict, finished.exit_code));
    if shown == Some((report.verdict, report.exit_code)) {
        return Ok(report.exit_code);
    }
    Err(CliError::Internal(format!(
        "the run ended with {} ({}), but its last event has {shown:?}",
        report.verdict.as_str(),
        report.exit_code
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::finished;
    use proctor_core::model::tier::Tier;

    fn completed(verdict: Verdict, exit_code: u8) -> CompletedRun {
        CompletedRun { verdict, exit_code, doubts: Vec::new(), patch: None, reused: None }
    }

    #[test]
    fn result_must_agree_with_the_last_event() {
        let mut record = RunRecord::default();
        let passed = completed(Verdict::Passed, 0);
        assert_eq!(check_agreement(&record, &passed).expect_err("no last event").exit_code(), 5);
        record.apply(finished(Verdict::Passed, Tier::ONE, 0), std::time::Duration::ZERO);
        assert_eq!(check_agreement(&record, &passed).expect("the same"), 0);
        assert_eq!(
            check_agreement(&record, &completed(Verdict::Failed, 1)).expect_err("another verdict").exit_code(),
            5
        );
    }
}
