//! Checks the structure and size limits of the page, and that untrusted text stays text.

use std::time::Duration;

use proptest::prelude::*;

use super::{Part, ROOM, SCRIPT, STYLE, base64, page, pages, view::MAX_STEPS};
use crate::drift::{Change, ChangeKind, Diff};
use crate::enforcement::{Control, ControlState};
use crate::event::RunEvent;
use crate::evidence::{AttemptEvidence, CheckEvidence, StepEvidence, StreamEvidence};
use crate::exec::DoubtRecord;
use crate::leak::{LeakedProcess, LeakedProcesses};
use crate::names::{StepName, ToolchainName};
use crate::outcome::{LimitKind, Outcome, Termination};
use crate::plan::{Argv, ReportFormat, VersionDemand};
use crate::record::{AttemptSpan, RunRecord, SkillRecord, Span};
use crate::report::Content;
use crate::report::fixture::{file, tools_sarif, with_tools};
use crate::tier::Tier;
use crate::verdict::{Doubt, Verdict};

/// Returns the record of a passed run, from a real log.
fn passed() -> RunRecord {
    let log = include_str!("../../../../fixtures/logs/passed.jsonl");
    let events = log.lines().map(|line| serde_json::from_str::<RunEvent>(line).expect("an event"));
    let mut record = RunRecord::default();
    events.enumerate().for_each(|(at, event)| record.apply(event, Duration::from_millis(at as u64 * 100)));
    record
}

fn step(name: &str, outcome: Outcome, code: u8) -> StepEvidence {
    let mut step = passed().skills[0].steps[0].clone();
    step.planned.name = StepName::new(name).expect("a step name");
    step.outcome = outcome;
    step.termination = Termination::Exited { code };
    step.exit_code = Some(code);
    step
}

fn stream(text: &str) -> StreamEvidence {
    let bytes = text.len() as u64;
    let preview = crate::evidence::escape_output(text.as_bytes());
    StreamEvidence { bytes, kept_bytes: bytes, preview, ..StreamEvidence::empty() }
}

/// Returns a run with many problems, and with `text` in every field that can contain untrusted text.
fn eventful(text: &str) -> RunRecord {
    let mut record = passed();
    let mut failed = step("compile", Outcome::Failed, 1);
    failed.stderr = stream(&format!("warning: a\nb\nc\nd\ne\nf\nerror: {text}\ng\n"));
    failed.stdout = StreamEvidence { bytes: 1 << 20, tail: text.to_owned(), redacted: 2, ..stream(text) };
    let mut drifted = step("write", Outcome::Drifted, 0);
    let line = text.replace('\n', " ");
    let diff = Diff::Truncated { text: format!("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{line}\n+y\n"), omitted_lines: 7 };
    drifted.drift.found.changes =
        vec![Change { path: text.to_owned(), kind: ChangeKind::Modified, before: None, after: None, diff }];
    drifted.drift.found.omitted = 3;
    let mut flaky = step("flaky", Outcome::Passed, 0);
    flaky.flaky = true;
    flaky.resources.limits_hit.insert(LimitKind::Memory);
    flaky.leaked = Some(LeakedProcesses::new(1, vec![LeakedProcess { pid: 7, name: text.to_owned() }]));
    flaky.drift.applied = vec![text.to_owned()];
    flaky.env_names.insert(text.to_owned());
    let end = Termination::Signaled { signal: 11 };
    let (stdout_sha256, stderr_sha256) = (failed.stdout.sha256.clone(), failed.stderr.sha256.clone());
    flaky.earlier_attempts = vec![AttemptEvidence {
        outcome: Outcome::Failed,
        termination: end,
        duration_ms: 7,
        stdout_sha256,
        stderr_sha256,
        leaked: None,
    }];
    let missing = ControlState::NotEnforced { reason: text.to_owned(), hint: Some(text.to_owned()) };
    flaky.enforcement.0.insert(Control::Cgroup, missing);
    let check = CheckEvidence {
        toolchain: ToolchainName::new("rust").expect("a name"),
        demand: VersionDemand::Range { range: text.to_owned() },
        version_read: Some(text.to_owned()),
        satisfied: false,
        step: step("check", Outcome::Passed, 0),
    };
    record.checks.push(check);
    record.check_spans.push(Span { began_ms: 0, ended_ms: Some(40) });
    let skill = &mut record.skills[0];
    let span = |attempt, began_ms, ended_ms| AttemptSpan {
        step: flaky.planned.name.clone(),
        attempt,
        span: Span { began_ms, ended_ms },
    };
    skill.attempts.extend([span(1, 300, Some(400)), span(2, 400, None)]);
    skill.planned.extend([failed.planned.name.clone(), drifted.planned.name.clone(), flaky.planned.name.clone()]);
    skill.steps.extend([failed, drifted, flaky]);
    skill.planned.push(StepName::new("unreached").expect("a name"));
    skill.reason = text.to_owned();
    record.doubts.push(DoubtRecord { doubt: Doubt::TreeChanged, message: text.to_owned() });
    record.cancelled_by = Some(text.to_owned());
    if let Some(finished) = &mut record.finished {
        finished.verdict = Verdict::Failed;
        finished.tier = Tier::THREE;
        finished.evidence_dir = Some(text.to_owned());
    }
    record
}

/// Returns the page without its style and script, which have their own files, and without their hashes.
fn body(record: &RunRecord) -> String {
    let page = page(record, &[]).replace(STYLE, "").replace(SCRIPT, "");
    let (before, rest) = page.split_once("style-src ").expect("there is a policy");
    let (_, after) = rest.split_once("; img-src").expect("it goes on");
    format!("{before}…{after}")
}

#[test]
fn a_page_has_its_parts_in_their_order() {
    insta::assert_snapshot!(body(&eventful("<a text of others>")));
}

#[test]
fn a_pass_has_no_reasons() {
    let page = body(&passed());
    assert!(page.contains("data-verdict=\"passed\"") && !page.contains("id=\"why\""), "{page}");
}

#[test]
fn several_runs_share_a_page_and_no_name() {
    let (good, bad) = (passed(), eventful("x"));
    let part = |name, came_to| Part { name, came_to, files: &[] };
    let parts = [part("one", Ok(&good)), part("<two>", Ok(&bad)), part("three", Err("no snapshot could be had"))];
    let page = pages(Verdict::Failed, &parts);
    let ids: Vec<&str> = page.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let mut once = ids.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), ids.len(), "{ids:?}");
    for expected in
        ["3 runs", "&lt;two&gt;", "no snapshot could be had", "run-2-step-1-2", "data-verdict=\"inconclusive\""]
    {
        assert!(page.contains(expected), "{expected}");
    }
    let targets = page.split("href=\"#").skip(1).filter_map(|rest| rest.split('"').next());
    let lost: Vec<&str> = targets.filter(|target| !ids.contains(target)).collect();
    assert!(lost.is_empty(), "{lost:?}");
}

#[test]
fn a_run_that_never_began_or_ended_is_no_result() {
    let page = body(&RunRecord::default());
    assert!(page.contains("data-verdict=\"unfinished\"") && page.contains("nothing here is a result"), "{page}");
}

#[test]
fn the_policy_names_the_style_and_the_script_by_their_hashes() {
    let page = page(&passed(), &[]);
    let between = |open: &str, close: &str| {
        let (_, rest) = page.split_once(open).expect("the element is there");
        rest.split_once(close).expect("it ends").0.to_owned()
    };
    for (kind, text) in [("style", between("<style>", "</style>")), ("script", between("<script>", "</script>"))] {
        let hash = crate::digest::Sha256Hex::of(text.as_bytes()).to_raw();
        let source = format!("{kind}-src &#39;sha256-{}&#39;", base64(&hash));
        assert!(page.contains(&source), "{source}");
    }
}

/// Test vectors of RFC 4648, section 10.
#[test]
fn base64_is_that_of_the_rfc() {
    let cases = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
    assert_eq!(cases, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    assert_eq!(base64(&[0xff, 0xef, 0xfe]), "/+/+");
}

#[test]
fn our_own_texts_cannot_end_their_elements() {
    for text in [STYLE, SCRIPT] {
        assert!(!text.contains("</") && !text.contains("<!--") && !text.contains('\r'));
        assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("@import"));
    }
}

#[test]
fn a_page_is_bounded_and_says_what_it_leaves_out() {
    let mut record = eventful("x");
    let noisy = "&".repeat(4 << 10);
    let mut step = step("noisy", Outcome::Failed, 1);
    step.stdout = StreamEvidence { bytes: 1 << 30, tail: noisy.clone(), ..stream(&noisy) };
    step.stderr = step.stdout.clone();
    let change = record.skills[0].steps[2].drift.found.changes[0].clone();
    step.drift.found.changes = vec![change; 1_000];
    step.planned.cmd = Argv::new(vec!["&".repeat(100_000)]).expect("a command");
    let skill = SkillRecord { steps: vec![step; MAX_STEPS + 5], ..record.skills[0].clone() };
    record.skills = vec![skill];
    let page = page(&record, &[]);
    assert!(page.contains("Left out here: the page would be too large."));
    assert!(page.contains("And 5 more steps; the evidence has them."));
    assert!(page.len() < 2 * ROOM, "{} bytes", page.len());
}

/// Returns the tags of a page, found by a parser that knows only how tags begin and end.
fn tags(page: &str) -> Vec<String> {
    let starts = page.split('<').skip(1);
    starts
        .map(|rest| rest.split('>').next().unwrap_or_default().split(' ').next().unwrap_or_default().to_owned())
        .collect()
}

fn any_text() -> impl Strategy<Value = String> {
    let evil = prop::sample::select(vec![
        "</pre>",
        "</script>",
        "<script>",
        "<!--",
        "-->",
        "]]>",
        "\"",
        "'",
        "&",
        "&lt;",
        "`",
        "=",
        " onload=x",
        "<svg/onload=x>",
        "\u{202e}",
        "\u{2066}",
        "\0",
        "\r",
        "\n",
        "\t",
        "\u{feff}",
        "\u{2028}",
        "javascript:x",
        "https://example.org/",
        "ä",
    ]);
    prop::collection::vec(evil, 0..6).prop_map(|parts| format!("x{}", parts.concat()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn no_text_becomes_markup(text in any_text()) {
        let page = body(&eventful(&text));
        prop_assert_eq!(tags(&page), tags(&body(&eventful("x"))));
        let hidden = |c: char| c.is_control() && c != '\n' && c != '\t' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        prop_assert!(!page.contains(hidden));
        prop_assert_eq!(&page, &body(&eventful(&text)));
    }
}

#[test]
fn what_the_tools_reported_stands_at_its_step() {
    let run = with_tools();
    let record = run.record().expect("a run");
    let page = page(record, &run.files);
    let written: String = page.lines().filter(|line| line.contains("class=\"report\"")).collect();
    assert_eq!(written.matches("class=\"report\"").count(), 4, "{written}");
    for expected in [
        "1 of 3 cases failed",
        "<code class=\"path\">t bad</code> <code class=\"path\">tests/a.py:7</code>",
        "4 findings",
        "<span class=\"soft\">ruff F401</span> <code class=\"path\">src/a.py:1:2</code>",
        "could not be read: it is not JSON",
        "could not be read: line 1",
    ] {
        assert!(page.contains(expected), "{expected}: {page}");
    }
    assert!(!page.contains("alert(1)</script>"), "what a tool says is no markup");
    insta::assert_snapshot!(written);
}

#[test]
fn reports_are_shown_as_far_as_a_page_has_use_for_them() {
    let mut run = with_tools();
    run.files = vec![
        file("lints", ReportFormat::Sarif, tools_sarif(150)),
        file("tests", ReportFormat::Sarif, Content::Unread("it is no longer stored".into())),
        file("tests", ReportFormat::Junit, Content::Missing),
    ];
    let page = page(run.record().expect("a run"), &run.files);
    assert!(page.contains("And 100 more findings in the file."));
    assert_eq!(page.matches("<code class=\"path\">src/a.py").count(), 200);
    assert!(page.contains("it is no longer stored") && page.matches("class=\"report\"").count() == 2);
}
