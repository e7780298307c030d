//! Tests the checks that all cases rely on: each must fail when it should.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::TestSpec;
use crate::{documents, schemas};

pub(super) const CASES: &[CaseDefinition] = &[
    case("harness::tampered_document_is_detected", finds_tampered_documents),
    dry_case("harness::document_of_another_kind_is_invalid", rejects_other_documents),
    dry_case("harness::leftover_process_is_detected", finds_left_process),
    dry_case("harness::hostile_probe_without_a_result_is_a_failure", hostile_counts_missing_probes)
        .needs(NEEDS_HOSTILE),
];

/// Requirements of `bench/hostile`.
const NEEDS_HOSTILE: &[Needs] = &[
    Needs::Root,
    Needs::WorkingCommand(&["/usr/bin/python3", "--version"]),
    Needs::Program("gcc"),
    Needs::Program("git"),
    Needs::WorkingCommand(&["unshare", "--mount", "true"]),
];

fn finds_tampered_documents(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo hello"));
    repo.run().exits(0);
    let (artifact, status) = ("changes/009_x/verify/verify.it.json", "changes/009_x/05-status.json");
    let manipulations = [
        (artifact, "\"exit_code\":0", "\"exit_code\":1"),
        (artifact, "\"stdout_preview\":\"hello", "\"stdout_preview\":\"Hello"),
        (artifact, "{\"cached_from\":null,", "{\"cached_from\": null,"),
        (artifact, "\"outcome\":\"passed\"", "\"outcome\":\"fine\""),
        (artifact, "\"version\":1", "\"version\":1,\"wholly_new\":1"),
        (status, "\"outcome\": \"passed\"", "\"outcome\": \"fine\""),
        (status, "verify/verify.it.json", "verify/verify.no.json"),
    ];
    documents::check_all_documents(repo.path());
    for (path, from, to) in manipulations {
        let good = repo.read(path);
        assert!(good.contains(from), "{from} is not in {good}");
        repo.write(path, good.replacen(from, to, 1));
        let found = catch_unwind(AssertUnwindSafe(|| documents::check_all_documents(repo.path())));
        assert!(found.is_err(), "{to} was not found");
        repo.write(path, good);
    }
    documents::check_all_documents(repo.path());
    let deleted = repo.read(artifact);
    std::fs::remove_file(repo.file(artifact)).expect("it was there");
    assert!(
        catch_unwind(AssertUnwindSafe(|| documents::check_all_documents(repo.path()))).is_err(),
        "{deleted} is missing"
    );
}

fn rejects_other_documents(_: &TestEnvironment) {
    for name in ["plan", "skill-evidence", "toolchain-evidence", "event"] {
        assert!(!schemas::validation_errors(name, &serde_json::json!({})).is_empty(), "{name} accepts an empty object");
    }
    let bad_status = serde_json::json!({"verification": {"last_run": {"outcome": "passed"}}});
    assert!(!schemas::validation_errors("status", &bad_status).is_empty());
    assert!(schemas::validation_errors("status", &serde_json::json!({"state": "executed"})).is_empty());
}

fn finds_left_process(env: &TestEnvironment) {
    let mut command = machine::command("sleep");
    command.arg("300").env("TEST_MARKER", env.marker());
    let mut sleeping = RunningProcess::start(command);
    // The environment of the new program is visible only after exec, shortly after the start.
    sleeping.wait_until(|| !machine::processes_with_marker(env.marker()).is_empty());
    assert_eq!(machine::processes_with_marker(env.marker()).len(), 1);
    drop(sleeping);
    assert_eq!(machine::wait_for_processes_to_exit(env.marker(), Duration::from_secs(10)), Ok(()));
}

/// A probe harness that reports exactly the probes named in the file `reported`.
const PROBE_HARNESS: &str = r#"
import json, os, sys
with open(os.path.join(os.path.dirname(__file__), "reported")) as file:
    reported = file.read().split()
results = [dict(id=name, category="env", verdict="CONTAINED", note="") for name in reported]
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump(dict(results=results), file)
"#;

fn hostile_counts_missing_probes(env: &TestEnvironment) {
    let (probes, tools) = (env.root().join("probes"), env.root().join("tools"));
    machine::write(&probes.join("run_probes.py"), PROBE_HARNESS);
    let listed = ["one", "two"].map(|id| format!("{{\"id\": \"{id}\", \"category\": \"env\"}}\n"));
    machine::write(&probes.join("manifest.jsonl"), listed.concat());
    // This harness starts none of these programs.
    for name in ["proctor", "proctord", "proctor-sandbox", "proctor-git", "proctor-sql"] {
        machine::write(&tools.join(name), "");
    }
    let run_hostile = |reported_probes: &str, more: &[&str]| -> FinishedProcess {
        machine::write(&probes.join("reported"), reported_probes);
        let mut command = machine::command(schemas::workspace_root().join("bench/hostile"));
        command
            .arg(&probes)
            .args(more)
            .env("RUNS", "1")
            .env("TMPDIR", env.root())
            .env("PROCTOR", tools.join("proctor"));
        RunningProcess::start(command).wait()
    };
    run_hostile("one two", &[]).exits(0).prints(&["root-1: 2 of 2 contained", "user-1: 2 of 2 contained"]);
    run_hostile("one", &[]).exits(1).prints(&[
        "ABSENT     two",
        "root-1: 1 of 2 contained",
        "user-1: 1 of 2 contained",
    ]);
    run_hostile("one", &["--only", "one"]).exits(0).prints(&["root-1: 1 of 1 contained"]);
    run_hostile("", &["--only", "three"]).exits(1).prints(&["0 of 0 contained"]);
}
