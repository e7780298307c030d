//! Records how a run reused the results of earlier executions.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::evidence::{StepEvidence, cached_of_steps};
use crate::text::humanize::count;

/// The reuse of results in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunReuse {
    /// How results are reused.
    pub mode: ReuseMode,
    /// The reason if the result of a step is not reused; `null` for `observed`.
    pub reason: Option<String>,
    /// Number of steps of the run.
    pub steps: u64,
    /// Number of these steps that have the result of an earlier execution.
    pub cached_steps: u64,
    /// The exchange of results with other machines; absent without a remote cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteReuse>,
}

/// The exchange of results with other machines in a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RemoteReuse {
    /// The server.
    pub endpoint: String,
    /// Number of steps whose result came from the server in this run.
    pub hits: u64,
    /// Number of results that this run has stored on the server.
    pub stored: u64,
    /// Number of records and path sets that were refused.
    pub refused: u64,
    /// The reason for the first refusal; `null` without one.
    pub refusal: Option<String>,
    /// The reason why the run stopped using the server; `null` if the server worked.
    pub problem: Option<String>,
}

impl RemoteReuse {
    /// Returns the exchange as a phrase.
    pub fn phrase(&self) -> String {
        let results = |number| count(as_usize(number), "result");
        let mut phrase = format!("{}: {} used, {} stored", self.endpoint, results(self.hits), results(self.stored));
        if let Some(refusal) = &self.refusal {
            phrase.push_str(&format!(", {} refused: {refusal}", self.refused));
        }
        phrase
    }

    /// Returns the notice about a server that did not work; `None` if it did.
    pub fn notice(&self) -> Option<String> {
        let problem = self.problem.as_ref()?;
        Some(format!("the remote cache does not work, so the run did not use it: {problem}"))
    }
}

/// How a run reuses results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReuseMode {
    /// The inputs of the steps are observed. A step is not executed while its inputs are unchanged.
    Observed,
    /// The inputs of the steps cannot be observed. No result of a step on this machine is stored, and such a step is
    /// executed unless a result holds that was stored while its inputs could be observed. The result of a step on a worker,
    /// and that of a whole run, is reused while the tree is unchanged.
    WholeTree,
    /// Every step is executed, although its inputs could be observed.
    Off,
}

impl ReuseMode {
    /// Returns the mode as it appears in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Observed => "observed",
            Self::WholeTree => "whole_tree",
            Self::Off => "off",
        }
    }
}

/// The facts that decide how a run reuses results.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReuseConditions {
    /// The reason why the request, the operator or the plan excludes the reuse.
    pub off: Option<String>,
    /// The reason why commands cannot run on a view, which observes their inputs.
    pub no_view: Option<String>,
}

impl ReuseConditions {
    /// Returns how results are reused, and the reason if the results of steps are not.
    pub fn decide(self) -> (ReuseMode, Option<String>) {
        match self {
            Self { off: Some(reason), .. } => (ReuseMode::Off, Some(reason)),
            Self { off: None, no_view: Some(reason) } => {
                (ReuseMode::WholeTree, Some(format!("the inputs of steps cannot be observed: {reason}")))
            }
            Self { off: None, no_view: None } => (ReuseMode::Observed, None),
        }
    }
}

impl RunReuse {
    /// Counts the steps of a run.
    pub fn new<'a>(conditions: ReuseConditions, steps: impl IntoIterator<Item = &'a StepEvidence>) -> Self {
        let (mode, reason) = conditions.decide();
        let (steps, cached_steps) = count_steps(steps);
        Self { mode, reason, steps, cached_steps, remote: None }
    }

    /// Returns the mode and the reason, as a phrase.
    pub fn phrase(&self) -> String {
        let mode = self.mode.as_str();
        self.reason.as_ref().map_or_else(|| mode.to_owned(), |reason| format!("{mode}; {reason}"))
    }

    /// Returns the number of cached steps, as a phrase; `None` if every step was executed.
    pub fn cached_phrase(&self) -> Option<String> {
        cached_of_steps(as_usize(self.cached_steps), as_usize(self.steps))
    }
}

/// Returns the number of steps, and of those with the result of an earlier execution.
pub fn count_steps<'a>(steps: impl IntoIterator<Item = &'a StepEvidence>) -> (u64, u64) {
    steps.into_iter().fold((0, 0), |(steps, cached), step| (steps + 1, cached + u64::from(step.is_cached())))
}

fn as_usize(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrase_counts_cached_steps() {
        let phrase = |steps, cached_steps| {
            RunReuse { mode: ReuseMode::Observed, reason: None, steps, cached_steps, remote: None }.cached_phrase()
        };
        assert_eq!((phrase(0, 0), phrase(2, 0)), (None, None));
        assert_eq!(phrase(3, 1).as_deref(), Some("1 of 3 steps cached"));
    }

    #[test]
    fn remote_phrase_and_notice() {
        let remote = RemoteReuse {
            endpoint: "grpcs://cache:1".to_owned(),
            hits: 1,
            stored: 2,
            refused: 0,
            refusal: None,
            problem: None,
        };
        assert_eq!(remote.phrase(), "grpcs://cache:1: 1 result used, 2 results stored");
        assert_eq!(remote.notice(), None);
        let refused = RemoteReuse { refused: 3, refusal: Some("not signed".to_owned()), ..remote.clone() };
        assert!(refused.phrase().ends_with("2 results stored, 3 refused: not signed"), "{}", refused.phrase());
        let notice = RemoteReuse { problem: Some("it is unavailable".to_owned()), ..remote }.notice();
        assert!(notice.is_some_and(|notice| notice.ends_with("did not use it: it is unavailable")));
    }

    #[test]
    fn a_missing_view_matters_only_if_results_could_be_reused() {
        let phrase = |off: Option<&str>, no_view: Option<&str>| {
            let conditions = ReuseConditions { off: off.map(str::to_owned), no_view: no_view.map(str::to_owned) };
            RunReuse::new(conditions, []).phrase()
        };
        assert_eq!(phrase(None, None), "observed");
        assert_eq!(phrase(None, Some("no fuse")), "whole_tree; the inputs of steps cannot be observed: no fuse");
        assert_eq!(phrase(Some("`--no-cache`"), None), "off; `--no-cache`");
        assert_eq!(phrase(Some("`--no-cache`"), Some("no fuse")), "off; `--no-cache`");
    }
}
