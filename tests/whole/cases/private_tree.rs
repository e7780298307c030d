//! Tests runs over a private copy of the worktree: edits of the worktree during the run do not affect the steps, and
//! the record names the tree that they saw.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::environment::{CHANGESET, Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, Needs, case};
use crate::process::Finished;
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("private_tree::an_edit_during_the_run_reaches_no_step", edited).needs(NEEDS),
    case("", edited).needs(NEEDS).unprivileged("private_tree::an_edit_during_the_run_reaches_no_step_of_a_user"),
    case("private_tree::an_exchanged_directory_reaches_no_step", exchanged).needs(NEEDS),
    case("", exchanged).needs(NEEDS).unprivileged("private_tree::an_exchanged_directory_reaches_no_step_of_a_user"),
    case("private_tree::a_file_that_exists_for_a_moment_reaches_no_step", momentary).needs(NEEDS),
    case("private_tree::a_switched_branch_reaches_no_step", switched).needs(NEEDS),
    case("private_tree::attributes_of_overlays_are_not_copied", attributes).needs(NEEDS),
    case("private_tree::evidence_is_hidden", evidence_hidden).needs(NEEDS),
    case("private_tree::ignored_files_are_shown_and_recorded", ignored_shown).needs(NEEDS),
    case("", ignored_shown).needs(NEEDS).unprivileged("private_tree::ignored_files_are_shown_and_recorded_for_a_user"),
    case("private_tree::ignored_files_can_be_hidden", ignored_hidden).needs(NEEDS),
    case("private_tree::an_edit_of_an_ignored_file_reaches_no_step", ignored_edited).needs(NEEDS),
    case("private_tree::steps_change_and_remove_ignored_files_for_themselves", ignored_changed).needs(NEEDS),
    case("private_tree::a_strict_step_may_not_change_an_ignored_file", ignored_strict).needs(NEEDS),
    case("private_tree::ignored_files_beyond_a_bound_are_left_out", too_large_ignored).needs(NEEDS),
    case("private_tree::a_tree_beyond_a_bound_is_not_copied", too_large).needs(NEEDS),
    case("private_tree::an_edit_that_keeps_its_time_is_rebuilt", kept_time).needs(NEEDS),
    case("private_tree::changes_of_a_step_are_applied_to_the_worktree", applied).needs(NEEDS),
    case("", applied)
        .needs(NEEDS)
        .unprivileged("private_tree::changes_of_a_step_are_applied_to_the_worktree_of_a_user"),
    case("private_tree::two_trees_run_at_once", two_at_once).needs(NEEDS),
    case("private_tree::caches_of_an_older_copy_are_not_committed", older_caches).needs(NEEDS),
    case("private_tree::git_sees_what_it_sees_in_the_worktree", git_state).needs(NEEDS),
    case("private_tree::git_works_in_repositories_inside_the_tree", git_inside).needs(NEEDS),
    case("", git_inside).needs(NEEDS).unprivileged("private_tree::git_works_in_repositories_inside_the_tree_of_a_user"),
    case("", git_state).needs(NEEDS).unprivileged("private_tree::git_sees_what_it_sees_in_the_worktree_of_a_user"),
];

const NEEDS: &[Needs] = &[Needs::Sandbox, Needs::Program("python3"), Needs::Program("git")];

/// Writes an operator config that selects private copies, and returns its path.
fn config(env: &TestEnvironment) -> String {
    let path = env.root().join("private.toml");
    machine::write(&path, "[tree]\nmode = \"private\"\n");
    machine::open_file_to_all(&path);
    path.to_str().expect("UTF-8").to_owned()
}

/// Returns a spec with a step that waits until it is released, and then runs `check`.
pub(super) fn waits_then(env: &TestEnvironment, check: &str) -> Spec {
    let marker = env.marker();
    let script = format!("trap : USR1; sh -c 'sleep 300; :' {marker}-ready & wait; {check}");
    Spec::of_steps([Step::argv("it", &["sh", "-c", &script, &format!("{marker}-main")])])
}

/// Runs a step over a private copy, calls `act` while it waits, and then lets it run `check`.
fn meanwhile<'e>(
    env: &'e TestEnvironment,
    check: &str,
    prepare: impl FnOnce(&Repo<'_>),
    act: impl FnOnce(&Repo<'_>),
) -> (Repo<'e>, Finished) {
    let repo = env.repo(&waits_then(env, check));
    prepare(&repo);
    let config = config(env);
    let mut running = repo.start(&["--config", &config]);
    let step = wait_for_step(env, &mut running);
    act(&repo);
    release(&step);
    let run = env.finish(running);
    (repo, run)
}

fn edited(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| repo.write("src/lib.rs", "broken\n");
    let (repo, run) = meanwhile(env, "! grep broken src/lib.rs", |_| {}, act);
    run.exits(0);
    assert_eq!(repo.evidence("verify.it")["source"], serde_json::json!({ "kind": "worktree", "tree": "private" }));
    // The tree that passed is not the current one.
    let gate = repo.proctor(&["gate", "--changeset", CHANGESET]);
    assert_eq!(gate.code, Some(1), "{gate}");
}

fn exchanged(env: &TestEnvironment) {
    let prepare = |repo: &Repo<'_>| repo.write("beside/lib.rs", "good\n");
    let act = |repo: &Repo<'_>| {
        // At the end they are exchanged back, with unchanged times.
        let (src, beside, aside) = (repo.file("src"), repo.file("beside"), repo.file("aside"));
        fs::rename(&src, &aside).expect("renamed");
        fs::rename(&beside, &src).expect("renamed");
    };
    let (_, run) = meanwhile(env, "grep good src/lib.rs", prepare, act);
    run.exits(1);
}

fn momentary(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| repo.write("conftest.py", "skip everything\n");
    let (_, run) = meanwhile(env, "test -e conftest.py", |_| {}, act);
    run.exits(1);
}

fn switched(env: &TestEnvironment) {
    let act = |repo: &Repo<'_>| {
        repo.git(&["checkout", "--quiet", "-b", "other"]);
        repo.git(&["commit", "--quiet", "--allow-empty", "--message=other"]);
    };
    let check = "git symbolic-ref HEAD; git log --format=%s; git symbolic-ref HEAD | grep -v other && ! git log --format=%s | grep other";
    let (_, run) = meanwhile(env, check, |_| {}, act);
    run.exits(0);
}

/// The step's overlay would interpret these attributes, and tracked files would disappear.
fn attributes(env: &TestEnvironment) {
    let prepare = |repo: &Repo<'_>| {
        let program = "import os; os.setxattr('src', 'user.overlay.opaque', b'y'); os.setxattr('README.md', 'user.overlay.whiteout', b'y'); \
            os.setxattr('src', 'user.overlay.opaque', b'x')";
        let set = env.program_of_actor("python3").args(["-c", program]).current_dir(repo.path()).status();
        assert!(set.expect("python3 starts").success());
    };
    let (_, run) = meanwhile(env, "test -e README.md && test -e src/lib.rs", prepare, |_| {});
    run.exits(0);
}

fn evidence_hidden(env: &TestEnvironment) {
    let step = Step::sh("it", &format!("test ! -e changes/{CHANGESET}/verify"));
    let repo = env.repo(&Spec::of_steps([step]));
    repo.run().exits(0);
    // Now the changeset contains evidence.
    repo.run().exits(0);
}

/// Creates a repository with ignored files.
fn with_ignored<'e>(env: &'e TestEnvironment, spec: &Spec) -> Repo<'e> {
    let repo = env.repo(spec);
    repo.write(".gitignore", "/target/\n*.log\n.env\n");
    repo.write("src/run.log", "noise\n");
    repo.write("target/deep/out", "built\n");
    fs::create_dir(repo.file("target/empty")).expect("makes");
    repo.write(".env", "KEY=1\n");
    fs::set_permissions(repo.file(".env"), std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("sets the mode");
    repo
}

fn ignored_shown(env: &TestEnvironment) {
    let check =
        "grep KEY .env && grep built target/deep/out && grep noise src/run.log && [ -d target/empty ] && [ -O .env ]";
    let repo = with_ignored(env, &Spec::of_script(check));
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
    strict.says(&[".env", "target", "`ignored: hidden`"]);
    // The next run sees their current content.
    repo.write("target/deep/out", "broken\n");
    repo.run().exits(1);
    assert_ne!(repo.last_run()["unverified_inputs"]["sha256"], inputs["sha256"]);
}

fn ignored_hidden(env: &TestEnvironment) {
    let repo = with_ignored(env, &Spec::of_script("! ls .env src/run.log target").top("ignored: hidden"));
    repo.run().exits(0);
    assert!(repo.last_run()["unverified_inputs"].is_null());
    repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]).exits(0);
}

fn ignored_edited(env: &TestEnvironment) {
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
    let (_, run) = meanwhile(env, check, prepare, act);
    run.exits(0);
}

fn ignored_changed(env: &TestEnvironment) {
    let steps = [
        Step::sh("build", "rm -rf target && mkdir target && echo mine > target/out && echo more >> .env"),
        Step::sh("test", "grep mine target/out && [ ! -e target/deep ] && grep more .env"),
    ];
    let repo = with_ignored(env, &Spec::of_steps(steps));
    for _ in 0..2 {
        repo.run().exits(0);
        assert_eq!((repo.read("target/deep/out").as_str(), repo.read(".env").as_str()), ("built\n", "KEY=1\n"));
    }
}

fn ignored_strict(env: &TestEnvironment) {
    let repo =
        with_ignored(env, &Spec::of_script("echo x > .env; rm target/deep/out").with_default("read_only: strict"));
    let run = repo.run().exits(3);
    run.says(&["modified .env", "deleted target/deep/out"]);
}

fn too_large_ignored(env: &TestEnvironment) {
    env.configure("[tree]\nmax_bytes = 2000\n");
    let repo = with_ignored(env, &Spec::of_script("grep KEY .env && [ ! -e target ]"));
    repo.write("target/large", "x".repeat(2000));
    repo.run().exits(0);
    let inputs = repo.last_run()["unverified_inputs"].clone();
    assert_eq!((&inputs["entries"][2]["path"], &inputs["entries"][2]["shown"]), (&"target".into(), &"left_out".into()));
    assert_eq!(repo.last_run()["source"]["tree"], "private");
}

fn too_large(env: &TestEnvironment) {
    env.configure("[tree]\nmax_bytes = 2000\n");
    let repo = with_ignored(env, &Spec::of_script("grep built target/deep/out"));
    repo.write("large", "x".repeat(2000));
    repo.run().exits(0);
    assert_eq!(repo.last_run()["source"], serde_json::json!({ "kind": "worktree", "tree": "shared" }));
    repo.proctor(&["gate", "--changeset", CHANGESET, "--strict-inputs"]).exits(1);
}

/// Runs a build that compares file times, with a stored cache.
fn kept_time(env: &TestEnvironment) {
    let build = "if [ ! -e target/out ] || [ src/lib.rs -nt target/out ]; then cp src/lib.rs target/out; fi; grep good target/out";
    let skill = Skill::new("verify.tests", [Step::sh("it", build)]).with("caches: [target]");
    let repo = env.repo(&Spec::new([skill]));
    let config = config(env);
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

fn applied(env: &TestEnvironment) {
    let step = Step::sh("it", "echo formatted > src/lib.rs; echo new > new.txt").with("read_only: off");
    let next = Step::sh("next", "grep formatted src/lib.rs && test -e new.txt");
    let repo = env.repo(&Spec::of_steps([step, next]));
    repo.run_with(&["--config", &config(env)]).exits(0);
    assert_eq!((repo.read("src/lib.rs").as_str(), repo.read("new.txt").as_str()), ("formatted\n", "new\n"));
    let owner = |path: &Path| std::os::unix::fs::MetadataExt::uid(&fs::metadata(path).expect("it is there"));
    assert_eq!(owner(&repo.file("new.txt")), owner(&repo.file("README.md")));
}

/// A run of another tree starts during a run; each uses its own files.
fn two_at_once(env: &TestEnvironment) {
    let repo = env.repo(&waits_then(env, "grep first src/lib.rs"));
    repo.write("src/lib.rs", "first\n");
    let config = config(env);
    let mut running = repo.start(&["--config", &config]);
    let step = wait_for_step(env, &mut running);
    repo.write("src/lib.rs", "second\n");
    let spec = Spec::of_steps([Step::sh("it", "grep second src/lib.rs")]);
    repo.write("spec/verification.yaml", spec.text(env.marker()));
    // The first run is still active, so remaining processes are not checked here.
    repo.start_other(&["run", "--config", &config]).wait().exits(0);
    release(&step);
    env.finish(running).exits(0);
}

/// Output of a run over an older copy could look newer than a change that the newer copy has received in the
/// meantime.
fn older_caches(env: &TestEnvironment) {
    let waiting = waiting_step(env, "it");
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [waiting]).with("caches: [target]")]));
    repo.write(".gitignore", "target/\n");
    let config = config(env);
    let mut running = repo.start(&["--config", &config]);
    let step = wait_for_step(env, &mut running);
    repo.write("src/lib.rs", "second\n");
    let spec = Spec::of_steps([Step::sh("it", "grep second src/lib.rs")]);
    repo.write("spec/verification.yaml", spec.text(env.marker()));
    repo.start_other(&["run", "--config", &config]).wait().exits(0);
    release(&step);
    env.finish(running).exits(0);
    assert_eq!(repo.evidence("verify.it")["measured"]["caches"][0]["end"], "discarded");
}

fn git_inside(env: &TestEnvironment) {
    let inner = env.repo_at("inner", &Spec::of_script("true"));
    let each = "for at in sub nested; do git -C $at log --format=%s && git -C $at status --short && git -C $at tag || exit 1; done";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", each)]));
    let source = inner.path().to_str().expect("UTF-8").to_owned();
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", &source, "sub"]);
    repo.commit();
    repo.git(&["clone", "--quiet", &source, "nested"]);
    repo.git(&["-C", "nested", "tag", "v7"]);
    machine::write(&repo.file("sub/README.md"), "edited\n");
    machine::write(&repo.file("nested/new"), "x\n");
    env.hand_over(repo.path());
    for run in 0..2 {
        repo.run_with(&["--config", &config(env)]).exits(0);
        let seen = repo.step("it")["stdout_preview"].as_str().map(str::to_owned).unwrap_or_default();
        let subject = inner.git(&["log", "--format=%s"]);
        let expected = format!("{subject} M README.md\n{subject}?? new\nv7\n");
        assert_eq!(seen, expected, "run {run}");
        // As after a reboot: the files of the copy are read again, and its git directories are written again.
        for record in machine::walk(&env.state().join("mirrors")).iter().filter(|path| path.ends_with("own/record")) {
            fs::remove_file(record).expect("removes");
        }
    }
    // Without the nested repository, its git directory is removed from the copy.
    fs::remove_dir_all(repo.file("nested")).expect("removes");
    repo.run_with(&["--config", &config(env)]).exits(1);
    let copies = machine::walk(&env.state().join("mirrors"));
    assert!(!copies.iter().any(|path| path.ends_with("nested/.git/HEAD")), "{copies:?}");
}

fn git_state(env: &TestEnvironment) {
    let commands = "git status --short --branch; git diff --stat; git diff --cached --stat; git log --format=%s; git tag; git ls-files -s";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", commands)]));
    repo.git(&["tag", "v1"]);
    repo.write("README.md", "modified\n");
    repo.write("staged.txt", "staged\n");
    repo.git(&["add", "staged.txt"]);
    repo.write("staged.txt", "and modified\n");
    repo.write("new.txt", "untracked\n");
    repo.write("excluded.tmp", "ignored\n");
    machine::write(&repo.file(".git/info/exclude"), "*.tmp\n");
    env.hand_over(&repo.file(".git/info/exclude"));
    repo.run_with(&["--config", &config(env)]).exits(0);
    let seen = repo.step("it")["stdout_preview"].as_str().map(str::to_owned).unwrap_or_default();
    for line in [" M README.md", "AM staged.txt", "?? new.txt", "v1"] {
        assert!(seen.contains(line), "{line}\n{seen}");
    }
    assert!(!seen.contains("excluded.tmp"), "{seen}");
}
