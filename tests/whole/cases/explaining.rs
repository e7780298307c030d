//! Tests explanations: of the sandbox setup, of present and missing variables, and of fixes for a machine.

use serde_json::Value;

use super::degrading::lacking;
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, NEEDS_PYTHON, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    dry_case("explaining::the_sandbox_is_told_in_order_once_for_steps_that_are_alike", sandbox),
    dry_case("explaining::a_variable_says_why_it_is_there_or_not", variable),
    dry_case("explaining::what_makes_no_sense_is_a_usage_error", misused),
    case("explaining::a_whole_machine_has_nothing_to_mend", whole),
    case("explaining::a_machine_without_landlock_is_told_what_to_do", without_landlock).needs(NEEDS_PYTHON),
    case("", without_namespaces)
        .needs(NEEDS_PYTHON)
        .unprivileged("explaining::a_machine_without_namespaces_is_told_what_to_do"),
];

fn two_steps(env: &TestEnvironment) -> Repo<'_> {
    let online = Step::argv("online", &["true"]).with("network: allow");
    let steps = [Step::argv("one", &["true"]), Step::argv("two", &["true"]), online];
    env.repo(&Spec::new([Skill::new("verify.it", steps)]).with_default("env_allowlist: [CI_JOB, GIT_DIR]"))
}

fn sandbox(env: &TestEnvironment) {
    let repo = two_steps(env);
    let all = repo.proctor(&["explain", "sandbox"]).exits(0).stdout;
    let groups: Vec<&str> = all.lines().filter(|line| line.starts_with("of ")).collect();
    assert_eq!(groups, ["of verify.it/one, verify.it/two", "of verify.it/online"], "{all}");
    let one = repo.proctor(&["explain", "sandbox", "verify.it/one"]).exits(0).stdout;
    let online = repo.proctor(&["explain", "sandbox", "verify.it/online"]).exits(0).stdout;
    assert!(one.contains("set the loopback device up") && !online.contains("set the loopback device up"), "{online}");
    let numbers: Vec<usize> = one.lines().filter_map(|line| line.split_whitespace().next()?.parse().ok()).collect();
    assert_eq!(numbers, (1..=numbers.len()).collect::<Vec<_>>(), "{one}");
    // The explanation of the step ends with the same list.
    let whole = repo.proctor(&["explain", "verify.it/one"]).exits(0).stdout;
    assert!(whole.ends_with(one.split_once('\n').expect("a line").1), "{whole}");
}

fn variable(env: &TestEnvironment) {
    env.caller_has("CI_JOB", "a-secret-value");
    env.caller_has("GIT_DIR", "/elsewhere");
    env.caller_has("OTHER", "x");
    let repo = two_steps(env);
    for (name, said) in [
        ("CI_JOB", "there CI_JOB: from the caller"),
        ("GIT_DIR", "missing GIT_DIR: it steers git"),
        ("OTHER", "missing OTHER: the caller has it"),
        ("NOBODY", "missing NOBODY: neither the caller nor the spec sets it"),
        ("LANG", "there LANG: given to every step; its value is `C.UTF-8`"),
    ] {
        let told = repo.proctor(&["explain", "env", "--var", name]).exits(0);
        assert!(told.stdout.contains(said) && !told.everything().contains("a-secret-value"), "{told}");
    }
}

fn misused(env: &TestEnvironment) {
    let repo = two_steps(env);
    for (words, said) in [
        (&["explain", "sandbox", "--var", "CI"][..], "run `proctor explain env --var CI`"),
        (&["explain", "verify.it/one", "verify.it/two"], "stands behind a step"),
        (&["explain", "sandbox", "verify.it/none"], "no step `verify.it/none`"),
        (&["explain", "env", "--var", "A=B"], "without `=`"),
    ] {
        repo.proctor(words).exits(2).complains(&[said]);
    }
}

fn through(repo: &Repo<'_>, env: &TestEnvironment, lacks: &[&str], words: &[&str]) -> Finished {
    env.finish(env.start_through(repo.path(), &lacking(lacks), words))
}

/// Checks that a shell can parse the script, and returns its lines except comments.
fn commands(env: &TestEnvironment, script: &str) -> Vec<String> {
    let file = env.root().join("fix.sh");
    machine::write(&file, script);
    let mut shell = machine::command("sh");
    shell.arg("-n").arg(&file);
    Running::start(shell).wait().exits(0);
    script.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

fn whole(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let script = repo.proctor(&["doctor", "--fix"]).exits(0).stdout;
    let only_groups = script.lines().all(|line| !line.starts_with("# ") || !line.contains("_namespace"));
    assert!(only_groups, "{script}");
    commands(env, &script);
}

fn without_landlock(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let lacks = ["landlock_create_ruleset=ENOSYS"];
    let script = through(&repo, env, &lacks, &["doctor", "--fix"]).exits(5).stdout;
    assert!(script.starts_with("# nothing of this was executed") && script.contains("\n# landlock"), "{script}");
    commands(env, &script);
    let json = through(&repo, env, &lacks, &["doctor", "--fix", "--format", "json"]).exits(5).stdout;
    let document: Value = serde_json::from_str(&json).expect("JSON");
    let of_landlock =
        |fix: &Value| fix["controls"].as_array().is_some_and(|all| all.iter().any(|one| one == "landlock"));
    assert!(document["fixes"].as_array().expect("a list").iter().any(of_landlock), "{json}");
}

fn without_namespaces(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let script = through(&repo, env, &["namespaces"], &["doctor", "--fix"]).exits(5).stdout;
    assert!(script.contains("\n# user_namespace, mount_namespace, "), "{script}");
    commands(env, &script);
}
