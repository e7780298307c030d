//! Tests `--rev`, which verifies the tree of a commit independently of the worktree.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::cases::hooks::{add_remote, push_to_origin};
use crate::cases::missing_controls::wrapper_without;
use crate::environment::{CHANGESET, Repo, TestEnvironment, release_step, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, Needs, case, dry_case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("revisions::uncommitted_work_is_ignored_and_unchanged", uncommitted_work_is_ignored_and_unchanged),
    case("", uncommitted_work_is_ignored_and_unchanged)
        .unprivileged("revisions::an_ordinary_user_verifies_a_commit")
        .daemon_sample(),
    case("revisions::root_verifies_a_commit_of_another_users_repository", root_verifies_commit_of_other_user)
        .needs(&[Needs::Sandbox, Needs::Root, Needs::Program("git")])
        .daemon_sample(),
    case("revisions::record_names_the_commit", record_names_commit).daemon_sample(),
    case("revisions::concurrent_edits_and_commits_do_not_matter", concurrent_edits_and_commits_do_not_matter),
    case("revisions::git_in_a_step_reads_history", git_in_step_reads_history),
    case("revisions::step_sees_neither_the_worktree_nor_the_state_directory", worktree_and_state_are_hidden),
    case("revisions::drift_is_detected_and_changes_are_not_applied", drift_is_detected_and_not_applied),
    case("revisions::caches_belong_to_the_branch", caches_belong_to_branch).daemon_sample(),
    case("revisions::a_range_is_verified_oldest_first", range_is_verified_oldest_first).daemon_sample(),
    case("revisions::a_commit_that_cannot_run_does_not_stop_a_range", range_continues_after_error),
    dry_case("revisions::invalid_revision_is_a_usage_error", invalid_revision_is_usage_error).daemon_sample(),
    dry_case("revisions::contradictory_options_are_a_usage_error", contradictory_options_are_usage_errors)
        .daemon_sample(),
    case("revisions::tree_with_unsafe_names_is_refused", tree_with_unsafe_names_is_refused),
    case("revisions::changed_checkout_is_recreated", changed_checkout_is_recreated).daemon_sample(),
    case("revisions::copy_of_a_killed_writer_is_repaired", copy_of_killed_writer_is_repaired),
    case("revisions::an_interrupted_checkout_ends_the_run", interrupted_checkout_ends_run),
    case("revisions::commit_is_verified_without_overlays", commit_without_overlays).needs(NEEDS_PYTHON),
    case("revisions::commit_is_verified_without_namespaces", commit_without_namespaces).needs(NEEDS_PYTHON),
    case("revisions::two_runs_of_one_commit_share_its_checkout", concurrent_runs_share_checkout),
    case("revisions::submodules_are_empty_unless_requested", submodules_are_empty_unless_requested),
    case("revisions::hook_checks_out_submodules_on_request", hook_checks_out_submodules_on_request)
        .needs(&[Needs::Sandbox, Needs::Program("git")]),
    case("revisions::a_linked_worktree_verifies_a_commit", linked_worktree_verifies_commit),
    case("revisions::uncommitted_work_is_ignored_and_unchanged_in_sha256", uncommitted_work_is_ignored_and_unchanged)
        .with_sha256()
        .long(),
    case("", uncommitted_work_is_ignored_and_unchanged)
        .with_sha256()
        .unprivileged("revisions::an_ordinary_user_verifies_a_commit_in_sha256")
        .long(),
    case("revisions::record_names_the_commit_in_sha256", record_names_commit).with_sha256(),
    case("revisions::git_in_a_step_reads_history_in_sha256", git_in_step_reads_history).with_sha256().long(),
    case("revisions::drift_is_detected_and_changes_are_not_applied_in_sha256", drift_is_detected_and_not_applied)
        .with_sha256()
        .long(),
    case("revisions::a_range_is_verified_oldest_first_in_sha256", range_is_verified_oldest_first).with_sha256().long(),
    case("revisions::invalid_revision_is_a_usage_error_in_sha256", invalid_revision_is_usage_error)
        .with_sha256()
        .long(),
    case("revisions::tree_with_unsafe_names_is_refused_in_sha256", tree_with_unsafe_names_is_refused)
        .with_sha256()
        .long(),
    case("revisions::changed_checkout_is_recreated_in_sha256", changed_checkout_is_recreated).with_sha256().long(),
    case("revisions::submodules_of_sha256_are_empty_and_refused_if_requested", sha256_submodules_are_refused)
        .with_sha256(),
    case("revisions::a_linked_worktree_verifies_a_commit_in_sha256", linked_worktree_verifies_commit)
        .with_sha256()
        .long(),
    case(
        "revisions::uncommitted_work_is_ignored_and_unchanged_in_reftables",
        uncommitted_work_is_ignored_and_unchanged,
    )
    .with_reftables()
    .long(),
    case("", uncommitted_work_is_ignored_and_unchanged)
        .with_reftables()
        .unprivileged("revisions::an_ordinary_user_verifies_a_commit_in_reftables")
        .long(),
    case("revisions::git_in_a_step_reads_history_in_reftables", git_in_step_reads_history).with_reftables().long(),
    case("revisions::a_range_is_verified_oldest_first_in_reftables", range_is_verified_oldest_first)
        .with_reftables()
        .long(),
    case("revisions::invalid_revision_is_a_usage_error_in_reftables", invalid_revision_is_usage_error)
        .with_reftables()
        .long(),
    case("revisions::a_linked_worktree_verifies_a_commit_in_reftables", linked_worktree_verifies_commit)
        .with_reftables(),
];

/// Passes if `src/lib.rs` has the content of the first commit.
fn spec_passing_on_first_commit() -> TestSpec {
    TestSpec::from_script("pwd; grep -q 'fn one' src/lib.rs")
}

/// Returns all files of the worktree and its git directory with their change times.
fn files_with_times(repo: &Repo<'_>) -> Vec<(PathBuf, u64, i64, i64)> {
    let all = machine::walk(repo.path()).into_iter();
    // Evidence is written to the real changeset.
    let all = all.filter(|path| !path.starts_with(repo.changeset()));
    let with_times = |path: PathBuf| {
        let meta = path.symlink_metadata().expect("it is there");
        (path, meta.ino(), meta.mtime_nsec() + meta.mtime(), meta.ctime_nsec() + meta.ctime())
    };
    let mut files: Vec<_> = all.map(with_times).collect();
    files.sort();
    files
}

fn uncommitted_work_is_ignored_and_unchanged(env: &TestEnvironment) {
    let repo = env.repo(&spec_passing_on_first_commit());
    repo.write("src/lib.rs", "broken\n");
    repo.write("spec/verification.yaml", "not even a spec");
    repo.write("untracked", "x");
    let before = files_with_times(&repo);
    let run = repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert!(run.stdout.contains("independent of the worktree"), "{run}");
    assert_eq!(files_with_times(&repo), before);
    assert_eq!(repo.last_run()["outcome"], "passed");
    // A later run reuses the checkout.
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(files_with_times(&repo), before);
    repo.run().exits(2);
}

fn root_verifies_commit_of_other_user(env: &TestEnvironment) {
    let spec = TestSpec::from_script(
        "grep -q 'fn one' src/lib.rs && echo x > untracked && git log -1 && test $(id -u) = 1001",
    )
    .with_default("read_only: off");
    let repo = env.repo(&spec);
    repo.write("src/lib.rs", "broken\n");
    machine::change_owner(repo.path(), machine::UNPRIVILEGED_ID);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

fn record_names_commit(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run().exits(0);
    let worktree_evidence = repo.evidence("verify.it");
    assert_eq!(worktree_evidence["source"], serde_json::json!({ "kind": "worktree", "tree": "private" }));
    let commit = repo.git(&["rev-parse", "HEAD"]).trim().to_owned();
    repo.write("src/lib.rs", "edited\n");
    repo.run_with(&["--rev", &commit[..10]]).exits(0);
    let evidence = repo.evidence("verify.it");
    let source = serde_json::json!({ "kind": "rev", "commit": commit, "submodules": false, "lfs_pointers": 0 });
    assert_eq!((&evidence["source"], &repo.last_run()["source"]), (&source, &source));
    let git = &evidence["repo_git"];
    assert_eq!(git["head_commit"], commit);
    assert_eq!(git["tree"], repo.git(&["rev-parse", "HEAD^{tree}"]).trim());
    assert_eq!((&git["branch"], &git["dirty"]), (&Value::Null, &Value::Bool(false)));
    // A clean worktree of the commit has the same snapshot.
    assert_eq!(evidence["repo_snapshot_before"], worktree_evidence["repo_snapshot_before"]);
}

fn concurrent_edits_and_commits_do_not_matter(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([waiting_step(env, "wait"), TestStep::sh("it", "grep -q 'fn one' src/lib.rs")]));
    let mut running = repo.start(&["--rev", "HEAD"]);
    let step = wait_for_step(env, &mut running);
    repo.write("src/lib.rs", "somebody's work\n");
    repo.commit();
    repo.write("src/lib.rs", "and more of it\n");
    release_step(&step);
    env.finish(running).exits(0);
    assert_eq!(repo.read("src/lib.rs"), "and more of it\n");
}

fn git_in_step_reads_history(env: &TestEnvironment) {
    let script = "test -z \"$(git status --porcelain)\" && git diff --exit-code HEAD && git describe --tags && \
        test \"$(git log --format=%s | wc -l)\" = 2 && git rev-parse main && test \"$(git rev-parse --show-toplevel)\" = \"$PWD\" && \
        ! git commit --allow-empty -m x && ! touch .git/x && git fsck --connectivity-only";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.git(&["tag", "v1"]);
    repo.write("README.md", "second\n");
    repo.commit();
    repo.write("README.md", "third\n");
    repo.commit();
    repo.run_with(&["--rev", "main~1"]).exits(0);
    // Hooks and config of the repository have no effect.
    repo.git(&["config", "core.hooksPath", "/tmp"]);
    repo.git(&["tag", "v2", "main~1"]);
    repo.run_with(&["--rev", "main~1"]).exits(0);
    assert!(repo.step("it")["stdout_preview"].as_str().is_some_and(|text| text.contains("v2")));
}

fn worktree_and_state_are_hidden(env: &TestEnvironment) {
    let state = env.state_dir();
    let script = format!(
        "test ! -e untracked && test ! -e .git/logs && test ! -e .git/hooks && ! ls {0}/mirrors && ! ls {0}/runs && pwd",
        state.display()
    );
    let repo = env.repo(&TestSpec::from_script(&script));
    repo.write("untracked", "x");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    let shown = repo.step("it")["stdout_preview"].as_str().map(str::to_owned);
    assert_eq!(shown.as_deref(), Some(format!("{}\n", repo.path().display()).as_str()));
}

fn drift_is_detected_and_not_applied(env: &TestEnvironment) {
    let writes = TestSkill::new("verify.off", [TestStep::sh("it", "echo x > src/lib.rs").with_field("read_only: off")]);
    let sees = TestSkill::new("verify.it", [TestStep::sh("it", "grep -q x src/lib.rs && echo y > README.md")]);
    let repo = env.repo(&TestSpec::new([writes, sees]));
    let before = files_with_times(&repo);
    for _ in 0..2 {
        repo.run_with(&["--rev", "HEAD"]).exits(3);
        assert_eq!(repo.step("it")["drift"]["changes"][0]["path"], "README.md");
        assert_eq!(repo.evidence("verify.off")["steps"][0]["drift"]["applied"], serde_json::json!([]));
        assert_eq!(files_with_times(&repo), before);
    }
}

fn caches_belong_to_branch(env: &TestEnvironment) {
    let step = TestStep::sh("it", "cat target/who; git rev-parse HEAD >> target/who; true");
    let repo = env.repo(&TestSpec::new([TestSkill::new("verify.it", [step]).with_field("caches: [target]")]));
    let (first, preview) =
        (repo.git(&["rev-parse", "HEAD"]), |repo: &Repo<'_>| repo.step("it")["stdout_preview"].clone());
    repo.run().exits(0);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(preview(&repo), "");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(preview(&repo), first);
    repo.write("README.md", "second\n");
    repo.commit();
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(preview(&repo), format!("{first}{first}"));
    // A commit that no branch points to reads the caches of the default branch, and does not change them.
    repo.run_with(&["--rev", "HEAD~1"]).exits(0);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(preview(&repo).as_str().map(|text| text.lines().count()), Some(3));
}

/// Creates four commits: a good one, a failing one, a drifting one, and a good one.
fn repo_with_four_commits(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&TestSpec::from_script("sh ./check"));
    for (number, check) in ["true", "exit 1", "echo x > README.md", "true # again"].iter().enumerate() {
        repo.write("check", format!("{check}\n"));
        repo.git(&["add", "--all"]);
        repo.git(&["commit", "--quiet", &format!("--message=commit number {number}")]);
    }
    repo
}

fn range_is_verified_oldest_first(env: &TestEnvironment) {
    let repo = repo_with_four_commits(env);
    let run = repo.run_with_only(&["--rev", "HEAD~4..HEAD"]).exits(3);
    let position = |text: &str| run.stdout.find(text).unwrap_or_else(|| panic!("no {text}\n{run}"));
    assert!(position("commit 1 of 4:") < position("commit 4 of 4:"), "{run}");
    let short = |commit: &str| repo.git(&["rev-parse", "--short=12", commit]).trim().to_owned();
    for (commit, word) in [("HEAD~3", "passed"), ("HEAD~2", "failed"), ("HEAD~1", "drifted"), ("HEAD", "passed")] {
        position(&format!("  {} {word}", short(commit)));
    }
    let fast = repo.run_with_only(&["--rev", "HEAD~4..", "--fail-fast"]).exits(1);
    assert!(fast.stdout.contains("2 more were left out"), "{fast}");
    let json = repo.run_with_only(&["--rev", "HEAD~4..HEAD~3", "--format", "json"]).exits(0);
    let record: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(record["commits"][0]["commit"], repo.git(&["rev-parse", "HEAD~3"]).trim());
    assert_eq!(record["commits"][0]["run"]["finished"]["verdict"], "passed");
    repo.run_with_only(&["--rev", "HEAD~1...HEAD"]).exits(0);
    repo.run_with_only(&["--rev", "HEAD..HEAD"]).exits(2).prints_to_stderr(&["contains no commit", "hint:"]);
}

fn range_continues_after_error(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let spec = repo.read("spec/verification.yaml");
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it was there");
    repo.commit();
    repo.write("spec/verification.yaml", spec);
    repo.commit();
    let run = repo.run_with_only(&["--rev", "HEAD~2..HEAD"]).exits(2);
    assert!(run.stdout.contains("nothing ran") && run.stdout.contains("passed"), "{run}");
    assert!(run.stderr.contains("has no `spec/verification.yaml`"), "{run}");
}

fn invalid_revision_is_usage_error(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.git(&["tag", "both", "HEAD"]);
    repo.write("README.md", "second\n");
    repo.commit();
    repo.git(&["branch", "both", "HEAD"]);
    for (revision, words) in [
        ("nothing", "names nothing"),
        ("HEAD^{tree}", "names a tree, not a commit"),
        ("both", "ambiguous"),
        ("HEAD~7", "names nothing"),
        ("a\u{7}b", "it is not a revision"),
        ("", "it is not a revision"),
    ] {
        repo.run_with_only(&["--rev", revision]).exits(2).prints_to_stderr(&[words, "hint:"]);
    }
    repo.run_with_only(&["--rev=--all"]).exits(2).prints_to_stderr(&["it is not a revision"]);
    assert_eq!(private_copies(env), [] as [PathBuf; 0]);
}

fn contradictory_options_are_usage_errors(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.run_with_only(&["--rev", "HEAD~1..HEAD", "--changeset", CHANGESET]).exits(2);
    repo.run_with_only(&["--rev", "HEAD~1..HEAD", "--patch", "x"]).exits(2);
    repo.run_with_only(&["--patch", "-", "--format", "json"]).exits(2);
    repo.run_with_only(&["--submodules"]).exits(2);
}

fn tree_with_unsafe_names_is_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let blob = repo.git(&["rev-parse", "HEAD:README.md"]).trim().to_owned();
    for name in [".git", "..", ".GIT"] {
        let raw: Vec<u8> =
            (0..blob.len() / 2).map(|at| u8::from_str_radix(&blob[2 * at..2 * at + 2], 16).expect("hex")).collect();
        machine::write(&env.root().join("object"), [format!("100644 {name}\0").as_bytes(), &raw].concat());
        let object = env.root().join("object");
        let object = object.to_str().expect("UTF-8");
        let tree = repo.git(&["hash-object", "-t", "tree", "--literally", "-w", object]);
        let commit = repo.git(&["commit-tree", "-m", "hostile", tree.trim()]);
        let run = repo.run_with_only(&["--rev", commit.trim()]).exits(5);
        assert!(run.stderr.contains("is not checked out") && run.stderr.contains("hint:"), "{name}: {run}");
    }
    assert_eq!(private_copies(env), [] as [PathBuf; 0]);
}

/// Returns the trees of all private copies.
fn private_copies(env: &TestEnvironment) -> Vec<PathBuf> {
    let mut paths = machine::walk(&env.state_dir().join("mirrors"));
    paths.retain(|path| path.ends_with("own/tree"));
    paths
}

/// Returns the tree of the only private copy.
fn only_private_copy(env: &TestEnvironment) -> PathBuf {
    let mut paths = private_copies(env);
    assert_eq!(paths.len(), 1, "{paths:?}");
    paths.remove(0)
}

fn changed_checkout_is_recreated(env: &TestEnvironment) {
    let repo = env.repo(&spec_passing_on_first_commit());
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    let is_damage = [true, true, true, true, false, false];
    let spoils: [&dyn Fn(PathBuf); 6] = [
        &|tree| machine::write(&tree.join("src/lib.rs"), "fn one of another kind\n"),
        &|tree| std::fs::remove_file(tree.join("README.md")).expect("it was there"),
        &|tree| machine::write(&tree.join("new"), "x"),
        // The snapshot does not cover this file, but a step sees it.
        &|tree| {
            machine::write(&tree.join(".git/info/exclude"), "new\n");
            machine::write(&tree.join("new"), "x");
        },
        &|tree| machine::write(&tree.join(".git/index"), "torn"),
        &|tree| machine::write(&tree.join("../record"), ""),
    ];
    let snapshot = repo.last_run()["snapshot"].clone();
    for (spoil, is_damage) in spoils.into_iter().zip(is_damage) {
        spoil(only_private_copy(env));
        repo.proctor(&["doctor", "--deep"]).exits(if is_damage { 1 } else { 0 });
        repo.run_with(&["--rev", "HEAD"]).exits(0);
        assert_eq!(repo.last_run()["snapshot"], snapshot);
        assert!(!only_private_copy(env).join("new").exists());
    }
}

fn copy_of_killed_writer_is_repaired(env: &TestEnvironment) {
    let repo = env.repo(&spec_passing_on_first_commit());
    (0..3000).for_each(|number| machine::write(&repo.file(&format!("many/{number}")), format!("{number}\n")));
    env.give_to_actor(repo.path());
    repo.commit();
    for _ in 0..3 {
        let mut running = repo.start(&["--rev", "HEAD"]);
        let mirrors = env.state_dir().join("mirrors");
        // The first file exists; the last one may be missing.
        running.wait_until(|| machine::walk(&mirrors).iter().any(|path| path.ends_with("tree/README.md")));
        running.signal_if_alive(Signal::KILL);
        running.wait();
        machine::wait_for_processes_to_exit(env.marker(), std::time::Duration::from_secs(20)).expect("nothing is left");
    }
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    repo.proctor(&["doctor", "--deep"]).exits(0);
    assert_eq!(std::fs::read_dir(only_private_copy(env).join("many")).expect("a directory").count(), 3000);
}

fn interrupted_checkout_ends_run(env: &TestEnvironment) {
    let repo = env.repo(&spec_passing_on_first_commit());
    (0..3000).for_each(|number| machine::write(&repo.file(&format!("many/{number}")), format!("{number}\n")));
    env.give_to_actor(repo.path());
    repo.commit();
    let mut running = repo.start(&["--rev", "HEAD"]);
    let mirrors = env.state_dir().join("mirrors");
    running.wait_until(|| machine::walk(&mirrors).iter().any(|path| path.ends_with("tree/README.md")));
    running.signal(Signal::INT);
    env.finish(running).exits(130);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

/// Runs a commit on a machine without certain features, while the content of the worktree differs.
fn assert_verified_without(env: &TestEnvironment, features: &[&str]) {
    let script = "grep -q 'fn one' src/lib.rs && test ! -e untracked && git log -1 && git diff --exit-code HEAD && \
        echo drift > README.md";
    let repo = env.repo(&TestSpec::from_script(script));
    repo.write("src/lib.rs", "broken\n");
    repo.write("untracked", "x");
    let before = files_with_times(&repo);
    let words = ["run", "--changeset", CHANGESET, "--sandbox", "best-effort", "--rev", "HEAD"];
    for _ in 0..2 {
        let run = env.finish(env.start_through(repo.path(), &wrapper_without(features), &words)).exits(3);
        let changes = repo.step("it")["drift"]["changes"].clone();
        assert_eq!((&changes[0]["path"], changes.as_array().map(Vec::len)), (&"README.md".into(), Some(1)), "{run}");
        assert_eq!(files_with_times(&repo), before);
    }
}

fn commit_without_overlays(env: &TestEnvironment) {
    assert_verified_without(env, &["fsconfig:1@0=EINVAL"]);
}

fn commit_without_namespaces(env: &TestEnvironment) {
    assert_verified_without(env, &["unshare=EPERM"]);
}

fn concurrent_runs_share_checkout(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([waiting_step(env, "wait"), TestStep::sh("it", "grep -q 'fn one' src/lib.rs")]));
    let bare = |repo: &Repo<'_>| env.start_in(repo.path(), &["run", "--rev", "HEAD"]);
    let (mut one, mut other) = (bare(&repo), bare(&repo));
    let first = wait_for_step(env, &mut one);
    let second = crate::environment::wait_for_attempt_after(env, &mut other, &first);
    release_step(&first);
    release_step(&second);
    one.wait().exits(0);
    env.finish(other).exits(0);
    only_private_copy(env);
}

fn submodules_are_empty_unless_requested(env: &TestEnvironment) {
    let inner = env.repo_at("inner", &TestSpec::from_script("true"));
    let script = "if test -n \"$WITH\"; then git -C sub log -1 && test -z \"$(git status --porcelain)\" && grep -q one sub/src/lib.rs; \
        else test -z \"$(ls -A sub)\"; fi";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("env_allowlist: [WITH]")]));
    let url = inner.path().to_str().expect("UTF-8");
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    repo.commit();
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    env.set_caller_var("WITH", "1");
    repo.run_with(&["--rev", "HEAD", "--submodules"]).exits(0);
    assert_eq!(repo.evidence("verify.it")["source"]["submodules"], true);
    std::fs::remove_dir_all(repo.file(".git/modules")).expect("it was there");
    std::fs::remove_dir_all(repo.file("sub")).expect("it was there");
    repo.write("README.md", "second\n");
    repo.git(&["commit", "--quiet", "--message=x", "README.md"]);
    repo.run_with(&["--rev", "HEAD", "--submodules"])
        .exits(2)
        .prints_to_stderr(&["submodule `sub`", "git submodule update"]);
}

fn hook_checks_out_submodules_on_request(env: &TestEnvironment) {
    let inner = env.repo_at("inner", &TestSpec::from_script("true"));
    let repo = env.repo(&TestSpec::from_script("test -f sub/src/lib.rs"));
    let url = inner.path().to_str().expect("UTF-8");
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    repo.commit();
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    push_to_origin(&repo, env, &["main"]).exits(1).prints_to_stderr(&["proctor hook install --submodules"]);
    // The hook for commits does not get options for pushes.
    repo.proctor(&["hook", "install", "--submodules", "pre-commit"]).exits(2).prints_to_stderr(&["`--submodules`"]);
    repo.proctor(&["hook", "install", "--submodules"]).exits(0);
    push_to_origin(&repo, env, &["main"]).exits(0);
    repo.proctor(&["hook", "install", "--submodules", "--each-commit", "pre-push", "pre-commit"]).exits(0);
    let hook = repo.read(".git/hooks/pre-commit");
    assert!(!hook.contains("--submodules") && !hook.contains("--each-commit"), "{hook}");
}

/// A refused run with submodules must leave no partial checkout for a later run without them.
fn sha256_submodules_are_refused(env: &TestEnvironment) {
    let inner = env.repo_at("inner", &TestSpec::from_script("true"));
    let repo = env.repo(&TestSpec::from_script("test -z \"$(ls -A sub)\""));
    let url = inner.path().to_str().expect("UTF-8");
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    repo.commit();
    let refused = repo.run_with(&["--rev", "HEAD", "--submodules"]).exits(5);
    refused.prints_to_stderr(&["submodules in the sha256 object format", "hint: without `--submodules`"]);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

fn linked_worktree_verifies_commit(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("git log -1 && git status --porcelain && grep -q 'fn one' src/lib.rs"));
    let path = env.root().join("linked");
    repo.git(&["worktree", "add", "--quiet", "-b", "side", path.to_str().expect("UTF-8")]);
    let linked = Repo::at(env, path);
    linked.write("src/lib.rs", "broken\n");
    linked.run_with(&["--rev", "side"]).exits(0);
}
