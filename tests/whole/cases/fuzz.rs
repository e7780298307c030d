//! Fuzzes the daemon's HTTP API with Schemathesis, with valid and invalid requests. Each response must conform to the
//! OpenAPI document, there must be no server error, and the daemon must survive. A minimum number of requests must be
//! made.
//!
//! `PROCTOR_FUZZ_SECONDS` sets the duration; `bench/fuzz` runs it for minutes.

use std::time::Duration;

use serde_json::json;

use super::abuse::{meanwhile, metric};
use crate::daemon::{self, Daemon, LISTENS};
use crate::environment::TestEnvironment;
use crate::needs::{Case, Needs, case};
use crate::process::Running;
use crate::spec::Spec;
use crate::{machine, schemas};

/// The Schemathesis program, below the clients' directory.
const SCHEMATHESIS: &str = "schemathesis/bin/st";
/// Duration in seconds, unless `PROCTOR_FUZZ_SECONDS` sets it.
const SECONDS: u64 = 30;
/// Minimum number of requests per second on a busy machine. A debug build serves about 70.
const EACH_SECOND: u64 = 5;
/// Checks that Schemathesis applies to each response.
const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,\
     response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance";

pub(super) const CASES: &[Case] = &[case("fuzz::every_answer_is_one_of_the_document", fuzz)
    .needs(&[Needs::Sandbox, Needs::Client(&[SCHEMATHESIS, "--version"])])];

fn fuzz(env: &TestEnvironment) {
    let time = Duration::from_secs(seconds());
    let repo = env.repo(&Spec::of_script("echo hello"));
    let running = Running::start(env.daemon_at(&env.socket(), &env.state()));
    let mut running = running.patient(2 * time);
    running.wait_for_message(LISTENS);
    let daemon = Daemon::of(env, running);
    let pid = daemon.get("/healthz")["pid"].clone();
    let run = daemon.submit(repo.path());
    assert_eq!(daemon.finished(&run)["verdict"], "passed");

    let mut command = machine::client_command(SCHEMATHESIS);
    command.args(["run", "http://localhost/openapi.json", "--no-color", "--checks", CHECKS]);
    command.args(["--max-time", &time.as_secs().to_string(), "--request-timeout", "30", "--continue-on-failure"]);
    command.args(["--generation-database", "none", "--suppress-health-check", "all", "--max-examples", "50"]);
    command.env("PYTHONPATH", schemas::project().join("tests/whole")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("SCHEMATHESIS_HOOKS", "schemathesis_hooks").env("HOME", env.home()).current_dir(env.root());
    command.env("PROCTOR_FUZZ_SOCKET", env.socket()).env("PROCTOR_FUZZ_REPO", repo.path()).env("PROCTOR_FUZZ_RUN", run);
    let before = requests(env);
    let asked = meanwhile(env, || Running::start(command).patient(2 * time).wait().exits(0));
    for line in asked.stdout.lines().rev().take(6).collect::<Vec<_>>().into_iter().rev() {
        eprintln!("{line}");
    }

    let count = requests(env) - before;
    eprintln!("{count} requests in {:?}", asked.elapsed);
    assert!(asked.elapsed.mul_f64(10.0) >= time.mul_f64(9.0), "it gave up after {:?} of {time:?}", asked.elapsed);
    assert!(count >= EACH_SECOND * time.as_secs(), "{count} requests in {:?}", asked.elapsed);
    assert_eq!(daemon.get("/healthz")["pid"], pid, "it is the same process");
    assert_eq!(metric(env, "proctor_panics_total"), 0);
    let metrics = daemon::ask(&env.socket(), "GET", "/metrics", None).expect("an answer").body;
    let failures: Vec<&str> = metrics.lines().filter(|line| line.contains("code=\"5")).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    assert_eq!(daemon.get("/healthz")["status"], json!("ok"));
    daemon.end().exits(0);
}

/// Returns the number of served requests, except those to the two paths that the observing client uses.
fn requests(env: &TestEnvironment) -> u64 {
    let metrics = daemon::ask(&env.socket(), "GET", "/metrics", None).expect("an answer").body;
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("proctor_http_requests_total{"));
    let others = lines.filter(|line| !["/healthz", "/metrics"].iter().any(|own| line.contains(&format!("\"{own}\""))));
    others.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a count")).sum()
}

fn seconds() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "the command line sets its duration")]
    let asked = std::env::var("PROCTOR_FUZZ_SECONDS").ok();
    asked.map_or(SECONDS, |asked| asked.parse().expect("PROCTOR_FUZZ_SECONDS is a number"))
}
