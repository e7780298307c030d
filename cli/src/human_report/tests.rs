//! Snapshot tests of reports on event logs.

use proctor_core::decision::verdict::{InconclusiveReason, Verdict};
use proctor_core::model::event::RunEvent;
use proctor_core::model::leak::{LeakedProcess, LeakedProcesses};
use proctor_core::model::outcome::{LimitKind, Outcome, StartFault, Termination};
use proctor_core::model::plan::Leaks;
use proctor_core::model::tier::Tier;
use proctor_core::record::evidence::AttemptEvidence;
use proctor_core::report::stream_texts::StreamTexts;
use proctor_core::text::digest::Sha256Hex;

use super::{Detail, ReportOptions, render_report};
use crate::fixture::*;
use crate::screen::TextLayout;
use proctor_core::record::run_record::RunRecord;

fn fold(events: impl IntoIterator<Item = RunEvent>) -> RunRecord {
    let mut record = RunRecord::default();
    events.into_iter().for_each(|event| record.apply(event, std::time::Duration::ZERO));
    record
}

fn render_plain(events: impl IntoIterator<Item = RunEvent>) -> String {
    render_plain_at(80, Detail::Normal, events)
}

fn render_plain_at(columns: usize, detail: Detail, events: impl IntoIterator<Item = RunEvent>) -> String {
    crate::text::strip_colours(&render_at(TextLayout { columns, wraps: true }, detail, events))
}

fn render_at(layout: TextLayout, detail: Detail, events: impl IntoIterator<Item = RunEvent>) -> String {
    render_report(&fold(events), &ReportOptions { detail, layout, outputs: &StreamTexts::default(), logs_options: "" })
}

#[test]
fn passed_run_is_short() {
    insta::assert_snapshot!(render_plain([
        started(&[("verify.format.check", &["cargo_fmt"]), ("verify.lint", &["clippy", "doc"])]),
        step_finished("verify.format.check", exited("cargo_fmt", &["cargo", "fmt", "--check"], 0)),
        skill_finished("verify.format.check", Outcome::Passed, Tier::ONE, ""),
        step_finished("verify.lint", exited("clippy", &["cargo", "clippy"], 0)),
        step_finished("verify.lint", exited("doc", &["cargo", "doc"], 0)),
        skill_finished("verify.lint", Outcome::Passed, Tier::ONE, ""),
        finished(Verdict::Passed, Tier::ONE, 0),
    ]));
}

#[test]
fn cached_steps_are_counted_and_have_no_duration() {
    let events = || {
        [
            started(&[("a", &["s"]), ("b", &["s", "t"])]),
            step_finished("a", cached("s", &["true"])),
            skill_finished("a", Outcome::Passed, Tier::ONE, ""),
            step_finished("b", cached("s", &["true"])),
            step_finished("b", partly_checked("t", &["true"])),
            skill_finished("b", Outcome::Passed, Tier::ONE, ""),
            finished(Verdict::Passed, Tier::ONE, 0),
        ]
    };
    insta::assert_snapshot!("cached_steps", render_plain(events()));
    insta::assert_snapshot!("cached_steps_verbose", render_plain_at(80, Detail::Verbose, events()));
}

#[test]
fn partial_run_has_its_own_verdict_line() {
    let rendered = |left_out: &[&str], detail| {
        let mut started = started(&[("verify.lint", &["clippy"])]);
        let RunEvent::RunStarted { rerun, .. } = &mut started else { unreachable!("it begins") };
        *rerun = Some(proctor_core::decision::rerun::Rerun {
            after: proctor_core::model::names::RunId::new("r1").expect("an id"),
            not_passed: left_out.iter().map(|_| skill("verify.lint")).collect(),
            left_out: left_out.iter().map(|name| skill(name)).collect(),
            gone: Vec::new(),
        });
        let lint = step_finished("verify.lint", exited("clippy", &["cargo", "clippy"], 0));
        render_plain_at(80, detail, [started, lint, finished(Verdict::Passed, Tier::ONE, 0)])
    };
    let partial = rendered(&["verify.test", "verify.doc"], Detail::Quiet);
    assert!(partial.starts_with("partial run passed: 1 step in 1 of 3 skills, tier 1,"), "{partial}");
    let sentence = "only 1 of 3 skills ran: those that had not passed by run r1, and those that they need; left out: `verify.test`";
    let partial = rendered(&["verify.test", "verify.doc"], Detail::Normal).replace("\n  ", " ");
    assert!(partial.contains(sentence), "{partial}");
    let whole = rendered(&[], Detail::Normal);
    assert!(whole.contains("note: nothing had failed by run r1, so every skill was run\n"), "{whole}");
    assert!(whole.contains("\npassed: 1 step in 1 skill, tier 1,"), "{whole}");
}

#[test]
fn shows_reasons_first_and_verdict_last() {
    let mut failed = exited("cargo_fmt", &["cargo", "fmt", "--check", "a b"], 1);
    failed.stdout = stream("Diff in src/main.rs:1:\n-fn main( ) {}\n+fn main() {}\n");
    failed.stderr = stream("warning: \x1b[31mred\x1b[0m\n::error::gotcha\n");
    let mut late = step(planned("sleep", &["sh", "-c", "sleep 100"]), Termination::TimedOut { exit_code: 137 });
    late.planned.timeout_ms = 1_000;
    late.planned.workdir = proctor_core::model::plan::RelPath::new("sub").expect("a path");
    late.duration_ms = 1_502;
    let not_reached = Termination::NotStarted { reason: "`sleep` timed out".into(), fault: StartFault::NotReached };
    insta::assert_snapshot!(render_plain([
        started(&[("verify.format.check", &["cargo_fmt"]), ("slow", &["sleep", "after"]), ("docs", &["edit"])]),
        step_finished("verify.format.check", failed),
        skill_finished("verify.format.check", Outcome::Failed, Tier::ONE, ""),
        step_finished("slow", late),
        step_finished("slow", step(planned("after", &["true"]), not_reached)),
        skill_finished("slow", Outcome::TimedOut, Tier::TWO, ""),
        step_finished("docs", drifted("edit", &["sh", "-c", "echo x >> README.md"])),
        skill_finished("docs", Outcome::Drifted, Tier::THREE, ""),
        finished(Verdict::Failed, Tier::THREE, 3),
    ]));
}

#[test]
fn describes_each_termination() {
    let limit = Termination::LimitHit { limit: LimitKind::Memory, exit_code: 137 };
    let files = Termination::LimitHit { limit: LimitKind::Inodes, exit_code: 1 };
    let missing = Termination::NotStarted { reason: "`nope` is not in PATH".into(), fault: StartFault::ProgramMissing };
    let mut choosy = exited("choosy", &["grep", "x"], 2);
    choosy.planned.expect_exit = vec![0, 1];
    let earlier = AttemptEvidence {
        outcome: Outcome::Failed,
        termination: Termination::Exited { code: 2 },
        duration_ms: 400,
        stdout_sha256: Sha256Hex::digest(b""),
        stderr_sha256: Sha256Hex::digest(b""),
        leaked: None,
    };
    choosy.earlier_attempts = vec![earlier];
    insta::assert_snapshot!(render_plain([
        started(&[("s", &["crash", "greedy", "many", "missing", "choosy"])]),
        step_finished("s", step(planned("crash", &["./crash"]), Termination::Signaled { signal: 11 })),
        step_finished("s", step(planned("greedy", &["./greedy"]), limit)),
        step_finished("s", step(planned("many", &["./many"]), files)),
        step_finished("s", step(planned("missing", &["nope"]), missing)),
        step_finished("s", choosy),
        skill_finished("s", Outcome::Failed, Tier::ONE, ""),
        finished(Verdict::Failed, Tier::ONE, 1),
    ]));
}

#[test]
fn no_own_line_is_wider_than_the_terminal() {
    let limit = Termination::LimitHit { limit: LimitKind::Disk, exit_code: 1 };
    let mut network = exited("network", &["curl"], 6);
    network.stderr = stream("curl: (6) Could not resolve host: example.org\n");
    network.planned.network = proctor_core::model::plan::Network::Deny;
    let mut flaky = exited("flaky", &["./net"], 0);
    flaky.flaky = true;
    flaky.leaked = Some(LeakedProcesses::new(3, vec![LeakedProcess::new(7, b"a-server-with-a-long-name")]));
    let message = "the record is not complete, because a file of the evidence could not be written to the disk";
    let events = [
        started(&[("s", &["disk", "network", "flaky", "edit"])]),
        step_finished("s", step(planned("disk", &["./many"]), limit)),
        step_finished("s", network),
        step_finished("s", flaky),
        step_finished("s", drifted("edit", &["sh", "-c", "echo x >> README.md"])),
        RunEvent::Doubted { doubt: InconclusiveReason::Internal, message: message.into() },
        skill_finished("s", Outcome::Failed, Tier::ONE, ""),
        finished(Verdict::Failed, Tier::ONE, 1),
    ];
    for columns in [60, 80] {
        let text = render_plain_at(columns, Detail::Normal, events.clone());
        let is_own = |line: &&str| !line.contains("proctor logs") && !line.trim_start().starts_with('$');
        let wide: Vec<&str> =
            text.lines().filter(is_own).filter(|line| crate::text::display_width(line) > columns).collect();
        assert_eq!(wide, [""; 0], "{text}");
        assert!(text.contains("`network: deny`"), "{text}");
    }
}

#[test]
fn outdated_tool_makes_the_run_inconclusive() {
    let mut version = exited("check-1", &["cargo", "--version"], 0);
    version.stdout = stream("cargo 1.60.0\n");
    insta::assert_snapshot!(render_plain([
        started(&[("verify.lint", &["clippy"])]),
        RunEvent::CheckFinished { check: check("rust", Some(">=1.80"), Some("1.60.0"), version) },
        RunEvent::Doubted {
            doubt: InconclusiveReason::Toolchain,
            message: "toolchain `rust` is not satisfied; no skill was started".into()
        },
        skill_finished("verify.lint", Outcome::Skipped, Tier::ONE, "a toolchain check failed"),
        finished(Verdict::Inconclusive, Tier::ONE, 5),
    ]));
}

#[test]
fn interrupted_run_names_the_signal() {
    let mut unreached = step(planned("after", &["true"]), Termination::Cancelled);
    unreached.enforcement = Default::default();
    let mut noisy = step(planned("sleep", &["sleep", "100"]), Termination::Cancelled);
    noisy.stdout = stream("error: this output is not complete\n");
    insta::assert_snapshot!(render_plain([
        started(&[("slow", &["sleep", "after"])]),
        RunEvent::Cancelling { by: "SIGINT".into() },
        step_finished("slow", noisy),
        step_finished("slow", unreached),
        RunEvent::Doubted {
            doubt: InconclusiveReason::Interrupted,
            message: "the run was interrupted by SIGINT".into()
        },
        skill_finished("slow", Outcome::Cancelled, Tier::ONE, ""),
        finished(Verdict::Inconclusive, Tier::ONE, 130),
    ]));
}

#[test]
fn long_output_is_cut_with_a_note() {
    let mut noisy = exited("noisy", &["./noisy"], 1);
    let lines: Vec<String> = (1..=100).map(|n| format!("line {n}")).collect();
    noisy.stdout = stream(&lines.join("\n"));
    noisy.stderr = stream(&"é".repeat(1_000));
    noisy.stderr.bytes = 1 << 20;
    noisy.stderr.tail = "the very end".into();
    noisy.stderr.complete = false;
    let text = render_plain([
        started(&[("s", &["noisy"])]),
        step_finished("s", noisy),
        skill_finished("s", Outcome::Failed, Tier::ONE, ""),
        finished(Verdict::Failed, Tier::ONE, 1),
    ]);
    assert!(text.lines().count() < 50, "{text}");
    for expected in [
        "(… 88 lines)",
        "line 89\n",
        "(… 1 MiB in total, the middle is omitted …)",
        "(… 1 MiB in total, 1.9 KiB of them stored",
        "the very end",
        "(cut:",
    ] {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    assert!(!text.contains("line 88\n"), "{text}");
}

/// Returns a step with the output of a compiler that has an error in the middle.
fn failed_compilation() -> proctor_core::record::evidence::StepEvidence {
    let mut failed = exited("build", &["cargo", "build"], 101);
    let around = |text: &str, number| (1..=number).map(|n| format!("   {text} {n}\n")).collect::<String>();
    let error = "\x1b[1m\x1b[91merror[E0308]\x1b[0m: mismatched types\n --> src/main.rs:3:5\n";
    failed.stderr = stream(&format!("{}{error}{}", around("Compiling crate", 60), around("note", 60)));
    failed.stdout = stream(&around("nothing to see", 60));
    failed
}

#[test]
fn failed_step_is_shown_from_its_first_error() {
    let events = || {
        [
            started(&[("verify.a-skill-with-a-rather-long-name", &["build", "test"])]),
            step_finished("verify.a-skill-with-a-rather-long-name", failed_compilation()),
            skill_finished("verify.a-skill-with-a-rather-long-name", Outcome::Failed, Tier::ONE, ""),
            finished(Verdict::Failed, Tier::ONE, 1),
        ]
    };
    insta::assert_snapshot!("first_error_80", render_plain_at(80, Detail::Normal, events()));
    insta::assert_snapshot!("first_error_40", render_plain_at(40, Detail::Normal, events()));
    insta::assert_snapshot!("first_error_quiet", render_plain_at(80, Detail::Quiet, events()));
    insta::assert_snapshot!("first_error_colour", render_at(TextLayout::LOG, Detail::Normal, events()));
    let narrow = render_plain_at(40, Detail::Normal, events());
    let ours = narrow.lines().filter(|line| !line.contains("proctor logs") && !line.contains("build:"));
    assert!(ours.clone().all(|line| crate::text::display_width(line) <= 46), "{narrow}");
}

#[test]
fn error_of_make_does_not_hide_the_other_stream() {
    let mut failed = exited("test", &["make", "test"], 2);
    failed.stderr = stream("make: *** [Makefile:276: test] Error 1\n");
    let passed: String = (1..=60).map(|n| format!("#{n} parses replies: PASSED\n")).collect();
    failed.stdout = stream(&format!("{passed}Testing against 127.0.0.1:6379:\nRefused\n"));
    let text = render_plain_at(
        80,
        Detail::Normal,
        [
            started(&[("verify.make", &["test"])]),
            step_finished("verify.make", failed),
            skill_finished("verify.make", Outcome::Failed, Tier::ONE, ""),
            finished(Verdict::Failed, Tier::ONE, 1),
        ],
    );
    assert!(text.contains("| Refused") && !text.contains("without an error"), "{text}");
}

#[test]
fn verbose_report_has_every_step() {
    let mut step = exited("unit", &["make", "test"], 0);
    step.stdout = stream("ran 3 tests\n");
    step.resources.user_ms = 1_200;
    step.resources.max_rss_kib = 34_000;
    insta::assert_snapshot!(render_plain_at(
        80,
        Detail::Verbose,
        [
            started(&[("verify.test", &["unit"])]),
            step_finished("verify.test", step),
            skill_finished("verify.test", Outcome::Passed, Tier::ONE, ""),
            finished(Verdict::Passed, Tier::ONE, 0),
        ]
    ));
}

#[test]
fn run_without_steps_is_reported() {
    insta::assert_snapshot!(render_plain([started(&[]), finished(Verdict::Inconclusive, Tier::ONE, 2),]));
}

#[test]
fn passed_run_notes_flaky_and_applied_changes() {
    let mut flaky = exited("net", &["./net"], 0);
    flaky.flaky = true;
    flaky.drift.applied = vec!["a".into(), "b".into()];
    insta::assert_snapshot!(render_plain([
        started(&[("s", &["net"])]),
        step_finished("s", flaky),
        skill_finished("s", Outcome::Passed, Tier::ONE, ""),
        finished(Verdict::Passed, Tier::ONE, 0),
    ]));
}

#[test]
fn names_processes_that_steps_leave_behind() {
    let named = || vec![LeakedProcess::new(7, b"sleep"), LeakedProcess::new(9, b"\x1b[2J")];
    let mut passing = exited("server", &["./server"], 0);
    passing.leaked = Some(LeakedProcesses::new(3, named()));
    let mut failing = exited("strict", &["./server"], 0);
    (failing.outcome, failing.planned.leaks) = (Outcome::Failed, Leaks::Fail);
    failing.leaked = Some(LeakedProcesses::new(2, named()));
    insta::assert_snapshot!(render_plain([
        started(&[("s", &["server", "strict"])]),
        step_finished("s", passing),
        step_finished("s", failing),
        skill_finished("s", Outcome::Failed, Tier::ONE, ""),
        finished(Verdict::Failed, Tier::ONE, 1),
    ]));
}

#[test]
fn escapes_all_text_of_a_step() {
    let evil = "\x1b]0;x\x07\r\u{9b}2J\u{202e}\n##[command]x";
    let mut step = exited("s", &["printf", evil], 1);
    step.stdout = stream(evil);
    step.drift.applied = vec![evil.to_owned()];
    let text = render_plain([
        started(&[("\u{202e}s", &["s"])]),
        step_finished("\u{202e}s", step),
        skill_finished("\u{202e}s", Outcome::Failed, Tier::ONE, evil),
        RunEvent::Doubted { doubt: InconclusiveReason::Internal, message: evil.into() },
        RunEvent::Cancelling { by: evil.into() },
        finished(Verdict::Failed, Tier::ONE, 1),
    ]);
    assert!(!text.chars().any(|c| c.is_control() && c != '\n' || c == '\u{202e}'), "{text:?}");
    assert!(!text.contains("##["), "{text}");
}

#[test]
fn colour_is_only_decoration() {
    let events = [
        started(&[("s", &["s"])]),
        step_finished("s", exited("s", &["false"], 1)),
        finished(Verdict::Failed, Tier::ONE, 1),
    ];
    let text = render_at(TextLayout::LOG, Detail::Normal, events);
    assert!(text.contains("\x1b[1m\x1b[31mFAIL\x1b[0m"), "{text:?}");
}
