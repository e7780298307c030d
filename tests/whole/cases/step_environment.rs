//! Tests which variables a step receives, and which never reach the step or the record.

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_GIT, case};
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("step_environment::callers_secrets_reach_neither_steps_nor_records", callers_secrets_are_hidden)
        .daemon_sample(),
    case("step_environment::allowed_variables_and_env_are_passed_and_env_takes_precedence", allowed_and_set_variables)
        .daemon_sample(),
    case("step_environment::variables_for_git_loaders_and_proxies_are_never_passed", steering_variables_are_blocked),
    case("step_environment::callers_git_dir_does_not_select_the_repository", callers_git_dir_is_ignored)
        .needs(NEEDS_GIT)
        .daemon_sample(),
    case("step_environment::step_has_only_recorded_variables", environment_is_a_closed_list),
    case("step_environment::env_of_the_spec_can_set_any_variable", spec_may_set_any_variable),
    case("step_environment::standard_input_is_empty", stdin_is_empty),
];

const SECRET_VALUE: &str = "hunter2-is-the-secret-of-the-caller";

/// Returns the environment that the step `it` printed with `env`.
fn printed_env_lines(repo: &crate::environment::Repo<'_>) -> Vec<String> {
    let step = repo.step("it");
    let text =
        format!("{}{}", step["stdout_preview"].as_str().expect("text"), step["stdout_tail"].as_str().expect("text"));
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn callers_secrets_are_hidden(env: &TestEnvironment) {
    env.set_caller_var("AWS_SECRET_ACCESS_KEY", SECRET_VALUE);
    env.set_caller_var("lower_case_token", SECRET_VALUE);
    let script = "env; cat /proc/self/environ /proc/1/environ /proc/$PPID/environ 2>/dev/null; cat /proc/*/environ 2>/dev/null; true";
    let repo = env.repo(&TestSpec::from_script(script));
    let run = repo.run().exits(0);
    assert!(!run.all_output().contains(SECRET_VALUE), "on screen");
    let runs = repo.run_with(&["--format", "jsonl"]).exits(0);
    assert!(!runs.all_output().contains(SECRET_VALUE), "in an event");
    for path in machine::walk(env.root()).into_iter().filter(|path| path.is_file()) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(
            !bytes.windows(SECRET_VALUE.len()).any(|window| window == SECRET_VALUE.as_bytes()),
            "in {}",
            path.display()
        );
    }
}

fn allowed_and_set_variables(env: &TestEnvironment) {
    env.set_caller_var("RUST_LOG", "from-the-caller");
    env.set_caller_var("BUILD_NUMBER", "17");
    env.set_caller_var("TERM_COLOR", "from-the-caller");
    let step = TestStep::sh("it", "env").with_field("env: { TERM_COLOR: from-the-spec }");
    let repo = env.repo(&TestSpec::from_steps([step]).with_default("env_allowlist: [RUST_LOG, TERM_COLOR, NOT_SET]"));
    repo.run().exits(0);
    let printed = printed_env_lines(&repo);
    for line in ["RUST_LOG=from-the-caller", "TERM_COLOR=from-the-spec"] {
        assert!(printed.contains(&line.to_owned()), "{line} not in {printed:?}");
    }
    assert!(!printed.iter().any(|line| line.starts_with("BUILD_NUMBER") || line.starts_with("NOT_SET")), "{printed:?}");
    let step = repo.step("it");
    assert_eq!(step["env_allowlist"], serde_json::json!(["RUST_LOG", "TERM_COLOR", "NOT_SET"]));
    let names = step["env_names"].as_array().expect("a list");
    assert!(names.contains(&"RUST_LOG".into()) && !names.contains(&"NOT_SET".into()), "{names:?}");
}

fn steering_variables_are_blocked(env: &TestEnvironment) {
    let steering_names = ["GIT_INDEX_FILE", "BASH_ENV", "HTTP_PROXY", "NODE_OPTIONS", "PYTHONPATH", "LD_LIBRARY_PATH"];
    for name in steering_names {
        env.set_caller_var(name, "/steered/elsewhere");
    }
    for name in ["http_proxy", "https_proxy", "LD_PRELOAD"] {
        env.set_caller_var(name, "/steered/elsewhere");
    }
    let list = format!("env_allowlist: [{}]", steering_names.join(", "));
    let repo = env.repo(&TestSpec::from_script("env").with_default(&list));
    repo.run().exits(0);
    let printed = printed_env_lines(&repo);
    assert!(!printed.iter().any(|line| line.contains("/steered/elsewhere")), "{printed:?}");
}

fn callers_git_dir_is_ignored(env: &TestEnvironment) {
    let other = env.repo_at("other", &TestSpec::from_script("echo the wrong one"));
    env.set_caller_var("GIT_DIR", other.file(".git").to_str().expect("UTF-8"));
    env.set_caller_var("GIT_WORK_TREE", other.path().to_str().expect("UTF-8"));
    let repo = env.repo(&TestSpec::from_script("git rev-parse --show-toplevel"));
    repo.run().exits(0);
    assert_eq!(printed_env_lines(&repo), [repo.path().to_str().expect("UTF-8")]);
    assert!(other.has_no_documents());
}

fn environment_is_a_closed_list(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::argv("it", &["env"])]));
    repo.run().exits(0);
    let printed: Vec<String> = printed_env_lines(&repo)
        .into_iter()
        .map(|line| line.split('=').next().unwrap_or_default().to_owned())
        .collect();
    let recorded = repo.step("it")["env_names"].clone();
    let recorded: Vec<&str> = recorded.as_array().expect("a list").iter().filter_map(|name| name.as_str()).collect();
    let mut sorted: Vec<&str> = printed.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, recorded, "the record names other variables than the step had");
    for name in ["PATH", "HOME", "TMPDIR", "LANG", "CI", "TEST_MARKER"] {
        assert!(sorted.contains(&name), "{name} is missing: {sorted:?}");
    }
}

fn spec_may_set_any_variable(env: &TestEnvironment) {
    let step = TestStep::sh("it", "env").with_field("env: { HTTP_PROXY: \"http://127.0.0.1:1\", GIT_AUTHOR_NAME: me }");
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(0);
    let printed = printed_env_lines(&repo);
    assert!(printed.contains(&"HTTP_PROXY=http://127.0.0.1:1".to_owned()), "{printed:?}");
    assert!(printed.contains(&"GIT_AUTHOR_NAME=me".to_owned()), "{printed:?}");
}

fn stdin_is_empty(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("[ -z \"$(cat)\" ] && ! [ -t 0 ] && ! (: < /dev/tty) 2>/dev/null"));
    repo.run().exits(0);
}
