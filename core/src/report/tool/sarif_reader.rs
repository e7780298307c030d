//! Reads SARIF of other tools. It keeps each run as the tool wrote it, and validates it against the official
//! schema. A result that violates the schema is left out and counted; any other violation rejects the file.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::{Map, Value, json};

use super::SourceLocation;

/// The schema of SARIF 2.1.0 as published by OASIS (`$id` has the URL), from the crate `serde-sarif` 0.8.
const SCHEMA: &str = include_str!("sarif-2.1.0.schema.json");

/// A run of a tool.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::report) struct SarifRun {
    /// The run without its results.
    pub run_object: Map<String, Value>,
    /// The results of the run, in order.
    pub results: Vec<Value>,
    /// The number of results that violated the schema.
    pub invalid_results: usize,
}

/// The severity of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::report) enum FindingLevel {
    Error,
    Warning,
    Note,
}

/// The validators for a whole log and for one result.
struct SarifSchema {
    log: Validator,
    result: Validator,
}

/// The reason why our copy of the schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub(in crate::report) enum SarifSchemaError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error(transparent)]
    Schema(#[from] jsonschema::ValidationError<'static>),
}

/// The reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::report) enum SarifReadError {
    /// The schema cannot be used, so no file can be read.
    #[error("its schema does not compile: {0}")]
    Schema(#[source] &'static SarifSchemaError),
    /// The file is not JSON.
    #[error("it is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// The file violates the schema.
    #[error("it violates the schema of SARIF 2.1.0 at `{pointer}`")]
    SchemaViolation {
        /// The JSON pointer to the violation.
        pointer: String,
    },
}

static COMPILED_SCHEMA: LazyLock<Result<SarifSchema, SarifSchemaError>> = LazyLock::new(compile_schema);

fn compile_schema() -> Result<SarifSchema, SarifSchemaError> {
    // The pattern for languages has an unescaped bracket, which is valid only in JavaScript.
    let schema = SCHEMA.replace("{2}]?$", r"{2}\\]?$");
    let schema: Value = serde_json::from_str(&schema)?;
    let result = json!({
        "$schema": schema["$schema"], "$ref": "#/definitions/result", "definitions": schema["definitions"],
    });
    Ok(SarifSchema { log: jsonschema::draft7::new(&schema)?, result: jsonschema::draft7::new(&result)? })
}

/// Checks a document against the schema; reports the first violation.
fn check_schema(validator: &Validator, document: &Value) -> Result<(), SarifReadError> {
    match validator.iter_errors(document).next() {
        Some(error) => Err(SarifReadError::SchemaViolation { pointer: error.instance_path().to_string() }),
        None => Ok(()),
    }
}

/// Parses a file.
///
/// # Errors
/// The file is invalid.
pub(in crate::report) fn parse(bytes: &[u8]) -> Result<Vec<SarifRun>, SarifReadError> {
    let schema = COMPILED_SCHEMA.as_ref().map_err(SarifReadError::Schema)?;
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut log: Value = serde_json::from_slice(bytes)?;
    let results = take_results(&mut log);
    check_schema(&schema.log, &log)?;
    let Some(Value::Array(frames)) = log.get_mut("runs").map(Value::take) else { return Ok(Vec::new()) };
    let runs = frames.into_iter().zip(results).filter_map(|(frame, results)| {
        let Value::Object(frame) = frame else { return None };
        let all = results.len();
        let results: Vec<Value> = results.into_iter().filter(|result| schema.result.is_valid(result)).collect();
        Some(SarifRun { run_object: frame, invalid_results: all - results.len(), results })
    });
    Ok(runs.collect())
}

/// Takes the results out of each run. A value of the wrong type stays in place, so that the schema rejects it.
fn take_results(log: &mut Value) -> Vec<Vec<Value>> {
    let Some(runs) = log.get_mut("runs").and_then(Value::as_array_mut) else { return Vec::new() };
    let mut take = |run: &mut Value| match run.get_mut("results") {
        Some(Value::Array(results)) => std::mem::take(results),
        _ => Vec::new(),
    };
    runs.iter_mut().map(&mut take).collect()
}

impl SarifRun {
    /// Returns the name of the tool.
    pub(in crate::report) fn tool_name(&self) -> &str {
        self.run_object
            .get("tool")
            .and_then(|tool| tool.pointer("/driver/name"))
            .and_then(Value::as_str)
            .unwrap_or("a tool")
    }

    /// Converts one of its results to a finding; `None` if there is nothing to fix.
    pub(in crate::report) fn to_finding(&self, result: &Value) -> Option<SarifFinding> {
        let level = match result.get("level").and_then(Value::as_str) {
            _ if !needs_fix(result) => return None,
            Some("error") => FindingLevel::Error,
            Some("note" | "none") => FindingLevel::Note,
            _ => FindingLevel::Warning,
        };
        let rule = result.get("ruleId").or_else(|| result.pointer("/rule/id")).and_then(Value::as_str);
        let message = result.pointer("/message/text").or_else(|| result.pointer("/message/markdown"));
        Some(SarifFinding {
            level,
            rule: rule.map(str::to_owned),
            message: message.and_then(Value::as_str).unwrap_or("it gives no message").to_owned(),
            location: result.pointer("/locations/0/physicalLocation").and_then(parse_location),
        })
    }
}

/// A result of a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::report) struct SarifFinding {
    /// The severity of the result.
    pub level: FindingLevel,
    /// The id of the rule.
    pub rule: Option<String>,
    /// The message.
    pub message: String,
    /// The location.
    pub location: Option<SourceLocation>,
}

/// Returns whether a result needs a fix: it is not a pass, not suppressed, and new since the baseline.
fn needs_fix(result: &Value) -> bool {
    let is = |field: &str, words: &[&str]| {
        result.get(field).and_then(Value::as_str).is_some_and(|word| words.contains(&word))
    };
    let is_suppressed = result.get("suppressions").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    !is("kind", &["pass", "notApplicable", "informational"])
        && !is("baselineState", &["absent", "unchanged"])
        && !is_suppressed
}

fn parse_location(location: &Value) -> Option<SourceLocation> {
    let uri = location.pointer("/artifactLocation/uri")?.as_str()?;
    let path = super::normalize_repository_path(&percent_decode(uri)?)?;
    let number = |field: &str| location.pointer(&format!("/region/{field}")).and_then(Value::as_u64).filter(|n| *n > 0);
    Some(SourceLocation { path, line: number("startLine"), column: number("startColumn") })
}

/// Decodes the path of a relative URI; `None` if it is not UTF-8.
fn percent_decode(uri: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(uri.len());
    let mut rest = uri.bytes();
    while let Some(byte) = rest.next() {
        let digit = |digit: Option<u8>| char::from(digit?).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        bytes.push(if byte == b'%' { digit(rest.next())? << 4 | digit(rest.next())? } else { byte });
    }
    String::from_utf8(bytes).ok()
}

/// Asserts that a document is valid SARIF 2.1.0.
#[cfg(test)]
pub(in crate::report) fn assert_valid(document: &Value) {
    let schema = COMPILED_SCHEMA.as_ref().expect("the schema compiles");
    let errors: Vec<String> =
        schema.log.iter_errors(document).map(|error| format!("{}: {error}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sarif_log(results: &Value) -> Vec<u8> {
        let driver = json!({ "name": "ruff", "version": "1" });
        json!({ "version": "2.1.0", "runs": [{ "tool": { "driver": driver }, "results": results }] })
            .to_string()
            .into_bytes()
    }

    #[test]
    fn converts_result_to_finding() {
        let location = json!({ "physicalLocation": {
            "artifactLocation": { "uri": "src/a%20b.py" }, "region": { "startLine": 3, "startColumn": 5 } } });
        let result =
            json!({ "ruleId": "F401", "level": "error", "message": { "text": "unused" }, "locations": [location] });
        let runs = parse(&sarif_log(&json!([result]))).expect("a log");
        let finding = runs[0].to_finding(&runs[0].results[0]).expect("a finding");
        assert_eq!(runs[0].tool_name(), "ruff");
        assert_eq!(finding.level, FindingLevel::Error);
        assert_eq!(
            finding.location,
            Some(SourceLocation { path: "src/a b.py".into(), line: Some(3), column: Some(5) })
        );
        let suppressed = json!({ "message": { "text": "x" }, "suppressions": [{ "kind": "inSource" }] });
        assert_eq!(runs[0].to_finding(&suppressed), None);
    }

    #[test]
    fn counts_invalid_results_and_rejects_invalid_logs() {
        let results = json!([{ "message": { "text": "a" } }, { "message": "no object" }, 7]);
        let runs = parse(&sarif_log(&results)).expect("a log");
        assert_eq!((runs[0].results.len(), runs[0].invalid_results), (1, 2));
        for (bytes, expected) in [
            (&b"{"[..], "not JSON"),
            (b"[]", "violates the schema"),
            (br#"{"version":"2.0.0","runs":[]}"#, "at `/version`"),
            (br#"{"version":"2.1.0","runs":[{"results":[]}]}"#, "at `/runs/0`"),
            (br#"{"version":"2.1.0","runs":[{"tool":{"driver":{"name":"x"}},"results":7}]}"#, "/runs/0/results"),
            (b"\xff", "not JSON"),
        ] {
            let problem = parse(bytes).expect_err("refused");
            assert!(problem.to_string().contains(expected), "{problem}");
        }
        assert!(parse(&"[".repeat(100_000).into_bytes()).expect_err("deep").to_string().contains("recursion"));
    }
}
