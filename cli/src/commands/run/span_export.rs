//! Exports the runs of this process as spans of a trace, if the environment or the operator's config names a
//! receiver. A daemon exports its own runs.

use std::path::Path;
use std::time::Duration;

use proctor_core::record::run_record::RunRecord;
use proctor_core::spec::OperatorConfig;
use proctor_core::telemetry::{RunTimes, RunTrace, TraceContext, take_context};
use proctor_daemon::telemetry::{ExportError, ExportTarget, export};
use proctor_runner::{Clock, TraceSettings};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::run_backend::RunBackend;
use crate::caller::Caller;
use crate::installation::show;
use crate::screen::Screen;
use crate::style;

/// Time that the command waits at its end for all spans to be sent.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);
/// Hint for spans that were not exported.
const HINT: &str = "the result is not affected; check `OTEL_EXPORTER_OTLP_ENDPOINT`, or set `OTEL_SDK_DISABLED=true`";

/// The exports of this command's runs.
pub(super) struct SpanExports {
    target: Option<ExportTarget>,
    parent: Option<TraceContext>,
    tasks: JoinSet<Result<(), ExportError>>,
    /// First problem, which is reported at the end.
    problem: Option<String>,
}

impl SpanExports {
    /// Decides whether runs are exported.
    pub(super) fn new(backend: &RunBackend, operator: &OperatorConfig, caller: &Caller) -> Self {
        let target = match backend {
            RunBackend::InProcess(_) => ExportTarget::resolve(&operator.telemetry, &caller.env, "proctor"),
            RunBackend::Daemon(_) => Ok(None),
        };
        let problem = target.as_ref().err().map(ToString::to_string);
        let parent = take_context(&mut caller.env.clone());
        Self { target: target.ok().flatten(), parent, tasks: JoinSet::new(), problem }
    }

    /// Returns the tracing options of a run.
    pub(super) fn tracing(&self) -> TraceSettings {
        TraceSettings::new(self.parent.clone(), self.target.is_some())
    }

    /// Starts the export of a run that has ended; `began_ms` is its start in Unix milliseconds. Does not wait.
    pub(super) fn start_export(&mut self, record: &RunRecord, began_ms: u64, repo: &Path) {
        let (Some(target), Some(started)) = (&self.target, &record.started) else { return };
        if !self.tracing().exported {
            return;
        }
        let trace = RunTrace::new(started.run_id.clone(), self.parent.clone());
        let times = RunTimes {
            base_ms: began_ms,
            requested_ms: began_ms,
            ended_ms: Clock::system().now_ms(),
            queued_ms: None,
            repository: repo.file_name().map(|name| show(Path::new(name))),
            profile: started.profile.as_str().to_owned(),
            problem: None,
        };
        let (target, record) = (target.clone(), record.clone());
        self.tasks.spawn(async move { export(target, &record, &times, &trace).await });
    }

    /// Waits a limited time until all runs are exported, and reports the first problem.
    pub(super) async fn finish(&mut self, screen: &mut Screen) {
        let all = async {
            while let Some(exported) = self.tasks.join_next().await {
                let failed = exported
                    .map_err(|error| error.to_string())
                    .and_then(|exported| exported.map_err(|error| error.to_string()));
                self.problem = self.problem.take().or(failed.err());
            }
        };
        if timeout(EXPORT_TIMEOUT, all).await.is_err() {
            self.problem = Some(format!("no answer within {} s", EXPORT_TIMEOUT.as_secs()));
        }
        if let Some(problem) = self.problem.take() {
            screen.err(&style::warning_with_hints(&format!("the run was not exported: {problem}"), &[HINT.to_owned()]));
        }
    }
}
