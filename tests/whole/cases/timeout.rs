//! Tests the timeout of a step: all processes end in time, and the output is kept.

use std::time::Duration;

use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("timeout::kills_stubborn_grandchild_that_holds_the_pipe", kills_stubborn_grandchild).needs(NEEDS_PYTHON),
    case("timeout::step_that_handles_term_ends_before_the_grace_period", step_that_handles_term_ends_early),
    case("timeout::kills_forked_daemons", kills_forked_daemons).needs(NEEDS_PYTHON).daemon_sample(),
    case("timeout::kills_stopped_process", kills_stopped_process),
    case("timeout::exit_zero_on_term_does_not_pass", exit_zero_on_term_does_not_pass),
    case("timeout::leftover_process_does_not_delay_a_step", leftover_process_does_not_delay_step),
    case("timeout::a_retried_timeout_is_recorded", retried_timeout_is_recorded).daemon_sample(),
    case("timeout::closed_output_does_not_end_the_step", closed_output_does_not_end_step),
];

/// Accepted delay on a busy machine. The product's own limit is 100 ms, which `bench/deadline` measures: a test with
/// that limit would measure the machine. This test distinguishes a deadline that is met from one that waits for an
/// open pipe (300 s here).
pub(super) const MAX_DELAY_MS: u64 = 5_000;

/// A process that ignores SIGTERM, with a grandchild in its own session that also ignores it and keeps both pipes
/// open.
pub(super) const STUBBORN_PROGRAM: &str = r#"
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("said before the deadline", flush=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        time.sleep(300)
    os._exit(0)
time.sleep(300)
"#;

/// Asserts that the step `it` ended between its deadline and deadline + grace + margin.
fn assert_ends_in_time(step: &serde_json::Value, timeout_ms: u64, grace_ms: u64) {
    let duration = step["duration_ms"].as_u64().expect("the schema says so");
    let latest = timeout_ms + grace_ms + MAX_DELAY_MS;
    assert!((timeout_ms..=latest).contains(&duration), "{duration} ms is not in {timeout_ms}..={latest}");
}

pub(crate) fn kills_stubborn_grandchild(env: &TestEnvironment) {
    let step = TestStep::python("it", STUBBORN_PROGRAM).with_field("timeout_ms: 700").with_field("grace_ms: 300");
    let repo = env.repo(&TestSpec::from_steps([step, TestStep::sh("later", "true")]));
    let run = repo.run().exits(4).prints(&["verify.it"]);
    assert!(run.elapsed < Duration::from_secs(30), "{run}");
    let step = repo.step("it");
    assert_ends_in_time(&step, 700, 300);
    assert_eq!(step["outcome"], "timed_out");
    assert_eq!(step["termination"]["kind"], "timed_out");
    assert_eq!(step["stdout_preview"], "said before the deadline\n");
    let evidence = repo.evidence("verify.it");
    assert_eq!(evidence["tier"], 2);
    assert_eq!(evidence["tier_reasons"], env.tier_reasons(&["timeout"]));
    assert_eq!(evidence["summary"]["overall_exit_code"], 4);
    assert_eq!(repo.step("later")["outcome"], "skipped");
    assert_eq!(repo.last_run()["outcome"], "failed");
}

fn step_that_handles_term_ends_early(env: &TestEnvironment) {
    let script = "trap 'echo tidied up; exit 3' TERM; echo began; sleep 300 & wait";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script)
        .with_field("timeout_ms: 500")
        .with_field("grace_ms: 20000")]));
    repo.run().exits(4);
    let step = repo.step("it");
    assert_eq!(step["stdout_preview"], "began\ntidied up\n");
    assert!(step["duration_ms"].as_u64().is_some_and(|ms| ms < 10_000), "{step:#}");
}

fn kills_forked_daemons(env: &TestEnvironment) {
    let program = r#"
import os, signal, time
for sig in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(sig, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(300)
        os._exit(0)
time.sleep(300)
"#;
    let step = TestStep::python("it", program).with_field("timeout_ms: 1500").with_field("grace_ms: 100");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(4);
    assert_ends_in_time(&repo.step("it"), 1500, 100);
}

fn kills_stopped_process(env: &TestEnvironment) {
    let step = TestStep::sh("it", "kill -STOP $$").with_field("timeout_ms: 400").with_field("grace_ms: 200");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(4);
    assert_ends_in_time(&repo.step("it"), 400, 200);
}

fn exit_zero_on_term_does_not_pass(env: &TestEnvironment) {
    let script = "trap 'exit 0' TERM; sleep 300 & wait";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("timeout_ms: 300")]));
    repo.run().exits(4);
    assert_eq!(repo.step("it")["outcome"], "timed_out");
}

fn leftover_process_does_not_delay_step(env: &TestEnvironment) {
    let script = "(trap '' TERM HUP; sleep 300) & echo done";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("timeout_ms: 60000")]));
    repo.run().exits(0);
    let step = repo.step("it");
    assert!(step["duration_ms"].as_u64().is_some_and(|ms| ms < 30_000), "{step:#}");
    assert_eq!(step["stdout_preview"], "done\n");
}

fn retried_timeout_is_recorded(env: &TestEnvironment) {
    let step = TestStep::sh("it", "echo again; sleep 300")
        .with_field("timeout_ms: 300")
        .with_field("grace_ms: 50")
        .with_field("retries: 1");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(4);
    let step = repo.step("it");
    assert_eq!(step["earlier_attempts"][0]["outcome"], "timed_out", "{step:#}");
}

fn closed_output_does_not_end_step(env: &TestEnvironment) {
    let script = "exec >&- 2>&-; sleep 0.3; exit 6";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.run().exits(1);
    assert_eq!(repo.step("it")["exit_code"], 6);
}
