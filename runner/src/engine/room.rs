//! Computes the requirements of a plan on its run space. Depends on the plan only.

use std::path::PathBuf;

use proctor_core::enforcement::Tolerated;
use proctor_core::plan::{Limit, Network, Plan, ReadOnly, files_of};
use proctor_sandbox::{RunSpace, RunSpaceConfig, Sandboxes};

use crate::context::Changes;

/// Maximum size of the layers of one run, in bytes, if the plan sets no limit.
const UNBOUNDED_DISK: u64 = 64 << 30;

/// Returns whether some command of the plan has no network. The trial sandbox has no network either, which needs
/// one more control than commands with network do.
pub(super) fn isolates(plan: &Plan) -> bool {
    let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    steps.chain(plan.toolchain.iter().map(|check| &check.run)).any(|step| step.network == Network::Deny)
}

/// Returns the minimum number of commands of a run without failures.
pub(super) fn commands_of(plan: &Plan) -> usize {
    plan.toolchain.len() + plan.skills.iter().map(|skill| skill.steps.len()).sum::<usize>()
}

/// The requirements of a run on its run space.
#[derive(Debug, Clone)]
pub(super) struct Room {
    /// Maximum size of all layers.
    pub(super) disk: Limit,
    /// Number of commands that one sandbox serves.
    pub(super) sandboxes: Sandboxes,
    /// A run space that was made earlier with these settings, if there is one.
    pub(super) space: Option<RunSpace>,
    /// Directory of the stored caches, if the plan has caches.
    pub(super) caches: Option<PathBuf>,
}

/// Returns how many commands one sandbox may serve. A lower tree that changes under a mounted overlay may be seen
/// in either state. Therefore, if a step's changes are applied to the worktree, the next command gets a new
/// sandbox.
pub(super) fn sandboxes_of(plan: &Plan, changes: Changes) -> Sandboxes {
    let mut steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    let applies = changes == Changes::Applied && steps.any(|step| step.read_only == ReadOnly::Off);
    if applies { Sandboxes::ForOne } else { Sandboxes::ForSeveral }
}

/// Returns the shared size limit of a run's layers: that of the step with the highest limit.
pub(super) fn disk_of(plan: &Plan) -> Limit {
    let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    steps.map(|step| step.limits.disk).max_by_key(|limit| limit.get_or_max()).unwrap_or(Limit::Unlimited)
}

/// Returns the settings for creating a run space.
pub(super) fn space_config(room: &Room, tolerated: Tolerated) -> RunSpaceConfig {
    let disk_bytes = room.disk.get_or_max().min(UNBOUNDED_DISK);
    let (sandboxes, caches) = (room.sandboxes, room.caches.clone());
    RunSpaceConfig { disk_bytes, inodes: files_of(disk_bytes), tolerated, sandboxes, caches }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::digest::Sha256Hex;
    use proctor_core::names::ProfileName;
    use proctor_core::spec::{self, Operator};

    fn plan(second: &str) -> Plan {
        let text = format!(
            "version: 1\nprofiles: {{ p: {{ include: [s] }} }}\n\
             skills: {{ s: {{ steps: [{{ name: a, cmd: \"true\" }}, {{ name: b, cmd: \"true\"{second} }}] }} }}\n"
        );
        let read = spec::read(text.as_bytes()).expect("a spec").spec;
        let (profile, sha256) = (ProfileName::new("p").expect("a name"), Sha256Hex::of(text.as_bytes()));
        spec::resolve(&read, &profile, &Operator::default(), sha256, 1).expect("a plan").plan
    }

    #[test]
    fn a_tree_that_steps_change_is_looked_at_anew_by_each() {
        let (reads, writes) = (plan(""), plan(", read_only: off"));
        assert_eq!(sandboxes_of(&reads, Changes::Applied), Sandboxes::ForSeveral);
        assert_eq!(sandboxes_of(&writes, Changes::Applied), Sandboxes::ForOne);
        assert_eq!(sandboxes_of(&writes, Changes::KeptApart), Sandboxes::ForSeveral);
    }
}
