//! Tests live progress and colour on a terminal, and that they are absent without a terminal or if they are disabled.

use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("live_terminal::shows_colour_and_the_verdict_last", shows_colour_and_verdict_last).needs(NEEDS_PYTHON),
    case("live_terminal::honours_no_color", honours_no_color).needs(NEEDS_PYTHON),
    case("live_terminal::dumb_terminal_gets_plain_lines", dumb_terminal_gets_plain_lines).needs(NEEDS_PYTHON),
    case("live_terminal::step_cannot_reach_the_terminal", step_cannot_reach_terminal).needs(NEEDS_PYTHON),
    case("live_terminal::progress_bar_uses_the_previous_duration", progress_bar_uses_previous_duration)
        .needs(NEEDS_PYTHON),
];

/// Wrapper that executes its arguments on a new terminal, and copies their output.
const TERMINAL_WRAPPER: [&str; 3] =
    ["python3", "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"];

fn run_on_terminal(env: &TestEnvironment, repo: &Repo<'_>) -> FinishedProcess {
    env.finish(env.start_through(repo.path(), &TERMINAL_WRAPPER, &["run", "--changeset", CHANGESET]))
}

fn shows_colour_and_verdict_last(env: &TestEnvironment) {
    env.set_caller_var("TERM", "xterm-256color");
    let repo = env.repo(&TestSpec::from_script("echo what-is-wrong; exit 1"));
    let run = run_on_terminal(env, &repo).exits(1).prints(&["\u{1b}[", "what-is-wrong"]);
    let last = run.stdout.lines().last().expect("a line");
    assert!(last.contains("failed"), "{run:?}");
}

fn honours_no_color(env: &TestEnvironment) {
    env.set_caller_var("TERM", "xterm-256color");
    env.set_caller_var("NO_COLOR", "1");
    let repo = env.repo(&TestSpec::from_script("exit 1"));
    let run = run_on_terminal(env, &repo).exits(1);
    for colour in ["\u{1b}[31m", "\u{1b}[1m\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[1;31m"] {
        assert!(!run.stdout.contains(colour), "{run:?}");
    }
}

fn dumb_terminal_gets_plain_lines(env: &TestEnvironment) {
    env.set_caller_var("TERM", "dumb");
    let repo = env.repo(&TestSpec::from_script("exit 1"));
    let run = run_on_terminal(env, &repo).exits(1).prints(&["failed"]);
    assert!(!run.stdout.contains('\u{1b}'), "{run:?}");
}

fn step_cannot_reach_terminal(env: &TestEnvironment) {
    env.set_caller_var("TERM", "xterm-256color");
    let script = r"printf '\033]0;stolen\007\033[2J\033[31mred\n'; printf '\033[5n' > /dev/tty; exit 1";
    let repo = env.repo(&TestSpec::from_script(script));
    let run = run_on_terminal(env, &repo).exits(1);
    for stolen in ["\u{1b}]0;", "\u{1b}[2J", "\u{1b}[31mred", "\u{1b}[5n", "\u{7}"] {
        assert!(!run.stdout.contains(stolen), "{run:?}");
    }
}

/// The step takes more than a second, because shorter durations are not stored. The later runs use the same profile.
fn progress_bar_uses_previous_duration(env: &TestEnvironment) {
    env.set_caller_var("TERM", "xterm-256color");
    env.set_caller_var("LC_ALL", "C.UTF-8");
    let step = TestStep::sh("it", "sleep 1.1; test ! -e broken");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [step]).determinism("D2")]));
    let expected_ms = |code: i32| {
        let run = repo.run_with(&["--format", "jsonl"]).exits(code);
        let events = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
        events.filter(|event| event["event"] == "step_started").map(|event| event["expected_ms"].as_u64()).next()
    };
    assert_eq!(expected_ms(0), Some(None), "the first time there is nothing to expect");
    let previous_ms = expected_ms(0).flatten().expect("it passed before");
    assert!((1_000..60_000).contains(&previous_ms), "{previous_ms}");
    run_on_terminal(env, &repo).exits(0).prints(&["\u{2595}", " s of ~1 s"]);
    // The duration of a failed step is not used.
    machine::write(&repo.path().join("broken"), "");
    assert!(expected_ms(1).flatten().is_some());
    assert!(expected_ms(1).flatten().is_some_and(|ms| ms >= 1_000));
}
