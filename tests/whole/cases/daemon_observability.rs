//! Tests a daemon's log, its metrics, and its use of time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{self, READY_MESSAGE, TestDaemon};
use crate::environment::{TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("daemon_observability::text_log_has_no_secret_or_control_character", text_log_is_redacted),
    dry_case("daemon_observability::json_log_has_no_secret_or_control_character", json_log_is_redacted),
    case("daemon_observability::prometheus_parser_reads_the_metrics", prometheus_parser_reads_metrics).needs(&[
        Needs::Sandbox,
        Needs::WorkingCommand(&["/usr/bin/python3", "-c", "import prometheus_client.openmetrics.parser"]),
    ]),
    case("daemon_observability::clock_jumps_do_not_change_deadlines", clock_jumps_do_not_change_deadlines)
        .needs(NEEDS_FAKETIME),
];

const NEEDS_FAKETIME: &[Needs] = &[Needs::Sandbox, Needs::WorkingCommand(&["faketime", "2020-01-01 00:00:00", "true"])];
/// A secret that no log may contain. It is long enough to be recognised, and its variable has a typical name.
const DAEMON_SECRET: &str = "hunter2-of-the-daemon";

/// Returns the log of a daemon whose config contains terminal escapes and the secret.
fn redacted_log(env: &TestEnvironment, format: &str) -> FinishedProcess {
    env.set_caller_var("API_TOKEN", DAEMON_SECRET);
    let log_config = format!("[daemon.log]\nformat = '{format}'\nlevel = 'debug'\n");
    env.write_operator_config(&log_config);
    let mut daemon = env.start_ready_daemon();
    env.write_operator_config(&format!(
        "[daemon]\nallow_users = [\"{DAEMON_SECRET}\", \"\\u001b[31mred\\u009b\\n\\u202e\"]\n{log_config}"
    ));
    daemon.process.signal(Signal::HUP);
    daemon.process.wait_for_stderr("the old one remains in use");
    daemon.request("GET", &format!("/v1/runs/{DAEMON_SECRET}"), None);
    daemon.request(
        "POST",
        "/v1/runs",
        Some(&json!({ "repo": format!("/{DAEMON_SECRET}\u{1b}[31m\u{9b}\n"), "profile": "pr" })),
    );
    let finished = daemon.stop().exits(0);
    assert!(!finished.all_output().contains(DAEMON_SECRET), "{finished}");
    assert!(finished.stderr.contains("[redacted]"), "{finished}");
    let is_control_character =
        |char: char| char.is_control() && char != '\n' || matches!(char, '\u{2028}'..='\u{202e}');
    assert!(!finished.stderr.chars().any(is_control_character), "{finished}");
    finished
}

fn text_log_is_redacted(env: &TestEnvironment) {
    let finished = redacted_log(env, "text");
    for line in finished.stderr.lines() {
        let level = line.split_whitespace().nth(1).unwrap_or_default();
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&level), "{line}");
    }
}

fn json_log_is_redacted(env: &TestEnvironment) {
    let finished = redacted_log(env, "json");
    for line in finished.stderr.lines() {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(["time", "level", "target", "message"].iter().all(|name| record[name].is_string()), "{line}");
    }
}

/// Parses the text as Prometheus does, and prints the number of samples.
const PARSE_SCRIPT: &str = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families\n\
    families = list(text_string_to_metric_families(open(sys.argv[1]).read()))\n\
    print(sum(len(family.samples) for family in families))";

fn prometheus_parser_reads_metrics(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let daemon = env.start_ready_daemon();
    let id = daemon.submit(repo.path());
    let run = daemon.wait_for_run(&id);
    assert_eq!(run["verdict"], "passed");
    assert_duration_matches_times(&run);
    daemon.request("GET", "/no/such\"route", None);
    let plain = daemon.request("GET", "/metrics", None);
    assert!(plain.header_text.contains("text/plain; version=0.0.4"), "{plain:?}");
    assert!(plain.body.contains("# TYPE proctor_submissions_total counter"), "{plain:?}");
    let accept = "Accept: application/openmetrics-text; version=1.0.0, text/plain;q=0.5\r\n";
    let answer =
        daemon::send_request_with_headers(&env.socket_path(), "GET", "/metrics", accept, None).expect("an answer");
    assert!(answer.header_text.contains("application/openmetrics-text; version=1.0.0"), "{answer:?}");
    for line in [
        "proctor_runs_finished_total{verdict=\"passed\"} 1",
        "proctor_submissions_total{how=\"queued\"} 1",
        "proctor_runs{state=\"running\"} 0",
        "proctor_http_requests_total{route=\"none\",method=\"GET\",code=\"404\"} 1",
        "proctor_run_duration_seconds_count 1",
        "proctor_run_execution_seconds_count{verdict=\"passed\"} 1",
        "proctor_step_duration_seconds_count{kind=\"step\",outcome=\"passed\"} 1",
        "proctor_ready 1",
    ] {
        assert!(answer.body.lines().any(|found| found == line), "{line} in\n{}", answer.body);
    }
    let file = env.root().join("metrics");
    machine::write(&file, &answer.body);
    let mut parser = machine::command("/usr/bin/python3");
    parser.args(["-c", PARSE_SCRIPT]).arg(file);
    let parsed = RunningProcess::start(parser).wait().exits(0);
    assert!(parsed.stdout.trim().parse::<u32>().expect("a number") > 50, "{parsed}");
    daemon.stop().exits(0).prints_to_stderr(&["a run has ended", &format!("run={id}"), "verdict=passed"]);
}

/// Asserts that `duration_ms` of a run is the time between its start and its end.
fn assert_duration_matches_times(run: &Value) {
    let time = |key: &str| humantime::parse_rfc3339(run[key].as_str().expect(key)).expect(key);
    let elapsed = time("finished_at").duration_since(time("started_at")).expect("the end is not before the start");
    assert_eq!(run["duration_ms"], u64::try_from(elapsed.as_millis()).expect("fits"), "{run:#}");
}

/// A daemon whose time of day is shifted by an offset in a file.
struct FakeClock {
    file: PathBuf,
}

impl FakeClock {
    fn start(env: &TestEnvironment) -> (Self, RunningProcess) {
        let clock = Self { file: env.root().join("clock") };
        clock.set_offset("+0");
        let mut printenv = machine::command("faketime");
        printenv.args(["-f", "+0", "printenv", "LD_PRELOAD"]);
        let library = RunningProcess::start(printenv).wait().exits(0).stdout;
        let mut command = env.daemon_command(&env.socket_path(), &env.state_dir());
        command
            .env("LD_PRELOAD", library.trim())
            .env("FAKETIME_TIMESTAMP_FILE", &clock.file)
            .env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let mut running = RunningProcess::start(command);
        running.wait_for_stderr(READY_MESSAGE);
        (clock, running)
    }

    fn set_offset(&self, offset: &str) {
        let mut text = offset.to_owned();
        writeln!(text).expect("a String takes all");
        machine::write(&self.file, text);
    }
}

fn clock_jumps_do_not_change_deadlines(env: &TestEnvironment) {
    env.write_operator_config(
        "[daemon]\ndrain_ms = 3600000\nidle_exit_ms = 600000\n[daemon.retention]\nmax_age_days = 1\n",
    );
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it").with_field("timeout_ms: 600000")]));
    let (clock, running) = FakeClock::start(env);
    let mut daemon = TestDaemon::from_process(env, running);
    let mut ids = Vec::new();
    for jump in ["+3650d", "-3650d", "+0"] {
        let id = daemon.submit(repo.path());
        let step = wait_for_step(env, &mut daemon.process);
        clock.set_offset(jump);
        // The jump of the clock ends neither the run, nor a long poll, nor the daemon.
        let path = format!("/v1/runs/{id}?wait=200ms");
        assert_eq!(daemon.get(&path)["state"], "running", "{jump}");
        assert!(daemon.get("/healthz")["uptime_ms"].as_u64().expect("a number") < 120_000, "{jump}");
        release_step(&step);
        let run = daemon.wait_for_run(&id);
        assert_eq!(run["verdict"], "passed", "{jump}: {run:#}");
        assert!(run["duration_ms"].as_u64().expect("a number") < 120_000, "{jump}: {run:#}");
        assert_duration_matches_times(&run);
        ids.push(id);
    }
    let times = daemon.request("GET", &format!("/v1/runs/{}", ids[1]), None).body;
    assert!(times.contains("\"queued_at\":\"203"), "the clock did jump: {times}");
    assert_eq!(daemon::send_request(&env.socket_path(), "GET", "/healthz", None).expect("an answer").status, 200);
    let ended = daemon.stop().exits(0);
    assert!(ended.elapsed < Duration::from_secs(110), "{ended}");
}
