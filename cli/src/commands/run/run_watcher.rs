//! Watches a run: sends its events to the screen, the reports and the record.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use proctor_core::model::event::RunEvent;
use proctor_core::record::run_record::RunRecord;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::completed_run::{CompletedRun, RunFuture};
use crate::error::CliError;
use crate::human_report::Detail;
use crate::interrupt::{self, Interrupts, SignalEffect};
use crate::progress::last_lines::{LastLines, LastLinesReceiver};
use crate::progress::{HEARTBEAT, ProgressDisplay};
use crate::report_outputs::ReportOutputs;
use crate::screen::Screen;

/// Paths that steps have applied to the worktree.
#[derive(Debug, Clone, Default)]
pub(super) struct AppliedPaths {
    /// The top of the worktree.
    top: PathBuf,
    /// The paths as they appear in evidence, with the state that the step left.
    paths: Arc<Mutex<BTreeMap<String, Option<EntryState>>>>,
}

/// The stat data that change with each write of a file: device, inode, mode, size, and both times.
type EntryState = (u64, u64, u32, u64, [(i64, i64); 2]);

impl AppliedPaths {
    /// Creates an empty list for the worktree in the directory `top`.
    pub(super) fn in_worktree(top: PathBuf) -> Self {
        Self { top, paths: Arc::default() }
    }

    fn add(&self, paths: &[String]) {
        let states = paths.iter().map(|path| (path.clone(), self.state(path)));
        self.lock().extend(states);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Checks whether a step applied a change of this path.
    pub(super) fn contains(&self, path: &str) -> bool {
        self.lock().contains_key(path)
    }

    /// Checks whether an applied path is still as the step left it.
    pub(super) fn is_unchanged(&self, path: &str) -> bool {
        self.lock().get(path).is_some_and(|applied| *applied == self.state(path))
    }

    fn state(&self, path: &str) -> Option<EntryState> {
        let stat = self.top.join(path).symlink_metadata().ok()?;
        let times = [(stat.mtime(), stat.mtime_nsec()), (stat.ctime(), stat.ctime_nsec())];
        Some((stat.dev(), stat.ino(), stat.mode(), stat.size(), times))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Option<EntryState>>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A run that is being watched.
pub(super) struct RunWatcher<'a> {
    reports: &'a mut ReportOutputs,
    interrupts: &'a mut Interrupts,
    screen: &'a mut Screen,
    pub(super) progress: ProgressDisplay,
    pub(super) record: RunRecord,
    start: Instant,
    heartbeat: Interval,
    /// Paths that steps have applied to the worktree so far.
    applied: AppliedPaths,
    /// Last lines that steps have printed; `None` if they are not shown.
    last_lines: Option<LastLinesReceiver>,
}

impl<'a> RunWatcher<'a> {
    pub(super) fn new(
        reports: &'a mut ReportOutputs,
        detail: Detail,
        interrupts: &'a mut Interrupts,
        screen: &'a mut Screen,
    ) -> Self {
        let progress = ProgressDisplay::for_screen(screen).with_detail(detail);
        let start = Instant::now();
        let mut heartbeat = tokio::time::interval_at(start + HEARTBEAT, HEARTBEAT);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            reports,
            interrupts,
            screen,
            progress,
            record: RunRecord::default(),
            start,
            heartbeat,
            applied: AppliedPaths::default(),
            last_lines: None,
        }
    }

    /// Adds the paths that steps apply to the worktree to `applied`.
    pub(super) fn with_applied_paths(mut self, applied: AppliedPaths) -> Self {
        self.applied = applied;
        self
    }

    /// Also shows the last lines of the steps.
    pub(super) fn with_last_lines(mut self, printed: Option<LastLinesReceiver>) -> Self {
        self.last_lines = printed;
        self
    }

    /// Runs `work` to completion in a separate task, so that a blocked screen cannot delay the deadlines of steps.
    pub(super) async fn run_to_end(
        &mut self,
        work: RunFuture,
        mut events: mpsc::Receiver<RunEvent>,
    ) -> Result<CompletedRun, CliError> {
        let mut task = tokio::spawn(work);
        let mut open = true;
        let joined = loop {
            tokio::select! {
                event = events.recv(), if open => match event {
                    Some(event) => self.handle_event(event)?,
                    None => open = false,
                },
                joined = &mut task, if !open => break joined,
                effect = self.interrupts.next() => self.handle_signal(effect),
                _ = self.heartbeat.tick() => self.print_heartbeat(),
                lines = next_lines(&mut self.last_lines) => self.progress.set_last_lines(&lines),
            }
        };
        match joined {
            Ok(result) => result,
            Err(_) => Err(CliError::Internal("the engine stopped".to_owned())),
        }
    }

    fn handle_event(&mut self, event: RunEvent) -> Result<(), CliError> {
        if let Some(line) = self.progress.handle_event(&event, self.elapsed()) {
            self.print_line(&line);
        }
        // Waiting in the queue is not part of the reports: a run in this process has no such event.
        let is_the_runs = !matches!(event, RunEvent::RunQueued { .. });
        if is_the_runs {
            self.reports.write_event(&event, self.screen)?;
        }
        if let RunEvent::StepFinished { step, .. } = &event {
            self.applied.add(&step.drift.applied);
        }
        let now = self.elapsed();
        self.record.apply(event, now);
        Ok(())
    }

    fn handle_signal(&mut self, effect: SignalEffect) {
        match effect {
            SignalEffect::Cancel(signal) => {
                self.print_line(&format!("{signal}: ending all steps; press Ctrl-C again to exit at once\n"));
            }
            SignalEffect::Repeated => {}
            SignalEffect::ExitNow => {
                self.progress.clear();
                interrupt::exit_interrupted()
            }
        }
    }

    fn print_heartbeat(&mut self) {
        if let Some(text) = self.progress.heartbeat(self.elapsed()) {
            self.print_line(&text);
        }
    }

    fn print_line(&mut self, text: &str) {
        let screen = &mut *self.screen;
        self.progress.print_above_rows(text, |text| screen.err(text));
        self.heartbeat.reset();
    }

    fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

/// Waits for new last lines; never returns if there will be none.
async fn next_lines(printed: &mut Option<LastLinesReceiver>) -> LastLines {
    if let Some(lines) = printed
        && lines.changed().await.is_ok()
    {
        return lines.borrow_and_update().clone();
    }
    *printed = None;
    std::future::pending().await
}
