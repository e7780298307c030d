//! Tests clients with conflicting requests for the same changeset: each gets a correct result, and the changeset
//! contains the complete record of one run.

use std::path::Path;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::abuse::{log, meanwhile, submit};
use super::crash::is_on_record;
use super::degrading::lacking;
use super::http::{id_of, submission};
use crate::daemon::{self, Answer, Daemon, LISTENS};
use crate::environment::{CHANGESET, Repo, TestEnvironment, wait_for_step, waiting_step};
use crate::needs::{Case, NEEDS_PYTHON, case};
use crate::process::Running;
use crate::spec::{Skill, Spec, Step};
use crate::{documents, machine};

pub(super) const CASES: &[Case] = &[
    case("contention::two_clients_at_once_have_one_changeset_one_after_the_other", at_once),
    case("contention::changesets_beside_each_other_have_each_its_own_drift", layers_apart),
    case("contention::changesets_beside_each_other_have_each_its_own_drift_in_copies", copies_apart)
        .needs(NEEDS_PYTHON),
    case("contention::a_run_is_cancelled_while_the_daemon_drains", while_draining),
    case("contention::a_run_that_begins_is_cancelled_at_any_moment", while_beginning),
];

/// Number of runs that each of the two clients submits.
const EACH: usize = 8;
/// Number of runs that are cancelled right after their start.
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
    // The two clients' requests differ, so they are never combined into one run.
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

fn layers_apart(env: &TestEnvironment) {
    apart(env, &[], "layer");
}

/// Without overlays, a step gets a copy of the tree, which is read again to detect changes.
fn copies_apart(env: &TestEnvironment) {
    apart(env, &lacking(&["fsconfig:1@0=EINVAL"]), "rehash");
}

/// A second changeset.
const OTHER_CHANGESET: &str = "010_y";
/// The skills of two parallel runs, and what each does when it is released.
const BESIDE: [(&str, &str); 2] =
    [("drifts", "echo mine >> src/lib.rs; echo mine > src/new.rs"), ("passes", "! grep -q mine src/lib.rs")];

/// Two runs for different changesets of one repository are active at the same time. The first one to end writes its
/// evidence to the worktree in which the other's changes are detected; neither may report changes of the other.
fn apart(env: &TestEnvironment, wrapper: &[&str], method: &str) {
    env.configure("[daemon]\nmax_runs = 2\n");
    let repo = drifts_and_passes(env);
    let mut running = Running::start(env.daemon_through(wrapper, &env.socket(), &env.state()));
    running.wait_for_message(LISTENS);
    let mut daemon = Daemon::of(env, running);
    let [drifts, passes] = BESIDE.map(|(name, _)| name);
    for [drifter, other] in [[CHANGESET, OTHER_CHANGESET], [OTHER_CHANGESET, CHANGESET]] {
        for order in [[drifts, passes], [passes, drifts]] {
            let changeset_of = |profile: &str| if profile == drifts { drifter } else { other };
            let under_way = order.map(|profile| {
                let asked =
                    json!({ "profile": profile, "changeset_id": changeset_of(profile), "sandbox": "best_effort" });
                let id = submit(&daemon, &repo, &asked);
                daemon.running.wait_for_process(&format!("{}-{profile}-ready", env.marker()));
                (profile, id, daemon.running.wait_for_process(&format!("{}-{profile}", env.marker())))
            });
            let waits = daemon.get(&format!("/v1/runs/{}", under_way[1].1));
            assert_eq!(waits["state"], "running", "beside the first: {waits:#}");
            for (profile, id, step) in &under_way {
                machine::signal(*step, Signal::USR1);
                let run = ended(&env.socket(), id);
                let evidence = documents::skill(&repo.file("changes").join(changeset_of(profile)), profile);
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
    daemon.end().exits(0);
}

/// Creates a repository with both changesets, and a profile for each skill of [`BESIDE`], which waits until it is
/// released.
fn drifts_and_passes(env: &TestEnvironment) -> Repo<'_> {
    let skills = BESIDE.map(|(name, script)| {
        let waits = format!("trap '{script}; exit $?' USR1; sh -c 'sleep 300; :' $0-ready & wait");
        Skill::new(name, [Step::argv("it", &["sh", "-c", &waits, &format!("{}-{name}", env.marker())])])
    });
    let spec = Spec::new(skills);
    let repo = env.repo(&spec);
    let profiles = "  drifts: { include: [drifts] }\n  passes: { include: [passes] }";
    let text = spec.text(env.marker()).replace("  pr: { include: [drifts, passes] }", profiles);
    assert!(text.contains(profiles), "{text}");
    repo.write("spec/verification.yaml", text);
    repo.write(&format!("changes/{OTHER_CHANGESET}/00-meta.json"), "{}");
    repo.commit();
    repo
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
    assert!(run["cancelled_by"].as_str().is_some_and(|by| !by.contains("shutting down")), "{run:#}");
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
            // Cancel immediately or after some requests.
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
