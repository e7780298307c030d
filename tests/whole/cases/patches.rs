//! Tests `--patch`, which writes the changes of steps as a patch for git, and leaves the worktree unchanged.

use std::os::unix::fs::symlink;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_GIT, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("patches::changes_are_written_to_the_patch_and_not_to_the_worktree", changes_are_written_to_patch_only)
        .needs(NEEDS_GIT),
    case("", changes_are_written_to_patch_only)
        .unprivileged("patches::an_ordinary_user_gets_a_patch")
        .needs(NEEDS_GIT)
        .daemon_sample(),
    case("patches::drift_patch_makes_the_next_run_pass", drift_patch_makes_run_pass).needs(NEEDS_GIT),
    case("patches::stdout_contains_only_the_patch", patch_is_written_to_stdout).needs(NEEDS_GIT).daemon_sample(),
    case("patches::later_steps_and_skills_extend_the_patch", later_steps_extend_patch).needs(NEEDS_GIT),
    case("patches::patch_of_a_commit_applies_to_that_commit", patch_of_commit_applies_to_it)
        .needs(NEEDS_GIT)
        .daemon_sample(),
    case("patches::unchanged_tree_gives_an_empty_patch", unchanged_tree_gives_empty_patch),
    case("patches::only_a_regular_file_outside_git_is_replaced", unsafe_patch_paths_are_refused).daemon_sample(),
    case("patches::file_kind_unknown_to_git_gives_no_patch", unsupported_file_kind_gives_no_patch),
    case("patches::changes_of_one_file_by_independent_skills_conflict", independent_changes_of_one_file_conflict),
];

/// Applies the patch to a clean clone of `repo`, and returns the clone.
fn apply_to_clone<'e>(env: &'e TestEnvironment, repo: &Repo<'_>, patch: &str) -> Repo<'e> {
    let path = env.root().join("clone");
    env.git(env.root(), &["clone", "--quiet", repo.path().to_str().expect("UTF-8"), "clone"]);
    let clone = Repo::at(env, path);
    clone.git(&["apply", "--index", patch]);
    clone
}

fn patch_path(env: &TestEnvironment) -> String {
    env.root().join("out.patch").to_str().expect("UTF-8").to_owned()
}

fn changes_are_written_to_patch_only(env: &TestEnvironment) {
    let script = "echo formatted > src/lib.rs; rm README.md; printf '\\0\\1' > bin; chmod +x .gitignore; ln -s src l; \
        mkdir 'a b'; echo x > 'a b/c'; echo ignored > x.log";
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", script).with_field("read_only: off")]));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(0);
    assert_eq!(repo.changes_seen_by_git(), Vec::<String>::new());
    assert_eq!(repo.step("it")["drift"]["applied"], serde_json::json!([]));
    let clone = apply_to_clone(env, &repo, &patch);
    // Without `--patch`, the same run writes to the worktree.
    repo.run().exits(0);
    repo.git(&["add", "--all", "--", ".", ":!changes"]);
    assert_eq!(clone.git(&["write-tree"]), repo.git(&["write-tree"]));
}

fn drift_patch_makes_run_pass(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo formatted > src/lib.rs"));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(3);
    assert_eq!(apply_to_clone(env, &repo, &patch).read("src/lib.rs"), "formatted\n");
    repo.git(&["apply", &patch]);
    repo.run().exits(0);
}

fn patch_is_written_to_stdout(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo x > new").with_field("read_only: off")]));
    let run = repo.run_with(&["--patch", "-"]).exits(0);
    assert!(run.stdout.starts_with("diff --git a/new b/new\n") && run.stdout.ends_with("+x\n"), "{run}");
    assert!(run.stderr.contains("passed: "), "{run}");
    assert!(!repo.file("new").exists());
}

fn later_steps_extend_patch(env: &TestEnvironment) {
    let first = TestSkill::new(
        "verify.first",
        [
            TestStep::sh("a", "echo 1 > src/lib.rs; echo x > gone").with_field("read_only: off"),
            TestStep::sh("b", "echo 2 >> src/lib.rs; rm gone").with_field("read_only: off"),
        ],
    );
    let second = TestSkill::new("verify.it", [TestStep::sh("it", "echo 3 >> src/lib.rs").with_field("read_only: off")]);
    let repo = env.repo(&TestSpec::new([first, second]));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(0);
    let clone = apply_to_clone(env, &repo, &patch);
    assert_eq!(clone.read("src/lib.rs"), "1\n2\n3\n");
    assert!(!clone.file("gone").exists() && repo.changes_seen_by_git().is_empty());
}

fn patch_of_commit_applies_to_it(env: &TestEnvironment) {
    let repo =
        env.repo(&TestSpec::from_steps([TestStep::sh("it", "echo more >> src/lib.rs").with_field("read_only: off")]));
    repo.write("src/lib.rs", "uncommitted\n");
    let patch = patch_path(env);
    repo.run_with(&["--rev", "HEAD", "--patch", &patch]).exits(0);
    assert!(apply_to_clone(env, &repo, &patch).read("src/lib.rs").ends_with("}\nmore\n"));
    assert_eq!(repo.read("src/lib.rs"), "uncommitted\n");
}

fn unchanged_tree_gives_empty_patch(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let patch = patch_path(env);
    machine::write(env.root().join("out.patch").as_path(), "old");
    env.give_to_actor(env.root());
    repo.run_with(&["--patch", &patch]).exits(0);
    assert_eq!(std::fs::read_to_string(&patch).expect("it is there"), "");
}

fn unsafe_patch_paths_are_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("echo x > new"));
    let victim = env.root().join("victim");
    machine::write(&victim, "untouched");
    symlink(&victim, env.root().join("link")).expect("a link of the test");
    env.give_to_actor(env.root());
    for (path, words) in [
        (".git/x.patch", "is in a `.git`"),
        ("../link", "not a regular file"),
        ("src", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("nowhere/x.patch", "No such file"),
        ("..", "has no name"),
    ] {
        repo.run_with(&["--patch", path]).exits(2).prints_to_stderr(&[words, "hint:"]);
    }
    assert_eq!(std::fs::read_to_string(victim).expect("it is there"), "untouched");
    assert!(repo.has_no_documents(), "a run began");
}

fn unsupported_file_kind_gives_no_patch(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([TestStep::sh("it", "mkfifo pipe").with_field("read_only: off")]));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(5).prints_to_stderr(&["there is no patch", "`pipe` is a fifo", "hint:"]);
    assert!(!std::path::Path::new(&patch).exists());
}

fn independent_changes_of_one_file_conflict(env: &TestEnvironment) {
    let writes = |name: &str, word: &str| {
        TestSkill::new(name, [TestStep::sh("it", &format!("echo {word} > src/lib.rs")).with_field("read_only: off")])
    };
    let after = TestSkill::new("verify.after", [TestStep::sh("it", "true")]).with_field("needs: [verify.a]");
    let repo = env.repo(&TestSpec::new([writes("verify.a", "a"), writes("verify.b", "b"), after]));
    let patch = patch_path(env);
    let run = repo.run_with(&["--patch", &patch]).exits(5);
    assert!(run.stderr.contains("`verify.a` and `verify.b` both changed `src/lib.rs`"), "{run}");
}
