//! Uses the trees of v1 on a host that has the memory and pids controllers there. In addition, the unified tree
//! counts CPU time and can kill a whole group, even without a controller.

use std::time::Instant;

use super::control_files;
use super::membership::{CgroupMembership, CgroupVersion, Controllers};
use super::subtree::{self, Subtree};
use crate::cgroup::location_state::{SWEEP_TIMEOUT, UsedTree};
use crate::cgroup::unusable::CgroupUnusable;

/// Uses every tree that limits something, and one that counts CPU time.
pub(super) fn use_v1_trees(places: &[CgroupMembership]) -> Result<Vec<UsedTree>, CgroupUnusable> {
    let bounding =
        places.iter().filter(|place| place.version == CgroupVersion::V1 && has_limit_controller(place.controllers));
    let (mut branches, mut why) = (Vec::new(), CgroupUnusable::NoV1Mount);
    sweep(places);
    for place in bounding {
        match use_tree(place, place.controllers) {
            Ok(branch) => branches.push(branch),
            Err(refused) => why = refused,
        }
    }
    if branches.is_empty() {
        return Err(why);
    }
    if !branches.iter().any(|branch| branch.controllers.cpu) {
        branches.extend(use_cpu_accounting_tree(places));
    }
    Ok(branches)
}

fn has_limit_controller(holds: Controllers) -> bool {
    holds.memory || holds.pids
}

/// Sweeps the unified tree first: there, the processes of an abandoned group can be killed, which empties its groups
/// in the other trees too.
fn sweep(places: &[CgroupMembership]) {
    let until = Instant::now() + SWEEP_TIMEOUT;
    for version in [CgroupVersion::V2, CgroupVersion::V1] {
        let same = places.iter().filter(|place| place.version == version);
        same.for_each(|place| subtree::sweep_around(&place.dir, &place.mount_point, until));
    }
}

/// Uses the unified tree rather than that of cpuacct: the cost is the same, and it can also kill.
fn use_cpu_accounting_tree(places: &[CgroupMembership]) -> Option<UsedTree> {
    let cpu = Controllers { cpu: true, ..Controllers::default() };
    let unified = places.iter().find(|place| place.version == CgroupVersion::V2 && can_count_cpu(place));
    let cpuacct = places.iter().find(|place| place.version == CgroupVersion::V1 && place.controllers == cpu);
    [unified, cpuacct].into_iter().flatten().find_map(|place| use_tree(place, cpu).ok())
}

/// Returns whether a group below can count CPU time. A threaded cgroup would make it threaded too, and no process
/// could join it. The root has no type.
fn can_count_cpu(place: &CgroupMembership) -> bool {
    let kind = control_files::read(&place.dir, "cgroup.type");
    place.dir.join("cpu.stat").exists() && kind.is_none_or(|kind| kind.trim() == "domain")
}

fn use_tree(place: &CgroupMembership, holds: Controllers) -> Result<UsedTree, CgroupUnusable> {
    let refused = |error| CgroupUnusable::Refused { version: place.version, error };
    if !control_files::processes(&place.dir).map_err(refused)?.contains(&std::process::id()) {
        return Err(CgroupUnusable::NotAMember(place.dir.clone()));
    }
    let subtree = Subtree::create(&place.dir).map_err(refused)?;
    Ok(UsedTree { version: place.version, controllers: holds, _daemon_cgroup: None, subtree })
}
