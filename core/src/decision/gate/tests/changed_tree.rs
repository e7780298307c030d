//! A run whose step changed the tree does not verify it, even if a later step undid the change.

use super::{GateCode, GateScenario};

#[test]
fn rejects_run_whose_step_changed_the_tree() {
    let undone = GateScenario::new().with(|world| world.skills[0].steps[0].drift.changed_tree = true);
    assert_eq!(undone.finding_codes(), [GateCode::TreeChanged]);
}
