//! Lists the reasons why the result of a step cannot be reused.

use std::fmt;

use crate::model::enforcement::{Control, Tolerated};
use crate::model::outcome::{Outcome, Termination};
use crate::model::plan::{Determinism, Network, PlannedSkill, PlannedStep, ReadOnly, RelPath};
use crate::record::evidence::{ReportFault, ReportState, StepEvidence};
use crate::text::humanize::size;

/// The reason why the result of a step is not stored, or why no stored result is used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReuseObstacle {
    /// The skill is declared as nondeterministic.
    Nondeterministic,
    /// The step may use the network.
    Network,
    /// The step changes the worktree.
    ChangesWorktree,
    /// The skill has a cache whose content may change the result.
    Cache {
        /// The path of the cache.
        path: RelPath,
    },
    /// A step of the skill changed paths of `needs_paths`.
    ChangedPaths {
        /// The paths.
        paths: Vec<RelPath>,
    },
    /// The steps of the run see the worktree itself, not a private copy.
    SharedTree,
    /// The step did not pass.
    NotPassed,
    /// The step passed only on a retry.
    Flaky,
    /// The step reached a limit.
    LimitHit,
    /// The step left processes behind.
    LeftProcesses,
    /// The output of the step is incomplete.
    IncompleteOutput,
    /// A report of the step could not be read or stored.
    UnreadReport,
    /// A control of the sandbox was not enforced.
    MissingControl,
    /// The run would send the step to workers that the operator does not trust.
    UntrustedWorkers,
    /// The step requests a worker whose tools are not known.
    UnpinnedWorker {
        /// The name of the property for a container image.
        property: String,
    },
    /// The cluster does not execute the step.
    NotSent {
        /// The reason.
        message: String,
    },
    /// The result is larger than the store permits.
    TooLarge {
        /// The size of the result, in bytes.
        bytes: u64,
        /// The maximum size, in bytes.
        max_bytes: u64,
    },
    /// The inputs of the step were not observed.
    NotObserved {
        /// The reason.
        message: String,
    },
}

impl fmt::Display for ReuseObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nondeterministic => "its skill is declared as nondeterministic (`determinism: D2`)",
            Self::Network => "it may use the network (`network: allow`)",
            Self::ChangesWorktree => "it changes the worktree (`read_only: off` or `fix`)",
            Self::Cache { path } => {
                return write!(
                    f,
                    "its skill has the cache `{path}`, whose content is not observed; if it never changes the result of \
                     a step, write `{{ path: {path}, transparent: true }}` in `caches`"
                );
            }
            Self::ChangedPaths { paths } => {
                let paths = paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ");
                return write!(f, "a step of its skill changed {paths} of `needs_paths`");
            }
            Self::SharedTree => "steps see the worktree itself, not a private copy",
            Self::NotPassed => "it did not pass",
            Self::Flaky => "it passed only on a retry",
            Self::LimitHit => "it reached a limit",
            Self::LeftProcesses => "it left processes behind",
            Self::IncompleteOutput => "its output is incomplete",
            Self::UnreadReport => "one of its reports could not be read or stored",
            Self::MissingControl => "a control of the sandbox was not enforced",
            Self::UntrustedWorkers => {
                "it runs on workers, which the operator does not trust (`trust_workers` of `[remote_executor]`)"
            }
            Self::UnpinnedWorker { property } => {
                return write!(
                    f,
                    "it runs on workers whose tools can change: `{property}` names no container image with a digest, and \
                     `unpinned_max_age_ms` of `[remote_executor]` is 0"
                );
            }
            Self::NotSent { message } => return write!(f, "the cluster does not execute it: {message}"),
            Self::TooLarge { bytes, max_bytes } => {
                let (bytes, most) = (size(*bytes), size(*max_bytes));
                return write!(
                    f,
                    "its result has {bytes}, and at most {most} are stored (an eighth of `retention.max_result_bytes`)"
                );
            }
            Self::NotObserved { message } => return write!(f, "its inputs were not observed: {message}"),
        })
    }
}

/// Returns why results of a planned step are never reused; `None` if they can be.
pub fn plan_obstacle(skill: &PlannedSkill, step: &PlannedStep) -> Option<ReuseObstacle> {
    let rules = [
        (skill.determinism == Determinism::D2, ReuseObstacle::Nondeterministic),
        (step.network == Network::Allow, ReuseObstacle::Network),
        (step.read_only == ReadOnly::Off || step.fixes.is_some(), ReuseObstacle::ChangesWorktree),
    ];
    let cache = skill.caches.iter().find(|cache| !skill.transparent_caches.contains(cache));
    let cache = cache.map(|path| ReuseObstacle::Cache { path: path.clone() });
    rules.into_iter().find_map(|(applies, obstacle)| applies.then_some(obstacle)).or(cache)
}

/// Returns why the result of an execution on this machine is not stored; `None` if it can be.
pub fn result_obstacle(evidence: &StepEvidence) -> Option<ReuseObstacle> {
    obstacle_of(evidence, &Tolerated::default())
}

/// Controls that many workers lack. A step that lacks them reads no file that it was not sent, and has no network.
const DISPENSABLE_ON_WORKERS: [Control; 3] = [Control::Cgroup, Control::PidsLimit, Control::PrivateProc];

/// Returns why the result of an execution on a worker is not stored; `None` if it can be.
pub fn worker_result_obstacle(evidence: &StepEvidence) -> Option<ReuseObstacle> {
    obstacle_of(evidence, &DISPENSABLE_ON_WORKERS.into_iter().collect())
}

fn obstacle_of(evidence: &StepEvidence, tolerated: &Tolerated) -> Option<ReuseObstacle> {
    let exited_as_expected =
        matches!(&evidence.termination, Termination::Exited { code } if evidence.planned.expect_exit.contains(code));
    let rules = [
        (evidence.outcome != Outcome::Passed || !exited_as_expected, ReuseObstacle::NotPassed),
        (evidence.flaky || !evidence.earlier_attempts.is_empty(), ReuseObstacle::Flaky),
        (!evidence.resources.limits_hit.is_empty(), ReuseObstacle::LimitHit),
        (evidence.leaked.is_some(), ReuseObstacle::LeftProcesses),
        (!(evidence.stdout.complete && evidence.stderr.complete), ReuseObstacle::IncompleteOutput),
        (!has_definite_reports(evidence), ReuseObstacle::UnreadReport),
        (!evidence.was_started() || has_gaps(evidence, tolerated), ReuseObstacle::MissingControl),
        (!evidence.drift.found.is_empty() || !evidence.drift.applied.is_empty(), ReuseObstacle::NotPassed),
    ];
    rules.into_iter().find_map(|(applies, obstacle)| applies.then_some(obstacle))
}

/// Returns whether another execution would find the same reports: each is stored, was not written, or is refused for a
/// property of the file itself.
fn has_definite_reports(evidence: &StepEvidence) -> bool {
    let is_definite = |state: &ReportState| match state {
        ReportState::Read { .. } | ReportState::Missing => true,
        ReportState::Refused { reason } => match reason {
            ReportFault::SymbolicLink | ReportFault::NoRegularFile | ReportFault::TooLarge | ReportFault::InGit => true,
            ReportFault::Unreadable | ReportFault::Changing | ReportFault::NotKept => false,
        },
    };
    evidence.found_reports.len() == evidence.planned.reports.len()
        && evidence.found_reports.iter().all(|report| is_definite(&report.state))
}

fn has_gaps(evidence: &StepEvidence, tolerated: &Tolerated) -> bool {
    evidence.enforcement.gaps(tolerated).next().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::names::ProfileName;
    use crate::spec::{self, OperatorConfig};
    use crate::text::digest::Sha256Hex;

    /// Returns the obstacle for the step of a deterministic skill with these fields.
    fn obstacle(fields: &str) -> Option<ReuseObstacle> {
        let text =
            format!("version: 1\nskills:\n  a: {{ determinism: D1, {fields} steps: [{{ name: s, cmd: lint }}] }}\n");
        let spec = spec::parse(text.as_bytes()).expect("a spec").spec;
        let profile = ProfileName::new("pr").expect("a name");
        let plan = spec::resolve(&spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b""), 1);
        let plan = plan.expect("a plan").plan;
        plan_obstacle(&plan.skills[0], &plan.skills[0].steps[0])
    }

    #[test]
    fn only_caches_that_are_not_transparent_prevent_reuse() {
        let cache = |path: &str| Some(ReuseObstacle::Cache { path: RelPath::new(path).expect("a path") });
        assert_eq!(obstacle(""), None);
        assert_eq!(obstacle("needs_paths: [{ path: .venv, key: [uv.lock] }],"), None);
        assert_eq!(obstacle("caches: [{ path: target, transparent: true }],"), None);
        assert_eq!(obstacle("caches: [target],"), cache("target"));
        assert_eq!(obstacle("caches: [{ path: target, transparent: false }],"), cache("target"));
        assert_eq!(obstacle("caches: [{ path: a, transparent: true }, { path: b }],"), cache("b"));
    }

    #[test]
    fn reports_do_not_prevent_reuse() {
        let text =
            "version: 1\nskills:\n  a: { determinism: D1, steps: [{ name: s, cmd: lint, reports: { junit: x } }] }\n";
        let spec = spec::parse(text.as_bytes()).expect("a spec").spec;
        let profile = ProfileName::new("pr").expect("a name");
        let plan = spec::resolve(&spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b""), 1);
        let skill = plan.expect("a plan").plan.skills.remove(0);
        assert_eq!(plan_obstacle(&skill, &skill.steps[0]), None);
    }

    #[test]
    fn obstacles_name_the_paths() {
        let path = |text: &str| RelPath::new(text).expect("a path");
        let cache = ReuseObstacle::Cache { path: path("a/b") }.to_string();
        assert!(cache.contains("the cache `a/b`") && cache.contains("`{ path: a/b, transparent: true }`"), "{cache}");
        let changed = ReuseObstacle::ChangedPaths { paths: vec![path("a"), path("b")] }.to_string();
        assert_eq!(changed, "a step of its skill changed `a`, `b` of `needs_paths`");
    }
}
