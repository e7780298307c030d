//! Trace contexts and the spans of recorded runs.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::event::RunEvent;
use crate::names::{RunId, SkillName, StepName};
use crate::outcome::{Outcome, Termination};
use crate::record::RunRecord;
use crate::verdict::{Doubt, Verdict};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const LOG: &str = include_str!("../../../fixtures/logs/passed.jsonl");
const BASE: u64 = 1_767_323_045_000;

fn run_id() -> RunId {
    RunId::new("20260102T030405Z-000000ab").expect("an id")
}

fn context(text: &str) -> Option<TraceContext> {
    TraceContext::parse(text, None)
}

/// Returns a recorded run with one event per tenth of a second.
fn recorded(change: impl Fn(&mut RunEvent)) -> RunRecord {
    let mut record = RunRecord::default();
    for (at, line) in LOG.lines().enumerate() {
        let mut event = serde_json::from_str(line).expect("an event");
        change(&mut event);
        record.apply(event, Duration::from_millis(at as u64 * 100));
    }
    record
}

fn times() -> RunTimes {
    RunTimes {
        base_ms: BASE,
        asked_ms: BASE - 500,
        ended_ms: BASE + 60_000,
        queued_ms: Some(400),
        repository: Some("repo".into()),
        profile: "pr".into(),
        problem: None,
    }
}

fn attribute<'a>(span: &'a Span, name: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|(found, _)| *found == name).map(|(_, value)| value)
}

fn text(value: &str) -> Option<Value> {
    Some(Value::Text(value.to_owned()))
}

#[test]
fn reads_a_traceparent_and_writes_it_again() {
    let context = context(PARENT).expect("valid");
    assert!(context.is_sampled());
    assert_eq!(context.traceparent(), PARENT);
    let unsampled = TraceContext::parse(&PARENT.replace("-01", "-00"), None).expect("valid");
    assert!(!unsampled.is_sampled());
}

#[test]
fn ignores_a_traceparent_that_is_not_valid() {
    let zero_trace = format!("00-{}-b7ad6b7169203331-01", "0".repeat(32));
    let zero_span = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", "0".repeat(16));
    let cases = [
        "",
        "00",
        &PARENT.to_ascii_uppercase(),
        &PARENT.replacen("00", "ff", 1),
        &format!("{PARENT}-"),
        &format!("{PARENT}-x"),
        &PARENT[..54],
        &PARENT.replace('-', "_"),
        &PARENT.replacen('0', "+", 2),
        &zero_trace,
        &zero_span,
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0\u{e9}",
    ];
    for case in cases {
        assert_eq!(context(case), None, "{case:?}");
    }
}

#[test]
fn reads_what_it_knows_of_a_later_version() {
    let later = PARENT.replacen("00", "cc", 1);
    for text in [later.clone(), format!("{later}-what-comes-later")] {
        assert_eq!(context(&text), context(PARENT), "{text}");
    }
    assert_eq!(context(&format!("{later}.x")), None);
}

#[test]
fn leaves_out_a_tracestate_that_is_not_valid() {
    let state = |text: &str| TraceContext::parse(PARENT, Some(text)).expect("valid").tracestate().map(str::to_owned);
    assert_eq!(
        state("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        Some("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE".into())
    );
    assert_eq!(state(" a=1 ,, tenant@system=b c "), Some("a=1,tenant@system=b c".into()));
    let many: Vec<String> = (0..33).map(|n| format!("k{n}=1")).collect();
    let long = format!("a={}", "x".repeat(MAX_STATE));
    for bad in ["", "a", "A=1", "a=", "a=1,a=2", "a=\u{7f}", "a=b=c", "a@b@c=1", &many.join(","), &long] {
        assert_eq!(state(bad), None, "{bad:?}");
    }
}

#[test]
fn takes_both_variables_out_of_an_environment() {
    let env = |parent: &str| {
        [("A", "1"), (TRACEPARENT, parent), (TRACESTATE, "a=1")].map(|(n, v)| (n.to_owned(), v.to_owned())).into()
    };
    for (parent, found) in [(PARENT, true), ("nonsense", false)] {
        let mut env: std::collections::BTreeMap<String, String> = env(parent);
        assert_eq!(take_context(&mut env).is_some(), found);
        assert_eq!(env.into_keys().collect::<Vec<_>>(), ["A"]);
    }
}

#[test]
fn a_context_is_two_texts_on_record() {
    let context = TraceContext::parse(PARENT, Some("a=1")).expect("valid");
    let json = serde_json::to_string(&context).expect("writes");
    assert_eq!(json, format!(r#"{{"traceparent":"{PARENT}","tracestate":"a=1"}}"#));
    assert_eq!(serde_json::from_str::<TraceContext>(&json).expect("reads"), context);
    serde_json::from_str::<TraceContext>(r#"{"traceparent":"x"}"#).expect_err("not valid");
}

proptest! {
    #[test]
    fn every_valid_traceparent_survives(trace in any::<[u8; 16]>(), span in any::<[u8; 8]>(), flags in any::<u8>()) {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = format!("00-{}-{}-{flags:02x}", hex(&trace), hex(&span));
        match context(&text) {
            None => prop_assert!(trace == [0; 16] || span == [0; 8]),
            Some(context) => {
                prop_assert_eq!((context.trace().bytes(), context.span().bytes()), (trace, span));
                prop_assert_eq!(context.is_sampled(), flags & 1 == 1);
                prop_assert_eq!(super::tests::context(&context.traceparent()), Some(context));
            }
        }
    }

    #[test]
    fn no_text_breaks_the_parser(parent in "\\PC{0,80}", state in "\\PC{0,600}", cut in 0..60_usize) {
        let near: String = PARENT.chars().take(cut).chain(parent.chars()).collect();
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
fn a_run_without_a_caller_has_a_trace_of_its_own() {
    let trace = RunTrace::new(run_id(), None);
    assert_eq!(trace, RunTrace::new(run_id(), None), "the ids follow from the id of the run");
    let other = RunTrace::new(RunId::new("20260102T030405Z-000000ac").expect("an id"), None);
    assert_ne!(trace.trace(), other.trace());
    assert_ne!(trace.run_span(), other.run_span());
    assert_eq!(spans(&recorded(|_| {}), &times(), &trace)[0].parent, None);
}

#[test]
fn the_run_is_below_the_span_of_its_caller() {
    let parent = TraceContext::parse(PARENT, Some("a=1")).expect("valid");
    let trace = RunTrace::new(run_id(), Some(parent.clone()));
    assert_eq!(trace.trace(), parent.trace());
    assert_eq!(spans(&recorded(|_| {}), &times(), &trace)[0].parent, Some(parent.span()));
    let step = trace.step_context("s", &StepName::new("t").expect("a name"));
    assert_eq!((step.trace(), step.tracestate(), step.is_sampled()), (parent.trace(), Some("a=1"), true));
}

#[test]
fn no_two_parts_of_a_run_share_an_id() {
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
fn a_run_is_a_tree_of_spans_with_its_times() {
    let record = recorded(|_| {});
    let trace = RunTrace::new(run_id(), None);
    let spans = spans(&record, &times(), &trace);
    let steps: usize = record.skills.iter().map(|skill| skill.steps.len()).sum();
    assert_eq!(spans.len(), 1 + record.checks.len() + record.skills.len() + steps);
    let run = &spans[0];
    assert_eq!((run.start_ns, run.end_ns), ((BASE - 500) * 1_000_000, (BASE + 60_000) * 1_000_000));
    assert_eq!(attribute(run, "proctor.verdict").cloned(), text("passed"));
    assert_eq!(attribute(run, "cicd.pipeline.result").cloned(), text("success"));
    assert_eq!(attribute(run, "proctor.run.queue_ms"), Some(&Value::Number(400)));
    let skill = &record.skills[0];
    let of_skill = spans.iter().find(|span| span.id == trace.skill_span(&skill.skill)).expect("a skill");
    assert_eq!(of_skill.parent, Some(run.id));
    let step = spans.iter().find(|span| span.id == trace.step_span(skill.skill.as_str(), &skill.planned[0]));
    let step = step.expect("a step");
    assert_eq!(step.parent, Some(of_skill.id));
    assert_eq!(step.start_ns, (BASE + skill.attempts[0].span.began_ms) * 1_000_000);
    assert_eq!(step.end_ns, (BASE + skill.attempts[0].span.ended_ms.expect("ended")) * 1_000_000);
    assert!(spans.iter().all(|span| span.error.is_none() && span.start_ns <= span.end_ns));
}

#[test]
fn a_step_that_fails_is_an_error_of_all_above_it() {
    let record = recorded(|event| match event {
        RunEvent::StepFinished { step, .. } => {
            (step.outcome, step.termination) = (Outcome::Failed, Termination::Exited { code: 3 });
        }
        RunEvent::SkillFinished { outcome, .. } => *outcome = Outcome::Failed,
        RunEvent::RunFinished { verdict, exit_code, .. } => (*verdict, *exit_code) = (Verdict::Failed, 1),
        _ => {}
    });
    let spans = spans(&record, &times(), &RunTrace::new(run_id(), None));
    let step = spans.iter().find(|span| span.name.starts_with("step ")).expect("a step");
    assert_eq!(step.error.as_deref(), Some("failed: exited with code 3"));
    assert_eq!(attribute(step, "process.exit.code"), Some(&Value::Number(3)));
    assert_eq!(attribute(step, "error.type").cloned(), text("failed"));
    assert_eq!(spans[0].error.as_deref(), Some("failed"));
    assert_eq!(attribute(&spans[0], "cicd.pipeline.result").cloned(), text("failure"));
}

#[test]
fn doubts_are_codes_without_their_messages() {
    let mut record = recorded(|_| {});
    record.add_doubts(&[(Doubt::TreeChanged, "/home/a/secret changed".into()), (Doubt::TreeChanged, "again".into())]);
    record.finished.as_mut().expect("it has ended").verdict = Verdict::Inconclusive;
    let spans = spans(&record, &times(), &RunTrace::new(run_id(), None));
    assert_eq!(attribute(&spans[0], "proctor.doubts"), Some(&Value::Texts(vec!["tree_changed".into()])));
    assert_eq!(spans[0].error.as_deref(), Some("inconclusive: tree_changed"));
    assert!(!format!("{spans:?}").contains("secret"));
}

#[test]
fn a_run_that_never_began_is_one_span_with_its_problem() {
    let times = RunTimes { problem: Some("invalid_spec".into()), ..times() };
    let spans = spans(&RunRecord::default(), &times, &RunTrace::new(run_id(), None));
    assert_eq!(spans.len(), 1);
    assert_eq!(spans[0].error.as_deref(), Some("inconclusive: invalid_spec"));
    assert!(spans[0].events.is_empty());
}

#[test]
fn a_step_that_was_cut_off_ends_with_the_run() {
    let mut record = RunRecord::default();
    for (at, line) in LOG.lines().enumerate() {
        let event: RunEvent = serde_json::from_str(line).expect("an event");
        let is_last = matches!(event, RunEvent::StepStarted { .. }) && record.skills.iter().any(|s| s.span.is_some());
        record.apply(event, Duration::from_millis(at as u64 * 100));
        if is_last {
            break;
        }
    }
    let spans = spans(&record, &times(), &RunTrace::new(run_id(), None));
    let step = spans.iter().find(|span| span.name.starts_with("step ")).expect("a step");
    assert_eq!((step.error.as_deref(), step.end_ns), (Some("did not end"), (BASE + 60_000) * 1_000_000));
}
