//! Tests a daemon's log, its metrics, and its use of time.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::daemon::{self, Daemon, LISTENS};
use crate::environment::{TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    dry_case("telling::a_log_of_lines_holds_no_secret_and_no_control_character", text_log),
    dry_case("telling::a_log_of_objects_holds_no_secret_and_no_control_character", json_log),
    case("telling::the_metrics_are_read_by_prometheus_own_parser", metrics).needs(&[
        Needs::Sandbox,
        Needs::Works(&["/usr/bin/python3", "-c", "import prometheus_client.openmetrics.parser"]),
    ]),
    case("telling::a_clock_that_jumps_changes_no_deadline", clock_jumps).needs(NEEDS_FAKETIME),
];

const NEEDS_FAKETIME: &[Needs] = &[Needs::Sandbox, Needs::Works(&["faketime", "2020-01-01 00:00:00", "true"])];
/// A secret that no log may contain. It is long enough to be recognised, and its variable has a typical name.
const SECRET: &str = "hunter2-of-the-daemon";

/// Returns the log of a daemon whose config contains terminal escapes and the secret.
fn log_with(env: &TestEnvironment, format: &str) -> Finished {
    env.caller_has("API_TOKEN", SECRET);
    let of_log = format!("[daemon.log]\nformat = '{format}'\nlevel = 'debug'\n");
    env.configure(&of_log);
    let mut daemon = env.daemon();
    env.configure(&format!("[daemon]\nallow_users = [\"{SECRET}\", \"\\u001b[31mred\\u009b\\n\\u202e\"]\n{of_log}"));
    daemon.running.signal(Signal::HUP);
    daemon.running.wait_for_message("the old one stays");
    daemon.ask("GET", &format!("/v1/runs/{SECRET}"), None);
    daemon.ask("POST", "/v1/runs", Some(&json!({ "repo": format!("/{SECRET}\u{1b}[31m\u{9b}\n"), "profile": "pr" })));
    let finished = daemon.end().exits(0);
    assert!(!finished.everything().contains(SECRET), "{finished}");
    assert!(finished.stderr.contains("[redacted]"), "{finished}");
    let steers = |char: char| char.is_control() && char != '\n' || matches!(char, '\u{2028}'..='\u{202e}');
    assert!(!finished.stderr.chars().any(steers), "{finished}");
    finished
}

fn text_log(env: &TestEnvironment) {
    let finished = log_with(env, "text");
    for line in finished.stderr.lines() {
        let level = line.split_whitespace().nth(1).unwrap_or_default();
        assert!(["ERROR", "WARN", "INFO", "DEBUG"].contains(&level), "{line}");
    }
}

fn json_log(env: &TestEnvironment) {
    let finished = log_with(env, "json");
    for line in finished.stderr.lines() {
        let record: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert!(["time", "level", "target", "message"].iter().all(|name| record[name].is_string()), "{line}");
    }
}

/// Parses the text as Prometheus does, and prints the number of samples.
const PARSE: &str = "import sys\nfrom prometheus_client.openmetrics.parser import text_string_to_metric_families\n\
    families = list(text_string_to_metric_families(open(sys.argv[1]).read()))\n\
    print(sum(len(family.samples) for family in families))";

fn metrics(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let daemon = env.daemon();
    let id = daemon.submit(repo.path());
    let run = daemon.finished(&id);
    assert_eq!(run["verdict"], "passed");
    lasts_from_start_to_end(&run);
    daemon.ask("GET", "/no/such\"route", None);
    let plain = daemon.ask("GET", "/metrics", None);
    assert!(plain.head.contains("text/plain; version=0.0.4"), "{plain:?}");
    assert!(plain.body.contains("# TYPE proctor_submissions_total counter"), "{plain:?}");
    let accept = "Accept: application/openmetrics-text; version=1.0.0, text/plain;q=0.5\r\n";
    let answer = daemon::ask_with(&env.socket(), "GET", "/metrics", accept, None).expect("an answer");
    assert!(answer.head.contains("application/openmetrics-text; version=1.0.0"), "{answer:?}");
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
    parser.args(["-c", PARSE]).arg(file);
    let parsed = Running::start(parser).wait().exits(0);
    assert!(parsed.stdout.trim().parse::<u32>().expect("a number") > 50, "{parsed}");
    daemon.end().exits(0).complains(&["a run has ended", &format!("run={id}"), "verdict=passed"]);
}

/// Asserts that `duration_ms` of a run is the time between its start and its end.
fn lasts_from_start_to_end(run: &Value) {
    let time = |key: &str| humantime::parse_rfc3339(run[key].as_str().expect(key)).expect(key);
    let lasted = time("finished_at").duration_since(time("started_at")).expect("the end is not before the start");
    assert_eq!(run["duration_ms"], u64::try_from(lasted.as_millis()).expect("fits"), "{run:#}");
}

/// A daemon whose time of day is shifted by an offset in a file.
struct Clockwork {
    file: PathBuf,
}

impl Clockwork {
    fn start(env: &TestEnvironment) -> (Self, Running) {
        let clockwork = Self { file: env.root().join("clock") };
        clockwork.jump("+0");
        let mut asked = machine::command("faketime");
        asked.args(["-f", "+0", "printenv", "LD_PRELOAD"]);
        let library = Running::start(asked).wait().exits(0).stdout;
        let mut command = env.daemon_at(&env.socket(), &env.state());
        command
            .env("LD_PRELOAD", library.trim())
            .env("FAKETIME_TIMESTAMP_FILE", &clockwork.file)
            .env("FAKETIME_NO_CACHE", "1");
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let mut running = Running::start(command);
        running.wait_for_message(LISTENS);
        (clockwork, running)
    }

    fn jump(&self, by: &str) {
        let mut text = by.to_owned();
        writeln!(text).expect("a String takes all");
        machine::write(&self.file, text);
    }
}

fn clock_jumps(env: &TestEnvironment) {
    env.configure("[daemon]\ndrain_ms = 3600000\nidle_exit_ms = 600000\n[daemon.retention]\nmax_age_days = 1\n");
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it").with("timeout_ms: 600000")]));
    let (clock, running) = Clockwork::start(env);
    let mut daemon = Daemon::of(env, running);
    let mut ids = Vec::new();
    for jump in ["+3650d", "-3650d", "+0"] {
        let id = daemon.submit(repo.path());
        let step = wait_for_step(env, &mut daemon.running);
        clock.jump(jump);
        // The jump ends nothing: not the run, a long poll, or the daemon.
        let path = format!("/v1/runs/{id}?wait=200ms");
        assert_eq!(daemon.get(&path)["state"], "running", "{jump}");
        assert!(daemon.get("/healthz")["uptime_ms"].as_u64().expect("a number") < 120_000, "{jump}");
        release(&step);
        let run = daemon.finished(&id);
        assert_eq!(run["verdict"], "passed", "{jump}: {run:#}");
        assert!(run["duration_ms"].as_u64().expect("a number") < 120_000, "{jump}: {run:#}");
        lasts_from_start_to_end(&run);
        ids.push(id);
    }
    let times = daemon.ask("GET", &format!("/v1/runs/{}", ids[1]), None).body;
    assert!(times.contains("\"queued_at\":\"203"), "the clock did jump: {times}");
    assert_eq!(daemon::ask(&env.socket(), "GET", "/healthz", None).expect("an answer").code, 200);
    let ended = daemon.end().exits(0);
    assert!(ended.elapsed < Duration::from_secs(110), "{ended}");
}
