//! What a plan needs of the place in which its commands run: pure, of the plan alone.

use std::path::PathBuf;

use proctor_core::enforcement::Tolerated;
use proctor_core::plan::{Limit, Network, Plan, ReadOnly, files_of};
use proctor_sandbox::{RunSpace, RunSpaceConfig, Sandboxes};

use crate::context::Changes;

/// How many bytes the layers of one run may hold where the plan sets no bound.
const UNBOUNDED_DISK: u64 = 64 << 30;

/// Whether some command of the plan is denied the network: a trial is made in that way, and needs
/// one control more than a plan of commands that all may use it.
pub(super) fn isolates(plan: &Plan) -> bool {
    let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    steps.chain(plan.toolchain.iter().map(|check| &check.run)).any(|step| step.network == Network::Deny)
}

/// How many commands a run has at least, where nothing fails.
pub(super) fn commands_of(plan: &Plan) -> usize {
    plan.toolchain.len() + plan.skills.iter().map(|skill| skill.steps.len()).sum::<usize>()
}

/// The place for the layers of a run, and for its sandboxes.
#[derive(Debug, Clone)]
pub(super) struct Room {
    /// How many bytes all layers hold.
    pub(super) disk: Limit,
    /// How many commands one sandbox serves.
    pub(super) sandboxes: Sandboxes,
    /// One that was made by these bounds before, if there is any.
    pub(super) space: Option<RunSpace>,
    /// Where caches are stored, where the plan has any.
    pub(super) caches: Option<PathBuf>,
}

/// How many commands one sandbox serves. A tree that changes under an overlay may be seen in either state: where a
/// step's changes are applied to the worktree, the next one gets a sandbox that is made over what is there then.
pub(super) fn sandboxes_of(plan: &Plan, changes: Changes) -> Sandboxes {
    let mut steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    let applies = changes == Changes::Applied && steps.any(|step| step.read_only == ReadOnly::Off);
    if applies { Sandboxes::ForOne } else { Sandboxes::ForSeveral }
}

/// The layers of a run share one bound: that of its most demanding step.
pub(super) fn disk_of(plan: &Plan) -> Limit {
    let steps = plan.skills.iter().flat_map(|skill| &skill.steps);
    steps.map(|step| step.limits.disk).max_by_key(|limit| limit.get_or_max()).unwrap_or(Limit::Unlimited)
}

/// What a place for layers is made by.
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
