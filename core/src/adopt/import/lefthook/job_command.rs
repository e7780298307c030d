//! Interprets `run` of a job: one command or a few lines of shell, with or without file names.

use crate::adopt::import::check_mode::{FIXES_FILES_NOTE, is_fix_option, to_check_mode};
use crate::adopt::import::file_selection::chooses_everything;
use crate::adopt::import::import_draft::EquivalentCheck;
use crate::adopt::import::import_result::Tool;
use crate::adopt::import::rejection::JobError;
use crate::adopt::import::shell_words::{ShellCommandError, reject_unsupported, shell_command};
use crate::model::plan::{FILES_PLACEHOLDER, FileRules};
use crate::spec::{SpecCommand, SpecText};

/// Placeholders for file names: staged files, pushed files, all files, and the output of the job's own command.
const FILE_PLACEHOLDERS: [&str; 4] = ["{staged_files}", "{push_files}", "{all_files}", "{files}"];
/// Commands that list changed files. A check of all tracked files covers these.
const LISTING_COMMANDS: [&str; 2] = ["git diff", "git ls-files"];

/// The parts of a job that decide its command.
pub(super) struct JobCommand<'a> {
    /// The command, a line of shell.
    pub(super) run: &'a str,
    /// The command that lists its files, if there is one.
    pub(super) files: Option<&'a str>,
    /// The files that the job checks.
    pub(super) rules: &'a FileRules,
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
    let uses_files = run.contains(FILES_PLACEHOLDER);
    let mut check = if uses_files { with_files(&run)? } else { without_files(&run) };
    if uses_files || !chooses_everything(job.rules) {
        check.files = Some(job.rules.clone());
    }
    Ok(check)
}

/// Returns the check for a command without file names.
pub(super) fn check_for_argv(argv: &[String]) -> EquivalentCheck {
    let form = to_check_mode(argv);
    EquivalentCheck {
        cmd: form.argv,
        fix: form.fix,
        tools: started_tool(argv).into_iter().collect(),
        notes: form.difference.into_iter().collect(),
        ..EquivalentCheck::default()
    }
}

fn without_files(run: &str) -> EquivalentCheck {
    match split_words(run) {
        Some(argv) => check_for_argv(&argv),
        None => check_for_script(run, shell_command(run, false)),
    }
}

fn with_files(run: &str) -> Result<EquivalentCheck, JobError> {
    let holds_files = |word: &&String| word.contains(FILES_PLACEHOLDER);
    let argv = split_words(run).filter(|argv| {
        let words: Vec<&String> = argv.iter().filter(holds_files).collect();
        words.len() == 1 && words[0] == FILES_PLACEHOLDER
    });
    match argv {
        Some(argv) => Ok(check_for_argv(&argv)),
        None => {
            reject_quoted_files(run)?;
            let script = run.replace(FILES_PLACEHOLDER, "\"$@\"");
            Ok(check_for_script(run, shell_command(&script, true)))
        }
    }
}

fn check_for_script(run: &str, cmd: Vec<String>) -> EquivalentCheck {
    EquivalentCheck { cmd, tools: first_tool(run), notes: fix_notes(run), ..EquivalentCheck::default() }
}

/// Splits a command that needs no shell; `None` if it needs one.
fn split_words(run: &str) -> Option<Vec<String>> {
    SpecCommand::Line(SpecText(run.to_owned())).argv().ok().map(Into::into)
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

    fn convert(run: &str) -> Result<EquivalentCheck, JobError> {
        let files = Some("git diff --name-only main");
        equivalent_check(&JobCommand { run, files, rules: &FileRules::default() })
    }

    #[test]
    fn inserts_file_names_at_placeholders() {
        let cases = [
            ("eslint {staged_files}", "eslint {files}", ""),
            ("eslint \"{staged_files}\"", "eslint {files}", ""),
            ("npx prettier --write {staged_files}", "npx prettier --check {files}", "npx prettier --write {files}"),
            ("yarn eslint {staged_files} --max-warnings 0", "yarn eslint {files} --max-warnings 0", ""),
            ("a {files} && b 'x' {all_files}", "sh -c a \"$@\" && b 'x' \"$@\" sh {files}", ""),
            ("x --only={push_files}", "sh -c x --only=\"$@\" sh {files}", ""),
        ];
        for (run, cmd, fix) in cases {
            let check = convert(run).expect(run);
            assert_eq!((check.cmd.join(" ").as_str(), check.fix.unwrap_or_default().join(" ").as_str()), (cmd, fix));
            assert_eq!(check.files, Some(FileRules::default()), "{run}");
        }
    }

    #[test]
    fn rejects_unsupported_commands() {
        for run in ["", "x {1}", "x {cmd}", "x {staged_files} && git add {staged_files}", "sh -c 'x {staged_files}'"] {
            convert(run).expect_err(run);
        }
        let job = JobCommand { run: "x {files}", files: Some("./list.sh"), rules: &FileRules::default() };
        assert!(equivalent_check(&job).is_err());
    }

    #[test]
    fn runs_commands_without_files_directly_or_in_shell() {
        let convert_run =
            |run: &str| equivalent_check(&JobCommand { run, files: None, rules: &FileRules::default() }).expect(run);
        assert_eq!(convert_run("cargo fmt").cmd, ["cargo", "fmt", "--check"]);
        let rules = FileRules { types: vec!["text".to_owned()], ..FileRules::default() };
        let job = JobCommand { run: "make check", files: None, rules: &rules };
        assert_eq!(equivalent_check(&job).expect("a check").files, Some(rules.clone()));
        assert_eq!(convert_run("cd web && npm test").cmd, ["sh", "-c", "cd web && npm test"]);
        assert_eq!(convert_run("cd web && npm test").tools, []);
        assert_eq!(convert_run("npm test | tee log").tools, [Tool::on_path("npm")]);
    }
}
