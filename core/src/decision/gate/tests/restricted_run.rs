//! Tests the gate with a run that is restricted to some steps or files.

use super::*;
use crate::model::plan::FileRules;
use crate::model::run_scope::{FileScope, FileScopeOrigin, RunScope};
use crate::record::evidence::CheckedFiles;

#[test]
fn refuses_restricted_run() {
    let files = FileScope {
        origin: FileScopeOrigin::Changed { base: "0123456789abcdef".to_owned(), replaced: None },
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
            GateScenario::new().with(|scenario| scenario.run.scope = Some(scope.clone())).write_documents().evaluate();
        assert!(!answer.pass, "{scope:?}");
        let named =
            answer.findings.iter().any(|found| found.name == GateCode::RunPartial && found.message.contains(phrase));
        assert!(named, "{phrase}: {:?}", answer.findings);
    }
}

/// Returns a scenario of a run that was restricted to one file, and whose first step has `files`.
fn scenario_of_files(covers_all: bool) -> GateScenario {
    let files = FileScope { origin: FileScopeOrigin::Named, count: 1, sha256: Sha256Hex::digest(b"a\0") };
    let scope = RunScope { files: Some(files), ..RunScope::default() };
    GateScenario::new().with(|scenario| {
        scenario.plan.skills[0].steps[0].files = Some(FileRules::default());
        let plan_sha256 = Plan { scope: Some(scope.clone()), ..scenario.plan.clone() }.digest();
        for skill in &mut scenario.skills {
            skill.scope = Some(scope.clone());
            skill.plan_sha256 = plan_sha256.clone();
        }
        scenario.toolchain.scope = Some(scope.clone());
        scenario.toolchain.plan_sha256 = plan_sha256.clone();
        let step = &mut scenario.skills[0].steps[0];
        step.planned.files = Some(FileRules::default());
        step.checked_files = Some(CheckedFiles {
            count: 3,
            sha256: Sha256Hex::digest(b"a\0b\0c\0"),
            batches: 1,
            reused: 2,
            reused_executed_at: None,
            dependence: None,
            transparent_caches: Vec::new(),
            origins: Vec::new(),
            covers_all,
        });
    })
}

#[test]
fn accepts_restricted_run_whose_other_files_have_passed() {
    let answer = scenario_of_files(true).write_documents().evaluate();
    assert!(answer.pass, "{:?}", answer.findings);
}

#[test]
fn refuses_restricted_documents_if_the_status_denies_the_restriction() {
    let answer = scenario_of_files(false).write_documents().evaluate();
    assert_eq!(answer.findings.iter().map(|found| found.name).collect::<Vec<_>>(), [GateCode::RunPartial]);
}
