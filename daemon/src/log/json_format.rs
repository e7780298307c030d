//! Formats records as JSON lines.

use serde_json::{Map, Number, Value};

use super::log_record::LogRecord;

/// Names that every record has. A field of an event with such a name is written as `field.NAME`.
const RECORD_KEYS: [&str; 4] = ["time", "level", "target", "message"];

/// Formats a record as a line with a line feed.
pub(super) fn format_line(record: &LogRecord, time: &str) -> String {
    let mut object = Map::new();
    let own = [time, record.level.as_str(), &record.target, &record.message];
    for (name, value) in RECORD_KEYS.into_iter().zip(own) {
        object.insert(name.to_owned(), Value::from(value));
    }
    for (name, value) in &record.fields {
        let is_number = record.numbers.contains(name);
        let name = if RECORD_KEYS.contains(name) { format!("field.{name}") } else { (*name).to_owned() };
        // A redacted number is no longer a number and is written as text.
        let number = is_number.then(|| value.parse::<Number>().ok()).flatten();
        object.insert(name, number.map_or_else(|| Value::from(value.as_str()), Value::Number));
    }
    let mut line = Value::Object(object).to_string();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numeric_fields_are_json_numbers() {
        let fields = |value: &str| vec![("number", value.to_owned()), ("text", "7".to_owned())];
        let read = |value: &str| -> Value {
            serde_json::from_str(format_line(&LogRecord::for_tests("x", fields(value)), "T").trim_end()).expect("JSON")
        };
        assert_eq!((&read("9034")["number"], &read("9034")["text"]), (&Value::from(9034), &Value::from("7")));
        assert_eq!(read("[redacted]")["number"], Value::from("[redacted]"));
        assert_eq!(read("NaN")["number"], Value::from("NaN"));
    }

    #[test]
    fn fields_cannot_replace_record_keys() {
        let fields = vec![("level", "mine".to_owned()), ("why", "a \"b\" \\u001b".to_owned())];
        let line = format_line(&LogRecord::for_tests("it happened", fields), "T");
        let read: Value = serde_json::from_str(line.trim_end()).expect("JSON");
        assert_eq!((&read["level"], &read["field.level"]), (&Value::from("WARN"), &Value::from("mine")));
        assert_eq!((&read["why"], &read["time"]), (&Value::from("a \"b\" \\u001b"), &Value::from("T")));
        assert_eq!(line.matches('\n').count(), 1);
    }
}
