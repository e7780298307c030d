//! Writes SARIF 2.1.0 (<https://docs.oasis-open.org/sarif/sarif/v2.1.0/>): one run for Proctor with a result for
//! each step that did not pass, and the runs of the steps' tools as the tools wrote them.
//!
//! Servers limit the size of a document (GitHub: 20 runs, 10 MB compressed, of which it keeps 5,000 results), so this
//! module does too. It leaves out what exceeds the limits, and reports that in a notification of Proctor's own run.

use serde_json::{Map, Value, json};

use super::output_findings::{OutputFinding, output_findings};
use super::report_text::{first_changed_line, leak_warning, outcome_reason, path_to_uri, single_line};
use super::tool::{self, sarif_reader as tools};
use crate::decision::verdict::Verdict;
use crate::model::outcome::Outcome;
use crate::model::plan::ReportFormat;
use crate::record::evidence::{StepEvidence, TreeSource};
use crate::record::run_record::RunRecord;
use crate::report::report_input::{
    ReportInput, ReportedRefusal, ReportedRun, RunResult, ToolReport, ToolReportContent,
};
use crate::text::digest::Sha256Hex;
use crate::text::safe_text::escape_json_for_display;

/// Maximum number of runs in a document.
pub(super) const MAX_RUNS: usize = 20;
/// Maximum number of results in a document, of all runs together.
pub(super) const MAX_RESULTS: usize = 5_000;
/// Maximum size of a document, in bytes. The limit of servers is for compressed data, but a document within it
/// before compression is also within it afterwards.
pub(super) const MAX_DOCUMENT_BYTES: usize = 10_000_000;
/// Part of this size that is reserved for our own notifications and for brackets.
const RESERVED_BYTES: usize = 100_000;
/// Maximum number of locations of a result.
const MAX_LOCATIONS: usize = 100;
/// Maximum number of notifications of one kind in our run.
const MAX_NOTICES: usize = 100;
/// The file that declares the steps: the location of a result that has no other.
const SPEC_PATH: &str = "spec/verification.yaml";
/// The base of every path.
const URI_BASE_ID: &str = "%SRCROOT%";

/// The rules for steps, each with its id, name and description.
const RULES: [(&str, &str, &str); 6] = [
    (
        "proctor/failed",
        "StepFailed",
        "A step of the repository's own checks ran to completion without the expected result.",
    ),
    ("proctor/drift", "StepDrifted", "A step changed files that it must not change."),
    ("proctor/timeout", "StepTimedOut", "A step did not end within its time limit."),
    ("proctor/inconclusive", "StepInconclusive", "A step has no reliable result: it did not run as required."),
    ("proctor/output", "ToolError", "The output of a step that failed names a line of a file."),
    ("proctor/toolchain", "ToolchainUnsatisfied", "A toolchain check failed, so no step could run."),
];

/// The end of the help of each rule.
const RULE_HELP: &str =
    "The log of `proctor run`, and `proctor report` with the id of the run, show its command and its output.";

/// Returns the document.
pub(super) fn render(input: &ReportInput<'_>) -> String {
    let mut budget = SarifBudget {
        runs: MAX_RUNS,
        results: MAX_RESULTS,
        bytes: MAX_DOCUMENT_BYTES - RESERVED_BYTES,
        left_out: Vec::new(),
    };
    let own = budget.fit_run(proctor_run(input), input.runs.iter().flat_map(proctor_results).collect(), "Proctor");
    let mut runs: Vec<Value> = own.into_iter().collect();
    for (index, run) in input.runs.iter().enumerate() {
        for file in &run.tool_reports {
            let notices: Vec<String> = match tool_runs(run, file) {
                Ok(found) => found.into_iter().filter_map(|found| budget.fit_tool_run(found, &mut runs)).collect(),
                Err(error) => vec![error.to_string()],
            };
            notices.iter().for_each(|text| add_notification(&mut runs, index, "proctor/report", text));
        }
    }
    if input.left_out > 0 {
        budget
            .left_out
            .push(format!("{} more commits of the range were left out after one that did not pass", input.left_out));
    }
    budget.left_out.iter().for_each(|text| add_notification(&mut runs, 0, "proctor/left-out", text));
    let document = json!({
        "$schema": "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json",
        "version": "2.1.0",
        "runs": runs,
    });
    escape_json_for_display(&document.to_string()) + "\n"
}

/// The remaining space in the document, and notes about what was left out.
struct SarifBudget {
    runs: usize,
    results: usize,
    bytes: usize,
    left_out: Vec<String>,
}

impl SarifBudget {
    /// Returns a run with as many of its results as fit.
    fn fit_run(&mut self, mut frame: Map<String, Value>, results: Vec<Value>, name: &str) -> Option<Value> {
        let size = json_bytes(&Value::Object(frame.clone()));
        if self.runs == 0 || size > self.bytes {
            self.left_out.push(format!("the run of {name} was left out, with {} results", results.len()));
            return None;
        }
        self.runs -= 1;
        self.bytes -= size;
        let all = results.len();
        let mut kept = Vec::new();
        for result in results {
            let size = json_bytes(&result) + 1;
            if self.results == 0 || size > self.bytes {
                break;
            }
            self.results -= 1;
            self.bytes -= size;
            kept.push(result);
        }
        if kept.len() < all {
            self.left_out.push(format!("{} of {all} results of {name} were left out", all - kept.len()));
        }
        frame.insert("results".to_owned(), Value::Array(kept));
        Some(Value::Object(frame))
    }

    /// Adds a tool's run; returns a note about it, if needed.
    fn fit_tool_run(&mut self, found: NamedSarifRun, runs: &mut Vec<Value>) -> Option<String> {
        let NamedSarifRun { run, name } = found;
        let broken = (run.invalid_results > 0).then(|| {
            format!("{} results of {name} violate the schema of SARIF 2.1.0 and were left out", run.invalid_results)
        });
        runs.extend(self.fit_run(run.run_object, run.results, &name));
        broken
    }
}

/// Returns the size of a value in the document, in bytes, including escapes.
fn json_bytes(value: &Value) -> usize {
    escape_json_for_display(&value.to_string()).len()
}

/// Returns our run without its results: an invocation for each run of the command.
fn proctor_run(input: &ReportInput<'_>) -> Map<String, Value> {
    let driver = json!({
        "name": "Proctor",
        "version": env!("CARGO_PKG_VERSION"),
        "semanticVersion": env!("CARGO_PKG_VERSION"),
        "informationUri": env!("CARGO_PKG_REPOSITORY"),
        "rules": RULES.iter().map(|(id, name, text)| json!({
            "id": id,
            "name": name,
            "shortDescription": { "text": text },
            // GitHub requires these two as well.
            "fullDescription": { "text": text },
            "help": { "text": format!("{text} {RULE_HELP}") },
            "defaultConfiguration": { "level": "error" },
        })).collect::<Vec<_>>(),
    });
    let mut frame = Map::new();
    frame.insert("tool".into(), json!({ "driver": driver }));
    frame.insert("columnKind".into(), json!("unicodeCodePoints"));
    frame.insert(
        "originalUriBaseIds".into(),
        json!({ URI_BASE_ID: { "description": { "text": "the root of the repository" } } }),
    );
    frame.insert("automationDetails".into(), json!({ "id": "proctor/" }));
    frame.insert("invocations".into(), input.runs.iter().map(invocation).collect());
    frame
}

fn invocation(run: &ReportedRun) -> Value {
    let mut invocation = json!({ "executionSuccessful": run.verdict() != Verdict::Inconclusive });
    if let Some(code) = run.exit_code() {
        invocation["exitCode"] = json!(code);
    }
    let notices: Vec<Value> = match &run.result {
        RunResult::Recorded(record) => {
            if let Some(started) = &record.started {
                invocation["startTimeUtc"] = json!(started.at);
            }
            let doubts = record.doubts.iter().take(MAX_NOTICES);
            let doubts = doubts.map(|doubt| notification("error", doubt.doubt.as_str(), &doubt.message));
            let partial = record.selection_sentence().filter(|_| record.is_partial());
            let partial = partial.map(|sentence| notification("warning", "partial-run", &sentence));
            let leaks = leak_sentences(record).take(MAX_NOTICES);
            let leaks = leaks.map(|warning| notification("warning", "leaked-processes", &warning));
            let cached = record.cached_sentence().map(|sentence| notification("note", "cached-steps", &sentence));
            let files = record.files_sentences().take(MAX_NOTICES);
            let files = files.map(|sentence| notification("note", "checked-files", &sentence));
            let inputs = record.inputs_sentences().take(MAX_NOTICES);
            let inputs = inputs.map(|sentence| notification("note", "inputs", &sentence));
            doubts.chain(partial).chain(leaks).chain(cached).chain(files).chain(inputs).collect()
        }
        RunResult::Refused(ReportedRefusal { message, .. }) => vec![notification("error", "no-run", message)],
    };
    invocation["toolExecutionNotifications"] = json!(notices);
    if let Some(properties) = run.record().and_then(run_properties) {
        invocation["properties"] = properties;
    }
    invocation
}

/// Returns a sentence for each step and check that passed and left processes behind.
fn leak_sentences(record: &RunRecord) -> impl Iterator<Item = String> {
    let checks = record.checks.iter().map(|check| (format!("toolchain {}", check.toolchain), &check.step));
    let steps = record.steps().map(|(skill, step)| (format!("{skill}/{}", step.planned.name), step));
    checks.chain(steps).filter_map(|(name, step)| Some(format!("{name} {}", leak_warning(step)?)))
}

fn run_properties(record: &RunRecord) -> Option<Value> {
    let started = record.started.as_ref()?;
    let mut properties = json!({
        "runId": started.run_id, "profile": started.profile, "snapshot": started.snapshot,
        "specSha256": started.spec_sha256, "planSha256": started.plan_sha256,
    });
    if let TreeSource::Rev { commit, .. } = &started.source {
        properties["commit"] = json!(commit);
    }
    if let Some(rerun) = record.partial_rerun() {
        properties["leftOut"] = json!(rerun.left_out);
    }
    if let Some(scope) = record.scope() {
        properties["scope"] = json!(scope);
    }
    if let Some(finished) = &record.finished {
        properties["verdict"] = json!(finished.verdict);
        properties["tier"] = json!(finished.tier);
        if let Some(reuse) = &finished.reuse {
            properties["reuse"] = json!(reuse);
        }
    }
    Some(properties)
}

fn notification(level: &str, id: &str, text: &str) -> Value {
    json!({ "level": level, "descriptor": { "id": id }, "message": { "text": text } })
}

/// Adds a warning to an invocation of our run.
fn add_notification(runs: &mut [Value], invocation: usize, id: &str, text: &str) {
    let list = runs
        .first_mut()
        .and_then(|own| own.pointer_mut(&format!("/invocations/{invocation}/toolExecutionNotifications")));
    let list = list.and_then(Value::as_array_mut);
    if let Some(list) = list.filter(|list| list.len() < 2 * MAX_NOTICES) {
        list.push(notification("warning", id, text));
    }
}

fn proctor_results(run: &ReportedRun) -> Vec<Value> {
    let Some(record) = run.record() else { return Vec::new() };
    let prefix = run.commit_prefix();
    let checks = record.checks.iter().filter(|check| !check.satisfied).map(|check| {
        let name = format!("{prefix}toolchain {}", check.toolchain);
        step_result("proctor/toolchain", &name, &check.step, &[location(SPEC_PATH, 1)])
    });
    let steps = record.steps().flat_map(|(skill, step)| {
        let name = format!("{prefix}{skill}/{}", step.planned.name);
        let result = rule_id(step.outcome).map(|rule| step_result(rule, &name, step, &locations(step)));
        let has_own = run.tool_reports_of(skill, &step.planned.name).any(|file| file.format == ReportFormat::Sarif);
        let findings = if has_own { Vec::new() } else { output_findings(run, step) };
        result.into_iter().chain(findings.into_iter().map(move |finding| finding_result(&name, &finding)))
    });
    checks.chain(steps).collect()
}

fn rule_id(outcome: Outcome) -> Option<&'static str> {
    match outcome {
        Outcome::Failed => Some("proctor/failed"),
        Outcome::Drifted => Some("proctor/drift"),
        Outcome::TimedOut => Some("proctor/timeout"),
        Outcome::Inconclusive => Some("proctor/inconclusive"),
        Outcome::Passed | Outcome::Skipped | Outcome::NoFiles | Outcome::Cancelled => None,
    }
}

fn step_result(rule: &str, name: &str, step: &StepEvidence, locations: &[Value]) -> Value {
    let index = RULES.iter().position(|(id, ..)| *id == rule);
    json!({
        "ruleId": rule,
        "ruleIndex": index,
        "level": "error",
        "message": { "text": format!("{name} {}", outcome_reason(step)) },
        "locations": locations,
        "partialFingerprints": { "proctorStep/v1": Sha256Hex::digest(format!("{rule}\0{name}").as_bytes()) },
        "properties": { "outcome": step.outcome, "command": single_line(&step.planned.cmd.to_string()) },
    })
}

/// Returns the result for an error in the output of a step.
fn finding_result(name: &str, finding: &OutputFinding) -> Value {
    let OutputFinding { path, line, column, message } = finding;
    let rule = "proctor/output";
    let mut place = location(&path_to_uri(path), *line);
    if let Some(column) = column.filter(|column| *column > 0) {
        place["physicalLocation"]["region"]["startColumn"] = json!(column);
    }
    let message = single_line(message);
    let fingerprint = Sha256Hex::digest(format!("{rule}\0{name}\0{path}\0{message}").as_bytes());
    json!({
        "ruleId": rule,
        "ruleIndex": RULES.iter().position(|(id, ..)| *id == rule),
        "level": "error",
        "message": { "text": format!("{name}: {message}") },
        "locations": [place],
        "partialFingerprints": { "proctorStep/v1": fingerprint },
    })
}

/// Returns the locations of a result: the changed paths, or else the declaration of the step.
fn locations(step: &StepEvidence) -> Vec<Value> {
    let found = &step.drift.found;
    match step.outcome == Outcome::Drifted && !found.changes.is_empty() {
        true => found
            .changes_for_display()
            .take(MAX_LOCATIONS)
            .map(|change| location(&path_to_uri(&change.path), first_changed_line(change)))
            .collect(),
        false => vec![location(SPEC_PATH, 1)],
    }
}

fn location(uri: &str, line: u64) -> Value {
    json!({ "physicalLocation": {
        "artifactLocation": { "uri": uri, "uriBaseId": URI_BASE_ID }, "region": { "startLine": line },
    } })
}

/// A run of a tool, prepared for the document.
struct NamedSarifRun {
    run: tools::SarifRun,
    /// The names of the tool and of its step.
    name: String,
}

/// The reason why the document contains no runs of a file.
#[derive(Debug, thiserror::Error)]
enum ToolRunsError {
    /// The step did not write the file.
    #[error("{step} wrote no report `{}`", single_line(.path))]
    Missing { step: String, path: String },
    /// The file was not stored.
    #[error("{step}: {}", tool::unreadable_report_message(.path, .reason))]
    Unavailable { step: String, path: String, reason: String },
    /// The file is invalid.
    #[error("{step}: {}", tool::unreadable_report_message(.path, .source))]
    Invalid { step: String, path: String, source: tools::SarifReadError },
}

/// Returns the runs in a file. Each gets its own category, because servers distinguish the runs of one tool by
/// category.
fn tool_runs(reported_run: &ReportedRun, file: &ToolReport) -> Result<Vec<NamedSarifRun>, ToolRunsError> {
    let step = format!("{}{}/{}", reported_run.commit_prefix(), file.skill, file.step);
    let bytes = match (file.format, &file.content) {
        (ReportFormat::Junit, _) => return Ok(Vec::new()),
        (ReportFormat::Sarif, ToolReportContent::Missing) => {
            return Err(ToolRunsError::Missing { step, path: file.path.clone() });
        }
        (ReportFormat::Sarif, ToolReportContent::Unavailable(reason)) => {
            return Err(ToolRunsError::Unavailable { step, path: file.path.clone(), reason: reason.clone() });
        }
        (ReportFormat::Sarif, ToolReportContent::Read(bytes)) => bytes,
    };
    let runs = match tools::parse(bytes) {
        Ok(runs) => runs,
        Err(source) => return Err(ToolRunsError::Invalid { step, path: file.path.clone(), source }),
    };
    let named = |(index, mut run): (usize, tools::SarifRun)| {
        let category = match run.run_object.get("automationDetails").and_then(|details| details.get("id")) {
            Some(Value::String(id)) => format!("{step}/{id}"),
            _ => format!("{step}/{index}/"),
        };
        let details = run.run_object.entry("automationDetails").or_insert_with(|| json!({}));
        details["id"] = json!(category);
        let name = format!("{} of {step}", single_line(run.tool_name()));
        NamedSarifRun { run, name }
    };
    Ok(runs.into_iter().enumerate().map(named).collect())
}
