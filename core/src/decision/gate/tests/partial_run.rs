//! A run that left out skills of the profile does not verify the tree.

use super::{GateCode, GateScenario, run_id};
use crate::decision::rerun::{self, LastOutcomes};
use crate::model::names::SkillName;

/// Returns the scenario of a run that left out the skill `b` because it passed before.
fn partial_run_scenario() -> GateScenario {
    let mut known = LastOutcomes::new(run_id("r1"));
    let [a, b] = ["a", "b"].map(|name| SkillName::new(name).expect("a name"));
    known.add_older(a, false);
    known.add_older(b, true);
    GateScenario::new().with(|scenario| {
        let (part, rerun) = rerun::select_skills(scenario.plan.clone(), &known);
        scenario.skills.truncate(1);
        scenario.skills[0].plan_sha256 = part.digest();
        scenario.skills[0].left_out.clone_from(&part.left_out);
        (scenario.toolchain.plan_sha256, scenario.toolchain.left_out) = (part.digest(), part.left_out);
        scenario.run.rerun = Some(rerun);
    })
}

#[test]
fn rejects_partial_run() {
    let scenario = partial_run_scenario();
    assert_eq!(scenario.finding_codes(), [GateCode::RunPartial]);
    let message = &scenario.write_documents().evaluate().findings[0].message;
    assert_eq!(message, "the last run, r2, left skills of the profile out: `b`");
    // The gate also refuses if a forged status file and a forged record omit the selection.
    assert_eq!(scenario.with(|scenario| scenario.run.rerun = None).finding_codes(), [GateCode::OtherPlan]);
}
