//! Tests `--rev`, which verifies the tree of a commit independently of the worktree.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use rustix::process::Signal;
use serde_json::Value;

use crate::cases::degrading::lacking;
use crate::environment::{CHANGESET, Repo, TestEnvironment, release, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, NEEDS_PYTHON, Needs, case, dry_case};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("revisions::uncommitted_work_is_neither_counted_nor_touched", uncommitted),
    case("", uncommitted).unprivileged("revisions::an_ordinary_user_verifies_a_commit"),
    case("revisions::root_verifies_a_commit_of_somebody_elses_repository", of_another).needs(&[
        Needs::Sandbox,
        Needs::Root,
        Needs::Program("git"),
    ]),
    case("revisions::the_record_says_which_commit_it_was", recorded),
    case("revisions::edits_and_commits_made_meanwhile_do_not_matter", edited_meanwhile),
    case("revisions::git_in_a_step_reads_history", git_in_step),
    case("revisions::a_step_sees_neither_the_worktree_nor_our_state", hidden),
    case("revisions::drift_is_found_and_changes_are_applied_nowhere", drift),
    case("revisions::caches_are_those_of_commits_of_the_branch", caches),
    case("revisions::a_range_is_verified_oldest_first", range),
    case("revisions::a_commit_that_cannot_run_does_not_stop_a_range", range_with_error),
    dry_case("revisions::what_names_no_commit_is_a_usage_error", unknown),
    dry_case("revisions::what_has_no_meaning_together_is_a_usage_error", contradictions),
    case("revisions::a_tree_that_leads_elsewhere_is_refused", hostile),
    case("revisions::a_checkout_that_was_changed_is_made_anew", tampered),
    case("revisions::a_copy_whose_writer_was_killed_is_mended", killed),
    case("revisions::an_interrupted_checkout_ends_the_run", interrupted),
    case("revisions::a_commit_is_verified_where_no_overlay_can_be_had", copied).needs(NEEDS_PYTHON),
    case("revisions::a_commit_is_verified_where_no_namespace_can_be_had", plain).needs(NEEDS_PYTHON),
    case("revisions::two_runs_of_one_commit_share_its_checkout", at_once),
    case("revisions::submodules_are_empty_unless_asked_for", submodules),
    case("revisions::a_linked_worktree_verifies_a_commit", linked),
    case("revisions::uncommitted_work_is_neither_counted_nor_touched_in_sha256", uncommitted).of_sha256(),
    case("", uncommitted).of_sha256().unprivileged("revisions::an_ordinary_user_verifies_a_commit_in_sha256"),
    case("revisions::the_record_says_which_commit_it_was_in_sha256", recorded).of_sha256(),
    case("revisions::git_in_a_step_reads_history_in_sha256", git_in_step).of_sha256(),
    case("revisions::drift_is_found_and_changes_are_applied_nowhere_in_sha256", drift).of_sha256(),
    case("revisions::a_range_is_verified_oldest_first_in_sha256", range).of_sha256(),
    case("revisions::what_names_no_commit_is_a_usage_error_in_sha256", unknown).of_sha256(),
    case("revisions::a_tree_that_leads_elsewhere_is_refused_in_sha256", hostile).of_sha256(),
    case("revisions::a_checkout_that_was_changed_is_made_anew_in_sha256", tampered).of_sha256(),
    case("revisions::submodules_of_sha256_are_empty_and_no_pass_where_asked_for", sha256_submodules).of_sha256(),
    case("revisions::a_linked_worktree_verifies_a_commit_in_sha256", linked).of_sha256(),
    case("revisions::uncommitted_work_is_neither_counted_nor_touched_in_reftables", uncommitted).of_reftables(),
    case("", uncommitted).of_reftables().unprivileged("revisions::an_ordinary_user_verifies_a_commit_in_reftables"),
    case("revisions::git_in_a_step_reads_history_in_reftables", git_in_step).of_reftables(),
    case("revisions::a_range_is_verified_oldest_first_in_reftables", range).of_reftables(),
    case("revisions::what_names_no_commit_is_a_usage_error_in_reftables", unknown).of_reftables(),
    case("revisions::a_linked_worktree_verifies_a_commit_in_reftables", linked).of_reftables(),
];

/// Passes if `src/lib.rs` has the content of the first commit.
fn first_is_good() -> Spec {
    Spec::of_script("pwd; grep -q 'fn one' src/lib.rs")
}

/// Returns all files of the worktree and its git directory with their change times.
fn listed(repo: &Repo<'_>) -> Vec<(PathBuf, u64, i64, i64)> {
    let all = machine::walk(repo.path()).into_iter();
    // Evidence is written to the real changeset.
    let all = all.filter(|path| !path.starts_with(repo.changeset()));
    let of = |path: PathBuf| {
        let meta = path.symlink_metadata().expect("it is there");
        (path, meta.ino(), meta.mtime_nsec() + meta.mtime(), meta.ctime_nsec() + meta.ctime())
    };
    let mut found: Vec<_> = all.map(of).collect();
    found.sort();
    found
}

fn uncommitted(env: &TestEnvironment) {
    let repo = env.repo(&first_is_good());
    repo.write("src/lib.rs", "broken\n");
    repo.write("spec/verification.yaml", "not even a spec");
    repo.write("untracked", "x");
    let before = listed(&repo);
    let run = repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert!(run.stdout.contains("apart from the worktree"), "{run}");
    assert_eq!(listed(&repo), before);
    assert_eq!(repo.last_run()["outcome"], "passed");
    // A later run reuses the checkout.
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    assert_eq!(listed(&repo), before);
    repo.run().exits(2);
}

fn of_another(env: &TestEnvironment) {
    let spec =
        Spec::of_script("grep -q 'fn one' src/lib.rs && echo x > untracked && git log -1 && test $(id -u) = 1001")
            .with_default("read_only: off");
    let repo = env.repo(&spec);
    repo.write("src/lib.rs", "broken\n");
    machine::give_to(repo.path(), machine::UNPRIVILEGED_ID);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

fn recorded(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run().exits(0);
    let of_worktree = repo.evidence("verify.it");
    assert_eq!(of_worktree["source"], serde_json::json!({ "kind": "worktree", "tree": "private" }));
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
    assert_eq!(evidence["repo_snapshot_before"], of_worktree["repo_snapshot_before"]);
}

fn edited_meanwhile(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "wait"), Step::sh("it", "grep -q 'fn one' src/lib.rs")]));
    let mut running = repo.start(&["--rev", "HEAD"]);
    let step = wait_for_step(env, &mut running);
    repo.write("src/lib.rs", "somebody's work\n");
    repo.commit();
    repo.write("src/lib.rs", "and more of it\n");
    release(&step);
    env.finish(running).exits(0);
    assert_eq!(repo.read("src/lib.rs"), "and more of it\n");
}

fn git_in_step(env: &TestEnvironment) {
    let script = "test -z \"$(git status --porcelain)\" && git diff --exit-code HEAD && git describe --tags && \
        test \"$(git log --format=%s | wc -l)\" = 2 && git rev-parse main && test \"$(git rev-parse --show-toplevel)\" = \"$PWD\" && \
        ! git commit --allow-empty -m x && ! touch .git/x && git fsck --connectivity-only";
    let repo = env.repo(&Spec::of_script(script));
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

fn hidden(env: &TestEnvironment) {
    let state = env.state();
    let script = format!(
        "test ! -e untracked && test ! -e .git/logs && test ! -e .git/hooks && ! ls {0}/mirrors && ! ls {0}/runs && pwd",
        state.display()
    );
    let repo = env.repo(&Spec::of_script(&script));
    repo.write("untracked", "x");
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    let shown = repo.step("it")["stdout_preview"].as_str().map(str::to_owned);
    assert_eq!(shown.as_deref(), Some(format!("{}\n", repo.path().display()).as_str()));
}

fn drift(env: &TestEnvironment) {
    let writes = Skill::new("verify.off", [Step::sh("it", "echo x > src/lib.rs").with("read_only: off")]);
    let sees = Skill::new("verify.it", [Step::sh("it", "grep -q x src/lib.rs && echo y > README.md")]);
    let repo = env.repo(&Spec::new([writes, sees]));
    let before = listed(&repo);
    for _ in 0..2 {
        repo.run_with(&["--rev", "HEAD"]).exits(3);
        assert_eq!(repo.step("it")["drift"]["changes"][0]["path"], "README.md");
        assert_eq!(repo.evidence("verify.off")["steps"][0]["drift"]["applied"], serde_json::json!([]));
        assert_eq!(listed(&repo), before);
    }
}

fn caches(env: &TestEnvironment) {
    let step = Step::sh("it", "cat target/who; git rev-parse HEAD >> target/who; true");
    let repo = env.repo(&Spec::new([Skill::new("verify.it", [step]).with("caches: [target]")]));
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
fn four(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&Spec::of_script("sh ./check"));
    for (number, check) in ["true", "exit 1", "echo x > README.md", "true # again"].iter().enumerate() {
        repo.write("check", format!("{check}\n"));
        repo.git(&["add", "--all"]);
        repo.git(&["commit", "--quiet", &format!("--message=commit number {number}")]);
    }
    repo
}

fn range(env: &TestEnvironment) {
    let repo = four(env);
    let run = repo.run_bare(&["--rev", "HEAD~4..HEAD"]).exits(3);
    let at = |text: &str| run.stdout.find(text).unwrap_or_else(|| panic!("no {text}\n{run}"));
    assert!(at("commit 1 of 4:") < at("commit 4 of 4:"), "{run}");
    let short = |commit: &str| repo.git(&["rev-parse", "--short=12", commit]).trim().to_owned();
    for (commit, word) in [("HEAD~3", "passed"), ("HEAD~2", "failed"), ("HEAD~1", "drifted"), ("HEAD", "passed")] {
        at(&format!("  {} {word}", short(commit)));
    }
    let fast = repo.run_bare(&["--rev", "HEAD~4..", "--fail-fast"]).exits(1);
    assert!(fast.stdout.contains("2 more were left out"), "{fast}");
    let json = repo.run_bare(&["--rev", "HEAD~4..HEAD~3", "--format", "json"]).exits(0);
    let record: Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(record["commits"][0]["commit"], repo.git(&["rev-parse", "HEAD~3"]).trim());
    assert_eq!(record["commits"][0]["run"]["finished"]["verdict"], "passed");
    repo.run_bare(&["--rev", "HEAD~1...HEAD"]).exits(0);
    repo.run_bare(&["--rev", "HEAD..HEAD"]).exits(2).complains(&["contains no commit", "hint:"]);
}

fn range_with_error(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let spec = repo.read("spec/verification.yaml");
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it was there");
    repo.commit();
    repo.write("spec/verification.yaml", spec);
    repo.commit();
    let run = repo.run_bare(&["--rev", "HEAD~2..HEAD"]).exits(2);
    assert!(run.stdout.contains("nothing ran") && run.stdout.contains("passed"), "{run}");
    assert!(run.stderr.contains("there is no spec"), "{run}");
}

fn unknown(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.git(&["tag", "both", "HEAD"]);
    repo.write("README.md", "second\n");
    repo.commit();
    repo.git(&["branch", "both", "HEAD"]);
    for (revision, words) in [
        ("nothing", "names nothing"),
        ("HEAD^{tree}", "names a tree and no commit"),
        ("both", "ambiguous"),
        ("HEAD~7", "names nothing"),
        ("a\u{7}b", "it is no revision"),
        ("", "it is no revision"),
    ] {
        repo.run_bare(&["--rev", revision]).exits(2).complains(&[words, "hint:"]);
    }
    repo.run_bare(&["--rev=--all"]).exits(2).complains(&["it is no revision"]);
    assert_eq!(copies(env), [] as [PathBuf; 0]);
}

fn contradictions(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.run_bare(&["--rev", "HEAD~1..HEAD", "--changeset", CHANGESET]).exits(2);
    repo.run_bare(&["--rev", "HEAD~1..HEAD", "--patch", "x"]).exits(2);
    repo.run_bare(&["--patch", "-", "--format", "json"]).exits(2);
    repo.run_bare(&["--submodules"]).exits(2);
}

fn hostile(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let blob = repo.git(&["rev-parse", "HEAD:README.md"]).trim().to_owned();
    for name in [".git", "..", ".GIT"] {
        let raw: Vec<u8> =
            (0..blob.len() / 2).map(|at| u8::from_str_radix(&blob[2 * at..2 * at + 2], 16).expect("hex")).collect();
        machine::write(&env.root().join("object"), [format!("100644 {name}\0").as_bytes(), &raw].concat());
        let object = env.root().join("object");
        let object = object.to_str().expect("UTF-8");
        let tree = repo.git(&["hash-object", "-t", "tree", "--literally", "-w", object]);
        let commit = repo.git(&["commit-tree", "-m", "hostile", tree.trim()]);
        let run = repo.run_bare(&["--rev", commit.trim()]).exits(5);
        assert!(run.stderr.contains("is not checked out") && run.stderr.contains("hint:"), "{name}: {run}");
    }
    assert_eq!(copies(env), [] as [PathBuf; 0]);
}

/// Returns the trees of all private copies.
fn copies(env: &TestEnvironment) -> Vec<PathBuf> {
    let mut found = machine::walk(&env.state().join("mirrors"));
    found.retain(|path| path.ends_with("own/tree"));
    found
}

/// Returns the tree of the only private copy.
fn copy(env: &TestEnvironment) -> PathBuf {
    let mut found = copies(env);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn tampered(env: &TestEnvironment) {
    let repo = env.repo(&first_is_good());
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
        spoil(copy(env));
        repo.proctor(&["doctor", "--deep"]).exits(if is_damage { 1 } else { 0 });
        repo.run_with(&["--rev", "HEAD"]).exits(0);
        assert_eq!(repo.last_run()["snapshot"], snapshot);
        assert!(!copy(env).join("new").exists());
    }
}

fn killed(env: &TestEnvironment) {
    let repo = env.repo(&first_is_good());
    (0..3000).for_each(|number| machine::write(&repo.file(&format!("many/{number}")), format!("{number}\n")));
    env.hand_over(repo.path());
    repo.commit();
    for _ in 0..3 {
        let mut running = repo.start(&["--rev", "HEAD"]);
        let mirrors = env.state().join("mirrors");
        // The first file exists; the last one may be missing.
        running.wait_until(|| machine::walk(&mirrors).iter().any(|path| path.ends_with("tree/README.md")));
        running.signal_if_there(Signal::KILL);
        running.wait();
        machine::wait_until_gone(env.marker(), std::time::Duration::from_secs(20)).expect("nothing is left");
    }
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    repo.proctor(&["doctor", "--deep"]).exits(0);
    assert_eq!(std::fs::read_dir(copy(env).join("many")).expect("a directory").count(), 3000);
}

fn interrupted(env: &TestEnvironment) {
    let repo = env.repo(&first_is_good());
    (0..3000).for_each(|number| machine::write(&repo.file(&format!("many/{number}")), format!("{number}\n")));
    env.hand_over(repo.path());
    repo.commit();
    let mut running = repo.start(&["--rev", "HEAD"]);
    let mirrors = env.state().join("mirrors");
    running.wait_until(|| machine::walk(&mirrors).iter().any(|path| path.ends_with("tree/README.md")));
    running.signal(Signal::INT);
    env.finish(running).exits(130);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

/// Runs a commit on a machine without certain features, while the worktree has other content.
fn degraded(env: &TestEnvironment, lacks: &[&str]) {
    let script = "grep -q 'fn one' src/lib.rs && test ! -e untracked && git log -1 && git diff --exit-code HEAD && \
        echo drift > README.md";
    let repo = env.repo(&Spec::of_script(script));
    repo.write("src/lib.rs", "broken\n");
    repo.write("untracked", "x");
    let before = listed(&repo);
    let words = ["run", "--changeset", CHANGESET, "--sandbox", "best-effort", "--rev", "HEAD"];
    for _ in 0..2 {
        let run = env.finish(env.start_through(repo.path(), &lacking(lacks), &words)).exits(3);
        let changes = repo.step("it")["drift"]["changes"].clone();
        assert_eq!((&changes[0]["path"], changes.as_array().map(Vec::len)), (&"README.md".into(), Some(1)), "{run}");
        assert_eq!(listed(&repo), before);
    }
}

fn copied(env: &TestEnvironment) {
    degraded(env, &["fsconfig:1@0=EINVAL"]);
}

fn plain(env: &TestEnvironment) {
    degraded(env, &["unshare=EPERM"]);
}

fn at_once(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "wait"), Step::sh("it", "grep -q 'fn one' src/lib.rs")]));
    let bare = |repo: &Repo<'_>| env.start_in(repo.path(), &["run", "--rev", "HEAD"]);
    let (mut one, mut other) = (bare(&repo), bare(&repo));
    let first = wait_for_step(env, &mut one);
    let second = crate::environment::wait_for_attempt_after(env, &mut other, &first);
    release(&first);
    release(&second);
    one.wait().exits(0);
    env.finish(other).exits(0);
    copy(env);
}

fn submodules(env: &TestEnvironment) {
    let inner = env.repo_at("inner", &Spec::of_script("true"));
    let script = "if test -n \"$WITH\"; then git -C sub log -1 && test -z \"$(git status --porcelain)\" && grep -q one sub/src/lib.rs; \
        else test -z \"$(ls -A sub)\"; fi";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script).with("env_allowlist: [WITH]")]));
    let url = inner.path().to_str().expect("UTF-8");
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    repo.commit();
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    env.caller_has("WITH", "1");
    repo.run_with(&["--rev", "HEAD", "--submodules"]).exits(0);
    assert_eq!(repo.evidence("verify.it")["source"]["submodules"], true);
    std::fs::remove_dir_all(repo.file(".git/modules")).expect("it was there");
    std::fs::remove_dir_all(repo.file("sub")).expect("it was there");
    repo.write("README.md", "second\n");
    repo.git(&["commit", "--quiet", "--message=x", "README.md"]);
    repo.run_with(&["--rev", "HEAD", "--submodules"]).exits(2).complains(&["submodule `sub`", "git submodule update"]);
}

/// A refused run with submodules must leave no partial checkout for a later run without them.
fn sha256_submodules(env: &TestEnvironment) {
    let inner = env.repo_at("inner", &Spec::of_script("true"));
    let repo = env.repo(&Spec::of_script("test -z \"$(ls -A sub)\""));
    let url = inner.path().to_str().expect("UTF-8");
    repo.git(&["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", url, "sub"]);
    repo.commit();
    let refused = repo.run_with(&["--rev", "HEAD", "--submodules"]).exits(5);
    refused.complains(&["submodules in the sha256 object format", "hint: without `--submodules`"]);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

fn linked(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("git log -1 && git status --porcelain && grep -q 'fn one' src/lib.rs"));
    let path = env.root().join("linked");
    repo.git(&["worktree", "add", "--quiet", "-b", "side", path.to_str().expect("UTF-8")]);
    let linked = Repo::at(env, path);
    linked.write("src/lib.rs", "broken\n");
    linked.run_with(&["--rev", "side"]).exits(0);
}
