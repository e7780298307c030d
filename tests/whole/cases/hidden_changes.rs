//! Tests changes that are hidden from git, from stat or from an incomplete scan; each must be detected.

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{CaseDefinition, NEEDS_GIT, NEEDS_PYTHON, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("hidden_changes::tracked_file_in_an_ignored_directory", tracked_file_in_ignored_directory),
    case("hidden_changes::file_marked_assume_unchanged", file_assumed_unchanged),
    case("hidden_changes::file_marked_skip_worktree", file_skipped_in_worktree),
    case("hidden_changes::mode_change_with_core_filemode_off", mode_ignored_by_git),
    case("hidden_changes::new_file_in_a_new_nested_repository", file_in_new_repository).needs(NEEDS_GIT),
    case("hidden_changes::file_in_a_submodule", file_in_submodule),
    case("hidden_changes::file_in_an_unreadable_directory", file_in_unreadable_directory),
    case("", file_in_unreadable_directory).unprivileged("hidden_changes::file_in_an_unreadable_directory_as_a_user"),
    case("hidden_changes::unreadable_file", unreadable_file),
    case("", unreadable_file).unprivileged("hidden_changes::unreadable_file_as_a_user"),
    case("hidden_changes::later_skill_sees_files_that_a_step_made_unreadable", unreadable_files_reappear),
    case("", unreadable_files_reappear)
        .unprivileged("hidden_changes::later_skill_sees_files_that_a_step_made_unreadable_as_a_user"),
    case("hidden_changes::new_fifo", fifo_is_drift),
    case("hidden_changes::edit_through_a_hard_link", edit_through_hard_link),
    case("hidden_changes::renamed_directory", renamed_directory),
    case("hidden_changes::recreated_file", recreated_file),
    case("hidden_changes::list_of_ten_thousand_new_files_is_bounded", change_list_is_bounded),
    case("hidden_changes::retargeted_link", retargeted_link),
    case("hidden_changes::background_process_cannot_write_after_its_step", no_write_after_step),
    case("hidden_changes::very_deep_directory", very_deep_directory).needs(NEEDS_PYTHON),
    case("hidden_changes::very_deep_ignored_directory", very_deep_ignored_directory).needs(NEEDS_PYTHON),
    case("hidden_changes::edited_spec", edited_spec),
    case("hidden_changes::reserved_paths_apply_to_the_changeset_only", file_above_changeset),
];

/// Asserts drift at a path, in the record and on the screen.
fn assert_drift(repo: &Repo<'_>, path: &str, kind: &str) {
    repo.run().exits(3).prints(&[path]);
    let step = repo.step("it");
    let changes = step["drift"]["changes"].as_array().expect("a list");
    let found = changes.iter().any(|change| change["path"] == path && change["kind"] == kind);
    assert!(found, "no {kind} {path} in {changes:#?}");
}

fn tracked_file_in_ignored_directory(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo x >> target/keep; echo y > target/other"));
    repo.write("target/keep", "kept\n");
    repo.git(&["add", "--force", "target/keep"]);
    repo.git(&["commit", "--quiet", "--message=m"]);
    assert_drift(&repo, "target/keep", "modified");
    assert_eq!(repo.evidence("verify.it")["tracked_drift"]["changed_files"], serde_json::json!(["target/keep"]));
}

fn file_assumed_unchanged(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo x >> README.md"));
    repo.git(&["update-index", "--assume-unchanged", "README.md"]);
    assert_drift(&repo, "README.md", "modified");
}

fn file_skipped_in_worktree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo x >> README.md"));
    repo.git(&["update-index", "--skip-worktree", "README.md"]);
    assert_drift(&repo, "README.md", "modified");
}

fn mode_ignored_by_git(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("chmod +x README.md"));
    repo.git(&["config", "core.fileMode", "false"]);
    assert_drift(&repo, "README.md", "mode_changed");
}

fn file_in_new_repository(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_script("mkdir inner && cd inner && git init -q --template= . && echo x > hidden.rs"));
    assert_drift(&repo, "inner/hidden.rs", "created");
}

fn file_in_submodule(env: &TestEnvironment) {
    let other = env.repo_at("other", &TestSpec::from_script("true"));
    let repo = env.repo(&TestSpec::from_script("echo x >> sub/README.md"));
    let url = other.path().to_str().expect("UTF-8").to_owned();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "sub"]);
    repo.git(&["config", "submodule.sub.ignore", "all"]);
    repo.commit();
    assert_drift(&repo, "sub/README.md", "modified");
}

fn file_in_unreadable_directory(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("mkdir src/dark && echo x > src/dark/hidden.rs && chmod 000 src/dark"));
    assert_drift(&repo, "src/dark/hidden.rs", "created");
}

fn unreadable_file(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo x >> src/lib.rs; chmod 000 src/lib.rs"));
    assert_drift(&repo, "src/lib.rs", "modified");
}

/// A check that skips unreadable files must not pass without having seen them.
fn unreadable_files_reappear(env: &TestEnvironment) {
    let hide = TestStep::sh("hide", "chmod 000 src README.md; chmod 000 .");
    let look = TestStep::sh("look", "ls src && cat README.md >/dev/null");
    let skills = [TestSkill::new("verify.first", [hide]), TestSkill::new("verify.second", [look])];
    for mode in ["off", "tracked", "strict"] {
        let spec = TestSpec::new(skills.clone()).with_default(&format!("read_only: {mode}"));
        let repo = env.repo_at(mode, &spec);
        repo.run().exits(0);
        let steps = &repo.evidence("verify.second")["steps"];
        assert_eq!(steps[0]["stdout_preview"], "lib.rs\n", "{mode}: {steps:#}");
    }
}

fn fifo_is_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("mkfifo src/fifo"));
    assert_drift(&repo, "src/fifo", "created");
}

fn edit_through_hard_link(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("ln README.md src/hard; echo x >> src/hard"));
    assert_drift(&repo, "README.md", "modified");
    let changed = repo.evidence("verify.it")["tracked_drift"]["changed_files"].clone();
    assert_eq!(changed, serde_json::json!(["README.md", "src/hard"]));
}

fn renamed_directory(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("mv src lib"));
    assert_drift(&repo, "src/lib.rs", "deleted");
    let changed = repo.evidence("verify.it")["tracked_drift"]["changed_files"].clone();
    assert_eq!(changed, serde_json::json!(["lib/lib.rs", "src/lib.rs"]));
}

/// The file was deleted in the worktree before the run, so the verified tree does not contain it.
fn recreated_file(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("printf 'pub fn one() -> u32 {\\n    1\\n}\\n' > src/lib.rs"));
    std::fs::remove_file(repo.file("src/lib.rs")).expect("it was there");
    assert_drift(&repo, "src/lib.rs", "created");
}

fn change_list_is_bounded(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("mkdir many && cd many && seq 1 10000 | xargs touch"));
    repo.run().exits(3);
    let drift = repo.step("it")["drift"].clone();
    let recorded = drift["changes"].as_array().map_or(0, Vec::len);
    assert_eq!(recorded, proctor_core::model::drift::MAX_CHANGES);
    assert_eq!(drift["omitted"], 10_000 - recorded);
}

fn retargeted_link(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("ln -sfn src/lib.rs link"));
    repo.link("link", std::path::Path::new("README.md"));
    repo.commit();
    assert_drift(&repo, "link", "modified");
}

/// The process is killed together with its step, so there is no later write.
fn no_write_after_step(env: &TestEnvironment) {
    let script = "(trap '' TERM HUP; while :; do [ -e /tmp/go ] && echo x >> README.md; done) & exit 0";
    let observer = TestStep::sh("look", ": > /tmp/go; sleep 0.3; cat README.md");
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script), observer]));
    repo.run().exits(0);
    assert_eq!(repo.step("look")["stdout_preview"], repo.read("README.md"));
}

/// Creates a path that is longer than the system allows and too deep for recursion.
fn spec_with_deep_directory(below: &str) -> TestSpec {
    let program = format!(
        "import os\nos.makedirs('{below}', exist_ok=True)\nos.chdir('{below}')\nfor _ in range(5000):\n    \
         os.mkdir('d')\n    os.chdir('d')\nopen('hidden.rs', 'w').write('x')"
    );
    TestSpec::from_steps([TestStep::python("it", &program)])
}

/// The result must be drift or inconclusive, never a pass or a crash.
fn very_deep_directory(env: &TestEnvironment) {
    let run = env.repo(&spec_with_deep_directory("src/deep")).run();
    assert!(matches!(run.code, Some(3 | 5)), "{run}");
    assert!(!run.stderr.contains("internal error"), "{run}");
}

fn very_deep_ignored_directory(env: &TestEnvironment) {
    let run = env.repo(&spec_with_deep_directory("target/deep")).run();
    assert!(matches!(run.code, Some(0 | 5)), "{run}");
    assert!(!run.stderr.contains("internal error"), "{run}");
}

fn edited_spec(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("sed -i 's/tier: 1/tier: 2/' spec/verification.yaml"));
    assert_drift(&repo, "spec/verification.yaml", "modified");
}

/// Paths reserved for Proctor in one changeset are ordinary paths one level higher.
fn file_above_changeset(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(
        "echo x >> changes/009_x/00-meta.json; mkdir -p changes/verify; echo y > changes/verify/z",
    ));
    assert_drift(&repo, "changes/009_x/00-meta.json", "modified");
    let changed = repo.evidence("verify.it")["tracked_drift"]["changed_files"].clone();
    assert_eq!(changed, serde_json::json!(["changes/009_x/00-meta.json", "changes/verify/z"]));
}
