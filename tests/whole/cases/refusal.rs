//! Tests requests that are not permitted or not possible: the message names the cause and a remedy.

use serde_json::Value;

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("refusal::without_user_namespaces_nothing_runs", no_namespaces)
        .needs(&[Needs::Sandbox, Needs::Program("unshare")]),
    case("", no_namespaces)
        .needs(&[Needs::Sandbox, Needs::Program("unshare")])
        .unprivileged("refusal::without_user_namespaces_nothing_runs_as_a_user"),
    case("refusal::the_operator_is_the_ceiling", ceiling),
    dry_case("refusal::an_operators_config_that_is_wrong_is_no_config", broken_config),
    case("refusal::the_state_may_not_lie_in_the_repository", state_in_repository),
    dry_case("refusal::a_repository_that_is_not_there_is_named", no_repository),
];

/// Enters a user namespace in which the kernel allows no nested one, and executes a program there.
const WITHOUT_NAMESPACES: [&str; 7] = [
    "unshare",
    "--user",
    "--map-root-user",
    "sh",
    "-c",
    "echo 0 > /proc/sys/user/max_user_namespaces || exit 99; exec \"$@\"",
    "sh",
];

fn no_namespaces(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo the step ran"));
    for words in [&["doctor"][..], &["run", "--changeset", "009_x"], &["exec", "--", "echo", "the step ran"]] {
        let run = env.finish(env.start_through(repo.path(), &WITHOUT_NAMESPACES, words));
        assert_eq!(run.code, Some(5), "{words:?}\n{run}");
        let text = run.everything();
        assert!(text.contains("namespace") && text.contains("hint:"), "{words:?}: what is missing is not said\n{run}");
        assert!(!run.stdout.contains("the step ran\n"), "{words:?}\n{run}");
    }
    if !repo.is_untouched() {
        assert_eq!(repo.last_run()["outcome"], "inconclusive");
    }
}

fn ceiling(env: &TestEnvironment) {
    let config = env.root().join("proctord.toml");
    machine::write(&config, "allow_network = false\nleast_read_only = \"tracked\"\nmax_timeout_ms = 60000\n");
    let config = config.to_str().expect("UTF-8").to_owned();
    let asks = [("network", "network: allow"), ("read_only", "read_only: off"), ("timeout_ms", "timeout_ms: 60001")];
    for (index, (named, field)) in asks.into_iter().enumerate() {
        let step = Step::sh("it", "true").with(field).with(if named == "timeout_ms" {
            "retries: 0"
        } else {
            "timeout_ms: 1000"
        });
        let repo = env.repo_at(&format!("repo{index}"), &Spec::of_steps([step]));
        repo.run().exits(0);
        let run = repo.run_with(&["--config", &config]).exits(2);
        assert!(run.everything().contains(named) && run.everything().contains("operator"), "{run}");
    }
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "true").with("timeout_ms: 1000")]));
    repo.run_with(&["--config", &config]).exits(0);
    let run = repo
        .proctor(&["exec", "--config", &config, "--network", "allow", "--timeout-ms", "1000", "--", "true"])
        .exits(2);
    assert!(run.stderr.contains("network"), "{run}");
}

fn broken_config(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let config = env.root().join("proctord.toml");
    for broken in ["allow_netwrok = false\n", "allow_network = \"no\"\n", "allow_network = \n", "\0"] {
        machine::write(&config, broken);
        repo.run_with(&["--config", config.to_str().expect("UTF-8")]).exits(2);
    }
    repo.run_with(&["--config", "/no/such/file"]).exits(2).complains(&["/no/such/file"]);
    assert!(repo.is_untouched());
}

fn state_in_repository(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let inside = repo.file("state");
    let run = repo.proctor(&["run", "--state-dir", inside.to_str().expect("UTF-8")]);
    assert!(matches!(run.code, Some(2 | 5)), "{run}");
    assert!(run.stderr.contains("state"), "{run}");
}

fn no_repository(env: &TestEnvironment) {
    for command in ["run", "validate", "plan"] {
        let run = env.proctor([command, "--repo", "/no/such/repository"]).exits(2);
        assert!(run.stderr.contains("/no/such/repository") && run.stderr.contains("hint:"), "{run}");
    }
    let run = env.proctor(["run", "--format", "json", "--repo", "/no/such/repository"]).exits(2);
    let document: Value = serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run}"));
    assert_eq!(document["error"]["exit_code"], 2, "{document:#}");
}
