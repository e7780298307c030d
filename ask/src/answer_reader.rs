//! Reads the statement in an answer of a model: a bare statement, a fenced block, JSON, YAML, a tool call, or prose
//! around one statement. The result is only a candidate: the judgement decides.

mod fences;
mod prose;
mod structured;
mod unreadable_answer;

use fences::{Fence, read_fences};

pub(crate) use unreadable_answer::MAX_ANSWER_BYTES;
pub use unreadable_answer::UnreadableAnswer;

/// Languages of fenced blocks that contain SQL.
const SQL_LANGUAGES: [&str; 14] = [
    "sql",
    "sqlite",
    "sqlite3",
    "postgres",
    "postgresql",
    "pgsql",
    "plpgsql",
    "mysql",
    "mariadb",
    "duckdb",
    "tidb",
    "plsql",
    "tsql",
    "ansi-sql",
];

/// Returns the statement in an answer, without spaces around it.
///
/// # Errors
/// The answer has no statement, or several.
pub fn read_statement(answer: &str) -> Result<String, UnreadableAnswer> {
    if answer.len() > MAX_ANSWER_BYTES {
        return Err(UnreadableAnswer::TooLong);
    }
    let text = without_reasoning(answer.trim_start_matches('\u{feff}')).trim();
    if text.is_empty() {
        return Err(UnreadableAnswer::Empty);
    }
    if let Some(found) = structured::from_json(text) {
        return found.and_then(|statement| clean(&statement));
    }
    let (fences, is_open) = read_fences(text);
    match from_fences(&fences) {
        Ok(Some(statement)) => return clean(&statement),
        Ok(None) => {}
        Err(error) => return Err(error),
    }
    if is_open {
        return Err(UnreadableAnswer::OpenFence);
    }
    if let Some(found) = structured::from_yaml(text) {
        return found.and_then(|statement| clean(&statement));
    }
    clean(&prose::find_statement(text)?)
}

/// Removes the reasoning that some models put before their answer, between `<think>` and `</think>`.
fn without_reasoning(text: &str) -> &str {
    let trimmed = text.trim_start();
    let rest = trimmed.strip_prefix("<think>").and_then(|rest| rest.split_once("</think>"));
    rest.map_or(text, |(_, answer)| answer)
}

/// Returns the statement of the fenced blocks; `None` if there is no block.
///
/// # Errors
/// The blocks contain no statement, or several.
fn from_fences(fences: &[Fence<'_>]) -> Result<Option<String>, UnreadableAnswer> {
    let is_sql = |fence: &&Fence<'_>| SQL_LANGUAGES.contains(&fence.language.to_ascii_lowercase().as_str());
    // Models often write drafts before the final block.
    if let Some(last) = fences.iter().rfind(is_sql) {
        return structured::from_json(last.body.trim()).unwrap_or_else(|| Ok(last.body.to_owned())).map(Some);
    }
    let mut found: Vec<String> = Vec::new();
    for fence in fences {
        let body = fence.body.trim();
        let statement = match structured::from_json(body).or_else(|| structured::from_yaml(body)) {
            Some(Ok(statement)) => statement,
            Some(Err(_)) => continue,
            None if prose::starts_with_statement(body) => body.to_owned(),
            None => continue,
        };
        if !found.contains(&statement) {
            found.push(statement);
        }
    }
    match found.as_slice() {
        [] if fences.is_empty() => Ok(None),
        // Blocks in other languages, such as a shell command; prose around them may contain the statement.
        [] => Err(UnreadableAnswer::NoStatement),
        [_] => Ok(found.pop()),
        _ => Err(UnreadableAnswer::Ambiguous),
    }
}

/// Returns the statement without surrounding spaces.
fn clean(statement: &str) -> Result<String, UnreadableAnswer> {
    let statement = statement.trim();
    if statement.is_empty() { Err(UnreadableAnswer::NoStatement) } else { Ok(statement.to_owned()) }
}

#[cfg(test)]
mod tests;
