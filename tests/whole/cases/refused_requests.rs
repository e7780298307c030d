//! Tests requests that are not permitted or not possible: the message names the cause and a remedy.

use serde_json::Value;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("refused_requests::without_user_namespaces_nothing_runs", without_user_namespaces_nothing_runs)
        .needs(&[Needs::Sandbox, Needs::Program("unshare")])
        .daemon_sample(),
    case("", without_user_namespaces_nothing_runs)
        .needs(&[Needs::Sandbox, Needs::Program("unshare")])
        .unprivileged("refused_requests::without_user_namespaces_nothing_runs_as_a_user"),
    case("refused_requests::operator_config_limits_every_spec", operator_limits_every_spec),
    dry_case("refused_requests::invalid_operator_config_is_refused", invalid_operator_config_is_refused),
    case("refused_requests::state_directory_inside_the_repository_is_refused", state_inside_repository_is_refused),
    dry_case("refused_requests::missing_repository_is_reported", missing_repository_is_reported).daemon_sample(),
];

/// Enters a user namespace in which the kernel allows no nested one, and executes a program there.
const WITHOUT_NAMESPACES_WRAPPER: [&str; 7] = [
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces || exit 99; exec \"$@\"",
    "sh",
];

fn without_user_namespaces_nothing_runs(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo the step ran"));
    for words in [&["doctor"][..], &["run", "--changeset", "009_x"], &["exec", "--", "echo", "the step ran"]] {
        let run = env.finish(env.start_through(repo.path(), &WITHOUT_NAMESPACES_WRAPPER, words));
        assert_eq!(run.code, Some(5), "{words:?}\n{run}");
        let text = run.all_output();
        assert!(text.contains("namespace") && text.contains("hint:"), "{words:?}: what is missing is not said\n{run}");
        assert!(!run.stdout.contains("the step ran\n"), "{words:?}\n{run}");
    }
    if !repo.has_no_documents() {
        assert_eq!(repo.last_run()["outcome"], "inconclusive");
    }
}

fn operator_limits_every_spec(env: &TestEnvironment) {
    let config = env.root().join("proctord.toml");
    machine::write(&config, "allow_network = false\nleast_read_only = \"tracked\"\nmax_timeout_ms = 60000\n");
    let config = config.to_str().expect("UTF-8").to_owned();
    let requests =
        [("network", "network: allow"), ("read_only", "read_only: off"), ("timeout_ms", "timeout_ms: 60001")];
    for (index, (setting, field)) in requests.into_iter().enumerate() {
        let step = TestStep::sh("it", "true").with_field(field).with_field(if setting == "timeout_ms" {
            "retries: 0"
        } else {
            "timeout_ms: 1000"
        });
        let repo = env.repo_at(&format!("repo{index}"), &TestSpec::from_steps([step]));
        repo.run().exits(0);
        let run = repo.run_with(&["--config", &config]).exits(2);
        assert!(run.all_output().contains(setting) && run.all_output().contains("operator"), "{run}");
    }
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "true").with_field("timeout_ms: 1000")]));
    repo.run_with(&["--config", &config]).exits(0);
    let run = repo
        .proctor(&["exec", "--config", &config, "--network", "allow", "--timeout-ms", "1000", "--", "true"])
        .exits(2);
    assert!(run.stderr.contains("network"), "{run}");
}

fn invalid_operator_config_is_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let config = env.root().join("proctord.toml");
    for broken in ["allow_netwrok = false\n", "allow_network = \"no\"\n", "allow_network = \n", "\0"] {
        machine::write(&config, broken);
        repo.run_with(&["--config", config.to_str().expect("UTF-8")]).exits(2);
    }
    repo.run_with(&["--config", "/no/such/file"]).exits(2).prints_to_stderr(&["/no/such/file"]);
    assert!(repo.has_no_documents());
}

fn state_inside_repository_is_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let inside = repo.file("state");
    let run = repo.proctor(&["run", "--state-dir", inside.to_str().expect("UTF-8")]);
    assert!(matches!(run.code, Some(2 | 5)), "{run}");
    assert!(run.stderr.contains("state"), "{run}");
}

fn missing_repository_is_reported(env: &TestEnvironment) {
    for command in ["run", "validate", "plan"] {
        let run = env.proctor([command, "--repo", "/no/such/repository"]).exits(2);
        assert!(run.stderr.contains("/no/such/repository") && run.stderr.contains("hint:"), "{run}");
    }
    let run = env.proctor(["run", "--format", "json", "--repo", "/no/such/repository"]).exits(2);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(document["error"]["exit_code"], 2, "{document:#}");
}
