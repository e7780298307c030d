//! Tests live progress and colour on a terminal, and that they are absent where they are not wanted.

use serde_json::Value;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, NEEDS_PYTHON, case};
use crate::process::Finished;
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    case("screen::a_terminal_gets_colour_and_the_verdict_last", terminal).needs(NEEDS_PYTHON),
    case("screen::no_color_is_honoured", no_color).needs(NEEDS_PYTHON),
    case("screen::a_dumb_terminal_gets_plain_lines", dumb_terminal).needs(NEEDS_PYTHON),
    case("screen::a_step_cannot_reach_the_terminal", hostile_step).needs(NEEDS_PYTHON),
    case("screen::a_bar_stands_against_how_long_a_step_took_the_last_time", the_last_time).needs(NEEDS_PYTHON),
];

/// Wrapper that executes its arguments on a new terminal, and copies their output.
const ON_A_TERMINAL: [&str; 3] =
    ["python3", "-c", "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"];

fn on_a_terminal(env: &TestEnvironment, repo: &Repo<'_>) -> Finished {
    env.finish(env.start_through(repo.path(), &ON_A_TERMINAL, &["run", "--changeset", CHANGESET]))
}

fn terminal(env: &TestEnvironment) {
    env.caller_has("TERM", "xterm-256color");
    let repo = env.repo(&Spec::of_script("echo what-is-wrong; exit 1"));
    let run = on_a_terminal(env, &repo).exits(1).says(&["\u{1b}[", "what-is-wrong"]);
    let last = run.stdout.lines().last().expect("a line");
    assert!(last.contains("failed"), "{run:?}");
}

fn no_color(env: &TestEnvironment) {
    env.caller_has("TERM", "xterm-256color");
    env.caller_has("NO_COLOR", "1");
    let repo = env.repo(&Spec::of_script("exit 1"));
    let run = on_a_terminal(env, &repo).exits(1);
    for colour in ["\u{1b}[31m", "\u{1b}[1m\u{1b}[31m", "\u{1b}[32m", "\u{1b}[33m", "\u{1b}[1;31m"] {
        assert!(!run.stdout.contains(colour), "{run:?}");
    }
}

fn dumb_terminal(env: &TestEnvironment) {
    env.caller_has("TERM", "dumb");
    let repo = env.repo(&Spec::of_script("exit 1"));
    let run = on_a_terminal(env, &repo).exits(1).says(&["failed"]);
    assert!(!run.stdout.contains('\u{1b}'), "{run:?}");
}

fn hostile_step(env: &TestEnvironment) {
    env.caller_has("TERM", "xterm-256color");
    let script = r"printf '\033]0;stolen\007\033[2J\033[31mred\n'; printf '\033[5n' > /dev/tty; exit 1";
    let repo = env.repo(&Spec::of_script(script));
    let run = on_a_terminal(env, &repo).exits(1);
    for stolen in ["\u{1b}]0;", "\u{1b}[2J", "\u{1b}[31mred", "\u{1b}[5n", "\u{7}"] {
        assert!(!run.stdout.contains(stolen), "{run:?}");
    }
}

/// The step takes more than a second, because shorter durations are not stored. The later runs use the same profile.
fn the_last_time(env: &TestEnvironment) {
    env.caller_has("TERM", "xterm-256color");
    env.caller_has("LC_ALL", "C.UTF-8");
    let repo = env.repo(&Spec::of_script("sleep 1.1; test ! -e broken"));
    let expected = |code: i32| {
        let run = repo.run_with(&["--format", "jsonl"]).exits(code);
        let events = run.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("an event"));
        events.filter(|event| event["event"] == "step_started").map(|event| event["expected_ms"].as_u64()).next()
    };
    assert_eq!(expected(0), Some(None), "the first time there is nothing to expect");
    let took = expected(0).flatten().expect("it passed before");
    assert!((1_100..60_000).contains(&took), "{took}");
    on_a_terminal(env, &repo).exits(0).says(&["\u{2595}", " s of ~1 s"]);
    // The duration of a failed step is not used.
    machine::write(&repo.path().join("broken"), "");
    assert!(expected(1).flatten().is_some());
    assert!(expected(1).flatten().is_some_and(|ms| ms >= 1_100));
}
