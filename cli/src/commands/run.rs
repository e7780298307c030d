//! `proctor run`: runs a profile, shows what happens while it does, and says what it means.

use std::time::Duration;

use proctor_core::event::RunEvent;
use proctor_runner::{ChangesWanted, Engine, RunReport, RunRequest, RunSource};
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::args::{RunArgs, RunFormat};
use crate::caller::Caller;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::interrupt::{self, Asked, Interrupts};
use crate::progress::{HEARTBEAT, Progress};
use crate::record::RunRecord;
use crate::report;
use crate::screen::Screen;

/// How many events wait for the screen before the run waits for it.
const EVENTS: usize = 256;

/// Runs the profile. The exit code is the run's own.
///
/// # Errors
/// The run could not be done, or its record contradicts its result.
pub(crate) async fn run(args: &RunArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller)?;
    let operator = installation::operator(&args.operator, caller)?;
    let engine = engine::open(&args.state, operator, caller, screen)?;
    let request = RunRequest {
        repo,
        profile: args.profile.clone(),
        changeset: args.changeset.clone(),
        max_tier: args.max_tier,
        sandbox: args.sandbox.sandbox,
        fail_fast: args.fail_fast,
        source: RunSource::Worktree,
        changes: ChangesWanted::Applied,
    };
    let cancel = CancellationToken::new();
    let interrupts = Interrupts::listen(cancel.clone()).map_err(|error| CliError::Internal(error.to_string()))?;
    let mut watch = Watch::new(args.format, interrupts, screen);
    let result = watch.follow(engine, request, cancel).await.map_err(|error| error.with_paths_from(&caller.cwd));
    watch.progress.clear();
    let (mut record, report) = (watch.record, result?);
    record.add_doubts(&report.doubts);
    if let Some(signal) = watch.interrupts.first() {
        // The engine knows only that it was asked to end; which signal it was is known here.
        record.cancelled_by = Some(signal.to_owned());
    }
    finish(args.format, &record, &report, screen)
}

/// Shows the result.
fn finish(format: RunFormat, record: &RunRecord, report: &RunReport, screen: &mut Screen) -> Result<u8, CliError> {
    match format {
        RunFormat::Human => {
            if screen.live {
                screen.err("\n");
            }
            screen.out(&report::report(record));
        }
        RunFormat::Json => screen.out_json(record)?,
        RunFormat::Jsonl => {}
    }
    agreed(record, report)
}

/// The exit code of a run whose last event, which was shown, says the same as the engine does.
fn agreed(record: &RunRecord, report: &RunReport) -> Result<u8, CliError> {
    let shown = record.finished.as_ref().map(|finished| (finished.verdict, finished.exit_code));
    if shown == Some((report.verdict, report.exit_code)) {
        return Ok(report.exit_code);
    }
    Err(CliError::Internal(format!(
        "the run ended with {} ({}), and its last event says {shown:?}",
        report.verdict.as_str(),
        report.exit_code
    )))
}

/// A run as it is watched from here.
struct Watch<'a> {
    format: RunFormat,
    interrupts: Interrupts,
    screen: &'a mut Screen,
    progress: Progress,
    record: RunRecord,
    start: Instant,
    heartbeat: Interval,
}

impl<'a> Watch<'a> {
    fn new(format: RunFormat, interrupts: Interrupts, screen: &'a mut Screen) -> Self {
        let progress = if screen.live { Progress::live() } else { Progress::lines() };
        let start = Instant::now();
        let mut heartbeat = tokio::time::interval_at(start + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { format, interrupts, screen, progress, record: RunRecord::default(), start, heartbeat }
    }

    /// Runs to the end, in a task of its own: a screen that stands still must not hold up a
    /// deadline.
    async fn follow(
        &mut self,
        engine: Engine,
        request: RunRequest,
        cancel: CancellationToken,
    ) -> Result<RunReport, CliError> {
        let (sender, mut events) = mpsc::channel(EVENTS);
        let mut task = tokio::spawn(async move { engine.run(request, sender, cancel).await });
        let mut open = true;
        let joined = loop {
            tokio::select! {
                event = events.recv(), if open => match event {
                    Some(event) => self.event(event)?,
                    None => open = false,
                },
                joined = &mut task, if !open => break joined,
                asked = self.interrupts.next() => self.asked(asked),
                _ = self.heartbeat.tick() => self.beat(),
            }
        };
        match joined {
            Ok(result) => result.map_err(engine_error),
            Err(_) => Err(CliError::Internal("the engine stopped".to_owned())),
        }
    }

    fn event(&mut self, event: RunEvent) -> Result<(), CliError> {
        if let Some(line) = self.progress.event(&event, self.now()) {
            self.say(&line);
        }
        if self.format == RunFormat::Jsonl {
            self.screen.out_json(&event)?;
        }
        self.record.apply(event);
        Ok(())
    }

    fn asked(&mut self, asked: Asked) {
        match asked {
            Asked::ToEnd(signal) => {
                self.say(&format!("{signal}: ending everything that runs; press Ctrl-C again to leave at once\n"));
            }
            Asked::Again => {}
            Asked::ToLeave => {
                self.progress.clear();
                interrupt::leave()
            }
        }
    }

    fn beat(&mut self) {
        if let Some(text) = self.progress.heartbeat(self.now()) {
            self.say(&text);
        }
    }

    fn say(&mut self, text: &str) {
        let screen = &mut *self.screen;
        self.progress.show(text, |text| screen.err(text));
        self.heartbeat.reset();
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::finished;
    use proctor_core::names::RunId;
    use proctor_core::tier::Tier;
    use proctor_core::verdict::Verdict;

    fn report(verdict: Verdict, exit_code: u8) -> RunReport {
        RunReport {
            verdict,
            exit_code,
            tier: Tier::ONE,
            run_id: RunId::new("r1").expect("a run id"),
            evidence_dir: "/x".into(),
            doubts: Vec::new(),
            patch: None,
        }
    }

    #[test]
    fn a_verdict_that_was_not_shown_is_no_pass() {
        let mut record = RunRecord::default();
        let passed = report(Verdict::Passed, 0);
        assert_eq!(agreed(&record, &passed).expect_err("no last event").exit_code(), 5);
        record.apply(finished(Verdict::Passed, Tier::ONE, 0));
        assert_eq!(agreed(&record, &passed).expect("the same"), 0);
        assert_eq!(agreed(&record, &report(Verdict::Failed, 1)).expect_err("another verdict").exit_code(), 5);
    }
}
