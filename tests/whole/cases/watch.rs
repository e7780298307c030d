//! Tests that `proctor run --watch` misses no change of a file that the tree contains.

use rustix::process::Signal;

use crate::environment::{Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::RunningProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("watch::tracked_files_count_although_a_rule_ignores_them", notices_tracked_files)
        .needs(&[Needs::Sandbox, Needs::Program("git")]),
    case("watch::directory_that_is_no_longer_ignored_is_watched", watches_directory_that_is_not_ignored_any_more),
    case("watch::directory_that_is_moved_away_starts_steps", notices_moved_directory),
    case("watch::edit_of_a_fixed_file_starts_another_run", notices_edit_of_fixed_file),
    case("watch::replaced_worktree_ends_the_command", ends_if_worktree_is_replaced),
];

/// A repository whose step fails if a Python file contains `BAD`.
fn python_repo<'e>(env: &'e TestEnvironment, ignored: &str) -> Repo<'e> {
    let check = TestStep::argv("check", &["sh", "-c", "! grep -l BAD \"$@\"", "x", "{files}"])
        .with_field("files: { include: [\"**/*.py\"] }");
    let repo = env.repo(&TestSpec::new([TestSkill::new("s", [check])]));
    repo.write("a.py", "a\n");
    repo.write(".gitignore", ignored);
    repo.commit();
    repo
}

/// Starts to watch, and waits until the first run has passed.
fn watch(repo: &Repo<'_>) -> RunningProcess {
    let mut watching = repo.start_proctor(&["run", "--watch"]);
    watching.wait_for_stdout("\npassed: ");
    watching.wait_for_stdout("waiting for changes");
    watching
}

fn end(env: &TestEnvironment, watching: RunningProcess) {
    watching.signal(Signal::INT);
    env.finish(watching).exits(130);
}

fn notices_tracked_files(env: &TestEnvironment) {
    let repo = python_repo(env, "out/\n");
    repo.write("out/tracked.py", "a\n");
    repo.git(&["add", "--force", "out/tracked.py"]);
    repo.write("out/later.py", "BAD\n");
    let mut watching = watch(&repo);
    repo.write("out/tracked.py", "BAD\n");
    watching.wait_for_stdout("changed: out/tracked.py");
    watching.wait_for_stdout("partial run failed");
    repo.write("out/tracked.py", "a\n");
    watching.wait_for_stdout("\npassed: 1 step");
    // A file belongs to the tree as soon as git tracks it.
    repo.git(&["add", "--force", "out/later.py"]);
    watching.wait_for_stdout("changed: out/later.py");
    watching.wait_for_stdout_times("partial run failed", 2);
    end(env, watching);
}

fn watches_directory_that_is_not_ignored_any_more(env: &TestEnvironment) {
    let repo = python_repo(env, "out/\n");
    repo.write("out/b.py", "b\n");
    let mut watching = watch(&repo);
    repo.write(".gitignore", "other/\n");
    watching.wait_for_stdout_times("\npassed: ", 2);
    repo.write("out/b.py", "BAD\n");
    watching.wait_for_stdout("changed: out/b.py");
    watching.wait_for_stdout("partial run failed");
    end(env, watching);
}

fn notices_moved_directory(env: &TestEnvironment) {
    let whole = TestStep::sh("whole", "test -f parts/b.py").with_field("files: { include: [\"**/*.py\"] }");
    let repo = env.repo(&TestSpec::new([TestSkill::new("s", [whole])]));
    repo.write("a.py", "a\n");
    repo.write("parts/b.py", "b\n");
    repo.commit();
    let mut watching = watch(&repo);
    std::fs::rename(repo.file("parts"), repo.file("../parts")).expect("moved");
    watching.wait_for_stdout("changed: parts\n");
    watching.wait_for_stdout("\nfailed: 1 failed of 1 step");
    std::fs::rename(repo.file("../parts"), repo.file("parts")).expect("moved");
    watching.wait_for_stdout_times("\npassed: ", 2);
    end(env, watching);
}

fn notices_edit_of_fixed_file(env: &TestEnvironment) {
    let check = TestStep::argv("check", &["sh", "-c", "! grep -l BAD \"$@\"", "x", "{files}"])
        .with_field("files: { include: [\"*.py\"] }")
        .with_field("fix: [sed, -i, s/OLD/new/, \"{files}\"]");
    let repo = env.repo(&TestSpec::from_steps([check, waiting_step(env, "waiting")]));
    repo.write("a.py", "OLD\n");
    repo.commit();
    let mut watching = repo.start_proctor(&["run", "--watch", "--fix"]);
    let step = wait_for_step(env, &mut watching);
    // The user edits the file after the step has changed it.
    assert_eq!(repo.read("a.py"), "new\n");
    repo.write("a.py", "BAD\n");
    release_step(&step);
    watching.wait_for_stdout("changed: a.py");
    watching.wait_for_stdout("partial run failed");
    end(env, watching);
}

fn ends_if_worktree_is_replaced(env: &TestEnvironment) {
    let repo = python_repo(env, "out/\n");
    let watching = watch(&repo);
    std::fs::rename(repo.file(""), repo.file("../moved")).expect("moved");
    let ended = env.finish(watching).exits(5);
    ended.prints_to_stderr(&["was moved, replaced or removed"]);
}
