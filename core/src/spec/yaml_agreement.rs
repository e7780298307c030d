//! Reports values that serde_yaml, the second parser, reads in another way.

use serde_yaml::Value;

use super::diagnostic::{Code, Diagnostic};
use super::diagnostic_collector::DiagnosticCollector;
use super::span::Span;
use super::yaml::{self, Node, YamlValue};
use crate::text::escape::quoted;

/// Returns the error for a value that the parsers read in different ways.
pub(super) fn disagreement(span: Span) -> Diagnostic {
    Diagnostic::error(Code::ReadersDisagree, span, "two YAML parsers disagree about this value")
        .hint("quote the value, or write it more simply")
}

/// Returns the error for a text that only the second parser rejects.
pub(super) fn second_parser_error(bytes: &[u8], root: &Node<'_>, error: &serde_yaml::Error) -> Diagnostic {
    let span = serde_yaml_span(bytes, error).unwrap_or(root.head);
    disagreement(span).hint(format!("the second one says {}", quoted(&error.to_string())))
}

/// Returns the position where serde_yaml stopped. Its own index counts characters, so the byte offset is computed from
/// line and column.
fn serde_yaml_span(bytes: &[u8], error: &serde_yaml::Error) -> Option<Span> {
    let location = error.location()?;
    let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    let text = std::str::from_utf8(bytes).ok()?;
    let text = text.trim_start_matches('\u{feff}');
    let mark = bytes.len() - text.len();
    let line = text.split_inclusive('\n').nth(location.line().checked_sub(1)?)?;
    let before: usize = text.split_inclusive('\n').take(location.line() - 1).map(str::len).sum();
    let within: usize = line.chars().take(location.column().checked_sub(1)?).map(char::len_utf8).sum();
    let start = number(mark + before + within);
    Some(Span { start, end: start, line: number(location.line()), column: number(location.column()), file: 0 })
}

/// Compares a tree whose merge keys are replaced with serde_yaml's reading of the same text. serde_yaml replaces merge
/// keys only in untyped values, so the comparison is value by value.
pub(super) fn compare_merged_tree(bytes: &[u8], root: &Node<'_>, report: &mut DiagnosticCollector) {
    let read = serde_yaml::from_slice::<Value>(bytes.strip_prefix(yaml::BOM).unwrap_or(bytes));
    let read = read.and_then(|mut value| value.apply_merge().map(|()| value));
    match read {
        Ok(value) => {
            if let Some(span) = first_disagreement(root, &value) {
                report.add(disagreement(span));
            }
        }
        Err(error) => report.add(second_parser_error(bytes, root, &error)),
    }
}

/// Returns the position of the first value that differs.
fn first_disagreement(node: &Node<'_>, value: &Value) -> Option<Span> {
    let is_equal = match (&node.value, value) {
        (YamlValue::Scalar { text, plain: false }, Value::String(other)) => text == other,
        (YamlValue::Scalar { text, plain: true }, value) => plain_value(text) == *value,
        (YamlValue::Seq(items), Value::Sequence(others)) if items.len() == others.len() => {
            return items.iter().zip(others).find_map(|(item, other)| first_disagreement(item, other));
        }
        (YamlValue::Map(entries), Value::Mapping(others)) if entries.len() == others.len() => {
            let others: Vec<(Option<String>, &Value)> =
                others.iter().map(|(key, value)| (key_text(key), value)).collect();
            return entries.iter().find_map(|(key, entry)| {
                let other = others.iter().find(|(text, _)| text.as_deref() == Some(&*key.text));
                other.map_or(Some(key.span), |(_, value)| first_disagreement(entry, value))
            });
        }
        _ => false,
    };
    (!is_equal).then_some(node.head)
}

/// Returns the value that serde_yaml reads for a scalar without quotes.
fn plain_value(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

/// Returns the text of a key that is a scalar.
fn key_text(key: &Value) -> Option<String> {
    match key {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(value) => Some(value.to_string()),
        Value::Null => Some(String::new()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use crate::spec::{self, Code, Spec};

    /// The same spec with aliases and merge keys, and written out.
    const MERGED: &str = "version: 1
defaults: { env: &env { A: 1.10, B: 'x' }, timeout_ms: 5 }
profiles: { p: { include: [s, t] } }
skills:
  s:
    env: { <<: *env, B: y }
    steps:
      - &step { name: a, cmd: &cmd [make, '017'], timeout_ms: 7, expect: { exit: [0, 1] } }
      - { <<: *step, name: b }
      - { name: c, cmd: *cmd }
  t:
    steps:
      - <<: [{ name: d, retries: 2 }, *step]
        workdir: sub
";
    const WRITTEN_OUT: &str = "version: 1
defaults: { env: { A: 1.10, B: 'x' }, timeout_ms: 5 }
profiles: { p: { include: [s, t] } }
skills:
  s:
    env: { B: y, A: 1.10 }
    steps:
      - { name: a, cmd: [make, '017'], timeout_ms: 7, expect: { exit: [0, 1] } }
      - { name: b, cmd: [make, '017'], timeout_ms: 7, expect: { exit: [0, 1] } }
      - { name: c, cmd: [make, '017'] }
  t:
    steps:
      - { workdir: sub, name: d, retries: 2, cmd: [make, '017'], timeout_ms: 7, expect: { exit: [0, 1] } }
";

    fn parse(text: &str) -> Spec {
        spec::parse(text.as_bytes()).unwrap_or_else(|problems| panic!("{problems:#?}")).spec
    }

    fn codes(text: &str) -> Vec<Code> {
        let problems = spec::parse(text.as_bytes()).expect_err("invalid");
        problems.iter().map(|problem| problem.code).collect()
    }

    #[test]
    fn aliases_and_merge_keys_equal_written_out_values() {
        assert_eq!(parse(MERGED), parse(WRITTEN_OUT));
    }

    #[test]
    fn rejects_merge_of_scalar_and_repeated_merge_key() {
        let with = |step: &str| MERGED.replace("{ <<: *step, name: b }", step);
        assert_eq!(codes(&with("{ <<: 5, name: b, cmd: x }")), [Code::Alias]);
        assert_eq!(codes(&with("{ <<: [*step, x], name: b }")), [Code::Alias]);
        assert_eq!(codes(&with("{ <<: *step, <<: *step, name: b }")), [Code::DuplicateKey]);
        assert_eq!(codes(&with("{ <<: *absent, name: b, cmd: x }")), [Code::Alias]);
    }

    #[test]
    fn rules_apply_to_merged_values() {
        let repeated = MERGED.replace("{ <<: *step, name: b }", "{ <<: *step }");
        assert_eq!(codes(&repeated), [Code::DuplicateStep]);
        let unknown = MERGED.replace("{ <<: *step, name: b }", "{ <<: { nmae: x }, name: b, cmd: x }");
        assert_eq!(codes(&unknown), [Code::UnknownKey]);
    }

    #[test]
    fn rejects_alias_inside_of_its_own_value() {
        assert!(codes("version: 1\nskills: &a { s: *a }\nprofiles: {}\n").contains(&Code::Alias));
    }
}
