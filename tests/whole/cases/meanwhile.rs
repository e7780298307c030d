//! Tests edits in the worktree during a run over the worktree itself: the run must not pass for an unverified tree.

use std::path::Path;

use crate::environment::{Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, NEEDS_GIT, case};
use crate::process::Finished;
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("meanwhile::an_edit_is_named", edited),
    case("meanwhile::an_edit_that_is_taken_back_is_named", edited_and_restored),
    case("meanwhile::a_file_swapped_for_one_of_the_same_bytes_is_named", swapped),
    case("meanwhile::new_removed_and_retyped_files_are_named", several),
    case("meanwhile::a_new_ignore_rule_is_named", new_rule),
    case("meanwhile::a_rule_outside_of_the_tree_hides_nothing", excluded).needs(NEEDS_GIT),
    case("meanwhile::a_commit_is_noticed", committed).needs(NEEDS_GIT),
    case("meanwhile::another_branch_is_noticed", switched).needs(NEEDS_GIT),
    case("meanwhile::ignored_files_and_what_git_keeps_for_itself_are_nobodys_business", unrelated).needs(NEEDS_GIT),
];

/// Runs a step that passes, and calls `act` while it runs.
fn meanwhile<'e>(env: &'e TestEnvironment, act: impl FnOnce(&Repo<'_>)) -> (Repo<'e>, Finished) {
    env.share_worktrees();
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "it")]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    act(&repo);
    release(&step);
    (repo, env.finish(running))
}

fn is_inconclusive(env: &TestEnvironment, act: impl FnOnce(&Repo<'_>), words: &[&str]) {
    let (repo, run) = meanwhile(env, act);
    let run = run.exits(5);
    let said = run.everything();
    words.iter().for_each(|word| assert!(said.contains(word), "{word}\n{run}"));
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
}

fn edited(env: &TestEnvironment) {
    is_inconclusive(env, |repo| repo.write("src/lib.rs", "my work\n"), &["`src/lib.rs`", "edited", "run again"]);
}

fn edited_and_restored(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        let (path, text) = (repo.file("README.md"), repo.read("README.md"));
        let times = std::fs::File::open(&path).and_then(|file| file.metadata()).and_then(|meta| meta.modified());
        repo.write("README.md", "for a moment\n");
        repo.write("README.md", text);
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("a file of the test");
        file.set_modified(times.expect("a time")).expect("its owner may");
    };
    is_inconclusive(env, act, &["`README.md`"]);
}

fn swapped(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.write("README.new", repo.read("README.md"));
        std::fs::rename(repo.file("README.new"), repo.file("README.md")).expect("renamed");
    };
    is_inconclusive(env, act, &["`README.md`"]);
}

fn several(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.write("src/new.rs", "new\n");
        std::fs::remove_file(repo.file("README.md")).expect("removed");
        std::fs::remove_file(repo.file("src/lib.rs")).expect("removed");
        repo.link("src/lib.rs", Path::new("/etc/passwd"));
    };
    is_inconclusive(env, act, &["`README.md`", "`src/lib.rs`", "`src/new.rs`"]);
}

fn new_rule(env: &TestEnvironment) {
    is_inconclusive(env, |repo| repo.write(".gitignore", "target/\n*.log\nnew\n"), &["`.gitignore`"]);
}

/// An external ignore rule hides a file that the step creates afterwards; that must not pass.
fn excluded(env: &TestEnvironment) {
    hidden_by(env, "info/exclude", |repo| machine::write(&repo.file(".git/info/exclude"), "hidden\n"));
    hidden_by(env, "config", |repo| {
        let rules = repo.file(".git/rules");
        machine::write(&rules, "hidden\n");
        repo.git(&["config", "core.excludesFile", rules.to_str().expect("UTF-8")]);
    });
}

fn hidden_by(env: &TestEnvironment, place: &str, act: impl FnOnce(&Repo<'_>)) {
    env.share_worktrees();
    let marker = env.marker();
    let script = format!("trap 'echo x > hidden; exit 0' USR1; sh -c 'sleep 300; :' {marker}-ready & wait");
    let step = Step::argv("it", &["sh", "-c", &script, &format!("{marker}-main")]);
    let repo = env.repo_at(&place.replace('/', "_"), &Spec::of_steps([step]));
    let mut running = repo.start(&[]);
    let step = wait_for_step(env, &mut running);
    act(&repo);
    release(&step);
    let run = env.finish(running);
    let hides = repo.step("it")["drift"]["changes"] == serde_json::json!([]);
    assert_eq!(run.code, Some(if hides { 5 } else { 3 }), "{run}");
    assert!(run.everything().contains("ignore rules") && run.everything().contains(place), "{run}");
}

fn committed(env: &TestEnvironment) {
    is_inconclusive(env, |repo| drop(repo.git(&["commit", "--quiet", "--allow-empty", "--message=x"])), &["HEAD"]);
}

fn switched(env: &TestEnvironment) {
    is_inconclusive(env, |repo| drop(repo.git(&["checkout", "--quiet", "-b", "other"])), &["HEAD"]);
}

fn unrelated(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.write("target/out", "built beside it\n");
        repo.write("a.log", "noise\n");
        repo.git(&["branch", "side"]);
        repo.git(&["config", "user.name", "Somebody"]);
    };
    let (_, run) = meanwhile(env, act);
    run.exits(0);
}
