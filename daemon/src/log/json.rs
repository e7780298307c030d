//! A JSON object a line.

use serde_json::{Map, Value};

use super::record::Record;

/// The names that every record has; a field of an event with one of them is shown as `field.NAME`.
const OWN: [&str; 4] = ["time", "level", "target", "message"];

/// One line, with its end.
pub(super) fn line(record: &Record, time: &str) -> String {
    let mut object = Map::new();
    let own = [time, record.level.as_str(), &record.target, &record.message];
    for (name, value) in OWN.into_iter().zip(own) {
        object.insert(name.to_owned(), Value::from(value));
    }
    for (name, value) in &record.fields {
        let name = if OWN.contains(name) { format!("field.{name}") } else { (*name).to_owned() };
        object.insert(name, Value::from(value.as_str()));
    }
    let mut line = Value::Object(object).to_string();
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_an_object_that_no_field_takes_over() {
        let fields = vec![("level", "mine".to_owned()), ("why", "a \"b\" \\u001b".to_owned())];
        let line = line(&Record::for_tests("it happened", fields), "T");
        let read: Value = serde_json::from_str(line.trim_end()).expect("JSON");
        assert_eq!((&read["level"], &read["field.level"]), (&Value::from("WARN"), &Value::from("mine")));
        assert_eq!((&read["why"], &read["time"]), (&Value::from("a \"b\" \\u001b"), &Value::from("T")));
        assert_eq!(line.matches('\n').count(), 1);
    }
}
