//! Writes JUnit XML in the form that Jenkins reads: a suite for each skill and for the toolchain, a case for each
//! step, then the suites of the steps' tools. A suite `proctor` contains everything that belongs to no step.
//!
//! Without the suites of tools, the document contains a failure or an error if and only if the verdict is not
//! passed.

use std::time::Duration;

use quick_junit::{FlakyOrRerun, NonSuccessKind, Report, TestCase, TestCaseStatus, TestRerun, TestSuite};

use super::report_text::{leak_warning, neutralize_lines, outcome_reason, single_line, stream_text};
use super::tool::{self, junit_reader as tools};
use crate::decision::verdict::Verdict;
use crate::model::drift::Diff;
use crate::model::names::{SkillName, StepName};
use crate::model::outcome::{Outcome, StartFault, Termination};
use crate::model::plan::ReportFormat;
use crate::record::evidence::{CACHED, CheckEvidence, StepEvidence};
use crate::record::run_record::{RunRecord, SkillRecord};
use crate::report::report_input::{ReportInput, ReportedRun, RunResult, ToolReport, ToolReportContent, is_problem};
use crate::text::safe_text::strip_colours;

/// Returns the document.
pub(super) fn render(input: &ReportInput<'_>) -> String {
    let mut report = Report::new("proctor");
    let mut spent = 0;
    for run in input.runs {
        report.add_test_suites(run_suites(run));
        spent += run.record().and_then(|record| record.finished.as_ref()).map_or(0, |finished| finished.duration_ms);
    }
    if input.left_out > 0 {
        let message = format!("{} more commits of the range were left out after one that did not pass", input.left_out);
        report.add_test_suite(single_case_suite("proctor", skipped_case("commits left out", &message)));
    }
    report.set_time(Duration::from_millis(spent));
    // The schema of Jenkins has no attribute `skipped` on the root. The root's attribute is the first one of this
    // name.
    let unknown = format!(" skipped=\"{}\"", report.skipped);
    // Writing to memory cannot fail. If it did, the empty document would not count as a pass.
    report.to_string().map(|xml| xml.replacen(&unknown, "", 1)).unwrap_or_default()
}

/// Returns the suites of one run.
fn run_suites(run: &ReportedRun) -> Vec<TestSuite> {
    let prefix = run.commit_prefix();
    let mut suites = Vec::new();
    match &run.result {
        RunResult::Refused(refusal) => {
            let text = [refusal.message.as_str()].into_iter().chain(refusal.hints.iter().map(String::as_str));
            let text = text.collect::<Vec<_>>().join("\n");
            suites.push(single_case_suite(
                &format!("{prefix}proctor"),
                error_case("run", "no_run", &refusal.message, &text),
            ));
        }
        RunResult::Recorded(record) => {
            suites.extend(toolchain_suite(&prefix, record));
            for skill in &record.skills {
                suites.push(skill_suite(&prefix, record, skill, run));
            }
            suites.extend(proctor_suite(&prefix, record));
            suites.extend(run.tool_reports.iter().flat_map(|file| tool_report_suites(&prefix, file)));
        }
    }
    suites
}

fn single_case_suite(name: &str, case: TestCase) -> TestSuite {
    let mut suite = TestSuite::new(name);
    suite.add_test_case(case);
    suite
}

fn toolchain_suite(prefix: &str, record: &RunRecord) -> Option<TestSuite> {
    let mut suite = TestSuite::new(format!("{prefix}toolchain"));
    suite.add_test_cases(record.checks.iter().map(check_case));
    (!record.checks.is_empty()).then_some(suite)
}

fn check_case(check: &CheckEvidence) -> TestCase {
    let mut status = TestCaseStatus::success();
    if !check.satisfied {
        let read = check.version_read.as_deref().unwrap_or("no version");
        status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status
            .set_type("toolchain")
            .set_message(xml_attribute(&format!("the check failed: {}; it read {read}", outcome_reason(&check.step))));
    }
    let mut case = TestCase::new(xml_attribute(&check.step.planned.cmd.to_string()), status);
    case.set_classname(check.toolchain.as_str());
    set_time_and_output(&mut case, &check.step);
    case
}

fn skill_suite(prefix: &str, record: &RunRecord, skill: &SkillRecord, run: &ReportedRun) -> TestSuite {
    let mut suite = TestSuite::new(format!("{prefix}{}", skill.skill));
    if let Some(started) = &record.started {
        suite.extra.insert("timestamp".into(), xml_attribute(&started.at).as_str().into());
        suite.add_property(("run_id", started.run_id.as_str()));
        suite.add_property(("snapshot", started.snapshot.as_str()));
    }
    if let Some(rerun) = record.partial_rerun() {
        let left_out: Vec<&str> = rerun.left_out.iter().map(SkillName::as_str).collect();
        suite.add_property(("left_out", left_out.join(" ").as_str()));
    }
    if let Some(scope) = record.scope() {
        suite.add_property(("scope", xml_attribute(&scope.phrase()).as_str()));
    }
    if let Some(tier) = skill.tier {
        suite.add_property(("tier", tier.to_string().as_str()));
    }
    let cached = skill.steps.iter().filter(|step| step.is_cached()).count();
    if cached > 0 {
        suite.add_property((CACHED, cached.to_string().as_str()));
    }
    for (name, value) in skill.steps.iter().flat_map(step_properties) {
        suite.add_property((name.as_str(), value.as_str()));
    }
    suite.set_time(Duration::from_millis(skill.steps.iter().map(|step| step.duration_ms).sum()));
    for step in &skill.steps {
        suite.add_test_case(step_case(&skill.skill, step));
        suite.add_test_cases(
            run.tool_reports_of(&skill.skill, &step.planned.name).filter_map(|file| unusable_report_case(step, file)),
        );
    }
    let has_ended = |name: &StepName| skill.steps.iter().any(|step| step.planned.name == *name);
    for name in skill.planned.iter().filter(|name| !has_ended(name)) {
        let reason = if skill.reason.is_empty() { "it was never started" } else { &skill.reason };
        let mut case = skipped_case(name.as_str(), reason);
        case.set_classname(skill.skill.as_str());
        suite.add_test_case(case);
    }
    suite
}

fn step_case(skill: &SkillName, step: &StepEvidence) -> TestCase {
    let mut case = TestCase::new(step.planned.name.as_str(), case_status(step));
    case.set_classname(skill.as_str());
    set_time_and_output(&mut case, step);
    case
}

/// Returns notes about a passed step, as properties of its suite. The schema of Jenkins permits none in a case, and its
/// xUnit plugin skips a document that does not match the schema.
fn step_properties(step: &StepEvidence) -> impl Iterator<Item = (String, String)> {
    let source = step.reused.as_ref().map(|source| (CACHED, source.phrase()));
    let files = step.files_note().map(|phrase| ("checked_files", phrase));
    let inputs = step.inputs_note().map(|phrase| ("inputs", phrase));
    [source, files, inputs]
        .into_iter()
        .flatten()
        .map(|(key, phrase)| (format!("{}.{key}", step.planned.name), xml_attribute(&phrase)))
}

/// Sets the time and the output of a command.
fn set_time_and_output(case: &mut TestCase, step: &StepEvidence) {
    case.set_time(Duration::from_millis(step.duration_ms));
    if step.stdout.bytes > 0 {
        case.set_system_out(xml_text(&stream_text(&step.stdout)));
    }
    let printed = (step.stderr.bytes > 0).then(|| stream_text(&step.stderr));
    let warning = leak_warning(step).map(|warning| format!("[proctor] warning: the command {warning}\n"));
    let shown: Vec<String> = printed.into_iter().chain(warning).collect();
    if !shown.is_empty() {
        case.set_system_err(xml_text(&shown.join("\n")));
    }
}

fn case_status(step: &StepEvidence) -> TestCaseStatus {
    let (kind, ty) = match step.outcome {
        Outcome::Passed => {
            let flaky_runs = step
                .earlier_attempts
                .iter()
                .map(|attempt| attempt_rerun(attempt.outcome, &attempt.termination))
                .collect();
            return TestCaseStatus::Success { flaky_runs };
        }
        Outcome::Skipped | Outcome::NoFiles => {
            let mut status = TestCaseStatus::skipped();
            status.set_message(xml_attribute(&outcome_reason(step)));
            return status;
        }
        Outcome::Failed => (NonSuccessKind::Failure, "failed"),
        Outcome::Drifted => (NonSuccessKind::Failure, "drift"),
        Outcome::TimedOut => (NonSuccessKind::Error, "timeout"),
        Outcome::Cancelled => (NonSuccessKind::Error, "cancelled"),
        Outcome::Inconclusive => (NonSuccessKind::Error, inconclusive_type(&step.termination)),
    };
    let mut status = TestCaseStatus::non_success(kind);
    status
        .set_type(ty)
        .set_message(xml_attribute(&outcome_reason(step)))
        .set_description(xml_text(&failure_text(step)));
    status.set_rerun_kind(FlakyOrRerun::Rerun);
    for attempt in &step.earlier_attempts {
        status.add_rerun(attempt_rerun(attempt.outcome, &attempt.termination));
    }
    status
}

/// Returns a word for the reason why the outcome is inconclusive.
fn inconclusive_type(termination: &Termination) -> &'static str {
    match termination {
        Termination::NotStarted { fault: StartFault::Sandbox, .. } => "sandbox",
        Termination::NotStarted { fault: StartFault::ProgramMissing, .. } => "program_missing",
        Termination::NotStarted { fault: StartFault::Workdir, .. } => "workdir",
        Termination::NotStarted { fault: StartFault::Remote, .. } => "remote",
        Termination::NotStarted { fault: StartFault::Internal, .. } => "internal",
        _ => "inconclusive",
    }
}

fn attempt_rerun(outcome: Outcome, termination: &Termination) -> TestRerun {
    let kind = if outcome == Outcome::Failed { NonSuccessKind::Failure } else { NonSuccessKind::Error };
    let mut rerun = TestRerun::new(kind);
    rerun.set_type(outcome.as_str()).set_message(termination.phrase());
    rerun
}

/// Returns the text below a failure's message: the command and its changes.
fn failure_text(step: &StepEvidence) -> String {
    let mut text = format!("$ {}\n{}\n", single_line(&step.planned.cmd.to_string()), outcome_reason(step));
    for change in &step.drift.found.changes {
        match &change.diff {
            Diff::Whole { text: diff } => text.push_str(diff),
            Diff::Truncated { text: diff, omitted_lines } => {
                text.push_str(&format!("{diff}[… {omitted_lines} more lines …]\n"));
            }
            Diff::Binary | Diff::None | Diff::Omitted { .. } => {
                text.push_str(&format!("{}\n", single_line(&change.path)));
            }
        }
    }
    if step.drift.found.omitted > 0 {
        text.push_str(&format!("[… {} more changed paths …]\n", step.drift.found.omitted));
    }
    text
}

/// Returns the suite with the reasons for an inconclusive verdict that belong to no step.
fn proctor_suite(prefix: &str, record: &RunRecord) -> Option<TestSuite> {
    let verdict = record.finished.as_ref().map_or(Verdict::Inconclusive, |finished| finished.verdict);
    let mut suite = TestSuite::new(format!("{prefix}proctor"));
    for doubt in &record.doubts {
        let word = doubt.doubt.as_str();
        suite.add_test_case(error_case(word, word, &doubt.message, &doubt.message));
    }
    for (rerun, skill) in
        record.partial_rerun().iter().flat_map(|rerun| rerun.left_out.iter().map(move |skill| (rerun, skill)))
    {
        let message = format!("skipped in a partial run: it passed in run {}", rerun.after);
        suite.add_test_case(skipped_case(skill.as_str(), &message));
    }
    let is_explained = suite.errors > 0
        || record.steps().any(|(_, step)| is_problem(step))
        || record.checks.iter().any(|check| !check.satisfied);
    if verdict != Verdict::Passed && !is_explained {
        let message = format!("the verdict is {}, but no recorded step explains it", verdict.as_str());
        suite.add_test_case(error_case("verdict", verdict.as_str(), &message, &message));
    }
    (suite.tests > 0).then_some(suite)
}

fn error_case(name: &str, ty: &str, message: &str, text: &str) -> TestCase {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
    status.set_type(ty).set_message(xml_attribute(message)).set_description(xml_text(text));
    let mut case = TestCase::new(name, status);
    case.set_classname("proctor");
    case
}

fn skipped_case(name: &str, message: &str) -> TestCase {
    let mut status = TestCaseStatus::skipped();
    status.set_message(xml_attribute(message));
    let mut case = TestCase::new(name, status);
    case.set_classname("proctor");
    case
}

/// Returns the case for a report that cannot be merged. A missing report counts only if the step ran.
fn unusable_report_case(step: &StepEvidence, file: &ToolReport) -> Option<TestCase> {
    let name = format!("{} report {}", step.planned.name, single_line(&file.path));
    let refused = |problem: &dyn std::fmt::Display| {
        let message = tool::unreadable_report_message(&file.path, problem);
        Some(error_case(&name, "report", &message, &message))
    };
    match &file.content {
        ToolReportContent::Unavailable(problem) => refused(problem),
        ToolReportContent::Missing
            if step.outcome.is_left_out() || matches!(step.outcome, Outcome::Cancelled | Outcome::Inconclusive) =>
        {
            None
        }
        ToolReportContent::Missing => Some(skipped_case(&name, "the step wrote none")),
        ToolReportContent::Read(bytes) => match file.format {
            ReportFormat::Junit => refused(&tools::parse(bytes).err()?),
            ReportFormat::Sarif => refused(&tool::sarif_reader::parse(bytes).err()?),
        },
    }
}

/// Returns the suites of a tool's report.
fn tool_report_suites(prefix: &str, file: &ToolReport) -> Vec<TestSuite> {
    let (ReportFormat::Junit, ToolReportContent::Read(bytes)) = (file.format, &file.content) else { return Vec::new() };
    let step = format!("{prefix}{}/{}", file.skill, file.step);
    let named = |suite: tools::JunitSuite| {
        let mut merged = TestSuite::new(xml_attribute(&format!("{step}: {}", suite.name)));
        if let Some(time) = suite.time {
            merged.set_time(time);
        }
        merged.add_test_cases(suite.cases.iter().map(tool_case));
        merged
    };
    // An unreadable report gets its own case in the suite of the skill.
    tools::parse(bytes).unwrap_or_default().into_iter().filter(|suite| !suite.cases.is_empty()).map(named).collect()
}

fn tool_case(case: &tools::JunitCase) -> TestCase {
    let mut merged = TestCase::new(xml_attribute(&case.name), tool_case_status(case));
    if let Some(class) = &case.class {
        merged.set_classname(xml_attribute(class));
    }
    if let Some(time) = case.time {
        merged.set_time(time);
    }
    for (output, set) in
        [(&case.stdout, true), (&case.stderr, false)].into_iter().filter(|(output, _)| !output.is_empty())
    {
        let text = xml_text(&strip_colours(output));
        if set {
            merged.set_system_out(text)
        } else {
            merged.set_system_err(text)
        };
    }
    merged
}

fn tool_case_status(case: &tools::JunitCase) -> TestCaseStatus {
    use tools::JunitResultKind::{Error, FlakyError, FlakyFailure, RerunError, RerunFailure, Skipped};
    let reruns = case.results.iter().filter_map(|end| match end.kind {
        FlakyFailure | RerunFailure => Some(tool_rerun(NonSuccessKind::Failure, end)),
        FlakyError | RerunError => Some(tool_rerun(NonSuccessKind::Error, end)),
        _ => None,
    });
    let mut status = match (case.failure(), case.results.iter().find(|end| end.kind == Skipped)) {
        (None, None) => return TestCaseStatus::Success { flaky_runs: reruns.collect() },
        (Some(end), _) if end.kind == Error => TestCaseStatus::non_success(NonSuccessKind::Error),
        (Some(_), _) => TestCaseStatus::non_success(NonSuccessKind::Failure),
        (None, Some(_)) => TestCaseStatus::skipped(),
    };
    if let Some(end) = case.failure().or_else(|| case.results.iter().find(|end| end.kind == Skipped)) {
        if let Some(ty) = &end.type_name {
            status.set_type(xml_attribute(ty));
        }
        if let Some(message) = &end.message {
            status.set_message(xml_attribute(&strip_colours(message)));
        }
        if !end.text.is_empty() {
            status.set_description(xml_text(&strip_colours(&end.text)));
        }
    }
    if case.failure().is_some() {
        status.add_reruns(reruns);
    }
    status
}

fn tool_rerun(kind: NonSuccessKind, end: &tools::JunitCaseResult) -> TestRerun {
    let mut rerun = TestRerun::new(kind);
    // The schema requires a type.
    rerun.set_type(xml_attribute(end.type_name.as_deref().unwrap_or("rerun")));
    if let Some(message) = &end.message {
        rerun.set_message(xml_attribute(message));
    }
    rerun
}

/// Formats text for an attribute on one line, because XML parsers replace newlines in attributes by spaces.
fn xml_attribute(text: &str) -> String {
    xml_text(&single_line(text))
}

/// Formats text for XML 1.0: escapes characters that it cannot represent, and replaces tabs by spaces, because tabs
/// would be lost.
fn xml_text(text: &str) -> String {
    neutralize_lines(text).replace('\t', "    ")
}
