//! Prints the outputs of a run that a daemon has.

use proctor_core::api::{RunState, RunView, StepView};
use proctor_core::model::names::RunId;
use proctor_daemon::client::{Client, RunEventReader};
use proctor_daemon::service::{MAX_PART, OutputId, OutputUnit, StdStream};

use super::cached_note::cached_note;
use super::escaping::StreamEscaper;
use super::run_units::{UnitPosition, check_worth_waiting, find_unit, unit_name, units};
use crate::args::LogsArgs;
use crate::daemon::{client_error, lost_run_error};
use crate::error::CliError;
use crate::screen::Screen;
use crate::style::{self, DIM, paint};
use crate::text::{escape_line, size};

/// The part of an output that has been shown.
#[derive(Default)]
struct ShownPart {
    /// The attempt whose output is shown; 0 if none is shown yet.
    attempt: u32,
    /// Number of bytes.
    offset: u64,
    escaping: StreamEscaper,
}

/// Prints the outputs of a run of a daemon.
pub(super) struct LogPrinter<'a> {
    pub(super) client: Client,
    pub(super) run: RunId,
    pub(super) raw: bool,
    pub(super) screen: &'a mut Screen,
}

impl LogPrinter<'_> {
    /// Prints one stream of one step, and nothing else.
    pub(super) async fn print_one(&mut self, name: &str, args: &LogsArgs) -> Result<u8, CliError> {
        let stream = if args.stderr { StdStream::Stderr } else { StdStream::Stdout };
        let mut events = self.client.events(&self.run, 0);
        let mut shown = ShownPart::default();
        loop {
            let view = self.view().await?;
            match find_unit(&view, name) {
                Some((place, step)) if step.outcome.is_some() => {
                    self.screen.err(&cached_note(name, step.cached_from.as_ref()));
                    self.switch_attempt(&mut shown, name, step.attempt);
                    self.print_rest(OutputId { unit: place.unit, n: place.n, stream }, &mut shown).await?;
                    self.warn_if_truncated(place, step, stream);
                    return Ok(0);
                }
                Some((place, step)) if place.unit == OutputUnit::Step && step.attempt > 0 => {
                    let selector = OutputId { unit: place.unit, n: place.n, stream };
                    if !args.follow {
                        self.switch_attempt(&mut shown, name, step.attempt);
                        self.print_rest(selector, &mut shown).await?;
                        self.screen.err(&style::warning(&format!(
                            "{} has not ended, and this is its output so far; `--follow` waits for the rest",
                            escape_line(name)
                        )));
                        return Ok(0);
                    }
                    let has_news = self.follow_attempt(selector, name, &mut shown, &mut events).await?;
                    if self.screen.is_output_closed() {
                        return Ok(0);
                    }
                    if has_news {
                        continue;
                    }
                }
                found => check_worth_waiting(found.is_some(), args.follow, &view, name)?,
            }
            events.next().await.map_err(|error| lost_run_error(error, &self.run))?;
        }
    }

    /// Prints the output of a step as it arrives, until the end of the attempt or a lost connection. After a lost
    /// connection, the caller continues at the updated offset. Returns whether a run event arrived in the meantime.
    async fn follow_attempt(
        &mut self,
        selector: OutputId,
        name: &str,
        shown: &mut ShownPart,
        events: &mut RunEventReader,
    ) -> Result<bool, CliError> {
        let offset = shown.offset;
        let mut output = match self.client.follow_output(&self.run, selector, offset).await {
            Ok(output) => output,
            Err(error) if error.is_retryable() => return Ok(false),
            Err(error) => return Err(client_error(error)),
        };
        let Some(attempt) = output.attempt() else { return Ok(true) };
        if shown.attempt != 0 && shown.attempt != attempt && offset > 0 {
            // Another attempt has begun: the next call requests its output from the beginning.
            self.switch_attempt(shown, name, attempt);
            return Ok(true);
        }
        self.switch_attempt(shown, name, attempt);
        let (mut has_news, mut has_ended) = (false, false);
        loop {
            let part = tokio::select! {
                part = output.next() => part,
                // Detects a daemon that hangs or is gone while the step prints nothing.
                event = events.next(), if !has_ended => {
                    has_ended = event.map_err(|error| lost_run_error(error, &self.run))?.is_none();
                    has_news = true;
                    continue;
                }
            };
            match part {
                Ok(Some(bytes)) => self.print_bytes(&bytes, shown, false),
                Ok(None) | Err(_) => return Ok(has_news),
            }
            if self.screen.is_output_closed() {
                return Ok(has_news);
            }
        }
    }

    /// Switches to the output of an attempt, unless that attempt is already shown.
    fn switch_attempt(&mut self, shown: &mut ShownPart, name: &str, attempt: u32) {
        if shown.attempt == attempt {
            return;
        }
        if shown.attempt != 0 {
            self.print_bytes(&[], shown, true);
            let note = format!("{}: attempt {attempt} begins; only the last attempt is stored", escape_line(name));
            self.screen.err(&style::warning(&note));
        }
        *shown = ShownPart { attempt, ..ShownPart::default() };
    }

    fn print_bytes(&mut self, bytes: &[u8], shown: &mut ShownPart, is_last: bool) {
        shown.offset += bytes.len() as u64;
        match self.raw {
            true => self.screen.out_raw(bytes),
            false => self.screen.out(&shown.escaping.push(bytes, is_last)),
        }
    }

    /// Prints both streams of all steps and checks that have ended, each below a heading. With `follow`, continues
    /// until the run has ended.
    pub(super) async fn print_all(&mut self, follow: bool) -> Result<u8, CliError> {
        let mut events = self.client.events(&self.run, 0);
        let mut printed: Vec<UnitPosition> = Vec::new();
        loop {
            let view = self.view().await?;
            for (place, step) in units(&view).filter(|(_, step)| step.outcome.is_some()) {
                if !printed.contains(&place) {
                    printed.push(place);
                    self.screen.err(&cached_note(&unit_name(place, step), step.cached_from.as_ref()));
                    self.print_streams(place, step).await?;
                }
            }
            if view.state == RunState::Finished || !follow || self.screen.is_output_closed() {
                return Ok(0);
            }
            events.next().await.map_err(|error| lost_run_error(error, &self.run))?;
        }
    }

    /// Fetches the current state of the run.
    pub(super) async fn view(&self) -> Result<RunView, CliError> {
        self.client.run(&self.run).await.map_err(client_error)
    }

    /// Prints both streams of a step or check that has ended, each below a heading.
    pub(super) async fn print_streams(&mut self, position: UnitPosition, step: &StepView) -> Result<(), CliError> {
        for (stream, word, evidence) in
            [(StdStream::Stdout, "stdout", &step.stdout), (StdStream::Stderr, "stderr", &step.stderr)]
        {
            let Some(found) = evidence.as_ref().filter(|found| found.bytes > 0) else { continue };
            let heading = format!("--- {} {word}, {}", escape_line(&unit_name(position, step)), size(found.bytes));
            self.screen.out(&format!("{}\n", paint(DIM, heading)));
            let selector = OutputId { unit: position.unit, n: position.n, stream };
            match self.print_rest(selector, &mut ShownPart::default()).await {
                Err(error @ CliError::Engine { .. }) => self.screen.err(&error.render()),
                other => other?,
            }
            self.warn_if_truncated(position, step, stream);
        }
        Ok(())
    }

    /// Prints an output from the shown part to its end.
    async fn print_rest(&mut self, selector: OutputId, shown: &mut ShownPart) -> Result<(), CliError> {
        loop {
            let part = self.client.output(&self.run, selector, shown.offset, MAX_PART).await.map_err(client_error)?;
            let end = shown.offset + part.bytes.len() as u64;
            let is_last = part.bytes.is_empty() || end >= part.length;
            self.print_bytes(&part.bytes, shown, is_last);
            if is_last || self.screen.is_output_closed() {
                return Ok(());
            }
        }
    }

    /// Warns if only a part of the stream is stored.
    pub(super) fn warn_if_truncated(&mut self, position: UnitPosition, step: &StepView, stream: StdStream) {
        let found = if stream == StdStream::Stdout { &step.stdout } else { &step.stderr };
        let Some(found) = found else { return };
        if found.kept_bytes < found.bytes {
            let kept = format!("{} of {} are kept", size(found.kept_bytes), size(found.bytes));
            self.screen.err(&style::warning(&format!("{}: {kept}", escape_line(&unit_name(position, step)))));
        }
    }
}
