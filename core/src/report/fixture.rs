//! Runs for the tests of the formats: a recorded one, and variants of it with other results.

use std::time::Duration;

use serde_json::{Value, json};

use super::{CameTo, Content, ReportInput, ReportedRun, ToolFile};
use crate::drift::{Change, ChangeKind, Diff, StepDrift};
use crate::event::RunEvent;
use crate::evidence::{StepEvidence, StreamEvidence, escape_output};
use crate::leak::{LeakedProcess, LeakedProcesses};
use crate::names::{SkillName, StepName};
use crate::outcome::{Outcome, StartFault, Termination};
use crate::plan::{Leaks, ReportFormat};
use crate::record::{RunRecord, SkillRecord};
use crate::verdict::{Doubt, Facts, exit_code, fold};

const LOG: &str = include_str!("../../../fixtures/logs/passed.jsonl");

/// Returns the recorded run, which passed.
pub(super) fn passed() -> RunRecord {
    let mut record = RunRecord::default();
    for line in LOG.lines() {
        let event: RunEvent = serde_json::from_str(line).expect("an event");
        record.apply(event, Duration::ZERO);
    }
    record
}

/// Returns a step of that run under another name; it passed.
pub(super) fn step(name: &str) -> StepEvidence {
    let record = passed();
    let (_, step) = record.steps().next().expect("a step");
    let mut step = step.clone();
    step.planned.name = StepName::new(name).expect("a step name");
    (step.stdout, step.stderr) = (StreamEvidence::empty(), StreamEvidence::empty());
    (step.drift.found, step.drift.applied) = (StepDrift::default(), Vec::new());
    step.duration_ms = 420;
    step
}

/// Returns a step with another outcome and termination.
pub(super) fn ended(name: &str, outcome: Outcome, termination: Termination) -> StepEvidence {
    let mut step = step(name);
    (step.outcome, step.exit_code) = (outcome, termination.exit_code());
    step.termination = termination;
    step
}

pub(super) fn failed(name: &str, stderr: &str) -> StepEvidence {
    let mut step = ended(name, Outcome::Failed, Termination::Exited { code: 1 });
    step.stderr = stream(stderr);
    step
}

pub(super) fn drifted(name: &str, paths: &[&str]) -> StepEvidence {
    let mut step = ended(name, Outcome::Drifted, Termination::Exited { code: 0 });
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

pub(super) fn stream(text: &str) -> StreamEvidence {
    let bytes = text.len() as u64;
    StreamEvidence { bytes, kept_bytes: bytes, preview: escape_output(text.as_bytes()), ..StreamEvidence::empty() }
}

/// Returns a run of these steps in one skill, with the verdict that follows from them.
pub(super) fn run(steps: Vec<StepEvidence>) -> RunRecord {
    let mut record = passed();
    let facts = Facts { outcomes: steps.iter().map(|step| step.outcome).collect(), doubts: Vec::new() };
    let skill = SkillRecord {
        skill: skill(),
        planned: steps.iter().map(|step| step.planned.name.clone()).collect(),
        outcome: Some(crate::evidence::fold_steps(steps.iter().map(|step| &step.outcome))),
        steps,
        ..record.skills[0].clone()
    };
    record.skills = vec![skill];
    record.checks.clear();
    end(&mut record, &facts);
    record
}

/// Returns the same run with a reason for an inconclusive verdict added.
pub(super) fn doubted(mut record: RunRecord, doubt: Doubt, message: &str) -> RunRecord {
    let outcomes = record.steps().map(|(_, step)| step.outcome).collect();
    record.add_doubts(&[(doubt, message.to_owned())]);
    end(&mut record, &Facts { outcomes, doubts: vec![doubt] });
    record
}

fn end(record: &mut RunRecord, facts: &Facts) {
    let finished = record.finished.as_mut().expect("it has ended");
    (finished.verdict, finished.exit_code, finished.duration_ms) = (fold(facts), exit_code(facts), 2_340);
}

pub(super) fn skill() -> SkillName {
    SkillName::new("verify.it").expect("a skill name")
}

/// Returns a run with one step of each kind: passed, flaky, failed, drifted, timed out, without a sandbox, skipped.
pub(super) fn one_of_each() -> RunRecord {
    let mut flaky = step("flaky");
    flaky.flaky = true;
    flaky.earlier_attempts = vec![crate::evidence::AttemptEvidence {
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
    let mut leaky = step("leaks");
    leaky.leaked = Some(leaked());
    let mut forbidden = ended("forbidden", Outcome::Failed, Termination::Exited { code: 0 });
    (forbidden.planned.leaks, forbidden.leaked) = (Leaks::Fail, Some(leaked()));
    run(vec![
        step("passes"),
        leaky,
        forbidden,
        flaky,
        failed("fails", HOSTILE),
        drifted("drifts", &["docs/a b.md", "x,y:z%\\x0a.rs"]),
        ended("late", Outcome::TimedOut, Termination::TimedOut { exit_code: 143 }),
        ended("sandboxed", Outcome::Inconclusive, missing),
        ended("skipped", Outcome::Skipped, not_reached),
    ])
}

/// Returns processes whose names contain markup, workflow commands and terminal escapes.
pub(super) fn leaked() -> LeakedProcesses {
    let names: [&[u8]; 3] = [b"sleep", b"`x`|::error::", b"\x1b[2J\n##[x]"];
    let named = names.iter().zip(7..).map(|(name, pid)| LeakedProcess::new(pid, name));
    LeakedProcesses::new(4, named.collect())
}

/// Output of a step that imitates commands and markup of other programs.
pub(super) const HOSTILE: &str = "::error file=a::forged\n  ::set-output name=verdict::passed\n##[add-mask]x\n##vso[task.complete]\n\
    ]]><failure/></testsuite>&amp;<script>alert(1)</script>\n```\n@octocat #1 [x](https://evil.example) `a`|b|\u{202e}\u{1b}[2J\u{0}\n";

/// Returns a report file of a tool.
pub(super) fn file(step: &str, format: ReportFormat, content: Content) -> ToolFile {
    ToolFile {
        skill: skill(),
        step: StepName::new(step).expect("a name"),
        format,
        path: "target/report".into(),
        content,
    }
}

pub(super) fn reported(record: RunRecord, files: Vec<ToolFile>) -> ReportedRun {
    ReportedRun { commit: None, came_to: CameTo::Run(Box::new(record)), files }
}

/// Returns the results of one command with these runs.
pub(super) fn input(runs: &[ReportedRun]) -> ReportInput<'_> {
    let exit_code = runs.first().and_then(ReportedRun::exit_code).unwrap_or(5);
    ReportInput { runs, left_out: 0, exit_code, token: "t0ken", below: "" }
}

/// A report similar to that of pytest: one case passed, one failed, one was flaky.
pub(super) const TOOLS_JUNIT: &str = r#"<testsuites><testsuite name="pytest"><testcase name="ok" classname="t"/>
    <testcase name="bad" classname="t" file="tests/a.py" line="7"><failure message="1 != 2">at length</failure></testcase>
    <testcase name="flaky"><flakyFailure message="once"/></testcase></testsuite></testsuites>"#;

/// Returns a log of two runs of ruff, each with this number of results, which contain hostile text.
pub(super) fn tools_sarif(results: usize) -> Content {
    let result = |n: usize| {
        json!({ "ruleId": "F401", "level": "error", "message": { "text": format!("{n} {HOSTILE}") }, "locations": [{
        "physicalLocation": { "artifactLocation": { "uri": "src/a.py" }, "region": { "startLine": n + 1, "startColumn": 2 } } }] })
    };
    let results: Vec<Value> = (0..results).map(result).collect();
    let run = json!({ "tool": { "driver": { "name": "ruff" } }, "results": results });
    Content::Read(json!({ "version": "2.1.0", "runs": [run.clone(), run] }).to_string().into_bytes())
}

/// Returns a run whose tools wrote two valid reports and two malformed ones.
pub(super) fn with_tools() -> ReportedRun {
    let files = vec![
        file("tests", ReportFormat::Junit, Content::Read(TOOLS_JUNIT.into())),
        file("lints", ReportFormat::Sarif, tools_sarif(2)),
        file("tests", ReportFormat::Sarif, Content::Read(b"<xml/>".to_vec())),
        file("lints", ReportFormat::Junit, Content::Read(b"<!DOCTYPE x><x/>".to_vec())),
    ];
    reported(run(vec![failed("tests", "1 failed\n"), step("lints")]), files)
}
