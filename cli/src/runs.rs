//! Renders runs of the daemon as human-readable text: one line each, or one run with its steps. The input is the
//! daemon's views alone; untrusted text is escaped with [`shown_line`].

use proctor_core::api::{RunState, RunSummary, RunView, StepView};
use proctor_core::names::SkillName;
use proctor_core::outcome::Outcome;
use proctor_core::verdict::Verdict;

use crate::report::outcome_words;
use crate::style::{self, DIM, STRONG, UNSURE, paint};
use crate::text::{duration, shown_line};

/// Width of the state column.
const STATE: usize = 12;
/// Number of characters of a timestamp that are shown: up to the second.
const SECONDS: usize = 19;

/// Returns the column headings of a list of runs.
pub(crate) fn heading() -> String {
    paint(DIM, format!("{:<28} {:<STATE$} {:<10} {:<19} {:>8}  WHAT", "RUN", "STATE", "PROFILE", "ASKED FOR", "TIME"))
}

/// Renders a run as one line, without a line break.
pub(crate) fn line(run: &RunSummary) -> String {
    let time = run.duration_ms.map(duration).unwrap_or_default();
    format!(
        "{:<28} {} {:<10} {} {time:>8}  {}",
        run.id.as_str(),
        word(run.state, run.verdict, STATE),
        shown_line(run.asked.profile.as_str()),
        instant(&run.queued_at),
        shown_line(&what(run))
    )
}

/// Returns the repository, revision and changeset of a run, and the daemon's summary of its state.
fn what(run: &RunSummary) -> String {
    let rev = run.asked.rev.as_ref().map(|rev| format!(" at {rev}")).unwrap_or_default();
    let changeset = run.asked.changeset_id.as_ref().map(|id| format!(" for {id}")).unwrap_or_default();
    format!("{}{rev}{changeset}: {}", run.asked.repo, run.reason)
}

/// Returns the verdict of a run that has ended, or the state of one that has not, padded to `width`.
pub(crate) fn word(state: RunState, verdict: Option<Verdict>, width: usize) -> String {
    match verdict {
        Some(verdict) => paint(style::of_verdict(verdict), format!("{:<width$}", verdict.as_str())),
        None => paint(if state == RunState::Queued { DIM } else { STRONG }, format!("{:<width$}", state.as_str())),
    }
}

/// Shortens a timestamp of the documents to the second.
pub(crate) fn instant(at: &str) -> String {
    shown_line(at.get(..SECONDS).unwrap_or(at)).replace('T', " ")
}

/// Renders one run with its steps.
pub(crate) fn block(run: &RunView) -> String {
    let mut text = format!("{} {}\n", paint(STRONG, format!("run {}:", run.id)), word(run.state, run.verdict, 0));
    let mut row = |label: &str, value: &str| {
        text.push_str(&format!("  {} {}\n", paint(DIM, format!("{label:<11}")), shown_line(value)));
    };
    row("reason", &run.reason);
    row("repository", &run.asked.repo);
    row("profile", run.asked.profile.as_str());
    run.asked.changeset_id.iter().for_each(|id| row("changeset", id.as_str()));
    run.asked.rev.iter().for_each(|rev| row("revision", rev));
    let left_out = run.rerun.iter().filter(|rerun| rerun.is_partial()).map(|rerun| words(&rerun.left_out));
    left_out.for_each(|skills| row("left out", &skills));
    row("asked for", &format!("{} by user {}", instant(&run.queued_at), run.uid));
    run.started_at.iter().for_each(|at| row("began", &instant(at)));
    run.finished_at.iter().for_each(|at| row("ended", &instant(at)));
    run.duration_ms.iter().for_each(|ms| row("took", &duration(*ms)));
    run.tier.iter().for_each(|tier| row("tier", &tier.to_string()));
    run.exit_code.iter().for_each(|code| row("exit code", &code.to_string()));
    run.cancelled_by.iter().for_each(|by| row("ended by", by));
    run.evidence_dir.iter().for_each(|dir| row("evidence", dir));
    text.push_str(&steps("checks", &run.checks, check_name));
    text.push_str(&steps("steps", &run.steps, name));
    for doubt in &run.doubts {
        text.push_str(&crate::report::doubt_block(doubt.doubt, &doubt.message));
    }
    text
}

fn words(skills: &[SkillName]) -> String {
    skills.iter().map(SkillName::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the displayed name of a step.
pub(crate) fn name(step: &StepView) -> String {
    format!("{}/{}", step.skill, step.name)
}

/// Returns the displayed name of a toolchain check: its toolchain and number, because its command can be any text.
pub(crate) fn check_name(check: &StepView) -> String {
    format!("{}/{}", check.skill, check.n)
}

fn steps(heading: &str, steps: &[StepView], name: impl Fn(&StepView) -> String) -> String {
    let names: Vec<String> = steps.iter().map(|step| shown_line(&name(step))).collect();
    let width = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let head = if steps.is_empty() { String::new() } else { format!("  {}\n", paint(DIM, format!("{heading}:"))) };
    let line = |(step, name): (&StepView, String)| format!("    {name:<width$}  {}\n", step_cells(step));
    head + &steps.iter().zip(names).map(line).collect::<String>()
}

fn step_cells(step: &StepView) -> String {
    let Some(outcome) = step.outcome else {
        let word = if step.attempt > 0 { "running" } else { "waiting" };
        return paint(if step.attempt > 0 { UNSURE } else { DIM }, word);
    };
    let word = paint(style::of_outcome(outcome), format!("{:<12}", outcome_words(outcome)));
    let time = step.duration_ms.map(duration).unwrap_or_default();
    let why = step.why().filter(|_| outcome != Outcome::Passed).unwrap_or_default();
    format!("{word} {time:>8}  {}", shown_line(&why)).trim_end().to_owned()
}
