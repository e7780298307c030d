//! Tests the checks that all cases rely on: each must fail when it should.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::Spec;
use crate::{documents, schemas};

pub(super) const CASES: &[Case] = &[
    case("harness::a_document_that_was_tampered_with_is_found", tampered_documents),
    dry_case("harness::a_document_of_another_kind_is_invalid", foreign_document),
    dry_case("harness::a_process_that_is_left_is_found", left_process),
    dry_case("harness::a_hostile_probe_without_a_result_is_no_pass", hostile_probes).needs(NEEDS_HOSTILE),
];

/// Requirements of `bench/hostile`.
const NEEDS_HOSTILE: &[Needs] = &[
    Needs::Root,
    Needs::Works(&["/usr/bin/python3", "--version"]),
    Needs::Program("gcc"),
    Needs::Program("git"),
    Needs::Works(&["unshare", "--mount", "true"]),
];

fn tampered_documents(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo hello"));
    repo.run().exits(0);
    let (artifact, status) = ("changes/009_x/verify/verify.it.json", "changes/009_x/05-status.json");
    let tampers = [
        (artifact, "\"exit_code\":0", "\"exit_code\":1"),
        (artifact, "\"stdout_preview\":\"hello", "\"stdout_preview\":\"Hello"),
        (artifact, "{\"cached_from\":null,", "{\"cached_from\": null,"),
        (artifact, "\"outcome\":\"passed\"", "\"outcome\":\"fine\""),
        (artifact, "\"version\":1", "\"version\":1,\"wholly_new\":1"),
        (status, "\"outcome\": \"passed\"", "\"outcome\": \"fine\""),
        (status, "verify/verify.it.json", "verify/verify.no.json"),
    ];
    documents::check_all(repo.path());
    for (path, from, to) in tampers {
        let good = repo.read(path);
        assert!(good.contains(from), "{from} is not in {good}");
        repo.write(path, good.replacen(from, to, 1));
        let found = catch_unwind(AssertUnwindSafe(|| documents::check_all(repo.path())));
        assert!(found.is_err(), "{to} was not found");
        repo.write(path, good);
    }
    documents::check_all(repo.path());
    let gone = repo.read(artifact);
    std::fs::remove_file(repo.file(artifact)).expect("it was there");
    assert!(catch_unwind(AssertUnwindSafe(|| documents::check_all(repo.path()))).is_err(), "{gone} is missing");
}

fn foreign_document(_: &TestEnvironment) {
    for name in ["plan", "skill-evidence", "toolchain-evidence", "event"] {
        assert!(!schemas::errors(name, &serde_json::json!({})).is_empty(), "{name} accepts an empty object");
    }
    let bad_status = serde_json::json!({"verification": {"last_run": {"outcome": "passed"}}});
    assert!(!schemas::errors("status", &bad_status).is_empty());
    assert!(schemas::errors("status", &serde_json::json!({"state": "executed"})).is_empty());
}

fn left_process(env: &TestEnvironment) {
    let mut command = machine::command("sleep");
    command.arg("300").env("TEST_MARKER", env.marker());
    let mut sleeping = Running::start(command);
    // The environment of the new program is visible only after exec, shortly after the start.
    sleeping.wait_until(|| !machine::processes_with(env.marker()).is_empty());
    assert_eq!(machine::processes_with(env.marker()).len(), 1);
    drop(sleeping);
    assert_eq!(machine::wait_until_gone(env.marker(), Duration::from_secs(10)), Ok(()));
}

/// A probe harness that reports exactly the probes named in the file `told`.
const PROBES: &str = r#"
import json, os, sys
with open(os.path.join(os.path.dirname(__file__), "told")) as file:
    told = file.read().split()
results = [dict(id=name, category="env", verdict="CONTAINED", note="") for name in told]
with open(sys.argv[sys.argv.index("--json") + 1], "w") as file:
    json.dump(dict(results=results), file)
"#;

fn hostile_probes(env: &TestEnvironment) {
    let (probes, tools) = (env.root().join("probes"), env.root().join("tools"));
    machine::write(&probes.join("run_probes.py"), PROBES);
    let listed = ["one", "two"].map(|id| format!("{{\"id\": \"{id}\", \"category\": \"env\"}}\n"));
    machine::write(&probes.join("manifest.jsonl"), listed.concat());
    // This harness starts none of these programs.
    for name in ["proctor", "proctor-sandbox", "proctor-git", "proctor-sql"] {
        machine::write(&tools.join(name), "");
    }
    let hostile = |told: &str, more: &[&str]| -> Finished {
        machine::write(&probes.join("told"), told);
        let mut command = machine::command(schemas::project().join("bench/hostile"));
        command
            .arg(&probes)
            .args(more)
            .env("RUNS", "1")
            .env("TMPDIR", env.root())
            .env("PROCTOR", tools.join("proctor"));
        Running::start(command).wait()
    };
    hostile("one two", &[]).exits(0).says(&["root-1: 2 of 2 contained", "user-1: 2 of 2 contained"]);
    hostile("one", &[]).exits(1).says(&["ABSENT     two", "root-1: 1 of 2 contained", "user-1: 1 of 2 contained"]);
    hostile("one", &["--only", "one"]).exits(0).says(&["root-1: 1 of 1 contained"]);
    hostile("", &["--only", "three"]).exits(1).says(&["0 of 0 contained"]);
}
