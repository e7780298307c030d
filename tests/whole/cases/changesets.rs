//! Tests which changesets a run accepts, and that a refused changeset is left unchanged.

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{Case, case, dry_case};
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    dry_case("changesets::ids_that_climb_or_hide_are_refused", bad_ids),
    dry_case("changesets::one_that_is_not_there_is_named", missing),
    case("changesets::two_changesets_do_not_share_evidence", two_changesets),
];

fn bad_ids(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let before = machine::walk(env.root());
    let long = "a".repeat(129);
    for id in ["../x", "a/b", "..", ".", "", "a..b", ".hidden", "-a", "a b", "009_x/", "a\nb", &long] {
        repo.run_bare(&[&format!("--changeset={id}")]).exits(2);
    }
    assert_eq!(machine::walk(env.root()), before, "a refused id left something behind");
}

fn missing(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run_bare(&["--changeset", "010_not_there"]).exits(2).complains(&["error[P0212]:", "changes/010_not_there"]);
    assert!(!repo.file("changes/010_not_there").exists());
}

fn two_changesets(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.write("changes/010_y/00-meta.json", "{}");
    repo.run().exits(0);
    repo.run_bare(&["--changeset", "010_y"]).exits(0);
    assert_eq!(crate::documents::skill(&repo.file("changes/010_y"), "verify.it")["changeset_id"], "010_y");
    assert_eq!(repo.evidence("verify.it")["changeset_id"], "009_x");
}
