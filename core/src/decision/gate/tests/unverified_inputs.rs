//! Inputs that no snapshot covers, if the caller requires verified inputs.

use super::GateScenario;
use crate::decision::gate::GateCode;
use crate::decision::gate::gate_facts::InputRequirement;
use crate::record::evidence::TreeSource;
use crate::record::unverified_inputs::{InputKind, InputShown, UnverifiedInput, UnverifiedInputs};

fn input(path: &str, shown: InputShown) -> UnverifiedInput {
    UnverifiedInput {
        path: path.into(),
        kind: InputKind::File,
        files: 1,
        bytes: 3,
        sha256: None,
        permissions: None,
        shown,
        prepared: None,
        reason: None,
    }
}

/// Returns the scenario of an unmodified run with this source and these recorded inputs.
fn scenario(source: &TreeSource, inputs: Option<Vec<UnverifiedInput>>, required: InputRequirement) -> GateScenario {
    GateScenario::new().with(|w| {
        w.run.source = source.clone();
        w.toolchain.source = source.clone();
        w.skills.iter_mut().for_each(|skill| skill.source = source.clone());
        w.run.unverified_inputs = inputs.map(UnverifiedInputs::new);
        w.requirements.inputs = required;
    })
}

fn rev() -> TreeSource {
    TreeSource::Rev { commit: "c".repeat(40), submodules: false, lfs_pointers: 0 }
}

#[test]
fn rejects_run_with_unverified_inputs() {
    let copied = || Some(vec![input(".env", InputShown::Copied), input("big", InputShown::LeftOut)]);
    let refused = scenario(&TreeSource::PRIVATE, copied(), InputRequirement::Verified);
    assert_eq!(refused.finding_codes(), [GateCode::InputsUnverified]);
    let answer = refused.write_documents().evaluate();
    let finding = &answer.findings[0];
    assert_eq!((answer.exit_code, finding.paths.as_slice(), finding.omitted), (1, &[".env".to_owned()][..], 0));
    assert!(finding.message.contains("`.env`") && !finding.message.contains("big"), "{finding:?}");
    assert!(finding.hint.contains("`ignored: hidden`") && finding.hint.contains("--rev HEAD"), "{finding:?}");
    assert!(scenario(&TreeSource::PRIVATE, copied(), InputRequirement::Any).finding_codes().is_empty());
}

#[test]
fn accepts_run_without_unverified_inputs() {
    let left_out = || Some(vec![input("big", InputShown::LeftOut)]);
    for (source, inputs) in [
        (TreeSource::PRIVATE, None),
        (TreeSource::PRIVATE, Some(vec![])),
        (TreeSource::PRIVATE, left_out()),
        (rev(), None),
    ] {
        assert!(scenario(&source, inputs, InputRequirement::Verified).finding_codes().is_empty(), "{source:?}");
    }
}

#[test]
fn rejects_run_of_shared_worktree() {
    let refused = [GateCode::InputsUnverified];
    assert_eq!(scenario(&TreeSource::SHARED, None, InputRequirement::Verified).finding_codes(), refused);
    assert_eq!(scenario(&TreeSource::SHARED, Some(vec![]), InputRequirement::Verified).finding_codes(), refused);
    assert!(scenario(&TreeSource::SHARED, None, InputRequirement::Any).finding_codes().is_empty());
    // Editing the status file does not hide the source that the evidence records.
    for source in [TreeSource::PRIVATE, rev()] {
        let skill = scenario(&source, None, InputRequirement::Verified);
        assert_eq!(skill.with(|w| w.skills[1].source = TreeSource::SHARED).finding_codes(), refused);
        let checks = scenario(&source, None, InputRequirement::Verified);
        assert_eq!(checks.with(|w| w.toolchain.source = TreeSource::SHARED).finding_codes(), refused);
    }
}

#[test]
fn counts_unlisted_inputs() {
    let many = (0..250).map(|number| input(&format!("f{number:03}"), InputShown::Copied)).collect();
    let answer = scenario(&TreeSource::PRIVATE, Some(many), InputRequirement::Verified).write_documents().evaluate();
    let finding = &answer.findings[0];
    assert_eq!((finding.paths.len(), finding.omitted), (100, 150));
    assert!(finding.message.contains("250 ") && finding.message.contains("and 245 more"), "{finding:?}");
}
