//! Tests `--patch`, which writes the changes of steps as a patch for git, and leaves the worktree unchanged.

use std::os::unix::fs::symlink;

use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, NEEDS_GIT, case};
use crate::spec::{Skill, Spec, Step};

pub(super) const CASES: &[Case] = &[
    case("patches::changes_of_off_steps_go_to_a_patch_and_not_to_the_worktree", off).needs(NEEDS_GIT),
    case("", off).unprivileged("patches::an_ordinary_user_gets_a_patch").needs(NEEDS_GIT),
    case("patches::drift_is_answered_with_a_patch_that_mends_it", drift).needs(NEEDS_GIT),
    case("patches::standard_output_holds_the_patch_alone", to_stdout).needs(NEEDS_GIT),
    case("patches::later_steps_and_skills_add_to_it", layered).needs(NEEDS_GIT),
    case("patches::a_commits_patch_is_against_that_commit", of_commit).needs(NEEDS_GIT),
    case("patches::nothing_changed_is_an_empty_file", nothing),
    case("patches::only_a_regular_file_of_the_callers_is_replaced", places),
    case("patches::what_git_does_not_keep_gives_no_patch", refused),
    case("patches::skills_that_do_not_see_each_other_are_in_conflict", conflict),
];

/// Applies the patch to a clean clone of `repo`, and returns the clone.
fn applied<'e>(env: &'e TestEnvironment, repo: &Repo<'_>, patch: &str) -> Repo<'e> {
    let path = env.root().join("clone");
    env.git(env.root(), &["clone", "--quiet", repo.path().to_str().expect("UTF-8"), "clone"]);
    let clone = Repo::at(env, path);
    clone.git(&["apply", "--index", patch]);
    clone
}

fn patch_path(env: &TestEnvironment) -> String {
    env.root().join("out.patch").to_str().expect("UTF-8").to_owned()
}

fn off(env: &TestEnvironment) {
    let script = "echo formatted > src/lib.rs; rm README.md; printf '\\0\\1' > bin; chmod +x .gitignore; ln -s src l; \
        mkdir 'a b'; echo x > 'a b/c'; echo ignored > x.log";
    let repo = env.repo(&Spec::of_steps([Step::sh("it", script).with("read_only: off")]));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(0);
    assert_eq!(repo.changes_seen_by_git(), Vec::<String>::new());
    assert_eq!(repo.step("it")["drift"]["applied"], serde_json::json!([]));
    let clone = applied(env, &repo, &patch);
    // Without `--patch`, the same run writes to the worktree.
    repo.run().exits(0);
    repo.git(&["add", "--all", "--", ".", ":!changes"]);
    assert_eq!(clone.git(&["write-tree"]), repo.git(&["write-tree"]));
}

fn drift(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo formatted > src/lib.rs"));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(3);
    assert_eq!(applied(env, &repo, &patch).read("src/lib.rs"), "formatted\n");
    repo.git(&["apply", &patch]);
    repo.run().exits(0);
}

fn to_stdout(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "echo x > new").with("read_only: off")]));
    let run = repo.run_with(&["--patch", "-"]).exits(0);
    assert!(run.stdout.starts_with("diff --git a/new b/new\n") && run.stdout.ends_with("+x\n"), "{run}");
    assert!(run.stderr.contains("passed: "), "{run}");
    assert!(!repo.file("new").exists());
}

fn layered(env: &TestEnvironment) {
    let first = Skill::new(
        "verify.first",
        [
            Step::sh("a", "echo 1 > src/lib.rs; echo x > gone").with("read_only: off"),
            Step::sh("b", "echo 2 >> src/lib.rs; rm gone").with("read_only: off"),
        ],
    );
    let second = Skill::new("verify.it", [Step::sh("it", "echo 3 >> src/lib.rs").with("read_only: off")]);
    let repo = env.repo(&Spec::new([first, second]));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(0);
    let clone = applied(env, &repo, &patch);
    assert_eq!(clone.read("src/lib.rs"), "1\n2\n3\n");
    assert!(!clone.file("gone").exists() && repo.changes_seen_by_git().is_empty());
}

fn of_commit(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "echo more >> src/lib.rs").with("read_only: off")]));
    repo.write("src/lib.rs", "uncommitted\n");
    let patch = patch_path(env);
    repo.run_with(&["--rev", "HEAD", "--patch", &patch]).exits(0);
    assert!(applied(env, &repo, &patch).read("src/lib.rs").ends_with("}\nmore\n"));
    assert_eq!(repo.read("src/lib.rs"), "uncommitted\n");
}

fn nothing(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let patch = patch_path(env);
    machine::write(env.root().join("out.patch").as_path(), "old");
    env.hand_over(env.root());
    repo.run_with(&["--patch", &patch]).exits(0);
    assert_eq!(std::fs::read_to_string(&patch).expect("it is there"), "");
}

fn places(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("echo x > new"));
    let victim = env.root().join("victim");
    machine::write(&victim, "untouched");
    symlink(&victim, env.root().join("link")).expect("a link of the test");
    env.hand_over(env.root());
    for (place, words) in [
        (".git/x.patch", "lies in a `.git`"),
        ("../link", "not a regular file"),
        ("src", "not a regular file"),
        ("/dev/null", "not a regular file"),
        ("nowhere/x.patch", "No such file"),
        ("..", "has no name"),
    ] {
        repo.run_with(&["--patch", place]).exits(2).complains(&[words, "hint:"]);
    }
    assert_eq!(std::fs::read_to_string(victim).expect("it is there"), "untouched");
    assert!(repo.is_untouched(), "a run began");
}

fn refused(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([Step::sh("it", "mkfifo pipe").with("read_only: off")]));
    let patch = patch_path(env);
    repo.run_with(&["--patch", &patch]).exits(5).complains(&["there is no patch", "`pipe` is a fifo", "hint:"]);
    assert!(!std::path::Path::new(&patch).exists());
}

fn conflict(env: &TestEnvironment) {
    let writes = |name: &str, word: &str| {
        Skill::new(name, [Step::sh("it", &format!("echo {word} > src/lib.rs")).with("read_only: off")])
    };
    let after = Skill::new("verify.after", [Step::sh("it", "true")]).with("needs: [verify.a]");
    let repo = env.repo(&Spec::new([writes("verify.a", "a"), writes("verify.b", "b"), after]));
    let patch = patch_path(env);
    let run = repo.run_with(&["--patch", &patch]).exits(5);
    assert!(run.stderr.contains("`verify.a` and `verify.b` both changed `src/lib.rs`"), "{run}");
}
