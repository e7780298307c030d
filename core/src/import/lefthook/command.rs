//! Interprets `run` of a job: one command or a few lines of shell, with or without file names.

use crate::import::Tool;
use crate::import::check_form::{MENDS, check_form, mends};
use crate::import::draft::{Check, pipeline, pipeline_tools};
use crate::import::selection::Selection;
use crate::import::shell::{quote, quote_all, unfit};
use crate::spec::{Command, Text, quoted};

/// Placeholders for file names: staged files, pushed files, all files, and the output of the job's own command.
const LISTS: [&str; 4] = ["{staged_files}", "{push_files}", "{all_files}", "{files}"];
/// Placeholder for file names in the parsed command.
const FILES: &str = "{files}";
/// Commands that list changed files. A check of all tracked files covers these.
const LISTING: [&str; 2] = ["git diff", "git ls-files"];

/// The parts of a job that decide its command.
pub(super) struct Asked<'a> {
    /// The command, a line of shell.
    pub(super) run: &'a str,
    /// The command that lists its files, if there is one.
    pub(super) files: Option<&'a str>,
    /// The files that it checks.
    pub(super) selection: &'a Selection,
}

/// Returns the check that is equivalent to a job's command.
///
/// # Errors
/// A step cannot do the same; the text gives the reason.
pub(super) fn check(asked: &Asked<'_>) -> Result<Check, String> {
    let run = asked.run.trim();
    if run.is_empty() {
        return Err("its command is empty".to_owned());
    }
    if let Some(reason) = unfit(run) {
        return Err(reason);
    }
    let given =
        (0..10).map(|number| format!("{{{number}}}")).chain(["{cmd}".to_owned()]).find(|text| run.contains(text));
    if let Some(given) = given {
        return Err(format!("its command has {}: what git gives to a hook", quoted(&given)));
    }
    if run.contains(FILES) && !asked.files.is_some_and(|files| LISTING.iter().any(|git| files.trim().starts_with(git)))
    {
        return Err("a custom command lists its files, which may not belong to a tree".to_owned());
    }
    let run = LISTS.iter().fold(run.to_owned(), |run, list| run.replace(list, FILES));
    // lefthook applies quotes around a list to each name.
    let run = run.replace(&format!("\"{FILES}\""), FILES).replace(&format!("'{FILES}'"), FILES);
    if run.contains(FILES) { with_files(&run, asked.selection) } else { Ok(without_files(&run, asked.selection)) }
}

/// Returns the check for a command without file names.
pub(super) fn plain(argv: &[String]) -> Check {
    let form = check_form(argv);
    let tools = tool(&form.argv).into_iter().collect();
    Check { cmd: form.argv, tools, notes: form.changed.into_iter().collect(), ..Check::default() }
}

fn without_files(run: &str, selection: &Selection) -> Check {
    let mut check = match words(run) {
        Some(argv) => plain(&argv),
        None => Check { cmd: shell(run), tools: first_tool(run), notes: mending(run), ..Check::default() },
    };
    let mut wherever = selection.clone();
    wherever.below = None;
    if !wherever.is_everything() {
        check.notes.push("runs whatever files there are".to_owned());
    }
    check
}

fn with_files(run: &str, selection: &Selection) -> Result<Check, String> {
    let mut lines = selection.lines();
    let mut check = Check { tools: pipeline_tools().to_vec(), ..Check::default() };
    let argv = words(run).filter(|argv| argv.iter().filter(|word| word.contains(FILES)).count() == 1);
    match argv.filter(|argv| argv.iter().any(|word| word == FILES)) {
        Some(argv) => {
            let form = check_form(&argv);
            check.tools.extend(tool(&form.argv));
            check.notes.extend(form.changed);
            lines.push(each(&form.argv));
        }
        None => {
            in_no_quotes(run)?;
            check.tools.extend(first_tool(run));
            check.notes.extend(mending(run));
            let script = run.replace(FILES, "\"$@\"");
            lines.push(format!("xargs -0r sh -c {} sh", quote(&script)));
        }
    }
    check.cmd = pipeline(&lines);
    Ok(check)
}

/// Returns the last command of a pipeline, which inserts the file names at their place in a command.
fn each(argv: &[String]) -> String {
    match argv.split_last() {
        Some((last, words)) if last == FILES => format!("xargs -0r {}", quote_all(words)),
        _ => {
            let words: Vec<String> =
                argv.iter().map(|word| if word == FILES { "\"$@\"".to_owned() } else { quote(word) }).collect();
            format!("xargs -0r sh -c {} sh", quote(&words.join(" ")))
        }
    }
}

/// Splits a command that needs no shell; `None` if it needs one.
fn words(run: &str) -> Option<Vec<String>> {
    Command::Line(Text(run.to_owned())).argv().ok().map(Into::into)
}

fn shell(run: &str) -> Vec<String> {
    ["sh", "-c", run].map(str::to_owned).to_vec()
}

/// Returns the note for a script that makes a tool fix files.
fn mending(run: &str) -> Vec<String> {
    let found = run.split_whitespace().any(mends);
    found.then(|| MENDS.to_owned()).into_iter().collect()
}

/// Returns the tool that a command starts, unless the program is a path.
fn tool(argv: &[String]) -> Option<Tool> {
    argv.first().filter(|program| !program.contains('/')).map(|program| Tool::found(program))
}

/// Returns the tool that a script starts with, if its first word is a plain name.
fn first_tool(run: &str) -> Vec<Tool> {
    let first = run.split_whitespace().next().unwrap_or_default();
    let plain = first.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    let found = if plain { words(first).and_then(|argv| tool(&argv)) } else { None };
    found.into_iter().collect()
}

/// Rejects a list of files inside quotes, where it would become a single word.
fn in_no_quotes(run: &str) -> Result<(), String> {
    let mut quote = None;
    let mut rest = run;
    while let Some(c) = rest.chars().next() {
        if quote.is_some() && rest.starts_with(FILES) {
            return Err("its command has the list of files inside of quotes".to_owned());
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

    fn last_line(run: &str) -> Result<String, String> {
        let asked = Asked { run, files: Some("git diff --name-only main"), selection: &Selection::default() };
        let check = check(&asked)?;
        let last = check.cmd.last().cloned().unwrap_or_default();
        Ok(last.lines().last().unwrap_or_default().to_owned())
    }

    #[test]
    fn names_come_where_the_command_wants_them() {
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
    fn what_a_step_cannot_do_is_refused() {
        for run in ["", "x {1}", "x {cmd}", "x {staged_files} && git add {staged_files}", "sh -c 'x {staged_files}'"] {
            last_line(run).expect_err(run);
        }
        let asked = Asked { run: "x {files}", files: Some("./list.sh"), selection: &Selection::default() };
        assert!(check(&asked).is_err());
    }

    #[test]
    fn a_command_without_names_is_words_or_a_script() {
        let of = |run: &str| check(&Asked { run, files: None, selection: &Selection::default() }).expect(run);
        assert_eq!(of("cargo fmt").cmd, ["cargo", "fmt", "--check"]);
        assert_eq!(of("cd web && npm test").cmd, ["sh", "-c", "cd web && npm test"]);
        assert_eq!(of("cd web && npm test").tools, []);
        assert_eq!(of("npm test | tee log").tools, [Tool::found("npm")]);
    }
}
