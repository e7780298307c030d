//! Tests the gate with a run that is restricted to some steps or files.

use super::*;
use crate::model::run_scope::{FileScope, FileScopeOrigin, RunScope};

#[test]
fn refuses_restricted_run() {
    let files = FileScope {
        origin: FileScopeOrigin::Changed { base: "0123456789abcdef".to_owned() },
        count: 2,
        sha256: Sha256Hex::digest(b""),
    };
    let scopes = [
        (RunScope { files: Some(files), ..RunScope::default() }, "2 files changed since 0123456789ab"),
        (RunScope { selected: vec!["a/b".to_owned()], ..RunScope::default() }, "only a/b"),
        (RunScope { fix: true, ..RunScope::default() }, "with fixes"),
    ];
    for (scope, phrase) in scopes {
        let answer =
            GateScenario::new().with(|world| world.run.scope = Some(scope.clone())).write_documents().evaluate();
        assert!(!answer.pass, "{scope:?}");
        let named =
            answer.findings.iter().any(|found| found.name == GateCode::RunPartial && found.message.contains(phrase));
        assert!(named, "{phrase}: {:?}", answer.findings);
    }
}
