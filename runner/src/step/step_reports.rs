//! Collects the reports that a step declares after its last attempt, and stores them like outputs. A report counts
//! only if this attempt wrote it: a file of an earlier run would describe that run. Their content is not evaluated
//! here.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::model::plan::{PlannedSkill, PlannedStep, RelPath, ReportFile};
use proctor_core::record::evidence::{MAX_REPORT_BYTES, ReportEvidence, ReportFault, ReportState};
use proctor_snapshot::{LayerReports, ReportBaseline};

use crate::run::run_context::RunContext;
use crate::step::layer_stack::{LayerStack, StackedLayer};
use crate::step::output::Outputs;
use crate::store::directory::Directory;

/// The reports that an attempt is expected to write.
#[derive(Default)]
pub(crate) struct ExpectedReports(Vec<(ReportFile, ReportLocation)>);

/// The location of a report.
enum ReportLocation {
    /// In the attempt's layer.
    Layer,
    /// In the directory that takes the writes to a cache, over the layers `lowers`; `before` identifies the file
    /// before the attempt.
    Cache { directory: Directory, below: RelPath, before: ReportBaseline, lowers: Vec<PathBuf> },
}

impl ExpectedReports {
    /// Notes the state of the reports before the attempt.
    pub(crate) fn capture_before(context: &RunContext, skill: &PlannedSkill, step: &PlannedStep) -> Self {
        let place = |path: &RelPath| match context.caches.find_containing(&skill.name, path) {
            Some((directory, below, lowers)) => {
                let before = ReportBaseline::record(directory.as_fd(), &below);
                ReportLocation::Cache { directory, below, before, lowers }
            }
            None => ReportLocation::Layer,
        };
        Self(step.reports.iter().map(|report| (report.clone(), place(&report.path))).collect())
    }

    /// Returns the reports that the attempt wrote; none if it has no reliable layer.
    pub(crate) async fn collect(
        self,
        context: &Arc<RunContext>,
        stack: &LayerStack,
        layer: Option<&Arc<StackedLayer>>,
    ) -> Vec<ReportEvidence> {
        let Some(layer) = layer.filter(|_| !self.0.is_empty()) else { return vec![] };
        let (context, stack, layer) = (Arc::clone(context), stack.clone(), Arc::clone(layer));
        let declared: Vec<ReportFile> = self.0.iter().map(|(report, _)| report.clone()).collect();
        let work = tokio::task::spawn_blocking(move || {
            let below: Vec<BorrowedFd<'_>> =
                stack.uppers().into_iter().chain([context.tree.repository.as_fd()]).collect();
            let place = LayerReports { upper: layer.layer.upper(), below: &below };
            let states =
                self.0.iter().map(|(report, at)| to_report_state(at.read(&place, &report.path), &context.outputs));
            states.collect::<Vec<_>>()
        });
        let states = work.await.unwrap_or_else(|error| {
            tracing::error!(%error, "reading the reports of a step failed unexpectedly");
            vec![ReportState::Refused { reason: ReportFault::Unreadable }; declared.len()]
        });
        let evidence = |(ReportFile { format, path }, state)| ReportEvidence { format, path, state };
        declared.into_iter().zip(states).map(evidence).collect()
    }
}

impl ReportLocation {
    fn read(&self, layer: &LayerReports<'_>, path: &RelPath) -> Result<Option<Vec<u8>>, ReportFault> {
        match self {
            Self::Layer => layer.read(path, MAX_REPORT_BYTES),
            Self::Cache { directory, below, before, lowers } => {
                // A report of an earlier run that the step merely touched does not count.
                let lowers: Vec<Directory> = lowers.iter().filter_map(|path| Directory::open(path).ok()).collect();
                let lowers: Vec<BorrowedFd<'_>> = lowers.iter().map(Directory::as_fd).collect();
                let written =
                    LayerReports { upper: directory.as_fd(), below: &lowers }.read(below, MAX_REPORT_BYTES)?;
                match written {
                    Some(_) => before.read_since(directory.as_fd(), below, MAX_REPORT_BYTES),
                    None => Ok(None),
                }
            }
        }
    }
}

fn to_report_state(read: Result<Option<Vec<u8>>, ReportFault>, outputs: &Outputs) -> ReportState {
    let bytes = match read {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return ReportState::Missing,
        Err(reason) => return ReportState::Refused { reason },
    };
    match outputs.store_file(&bytes) {
        Some((sha256, redacted)) => ReportState::Read { sha256, bytes: bytes.len() as u64, redacted },
        None => ReportState::Refused { reason: ReportFault::NotKept },
    }
}
