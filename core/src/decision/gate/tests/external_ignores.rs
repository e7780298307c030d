//! Ignore rules outside of the tree must be the same as in the run.

use super::{GateCode, GateScenario, IgnoreFile, Sha256Hex};

#[test]
fn rejects_run_with_other_external_ignore_rules() {
    let rules =
        |text: &str| IgnoreFile { path: format!("/r/{text}"), rules_sha256: Sha256Hex::digest(text.as_bytes()) };
    let now = |names: &[&str]| Some(names.iter().map(|name| ((*name).to_owned(), rules(name))).collect());
    let then = |names: &[&str]| Some(names.iter().map(|name| ((*name).to_owned(), rules(name).rules_sha256)).collect());
    let answered = |recorded, ignores| {
        let scenario = GateScenario::new().with(|scenario| {
            scenario.run.external_ignores = recorded;
            scenario.ignores = ignores;
        });
        let found = scenario.write_documents().evaluate().findings;
        found.into_iter().map(|finding| (finding.name, finding.paths)).collect::<Vec<_>>()
    };
    let some = |code, path: &str| vec![(code, vec![path.to_owned()])];
    assert_eq!(answered(then(&["a"]), now(&["a"])), []);
    assert_eq!(answered(then(&[]), now(&["a"])), some(GateCode::IgnoresChanged, "/r/a"));
    assert_eq!(answered(then(&["a"]), now(&[])), some(GateCode::IgnoresChanged, "a"));
    assert_eq!(answered(then(&["a", "b"]), now(&["a", "c"])).first().map(|(_, paths)| paths.len()), Some(2));
    // A run of an older version does not record the rules.
    assert_eq!(answered(None, now(&[])), []);
    assert_eq!(answered(None, now(&["a"])), some(GateCode::IgnoresUnrecorded, "/r/a"));
    // The rules do not apply to the tree of a commit.
    assert_eq!((answered(then(&["a"]), None), answered(None, None)), (vec![], vec![]));
}
