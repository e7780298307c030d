//! The machines that executed the steps of a run.

use std::collections::BTreeMap;

use super::GateScenario;
use crate::decision::gate::{GateCode, MachineRequirement};
use crate::record::evidence::{RemoteExecution, StepExecutor, WorkerEvidence};

fn on_worker() -> StepExecutor {
    StepExecutor::Remote(Box::new(RemoteExecution {
        endpoint: "grpcs://cluster:1".to_owned(),
        instance: String::new(),
        action: "00/1".to_owned(),
        platform: BTreeMap::new(),
        trusted: true,
        repo: "/srv/r".to_owned(),
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

#[test]
fn only_the_machine_of_the_run_counts_on_request() {
    let remote = GateScenario::new().with(|world| world.skills[0].steps[0].executor = Some(on_worker()));
    let answer = remote.write_documents().evaluate();
    assert!(answer.pass, "{answer:#?}");
    assert_eq!(answer.run.expect("a run").clusters, ["grpcs://cluster:1"]);
    let strict = |world: GateScenario| world.with(|w| w.requirements.machines = MachineRequirement::ThisMachine);
    let refused = strict(remote);
    assert_eq!(refused.finding_codes(), [GateCode::OtherMachine]);
    let message = &refused.write_documents().evaluate().findings[0].message;
    assert!(message.contains("a worker of `grpcs://cluster:1`"), "{message}");
    assert!(strict(GateScenario::new()).finding_codes().is_empty());
}

#[test]
fn step_that_fell_back_to_this_machine_counts() {
    let fallback = StepExecutor::LocalFallback { endpoint: "grpcs://cluster:1".to_owned(), reason: "away".to_owned() };
    let world = GateScenario::new().with(|world| {
        world.skills[0].steps[0].executor = Some(fallback);
        world.requirements.machines = MachineRequirement::ThisMachine;
    });
    assert!(world.finding_codes().is_empty());
}
