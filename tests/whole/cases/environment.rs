//! Tests which variables a step receives, and which never reach the step or the record.

use crate::environment::TestEnvironment;
use crate::machine;
use crate::needs::{Case, NEEDS_GIT, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("environment::a_secret_of_the_caller_reaches_nothing", secrets),
    case("environment::the_allow_list_and_env_pass_and_env_wins", allow_list),
    case("environment::what_steers_git_loaders_and_proxies_never_passes", steering_variables),
    case("environment::git_dir_of_the_caller_does_not_choose_the_repository", foreign_git_dir).needs(NEEDS_GIT),
    case("environment::only_what_is_known_is_there", closed_list),
    case("environment::env_that_the_spec_sets_is_given_whatever_it_is", env_may_set_anything),
    case("environment::standard_input_is_empty", empty_stdin),
];

const SECRET: &str = "hunter2-is-the-secret-of-the-caller";

/// Returns the environment that the step `it` printed with `env`.
fn printed(repo: &crate::environment::Repo<'_>) -> Vec<String> {
    let step = repo.step("it");
    let text =
        format!("{}{}", step["stdout_preview"].as_str().expect("text"), step["stdout_tail"].as_str().expect("text"));
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn secrets(env: &TestEnvironment) {
    env.caller_has("AWS_SECRET_ACCESS_KEY", SECRET);
    env.caller_has("lower_case_token", SECRET);
    let script = "env; cat /proc/self/environ /proc/1/environ /proc/$PPID/environ 2>/dev/null; cat /proc/*/environ 2>/dev/null; true";
    let repo = env.repo(&Spec::of_script(script));
    let run = repo.run().exits(0);
    assert!(!run.everything().contains(SECRET), "on screen");
    let runs = repo.run_with(&["--format", "jsonl"]).exits(0);
    assert!(!runs.everything().contains(SECRET), "in an event");
    for path in machine::walk(env.root()).into_iter().filter(|path| path.is_file()) {
        let bytes = std::fs::read(&path).unwrap_or_default();
        assert!(!bytes.windows(SECRET.len()).any(|window| window == SECRET.as_bytes()), "in {}", path.display());
    }
}

fn allow_list(env: &TestEnvironment) {
    env.caller_has("RUST_LOG", "from-the-caller");
    env.caller_has("BUILD_NUMBER", "17");
    env.caller_has("TERM_COLOR", "from-the-caller");
    let step = Step::sh("it", "env").with("env: { TERM_COLOR: from-the-spec }");
    let repo = env.repo(&Spec::of_steps([step]).with_default("env_allowlist: [RUST_LOG, TERM_COLOR, NOT_SET]"));
    repo.run().exits(0);
    let printed = printed(&repo);
    for line in ["RUST_LOG=from-the-caller", "TERM_COLOR=from-the-spec"] {
        assert!(printed.contains(&line.to_owned()), "{line} not in {printed:?}");
    }
    assert!(!printed.iter().any(|line| line.starts_with("BUILD_NUMBER") || line.starts_with("NOT_SET")), "{printed:?}");
    let step = repo.step("it");
    assert_eq!(step["env_allowlist"], serde_json::json!(["RUST_LOG", "TERM_COLOR", "NOT_SET"]));
    let names = step["env_names"].as_array().expect("a list");
    assert!(names.contains(&"RUST_LOG".into()) && !names.contains(&"NOT_SET".into()), "{names:?}");
}

fn steering_variables(env: &TestEnvironment) {
    let steering = ["GIT_INDEX_FILE", "BASH_ENV", "HTTP_PROXY", "NODE_OPTIONS", "PYTHONPATH", "LD_LIBRARY_PATH"];
    for name in steering {
        env.caller_has(name, "/steered/elsewhere");
    }
    for name in ["http_proxy", "https_proxy", "LD_PRELOAD"] {
        env.caller_has(name, "/steered/elsewhere");
    }
    let list = format!("env_allowlist: [{}]", steering.join(", "));
    let repo = env.repo(&Spec::of_script("env").with_default(&list));
    repo.run().exits(0);
    let printed = printed(&repo);
    assert!(!printed.iter().any(|line| line.contains("/steered/elsewhere")), "{printed:?}");
}

fn foreign_git_dir(env: &TestEnvironment) {
    let other = env.repo_at("other", &Spec::of_script("echo the wrong one"));
    env.caller_has("GIT_DIR", other.file(".git").to_str().expect("UTF-8"));
    env.caller_has("GIT_WORK_TREE", other.path().to_str().expect("UTF-8"));
    let repo = env.repo(&Spec::of_script("git rev-parse --show-toplevel"));
    repo.run().exits(0);
    assert_eq!(printed(&repo), [repo.path().to_str().expect("UTF-8")]);
    assert!(other.is_untouched());
}

fn closed_list(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::argv("it", &["env"])]));
    repo.run().exits(0);
    let printed: Vec<String> =
        printed(&repo).into_iter().map(|line| line.split('=').next().unwrap_or_default().to_owned()).collect();
    let recorded = repo.step("it")["env_names"].clone();
    let recorded: Vec<&str> = recorded.as_array().expect("a list").iter().filter_map(|name| name.as_str()).collect();
    let mut sorted: Vec<&str> = printed.iter().map(String::as_str).collect();
    sorted.sort_unstable();
    assert_eq!(sorted, recorded, "the record names other variables than the step had");
    for name in ["PATH", "HOME", "TMPDIR", "LANG", "CI", "TEST_MARKER"] {
        assert!(sorted.contains(&name), "{name} is missing: {sorted:?}");
    }
}

fn env_may_set_anything(env: &TestEnvironment) {
    let step = Step::sh("it", "env").with("env: { HTTP_PROXY: \"http://127.0.0.1:1\", GIT_AUTHOR_NAME: me }");
    let repo = env.repo(&Spec::of_steps([step]));
    repo.run().exits(0);
    let printed = printed(&repo);
    assert!(printed.contains(&"HTTP_PROXY=http://127.0.0.1:1".to_owned()), "{printed:?}");
    assert!(printed.contains(&"GIT_AUTHOR_NAME=me".to_owned()), "{printed:?}");
}

fn empty_stdin(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("[ -z \"$(cat)\" ] && ! [ -t 0 ] && ! (: < /dev/tty) 2>/dev/null"));
    repo.run().exits(0);
}
