//! All cases, grouped by topic.

mod abuse;
mod access;
mod adversary;
mod applying;
mod caches;
mod callers;
mod changesets;
mod client;
mod commands;
mod contention;
mod crash;
mod daemon_cli;
mod degrading;
mod drift;
mod environment;
mod evidence;
mod exec;
mod explaining;
mod faults;
mod formats;
mod fuzz;
mod gate;
mod generated;
mod harness;
mod hiding;
mod hooks;
mod hostile;
mod http;
mod import;
mod init;
mod interruption;
mod judging;
mod layouts;
mod life;
mod limits;
mod live_output;
mod mcp;
mod meanwhile;
mod mistakes;
mod misuse;
mod network;
mod order;
mod output;
mod packaging;
mod pages;
mod patches;
mod places;
mod private_tree;
mod refusal;
mod reports;
mod repositories;
mod rerun;
mod results;
mod reuse;
mod revisions;
mod room;
mod runs;
mod screen;
mod screens;
mod spec;
mod sql;
mod stress;
mod swaps;
mod systemd;
mod telemetry;
mod telling;
mod terminal;
mod timeout;
mod toolchain;
mod tools;
mod tutorial;
mod unprivileged;
mod upkeep;
mod verdict;
mod visibility;

use crate::needs::Case;

/// Returns all cases.
pub(crate) fn all() -> Vec<&'static Case> {
    let groups: Vec<&'static [Case]> = vec![
        access::CASES,
        abuse::CASES,
        adversary::CASES,
        applying::CASES,
        caches::CASES,
        callers::CASES,
        changesets::CASES,
        client::CASES,
        commands::CASES,
        contention::CASES,
        daemon_cli::CASES,
        crash::CASES,
        degrading::CASES,
        drift::CASES,
        environment::CASES,
        evidence::CASES,
        exec::CASES,
        exec::OF_A_DAEMON,
        explaining::CASES,
        faults::CASES,
        formats::CASES,
        fuzz::CASES,
        gate::CASES,
        generated::CASES,
        harness::CASES,
        hiding::CASES,
        hooks::CASES,
        hostile::CASES,
        http::CASES,
        import::CASES,
        init::CASES,
        interruption::CASES,
        judging::CASES,
        layouts::CASES,
        life::CASES,
        limits::CASES,
        live_output::CASES,
        mcp::CASES,
        meanwhile::CASES,
        mistakes::CASES,
        misuse::CASES,
        network::CASES,
        order::CASES,
        output::CASES,
        pages::CASES,
        packaging::CASES,
        patches::CASES,
        places::CASES,
        private_tree::CASES,
        refusal::CASES,
        reports::CASES,
        repositories::CASES,
        rerun::CASES,
        rerun::OF_A_SERVICE,
        results::CASES,
        reuse::CASES,
        revisions::CASES,
        room::CASES,
        runs::CASES,
        screen::CASES,
        screens::CASES,
        spec::CASES,
        sql::CASES,
        stress::CASES,
        swaps::CASES,
        systemd::CASES,
        telemetry::CASES,
        telling::CASES,
        terminal::CASES,
        timeout::CASES,
        toolchain::CASES,
        tools::CASES,
        tutorial::CASES,
        unprivileged::CASES,
        upkeep::CASES,
        verdict::CASES,
        visibility::CASES,
    ];
    groups.into_iter().flatten().collect()
}

/// Returns the cases that run a second time through a daemon. These are the cases in which the daemon could change
/// the result: requests, reports, refusals, interruptions and records. Behaviour inside a sandbox is not repeated,
/// because the engine is the same.
pub(crate) fn served() -> Vec<&'static Case> {
    let groups: Vec<&'static [Case]> = vec![
        applying::CASES,
        callers::CASES,
        changesets::CASES,
        degrading::CASES,
        drift::CASES,
        environment::CASES,
        evidence::CASES,
        exec::CASES,
        formats::CASES,
        gate::CASES,
        interruption::CASES,
        judging::CASES,
        mistakes::CASES,
        order::CASES,
        output::CASES,
        patches::CASES,
        refusal::CASES,
        reports::CASES,
        rerun::CASES,
        revisions::CASES,
        timeout::CASES,
        toolchain::CASES,
        upkeep::SERVED,
        verdict::CASES,
    ];
    groups.into_iter().flatten().filter(|case| !OF_THIS_PROCESS.contains(&case.name)).collect()
}

/// Cases that only apply to a `proctor` that does the work itself.
const OF_THIS_PROCESS: [&str; 20] = [
    // A daemon keeps a history.
    "changesets::ids_that_climb_or_hide_are_refused",
    "gate::nothing_on_record_is_no_pass",
    // A daemon has its own config and state directory.
    "exec::has_limits_below_the_ceiling",
    "degrading::the_operator_can_forbid_best_effort",
    "degrading::without_a_control_group",
    "refusal::an_operators_config_that_is_wrong_is_no_config",
    "degrading::the_operator_says_what_may_be_missing",
    "degrading::what_was_found_out_before_makes_no_record",
    "degrading::what_is_missing_with_another_is_demanded_too",
    "gate::another_spec_profile_or_plan_is_not_what_ran",
    "gate::the_tier_and_the_age_are_bounded",
    "gate::strict_inputs_refuse_a_run_over_the_worktree_itself",
    "refusal::the_operator_is_the_ceiling",
    "refusal::the_state_may_not_lie_in_the_repository",
    // Work in a daemon does not end with the client.
    "interruption::a_second_sigint_leaves_at_once",
    "interruption::sigkill_ends_what_asked_to_outlive_its_parent",
    "interruption::sigkill_leaves_no_process_and_a_whole_status",
    // The standard streams of `proctor` do not matter to a daemon.
    "callers::a_result_that_cannot_be_written_is_no_pass",
    "callers::open_files_are_not_handed_on",
    // A daemon combines two equal requests into one run.
    "revisions::two_runs_of_one_commit_share_its_checkout",
];
