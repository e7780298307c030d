//! Shows the progress of a run on standard error: live rows on a terminal, plain lines elsewhere. Callers pass in the
//! events and the time; this module reads no clock.

pub(crate) mod last_lines;
mod live;
mod row;

use std::time::Duration;

use proctor_core::event::{EndReason, RunEvent};
use proctor_core::evidence::{CheckEvidence, StepEvidence};
use proctor_core::names::{SkillName, StepName};
use proctor_core::outcome::Outcome;

use crate::report::{Detail, check_reason, manner_of_end, outcome_words};
use crate::screen::Screen;
use crate::style::{self, DIM, GOOD, paint};
use crate::text::{bound, duration, shown_line};
use live::Live;

/// Interval between messages of a run that is otherwise silent.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(30);

/// Displayed instead of a step while the run waits in the daemon's queue.
const WAITS: &str = "(waiting for its turn)";

/// Progress of one run.
pub(crate) struct Progress {
    running: Vec<Running>,
    live: Option<Live>,
    detail: Detail,
    steps: Steps,
}

/// Number of steps in the plan and of steps that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Steps {
    /// All steps of the plan.
    pub all: usize,
    /// Steps with an outcome.
    pub ended: usize,
}

/// A running step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Running {
    /// `skill/step`.
    pub name: String,
    /// Time of the start, counted from the start of the run.
    pub since: Duration,
    /// Timeout in milliseconds, counted from the start of the step; `None` if it is not known.
    pub timeout_ms: Option<u64>,
    /// Duration of the last attempt that passed, in milliseconds; `None` if it is not known.
    pub expected_ms: Option<u64>,
}

impl Progress {
    /// Returns the progress display for this screen: live rows on a terminal, otherwise lines for a log.
    pub(crate) fn on(screen: &Screen) -> Self {
        Self { live: screen.live.then(|| Live::new(screen.glyphs)), ..Self::lines() }
    }

    fn lines() -> Self {
        Self { running: Vec::new(), live: None, detail: Detail::Normal, steps: Steps::default() }
    }

    /// Sets how detailed the progress display is.
    pub(crate) fn telling(mut self, detail: Detail) -> Self {
        self.detail = detail;
        if detail == Detail::Quiet {
            self.clear();
        }
        self
    }

    /// Records an event at `now`, counted from the start of the run, and returns the line to show for it, if any.
    pub(crate) fn event(&mut self, event: &RunEvent, now: Duration) -> Option<String> {
        self.track(event, now);
        match self.detail {
            Detail::Quiet => None,
            Detail::Normal if is_folded(event) => None,
            Detail::Verbose if matches!(event, RunEvent::SkillFinished { .. }) => None,
            Detail::Normal | Detail::Verbose => line(event),
        }
    }

    /// Shows that something runs, from `now` on.
    pub(crate) fn begin(&mut self, name: &str, timeout_ms: Option<u64>, now: Duration) {
        self.begin_as(Running { name: shown_line(name), since: now, timeout_ms, expected_ms: None });
    }

    fn begin_as(&mut self, running: Running) {
        self.running.retain(|other| other.name != running.name);
        if let Some(live) = &mut self.live {
            live.start(&running);
        }
        self.running.push(running);
    }

    /// Updates the rows of running steps with the last lines that the steps have printed.
    pub(crate) fn printed(&mut self, lines: &last_lines::Lines) {
        if let Some(live) = &mut self.live {
            live.printed(lines);
        }
    }

    /// Shows a line above the live rows.
    pub(crate) fn show(&self, line: &str, write: impl FnOnce(&str)) {
        match &self.live {
            Some(live) => live.above(|| write(line)),
            None => write(line),
        }
    }

    /// Returns the message for a run that has printed nothing for [`HEARTBEAT`], or `None` on a terminal or for a
    /// quiet run.
    pub(crate) fn heartbeat(&self, now: Duration) -> Option<String> {
        if self.live.is_some() || self.detail == Detail::Quiet {
            return None;
        }
        let lines = self.running.iter().map(|running| format!("still running {}\n", running.words(now)));
        Some(lines.collect::<String>()).filter(|text| !text.is_empty())
    }

    /// Removes the live rows from the screen.
    pub(crate) fn clear(&mut self) {
        if let Some(live) = self.live.take() {
            live.clear();
        }
    }

    fn track(&mut self, event: &RunEvent, now: Duration) {
        match event {
            RunEvent::RunQueued { .. } => {
                self.begin_as(Running { name: WAITS.to_owned(), since: now, timeout_ms: None, expected_ms: None });
            }
            RunEvent::RunStarted { skills, .. } => {
                self.end(WAITS);
                self.steps = Steps { all: skills.iter().map(|skill| skill.steps.len()).sum(), ended: 0 };
                self.count();
            }
            RunEvent::StepStarted { skill, step, timeout_ms, expected_ms, .. } => {
                let name = name(skill.as_str(), step);
                let (timeout_ms, expected_ms) = (Some(*timeout_ms), *expected_ms);
                self.begin_as(Running { name, since: now, timeout_ms, expected_ms });
            }
            RunEvent::StepFinished { skill, step } => {
                self.end(&name(skill.as_str(), &step.planned.name));
                self.steps.ended += 1;
                self.count();
            }
            // A check is displayed as a step of a skill with the name of its toolchain.
            RunEvent::CheckFinished { check } => self.end(&name(check.toolchain.as_str(), &check.step.planned.name)),
            _ => {}
        }
    }

    fn count(&mut self) {
        if let Some(live) = &mut self.live {
            live.count(self.steps);
        }
    }

    fn end(&mut self, name: &str) {
        self.running.retain(|running| running.name != name);
        if let Some(live) = &mut self.live {
            live.end(name);
        }
    }
}

impl Running {
    /// Formats the row for a log: `skill/step 1m30s of 10 min, 50 s the last time`.
    fn words(&self, now: Duration) -> String {
        let elapsed = u64::try_from(now.saturating_sub(self.since).as_millis()).unwrap_or(u64::MAX);
        let of = self.timeout_ms.map(|timeout| format!(" of {}", bound(timeout))).unwrap_or_default();
        let last = self.expected_ms.map(|last| format!(", {} the last time", duration(last))).unwrap_or_default();
        format!("{} {}{of}{last}", self.name, duration(elapsed))
    }

    /// Returns the row for a terminal.
    fn shown(&self) -> row::Step<'_> {
        row::Step { name: &self.name, timeout_ms: self.timeout_ms, expected_ms: self.expected_ms, printed: "" }
    }
}

fn name(skill: &str, step: &StepName) -> String {
    shown_line(&format!("{skill}/{step}"))
}

/// Checks whether an event needs no line because the line of its skill covers it: a step that passed on the first
/// attempt.
fn is_folded(event: &RunEvent) -> bool {
    match event {
        RunEvent::StepFinished { step, .. } => step.outcome == Outcome::Passed && !step.flaky,
        _ => false,
    }
}

/// Returns the line for an event; most events have none.
fn line(event: &RunEvent) -> Option<String> {
    Some(
        match event {
            RunEvent::RunStarted { run_id, profile, skills, .. } => {
                let steps: usize = skills.iter().map(|skill| skill.steps.len()).sum();
                let profile = shown_line(profile.as_str());
                paint(
                    DIM,
                    format!(
                        "run {run_id}: profile {profile}, {} in {}",
                        plural(steps, "step"),
                        plural(skills.len(), "skill")
                    ),
                )
            }
            RunEvent::CheckFinished { check } => check_line(check),
            RunEvent::StepFinished { skill, step } => step_line(skill, step),
            RunEvent::SkillFinished { skill, outcome: Outcome::Passed, .. } => {
                format!("{} {}", paint(GOOD, "passed"), shown_line(skill.as_str()))
            }
            RunEvent::StepTerminating { skill, step, reason, grace_ms } => {
                let why = match reason {
                    EndReason::Timeout => "is out of time",
                    EndReason::Cancelled => "is cancelled",
                };
                format!("{} {why}: SIGTERM to all of it, SIGKILL in {}", name(skill.as_str(), step), bound(*grace_ms))
            }
            RunEvent::StepRetrying { skill, step, attempt, outcome } => {
                format!("{} {} on attempt {attempt}, trying again", name(skill.as_str(), step), outcome_words(*outcome))
            }
            _ => return None,
        } + "\n",
    )
}

fn plural(number: usize, noun: &str) -> String {
    crate::text::count(number, noun)
}

fn check_line(check: &CheckEvidence) -> String {
    let toolchain = shown_line(check.toolchain.as_str());
    let cmd = shown_line(&check.step.planned.cmd.to_string());
    let says = check.version_read.as_deref().map(|version| format!(" says {}", shown_line(version)));
    match check.satisfied {
        true => {
            format!("{} toolchain {toolchain}: `{cmd}`{}", paint(GOOD, "satisfied"), says.unwrap_or_default())
        }
        false => {
            let why = check_reason(check);
            format!("{} toolchain {toolchain}: `{cmd}`: {why}", paint(style::BAD, "unsatisfied"))
        }
    }
}

fn step_line(skill: &SkillName, step: &StepEvidence) -> String {
    let name = name(skill.as_str(), &step.planned.name);
    let word = paint(style::of_outcome(step.outcome), outcome_words(step.outcome));
    if let Some(leaked) = step.forbidden_leak() {
        return format!("{word} {name}: it left {} behind", leaked.number());
    }
    match step.outcome {
        Outcome::Passed => format!("{word} {name} in {}", duration(step.duration_ms)),
        Outcome::TimedOut => format!("{word} {name} after {}", duration(step.duration_ms)),
        Outcome::Drifted => format!("{word} {name}: it changed what it must not"),
        _ => format!("{word} {name}: {}", manner_of_end(step)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::*;
    use crate::text::plain;
    use proctor_core::tier::Tier;

    fn started_step(skill_name: &str, step: &str) -> RunEvent {
        let step = StepName::new(step).expect("a step name");
        RunEvent::StepStarted { skill: skill(skill_name), step, attempt: 1, timeout_ms: 600_000, expected_ms: None }
    }

    #[test]
    fn a_log_has_a_line_for_each_end_and_a_heartbeat_for_what_runs() {
        let mut progress = Progress::lines();
        let at = Duration::from_secs;
        assert_eq!(progress.heartbeat(at(0)), None);
        assert_eq!(progress.event(&started_step("a", "slow"), at(1)), None);
        assert_eq!(progress.event(&started_step("b", "quick"), at(2)), None);
        assert_eq!(
            progress.heartbeat(at(91)).as_deref(),
            Some("still running a/slow 1m30s of 10 min\nstill running b/quick 1m29s of 10 min\n")
        );
        assert_eq!(progress.event(&step_finished("b", exited("quick", &["true"], 0)), at(92)), None);
        let line = progress.event(&skill_finished("b", Outcome::Passed, Tier::ONE, ""), at(92)).expect("a line");
        assert_eq!(plain(&line), "passed b\n");
        assert_eq!(progress.heartbeat(at(121)).as_deref(), Some("still running a/slow 2m00s of 10 min\n"));
    }

    #[test]
    fn a_heartbeat_says_how_long_it_took_the_last_time() {
        let mut progress = Progress::lines();
        let mut event = started_step("a", "slow");
        if let RunEvent::StepStarted { expected_ms, .. } = &mut event {
            *expected_ms = Some(50_400);
        }
        progress.event(&event, Duration::ZERO);
        let told = progress.heartbeat(Duration::from_secs(30));
        assert_eq!(told.as_deref(), Some("still running a/slow 30 s of 10 min, 50 s the last time\n"));
    }

    #[test]
    fn a_quiet_run_says_nothing_and_a_verbose_one_each_step() {
        let events = [
            started(&[("a", &["s"])]),
            started_step("a", "s"),
            step_finished("a", exited("s", &["true"], 0)),
            skill_finished("a", Outcome::Passed, Tier::ONE, ""),
        ];
        let told = |detail| {
            let mut progress = Progress::lines().telling(detail);
            let lines: String = events.iter().filter_map(|event| progress.event(event, Duration::ZERO)).collect();
            assert_eq!(progress.steps, Steps { all: 1, ended: 1 });
            plain(&lines)
        };
        assert_eq!(told(Detail::Quiet), "");
        assert_eq!(
            told(Detail::Verbose),
            "run 20260102T030405Z-1: profile pr, 1 step in 1 skill\npassed a/s in 420 ms\n"
        );
    }

    #[test]
    fn a_toolchain_check_that_has_ended_runs_no_more() {
        let mut progress = Progress::lines();
        progress.event(&started_step("rust", "rust.1"), Duration::ZERO);
        let check = check("rust", None, None, exited("rust.1", &["cargo"], 0));
        progress.event(&RunEvent::CheckFinished { check }, Duration::ZERO);
        assert_eq!(progress.heartbeat(Duration::ZERO), None);
    }

    #[test]
    fn a_repeated_attempt_is_one_running_step() {
        let mut progress = Progress::lines();
        progress.event(&started_step("a", "s"), Duration::ZERO);
        progress.event(&started_step("a", "s"), Duration::from_secs(5));
        assert_eq!(progress.running.len(), 1);
        assert_eq!(progress.running[0].since, Duration::from_secs(5));
    }
}
