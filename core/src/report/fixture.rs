//! Runs for the tests of the formats: a recorded one, and variants of it with different results.

use std::time::Duration;

use serde_json::{Value, json};

use crate::decision::verdict::{InconclusiveReason, VerdictInputs, derive_verdict, exit_code};
use crate::model::drift::{Change, ChangeKind, Diff, StepDrift};
use crate::model::event::RunEvent;
use crate::model::leak::{LeakedProcess, LeakedProcesses};
use crate::model::names::{RunId, SkillName, StepName};
use crate::model::outcome::{Outcome, StartFault, Termination};
use crate::model::plan::{Leaks, ReportFormat};
use crate::record::evidence::{CheckedFiles, ReuseSource, StepEvidence, StreamEvidence};
use crate::record::run_record::{RunRecord, SkillRecord};
use crate::report::report_input::{ReportInput, ReportedRun, RunResult, ToolReport, ToolReportContent};
use crate::text::digest::Sha256Hex;
use crate::text::escape::escape_output;

const PASSED_RUN_LOG: &str = include_str!("../../../fixtures/logs/passed.jsonl");

/// Returns the recorded run, which passed.
pub(super) fn passed_run() -> RunRecord {
    let mut record = RunRecord::default();
    for line in PASSED_RUN_LOG.lines() {
        let event: RunEvent = serde_json::from_str(line).expect("an event");
        record.apply(event, Duration::ZERO);
    }
    record
}

/// Returns a step of that run under another name; it passed.
pub(crate) fn passed_step(name: &str) -> StepEvidence {
    let record = passed_run();
    let (_, step) = record.steps().next().expect("a step");
    let mut step = step.clone();
    step.planned.name = StepName::new(name).expect("a step name");
    (step.stdout, step.stderr) = (StreamEvidence::empty(), StreamEvidence::empty());
    (step.drift.found, step.drift.applied) = (StepDrift::default(), Vec::new());
    step.duration_ms = 420;
    step
}

/// Returns a step with a different outcome and termination.
pub(super) fn step_with_end(name: &str, outcome: Outcome, termination: Termination) -> StepEvidence {
    let mut step = passed_step(name);
    (step.outcome, step.exit_code) = (outcome, termination.exit_code());
    step.termination = termination;
    step
}

/// Returns a passed step with the result of an earlier execution.
pub(super) fn cached_step(name: &str) -> StepEvidence {
    let source = ReuseSource {
        run_id: RunId::new("r-earlier").expect("an id"),
        executed_at: "2026-01-02T03:04:05.678Z".to_owned(),
        inputs_sha256: Sha256Hex::digest(b"inputs"),
        inputs: 312,
        whole_tree: false,
        transparent_caches: Vec::new(),
        origin: None,
    };
    StepEvidence { duration_ms: 0, reused: Some(source), ..passed_step(name) }
}

/// Returns a passed step that checked only some of its files again.
pub(crate) fn partly_checked_step(name: &str) -> StepEvidence {
    let files = CheckedFiles {
        count: 800,
        sha256: Sha256Hex::digest(b"files"),
        batches: 1,
        reused: 797,
        reused_executed_at: Some("2026-01-02T03:04:05.678Z".to_owned()),
        dependence: None,
        transparent_caches: Vec::new(),
        origins: Vec::new(),
        covers_all: false,
    };
    StepEvidence { checked_files: Some(files), ..passed_step(name) }
}

pub(super) fn failed_step(name: &str, stderr: &str) -> StepEvidence {
    let mut step = step_with_end(name, Outcome::Failed, Termination::Exited { code: 1 });
    step.stderr = stream_evidence(stderr);
    step
}

pub(super) fn drifted_step(name: &str, paths: &[&str]) -> StepEvidence {
    let mut step = step_with_end(name, Outcome::Drifted, Termination::Exited { code: 0 });
    let change = |path: &&str| {
        let text = "--- a/x\n+++ b/x\n@@ -1,2 +1,3 @@\n # Title\n+```\n+ends here\n".to_owned();
        Change {
            path: (*path).to_owned(),
            kind: ChangeKind::Modified,
            before: None,
            after: None,
            diff: Diff::Whole { text },
        }
    };
    step.drift.found = StepDrift { changes: paths.iter().map(change).collect(), omitted: 0 };
    step
}

pub(super) fn stream_evidence(text: &str) -> StreamEvidence {
    let bytes = text.len() as u64;
    StreamEvidence { bytes, kept_bytes: bytes, preview: escape_output(text.as_bytes()), ..StreamEvidence::empty() }
}

/// Returns a run of these steps in one skill, with the verdict that follows from them.
pub(super) fn run_of_steps(steps: Vec<StepEvidence>) -> RunRecord {
    let mut record = passed_run();
    let facts = VerdictInputs { outcomes: steps.iter().map(|step| step.outcome).collect(), ..VerdictInputs::default() };
    let skill = SkillRecord {
        skill: skill_name(),
        planned: steps.iter().map(|step| step.planned.name.clone()).collect(),
        outcome: Some(crate::record::evidence::combined_outcome(steps.iter().map(|step| &step.outcome))),
        steps,
        ..record.skills[0].clone()
    };
    record.skills = vec![skill];
    record.checks.clear();
    update_end(&mut record, &facts);
    record
}

/// Returns the same run with a reason for an inconclusive verdict added.
pub(super) fn with_inconclusive_reason(mut record: RunRecord, doubt: InconclusiveReason, message: &str) -> RunRecord {
    let outcomes = record.steps().map(|(_, step)| step.outcome).collect();
    record.add_inconclusive_reasons(&[doubt.with_message(message)]);
    update_end(&mut record, &VerdictInputs { outcomes, inconclusive_reasons: vec![doubt], is_restricted: false });
    record
}

fn update_end(record: &mut RunRecord, facts: &VerdictInputs) {
    let finished = record.finished.as_mut().expect("it has ended");
    (finished.verdict, finished.exit_code, finished.duration_ms) = (derive_verdict(facts), exit_code(facts), 2_340);
}

pub(super) fn skill_name() -> SkillName {
    SkillName::new("verify.it").expect("a skill name")
}

/// Returns a run with one step of each kind: passed, flaky, failed, drifted, timed out, without a sandbox, skipped.
pub(super) fn run_with_each_outcome() -> RunRecord {
    let mut flaky = passed_step("flaky");
    flaky.flaky = true;
    flaky.earlier_attempts = vec![crate::record::evidence::AttemptEvidence {
        outcome: Outcome::Failed,
        termination: Termination::Exited { code: 3 },
        duration_ms: 5,
        stdout_sha256: flaky.stdout.sha256.clone(),
        stderr_sha256: flaky.stderr.sha256.clone(),
        leaked: None,
    }];
    let missing = Termination::NotStarted { reason: "no user namespace".into(), fault: StartFault::Sandbox };
    let not_reached =
        Termination::NotStarted { reason: "a step before it failed".into(), fault: StartFault::NotReached };
    let mut leaky = passed_step("leaks");
    leaky.leaked = Some(hostile_leak());
    let mut forbidden = step_with_end("forbidden", Outcome::Failed, Termination::Exited { code: 0 });
    (forbidden.planned.leaks, forbidden.leaked) = (Leaks::Fail, Some(hostile_leak()));
    run_of_steps(vec![
        passed_step("passes"),
        leaky,
        forbidden,
        flaky,
        failed_step("fails", HOSTILE_OUTPUT),
        drifted_step("drifts", &["docs/a b.md", "x,y:z%\\x0a.rs"]),
        step_with_end("late", Outcome::TimedOut, Termination::TimedOut { exit_code: 143 }),
        step_with_end("sandboxed", Outcome::Inconclusive, missing),
        step_with_end("skipped", Outcome::Skipped, not_reached),
    ])
}

/// Returns processes whose names contain markup, workflow commands and terminal escapes.
pub(super) fn hostile_leak() -> LeakedProcesses {
    let names: [&[u8]; 3] = [b"sleep", b"`x`|::error::", b"\x1b[2J\n##[x]"];
    let named = names.iter().zip(7..).map(|(name, pid)| LeakedProcess::new(pid, name));
    LeakedProcesses::new(4, named.collect())
}

/// Output of a step that imitates commands and markup of other programs.
pub(super) const HOSTILE_OUTPUT: &str = "::error file=a::forged\n  ::set-output name=verdict::passed\n##[add-mask]x\n##vso[task.complete]\n\
    ]]><failure/></testsuite>&amp;<script>alert(1)</script>\n```\n@octocat #1 [x](https://evil.example) `a`|b|\u{202e}\u{1b}[2J\u{0}\n";

/// Returns a report file of a tool.
pub(super) fn tool_report(step: &str, format: ReportFormat, content: ToolReportContent) -> ToolReport {
    ToolReport {
        skill: skill_name(),
        step: StepName::new(step).expect("a name"),
        format,
        path: "target/report".into(),
        content,
    }
}

pub(super) fn reported_run(record: RunRecord, files: Vec<ToolReport>) -> ReportedRun {
    ReportedRun { tool_reports: files, ..ReportedRun::new(None, RunResult::Recorded(Box::new(record))) }
}

/// Returns the results of one command with these runs.
pub(super) fn report_input(runs: &[ReportedRun]) -> ReportInput<'_> {
    let exit_code = runs.first().and_then(ReportedRun::exit_code).unwrap_or(5);
    ReportInput { runs, left_out: 0, exit_code, token: "t0ken", repository_prefix: "" }
}

/// A report similar to that of pytest: one case passed, one failed, one was flaky.
pub(super) const PYTEST_JUNIT: &str = r#"<testsuites><testsuite name="pytest"><testcase name="ok" classname="t"/>
    <testcase name="bad" classname="t" file="tests/a.py" line="7"><failure message="1 != 2">at length</failure></testcase>
    <testcase name="flaky"><flakyFailure message="once"/></testcase></testsuite></testsuites>"#;

/// Returns a log of two runs of ruff, each with this number of results, which contain hostile text.
pub(super) fn ruff_sarif(results: usize) -> ToolReportContent {
    let result = |n: usize| {
        json!({ "ruleId": "F401", "level": "error", "message": { "text": format!("{n} {HOSTILE_OUTPUT}") }, "locations": [{
        "physicalLocation": { "artifactLocation": { "uri": "src/a.py" }, "region": { "startLine": n + 1, "startColumn": 2 } } }] })
    };
    let results: Vec<Value> = (0..results).map(result).collect();
    let run = json!({ "tool": { "driver": { "name": "ruff" } }, "results": results });
    ToolReportContent::Read(json!({ "version": "2.1.0", "runs": [run.clone(), run] }).to_string().into_bytes())
}

/// Returns a run whose tools wrote two valid reports and two malformed ones.
pub(super) fn run_with_tool_reports() -> ReportedRun {
    let files = vec![
        tool_report("tests", ReportFormat::Junit, ToolReportContent::Read(PYTEST_JUNIT.into())),
        tool_report("lints", ReportFormat::Sarif, ruff_sarif(2)),
        tool_report("tests", ReportFormat::Sarif, ToolReportContent::Read(b"<xml/>".to_vec())),
        tool_report("lints", ReportFormat::Junit, ToolReportContent::Read(b"<!DOCTYPE x><x/>".to_vec())),
    ];
    reported_run(run_of_steps(vec![failed_step("tests", "1 failed\n"), passed_step("lints")]), files)
}
