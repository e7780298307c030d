//! Tests runs over a private copy of the worktree: edits of the worktree during the run do not affect the steps, and
//! the record names the tree that they saw.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::environment::{CHANGESET, Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case};
use crate::process::FinishedProcess;
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("private_copy::edit_during_the_run_is_not_visible_to_steps", edit_is_not_visible).needs(NEEDS_PYTHON_AND_GIT),
    case("", edit_is_not_visible)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("private_copy::edit_during_the_run_is_not_visible_to_steps_as_a_user"),
    case("private_copy::exchanged_directory_is_not_visible_to_steps", exchanged_directory_is_not_visible)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("", exchanged_directory_is_not_visible)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("private_copy::exchanged_directory_is_not_visible_to_steps_as_a_user")
        .long(),
    case("private_copy::temporary_file_is_not_visible_to_steps", temporary_file_is_not_visible)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::branch_switch_is_not_visible_to_steps", branch_switch_is_not_visible)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::overlay_attributes_are_not_copied", overlay_attributes_are_not_copied)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::evidence_is_hidden", evidence_is_hidden).needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::ignored_files_are_visible_and_recorded", ignored_files_are_visible_and_recorded)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("", ignored_files_are_visible_and_recorded)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("private_copy::ignored_files_are_visible_and_recorded_as_a_user"),
    case("private_copy::empty_directories_are_visible_and_recorded", empty_directories_are_recorded)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::ignored_files_can_be_hidden", ignored_files_can_be_hidden).needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::edit_of_an_ignored_file_is_not_visible_to_steps", edit_of_ignored_file_is_not_visible)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::steps_change_only_their_copy_of_ignored_files", steps_change_their_copy_of_ignored_files)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::a_strict_step_may_not_change_an_ignored_file", strict_step_cannot_change_ignored_file)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::ignored_files_above_the_limit_are_left_out", large_ignored_files_are_left_out)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::tree_above_the_limit_is_not_copied", large_tree_is_not_copied).needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::edit_with_an_old_mtime_is_rebuilt", edit_with_old_mtime_is_rebuilt).needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::changes_of_a_step_are_applied_to_the_worktree", changes_are_applied_to_worktree)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("", changes_are_applied_to_worktree)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("private_copy::changes_of_a_step_are_applied_to_the_worktree_as_a_user")
        .long(),
    case("private_copy::two_trees_are_verified_concurrently", two_trees_are_verified_concurrently)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::caches_of_an_older_copy_are_discarded", caches_of_older_copy_are_discarded)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::git_state_is_the_same_as_in_the_worktree", git_state_matches_worktree)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("private_copy::git_works_in_nested_repositories", git_works_in_nested_repositories)
        .needs(NEEDS_PYTHON_AND_GIT),
    case("", git_works_in_nested_repositories)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("private_copy::git_works_in_nested_repositories_as_a_user")
        .long(),
    case("", git_state_matches_worktree)
        .needs(NEEDS_PYTHON_AND_GIT)
        .unprivileged("private_copy::git_state_is_the_same_as_in_the_worktree_as_a_user")
        .long(),
];

const NEEDS_PYTHON_AND_GIT: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Program("git")];

/// Writes an operator config that selects private copies, and returns its path.
fn write_private_tree_config(env: &TestEnvironment) -> String {
    let path = env.root().join("private.toml");
    machine::write(&path, "[tree]\nmode = \"private\"\n");
    machine::make_file_public(&path);
    path.to_str().expect("UTF-8").to_owned()
}

/// Returns a spec with a step that waits until it is released, and then runs `check`.
pub(super) fn wait_then_check_spec(env: &TestEnvironment, check: &str) -> TestSpec {
    let marker = env.marker();
    let script = format!("trap : USR1; sh -c 'sleep 300; :' {marker}-ready & wait; {check}");
    TestSpec::from_steps([TestStep::argv("it", &["sh", "-c", &script, &format!("{marker}-main")])])
}

/// Runs a step over a private copy, calls `act` while it waits, and then lets it run `check`.
fn run_with_edit_during_step<'e>(
    env: &'e TestEnvironment,
    check: &str,
    prepare: impl FnOnce(&Repo<'_>),
    edit: impl FnOnce(&Repo<'_>),
) -> (Repo<'e>, FinishedProcess) {
    let repo = env.repo(&wait_then_check_spec(env, check));
    prepare(&repo);
    let config = write_private_tree_config(env);
    let mut running = repo.start(&["--config", &config]);
    let step = wait_for_step(env, &mut running);
    edit(&repo);
    release_step(&step);
    let run = env.finish(running);
    (repo, run)
}

fn edit_is_not_visible(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| repo.write("src/lib.rs", "broken\n");
    let (repo, run) = run_with_edit_during_step(env, "! grep broken src/lib.rs", |_| {}, act);
    run.exits(0);
    assert_eq!(repo.evidence("verify.it")["source"], serde_json::json!({ "kind": "worktree", "tree": "private" }));
    // The tree that passed is not the current one.
    let gate = repo.proctor(&["gate", "--changeset", CHANGESET]);
    assert_eq!(gate.code, Some(1), "{gate}");
}

fn exchanged_directory_is_not_visible(env: &TestEnvironment) {
    let prepare = |repo: &Repo<'_>| repo.write("beside/lib.rs", "good\n");
    let act = |repo: &Repo<'_>| {
        // At the end they are exchanged back, with unchanged times.
        let (src, beside, aside) = (repo.file("src"), repo.file("beside"), repo.file("aside"));
        fs::rename(&src, &aside).expect("renamed");
        fs::rename(&beside, &src).expect("renamed");
    };
    let (_, run) = run_with_edit_during_step(env, "grep good src/lib.rs", prepare, act);
    run.exits(1);
}

fn temporary_file_is_not_visible(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| repo.write("conftest.py", "skip everything\n");
    let (_, run) = run_with_edit_during_step(env, "test -e conftest.py", |_| {}, act);
    run.exits(1);
}

fn branch_switch_is_not_visible(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.git(&["checkout", "--quiet", "-b", "other"]);
        repo.git(&["commit", "--quiet", "--allow-empty", "--message=other"]);
    };
    let check = "git symbolic-ref HEAD; git log --format=%s; git symbolic-ref HEAD | grep -v other && ! git log --format=%s | grep other";
    let (_, run) = run_with_edit_during_step(env, check, |_| {}, act);
    run.exits(0);
}

/// The step's overlay would interpret these attributes, and tracked files would disappear.
fn overlay_attributes_are_not_copied(env: &TestEnvironment) {
    let prepare = |repo: &Repo<'_>| {
        let program = "import os; os.setxattr('src', 'user.overlay.opaque', b'y'); os.setxattr('README.md', 'user.overlay.whiteout', b'y'); \
            os.setxattr('src', 'user.overlay.opaque', b'x')";
        let set = env.system_command_as_actor("python3").args(["-c", program]).current_dir(repo.path()).status();
        assert!(set.expect("python3 starts").success());
    };
    let (_, run) = run_with_edit_during_step(env, "test -e README.md && test -e src/lib.rs", prepare, |_| {});
    run.exits(0);
}

fn evidence_is_hidden(env: &TestEnvironment) {
    let step = TestStep::sh("it", &format!("test ! -e changes/{CHANGESET}/verify"));
    let repo = env.repo(&TestSpec::from_steps([step]));
    repo.run().exits(0);
    // Now the changeset contains evidence.
    repo.run().exits(0);
}

/// Creates a repository with ignored files.
fn repo_with_ignored_files<'e>(env: &'e TestEnvironment, spec: &TestSpec) -> Repo<'e> {
    let repo = env.repo(spec);
    repo.write(".gitignore", "/target/\n*.log\n.env\n");
    repo.write("src/run.log", "noise\n");
    repo.write("target/deep/out", "built\n");
    fs::create_dir(repo.file("target/empty")).expect("makes");
    repo.write(".env", "KEY=1\n");
    fs::set_permissions(repo.file(".env"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("sets the mode");
    repo
}

fn ignored_files_are_visible_and_recorded(env: &TestEnvironment) {
    let check =
        "grep KEY .env && grep built target/deep/out && grep noise src/run.log && [ -d target/empty ] && [ -O .env ]";
    let repo = repo_with_ignored_files(env, &TestSpec::from_script(check));
    repo.run().exits(0);
    let inputs = repo.last_run()["unverified_inputs"].clone();
    let entries = inputs["entries"].as_array().expect("inputs");
    let named: Vec<_> =
        entries.iter().map(|entry| (entry["path"].as_str().expect("text"), entry["kind"].clone())).collect();
    let kinds = [(".env", "file"), ("src/run.log", "file"), ("target", "directory")];
    assert_eq!(named, kinds.map(|(path, kind)| (path, kind.into())), "{inputs:#}");
    assert_eq!((&entries[2]["files"], &entries[2]["bytes"]), (&2.into(), &6.into()), "{inputs:#}");
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(0);
    let strict = repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]).exits(1);
    strict.prints(&[".env", "target", "`ignored: hidden`"]);
    // The next run sees their current content.
    repo.write("target/deep/out", "broken\n");
    repo.run().exits(1);
    assert_ne!(repo.last_run()["unverified_inputs"]["sha256"], inputs["sha256"]);
}

/// No commit contains an empty directory.
fn empty_directories_are_recorded(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("test -d src/empty"));
    fs::create_dir(repo.file("src/empty")).expect("makes");
    repo.run().exits(0);
    let inputs = repo.last_run()["unverified_inputs"].clone();
    let entry = &inputs["entries"][0];
    assert_eq!((&entry["path"], &entry["kind"]), (&"src/empty".into(), &"directory".into()), "{inputs:#}");
    repo.proctor(&["gate", "--changeset", CHANGESET]).exits(0);
    repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]).exits(1).prints(&["src/empty"]);
}

fn ignored_files_can_be_hidden(env: &TestEnvironment) {
    let repo = repo_with_ignored_files(
        env,
        &TestSpec::from_script("! ls .env src/run.log target").with_top_level("ignored: hidden"),
    );
    repo.run().exits(0);
    assert!(repo.last_run()["unverified_inputs"].is_null());
    repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]).exits(0);
}

fn edit_of_ignored_file_is_not_visible(env: &TestEnvironment) {
    let check = "grep KEY .env && [ ! -e target/new ] && [ ! -e new.log ]";
    let act = |repo: &Repo<'_>| {
        repo.write(".env", "OTHER\n");
        repo.write("target/new", "new\n");
        repo.write("new.log", "new\n");
    };
    let prepare = |repo: &Repo<'_>| {
        repo.write(".gitignore", "/target/\n*.log\n.env\n");
        repo.write(".env", "KEY=1\n");
        repo.write("target/old", "old\n");
    };
    let (_, run) = run_with_edit_during_step(env, check, prepare, act);
    run.exits(0);
}

fn steps_change_their_copy_of_ignored_files(env: &TestEnvironment) {
    let steps = [
        TestStep::sh("build", "rm -rf target && mkdir target && echo mine > target/out && echo more >> .env"),
        TestStep::sh("test", "grep mine target/out && [ ! -e target/deep ] && grep more .env"),
    ];
    let repo = repo_with_ignored_files(env, &TestSpec::from_steps(steps));
    for _ in 0..2 {
        repo.run().exits(0);
        assert_eq!((repo.read("target/deep/out").as_str(), repo.read(".env").as_str()), ("built\n", "KEY=1\n"));
    }
}

fn strict_step_cannot_change_ignored_file(env: &TestEnvironment) {
    let repo = repo_with_ignored_files(
        env,
        &TestSpec::from_script("echo x > .env; rm target/deep/out").with_default("read_only: strict"),
    );
    let run = repo.run().exits(3);
    run.prints(&["modified .env", "deleted target/deep/out"]);
}

fn large_ignored_files_are_left_out(env: &TestEnvironment) {
    env.write_operator_config("[tree]\nmax_bytes = 2000\n");
    let repo = repo_with_ignored_files(env, &TestSpec::from_script("grep KEY .env && [ ! -e target ]"));
    repo.write("target/large", "x".repeat(2000));
    repo.run().exits(0);
    let inputs = repo.last_run()["unverified_inputs"].clone();
    assert_eq!((&inputs["entries"][2]["path"], &inputs["entries"][2]["shown"]), (&"target".into(), &"left_out".into()));
    assert_eq!(repo.last_run()["source"]["tree"], "private");
}

fn large_tree_is_not_copied(env: &TestEnvironment) {
    env.write_operator_config("[tree]\nmax_bytes = 2000\n");
    let repo = repo_with_ignored_files(env, &TestSpec::from_script("grep built target/deep/out"));
    repo.write("large", "x".repeat(2000));
    repo.run().exits(0);
    assert_eq!(repo.last_run()["source"], serde_json::json!({ "kind": "worktree", "tree": "shared" }));
    repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]).exits(1);
}

/// Runs a build that compares file times, with a stored cache.
fn edit_with_old_mtime_is_rebuilt(env: &TestEnvironment) {
    let build = "if [ ! -e target/out ] || [ src/lib.rs -nt target/out ]; then cp src/lib.rs target/out; fi; grep good target/out";
    let skill = TestSkill::new("verify.tests", [TestStep::sh("it", build)]).with_field("caches: [target]");
    let repo = env.repo(&TestSpec::new([skill]));
    let config = write_private_tree_config(env);
    repo.write(".gitignore", "target/\n");
    repo.write("src/lib.rs", "good\n");
    repo.run_with(&["--config", &config]).exits(0);
    repo.write("src/lib.rs", "evil\n");
    let before = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    fs::File::options()
        .write(true)
        .open(repo.file("src/lib.rs"))
        .and_then(|file| file.set_modified(before))
        .expect("dated");
    repo.run_with(&["--config", &config]).exits(1);
    // Restore the old content: the cache was built from another tree in the meantime, or not at all.
    repo.write("src/lib.rs", "good\n");
    fs::File::options()
        .write(true)
        .open(repo.file("src/lib.rs"))
        .and_then(|file| file.set_modified(before))
        .expect("dated");
    repo.run_with(&["--config", &config]).exits(0);
}

fn changes_are_applied_to_worktree(env: &TestEnvironment) {
    let step = TestStep::sh("it", "echo formatted > src/lib.rs; echo new > new.txt").with_field("read_only: off");
    let next = TestStep::sh("next", "grep formatted src/lib.rs && test -e new.txt");
    let repo = env.repo(&TestSpec::from_steps([step, next]));
    repo.run_with(&["--config", &write_private_tree_config(env)]).exits(0);
    assert_eq!((repo.read("src/lib.rs").as_str(), repo.read("new.txt").as_str()), ("formatted\n", "new\n"));
    let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).expect("it is there"));
    assert_eq!(owner(&repo.file("new.txt")), owner(&repo.file("README.md")));
}

/// A run of another tree starts during a run; each uses its own files.
fn two_trees_are_verified_concurrently(env: &TestEnvironment) {
    let repo = env.repo(&wait_then_check_spec(env, "grep first src/lib.rs"));
    repo.write("src/lib.rs", "first\n");
    let config = write_private_tree_config(env);
    let mut running = repo.start(&["--config", &config]);
    let step = wait_for_step(env, &mut running);
    repo.write("src/lib.rs", "second\n");
    let spec = TestSpec::from_steps([TestStep::sh("it", "grep second src/lib.rs")]);
    repo.write("spec/verification.yaml", spec.to_yaml(env.marker()));
    // The first run is still active, so remaining processes are not checked here.
    repo.start_proctor(&["run", "--config", &config]).wait().exits(0);
    release_step(&step);
    env.finish(running).exits(0);
}

/// Output of a run over an older copy could look newer than a change that the newer copy has received in the
/// meantime.
fn caches_of_older_copy_are_discarded(env: &TestEnvironment) {
    let waiting = waiting_step(env, "it");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [waiting]).with_field("caches: [target]")]));
    repo.write(".gitignore", "target/\n");
    let config = write_private_tree_config(env);
    let mut running = repo.start(&["--config", &config]);
    let step = wait_for_step(env, &mut running);
    repo.write("src/lib.rs", "second\n");
    let spec = TestSpec::from_steps([TestStep::sh("it", "grep second src/lib.rs")]);
    repo.write("spec/verification.yaml", spec.to_yaml(env.marker()));
    repo.start_proctor(&["run", "--config", &config]).wait().exits(0);
    release_step(&step);
    env.finish(running).exits(0);
    assert_eq!(repo.evidence("verify.it")["measured"]["caches"][0]["end"], "discarded");
}

fn git_works_in_nested_repositories(env: &TestEnvironment) {
    let inner = env.repo_at("inner", &TestSpec::from_script("true"));
    let each = "for at in sub nested; do git -C $at log --format=%s && git -C $at status --short && git -C $at tag || exit 1; done";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", each)]));
    let source = inner.path().to_str().expect("UTF-8").to_owned();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &source, "sub"]);
    repo.commit();
    repo.git(&["clone", "--quiet", &source, "nested"]);
    repo.git(&["-C", "nested", "tag", "v7"]);
    machine::write(&repo.file("sub/README.md"), "edited\n");
    machine::write(&repo.file("nested/new"), "x\n");
    env.give_to_actor(repo.path());
    for run in 0..2 {
        repo.run_with(&["--config", &write_private_tree_config(env)]).exits(0);
        let seen = repo.step("it")["stdout_preview"].as_str().map(str::to_owned).unwrap_or_default();
        let subject = inner.git(&["log", "--format=%s"]);
        let expected = format!("{subject} M README.md\n{subject}?? new\nv7\n");
        assert_eq!(seen, expected, "run {run}");
        // The state is the same as after a reboot: the files of the copy are read again, and its git directories are
        // written again.
        for record in machine::walk(&env.state_dir().join("mirrors")).iter().filter(|path| path.ends_with("own/record"))
        {
            fs::remove_file(record).expect("removes");
        }
    }
    // Without the nested repository, its git directory is removed from the copy.
    fs::remove_dir_all(repo.file("nested")).expect("removes");
    repo.run_with(&["--config", &write_private_tree_config(env)]).exits(1);
    let copies = machine::walk(&env.state_dir().join("mirrors"));
    assert!(!copies.iter().any(|path| path.ends_with("nested/.git/HEAD")), "{copies:?}");
}

fn git_state_matches_worktree(env: &TestEnvironment) {
    let commands = "git status --short --branch; git diff --stat; git diff --cached --stat; git log --format=%s; git tag; git ls-files -s";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", commands)]));
    repo.git(&["tag", "v1"]);
    repo.write("README.md", "modified\n");
    repo.write("staged.txt", "staged\n");
    repo.git(&["add", "staged.txt"]);
    repo.write("staged.txt", "and modified\n");
    repo.write("new.txt", "untracked\n");
    repo.write("excluded.tmp", "ignored\n");
    machine::write(&repo.file(".git/info/exclude"), "*.tmp\n");
    env.give_to_actor(&repo.file(".git/info/exclude"));
    repo.run_with(&["--config", &write_private_tree_config(env)]).exits(0);
    let seen = repo.step("it")["stdout_preview"].as_str().map(str::to_owned).unwrap_or_default();
    for line in [" M README.md", "AM staged.txt", "?? new.txt", "v1"] {
        assert!(seen.contains(line), "{line}\n{seen}");
    }
    assert!(!seen.contains("excluded.tmp"), "{seen}");
}
