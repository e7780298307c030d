//! Implements `proctor logs`, which prints the stored output of a run's steps. One step or the whole run can be
//! followed while it runs. Output of steps is escaped for the screen.

mod escaping;
mod run_follower;
mod stored_logs;

use proctor_core::api::{RunState, RunView, StepView};
use proctor_core::model::names::RunId;
use proctor_core::spec::closest_match;
use proctor_daemon::client::{Client, RunEventReader};
use proctor_daemon::service::{MAX_PART, OutputId, OutputUnit, StdStream};

use crate::args::LogsArgs;
use crate::caller::Caller;
use crate::daemon::{self, Purpose, ReachableDaemon, client_error, lost_run_error};
use crate::error::CliError;
use crate::installation;
use crate::run_display;
use crate::run_documents;
use crate::screen::Screen;
use crate::style::{self, DIM, paint};
use crate::text::{escape_line, size};
use escaping::StreamEscaper;

/// Number of step names that a message lists.
const SHOWN_NAMES: usize = 20;

/// Prints the output. The code is 0 if there was any output to print.
///
/// # Errors
/// No daemon responds, the run or step does not exist, or its output does not exist yet or was removed.
pub(crate) async fn logs(args: &LogsArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    if args.raw && caller.stdout_is_terminal {
        return Err(CliError::Usage {
            message: "the unescaped output of a step is not written to a terminal".to_owned(),
            hint: "omit `--raw`, or redirect the output to a file or a pipe".to_owned(),
        });
    }
    let daemon = match find_daemon_with_run(args, caller).await {
        Ok(daemon) => daemon,
        Err(error) => {
            let state = installation::state_dir(&args.state, caller)?;
            let repo = installation::repository(&args.repo, caller).ok();
            let dir = run_documents::find_directory(&args.run, &state, repo.as_deref()).ok_or(error)?;
            return stored_logs::print_stored_logs(args, &dir, caller, screen).await;
        }
    };
    let mut printer = LogPrinter { client: daemon.client, run: args.run.clone(), raw: args.raw, screen };
    match &args.step {
        Some(step) => printer.print_one(step, args).await,
        // Raw bytes cannot be split into lines that are labelled with their step.
        None if args.follow && !args.raw => run_follower::follow_run(&mut printer).await,
        None => printer.print_all(args.follow).await,
    }
}

/// Returns the daemon if it knows the run.
async fn find_daemon_with_run(args: &LogsArgs, caller: &Caller) -> Result<ReachableDaemon, CliError> {
    let daemon = daemon::find_daemon(&args.daemon, Purpose::ReadRuns, caller).await?;
    daemon.client.run(&args.run).await.map_err(client_error)?;
    Ok(daemon)
}

/// Fetches at most `most` bytes from the beginning of an output from a daemon; returns `None` if it is not available.
pub(crate) async fn fetch_beginning(
    client: &Client,
    run: &RunId,
    selector: OutputId,
    max_bytes: usize,
) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let part = client.output(run, selector, bytes.len() as u64, MAX_PART).await.ok()?;
        bytes.extend_from_slice(&part.bytes);
        let is_last = part.bytes.is_empty() || bytes.len() as u64 >= part.length;
        if is_last || bytes.len() >= max_bytes {
            bytes.truncate(max_bytes);
            return Some(bytes);
        }
    }
}

/// The position of a step or check in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct UnitPosition {
    unit: OutputUnit,
    n: u32,
}

/// The part of an output that has been shown.
#[derive(Default)]
struct ShownPart {
    /// The attempt whose output is shown; 0 if none is shown yet.
    attempt: u32,
    /// Number of bytes.
    offset: u64,
    escaping: StreamEscaper,
}

struct LogPrinter<'a> {
    client: Client,
    run: RunId,
    raw: bool,
    screen: &'a mut Screen,
}

impl LogPrinter<'_> {
    /// Prints one stream of one step, and nothing else.
    async fn print_one(&mut self, name: &str, args: &LogsArgs) -> Result<u8, CliError> {
        let stream = if args.stderr { StdStream::Stderr } else { StdStream::Stdout };
        let mut events = self.client.events(&self.run, 0);
        let mut shown = ShownPart::default();
        loop {
            let view = self.view().await?;
            match find_unit(&view, name) {
                Some((place, step)) if step.outcome.is_some() => {
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
            let note = format!("{}: attempt {attempt} begins; only the last one is kept", escape_line(name));
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
    async fn print_all(&mut self, follow: bool) -> Result<u8, CliError> {
        let mut events = self.client.events(&self.run, 0);
        let mut printed: Vec<UnitPosition> = Vec::new();
        loop {
            let view = self.view().await?;
            for (place, step) in units(&view).filter(|(_, step)| step.outcome.is_some()) {
                if !printed.contains(&place) {
                    printed.push(place);
                    self.print_streams(place, step).await?;
                }
            }
            if view.state == RunState::Finished || !follow || self.screen.is_output_closed() {
                return Ok(0);
            }
            events.next().await.map_err(|error| lost_run_error(error, &self.run))?;
        }
    }

    async fn view(&self) -> Result<RunView, CliError> {
        self.client.run(&self.run).await.map_err(client_error)
    }

    async fn print_streams(&mut self, position: UnitPosition, step: &StepView) -> Result<(), CliError> {
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
    fn warn_if_truncated(&mut self, position: UnitPosition, step: &StepView, stream: StdStream) {
        let found = if stream == StdStream::Stdout { &step.stdout } else { &step.stderr };
        let Some(found) = found else { return };
        if found.kept_bytes < found.bytes {
            let kept = format!("{} of {} are kept", size(found.kept_bytes), size(found.bytes));
            self.screen.err(&style::warning(&format!("{}: {kept}", escape_line(&unit_name(position, step)))));
        }
    }
}

/// Returns all checks and steps of a run, in order.
fn units(view: &RunView) -> impl Iterator<Item = (UnitPosition, &StepView)> {
    let checks = view.checks.iter().map(|step| (UnitPosition { unit: OutputUnit::Check, n: step.n }, step));
    checks.chain(view.steps.iter().map(|step| (UnitPosition { unit: OutputUnit::Step, n: step.n }, step)))
}

/// Returns the displayed name; a check has its toolchain and number.
fn unit_name(position: UnitPosition, step: &StepView) -> String {
    match position.unit {
        OutputUnit::Check => run_display::check_name(step),
        OutputUnit::Step => run_display::step_name(step),
    }
}

fn find_unit<'a>(view: &'a RunView, name: &str) -> Option<(UnitPosition, &'a StepView)> {
    units(view).find(|(place, step)| unit_name(*place, step) == name)
}

/// Checks whether all checks and steps of a run are known. The view has the steps from the beginning, but a check
/// only when it has ended; all checks end before the first step starts.
fn has_all_units(view: &RunView) -> bool {
    view.state == RunState::Finished || view.steps.iter().any(|step| step.attempt > 0 || step.outcome.is_some())
}

/// Returns the error for an unknown step, with the nearest name and the existing ones.
fn unknown_step_error(run: &RunId, name: &str, names: &[String]) -> CliError {
    let near = closest_match(name, names.iter().map(String::as_str));
    let near = near.map(|near| format!("did you mean `{}`? ", escape_line(near))).unwrap_or_default();
    let listed: Vec<String> = names.iter().take(SHOWN_NAMES).map(|name| escape_line(name)).collect();
    let more = names.len().saturating_sub(SHOWN_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    CliError::Usage {
        message: format!("run {run} has no step `{}`", escape_line(name)),
        hint: format!("{near}it has: {}{more}", listed.join(", ")),
    }
}

/// Decides whether to wait for a step that has not ended; returns an error if waiting is useless or not requested.
fn check_worth_waiting(is_known: bool, follow: bool, view: &RunView, name: &str) -> Result<(), CliError> {
    let usage = |message: String, hint: &str| Err(CliError::Usage { message, hint: hint.to_owned() });
    if !is_known && has_all_units(view) {
        let names: Vec<String> = units(view).map(|(place, step)| unit_name(place, step)).collect();
        return Err(unknown_step_error(&view.id, name, &names));
    }
    if view.state == RunState::Finished {
        return usage(format!("`{name}` did not run"), "`proctor status RUN` says why");
    }
    match follow {
        true => Ok(()),
        false => usage(format!("`{name}` has not ended"), "wait for it with `--follow`"),
    }
}
