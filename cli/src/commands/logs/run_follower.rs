//! Follows the output of a whole run: prints the lines of all steps as they arrive, each prefixed with the name of
//! its step.

use std::collections::BTreeMap;
use std::time::Duration;

use proctor_client::error::ClientError;
use proctor_core::api::{RunState, StepView};
use proctor_core::model::event::RunEvent;
use proctor_core::model::names::RunId;
use proctor_core::record::evidence::{StepEvidence, StreamEvidence};
use proctor_daemon::client::Client;
use proctor_daemon::service::{MAX_PART, OutputId, OutputUnit, StdStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::cached_note::cached_note;
use super::escaping::StreamEscaper;
use super::log_printer::LogPrinter;
use super::run_units::{UnitPosition, unit_name, units};
use crate::daemon::{client_error, lost_run_error};
use crate::error::CliError;
use crate::style::{self, DIM, paint};
use crate::text::{escape_line, size};

/// Capacity of the channel to the screen; when it is full, the streams wait.
const CHANNEL_CAPACITY: usize = 16;
/// Number of reconnects of a stream, and the delay before each. A daemon that is gone for longer is detected by the
/// stream of run events.
const MAX_RECONNECTS: u32 = 200;
const RECONNECT_DELAY: Duration = Duration::from_millis(100);

/// A piece of a step's output.
struct LogPiece {
    stream: StepOutputStream,
    attempt: u32,
    content: LogPieceContent,
}

/// Index of a step, and one of its output streams.
type StepOutputStream = (u32, StdStream);

enum LogPieceContent {
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
struct RunFollower<'a, 'r> {
    printer: &'a mut LogPrinter<'r>,
    /// Names of the steps by index.
    names: Vec<String>,
    checks: u32,
    streams: JoinSet<()>,
    /// For each stream, the part of a line that is not shown yet.
    pending: BTreeMap<u32, [StreamEscaper; 2]>,
    /// The attempts whose recorded output is shown, by step and stream.
    recorded: BTreeMap<u32, [Option<u32>; 2]>,
}

/// Shows the output of all checks and steps until the run has ended.
///
/// # Errors
/// The daemon is gone, or does not know the run.
pub(super) async fn follow_run(printer: &mut LogPrinter<'_>) -> Result<u8, CliError> {
    let view = printer.view().await?;
    let (sender, mut pieces) = mpsc::channel(CHANNEL_CAPACITY);
    let mut events = printer.client.events(&printer.run, view.seq);
    let mut follower = RunFollower {
        printer,
        names: view.steps.iter().map(crate::run_display::step_name).collect(),
        checks: u32::try_from(view.checks.len()).unwrap_or(u32::MAX),
        streams: JoinSet::new(),
        pending: BTreeMap::new(),
        recorded: BTreeMap::new(),
    };
    for (place, step) in units(&view) {
        match step.outcome {
            Some(_) => follower.print_ended(place, step).await?,
            None if step.attempt > 0 => follower.start_streams(step.n, step.attempt, &sender),
            None => {}
        }
    }
    // Dropped after the last event, so that the channel closes with the last stream.
    let mut sender = Some(sender).filter(|_| view.state != RunState::Finished);
    loop {
        if follower.printer.screen.is_output_closed() {
            return Ok(0);
        }
        tokio::select! {
            piece = pieces.recv() => match piece {
                Some(piece) => follower.print_piece(&piece),
                None => return Ok(0),
            },
            event = events.next(), if sender.is_some() => {
                let event = event.map_err(|error| lost_run_error(error, &follower.printer.run))?;
                match (event, &sender) {
                    (Some(event), Some(to)) => follower.handle_event(event.event, to).await?,
                    _ => sender = None,
                }
            }
        }
    }
}

impl RunFollower<'_, '_> {
    async fn handle_event(&mut self, event: RunEvent, to: &mpsc::Sender<LogPiece>) -> Result<(), CliError> {
        match event {
            RunEvent::RunStarted { skills, .. } => {
                let steps =
                    skills.iter().flat_map(|outline| outline.steps.iter().map(move |step| (&outline.skill, step)));
                self.names = steps.map(|(skill, step)| format!("{skill}/{step}")).collect();
            }
            RunEvent::CheckFinished { check } => {
                let (n, name) = (self.checks, format!("{}/{}", check.toolchain, self.checks));
                self.checks += 1;
                for (stream, found) in streams(&check.step) {
                    if found.bytes > 0 {
                        self.print_output(&name, OutputId { unit: OutputUnit::Check, n, stream }).await?;
                    }
                }
            }
            // A check is announced as a step of a skill with the name of its toolchain, and is not among the names.
            RunEvent::StepStarted { skill, step, attempt, .. } => {
                let name = format!("{skill}/{step}");
                if let Some(n) = self.names.iter().position(|known| *known == name) {
                    self.start_streams(u32::try_from(n).unwrap_or(u32::MAX), attempt, to);
                }
            }
            RunEvent::StepFinished { skill, step } => {
                let name = format!("{skill}/{}", step.planned.name);
                if let Some(source) = &step.reused {
                    self.print_cached(&name, &step, &source.run_id).await?;
                }
                for (_, found) in streams(&step).into_iter().filter(|(_, found)| found.kept_bytes < found.bytes) {
                    let kept = format!("{} of {} are kept", size(found.kept_bytes), size(found.bytes));
                    self.printer.screen.err(&style::warning(&format!("{}: {kept}", escape_line(&name))));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Follows both outputs of an attempt.
    fn start_streams(&mut self, n: u32, attempt: u32, to: &mpsc::Sender<LogPiece>) {
        if attempt > 1 {
            let name = self.names.get(n as usize).map(|name| escape_line(name)).unwrap_or_default();
            let note = format!("{name}: attempt {attempt} begins; only the last attempt is stored");
            self.printer.screen.err(&style::warning(&note));
        }
        for stream in [StdStream::Stdout, StdStream::Stderr] {
            let (client, run) = (self.printer.client.clone(), self.printer.run.clone());
            self.streams.spawn(send_stream(client, run, (n, stream), attempt, to.clone()));
        }
        // Discard the tasks that have ended.
        while self.streams.try_join_next().is_some() {}
    }

    /// Shows the outputs of a step that was not executed, so that there is nothing to follow.
    async fn print_cached(&mut self, name: &str, step: &StepEvidence, from: &RunId) -> Result<(), CliError> {
        self.printer.screen.err(&cached_note(name, Some(from)));
        let Some(n) = self.names.iter().position(|known| known == name) else { return Ok(()) };
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        for (stream, _) in streams(step).into_iter().filter(|(_, found)| found.bytes > 0) {
            self.print_output(name, OutputId { unit: OutputUnit::Step, n, stream }).await?;
        }
        Ok(())
    }

    /// Shows the recorded outputs of a check or step that has ended.
    async fn print_ended(&mut self, place: UnitPosition, step: &StepView) -> Result<(), CliError> {
        self.printer.screen.err(&cached_note(&unit_name(place, step), step.cached_from.as_ref()));
        for (stream, found) in [(StdStream::Stdout, &step.stdout), (StdStream::Stderr, &step.stderr)] {
            if found.as_ref().is_some_and(|found| found.bytes > 0) {
                self.print_output(&unit_name(place, step), OutputId { unit: place.unit, n: place.n, stream }).await?;
            }
            self.printer.warn_if_truncated(place, step, stream);
        }
        Ok(())
    }

    /// Shows one recorded output. If it is no longer kept, a message is shown instead.
    async fn print_output(&mut self, name: &str, selector: OutputId) -> Result<(), CliError> {
        let (mut escaping, mut offset) = (StreamEscaper::default(), 0);
        loop {
            let part = match self
                .printer
                .client
                .output(&self.printer.run, selector, offset, MAX_PART)
                .await
                .map_err(client_error)
            {
                Ok(part) => part,
                Err(error @ CliError::Engine { .. }) => {
                    self.printer.screen.err(&error.render());
                    return Ok(());
                }
                Err(error) => return Err(error),
            };
            offset += part.bytes.len() as u64;
            let is_last = part.bytes.is_empty() || offset >= part.length;
            let text = escaping.push(&part.bytes, is_last);
            self.print_lines(name, selector.stream, &text);
            if is_last || self.printer.screen.is_output_closed() {
                return Ok(());
            }
        }
    }

    fn print_piece(&mut self, piece: &LogPiece) {
        let (n, stream) = piece.stream;
        let index = usize::from(stream == StdStream::Stderr);
        let Some(name) = self.names.get(n as usize).cloned() else { return };
        // Attempts that ended before their output was requested share one recorded output, which is shown once.
        let recorded = &mut self.recorded.entry(n).or_default()[index];
        if matches!(piece.content, LogPieceContent::Recorded(_))
            && *recorded.get_or_insert(piece.attempt) != piece.attempt
        {
            return;
        }
        let pending = &mut self.pending.entry(n).or_default()[index];
        match &piece.content {
            LogPieceContent::Live(bytes) | LogPieceContent::Recorded(bytes) => {
                let text = pending.push(bytes, false);
                self.print_lines(&name, stream, &text);
            }
            LogPieceContent::End => {
                let text = std::mem::take(pending).push(&[], true);
                self.print_lines(&name, stream, &text);
            }
            LogPieceContent::Lost(why) => {
                let text = std::mem::take(pending).push(&[], true);
                self.print_lines(&name, stream, &text);
                self.printer.screen.err(&style::warning(&format!("{}: {}", escape_line(&name), escape_line(why))));
            }
        }
    }

    fn print_lines(&mut self, name: &str, stream: StdStream, text: &str) {
        let mark = if stream == StdStream::Stderr { " err |" } else { " |" };
        let head = paint(DIM, format!("{}{mark}", escape_line(name)));
        let lines: String = text.lines().map(|line| format!("{head} {line}\n")).collect();
        if !lines.is_empty() {
            self.printer.screen.out(&lines);
        }
    }
}

fn streams(step: &StepEvidence) -> [(StdStream, &StreamEvidence); 2] {
    [(StdStream::Stdout, &step.stdout), (StdStream::Stderr, &step.stderr)]
}

/// Sends one complete output of an attempt.
async fn send_stream(client: Client, run: RunId, stream: StepOutputStream, attempt: u32, to: mpsc::Sender<LogPiece>) {
    let selector = OutputId { unit: OutputUnit::Step, n: stream.0, stream: stream.1 };
    let ended = send_output(&client, &run, selector, attempt, &to).await;
    let content = match ended {
        Ok(()) => LogPieceContent::End,
        Err(error) => LogPieceContent::Lost(client_error(error).to_string()),
    };
    // Ignore the error: the receiver has stopped reading.
    let _ = to.send(LogPiece { stream, attempt, content }).await;
}

async fn send_output(
    client: &Client,
    run: &RunId,
    selector: OutputId,
    attempt: u32,
    to: &mpsc::Sender<LogPiece>,
) -> Result<(), ClientError> {
    let (mut offset, mut tries) = (0, 0);
    loop {
        let failed = match client.follow_output(run, selector, offset).await {
            Ok(output) if output.attempt().is_some_and(|found| found != attempt) => return Ok(()),
            Ok(mut output) => {
                let is_live = output.attempt().is_some();
                loop {
                    match output.next().await {
                        Ok(Some(bytes)) => {
                            offset += bytes.len() as u64;
                            tries = 0;
                            let bytes = bytes.to_vec();
                            let content =
                                if is_live { LogPieceContent::Live(bytes) } else { LogPieceContent::Recorded(bytes) };
                            let piece = LogPiece { stream: (selector.n, selector.stream), attempt, content };
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
        if !failed.is_retryable() || tries > MAX_RECONNECTS {
            return Err(failed);
        }
        sleep(RECONNECT_DELAY).await;
    }
}
