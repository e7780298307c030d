//! Tests the schemas of the status file.

use proctor_core::record::run_reuse::{RemoteReuse, ReuseMode, RunReuse};
use proctor_core::record::unverified_inputs::{
    InputKind, InputShown, PreparedInput, UnverifiedInput, UnverifiedInputs,
};

use super::*;

fn input(path: &str, kind: InputKind, shown: InputShown) -> UnverifiedInput {
    let (sha256, reason) = match shown {
        InputShown::Mounted | InputShown::Copied => (Some(Sha256Hex::digest(b"content")), None),
        InputShown::LeftOut => (None, Some("it is too large".to_owned())),
    };
    let permissions = (shown == InputShown::Copied).then(|| Sha256Hex::digest(b"600 path\0"));
    let prepared = (shown == InputShown::Mounted).then(|| PreparedInput {
        cmd: "npm ci".to_owned(),
        key: Sha256Hex::digest(b"key"),
        scope: "branch:main".to_owned(),
        network: Network::Allow,
        at: "2026-01-02T03:04:05.678Z".to_owned(),
    });
    UnverifiedInput { path: path.to_owned(), kind, files: 1, bytes: 7, sha256, permissions, shown, prepared, reason }
}

fn last_run() -> LastRun {
    LastRun {
        version: proctor_core::record::status::VERSION,
        profile: ProfileName::new("pr").expect("name"),
        outcome: Verdict::Passed,
        timestamp: "2026-01-02T03:04:05.678Z".into(),
        run_id: RunId::new("r1").expect("name"),
        tier: Tier::ONE,
        snapshot: tree(),
        snapshot_after: Some(tree()),
        source: Default::default(),
        spec_sha256: Sha256Hex::digest(b"spec"),
        evidence: BTreeMap::from([("verify/a.json".to_owned(), Sha256Hex::digest(b"a"))]),
        external_ignores: None,
        unverified_inputs: Some(UnverifiedInputs::new(vec![
            input("node_modules", InputKind::Directory, InputShown::Mounted),
            input(".env", InputKind::File, InputShown::Copied),
            input("data", InputKind::Directory, InputShown::LeftOut),
            input("link", InputKind::Symlink, InputShown::Copied),
        ])),
        rerun: None,
        scope: None,
        reuse: Some(whole_tree_reuse()),
    }
}

pub(super) fn whole_tree_reuse() -> RunReuse {
    let remote = RemoteReuse {
        endpoint: "grpcs://cache:1".into(),
        hits: 1,
        stored: 1,
        refused: 1,
        refusal: Some("it is not signed".into()),
        problem: Some("it is unavailable".into()),
    };
    RunReuse {
        mode: ReuseMode::WholeTree,
        reason: Some("no view".into()),
        steps: 3,
        cached_steps: 0,
        remote: Some(remote),
    }
}

#[test]
fn status_file_allows_anything_but_invalid_last_run() {
    let value = assert_valid("status-last-run", &last_run());
    assert_refused("status-last-run", &value, "/outcome", &json!("green"));
    assert_refused("status-last-run", &value, "/evidence/verify~1a.json", &json!("x"));

    let old = br#"{"schema_version":"v1","state":"executed","validation":{"n":1.10},"execution":[1,null]}"#;
    for before in [Some(&old[..]), Some(br#"{"status":"verify_success","verified_at":"today"}"#), None] {
        let bytes = proctor_core::record::status::set_last_run(before, &last_run()).expect("updated");
        let status: Value = serde_json::from_slice(&bytes).expect("JSON");
        assert_eq!(violations("status", &status), Vec::<String>::new());
        assert_refused("status", &status, "/verification/last_run/tier", &json!(9));
        assert_required("status", &status, "/verification/last_run", "run_id");
    }
}
