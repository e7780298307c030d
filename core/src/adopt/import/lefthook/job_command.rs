//! Interprets `run` of a job: one command or a few lines of shell, with or without file names.

use crate::adopt::import::check_mode::{FIXES_FILES_NOTE, is_fix_option, to_check_mode};
use crate::adopt::import::import_draft::{EquivalentCheck, pipeline, pipeline_tools};
use crate::adopt::import::import_result::Tool;
use crate::adopt::import::rejection::JobError;
use crate::adopt::import::selection::Selection;
use crate::adopt::import::shell_words::{ShellCommandError, quote, quote_all, reject_unsupported};
use crate::spec::{SpecCommand, SpecText};

/// Placeholders for file names: staged files, pushed files, all files, and the output of the job's own command.
const FILE_PLACEHOLDERS: [&str; 4] = ["{staged_files}", "{push_files}", "{all_files}", "{files}"];
/// Placeholder for file names in the parsed command.
const FILES_PLACEHOLDER: &str = "{files}";
/// Commands that list changed files. A check of all tracked files covers these.
const LISTING_COMMANDS: [&str; 2] = ["git diff", "git ls-files"];

/// The parts of a job that decide its command.
pub(super) struct JobCommand<'a> {
    /// The command, a line of shell.
    pub(super) run: &'a str,
    /// The command that lists its files, if there is one.
    pub(super) files: Option<&'a str>,
    /// The files that the job checks.
    pub(super) selection: &'a Selection,
}

/// Returns the check that is equivalent to a job's command.
///
/// # Errors
/// A step cannot do the same.
pub(super) fn equivalent_check(job: &JobCommand<'_>) -> Result<EquivalentCheck, JobError> {
    let run = job.run.trim();
    if run.is_empty() {
        return Err(ShellCommandError::Empty.into());
    }
    reject_unsupported(run)?;
    let given =
        (0..10).map(|number| format!("{{{number}}}")).chain(["{cmd}".to_owned()]).find(|text| run.contains(text));
    if let Some(placeholder) = given {
        return Err(JobError::HookArgument { placeholder });
    }
    if run.contains(FILES_PLACEHOLDER)
        && !job.files.is_some_and(|files| LISTING_COMMANDS.iter().any(|git| files.trim().starts_with(git)))
    {
        return Err(JobError::CustomFileList);
    }
    let run = FILE_PLACEHOLDERS.iter().fold(run.to_owned(), |run, list| run.replace(list, FILES_PLACEHOLDER));
    // lefthook applies quotes around a list to each name.
    let run = run
        .replace(&format!("\"{FILES_PLACEHOLDER}\""), FILES_PLACEHOLDER)
        .replace(&format!("'{FILES_PLACEHOLDER}'"), FILES_PLACEHOLDER);
    if run.contains(FILES_PLACEHOLDER) {
        with_files(&run, job.selection)
    } else {
        Ok(without_files(&run, job.selection))
    }
}

/// Returns the check for a command without file names.
pub(super) fn check_for_argv(argv: &[String]) -> EquivalentCheck {
    let form = to_check_mode(argv);
    let tools = started_tool(&form.argv).into_iter().collect();
    EquivalentCheck {
        cmd: form.argv,
        tools,
        notes: form.difference.into_iter().collect(),
        ..EquivalentCheck::default()
    }
}

fn without_files(run: &str, selection: &Selection) -> EquivalentCheck {
    let mut check = match split_words(run) {
        Some(argv) => check_for_argv(&argv),
        None => EquivalentCheck {
            cmd: shell_argv(run),
            tools: first_tool(run),
            notes: fix_notes(run),
            ..EquivalentCheck::default()
        },
    };
    let mut without_dir = selection.clone();
    without_dir.base_dir = None;
    if !without_dir.selects_everything() {
        check.notes.push("runs even if no file matches".to_owned());
    }
    check
}

fn with_files(run: &str, selection: &Selection) -> Result<EquivalentCheck, JobError> {
    let mut lines = selection.pipeline_lines();
    let mut check = EquivalentCheck { tools: pipeline_tools().to_vec(), ..EquivalentCheck::default() };
    let argv = split_words(run).filter(|argv| argv.iter().filter(|word| word.contains(FILES_PLACEHOLDER)).count() == 1);
    match argv.filter(|argv| argv.iter().any(|word| word == FILES_PLACEHOLDER)) {
        Some(argv) => {
            let form = to_check_mode(&argv);
            check.tools.extend(started_tool(&form.argv));
            check.notes.extend(form.difference);
            lines.push(xargs_line(&form.argv));
        }
        None => {
            reject_quoted_files(run)?;
            check.tools.extend(first_tool(run));
            check.notes.extend(fix_notes(run));
            let script = run.replace(FILES_PLACEHOLDER, "\"$@\"");
            lines.push(format!("xargs -0r sh -c {} sh", quote(&script)));
        }
    }
    check.cmd = pipeline(&lines);
    Ok(check)
}

/// Returns the last command of a pipeline, which inserts the file names at their place in a command.
fn xargs_line(argv: &[String]) -> String {
    match argv.split_last() {
        Some((last, words)) if last == FILES_PLACEHOLDER => format!("xargs -0r {}", quote_all(words)),
        _ => {
            let words: Vec<String> = argv
                .iter()
                .map(|word| if word == FILES_PLACEHOLDER { "\"$@\"".to_owned() } else { quote(word) })
                .collect();
            format!("xargs -0r sh -c {} sh", quote(&words.join(" ")))
        }
    }
}

/// Splits a command that needs no shell; `None` if it needs one.
fn split_words(run: &str) -> Option<Vec<String>> {
    SpecCommand::Line(SpecText(run.to_owned())).argv().ok().map(Into::into)
}

fn shell_argv(run: &str) -> Vec<String> {
    ["sh", "-c", run].map(str::to_owned).to_vec()
}

/// Returns the note for a script that makes a tool fix files.
fn fix_notes(run: &str) -> Vec<String> {
    let found = run.split_whitespace().any(is_fix_option);
    found.then(|| FIXES_FILES_NOTE.to_owned()).into_iter().collect()
}

/// Returns the tool that a command starts, unless the program is a path.
fn started_tool(argv: &[String]) -> Option<Tool> {
    argv.first().filter(|program| !program.contains('/')).map(|program| Tool::on_path(program))
}

/// Returns the tool that a script starts with, if its first word is a plain name.
fn first_tool(run: &str) -> Vec<Tool> {
    let first = run.split_whitespace().next().unwrap_or_default();
    let plain = first.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let found = if plain { split_words(first).and_then(|argv| started_tool(&argv)) } else { None };
    found.into_iter().collect()
}

/// Rejects a list of files inside quotes, where it would become a single word.
fn reject_quoted_files(run: &str) -> Result<(), JobError> {
    let mut quote = None;
    let mut rest = run;
    while let Some(c) = rest.chars().next() {
        if quote.is_some() && rest.starts_with(FILES_PLACEHOLDER) {
            return Err(JobError::QuotedFiles);
        }
        let mut next = c.len_utf8();
        match (quote, c) {
            (Some(open), c) if open == c => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None | Some('"'), '\\') => next += rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => {}
        }
        rest = &rest[next..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(run: &str) -> Result<String, JobError> {
        let job = JobCommand { run, files: Some("git diff --name-only main"), selection: &Selection::default() };
        let check = equivalent_check(&job)?;
        let last = check.cmd.last().cloned().unwrap_or_default();
        Ok(last.lines().last().unwrap_or_default().to_owned())
    }

    #[test]
    fn inserts_file_names_at_placeholders() {
        let cases = [
            ("eslint {staged_files}", "xargs -0r eslint"),
            ("eslint \"{staged_files}\"", "xargs -0r eslint"),
            ("npx prettier --write {staged_files}", "xargs -0r npx prettier --check"),
            ("yarn eslint {staged_files} --max-warnings 0", "xargs -0r sh -c 'yarn eslint \"$@\" --max-warnings 0' sh"),
            ("a {files} && b 'x' {all_files}", "xargs -0r sh -c 'a \"$@\" && b '\\''x'\\'' \"$@\"' sh"),
            ("x --only={push_files}", "xargs -0r sh -c 'x --only=\"$@\"' sh"),
        ];
        for (run, line) in cases {
            assert_eq!(last_line(run).as_deref(), Ok(line), "{run}");
        }
    }

    #[test]
    fn rejects_unsupported_commands() {
        for run in ["", "x {1}", "x {cmd}", "x {staged_files} && git add {staged_files}", "sh -c 'x {staged_files}'"] {
            last_line(run).expect_err(run);
        }
        let job = JobCommand { run: "x {files}", files: Some("./list.sh"), selection: &Selection::default() };
        assert!(equivalent_check(&job).is_err());
    }

    #[test]
    fn runs_commands_without_files_directly_or_in_shell() {
        let convert_run = |run: &str| {
            equivalent_check(&JobCommand { run, files: None, selection: &Selection::default() }).expect(run)
        };
        assert_eq!(convert_run("cargo fmt").cmd, ["cargo", "fmt", "--check"]);
        assert_eq!(convert_run("cd web && npm test").cmd, ["sh", "-c", "cd web && npm test"]);
        assert_eq!(convert_run("cd web && npm test").tools, []);
        assert_eq!(convert_run("npm test | tee log").tools, [Tool::on_path("npm")]);
    }
}
