//! Tests the gate with Proctor's own records of runs.

use super::*;

#[test]
fn attestation_reveals_consistent_forgery() {
    let failed = GateScenario::new().with(|w| w.run.outcome = Verdict::Failed);
    let truth = failed.write_documents();
    let passed = GateScenario::new();
    let mut forged = passed.write_documents();
    forged.attestation.clone_from(&truth.attestation);
    assert_eq!(forged.finding_codes(), [GateCode::RecordDiffers]);
    let older = LastRun { run_id: run_id("r3"), ..truth.last_run() };
    forged.attestation = Some(Attestation::new(failed.subject(), older).to_bytes());
    assert_eq!(forged.finding_codes(), [GateCode::Superseded]);
    let elsewhere = Subject { repository: "/s".into(), ..failed.subject() };
    forged.attestation = Some(Attestation::new(elsewhere, forged.last_run()).to_bytes());
    assert_eq!(forged.finding_codes(), [GateCode::RecordUnreadable]);
    forged.attestation = Some(b"{}".to_vec());
    assert_eq!(forged.finding_codes(), [GateCode::RecordUnreadable]);
}

#[test]
fn accepts_unattested_run_only_if_caller_allows_it() {
    let mut scenario = GateScenario::new();
    let unknown = |scenario: &GateScenario| {
        let mut laid = scenario.write_documents();
        laid.attestation = None;
        laid.evaluate()
    };
    let refused = unknown(&scenario);
    assert_eq!((refused.findings[0].name, refused.exit_code), (GateCode::Unattested, 1));
    scenario.requirements.unattested = UnattestedPolicy::Accept;
    let accepted = unknown(&scenario);
    assert!(accepted.pass && accepted.findings[0].accepted && !accepted.run.expect("one").attested);
    scenario.requirements.max_tier = Tier::ONE;
    assert_eq!(unknown(&scenario).exit_code, 1, "nothing else is accepted with it");
}
