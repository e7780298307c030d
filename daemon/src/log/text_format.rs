//! Formats records as human-readable lines: `TIME LEVEL target: message name=value …`.

use std::fmt::Write as _;

use super::log_record::LogRecord;

/// Formats a record as a line with a line feed.
pub(super) fn format_line(record: &LogRecord, time: &str) -> String {
    let LogRecord { level, target, message, fields, numbers: _ } = record;
    let mut line = format!("{time} {level:>5} {target}: {message}");
    for (name, value) in fields {
        // Writing to a string cannot fail.
        let _ = write!(line, " {name}={}", quote_value(value));
    }
    line.push('\n');
    line
}

/// Quotes a value that is empty or contains a space, a quote or an equals sign.
fn quote_value(value: &str) -> String {
    if value.is_empty() || value.contains([' ', '"', '=']) { format!("{value:?}") } else { value.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_record_as_one_line() {
        let fields = vec![("uid", "7".to_owned()), ("why", "no room".to_owned()), ("x", String::new())];
        let line = format_line(&LogRecord::for_tests("it happened", fields), "T");
        assert_eq!(line, "T  WARN proctor::x: it happened uid=7 why=\"no room\" x=\"\"\n");
    }
}
