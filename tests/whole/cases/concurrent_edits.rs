//! Tests edits in the worktree during a run over the worktree itself: the run must not pass for an unverified tree.

use std::path::Path;

use crate::environment::{Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_GIT, case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("concurrent_edits::edit_is_reported", edit_is_reported),
    case("concurrent_edits::reverted_edit_is_reported", reverted_edit_is_reported),
    case("concurrent_edits::file_replaced_with_identical_content_is_reported", replaced_file_is_reported),
    case("concurrent_edits::new_removed_and_retyped_files_are_reported", added_removed_and_retyped_files),
    case("concurrent_edits::new_ignore_rule_is_reported", new_ignore_rule_is_reported),
    case("concurrent_edits::external_ignore_rule_hides_no_drift", external_ignore_rule_hides_no_drift).needs(NEEDS_GIT),
    case("concurrent_edits::commit_is_reported", commit_is_reported).needs(NEEDS_GIT),
    case("concurrent_edits::branch_switch_is_reported", branch_switch_is_reported).needs(NEEDS_GIT),
    case("concurrent_edits::changes_of_ignored_files_and_git_metadata_pass", unrelated_changes_pass).needs(NEEDS_GIT),
];

/// Runs a step that passes, and calls `act` while it runs.
fn run_with_edit_during_step<'e>(
    env: &'e TestEnvironment,
    edit: impl FnOnce(&Repo<'_>),
) -> (Repo<'e>, FinishedProcess) {
    env.use_shared_worktrees();
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    edit(&repo);
    release_step(&step);
    (repo, env.finish(running))
}

fn assert_inconclusive(env: &TestEnvironment, edit: impl FnOnce(&Repo<'_>), words: &[&str]) {
    let (repo, run) = run_with_edit_during_step(env, edit);
    let run = run.exits(5);
    let output = run.all_output();
    words.iter().for_each(|word| assert!(output.contains(word), "{word}\n{run}"));
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn edit_is_reported(env: &TestEnvironment) {
    assert_inconclusive(env, |repo| repo.write("src/lib.rs", "my work\n"), &["`src/lib.rs`", "edited", "run again"]);
}

fn reverted_edit_is_reported(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        let (path, text) = (repo.file("README.md"), repo.read("README.md"));
        let times = std::fs::File::open(&path).and_then(|file| file.metadata()).and_then(|meta| meta.modified());
        repo.write("README.md", "for a moment\n");
        repo.write("README.md", text);
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file of the test");
        file.set_modified(times.expect("a time")).expect("its owner may");
    };
    assert_inconclusive(env, act, &["`README.md`"]);
}

fn replaced_file_is_reported(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.write("README.new", repo.read("README.md"));
        std::fs::rename(repo.file("README.new"), repo.file("README.md")).expect("renamed");
    };
    assert_inconclusive(env, act, &["`README.md`"]);
}

fn added_removed_and_retyped_files(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.write("src/new.rs", "new\n");
        std::fs::remove_file(repo.file("README.md")).expect("removed");
        std::fs::remove_file(repo.file("src/lib.rs")).expect("removed");
        repo.link("src/lib.rs", Path::new("/etc/passwd"));
    };
    assert_inconclusive(env, act, &["`README.md`", "`src/lib.rs`", "`src/new.rs`"]);
}

fn new_ignore_rule_is_reported(env: &TestEnvironment) {
    assert_inconclusive(env, |repo| repo.write(".gitignore", "target/\n*.log\nnew\n"), &["`.gitignore`"]);
}

/// An external ignore rule hides a file that the step creates afterwards; that must not pass.
fn external_ignore_rule_hides_no_drift(env: &TestEnvironment) {
    assert_external_rule_is_reported(env, "info/exclude", |repo| {
        machine::write(&repo.file(".git/info/exclude"), "hidden\n");
    });
    assert_external_rule_is_reported(env, "config", |repo| {
        let rules = repo.file(".git/rules");
        machine::write(&rules, "hidden\n");
        repo.git(&["config", "core.excludesFile", rules.to_str().expect("UTF-8")]);
    });
}

fn assert_external_rule_is_reported(env: &TestEnvironment, rule_source: &str, act: impl FnOnce(&Repo<'_>)) {
    env.use_shared_worktrees();
    let marker = env.marker();
    let script = format!("trap 'echo x > hidden; exit 0' USR1; sh -c 'sleep 300; :' {marker}-ready & wait");
    let step = TestStep::argv("it", &["sh", "-c", &script, &format!("{marker}-main")]);
    let repo = env.repo_at(&rule_source.replace('/', "_"), &TestSpec::from_steps([step]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    act(&repo);
    release_step(&step);
    let run = env.finish(running);
    let hides = repo.step("it")["drift"]["changes"] == serde_json::json!([]);
    assert_eq!(run.code, Some(if hides { 5 } else { 3 }), "{run}");
    assert!(run.all_output().contains("ignore rules") && run.all_output().contains(rule_source), "{run}");
}

fn commit_is_reported(env: &TestEnvironment) {
    assert_inconclusive(env, |repo| drop(repo.git(&["commit", "--quiet", "--allow-empty", "--message=x"])), &["HEAD"]);
}

fn branch_switch_is_reported(env: &TestEnvironment) {
    assert_inconclusive(env, |repo| drop(repo.git(&["checkout", "--quiet", "-b", "other"])), &["HEAD"]);
}

fn unrelated_changes_pass(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.write("target/out", "built beside it\n");
        repo.write("a.log", "noise\n");
        repo.git(&["branch", "side"]);
        repo.git(&["config", "user.name", "Somebody"]);
    };
    let (_, run) = run_with_edit_during_step(env, act);
    run.exits(0);
}
