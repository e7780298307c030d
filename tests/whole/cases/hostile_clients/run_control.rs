//! Tests clients that submit runs for the same changeset, and clients that cancel runs in every state.

use serde_json::json;

use super::{complete_log, submit_run, with_health_probe};
use crate::daemon;
use crate::environment::{
    CHANGESET, TestEnvironment, release_step, wait_for_attempt_after, wait_for_step, waiting_step,
};
use crate::test_spec::TestSpec;

pub(super) fn two_clients_one_changeset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut daemon = env.start_ready_daemon();
    let first = submit_run(&daemon, &repo, &json!({ "changeset_id": CHANGESET }));
    let step = wait_for_step(env, &mut daemon.process);
    // Another client submits a different run for the changeset.
    let second = submit_run(&daemon, &repo, &json!({ "changeset_id": CHANGESET, "fail_fast": true }));
    assert_ne!(first, second);
    let state = |id: &str| daemon.get(&format!("/v1/runs/{id}?wait=300ms"))["state"].clone();
    assert_eq!((state(&first), state(&second)), (json!("running"), json!("queued")));
    let one = with_health_probe(env, || {
        release_step(&step);
        daemon.wait_for_run(&first)
    });
    release_step(&wait_for_attempt_after(env, &mut daemon.process, &step));
    let two = daemon.wait_for_run(&second);
    complete_log(&daemon, &first);
    complete_log(&daemon, &second);
    assert_eq!((&one["verdict"], &two["verdict"]), (&json!("passed"), &json!("passed")), "{one:#}\n{two:#}");
    assert!(one["finished_at"].as_str() <= two["started_at"].as_str(), "they took turns");
    assert_eq!(repo.last_run()["run_id"], two["id"], "the changeset has the evidence of the last one, whole");
    daemon.stop().exits(0);
}

pub(super) fn cancel_in_every_state(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nmax_runs = 1\n");
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let other = env.repo_at("other", &TestSpec::from_script("true"));
    let mut daemon = env.start_ready_daemon();
    let running = submit_run(&daemon, &repo, &json!({}));
    wait_for_step(env, &mut daemon.process);
    let queued = submit_run(&daemon, &other, &json!({}));
    let socket = env.socket_path();
    let cancel =
        |id: &str| daemon::send_request(&socket, "DELETE", &format!("/v1/runs/{id}"), None).expect("an answer");

    // Cancelled while it is queued, the run never starts.
    let run = with_health_probe(env, || {
        assert_eq!(cancel(&queued).status, 202);
        daemon.wait_for_run(&queued)
    });
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert!(complete_log(&daemon, &queued).iter().all(|event| event["event"] != "run_started"));

    // Twenty clients cancel it while it runs.
    with_health_probe(env, || {
        std::thread::scope(|scope| {
            let cancellations: Vec<_> = (0..20).map(|_| scope.spawn(|| cancel(&running).status)).collect();
            for cancellation in cancellations {
                let code = cancellation.join().expect("an answer");
                assert!(code == 202 || code == 200, "{code}");
            }
        });
    });
    let run = daemon.wait_for_run(&running);
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert!(run["cancelled_by"].is_string(), "{run:#}");
    complete_log(&daemon, &running);

    // Cancelled after its end, the run is unchanged.
    assert_eq!(cancel(&running).status, 200);
    assert_eq!(daemon.get(&format!("/v1/runs/{running}")), run);

    // Cancelled after each event of the run.
    with_health_probe(env, || {
        for event_count in 0..10 {
            let id = submit_run(&daemon, &other, &json!({}));
            daemon.get(&format!("/v1/runs/{id}?wait=10s&after={event_count}"));
            let response = cancel(&id);
            assert!(response.status == 202 || response.status == 200, "{response:?}");
            let run = daemon.wait_for_run(&id);
            let verdict = run["verdict"].as_str().expect("a word");
            assert!(verdict == "passed" || run["exit_code"] == 130, "{run:#}");
            complete_log(&daemon, &id);
        }
    });
    daemon.stop().exits(0);
}
