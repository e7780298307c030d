//! The limits of a step: held where the record says so, and said where they are not.

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{Case, NEEDS_PYTHON, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("limits::open_files", open_files),
    case("limits::cpu_seconds", cpu_seconds),
    case("limits::disk", disk),
    case("limits::memory", memory).needs(NEEDS_PYTHON),
    case("limits::processes", processes).needs(NEEDS_PYTHON),
];

/// Whether the record of the step `it` says that a control held. Where it says that it did not,
/// the tier must say so too.
fn is_enforced(repo: &Repo<'_>, control: &str) -> bool {
    let state = repo.step("it")["enforcement"][control]["state"].clone();
    if state == "not_enforced" {
        assert_eq!(repo.evidence("verify.it")["tier_reasons"], serde_json::json!(["control_not_enforced"]));
        return false;
    }
    assert_eq!(state, "enforced", "{control} was asked for");
    true
}

fn open_files(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "ulimit -n; ulimit -Hn").with("limits: { open_files: 64 }")]));
    repo.run().exits(0);
    assert!(is_enforced(&repo, "open_files_limit"));
    assert_eq!(repo.step("it")["stdout_preview"], "64\n64\n");
}

fn cpu_seconds(env: &TestEnvironment) {
    let step = Step::sh("it", "while :; do :; done").with("limits: { cpu_seconds: 1 }").with("timeout_ms: 60000");
    let repo = env.repo(&Spec::of_steps([step]));
    repo.run().exits(1);
    assert!(is_enforced(&repo, "cpu_limit"));
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["termination"]["kind"]), (&"failed".into(), &"limit_hit".into()));
    assert_eq!(step["termination"]["limit"], "cpu_seconds");
}

fn disk(env: &TestEnvironment) {
    let script = "mkdir target; head -c 64000000 /dev/zero > target/big && exit 0; echo full; exit 8";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script).with("limits: { disk: 16MiB }")]));
    repo.run();
    let held = is_enforced(&repo, "disk_limit");
    let step = repo.step("it");
    assert_eq!(step["outcome"] == "failed", held, "{step:#}");
}

fn memory(env: &TestEnvironment) {
    let program = "b = bytearray(400_000_000)\nfor i in range(0, len(b), 4096): b[i] = 1\nprint('had it')";
    let repo = env.repo(&Spec::of_steps([Step::python("it", program).with("limits: { memory: 100MiB }")]));
    repo.run();
    let held = is_enforced(&repo, "memory_limit");
    let had_it = repo.step("it")["stdout_preview"] == "had it\n";
    assert_eq!(had_it, !held);
    assert_eq!(repo.step("it")["outcome"] == "passed", !held);
}

fn processes(env: &TestEnvironment) {
    let program = r"
import os, time
count = 0
try:
    for _ in range(200):
        if os.fork() == 0:
            time.sleep(300)
        count += 1
except OSError:
    pass
print('all' if count == 200 else 'bounded')
";
    let repo = env.repo(&Spec::of_steps([Step::python("it", program).with("limits: { pids: 40 }")]));
    repo.run().exits(0);
    let held = is_enforced(&repo, "pids_limit");
    assert_eq!(repo.step("it")["stdout_preview"], if held { "bounded\n" } else { "all\n" });
}
