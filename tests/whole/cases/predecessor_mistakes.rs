//! Checks that ten mistakes of an early version of this product are absent.

use std::path::Path;

use serde_json::Value;

use super::{network, timeout, toolchain, verdict};
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case, dry_case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};
use crate::{machine, schemas};

pub(super) const CASES: &[CaseDefinition] = &[
    case("mistake_01_settings_are_resolved_once_and_recorded", resolves_settings_once),
    case("mistake_02_failed_verification_is_never_reported_as_verified", never_reports_failure_as_verified)
        .daemon_sample(),
    case("mistake_03_toolchain_results_are_checked", checks_toolchain_results),
    case("mistake_04_all_deadlines_are_met", meets_all_deadlines).needs(NEEDS_PYTHON),
    dry_case(
        "mistake_05_absent_and_empty_sections_have_the_same_defaults",
        absent_and_empty_sections_have_same_defaults,
    ),
    case("mistake_06_signals_are_distinguished_and_only_unstarted_steps_have_no_exit_code", distinguishes_signals),
    case("mistake_07_network_deny_denies_the_network", denies_network).needs(NEEDS_PYTHON),
    case("mistake_08_command_string_is_split_like_in_a_shell", splits_command_like_shell),
    case("mistake_09_no_giant_file_and_no_debug_output_in_documents", no_giant_file_or_debug_output),
    case("mistake_10_no_error_results_in_a_pass", no_error_results_in_pass).daemon_sample(),
];

/// The step prints the one setting that it can see, and is ended by the other one.
fn resolves_settings_once(env: &TestEnvironment) {
    env.set_caller_var("BUILD_NUMBER", "17");
    let step = TestStep::sh("it", "echo $BUILD_NUMBER; sleep 60")
        .with_field("timeout_ms: 400")
        .with_field("env_allowlist: [BUILD_NUMBER]");
    let repo =
        env.repo(&TestSpec::from_steps([step]).with_default("timeout_ms: 90000").with_default("env_allowlist: [CI]"));
    repo.run().exits(4);
    let step = repo.step("it");
    assert_eq!((&step["timeout_ms"], &step["env_allowlist"]), (&400.into(), &serde_json::json!(["BUILD_NUMBER"])));
    assert_eq!(step["stdout_preview"], "17\n");
    let duration = step["duration_ms"].as_u64().expect("a number");
    assert!((400..90_000).contains(&duration), "{duration}");
}

fn never_reports_failure_as_verified(env: &TestEnvironment) {
    verdict::failing_step_is_shown_first(env);
}

fn checks_toolchain_results(env: &TestEnvironment) {
    toolchain::failing_check_blocks_skills(env);
}

fn meets_all_deadlines(env: &TestEnvironment) {
    let step = |index: usize| {
        TestStep::python(&format!("it{index}"), timeout::STUBBORN_PROGRAM)
            .with_field("timeout_ms: 500")
            .with_field("grace_ms: 100")
    };
    let skill = |index| TestSkill::new(&format!("verify.it{index}"), [step(index)]);
    let repo = env.repo(&TestSpec::new((0..10).map(skill)));
    repo.run().exits(4);
    let durations =
        (0..10).map(|index| repo.evidence(&format!("verify.it{index}"))["steps"][0]["duration_ms"].as_u64());
    let durations: Vec<u64> = durations.map(|duration| duration.expect("a number")).collect();
    let bound = 500..=500 + 100 + timeout::MAX_DELAY_MS;
    assert!(durations.iter().all(|duration| bound.contains(duration)), "{durations:?} not all in {bound:?}");
}

fn absent_and_empty_sections_have_same_defaults(env: &TestEnvironment) {
    let plan = |name: &str, defaults: &str| {
        let repo = env.repo_at(name, &TestSpec::from_script("true"));
        let text = repo.read("spec/verification.yaml");
        let head = format!("defaults:\n  env: {{ TEST_MARKER: {} }}\n", env.marker());
        assert!(text.contains(&head), "{text}");
        repo.write("spec/verification.yaml", text.replace(&head, defaults));
        let run = repo.proctor(&["plan", "--format", "json"]).exits(0);
        let mut plan: Value = serde_json::from_str(&run.stdout).expect("JSON");
        plan.as_object_mut().expect("an object").remove("spec_sha256");
        plan
    };
    let absent = plan("absent", "");
    assert_eq!(plan("empty", "defaults: {}\n"), absent);
    assert_eq!(plan("null", "defaults:\n"), absent);
    let step = &absent["skills"][0]["steps"][0];
    assert_eq!(
        (&step["timeout_ms"], &step["network"], &step["read_only"]),
        (&600_000.into(), &"deny".into(), &"tracked".into())
    );
}

fn distinguishes_signals(env: &TestEnvironment) {
    let killed = TestSkill::new("verify.killed", [TestStep::sh("it", "kill -SEGV $$")]);
    let late = TestSkill::new("verify.late", [TestStep::sh("it", "sleep 60").with_field("timeout_ms: 200")]);
    let missing = TestSkill::new("verify.missing", [TestStep::argv("it", &["no-such-program-anywhere"])]);
    let repo = env.repo(&TestSpec::new([killed, late, missing]));
    repo.run().exits(4);
    let step = |skill: &str| repo.evidence(skill)["steps"][0].clone();
    assert_eq!(
        (&step("verify.killed")["exit_code"], &step("verify.killed")["termination"]["kind"]),
        (&139.into(), &"signaled".into())
    );
    assert_eq!(step("verify.late")["termination"]["kind"], "timed_out");
    assert_eq!(step("verify.missing")["exit_code"], -1);
    for skill in ["verify.killed", "verify.late", "verify.missing"] {
        let text = repo.evidence(skill).to_string();
        assert!(!text.contains("unknown"), "{text}");
        assert_eq!(text.contains(":-1"), skill == "verify.missing", "{text}");
    }
    let snapshot = repo.last_run()["snapshot"].as_str().expect("text").to_owned();
    assert!(snapshot.starts_with("sha256:") && snapshot.len() == 71, "{snapshot}");
}

fn denies_network(env: &TestEnvironment) {
    network::deny_blocks_host_loopback(env);
}

fn splits_command_like_shell(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let good = repo.read("spec/verification.yaml");
    let from = "[\"sh\",\"-c\",\"true\"]";
    repo.write("spec/verification.yaml", good.replace(from, r#""printf '%s|' 'a b'  c\\ d \"e  f\" ''""#));
    repo.run().exits(0);
    assert_eq!(repo.step("it")["cmd"], serde_json::json!(["printf", "%s|", "a b", "c d", "e  f", ""]));
    assert_eq!(repo.step("it")["stdout_preview"], "a b|c d|e  f||");
    for shell in ["a | b", "a && b", "echo $HOME", "a > b", "a; b", "echo `id`", "ls *.rs", "a &"] {
        repo.write("spec/verification.yaml", good.replace(from, &format!("\"{shell}\"")));
        let run = repo.run().exits(2);
        assert!(run.all_output().contains("\"sh\", \"-c\""), "{shell}: the way to write it is not shown\n{run}");
    }
}

fn no_giant_file_or_debug_output(env: &TestEnvironment) {
    for path in source_files(&schemas::workspace_root()) {
        let lines = std::fs::read_to_string(&path).expect("a source file").lines().count();
        assert!(lines <= 1_000, "{} has {lines} lines", path.display());
    }
    let repo = env.repo(&TestSpec::from_script("echo x >> README.md; exit 1"));
    let run = repo.run_with(&["--format", "jsonl"]).exits(3);
    let documents = [repo.evidence("verify.it").to_string(), repo.last_run().to_string(), run.stdout];
    for text in documents {
        for debug in ["Some(", "None\"", "Ok(", "Err(", "Exited", "PathBuf", "Duration"] {
            assert!(!text.contains(debug), "{debug} in {text}");
        }
    }
}

fn source_files(project: &Path) -> Vec<std::path::PathBuf> {
    let crates = ["core", "sandbox", "git", "snapshot", "runner", "cli", "xtask", "tests"];
    let files = crates.iter().flat_map(|name| machine::walk(&project.join(name)));
    files.filter(|path| path.extension().is_some_and(|extension| extension == "rs")).collect()
}

/// Checks that no kind of unsuccessful verification has exit code 0.
fn no_error_results_in_pass(env: &TestEnvironment) {
    let skill = |step| TestSpec::new([TestSkill::new("verify.it", [step])]);
    let sh = |script: &str| skill(TestStep::sh("it", script));
    let cases: [(&str, TestSpec, &[&str], i32); 12] = [
        ("a failure", sh("exit 1"), &[], 1),
        ("a signal", sh("kill -9 $$"), &[], 1),
        ("drift", sh("rm README.md"), &[], 3),
        ("drift that fails", sh("rm README.md; exit 1"), &[], 3),
        ("a timeout", skill(TestStep::sh("it", "sleep 60").with_field("timeout_ms: 200")), &[], 4),
        (
            "a timeout that answers 0",
            skill(TestStep::sh("it", "trap 'exit 0' TERM; sleep 60 & wait").with_field("timeout_ms: 200")),
            &[],
            4,
        ),
        ("a missing program", skill(TestStep::argv("it", &["no-such-program"])), &[], 5),
        ("a missing directory", skill(TestStep::argv("it", &["true"]).with_field("workdir: gone")), &[], 5),
        (
            "a broken tool",
            sh("true").with_top_level("toolchains: { t: { required: [ { cmd: [\"false\"] } ] } }"),
            &[],
            5,
        ),
        (
            "a tier too high",
            TestSpec::new([TestSkill::new("verify.it", [TestStep::argv("it", &["true"])]).tier(2)]),
            &["--max-tier", "1"],
            5,
        ),
        ("another profile", sh("true"), &["--profile", "nightly"], 2),
        ("an unexpected zero", skill(TestStep::argv("it", &["true"]).with_field("expect: { exit: [1] }")), &[], 1),
    ];
    for (index, (description, spec, arguments, code)) in cases.into_iter().enumerate() {
        let repo = env.repo_at(&format!("repo{index}"), &spec);
        let run = repo.run_with_only(&[&["--changeset", "009_x"], arguments].concat());
        assert_eq!(run.code, Some(code), "{description}\n{run}");
        if repo.changeset().join("05-status.json").exists() {
            assert_ne!(repo.last_run()["outcome"], "passed", "{description}");
        }
    }
}
