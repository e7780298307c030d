//! Reads the log of a finished run and converts it into spans.

use std::time::{Duration, SystemTime};

use proctor_core::api::{LoggedEvent, LoggedRun};
use proctor_core::code::Coded as _;
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_core::telemetry::{RunTimes, RunTrace, TraceContext, TraceSpan, build_spans};

use crate::history::{History, HistoryError};

/// Number of events read at a time.
const PAGE_EVENTS: usize = 256;
/// Maximum length of a repository name in bytes, equal to the maximum length of a file name.
const MAX_NAME: usize = 255;

/// A run read from its log.
pub(super) struct TracedRun {
    run: LoggedRun,
    /// The trace of the caller.
    parent: Option<TraceContext>,
}

impl TracedRun {
    /// Reads the log of a run; `None` if there is none. Blocks on the disk.
    ///
    /// # Errors
    /// The log cannot be read.
    pub(super) fn read(history: &History, id: &RunId) -> Result<Option<Self>, HistoryError> {
        let (mut traced, mut after) = (None, 0);
        while let Some((events, more)) = history.events(id, after, PAGE_EVENTS)? {
            after = events.last().map_or(after, |event| event.seq);
            for event in events {
                match &mut traced {
                    None => traced = Self::begin(&event),
                    Some(traced) => traced.apply(&event),
                }
            }
            if !more {
                break;
            }
        }
        Ok(traced)
    }

    /// Reads the first event; `None` if it is not the request for a run.
    pub(super) fn begin(first: &LoggedEvent) -> Option<Self> {
        let RunEvent::RunQueued { trace, .. } = &first.event else { return None };
        Some(Self { run: LoggedRun::from_log([first])?, parent: trace.clone() })
    }

    /// Applies the next event.
    pub(super) fn apply(&mut self, logged: &LoggedEvent) {
        self.run.apply(logged);
    }

    /// Returns the spans of the run, which waited in the queue for `queued`. Returns `None` if the caller's trace is
    /// not sampled.
    pub(super) fn spans(self, queued: Option<Duration>) -> Option<(RunTrace, Vec<TraceSpan>)> {
        let Self { run, parent } = self;
        if !parent.as_ref().is_none_or(TraceContext::is_sampled) {
            return None;
        }
        let requested_ms = parse_ms(run.queued_at()).unwrap_or_default();
        let times = RunTimes {
            base_ms: run.started_at().and_then(parse_ms).unwrap_or(requested_ms),
            requested_ms,
            ended_ms: parse_ms(run.last_logged_at()).unwrap_or_default().max(requested_ms),
            queued_ms: queued.map(|queued| u64::try_from(queued.as_millis()).unwrap_or(u64::MAX)),
            repository: Some(last_component(&run.request().repo)),
            profile: run.request().profile.as_str().to_owned(),
            problem: run.record().problem.as_ref().map(|problem| problem.kind.code().name().to_owned()),
        };
        let trace = RunTrace::new(run.id().clone(), parent);
        let spans = build_spans(run.record(), &times, &trace);
        Some((trace, spans))
    }
}

/// Returns the last component of a path, truncated to [`MAX_NAME`] bytes.
fn last_component(path: &str) -> String {
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
    name.chars()
        .scan(0, |bytes, c| {
            *bytes += c.len_utf8();
            (*bytes <= MAX_NAME).then_some(c)
        })
        .collect()
}

/// Converts a timestamp of the log to milliseconds since 1970.
fn parse_ms(text: &str) -> Option<u64> {
    let since = humantime::parse_rfc3339(text).ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::api::RunSubmission;
    use proctor_core::model::names::ProfileName;

    const BASE: u64 = 1_767_323_045_000;
    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn at(ms: u64) -> String {
        let time = SystemTime::UNIX_EPOCH + Duration::from_millis(BASE + ms);
        humantime::format_rfc3339_millis(time).to_string()
    }

    fn queued_event(parent: &str) -> LoggedEvent {
        let submission = RunSubmission::new("/home/a/repo".into(), ProfileName::new("pr").expect("a name"));
        let event = RunEvent::RunQueued {
            run_id: RunId::new("r1").expect("an id"),
            at: at(0),
            request: submission.to_recorded("/home/a/repo".into()),
            uid: 7,
            toolchain_env_sha256: None,
            trace: TraceContext::parse(parent, None),
        };
        LoggedEvent { seq: 1, logged_at: at(0), event }
    }

    /// Returns the log of a run that waited for two seconds and then had an event every tenth of a second.
    fn passed_run(parent: &str) -> TracedRun {
        let mut log = TracedRun::begin(&queued_event(parent)).expect("a run");
        for (n, line) in include_str!("../../../fixtures/logs/passed.jsonl").lines().enumerate() {
            let mut event = serde_json::from_str(line).expect("an event");
            if let RunEvent::RunStarted { at: began, .. } = &mut event {
                *began = at(2_000);
            }
            log.apply(&LoggedEvent { seq: n as u64 + 2, logged_at: at(2_000 + n as u64 * 100), event });
        }
        log
    }

    #[test]
    fn spans_have_times_of_log() {
        let (trace, spans) = passed_run(PARENT).spans(Some(Duration::from_millis(1_900))).expect("sampled");
        let ms = |ns: u64| ns / 1_000_000 - BASE;
        assert_eq!((ms(spans[0].start_ns), ms(spans[0].end_ns)), (0, 2_700));
        assert_eq!(spans[0].parent, trace.parent().map(TraceContext::span));
        let step = spans.last().expect("a step");
        assert_eq!((ms(step.start_ns), ms(step.end_ns)), (2_200, 2_300));
        let shown = format!("{spans:?}");
        assert!(shown.contains("\"repo\"") && !shown.contains("/home"), "{shown}");
    }

    #[test]
    fn unsampled_trace_is_not_exported() {
        assert!(passed_run(&PARENT.replace("-01", "-00")).spans(None).is_none());
        assert!(passed_run("not valid").spans(None).is_some_and(|(trace, _)| trace.parent().is_none()));
    }

    #[test]
    fn refused_run_is_exported_with_its_problem() {
        use proctor_core::api::{Problem, ProblemType};
        let mut log = TracedRun::begin(&queued_event(PARENT)).expect("a run");
        let problem = Problem::new(ProblemType::InvalidSpec, "/home/a/repo/spec is not valid");
        log.apply(&LoggedEvent { seq: 2, logged_at: at(50), event: RunEvent::RunRefused { problem } });
        let (_, spans) = log.spans(None).expect("sampled");
        assert_eq!(spans.len(), 1);
        assert!(spans[0].error.as_deref().is_some_and(|error| error.contains("invalid_spec")), "{spans:?}");
        assert!(!format!("{spans:?}").contains("/home"));
    }
}
