//! Tests a disk that fails, is full or has become read-only under a running daemon, at each call that writes or
//! reads. A reported pass must be on record, and any other result must name the cause and a remedy. Another client is
//! served in the meantime. After the cause is gone, the next run passes.
//!
//! `PROCTOR_CRASH_POINTS=all` tries every call, which takes minutes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::{Value, json};

use super::abuse::meanwhile;
use super::crash::{is_on_record, points_asked_for};
use super::http::{demand, id_of, submission};
use crate::daemon::{Answer, Daemon, LISTENS};
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{Case, Needs, case};
use crate::process::{Finished, Running};
use crate::spec::{Spec, Step};
use crate::tracer::{Fault, Faults, KILLED, Listed, Trace};
use crate::{documents, machine};

const TRACED: &[Needs] = &[Needs::Sandbox, Needs::Tracing];

pub(super) const CASES: &[Case] = &[
    case("faults::a_disk_that_fails_for_a_kind_of_call_passes_nothing_off_the_record", by_kind).needs(TRACED),
    case("faults::a_disk_that_fails_at_any_call_passes_nothing_off_the_record", by_number).needs(TRACED),
    case("faults::a_disk_that_is_full_at_any_byte_passes_nothing_off_the_record", by_byte).needs(TRACED),
    case("faults::what_cannot_be_read_is_said_and_not_guessed", unreadable).needs(TRACED),
    case("faults::a_run_without_descriptors_passes_nothing_off_the_record", descriptors),
    case("faults::a_failure_that_cannot_be_recorded_leaves_no_earlier_pass", unrecorded_failure).needs(TRACED),
    case("faults::a_run_that_is_killed_after_a_failure_leaves_no_earlier_pass", killed_failure).needs(TRACED),
];

/// Number of calls that are tried, unless all are requested.
const SAMPLE: usize = 10;
/// Number of points at which the disk becomes full, for each place, unless all are requested.
const ROOMS: u64 = 3;
/// Number of such points if all are requested.
const ALL_ROOMS: u64 = 60;
/// Possible messages for a disk that fails, is read-only, or full.
const SAID: [&str; 6] = [
    "Input/output error",
    "Read-only file system",
    "No space left on device",
    // SQLite's messages.
    "disk I/O error",
    "disk is full",
    "readonly database",
];
/// Possible remedies in the messages.
const ADVICE: [&str; 2] = ["can be written", "make room"];
/// Parts of the paths that a run writes; the first match counts.
const PLACES: [&str; 9] = [
    "/history/events",
    "/history/index.sqlite",
    "/history",
    "/objects",
    "/attestations",
    "/snapshots",
    "/verify",
    "05-status.json",
    "/changes/",
];

/// A repository, and a daemon whose disk can fail.
struct Ground<'e> {
    env: &'e TestEnvironment,
    repo: Repo<'e>,
    report: PathBuf,
    daemon: Daemon<'e>,
    /// All accepted runs, after their end.
    told: Vec<Value>,
    refused: usize,
    met: usize,
}

/// Affects no calls, and only lists them.
const LISTING: Fault<'_> = Fault { errno: "EIO", kind: "*", place: "/", from: usize::MAX, count: 0, room: 0 };
/// Affects all calls.
const FAILING: Fault<'_> = Fault { from: 1, count: usize::MAX, ..LISTING };

impl<'e> Ground<'e> {
    fn new(env: &'e TestEnvironment) -> Self {
        let repo = env.repo(&Spec::of_steps([Step::sh("it", "echo said")]));
        let (report, daemon) = (env.root().join("calls"), traced(env));
        let mut ground = Self { env, repo, report, daemon, told: Vec::new(), refused: 0, met: 0 };
        // The first run creates the files that only a first run creates.
        ground.passes();
        ground
    }

    fn faults(&self) -> Faults<'_> {
        Faults { report: &self.report, below: self.env.root() }
    }

    /// Submits a run for the changeset and waits for its end; returns the response as an error if the run was
    /// refused.
    fn run(&self) -> Result<Value, Answer> {
        let asked = submission(self.repo.path(), &json!({ "changeset_id": CHANGESET }));
        let answer = self.daemon.ask("POST", "/v1/runs", Some(&asked));
        match answer.code {
            202 => Ok(self.daemon.finished(&id_of(&answer.json()))),
            _ => Err(answer),
        }
    }

    /// Asserts that a run passes without a fault.
    #[track_caller]
    fn passes(&mut self) {
        let run = self.run().unwrap_or_else(|answer| panic!("the cause has gone: {answer:?}"));
        assert_eq!(run["verdict"], "passed", "the cause has gone: {run:#}");
        is_on_record(&self.repo, &run);
        self.told.push(run);
    }

    /// Returns the calls with which a run writes.
    fn calls(&mut self) -> Vec<Listed> {
        self.faults().set(LISTING);
        self.passes();
        let calls = self.faults().clear();
        assert!(calls.len() > 60 && calls.iter().all(|call| !call.met), "{calls:#?}");
        calls
    }

    /// Checks a run under a fault, and one after the fault.
    fn under(&mut self, fault: Fault<'_>) {
        self.faults().set(fault);
        let told = meanwhile(self.env, || self.run());
        let met: Vec<Listed> = self.faults().clear().into_iter().filter(|call| call.met).collect();
        self.met += usize::from(!met.is_empty());
        match told {
            Err(answer) => self.is_refused(&answer, fault),
            Ok(run) => self.is_sound(run, fault, &met),
        }
        self.passes();
    }

    fn is_refused(&mut self, answer: &Answer, fault: Fault<'_>) {
        let problem = answer.json();
        demand("Problem", &problem);
        assert_eq!(answer.code, 503, "{fault}: {answer:?}");
        assert!(
            problem["detail"].as_str().is_some_and(|why| SAID.iter().any(|said| why.contains(said))),
            "{fault}: {problem:#}"
        );
        assert!(problem["hint"].as_str().is_some_and(|hint| ADVICE.iter().any(|advice| hint.contains(advice))));
        self.refused += 1;
    }

    /// Asserts that the result of a run agrees with the record in its changeset.
    fn is_sound(&mut self, run: Value, fault: Fault<'_>, met: &[Listed]) {
        let last = self.repo.last_run();
        match run["verdict"].as_str() {
            Some("passed") => is_on_record(&self.repo, &run),
            Some("inconclusive") => {
                let why = json!([run["problem"], run["doubts"], run["reason"]]).to_string();
                assert!(SAID.iter().any(|said| why.contains(said)), "{fault}: {run:#}");
                // A problem that prevents the start of a step is reported by the step.
                let is_advised = ADVICE.iter().any(|advice| why.contains(advice)) || why.contains("did not run");
                assert!(is_advised, "{fault}: {run:#}");
                if last["run_id"] == run["id"] && last["outcome"] == "passed" {
                    // All documents were written, then the log failed, and after that the status could not be
                    // updated.
                    assert!(why.contains("could not be logged"), "{fault}: {run:#}");
                    let cannot = met.iter().any(|call| call.path.contains("/changes/"));
                    assert!(cannot, "{fault}: it is reported as inconclusive, but its status says that it passed");
                    documents::check_all(self.repo.path());
                }
            }
            _ => panic!("{fault}: neither passed nor inconclusive: {run:#}"),
        }
        self.told.push(run);
    }

    /// Stops the daemon, and checks that the next one reports the same results.
    fn over(self) {
        let Self { env, repo, report, daemon, told, refused, met } = self;
        let passed = told.iter().filter(|run| run["verdict"] == "passed").count();
        println!("faults: {met} met, {refused} refused, {} inconclusive, {passed} passed", told.len() - passed);
        end(daemon);
        drop(report);
        let next = env.daemon();
        for run in &told {
            assert_eq!(next.get(&format!("/v1/runs/{}", run["id"].as_str().expect("an id"))), *run);
        }
        next.end().exits(0);
        let damaged = std::fs::read_dir(env.state().join("history/damaged")).expect("a directory").count();
        assert_eq!(damaged, 0, "a log is damaged");
        let left: Vec<_> = machine::walk(&repo.changeset());
        assert!(left.iter().all(|path| path.extension().is_none_or(|ext| ext != "tmp")), "{left:?}");
    }
}

/// Starts a daemon whose disk can fail.
fn traced(env: &TestEnvironment) -> Daemon<'_> {
    let report = env.root().join("calls");
    let words = Faults { report: &report, below: env.root() }.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut running = Running::start(env.daemon_through(&words, &env.socket(), &env.state())).patient(LONG);
    running.wait_for_message(LISTENS);
    Daemon::of(env, running)
}

/// Time within which the processes of a killed run must be gone.
const GONE: std::time::Duration = std::time::Duration::from_secs(10);

/// Time limit for all attempts of a case.
const LONG: std::time::Duration = std::time::Duration::from_secs(3_600);

/// Returns the daemon's process id.
fn process(daemon: &Daemon<'_>) -> u32 {
    daemon.get("/healthz")["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process")
}

/// Stops a daemon that runs under a tracer.
fn end(daemon: Daemon<'_>) {
    machine::signal(process(&daemon), Signal::TERM);
    daemon.ended().exits(0);
}

fn place_of(path: &str) -> Option<&'static str> {
    PLACES.into_iter().find(|place| path.contains(place))
}

fn all_are_asked_for() -> bool {
    points_asked_for().as_deref() == Some("all")
}

/// Returns up to `most` indices, spread over `count`.
fn spread(count: usize, most: usize) -> impl Iterator<Item = usize> {
    let most = if all_are_asked_for() { count } else { most.min(count) };
    (0..most).map(move |n| n * count / most)
}

fn by_kind(env: &TestEnvironment) {
    let mut ground = Ground::new(env);
    let calls = ground.calls();
    let kinds: BTreeSet<(&str, &str)> =
        calls.iter().filter_map(|call| Some((call.kind.as_str(), place_of(&call.path)?))).collect();
    println!("faults: {} calls, {kinds:?}", calls.len());
    for (kind, place) in &kinds {
        ground.under(Fault { kind, place, ..FAILING });
        // The last such call of the run, when everything before it has succeeded.
        let from = calls.iter().filter(|call| call.kind == *kind && call.path.contains(place)).count();
        ground.under(Fault { kind, place, from, count: 1, ..FAILING });
    }
    assert!(ground.met > kinds.len(), "{} of {kinds:?}", ground.met);
    for errno in ["EIO", "EROFS", "ENOSPC"] {
        for place in ["/state/", "/changes/", "/"] {
            ground.under(Fault { errno, place, ..FAILING });
        }
    }
    assert!(ground.refused > 0 && ground.told.iter().any(|run| run["verdict"] == "inconclusive"));
    ground.over();
}

fn by_number(env: &TestEnvironment) {
    let mut ground = Ground::new(env);
    let count = ground.calls().len();
    for at in spread(count, SAMPLE) {
        ground.under(Fault { from: at + 1, count: 1, ..FAILING });
        ground.under(Fault { from: at + 1, ..FAILING });
    }
    assert!(ground.met > 0);
    ground.over();
}

fn by_byte(env: &TestEnvironment) {
    let mut ground = Ground::new(env);
    let calls = ground.calls();
    let rooms = if all_are_asked_for() { ALL_ROOMS } else { ROOMS };
    for place in PLACES {
        let written: u64 = calls.iter().filter(|call| place_of(&call.path) == Some(place)).map(|call| call.bytes).sum();
        // `| 1` avoids zero, and byte counts at which a write ends.
        for n in (0..rooms).filter(|_| written > 0) {
            let room = (n * written / rooms) | 1;
            ground.under(Fault { errno: "ENOSPC", kind: "write", place, room, ..FAILING });
        }
    }
    assert!(ground.met > 10, "{}", ground.met);
    ground.over();
}

fn unreadable(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "echo said")]));
    let first = env.daemon();
    let asked = submission(repo.path(), &json!({ "changeset_id": CHANGESET }));
    let id = id_of(&first.ask("POST", "/v1/runs", Some(&asked)).json());
    assert_eq!(first.finished(&id)["verdict"], "passed");
    first.end().exits(0);
    // The second daemon must read from the disk what the first one has in memory.
    let daemon = traced(env);
    let report = env.root().join("calls");
    let faults = Faults { report: &report, below: env.root() };
    let gate = json!({ "repo": repo.path(), "profile": "pr", "changeset_id": CHANGESET });
    let run = |rest: &str| format!("/v1/runs/{id}{rest}");
    let questions = [
        ("/history/events", "GET", run(""), None),
        ("/objects", "GET", run("/steps/0/stdout"), None),
        ("/verify/", "GET", run("/evidence/verify.it.json"), None),
        ("05-status.json", "POST", "/v1/gate".to_owned(), Some(&gate)),
        ("/attestations", "POST", "/v1/gate".to_owned(), Some(&gate)),
        ("/spec/verification.yaml", "POST", "/v1/runs".to_owned(), Some(&asked)),
    ];
    for (place, method, path, body) in &questions {
        let what = format!("{method} {path} without {place}");
        faults.set(Fault { kind: "read", place, ..FAILING });
        let answer = meanwhile(env, || daemon.ask(method, path, *body));
        assert!(faults.clear().iter().any(|call| call.met), "{what}: nothing was read: {answer:?}");
        let answered = answer.json();
        if answer.code == 200 {
            assert_eq!(answered["pass"], false, "{what}: {answered:#}");
        } else {
            demand("Problem", &answered);
            assert!((500..600).contains(&answer.code) || answer.code == 422, "{what}: {answer:?}");
            assert!(answered["hint"].is_string(), "{what}: {answered:#}");
        }
        assert!(answered.to_string().contains("Input/output error"), "{what}: {answered:#}");
        let again = daemon.ask(method, path, *body);
        assert!([200, 202].contains(&again.code), "{what}, the cause has gone: {again:?}");
        if again.code == 202 {
            assert_eq!(daemon.finished(&id_of(&again.json()))["verdict"], "passed", "{what}, the cause has gone");
        }
    }
    assert_eq!(daemon.ask("POST", "/v1/gate", Some(&gate)).json()["pass"], true);
    // The stream has started by then, and is cut off without an end event.
    faults.set(Fault { kind: "read", place: "/history/events", ..FAILING });
    let broken = meanwhile(env, || daemon.ask("GET", &run("/events"), None));
    assert!(faults.clear().iter().any(|call| call.met) && !broken.body.contains("run_finished"), "{broken:?}");
    assert!(daemon.ask("GET", &run("/events"), None).body.contains("run_finished"));
    end(daemon);
}

/// Numbers of descriptors that a run may open.
const DESCRIPTORS: [u64; 12] = [2, 4, 6, 8, 11, 14, 18, 24, 32, 48, 64, 96];

fn descriptors(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "echo said")]));
    let daemon = env.daemon();
    let asked = submission(repo.path(), &json!({ "changeset_id": CHANGESET }));
    let passes = || {
        let answer = daemon.ask("POST", "/v1/runs", Some(&asked));
        assert_eq!(answer.code, 202, "{answer:?}");
        let run = daemon.finished(&id_of(&answer.json()));
        assert_eq!(run["verdict"], "passed", "{run:#}");
        is_on_record(&repo, &run);
    };
    passes();
    let pid = process(&daemon);
    let kernel_pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let limit = |limit: Rlimit| prlimit(kernel_pid, Resource::Nofile, limit).expect("our own child");
    // The daemon inherits its limit from the test process.
    let all = getrlimit(Resource::Nofile);
    let (mut stopped, mut passed) = (0, 0);
    for more in DESCRIPTORS {
        let used = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("ours").count() as u64;
        let before = limit(Rlimit { current: Some(used + more), ..all });
        let told = without_descriptors(&daemon, &asked);
        limit(before);
        match told {
            Some(run) if run["verdict"] == "passed" => {
                is_on_record(&repo, &run);
                passed += 1;
            }
            told => {
                let verdict = told.as_ref().map(|run| &run["verdict"]);
                assert!(verdict.is_none_or(|verdict| *verdict == "inconclusive"), "{told:#?}");
                stopped += 1;
            }
        }
        passes();
    }
    println!("faults: {stopped} runs without descriptors, {passed} with enough");
    assert!(stopped > 0 && passed > 0);
    daemon.end().exits(0);
}

/// Submits a run, and makes requests of another client between the requests about the run. Only one of them is
/// connected at a time.
fn without_descriptors(daemon: &Daemon<'_>, asked: &Value) -> Option<Value> {
    let answer = daemon.ask("POST", "/v1/runs", Some(asked));
    if answer.code != 202 {
        demand("Problem", &answer.json());
        assert!(answer.json()["hint"].is_string(), "{answer:?}");
        return None;
    }
    let path = format!("/v1/runs/{}", id_of(&answer.json()));
    loop {
        demand("Health", &daemon.get("/healthz"));
        let run = daemon.get(&path);
        if run["state"] == "finished" {
            return Some(run);
        }
    }
}

/// A file ignored by git that makes the step of [`judged_repo`] fail.
const FLAG: &str = "flag";

fn judged_repo(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "! test -e flag")]));
    repo.write(".gitignore", format!("{FLAG}\n"));
    repo.commit();
    repo
}

/// Arguments for a run with a changeset and for one without.
const WAYS: [&[&str]; 2] = [&["--profile", "pr", "--changeset", CHANGESET], &["--profile", "pr"]];

/// Passes on a tree, then starts a run through `wrapper` in which the step fails.
fn fails_after_a_pass(repo: &Repo<'_>, env: &TestEnvironment, way: &[&str], wrapper: &[&str]) -> Finished {
    let _ = std::fs::remove_file(repo.file(FLAG));
    repo.run_bare(way).exits(0);
    repo.proctor(&[&["gate"], way].concat()).exits(0);
    repo.write(FLAG, "");
    let words = [&["run", "--format", "jsonl"], way].concat();
    env.start_through(repo.path(), wrapper, &words).patient(LONG).wait()
}

fn unrecorded_failure(env: &TestEnvironment) {
    let repo = judged_repo(env);
    let report = env.root().join("calls");
    let faults = Faults { report: &report, below: env.root() };
    let words = faults.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for way in WAYS {
        faults.set(LISTING);
        fails_after_a_pass(&repo, env, way, &words).exits(1);
        let count = faults.clear().len();
        let (mut failed, mut unrecorded) = (0, 0);
        for at in spread(count, SAMPLE) {
            faults.set(Fault { errno: "ENOSPC", from: at + 1, ..FAILING });
            let finished = fails_after_a_pass(&repo, env, way, &words);
            let is_met = faults.clear().iter().any(|call| call.met);
            let gate = repo.proctor(&[&["gate"], way].concat());
            if finished.code == Some(1) {
                failed += 1;
                unrecorded += usize::from(is_met);
                assert_ne!(
                    gate.code,
                    Some(0),
                    "from call {at}: the run failed, and the gate passes\n{finished}\n{gate}"
                );
            } else {
                assert_eq!(finished.code, Some(5), "{finished}");
            }
        }
        println!("faults: {count} calls, {failed} failed, {unrecorded} of them without room for their record");
        assert!(unrecorded > 0, "no failing run lacked room for its record");
    }
}

fn killed_failure(env: &TestEnvironment) {
    let repo = judged_repo(env);
    let report = env.root().join("calls");
    let trace = |at| Trace { at, torn: false, report: &report, below: env.root() }.words();
    for way in WAYS {
        let run = |at: usize| {
            let words = trace(at);
            fails_after_a_pass(&repo, env, way, &words.iter().map(String::as_str).collect::<Vec<_>>())
        };
        run(0).exits(1);
        let count = std::fs::read_to_string(&report).expect("a list of calls").lines().count() - 1;
        let mut killed = 0;
        for at in spread(count, SAMPLE) {
            let finished = run(at + 1);
            machine::wait_until_gone(env.marker(), GONE).expect("nothing is left");
            let gate = repo.proctor(&[&["gate"], way].concat());
            if finished.stdout.contains("\"step_finished\"") {
                killed += usize::from(finished.code == Some(KILLED));
                assert_ne!(gate.code, Some(0), "killed at call {at}: a step failed, and the gate passes\n{gate}");
            }
        }
        assert!(killed > 0, "no run was killed after its step had failed");
    }
}
