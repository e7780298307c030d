//! A run that left out skills of the profile does not verify the tree.

use super::{GateCode, World, run_id};
use crate::names::SkillName;
use crate::rerun::{self, LastOutcomes};

/// Returns the world of a run that left out the skill `b` because it passed before.
fn partial() -> World {
    let mut known = LastOutcomes::new(run_id("r1"));
    let [a, b] = ["a", "b"].map(|name| SkillName::new(name).expect("a name"));
    known.older(a, false);
    known.older(b, true);
    World::new().with(|world| {
        let (part, rerun) = rerun::select(world.plan.clone(), &known);
        world.skills.truncate(1);
        world.skills[0].plan_sha256 = part.digest();
        world.skills[0].left_out.clone_from(&part.left_out);
        (world.toolchain.plan_sha256, world.toolchain.left_out) = (part.digest(), part.left_out);
        world.run.rerun = Some(rerun);
    })
}

#[test]
fn a_partial_run_is_no_whole_one() {
    let world = partial();
    assert_eq!(world.codes(), [GateCode::RunPartial]);
    let message = &world.laid_out().answer().findings[0].message;
    assert_eq!(message, "the last run, r2, left skills of the profile out: `b`");
    // The gate also refuses if a forged status file and a forged record omit the selection.
    assert_eq!(world.with(|world| world.run.rerun = None).codes(), [GateCode::OtherPlan]);
}
