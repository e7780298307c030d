//! Repeats the most important cases as an unprivileged user.

use super::{drift, environment, interruption, network, timeout, verdict};
use crate::needs::{Case, NEEDS_GIT, NEEDS_PYTHON, case};

pub(super) const CASES: &[Case] = &[
    case("", verdict::passing_run).unprivileged("unprivileged::a_passing_run"),
    case("", verdict::failing_step).unprivileged("unprivileged::a_failing_step"),
    case("", drift::edited_file).unprivileged("unprivileged::an_edited_file"),
    case("", drift::no_change).unprivileged("unprivileged::no_change_is_no_drift"),
    case("", drift::git_is_read_only).needs(NEEDS_GIT).unprivileged("unprivileged::git_cannot_be_written"),
    case("", timeout::stubborn_grandchild).needs(NEEDS_PYTHON).unprivileged("unprivileged::a_stubborn_grandchild"),
    case("", network::deny_tcp).needs(NEEDS_PYTHON).unprivileged("unprivileged::deny_hides_the_hosts_loopback"),
    case("", environment::secrets).unprivileged("unprivileged::a_secret_of_the_caller"),
    case("", interruption::sigint).unprivileged("unprivileged::sigint_ends_everything"),
    case("", interruption::tree_edited).unprivileged("unprivileged::an_edit_during_the_run"),
];
