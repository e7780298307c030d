//! Tests the toolchain checks, which must hold before any skill runs.

use crate::documents;
use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("toolchain::a_passing_check_is_recorded_with_its_version", passing_check_is_recorded).daemon_sample(),
    case("toolchain::failing_check_blocks_every_skill", failing_check_blocks_skills).daemon_sample(),
    case("toolchain::version_outside_the_range_blocks_every_skill", version_out_of_range_blocks_skills),
    case("toolchain::an_output_without_a_version_satisfies_no_range", output_without_version_satisfies_no_range),
    case("toolchain::missing_tool_blocks_every_skill", missing_tool_blocks_skills),
    case("toolchain::missing_tool_blocks_only_the_skills_that_use_it", missing_tool_blocks_its_users),
    case("toolchain::all_checks_run_although_one_fails", all_checks_run_although_one_fails),
    case("toolchain::drifting_check_blocks_every_skill", drifting_check_blocks_skills),
];

/// A missing tool makes only its users inconclusive; the other skills run and are judged.
fn missing_tool_blocks_its_users(env: &TestEnvironment) {
    let skill = |name: &str, script: &str, toolchains: &str| {
        TestSkill::new(name, [TestStep::sh("it", script)]).with_field(&format!("toolchains: {toolchains}"))
    };
    let spec = |script: &str| {
        let skills = [skill("a", "true", "[swift]"), skill("b", script, "[shell]"), skill("c", "true", "[]")];
        TestSpec::new(skills).with_top_level(
            "toolchains:\n  swift: { required: [{ cmd: [no-such-swift, --version] }] }\n  shell: { required: [{ cmd: [\"true\"] }] }",
        )
    };
    let repo = env.repo(&spec("true"));
    let run = repo.run().exits(5);
    assert!(run.all_output().contains("missing tool: swift (`no-such-swift`)"), "{run}");
    let outcome = |name: &str| repo.evidence(name)["summary"]["outcome"].clone();
    assert_eq!(["a", "b", "c"].map(outcome), ["skipped", "passed", "passed"]);
    assert_eq!(repo.evidence("a")["steps"][0]["termination"]["reason"], "missing tool: swift");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    repo.write("spec/verification.yaml", spec("false").to_yaml(env.marker()));
    repo.run().exits(1);
    assert_eq!(repo.last_run()["outcome"], "failed");
}

fn spec_with_checks(checks: &str) -> TestSpec {
    TestSpec::from_script("echo a skill ran").with_top_level(&format!("toolchains:\n  tool:\n    required:\n{checks}"))
}

fn toolchain_evidence(repo: &Repo<'_>) -> serde_json::Value {
    documents::read_json(&repo.changeset().join("verify/_toolchain.json"))
}

/// Asserts that a run ends as inconclusive before any skill.
fn assert_blocks_skills(repo: &Repo<'_>, named: &str) {
    let run = repo.run_with(&["--format", "human"]).exits(5);
    assert!(run.all_output().contains(named), "{named} is not named\n{run}");
    assert!(!run.all_output().contains("a skill ran"), "{run}");
    let jsonl = repo.run_with(&["--format", "jsonl"]).exits(5);
    assert!(!jsonl.stdout.contains("\"skill_started\""), "a skill was started\n{jsonl}");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    let evidence = toolchain_evidence(repo);
    assert_ne!(evidence["summary"]["outcome"], "passed");
    assert_eq!(evidence["summary"]["overall_exit_code"], 5);
    let checks = evidence["checks"].as_array().expect("a list");
    assert!(checks.iter().any(|check| check["satisfied"] == false), "{evidence:#}");
}

fn passing_check_is_recorded(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_checks(
        "      - { cmd: [\"echo\", \"tool 1.82.3 (abc 2026-01-01)\"], version: \">=1.80, <2\" }",
    ));
    repo.run().exits(0);
    let check = toolchain_evidence(&repo)["checks"][0].clone();
    assert_eq!((&check["version_read"], &check["satisfied"]), (&"1.82.3".into(), &true.into()));
    assert_eq!(check["toolchain"], "tool");
    assert!(repo.last_run()["evidence"]["verify/_toolchain.json"].is_string());
}

pub(super) fn failing_check_blocks_skills(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_checks("      - { cmd: [\"sh\", \"-c\", \"echo broken tool >&2; exit 3\"] }"));
    assert_blocks_skills(&repo, "tool");
    assert_eq!(toolchain_evidence(&repo)["checks"][0]["exit_code"], 3);
    assert_eq!(toolchain_evidence(&repo)["checks"][0]["stderr_preview"], "broken tool\n");
}

fn version_out_of_range_blocks_skills(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_checks("      - { cmd: [\"echo\", \"tool 1.79.0\"], version: \">=1.80\" }"));
    assert_blocks_skills(&repo, ">=1.80");
    assert_eq!(toolchain_evidence(&repo)["checks"][0]["version_read"], "1.79.0");
}

fn output_without_version_satisfies_no_range(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_checks("      - { cmd: [\"echo\", \"hello\"], version: \">=1.80\" }"));
    assert_blocks_skills(&repo, "tool");
    assert_eq!(toolchain_evidence(&repo)["checks"][0]["version_read"], serde_json::Value::Null);
}

fn missing_tool_blocks_skills(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_checks("      - { cmd: [\"no-such-tool-anywhere\", \"--version\"] }"));
    assert_blocks_skills(&repo, "no-such-tool-anywhere");
    assert_eq!(toolchain_evidence(&repo)["checks"][0]["termination"]["kind"], "not_started");
}

fn all_checks_run_although_one_fails(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_checks("      - { cmd: [\"false\"] }\n      - { cmd: [\"echo\", \"2.0.0\"] }"));
    assert_blocks_skills(&repo, "tool");
    assert_eq!(toolchain_evidence(&repo)["checks"][1]["satisfied"], true);
}

fn drifting_check_blocks_skills(env: &TestEnvironment) {
    let repo = env.repo(&spec_with_checks("      - { cmd: [\"sh\", \"-c\", \"echo x >> README.md\"] }"));
    let run = repo.run();
    assert!(matches!(run.code, Some(3 | 5)), "{run}");
    assert_eq!(toolchain_evidence(&repo)["checks"][0]["outcome"], "drifted");
    let run = run.prints(&["toolchain tool: modified 1 file", "modified README.md"]);
    assert_eq!(repo.last_run()["tier"], 3);
    assert!(!run.all_output().contains("a skill ran"), "{run}");
}
