//! Trace contexts and the spans of recorded runs.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::decision::verdict::{InconclusiveReason, Verdict};
use crate::model::event::RunEvent;
use crate::model::names::{RunId, SkillName, StepName};
use crate::model::outcome::{Outcome, Termination};
use crate::record::run_record::RunRecord;

const TRACEPARENT_EXAMPLE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const PASSED_RUN_LOG: &str = include_str!("../../../fixtures/logs/passed.jsonl");
const BASE_MS: u64 = 1_767_323_045_000;

fn run_id() -> RunId {
    RunId::new("20260102T030405Z-000000ab").expect("an id")
}

fn parse_context(text: &str) -> Option<TraceContext> {
    TraceContext::parse(text, None)
}

/// Returns a recorded run with one event per tenth of a second.
fn recorded_run(change: impl Fn(&mut RunEvent)) -> RunRecord {
    let mut record = RunRecord::default();
    for (at, line) in PASSED_RUN_LOG.lines().enumerate() {
        let mut event = serde_json::from_str(line).expect("an event");
        change(&mut event);
        record.apply(event, Duration::from_millis(at as u64 * 100));
    }
    record
}

fn times() -> RunTimes {
    RunTimes {
        base_ms: BASE_MS,
        requested_ms: BASE_MS - 500,
        ended_ms: BASE_MS + 60_000,
        queued_ms: Some(400),
        repository: Some("repo".into()),
        profile: "pr".into(),
        problem: None,
    }
}

fn attribute<'a>(span: &'a TraceSpan, name: &str) -> Option<&'a AttributeValue> {
    span.attributes.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
}

fn text_value(value: &str) -> Option<AttributeValue> {
    Some(AttributeValue::Text(value.to_owned()))
}

#[test]
fn traceparent_round_trips() {
    let context = parse_context(TRACEPARENT_EXAMPLE).expect("valid");
    assert!(context.is_sampled());
    assert_eq!(context.traceparent(), TRACEPARENT_EXAMPLE);
    let unsampled = TraceContext::parse(&TRACEPARENT_EXAMPLE.replace("-01", "-00"), None).expect("valid");
    assert!(!unsampled.is_sampled());
}

#[test]
fn ignores_invalid_traceparent() {
    let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
    let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
    let cases = [
        "",
        "00",
        &TRACEPARENT_EXAMPLE.to_ascii_uppercase(),
        &TRACEPARENT_EXAMPLE.replacen("00", "ff", 1),
        &format!("{TRACEPARENT_EXAMPLE}-"),
        &format!("{TRACEPARENT_EXAMPLE}-x"),
        &TRACEPARENT_EXAMPLE[..54],
        &TRACEPARENT_EXAMPLE.replace('-', "_"),
        &TRACEPARENT_EXAMPLE.replacen('0', "+", 2),
        &zero_trace,
        &zero_span,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{e9}",
    ];
    for case in cases {
        assert_eq!(parse_context(case), None, "{case:?}");
    }
}

#[test]
fn parses_known_part_of_later_versions() {
    let later = TRACEPARENT_EXAMPLE.replacen("00", "cc", 1);
    for text in [later.clone(), format!("{later}-what-comes-later")] {
        assert_eq!(parse_context(&text), parse_context(TRACEPARENT_EXAMPLE), "{text}");
    }
    assert_eq!(parse_context(&format!("{later}.x")), None);
}

#[test]
fn drops_invalid_tracestate() {
    let state = |text: &str| {
        TraceContext::parse(TRACEPARENT_EXAMPLE, Some(text)).expect("valid").tracestate().map(str::to_owned)
    };
    assert_eq!(
        state("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE".into())
    );
    assert_eq!(state(" a=1 ,, tenant@system=b c "), Some("a=1,tenant@system=b c".into()));
    let many: Vec<String> = (0..33).map(|n| format!("k{n}=1")).collect();
    let long = format!("a={}", "x".repeat(MAX_TRACESTATE_BYTES));
    for bad in ["", "a", "A=1", "a=", "a=1,a=2", "a=\u{7f}", "a=b=c", "a@b@c=1", &many.join(","), &long] {
        assert_eq!(state(bad), None, "{bad:?}");
    }
}

#[test]
fn removes_both_variables_from_environment() {
    let env = |parent: &str| {
        [("A", "1"), (TRACEPARENT, parent), (TRACESTATE, "a=1")].map(|(n, v)| (n.to_owned(), v.to_owned())).into()
    };
    for (parent, found) in [(TRACEPARENT_EXAMPLE, true), ("nonsense", false)] {
        let mut env: std::collections::BTreeMap<String, String> = env(parent);
        assert_eq!(take_context(&mut env).is_some(), found);
        assert_eq!(env.into_keys().collect::<Vec<_>>(), ["A"]);
    }
}

#[test]
fn trace_context_serializes_as_two_headers() {
    let context = TraceContext::parse(TRACEPARENT_EXAMPLE, Some("a=1")).expect("valid");
    let json = serde_json::to_string(&context).expect("writes");
    assert_eq!(json, format!(r#"{{"traceparent":"{TRACEPARENT_EXAMPLE}","tracestate":"a=1"}}"#));
    assert_eq!(serde_json::from_str::<TraceContext>(&json).expect("reads"), context);
    serde_json::from_str::<TraceContext>(r#"{"traceparent":"x"}"#).expect_err("not valid");
}

proptest! {
    #[test]
    fn valid_traceparents_round_trip(trace in any::<[u8; 16]>(), span in any::<[u8; 8]>(), flags in any::<u8>()) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = format!("00-{}-{}-{flags:02x}", hex(&trace), hex(&span));
        match parse_context(&text) {
            None => prop_assert!(trace == [0; 16] || span == [0; 8]),
            Some(context) => {
                prop_assert_eq!((context.trace().bytes(), context.span().bytes()), (trace, span));
                prop_assert_eq!(context.is_sampled(), flags & 1 == 1);
                prop_assert_eq!(super::tests::parse_context(&context.traceparent()), Some(context));
            }
        }
    }

    #[test]
    fn arbitrary_text_never_breaks_parser(parent in "\\PC{0,80}", state in "\\PC{0,600}", cut in 0..60_usize) {
        let near: String = TRACEPARENT_EXAMPLE.chars().take(cut).chain(parent.chars()).collect();
        for text in [parent, near] {
            if let Some(context) = TraceContext::parse(&text, Some(&state)) {
                // A parsed context survives a round trip.
                let again = TraceContext::parse(&context.traceparent(), context.tracestate());
                prop_assert_eq!(again, Some(context));
            }
        }
    }
}

#[test]
fn run_without_caller_gets_new_trace() {
    let trace = RunTrace::new(run_id(), None);
    assert_eq!(trace, RunTrace::new(run_id(), None), "the ids follow from the id of the run");
    let other = RunTrace::new(RunId::new("20260102T030405Z-000000ac").expect("an id"), None);
    assert_ne!(trace.trace(), other.trace());
    assert_ne!(trace.run_span(), other.run_span());
    assert_eq!(build_spans(&recorded_run(|_| {}), &times(), &trace)[0].parent, None);
}

#[test]
fn run_span_is_child_of_caller_span() {
    let parent = TraceContext::parse(TRACEPARENT_EXAMPLE, Some("a=1")).expect("valid");
    let trace = RunTrace::new(run_id(), Some(parent.clone()));
    assert_eq!(trace.trace(), parent.trace());
    assert_eq!(build_spans(&recorded_run(|_| {}), &times(), &trace)[0].parent, Some(parent.span()));
    let step = trace.step_context("s", &StepName::new("t").expect("a name"));
    assert_eq!((step.trace(), step.tracestate(), step.is_sampled()), (parent.trace(), Some("a=1"), true));
}

#[test]
fn span_ids_are_unique() {
    let trace = RunTrace::new(run_id(), None);
    let (skill, step) = (|name| SkillName::new(name).expect("a name"), |name| StepName::new(name).expect("a name"));
    let ids = [
        trace.run_span(),
        trace.skill_span(&skill("a")),
        trace.skill_span(&skill("run")),
        trace.step_span("a", &step("a")),
        trace.step_span("a", &step("b")),
        trace.step_span("b", &step("a")),
        trace.step_span("ab", &step("a")),
        trace.step_span("a", &step("ba")),
    ];
    assert_eq!(ids.map(SpanId::bytes).into_iter().collect::<BTreeSet<_>>().len(), ids.len());
}

#[test]
fn builds_span_tree_with_times() {
    let record = recorded_run(|_| {});
    let trace = RunTrace::new(run_id(), None);
    let spans = build_spans(&record, &times(), &trace);
    let steps: usize = record.skills.iter().map(|skill| skill.steps.len()).sum();
    assert_eq!(spans.len(), 1 + record.checks.len() + record.skills.len() + steps);
    let run = &spans[0];
    assert_eq!((run.start_ns, run.end_ns), ((BASE_MS - 500) * 1_000_000, (BASE_MS + 60_000) * 1_000_000));
    assert_eq!(attribute(run, "proctor.verdict").cloned(), text_value("passed"));
    assert_eq!(attribute(run, "cicd.pipeline.result").cloned(), text_value("success"));
    assert_eq!(attribute(run, "proctor.run.queue_ms"), Some(&AttributeValue::Number(400)));
    let skill = &record.skills[0];
    let of_skill = spans.iter().find(|span| span.id == trace.skill_span(&skill.skill)).expect("a skill");
    assert_eq!(of_skill.parent, Some(run.id));
    let step = spans.iter().find(|span| span.id == trace.step_span(skill.skill.as_str(), &skill.planned[0]));
    let step = step.expect("a step");
    assert_eq!(step.parent, Some(of_skill.id));
    assert_eq!(step.start_ns, (BASE_MS + skill.attempts[0].span.began_ms) * 1_000_000);
    assert_eq!(step.end_ns, (BASE_MS + skill.attempts[0].span.ended_ms.expect("ended")) * 1_000_000);
    assert!(spans.iter().all(|span| span.error.is_none() && span.start_ns <= span.end_ns));
}

#[test]
fn failed_step_marks_its_parents_as_errors() {
    let record = recorded_run(|event| match event {
        RunEvent::StepFinished { step, .. } => {
            (step.outcome, step.termination) = (Outcome::Failed, Termination::Exited { code: 3 });
        }
        RunEvent::SkillFinished { outcome, .. } => *outcome = Outcome::Failed,
        RunEvent::RunFinished { verdict, exit_code, .. } => (*verdict, *exit_code) = (Verdict::Failed, 1),
        _ => {}
    });
    let spans = build_spans(&record, &times(), &RunTrace::new(run_id(), None));
    let step = spans.iter().find(|span| span.name.starts_with("step ")).expect("a step");
    assert_eq!(step.error.as_deref(), Some("failed: exited with code 3"));
    assert_eq!(attribute(step, "process.exit.code"), Some(&AttributeValue::Number(3)));
    assert_eq!(attribute(step, "error.type").cloned(), text_value("failed"));
    assert_eq!(spans[0].error.as_deref(), Some("failed"));
    assert_eq!(attribute(&spans[0], "cicd.pipeline.result").cloned(), text_value("failure"));
}

#[test]
fn exports_inconclusive_reasons_without_messages() {
    let mut record = recorded_run(|_| {});
    record.add_inconclusive_reasons(&[
        InconclusiveReason::TreeChanged.with_message("/home/a/secret changed"),
        InconclusiveReason::TreeChanged.with_message("again"),
    ]);
    record.finished.as_mut().expect("it has ended").verdict = Verdict::Inconclusive;
    let spans = build_spans(&record, &times(), &RunTrace::new(run_id(), None));
    assert_eq!(attribute(&spans[0], "proctor.doubts"), Some(&AttributeValue::Texts(vec!["tree_changed".into()])));
    assert_eq!(spans[0].error.as_deref(), Some("inconclusive: tree_changed"));
    assert!(!format!("{spans:?}").contains("secret"));
}

#[test]
fn refused_run_is_one_span_with_its_problem() {
    let times = RunTimes { problem: Some("invalid_spec".into()), ..times() };
    let spans = build_spans(&RunRecord::default(), &times, &RunTrace::new(run_id(), None));
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].error.as_deref(), Some("inconclusive: invalid_spec"));
    assert!(spans[0].events.is_empty());
}

#[test]
fn interrupted_step_ends_with_the_run() {
    let mut record = RunRecord::default();
    for (at, line) in PASSED_RUN_LOG.lines().enumerate() {
        let event: RunEvent = serde_json::from_str(line).expect("an event");
        let is_last = matches!(event, RunEvent::StepStarted { .. }) && record.skills.iter().any(|s| s.span.is_some());
        record.apply(event, Duration::from_millis(at as u64 * 100));
        if is_last {
            break;
        }
    }
    let spans = build_spans(&record, &times(), &RunTrace::new(run_id(), None));
    let step = spans.iter().find(|span| span.name.starts_with("step ")).expect("a step");
    assert_eq!((step.error.as_deref(), step.end_ns), (Some("did not end"), (BASE_MS + 60_000) * 1_000_000));
}
