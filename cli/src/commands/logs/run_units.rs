//! The steps and checks of a run, found by name.

use proctor_core::api::{RunState, RunView, StepView};
use proctor_core::model::names::RunId;
use proctor_core::spec::closest_match;
use proctor_daemon::service::OutputUnit;

use crate::error::CliError;
use crate::run_display;
use crate::text::escape_line;

/// Number of step names that a message lists.
const SHOWN_NAMES: usize = 20;

/// The position of a step or check in a run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct UnitPosition {
    pub(super) unit: OutputUnit,
    pub(super) n: u32,
}

/// Returns all checks and steps of a run, in order.
pub(super) fn units(view: &RunView) -> impl Iterator<Item = (UnitPosition, &StepView)> {
    let checks = view.checks.iter().map(|step| (UnitPosition { unit: OutputUnit::Check, n: step.n }, step));
    checks.chain(view.steps.iter().map(|step| (UnitPosition { unit: OutputUnit::Step, n: step.n }, step)))
}

/// Returns the displayed name; a check has its toolchain and number.
pub(super) fn unit_name(position: UnitPosition, step: &StepView) -> String {
    match position.unit {
        OutputUnit::Check => run_display::check_name(step),
        OutputUnit::Step => run_display::step_name(step),
    }
}

pub(super) fn find_unit<'a>(view: &'a RunView, name: &str) -> Option<(UnitPosition, &'a StepView)> {
    units(view).find(|(place, step)| unit_name(*place, step) == name)
}

/// Checks whether all checks and steps of a run are known. The view has the steps from the beginning, but a check
/// only when it has ended; all checks end before the first step starts.
fn has_all_units(view: &RunView) -> bool {
    view.state == RunState::Finished || view.steps.iter().any(|step| step.attempt > 0 || step.outcome.is_some())
}

/// Returns the error for an unknown step, with the nearest name and the existing ones.
pub(super) fn unknown_step_error(run: &RunId, name: &str, names: &[String]) -> CliError {
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
pub(super) fn check_worth_waiting(is_known: bool, follow: bool, view: &RunView, name: &str) -> Result<(), CliError> {
    let usage = |message: String, hint: &str| Err(CliError::Usage { message, hint: hint.to_owned() });
    if !is_known && has_all_units(view) {
        let names: Vec<String> = units(view).map(|(place, step)| unit_name(place, step)).collect();
        return Err(unknown_step_error(&view.id, name, &names));
    }
    if view.state == RunState::Finished {
        return usage(format!("`{name}` did not run"), "`proctor status RUN` shows the reason");
    }
    match follow {
        true => Ok(()),
        false => usage(format!("`{name}` has not ended"), "wait for it with `--follow`"),
    }
}
