//! Computes the requirements of a plan on its run space. Depends on the plan only.

use std::path::PathBuf;

use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Limit, Network, Plan, ReadOnly, max_files};
use proctor_sandbox::{RunSpace, RunSpaceConfig, SandboxReuse};

use crate::run::request::{ChangeHandling, RunRequest, RunSource};
use crate::run::run_context::ChangeMode;

/// Maximum size of the layers of one run, in bytes, if the plan sets no limit.
const DEFAULT_MAX_DISK: u64 = 64 << 30;

/// Returns whether some command of the plan has no network. The trial sandbox has no network either, which needs
/// one more control than commands with network do.
pub(super) fn needs_network_isolation(plan: &Plan) -> bool {
    let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    steps.chain(plan.toolchain.iter().map(|check| &check.run)).any(|step| step.network == Network::Deny)
}

/// Returns the minimum number of commands of a run without failures.
pub(super) fn command_count(plan: &Plan) -> usize {
    plan.toolchain.len() + plan.skills.iter().map(|skill| skill.steps.len()).sum::<usize>()
}

/// The requirements of a run on its run space.
#[derive(Debug, Clone)]
pub(super) struct RunSpaceNeeds {
    /// Maximum size of all layers.
    pub(super) disk: Limit,
    /// Number of commands that one sandbox serves.
    pub(super) sandboxes: SandboxReuse,
    /// A run space that was created earlier with these settings, if there is one.
    pub(super) space: Option<RunSpace>,
    /// Directory of the stored caches, if the plan has caches.
    pub(super) caches: Option<PathBuf>,
}

/// Returns how many commands one sandbox may serve. A lower tree that changes under a mounted overlay may be seen
/// in either state. Therefore, if a step's changes are applied to the worktree, the next command gets a new
/// sandbox.
pub(super) fn sandbox_reuse(plan: &Plan, changes: ChangeMode) -> SandboxReuse {
    let mut steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    let applies = changes == ChangeMode::Apply && steps.any(|step| step.read_only == ReadOnly::Off);
    if applies { SandboxReuse::Never } else { SandboxReuse::Allowed }
}

/// Returns the shared size limit of a run's layers: that of the step with the highest limit.
pub(super) fn disk_limit(plan: &Plan) -> Limit {
    let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    steps.map(|step| step.limits.disk).max_by_key(|limit| limit.get_or_max()).unwrap_or(Limit::Unlimited)
}

/// Returns the settings for creating a run space.
pub(super) fn run_space_config(needs: &RunSpaceNeeds, tolerated: Tolerated) -> RunSpaceConfig {
    let disk_bytes = needs.disk.get_or_max().min(DEFAULT_MAX_DISK);
    let (sandboxes, caches) = (needs.sandboxes, needs.caches.clone());
    RunSpaceConfig { disk_bytes, inodes: max_files(disk_bytes), tolerated, reuse: sandboxes, caches }
}

/// Changes are applied only to a worktree, and not if the request has `changes: patch`.
pub(super) fn change_mode(request: &RunRequest) -> ChangeMode {
    match (&request.source, request.changes) {
        (_, ChangeHandling::AsPatch) => ChangeMode::AsPatch,
        (RunSource::Worktree, ChangeHandling::Apply) => ChangeMode::Apply,
        (RunSource::Commit { .. } | RunSource::Staged(_), ChangeHandling::Apply) => ChangeMode::Discard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::model::names::ProfileName;
    use proctor_core::spec::{self, OperatorConfig};
    use proctor_core::text::digest::Sha256Hex;

    fn plan(second: &str) -> Plan {
        let text = format!(
            "version: 1\nprofiles: {{ p: {{ include: [s] }} }}\n\
             skills: {{ s: {{ steps: [{{ name: a, cmd: \"true\" }}, {{ name: b, cmd: \"true\"{second} }}] }} }}\n"
        );
        let read = spec::parse(text.as_bytes()).expect("a spec").spec;
        let (profile, sha256) = (ProfileName::new("p").expect("a name"), Sha256Hex::digest(text.as_bytes()));
        spec::resolve(&read, &profile, &OperatorConfig::default(), sha256, 1).expect("a plan").plan
    }

    #[test]
    fn changing_steps_get_one_sandbox_each() {
        let (reads, writes) = (plan(""), plan(", read_only: off"));
        assert_eq!(sandbox_reuse(&reads, ChangeMode::Apply), SandboxReuse::Allowed);
        assert_eq!(sandbox_reuse(&writes, ChangeMode::Apply), SandboxReuse::Never);
        assert_eq!(sandbox_reuse(&writes, ChangeMode::AsPatch), SandboxReuse::Allowed);
    }
}
