//! Tests clients with conflicting requests for the same changeset: each gets a correct result, and the changeset
//! contains the complete record of one run.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::crash::assert_on_record;
use super::hostile_clients::{complete_log, submit_run, with_health_probe};
use super::http::{run_request, submitted_run_id};
use super::missing_controls::wrapper_without;
use crate::daemon::{self, READY_MESSAGE, RawResponse, TestDaemon};
use crate::environment::{CHANGESET, Repo, TestEnvironment, wait_for_step, waiting_step};
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};
use crate::{documents, machine};

pub(super) const CASES: &[CaseDefinition] = &[
    case("contention::two_clients_use_one_changeset_in_turn", two_clients_take_turns),
    case("contention::parallel_changesets_report_only_their_own_drift", layers_report_own_drift),
    case("contention::parallel_changesets_report_only_their_own_drift_in_copies", copies_report_own_drift)
        .needs(NEEDS_PYTHON),
    case("contention::run_can_be_cancelled_while_the_daemon_drains", cancelled_while_draining),
    case("contention::starting_run_can_be_cancelled_at_any_moment", cancelled_at_start),
];

/// Number of runs that each of the two clients submits.
const RUNS_PER_CLIENT: usize = 8;
/// Number of runs that are cancelled right after their start.
const EARLY_CANCELLATIONS: usize = 30;

fn send_request(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> RawResponse {
    daemon::send_request(socket, method, path, body).expect("an answer")
}

fn wait_for_end(socket: &Path, id: &str) -> Value {
    let run = send_request(socket, "GET", &format!("/v1/runs/{id}?wait=50s"), None).parse_json_body();
    assert_eq!(run["state"], "finished", "{run:#}");
    run
}

fn two_clients_take_turns(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\nmax_runs = 4\n");
    let repo = env.repo(&TestSpec::from_script("echo said"));
    let daemon = env.start_ready_daemon();
    // The two clients' requests differ, so they are never combined into one run.
    let submissions = [json!({ "fail_fast": true }), json!({ "fail_fast": false })].map(|more| {
        let mut submission = run_request(repo.path(), &more);
        submission["changeset_id"] = json!(CHANGESET);
        submission
    });
    let socket = env.socket_path();
    let run_client = |submission: &Value| -> Vec<Value> {
        let run_once = |_| {
            let answer = send_request(&socket, "POST", "/v1/runs", Some(submission));
            assert!([200, 202].contains(&answer.status), "{answer:?}");
            wait_for_end(&socket, &submitted_run_id(&answer.parse_json_body()))
        };
        (0..RUNS_PER_CLIENT).map(run_once).collect()
    };
    let mut runs: Vec<Value> = with_health_probe(env, || {
        std::thread::scope(|scope| {
            let clients = submissions.each_ref().map(|submission| scope.spawn(|| run_client(submission)));
            clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
        })
    });
    assert!(runs.iter().all(|run| run["verdict"] == "passed"), "{runs:#?}");
    runs.sort_by_key(|run| run["started_at"].as_str().map(str::to_owned));
    assert_eq!(runs.len(), 2 * RUNS_PER_CLIENT);
    for pair in runs.windows(2) {
        assert_ne!(pair[0]["id"], pair[1]["id"]);
        assert!(pair[0]["finished_at"].as_str() <= pair[1]["started_at"].as_str(), "they took turns: {pair:#?}");
    }
    runs.iter().for_each(|run| drop(complete_log(&daemon, run["id"].as_str().expect("an id"))));
    assert_on_record(&repo, runs.last().expect("runs"));
    documents::check_all_documents(repo.path());
    daemon.stop().exits(0);
}

fn layers_report_own_drift(env: &TestEnvironment) {
    assert_runs_report_own_drift(env, &[], "layer");
}

/// Without overlays, a step gets a copy of the tree, which is read again to detect changes.
fn copies_report_own_drift(env: &TestEnvironment) {
    assert_runs_report_own_drift(env, &wrapper_without(&["fsconfig:1@0=EINVAL"]), "rehash");
}

/// A second changeset.
const OTHER_CHANGESET: &str = "010_y";
/// The skills of two parallel runs, and what each does when it is released.
const PARALLEL_SKILLS: [(&str, &str); 2] =
    [("drifts", "echo mine >> src/lib.rs; echo mine > src/new.rs"), ("passes", "! grep -q mine src/lib.rs")];

/// Two runs for different changesets of one repository are active at the same time. The first one to end writes its
/// evidence to the worktree in which the other's changes are detected; neither may report changes of the other.
fn assert_runs_report_own_drift(env: &TestEnvironment, wrapper: &[&str], method: &str) {
    env.write_operator_config("[daemon]\nmax_runs = 2\n");
    let repo = repo_with_parallel_skills(env);
    let mut running = RunningProcess::start(env.daemon_command_through(wrapper, &env.socket_path(), &env.state_dir()));
    running.wait_for_stderr(READY_MESSAGE);
    let mut daemon = TestDaemon::from_process(env, running);
    let [drifts, passes] = PARALLEL_SKILLS.map(|(name, _)| name);
    for [drifter, other] in [[CHANGESET, OTHER_CHANGESET], [OTHER_CHANGESET, CHANGESET]] {
        for order in [[drifts, passes], [passes, drifts]] {
            let changeset_of = |profile: &str| if profile == drifts { drifter } else { other };
            let active_runs = order.map(|profile| {
                let request =
                    json!({ "profile": profile, "changeset_id": changeset_of(profile), "sandbox": "best_effort" });
                let id = submit_run(&daemon, &repo, &request);
                daemon.process.wait_for_process(&format!("{}-{profile}-ready", env.marker()));
                (profile, id, daemon.process.wait_for_process(&format!("{}-{profile}", env.marker())))
            });
            let second_run = daemon.get(&format!("/v1/runs/{}", active_runs[1].1));
            assert_eq!(second_run["state"], "running", "beside the first: {second_run:#}");
            for (profile, id, step) in &active_runs {
                machine::send_signal(*step, Signal::USR1);
                let run = wait_for_end(&env.socket_path(), id);
                let evidence =
                    documents::read_skill_evidence(&repo.file("changes").join(changeset_of(profile)), profile);
                let found = json!([run["verdict"], run["doubts"], evidence["tracked_drift"]["changed_files"]]);
                let expected = match *profile == drifts {
                    true => json!(["failed", [], ["src/lib.rs", "src/new.rs"]]),
                    false => json!(["passed", [], []]),
                };
                assert_eq!(found, expected, "{profile}, {order:?}: {run:#}\n{evidence:#}");
                assert_eq!(evidence["measured"]["run_id"], run["id"]);
                let drift = &evidence["steps"][0]["drift"];
                assert_eq!(drift["method"], method, "{drift:#}");
                assert_eq!(
                    drift["changes"].as_array().map(Vec::len),
                    expected[2].as_array().map(Vec::len),
                    "{drift:#}"
                );
            }
        }
    }
    assert_eq!(repo.changes_seen_by_git(), [""; 0]);
    daemon.stop().exits(0);
}

/// Creates a repository with both changesets, and a profile for each skill of [`PARALLEL_SKILLS`], which waits until it
/// is released.
fn repo_with_parallel_skills(env: &TestEnvironment) -> Repo<'_> {
    let skills = PARALLEL_SKILLS.map(|(name, script)| {
        let waits = format!("trap '{script}; exit $?' USR1; sh -c 'sleep 300; :' $0-ready & wait");
        TestSkill::new(name, [TestStep::argv("it", &["sh", "-c", &waits, &format!("{}-{name}", env.marker())])])
    });
    let spec = TestSpec::new(skills);
    let repo = env.repo(&spec);
    let profiles = "  drifts: { include: [drifts] }\n  passes: { include: [passes] }";
    let text = spec.to_yaml(env.marker()).replace("  pr: { include: [drifts, passes] }", profiles);
    assert!(text.contains(profiles), "{text}");
    repo.write("spec/verification.yaml", text);
    repo.write(&format!("changes/{OTHER_CHANGESET}/00-meta.json"), "{}");
    repo.commit();
    repo
}

fn cancelled_while_draining(env: &TestEnvironment) {
    env.write_operator_config("[daemon]\ndrain_ms = 3600000\n");
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut daemon = env.start_ready_daemon();
    let id = submit_run(&daemon, &repo, &json!({ "changeset_id": CHANGESET }));
    wait_for_step(env, &mut daemon.process);
    daemon.process.signal(Signal::TERM);
    daemon.process.wait_for_stderr("no new runs");
    let cancelled = send_request(&env.socket_path(), "DELETE", &format!("/v1/runs/{id}"), None);
    assert_eq!(cancelled.status, 202, "{cancelled:?}");
    daemon.wait_for_exit().exits(0);
    let next = env.start_ready_daemon();
    let run = next.get(&format!("/v1/runs/{id}"));
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert!(run["cancelled_by"].as_str().is_some_and(|by| !by.contains("shutting down")), "{run:#}");
    complete_log(&next, &id);
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    next.stop().exits(0);
}

fn cancelled_at_start(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let mut cancelled_count = 0;
    with_health_probe(env, || {
        for n in 0..EARLY_CANCELLATIONS {
            let id = submit_run(&daemon, &repo, &json!({ "changeset_id": CHANGESET }));
            // Cancel immediately or after some requests.
            (0..n).for_each(|_| drop(daemon.get(&format!("/v1/runs/{id}"))));
            let cancelled = send_request(&env.socket_path(), "DELETE", &format!("/v1/runs/{id}"), None);
            assert!([200, 202].contains(&cancelled.status), "{cancelled:?}");
            let run = wait_for_end(&env.socket_path(), &id);
            complete_log(&daemon, &id);
            let last_run =
                || documents::read_json(&repo.changeset().join("05-status.json"))["verification"]["last_run"].clone();
            match run["verdict"].as_str() {
                Some("passed") => assert_on_record(&repo, &run),
                _ => {
                    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
                    let has_status = repo.changeset().join("05-status.json").exists();
                    assert!(
                        !has_status || last_run()["run_id"] != run["id"] || last_run()["outcome"] != "passed",
                        "{run:#}"
                    );
                    cancelled_count += 1;
                }
            }
        }
    });
    assert!(cancelled_count > 0, "none was cancelled in time");
    let run = wait_for_end(&env.socket_path(), &submit_run(&daemon, &repo, &json!({ "changeset_id": CHANGESET })));
    assert_eq!(run["verdict"], "passed", "{run:#}");
    daemon.stop().exits(0);
}
