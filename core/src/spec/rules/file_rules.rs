//! Rules for the files of a step, and for the word `{files}` of its command.

use super::super::diagnostic::{Code, Diagnostic, closest_match};
use super::super::diagnostic_collector::DiagnosticCollector;
use super::super::spec_types::{Step, StepFiles};
use crate::decision::file_matcher::{FILE_TYPES, FileMatcher, FileRuleError};
use crate::model::plan::{FILES_PLACEHOLDER, FileRules, REGEX_PREFIX};
use crate::spec::rules::spec_index::SpecIndex;
use crate::spec::span::{Span, Spanned};
use crate::spec::spec_text::SpecText;
use crate::text::escape::quoted;

/// Rejects patterns and types that choose no definite set of files.
pub(super) fn check_file_rules(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for files in index.steps().filter_map(|step| step.files.as_ref()) {
        let StepFiles { include, exclude, types, types_or, exclude_types } = &files.value;
        if let Some(empty) = [include, types, types_or].into_iter().flatten().find(|list| list.value.is_empty()) {
            let message = "the list is empty, so the step would check no file";
            problems.add(Diagnostic::error(Code::EmptyList, empty.span, message).hint("omit it"));
        }
        let patterns = [include, exclude].into_iter().flatten().flat_map(|list| &list.value);
        patterns.filter_map(bad_pattern).for_each(|problem| problems.add(problem));
        let types = [types, types_or, exclude_types].into_iter().flatten().flat_map(|list| &list.value);
        types.filter_map(bad_type).for_each(|problem| problems.add(problem));
    }
}

/// Returns the problem of a pattern. A pattern that is both a valid glob and evidently a regular expression is a
/// problem too, since it would choose other files than expected.
fn bad_pattern(pattern: &Spanned<SpecText>) -> Option<Diagnostic> {
    let text = pattern.value.as_str();
    let rules = FileRules { include: vec![text.to_owned()], ..FileRules::default() };
    let is_regex = text.starts_with(REGEX_PREFIX);
    match FileMatcher::new(&rules) {
        Err(error) if !is_regex && looks_like_regex(text) => {
            Some(Diagnostic::error(Code::BadFiles, pattern.span, error.to_string()).hint(regex_hint(text)))
        }
        Err(error) => Some(Diagnostic::error(Code::BadFiles, pattern.span, error.to_string())),
        Ok(_) if !is_regex && looks_like_regex(text) => {
            let message = format!("{} is a glob, but looks like a regular expression", quoted(text));
            Some(Diagnostic::error(Code::BadFiles, pattern.span, message).hint(regex_hint(text)))
        }
        Ok(_) if !is_regex && (text.starts_with('/') || text.split('/').any(|part| part == "..")) => {
            let message = format!("the pattern {} matches no path in the repository", quoted(text));
            let hint = "write it relative to the repository, such as `src/**/*.py`";
            Some(Diagnostic::error(Code::BadFiles, pattern.span, message).hint(hint))
        }
        Ok(_) => None,
    }
}

fn looks_like_regex(text: &str) -> bool {
    text.starts_with('^') || text.ends_with('$') || text.contains("\\.") || text.contains(".*")
}

fn regex_hint(text: &str) -> String {
    format!("write {} for a regular expression", quoted(&format!("{REGEX_PREFIX}{text}")))
}

fn bad_type(name: &Spanned<SpecText>) -> Option<Diagnostic> {
    let text = name.value.as_str();
    let rules = FileRules { types: vec![text.to_owned()], ..FileRules::default() };
    let Err(FileRuleError::Type(_)) = FileMatcher::new(&rules) else { return None };
    let problem = Diagnostic::error(Code::BadFiles, name.span, format!("{} is not a file type", quoted(text)));
    Some(match closest_match(text, FILE_TYPES.iter().copied()) {
        Some(close) => problem.hint(format!("did you mean {}?", quoted(close))),
        None => problem.hint("the types are the tags of pre-commit, such as `python`, `yaml`, `text` or `executable`"),
    })
}

/// Checks that `{files}` is a separate word in the commands of steps with `files`, and that `parallel` has an effect.
pub(super) fn check_files_placeholder(index: &SpecIndex<'_>, problems: &mut DiagnosticCollector) {
    for step in index.steps() {
        let words = command_words(step);
        match &step.files {
            Some(_) => {
                let embedded =
                    words.iter().find(|(word, _)| word.contains(FILES_PLACEHOLDER) && word != FILES_PLACEHOLDER);
                if let Some((word, span)) = embedded {
                    let message =
                        format!("{} contains `{FILES_PLACEHOLDER}`, which must be a separate word", quoted(word));
                    let hint = "to use the files in a shell, write `[\"sh\", \"-c\", \"for f in \\\"$@\\\"; do …; done\", \
                        \"sh\", \"{files}\"]`";
                    problems.add(Diagnostic::error(Code::BadFiles, *span, message).hint(hint));
                }
            }
            None => warn_without_files(step, &words, problems),
        }
        if let (Some(per_file), Some(_)) = (step.per_file.filter(|per_file| per_file.value), &step.files)
            && !words.iter().any(|(word, _)| word == FILES_PLACEHOLDER)
        {
            let message = format!("`per_file` requires `{FILES_PLACEHOLDER}` in the command");
            let hint = "without it, the command does not get the files one by one; add it, or remove `per_file`";
            problems.add(Diagnostic::error(Code::BadFiles, per_file.span, message).hint(hint));
        }
        if let (Some(sql), Some(files)) = (&step.sql, &step.files) {
            let problem = Diagnostic::error(Code::BadFiles, files.span, "a step with `sql` has no `files` of its own");
            problems.add(problem.label(sql.span, "the SQL check").hint("use `files` of `sql`"));
        }
        if let (Some(sql), Some(fix)) = (&step.sql, &step.fix) {
            let problem = Diagnostic::error(Code::SqlStep, fix.span, "a step with `sql` has no `fix`");
            problems.add(problem.label(sql.span, "the SQL check"));
        }
    }
}

/// Warns about `{files}` and `parallel` in a step without `files`: the word is passed on as it is.
fn warn_without_files(step: &Step, words: &[(String, Span)], problems: &mut DiagnosticCollector) {
    if let Some((_, span)) = words.iter().find(|(word, _)| word == FILES_PLACEHOLDER) {
        problems.warn_with(|| {
            let message = format!("`{FILES_PLACEHOLDER}` is passed on as it is, because the step has no `files`");
            Diagnostic::warning(Code::NoFiles, *span, message).hint("add `files: {}` to pass all files")
        });
    }
    let without_effect =
        [("parallel", step.parallel.map(|set| set.span)), ("per_file", step.per_file.map(|set| set.span))];
    for (key, span) in without_effect.into_iter().filter_map(|(key, span)| Some((key, span?))) {
        problems.warn_with(|| {
            let message = format!("`{key}` has no effect, because the step has no `files`");
            Diagnostic::warning(Code::NoFiles, span, message)
        });
    }
}

/// Returns the words of the step's commands. A command that cannot be split is reported elsewhere.
fn command_words(step: &Step) -> Vec<(String, Span)> {
    let commands = step.cmd.iter().chain(&step.fix);
    let words = commands.filter_map(|cmd| Some((cmd.value.argv().ok()?, cmd.span)));
    words.flat_map(|(argv, span)| argv.words().iter().map(|word| (word.clone(), span)).collect::<Vec<_>>()).collect()
}
