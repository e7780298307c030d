//! Tests the simulation of a fleet (`bench/fleet`), and the manifests in `deploy/kubernetes` without a cluster.

use std::path::Path;

use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, Needs, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::{binaries, machine, schemas};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("fleet::the_simulation_obeys_conservation_laws", simulation_obeys_laws)
        .needs(&[Needs::Program("python3")]),
    dry_case("fleet::the_manifests_are_valid", manifests_are_valid).needs(NEEDS_SCHEMAS),
    dry_case("fleet::mistakes_in_manifests_are_found", mistakes_are_found).needs(NEEDS_SCHEMAS),
];

const PYTHON: &str = "manifests/bin/python";
const NEEDS_SCHEMAS: &[Needs] = &[Needs::Client(&[PYTHON, "-c", "import kubernetes_validate, _jsonnet"])];
const MANIFESTS: &str = "deploy/kubernetes";

/// One mistake: the file, the correct text and the wrong text, and a part of the message.
const MISTAKES: [(&str, &str, &str, &str); 7] = [
    ("proctord.yaml", "hostUsers: false", "hostUser: false", "'hostUser' was unexpected"),
    ("proctord.yaml", "{ name: tmp, mountPath", "{ name: temp, mountPath", "the volume `temp` does not exist"),
    ("proctord-config.yaml", "max_runs = 64", "max_run = 64", "unknown field `max_run`"),
    ("proctord-config.yaml", "/run/proctor-keys/tls.key", "/run/other/tls.key", "is in no volume"),
    ("cluster-config.yaml", "local gigabyte =", "local gigabyte", "STATIC ERROR"),
    ("proctord-config.yaml", "OSFamily = \"linux\"", "OSFamily = \"Linux\"", "and proctord.toml requests"),
    ("cluster-storage.yaml", "replicas: 2", "replicas: 3", "2 shards, and the storage 3 replicas"),
];

fn simulation_obeys_laws(_: &TestEnvironment) {
    let mut command = machine::command("python3");
    command.arg(schemas::workspace_root().join("bench/fleet.d/tests.py"));
    RunningProcess::start(command).wait().exits(0);
}

fn check_manifests(directory: &Path) -> FinishedProcess {
    let mut command = machine::client_command(PYTHON);
    command.arg(schemas::workspace_root().join("scripts/check-manifests")).arg("--require-all");
    command.arg("--proctord").arg(binaries::built_program("proctord")).arg(directory);
    RunningProcess::start(command).wait()
}

fn manifests_are_valid(_: &TestEnvironment) {
    let finished = check_manifests(&schemas::workspace_root().join(MANIFESTS)).exits(0);
    assert!(finished.stdout.contains("configuration of Proctor: ok"), "{finished}");
}

fn mistakes_are_found(env: &TestEnvironment) {
    let source = schemas::workspace_root().join(MANIFESTS);
    for (number, (file, correct, wrong, message)) in MISTAKES.iter().enumerate() {
        let directory = env.root().join(format!("mistake{number}"));
        for entry in std::fs::read_dir(&source).expect("the manifests") {
            let entry = entry.expect("a manifest");
            let text = std::fs::read_to_string(entry.path()).expect("text");
            let is_changed = entry.file_name() == *file;
            assert!(!is_changed || text.contains(correct), "`{file}` does not contain `{correct}`");
            let text = if is_changed { text.replace(correct, wrong) } else { text };
            machine::write(&directory.join(entry.file_name()), text);
        }
        let finished = check_manifests(&directory).exits(1);
        assert!(finished.stderr.contains(message), "{finished}");
    }
}
