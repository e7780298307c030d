//! The age of earlier executions whose results a run uses.

use super::{ENDED_MS, GateScenario, run_id};
use crate::decision::gate::{AgeLimits, GateCode, MachineRequirement, MaxAge};
use crate::record::evidence::{CheckedFiles, ResultOrigin, ReuseSource};
use crate::text::digest::Sha256Hex;

#[test]
fn counts_cached_steps_of_the_run() {
    let at = "2026-01-02T03:04:00.000Z";
    let scenario = GateScenario::new().with(|w| w.skills[0].steps[0].reused = Some(executed_at(at)));
    let steps: usize = scenario.skills.iter().map(|skill| skill.steps.len()).sum();
    let answer = scenario.write_documents().evaluate();
    assert!(answer.pass, "{answer:#?}");
    let run = answer.run.expect("a run");
    assert_eq!((run.steps, run.cached_steps), (steps as u64, 1));
    assert_eq!((run.oldest_execution.as_deref(), run.oldest_execution_age_ms), (Some(at), Some(15_678)));
}

fn executed_at(time: &str) -> ReuseSource {
    ReuseSource {
        run_id: run_id("r1"),
        executed_at: time.into(),
        inputs_sha256: Sha256Hex::digest(b"inputs"),
        inputs: 3,
        whole_tree: false,
        transparent_caches: Vec::new(),
        origin: None,
    }
}

#[test]
fn a_requested_age_applies_to_the_oldest_execution() {
    // The run ended at 03:04:05.678, 10 s ago; the accepted age is 60 s.
    let with_step = |time: &'static str| {
        GateScenario::new().with(|w| {
            w.skills[0].steps[0].reused = Some(executed_at("2026-01-02T03:04:05.000Z"));
            w.skills[1].steps[0].reused = Some(executed_at(time));
        })
    };
    assert!(with_step("2026-01-02T03:03:15.678Z").finding_codes().is_empty());
    let old = with_step("2026-01-02T03:03:15.677Z");
    let answer = old.write_documents().evaluate();
    assert_eq!((answer.exit_code, old.finding_codes()), (1, vec![GateCode::Stale]));
    let finding = &answer.findings[0];
    let step = format!("`{}/", old.skills[1].skill);
    assert!(finding.message.contains(&step) && finding.message.contains("at 2026-01-02T03:03:15.677Z"), "{finding:?}");
    assert!(finding.hint.contains("with `--no-cache`"), "{finding:?}");
    assert!(old.with(|w| w.requirements.max_age.executions = MaxAge::Unlimited).finding_codes().is_empty());
    let without_limit = with_step("2026-01-02T03:03:15.677Z").with(|w| w.requirements.max_age = AgeLimits::default());
    assert!(without_limit.finding_codes().is_empty(), "only the run is limited by default");
    let stale_run = with_step("2026-01-01T00:00:00Z").with(|w| w.now_ms = ENDED_MS + 60_001);
    assert_eq!(stale_run.finding_codes(), [GateCode::Stale], "one finding about the age is enough");
    assert_eq!(with_step("yesterday").finding_codes(), [GateCode::TimeUnreadable]);
}

#[test]
fn a_requested_age_applies_to_the_passes_of_files() {
    let files = |time: &str| CheckedFiles {
        count: 3,
        sha256: Sha256Hex::digest(b"files"),
        batches: 1,
        reused: 2,
        reused_executed_at: Some(time.to_owned()),
        dependence: None,
        transparent_caches: Vec::new(),
        origins: Vec::new(),
        covers_all: false,
    };
    let with_files = |time| GateScenario::new().with(|w| w.skills[0].steps[0].checked_files = Some(files(time)));
    assert!(with_files("2026-01-02T03:03:15.678Z").finding_codes().is_empty());
    assert_eq!(with_files("2026-01-02T03:03:15.677Z").finding_codes(), [GateCode::Stale]);
}

#[test]
fn answer_names_the_machines_that_executed_steps() {
    let origin = ResultOrigin { key_id: Sha256Hex::digest(b"key"), host: "builder".to_owned() };
    let source = ReuseSource { origin: Some(origin.clone()), ..executed_at("2026-01-02T03:04:05.000Z") };
    let scenario = GateScenario::new().with(|w| {
        w.skills[0].steps[0].reused = Some(source.clone());
        w.skills[1].steps[0].reused = Some(source);
    });
    assert_eq!(scenario.write_documents().evaluate().run.expect("a run").origins, [origin]);
    let strict = scenario.with(|w| w.requirements.machines = MachineRequirement::ThisMachine);
    assert_eq!(strict.finding_codes(), [GateCode::OtherMachine]);
}
