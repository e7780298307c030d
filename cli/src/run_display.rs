//! Renders runs of the daemon as human-readable text: one line each, or one run with its steps. The input is the
//! daemon's views alone; untrusted text is escaped with [`escape_line`].

use proctor_core::api::{RunState, RunSummary, RunView, StepView};
use proctor_core::decision::verdict::Verdict;
use proctor_core::model::names::SkillName;
use proctor_core::model::outcome::Outcome;
use proctor_core::record::evidence::CACHED;

use crate::human_report::outcome_label;
use crate::style::{self, DIM, STRONG, UNSURE, paint};
use crate::text::{duration, escape_line};

/// Width of the state column.
const STATE: usize = 12;
/// Number of characters of a timestamp that are shown: up to the second.
const TIMESTAMP_CHARS: usize = 19;

/// Returns the column headings of a list of runs.
pub(crate) fn list_heading() -> String {
    paint(DIM, format!("{:<28} {:<STATE$} {:<10} {:<19} {:>8}  WHAT", "RUN", "STATE", "PROFILE", "ASKED FOR", "TIME"))
}

/// Renders a run as one line, without a line break.
pub(crate) fn run_line(run: &RunSummary) -> String {
    let time = run.duration_ms.map(duration).unwrap_or_default();
    format!(
        "{:<28} {} {:<10} {} {time:>8}  {}",
        run.id.as_str(),
        state_label(run.state, run.verdict, STATE),
        escape_line(run.request.profile.as_str()),
        short_timestamp(&run.queued_at),
        escape_line(&description(run))
    )
}

/// Returns the repository, revision and changeset of a run, and the daemon's summary of its state.
fn description(run: &RunSummary) -> String {
    let rev = run.request.rev.as_ref().map(|rev| format!(" at {rev}")).unwrap_or_default();
    let changeset = run.request.changeset_id.as_ref().map(|id| format!(" for {id}")).unwrap_or_default();
    format!("{}{rev}{changeset}: {}", run.request.repo, run.reason)
}

/// Returns the verdict of a run that has ended, or the state of one that has not, padded to `width`.
pub(crate) fn state_label(state: RunState, verdict: Option<Verdict>, width: usize) -> String {
    match verdict {
        Some(verdict) => paint(style::verdict_style(verdict), format!("{:<width$}", verdict.as_str())),
        None => paint(if state == RunState::Queued { DIM } else { STRONG }, format!("{:<width$}", state.as_str())),
    }
}

/// Shortens a timestamp of the documents to the second.
pub(crate) fn short_timestamp(at: &str) -> String {
    escape_line(at.get(..TIMESTAMP_CHARS).unwrap_or(at)).replace('T', " ")
}

/// Renders one run with its steps.
pub(crate) fn render_run(run: &RunView) -> String {
    let mut text =
        format!("{} {}\n", paint(STRONG, format!("run {}:", run.id)), state_label(run.state, run.verdict, 0));
    let mut row = |label: &str, value: &str| {
        text.push_str(&format!("  {} {}\n", paint(DIM, format!("{label:<11}")), escape_line(value)));
    };
    row("reason", &run.reason);
    row("repository", &run.request.repo);
    row("profile", run.request.profile.as_str());
    run.request.changeset_id.iter().for_each(|id| row("changeset", id.as_str()));
    run.request.rev.iter().for_each(|rev| row("revision", rev));
    let left_out = run.rerun.iter().filter(|rerun| rerun.is_partial()).map(|rerun| join_names(&rerun.left_out));
    left_out.for_each(|skills| row("left out", &skills));
    row("requested", &format!("{} by user {}", short_timestamp(&run.queued_at), run.uid));
    run.started_at.iter().for_each(|at| row("began", &short_timestamp(at)));
    run.finished_at.iter().for_each(|at| row("ended", &short_timestamp(at)));
    run.duration_ms.iter().for_each(|ms| row("took", &duration(*ms)));
    run.tier.iter().for_each(|tier| row("tier", &tier.to_string()));
    run.exit_code.iter().for_each(|code| row("exit code", &code.to_string()));
    run.reuse.iter().for_each(|reuse| row("reuse", &reuse.phrase()));
    run.cancelled_by.iter().for_each(|by| row("ended by", by));
    run.evidence_dir.iter().for_each(|dir| row("evidence", dir));
    text.push_str(&steps_block("checks", &run.checks, check_name));
    text.push_str(&steps_block("steps", &run.steps, step_name));
    for doubt in &run.doubts {
        text.push_str(&crate::human_report::inconclusive_block(doubt.doubt, &doubt.message));
    }
    text
}

fn join_names(skills: &[SkillName]) -> String {
    skills.iter().map(SkillName::as_str).collect::<Vec<_>>().join(" ")
}

/// Returns the displayed name of a step.
pub(crate) fn step_name(step: &StepView) -> String {
    format!("{}/{}", step.skill, step.name)
}

/// Returns the displayed name of a toolchain check: its toolchain and number, because its command can be any text.
pub(crate) fn check_name(check: &StepView) -> String {
    format!("{}/{}", check.skill, check.n)
}

fn steps_block(heading: &str, steps: &[StepView], name: impl Fn(&StepView) -> String) -> String {
    let names: Vec<String> = steps.iter().map(|step| escape_line(&name(step))).collect();
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
    let word = paint(style::outcome_style(outcome), format!("{:<12}", outcome_label(outcome)));
    let time = match &step.cached_from {
        Some(_) => CACHED.to_owned(),
        None => step.duration_ms.map(duration).unwrap_or_default(),
    };
    let why = step.failure_reason().filter(|_| outcome != Outcome::Passed);
    let why = why.or_else(|| Some(format!("from run {}", step.cached_from.as_ref()?))).unwrap_or_default();
    format!("{word} {time:>8}  {}", escape_line(&why)).trim_end().to_owned()
}
