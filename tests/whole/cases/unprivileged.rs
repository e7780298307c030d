//! Repeats the most important cases as an unprivileged user.

use super::{drift, interruption, network, step_environment, timeout, verdict};
use crate::needs::{CaseDefinition, NEEDS_GIT, NEEDS_PYTHON, case};

pub(super) const CASES: &[CaseDefinition] = &[
    case("", verdict::passing_run).unprivileged("unprivileged::a_passing_run"),
    case("", verdict::failing_step_is_shown_first).unprivileged("unprivileged::a_failing_step"),
    case("", drift::edited_file_is_drift).unprivileged("unprivileged::an_edited_file"),
    case("", drift::rewriting_is_not_drift).unprivileged("unprivileged::no_change_is_no_drift"),
    case("", drift::git_is_read_only).needs(NEEDS_GIT).unprivileged("unprivileged::git_cannot_be_written"),
    case("", timeout::kills_stubborn_grandchild)
        .needs(NEEDS_PYTHON)
        .unprivileged("unprivileged::kills_stubborn_grandchild"),
    case("", network::deny_blocks_host_loopback)
        .needs(NEEDS_PYTHON)
        .unprivileged("unprivileged::deny_hides_the_hosts_loopback"),
    case("", step_environment::callers_secrets_are_hidden)
        .unprivileged("unprivileged::steps_do_not_see_the_callers_secrets"),
    case("", interruption::sigint_ends_run).unprivileged("unprivileged::sigint_ends_everything"),
    case("", interruption::edit_during_run_is_inconclusive).unprivileged("unprivileged::edit_during_the_run"),
];
