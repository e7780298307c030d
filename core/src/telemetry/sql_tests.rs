//! Tests the spans of requests about SQL.

use serde_json::{Value, json};

use super::*;
use crate::sql::{
    AskAnswer, AttemptOutcome, Dialect, Judgement, ModelCallOutcome, SqlCode, SqlDiagnostic, SqlPolicy, SqlRunAnswer,
    StageName, TokenCounts,
};

const SECRET: &str = "secret-of-the-request";

fn frame() -> SpanFrame {
    let id = SpanId::new([7; 8]).expect("not zero");
    SpanFrame { id, parent: None, start_ns: 1_000, end_ns: 5_000 }
}

/// Returns a judgement whose texts contain [`SECRET`].
fn judgement(verdict: &str, codes: &[SqlCode]) -> Judgement {
    let found: Vec<SqlDiagnostic> = codes
        .iter()
        .map(|code| SqlDiagnostic {
            subject: Some(SECRET.into()),
            ..SqlDiagnostic::error(StageName::Bind, *code, SECRET)
        })
        .collect();
    let digest = "0".repeat(64);
    let statement = json!({ "span": { "start": 0, "end": 1, "line": 1, "column": 1 }, "kind": "read",
        "tables": [SECRET], "functions": [SECRET] });
    let value = json!({
        "version": 1, "verdict": verdict, "dialect": "duckdb", "policy": "write", "statements": [statement],
        "stages": [], "diagnostics": found, "feedback": SECRET, "retry": { "worth": true, "why": SECRET },
        "audit": { "sql": digest, "request": digest, "engine": SECRET, "proctor": "1" }, "digest": digest,
        "timing": { "total_us": 1, "stages_us": [] },
    });
    serde_json::from_value(value).expect("a judgement")
}

fn attribute<'a>(span: &'a TraceSpan, name: &str) -> Option<&'a AttributeValue> {
    span.attributes.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
}

fn text(value: &str) -> Option<AttributeValue> {
    Some(AttributeValue::Text(value.to_owned()))
}

fn run_answer(judgement: &Judgement, more: &Value) -> SqlRunAnswer {
    let mut value = json!({ "version": 1, "judgement": judgement });
    more.as_object().expect("a map").iter().for_each(|(key, of)| value[key] = of.clone());
    serde_json::from_value(value).expect("an answer")
}

#[test]
fn judgement_span_has_codes_and_no_text() {
    let codes = [SqlCode::UnknownColumn, SqlCode::UnknownTable, SqlCode::UnknownColumn];
    let span = answer_span(frame(), 2_000, &judgement("reject", &codes));
    assert_eq!((span.name.as_str(), span.start_ns, span.end_ns), ("sql judgement", 1_000, 5_000));
    assert_eq!(attribute(&span, "proctor.sql.dialect").cloned(), text("duckdb"));
    assert_eq!(attribute(&span, "proctor.sql.policy").cloned(), text("write"));
    assert_eq!(attribute(&span, "proctor.sql.verdict").cloned(), text("reject"));
    let listed = AttributeValue::Texts(vec!["P0612".into(), "P0611".into()]);
    assert_eq!(attribute(&span, "proctor.sql.codes"), Some(&listed));
    assert_eq!(span.error.as_deref(), Some("reject: P0612, P0611"));
    assert_eq!((span.events[0].name, span.events[0].at_ns), ("worker started", 2_000));
    assert!(!format!("{span:?}").contains(SECRET), "{span:?}");
    let passed = answer_span(frame(), 9_000, &judgement("ok", &[]));
    assert_eq!((passed.error.as_deref(), passed.events[0].at_ns), (None, 5_000));
    assert!(attribute(&passed, "proctor.sql.codes").is_none());
}

#[test]
fn run_span_has_numbers_of_rows_and_no_rows() {
    let rows = json!({ "result": { "columns": [{ "name": SECRET }], "rows": [[SECRET], [SECRET]], "truncated": true,
        "changed": 4, "committed": true } });
    let span = answer_span(frame(), 2_000, &run_answer(&judgement("ok", &[]), &rows));
    assert_eq!((span.name.as_str(), span.error.as_deref()), ("sql run", None));
    assert_eq!(attribute(&span, "proctor.sql.rows"), Some(&AttributeValue::Number(2)));
    assert_eq!(attribute(&span, "proctor.sql.changed_rows"), Some(&AttributeValue::Number(4)));
    assert_eq!(attribute(&span, "proctor.sql.truncated"), Some(&AttributeValue::Flag(true)));
    assert_eq!(attribute(&span, "proctor.sql.committed"), Some(&AttributeValue::Flag(true)));
    let failed = answer_span(frame(), 2_000, &run_answer(&judgement("ok", &[]), &json!({ "error": SECRET })));
    assert_eq!(failed.error.as_deref(), Some("the statement failed when it ran"));
    let rejected = answer_span(frame(), 2_000, &run_answer(&judgement("reject", &[SqlCode::WriteRefused]), &json!({})));
    assert_eq!(rejected.error.as_deref(), Some("reject: P0626"));
    assert!(!format!("{span:?}{failed:?}{rejected:?}").contains(SECRET));
}

#[test]
fn refused_request_is_one_span_with_its_problem() {
    let span = refused_span::<Judgement>(frame(), "problem::too_many");
    assert_eq!((span.name.as_str(), span.error.as_deref()), ("sql judgement", Some("refused: problem::too_many")));
    assert_eq!(attribute(&span, "proctor.problem").cloned(), text("problem::too_many"));
    assert_eq!(refused_question_span(frame(), "problem::too_many").name, "sql question");
}

fn attempts() -> [AttemptRecord; 2] {
    let tokens = TokenCounts { input: 30, output: 5, estimated: false };
    let first = AttemptRecord {
        number: 1,
        start_ns: 1_500,
        end_ns: 3_000,
        call_end_ns: 2_000,
        call: ModelCallOutcome::Answered,
        tokens: Some(tokens),
        outcome: Some(AttemptOutcome::Rejected),
    };
    let second = AttemptRecord {
        number: 2,
        start_ns: 3_000,
        end_ns: 4_500,
        call_end_ns: 4_500,
        call: ModelCallOutcome::TimedOut,
        tokens: None,
        outcome: None,
    };
    [first, second]
}

fn record<'a>(attempts: &'a [AttemptRecord], answer: Option<&'a AskAnswer>) -> QuestionRecord<'a> {
    let (dialect, policy) = (Dialect::Sqlite, SqlPolicy::Read);
    QuestionRecord { dialect, policy, provider: "local", model: Some("m"), attempts, answer }
}

fn answer() -> AskAnswer {
    let attempt = json!({ "number": 1, "outcome": "rejected", "statement": SECRET, "error": SECRET,
        "tokens": { "input": 30, "output": 5 }, "ms": 2 });
    let value = json!({
        "version": 1, "id": "20260102T030405Z-000000ab", "verdict": "error", "end": "provider", "reason": SECRET,
        "dialect": "sqlite", "provider": "local", "model": "m", "attempts": [attempt],
        "tokens": { "input": 30, "output": 5, "estimated": true }, "ms": 3,
    });
    serde_json::from_value(value).expect("an answer")
}

#[test]
fn question_has_spans_for_attempts_and_model_calls() {
    let (attempts, answer) = (attempts(), answer());
    let spans = question_spans(frame(), &record(&attempts, Some(&answer)));
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    assert_eq!(names, ["sql question", "sql attempt", "model call", "sql attempt", "model call"]);
    let [question, first, call, second, late] = spans.as_slice() else { panic!("five spans") };
    assert_eq!(question.error.as_deref(), Some("error: provider"));
    assert_eq!(attribute(question, "proctor.sql.attempts"), Some(&AttributeValue::Number(2)));
    assert_eq!(attribute(question, "proctor.sql.audit_id").cloned(), text(&answer.id));
    assert_eq!(attribute(question, "gen_ai.usage.input_tokens"), Some(&AttributeValue::Number(30)));
    assert_eq!((first.parent, first.id), (Some(question.id), attempt_span_id(question.id, 1)));
    assert_eq!((first.start_ns, first.end_ns, first.error.as_deref()), (1_500, 3_000, Some("rejected")));
    assert_eq!(attribute(first, "proctor.sql.attempt"), Some(&AttributeValue::Number(1)));
    assert_eq!((call.parent, call.end_ns, call.error.as_deref()), (Some(first.id), 2_000, None));
    assert_eq!(attribute(call, "proctor.sql.provider").cloned(), text("local"));
    assert_eq!(attribute(call, "gen_ai.request.model").cloned(), text("m"));
    assert_eq!(attribute(call, "gen_ai.usage.output_tokens"), Some(&AttributeValue::Number(5)));
    assert_eq!((second.error.as_deref(), late.error.as_deref()), (Some("did not end"), Some("timed_out")));
    assert!(attribute(late, "gen_ai.usage.output_tokens").is_none());
    let ids: std::collections::BTreeSet<[u8; 8]> = spans.iter().map(|span| span.id.bytes()).collect();
    assert_eq!(ids.len(), spans.len());
    assert!(!format!("{spans:?}").contains(SECRET), "{spans:?}");
}

#[test]
fn abandoned_question_is_an_error() {
    let spans = question_spans(frame(), &record(&[], None));
    assert_eq!((spans.len(), spans[0].error.as_deref()), (1, Some("cancelled")));
}
