//! Finds the statement in an answer that wraps it in JSON or YAML: `{"sql": "SELECT 1"}`, `sql: |`.

use serde_json::Value;

/// Keys whose value is usually the statement, the most likely first.
const STATEMENT_KEYS: [&str; 8] = ["sql", "query", "sql_query", "sqlquery", "statement", "answer", "code", "result"];
/// The number of levels of a JSON value that are searched.
const MAX_LEVELS: usize = 4;
/// The maximum size of an answer that is parsed, in bytes.
const MAX_ANSWER_BYTES: usize = 256 << 10;

/// A statement that an answer wraps.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WrappedStatement {
    /// The name of the format.
    pub(super) format: &'static str,
    /// The statement, without the escapes and the indentation of the format.
    pub(super) sql: String,
}

/// Returns the statement that an answer wraps.
pub(super) fn find_wrapped_statement(text: &str) -> Option<WrappedStatement> {
    let text = text.trim();
    if text.len() > MAX_ANSWER_BYTES {
        return None;
    }
    let found = match text.chars().next()? {
        '{' | '[' | '"' => find_in_json(text).map(|sql| WrappedStatement { format: "JSON", sql }),
        _ => None,
    };
    found
        .or_else(|| find_in_yaml(text).map(|sql| WrappedStatement { format: "YAML", sql }))
        .filter(|found| !found.sql.is_empty())
}

fn find_in_json(text: &str) -> Option<String> {
    let value = serde_json::Deserializer::from_str(text).into_iter::<Value>().next()?.ok()?;
    find_in_value(&value, 0).map(|sql| sql.trim().to_owned())
}

/// Returns the statement in a value: the value itself, an element of a list, or the value of one of [`STATEMENT_KEYS`]
/// in an object.
fn find_in_value(value: &Value, level: usize) -> Option<&str> {
    match value {
        _ if level > MAX_LEVELS => None,
        Value::String(text) => Some(text),
        Value::Array(list) => list.iter().find_map(|value| find_in_value(value, level + 1)),
        Value::Object(object) => {
            let of_key = |key: &str| object.iter().find(|(name, _)| name.eq_ignore_ascii_case(key));
            let named = STATEMENT_KEYS
                .iter()
                .find_map(|key| of_key(key))
                .and_then(|(_, value)| find_in_value(value, level + 1));
            let inner = || object.values().filter(|value| value.is_object() || value.is_array());
            named.or_else(|| inner().find_map(|value| find_in_value(value, level + 1)))
        }
        _ => None,
    }
}

fn find_in_yaml(text: &str) -> Option<String> {
    let lines: Vec<&str> = text.lines().collect();
    let (at, value) = lines.iter().enumerate().find_map(|(at, line)| Some((at, statement_value(line)?)))?;
    // An answer consists of entries; the lines before the statement must be entries too.
    if !lines[..at].iter().all(|line| line.trim().is_empty() || line.starts_with([' ', '-', '#']) || is_entry(line)) {
        return None;
    }
    let scalar = value.trim();
    if let Some(style) = scalar.chars().next().filter(|first| matches!(first, '|' | '>')) {
        return Some(block_scalar(&lines[at + 1..], indentation(lines[at]), style));
    }
    match scalar.chars().next()? {
        '"' => serde_json::from_str(scalar).ok(),
        '\'' => Some(scalar.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'")),
        // Text after a one-line value may be its continuation or prose, so only entries may follow.
        _ if lines[at + 1..].iter().all(|line| line.trim().is_empty() || is_entry(line)) => Some(scalar.to_owned()),
        _ => None,
    }
}

/// Returns the value of a line whose key is one of [`STATEMENT_KEYS`].
fn statement_value(line: &str) -> Option<&str> {
    let line = line.trim_start().trim_start_matches("- ").trim_start();
    let (key, value) = line.split_once(':')?;
    let key = key.trim().trim_matches(['"', '\'']);
    STATEMENT_KEYS.iter().any(|known| key.eq_ignore_ascii_case(known)).then_some(value)
}

/// Reports whether a line is an entry of a mapping: `explanation: …`.
fn is_entry(line: &str) -> bool {
    line.split_once(':').is_some_and(|(key, _)| {
        !key.is_empty() && key.chars().all(|sign| sign.is_alphanumeric() || matches!(sign, '_' | '-'))
    })
}

fn indentation(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the lines that are indented deeper than the key of a block, without their common indentation.
fn block_scalar(lines: &[&str], key: usize, style: char) -> String {
    let is_inside = |line: &&&str| line.trim().is_empty() || indentation(line) > key;
    let inside: Vec<&str> = lines.iter().take_while(is_inside).copied().collect();
    let common = inside.iter().filter(|line| !line.trim().is_empty()).map(|line| indentation(line)).min().unwrap_or(0);
    let cut = inside.iter().map(|line| line.get(common..).unwrap_or_default());
    let joint = if style == '>' { " " } else { "\n" };
    cut.collect::<Vec<_>>().join(joint).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_statements_in_json_and_yaml() {
        let cases = [
            (r#"{"sql": "SELECT 1"}"#, Some(("JSON", "SELECT 1"))),
            (r#"{"explanation": "x", "Query": "SELECT \"a\"\nFROM t"}"#, Some(("JSON", "SELECT \"a\"\nFROM t"))),
            (r#"{"data": {"sql": "SELECT 1"}}"#, Some(("JSON", "SELECT 1"))),
            (r#"["SELECT 1"]"#, Some(("JSON", "SELECT 1"))),
            (r#""SELECT 1""#, Some(("JSON", "SELECT 1"))),
            ("sql: SELECT 1", Some(("YAML", "SELECT 1"))),
            ("sql: |\n  SELECT 1\n    FROM t\nexplanation: all", Some(("YAML", "SELECT 1\n  FROM t"))),
            ("thought: x\nsql: >-\n  SELECT 1\n  FROM t", Some(("YAML", "SELECT 1 FROM t"))),
            ("- query: 'SELECT ''a'''", Some(("YAML", "SELECT 'a'"))),
            ("sql: \"SELECT 1\"\n", Some(("YAML", "SELECT 1"))),
            ("sql: SELECT 1\nand more words", None),
            ("SELECT 1", None),
            ("{\"a\": 1}", None),
            ("{broken", None),
        ];
        for (text, expected) in cases {
            let expected = expected.map(|(form, sql)| WrappedStatement { format: form, sql: sql.to_owned() });
            assert_eq!(find_wrapped_statement(text), expected, "{text}");
        }
    }
}
