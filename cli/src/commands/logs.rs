//! Implements `proctor logs`, which prints the stored output of a run's steps. One step or the whole run can be
//! followed while it runs. Output of steps is escaped for the screen.

mod escaping;
mod here;
mod whole_run;

use proctor_core::api::{RunState, RunView, StepView};
use proctor_core::names::RunId;
use proctor_core::spec::nearest;
use proctor_daemon::client::{Client, Events};
use proctor_daemon::service::{MAX_PART, OutputOf, Stdio, Unit};

use crate::args::LogsArgs;
use crate::caller::Caller;
use crate::daemon::{self, Daemon, Purpose, client_error, lost};
use crate::error::CliError;
use crate::installation;
use crate::recorded;
use crate::runs;
use crate::screen::Screen;
use crate::style::{self, DIM, paint};
use crate::text::{shown_line, size};
use escaping::Escaping;

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
    let daemon = match known(args, caller).await {
        Ok(daemon) => daemon,
        Err(error) => {
            let state = installation::state_dir(&args.state, caller)?;
            let repo = installation::repository(&args.repo, caller).ok();
            let dir = recorded::find(&args.run, &state, repo.as_deref()).ok_or(error)?;
            return here::logs(args, &dir, caller, screen).await;
        }
    };
    let mut reader = Reader { client: daemon.client, run: args.run.clone(), raw: args.raw, screen };
    match &args.step {
        Some(step) => reader.one(step, args).await,
        // Raw bytes cannot be split into lines that are labelled with their step.
        None if args.follow && !args.raw => whole_run::follow(&mut reader).await,
        None => reader.all(args.follow).await,
    }
}

/// Returns the daemon if it knows the run.
async fn known(args: &LogsArgs, caller: &Caller) -> Result<Daemon, CliError> {
    let daemon = daemon::of(&args.daemon, Purpose::Look, caller).await?;
    daemon.client.run(&args.run).await.map_err(client_error)?;
    Ok(daemon)
}

/// Fetches at most `most` bytes from the beginning of an output from a daemon; returns `None` if it is not available.
pub(crate) async fn beginning(client: &Client, run: &RunId, of: OutputOf, most: usize) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    loop {
        let part = client.output(run, of, bytes.len() as u64, MAX_PART).await.ok()?;
        bytes.extend_from_slice(&part.bytes);
        let is_last = part.bytes.is_empty() || bytes.len() as u64 >= part.length;
        if is_last || bytes.len() >= most {
            bytes.truncate(most);
            return Some(bytes);
        }
    }
}

/// The position of a step or check in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    unit: Unit,
    n: u32,
}

/// The part of an output that has been shown.
#[derive(Default)]
struct ShownPart {
    /// The attempt whose output is shown; 0 if none is shown yet.
    attempt: u32,
    /// Number of bytes.
    offset: u64,
    escaping: Escaping,
}

struct Reader<'a> {
    client: Client,
    run: RunId,
    raw: bool,
    screen: &'a mut Screen,
}

impl Reader<'_> {
    /// Prints one stream of one step, and nothing else.
    async fn one(&mut self, name: &str, args: &LogsArgs) -> Result<u8, CliError> {
        let stream = if args.stderr { Stdio::Stderr } else { Stdio::Stdout };
        let mut events = self.client.events(&self.run, 0);
        let mut shown = ShownPart::default();
        loop {
            let view = self.view().await?;
            match find(&view, name) {
                Some((place, step)) if step.outcome.is_some() => {
                    self.attempt(&mut shown, name, step.attempt);
                    self.print(OutputOf { unit: place.unit, n: place.n, stream }, &mut shown).await?;
                    self.remark(place, step, stream);
                    return Ok(0);
                }
                Some((place, step)) if place.unit == Unit::Step && step.attempt > 0 => {
                    let of = OutputOf { unit: place.unit, n: place.n, stream };
                    if !args.follow {
                        self.attempt(&mut shown, name, step.attempt);
                        self.print(of, &mut shown).await?;
                        self.screen.err(&style::warning(&format!(
                            "{} has not ended, and this is its output so far; `--follow` waits for the rest",
                            shown_line(name)
                        )));
                        return Ok(0);
                    }
                    let has_news = self.follow(of, name, &mut shown, &mut events).await?;
                    if self.screen.reader_is_gone() {
                        return Ok(0);
                    }
                    if has_news {
                        continue;
                    }
                }
                found => wait_or_not(found.is_some(), args.follow, &view, name)?,
            }
            events.next().await.map_err(|error| lost(error, &self.run))?;
        }
    }

    /// Prints the output of a step as it arrives, until the end of the attempt or a lost connection. After a lost
    /// connection, the caller continues at the updated offset. Returns whether a run event arrived in the meantime.
    async fn follow(
        &mut self,
        of: OutputOf,
        name: &str,
        shown: &mut ShownPart,
        events: &mut Events,
    ) -> Result<bool, CliError> {
        let offset = shown.offset;
        let mut output = match self.client.follow_output(&self.run, of, offset).await {
            Ok(output) => output,
            Err(error) if error.is_lost() => return Ok(false),
            Err(error) => return Err(client_error(error)),
        };
        let Some(attempt) = output.attempt() else { return Ok(true) };
        if shown.attempt != 0 && shown.attempt != attempt && offset > 0 {
            // Another attempt has begun: the next call requests its output from the beginning.
            self.attempt(shown, name, attempt);
            return Ok(true);
        }
        self.attempt(shown, name, attempt);
        let (mut has_news, mut has_ended) = (false, false);
        loop {
            let part = tokio::select! {
                part = output.next() => part,
                // Detects a daemon that hangs or is gone while the step prints nothing.
                event = events.next(), if !has_ended => {
                    has_ended = event.map_err(|error| lost(error, &self.run))?.is_none();
                    has_news = true;
                    continue;
                }
            };
            match part {
                Ok(Some(bytes)) => self.show(&bytes, shown, false),
                Ok(None) | Err(_) => return Ok(has_news),
            }
            if self.screen.reader_is_gone() {
                return Ok(has_news);
            }
        }
    }

    /// Switches to the output of an attempt, unless that attempt is already shown.
    fn attempt(&mut self, shown: &mut ShownPart, name: &str, attempt: u32) {
        if shown.attempt == attempt {
            return;
        }
        if shown.attempt != 0 {
            self.show(&[], shown, true);
            let note = format!("{}: attempt {attempt} begins; only the last one is kept", shown_line(name));
            self.screen.err(&style::warning(&note));
        }
        *shown = ShownPart { attempt, ..ShownPart::default() };
    }

    fn show(&mut self, bytes: &[u8], shown: &mut ShownPart, is_last: bool) {
        shown.offset += bytes.len() as u64;
        match self.raw {
            true => self.screen.out_raw(bytes),
            false => self.screen.out(&shown.escaping.take(bytes, is_last)),
        }
    }

    /// Prints both streams of all steps and checks that have ended, each below a heading. With `follow`, continues
    /// until the run has ended.
    async fn all(&mut self, follow: bool) -> Result<u8, CliError> {
        let mut events = self.client.events(&self.run, 0);
        let mut told: Vec<Place> = Vec::new();
        loop {
            let view = self.view().await?;
            for (place, step) in units(&view).filter(|(_, step)| step.outcome.is_some()) {
                if !told.contains(&place) {
                    told.push(place);
                    self.both(place, step).await?;
                }
            }
            if view.state == RunState::Finished || !follow || self.screen.reader_is_gone() {
                return Ok(0);
            }
            events.next().await.map_err(|error| lost(error, &self.run))?;
        }
    }

    async fn view(&self) -> Result<RunView, CliError> {
        self.client.run(&self.run).await.map_err(client_error)
    }

    async fn both(&mut self, place: Place, step: &StepView) -> Result<(), CliError> {
        for (stream, word, of) in [(Stdio::Stdout, "stdout", &step.stdout), (Stdio::Stderr, "stderr", &step.stderr)] {
            let Some(found) = of.as_ref().filter(|found| found.bytes > 0) else { continue };
            let heading = format!("--- {} {word}, {}", shown_line(&called(place, step)), size(found.bytes));
            self.screen.out(&format!("{}\n", paint(DIM, heading)));
            let of = OutputOf { unit: place.unit, n: place.n, stream };
            match self.print(of, &mut ShownPart::default()).await {
                Err(error @ CliError::Engine { .. }) => self.screen.err(&error.render()),
                other => other?,
            }
            self.remark(place, step, stream);
        }
        Ok(())
    }

    /// Prints an output from the shown part to its end.
    async fn print(&mut self, of: OutputOf, shown: &mut ShownPart) -> Result<(), CliError> {
        loop {
            let part = self.client.output(&self.run, of, shown.offset, MAX_PART).await.map_err(client_error)?;
            let end = shown.offset + part.bytes.len() as u64;
            let is_last = part.bytes.is_empty() || end >= part.length;
            self.show(&part.bytes, shown, is_last);
            if is_last || self.screen.reader_is_gone() {
                return Ok(());
            }
        }
    }

    /// Warns if only a part of the stream is stored.
    fn remark(&mut self, place: Place, step: &StepView, stream: Stdio) {
        let found = if stream == Stdio::Stdout { &step.stdout } else { &step.stderr };
        let Some(found) = found else { return };
        if found.kept_bytes < found.bytes {
            let kept = format!("{} of {} are kept", size(found.kept_bytes), size(found.bytes));
            self.screen.err(&style::warning(&format!("{}: {kept}", shown_line(&called(place, step)))));
        }
    }
}

/// Returns all checks and steps of a run, in order.
fn units(view: &RunView) -> impl Iterator<Item = (Place, &StepView)> {
    let checks = view.checks.iter().map(|step| (Place { unit: Unit::Check, n: step.n }, step));
    checks.chain(view.steps.iter().map(|step| (Place { unit: Unit::Step, n: step.n }, step)))
}

/// Returns the displayed name; a check has its toolchain and number.
fn called(place: Place, step: &StepView) -> String {
    match place.unit {
        Unit::Check => runs::check_name(step),
        Unit::Step => runs::name(step),
    }
}

fn find<'a>(view: &'a RunView, name: &str) -> Option<(Place, &'a StepView)> {
    units(view).find(|(place, step)| called(*place, step) == name)
}

/// Checks whether all checks and steps of a run are known. The view has the steps from the beginning, but a check
/// only when it has ended; all checks end before the first step starts.
fn are_all_known(view: &RunView) -> bool {
    view.state == RunState::Finished || view.steps.iter().any(|step| step.attempt > 0 || step.outcome.is_some())
}

/// Returns the error for an unknown step, with the nearest name and the existing ones.
fn no_such_step(run: &RunId, name: &str, names: &[String]) -> CliError {
    let near = nearest(name, names.iter().map(String::as_str));
    let near = near.map(|near| format!("did you mean `{}`? ", shown_line(near))).unwrap_or_default();
    let listed: Vec<String> = names.iter().take(SHOWN_NAMES).map(|name| shown_line(name)).collect();
    let more = names.len().saturating_sub(SHOWN_NAMES);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    CliError::Usage {
        message: format!("run {run} has no step `{}`", shown_line(name)),
        hint: format!("{near}it has: {}{more}", listed.join(", ")),
    }
}

/// Decides whether to wait for a step that has not ended; returns an error if waiting is useless or not requested.
fn wait_or_not(is_known: bool, follow: bool, view: &RunView, name: &str) -> Result<(), CliError> {
    let usage = |message: String, hint: &str| Err(CliError::Usage { message, hint: hint.to_owned() });
    if !is_known && are_all_known(view) {
        let names: Vec<String> = units(view).map(|(place, step)| called(place, step)).collect();
        return Err(no_such_step(&view.id, name, &names));
    }
    if view.state == RunState::Finished {
        return usage(format!("`{name}` did not run"), "`proctor status RUN` says why");
    }
    match follow {
        true => Ok(()),
        false => usage(format!("`{name}` has not ended"), "wait for it with `--follow`"),
    }
}
