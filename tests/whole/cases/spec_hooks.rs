//! Tests hooks in repositories with several specs: `--each-spec`.

use super::hooks::{add_remote, hook_case, push_to_origin, start_git, start_with_input};
use crate::environment::{Repo, TestEnvironment};
use crate::machine;
use crate::needs::CaseDefinition;
use crate::process::FinishedProcess;
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    hook_case("spec_hooks::push_verifies_each_spec_or_those_that_the_changes_affect", push_verifies_specs),
    hook_case("spec_hooks::removed_or_moved_spec_blocks_a_push", removed_spec_blocks_push),
    hook_case("spec_hooks::removed_or_moved_spec_blocks_a_push_in_sha256", removed_spec_blocks_push).with_sha256(),
    hook_case("spec_hooks::specs_of_a_commit_do_not_depend_on_the_worktree", worktree_does_not_matter),
    hook_case("spec_hooks::commit_verifies_each_spec", commit_verifies_each_spec),
    hook_case("spec_hooks::agent_hook_verifies_each_spec", agent_hook_verifies_each_spec),
    hook_case("spec_hooks::shared_hook_finds_specs_in_subdirectories", shared_hook_finds_specs),
];

/// Writes specs in directories. The check of each passes unless a file `bad` exists in its directory.
fn write_specs(env: &TestEnvironment, repo: &Repo<'_>, directories: &[&str]) {
    for directory in directories {
        let spec = TestSpec::from_script("test ! -e bad").to_yaml(env.marker());
        repo.write(&format!("{directory}/spec/verification.yaml"), spec);
        repo.write(&format!("{directory}/own.txt"), *directory);
    }
}

/// Creates a repository with specs only in `svc/a` and `svc/b`, and a remote that has its first commit.
fn repo_with_specs(env: &TestEnvironment) -> Repo<'_> {
    let repo = env.empty_repo_at("repo");
    repo.write("README.md", "# A repository\n");
    write_specs(env, &repo, &["svc/a", "svc/b"]);
    repo.commit();
    add_remote(env, &repo);
    repo.git(&["push", "--quiet", "origin", "main"]);
    repo
}

fn push(repo: &Repo<'_>, env: &TestEnvironment) -> FinishedProcess {
    push_to_origin(repo, env, &["main"])
}

fn push_verifies_specs(env: &TestEnvironment) {
    let repo = repo_with_specs(env);
    let installed = repo.proctor(&["hook", "install"]).exits(0);
    installed.prints(&["the hook verifies each spec of a commit (--each-spec)", "svc/a, svc/b"]);
    repo.proctor(&["hook", "status"]).exits(0).prints(&["installed by proctor", "--each-spec"]);
    repo.write("svc/a/own.txt", "new\n");
    repo.commit();
    let output = push(&repo, env).exits(0).all_output();
    assert!(["svc/a: ", "svc/b: "].iter().all(|name| output.contains(name)), "{output}");
    // Only one of the specs can be affected.
    repo.proctor(&["hook", "install", "--each-spec", "--affected-specs"]).exits(0);
    repo.write("svc/a/own.txt", "newer\n");
    repo.commit();
    let pushed = push(&repo, env).exits(0);
    let output = pushed.all_output();
    assert!(output.contains("skipped: svc/b") && output.contains("svc/a: "), "{pushed}");
    repo.write("svc/b/bad", "x\n");
    repo.commit();
    push(&repo, env).exits(1).prints_to_stderr(&["push blocked: svc/b: 1 of 1 step failed", "--repo svc/b --rev"]);
    std::fs::remove_file(repo.file("svc/b/bad")).expect("it was there");
    // A file that no directory of a spec contains can affect all specs. So can one that a new spec would claim.
    repo.write("common.lock", "1\n");
    repo.commit();
    let pushed = push(&repo, env).exits(0);
    assert!(!pushed.all_output().contains("skipped:"), "{pushed}");
    write_specs(env, &repo, &["lib", "svc/a/deep"]);
    repo.commit();
    let output = push(&repo, env).exits(0).all_output();
    assert!(["lib: ", "svc/a: ", "svc/a/deep: ", "svc/b: "].iter().all(|name| output.contains(name)), "{output}");
    // A forced push can restore older files.
    repo.git(&["reset", "--quiet", "--hard", "HEAD~3"]);
    repo.git(&["commit", "--quiet", "--allow-empty", "--message=x"]);
    let forced = push_to_origin(&repo, env, &["--force", "main"]).exits(1);
    forced.prints_to_stderr(&["has no `lib/spec/verification.yaml`, which commit", "2 of 4 specs did not pass"]);
}

fn removed_spec_blocks_push(env: &TestEnvironment) {
    let repo = repo_with_specs(env);
    repo.proctor(&["hook", "install"]).exits(0);
    let assert_blocked = |change: &dyn Fn()| {
        change();
        repo.commit();
        let blocked = push(&repo, env).exits(1);
        blocked.prints_to_stderr(&["push blocked: commit", "has no `svc/a/spec/verification.yaml`, which commit"]);
        repo.git(&["reset", "--quiet", "--hard", "HEAD~1"]);
    };
    assert_blocked(&|| drop(repo.git(&["rm", "--quiet", "svc/a/spec/verification.yaml"])));
    assert_blocked(&|| drop(repo.git(&["mv", "svc/a", "svc/z"])));
    assert_blocked(&|| {
        repo.git(&["rm", "-r", "--quiet", "svc/a"]);
        repo.link("svc/a", std::path::Path::new("b"));
    });
    assert_blocked(&|| {
        repo.write("svc/a/deep/spec/verification.yaml", repo.read("svc/a/spec/verification.yaml"));
        repo.git(&["rm", "--quiet", "svc/a/spec/verification.yaml"]);
    });
    // A commit without any spec, on a new branch of the remote.
    repo.git(&["checkout", "--quiet", "--orphan", "empty"]);
    repo.git(&["rm", "-r", "--quiet", "--force", "."]);
    repo.git(&["commit", "--quiet", "--allow-empty", "--message=empty"]);
    let blocked = push_to_origin(&repo, env, &["empty"]).exits(1);
    blocked.prints_to_stderr(&["at its top or in a subdirectory", "push blocked"]);
}

/// The worktree has a link in place of the directory of a spec, or another branch without it.
fn worktree_does_not_matter(env: &TestEnvironment) {
    let repo = repo_with_specs(env);
    repo.proctor(&["hook", "install"]).exits(0);
    repo.write("svc/a/bad", "x\n");
    repo.commit();
    std::fs::remove_dir_all(repo.file("svc/a")).expect("removed");
    repo.link("svc/a", std::path::Path::new("b"));
    push(&repo, env).exits(1).prints_to_stderr(&["push blocked: svc/a: 1 of 1 step failed"]);
    repo.git(&["reset", "--quiet", "--hard"]);
    repo.git(&["checkout", "--quiet", "--orphan", "other"]);
    repo.git(&["rm", "-r", "--quiet", "--force", "."]);
    assert!(!repo.file("svc/a").exists());
    push(&repo, env).exits(1).prints_to_stderr(&["push blocked: svc/a: 1 of 1 step failed"]);
}

fn commit_verifies_each_spec(env: &TestEnvironment) {
    let repo = repo_with_specs(env);
    write_specs(env, &repo, &["."]);
    repo.commit();
    // The spec at the top keeps its hook, unless the option is given.
    let installed = repo.proctor(&["hook", "install", "pre-commit"]).exits(0);
    installed.prints(&["the hook uses only the spec at the top", "svc/a, svc/b"]);
    let commit = || env.finish(start_git(&repo, env, &["commit", "--quiet", "--message=x"]));
    repo.write("svc/a/bad", "x\n");
    repo.git(&["add", "svc/a"]);
    repo.proctor(&["hook", "install", "pre-commit", "--each-spec"]).exits(0).prints(&["replaced pre-commit"]);
    commit().exits(1).prints_to_stderr(&["commit blocked: svc/a: 1 of 1 step failed"]);
    repo.git(&["rm", "--quiet", "--cached", "svc/a/bad"]);
    repo.write("svc/b/own.txt", "new\n");
    repo.git(&["add", "svc/b"]);
    let committed = commit().exits(0);
    assert!(committed.all_output().contains("svc/a: "), "{committed}");
    repo.proctor(&["hook", "install", "pre-commit", "--each-spec", "--affected-specs"]).exits(0);
    repo.write("svc/b/own.txt", "newer\n");
    repo.git(&["add", "svc/b"]);
    let committed = commit().exits(0);
    assert!(committed.all_output().contains("skipped: svc/a"), "{committed}");
    repo.git(&["rm", "--quiet", "--cached", "svc/b/spec/verification.yaml"]);
    commit().exits(1).prints_to_stderr(&["commit blocked: the staged commit has no `svc/b/spec/verification.yaml`"]);
    repo.proctor(&["hook", "uninstall"]).exits(0).prints(&["removed pre-commit"]);
}

fn agent_hook_verifies_each_spec(env: &TestEnvironment) {
    let repo = repo_with_specs(env);
    let run = || env.finish(start_with_input(env, &repo, &["hook", "run", "--agent-hook", "--each-spec"], "{}"));
    run().exits(0);
    repo.write("svc/b/bad", "x\n");
    // The agent commits its work.
    repo.commit();
    run().exits(2).prints_to_stderr(&["profile `pr` of `svc/b` failed", "proctor run --repo svc/b --profile pr"]);
    std::fs::remove_file(repo.file("svc/b/bad")).expect("it was there");
    std::fs::remove_dir_all(repo.file("svc/a")).expect("removed");
    repo.link("svc/a", std::path::Path::new("b"));
    run().exits(2).prints_to_stderr(&["`svc/a/spec/verification.yaml` is missing in the worktree"]);
}

fn shared_hook_finds_specs(env: &TestEnvironment) {
    let repo = repo_with_specs(env);
    let shared = env.root().join("shared");
    let config = format!("[core]\n\thooksPath = {}\n", shared.to_str().expect("UTF-8"));
    machine::write(&env.home_dir().join(".gitconfig"), config);
    repo.proctor(&["hook", "install", "--shared", "pre-push", "pre-commit"]).exits(0);
    repo.write("svc/a/bad", "x\n");
    repo.git(&["add", "--all"]);
    env.finish(start_git(&repo, env, &["commit", "--quiet", "--message=x"])).exits(1);
    repo.git(&["commit", "--quiet", "--no-verify", "--message=x"]);
    push(&repo, env).exits(1).prints_to_stderr(&["push blocked: svc/a: 1 of 1 step failed"]);
    repo.git(&["checkout", "--quiet", "--orphan", "pages"]);
    repo.git(&["rm", "-r", "--quiet", "--force", "."]);
    // Neither the index nor HEAD has a spec.
    env.finish(start_git(&repo, env, &["commit", "--quiet", "--allow-empty", "--message=x"])).exits(0);
    let skipped = push_to_origin(&repo, env, &["pages"]).exits(0);
    skipped
        .prints_to_stderr(&["there is no spec/verification.yaml here or in a subdirectory, and nothing is verified"]);
}
