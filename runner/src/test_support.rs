//! Values that the tests of this crate start from.

use std::collections::BTreeMap;

use proctor_core::names::StepName;
use proctor_core::plan::{Argv, Inputs, Limit, Limits, Network, PlannedStep, ReadOnly, RelPath};

/// A step with every field at its plainest.
pub(crate) fn step(name: &str, argv: &[&str]) -> PlannedStep {
    let limit = Limit::Unlimited;
    PlannedStep {
        name: StepName::new(name).expect("a name"),
        cmd: Argv::new(argv.iter().map(|word| (*word).to_owned()).collect()).expect("a command"),
        workdir: RelPath::new(".").expect("a path"),
        timeout_ms: 1000,
        grace_ms: 100,
        network: Network::Deny,
        read_only: ReadOnly::Tracked,
        env_allowlist: vec![],
        env: BTreeMap::new(),
        limits: Limits { memory: limit, pids: limit, disk: limit, output: limit, cpu_seconds: limit, open_files: limit },
        retries: 0,
        expect_exit: vec![0],
        inputs: Inputs::Tree,
        reports: vec![],
    }
}
