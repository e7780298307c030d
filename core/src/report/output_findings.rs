//! Finds errors in the outputs of failed steps that name a file of the repository.

use std::collections::BTreeSet;

use super::report_text::truncate_chars;
use crate::model::outcome::Outcome;
use crate::record::evidence::StepEvidence;
use crate::record::run_record::RunRecord;
use crate::report::report_input::{ReportedRun, RepositoryFiles};
use crate::report::stream_texts::StreamTexts;
use crate::text::tool_errors::{ErrorKind, SourceLocation, ToolError, find_errors};

/// Maximum number of findings of a step.
pub(super) const MAX_FINDINGS: usize = 10;
/// Maximum number of errors of a step whose locations are searched for files of the repository.
const MAX_SEARCHED_ERRORS: usize = 200;
/// Maximum number of characters of a message.
const MAX_MESSAGE_CHARS: usize = 500;
/// Directories with third-party code. A frame of a stack trace in such a directory is not the cause of a failure.
const FOREIGN_DIRECTORIES: [&str; 5] = ["node_modules", ".venv", "venv", "site-packages", ".git"];

/// An error in the output of a step that names a file of the repository.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OutputFinding {
    /// The path relative to the repository.
    pub path: String,
    /// The line, counted from 1.
    pub line: u64,
    /// The column, counted from 1.
    pub column: Option<u64>,
    /// The first line of the message.
    pub message: String,
}

/// Returns the paths that outputs of failed steps name, relative to the repository. A caller checks which of them
/// exist.
pub fn named_paths(record: &RunRecord, outputs: &StreamTexts, root: &str) -> BTreeSet<String> {
    let steps = record.steps().map(|(_, step)| step).filter(|step| has_findings(step));
    steps
        .flat_map(|step| {
            let errors = step_errors(step, outputs);
            errors
                .into_iter()
                .flat_map(move |error| error.locations)
                .flat_map(move |place| candidates(&place, step, root))
        })
        .collect()
}

/// Returns the errors of a failed step that name an existing file, at most [`MAX_FINDINGS`].
pub(super) fn output_findings(run: &ReportedRun, step: &StepEvidence) -> Vec<OutputFinding> {
    if !has_findings(step) || run.repository.existing.is_empty() {
        return Vec::new();
    }
    let mut seen = BTreeSet::new();
    let errors = step_errors(step, &run.outputs);
    let found = errors.iter().filter_map(|error| finding(error, step, &run.repository));
    found.filter(|finding| seen.insert(finding.clone())).take(MAX_FINDINGS).collect()
}

fn has_findings(step: &StepEvidence) -> bool {
    matches!(step.outcome, Outcome::Failed | Outcome::TimedOut)
}

fn step_errors(step: &StepEvidence, outputs: &StreamTexts) -> Vec<ToolError> {
    let streams = [&step.stderr, &step.stdout].map(|stream| outputs.text(stream));
    let errors = streams.iter().flat_map(|text| find_errors(&text.lines().collect::<Vec<_>>()));
    errors.filter(|error| error.kind == ErrorKind::Detail).take(MAX_SEARCHED_ERRORS).collect()
}

fn finding(error: &ToolError, step: &StepEvidence, repository: &RepositoryFiles) -> Option<OutputFinding> {
    let place = |place: &SourceLocation| {
        let path = candidates(place, step, &repository.root).find(|path| repository.existing.contains(path))?;
        Some((path, place.line.max(1), place.column))
    };
    let (path, line, column) = error.locations.iter().find_map(place)?;
    let message = truncate_chars(&error.message, MAX_MESSAGE_CHARS);
    Some(OutputFinding { path, line, column, message })
}

/// Returns the paths in the repository that a location can mean: relative to the working directory of the step, then
/// relative to the repository.
fn candidates(place: &SourceLocation, step: &StepEvidence, root: &str) -> impl Iterator<Item = String> + use<> {
    let below_root = place.path.strip_prefix(root).and_then(|path| path.strip_prefix('/')).filter(|_| !root.is_empty());
    let workdir = step.planned.workdir.as_str();
    let paths = match below_root {
        Some(path) => vec![normalize(path)],
        None if place.path.starts_with('/') => Vec::new(),
        None => vec![normalize(&format!("{workdir}/{}", place.path)), normalize(&place.path)],
    };
    paths.into_iter().flatten()
}

/// Removes `.` and `..` from a path; `None` if the path leaves the repository, is the repository itself, leads to
/// third-party code, or contains characters that Proctor's documents escape.
fn normalize(path: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    let is_plain = !path.contains(['\\', ':']) && !path.contains(crate::text::safe_text::affects_display);
    let is_foreign = parts.iter().any(|part| FOREIGN_DIRECTORIES.contains(part));
    (is_plain && !is_foreign && !parts.is_empty()).then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture::{failed_step, passed_step, reported_run, run_of_steps};

    const OUTPUT: &str = "error[E0308]: mismatched types\n  --> src/main.rs:4:20\nsrc/../lib/b.py:3: error: no\n\
                          ../c.py:1:1: F401 outside\n/etc/passwd:1:1: F401 outside\n/repo/d.py:2:1: F401 inside\n\
                          gone.py:1:1: F401 missing\nnode_modules/e.js:1:1: foreign\n";

    fn findings(step: &StepEvidence, existing: &[&str]) -> Vec<String> {
        let mut run = reported_run(run_of_steps(vec![step.clone()]), Vec::new());
        run.repository.root = "/repo".into();
        run.repository.existing = existing.iter().map(|path| (*path).to_owned()).collect();
        let text =
            |found: OutputFinding| format!("{}:{}:{:?}: {}", found.path, found.line, found.column, found.message);
        output_findings(&run, step).into_iter().map(text).collect()
    }

    #[test]
    fn finds_errors_in_existing_files_of_the_repository() {
        let existing = ["src/main.rs", "lib/b.py", "c.py", "d.py", "etc/passwd", "node_modules/e.js"];
        assert_eq!(
            findings(&failed_step("a", OUTPUT), &existing),
            [
                "src/main.rs:4:Some(20): error[E0308]: mismatched types",
                "lib/b.py:3:None: error: no",
                "d.py:2:Some(1): F401 inside"
            ]
        );
        let named = named_paths(&run_of_steps(vec![failed_step("a", OUTPUT)]), &StreamTexts::default(), "/repo");
        assert_eq!(named.into_iter().collect::<Vec<_>>(), ["d.py", "gone.py", "lib/b.py", "src/main.rs"]);
    }

    #[test]
    fn prefers_paths_relative_to_the_working_directory() {
        let mut step = failed_step("a", "a.py:1:1: F401 x\nsub/b.py:1:1: F401 y\n");
        step.planned.workdir = crate::model::plan::RelPath::new("sub").expect("a path");
        assert_eq!(
            findings(&step, &["a.py", "sub/a.py", "sub/b.py"]),
            ["sub/a.py:1:Some(1): F401 x", "sub/b.py:1:Some(1): F401 y"]
        );
    }

    #[test]
    fn passed_step_has_no_findings() {
        let mut step = passed_step("a");
        step.stderr = crate::report::fixture::stream_evidence(OUTPUT);
        assert_eq!(findings(&step, &["src/main.rs"]), [""; 0]);
    }

    #[test]
    fn number_of_findings_is_bounded() {
        let output: String = (1..50).map(|line| format!("a.py:{line}:1: F401 x\n")).collect();
        assert_eq!(findings(&failed_step("a", &output), &["a.py"]).len(), MAX_FINDINGS);
    }
}
