//! Tests steps that check files, runs that are restricted to some files or steps, and fixes.

use rustix::process::Signal;
use serde_json::Value;

use super::hooks::start_git;
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

const NEEDS_GIT_AND_SANDBOX: &[Needs] = &[Needs::Sandbox, Needs::Program("git")];

pub(super) const CASES: &[CaseDefinition] = &[
    case("files::chosen_files_are_the_arguments_of_the_command", passes_chosen_files).daemon_sample(),
    case("files::chosen_files_are_arguments_for_an_ordinary_user", passes_chosen_files)
        .unprivileged("files::chosen_files_are_arguments_for_an_ordinary_user"),
    case("files::many_files_are_checked_in_batches", checks_many_files_in_batches),
    case("files::run_of_changed_files_does_not_count_for_all", changed_files_do_not_count_for_all).daemon_sample(),
    case("files::restriction_without_effect_counts_as_a_whole_run", restriction_without_effect_is_whole),
    case("files::changed_files_count_for_all_if_the_others_have_passed", changed_files_count_for_all_with_per_file)
        .needs(&[Needs::Sandbox, Needs::Views])
        .daemon_sample(),
    case("files::step_without_files_never_makes_a_pass", step_without_files_does_not_pass),
    case("files::deleted_file_starts_a_step_without_arguments", deleted_file_starts_step),
    case("files::file_that_a_step_loses_starts_it_without_arguments", lost_file_starts_step),
    case("files::repository_in_the_tree_stands_for_its_files", nested_repository_stands_for_its_files)
        .needs(NEEDS_GIT_AND_SANDBOX),
    case("files::files_that_never_existed_are_refused", refuses_files_that_never_existed).daemon_sample(),
    case("files::selected_steps_run_alone", selected_steps_run_alone).daemon_sample(),
    case("files::fix_is_applied_before_its_check", fix_is_applied).daemon_sample(),
    case("files::hooks_check_staged_and_pushed_files", hooks_check_their_files).needs(NEEDS_GIT_AND_SANDBOX),
    case("files::forced_push_checks_files_that_the_branch_drops", forced_push_checks_dropped_files)
        .needs(NEEDS_GIT_AND_SANDBOX),
    case("files::run_of_changed_files_does_not_count_for_all_in_sha256", changed_files_do_not_count_for_all)
        .with_sha256(),
    case("files::run_of_changed_files_does_not_count_for_all_in_reftables", changed_files_do_not_count_for_all)
        .with_reftables(),
    case("files::changed_files_are_compared_by_their_bytes", compares_bytes).needs(NEEDS_GIT_AND_SANDBOX),
    case("files::changed_files_are_compared_by_their_bytes_in_sha256", compares_bytes).with_sha256(),
    case("files::changed_files_are_compared_by_their_bytes_in_reftables", compares_bytes).with_reftables(),
    case("files::deleted_file_starts_a_step_without_arguments_in_sha256", deleted_file_starts_step).with_sha256(),
    case("files::watch_runs_again_after_each_change", watch_runs_again),
    case("files::paths_work_below_a_directory_with_its_own_spec", paths_below_own_spec),
    dry_case("files::contradictory_restrictions_are_refused", refuses_contradictions),
];

/// Prints the number of files, then each file in brackets; fails for a file that contains `BAD`.
const CHECK: &str =
    r#"echo "$# files"; bad=0; for f; do echo "[$f]"; if grep -q BAD "$f"; then bad=1; fi; done; exit $bad"#;

/// Returns a step that checks files; `fields` is YAML.
fn file_step(name: &str, fields: &[&str]) -> TestStep {
    let step = TestStep::argv(name, &["sh", "-c", CHECK, "sh", "{files}"]);
    fields.iter().fold(step, |step, field| step.with_field(field))
}

fn python_repo<'e>(env: &'e TestEnvironment, fields: &[&str]) -> Repo<'e> {
    let fields = [&["files: { types: [python] }"], fields].concat();
    let repo = env.repo(&TestSpec::new([TestSkill::new("s", [file_step("it", &fields)])]));
    repo.write("src/a.py", "a\n");
    repo.write("src/b.py", "b\n");
    repo.commit();
    repo
}

/// Runs without a changeset, and returns the record.
#[track_caller]
fn record(repo: &Repo<'_>, arguments: &[&str], code: i32) -> Value {
    let finished = repo.run_with_only(&[arguments, &["--format", "json"]].concat()).exits(code);
    serde_json::from_str(&finished.stdout).unwrap_or_else(|error| panic!("{error}: {finished}"))
}

fn first_step(record: &Value) -> &Value {
    &record["skills"][0]["steps"][0]
}

fn run_git(repo: &Repo<'_>, env: &TestEnvironment, arguments: &[&str]) -> FinishedProcess {
    env.finish(start_git(repo, env, arguments))
}

fn lines(step: &Value) -> Vec<String> {
    step["stdout_preview"].as_str().expect("text").lines().map(str::to_owned).collect()
}

fn gate(repo: &Repo<'_>) -> FinishedProcess {
    repo.proctor(&["gate"])
}

fn passes_chosen_files(env: &TestEnvironment) {
    let rules = "files: { include: [\"src/**\", \"regex:^tool\"], exclude: [\"**/gen_*\"], types: [python] }";
    let repo = env.repo(&TestSpec::new([TestSkill::new(
        "s",
        [file_step("it", &[rules]), file_step("below", &["files: { types: [python] }", "workdir: src"])],
    )]));
    for path in ["src/a.py", "src/with space.py", "src/gen_b.py", "src/-rf.py", "src/c.rs", "top.py"] {
        repo.write(path, "x\n");
    }
    repo.write("tool", "#!/usr/bin/env python3\n");
    repo.git(&["add", "tool"]);
    repo.git(&["update-index", "--chmod=+x", "tool"]);
    std::fs::set_permissions(repo.file("tool"), std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("a mode");
    repo.write(".gitignore", "src/ignored.py\n");
    repo.write("src/ignored.py", "x\n");
    let record = record(&repo, &[], 0);
    let step = first_step(&record);
    let expected = ["4 files", "[src/-rf.py]", "[src/a.py]", "[src/with space.py]", "[tool]"];
    assert_eq!(lines(step), expected);
    assert_eq!((&step["checked_files"]["count"], &step["checked_files"]["batches"]), (&4.into(), &1.into()));
    assert_eq!(step["cmd"][4], "{files}", "the record has the command as planned");
    let below = &record["skills"][0]["steps"][1];
    assert_eq!(lines(below), ["4 files", "[./-rf.py]", "[a.py]", "[gen_b.py]", "[with space.py]"]);
    assert!(record["started"]["scope"].is_null(), "the run is a whole one");
    gate(&repo).exits(0);
}

fn checks_many_files_in_batches(env: &TestEnvironment) {
    let count = r#"echo "$#"; for f; do case $f in *bad*) exit 3;; esac; done"#;
    let step = |fields: &[&str]| {
        let step =
            TestStep::argv("it", &["sh", "-c", count, "sh", "{files}"]).with_field("files: { include: [\"d/**\"] }");
        TestSpec::new([TestSkill::new("s", [fields.iter().fold(step, |step, field| step.with_field(field))])])
    };
    let repo = env.repo(&step(&[]));
    // Their paths are longer together than the arguments of one command.
    let long = "x".repeat(240);
    for number in 0..2500 {
        repo.write(&format!("d/{long}_{number:04}"), "");
    }
    let whole = record(&repo, &[], 0);
    let counts: Vec<u64> = lines(first_step(&whole)).iter().map(|line| line.parse().expect("a number")).collect();
    assert!(counts.len() > 1 && counts.iter().sum::<u64>() == 2500, "{counts:?}");
    assert_eq!(first_step(&whole)["checked_files"]["batches"], counts.len());
    // Of several batches at once, the output keeps its order, and one failure is enough.
    repo.write("spec/verification.yaml", step(&["parallel: 3"]).to_yaml(env.marker()));
    repo.write("d/bad", "");
    let parallel = record(&repo, &[], 1);
    let step = first_step(&parallel);
    assert_eq!(lines(step), ["834", "834", "833"].map(str::to_owned));
    assert_eq!((step["exit_code"].as_i64(), step["outcome"].as_str()), (Some(3), Some("failed")));
    // A failure is not hidden by a higher exit code that another batch may have.
    let codes = r#"for f; do case $f in *bad) exit 1;; *2499) exit 5;; esac; done"#;
    let step = TestStep::argv("it", &["sh", "-c", codes, "sh", "{files}"]);
    let step = step.with_field("files: { include: [\"d/**\"] }").with_field("expect: { exit: [0, 5] }");
    repo.write("spec/verification.yaml", TestSpec::new([TestSkill::new("s", [step])]).to_yaml(env.marker()));
    assert_eq!(first_step(&record(&repo, &[], 1))["exit_code"], 1);
    // A missing program is not a failure of the check.
    let missing = TestStep::argv("it", &["no-such-program", "{files}"]).with_field("files: { include: [\"d/**\"] }");
    repo.write("spec/verification.yaml", TestSpec::new([TestSkill::new("s", [missing])]).to_yaml(env.marker()));
    assert_eq!(first_step(&record(&repo, &[], 5))["termination"]["fault"], "program_missing");
}

fn changed_files_do_not_count_for_all(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    repo.write("src/a.py", "changed\n");
    repo.write("src/new.py", "new\n");
    repo.write("README.md", "no python\n");
    let base = repo.git(&["rev-parse", "HEAD"]);
    let changed = record(&repo, &["--changed"], 0);
    assert_eq!(lines(first_step(&changed)), ["2 files", "[src/a.py]", "[src/new.py]"]);
    let scope = &changed["started"]["scope"]["files"];
    assert_eq!((scope["origin"].as_str(), scope["base"].as_str()), (Some("changed"), Some(base.trim())));
    assert_eq!(scope["count"], 3, "README.md has changed too");
    gate(&repo).exits(1).prints(&["did not cover the whole profile: 3 files changed since"]);
    let named = record(&repo, &["--files", "src/b.py"], 0);
    assert_eq!(lines(first_step(&named)), ["1 files", "[src/b.py]"]);
    gate(&repo).exits(1);
    // The changes of a branch count from its merge base.
    repo.commit();
    repo.git(&["branch", "side", base.trim()]);
    repo.git(&["checkout", "--quiet", "-B", "other", "side"]);
    repo.write("src/side.py", "side\n");
    repo.commit();
    let since_main = record(&repo, &["--changed", "main"], 0);
    assert_eq!(lines(first_step(&since_main)), ["1 files", "[src/side.py]"]);
    record(&repo, &[], 0);
    gate(&repo).exits(0);
}

/// Git reports none of these changes.
fn compares_bytes(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    repo.write(".gitattributes", "*.py text=auto\n");
    repo.write(".gitignore", "shown.py\n");
    repo.write("src/.gitignore", "!shown.py\n");
    for name in ["absent", "skipped", "untracked"] {
        repo.write(&format!("src/{name}.py"), "fine\n");
    }
    repo.commit();
    repo.git(&["update-index", "--skip-worktree", "src/absent.py", "src/skipped.py"]);
    repo.git(&["rm", "--quiet", "--cached", "src/untracked.py"]);
    std::fs::remove_file(repo.file("src/absent.py")).expect("removed");
    repo.write("src/skipped.py", "other\n");
    repo.write("src/untracked.py", "other\n");
    repo.write("src/b.py", "b\r\n");
    repo.write("src/shown.py", "new\n");
    let changed = record(&repo, &["--changed"], 0);
    let expected = ["4 files", "[src/b.py]", "[src/shown.py]", "[src/skipped.py]", "[src/untracked.py]"];
    assert_eq!(lines(first_step(&changed)), expected);
}

fn restriction_without_effect_is_whole(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    let whole = record(&repo, &["--files", "src"], 0);
    assert_eq!(first_step(&whole)["checked_files"]["covers_all"], true, "{whole:#}");
    gate(&repo).exits(0);
}

fn changed_files_count_for_all_with_per_file(env: &TestEnvironment) {
    let skill = TestSkill::new("s", [file_step("it", &["files: { types: [python] }", "per_file: true"])]);
    let repo = env.repo(&TestSpec::new([skill.with_field("needs: []")]));
    repo.write("README.md", "no python\n");
    for name in ["a", "b", "c"] {
        repo.write(&format!("src/{name}.py"), "fine\n");
    }
    repo.commit();
    // No run has checked `c.py`.
    record(&repo, &["--files", "src/a.py"], 0);
    let part = record(&repo, &["--files", "src/b.py"], 0);
    assert_eq!(lines(first_step(&part)), ["1 files", "[src/b.py]"]);
    gate(&repo).exits(1).prints(&["did not cover the whole profile"]);
    let last = record(&repo, &["--files", "src/c.py"], 0);
    assert_eq!(lines(first_step(&last)), ["1 files", "[src/c.py]"]);
    let checked = &first_step(&last)["checked_files"];
    assert_eq!((&checked["covers_all"], &checked["count"], &checked["reused"]), (&true.into(), &3.into(), &2.into()));
    gate(&repo).exits(0);

    // The same holds after an edit, and for a run that checks no file.
    repo.write("src/b.py", "also fine\n");
    gate(&repo).exits(1);
    record(&repo, &["--files", "README.md"], 0);
    gate(&repo).exits(1);
    let edited = record(&repo, &["--changed"], 0);
    assert_eq!(lines(first_step(&edited)), ["1 files", "[src/b.py]"]);
    gate(&repo).exits(0);
    record(&repo, &["--files", "README.md"], 0);
    gate(&repo).exits(0);

    // A file that fails never counts as passed.
    repo.write("src/a.py", "BAD\n");
    record(&repo, &["--changed"], 1);
    record(&repo, &["--files", "src/b.py"], 0);
    gate(&repo).exits(1);
}

fn step_without_files_does_not_pass(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([TestSkill::new("s", [file_step("it", &["files: { types: [python] }"])])]));
    let none = record(&repo, &[], 2);
    assert_eq!(
        (first_step(&none)["outcome"].as_str(), none["finished"]["verdict"].as_str()),
        (Some("no_files"), Some("inconclusive"))
    );
    gate(&repo).exits(5);
    // If another step runs, the run passes with a warning.
    let steps = [file_step("it", &["files: { types: [python] }"]), TestStep::sh("other", "true")];
    repo.write("spec/verification.yaml", TestSpec::new([TestSkill::new("s", steps)]).to_yaml(env.marker()));
    repo.run_with_only(&[]).exits(0).prints(&["found no file to check in the whole tree", "1 without files"]);
    gate(&repo).exits(0);
}

fn deleted_file_starts_step(env: &TestEnvironment) {
    let steps = [
        TestStep::sh("whole", "ls src").with_field("files: { include: [\"src/**/*.py\"] }"),
        file_step("each", &["files: { include: [\"src/**\"] }"]),
    ];
    let repo = env.repo(&TestSpec::new([TestSkill::new("s", steps)]));
    repo.write("src/gone.py", "x\n");
    repo.commit();
    std::fs::remove_file(repo.file("src/gone.py")).expect("removed");
    let changed = record(&repo, &["--changed"], 0);
    let outcomes = |record: &Value| {
        let outcome = |at: usize| record["skills"][0]["steps"][at]["outcome"].clone();
        (outcome(0), outcome(1))
    };
    assert_eq!(outcomes(&changed), ("passed".into(), "no_files".into()));
    assert_eq!(outcomes(&record(&repo, &["--files", "src/gone.py"], 0)), ("passed".into(), "no_files".into()));
    // A directory stands for the files that were deleted in it, whether others remain or not.
    assert_eq!(outcomes(&record(&repo, &["--files", "src"], 0)).0, "passed");
    repo.write("src/deep/gone.py", "x\n");
    repo.commit();
    std::fs::remove_dir_all(repo.file("src/deep")).expect("removed");
    assert_eq!(outcomes(&record(&repo, &["--files", "src/deep"], 0)), ("passed".into(), "no_files".into()));
}

/// A change can take a file away from a step without a deletion, or delete a file that is not a plain one.
fn lost_file_starts_step(env: &TestEnvironment) {
    let whole =
        |name: &str, types: &str| TestStep::sh(name, "true").with_field(&format!("files: {{ types: [{types}] }}"));
    let steps = [whole("scripts", "executable"), whole("links", "symlink"), whole("python", "python")];
    let repo = env.repo(&TestSpec::new([TestSkill::new("s", steps)]));
    for script in ["tool.sh", "gone.sh"] {
        repo.write(script, "#!/bin/sh\n");
        machine::make_executable(&repo.file(script));
    }
    repo.link("link.txt", std::path::Path::new("a.py"));
    repo.write("a.py", "a\n");
    repo.commit();
    let outcomes = || {
        let record = record(&repo, &["--changed"], 0);
        let steps = record["skills"][0]["steps"].as_array().expect("steps").clone();
        steps.iter().map(|step| step["outcome"].as_str().expect("text").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(outcomes(), ["no_files"; 3]);
    std::fs::remove_file(repo.file("gone.sh")).expect("removed");
    assert_eq!(outcomes()[0], "passed", "an executable file was deleted");
    repo.git(&["reset", "--hard"]);
    repo.git(&["update-index", "--chmod=-x", "tool.sh"]);
    repo.git(&["checkout-index", "--force", "tool.sh"]);
    assert_eq!(
        (outcomes()[0].as_str(), outcomes()[2].as_str()),
        ("passed", "no_files"),
        "a file is no longer executable"
    );
    repo.git(&["reset", "--hard"]);
    std::fs::remove_file(repo.file("link.txt")).expect("removed");
    assert_eq!((outcomes()[1].as_str(), outcomes()[2].as_str()), ("passed", "no_files"), "a link was deleted");
    repo.git(&["reset", "--hard"]);
    std::fs::remove_file(repo.file("a.py")).expect("removed");
    repo.link("a.py", std::path::Path::new("tool.sh"));
    assert_eq!(outcomes()[2], "passed", "a link replaced a file");
}

fn nested_repository_stands_for_its_files(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    repo.write("inner/deep/c.py", "BAD\n");
    for arguments in [&["init"][..], &["add", "--all"], &["commit", "--message", "inner"]] {
        env.git(&repo.file("inner"), arguments);
    }
    let named = record(&repo, &["--files", "inner"], 1);
    assert_eq!(first_step(&named)["checked_files"]["count"], 1, "{named}");
}

fn refuses_files_that_never_existed(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    let refused = repo.run_with_only(&["--files", "src/a.py", "src/typo.py"]).exits(2);
    refused.prints_to_stderr(&["`src/typo.py` does not exist, and git does not track it either", "correct the path"]);
    // Git knows a file in the index, and in an older commit.
    repo.write("old/gone.py", "x\n");
    repo.commit();
    std::fs::remove_dir_all(repo.file("old")).expect("removed");
    repo.run_with_only(&["--files", "old"]).exits(0);
    repo.commit();
    repo.run_with_only(&["--files", "old"]).exits(2);
    repo.run_with_only(&["--rev", "HEAD~1", "--files", "old"]).exits(0);
    repo.write("src/staged.py", "x\n");
    repo.git(&["add", "src/staged.py"]);
    std::fs::remove_file(repo.file("src/staged.py")).expect("removed");
    repo.run_with_only(&["--files", "src/staged.py"]).exits(0);
}

fn selected_steps_run_alone(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::new([
        TestSkill::new("a", [TestStep::sh("one", "true"), TestStep::sh("two", "false")]),
        TestSkill::new("b", [TestStep::sh("it", "true")]),
    ]));
    let one = record(&repo, &["a/one"], 0);
    assert_eq!(one["skills"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["skills"][0]["planned"], serde_json::json!(["one"]));
    assert_eq!(one["started"]["scope"]["selected"], serde_json::json!(["a/one"]));
    gate(&repo).exits(1).prints(&["only a/one"]);
    record(&repo, &["b", "a/two"], 1);
    repo.run_with_only(&["a/thre"]).exits(2).prints_to_stderr(&["P0223", "no skill or step `a/thre`"]);
}

fn fix_is_applied(env: &TestEnvironment) {
    let repo = python_repo(env, &["fix: [sed, -i, s/BAD/good/, \"{files}\"]"]);
    repo.write("src/a.py", "BAD\n");
    record(&repo, &[], 1);
    assert_eq!(repo.read("src/a.py"), "BAD\n", "nothing is fixed unasked");
    let fixed = repo.run_with_only(&["--fix"]).exits(0);
    assert_eq!(repo.read("src/a.py"), "good\n");
    fixed.prints(&["src/a.py", "-BAD", "+good"]);
    gate(&repo).exits(1);
    record(&repo, &[], 0);
    gate(&repo).exits(0);
    // A fix may exit with a failure, since the check decides. A killed fix, and one that did not run, has no effect.
    let fix_with = |script: &str| {
        let fix = format!("fix: [sh, -c, \"{script}\"]");
        let step = file_step("it", &["files: { types: [python] }", &fix]);
        repo.write("spec/verification.yaml", TestSpec::new([TestSkill::new("s", [step])]).to_yaml(env.marker()));
        repo.run_with_only(&["--fix"])
    };
    fix_with("echo fine > src/a.py; exit 3").exits(0).prints(&["fixed s/it, and the command exited with 3", "+fine"]);
    let special = fix_with("echo finer > src/a.py; mkfifo src/pipe").exits(0);
    assert!(special.stdout.contains("+finer") && !special.stdout.contains("src/pipe"), "not applied:\n{special}");
    fix_with("exit 3").exits(0).prints(&["s/it.fix fixed nothing, and exited with 3"]);
    fix_with("echo BAD > src/a.py; exit 3").exits(1).prints(&["+BAD"]);
    assert_eq!(repo.read("src/a.py"), "BAD\n");
    for script in ["echo x > src/a.py; kill -9 $$", "echo x > src/a.py; exit 127", "echo x > src/a.py; exit 126"] {
        fix_with(script).exits(1);
        assert_eq!(repo.read("src/a.py"), "BAD\n", "{script}");
    }
    let none = TestSpec::new([TestSkill::new("s", [TestStep::sh("it", "true")])]);
    repo.write("spec/verification.yaml", none.to_yaml(env.marker()));
    repo.run_with_only(&["--fix"]).exits(2).prints_to_stderr(&["no selected step of the profile `pr` has a `fix`"]);
}

fn hooks_check_their_files(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    env.git(env.root(), &["init", "--quiet", "--bare", "remote.git"]);
    repo.git(&["remote", "add", "origin", "../remote.git"]);
    repo.proctor(&["hook", "install", "pre-commit", "pre-push"]).exits(0);
    let git = |arguments: &[&str]| run_git(&repo, env, arguments);
    // The first push sends everything.
    git(&["push", "origin", "main"]).exits(0);
    repo.write("src/old.py", "BAD\n");
    repo.git(&["add", "src/old.py"]);
    git(&["commit", "--no-verify", "-m", "a bad file"]).exits(0);
    git(&["push", "--no-verify", "origin", "main"]).exits(0);
    // A bad file that is not staged does not stop a commit.
    repo.write("src/a.py", "staged\n");
    repo.git(&["add", "src/a.py"]);
    repo.write("src/b.py", "BAD\n");
    git(&["commit", "-m", "a"]).exits(0);
    git(&["push", "origin", "main"]).exits(0);
    // A bad file that is staged, or in the pushed range, stops it.
    repo.git(&["add", "src/b.py"]);
    let only_new = |finished: FinishedProcess| {
        let output = finished.all_output();
        assert!(output.contains("[src/b.py]") && !output.contains("[src/old.py]"), "{output}");
    };
    only_new(git(&["commit", "-m", "b"]).exits(1));
    git(&["commit", "--no-verify", "-m", "b"]).exits(0);
    only_new(git(&["push", "origin", "main"]).exits(1));
    // On request, hooks check all files.
    repo.proctor(&["hook", "install", "--all-files", "pre-push"]).exits(0);
    assert!(git(&["push", "origin", "main"]).exits(1).all_output().contains("[src/old.py]"));
}

fn forced_push_checks_dropped_files(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    env.git(env.root(), &["init", "--quiet", "--bare", "remote.git"]);
    repo.git(&["remote", "add", "origin", "../remote.git"]);
    let git = |arguments: &[&str]| run_git(&repo, env, arguments);
    let commit = |path: &str, text: &str| {
        repo.write(path, text);
        repo.commit();
    };
    // The remote has a bad file, and a commit that repairs it.
    commit("src/old.py", "BAD\n");
    let bad = repo.git(&["rev-parse", "HEAD"]);
    commit("src/old.py", "good\n");
    git(&["push", "origin", "main"]).exits(0);
    repo.proctor(&["hook", "install", "pre-push"]).exits(0);
    // A forced push drops the repair, although none of its own commits changes the file.
    repo.git(&["reset", "--quiet", "--hard", bad.trim()]);
    commit("src/new.py", "good\n");
    let pushed = git(&["push", "--force", "origin", "main"]).exits(1);
    assert!(pushed.all_output().contains("[src/old.py]"), "{pushed}");
    // A forced push that keeps the repair checks only the files of both branches.
    repo.write("src/other.py", "BAD\n");
    repo.git(&["add", "src/other.py"]);
    repo.git(&["commit", "--quiet", "--message=a bad file of another branch"]);
    repo.git(&["push", "--quiet", "--no-verify", "origin", "HEAD:refs/heads/other"]);
    commit("src/old.py", "good again\n");
    git(&["push", "--force", "origin", "main"]).exits(0).prints(&["changed since"]);
}

fn watch_runs_again(env: &TestEnvironment) {
    let repo = python_repo(env, &["fix: [sed, -i, s/BAD/good/, \"{files}\"]"]);
    repo.write(".gitignore", "*.log\nhidden.py\n");
    repo.write("src/hidden.py", "BAD\n");
    let mut watching = repo.start_proctor(&["run", "--watch", "--verbose"]);
    watching.wait_for_stdout("2 files");
    watching.wait_for_stdout("waiting for changes");
    // An ignored file is no reason to run; the next change is reported alone.
    repo.write("x.log", "ignored\n");
    repo.write("src/a.py", "BAD\n");
    watching.wait_for_stdout("changed: src/a.py\n");
    watching.wait_for_stdout("partial run failed: 1 failed of 1 step, 1 file named");
    // A file in a new directory is noticed; the failed file is checked again.
    repo.write("new/deep/c.py", "c\n");
    watching.wait_for_stdout("2 files named");
    repo.write("src/a.py", "good\n");
    watching.wait_for_stdout("partial run passed");
    // After a change of the spec or of the ignore rules, all files are checked again.
    let spec = std::fs::read_to_string(repo.file("spec/verification.yaml")).expect("a spec");
    repo.write("spec/verification.yaml", format!("{spec}# another one\n"));
    watching.wait_for_stdout("the spec has changed: all files are checked");
    repo.write(".gitignore", "*.log\n");
    watching.wait_for_stdout("\nfailed: 1 failed of 1 step");
    // Rules outside of the tree count, too, and a comment is no rule.
    let exclude = repo.file(".git/info/exclude");
    machine::write(&exclude, "hidden.py\n");
    watching.wait_for_stdout("changed: info/exclude");
    watching.wait_for_stdout_times("\npassed: ", 2);
    machine::write(&exclude, "# a comment\nhidden.py\n");
    repo.write("../rules", "nothing.py\n");
    repo.git(&["config", "core.excludesFile", "../rules"]);
    watching.wait_for_stdout("changed: core.excludesFile");
    repo.write("../rules", "b.py\n");
    watching.wait_for_stdout_times("changed: core.excludesFile", 2);
    watching.signal(Signal::INT);
    env.finish(watching).exits(130);
    // The changes of a fix are no reason to run again.
    repo.write("src/a.py", "BAD\n");
    let mut fixing = repo.start_proctor(&["run", "--watch", "--fix"]);
    fixing.wait_for_stdout("+good");
    fixing.wait_for_stdout("waiting for changes");
    fixing.signal(Signal::INT);
    let fixed = env.finish(fixing).exits(130);
    assert_eq!(fixed.stdout.matches("partial run").count(), 1, "{fixed}");
}

fn paths_below_own_spec(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    let spec = TestSpec::new([TestSkill::new("s", [file_step("it", &["files: { types: [python] }"])])]);
    repo.write("svc/a/spec/verification.yaml", spec.to_yaml(env.marker()));
    repo.write("svc/a/src/q.py", "q\n");
    repo.write("svc/a/src/r.py", "r\n");
    repo.commit();
    repo.write("svc/a/src/q.py", "changed\n");
    let checked = |arguments: &[&str]| {
        let words = [&["run", "--format", "json"], arguments].concat();
        let finished = env.finish(env.start_in(&repo.file("svc/a/src"), &words)).exits(0);
        lines(first_step(&serde_json::from_str(&finished.stdout).expect("JSON")))
    };
    assert_eq!(checked(&[]), ["2 files", "[src/q.py]", "[src/r.py]"]);
    assert_eq!(checked(&["--changed"]), ["1 files", "[src/q.py]"]);
    assert_eq!(checked(&["--files", "r.py", "../../../src/a.py"]), ["1 files", "[src/r.py]"]);
}

fn refuses_contradictions(env: &TestEnvironment) {
    let repo = python_repo(env, &[]);
    repo.run_with_only(&["--changed", "--files", "src/a.py"]).exits(2);
    repo.run_with_only(&["--files", "../elsewhere"]).exits(2).prints_to_stderr(&["is not in the repository"]);
    repo.run_with_only(&["--changed", "no-such-branch"]).exits(2).prints_to_stderr(&["no-such-branch"]);
    repo.run_with_only(&["--changed", "main..HEAD"]).exits(2).prints_to_stderr(&["it is a range"]);
    repo.run_with(&["--changed"]).exits(2).prints_to_stderr(&["is not evidence for the changeset"]);
    repo.run_with_only(&["--fix", "--rev", "HEAD"]).exits(2);
}
