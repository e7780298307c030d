//! Rules for steps and their commands.

use globset::GlobBuilder;

use super::super::command::{CommandSyntaxError, SpecCommand};
use super::super::diagnostic::{Code, Diagnostic};
use super::super::diagnostic_collector::DiagnosticCollector;
use super::super::span::Spanned;
use crate::model::names::StepName;
use crate::model::plan::RelPath;
use crate::spec::rules::spec_index::{SpecIndex, for_each_repeated};
use crate::spec::spec_text::SpecText;
use crate::sql::Percent;
use crate::text::escape::{escape_output, quoted};

pub(super) fn check_steps_not_empty(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (name, skill) in index.skills().filter(|(_, skill)| skill.steps.value.is_empty()) {
        problems.add_with(|| {
            let message = format!("the skill {} has no steps", quoted(name.value.as_str()));
            Diagnostic::error(Code::NoSteps, skill.steps.span, message)
        });
    }
}

pub(super) fn check_step_names_unique(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for (_, skill) in index.skills() {
        let names = skill.steps.value.iter().map(|step| &step.name);
        for_each_repeated(names, |name: &Spanned<StepName>, first| {
            problems.add_with(|| {
                let message = format!("the skill has two steps named {}", quoted(name.value.as_str()));
                Diagnostic::error(Code::DuplicateStep, name.span, message).label(first, "first here")
            });
        });
    }
}

/// Rejects a step with both `cmd` and `sql`. The decoder reports a step that has neither.
pub(super) fn check_command_xor_sql(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for step in index.steps() {
        if let (Some(cmd), Some(sql)) = (&step.cmd, &step.sql) {
            problems.add_with(|| {
                let problem = Diagnostic::error(Code::SqlStep, sql.span, "the step has a `cmd` and `sql`");
                problem.label(cmd.span, "the command").hint("split it into two steps")
            });
        }
    }
}

/// Rejects `sql` without exactly one of `files` and `query`, and limits out of range.
pub(super) fn check_sql_steps(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for sql in index.steps().filter_map(|step| step.sql.as_ref()) {
        let wrong = match (&sql.value.files, &sql.value.query) {
            (None, None) => Some("it judges nothing: it has neither `files` nor a `query`"),
            (Some(_), Some(_)) => Some("it has `files` and a `query`"),
            (Some(files), None) if files.value.is_empty() => Some("`files` names no file"),
            (Some(_), None) if sql.value.question.is_some() => Some("a `question` refers to one `query`, not to files"),
            _ => None,
        };
        if let Some(wrong) = wrong {
            problems.add_with(|| Diagnostic::error(Code::SqlStep, sql.span, wrong));
        }
        for glob in sql.value.files.iter().flat_map(|files| &files.value) {
            if let Some(problem) = bad_glob(glob) {
                problems.add(problem);
            }
        }
        if let Some(least) = sql.value.reject_at.filter(|least| Percent::try_from(least.value).is_err()) {
            problems.add_with(|| Diagnostic::error(Code::SqlStep, least.span, "`reject_at` is 1 to 100 percent"));
        }
        let limits = sql.value.limits.clone().unwrap_or_default();
        let counts = [limits.time_ms, limits.steps, limits.rows].into_iter().flatten();
        let sizes =
            [limits.memory, limits.result].into_iter().flatten().map(|size| Spanned::new(size.value.0, size.span));
        for bound in counts.chain(sizes).filter(|bound| bound.value == 0) {
            problems.add_with(|| {
                Diagnostic::error(Code::SqlStep, bound.span, "with a bound of 0, nothing could be judged")
            });
        }
        if let Some(time) = limits.time_ms.filter(|time| time.value > crate::sql::sql_policy::MAX_TIME_MS) {
            problems.add_with(|| Diagnostic::error(Code::SqlStep, time.span, "the maximum is 10 minutes (600000)"));
        }
    }
}

pub(super) fn check_commands(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for cmd in
        index.checks().map(|check| &check.cmd).chain(index.steps().flat_map(|step| step.cmd.iter().chain(&step.fix)))
    {
        if let Err(bad) = cmd.value.argv() {
            problems.add_with(|| bad_command(cmd, &bad));
        }
    }
}

/// Builds the diagnostic for a command that cannot run.
pub(in super::super) fn bad_command(cmd: &Spanned<SpecCommand>, bad: &CommandSyntaxError) -> Diagnostic {
    let code = match bad {
        CommandSyntaxError::Empty => Code::EmptyCommand,
        CommandSyntaxError::Nul | CommandSyntaxError::OpenQuote => Code::BadCommand,
        CommandSyntaxError::NeedsShell { .. } => Code::NeedsShell,
    };
    let problem = Diagnostic::error(code, cmd.span, bad.to_string());
    match (bad, &cmd.value) {
        (CommandSyntaxError::NeedsShell { .. }, SpecCommand::Line(line)) => add_shell_hints(problem, line),
        (CommandSyntaxError::Empty, _) => {
            problem.hint("write the program and its arguments, such as `[\"cargo\", \"test\"]`")
        }
        (CommandSyntaxError::OpenQuote, _) => problem.hint("close the quote, or write a list of words"),
        _ => problem,
    }
}

/// Adds hints on how to run `line` in a shell. A long line is not repeated.
fn add_shell_hints(problem: Diagnostic, line: &SpecText) -> Diagnostic {
    const MAX_SHOWN_BYTES: usize = 200;
    let shown = if line.as_str().len() > MAX_SHOWN_BYTES { "…" } else { line.as_str() };
    let script = escape_output(serde_json::Value::from(shown).to_string().as_bytes());
    problem
        .hint(format!("to run it in a shell, write `[\"sh\", \"-c\", {script}]`"))
        .hint("to use the characters literally, quote them or write a list of words")
}

pub(super) fn check_input_globs(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for globs in index.steps().filter_map(|step| step.inputs.as_ref()) {
        if globs.value.is_empty() {
            problems.add_with(|| {
                let problem = Diagnostic::error(Code::EmptyList, globs.span, "`inputs` names no file");
                problem.hint("omit it if the result depends on the whole tree")
            });
        }
        for glob in &globs.value {
            if let Some(problem) = bad_glob(glob) {
                problems.add(problem);
            }
        }
    }
}

fn bad_glob(glob: &Spanned<SpecText>) -> Option<Diagnostic> {
    let text = glob.value.as_str();
    if let Err(error) = GlobBuilder::new(text).literal_separator(true).build() {
        let message = format!("{} is not a glob: {}", quoted(text), error.kind());
        return Some(Diagnostic::error(Code::BadGlob, glob.span, message));
    }
    let bad = RelPath::new(text).err()?;
    let message = format!("the glob {} {}", quoted(text), bad.problem);
    Some(Diagnostic::error(Code::BadPath, glob.span, message))
}

pub(super) fn check_expected_exits(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let exits = index.steps().filter_map(|step| step.expect.as_ref()?.exit.as_ref());
    for exit in exits.filter(|exit| exit.value.is_empty()) {
        problems.add_with(|| {
            let problem =
                Diagnostic::error(Code::EmptyList, exit.span, "`exit` lists no exit code, so nothing could pass");
            problem.hint("omit it to use `[0]`")
        });
    }
}

/// Rejects reports that cannot be files of the tree: the repository itself and paths in `.git`, which is never
/// writable.
pub(super) fn check_report_paths(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    let reports = index.steps().filter_map(|step| step.reports.as_ref());
    let paths = reports.flat_map(|reports| reports.junit.iter().chain(&reports.sarif));
    let is_forbidden = |path: &RelPath| path.as_str() == "." || path.as_str().split('/').any(|part| part == ".git");
    for path in paths.filter(|path| is_forbidden(&path.value)) {
        problems.add_with(|| {
            let message = format!("the path {} cannot be the path of a report", quoted(path.value.as_str()));
            let hint = "name a file that the step writes, such as `target/junit.xml`; not the repository or `.git`";
            Diagnostic::error(Code::BadPath, path.span, message).hint(hint)
        });
    }
}
