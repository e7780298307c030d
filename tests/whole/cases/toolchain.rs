//! Tests the toolchain checks, which must hold before any skill runs.

use crate::documents;
use crate::environment::{Repo, TestEnvironment};
use crate::needs::{Case, case};
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    case("toolchain::a_passing_check_is_recorded_with_its_version", satisfied),
    case("toolchain::a_failing_check_gates_every_skill", failing),
    case("toolchain::a_version_outside_the_range_gates_every_skill", wrong_version),
    case("toolchain::an_output_without_a_version_satisfies_no_range", no_version),
    case("toolchain::a_tool_that_is_not_there_gates_every_skill", missing_tool),
    case("toolchain::every_check_runs_although_one_fails", all_checks_run),
    case("toolchain::a_check_that_drifts_gates_every_skill", drifting_check),
];

fn spec(checks: &str) -> Spec {
    Spec::of_script("echo a skill ran").top(&format!("toolchains:\n  tool:\n    required:\n{checks}"))
}

fn toolchain(repo: &Repo<'_>) -> serde_json::Value {
    documents::read(&repo.changeset().join("verify/_toolchain.json"))
}

/// Asserts that a run ends as inconclusive before any skill.
fn demand_gated(repo: &Repo<'_>, named: &str) {
    let run = repo.run_with(&["--format", "human"]).exits(5);
    assert!(run.everything().contains(named), "{named} is not named\n{run}");
    assert!(!run.everything().contains("a skill ran"), "{run}");
    let jsonl = repo.run_with(&["--format", "jsonl"]).exits(5);
    assert!(!jsonl.stdout.contains("\"skill_started\""), "a skill was started\n{jsonl}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    let evidence = toolchain(repo);
    assert_ne!(evidence["summary"]["outcome"], "passed");
    assert_eq!(evidence["summary"]["overall_exit_code"], 5);
    let checks = evidence["checks"].as_array().expect("a list");
    assert!(checks.iter().any(|check| check["satisfied"] == false), "{evidence:#}");
}

fn satisfied(env: &TestEnvironment) {
    let repo =
        env.repo(&spec("      - { cmd: [\"echo\", \"tool 1.82.3 (abc 2026-01-01)\"], version: \">=1.80, <2\" }"));
    repo.run().exits(0);
    let check = toolchain(&repo)["checks"][0].clone();
    assert_eq!((&check["version_read"], &check["satisfied"]), (&"1.82.3".into(), &true.into()));
    assert_eq!(check["toolchain"], "tool");
    assert!(repo.last_run()["evidence"]["verify/_toolchain.json"].is_string());
}

pub(super) fn failing(env: &TestEnvironment) {
    let repo = env.repo(&spec("      - { cmd: [\"sh\", \"-c\", \"echo broken tool >&2; exit 3\"] }"));
    demand_gated(&repo, "tool");
    assert_eq!(toolchain(&repo)["checks"][0]["exit_code"], 3);
    assert_eq!(toolchain(&repo)["checks"][0]["stderr_preview"], "broken tool\n");
}

fn wrong_version(env: &TestEnvironment) {
    let repo = env.repo(&spec("      - { cmd: [\"echo\", \"tool 1.79.0\"], version: \">=1.80\" }"));
    demand_gated(&repo, ">=1.80");
    assert_eq!(toolchain(&repo)["checks"][0]["version_read"], "1.79.0");
}

fn no_version(env: &TestEnvironment) {
    let repo = env.repo(&spec("      - { cmd: [\"echo\", \"hello\"], version: \">=1.80\" }"));
    demand_gated(&repo, "tool");
    assert_eq!(toolchain(&repo)["checks"][0]["version_read"], serde_json::Value::Null);
}

fn missing_tool(env: &TestEnvironment) {
    let repo = env.repo(&spec("      - { cmd: [\"no-such-tool-anywhere\", \"--version\"] }"));
    demand_gated(&repo, "no-such-tool-anywhere");
    assert_eq!(toolchain(&repo)["checks"][0]["termination"]["kind"], "not_started");
}

fn all_checks_run(env: &TestEnvironment) {
    let repo = env.repo(&spec("      - { cmd: [\"false\"] }\n      - { cmd: [\"echo\", \"2.0.0\"] }"));
    demand_gated(&repo, "tool");
    assert_eq!(toolchain(&repo)["checks"][1]["satisfied"], true);
}

fn drifting_check(env: &TestEnvironment) {
    let repo = env.repo(&spec("      - { cmd: [\"sh\", \"-c\", \"echo x >> README.md\"] }"));
    let run = repo.run();
    assert!(matches!(run.code, Some(3 | 5)), "{run}");
    assert_eq!(toolchain(&repo)["checks"][0]["outcome"], "drifted");
    assert!(run.everything().contains("changed `README.md`, which it must not"), "{run}");
    assert_eq!(repo.last_run()["tier"], 3);
    assert!(!run.everything().contains("a skill ran"), "{run}");
}
