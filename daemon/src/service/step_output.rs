//! Reads the output of steps: the recorded one, or the live one while a step runs.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use proctor_core::api::{OutputEvent, Problem, ProblemType, RunState, RunView, StepView, StreamView};
use proctor_core::model::names::{RunId, SkillName, StepName};
use proctor_core::record::evidence::escape_output;
use proctor_runner::{LiveStep, LiveStream, StoredPart, StreamState};
use tokio::sync::watch;
use tokio::time::Instant;

use super::queries::no_step;
use super::{MAX_WAIT, OutputId, OutputUnit, Service, StdStream};
use crate::caller::Caller;
use crate::runs::{FoundRun, LiveRun, RunPhase, SerializedRun};

/// Maximum number of output bytes in one output event.
const EVENT_BYTES: usize = 16 << 10;
/// Lag in bytes beyond which a reader of output events skips bytes.
const MAX_LAG: u64 = 64 << 10;

/// Location of an output.
#[derive(Debug, Clone)]
pub enum OutputSource {
    /// The store; the step has ended.
    Recorded {
        /// Recorded properties of the output.
        stream: StreamView,
        /// Name of the step, as `skill/step`.
        name: String,
    },
    /// The memory of this process; the step is running, or its record is about to be written.
    Live {
        /// Number of the attempt that produces the output, from 1.
        attempt: u32,
        /// The bytes so far.
        stream: LiveStream,
    },
}

impl Service {
    /// Returns the current location of an output.
    ///
    /// # Errors
    /// As [`Service::run`]; also if there is no such step or it has not started.
    pub async fn output_source(&self, caller: Caller, id: &RunId, output: OutputId) -> Result<OutputSource, Problem> {
        let found = self.find_run(caller, id).await?;
        locate(found.live().map(Arc::as_ref), || found.current(), id, output)
    }

    /// Waits until the step starts, at most [`MAX_WAIT`], and returns the location of its output.
    ///
    /// # Errors
    /// As [`Service::output_source`].
    pub async fn followed_output(&self, caller: Caller, id: &RunId, output: OutputId) -> Result<OutputSource, Problem> {
        let found = self.find_run(caller, id).await?;
        let FoundRun::Live(live) = &found else { return locate(None, || found.current(), id, output) };
        let deadline = Instant::now() + MAX_WAIT;
        let mut progress = live.progress();
        loop {
            let has_ended = progress.borrow_and_update().phase == RunPhase::Ended;
            let waits = !has_ended && may_start(&live.current().view, output);
            match locate(Some(live), || live.current(), id, output) {
                Err(problem) if waits && problem.kind == ProblemType::NotFound => {
                    let changed = tokio::time::timeout_at(deadline, progress.changed()).await;
                    if !matches!(changed, Ok(Ok(()))) {
                        return Err(problem);
                    }
                }
                found => return found,
            }
        }
    }

    /// Reads at most `limit` bytes of an output from `offset` on. Also returns the current length of the output.
    ///
    /// # Errors
    /// The bytes cannot be read or are no longer stored.
    pub async fn output_part(
        &self,
        source: &OutputSource,
        offset: u64,
        limit: usize,
    ) -> Result<(StoredPart, u64), Problem> {
        match source {
            OutputSource::Recorded { stream, name } => self.recorded_part(stream, name, offset, limit).await,
            OutputSource::Live { stream, .. } => {
                let length = stream.extent().length;
                let bytes = read_live_output(stream, offset, limit).await.map_err(|error| live_read_error(&error))?;
                let more = offset.saturating_add(bytes.len() as u64) < length;
                Ok((StoredPart { bytes, has_more: more }, length))
            }
        }
    }

    /// Returns the output of a run's steps as events, or `None` if the run has ended.
    ///
    /// # Errors
    /// As [`Service::run`].
    pub(crate) async fn output_feed(&self, caller: Caller, id: &RunId) -> Result<Option<OutputFeed>, Problem> {
        let found = self.find_run(caller, id).await?;
        Ok(found.live().map(|live| OutputFeed::new(Arc::clone(live))))
    }
}

/// Reads a part of a live output without blocking the runtime.
pub(crate) async fn read_live_output(stream: &LiveStream, offset: u64, limit: usize) -> io::Result<Vec<u8>> {
    let stream = stream.clone();
    let read = tokio::task::spawn_blocking(move || stream.read(offset, limit)).await;
    read.map_err(io::Error::other)?
}

fn live_read_error(error: &io::Error) -> Problem {
    tracing::error!(%error, "the live output of a step cannot be read");
    Problem::new(ProblemType::Internal, format!("the output cannot be read: {error}"))
        .with_hint("read it when the step has ended")
}

/// Locates an output. The live output must be read before the view: it is removed only after the view names the
/// recorded one.
fn locate(
    live: Option<&LiveRun>,
    current: impl FnOnce() -> Arc<SerializedRun>,
    id: &RunId,
    output: OutputId,
) -> Result<OutputSource, Problem> {
    let running = live.map(|live| live.outputs().all()).unwrap_or_default();
    let shown = current();
    let steps = match output.unit {
        OutputUnit::Check => &shown.view.checks,
        OutputUnit::Step => &shown.view.steps,
    };
    let step = usize::try_from(output.n).ok().and_then(|n| steps.get(n)).ok_or_else(|| no_step(id, output))?;
    if let Some(stream) = recorded_stream(step, output.stream) {
        return Ok(OutputSource::Recorded { stream: stream.clone(), name: format!("{}/{}", step.skill, step.name) });
    }
    let is_it = |(skill, name, _): &&(SkillName, StepName, LiveStep)| {
        output.unit == OutputUnit::Step && skill.as_str() == step.skill && name.as_str() == step.name
    };
    let (_, _, found) = running.iter().find(is_it).ok_or_else(|| not_started(id, step))?;
    Ok(OutputSource::Live { attempt: found.attempt, stream: live_stream(found, output.stream).clone() })
}

/// Returns whether a missing step may still start. The steps of a queued run are not known yet, and a check is known
/// only when it has ended.
fn may_start(view: &RunView, output: OutputId) -> bool {
    let is_step = usize::try_from(output.n).is_ok_and(|n| n < view.steps.len());
    view.state == RunState::Queued || output.unit == OutputUnit::Check || is_step
}

fn recorded_stream(step: &StepView, stream: StdStream) -> Option<&StreamView> {
    match stream {
        StdStream::Stdout => step.stdout.as_ref(),
        StdStream::Stderr => step.stderr.as_ref(),
    }
}

fn live_stream(live: &LiveStep, stream: StdStream) -> &LiveStream {
    match stream {
        StdStream::Stdout => &live.stdout,
        StdStream::Stderr => &live.stderr,
    }
}

fn not_started(id: &RunId, step: &StepView) -> Problem {
    let detail = format!("`{}/{}` of the run `{id}` has not started, so it has no output yet", step.skill, step.name);
    Problem::new(ProblemType::NotFound, detail).with_hint("wait for its event `step_started`, or use `follow=true`")
}

/// The output of a run's steps as events. A reader that falls behind loses bytes and learns how many.
pub(crate) struct OutputFeed {
    live: Arc<LiveRun>,
    changes: watch::Receiver<u64>,
    steps: BTreeMap<(SkillName, StepName), FollowedStep>,
}

/// A step whose output is sent.
struct FollowedStep {
    step: LiveStep,
    /// Number of bytes sent of each stream.
    sent_bytes: [u64; 2],
}

impl OutputFeed {
    fn new(live: Arc<LiveRun>) -> Self {
        let changes = live.outputs().changes();
        Self { live, changes, steps: BTreeMap::new() }
    }

    /// Waits until there may be more output.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// Returns the next piece of output, or `None` if there is none yet. `only` restricts the output to one step.
    pub(crate) async fn next(&mut self, only: Option<(&SkillName, &StepName)>) -> Option<OutputEvent> {
        self.changes.mark_unchanged();
        self.refresh();
        for ((skill, step), fed) in &mut self.steps {
            if only.is_some_and(|only| only != (skill, step)) {
                continue;
            }
            for (index, stream) in [StdStream::Stdout, StdStream::Stderr].into_iter().enumerate() {
                let source = live_stream(&fed.step, stream);
                let Some(piece) = OutputPiece::read_after(source, fed.sent_bytes[index]).await else { continue };
                fed.sent_bytes[index] = piece.offset + piece.bytes.len() as u64;
                return Some(OutputEvent {
                    skill: skill.clone(),
                    step: step.clone(),
                    attempt: fed.step.attempt,
                    stream: stream.as_str().to_owned(),
                    offset: piece.offset,
                    skipped: piece.skipped,
                    text: escape_output(&piece.bytes),
                });
            }
        }
        None
    }

    /// Adds steps that have started, and removes ended steps whose output is sent completely.
    fn refresh(&mut self) {
        let running = self.live.outputs().all();
        let is_running =
            |key: &(SkillName, StepName)| running.iter().any(|(skill, step, _)| (skill, step) == (&key.0, &key.1));
        self.steps.retain(|key, fed| is_running(key) || !fed.is_finished());
        for (skill, step, live) in running {
            let key = (skill, step);
            if self.steps.get(&key).is_none_or(|fed| fed.step.attempt != live.attempt) {
                self.steps.insert(key, FollowedStep { step: live, sent_bytes: [0; 2] });
            }
        }
    }
}

impl FollowedStep {
    fn is_finished(&self) -> bool {
        let streams = [&self.step.stdout, &self.step.stderr];
        streams.into_iter().zip(self.sent_bytes).all(|(stream, sent)| {
            let extent = stream.extent();
            extent.state != StreamState::Open && extent.length <= sent
        })
    }
}

/// The bytes of an output for one event.
struct OutputPiece {
    offset: u64,
    skipped: u64,
    bytes: Vec<u8>,
}

impl OutputPiece {
    /// Returns the next bytes after the offset `sent`. An incomplete character at the end is left for the next piece.
    async fn read_after(stream: &LiveStream, sent: u64) -> Option<Self> {
        let extent = stream.extent();
        if extent.length <= sent {
            return None;
        }
        let offset = match extent.length - sent > MAX_LAG {
            true => extent.length - EVENT_BYTES as u64,
            false => sent,
        };
        let mut bytes = read_live_output(stream, offset, EVENT_BYTES).await.ok()?;
        let is_last = extent.state != StreamState::Open && offset + bytes.len() as u64 >= extent.length;
        if !is_last {
            bytes.truncate(complete_len(&bytes));
        }
        (!bytes.is_empty()).then_some(Self { offset, skipped: offset - sent, bytes })
    }
}

/// Returns the length without an incomplete character at the end.
fn complete_len(bytes: &[u8]) -> usize {
    // RFC 3629, section 3: a character has four bytes at most.
    let begins = (1..=bytes.len().min(3)).find(|back| bytes[bytes.len() - back] & 0b1100_0000 == 0b1100_0000);
    let needs = |first: u8| first.leading_ones() as usize;
    begins.map_or(bytes.len(), |back| {
        let start = bytes.len() - back;
        if needs(bytes[start]) > back && needs(bytes[start]) <= 4 { start } else { bytes.len() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_end_at_character_boundaries() {
        let text = "aé€😀".as_bytes();
        for (length, whole) in [(0, 0), (1, 1), (2, 1), (3, 3), (4, 3), (5, 3), (6, 6), (7, 6), (9, 6), (10, 10)] {
            assert_eq!(complete_len(&text[..length]), whole, "{length}");
        }
        assert_eq!(complete_len(b"a\xff"), 2, "no character begins so");
        assert_eq!(complete_len(b"a\x80\x80\x80\x80"), 5);
    }
}
