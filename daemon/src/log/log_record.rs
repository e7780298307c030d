//! A sanitized log event: level, origin, message and fields.

use std::fmt;

use proctor_core::text::redact::Redactor;
use tracing::field::{Field, Visit};
use tracing::{Level, Metadata};

use super::sanitize::sanitize;

/// Maximum number of fields of a record, including those of its spans.
const MAX_FIELDS: usize = 64;
const MESSAGE: &str = "message";

/// Fields before sanitizing.
#[derive(Debug, Default)]
pub(super) struct LogFields {
    values: Vec<(&'static str, String)>,
    /// Names of the numeric fields.
    numbers: Vec<&'static str>,
}

/// An event without secrets and control characters.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogRecord {
    /// Severity.
    pub(super) level: Level,
    /// Module that emitted the event.
    pub(super) target: String,
    /// Message.
    pub(super) message: String,
    /// Other fields in their original order, with unique names.
    pub(super) fields: Vec<(&'static str, String)>,
    /// Names of the numeric fields.
    pub(super) numbers: Vec<&'static str>,
}

impl LogFields {
    /// Adds the fields of a span whose names are not used yet.
    pub(super) fn extend(&mut self, span_fields: &Self) {
        for (name, value) in &span_fields.values {
            if !self.values.iter().any(|(known, _)| known == name) {
                self.insert(name, value.clone());
                if span_fields.numbers.contains(name) {
                    self.numbers.push(name);
                }
            }
        }
    }

    fn insert_number(&mut self, name: &'static str, number: impl fmt::Display) {
        self.insert(name, number.to_string());
        self.numbers.push(name);
    }

    fn insert(&mut self, name: &'static str, value: String) {
        let has_space = self.values.len() < MAX_FIELDS;
        self.numbers.retain(|number| *number != name);
        match self.values.iter_mut().find(|(known, _)| *known == name) {
            Some((_, old)) => *old = value,
            None if has_space => self.values.push((name, value)),
            None => {}
        }
    }
}

impl Visit for LogFields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.insert(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.insert(field.name(), value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.insert_number(field.name(), value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.insert_number(field.name(), value);
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.insert_number(field.name(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.insert(field.name(), value.to_string());
    }
}

impl LogRecord {
    /// Returns a record about the number of lost records.
    pub(super) fn for_lost_records(count: u64) -> Self {
        Self {
            level: Level::WARN,
            target: module_path!().to_owned(),
            message: "records were lost because the log was not read in time".to_owned(),
            fields: vec![("count", count.to_string())],
            numbers: vec!["count"],
        }
    }

    /// Creates a sanitized record from the fields of an event.
    pub(super) fn from_event(metadata: &Metadata<'_>, fields: LogFields, redactor: &Redactor) -> Self {
        let sanitized = |text: &str| sanitize(&redactor.redact_text(text)).into_owned();
        let LogFields { values, numbers } = fields;
        let fields = values.into_iter().map(|(name, value)| (name, sanitized(&value)));
        let (messages, fields): (Vec<_>, Vec<_>) = fields.partition(|(name, _)| *name == MESSAGE);
        let message = messages.into_iter().map(|(_, message)| message).next().unwrap_or_default();
        Self { level: *metadata.level(), target: sanitized(metadata.target()), message, fields, numbers }
    }

    /// Returns a record for tests.
    #[cfg(test)]
    pub(super) fn for_tests(message: &str, fields: Vec<(&'static str, String)>) -> Self {
        let numbers = vec!["number"];
        Self { level: Level::WARN, target: "proctor::x".to_owned(), message: message.to_owned(), fields, numbers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_field_takes_precedence_over_span_field() {
        let mut fields = LogFields::default();
        let fields_with = |values: &[(&'static str, &str)], numbers: &[&'static str]| LogFields {
            values: values.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            numbers: numbers.to_vec(),
        };
        fields.extend(&fields_with(&[("run", "inner")], &[]));
        fields.extend(&fields_with(&[("run", "outer"), ("uid", "7")], &["uid"]));
        assert_eq!(fields.values, [("run", "inner".to_owned()), ("uid", "7".to_owned())]);
        assert_eq!(fields.numbers, ["uid"]);
        fields.insert("run", "own".into());
        fields.insert("uid", "none".into());
        assert_eq!((fields.values[0].1.as_str(), fields.numbers.len()), ("own", 0));
    }

    #[test]
    fn bounds_number_of_fields() {
        let names: Vec<&'static str> = (0..200).map(|n| &*format!("f{n}").leak()).collect();
        let mut fields = LogFields::default();
        names.iter().for_each(|name| fields.insert(name, String::new()));
        assert_eq!(fields.values.len(), MAX_FIELDS);
    }
}
