//! Tests which changesets a run accepts, and that a refused changeset is left unchanged.

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{CaseDefinition, case, dry_case};
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("changesets::invalid_ids_are_refused", refuses_invalid_ids),
    dry_case("changesets::missing_changeset_is_named", reports_missing_changeset).daemon_sample(),
    case("changesets::two_changesets_do_not_share_evidence", evidence_is_separate).daemon_sample(),
];

fn refuses_invalid_ids(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let before = machine::walk(env.root());
    let long = "a".repeat(129);
    for id in ["../x", "a/b", "..", ".", "", "a..b", ".hidden", "-a", "a b", "009_x/", "a\nb", &long] {
        repo.run_with_only(&[&format!("--changeset={id}")]).exits(2);
    }
    assert_eq!(machine::walk(env.root()), before, "a refused id left something behind");
}

fn reports_missing_changeset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run_with_only(&["--changeset", "010_not_there"])
        .exits(2)
        .prints_to_stderr(&["error[P0212]:", "changes/010_not_there"]);
    assert!(!repo.file("changes/010_not_there").exists());
}

fn evidence_is_separate(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.write("changes/010_y/00-meta.json", "{}");
    repo.run().exits(0);
    repo.run_with_only(&["--changeset", "010_y"]).exits(0);
    assert_eq!(
        crate::documents::read_skill_evidence(&repo.file("changes/010_y"), "verify.it")["changeset_id"],
        "010_y"
    );
    assert_eq!(repo.evidence("verify.it")["changeset_id"], "009_x");
}
