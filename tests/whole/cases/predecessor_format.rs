//! Tests a repository in the format of the predecessor of v1.

use serde_json::Value;

use crate::documents;
use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, case, dry_case};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("predecessor_format::spec_is_valid", spec_is_valid),
    case("predecessor_format::changesets_are_verified_and_keep_their_status", changesets_keep_their_status),
];

const CHANGESETS: [&str; 3] = ["009_x", "010_y", "011_z"];

fn spec_is_valid(env: &TestEnvironment) {
    let repo = env.repo_from_fixture("layouts/predecessor");
    repo.proctor(&["validate"]).exits(0);
    let plan: Value = serde_json::from_str(&repo.proctor(&["plan", "--format", "json"]).exits(0).stdout).expect("JSON");
    let step = &plan["skills"][0]["steps"][0];
    assert_eq!(plan["skills"][0]["name"], "verify.format.check");
    assert_eq!(step["env_allowlist"], serde_json::json!(["CI", "RUST_LOG"]));
    assert_eq!(
        (&step["timeout_ms"], &step["network"], &step["read_only"]),
        (&180_000.into(), &"deny".into(), &"tracked".into())
    );
}

fn read_status_file(repo: &Repo<'_>, id: &str) -> Value {
    documents::read_json(&repo.file("changes").join(id).join("05-status.json"))
}

fn changesets_keep_their_status(env: &TestEnvironment) {
    let repo = env.repo_from_fixture("layouts/predecessor");
    let olds: Vec<Option<Value>> = CHANGESETS
        .map(|id| {
            let path = repo.file("changes").join(id).join("05-status.json");
            path.exists().then(|| documents::read_json(&path))
        })
        .into();
    for (id, old) in CHANGESETS.into_iter().zip(olds) {
        let meta = repo.read(&format!("changes/{id}/00-meta.json"));
        repo.run_with_only(&["--profile", "pr", "--changeset", id]).exits(0);
        let mut new = read_status_file(&repo, id);
        assert_eq!(new["verification"]["last_run"]["outcome"], "passed", "{id}");
        new["verification"].as_object_mut().expect("an object").remove("last_run");
        let mut expected = old.unwrap_or_else(|| {
            serde_json::json!({
                "schema_version": "v1",
                "state": "pending_validation",
                "validation": { "state": "pending", "checks": [] },
                "execution": { "state": "pending", "steps_completed": 0, "error": null, "log": [] },
            })
        });
        expected.as_object_mut().expect("an object").entry("verification").or_insert_with(|| serde_json::json!({}));
        assert_eq!(new, expected, "{id} lost or gained something");
        assert_eq!(repo.read(&format!("changes/{id}/00-meta.json")), meta);
    }
}
