//! Renders judgements as SARIF 2.1.0, for tools that show findings next to the code.

use std::collections::BTreeMap;

use proctor_core::code::Coded as _;
use proctor_core::sql::{SqlDiagnostic, SqlSeverity};
use serde_json::{Value, json};

use super::judged_text::Judged;

/// Returns a SARIF log with one run.
pub(super) fn to_sarif_log(judged: &[Judged]) -> Value {
    let mut rules: BTreeMap<String, Value> = BTreeMap::new();
    let mut results = Vec::new();
    for judged in judged {
        for found in &judged.judgement.diagnostics {
            rules.entry(found.id.to_string()).or_insert_with(|| rule(found));
            results.push(result(judged, found));
        }
    }
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "proctor sql",
                "version": env!("CARGO_PKG_VERSION"),
                "informationUri": "https://github.com/proctor-verify/proctor",
                "rules": rules.into_values().collect::<Vec<_>>(),
            }},
            "columnKind": "unicodeCodePoints",
            "results": results,
        }],
    })
}

fn rule(found: &SqlDiagnostic) -> Value {
    let code = found.code.code();
    let explanation = code.explanation();
    json!({
        "id": found.id.to_string(),
        "name": code.name(),
        "shortDescription": { "text": explanation.meaning },
        "help": { "text": format!("{} {}", explanation.reason, explanation.remedy) },
    })
}

fn result(judged: &Judged, found: &SqlDiagnostic) -> Value {
    let level = match found.severity {
        SqlSeverity::Error => "error",
        SqlSeverity::Warning => "warning",
        SqlSeverity::Note => "note",
    };
    let mut text = found.message.clone();
    if !found.candidates.is_empty() {
        text += &format!(" (did you mean `{}`?)", found.candidates.join("`, `"));
    }
    if let Some(advice) = &found.advice {
        text += &format!(". {advice}");
    }
    let uri = if judged.file == "-" { "stdin" } else { judged.file.as_str() };
    let mut location = json!({ "physicalLocation": { "artifactLocation": { "uri": uri } } });
    if let Some(span) = found.span {
        location["physicalLocation"]["region"] = json!({
            "startLine": span.line,
            "startColumn": span.column,
            "byteOffset": span.start,
            "byteLength": span.end - span.start,
        });
    }
    let mut result = json!({
        "ruleId": found.id.to_string(),
        "level": level,
        "message": { "text": text },
        "locations": [location],
        "properties": { "stage": found.stage.as_str(), "confidence": found.confidence },
    });
    if let Some(fix) = &found.fix {
        result["fixes"] = json!([{
            "artifactChanges": [{
                "artifactLocation": { "uri": uri },
                "replacements": [{
                    "deletedRegion": { "byteOffset": fix.start, "byteLength": fix.end - fix.start },
                    "insertedContent": { "text": fix.replacement },
                }],
            }],
        }]);
    }
    result
}
