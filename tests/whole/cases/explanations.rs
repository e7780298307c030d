//! Tests explanations: of the sandbox setup, of present and missing variables, and of fixes for a machine.

use serde_json::Value;

use super::missing_controls::wrapper_without;
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    dry_case("explanations::sandbox_setup_is_listed_in_order_once_for_equal_steps", explains_sandbox_once_per_setup),
    dry_case("explanations::explain_env_gives_the_origin_or_absence_of_a_variable", explains_variable),
    dry_case("explanations::contradictory_arguments_are_a_usage_error", rejects_invalid_arguments),
    case("explanations::complete_machine_needs_no_fix", complete_machine_needs_no_fix),
    case("explanations::fix_is_printed_for_a_machine_without_landlock", fix_for_missing_landlock).needs(NEEDS_PYTHON),
    case("", fix_for_missing_namespaces)
        .needs(NEEDS_PYTHON)
        .unprivileged("explanations::fix_is_printed_for_a_machine_without_namespaces"),
];

fn repo_with_online_step(env: &TestEnvironment) -> Repo<'_> {
    let online = TestStep::argv("online", &["true"]).with_field("network: allow");
    let steps = [TestStep::argv("one", &["true"]), TestStep::argv("two", &["true"]), online];
    env.repo(&TestSpec::new([TestSkill::new("verify.it", steps)]).with_default("env_allowlist: [CI_JOB, GIT_DIR]"))
}

fn explains_sandbox_once_per_setup(env: &TestEnvironment) {
    let repo = repo_with_online_step(env);
    let all = repo.proctor(&["explain", "sandbox"]).exits(0).stdout;
    let groups: Vec<&str> = all.lines().filter(|line| line.starts_with("of ")).collect();
    assert_eq!(groups, ["of verify.it/one, verify.it/two", "of verify.it/online"], "{all}");
    let one = repo.proctor(&["explain", "sandbox", "verify.it/one"]).exits(0).stdout;
    let online = repo.proctor(&["explain", "sandbox", "verify.it/online"]).exits(0).stdout;
    assert!(
        one.contains("bring the loopback device up") && !online.contains("bring the loopback device up"),
        "{online}"
    );
    let numbers: Vec<usize> = one.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>(), "{one}");
    // The explanation of the step ends with the same list.
    let step_explanation = repo.proctor(&["explain", "verify.it/one"]).exits(0).stdout;
    assert!(step_explanation.ends_with(one.split_once('\n').expect("a line").1), "{step_explanation}");
}

fn explains_variable(env: &TestEnvironment) {
    env.set_caller_var("CI_JOB", "a-secret-value");
    env.set_caller_var("GIT_DIR", "/elsewhere");
    env.set_caller_var("OTHER", "x");
    let repo = repo_with_online_step(env);
    for (name, expected) in [
        ("CI_JOB", "there CI_JOB: from the caller"),
        ("GIT_DIR", "missing GIT_DIR: it controls git"),
        ("OTHER", "missing OTHER: the caller has set it"),
        ("NOBODY", "missing NOBODY: neither the caller nor the spec sets it"),
        ("LANG", "there LANG: given to every step; its value is `C.UTF-8`"),
    ] {
        let explanation = repo.proctor(&["explain", "env", "--var", name]).exits(0);
        assert!(
            explanation.stdout.contains(expected) && !explanation.all_output().contains("a-secret-value"),
            "{explanation}"
        );
    }
}

fn rejects_invalid_arguments(env: &TestEnvironment) {
    let repo = repo_with_online_step(env);
    for (words, expected) in [
        (&["explain", "sandbox", "--var", "CI"][..], "run `proctor explain env --var CI`"),
        (&["explain", "verify.it/one", "verify.it/two"], "cannot follow a step"),
        (&["explain", "sandbox", "verify.it/none"], "no step `verify.it/none`"),
        (&["explain", "env", "--var", "A=B"], "without `=`"),
    ] {
        repo.proctor(words).exits(2).prints_to_stderr(&[expected]);
    }
}

fn proctor_without(repo: &Repo<'_>, env: &TestEnvironment, lacks: &[&str], words: &[&str]) -> FinishedProcess {
    env.finish(env.start_through(repo.path(), &wrapper_without(lacks), words))
}

/// Checks that a shell can parse the script, and returns its lines except comments.
fn shell_commands(env: &TestEnvironment, script: &str) -> Vec<String> {
    let file = env.root().join("fix.sh");
    machine::write(&file, script);
    let mut shell = machine::command("sh");
    shell.arg("-n").arg(&file);
    RunningProcess::start(shell).wait().exits(0);
    script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn complete_machine_needs_no_fix(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let script = repo.proctor(&["doctor", "--fix"]).exits(0).stdout;
    let only_groups = script.lines().all(|line| !line.starts_with("# ") || !line.contains("_namespace"));
    assert!(only_groups, "{script}");
    shell_commands(env, &script);
}

fn fix_for_missing_landlock(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let lacks = ["landlock_create_ruleset=ENOSYS"];
    let script = proctor_without(&repo, env, &lacks, &["doctor", "--fix"]).exits(5).stdout;
    assert!(script.starts_with("# none of these commands was executed") && script.contains("\n# landlock"), "{script}");
    shell_commands(env, &script);
    let json = proctor_without(&repo, env, &lacks, &["doctor", "--fix", "--format", "json"]).exits(5).stdout;
    let document: Value = serde_json::from_str(&json).expect("JSON");
    let is_for_landlock =
        |fix: &Value| fix["controls"].as_array().is_some_and(|all| all.iter().any(|one| one == "landlock"));
    assert!(document["fixes"].as_array().expect("a list").iter().any(is_for_landlock), "{json}");
}

fn fix_for_missing_namespaces(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let script = proctor_without(&repo, env, &["namespaces"], &["doctor", "--fix"]).exits(5).stdout;
    assert!(script.contains("\n# user_namespace, mount_namespace, "), "{script}");
    shell_commands(env, &script);
}
