//! Uses the trees of v1 on a host that has the memory and pids controllers there. In addition, the unified tree
//! counts CPU time and can kill a whole group, even without a controller.

use std::time::Instant;

use super::control;
use super::place::{Holds, Place, Version};
use super::seat::{Branch, SWEEP, Unusable};
use super::subtree::{self, Subtree};

/// Uses every tree that limits something, and one that counts CPU time.
pub(super) fn take(places: &[Place]) -> Result<Vec<Branch>, Unusable> {
    let bounding = places.iter().filter(|place| place.version == Version::V1 && bounds(place.holds));
    let (mut branches, mut why) = (Vec::new(), Unusable::NoLegacy);
    sweep(places);
    for place in bounding {
        match branch(place, place.holds) {
            Ok(branch) => branches.push(branch),
            Err(refused) => why = refused,
        }
    }
    if branches.is_empty() {
        return Err(why);
    }
    if !branches.iter().any(|branch| branch.holds.cpu) {
        branches.extend(counting(places));
    }
    Ok(branches)
}

fn bounds(holds: Holds) -> bool {
    holds.memory || holds.pids
}

/// Sweeps the unified tree first: there, the processes of an abandoned group can be killed, which empties its groups
/// in the other trees too.
fn sweep(places: &[Place]) {
    let until = Instant::now() + SWEEP;
    for version in [Version::V2, Version::V1] {
        let same = places.iter().filter(|place| place.version == version);
        same.for_each(|place| subtree::sweep_around(&place.dir, &place.top, until));
    }
}

/// Uses the unified tree rather than that of cpuacct: the cost is the same, and it can also kill.
fn counting(places: &[Place]) -> Option<Branch> {
    let cpu = Holds { cpu: true, ..Holds::default() };
    let unified = places.iter().find(|place| place.version == Version::V2 && counts(place));
    let cpuacct = places.iter().find(|place| place.version == Version::V1 && place.holds == cpu);
    [unified, cpuacct].into_iter().flatten().find_map(|place| branch(place, cpu).ok())
}

/// Returns whether a group below can count CPU time. A threaded cgroup would make it threaded too, and no process
/// could join it. The root has no type.
fn counts(place: &Place) -> bool {
    let kind = control::read(&place.dir, "cgroup.type");
    place.dir.join("cpu.stat").exists() && kind.is_none_or(|kind| kind.trim() == "domain")
}

fn branch(place: &Place, holds: Holds) -> Result<Branch, Unusable> {
    let refused = |error| Unusable::Refused { version: place.version, error };
    if !control::processes(&place.dir).map_err(refused)?.contains(&std::process::id()) {
        return Err(Unusable::Elsewhere(place.dir.clone()));
    }
    let subtree = Subtree::create(&place.dir).map_err(refused)?;
    Ok(Branch { version: place.version, holds, _home: None, subtree })
}
