//! All cases, grouped by topic.

mod access;
mod apply_changes;
mod ask;
mod buildgrid;
mod caches;
mod caller_process;
mod changesets;
mod commands;
mod concurrent_edits;
mod contention;
mod crash;
mod daemon_cli;
mod daemon_client;
mod daemon_lifecycle;
mod daemon_observability;
mod drift;
mod drift_methods;
mod evidence;
mod exec;
mod explanations;
mod fault_injection;
mod files;
mod fleet;
mod fuzz;
mod gate;
mod generated_clients;
mod harness;
mod hidden_changes;
mod hook_repositories;
mod hooks;
mod hostile_clients;
mod hostile_mcp_clients;
mod html_report;
mod http;
mod human_output;
mod import;
mod init;
mod inputs;
mod interruption;
mod launcher;
mod limits;
mod live_output;
mod live_terminal;
mod local_attacks;
mod maintenance;
mod mcp;
mod mcp_servers;
mod missing_controls;
mod needed_paths;
mod network;
mod packaging;
mod patches;
mod path_swaps;
mod predecessor_format;
mod predecessor_mistakes;
mod prior_results;
mod private_copy;
mod python_client;
mod refused_requests;
mod remote_cache;
mod remote_executor;
mod remote_needed_paths;
mod remote_reuse;
mod report_formats;
mod repository_formats;
mod repository_locations;
mod rerun;
mod reuse;
mod reuse_daemon;
mod reuse_traps;
mod reused_reports;
mod revisions;
mod run_requests;
mod screen_snapshots;
mod skill_order;
mod spec;
mod spec_directories;
mod spec_hooks;
mod sql;
mod sql_external;
mod sql_observability;
mod sql_reuse;
mod sql_run;
mod sql_steps;
mod sql_verifiers;
mod stale_results;
mod step_environment;
mod step_output;
mod step_reports;
mod stress;
mod systemd;
mod telemetry;
mod timeout;
mod toolchain;
mod tools;
mod tutorial;
mod unprivileged;
mod unusual_repositories;
mod unwritable_storage;
mod verdict;
mod visibility;
mod watch;

use crate::needs::CaseDefinition;
use crate::test_level;

/// Returns the cases of this level.
pub(crate) fn selected_cases() -> Vec<&'static CaseDefinition> {
    all_cases().into_iter().filter(|case| test_level::is_long() || !case.is_long).collect()
}

/// Returns the cases that this level also runs through a daemon.
pub(crate) fn selected_daemon_cases() -> Vec<&'static CaseDefinition> {
    daemon_cases().into_iter().filter(|case| test_level::is_long() || case.is_daemon_sample).collect()
}

/// Returns all cases.
fn all_cases() -> Vec<&'static CaseDefinition> {
    let groups: Vec<&'static [CaseDefinition]> = vec![
        access::CASES,
        hostile_clients::CASES,
        drift_methods::CASES,
        apply_changes::CASES,
        caches::CASES,
        caller_process::CASES,
        changesets::CASES,
        daemon_client::CASES,
        commands::CASES,
        contention::CASES,
        daemon_cli::CASES,
        crash::CASES,
        missing_controls::CASES,
        drift::CASES,
        step_environment::CASES,
        evidence::CASES,
        exec::CASES,
        exec::DAEMON_CASES,
        explanations::CASES,
        fault_injection::CASES,
        files::CASES,
        fleet::CASES,
        repository_formats::CASES,
        fuzz::CASES,
        gate::CASES,
        generated_clients::CASES,
        harness::CASES,
        hidden_changes::CASES,
        hook_repositories::CASES,
        hooks::CASES,
        local_attacks::CASES,
        http::CASES,
        import::CASES,
        init::CASES,
        interruption::CASES,
        launcher::CASES,
        sql_reuse::CASES,
        sql_steps::CASES,
        sql_verifiers::CASES,
        predecessor_format::CASES,
        daemon_lifecycle::CASES,
        limits::CASES,
        live_output::CASES,
        mcp::CASES,
        concurrent_edits::CASES,
        predecessor_mistakes::CASES,
        hostile_mcp_clients::CASES,
        needed_paths::CASES,
        network::CASES,
        skill_order::CASES,
        step_output::CASES,
        html_report::CASES,
        packaging::CASES,
        patches::CASES,
        repository_locations::CASES,
        private_copy::CASES,
        python_client::CASES,
        refused_requests::CASES,
        step_reports::CASES,
        unusual_repositories::CASES,
        rerun::CASES,
        rerun::SERVICE_CASES,
        remote_cache::CASES,
        remote_executor::CASES,
        remote_needed_paths::CASES,
        remote_reuse::CASES,
        buildgrid::CASES,
        reuse::CASES,
        inputs::CASES,
        reuse_daemon::CASES,
        reuse_traps::CASES,
        reused_reports::CASES,
        stale_results::CASES,
        report_formats::CASES,
        prior_results::CASES,
        revisions::CASES,
        unwritable_storage::CASES,
        run_requests::CASES,
        live_terminal::CASES,
        screen_snapshots::CASES,
        spec::CASES,
        spec_directories::CASES,
        spec_hooks::CASES,
        sql::CASES,
        sql_external::CASES,
        sql_observability::CASES,
        sql_run::CASES,
        ask::CASES,
        stress::CASES,
        path_swaps::CASES,
        systemd::CASES,
        telemetry::CASES,
        daemon_observability::CASES,
        human_output::CASES,
        timeout::CASES,
        toolchain::CASES,
        tools::CASES,
        tutorial::CASES,
        unprivileged::CASES,
        maintenance::CASES,
        verdict::CASES,
        visibility::CASES,
        watch::CASES,
    ];
    groups.into_iter().flatten().collect()
}

/// Returns the cases that run a second time through a daemon. `make test-long` runs all of them, and `make test` the
/// ones marked with [`CaseDefinition::daemon_sample`]. A case is marked if the daemon has its own code for the result
/// that the case checks, and if no other marked case takes the same path:
///
/// - a field of the request: environment, umask, signals, changeset, revision, selection, patch, reports, options;
/// - the report on the wire: verdict, reasons, diffs, escapes, large output, versions, notices of missing controls;
/// - the end of a run: interruption, deadline, a client that does not read;
/// - a refusal: spec, revision, repository, sandbox, state;
/// - the record: documents, history, status, the private copy;
/// - state that the daemon keeps between requests: sandboxes, snapshots, specs, the runs that a gate accepts.
///
/// Behaviour inside a sandbox does not qualify, because the engine is the same.
fn daemon_cases() -> Vec<&'static CaseDefinition> {
    let groups: Vec<&'static [CaseDefinition]> = vec![
        apply_changes::CASES,
        caller_process::CASES,
        changesets::CASES,
        missing_controls::CASES,
        drift::CASES,
        step_environment::CASES,
        evidence::CASES,
        exec::CASES,
        repository_formats::CASES,
        gate::CASES,
        interruption::CASES,
        sql_reuse::CASES,
        sql_steps::CASES,
        sql_verifiers::CASES,
        predecessor_mistakes::CASES,
        skill_order::CASES,
        step_output::CASES,
        patches::CASES,
        refused_requests::CASES,
        step_reports::CASES,
        rerun::CASES,
        revisions::CASES,
        timeout::CASES,
        toolchain::CASES,
        maintenance::DAEMON_CASES,
        verdict::CASES,
    ];
    groups.into_iter().flatten().filter(|case| !LOCAL_ONLY_CASES.contains(&case.name)).collect()
}

/// Cases that only apply to a `proctor` that does the work itself.
const LOCAL_ONLY_CASES: [&str; 20] = [
    // A daemon keeps a history.
    "changesets::invalid_ids_are_refused",
    "gate::tree_without_a_recorded_run_is_refused",
    // A daemon has its own config and state directory.
    "exec::has_limits_below_the_ceiling",
    "missing_controls::operator_can_forbid_best_effort",
    "missing_controls::without_a_control_group",
    "refused_requests::invalid_operator_config_is_refused",
    "missing_controls::operator_sets_which_controls_may_be_missing",
    "missing_controls::outdated_probe_result_is_not_recorded",
    "missing_controls::control_lost_through_another_missing_control_is_required",
    "gate::other_spec_profile_or_plan_is_refused",
    "gate::maximum_tier_and_age_are_enforced",
    "gate::strict_inputs_refuse_a_run_on_a_shared_worktree",
    "refused_requests::operator_config_limits_every_spec",
    "refused_requests::state_directory_inside_the_repository_is_refused",
    // Work in a daemon does not end with the client.
    "interruption::second_sigint_exits_immediately",
    "interruption::sigkill_ends_detached_processes_of_a_step",
    "interruption::sigkill_leaves_no_process_and_a_complete_status_file",
    // The standard streams of `proctor` do not matter to a daemon.
    "caller_process::result_that_cannot_be_written_is_inconclusive",
    "caller_process::open_files_are_not_inherited",
    // A daemon combines two equal requests into one run.
    "revisions::two_runs_of_one_commit_share_its_checkout",
];
