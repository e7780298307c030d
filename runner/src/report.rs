//! Collects the reports that a step declares after its last attempt, and stores them like outputs. A report counts
//! only if this attempt wrote it: a file of an earlier run would describe that run. Their content is not evaluated
//! here.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::evidence::{MAX_REPORT_BYTES, ReportEvidence, ReportFault, ReportState};
use proctor_core::plan::{PlannedSkill, PlannedStep, RelPath, ReportFile};
use proctor_snapshot::{InLayer, Mark};

use crate::context::Context;
use crate::output::Outputs;
use crate::stack::{Stack, Stacked};
use crate::store::directory::Directory;

/// The reports that an attempt is expected to write.
#[derive(Default)]
pub(crate) struct Expected(Vec<(ReportFile, Place)>);

/// The location of a report.
enum Place {
    /// In the attempt's layer.
    Layer,
    /// In the directory that takes the writes to a cache, over the layers `lowers`; `before` identifies the file
    /// before the attempt.
    Cache { directory: Directory, below: RelPath, before: Mark, lowers: Vec<PathBuf> },
}

impl Expected {
    /// Notes the state of the reports before the attempt.
    pub(crate) fn before(context: &Context, skill: &PlannedSkill, step: &PlannedStep) -> Self {
        let place = |path: &RelPath| match context.caches.holding(&skill.name, path) {
            Some((directory, below, lowers)) => {
                let before = Mark::of(directory.as_fd(), &below);
                Place::Cache { directory, below, before, lowers }
            }
            None => Place::Layer,
        };
        Self(step.reports.iter().map(|report| (report.clone(), place(&report.path))).collect())
    }

    /// Returns the reports that the attempt wrote; none if it has no reliable layer.
    pub(crate) async fn found(
        self,
        context: &Arc<Context>,
        stack: &Stack,
        layer: Option<&Arc<Stacked>>,
    ) -> Vec<ReportEvidence> {
        let Some(layer) = layer.filter(|_| !self.0.is_empty()) else { return vec![] };
        let (context, stack, layer) = (Arc::clone(context), stack.clone(), Arc::clone(layer));
        let declared: Vec<ReportFile> = self.0.iter().map(|(report, _)| report.clone()).collect();
        let work = tokio::task::spawn_blocking(move || {
            let below: Vec<BorrowedFd<'_>> =
                stack.uppers().into_iter().chain([context.tree.repository.as_fd()]).collect();
            let place = InLayer { upper: layer.layer.upper(), below: &below };
            let states = self.0.iter().map(|(report, at)| state(at.read(&place, &report.path), &context.outputs));
            states.collect::<Vec<_>>()
        });
        let states = work.await.unwrap_or_else(|error| {
            tracing::error!(%error, "reading the reports of a step ended badly");
            vec![ReportState::Refused { reason: ReportFault::Unreadable }; declared.len()]
        });
        let evidence = |(ReportFile { format, path }, state)| ReportEvidence { format, path, state };
        declared.into_iter().zip(states).map(evidence).collect()
    }
}

impl Place {
    fn read(&self, layer: &InLayer<'_>, path: &RelPath) -> Result<Option<Vec<u8>>, ReportFault> {
        match self {
            Self::Layer => layer.read(path, MAX_REPORT_BYTES),
            Self::Cache { directory, below, before, lowers } => {
                // A report of an earlier run that the step merely touched does not count.
                let lowers: Vec<Directory> = lowers.iter().filter_map(|path| Directory::open(path).ok()).collect();
                let lowers: Vec<BorrowedFd<'_>> = lowers.iter().map(Directory::as_fd).collect();
                let written = InLayer { upper: directory.as_fd(), below: &lowers }.read(below, MAX_REPORT_BYTES)?;
                match written {
                    Some(_) => before.read_since(directory.as_fd(), below, MAX_REPORT_BYTES),
                    None => Ok(None),
                }
            }
        }
    }
}

fn state(read: Result<Option<Vec<u8>>, ReportFault>, outputs: &Outputs) -> ReportState {
    let bytes = match read {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return ReportState::Missing,
        Err(reason) => return ReportState::Refused { reason },
    };
    match outputs.keep(&bytes) {
        Some((sha256, redacted)) => ReportState::Read { sha256, bytes: bytes.len() as u64, redacted },
        None => ReportState::Refused { reason: ReportFault::NotKept },
    }
}
