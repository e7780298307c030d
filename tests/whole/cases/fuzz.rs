//! Fuzzes the daemon's HTTP API with Schemathesis, with valid and invalid requests. Each response must conform to the
//! OpenAPI document, there must be no server error, and the daemon must survive. A minimum number of requests must be
//! made.
//!
//! `PROCTOR_FUZZ_SECONDS` sets the duration; `bench/fuzz` runs it for minutes.

use std::time::Duration;

use serde_json::json;

use super::hostile_clients::{read_metric, with_health_probe};
use crate::daemon::{self, READY_MESSAGE, TestDaemon};
use crate::environment::TestEnvironment;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::RunningProcess;
use crate::test_spec::TestSpec;
use crate::{machine, schemas, test_level};

/// The Schemathesis program, below the clients' directory.
const SCHEMATHESIS: &str = "schemathesis/bin/st";
/// Duration in seconds in `make test` and in `make test-long`, unless `PROCTOR_FUZZ_SECONDS` sets it.
const DEFAULT_FUZZ_SECONDS: [u64; 2] = [5, 60];
/// Minimum number of requests per second on a busy machine. A debug build serves about 70.
const MIN_REQUESTS_PER_SECOND: u64 = 5;
/// Checks that Schemathesis applies to each response.
const SCHEMATHESIS_CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
     response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance";

pub(super) const CASES: &[CaseDefinition] =
    &[case("fuzz::every_response_matches_the_openapi_document", responses_match_openapi)
        .needs(&[Needs::Sandbox, Needs::Client(&[SCHEMATHESIS, "--version"])])];

fn responses_match_openapi(env: &TestEnvironment) {
    let duration = Duration::from_secs(fuzz_seconds());
    let repo = env.repo(&TestSpec::from_script("echo hello"));
    let running = RunningProcess::start(env.daemon_command(&env.socket_path(), &env.state_dir()));
    let mut running = running.with_extended_timeout(2 * duration);
    running.wait_for_stderr(READY_MESSAGE);
    let daemon = TestDaemon::from_process(env, running);
    let pid = daemon.get("/healthz")["pid"].clone();
    let run = daemon.submit(repo.path());
    assert_eq!(daemon.wait_for_run(&run)["verdict"], "passed");

    let mut command = machine::client_command(SCHEMATHESIS);
    command.args(["run", "http://localhost/openapi.json", "--no-color", "--checks", SCHEMATHESIS_CHECKS]);
    command.args(["--max-time", &duration.as_secs().to_string(), "--request-timeout", "30", "--continue-on-failure"]);
    command.args(["--generation-database", "none", "--suppress-health-check", "all", "--max-examples", "50"]);
    command.env("PYTHONPATH", schemas::workspace_root().join("tests/whole")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("SCHEMATHESIS_HOOKS", "schemathesis_hooks").env("HOME", env.home_dir()).current_dir(env.root());
    command
        .env("PROCTOR_FUZZ_SOCKET", env.socket_path())
        .env("PROCTOR_FUZZ_REPO", repo.path())
        .env("PROCTOR_FUZZ_RUN", run);
    let before = served_requests(env);
    let schemathesis =
        with_health_probe(env, || RunningProcess::start(command).with_extended_timeout(2 * duration).wait().exits(0));
    for line in schemathesis.stdout.lines().rev().take(6).collect::<Vec<_>>().into_iter().rev() {
        eprintln!("{line}");
    }

    let count = served_requests(env) - before;
    eprintln!("{count} requests in {:?}", schemathesis.elapsed);
    assert!(
        schemathesis.elapsed.mul_f64(10.0) >= duration.mul_f64(9.0),
        "it gave up after {:?} of {duration:?}",
        schemathesis.elapsed
    );
    assert!(count >= MIN_REQUESTS_PER_SECOND * duration.as_secs(), "{count} requests in {:?}", schemathesis.elapsed);
    assert_eq!(daemon.get("/healthz")["pid"], pid, "it is the same process");
    assert_eq!(read_metric(env, "proctor_panics_total"), 0);
    let metrics = daemon::send_request(&env.socket_path(), "GET", "/metrics", None).expect("an answer").body;
    let failures: Vec<&str> = metrics.lines().filter(|line| line.contains("code=\"5")).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(daemon.get("/healthz")["status"], json!("ok"));
    daemon.stop().exits(0);
}

/// Returns the number of served requests, except those to the two paths that the observing client uses.
fn served_requests(env: &TestEnvironment) -> u64 {
    let metrics = daemon::send_request(&env.socket_path(), "GET", "/metrics", None).expect("an answer").body;
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("proctor_http_requests_total{"));
    let others = lines.filter(|line| !["/healthz", "/metrics"].iter().any(|own| line.contains(&format!("\"{own}\""))));
    others.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
}

fn fuzz_seconds() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the command line sets its duration")]
    let requested = std::env::var("PROCTOR_FUZZ_SECONDS").ok();
    let default = test_level::campaign_size(DEFAULT_FUZZ_SECONDS[0], DEFAULT_FUZZ_SECONDS[1]);
    requested.map_or(default, |value| value.parse().expect("PROCTOR_FUZZ_SECONDS is a number"))
}
