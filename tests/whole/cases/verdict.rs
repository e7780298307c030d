//! Tests the result of a run, on the screen, in the exit code and in the record.

use std::time::Duration;

use crate::environment::{TestEnvironment, fail, release, wait_for_attempt_after, wait_for_step, waiting_step};
use crate::needs::{Case, case};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("verdict::a_passing_run_writes_evidence_and_status", passing_run),
    case("verdict::a_failing_step_is_shown_first", failing_step),
    case("verdict::a_failing_step_ends_its_skill_and_no_other", failure_ends_its_skill),
    case("verdict::fail_fast_starts_nothing_more", fail_fast),
    case("verdict::a_missing_program_is_inconclusive", missing_program),
    case("verdict::a_file_that_is_no_program_is_inconclusive", no_program),
    case("verdict::a_missing_work_directory_is_inconclusive", missing_workdir),
    case("verdict::an_expected_exit_code_passes_and_zero_then_fails", expected_exit),
    case("verdict::a_signal_fails_even_where_its_code_is_expected", signal_is_no_exit),
    case("verdict::a_retried_pass_is_flaky", flaky),
    case("verdict::a_retried_failure_stays_a_failure", retries_run_out),
    case("verdict::a_skill_above_max_tier_is_inconclusive", max_tier),
    case("verdict::a_pass_that_came_out_above_max_tier_is_none", risen_above_max_tier),
    case("verdict::all_skills_above_max_tier_is_inconclusive_too", all_above_max_tier),
    case("verdict::several_failures_exit_with_drift_first", drift_before_timeout_before_failure),
];

pub(crate) fn passing_run(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo all is well"));
    repo.run().exits(0).says(&["passed", "verify.it"]);
    let step = repo.step("it");
    assert_eq!(step["outcome"], "passed");
    assert_eq!(step["termination"]["code"], 0);
    assert_eq!(step["stdout_preview"], "all is well\n");
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["summary"]["overall_exit_code"], 0);
    assert_eq!(evidence["changeset_id"], crate::environment::CHANGESET);
    assert_eq!((&evidence["tier"], &evidence["tier_reasons"]), (&env.least_tier().into(), &env.tier_reasons(&[])));
    assert_eq!(evidence["repo_snapshot_before"], evidence["repo_snapshot_after"]);
    let last_run = repo.last_run();
    assert_eq!(last_run["outcome"], "passed");
    assert_eq!(last_run["snapshot"], evidence["repo_snapshot_before"]);
    let cited = last_run["evidence"].as_object().expect("an object");
    assert!(cited.contains_key("verify/verify.it.json"), "{cited:?}");
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
}

pub(crate) fn failing_step(env: &TestEnvironment) {
    let script = "echo what-is-wrong-1; echo what-is-wrong-2 >&2; exit 7";
    let good = Skill::new("verify.a_good", [Step::sh("fine", "echo nothing to see")]);
    let bad = Skill::new("verify.it", [Step::sh("it", script), Step::sh("later", "true")]);
    let repo = env.repo(&Spec::new([good, bad]));
    let run = repo.run().exits(1).says(&["failed", "verify.it", "what-is-wrong-1", "what-is-wrong-2"]);
    let reason = run.stdout.find("what-is-wrong-1").expect("asserted");
    let rest = run.stdout.find("a_good").unwrap_or(usize::MAX);
    assert!(reason < rest, "the reason follows the passed skills\n{run}");
    let step = repo.step("it");
    assert_eq!((&step["outcome"], &step["exit_code"]), (&"failed".into(), &7.into()));
    assert_eq!(repo.step("later")["outcome"], "skipped");
    assert_eq!(repo.evidence("verify.it")["summary"]["overall_exit_code"], 1);
    assert_eq!(repo.last_run()["outcome"], "failed");
}

fn failure_ends_its_skill(env: &TestEnvironment) {
    let first = Skill::new("verify.first", [Step::sh("bad", "exit 1"), Step::sh("after", "echo no")]);
    let second = Skill::new("verify.second", [Step::sh("good", "echo yes")]);
    let repo = env.repo(&Spec::new([first, second]));
    repo.run().exits(1);
    assert_eq!(repo.evidence("verify.first")["steps"][1]["termination"]["kind"], "not_started");
    assert_eq!(repo.evidence("verify.second")["steps"][0]["outcome"], "passed");
}

fn fail_fast(env: &TestEnvironment) {
    let first = Skill::new("verify.first", [Step::sh("bad", "exit 1")]);
    let second = Skill::new("verify.second", [Step::sh("good", "echo yes")]);
    let repo = env.repo(&Spec::new([first, second]));
    let run = repo.run_with(&["--fail-fast", "--format", "jsonl"]).exits(1);
    assert!(!run.stdout.contains("\"good\",\"attempt\""), "the second skill was started\n{run}");
    let started = run.stdout.lines().filter(|line| line.contains("\"step_started\"")).count();
    assert_eq!(started, 1, "{run}");
    assert_eq!(repo.last_run()["outcome"], "failed");
}

fn missing_program(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["no-such-program-anywhere", "--version"])]));
    let run = repo.run().exits(5);
    assert!(run.everything().contains("no-such-program-anywhere"), "{run}");
    let step = repo.step("it");
    assert_eq!(step["outcome"], "inconclusive");
    assert_eq!(step["termination"]["fault"], "program_missing");
    assert_eq!(step["exit_code"], -1);
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn no_program(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["./README.md"])]));
    repo.run().exits(5);
    assert_eq!(repo.step("it")["termination"]["fault"], "program_missing");
}

fn missing_workdir(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["true"]).with("workdir: not/there")]));
    let run = repo.run().exits(5);
    assert!(run.everything().contains("not/there"), "{run}");
    assert_eq!(repo.step("it")["termination"]["fault"], "workdir");
}

fn expected_exit(env: &TestEnvironment) {
    let three = Skill::new("verify.three", [Step::sh("it", "exit 3").with("expect: { exit: [3] }")]);
    let zero = Skill::new("verify.zero", [Step::sh("it", "exit 0").with("expect: { exit: [3] }")]);
    let repo = env.repo(&Spec::new([three, zero]));
    repo.run().exits(1);
    assert_eq!(repo.evidence("verify.three")["summary"]["outcome"], "passed");
    assert_eq!(repo.evidence("verify.zero")["summary"]["outcome"], "failed");
}

fn signal_is_no_exit(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "kill -9 $$").with("expect: { exit: [137] }")]));
    repo.run().exits(1);
    let step = repo.step("it");
    assert_eq!(step["termination"]["kind"], "signaled");
    assert_eq!(step["termination"]["signal"], 9);
    assert_eq!(step["exit_code"], 137);
}

/// A repeated attempt starts with the original tree, so a step cannot count attempts; the case itself decides how
/// each attempt ends.
fn flaky(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it").with("retries: 2"), Step::sh("sound", "true")]));
    let mut running = repo.start(&[]);
    let first = wait_for_step(env, &mut running);
    fail(&first);
    let second = wait_for_attempt_after(env, &mut running, &first);
    release(&second);
    env.finish(running).exits(0).says(&["flaky"]);
    assert_eq!(repo.evidence("verify.it")["flaky"], true);
    let step = repo.step("it");
    assert_eq!((&step["flaky"], &step["outcome"]), (&true.into(), &"passed".into()));
    assert_eq!(step["earlier_attempts"].as_array().map(Vec::len), Some(1));
    assert_eq!(step["earlier_attempts"][0]["outcome"], "failed");
    assert_eq!(repo.step("sound")["flaky"], false);
}

fn retries_run_out(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "exit 1").with("retries: 6")]));
    let run = repo.run().exits(1);
    // An attempt does not wait for the previous sandbox to exit, which could take up to 5 s.
    assert!(run.elapsed < Duration::from_secs(30), "{run}");
    let step = repo.step("it");
    assert_eq!(step["earlier_attempts"].as_array().map(Vec::len), Some(6));
    assert_eq!((&step["flaky"], &step["outcome"]), (&false.into(), &"failed".into()));
}

/// A timeout raises the tier even if a later attempt passes.
fn risen_above_max_tier(env: &TestEnvironment) {
    let script = "[ -e target/again ] && exit 0; mkdir -p target; touch target/again; sleep 300";
    let step = Step::sh("it", script).with("timeout_ms: 500").with("grace_ms: 50").with("retries: 1");
    for (max_tier, code) in [("1", 5), ("2", 0)] {
        let skill = Skill::new("verify.it", [step.clone()]).with("caches: [target]");
        let repo = env.repo_at(max_tier, &Spec::new([skill]));
        repo.run_with(&["--max-tier", max_tier]).exits(code);
        let evidence = repo.evidence("verify.it");
        assert_eq!((&evidence["tier"], &evidence["flaky"]), (&2.into(), &true.into()));
    }
}

fn max_tier(env: &TestEnvironment) {
    let trusted = Skill::new("verify.trusted", [Step::sh("it", "echo ran")]).tier(2);
    let plain = Skill::new("verify.plain", [Step::sh("it", "echo ran")]);
    let repo = env.repo(&Spec::new([trusted, plain]));
    let run = repo.run_with(&["--max-tier", "1"]).exits(5);
    assert!(run.everything().contains("verify.trusted"), "{run}");
    assert_eq!(repo.evidence("verify.trusted")["steps"][0]["outcome"], "skipped");
    assert_eq!(repo.evidence("verify.plain")["steps"][0]["outcome"], "passed");
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    repo.run_with(&["--max-tier", "2"]).exits(0);
}

fn all_above_max_tier(env: &TestEnvironment) {
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [Step::sh("it", "true")]).tier(2)]));
    repo.run_with(&["--max-tier", "1"]).exits(5);
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn drift_before_timeout_before_failure(env: &TestEnvironment) {
    let fails = Skill::new("verify.fails", [Step::sh("it", "exit 1")]);
    let sleeps = Skill::new("verify.sleeps", [Step::sh("it", "sleep 30").with("timeout_ms: 300")]);
    let drifts = Skill::new("verify.drifts", [Step::sh("it", "echo x >> README.md")]);
    let missing = Skill::new("verify.missing", [Step::argv("it", &["no-such-program-anywhere"])]);
    let all = [missing, fails, sleeps, drifts];
    for (count, code) in [(1, 5), (2, 1), (3, 4), (4, 3)] {
        let repo = env.repo_at(&format!("repo{count}"), &Spec::new(all[..count].to_vec()));
        repo.run().exits(code);
    }
}
