//! The machines that executed the steps of a run.

use std::collections::{BTreeMap, BTreeSet};

use super::GateScenario;
use crate::decision::gate::{GateCode, MachineRequirement, TrustedKeyIds};
use crate::model::enforcement::Control;
use crate::record::evidence::{CheckedFiles, RemoteExecution, ResultOrigin, ReuseSource, StepExecutor, WorkerEvidence};
use crate::spec::OperatorConfig;
use crate::text::digest::Sha256Hex;

fn on_worker() -> StepExecutor {
    StepExecutor::Remote(Box::new(RemoteExecution {
        endpoint: "grpcs://cluster:1".to_owned(),
        instance: String::new(),
        action: "00/1".to_owned(),
        platform: BTreeMap::new(),
        trusted: true,
        repo: "/srv/r".to_owned(),
        no_git_objects: None,
        worker: WorkerEvidence {
            architecture: "x86_64".to_owned(),
            kernel: "6.8.0".to_owned(),
            os: String::new(),
            processors: 4,
            programs: Vec::new(),
            toolchains: BTreeMap::new(),
        },
    }))
}

fn operator(rest: &str) -> OperatorConfig {
    let text = format!("[remote_executor]\nendpoint = 'grpcs://cluster:1'\n{rest}");
    OperatorConfig::parse(&text).expect("a config")
}

#[test]
fn only_trusted_workers_count() {
    let remote = GateScenario::new().with(|scenario| scenario.skills[0].steps[0].executor = Some(on_worker()));
    assert_eq!(remote.finding_codes(), [GateCode::OtherMachine], "there is no config");
    let untrusted = remote.with(|scenario| scenario.operator = operator(""));
    assert_eq!(untrusted.finding_codes(), [GateCode::OtherMachine]);
    let trusted = untrusted.with(|scenario| scenario.operator = operator("trust_workers = true"));
    assert!(trusted.finding_codes().is_empty());
    let other = "[remote_executor]\nendpoint = 'grpcs://other:1'\ntrust_workers = true";
    let other = trusted.with(|scenario| scenario.operator = OperatorConfig::parse(other).expect("a config"));
    assert_eq!(other.finding_codes(), [GateCode::OtherMachine], "the trust is in one cluster");
    let instance = other.with(|scenario| scenario.operator = operator("trust_workers = true\ninstance = 'other'"));
    assert_eq!(instance.finding_codes(), [GateCode::OtherMachine], "the trust is in one instance");
    let of_instance = |name: &str| match on_worker() {
        StepExecutor::Remote(remote) => {
            StepExecutor::Remote(Box::new(RemoteExecution { instance: name.to_owned(), ..*remote }))
        }
        other => other,
    };
    let same = instance.with(|scenario| scenario.skills[0].steps[0].executor = Some(of_instance("other")));
    assert!(same.finding_codes().is_empty());
    let third = same.with(|scenario| scenario.skills[0].steps[0].executor = Some(of_instance("third")));
    let message = &third.write_documents().evaluate().findings[0].message;
    assert!(message.contains("`grpcs://cluster:1` (instance `third`)"), "{message}");
}

#[test]
fn controls_that_may_be_missing_on_workers_are_their_own() {
    let missing = |scenario: &mut GateScenario| {
        let step = &mut scenario.skills[0].steps[0];
        step.executor = Some(on_worker());
        step.enforcement.record_not_enforced(Control::PrivateProc, "it is masked");
    };
    let scenario =
        GateScenario::new().with(missing).with(|scenario| scenario.operator = operator("trust_workers = true"));
    assert!(scenario.finding_codes().contains(&GateCode::ControlMissing), "{:?}", scenario.finding_codes());
    let permitted = "trust_workers = true\nmay_miss = ['private_proc']";
    let scenario = scenario.with(|scenario| scenario.operator = operator(permitted));
    assert!(!scenario.finding_codes().contains(&GateCode::ControlMissing), "{:?}", scenario.finding_codes());
}

#[test]
fn only_the_machine_of_the_run_counts_on_request() {
    let remote = GateScenario::new().with(|scenario| {
        scenario.skills[0].steps[0].executor = Some(on_worker());
        scenario.operator = operator("trust_workers = true");
    });
    let answer = remote.write_documents().evaluate();
    assert!(answer.pass, "{answer:#?}");
    assert_eq!(answer.run.expect("a run").clusters, ["grpcs://cluster:1"]);
    let strict = |scenario: GateScenario| scenario.with(|w| w.requirements.machines = MachineRequirement::ThisMachine);
    let refused = strict(remote);
    assert_eq!(refused.finding_codes(), [GateCode::OtherMachine]);
    let message = &refused.write_documents().evaluate().findings[0].message;
    assert!(message.contains("a worker of `grpcs://cluster:1`"), "{message}");
    assert!(strict(GateScenario::new()).finding_codes().is_empty());
}

#[test]
fn cached_result_of_a_worker_counts_as_its_execution() {
    let cached = GateScenario::new().with(|scenario| {
        let step = &mut scenario.skills[0].steps[0];
        step.executor = Some(on_worker());
        step.reused = Some(ReuseSource {
            run_id: "r0".parse().expect("an id"),
            executed_at: "2026-01-02T03:04:05.000Z".to_owned(),
            inputs_sha256: Sha256Hex::digest(b"inputs"),
            inputs: 0,
            whole_tree: true,
            transparent_caches: Vec::new(),
            origin: None,
        });
    });
    assert_eq!(cached.finding_codes(), [GateCode::OtherMachine], "there is no config");
    let trusted = cached.with(|scenario| scenario.operator = operator("trust_workers = true"));
    let answer = trusted.write_documents().evaluate();
    assert!(answer.pass, "{answer:#?}");
    let run = answer.run.expect("a run");
    assert_eq!((run.cached_steps, run.clusters), (1, vec!["grpcs://cluster:1".to_owned()]));
    let strict = trusted.with(|scenario| scenario.requirements.machines = MachineRequirement::ThisMachine);
    assert_eq!(strict.finding_codes(), [GateCode::OtherMachine]);
}

#[test]
fn step_that_fell_back_to_this_machine_counts() {
    let fallback = StepExecutor::LocalFallback { endpoint: "grpcs://cluster:1".to_owned(), reason: "away".to_owned() };
    let scenario = GateScenario::new().with(|scenario| {
        scenario.skills[0].steps[0].executor = Some(fallback);
        scenario.requirements.machines = MachineRequirement::ThisMachine;
    });
    assert!(scenario.finding_codes().is_empty());
}

#[test]
fn only_results_of_trusted_keys_count() {
    let origin = || ResultOrigin { key_id: Sha256Hex::digest(b"key"), host: "builder".to_owned() };
    let whole = GateScenario::new().with(|scenario| {
        scenario.skills[0].steps[0].reused = Some(ReuseSource {
            run_id: "r0".parse().expect("an id"),
            executed_at: "2026-01-02T03:04:05.000Z".to_owned(),
            inputs_sha256: Sha256Hex::digest(b"inputs"),
            inputs: 1,
            whole_tree: false,
            transparent_caches: Vec::new(),
            origin: Some(origin()),
        });
    });
    let of_files = GateScenario::new().with(|scenario| {
        scenario.skills[0].steps[0].checked_files = Some(CheckedFiles {
            count: 2,
            sha256: Sha256Hex::digest(b"files"),
            batches: 1,
            reused: 1,
            reused_executed_at: Some("2026-01-02T03:04:05.000Z".to_owned()),
            dependence: None,
            transparent_caches: Vec::new(),
            origins: vec![origin()],
            covers_all: false,
        });
    });
    for scenario in [whole, of_files] {
        assert_eq!(scenario.finding_codes(), [GateCode::OtherMachine], "no key is trusted");
        let ids = BTreeSet::from([origin().key_id]);
        let trusted = scenario.clone().with(|scenario| scenario.trusted_keys = TrustedKeyIds { ids, problem: None });
        assert!(trusted.finding_codes().is_empty(), "{:?}", trusted.finding_codes());
        let problem = Some("`/k` cannot be read".to_owned());
        let unread =
            scenario.with(|scenario| scenario.trusted_keys = TrustedKeyIds { problem, ..TrustedKeyIds::default() });
        let message = &unread.write_documents().evaluate().findings[0].message;
        assert!(message.contains("`builder`") && message.ends_with("does not trust: `/k` cannot be read"), "{message}");
    }
}
