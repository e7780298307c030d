//! Watches a run: sends its events to the screen, the reports and the record.

use std::time::Duration;

use proctor_core::event::RunEvent;
use proctor_core::record::RunRecord;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::{Ended, Work};
use crate::error::CliError;
use crate::interrupt::{self, Asked, Interrupts};
use crate::progress::last_lines::{Lines, LinesReceiver};
use crate::progress::{HEARTBEAT, Progress};
use crate::report::Detail;
use crate::reports::Reports;
use crate::screen::Screen;

/// A run that is being watched.
pub(super) struct Watch<'a> {
    reports: &'a mut Reports,
    interrupts: &'a mut Interrupts,
    screen: &'a mut Screen,
    pub(super) progress: Progress,
    pub(super) record: RunRecord,
    start: Instant,
    heartbeat: Interval,
    /// Last lines that steps have printed; `None` if they are not shown.
    printed: Option<LinesReceiver>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        reports: &'a mut Reports,
        detail: Detail,
        interrupts: &'a mut Interrupts,
        screen: &'a mut Screen,
    ) -> Self {
        let progress = Progress::on(screen).telling(detail);
        let start = Instant::now();
        let mut heartbeat = tokio::time::interval_at(start + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { reports, interrupts, screen, progress, record: RunRecord::default(), start, heartbeat, printed: None }
    }

    /// Shows the last lines of the steps too.
    pub(super) fn showing(mut self, printed: Option<LinesReceiver>) -> Self {
        self.printed = printed;
        self
    }

    /// Runs `work` to its end in a separate task, so that a blocked screen cannot delay the deadlines of steps.
    pub(super) async fn follow(&mut self, work: Work, mut events: mpsc::Receiver<RunEvent>) -> Result<Ended, CliError> {
        let mut task = tokio::spawn(work);
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
                lines = next_lines(&mut self.printed) => self.progress.printed(&lines),
            }
        };
        match joined {
            Ok(result) => result,
            Err(_) => Err(CliError::Internal("the engine stopped".to_owned())),
        }
    }

    fn event(&mut self, event: RunEvent) -> Result<(), CliError> {
        if let Some(line) = self.progress.event(&event, self.now()) {
            self.say(&line);
        }
        // Waiting in the queue is not part of the reports: a run in this process has no such event.
        let is_the_runs = !matches!(event, RunEvent::RunQueued { .. });
        if is_the_runs {
            self.reports.event(&event, self.screen)?;
        }
        let now = self.now();
        self.record.apply(event, now);
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

/// Waits for new last lines; never returns if there will be none.
async fn next_lines(printed: &mut Option<LinesReceiver>) -> Lines {
    if let Some(lines) = printed
        && lines.changed().await.is_ok()
    {
        return lines.borrow_and_update().clone();
    }
    *printed = None;
    std::future::pending().await
}
