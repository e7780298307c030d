//! Writes the result of a command in every requested format: one to standard output, others to files, and GitHub's
//! summary and output files. `core` renders the texts; this module delivers them.

mod github_files;
mod tool_reports;

use std::io;
use std::path::PathBuf;

use proctor_core::decision::verdict::Verdict;
use proctor_core::model::event::RunEvent;
use proctor_core::model::tier::Tier;
use proctor_core::record::run_record::RunRecord;
use proctor_core::report::stream_texts::StreamTexts;
use proctor_core::report::{
    ReportInput, ReportedCommit, ReportedRefusal, ReportedRun, RepositoryFiles, RunReportFormat, RunResult, named_paths,
};
use proctor_core::text::safe_text::escape_json_for_display;
use serde::Serialize;

use crate::args::{ReportFileOption, RunFormat};
use crate::caller::Caller;
use crate::destination_file::DestinationFile;
use crate::error::CliError;
use crate::screen::{Screen, to_json_line};

pub(crate) use tool_reports::ToolReportSource;

/// First line of `jsonl`: the schema of the other lines.
pub(crate) const EVENT_SCHEMA_URL: &str = "https://github.com/proctor-verify/proctor/schemas/event.schema.json";
/// Maximum size of the events that are kept for a file, in bytes.
const MAX_LINES: usize = 64 << 20;

/// The first line of `jsonl`.
#[derive(Serialize)]
struct SchemaLine {
    schema: &'static str,
}

/// Destinations for the results of one command.
pub(crate) struct ReportOutputs {
    stdout: RunFormat,
    /// The text for standard output, if it is kept instead of printed.
    kept_text: Option<String>,
    files: Vec<(RunFormat, DestinationFile)>,
    /// Lines of `jsonl` for a file.
    lines: String,
    /// True if `lines` lacks events, because they exceed [`MAX_LINES`].
    is_incomplete: bool,
    /// GitHub's files for the summary and the outputs, if the environment names them.
    github: Option<github_files::GithubFiles>,
    output_token: String,
    repo_prefix: String,
    repo: PathBuf,
}

impl ReportOutputs {
    /// Starts with standard output as the only destination.
    pub(crate) fn new(stdout: RunFormat, screen: &mut Screen) -> Result<Self, CliError> {
        let mut reports = Self {
            stdout,
            kept_text: None,
            files: Vec::new(),
            lines: String::new(),
            is_incomplete: false,
            github: None,
            output_token: String::new(),
            repo_prefix: String::new(),
            repo: PathBuf::new(),
        };
        reports.write_line(&SchemaLine { schema: EVENT_SCHEMA_URL }, screen)?;
        Ok(reports)
    }

    /// Keeps the text that would be printed when the command has ended.
    pub(crate) fn keep_stdout_text(&mut self) {
        self.kept_text = Some(String::new());
    }

    /// Returns the text that was kept instead of printed.
    pub(crate) fn kept_text(&self) -> &str {
        self.kept_text.as_deref().unwrap_or_default()
    }

    /// Adds destination files, after checking that they can be written.
    ///
    /// # Errors
    /// A file cannot be created at its path, or two formats use the same file.
    pub(crate) fn add_files(&mut self, files: &[ReportFileOption], caller: &Caller) -> Result<(), CliError> {
        let mut found = Vec::new();
        for (index, wanted) in files.iter().enumerate() {
            if files[..index].iter().any(|other| caller.cwd.join(&other.file) == caller.cwd.join(&wanted.file)) {
                return Err(CliError::Usage {
                    message: format!("two reports are to be written to `{}`", crate::installation::show(&wanted.file)),
                    hint: "use a separate file for each".to_owned(),
                });
            }
            found.push((wanted.format, DestinationFile::prepare("the report", &wanted.file, &caller.cwd)?));
        }
        self.files = found;
        self.output_token = random_token()?;
        if self.wants(RunFormat::Github) {
            self.github = Some(github_files::GithubFiles::from_env(caller));
        }
        Ok(())
    }

    /// Sets the location of the repository, for formats that name files relative to another directory.
    pub(crate) fn set_repository(&mut self, repo: &std::path::Path, caller: &Caller) {
        self.repo = repo.to_owned();
        self.repo_prefix = github_files::repo_path_in_workspace(repo, caller);
    }

    /// Checks whether a destination needs this format.
    fn wants(&self, format: RunFormat) -> bool {
        self.stdout == format || self.files.iter().any(|(wanted, _)| *wanted == format)
    }

    /// Builds the reported run, including the tools' reports if some format needs them.
    pub(crate) async fn build_reported_run(
        &self,
        commit: Option<ReportedCommit>,
        record: RunRecord,
        source: ToolReportSource<'_>,
    ) -> ReportedRun {
        let mut formats = self.files.iter().map(|(format, _)| format).chain([&self.stdout]);
        if !formats.any(|format| format.report().is_some()) {
            return ReportedRun::new(commit, RunResult::Recorded(Box::new(record)));
        }
        let tool_reports = tool_reports::fetch_tool_reports(&source, &record).await;
        let outputs = source.fetch_outputs(&record).await;
        let repository = self.repository_files(&record, &outputs);
        ReportedRun { commit, result: RunResult::Recorded(Box::new(record)), tool_reports, outputs, repository }
    }

    /// Returns the existing files among those that the outputs of failed steps name.
    fn repository_files(&self, record: &RunRecord, outputs: &StreamTexts) -> RepositoryFiles {
        let root = self.repo.to_string_lossy().into_owned();
        let mut existing = named_paths(record, outputs, &root);
        existing.retain(|path| self.repo.join(path).symlink_metadata().is_ok_and(|found| found.is_file()));
        RepositoryFiles { root, existing }
    }

    /// Writes an event to the destinations that receive each event.
    ///
    /// # Errors
    /// The event cannot be serialised, which would be a bug in proctor.
    pub(crate) fn write_event(&mut self, event: &RunEvent, screen: &mut Screen) -> Result<(), CliError> {
        self.write_line(event, screen)
    }

    /// Writes a line of `jsonl`.
    fn write_line<T: Serialize>(&mut self, value: &T, screen: &mut Screen) -> Result<(), CliError> {
        if self.stdout == RunFormat::Jsonl {
            screen.out_json(value)?;
        }
        if self.files.iter().any(|(format, _)| *format == RunFormat::Jsonl) {
            let line = to_json_line(value)?;
            match self.lines.len() + line.len() < MAX_LINES {
                true => self.lines.push_str(&(escape_json_for_display(&line) + "\n")),
                false => self.is_incomplete = true,
            }
        }
        Ok(())
    }

    /// Reports in `jsonl` that a run could not start: the error, then the event that ends every run.
    ///
    /// # Errors
    /// Same as [`ReportOutputs::write_event`].
    pub(crate) fn write_failed_start(&mut self, error: &CliError, screen: &mut Screen) -> Result<(), CliError> {
        self.write_line(&error.to_record(), screen)?;
        self.write_line(&final_event_without_run(error.exit_code()), screen)
    }

    /// Writes the documents of a command that has no result. The caller prints the error itself.
    pub(crate) fn write_refusal(&mut self, error: &CliError, screen: &mut Screen) {
        // Ignore the result: a line that cannot be serialised is a bug in proctor, and the original error matters
        // more.
        let _ = self.write_failed_start(error, screen);
        if self.stdout == RunFormat::Json {
            let _ = screen.out_json(&error.to_record());
        }
        let runs = [ReportedRun::new(None, refusal(error))];
        let document = serde_json::to_string(&error.to_record()).unwrap_or_default();
        self.write_all(
            ReportedResult { runs: &runs, left_out: 0, exit_code: error.exit_code(), json: &document },
            screen,
        );
    }

    /// Writes all results that are due at the end of the command, and prints what could not be written. Returns
    /// whether every destination was written.
    pub(crate) fn write_all(&mut self, result: ReportedResult<'_>, screen: &mut Screen) -> bool {
        let input = ReportInput {
            runs: result.runs,
            left_out: result.left_out,
            exit_code: result.exit_code,
            token: &self.output_token,
            repository_prefix: &self.repo_prefix,
        };
        if let Some(format) = self.stdout.report() {
            let text = format.render(&input);
            match &mut self.kept_text {
                Some(kept) => *kept = text,
                None => screen.out(&text),
            }
        }
        let mut problems: Vec<String> = Vec::new();
        for (format, target) in &self.files {
            let written = self
                .file_text(*format, &input, result.json)
                .and_then(|text| Ok(target.write_atomically(text.as_bytes())?));
            problems.extend(written.err().map(|problem| format!("`{}`: {problem}", target.display_path())));
        }
        if let Some(files) = &self.github {
            problems.extend(files.write(&input));
        }
        for problem in &problems {
            let message = format!("a report could not be written: {problem}");
            screen
                .err(&CliError::Environment { message, hint: "fix this, or choose another file".to_owned() }.render());
        }
        problems.is_empty()
    }

    /// Returns the text of one file.
    fn file_text(
        &self,
        format: RunFormat,
        input: &ReportInput<'_>,
        document: &str,
    ) -> Result<String, WriteReportError> {
        match format.report() {
            Some(format) => Ok(format.render(input)),
            None if format == RunFormat::Jsonl && self.is_incomplete => Err(WriteReportError::TooManyEvents),
            None if format == RunFormat::Jsonl => {
                let first = to_json_line(&SchemaLine { schema: EVENT_SCHEMA_URL })?;
                Ok(format!("{first}\n{}", self.lines))
            }
            None => Ok(escape_json_for_display(document) + "\n"),
        }
    }
}

/// Reason why a report cannot be written to its file.
#[derive(Debug, thiserror::Error)]
enum WriteReportError {
    /// The events exceed [`MAX_LINES`].
    #[error("there are more than {} MiB of events", MAX_LINES >> 20)]
    TooManyEvents,
    /// The document cannot be serialised, which would be a bug in proctor.
    #[error(transparent)]
    Document(#[from] CliError),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] io::Error),
}

/// The result of a command.
#[derive(Clone, Copy)]
pub(crate) struct ReportedResult<'a> {
    /// The runs of the command.
    pub runs: &'a [ReportedRun],
    /// Number of commits of a range that were left out.
    pub left_out: usize,
    /// The exit code.
    pub exit_code: u8,
    /// The document of `--format json`.
    pub json: &'a str,
}

/// Converts an error to the form that reports contain.
pub(crate) fn refusal(error: &CliError) -> RunResult {
    let message = match error.to_record().error.diagnostics.first() {
        Some(first) => format!("{error}: {}", first.message),
        None => error.to_string(),
    };
    RunResult::Refused(ReportedRefusal { message, hints: error.hints(), exit_code: error.exit_code() })
}

/// Returns the final event of a run that could not start: nothing ran, so nothing was verified.
fn final_event_without_run(exit_code: u8) -> RunEvent {
    let (verdict, tier) = (Verdict::Inconclusive, Tier::ONE);
    RunEvent::RunFinished { verdict, tier, exit_code, duration_ms: 0, evidence_dir: None, reuse: None }
}

fn random_token() -> Result<String, CliError> {
    let mut random = [0; 16];
    let filled = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(16) => Ok(random.map(|byte| format!("{byte:02x}")).concat()),
        _ => Err(CliError::Environment {
            message: "the system provides no random numbers".to_owned(),
            hint: "wait until the daemon has started, and run again".to_owned(),
        }),
    }
}

impl RunFormat {
    /// Returns the equivalent report format of `core`, for formats that are written when the command has ended.
    pub(crate) fn report(self) -> Option<RunReportFormat> {
        match self {
            Self::Human | Self::Json | Self::Jsonl => None,
            Self::Junit => Some(RunReportFormat::Junit),
            Self::Sarif => Some(RunReportFormat::Sarif),
            Self::Github => Some(RunReportFormat::Github),
            Self::Markdown => Some(RunReportFormat::Markdown),
            Self::Html => Some(RunReportFormat::Html),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SchemaName;
    use crate::schema;

    #[test]
    fn first_line_names_the_event_schema() {
        let schema: serde_json::Value =
            serde_json::from_str(&schema::schema_text(SchemaName::Event).expect("text")).expect("JSON");
        assert_eq!(schema["$id"], EVENT_SCHEMA_URL);
    }
}
