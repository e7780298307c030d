//! Inputs that no snapshot covers, if the caller requires verified inputs.

use super::World;
use crate::evidence::TreeSource;
use crate::gate::{GateCode, RequiredInputs};
use crate::unverified::{InputKind, InputShown, UnverifiedInput, UnverifiedInputs};

fn input(path: &str, shown: InputShown) -> UnverifiedInput {
    UnverifiedInput { path: path.into(), kind: InputKind::File, files: 1, bytes: 3, sha256: None, shown, reason: None }
}

/// Returns the world of an honest run with this source and these recorded inputs.
fn world(source: &TreeSource, inputs: Option<Vec<UnverifiedInput>>, required: RequiredInputs) -> World {
    World::new().with(|w| {
        w.run.source = source.clone();
        w.toolchain.source = source.clone();
        w.skills.iter_mut().for_each(|skill| skill.source = source.clone());
        w.run.unverified_inputs = inputs.map(UnverifiedInputs::new);
        w.demands.inputs = required;
    })
}

fn rev() -> TreeSource {
    TreeSource::Rev { commit: "c".repeat(40), submodules: false, lfs_pointers: 0 }
}

#[test]
fn refuses_a_run_that_saw_unverified_inputs() {
    let copied = || Some(vec![input(".env", InputShown::Copied), input("big", InputShown::LeftOut)]);
    let refused = world(&TreeSource::PRIVATE, copied(), RequiredInputs::Verified);
    assert_eq!(refused.codes(), [GateCode::InputsUnverified]);
    let answer = refused.laid_out().answer();
    let finding = &answer.findings[0];
    assert_eq!((answer.exit_code, finding.paths.as_slice(), finding.omitted), (1, &[".env".to_owned()][..], 0));
    assert!(finding.message.contains("`.env`") && !finding.message.contains("big"), "{finding:?}");
    assert!(finding.hint.contains("`ignored: hidden`") && finding.hint.contains("--rev HEAD"), "{finding:?}");
    assert!(world(&TreeSource::PRIVATE, copied(), RequiredInputs::Any).codes().is_empty());
}

#[test]
fn accepts_a_run_that_saw_none() {
    let left_out = || Some(vec![input("big", InputShown::LeftOut)]);
    for (source, inputs) in [
        (TreeSource::PRIVATE, None),
        (TreeSource::PRIVATE, Some(vec![])),
        (TreeSource::PRIVATE, left_out()),
        (rev(), None),
    ] {
        assert!(world(&source, inputs, RequiredInputs::Verified).codes().is_empty(), "{source:?}");
    }
}

#[test]
fn refuses_a_run_over_the_worktree_itself() {
    let refused = [GateCode::InputsUnverified];
    assert_eq!(world(&TreeSource::SHARED, None, RequiredInputs::Verified).codes(), refused);
    assert_eq!(world(&TreeSource::SHARED, Some(vec![]), RequiredInputs::Verified).codes(), refused);
    assert!(world(&TreeSource::SHARED, None, RequiredInputs::Any).codes().is_empty());
    // Editing the status file does not hide the source that the evidence records.
    for source in [TreeSource::PRIVATE, rev()] {
        let skill = world(&source, None, RequiredInputs::Verified);
        assert_eq!(skill.with(|w| w.skills[1].source = TreeSource::SHARED).codes(), refused);
        let checks = world(&source, None, RequiredInputs::Verified);
        assert_eq!(checks.with(|w| w.toolchain.source = TreeSource::SHARED).codes(), refused);
    }
}

#[test]
fn counts_inputs_that_are_not_named() {
    let many = (0..250).map(|number| input(&format!("f{number:03}"), InputShown::Copied)).collect();
    let answer = world(&TreeSource::PRIVATE, Some(many), RequiredInputs::Verified).laid_out().answer();
    let finding = &answer.findings[0];
    assert_eq!((finding.paths.len(), finding.omitted), (100, 150));
    assert!(finding.message.contains("250 ") && finding.message.contains("and 245 more"), "{finding:?}");
}
