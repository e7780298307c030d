//! Clients who want the same place at once, or one thing and its opposite: each is told the truth, and the
//! place has one run's record, whole.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::abuse::{log, meanwhile, submit};
use super::crash::is_on_record;
use super::http::{id_of, submission};
use crate::daemon::{self, Answer};
use crate::documents;
use crate::environment::{CHANGESET, TestEnvironment, wait_for_step, waiting_step};
use crate::needs::{Case, case};
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    case("contention::two_clients_at_once_have_one_changeset_one_after_the_other", at_once),
    case("contention::a_run_is_cancelled_while_the_daemon_drains", while_draining),
    case("contention::a_run_that_begins_is_cancelled_at_any_moment", while_beginning),
];

/// How many runs each of the two asks for.
const EACH: usize = 8;
/// How many runs are cancelled when they have hardly begun.
const BEGINNINGS: usize = 30;

fn ask(socket: &Path, method: &str, path: &str, body: Option<&Value>) -> Answer {
    daemon::ask(socket, method, path, body).expect("an answer")
}

fn ended(socket: &Path, id: &str) -> Value {
    let run = ask(socket, "GET", &format!("/v1/runs/{id}?wait=50s"), None).json();
    assert_eq!(run["state"], "finished", "{run:#}");
    run
}

fn at_once(env: &TestEnvironment) {
    env.configure("[daemon]\nmax_runs = 4\n");
    let repo = env.repo(&Spec::of_script("echo said"));
    let daemon = env.daemon();
    // What one of them asks for never meets what the other does.
    let asked = [json!({ "fail_fast": true }), json!({ "fail_fast": false })].map(|more| {
        let mut asked = submission(repo.path(), &more);
        asked["changeset_id"] = json!(CHANGESET);
        asked
    });
    let socket = env.socket();
    let client = |asked: &Value| -> Vec<Value> {
        let one = |_| {
            let answer = ask(&socket, "POST", "/v1/runs", Some(asked));
            assert!([200, 202].contains(&answer.code), "{answer:?}");
            ended(&socket, &id_of(&answer.json()))
        };
        (0..EACH).map(one).collect()
    };
    let mut runs: Vec<Value> = meanwhile(env, || {
        std::thread::scope(|scope| {
            let clients = asked.each_ref().map(|asked| scope.spawn(|| client(asked)));
            clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
        })
    });
    assert!(runs.iter().all(|run| run["verdict"] == "passed"), "{runs:#?}");
    runs.sort_by_key(|run| run["started_at"].as_str().map(str::to_owned));
    assert_eq!(runs.len(), 2 * EACH);
    for pair in runs.windows(2) {
        assert_ne!(pair[0]["id"], pair[1]["id"]);
        assert!(pair[0]["finished_at"].as_str() <= pair[1]["started_at"].as_str(), "they took turns: {pair:#?}");
    }
    runs.iter().for_each(|run| drop(log(&daemon, run["id"].as_str().expect("an id"))));
    is_on_record(&repo, runs.last().expect("runs"));
    documents::check_all(repo.path());
    daemon.end().exits(0);
}

fn while_draining(env: &TestEnvironment) {
    env.configure("[daemon]\ndrain_ms = 3600000\n");
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut daemon = env.daemon();
    let id = submit(&daemon, &repo, &json!({ "changeset_id": CHANGESET }));
    wait_for_step(env, &mut daemon.running);
    daemon.running.signal(Signal::TERM);
    daemon.running.wait_for_message("no new runs");
    let cancelled = ask(&env.socket(), "DELETE", &format!("/v1/runs/{id}"), None);
    assert_eq!(cancelled.code, 202, "{cancelled:?}");
    daemon.ended().exits(0);
    let next = env.daemon();
    let run = next.get(&format!("/v1/runs/{id}"));
    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
    assert!(run["cancelled_by"].as_str().is_some_and(|by| !by.contains("ending")), "{run:#}");
    log(&next, &id);
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    next.end().exits(0);
}

fn while_beginning(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let mut cut = 0;
    meanwhile(env, || {
        for n in 0..BEGINNINGS {
            let id = submit(&daemon, &repo, &json!({ "changeset_id": CHANGESET }));
            // Now at once, now after some questions.
            (0..n).for_each(|_| drop(daemon.get(&format!("/v1/runs/{id}"))));
            let cancelled = ask(&env.socket(), "DELETE", &format!("/v1/runs/{id}"), None);
            assert!([200, 202].contains(&cancelled.code), "{cancelled:?}");
            let run = ended(&env.socket(), &id);
            log(&daemon, &id);
            let last = || documents::read(&repo.changeset().join("05-status.json"))["verification"]["last_run"].clone();
            match run["verdict"].as_str() {
                Some("passed") => is_on_record(&repo, &run),
                _ => {
                    assert_eq!((&run["verdict"], &run["exit_code"]), (&json!("inconclusive"), &json!(130)), "{run:#}");
                    let is_there = repo.changeset().join("05-status.json").exists();
                    assert!(!is_there || last()["run_id"] != run["id"] || last()["outcome"] != "passed", "{run:#}");
                    cut += 1;
                }
            }
        }
    });
    assert!(cut > 0, "none was cancelled in time");
    let run = ended(&env.socket(), &submit(&daemon, &repo, &json!({ "changeset_id": CHANGESET })));
    assert_eq!(run["verdict"], "passed", "{run:#}");
    daemon.end().exits(0);
}
