//! Checks the structure and size limits of the page, and that untrusted text stays text.

use std::time::Duration;

use proptest::prelude::*;

use super::page_view::MAX_STEPS;
use super::{MAX_PAGE_BYTES, PageRun, SCRIPT, STYLE, base64, render_multi_run_page, render_page};
use crate::decision::verdict::{InconclusiveDetail, InconclusiveReason, Verdict};
use crate::model::drift::{Change, ChangeKind, Diff};
use crate::model::enforcement::{Control, ControlState};
use crate::model::event::RunEvent;
use crate::model::leak::{LeakedProcess, LeakedProcesses};
use crate::model::names::{StepName, ToolchainName};
use crate::model::outcome::{LimitKind, Outcome, Termination};
use crate::model::plan::{Argv, ReportFormat, VersionDemand};
use crate::model::tier::Tier;
use crate::record::evidence::{AttemptEvidence, CheckEvidence, StepEvidence, StreamEvidence};
use crate::record::run_record::{AttemptSpan, RunRecord, SkillRecord, Span};
use crate::report::fixture::{cached_step, passed_step, ruff_sarif, run_of_steps, run_with_tool_reports, tool_report};
use crate::report::report_input::ToolReportContent;

/// Returns the record of a passed run, from a real log.
fn passed_run() -> RunRecord {
    let log = include_str!("../../../../fixtures/logs/passed.jsonl");
    let events = log.lines().map(|line| serde_json::from_str::<RunEvent>(line).expect("an event"));
    let mut record = RunRecord::default();
    events.enumerate().for_each(|(at, event)| record.apply(event, Duration::from_millis(at as u64 * 100)));
    record
}

fn step_with_outcome(name: &str, outcome: Outcome, code: u8) -> StepEvidence {
    let mut step = passed_run().skills[0].steps[0].clone();
    step.planned.name = StepName::new(name).expect("a step name");
    step.outcome = outcome;
    step.termination = Termination::Exited { code };
    step.exit_code = Some(code);
    step
}

fn stream_evidence(text: &str) -> StreamEvidence {
    let bytes = text.len() as u64;
    let preview = crate::text::escape::escape_output(text.as_bytes());
    StreamEvidence { bytes, kept_bytes: bytes, preview, ..StreamEvidence::empty() }
}

#[test]
fn cached_step_names_its_source_instead_of_a_duration() {
    let mut record = run_of_steps(vec![passed_step("executed"), cached_step("reused")]);
    let page = render_page(&record, &[]);
    assert!(page.contains("cached from run r-earlier, executed 2026-01-02T03:04:05.678Z, 312 inputs unchanged"));
    assert!(page.contains("<span class=\"spent\">cached</span>"), "{page}");
    assert!(page.contains("2 passed, 1 cached of 2 steps"), "{page}");
    record.skills[0].steps.remove(1);
    assert!(!render_page(&record, &[]).contains("cached"));
}

/// Returns a run with many problems, and with `text` in every field that can contain untrusted text.
fn run_with_problems(text: &str) -> RunRecord {
    let mut record = passed_run();
    let mut failed = step_with_outcome("compile", Outcome::Failed, 1);
    failed.stderr = stream_evidence(&format!("warning: a\nb\nc\nd\ne\nf\nerror: {text}\ng\n"));
    failed.stdout = StreamEvidence { bytes: 1 << 20, tail: text.to_owned(), redacted: 2, ..stream_evidence(text) };
    let mut drifted = step_with_outcome("write", Outcome::Drifted, 0);
    let line = text.replace('\n', " ");
    let diff = Diff::Truncated { text: format!("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-{line}\n+y\n"), omitted_lines: 7 };
    drifted.drift.found.changes =
        vec![Change { path: text.to_owned(), kind: ChangeKind::Modified, before: None, after: None, diff }];
    drifted.drift.found.omitted = 3;
    let mut flaky = step_with_outcome("flaky", Outcome::Passed, 0);
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
        hidden_program: None,
        step: step_with_outcome("check", Outcome::Passed, 0),
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
    record.doubts.push(InconclusiveDetail { doubt: InconclusiveReason::TreeChanged, message: text.to_owned() });
    record.cancelled_by = Some(text.to_owned());
    if let Some(finished) = &mut record.finished {
        finished.verdict = Verdict::Failed;
        finished.tier = Tier::THREE;
        finished.evidence_dir = Some(text.to_owned());
    }
    record
}

/// Returns the page without its style and script, which have their own files, and without their hashes.
fn page_without_assets(record: &RunRecord) -> String {
    let page = render_page(record, &[]).replace(STYLE, "").replace(SCRIPT, "");
    let (before, rest) = page.split_once("style-src ").expect("there is a policy");
    let (_, after) = rest.split_once("; img-src").expect("it goes on");
    format!("{before}…{after}")
}

#[test]
fn page_sections_are_in_order() {
    insta::assert_snapshot!(page_without_assets(&run_with_problems("<a text of others>")));
}

#[test]
fn passed_run_has_no_reasons() {
    let page = page_without_assets(&passed_run());
    assert!(page.contains("data-verdict=\"passed\"") && !page.contains("id=\"why\""), "{page}");
}

#[test]
fn element_ids_are_unique_across_runs() {
    let (good, bad) = (passed_run(), run_with_problems("x"));
    let part = |name, came_to| PageRun { name, result: came_to, tool_reports: &[] };
    let parts = [part("one", Ok(&good)), part("<two>", Ok(&bad)), part("three", Err("no snapshot could be had"))];
    let page = render_multi_run_page(Verdict::Failed, &parts);
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
fn unfinished_run_is_shown_as_no_result() {
    let page = page_without_assets(&RunRecord::default());
    assert!(page.contains("data-verdict=\"unfinished\"") && page.contains("nothing here is a result"), "{page}");
}

#[test]
fn policy_contains_hashes_of_style_and_script() {
    let page = render_page(&passed_run(), &[]);
    let between = |open: &str, close: &str| {
        let (_, rest) = page.split_once(open).expect("the element is there");
        rest.split_once(close).expect("it ends").0.to_owned()
    };
    for (kind, text) in [("style", between("<style>", "</style>")), ("script", between("<script>", "</script>"))] {
        let hash = crate::text::digest::Sha256Hex::digest(text.as_bytes()).to_raw();
        let source = format!("{kind}-src &#39;sha256-{}&#39;", base64(&hash));
        assert!(page.contains(&source), "{source}");
    }
}

/// Test vectors of RFC 4648, section 10.
#[test]
fn base64_matches_rfc_4648() {
    let cases = ["", "f", "fo", "foo", "foob", "fooba", "foobar"].map(|text| base64(text.as_bytes()));
    assert_eq!(cases, ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"]);
    assert_eq!(base64(&[0xff, 0xef, 0xfe]), "/+/+");
}

#[test]
fn style_and_script_contain_no_end_tags() {
    for text in [STYLE, SCRIPT] {
        assert!(!text.contains("</") && !text.contains("<!--") && !text.contains('\r'));
        assert!(!text.contains("http:") && !text.contains("https:") && !text.contains("@import"));
    }
}

#[test]
fn page_is_bounded_and_reports_omissions() {
    let mut record = run_with_problems("x");
    let noisy = "&".repeat(4 << 10);
    let mut step = step_with_outcome("noisy", Outcome::Failed, 1);
    step.stdout = StreamEvidence { bytes: 1 << 30, tail: noisy.clone(), ..stream_evidence(&noisy) };
    step.stderr = step.stdout.clone();
    let change = record.skills[0].steps[2].drift.found.changes[0].clone();
    step.drift.found.changes = vec![change; 1_000];
    step.planned.cmd = Argv::new(vec!["&".repeat(100_000)]).expect("a command");
    let skill = SkillRecord { steps: vec![step; MAX_STEPS + 5], ..record.skills[0].clone() };
    record.skills = vec![skill];
    let page = render_page(&record, &[]);
    assert!(page.contains("Omitted: the page would be too large."));
    assert!(page.contains("And 5 more steps; the evidence lists them."));
    assert!(page.len() < 2 * MAX_PAGE_BYTES, "{} bytes", page.len());
}

/// Returns the tags of a page, found by a parser that knows only how tags begin and end.
fn tag_names(page: &str) -> Vec<String> {
    let starts = page.split('<').skip(1);
    starts
        .map(|rest| rest.split('>').next().unwrap_or_default().split(' ').next().unwrap_or_default().to_owned())
        .collect()
}

fn any_hostile_text() -> impl Strategy<Value = String> {
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
    fn untrusted_text_never_becomes_markup(text in any_hostile_text()) {
        let page = page_without_assets(&run_with_problems(&text));
        prop_assert_eq!(tag_names(&page), tag_names(&page_without_assets(&run_with_problems("x"))));
        let hidden = |c: char| c.is_control() && c != '\n' && c != '\t' || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        prop_assert!(!page.contains(hidden));
        prop_assert_eq!(&page, &page_without_assets(&run_with_problems(&text)));
    }
}

#[test]
fn shows_tool_reports_at_their_step() {
    let run = run_with_tool_reports();
    let record = run.record().expect("a run");
    let page = render_page(record, &run.tool_reports);
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
fn limits_shown_report_findings() {
    let mut run = run_with_tool_reports();
    run.tool_reports = vec![
        tool_report("lints", ReportFormat::Sarif, ruff_sarif(150)),
        tool_report("tests", ReportFormat::Sarif, ToolReportContent::Unavailable("it is no longer stored".into())),
        tool_report("tests", ReportFormat::Junit, ToolReportContent::Missing),
    ];
    let page = render_page(run.record().expect("a run"), &run.tool_reports);
    assert!(page.contains("And 100 more findings in the file."));
    assert_eq!(page.matches("<code class=\"path\">src/a.py").count(), 200);
    assert!(page.contains("it is no longer stored") && page.matches("class=\"report\"").count() == 2);
}
