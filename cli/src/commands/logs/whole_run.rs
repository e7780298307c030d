//! Follows the output of a whole run: prints the lines of all steps as they arrive, each prefixed with the name of
//! its step.

use std::collections::BTreeMap;
use std::time::Duration;

use proctor_core::api::{RunState, StepView};
use proctor_core::event::RunEvent;
use proctor_core::evidence::{StepEvidence, StreamEvidence};
use proctor_core::names::RunId;
use proctor_daemon::client::{Client, ClientError};
use proctor_daemon::service::{MAX_PART, OutputOf, Stdio, Unit};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Escaping, Place, Reader, called, units};
use crate::daemon::{client_error, lost};
use crate::error::CliError;
use crate::style::{self, DIM, paint};
use crate::text::{shown_line, size};

/// Capacity of the channel to the screen; when it is full, the streams wait.
const PIECES: usize = 16;
/// Number of reconnects of a stream, and the delay before each. A daemon that is gone for longer is detected by the
/// stream of run events.
const ASK_AGAIN: u32 = 200;
const PAUSE: Duration = Duration::from_millis(100);

/// A piece of a step's output.
struct Piece {
    stream: Stream,
    attempt: u32,
    content: Content,
}

/// Index of a step, and one of its output streams.
type Stream = (u32, Stdio);

enum Content {
    /// The next bytes of a running attempt.
    Live(Vec<u8>),
    /// The next bytes of the recorded output of a step that has ended.
    Recorded(Vec<u8>),
    /// End of the stream.
    End,
    /// The rest cannot be read.
    Lost(String),
}

/// The state of the display.
struct WholeRun<'a, 'r> {
    reader: &'a mut Reader<'r>,
    /// Names of the steps by index.
    names: Vec<String>,
    checks: u32,
    streams: JoinSet<()>,
    /// For each stream, the part of a line that is not shown yet.
    pending: BTreeMap<u32, [Escaping; 2]>,
    /// The attempts whose recorded output is shown, by step and stream.
    recorded: BTreeMap<u32, [Option<u32>; 2]>,
}

/// Shows the output of all checks and steps until the run has ended.
///
/// # Errors
/// The daemon is gone, or does not know the run.
pub(super) async fn follow(reader: &mut Reader<'_>) -> Result<u8, CliError> {
    let view = reader.view().await?;
    let (sender, mut pieces) = mpsc::channel(PIECES);
    let mut events = reader.client.events(&reader.run, view.seq);
    let mut whole = WholeRun {
        reader,
        names: view.steps.iter().map(crate::runs::name).collect(),
        checks: u32::try_from(view.checks.len()).unwrap_or(u32::MAX),
        streams: JoinSet::new(),
        pending: BTreeMap::new(),
        recorded: BTreeMap::new(),
    };
    for (place, step) in units(&view) {
        match step.outcome {
            Some(_) => whole.ended(place, step).await?,
            None if step.attempt > 0 => whole.start(step.n, step.attempt, &sender),
            None => {}
        }
    }
    // Dropped after the last event, so that the channel closes with the last stream.
    let mut sender = Some(sender).filter(|_| view.state != RunState::Finished);
    loop {
        if whole.reader.screen.reader_is_gone() {
            return Ok(0);
        }
        tokio::select! {
            piece = pieces.recv() => match piece {
                Some(piece) => whole.show(&piece),
                None => return Ok(0),
            },
            event = events.next(), if sender.is_some() => {
                let event = event.map_err(|error| lost(error, &whole.reader.run))?;
                match (event, &sender) {
                    (Some(event), Some(to)) => whole.event(event.event, to).await?,
                    _ => sender = None,
                }
            }
        }
    }
}

impl WholeRun<'_, '_> {
    async fn event(&mut self, event: RunEvent, to: &mpsc::Sender<Piece>) -> Result<(), CliError> {
        match event {
            RunEvent::RunStarted { skills, .. } => {
                let steps =
                    skills.iter().flat_map(|outline| outline.steps.iter().map(move |step| (&outline.skill, step)));
                self.names = steps.map(|(skill, step)| format!("{skill}/{step}")).collect();
            }
            RunEvent::CheckFinished { check } => {
                let (n, name) = (self.checks, format!("{}/{}", check.toolchain, self.checks));
                self.checks += 1;
                for (stream, found) in both(&check.step) {
                    if found.bytes > 0 {
                        self.print(&name, OutputOf { unit: Unit::Check, n, stream }).await?;
                    }
                }
            }
            // A check is announced as a step of a skill with the name of its toolchain, and is not among the names.
            RunEvent::StepStarted { skill, step, attempt, .. } => {
                let name = format!("{skill}/{step}");
                if let Some(n) = self.names.iter().position(|known| *known == name) {
                    self.start(u32::try_from(n).unwrap_or(u32::MAX), attempt, to);
                }
            }
            RunEvent::StepFinished { skill, step } => {
                let name = format!("{skill}/{}", step.planned.name);
                for (_, found) in both(&step).into_iter().filter(|(_, found)| found.kept_bytes < found.bytes) {
                    let kept = format!("{} of {} are kept", size(found.kept_bytes), size(found.bytes));
                    self.reader.screen.err(&style::warning(&format!("{}: {kept}", shown_line(&name))));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Follows both outputs of an attempt.
    fn start(&mut self, n: u32, attempt: u32, to: &mpsc::Sender<Piece>) {
        if attempt > 1 {
            let name = self.names.get(n as usize).map(|name| shown_line(name)).unwrap_or_default();
            let note = format!("{name}: attempt {attempt} begins; only the last one is kept");
            self.reader.screen.err(&style::warning(&note));
        }
        for stream in [Stdio::Stdout, Stdio::Stderr] {
            let (client, run) = (self.reader.client.clone(), self.reader.run.clone());
            self.streams.spawn(stream_of(client, run, (n, stream), attempt, to.clone()));
        }
        // Discard the tasks that have ended.
        while self.streams.try_join_next().is_some() {}
    }

    /// Shows the recorded outputs of a check or step that has ended.
    async fn ended(&mut self, place: Place, step: &StepView) -> Result<(), CliError> {
        for (stream, found) in [(Stdio::Stdout, &step.stdout), (Stdio::Stderr, &step.stderr)] {
            if found.as_ref().is_some_and(|found| found.bytes > 0) {
                self.print(&called(place, step), OutputOf { unit: place.unit, n: place.n, stream }).await?;
            }
            self.reader.remark(place, step, stream);
        }
        Ok(())
    }

    /// Shows one recorded output. If it is no longer kept, a message is shown instead.
    async fn print(&mut self, name: &str, of: OutputOf) -> Result<(), CliError> {
        let (mut escaping, mut offset) = (Escaping::default(), 0);
        loop {
            let part =
                match self.reader.client.output(&self.reader.run, of, offset, MAX_PART).await.map_err(client_error) {
                    Ok(part) => part,
                    Err(error @ CliError::Engine { .. }) => {
                        self.reader.screen.err(&error.render());
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                };
            offset += part.bytes.len() as u64;
            let is_last = part.bytes.is_empty() || offset >= part.length;
            let text = escaping.take(&part.bytes, is_last);
            self.lines(name, of.stream, &text);
            if is_last || self.reader.screen.reader_is_gone() {
                return Ok(());
            }
        }
    }

    fn show(&mut self, piece: &Piece) {
        let (n, stream) = piece.stream;
        let index = usize::from(stream == Stdio::Stderr);
        let Some(name) = self.names.get(n as usize).cloned() else { return };
        // Attempts that ended before their output was requested share one recorded output, which is shown once.
        let recorded = &mut self.recorded.entry(n).or_default()[index];
        if matches!(piece.content, Content::Recorded(_)) && *recorded.get_or_insert(piece.attempt) != piece.attempt {
            return;
        }
        let pending = &mut self.pending.entry(n).or_default()[index];
        match &piece.content {
            Content::Live(bytes) | Content::Recorded(bytes) => {
                let text = pending.take(bytes, false);
                self.lines(&name, stream, &text);
            }
            Content::End => {
                let text = std::mem::take(pending).take(&[], true);
                self.lines(&name, stream, &text);
            }
            Content::Lost(why) => {
                let text = std::mem::take(pending).take(&[], true);
                self.lines(&name, stream, &text);
                self.reader.screen.err(&style::warning(&format!("{}: {}", shown_line(&name), shown_line(why))));
            }
        }
    }

    fn lines(&mut self, name: &str, stream: Stdio, text: &str) {
        let mark = if stream == Stdio::Stderr { " err |" } else { " |" };
        let head = paint(DIM, format!("{}{mark}", shown_line(name)));
        let lines: String = text.lines().map(|line| format!("{head} {line}\n")).collect();
        if !lines.is_empty() {
            self.reader.screen.out(&lines);
        }
    }
}

fn both(step: &StepEvidence) -> [(Stdio, &StreamEvidence); 2] {
    [(Stdio::Stdout, &step.stdout), (Stdio::Stderr, &step.stderr)]
}

/// Sends one output of an attempt to its end.
async fn stream_of(client: Client, run: RunId, stream: Stream, attempt: u32, to: mpsc::Sender<Piece>) {
    let of = OutputOf { unit: Unit::Step, n: stream.0, stream: stream.1 };
    let ended = sent(&client, &run, of, attempt, &to).await;
    let content = match ended {
        Ok(()) => Content::End,
        Err(error) => Content::Lost(client_error(error).to_string()),
    };
    // Ignore the error: the receiver has stopped reading.
    let _ = to.send(Piece { stream, attempt, content }).await;
}

async fn sent(
    client: &Client,
    run: &RunId,
    of: OutputOf,
    attempt: u32,
    to: &mpsc::Sender<Piece>,
) -> Result<(), ClientError> {
    let (mut offset, mut tries) = (0, 0);
    loop {
        let failed = match client.follow_output(run, of, offset).await {
            Ok(output) if output.attempt().is_some_and(|found| found != attempt) => return Ok(()),
            Ok(mut output) => {
                let is_live = output.attempt().is_some();
                loop {
                    match output.next().await {
                        Ok(Some(bytes)) => {
                            offset += bytes.len() as u64;
                            tries = 0;
                            let bytes = bytes.to_vec();
                            let content = if is_live { Content::Live(bytes) } else { Content::Recorded(bytes) };
                            let piece = Piece { stream: (of.n, of.stream), attempt, content };
                            if to.send(piece).await.is_err() {
                                return Ok(());
                            }
                        }
                        Ok(None) => return Ok(()),
                        Err(error) => break error,
                    }
                }
            }
            Err(error) => error,
        };
        tries += 1;
        if !failed.is_lost() || tries > ASK_AGAIN {
            return Err(failed);
        }
        sleep(PAUSE).await;
    }
}
