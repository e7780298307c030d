//! Describes how far the result of a step comes from earlier executions and other machines, and notes about its files.

use std::collections::BTreeSet;

use super::{CACHED, RemoteExecution, ResultOrigin, ReuseSource, StepEvidence, StepExecutor};
use crate::text::humanize::duration;

impl StepEvidence {
    /// Returns whether the step has the result of an earlier execution.
    pub fn is_cached(&self) -> bool {
        self.reused.is_some()
    }

    /// Returns the end of the oldest earlier execution that the result depends on; `None` if all of it comes from an
    /// execution of this run.
    pub fn oldest_execution(&self) -> Option<&str> {
        let source = self.reused.as_ref().map(|source| &source.executed_at);
        let files = self.checked_files.as_ref().and_then(|files| files.reused_executed_at.as_ref());
        source.or(files).map(String::as_str)
    }

    /// Returns the number of files that were and were not checked again, or the observation that contradicts `per_file`,
    /// as a phrase; `None` if there is neither.
    pub fn files_note(&self) -> Option<String> {
        self.checked_files.as_ref()?.note()
    }

    /// Returns the paths that the step looked for although they are not inputs, or the reason why its `inputs` were not
    /// enforced, as a phrase; `None` if there is neither.
    pub fn inputs_note(&self) -> Option<String> {
        self.input_enforcement.as_ref()?.note()
    }

    /// Returns notes about the step: the files that it checked, those that it looked for although they are not inputs,
    /// and where it was executed.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.files_note().into_iter().chain(self.inputs_note()).chain(self.executor_note())
    }

    /// Returns the duration of the step; [`CACHED`] if it was not executed, with the key of another machine.
    pub fn time_text(&self) -> String {
        match &self.reused {
            Some(ReuseSource { origin: Some(origin), .. }) => format!("{CACHED} from {}", origin.short_key()),
            Some(_) => CACHED.to_owned(),
            None => duration(self.duration_ms),
        }
    }
}

impl StepEvidence {
    /// Returns the execution on a worker of a cluster, of this run or of the earlier one whose result the step has; `None` if
    /// there is none.
    pub fn remote_execution(&self) -> Option<&RemoteExecution> {
        match &self.executor {
            Some(StepExecutor::Remote(remote)) => Some(remote),
            Some(StepExecutor::LocalFallback { .. }) | None => None,
        }
    }

    /// Returns the cluster whose worker executed the step; `None` if there is none.
    pub fn cluster(&self) -> Option<&str> {
        self.remote_execution().map(|remote| remote.endpoint.as_str())
    }

    /// Returns the machines that executed the step, or checked some of its files, besides the machine of the run.
    pub fn origins(&self) -> BTreeSet<&ResultOrigin> {
        let of_files = self.checked_files.iter().flat_map(|files| &files.origins);
        self.reused.iter().filter_map(|source| source.origin.as_ref()).chain(of_files).collect()
    }

    /// Returns the other machine that executed the step, as a phrase; `None` if it was the machine of the run.
    pub fn other_machine(&self) -> Option<String> {
        let origins: Vec<String> = self.origins().into_iter().map(ResultOrigin::phrase).collect();
        let origins = (!origins.is_empty()).then(|| origins.join(", "));
        origins.or_else(|| self.cluster().map(|cluster| format!("a worker of `{cluster}`")))
    }

    /// Returns where the step was executed, as a phrase; `None` if it was this machine, as planned.
    pub fn executor_note(&self) -> Option<String> {
        let executor = self.executor.as_ref()?;
        Some(if self.is_cached() { format!("was {}", executor.note()) } else { executor.note() })
    }
}
