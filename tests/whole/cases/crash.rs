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

use crate::daemon::{self, Answer};
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{Case, Needs, case};
use crate::process::{Finished, Running};
use crate::spec::{Spec, Step};
use crate::tracer::{KILLED, Trace};
use crate::{documents, machine};

pub(super) const CASES: &[Case] =
    &[case("crash::the_daemon_is_killed_at_any_write", campaign).needs(&[Needs::Sandbox, Needs::Tracing])];

/// Number of crash points, unless `PROCTOR_CRASH_POINTS` sets it.
const SAMPLE: usize = 40;
/// Number of crash points that are tried in parallel, because each one waits for the disk or for the exit of a
/// process.
const AT_ONCE: usize = 4;
/// Time within which the processes of a killed daemon must be gone.
const GONE: Duration = Duration::from_secs(10);
const KEY: &str = "Idempotency-Key: one-and-the-same\r\n";

/// A crash point: the index of the call, whether half of its data is written, and whether the next daemon is killed
/// too.
#[derive(Debug, Clone, Copy)]
struct Point {
    at: usize,
    torn: bool,
    again: bool,
}

fn campaign(env: &TestEnvironment) {
    let calls = Ground::new(env).calls();
    let writes = calls.iter().filter(|call| call.starts_with("write ") || call.starts_with("pwrite64 ")).count();
    assert!(calls.len() > 100 && writes > 20, "{calls:#?}");
    let points = chosen(&calls);
    let (next, failed, killed) = (AtomicUsize::new(0), Mutex::new(Vec::new()), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match std::panic::catch_unwind(|| try_one(*point)) {
                        Ok(was_killed) => drop(killed.fetch_add(usize::from(was_killed), Ordering::Relaxed)),
                        Err(_) => failed.lock().expect("no one panics here").push(*point),
                    }
                }
            });
        }
    });
    let (failed, killed) = (failed.into_inner().expect("no one panics here"), killed.into_inner());
    let named = |point: &Point| format!("{point:?}: {}", calls.get(point.at - 1).map_or("", String::as_str));
    let failed: Vec<String> = failed.iter().map(named).collect();
    println!("crash: {} calls, {} points tried, {killed} kills", calls.len(), points.len());
    assert!(failed.is_empty(), "{failed:#?}");
    assert!(killed * 10 > points.len() * 9, "{killed} kills at {} points", points.len());
}

/// Selects crash points, spread over all calls. At every third one, half of the data is written. After every second
/// one, the next daemon is killed too.
fn chosen(calls: &[String]) -> Vec<Point> {
    let asked = points_asked_for();
    let point = |at: usize, n: usize| Point { at, torn: n.is_multiple_of(3), again: n.is_multiple_of(2) };
    match asked.as_deref() {
        Some("all") => {
            let each = (1..=calls.len()).flat_map(|at| [(at, 1), (at, 3), (at, 2)]);
            each.map(|(at, n)| point(at, n)).collect()
        }
        count => {
            let count = count.and_then(|count| count.parse().ok()).unwrap_or(SAMPLE).min(calls.len());
            (0..count).map(|n| point(1 + n * calls.len() / count, n)).collect()
        }
    }
}

/// Returns the requested number of crash points, or `all`.
pub(super) fn points_asked_for() -> Option<String> {
    #[expect(clippy::disallowed_methods, reason = "the command line sets the duration of a campaign")]
    std::env::var("PROCTOR_CRASH_POINTS").ok()
}

/// The environment in which a daemon is killed.
struct Ground<'e> {
    env: &'e TestEnvironment,
    repo: Repo<'e>,
}

/// The responses that a client received before the daemon was killed.
#[derive(Default)]
struct Told {
    /// The id of the accepted run.
    id: Option<String>,
    /// The run after its end.
    end: Option<Value>,
}

fn try_one(point: Point) -> bool {
    let env = TestEnvironment::new(crate::needs::Actor::Caller);
    let ground = Ground::new(&env);
    let (told, ended) = ground.killed_at(point.at, point.torn);
    let was_killed = ended.code == Some(KILLED);
    assert!(was_killed || ended.code == Some(0), "{ended}");
    ground.is_whole();
    if point.again {
        // The second daemon is killed too, while it recovers from the first crash.
        let report = ground.report();
        let second = Trace { at: 1 + point.at % 60, torn: point.torn, report: &report, below: env.root() };
        let mut second = ground.start(&second);
        second.wait_until(|| ground.ask("GET", "/healthz", None).is_some());
        second.signal_if_there(Signal::KILL);
        drop(second.wait());
        ground.is_whole();
    }
    ground.goes_on(&told);
    was_killed
}

impl<'e> Ground<'e> {
    fn new(env: &'e TestEnvironment) -> Self {
        Self { env, repo: env.repo(&Spec::of_steps([Step::sh("it", "echo said")])) }
    }

    fn report(&self) -> PathBuf {
        self.env.root().join("calls")
    }

    fn start(&self, trace: &Trace<'_>) -> Running {
        let words = trace.words();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Running::start(self.env.daemon_through(&words, &self.env.socket(), &self.env.state()))
    }

    /// Sends a request to the daemon; returns `None` if it is gone.
    fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> Option<Answer> {
        daemon::ask_with(&self.env.socket(), method, path, KEY, body).ok()
    }

    fn submission(&self) -> Value {
        json!({ "repo": self.repo.path(), "profile": "pr", "changeset_id": CHANGESET, "reuse": "never" })
    }

    /// Runs a daemon from start to exit with one run; it is killed at call `at`, unless that is 0.
    fn killed_at(&self, at: usize, torn: bool) -> (Told, Finished) {
        let report = self.report();
        let mut running = self.start(&Trace { at, torn, report: &report, below: self.env.root() });
        running.wait_until(|| self.ask("GET", "/healthz", None).is_some());
        let told = self.client();
        if told.end.is_some() {
            let listed = std::fs::read_to_string(&report).expect("a report");
            let process = listed.lines().next().and_then(|pid| pid.parse().ok()).expect("a process");
            machine::signal_if_there(process, Signal::TERM);
        }
        (told, running.wait())
    }

    /// Submits a run and waits for its end.
    fn client(&self) -> Told {
        let mut told = Told::default();
        let Some(answer) = self.ask("POST", "/v1/runs", Some(&self.submission())) else { return told };
        assert_eq!(answer.code, 202, "{answer:?}");
        let id = answer.json()["run"]["id"].as_str().expect("an id").to_owned();
        told.id = Some(id.clone());
        while told.end.is_none() {
            let Some(answer) = self.ask("GET", &format!("/v1/runs/{id}?wait=30s"), None) else { return told };
            assert_eq!(answer.code, 200, "{answer:?}");
            told.end = Some(answer.json()).filter(|run| run["state"] == "finished");
        }
        told
    }

    /// Returns the calls of a daemon that is not killed.
    fn calls(&self) -> Vec<String> {
        let (told, ended) = self.killed_at(0, false);
        assert_eq!(ended.code, Some(0), "{ended}");
        assert_eq!(told.end.expect("an end")["verdict"], "passed");
        let root = self.env.root().display().to_string();
        let report = std::fs::read_to_string(self.report()).expect("a report");
        report.lines().skip(1).map(|line| line.replace(&root, "")).collect()
    }

    /// Checks that no process is left, and that the documents cite existing files.
    fn is_whole(&self) {
        machine::wait_until_gone(self.env.marker(), GONE).expect("no process is left");
        documents::check_all(self.env.root());
        // A reader of the status file must find it intact even without a daemon.
        let status = self.repo.changeset().join("05-status.json");
        assert!(!status.exists() || documents::read(&status).is_object());
    }

    /// Checks the next daemon: all runs have ended, earlier responses still hold, and another run passes.
    fn goes_on(&self, told: &Told) {
        let next = self.env.daemon();
        let runs = next.get("/v1/runs")["runs"].as_array().expect("runs").clone();
        assert!(runs.len() <= 1, "{runs:#?}");
        for run in &runs {
            assert_eq!(run["state"], "finished", "{run:#}");
            let id = run["id"].as_str().expect("an id");
            let full = next.get(&format!("/v1/runs/{id}"));
            assert_eq!((&full["verdict"], &full["exit_code"]), (&run["verdict"], &run["exit_code"]));
            match run["verdict"].as_str() {
                Some("passed") => is_on_record(&self.repo, &full),
                Some("inconclusive") => assert_eq!(run["exit_code"], 130, "{full:#}"),
                other => panic!("{other:?}: {full:#}"),
            }
            assert!(told.id.as_deref().is_none_or(|told| told == id), "{full:#}");
            // A repetition of the same request returns this run.
            let again = self.ask("POST", "/v1/runs", Some(&self.submission())).expect("an answer");
            assert_eq!((again.code, &again.json()["run"]["id"]), (200, &run["id"]), "{again:?}");
        }
        if let Some(id) = &told.id {
            let run = next.get(&format!("/v1/runs/{id}"));
            assert!(told.end.as_ref().is_none_or(|end| *end == run), "reported {:#?}, but it is {run:#}", told.end);
        }
        let id = next.submit(self.repo.path());
        assert_eq!(next.finished(&id)["verdict"], "passed");
        let mut other = self.submission();
        other["max_tier"] = json!(1);
        let answer = daemon::ask(&self.env.socket(), "POST", "/v1/runs", Some(&other)).expect("an answer");
        let id = answer.json()["run"]["id"].as_str().expect("an id").to_owned();
        let run = next.finished(&id);
        assert_eq!(run["verdict"], "passed", "{run:#}");
        is_on_record(&self.repo, &run);
        next.end().exits(0);
        self.nothing_is_left_over();
    }

    /// Checks that no temporary file is left in the changeset or in the history.
    fn nothing_is_left_over(&self) {
        let places = [self.repo.changeset(), self.env.state().join("history")];
        let all = places.iter().flat_map(|place| machine::walk(place));
        let left: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|ext| ext == "tmp")).collect();
        assert!(left.is_empty(), "{left:?}");
        let damaged = std::fs::read_dir(self.env.state().join("history/damaged")).expect("a directory").count();
        assert_eq!(damaged, 0, "nothing was damaged");
    }
}

/// Asserts that the evidence cited by a run exists with the cited hashes.
#[track_caller]
pub(super) fn is_on_record(repo: &Repo<'_>, run: &Value) {
    let dir = Path::new(run["evidence_dir"].as_str().expect("a directory"));
    let cited = run["evidence"].as_object().expect("documents");
    assert!(!cited.is_empty(), "{run:#}");
    for (file, sha256) in cited {
        let bytes = std::fs::read(dir.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert_eq!(proctor_core::digest::Sha256Hex::of(&bytes).as_str(), sha256, "{file}");
    }
    assert_eq!(repo.last_run()["run_id"], run["id"]);
}
