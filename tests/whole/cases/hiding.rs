//! Tests changes that are hidden from git, from stat or from an incomplete scan; each must be detected.

use crate::environment::{Repo, TestEnvironment};
use crate::needs::{Case, NEEDS_GIT, NEEDS_PYTHON, case};
use crate::spec::{Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("hiding::a_tracked_file_below_an_ignored_directory", tracked_but_ignored),
    case("hiding::a_file_that_is_assumed_unchanged", assumed_unchanged),
    case("hiding::a_file_that_the_worktree_skips", skipped_in_worktree),
    case("hiding::a_mode_that_git_is_told_to_ignore", ignored_mode),
    case("hiding::a_new_repository_around_new_files", new_repository).needs(NEEDS_GIT),
    case("hiding::a_file_of_a_submodule", submodule),
    case("hiding::a_directory_that_nobody_may_read", unreadable_directory),
    case("", unreadable_directory).unprivileged("hiding::a_directory_that_nobody_may_read_as_a_user"),
    case("hiding::a_file_that_nobody_may_read", unreadable_file),
    case("", unreadable_file).unprivileged("hiding::a_file_that_nobody_may_read_as_a_user"),
    case("hiding::a_fifo_and_a_socket", special_files),
    case("hiding::a_hard_link", hard_link),
    case("hiding::a_renamed_directory", renamed_directory),
    case("hiding::a_deleted_file_that_comes_back", resurrected),
    case("hiding::the_ten_thousandth_file", many_files),
    case("hiding::a_link_that_points_elsewhere", retargeted_link),
    case("hiding::a_process_that_writes_after_its_step", late_writer),
    case("hiding::a_very_deep_directory", very_deep).needs(NEEDS_PYTHON),
    case("hiding::a_very_deep_ignored_directory", very_deep_ignored).needs(NEEDS_PYTHON),
    case("hiding::the_spec_itself", spec_edited),
    case("hiding::another_changeset", other_changeset),
];

/// Asserts drift at a path, in the record and on the screen.
fn demand_drift(repo: &Repo<'_>, path: &str, kind: &str) {
    repo.run().exits(3).says(&[path]);
    let step = repo.step("it");
    let changes = step["drift"]["changes"].as_array().expect("a list");
    let found = changes.iter().any(|change| change["path"] == path && change["kind"] == kind);
    assert!(found, "no {kind} {path} in {changes:#?}");
}

fn tracked_but_ignored(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo x >> target/keep; echo y > target/other"));
    repo.write("target/keep", "kept\n");
    repo.git(&["add", "--force", "target/keep"]);
    repo.git(&["commit", "--quiet", "--message=m"]);
    demand_drift(&repo, "target/keep", "modified");
    assert_eq!(repo.evidence("verify.it")["tracked_drift"]["changed_files"], serde_json::json!(["target/keep"]));
}

fn assumed_unchanged(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo x >> README.md"));
    repo.git(&["update-index", "--assume-unchanged", "README.md"]);
    demand_drift(&repo, "README.md", "modified");
}

fn skipped_in_worktree(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo x >> README.md"));
    repo.git(&["update-index", "--skip-worktree", "README.md"]);
    demand_drift(&repo, "README.md", "modified");
}

fn ignored_mode(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("chmod +x README.md"));
    repo.git(&["config", "core.fileMode", "false"]);
    demand_drift(&repo, "README.md", "mode_changed");
}

fn new_repository(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("mkdir inner && cd inner && git init -q --template= . && echo x > hidden.rs"));
    demand_drift(&repo, "inner/hidden.rs", "created");
}

fn submodule(env: &TestEnvironment) {
    let other = env.repo_at("other", &Spec::of_script("true"));
    let repo = env.repo(&Spec::of_script("echo x >> sub/README.md"));
    let url = other.path().to_str().expect("UTF-8").to_owned();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &url, "sub"]);
    repo.git(&["config", "submodule.sub.ignore", "all"]);
    repo.commit();
    demand_drift(&repo, "sub/README.md", "modified");
}

fn unreadable_directory(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("mkdir src/dark && echo x > src/dark/hidden.rs && chmod 000 src/dark"));
    demand_drift(&repo, "src/dark/hidden.rs", "created");
}

fn unreadable_file(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo x >> src/lib.rs; chmod 000 src/lib.rs"));
    demand_drift(&repo, "src/lib.rs", "modified");
}

fn special_files(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("mkfifo src/fifo"));
    demand_drift(&repo, "src/fifo", "created");
}

fn hard_link(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("ln README.md src/hard; echo x >> src/hard"));
    demand_drift(&repo, "README.md", "modified");
    let changed = repo.evidence("verify.it")["tracked_drift"]["changed_files"].clone();
    assert_eq!(changed, serde_json::json!(["README.md", "src/hard"]));
}

fn renamed_directory(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("mv src lib"));
    demand_drift(&repo, "src/lib.rs", "deleted");
    let changed = repo.evidence("verify.it")["tracked_drift"]["changed_files"].clone();
    assert_eq!(changed, serde_json::json!(["lib/lib.rs", "src/lib.rs"]));
}

/// The file was deleted in the worktree before the run, so the verified tree does not contain it.
fn resurrected(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("printf 'pub fn one() -> u32 {\\n    1\\n}\\n' > src/lib.rs"));
    std::fs::remove_file(repo.file("src/lib.rs")).expect("it was there");
    demand_drift(&repo, "src/lib.rs", "created");
}

fn many_files(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("mkdir many && cd many && seq 1 10000 | xargs touch"));
    repo.run().exits(3);
    let drift = repo.step("it")["drift"].clone();
    let recorded = drift["changes"].as_array().map_or(0, Vec::len);
    assert_eq!(recorded, proctor_core::drift::MAX_CHANGES);
    assert_eq!(drift["omitted"], 10_000 - recorded);
}

fn retargeted_link(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("ln -sfn src/lib.rs link"));
    repo.link("link", std::path::Path::new("README.md"));
    repo.commit();
    demand_drift(&repo, "link", "modified");
}

/// The process is killed together with its step, so there is no later write.
fn late_writer(env: &TestEnvironment) {
    let script = "(trap '' TERM HUP; while :; do [ -e /tmp/go ] && echo x >> README.md; done) & exit 0";
    let look = Step::sh("look", ": > /tmp/go; sleep 0.3; cat README.md");
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script), look]));
    repo.run().exits(0);
    assert_eq!(repo.step("look")["stdout_preview"], repo.read("README.md"));
}

/// Creates a path that is longer than the system allows and too deep for recursion.
fn dig(below: &str) -> Spec {
    let program = format!(
        "import os\nos.makedirs('{below}', exist_ok=True)\nos.chdir('{below}')\nfor _ in range(5000):\n    \
         os.mkdir('d')\n    os.chdir('d')\nopen('hidden.rs', 'w').write('x')"
    );
    Spec::of_steps([Step::python("it", &program)])
}

/// The result must be drift or inconclusive, never a pass or a crash.
fn very_deep(env: &TestEnvironment) {
    let run = env.repo(&dig("src/deep")).run();
    assert!(matches!(run.code, Some(3 | 5)), "{run}");
    assert!(!run.stderr.contains("internal error"), "{run}");
}

fn very_deep_ignored(env: &TestEnvironment) {
    let run = env.repo(&dig("target/deep")).run();
    assert!(matches!(run.code, Some(0 | 5)), "{run}");
    assert!(!run.stderr.contains("internal error"), "{run}");
}

fn spec_edited(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("sed -i 's/tier: 1/tier: 2/' spec/verification.yaml"));
    demand_drift(&repo, "spec/verification.yaml", "modified");
}

/// Paths reserved for Proctor in one changeset are ordinary paths one level higher.
fn other_changeset(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script(
        "echo x >> changes/009_x/00-meta.json; mkdir -p changes/verify; echo y > changes/verify/z",
    ));
    demand_drift(&repo, "changes/009_x/00-meta.json", "modified");
    let changed = repo.evidence("verify.it")["tracked_drift"]["changed_files"].clone();
    assert_eq!(changed, serde_json::json!(["changes/009_x/00-meta.json", "changes/verify/z"]));
}
