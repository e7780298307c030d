//! Kills the daemon at each system call that writes: from its start, through a run of one quick step for a changeset,
//! to its exit. The next daemon must find all files intact, end the interrupted run, and continue to work.
//!
//! `PROCTOR_CRASH_POINTS` sets how many crash points are tried: a number, or `all`, which takes minutes.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{self, RawResponse};
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_level::campaign_size;
use crate::test_spec::{TestSpec, TestStep};
use crate::tracer::{KILLED_EXIT_CODE, TraceOptions};
use crate::{documents, machine};

pub(super) const CASES: &[CaseDefinition] =
    &[case("crash::the_daemon_is_killed_at_any_write", daemon_killed_at_any_write)
        .needs(&[Needs::Sandbox, Needs::Tracing])];

/// Number of crash points in `make test` and in `make test-long`, unless `PROCTOR_CRASH_POINTS` sets it.
const DEFAULT_CRASH_POINTS: [usize; 2] = [16, 40];
/// Number of crash points that are tried in parallel, because each one waits for the disk or for the exit of a
/// process.
const PARALLEL_CRASH_POINTS: usize = 4;
/// Time within which the processes of a killed daemon must be gone.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
const IDEMPOTENCY_HEADER: &str = "Idempotency-Key: one-and-the-same\r\n";

/// A crash point: the index of the call, whether half of its data is written, and whether the next daemon is killed
/// too.
#[derive(Debug, Clone, Copy)]
struct CrashPoint {
    call_index: usize,
    is_half_written: bool,
    kills_next_daemon: bool,
}

fn daemon_killed_at_any_write(env: &TestEnvironment) {
    let calls = CrashFixture::new(env).traced_calls();
    let writes = calls.iter().filter(|call| call.starts_with("write ") || call.starts_with("pwrite64 ")).count();
    assert!(calls.len() > 100 && writes > 20, "{calls:#?}");
    let points = choose_points(&calls);
    let (next, failed, killed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..PARALLEL_CRASH_POINTS {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match std::panic::catch_unwind(|| try_crash_point(*point)) {
                        Ok(was_killed) => drop(killed.fetch_add(usize::from(was_killed), Ordering::Relaxed)),
                        Err(_) => failed.lock().expect("no one panics here").push(*point),
                    }
                }
            });
        }
    });
    let (failed, killed) = (failed.into_inner().expect("no one panics here"), killed.into_inner());
    let describe =
        |point: &CrashPoint| format!("{point:?}: {}", calls.get(point.call_index - 1).map_or("", String::as_str));
    let failed: Vec<String> = failed.iter().map(describe).collect();
    println!("crash: {} calls, {} points tried, {killed} kills", calls.len(), points.len());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(killed * 10 > points.len() * 9, "{killed} kills at {} points", points.len());
}

/// Selects crash points, spread over all calls. At every third point, half of the data is written. After every second
/// point, the next daemon is killed too.
fn choose_points(calls: &[String]) -> Vec<CrashPoint> {
    let requested = requested_crash_points();
    let point = |call_index: usize, n: usize| CrashPoint {
        call_index,
        is_half_written: n.is_multiple_of(3),
        kills_next_daemon: n.is_multiple_of(2),
    };
    match requested.as_deref() {
        Some("all") => {
            let each = (1..=calls.len()).flat_map(|at| [(at, 1), (at, 3), (at, 2)]);
            each.map(|(at, n)| point(at, n)).collect()
        }
        count => {
            let default = campaign_size(DEFAULT_CRASH_POINTS[0], DEFAULT_CRASH_POINTS[1]);
            let count = count.and_then(|count| count.parse().ok()).unwrap_or(default).min(calls.len());
            (0..count).map(|n| point(1 + n * calls.len() / count, n)).collect()
        }
    }
}

/// Returns the requested number of crash points, or `all`.
pub(super) fn requested_crash_points() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the command line sets the duration of a campaign")]
    std::env::var("PROCTOR_CRASH_POINTS").ok()
}

/// The environment in which a daemon is killed.
struct CrashFixture<'e> {
    env: &'e TestEnvironment,
    repo: Repo<'e>,
}

/// The responses that a client received before the daemon was killed.
#[derive(Default)]
struct ClientView {
    /// The id of the accepted run.
    accepted_id: Option<String>,
    /// The run after its end.
    finished_run: Option<Value>,
}

fn try_crash_point(point: CrashPoint) -> bool {
    let env = TestEnvironment::new(crate::needs::Actor::Caller);
    let fixture = CrashFixture::new(&env);
    let (view, ended) = fixture.run_and_kill(point.call_index, point.is_half_written);
    let was_killed = ended.code == Some(KILLED_EXIT_CODE);
    assert!(was_killed || ended.code == Some(0), "{ended}");
    fixture.assert_files_intact();
    if point.kills_next_daemon {
        // The second daemon is killed too, while it recovers from the first crash.
        let report = fixture.call_list_path();
        let second = TraceOptions {
            kill_at: 1 + point.call_index % 60,
            tear_write: point.is_half_written,
            call_log: &report,
            traced_dir: env.root(),
        };
        let mut second = fixture.start(&second);
        second.wait_until(|| fixture.send_request("GET", "/healthz", None).is_some());
        second.signal_if_alive(Signal::KILL);
        drop(second.wait());
        fixture.assert_files_intact();
    }
    fixture.assert_next_daemon_recovers(&view);
    was_killed
}

impl<'e> CrashFixture<'e> {
    fn new(env: &'e TestEnvironment) -> Self {
        Self { env, repo: env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo said")])) }
    }

    fn call_list_path(&self) -> PathBuf {
        self.env.root().join("calls")
    }

    fn start(&self, trace: &TraceOptions<'_>) -> RunningProcess {
        let words = trace.to_arguments();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        RunningProcess::start(self.env.daemon_command_through(&words, &self.env.socket_path(), &self.env.state_dir()))
    }

    /// Sends a request to the daemon; returns `None` if the daemon has exited.
    fn send_request(&self, method: &str, path: &str, body: Option<&Value>) -> Option<RawResponse> {
        daemon::send_request_with_headers(&self.env.socket_path(), method, path, IDEMPOTENCY_HEADER, body).ok()
    }

    fn submission(&self) -> Value {
        json!({ "repo": self.repo.path(), "profile": "pr", "changeset_id": CHANGESET, "reuse": "never" })
    }

    /// Runs a daemon from start to exit with one run; it is killed at call `at`, unless that is 0.
    fn run_and_kill(&self, at: usize, torn: bool) -> (ClientView, FinishedProcess) {
        let report = self.call_list_path();
        let mut running =
            self.start(&TraceOptions { kill_at: at, tear_write: torn, call_log: &report, traced_dir: self.env.root() });
        running.wait_until(|| self.send_request("GET", "/healthz", None).is_some());
        let view = self.submit_and_wait();
        if view.finished_run.is_some() {
            let listed = std::fs::read_to_string(&report).expect("a report");
            let process = listed.lines().next().and_then(|pid| pid.parse().ok()).expect("a process");
            machine::send_signal_if_alive(process, Signal::TERM);
        }
        (view, running.wait())
    }

    /// Submits a run and waits for its end.
    fn submit_and_wait(&self) -> ClientView {
        let mut view = ClientView::default();
        let Some(answer) = self.send_request("POST", "/v1/runs", Some(&self.submission())) else { return view };
        assert_eq!(answer.status, 202, "{answer:?}");
        let id = answer.parse_json_body()["run"]["id"].as_str().expect("an id").to_owned();
        view.accepted_id = Some(id.clone());
        while view.finished_run.is_none() {
            let Some(answer) = self.send_request("GET", &format!("/v1/runs/{id}?wait=30s"), None) else { return view };
            assert_eq!(answer.status, 200, "{answer:?}");
            view.finished_run = Some(answer.parse_json_body()).filter(|run| run["state"] == "finished");
        }
        view
    }

    /// Returns the calls of a daemon that is not killed.
    fn traced_calls(&self) -> Vec<String> {
        let (view, ended) = self.run_and_kill(0, false);
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_eq!(view.finished_run.expect("an end")["verdict"], "passed");
        let root = self.env.root().display().to_string();
        let report = std::fs::read_to_string(self.call_list_path()).expect("a report");
        report.lines().skip(1).map(|line| line.replace(&root, "")).collect()
    }

    /// Checks that no process is left, and that the documents cite existing files.
    fn assert_files_intact(&self) {
        machine::wait_for_processes_to_exit(self.env.marker(), EXIT_TIMEOUT).expect("no process is left");
        documents::check_all_documents(self.env.root());
        // A reader of the status file must find it intact even without a daemon.
        let status = self.repo.changeset().join("05-status.json");
        assert!(!status.exists() || documents::read_json(&status).is_object());
    }

    /// Checks the next daemon: all runs have ended, earlier responses are still valid, and another run passes.
    fn assert_next_daemon_recovers(&self, view: &ClientView) {
        let next = self.env.start_ready_daemon();
        let runs = next.get("/v1/runs")["runs"].as_array().expect("runs").clone();
        assert!(runs.len() <= 1, "{runs:#?}");
        for run in &runs {
            assert_eq!(run["state"], "finished", "{run:#}");
            let id = run["id"].as_str().expect("an id");
            let full = next.get(&format!("/v1/runs/{id}"));
            assert_eq!((&full["verdict"], &full["exit_code"]), (&run["verdict"], &run["exit_code"]));
            match run["verdict"].as_str() {
                Some("passed") => assert_on_record(&self.repo, &full),
                Some("inconclusive") => assert_eq!(run["exit_code"], 130, "{full:#}"),
                other => panic!("{other:?}: {full:#}"),
            }
            assert!(view.accepted_id.as_deref().is_none_or(|accepted| accepted == id), "{full:#}");
            // A repetition of the same request returns this run.
            let repeated = self.send_request("POST", "/v1/runs", Some(&self.submission())).expect("an answer");
            assert_eq!((repeated.status, &repeated.parse_json_body()["run"]["id"]), (200, &run["id"]), "{repeated:?}");
        }
        if let Some(id) = &view.accepted_id {
            let run = next.get(&format!("/v1/runs/{id}"));
            assert!(
                view.finished_run.as_ref().is_none_or(|end| *end == run),
                "reported {:#?}, but it is {run:#}",
                view.finished_run
            );
        }
        let id = next.submit(self.repo.path());
        assert_eq!(next.wait_for_run(&id)["verdict"], "passed");
        let mut other = self.submission();
        other["max_tier"] = json!(1);
        let answer =
            daemon::send_request(&self.env.socket_path(), "POST", "/v1/runs", Some(&other)).expect("an answer");
        let id = answer.parse_json_body()["run"]["id"].as_str().expect("an id").to_owned();
        let run = next.wait_for_run(&id);
        assert_eq!(run["verdict"], "passed", "{run:#}");
        assert_on_record(&self.repo, &run);
        next.stop().exits(0);
        self.assert_no_leftovers();
    }

    /// Checks that no temporary file is left in the changeset or in the history.
    fn assert_no_leftovers(&self) {
        let dirs = [self.repo.changeset(), self.env.state_dir().join("history")];
        let all = dirs.iter().flat_map(|place| machine::walk(place));
        let left: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|ext| ext == "tmp")).collect();
        assert!(left.is_empty(), "{left:?}");
        let damaged = std::fs::read_dir(self.env.state_dir().join("history/damaged")).expect("a directory").count();
        assert_eq!(damaged, 0, "nothing was damaged");
    }
}

/// Asserts that the evidence cited by a run exists with the cited hashes.
#[track_caller]
pub(super) fn assert_on_record(repo: &Repo<'_>, run: &Value) {
    let dir = Path::new(run["evidence_dir"].as_str().expect("a directory"));
    let cited = run["evidence"].as_object().expect("documents");
    assert!(!cited.is_empty(), "{run:#}");
    for (file, sha256) in cited {
        let bytes = std::fs::read(dir.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(proctor_core::text::digest::Sha256Hex::digest(&bytes).to_string(), *sha256, "{file}");
    }
    assert_eq!(repo.last_run()["run_id"], run["id"]);
}
