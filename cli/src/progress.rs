//! Shows the progress of a run on standard error: live rows on a terminal, plain lines elsewhere. Callers pass in the
//! events and the time; this module reads no clock.

pub(crate) mod last_lines;
mod live_rows;
mod row_format;
mod running_step;

use std::collections::BTreeMap;
use std::time::Duration;

use proctor_core::model::event::{EndReason, RunEvent};
use proctor_core::model::names::{SkillName, StepName};
use proctor_core::model::outcome::Outcome;
use proctor_core::record::evidence::{CACHED, CheckEvidence, StepEvidence, cached_skill_note};

use crate::human_report::{Detail, outcome_label, outcome_reason, outcome_word};
use crate::screen::Screen;
use crate::style::{self, DIM, GOOD, paint};
use crate::text::{duration, escape_line, exact_duration};
use live_rows::LiveRows;
use row_format::StepProgressCounts;
use running_step::RunningStep;

/// Interval between messages of a run that is otherwise silent.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(30);

/// Displayed instead of a step while the run waits in the daemon's queue.
const QUEUED_LABEL: &str = "(waiting for its turn)";

/// Progress of one run.
pub(crate) struct ProgressDisplay {
    running: Vec<RunningStep>,
    live_rows: Option<LiveRows>,
    detail: Detail,
    steps: StepProgressCounts,
    /// Number of ended and of cached steps of each skill.
    ended_by_skill: BTreeMap<SkillName, (usize, usize)>,
}

impl ProgressDisplay {
    /// Returns the progress display for this screen: live rows on a terminal, otherwise lines for a log.
    pub(crate) fn for_screen(screen: &Screen) -> Self {
        Self { live_rows: screen.has_live_progress.then(|| LiveRows::new(screen.glyphs)), ..Self::for_log() }
    }

    fn for_log() -> Self {
        Self {
            running: Vec::new(),
            live_rows: None,
            detail: Detail::Normal,
            steps: StepProgressCounts::default(),
            ended_by_skill: BTreeMap::new(),
        }
    }

    /// Sets how detailed the progress display is.
    pub(crate) fn with_detail(mut self, detail: Detail) -> Self {
        self.detail = detail;
        if detail == Detail::Quiet {
            self.clear();
        }
        self
    }

    /// Records an event at `now`, counted from the start of the run, and returns the line to show for it, if any.
    pub(crate) fn handle_event(&mut self, event: &RunEvent, now: Duration) -> Option<String> {
        self.track(event, now);
        match self.detail {
            Detail::Quiet | Detail::Hook => None,
            Detail::Normal if is_covered_by_skill_line(event) => None,
            Detail::Verbose if matches!(event, RunEvent::SkillFinished { .. }) => None,
            Detail::Normal | Detail::Verbose => self.event_line(event),
        }
    }

    /// Shows that something runs, from `now` on.
    pub(crate) fn begin(&mut self, name: &str, timeout_ms: Option<u64>, now: Duration) {
        self.add_running(RunningStep { name: escape_line(name), since: now, timeout_ms, expected_ms: None });
    }

    fn add_running(&mut self, running: RunningStep) {
        self.running.retain(|other| other.name != running.name);
        if let Some(live) = &mut self.live_rows {
            live.start_step(&running);
        }
        self.running.push(running);
    }

    /// Updates the rows of running steps with the last lines that the steps have printed.
    pub(crate) fn set_last_lines(&mut self, lines: &last_lines::LastLines) {
        if let Some(live) = &mut self.live_rows {
            live.set_last_lines(lines);
        }
    }

    /// Shows a line above the live rows.
    pub(crate) fn print_above_rows(&self, line: &str, write: impl FnOnce(&str)) {
        match &self.live_rows {
            Some(live) => live.suspend_rows(|| write(line)),
            None => write(line),
        }
    }

    /// Returns the message for a run that has printed nothing for [`HEARTBEAT`], or `None` on a terminal or for a
    /// quiet run.
    pub(crate) fn heartbeat(&self, now: Duration) -> Option<String> {
        if self.live_rows.is_some() || self.detail == Detail::Quiet {
            return None;
        }
        let lines = self.running.iter().map(|running| format!("still running {}\n", running.heartbeat_text(now)));
        Some(lines.collect::<String>()).filter(|text| !text.is_empty())
    }

    /// Removes the live rows from the screen.
    pub(crate) fn clear(&mut self) {
        if let Some(live) = self.live_rows.take() {
            live.clear();
        }
    }

    fn track(&mut self, event: &RunEvent, now: Duration) {
        match event {
            RunEvent::RunQueued { .. } => {
                self.add_running(RunningStep {
                    name: QUEUED_LABEL.to_owned(),
                    since: now,
                    timeout_ms: None,
                    expected_ms: None,
                });
            }
            RunEvent::RunStarted { skills, .. } => {
                self.remove_step(QUEUED_LABEL);
                self.steps = StepProgressCounts { total: skills.iter().map(|skill| skill.steps.len()).sum(), ended: 0 };
                self.update_counts();
            }
            RunEvent::StepStarted { skill, step, timeout_ms, expected_ms, .. } => {
                let name = step_label(skill.as_str(), step);
                let (timeout_ms, expected_ms) = (Some(*timeout_ms), *expected_ms);
                self.add_running(RunningStep { name, since: now, timeout_ms, expected_ms });
            }
            RunEvent::StepFinished { skill, step } => {
                self.remove_step(&step_label(skill.as_str(), &step.planned.name));
                self.steps.ended += 1;
                let (ended, cached) = self.ended_by_skill.entry(skill.clone()).or_default();
                *ended += 1;
                *cached += usize::from(step.is_cached());
                self.update_counts();
            }
            // A check is displayed as a step of a skill with the name of its toolchain.
            RunEvent::CheckFinished { check } => {
                self.remove_step(&step_label(check.toolchain.as_str(), &check.step.planned.name));
            }
            _ => {}
        }
    }

    /// Returns the line for an event; most events have none.
    fn event_line(&self, event: &RunEvent) -> Option<String> {
        let RunEvent::SkillFinished { skill, outcome: Outcome::Passed, .. } = event else { return event_line(event) };
        let (ended, cached) = self.ended_by_skill.get(skill).copied().unwrap_or_default();
        let cached = cached_skill_note(cached, ended).map(|note| format!(" ({note})")).unwrap_or_default();
        Some(format!("{} {}{cached}\n", paint(GOOD, outcome_word(Outcome::Passed)), escape_line(skill.as_str())))
    }

    fn update_counts(&mut self) {
        if let Some(live) = &mut self.live_rows {
            live.update_counts(self.steps);
        }
    }

    fn remove_step(&mut self, name: &str) {
        self.running.retain(|running| running.name != name);
        if let Some(live) = &mut self.live_rows {
            live.end_step(name);
        }
    }
}

fn step_label(skill: &str, step: &StepName) -> String {
    escape_line(&format!("{skill}/{step}"))
}

/// Checks whether an event needs no line because the line of its skill covers it: a step that passed on the first
/// attempt.
fn is_covered_by_skill_line(event: &RunEvent) -> bool {
    match event {
        RunEvent::StepFinished { step, .. } => step.outcome == Outcome::Passed && !step.flaky,
        _ => false,
    }
}

/// Returns the line for an event that does not depend on earlier events.
fn event_line(event: &RunEvent) -> Option<String> {
    Some(
        match event {
            RunEvent::RunStarted { run_id, profile, skills, .. } => {
                let steps: usize = skills.iter().map(|skill| skill.steps.len()).sum();
                let profile = escape_line(profile.as_str());
                paint(
                    DIM,
                    format!(
                        "run {run_id}: profile {profile}, {} in {}",
                        count_noun(steps, "step"),
                        count_noun(skills.len(), "skill")
                    ),
                )
            }
            RunEvent::CheckFinished { check } => check_line(check)?,
            RunEvent::StepFinished { skill, step } => step_line(skill, step),
            RunEvent::StepTerminating { skill, step, reason, grace_ms } => {
                let why = match reason {
                    EndReason::Timeout => "exceeded its time limit",
                    EndReason::Cancelled => "is cancelled",
                };
                format!(
                    "{} {why}: SIGTERM to all of it, SIGKILL in {}",
                    step_label(skill.as_str(), step),
                    exact_duration(*grace_ms)
                )
            }
            RunEvent::StepRetrying { skill, step, attempt, outcome } => {
                format!(
                    "{} {} on attempt {attempt}, trying again",
                    step_label(skill.as_str(), step),
                    outcome_label(*outcome)
                )
            }
            _ => return None,
        } + "\n",
    )
}

fn count_noun(number: usize, noun: &str) -> String {
    crate::text::count(number, noun)
}

/// Returns the line for a satisfied check. The report has a block for each other one.
fn check_line(check: &CheckEvidence) -> Option<String> {
    let toolchain = escape_line(check.toolchain.as_str());
    let cmd = escape_line(&check.step.planned.cmd.to_string());
    let version = check.version_read.as_deref().map(|version| format!(" reports {}", escape_line(version)));
    let line = || format!("{} toolchain {toolchain}: `{cmd}`{}", paint(GOOD, "satisfied"), version.unwrap_or_default());
    check.satisfied.then(line)
}

/// Returns the line for a step. The report has the reasons for steps that failed.
fn step_line(skill: &SkillName, step: &StepEvidence) -> String {
    let name = step_label(skill.as_str(), &step.planned.name);
    let word = paint(style::outcome_style(step.outcome), outcome_word(step.outcome));
    match step.outcome {
        Outcome::Passed if step.is_cached() => {
            let notes: Vec<String> = [CACHED.to_owned()].into_iter().chain(step.inputs_note()).collect();
            format!("{word} {name} ({})", escape_line(&notes.join("; ")))
        }
        Outcome::Passed => {
            let notes = step.notes().collect::<Vec<_>>().join("; ");
            let notes = if notes.is_empty() { notes } else { format!(" ({})", escape_line(&notes)) };
            format!("{word} {name} in {}{notes}", duration(step.duration_ms))
        }
        Outcome::Skipped => format!("{word} {name}: {}", outcome_reason(step)),
        _ => format!("{word} {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::*;
    use crate::text::strip_colours;
    use proctor_core::model::tier::Tier;

    fn started_step(skill_name: &str, step: &str) -> RunEvent {
        let step = StepName::new(step).expect("a step name");
        RunEvent::StepStarted { skill: skill(skill_name), step, attempt: 1, timeout_ms: 600_000, expected_ms: None }
    }

    #[test]
    fn log_has_a_line_per_end_and_heartbeats() {
        let mut progress = ProgressDisplay::for_log();
        let at = Duration::from_secs;
        assert_eq!(progress.heartbeat(at(0)), None);
        assert_eq!(progress.handle_event(&started_step("a", "slow"), at(1)), None);
        assert_eq!(progress.handle_event(&started_step("b", "quick"), at(2)), None);
        assert_eq!(
            progress.heartbeat(at(91)).as_deref(),
            Some("still running a/slow 1m30s of 10 min\nstill running b/quick 1m29s of 10 min\n")
        );
        assert_eq!(progress.handle_event(&step_finished("b", exited("quick", &["true"], 0)), at(92)), None);
        let line = progress.handle_event(&skill_finished("b", Outcome::Passed, Tier::ONE, ""), at(92)).expect("a line");
        assert_eq!(strip_colours(&line), "PASS b\n");
        assert_eq!(progress.heartbeat(at(121)).as_deref(), Some("still running a/slow 2m00s of 10 min\n"));
    }

    #[test]
    fn heartbeat_shows_the_last_duration() {
        let mut progress = ProgressDisplay::for_log();
        let mut event = started_step("a", "slow");
        if let RunEvent::StepStarted { expected_ms, .. } = &mut event {
            *expected_ms = Some(50_400);
        }
        progress.handle_event(&event, Duration::ZERO);
        let message = progress.heartbeat(Duration::from_secs(30));
        assert_eq!(message.as_deref(), Some("still running a/slow 30 s of 10 min, 50 s the last time\n"));
    }

    #[test]
    fn quiet_prints_nothing_and_verbose_every_step() {
        let events = [
            started(&[("a", &["s"])]),
            started_step("a", "s"),
            step_finished("a", exited("s", &["true"], 0)),
            skill_finished("a", Outcome::Passed, Tier::ONE, ""),
        ];
        let output = |detail| {
            let mut progress = ProgressDisplay::for_log().with_detail(detail);
            let lines: String =
                events.iter().filter_map(|event| progress.handle_event(event, Duration::ZERO)).collect();
            assert_eq!(progress.steps, StepProgressCounts { total: 1, ended: 1 });
            strip_colours(&lines)
        };
        assert_eq!(output(Detail::Quiet), "");
        assert_eq!(
            output(Detail::Verbose),
            "run 20260102T030405Z-1: profile pr, 1 step in 1 skill\nPASS a/s in 420 ms\n"
        );
    }

    #[test]
    fn line_of_a_skill_names_cached_steps() {
        let lines = |detail| {
            let mut progress = ProgressDisplay::for_log().with_detail(detail);
            let events = [
                step_finished("a", cached("s", &["true"])),
                skill_finished("a", Outcome::Passed, Tier::ONE, ""),
                step_finished("b", cached("s", &["true"])),
                step_finished("b", exited("t", &["true"], 0)),
                skill_finished("b", Outcome::Passed, Tier::ONE, ""),
            ];
            let lines = events.iter().filter_map(|event| progress.handle_event(event, Duration::ZERO));
            strip_colours(&lines.collect::<String>())
        };
        assert_eq!(lines(Detail::Normal), "PASS a (cached)\nPASS b (1 of 2 steps cached)\n");
        assert_eq!(lines(Detail::Verbose), "PASS a/s (cached)\nPASS b/s (cached)\nPASS b/t in 420 ms\n");
    }

    #[test]
    fn ended_toolchain_check_is_not_running() {
        let mut progress = ProgressDisplay::for_log();
        progress.handle_event(&started_step("rust", "rust.1"), Duration::ZERO);
        let check = check("rust", None, None, exited("rust.1", &["cargo"], 0));
        progress.handle_event(&RunEvent::CheckFinished { check }, Duration::ZERO);
        assert_eq!(progress.heartbeat(Duration::ZERO), None);
    }

    #[test]
    fn repeated_attempt_is_one_running_step() {
        let mut progress = ProgressDisplay::for_log();
        progress.handle_event(&started_step("a", "s"), Duration::ZERO);
        progress.handle_event(&started_step("a", "s"), Duration::from_secs(5));
        assert_eq!(progress.running.len(), 1);
        assert_eq!(progress.running[0].since, Duration::from_secs(5));
    }
}
