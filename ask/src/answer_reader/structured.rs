//! Reads the statement of an answer in JSON or YAML: an object with the statement under a usual key, or a tool call in
//! the format of OpenAI or Anthropic.

use serde_json::{Map, Value};

use super::unreadable_answer::UnreadableAnswer;

/// Keys under which models put the statement, in order of preference.
const STATEMENT_KEYS: [&str; 5] = ["sql", "query", "statement", "sql_query", "sqlQuery"];
/// Keys of objects that contain the object with the statement.
const WRAPPER_KEYS: [&str; 13] = [
    "tool_calls",
    "function",
    "function_call",
    "arguments",
    "input",
    "parameters",
    "content",
    "choices",
    "message",
    "result",
    "answer",
    "output",
    "response",
];
/// Maximum nesting of objects that are searched.
const MAX_DEPTH: usize = 12;

/// Reads JSON. Returns `None` if the text is not a JSON object or list.
pub(super) fn from_json(text: &str) -> Option<Result<String, UnreadableAnswer>> {
    if !text.starts_with(['{', '[']) {
        return None;
    }
    let value: Value = serde_json::from_str(text).ok()?;
    Some(single_statement(&value))
}

/// Reads YAML. Returns `None` if no line starts with a key of a statement, or if the text is not YAML.
pub(super) fn from_yaml(text: &str) -> Option<Result<String, UnreadableAnswer>> {
    let text = text.strip_prefix("---").unwrap_or(text);
    let is_key = |line: &str| {
        let key = line.split_once(':').map(|(key, _)| key.trim_matches(['"', '\'']));
        key.is_some_and(|key| STATEMENT_KEYS.contains(&key))
    };
    if !text.lines().any(is_key) {
        return None;
    }
    let value: Value = serde_yaml::from_str(text).ok()?;
    value.is_object().then(|| single_statement(&value))
}

fn single_statement(value: &Value) -> Result<String, UnreadableAnswer> {
    let mut found = Vec::new();
    collect(value, 0, &mut found);
    match found.as_slice() {
        [] => Err(UnreadableAnswer::NoStatement),
        [only] => Ok(only.clone()),
        _ => Err(UnreadableAnswer::Ambiguous),
    }
}

/// Collects the different statements of a document.
fn collect(value: &Value, depth: usize, found: &mut Vec<String>) {
    if depth > MAX_DEPTH {
        return;
    }
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, depth + 1, found)),
        Value::Object(members) => collect_object(members, depth, found),
        _ => {}
    }
}

fn collect_object(members: &Map<String, Value>, depth: usize, found: &mut Vec<String>) {
    let statement = STATEMENT_KEYS.iter().find_map(|key| members.get(*key)?.as_str());
    if let Some(statement) = statement.map(str::trim).filter(|text| !text.is_empty()) {
        if !found.iter().any(|known| known == statement) {
            found.push(statement.to_owned());
        }
        return;
    }
    for value in WRAPPER_KEYS.iter().filter_map(|key| members.get(*key)) {
        match value {
            // The arguments of a tool call in the format of OpenAI are JSON in a string.
            Value::String(text) if text.trim_start().starts_with(['{', '[']) => {
                if let Ok(inner) = serde_json::from_str::<Value>(text) {
                    collect(&inner, depth + 1, found);
                }
            }
            other => collect(other, depth + 1, found),
        }
    }
}
