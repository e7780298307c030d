//! Tests which repository, commit and files a hook verifies: never those of another repository, worktree or remote.

use super::hooks::{add_remote, hook_case, push_to_origin, start_git, start_git_with};
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::CaseDefinition;
use crate::test_spec::{TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    hook_case("hook_repositories::shared_hook_verifies_a_push_if_only_the_commit_has_a_spec", verifies_spec_of_commit),
    hook_case("hook_repositories::shared_hook_verifies_a_commit_if_only_the_index_has_a_spec", verifies_spec_of_index),
    hook_case("hook_repositories::commit_to_another_repository_is_refused", refuses_other_repository),
    hook_case("hook_repositories::files_that_only_another_remote_has_are_checked", checks_files_of_another_remote),
    hook_case("hook_repositories::commit_that_a_step_changes_is_blocked", blocks_commit_that_step_changes),
];

/// Creates a repository whose check passes unless a file `bad` exists, and shared hooks for all repositories.
fn repo_with_shared_hooks(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.repo(&TestSpec::from_script("test ! -e bad"));
    add_remote(env, &repo);
    let shared = env.root().join("shared");
    let config = format!("[core]\n\thooksPath = {}\n", shared.to_str().expect("UTF-8"));
    machine::write(&env.home_dir().join(".gitconfig"), config);
    repo.proctor(&["hook", "install", "--shared", "pre-push", "pre-commit"]).exits(0);
    repo
}

fn verifies_spec_of_commit(env: &TestEnvironment) {
    let repo = repo_with_shared_hooks(env);
    push_to_origin(&repo, env, &["main"]).exits(0);
    repo.write("bad", "x\n");
    repo.commit();
    repo.git(&["checkout", "--quiet", "--orphan", "pages"]);
    repo.git(&["rm", "-r", "--quiet", "--force", "."]);
    repo.git(&["commit", "--quiet", "--allow-empty", "--message=empty"]);
    assert!(!repo.file("spec/verification.yaml").exists());
    push_to_origin(&repo, env, &["main"]).exits(1).prints_to_stderr(&["push blocked: 1 of 1 step failed"]);
    push_to_origin(&repo, env, &["pages", "main"]).exits(1);
    push_to_origin(&repo, env, &["--force", "pages:main"])
        .exits(1)
        .prints_to_stderr(&["has no `spec/verification.yaml`"]);
    let skipped = push_to_origin(&repo, env, &["pages"]).exits(0);
    skipped.prints_to_stderr(&["there is no spec/verification.yaml here, and nothing is verified"]);
}

fn verifies_spec_of_index(env: &TestEnvironment) {
    let repo = repo_with_shared_hooks(env);
    let commit = || env.finish(start_git(&repo, env, &["commit", "--quiet", "--message=x"]));
    repo.write("bad", "x\n");
    repo.git(&["add", "bad"]);
    std::fs::remove_file(repo.file("spec/verification.yaml")).expect("it was there");
    commit().exits(1).prints_to_stderr(&["commit blocked: 1 of 1 step failed"]);
    repo.git(&["rm", "--quiet", "--cached", "spec/verification.yaml"]);
    commit().exits(1).prints_to_stderr(&["has no `spec/verification.yaml`"]);
    let other = env.root().join("without-spec");
    env.git(env.root(), &["init", "--quiet", "without-spec"]);
    let arguments = ["commit", "--quiet", "--allow-empty", "--message=x"];
    let skipped = env.finish(start_git_with(&other, env, &arguments, &[])).exits(0);
    skipped.prints_to_stderr(&["there is no spec/verification.yaml here, and nothing is verified"]);
}

/// Returns a step that fails if one of the Python files that it gets is bad.
fn files_step() -> TestStep {
    TestStep::argv("it", &["sh", "-c", "! grep -l bad \"$@\"", "sh", "{files}"])
        .with_field("files: { include: [\"*.py\"] }")
}

/// Git can use the worktree together with the git directory of another repository.
fn refuses_other_repository(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([files_step()]));
    repo.write("a.py", "bad\n");
    repo.write("b.py", "good\n");
    repo.commit();
    repo.proctor(&["hook", "install", "pre-commit"]).exits(0);
    let other = env.root().join("other.git");
    env.git(env.root(), &["init", "--quiet", "--bare", "other.git"]);
    let hook = repo.read(".git/hooks/pre-commit");
    machine::write(&other.join("hooks/pre-commit"), hook);
    machine::make_executable(&other.join("hooks/pre-commit"));
    let git_dir = format!("--git-dir={}", other.to_str().expect("UTF-8"));
    let git = |arguments: &[&str]| {
        env.finish(start_git(
            &repo,
            env,
            &[&[git_dir.as_str(), "--work-tree=.", "-c", "core.bare=false"], arguments].concat(),
        ))
    };
    git(&["add", "--all"]).exits(0);
    let refused = git(&["commit", "--quiet", "--message=x"]).exits(1);
    refused.prints_to_stderr(&["which is not the git directory of"]);
}

fn checks_files_of_another_remote(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([files_step()]));
    add_remote(env, &repo);
    repo.write("a.py", "bad\n");
    repo.commit();
    push_to_origin(&repo, env, &["main"]).exits(0);
    repo.proctor(&["hook", "install"]).exits(0);
    repo.write("b.py", "good\n");
    repo.commit();
    env.git(env.root(), &["init", "--quiet", "--bare", "second.git"]);
    repo.git(&["remote", "add", "second", "../second.git"]);
    let push = |remote: &str| env.finish(start_git(&repo, env, &["push", remote, "main:refs/heads/new"]));
    push("second").exits(1).prints_to_stderr(&["push blocked"]);
    push("../second.git").exits(1).prints_to_stderr(&["push blocked"]);
    push("origin").exits(0);
}

fn blocks_commit_that_step_changes(env: &TestEnvironment) {
    let format = TestStep::sh("format", "sed -i s/bad/good/ src/lib.rs").with_field("read_only: off");
    let repo = env.repo(&TestSpec::from_steps([format, TestStep::sh("it", "! grep -q bad src/lib.rs")]));
    add_remote(env, &repo);
    repo.proctor(&["hook", "install", "pre-push", "pre-commit"]).exits(0);
    push_to_origin(&repo, env, &["main"]).exits(0);
    repo.write("src/lib.rs", "bad\n");
    repo.git(&["add", "--all"]);
    let blocked = env.finish(start_git(&repo, env, &["commit", "--quiet", "--message=x"])).exits(1);
    blocked.prints_to_stderr(&["commit blocked: verify.it/format changed files of the commit"]);
    repo.git(&["commit", "--quiet", "--no-verify", "--message=x"]);
    let blocked = push_to_origin(&repo, env, &["main"]).exits(1);
    blocked.prints_to_stderr(&["push blocked: verify.it/format changed files of the commit"]);
}
