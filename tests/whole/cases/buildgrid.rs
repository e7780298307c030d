//! Tests steps on the workers of BuildGrid, a server that keeps its queue and the index of its store in PostgreSQL. The
//! worker is a script of the tests, because BuildGrid contains none.

use std::path::{Path, PathBuf};
use std::time::Duration;

use proctor_remote::messages::{ActionResult, Digest};
use proctor_remote::{BlobDigest, Client, ClientConfig, Endpoint, RemoteError};
use rustix::process::Signal;
use serde_json::Value;

use super::remote_executor::{
    TRUSTED, USER, drifting_step, endless_step, is_remote, many_steps, require_drift, require_many_passes,
    require_timeout, slow_step,
};
use crate::database_server::{Certificates, DatabaseServer};
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::schemas::workspace_root;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

const BGD: &str = "buildgrid/bin/bgd";
const PYTHON: &str = "buildgrid/bin/python";
const NEEDS: &[Needs] = &[
    Needs::Sandbox,
    Needs::Client(&[BGD, "--help"]),
    Needs::Postgres,
    Needs::Program("openssl"),
    Needs::Program("setpriv"),
];

pub(super) const CASES: &[CaseDefinition] = &[
    buildgrid_case("buildgrid::many_steps_run_in_four_slots", many_steps_run),
    buildgrid_case("buildgrid::drift_on_a_worker_is_drift", drift_is_drift),
    buildgrid_case("buildgrid::timeout_holds_on_a_worker", timeout_holds),
    buildgrid_case("buildgrid::interrupt_ends_the_step_on_the_worker", interrupt_ends_step),
    buildgrid_case("buildgrid::failure_is_not_stored", failure_is_not_stored),
    buildgrid_case("buildgrid::result_of_another_request_does_not_count", replayed_result_does_not_count),
    buildgrid_case("buildgrid::step_continues_when_another_server_takes_over", another_server_takes_over),
    buildgrid_case(
        "buildgrid::step_continues_when_another_server_replaces_a_stopped_one",
        another_server_replaces_stopped_one,
    ),
    buildgrid_case("buildgrid::server_that_ends_during_a_step_is_inconclusive", ending_server_is_inconclusive),
    buildgrid_case("buildgrid::another_worker_executes_the_step_of_a_killed_one", another_worker_executes_step),
    buildgrid_case("buildgrid::step_of_a_killed_worker_is_inconclusive", step_of_killed_worker_is_inconclusive),
    buildgrid_case("buildgrid::failing_worker_is_inconclusive", failing_worker_is_inconclusive),
    buildgrid_case("buildgrid::step_without_a_worker_is_inconclusive", step_without_worker_is_inconclusive),
    buildgrid_case("buildgrid::refused_request_is_inconclusive", refused_request_is_inconclusive),
    buildgrid_case("buildgrid::inputs_lost_between_runs_are_uploaded_again", inputs_lost_between_runs),
    buildgrid_case("buildgrid::inputs_lost_in_the_queue_are_uploaded_again", inputs_lost_in_queue),
];

const fn buildgrid_case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case(name, run).needs(NEEDS).long()
}

/// The name of the instance.
const INSTANCE: &str = "main";
/// Number of actions that a worker executes at once.
const SLOTS: &str = "4";
/// Time within which a worker must end a cancelled step.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(60);

/// A repository, and a cluster: a database, and the first of its servers.
struct Cluster<'e> {
    env: &'e TestEnvironment,
    repo: Repo<'e>,
    database: DatabaseServer,
    server: RunningProcess,
}

impl<'e> Cluster<'e> {
    /// Starts a cluster without workers.
    fn new(env: &'e TestEnvironment, spec: &TestSpec) -> Self {
        let database = DatabaseServer::start_postgres(env, &Certificates::create(env), "SELECT 1");
        let url = database.url().replacen("postgres://", "postgresql+psycopg2://", 1);
        let mut migration = machine::client_command(BGD);
        migration.args(["migrate", "apply", &url]);
        RunningProcess::start(migration).wait().exits(0);
        for name in ["one", "two"] {
            machine::write(&env.root().join(format!("{name}.yaml")), server_config(env, name, &url));
        }
        let server = start_server(env, "one");
        let cluster = Self { env, repo: env.repo(spec), database, server };
        cluster.use_server("one");
        cluster.configure(&format!("instance = '{INSTANCE}'\n"), USER);
        cluster
    }

    fn configure(&self, instance: &str, platform: &str) {
        let socket = endpoint(self.env).display().to_string();
        let server = format!("[remote_executor]\nendpoint = 'unix:{socket}'\nmode = 'remote'\n{instance}");
        self.env.configure_operator(&format!("{server}{TRUSTED}{platform}"));
    }

    /// Makes new connections reach this server.
    fn use_server(&self, name: &str) {
        let link = self.env.root().join("new-link");
        std::os::unix::fs::symlink(socket(self.env, name), &link).expect("a link of the test");
        std::fs::rename(link, endpoint(self.env)).expect("a link of the test");
    }

    /// Starts a worker. It connects to the server that [`Self::use_server`] has selected.
    fn start_worker(&self, name: &str, mode: &[&str]) -> RunningProcess {
        let mut command = machine::client_command(PYTHON);
        command.arg(workspace_root().join("tests/whole/buildgrid_worker.py"));
        command.args([&format!("unix:{}", endpoint(self.env).display()), INSTANCE]);
        command.arg(self.env.root().join(name)).args([SLOTS, name]).args(mode);
        RunningProcess::start(command)
    }

    fn run(&self) -> FinishedProcess {
        self.repo.run_with(&["--no-daemon", "--verbose", "--max-tier", "2"])
    }

    fn start_run(&self) -> RunningProcess {
        self.repo.start(&["--no-daemon", "--verbose", "--max-tier", "2"])
    }

    /// Removes all blobs of the store, as a clean-up of the server does.
    fn remove_blobs(&self) {
        self.database.query_postgres("DELETE FROM index");
        let files = machine::walk(&self.env.root().join("cas")).into_iter().filter(|path| path.is_file());
        files.for_each(|path| std::fs::remove_file(path).expect("removed"));
    }

    /// Requires that the only step was not executed to its end.
    fn require_inconclusive(&self) {
        let step = self.repo.step("it");
        assert!(step["outcome"] == "inconclusive" && step["termination"]["fault"] == "remote", "{step:#}");
    }
}

fn one_skill(step: TestStep) -> TestSpec {
    TestSpec::new([TestSkill::new("verify.it", [step]).determinism("D1")])
}

/// Returns the path to which clients connect: a link to the socket of a server.
fn endpoint(env: &TestEnvironment) -> PathBuf {
    env.root().join("cluster.sock")
}

fn socket(env: &TestEnvironment, name: &str) -> PathBuf {
    env.root().join(format!("{name}.sock"))
}

/// Starts a server, and waits until it accepts connections.
fn start_server(env: &TestEnvironment, name: &str) -> RunningProcess {
    let mut command = machine::client_command(BGD);
    command.args(["server", "start"]).arg(env.root().join(format!("{name}.yaml")));
    let mut server = RunningProcess::start(command);
    let socket = socket(env, name);
    server.wait_until(|| std::os::unix::net::UnixStream::connect(&socket).is_ok());
    server
}

/// Returns the configuration of a server. All servers share the database and the store. BuildGrid cannot keep an action
/// cache in PostgreSQL.
fn server_config(env: &TestEnvironment, name: &str, database: &str) -> String {
    let quoted = |path: &Path| Value::from(path.display().to_string());
    let (socket, store) = (socket(env, name), quoted(&env.root().join("cas")));
    let address = Value::from(format!("unix:{}", socket.display()));
    format!(
        "server:
  - !channel {{ address: {address}, insecure-mode: true }}
connections:
  - !sql-connection &sql {{ connection-string: {database:?} }}
storages:
  - !disk-storage &disk {{ path: {store} }}
  - !sql-index &store {{ storage: *disk, sql: *sql }}
caches:
  - !lru-action-cache &results
    storage: *store
    max-cached-refs: 100
    allow-updates: true
    cache-failed-actions: true
schedulers:
  - !sql-scheduler &scheduler
    sql: *sql
    storage: *store
    action-cache: *results
    property-set: !dynamic-property-set
      match-property-keys: [pool]
      wildcard-property-keys: [unixUID]
    poll-interval: 0.1
    bot-poll-interval: 0.1
    bot-session-keepalive-timeout: 15
    session-expiry-timer-interval: 0.2
    assigners:
      - !priority-age-assigner {{ count: 1, interval: 0.1, failure-backoff: 0.1 }}
instances:
  - name: {INSTANCE}
    services:
      - !action-cache {{ cache: *results }}
      - !execution {{ scheduler: *scheduler, operation-stream-keepalive-timeout: 1 }}
      - !cas {{ storage: *store }}
      - !bytestream {{ storage: *store }}
thread-pool-size: 100
"
    )
}

/// A step that writes `continued` and passes when a process with the returned word is killed.
fn waiting_step(env: &TestEnvironment) -> (TestStep, String) {
    let word = format!("{}-waiting", env.marker());
    let script = format!("python3 -c 'import signal; signal.pause()' {word} || echo continued");
    (TestStep::sh("it", &script), word)
}

fn many_steps_run(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &many_steps());
    let _worker = cluster.start_worker("worker", &[]);
    let doctor = cluster.repo.proctor(&["doctor", "--no-daemon"]).exits(0).all_output();
    assert!(doctor.contains("steps run on workers only; workers are trusted"), "{doctor}");
    cluster.run().exits(0);
    require_many_passes(&cluster.repo);
}

fn drift_is_drift(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(drifting_step()));
    let _worker = cluster.start_worker("worker", &[]);
    cluster.run().exits(3);
    require_drift(&cluster.repo.step("it"));
}

fn timeout_holds(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(slow_step()));
    let _worker = cluster.start_worker("worker", &[]);
    cluster.run().exits(4);
    require_timeout(&cluster.repo.step("it"));
}

fn interrupt_ends_step(env: &TestEnvironment) {
    let (step, word) = endless_step(env);
    let cluster = Cluster::new(env, &one_skill(step));
    let _worker = cluster.start_worker("worker", &[]);
    let mut run = cluster.start_run();
    run.wait_for_process(&word);
    run.signal(Signal::INT);
    // The server reports the cancellation to the worker after its answer to the client.
    machine::wait_for_processes_to_exit(env.marker(), CANCEL_TIMEOUT).expect("the worker ends the step");
    env.finish(run).exits(130);
    assert_eq!(cluster.repo.step("it")["outcome"], "cancelled");
    assert_eq!(cluster.database.query_postgres("SELECT cancelled FROM jobs"), "t\n");
}

/// A server may also store the results of failed actions.
fn failure_is_not_stored(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(TestStep::sh("it", "exit 7")));
    let _worker = cluster.start_worker("worker", &[]);
    for _ in 0..2 {
        cluster.run().exits(1);
        let step = cluster.repo.step("it");
        assert!(is_remote(&step) && step["outcome"] == "failed" && step["exit_code"] == 7, "{step:#}");
        let action = action_of(&step);
        let with_result = with_client(env, async |client| {
            let before = client.action_result(&action, &[]).await?;
            // Another client claims that the action passes. This does not count for the next run.
            client.store_action_result(&action, ActionResult::default()).await?;
            Ok((before, client.action_result(&action, &[]).await?))
        });
        assert_eq!(with_result, (None, Some(ActionResult::default())));
    }
    assert_eq!(cluster.database.query_postgres("SELECT count(*) FROM jobs WHERE do_not_cache"), "2\n");
}

fn action_of(step: &Value) -> BlobDigest {
    let (hash, bytes) = step["executor"]["action"].as_str().and_then(|text| text.split_once('/')).expect("a digest");
    let digest = Digest { hash: hash.to_owned(), size_bytes: bytes.parse().expect("a size") };
    BlobDigest::from_message(Some(&digest)).expect("a digest")
}

/// Sends requests to the server as another client.
fn with_client<T>(env: &TestEnvironment, requests: impl AsyncFnOnce(Client) -> Result<T, RemoteError>) -> T {
    let endpoint: Endpoint = format!("unix:{}", endpoint(env).display()).parse().expect("an address");
    let config = ClientConfig { instance: INSTANCE.to_owned(), ..ClientConfig::new(endpoint) };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(requests(Client::new(config).expect("a client"))).expect("answers")
}

/// A worker that reports an earlier result, as if it had stored that result.
fn replayed_result_does_not_count(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(TestStep::sh("it", "true")));
    let _worker = cluster.start_worker("worker", &["replay"]);
    cluster.run().exits(0);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("belongs to another request"), "{run}");
    cluster.require_inconclusive();
}

fn another_server_takes_over(env: &TestEnvironment) {
    replace_server(env, Signal::KILL);
}

fn another_server_replaces_stopped_one(env: &TestEnvironment) {
    replace_server(env, Signal::TERM);
}

/// Ends a server during a step. The job is in the database, so that another server knows the operation.
fn replace_server(env: &TestEnvironment, signal: Signal) {
    let (step, word) = waiting_step(env);
    let cluster = Cluster::new(env, &one_skill(step));
    let _worker = cluster.start_worker("worker", &[]);
    let mut run = cluster.start_run();
    let process = run.wait_for_process(&word);
    let _other = start_server(env, "two");
    cluster.use_server("two");
    cluster.server.signal(signal);
    machine::send_signal(process, Signal::KILL);
    env.finish(run).exits(0);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step) && step["stdout_preview"] == "continued\n", "{step:#}");
    assert_eq!(cluster.database.query_postgres("SELECT count(*), max(n_tries) FROM jobs"), "1|1\n", "one execution");
}

fn ending_server_is_inconclusive(env: &TestEnvironment) {
    let (step, word) = waiting_step(env);
    let mut cluster = Cluster::new(env, &one_skill(step));
    let worker = cluster.start_worker("worker", &[]);
    let mut run = cluster.start_run();
    run.wait_for_process(&word);
    cluster.server.signal(Signal::KILL);
    run.wait_until(|| false);
    worker.signal(Signal::KILL);
    machine::wait_for_processes_to_exit(env.marker(), CANCEL_TIMEOUT).expect("a step ends with its worker");
    let run = env.finish(run).exits(5).all_output();
    assert!(run.contains("cannot be reached"), "{run}");
    cluster.require_inconclusive();
    // The server continues with the database of the killed one.
    cluster.server = start_server(env, "one");
    let _worker = cluster.start_worker("other-worker", &[]);
    let mut run = cluster.start_run();
    // The server may also have started the job of the first run again.
    run.wait_until(|| {
        let process = machine::process_with_argument(&word, 0);
        process.into_iter().for_each(|process| machine::send_signal_if_alive(process, Signal::KILL));
        false
    });
    env.finish(run).exits(0);
}

fn another_worker_executes_step(env: &TestEnvironment) {
    let (step, word) = waiting_step(env);
    let cluster = Cluster::new(env, &one_skill(step));
    let worker = cluster.start_worker("worker", &[]);
    let mut run = cluster.start_run();
    let first = run.wait_for_process(&word);
    worker.signal(Signal::KILL);
    let _other = cluster.start_worker("other-worker", &[]);
    let second = run.wait_for_other_process(&word, first);
    machine::send_signal(second, Signal::KILL);
    env.finish(run).exits(0);
    let step = cluster.repo.step("it");
    assert!(is_remote(&step) && step["stdout_preview"] == "continued\n", "{step:#}");
    assert_eq!(cluster.database.query_postgres("SELECT n_tries FROM jobs"), "2\n", "the server repeats the job");
}

/// The server returns the action to the queue, but no other worker takes it.
fn step_of_killed_worker_is_inconclusive(env: &TestEnvironment) {
    let (step, word) = endless_step(env);
    let cluster = Cluster::new(env, &one_skill(step));
    cluster.configure(&format!("instance = '{INSTANCE}'\nqueue_timeout_ms = 10000\n"), USER);
    let mut worker = cluster.start_worker("worker", &[]);
    worker.wait_until(|| cluster.database.query_postgres("SELECT count(*) FROM bots") == "1\n");
    let mut run = cluster.start_run();
    run.wait_for_process(&word);
    worker.signal(Signal::KILL);
    let run = env.finish(run).exits(5).all_output();
    assert!(run.contains("did not finish the wait for a worker"), "{run}");
    cluster.require_inconclusive();
    assert_eq!(cluster.database.query_postgres("SELECT n_tries, cancelled FROM jobs"), "2|t\n");
}

/// The server gives each action to the worker several times, and then reports an error.
fn failing_worker_is_inconclusive(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(TestStep::sh("it", "true")));
    let _worker = cluster.start_worker("worker", &["unavailable"]);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("did not execute it"), "{run}");
    cluster.require_inconclusive();
    let jobs = cluster.database.query_postgres("SELECT count(*), min(n_tries), min(status_code) FROM jobs");
    assert_eq!(jobs, "4|5|14\n", "the client starts the action again, at most as often as any request");
}

fn step_without_worker_is_inconclusive(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(TestStep::sh("it", "true")));
    cluster.configure(&format!("instance = '{INSTANCE}'\nqueue_timeout_ms = 500\n"), USER);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("did not finish the wait for a worker"), "{run}");
    cluster.require_inconclusive();
    assert_eq!(cluster.database.query_postgres("SELECT cancelled FROM jobs"), "t\n");
}

fn refused_request_is_inconclusive(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(TestStep::sh("it", "true")));
    let _worker = cluster.start_worker("worker", &[]);
    cluster.configure(&format!("instance = '{INSTANCE}'\n"), "platform = { OS = 'none' }\n");
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("Unregistered platform property"), "{run}");
    cluster.require_inconclusive();
    cluster.configure("instance = 'other'\n", USER);
    let run = cluster.run().exits(5).all_output();
    assert!(run.contains("other"), "{run}");
    cluster.require_inconclusive();
}

fn inputs_lost_between_runs(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(TestStep::sh("it", "cat README.md")));
    let _worker = cluster.start_worker("worker", &[]);
    cluster.run().exits(0);
    cluster.remove_blobs();
    cluster.run().exits(0);
    assert!(is_remote(&cluster.repo.step("it")));
}

/// The worker reports that blobs are missing, and the client uploads them for a second job.
fn inputs_lost_in_queue(env: &TestEnvironment) {
    let cluster = Cluster::new(env, &one_skill(TestStep::sh("it", "cat README.md")));
    let mut run = cluster.start_run();
    run.wait_until(|| cluster.database.query_postgres("SELECT count(*) FROM jobs") == "1\n");
    cluster.remove_blobs();
    let _worker = cluster.start_worker("worker", &[]);
    env.finish(run).exits(0);
    assert!(is_remote(&cluster.repo.step("it")));
    let statuses = cluster.database.query_postgres("SELECT status_code FROM jobs ORDER BY create_timestamp");
    assert_eq!(statuses, "9\n0\n", "a failed precondition, and a result");
}
