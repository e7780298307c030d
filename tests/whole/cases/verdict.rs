//! Tests the result of a run, on the screen, in the exit code and in the record.

use std::time::Duration;

use crate::environment::{
    TestEnvironment, fail_step, release_step, wait_for_attempt_after, wait_for_step, waiting_step,
};
use crate::needs::{CaseDefinition, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("verdict::a_passing_run_writes_evidence_and_status", passing_run).daemon_sample(),
    case("verdict::a_failing_step_is_shown_first", failing_step_is_shown_first).daemon_sample(),
    case("verdict::failing_step_ends_only_its_skill", failing_step_ends_only_its_skill),
    case("verdict::fail_fast_starts_no_further_step", fail_fast_starts_no_further_step),
    case("verdict::a_missing_program_is_inconclusive", missing_program).daemon_sample(),
    case("verdict::non_executable_file_is_inconclusive", non_executable_file_is_inconclusive),
    case("verdict::a_missing_work_directory_is_inconclusive", missing_workdir),
    case("verdict::expected_exit_code_passes_and_zero_then_fails", expected_exit_code_passes),
    case("verdict::signal_fails_even_if_its_exit_code_is_expected", signal_fails_despite_expected_code),
    case("verdict::a_retried_pass_is_flaky", retried_pass_is_flaky).daemon_sample(),
    case("verdict::retried_failure_fails", retried_failure_fails),
    case("verdict::a_skill_above_max_tier_is_inconclusive", skill_above_max_tier).daemon_sample(),
    case("verdict::pass_raised_above_max_tier_is_inconclusive", pass_raised_above_max_tier).daemon_sample(),
    case("verdict::all_skills_above_max_tier_are_inconclusive", all_skills_above_max_tier),
    case("verdict::drift_exit_code_precedes_timeout_and_failure", drift_before_timeout_before_failure).daemon_sample(),
];

pub(crate) fn passing_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo all is well"));
    repo.run().exits(0).prints(&["passed", "verify.it"]);
    let step = repo.step("it");
    assert_eq!(step["outcome"], "passed");
    assert_eq!(step["termination"]["code"], 0);
    assert_eq!(step["stdout_preview"], "all is well\n");
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["summary"]["overall_exit_code"], 0);
    assert_eq!(evidence["changeset_id"], crate::environment::CHANGESET);
    assert_eq!((&evidence["tier"], &evidence["tier_reasons"]), (&env.lowest_tier().into(), &env.tier_reasons(&[])));
    assert_eq!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"]);
    let last_run = repo.last_run();
    assert_eq!(last_run["outcome"], "passed");
    assert_eq!(last_run["snapshot"], evidence["repo_snapshot_before"]);
    let cited = last_run["evidence"].as_object().expect("an object");
    assert!(cited.contains_key("verify/verify.it.json"), "{cited:?}");
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
}

pub(crate) fn failing_step_is_shown_first(env: &TestEnvironment) {
    let script = "echo what-is-wrong-1; echo what-is-wrong-2 >&2; exit 7";
    let good = TestSkill::new("verify.a_good", [TestStep::sh("fine", "echo nothing to see")]);
    let bad = TestSkill::new("verify.it", [TestStep::sh("it", script), TestStep::sh("later", "true")]);
    let repo = env.repo(&TestSpec::new([good, bad]));
    let run = repo.run().exits(1).prints(&["failed", "verify.it", "what-is-wrong-1", "what-is-wrong-2"]);
    let reason = run.stdout.find("what-is-wrong-1").expect("asserted");
    let rest = run.stdout.find("a_good").unwrap_or(usize::MAX);
    assert!(reason < rest, "the reason follows the passed skills\n{run}");
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["exit_code"]), (&"failed".into(), &7.into()));
    assert_eq!(repo.step("later")["outcome"], "skipped");
    assert_eq!(repo.evidence("verify.it")["summary"]["overall_exit_code"], 1);
    assert_eq!(repo.last_run()["outcome"], "failed");
}

fn failing_step_ends_only_its_skill(env: &TestEnvironment) {
    let first = TestSkill::new("verify.first", [TestStep::sh("bad", "exit 1"), TestStep::sh("after", "echo no")]);
    let second = TestSkill::new("verify.second", [TestStep::sh("good", "echo yes")]);
    let repo = env.repo(&TestSpec::new([first, second]));
    repo.run().exits(1);
    assert_eq!(repo.evidence("verify.first")["steps"][1]["termination"]["kind"], "not_started");
    assert_eq!(repo.evidence("verify.second")["steps"][0]["outcome"], "passed");
}

fn fail_fast_starts_no_further_step(env: &TestEnvironment) {
    let first = TestSkill::new("verify.first", [TestStep::sh("bad", "exit 1")]);
    let second = TestSkill::new("verify.second", [TestStep::sh("good", "echo yes")]);
    let repo = env.repo(&TestSpec::new([first, second]));
    let run = repo.run_with(&["--fail-fast", "--format", "jsonl"]).exits(1);
    assert!(!run.stdout.contains("\"good\",\"attempt\""), "the second skill was started\n{run}");
    let started = run.stdout.lines().filter(|line| line.contains("\"step_started\"")).count();
    assert_eq!(started, 1, "{run}");
    assert_eq!(repo.last_run()["outcome"], "failed");
}

fn missing_program(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["no-such-program-anywhere", "--version"])]));
    let run = repo.run().exits(5);
    assert!(run.all_output().contains("no-such-program-anywhere"), "{run}");
    let step = repo.step("it");
    assert_eq!(step["outcome"], "inconclusive");
    assert_eq!(step["termination"]["fault"], "program_missing");
    assert_eq!(step["exit_code"], -1);
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn non_executable_file_is_inconclusive(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["./README.md"])]));
    repo.run().exits(5);
    assert_eq!(repo.step("it")["termination"]["fault"], "program_missing");
}

fn missing_workdir(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["true"]).with_field("workdir: not/there")]));
    let run = repo.run().exits(5);
    assert!(run.all_output().contains("not/there"), "{run}");
    assert_eq!(repo.step("it")["termination"]["fault"], "workdir");
}

fn expected_exit_code_passes(env: &TestEnvironment) {
    let three = TestSkill::new("verify.three", [TestStep::sh("it", "exit 3").with_field("expect: { exit: [3] }")]);
    let zero = TestSkill::new("verify.zero", [TestStep::sh("it", "exit 0").with_field("expect: { exit: [3] }")]);
    let repo = env.repo(&TestSpec::new([three, zero]));
    repo.run().exits(1);
    assert_eq!(repo.evidence("verify.three")["summary"]["outcome"], "passed");
    assert_eq!(repo.evidence("verify.zero")["summary"]["outcome"], "failed");
}

fn signal_fails_despite_expected_code(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::sh("it", "kill -9 $$").with_field("expect: { exit: [137] }")]));
    repo.run().exits(1);
    let step = repo.step("it");
    assert_eq!(step["termination"]["kind"], "signaled");
    assert_eq!(step["termination"]["signal"], 9);
    assert_eq!(step["exit_code"], 137);
}

/// A repeated attempt starts with the original tree, so a step cannot count attempts; the case itself decides how
/// each attempt ends.
fn retried_pass_is_flaky(env: &TestEnvironment) {
    let repo = env
        .repo(&TestSpec::from_steps([waiting_step(env, "it").with_field("retries: 2"), TestStep::sh("sound", "true")]));
    let mut running = repo.start(&[]);
    let first = wait_for_step(env, &mut running);
    fail_step(&first);
    let second = wait_for_attempt_after(env, &mut running, &first);
    release_step(&second);
    env.finish(running).exits(0).prints(&["flaky"]);
    assert_eq!(repo.evidence("verify.it")["flaky"], true);
    let step = repo.step("it");
    assert_eq!((&step["flaky"], &step["outcome"]), (&true.into(), &"passed".into()));
    assert_eq!(step["earlier_attempts"].as_array().map(Vec::len), Some(1));
    assert_eq!(step["earlier_attempts"][0]["outcome"], "failed");
    assert_eq!(repo.step("sound")["flaky"], false);
}

fn retried_failure_fails(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "exit 1").with_field("retries: 6")]));
    let run = repo.run().exits(1);
    // An attempt does not wait for the previous sandbox to exit, which could take up to 5 s.
    assert!(run.elapsed < Duration::from_secs(30), "{run}");
    let step = repo.step("it");
    assert_eq!(step["earlier_attempts"].as_array().map(Vec::len), Some(6));
    assert_eq!((&step["flaky"], &step["outcome"]), (&false.into(), &"failed".into()));
}

/// A timeout raises the tier even if a later attempt passes.
fn pass_raised_above_max_tier(env: &TestEnvironment) {
    let script = "[ -e target/again ] && exit 0; mkdir -p target; touch target/again; sleep 300";
    let step =
        TestStep::sh("it", script).with_field("timeout_ms: 500").with_field("grace_ms: 50").with_field("retries: 1");
    for (max_tier, code) in [("1", 5), ("2", 0)] {
        let skill = TestSkill::new("verify.it", [step.clone()]).with_field("caches: [target]");
        let repo = env.repo_at(max_tier, &TestSpec::new([skill]));
        repo.run_with(&["--max-tier", max_tier]).exits(code);
        let evidence = repo.evidence("verify.it");
        assert_eq!((&evidence["tier"], &evidence["flaky"]), (&2.into(), &true.into()));
    }
}

fn skill_above_max_tier(env: &TestEnvironment) {
    let trusted = TestSkill::new("verify.trusted", [TestStep::sh("it", "echo ran")]).tier(2);
    let plain = TestSkill::new("verify.plain", [TestStep::sh("it", "echo ran")]);
    let repo = env.repo(&TestSpec::new([trusted, plain]));
    let run = repo.run_with(&["--max-tier", "1"]).exits(5);
    assert!(run.all_output().contains("verify.trusted"), "{run}");
    assert_eq!(repo.evidence("verify.trusted")["steps"][0]["outcome"], "skipped");
    assert_eq!(repo.evidence("verify.plain")["steps"][0]["outcome"], "passed");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    repo.run_with(&["--max-tier", "2"]).exits(0);
}

fn all_skills_above_max_tier(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [TestStep::sh("it", "true")]).tier(2)]));
    repo.run_with(&["--max-tier", "1"]).exits(5);
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn drift_before_timeout_before_failure(env: &TestEnvironment) {
    let fails = TestSkill::new("verify.fails", [TestStep::sh("it", "exit 1")]);
    let sleeps = TestSkill::new("verify.sleeps", [TestStep::sh("it", "sleep 30").with_field("timeout_ms: 300")]);
    let drifts = TestSkill::new("verify.drifts", [TestStep::sh("it", "echo x >> README.md")]);
    let missing = TestSkill::new("verify.missing", [TestStep::argv("it", &["no-such-program-anywhere"])]);
    let all = [missing, fails, sleeps, drifts];
    for (count, code) in [(1, 5), (2, 1), (3, 4), (4, 3)] {
        let repo = env.repo_at(&format!("repo{count}"), &TestSpec::new(all[..count].to_vec()));
        repo.run().exits(code);
    }
}
