//! Tests the reuse of results by a daemon.

use crate::cases::reuse::{ReuseRepo, print_file};
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, Needs, case};

pub(super) const CASES: &[CaseDefinition] = &[
    case("reuse_daemon::result_of_the_command_line_counts_for_a_daemon", result_counts_for_daemon)
        .needs(&[Needs::Sandbox, Needs::Views]),
    case("reuse_daemon::daemon_keeps_the_run_space_of_a_cached_run", daemon_keeps_unused_run_space)
        .needs(&[Needs::Sandbox, Needs::Views]),
];

fn result_counts_for_daemon(env: &TestEnvironment) {
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md")]);
    reuse.pass();
    let daemon = env.start_ready_daemon();
    let run = daemon.wait_for_run(&daemon.submit(reuse.repo.path()));
    let listed = &daemon.get("/v1/runs")["runs"][0];
    assert_eq!((&listed["verdict"], &listed["cached_steps"]), (&"passed".into(), &1.into()), "{listed:#} {run:#}");
    daemon.stop().exits(0);
}

fn daemon_keeps_unused_run_space(env: &TestEnvironment) {
    env.set_caller_var("PROCTOR_LOG", "debug");
    let reuse = ReuseRepo::new(env, [print_file("one", "README.md")]);
    let mut daemon = env.start_ready_daemon();
    daemon.wait_for_run(&daemon.submit(reuse.repo.path()));
    daemon.wait_for_log("a new run space is prepared for the next run");
    daemon.wait_for_run(&daemon.submit(reuse.repo.path()));
    assert_eq!(daemon.get("/v1/runs")["runs"][0]["cached_steps"], 1, "the run starts no command");
    daemon.wait_for_log("the unused run space is kept for the next run");
    let log = daemon.stop().exits(0).stderr;
    assert_eq!(log.matches("a new run space is prepared for the next run").count(), 1, "{log}");
}
