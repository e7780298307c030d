//! A run as it is watched: its events go to the screen, to the reports and into the record.

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

/// A run as it is watched from here.
pub(super) struct Watch<'a> {
    reports: &'a mut Reports,
    interrupts: &'a mut Interrupts,
    screen: &'a mut Screen,
    pub(super) progress: Progress,
    pub(super) record: RunRecord,
    start: Instant,
    heartbeat: Interval,
    /// The last lines that steps have printed; on a terminal.
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

    /// Shows the last lines that steps have printed, too.
    pub(super) fn showing(mut self, printed: Option<LinesReceiver>) -> Self {
        self.printed = printed;
        self
    }

    /// Runs to the end, in a task of its own: a screen that stands still must not hold up a
    /// deadline.
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
        // That a run waits for its turn is the daemon's to tell: the same run in this process does not.
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

/// Waits for other last lines; for ever where there will be none.
async fn next_lines(printed: &mut Option<LinesReceiver>) -> Lines {
    if let Some(lines) = printed
        && lines.changed().await.is_ok()
    {
        return lines.borrow_and_update().clone();
    }
    *printed = None;
    std::future::pending().await
}
