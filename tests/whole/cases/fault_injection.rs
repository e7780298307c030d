//! Tests a disk that fails, is full or has become read-only under a running daemon, at each call that writes or reads.
//! A reported pass must be recorded, and any other result must name the cause and a remedy. Another client is served in
//! the meantime. After the cause is removed, the next run passes.
//!
//! `PROCTOR_CRASH_POINTS=all` tries every call, which takes minutes.

use std::collections::BTreeSet;
use std::path::PathBuf;

use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, prlimit};
use serde_json::{Value, json};

use super::crash::{assert_on_record, requested_crash_points};
use super::hostile_clients::with_health_probe;
use super::http::{assert_matches_schema, run_request, submitted_run_id};
use crate::daemon::{READY_MESSAGE, RawResponse, TestDaemon};
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_level::campaign_size;
use crate::test_spec::{TestSpec, TestStep};
use crate::tracer::{FaultInjector, InjectedFault, KILLED_EXIT_CODE, MatchedCall, TraceOptions};
use crate::{documents, machine};

const NEEDS_TRACING: &[Needs] = &[Needs::Sandbox, Needs::Tracing];

pub(super) const CASES: &[CaseDefinition] = &[
    case("fault_injection::disk_error_for_a_kind_of_call_leaves_no_unrecorded_pass", fails_by_kind)
        .needs(NEEDS_TRACING),
    case("fault_injection::disk_error_at_any_call_leaves_no_unrecorded_pass", fails_by_call).needs(NEEDS_TRACING),
    case("fault_injection::full_disk_at_any_byte_leaves_no_unrecorded_pass", full_at_any_byte).needs(NEEDS_TRACING),
    case("fault_injection::unreadable_files_are_reported", unreadable_files).needs(NEEDS_TRACING),
    case("fault_injection::run_without_descriptors_leaves_no_unrecorded_pass", descriptor_limits),
    case("fault_injection::failure_that_cannot_be_recorded_revokes_the_earlier_pass", unrecorded_failure_revokes_pass)
        .needs(NEEDS_TRACING),
    case("fault_injection::run_killed_after_a_failure_revokes_the_earlier_pass", killed_run_revokes_pass)
        .needs(NEEDS_TRACING),
];

/// Number of calls that are tried in `make test` and in `make test-long`, unless all are requested.
const SAMPLE_CALLS: [usize; 2] = [4, 10];
/// Number of calls that are tried in a run whose step fails, unless all are requested. Fewer may all be before the end of
/// the step.
const CALLS_WITH_FAILURE: usize = 10;
/// Number of kinds of calls that `make test` tries; `make test-long` tries all.
const SAMPLE_KINDS: usize = 8;
/// Number of points at which the disk becomes full, for each place, in `make test` and in `make test-long`, unless all
/// are requested.
const FULL_DISK_POINTS: [u64; 2] = [2, 3];
/// Number of such points if all are requested.
const ALL_FULL_DISK_POINTS: u64 = 60;
/// Error messages for a disk that fails, is read-only or is full.
const DISK_ERROR_MESSAGES: [&str; 6] = [
    "Input/output error",
    "Read-only file system",
    "No space left on device",
    // SQLite's messages.
    "disk I/O error",
    "disk is full",
    "readonly database",
];
/// Possible remedies in the messages.
const REMEDIES: [&str; 2] = ["writable", "free space"];
/// Parts of the paths that a run writes; the first match counts.
const WRITTEN_PATHS: [&str; 9] = [
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
struct FaultFixture<'e> {
    env: &'e TestEnvironment,
    repo: Repo<'e>,
    call_list: PathBuf,
    daemon: TestDaemon<'e>,
    /// All accepted runs, after their end.
    finished_runs: Vec<Value>,
    refused_count: usize,
    faulted_count: usize,
}

/// Affects no calls, and only lists them.
const LIST_ONLY: InjectedFault<'_> =
    InjectedFault { errno: "EIO", kind: "*", path_part: "/", first_call: usize::MAX, call_count: 0, writable_bytes: 0 };
/// Affects all calls.
const FAIL_ALL: InjectedFault<'_> = InjectedFault { first_call: 1, call_count: usize::MAX, ..LIST_ONLY };

impl<'e> FaultFixture<'e> {
    fn new(env: &'e TestEnvironment) -> Self {
        let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo said")]));
        let (report, daemon) = (env.root().join("calls"), start_traced_daemon(env));
        let mut fixture = Self {
            env,
            repo,
            call_list: report,
            daemon,
            finished_runs: Vec::new(),
            refused_count: 0,
            faulted_count: 0,
        };
        // The first run creates the files that only a first run creates.
        fixture.run_without_fault();
        fixture
    }

    fn fault_control(&self) -> FaultInjector<'_> {
        FaultInjector { call_log: &self.call_list, traced_dir: self.env.root() }
    }

    /// Submits a run for the changeset and waits for its end; returns the response as an error if the run was
    /// refused.
    fn run(&self) -> Result<Value, RawResponse> {
        let request = run_request(self.repo.path(), &json!({ "changeset_id": CHANGESET, "no_cache": true }));
        let answer = self.daemon.request("POST", "/v1/runs", Some(&request));
        match answer.status {
            202 => Ok(self.daemon.wait_for_run(&submitted_run_id(&answer.parse_json_body()))),
            _ => Err(answer),
        }
    }

    /// Asserts that a run passes without a fault.
    #[track_caller]
    fn run_without_fault(&mut self) {
        let run = self.run().unwrap_or_else(|answer| panic!("the cause has gone: {answer:?}"));
        assert_eq!(run["verdict"], "passed", "the cause has gone: {run:#}");
        assert_on_record(&self.repo, &run);
        self.finished_runs.push(run);
    }

    /// Returns the calls with which a run writes.
    fn list_calls(&mut self) -> Vec<MatchedCall> {
        self.fault_control().set_fault(LIST_ONLY);
        self.run_without_fault();
        let calls = self.fault_control().clear_fault();
        assert!(calls.len() > 60 && calls.iter().all(|call| !call.is_affected), "{calls:#?}");
        calls
    }

    /// Checks a run under a fault, and one after the fault.
    fn run_with_fault(&mut self, fault: InjectedFault<'_>) {
        self.fault_control().set_fault(fault);
        let result = with_health_probe(self.env, || self.run());
        let failed_calls: Vec<MatchedCall> =
            self.fault_control().clear_fault().into_iter().filter(|call| call.is_affected).collect();
        self.faulted_count += usize::from(!failed_calls.is_empty());
        match result {
            Err(answer) => self.assert_refusal(&answer, fault),
            Ok(run) => self.assert_result_matches_record(run, fault, &failed_calls),
        }
        self.run_without_fault();
    }

    fn assert_refusal(&mut self, answer: &RawResponse, fault: InjectedFault<'_>) {
        let problem = answer.parse_json_body();
        assert_matches_schema("Problem", &problem);
        assert_eq!(answer.status, 503, "{fault}: {answer:?}");
        assert!(
            problem["detail"]
                .as_str()
                .is_some_and(|why| DISK_ERROR_MESSAGES.iter().any(|message| why.contains(message))),
            "{fault}: {problem:#}"
        );
        assert!(problem["hint"].as_str().is_some_and(|hint| REMEDIES.iter().any(|advice| hint.contains(advice))));
        self.refused_count += 1;
    }

    /// Asserts that the result of a run agrees with the record in its changeset.
    fn assert_result_matches_record(&mut self, run: Value, fault: InjectedFault<'_>, failed_calls: &[MatchedCall]) {
        let last = self.repo.last_run();
        match run["verdict"].as_str() {
            Some("passed") => assert_on_record(&self.repo, &run),
            Some("inconclusive") => {
                let why = json!([run["problem"], run["doubts"], run["reason"]]).to_string();
                assert!(DISK_ERROR_MESSAGES.iter().any(|message| why.contains(message)), "{fault}: {run:#}");
                // A problem that prevents the start of a step is reported by the step.
                let is_advised = REMEDIES.iter().any(|advice| why.contains(advice)) || why.contains("did not run");
                assert!(is_advised, "{fault}: {run:#}");
                if last["run_id"] == run["id"] && last["outcome"] == "passed" {
                    // All documents were written, then the log failed, and after that the status could not be
                    // updated.
                    assert!(why.contains("could not be logged"), "{fault}: {run:#}");
                    let cannot = failed_calls.iter().any(|call| call.path.contains("/changes/"));
                    assert!(cannot, "{fault}: it is reported as inconclusive, but its status says that it passed");
                    documents::check_all_documents(self.repo.path());
                }
            }
            _ => panic!("{fault}: neither passed nor inconclusive: {run:#}"),
        }
        self.finished_runs.push(run);
    }

    /// Stops the daemon, and checks that the next one reports the same results.
    fn finish(self) {
        let Self {
            env,
            repo,
            call_list: report,
            daemon,
            finished_runs: runs,
            refused_count: refused,
            faulted_count: met,
        } = self;
        let passed = runs.iter().filter(|run| run["verdict"] == "passed").count();
        println!("faults: {met} met, {refused} refused, {} inconclusive, {passed} passed", runs.len() - passed);
        end_traced_daemon(daemon);
        drop(report);
        let next = env.start_ready_daemon();
        for run in &runs {
            assert_eq!(next.get(&format!("/v1/runs/{}", run["id"].as_str().expect("an id"))), *run);
        }
        next.stop().exits(0);
        let damaged = std::fs::read_dir(env.state_dir().join("history/damaged")).expect("a directory").count();
        assert_eq!(damaged, 0, "a log is damaged");
        let left: Vec<_> = machine::walk(&repo.changeset());
        assert!(left.iter().all(|path| path.extension().is_none_or(|ext| ext != "tmp")), "{left:?}");
    }
}

/// Starts a daemon whose disk can fail.
fn start_traced_daemon(env: &TestEnvironment) -> TestDaemon<'_> {
    let report = env.root().join("calls");
    let words = FaultInjector { call_log: &report, traced_dir: env.root() }.to_arguments();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut running = RunningProcess::start(env.daemon_command_through(&words, &env.socket_path(), &env.state_dir()))
        .with_extended_timeout(CASE_TIMEOUT);
    running.wait_for_stderr(READY_MESSAGE);
    TestDaemon::from_process(env, running)
}

/// Time within which the processes of a killed run must be gone.
const EXIT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Time limit for all attempts of a case.
const CASE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(3_600);

/// Returns the daemon's process id.
fn daemon_pid(daemon: &TestDaemon<'_>) -> u32 {
    daemon.get("/healthz")["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok()).expect("a process")
}

/// Stops a daemon that runs under a tracer.
fn end_traced_daemon(daemon: TestDaemon<'_>) {
    machine::send_signal(daemon_pid(&daemon), Signal::TERM);
    daemon.wait_for_exit().exits(0);
}

fn written_path_of(path: &str) -> Option<&'static str> {
    WRITTEN_PATHS.into_iter().find(|place| path.contains(place))
}

fn all_points_requested() -> bool {
    requested_crash_points().as_deref() == Some("all")
}

/// Returns up to `max_count` indices spread over `count`, or all if all are requested.
fn spread_indices(count: usize, max_count: usize) -> impl Iterator<Item = usize> {
    let most = if all_points_requested() { count } else { max_count.min(count) };
    (0..most).map(move |n| n * count / most)
}

fn fails_by_kind(env: &TestEnvironment) {
    let mut fixture = FaultFixture::new(env);
    let calls = fixture.list_calls();
    let kinds: BTreeSet<(&str, &str)> =
        calls.iter().filter_map(|call| Some((call.kind.as_str(), written_path_of(&call.path)?))).collect();
    println!("faults: {} calls, {kinds:?}", calls.len());
    let kinds: Vec<(&str, &str)> = kinds.into_iter().collect();
    let kinds: Vec<(&str, &str)> = match campaign_size(SAMPLE_KINDS, kinds.len()) {
        sample if sample < kinds.len() => (0..sample).map(|n| kinds[n * kinds.len() / sample]).collect(),
        _ => kinds,
    };
    for (kind, place) in &kinds {
        fixture.run_with_fault(InjectedFault { kind, path_part: place, ..FAIL_ALL });
        // The last such call of the run, when everything before it has succeeded.
        let from = calls.iter().filter(|call| call.kind == *kind && call.path.contains(place)).count();
        fixture.run_with_fault(InjectedFault { kind, path_part: place, first_call: from, call_count: 1, ..FAIL_ALL });
    }
    assert!(fixture.faulted_count > kinds.len(), "{} of {kinds:?}", fixture.faulted_count);
    for (index, errno) in ["EIO", "EROFS", "ENOSPC"].into_iter().enumerate() {
        let places = ["/state/", "/changes/", "/"];
        for place in campaign_size(&places[index..=index], &places[..]).iter().copied() {
            fixture.run_with_fault(InjectedFault { errno, path_part: place, ..FAIL_ALL });
        }
    }
    assert!(fixture.refused_count > 0 && fixture.finished_runs.iter().any(|run| run["verdict"] == "inconclusive"));
    fixture.finish();
}

fn fails_by_call(env: &TestEnvironment) {
    let mut fixture = FaultFixture::new(env);
    let count = fixture.list_calls().len();
    for call_index in spread_indices(count, campaign_size(SAMPLE_CALLS[0], SAMPLE_CALLS[1])) {
        fixture.run_with_fault(InjectedFault { first_call: call_index + 1, call_count: 1, ..FAIL_ALL });
        fixture.run_with_fault(InjectedFault { first_call: call_index + 1, ..FAIL_ALL });
    }
    assert!(fixture.faulted_count > 0);
    fixture.finish();
}

fn full_at_any_byte(env: &TestEnvironment) {
    let mut fixture = FaultFixture::new(env);
    let calls = fixture.list_calls();
    let rooms = if all_points_requested() {
        ALL_FULL_DISK_POINTS
    } else {
        campaign_size(FULL_DISK_POINTS[0], FULL_DISK_POINTS[1])
    };
    for place in WRITTEN_PATHS {
        let written: u64 =
            calls.iter().filter(|call| written_path_of(&call.path) == Some(place)).map(|call| call.bytes).sum();
        // `| 1` avoids zero, and byte counts at which a write ends.
        for n in (0..rooms).filter(|_| written > 0) {
            let room = (n * written / rooms) | 1;
            fixture.run_with_fault(InjectedFault {
                errno: "ENOSPC",
                kind: "write",
                path_part: place,
                writable_bytes: room,
                ..FAIL_ALL
            });
        }
    }
    assert!(fixture.faulted_count > 10, "{}", fixture.faulted_count);
    fixture.finish();
}

fn unreadable_files(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo said")]));
    let first = env.start_ready_daemon();
    let request = run_request(repo.path(), &json!({ "changeset_id": CHANGESET }));
    let id = submitted_run_id(&first.request("POST", "/v1/runs", Some(&request)).parse_json_body());
    assert_eq!(first.wait_for_run(&id)["verdict"], "passed");
    first.stop().exits(0);
    // The second daemon must read from the disk what the first one has in memory.
    let daemon = start_traced_daemon(env);
    let report = env.root().join("calls");
    let faults = FaultInjector { call_log: &report, traced_dir: env.root() };
    let gate = json!({ "repo": repo.path(), "profile": "pr", "changeset_id": CHANGESET });
    let run = |rest: &str| format!("/v1/runs/{id}{rest}");
    let queries = [
        ("/history/events", "GET", run(""), None),
        ("/objects", "GET", run("/steps/0/stdout"), None),
        ("/verify/", "GET", run("/evidence/verify.it.json"), None),
        ("05-status.json", "POST", "/v1/gate".to_owned(), Some(&gate)),
        ("/attestations", "POST", "/v1/gate".to_owned(), Some(&gate)),
        ("/spec/verification.yaml", "POST", "/v1/runs".to_owned(), Some(&request)),
    ];
    for (place, method, path, body) in &queries {
        let context = format!("{method} {path} without {place}");
        faults.set_fault(InjectedFault { kind: "read", path_part: place, ..FAIL_ALL });
        let answer = with_health_probe(env, || daemon.request(method, path, *body));
        assert!(faults.clear_fault().iter().any(|call| call.is_affected), "{context}: nothing was read: {answer:?}");
        let response_body = answer.parse_json_body();
        if answer.status == 200 {
            assert_eq!(response_body["pass"], false, "{context}: {response_body:#}");
        } else {
            assert_matches_schema("Problem", &response_body);
            assert!((500..600).contains(&answer.status) || answer.status == 422, "{context}: {answer:?}");
            assert!(response_body["hint"].is_string(), "{context}: {response_body:#}");
        }
        assert!(response_body.to_string().contains("Input/output error"), "{context}: {response_body:#}");
        let retried = daemon.request(method, path, *body);
        assert!([200, 202].contains(&retried.status), "{context}, the cause has gone: {retried:?}");
        if retried.status == 202 {
            assert_eq!(
                daemon.wait_for_run(&submitted_run_id(&retried.parse_json_body()))["verdict"],
                "passed",
                "{context}, the cause has gone"
            );
        }
    }
    assert_eq!(daemon.request("POST", "/v1/gate", Some(&gate)).parse_json_body()["pass"], true);
    // The stream has started by then, and is cut off without an end event.
    faults.set_fault(InjectedFault { kind: "read", path_part: "/history/events", ..FAIL_ALL });
    let broken = with_health_probe(env, || daemon.request("GET", &run("/events"), None));
    assert!(
        faults.clear_fault().iter().any(|call| call.is_affected) && !broken.body.contains("run_finished"),
        "{broken:?}"
    );
    assert!(daemon.request("GET", &run("/events"), None).body.contains("run_finished"));
    end_traced_daemon(daemon);
}

/// Numbers of descriptors that a run may open.
const EXTRA_DESCRIPTORS: [u64; 12] = [2, 4, 6, 8, 11, 14, 18, 24, 32, 48, 64, 96];

fn descriptor_limits(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo said")]));
    let daemon = env.start_ready_daemon();
    let request = run_request(repo.path(), &json!({ "changeset_id": CHANGESET }));
    let run_and_assert_pass = || {
        let answer = daemon.request("POST", "/v1/runs", Some(&request));
        assert_eq!(answer.status, 202, "{answer:?}");
        let run = daemon.wait_for_run(&submitted_run_id(&answer.parse_json_body()));
        assert_eq!(run["verdict"], "passed", "{run:#}");
        assert_on_record(&repo, &run);
    };
    run_and_assert_pass();
    let pid = daemon_pid(&daemon);
    let kernel_pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let set_descriptor_limit = |limit: Rlimit| prlimit(kernel_pid, Resource::Nofile, limit).expect("our own child");
    // The daemon inherits its limit from the test process.
    let all = getrlimit(Resource::Nofile);
    let (mut stopped, mut passed) = (0, 0);
    for more in EXTRA_DESCRIPTORS {
        let used = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("ours").count() as u64;
        let before = set_descriptor_limit(Rlimit { current: Some(used + more), ..all });
        let outcome = run_with_few_descriptors(&daemon, &request);
        set_descriptor_limit(before);
        match outcome {
            Some(run) if run["verdict"] == "passed" => {
                assert_on_record(&repo, &run);
                passed += 1;
            }
            outcome => {
                let verdict = outcome.as_ref().map(|run| &run["verdict"]);
                assert!(verdict.is_none_or(|verdict| *verdict == "inconclusive"), "{outcome:#?}");
                stopped += 1;
            }
        }
        run_and_assert_pass();
    }
    println!("faults: {stopped} runs without descriptors, {passed} with enough");
    assert!(stopped > 0 && passed > 0);
    daemon.stop().exits(0);
}

/// Submits a run, and makes requests of another client between the requests about the run. Only one of them is
/// connected at a time.
fn run_with_few_descriptors(daemon: &TestDaemon<'_>, request: &Value) -> Option<Value> {
    let answer = daemon.request("POST", "/v1/runs", Some(request));
    if answer.status != 202 {
        assert_matches_schema("Problem", &answer.parse_json_body());
        assert!(answer.parse_json_body()["hint"].is_string(), "{answer:?}");
        return None;
    }
    let path = format!("/v1/runs/{}", submitted_run_id(&answer.parse_json_body()));
    loop {
        assert_matches_schema("Health", &daemon.get("/healthz"));
        let run = daemon.get(&path);
        if run["state"] == "finished" {
            return Some(run);
        }
    }
}

/// A file ignored by git that makes the step of [`repo_with_failing_flag`] fail.
const FLAG_FILE: &str = "flag";

fn repo_with_failing_flag(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "! test -e flag")]));
    repo.write(".gitignore", format!("{FLAG_FILE}\n"));
    repo.commit();
    repo
}

/// Arguments for a run with a changeset and for one without.
const CHANGESET_ARGUMENTS: [&[&str]; 2] = [&["--profile", "pr", "--changeset", CHANGESET], &["--profile", "pr"]];

/// Passes on a tree, then starts a run through `wrapper` in which the step fails.
fn fail_after_pass(repo: &Repo<'_>, env: &TestEnvironment, arguments: &[&str], wrapper: &[&str]) -> FinishedProcess {
    let _ = std::fs::remove_file(repo.file(FLAG_FILE));
    repo.run_with_only(arguments).exits(0);
    repo.proctor(&[&["gate"], arguments].concat()).exits(0);
    repo.write(FLAG_FILE, "");
    let words = [&["run", "--format", "jsonl"], arguments].concat();
    env.start_through(repo.path(), wrapper, &words).with_extended_timeout(CASE_TIMEOUT).wait()
}

fn unrecorded_failure_revokes_pass(env: &TestEnvironment) {
    let repo = repo_with_failing_flag(env);
    let report = env.root().join("calls");
    let faults = FaultInjector { call_log: &report, traced_dir: env.root() };
    let words = faults.to_arguments();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for arguments in CHANGESET_ARGUMENTS {
        faults.set_fault(LIST_ONLY);
        fail_after_pass(&repo, env, arguments, &words).exits(1);
        let count = faults.clear_fault().len();
        let (mut failed, mut unrecorded) = (0, 0);
        for call_index in spread_indices(count, CALLS_WITH_FAILURE) {
            faults.set_fault(InjectedFault { errno: "ENOSPC", first_call: call_index + 1, ..FAIL_ALL });
            let finished = fail_after_pass(&repo, env, arguments, &words);
            let is_met = faults.clear_fault().iter().any(|call| call.is_affected);
            let gate = repo.proctor(&[&["gate"], arguments].concat());
            if finished.code == Some(1) {
                failed += 1;
                unrecorded += usize::from(is_met);
                assert_ne!(
                    gate.code,
                    Some(0),
                    "from call {call_index}: the run failed, and the gate passes\n{finished}\n{gate}"
                );
            } else {
                assert_eq!(finished.code, Some(5), "{finished}");
            }
        }
        println!("faults: {count} calls, {failed} failed, {unrecorded} of them without room for their record");
        assert!(unrecorded > 0, "no failing run lacked room for its record");
    }
}

fn killed_run_revokes_pass(env: &TestEnvironment) {
    let repo = repo_with_failing_flag(env);
    let report = env.root().join("calls");
    let trace =
        |at| TraceOptions { kill_at: at, tear_write: false, call_log: &report, traced_dir: env.root() }.to_arguments();
    for arguments in CHANGESET_ARGUMENTS {
        let run = |call_index: usize| {
            let words = trace(call_index);
            fail_after_pass(&repo, env, arguments, &words.iter().map(String::as_str).collect::<Vec<_>>())
        };
        run(0).exits(1);
        let count = std::fs::read_to_string(&report).expect("a list of calls").lines().count() - 1;
        let mut killed = 0;
        for call_index in spread_indices(count, CALLS_WITH_FAILURE) {
            let finished = run(call_index + 1);
            machine::wait_for_processes_to_exit(env.marker(), EXIT_TIMEOUT).expect("nothing is left");
            let gate = repo.proctor(&[&["gate"], arguments].concat());
            if finished.stdout.contains("\"step_finished\"") {
                killed += usize::from(finished.code == Some(KILLED_EXIT_CODE));
                assert_ne!(
                    gate.code,
                    Some(0),
                    "killed at call {call_index}: a step failed, and the gate passes\n{gate}"
                );
            }
        }
        assert!(killed > 0, "no run was killed after its step had failed");
    }
}
