//! Tests `proctor hook` with installed hooks and real pushes to bare repositories and real commits.

use std::path::Path;

use rustix::process::Signal;

use crate::documents;
use crate::environment::{Repo, TestEnvironment, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::{FinishedProcess, RunningProcess};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

const NEEDS_GIT_AND_SANDBOX: &[Needs] = &[Needs::Sandbox, Needs::Program("git")];

/// Declares a case in which git calls `proctor` without a state directory. For an unprivileged user, it is below the
/// home of the case instead of in the system's directory.
pub(super) const fn hook_case(name: &'static str, run: fn(&TestEnvironment)) -> CaseDefinition {
    case("", run).needs(NEEDS_GIT_AND_SANDBOX).unprivileged(name)
}

pub(super) const CASES: &[CaseDefinition] = &[
    hook_case("hooks::pushed_commit_is_verified_instead_of_the_worktree", verifies_pushed_commit),
    hook_case("hooks::each_kind_of_ref_is_handled", handles_each_kind_of_ref),
    hook_case("hooks::force_push_is_verified_at_its_new_commit", verifies_force_push),
    hook_case("hooks::each_new_commit_is_verified_on_request", verifies_each_commit),
    hook_case("hooks::existing_hook_runs_first_and_is_restored", existing_hook_runs_first),
    hook_case("hooks::git_variables_of_a_hook_do_not_reach_a_step", git_variables_are_hidden),
    hook_case("hooks::linked_worktree_and_hooks_path_are_supported", linked_worktree_and_hooks_path),
    hook_case("hooks::pushed_commit_is_verified_instead_of_the_worktree_in_sha256", verifies_pushed_commit)
        .with_sha256()
        .long(),
    hook_case("hooks::each_kind_of_ref_is_handled_in_sha256", handles_each_kind_of_ref).with_sha256(),
    hook_case("hooks::force_push_is_verified_at_its_new_commit_in_sha256", verifies_force_push).with_sha256().long(),
    hook_case("hooks::each_new_commit_is_verified_on_request_in_sha256", verifies_each_commit).with_sha256().long(),
    hook_case("hooks::linked_worktree_and_hooks_path_are_supported_in_sha256", linked_worktree_and_hooks_path)
        .with_sha256()
        .long(),
    hook_case("hooks::push_reuses_the_run_of_the_same_tree_in_sha256", reuses_run_of_same_tree).with_sha256().long(),
    hook_case("hooks::pushed_commit_is_verified_instead_of_the_worktree_in_reftables", verifies_pushed_commit)
        .with_reftables(),
    hook_case("hooks::each_kind_of_ref_is_handled_in_reftables", handles_each_kind_of_ref).with_reftables().long(),
    hook_case("hooks::force_push_is_verified_at_its_new_commit_in_reftables", verifies_force_push)
        .with_reftables()
        .long(),
    hook_case("hooks::each_new_commit_is_verified_on_request_in_reftables", verifies_each_commit)
        .with_reftables()
        .long(),
    hook_case("hooks::linked_worktree_and_hooks_path_are_supported_in_reftables", linked_worktree_and_hooks_path)
        .with_reftables()
        .long(),
    hook_case("hooks::push_reuses_the_run_of_the_same_tree_in_reftables", reuses_run_of_same_tree)
        .with_reftables()
        .long(),
    hook_case("hooks::partial_clone_is_verified_without_fetching", partial_clone_is_verified_without_fetch),
    hook_case("hooks::partial_clone_is_verified_without_fetching_in_sha256", partial_clone_is_verified_without_fetch)
        .with_sha256()
        .long(),
    hook_case("hooks::split_and_sparse_indexes_are_supported", split_and_sparse_indexes),
    hook_case("hooks::push_reuses_the_run_of_the_same_tree", reuses_run_of_same_tree),
    hook_case("hooks::partial_run_is_not_reused_for_a_push", partial_run_is_not_reused),
    hook_case("hooks::daemon_reuses_the_run_of_the_worktree", daemon_reuses_run_of_worktree),
    hook_case("hooks::run_with_the_same_variables_is_reused", run_with_variables_is_reused),
    hook_case("hooks::forged_index_does_not_lead_to_reuse", forged_index_is_not_trusted),
    hook_case("hooks::blocked_push_names_what_a_commit_lacks", blocked_push_names_missing_directory),
    hook_case("hooks::interrupted_push_stops_its_run", interrupted_push_stops),
    hook_case("hooks::staged_files_are_verified_and_the_repository_is_unchanged", verifies_staged_files),
    hook_case("hooks::commit_of_single_paths_is_verified_with_only_these_paths", verifies_commit_of_paths),
    hook_case("hooks::agent_hook_blocks_a_failing_agent_once", agent_hook_blocks_once),
    dry_case("hooks::malformed_ref_lines_are_refused", refuses_malformed_lines),
    dry_case("hooks::hook_that_cannot_be_replaced_is_named", names_unusable_hook_paths).needs(&[Needs::Program("git")]),
    dry_case("hooks::edited_hook_is_kept", keeps_edited_hook).needs(&[Needs::Program("git")]),
    case("hooks::uninstall_removes_a_hook_that_another_manager_chained", uninstalls_chained_hook)
        .needs(NEEDS_GIT_AND_SANDBOX),
];

/// Starts git as the actor; its hooks call `proctor`.
pub(super) fn start_git(repo: &Repo<'_>, env: &TestEnvironment, arguments: &[&str]) -> RunningProcess {
    start_git_with(repo.path(), env, arguments, &[])
}

pub(super) fn start_git_with(
    dir: &Path,
    env: &TestEnvironment,
    arguments: &[&str],
    vars: &[(&str, &str)],
) -> RunningProcess {
    let mut command = env.system_command_as_actor("git");
    command.current_dir(dir).args(arguments).env("HOME", env.home_dir()).env("LANG", "C.UTF-8");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", env.home_dir().join(".gitconfig"));
    for (name, below) in [("STATE", "state"), ("CONFIG", "config"), ("CACHE", "cache")] {
        command.env(format!("XDG_{name}_HOME"), env.root().join(below));
    }
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), "A Tester").env(format!("GIT_{role}_EMAIL"), "tester@example.com");
    }
    command.envs(vars.iter().copied());
    RunningProcess::start(command)
}

pub(super) fn push_to_origin(repo: &Repo<'_>, env: &TestEnvironment, arguments: &[&str]) -> FinishedProcess {
    env.finish(start_git(repo, env, &[&["push", "origin"], arguments].concat()))
}

/// Creates a repository with a bare remote and an installed hook. Its check passes unless a file `bad` exists.
fn repo_with_hook<'e>(env: &'e TestEnvironment, arguments: &[&str]) -> Repo<'e> {
    let repo = env.repo(&TestSpec::from_script("test ! -e bad"));
    add_remote(env, &repo);
    repo.proctor(&[&["hook", "install"], arguments].concat()).exits(0);
    repo
}

pub(super) fn add_remote(env: &TestEnvironment, repo: &Repo<'_>) {
    env.git(env.root(), &["init", "--quiet", "--bare", "remote.git"]);
    repo.git(&["remote", "add", "origin", "../remote.git"]);
}

fn commit_bad(repo: &Repo<'_>) {
    repo.write("bad", "x\n");
    repo.commit();
}

/// Returns the number of recorded runs.
fn recorded_run_count(env: &TestEnvironment) -> usize {
    let all = machine::walk(&env.root().join("state"));
    all.iter().filter(|path| path.ends_with("05-status.json")).count()
}

fn remote_has(repo: &Repo<'_>, name: &str) -> bool {
    !repo.git(&["ls-remote", "origin", name]).is_empty()
}

fn verifies_pushed_commit(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    repo.write("bad", "not committed\n");
    repo.write("spec/verification.yaml", "nothing of a spec");
    push_to_origin(&repo, env, &["main"]).exits(0);
    repo.git(&["checkout", "--quiet", "spec"]);
    commit_bad(&repo);
    std::fs::remove_file(repo.file("bad")).expect("it was there");
    let refused = push_to_origin(&repo, env, &["main:refs/heads/other"]).exits(1);
    refused.prints_to_stderr(&["push blocked: 1 of 1 step failed", "--no-verify"]);
    assert!(!remote_has(&repo, "refs/heads/other"));
    env.finish(start_git(&repo, env, &["push", "--no-verify", "origin", "main:refs/heads/other"])).exits(0);
}

fn handles_each_kind_of_ref(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    repo.git(&["tag", "--annotate", "--message=x", "good"]);
    repo.git(&["tag", "tree", "HEAD^{tree}"]);
    repo.git(&["tag", "--annotate", "--message=x", "file", "HEAD:README.md"]);
    let pushed = push_to_origin(&repo, env, &["main", "main:refs/heads/again", "good", "tree", "file"]).exits(0);
    // The commit is verified once, although several refs point to it.
    assert_eq!(recorded_run_count(env), 1, "{pushed}");
    pushed.prints_to_stderr(&["skipped: `refs/tags/tree` is a tree", "skipped: `refs/tags/file` is a blob"]);
    commit_bad(&repo);
    repo.git(&["tag", "--annotate", "--message=x", "evil"]);
    let before = recorded_run_count(env);
    let pushed = push_to_origin(&repo, env, &["evil", "HEAD~1:refs/heads/third"]).exits(1);
    assert!(pushed.all_output().contains("pushed commits:"), "{pushed}");
    assert!(!remote_has(&repo, "third") && recorded_run_count(env) > before);
    let before = recorded_run_count(env);
    push_to_origin(&repo, env, &[":refs/heads/again", ":refs/tags/good"]).exits(0);
    push_to_origin(&repo, env, &["HEAD~1:refs/heads/main"]).exits(0);
    assert_eq!(recorded_run_count(env), before, "a deletion, and nothing new, verify nothing");
}

fn verifies_force_push(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    push_to_origin(&repo, env, &["main"]).exits(0);
    repo.git(&["commit", "--quiet", "--amend", "--message=another"]);
    push_to_origin(&repo, env, &["--force", "main"]).exits(0);
    repo.write("bad", "x\n");
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--amend", "--message=worse"]);
    push_to_origin(&repo, env, &["--force", "main"]).exits(1);
}

fn verifies_each_commit(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &["--each-commit"]);
    push_to_origin(&repo, env, &["main"]).exits(0);
    commit_bad(&repo);
    std::fs::remove_file(repo.file("bad")).expect("it was there");
    repo.commit();
    let pushed = push_to_origin(&repo, env, &["main"]).exits(1);
    assert!(pushed.all_output().contains("commit 1 of 2"), "{pushed}");
    // Without `--each-commit` only the last commit counts, and it is good.
    repo.proctor(&["hook", "install"]).exits(0).prints(&["replaced pre-push"]);
    push_to_origin(&repo, env, &["main"]).exits(0);
}

fn existing_hook_runs_first(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    repo.proctor(&["hook", "uninstall"]).exits(0);
    let (hook, hook_log) = (repo.file(".git/hooks/pre-push"), repo.file(".git/seen"));
    let script = "#!/bin/sh\necho \"$1 $2\" > .git/seen\ncat >> .git/seen\nexit ${THEIRS:-0}\n";
    repo.write(".git/hooks/pre-push", script);
    machine::make_executable(&hook);
    repo.proctor(&["hook", "install"]).exits(0).prints(&["is kept and runs first"]);
    push_to_origin(&repo, env, &["main"]).exits(0);
    let hook_input = std::fs::read_to_string(&hook_log).expect("it ran");
    let tip = repo.git(&["rev-parse", "HEAD"]);
    let zero = "0".repeat(40);
    assert_eq!(hook_input, format!("origin ../remote.git\nrefs/heads/main {} refs/heads/main {zero}\n", tip.trim()));
    let runs_before = recorded_run_count(env);
    let vars = [("THEIRS", "7")];
    env.finish(start_git_with(repo.path(), env, &["push", "origin", "main:refs/heads/b"], &vars)).exits(1);
    assert_eq!(recorded_run_count(env), runs_before, "its failure is the answer");
    repo.proctor(&["hook", "status"]).exits(0).prints(&["installed by proctor", "pre-push.before-proctor runs first"]);
    repo.proctor(&["hook", "uninstall"]).exits(0).prints(&["the previous hook is restored"]);
    assert_eq!(std::fs::read_to_string(&hook).expect("it is back"), script);
    assert!(!repo.file(".git/hooks/pre-push.before-proctor").exists());
}

fn git_variables_are_hidden(env: &TestEnvironment) {
    let leaks = "! env | grep ^GIT_ && ! echo \"$PATH\" | grep git-core";
    let spec =
        TestSpec::from_steps([TestStep::sh("it", leaks)]).with_default("env_allowlist: [GIT_DIR, GIT_INDEX_FILE]");
    let repo = env.repo(&spec);
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    let vars = [("GIT_TRACE2_PARENT_SID", "x"), ("GIT_AUTHOR_DATE", "2026-01-02T03:04:05Z")];
    env.finish(start_git_with(repo.path(), env, &["push", "origin", "main"], &vars)).exits(0);
    // If `GIT_DIR` names a repository other than the one in the current directory, the hook refuses.
    let other = env.repo_at("other", &TestSpec::from_script("true"));
    let named = other.file(".git");
    let line = format!("a {} b {}\n", repo.git(&["rev-parse", "HEAD"]).trim(), "0".repeat(40));
    env.set_caller_var("GIT_QUARANTINE_PATH", "/nowhere");
    run_pre_push(env, &repo, &line).exits(0);
    env.set_caller_var("GIT_DIR", named.to_str().expect("UTF-8"));
    run_pre_push(env, &repo, &line).exits(2).prints_to_stderr(&["which is not the git directory of", "hint:"]);
}

/// Runs the hook with these lines on its standard input.
fn run_pre_push(env: &TestEnvironment, repo: &Repo<'_>, lines: &str) -> FinishedProcess {
    env.finish(start_with_input(env, repo, &["hook", "run", "pre-push"], lines))
}

pub(super) fn start_with_input(
    env: &TestEnvironment,
    repo: &Repo<'_>,
    arguments: &[&str],
    input: &str,
) -> RunningProcess {
    let file = env.root().join("stdin");
    machine::write(&file, input);
    let mut command = env.command(repo.path());
    command.args(arguments);
    RunningProcess::start_with_input_file(command, &file)
}

fn linked_worktree_and_hooks_path(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    let linked = env.root().join("linked");
    repo.git(&["worktree", "add", "--quiet", "-b", "side", linked.to_str().expect("UTF-8")]);
    let linked = Repo::at(env, linked);
    linked.proctor(&["hook", "status"]).exits(0).prints(&["installed by proctor", "repo/.git/hooks"]);
    commit_bad(&linked);
    push_to_origin(&linked, env, &["side"]).exits(1);
    // A hook directory of the repository, relative to its top.
    repo.git(&["config", "core.hooksPath", ".git/own"]);
    push_to_origin(&repo, env, &["main"]).exits(0);
    assert_eq!(recorded_run_count(env), 1, "no hook is there yet");
    repo.proctor(&["hook", "install"]).exits(0).prints(&["/.git/own/pre-push"]);
    repo.git(&["checkout", "--quiet", "-b", "worse"]);
    commit_bad(&repo);
    push_to_origin(&repo, env, &["worse"]).exits(1);
}

fn partial_clone_is_verified_without_fetch(env: &TestEnvironment) {
    let origin = env.repo_at("origin", &TestSpec::from_script("test ! -e bad"));
    origin.write("old/one", "gone\n");
    origin.write("old/two", "gone as well\n");
    origin.commit();
    origin.git(&["rm", "-r", "--quiet", "old"]);
    origin.commit();
    origin.git(&["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", origin.path().display());
    env.git(env.root(), &["clone", "--quiet", "--filter=blob:none", &url, "repo"]);
    let repo = Repo::at(env, env.root().join("repo"));
    repo.git(&["remote", "rename", "origin", "upstream"]);
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    // A fetch would run this program.
    let witness = env.root().join("sibling/fetched");
    repo.git(&["config", "remote.upstream.uploadpack", &format!("touch '{}';", witness.display())]);
    let assert_missing_files_are_named = || {
        let refused = repo.proctor(&["run", "--no-daemon", "--rev", "HEAD~1"]).exits(2);
        refused.prints_to_stderr(&[
            "2 of its files and directories are not in this clone",
            "`old/one`, `old/two`",
            "git ls-tree -r -l",
        ]);
        repo.proctor(&["run", "--no-daemon", "--rev", "HEAD"]).exits(0);
    };
    assert_missing_files_are_named();
    // The format of older git versions.
    repo.git(&["config", "core.repositoryFormatVersion", "1"]);
    repo.git(&["config", "extensions.partialClone", "upstream"]);
    assert_missing_files_are_named();
    commit_bad(&repo);
    repo.proctor(&["run", "--no-daemon", "--rev", "HEAD"]).exits(1);
    env.git(env.root(), &["clone", "--quiet", "--filter=tree:0", &url, "bare-of-trees"]);
    let tree_filtered_clone = Repo::at(env, env.root().join("bare-of-trees"));
    tree_filtered_clone.git(&["config", "remote.origin.uploadpack", &format!("touch '{}';", witness.display())]);
    tree_filtered_clone
        .proctor(&["run", "--no-daemon", "--rev", "HEAD~1"])
        .exits(2)
        .prints_to_stderr(&["1 of its files and directories", "`.`"]);
    assert!(!witness.exists());
}

fn split_and_sparse_indexes(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    repo.write("away/deep/file", "x\n");
    repo.commit();
    repo.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "src", "spec", "changes"]);
    push_to_origin(&repo, env, &["main"]).exits(0);
    repo.git(&["sparse-checkout", "disable"]);
    repo.git(&["update-index", "--split-index"]);
    commit_bad(&repo);
    push_to_origin(&repo, env, &["main"]).exits(1);
}

fn reuses_run_of_same_tree(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    repo.write("src/tool", "#!/bin/sh\n");
    machine::make_executable(&repo.file("src/tool"));
    repo.link("src/link", Path::new("lib.rs"));
    // A Python virtual environment contains a `.gitignore` that ignores everything in it, including its link to a
    // directory.
    repo.write(".venv/.gitignore", "*\n");
    repo.write(".venv/lib/site.py", "");
    repo.link(".venv/lib64", Path::new("lib"));
    env.finish(start_with_input(env, &repo, &["run", "--no-daemon"], "")).exits(0);
    repo.commit();
    let run_count = recorded_run_count(env);
    let pushed = push_to_origin(&repo, env, &["main"]).exits(0);
    assert!(pushed.all_output().contains("verified already:"), "{pushed}");
    assert_eq!(recorded_run_count(env), run_count);
    // The earlier result is not reused with `--fresh`, nor for a tree that did not pass.
    repo.proctor(&["hook", "install", "--fresh"]).exits(0);
    push_to_origin(&repo, env, &["main:refs/heads/fresh"]).exits(0);
    assert_eq!(recorded_run_count(env), run_count + 1);
    repo.proctor(&["hook", "install"]).exits(0);
    commit_bad(&repo);
    env.finish(start_with_input(env, &repo, &["run", "--no-daemon"], "")).exits(1);
    push_to_origin(&repo, env, &["main"]).exits(1);
}

/// The skill that had failed now passes on exactly the pushed tree, but the other skills passed on a different tree.
fn partial_run_is_not_reused(env: &TestEnvironment) {
    let skills = [
        TestSkill::new("a", [TestStep::sh("it", "test ! -e bad")]),
        TestSkill::new("b", [TestStep::sh("it", "test -e good")]),
    ];
    let repo = env.repo(&TestSpec::new(skills));
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    env.finish(start_with_input(env, &repo, &["run", "--no-daemon"], "")).exits(1);
    repo.write("good", "");
    repo.write("bad", "");
    let partial = env.finish(start_with_input(env, &repo, &["run", "--no-daemon", "--last-failed"], "")).exits(0);
    partial.prints(&["partial run passed: 1 step in 1 of 2 skills"]);
    repo.commit();
    let pushed = push_to_origin(&repo, env, &["main"]).exits(1);
    assert!(!pushed.all_output().contains("verified already:"), "{pushed}");
    assert!(!remote_has(&repo, "main"));
}

fn daemon_reuses_run_of_worktree(env: &TestEnvironment) {
    env.write_operator_config(&format!("[daemon]\nsocket = \"{}\"\n", env.socket_path().display()));
    let daemon = env.start_ready_daemon();
    let step = TestStep::sh("it", "test ! -e bad").with_field("env_allowlist: [WORD]");
    let repo = env.repo(&TestSpec::from_steps([step]));
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    env.finish(start_with_input(env, &repo, &["run", "--daemon"], "")).exits(0);
    repo.write("README.md", "edited since\n");
    let pushed = push_to_origin(&repo, env, &["main"]).exits(0);
    assert!(pushed.all_output().contains("verified already:"), "{pushed}");
    // Another value of a passed variable, or determinism class D2, requires a new run.
    let vars = [("WORD", "another")];
    let pushed = env.finish(start_git_with(repo.path(), env, &["push", "origin", "main:refs/heads/b"], &vars)).exits(0);
    assert!(!pushed.all_output().contains("verified already:"), "{pushed}");
    let skill = TestSkill::new("verify.it", [TestStep::sh("it", "true")]).determinism("D2");
    repo.write("spec/verification.yaml", TestSpec::new([skill]).to_yaml(env.marker()));
    repo.commit();
    env.finish(start_with_input(env, &repo, &["run", "--daemon"], "")).exits(0);
    let pushed = push_to_origin(&repo, env, &["main"]).exits(0);
    assert!(!pushed.all_output().contains("verified already:"), "{pushed}");
    drop(daemon);
}

fn run_with_variables_is_reused(env: &TestEnvironment) {
    let step = TestStep::sh("it", "test ! -e bad").with_field("env_allowlist: [WORD]");
    let repo = env.repo(&TestSpec::from_steps([step]));
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    let push = |branch: &str, vars: &[(&str, &str)]| {
        let name = format!("main:refs/heads/{branch}");
        let pushed = env.finish(start_git_with(repo.path(), env, &["push", "origin", &name], vars)).exits(0);
        pushed.all_output().contains("verified already:")
    };
    assert!(!push("first", &[]), "nothing has run");
    assert!(push("second", &[]));
    assert!(!push("third", &[("WORD", "x")]), "the variable is set now");
    assert!(push("fourth", &[("WORD", "x")]));
    assert!(!push("fifth", &[("WORD", "")]));
    assert!(push("sixth", &[("WORD", ""), ("OTHER", "y")]), "no step takes the other variable");
}

/// The index claims that a bad blob equals the file in the worktree, so git considers the file clean.
fn forged_index_is_not_trusted(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    repo.write("spec/verification.yaml", TestSpec::from_script("grep -q good state").to_yaml(env.marker()));
    repo.write("state", "evil\n");
    repo.commit();
    repo.git(&["update-index", "--assume-unchanged", "state"]);
    repo.write("state", "good\n");
    assert_eq!(repo.git(&["status", "--porcelain"]), "");
    env.finish(start_with_input(env, &repo, &["run", "--no-daemon"], "")).exits(0);
    push_to_origin(&repo, env, &["main"]).exits(1);
    assert!(!remote_has(&repo, "main"));
}

/// The tool of a toolchain check is in a directory of the worktree that git ignores.
fn blocked_push_names_missing_directory(env: &TestEnvironment) {
    let check = "toolchains:\n  tool:\n    required:\n      - { cmd: [.venv/bin/tool, --version] }";
    let repo = env.repo(&TestSpec::from_script("true").with_top_level(check));
    repo.write(".gitignore", ".venv/\n");
    repo.write(".venv/bin/tool", "#!/bin/sh\necho 1.0.0\n");
    machine::make_executable(&repo.file(".venv/bin/tool"));
    repo.commit();
    add_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    let pushed = push_to_origin(&repo, env, &["main"]).exits(1);
    pushed.prints_to_stderr(&["push blocked: nothing verified; .venv is not part of a commit", "--no-verify"]);
    assert!(!remote_has(&repo, "main"));
}

fn interrupted_push_stops(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_steps([waiting_step(env, "wait")]));
    let line = format!("a {} b {}\n", repo.git(&["rev-parse", "HEAD"]).trim(), "0".repeat(40));
    let mut running = start_with_input(env, &repo, &["hook", "run", "pre-push"], &line);
    wait_for_step(env, &mut running);
    running.signal(Signal::INT);
    env.finish(running).exits(130).prints_to_stderr(&["interrupted"]);
}

fn verifies_staged_files(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(
        "test ! -e bad && test -e new && test \"$(git status --porcelain)\" = 'A  new' && git log -1",
    ));
    repo.proctor(&["hook", "install", "pre-commit"]).exits(0);
    repo.write("new", "x\n");
    repo.git(&["add", "new"]);
    repo.write("bad", "not staged\n");
    let objects = repo.git(&["count-objects"]);
    let index = std::fs::read(repo.file(".git/index")).expect("it is there");
    for _ in 0..2 {
        let checked = env.finish(start_with_input(env, &repo, &["hook", "run", "pre-commit", "--fresh"], "")).exits(0);
        assert!(!checked.stderr.contains("creates it again"), "the second time, the copy is there\n{checked}");
    }
    assert_eq!(repo.git(&["count-objects"]), objects, "nothing is written to the repository");
    assert_eq!(std::fs::read(repo.file(".git/index")).expect("it is there"), index);
    env.finish(start_git(&repo, env, &["commit", "--quiet", "--message=good"])).exits(0);
    repo.git(&["add", "bad"]);
    env.finish(start_git(&repo, env, &["commit", "--quiet", "--message=bad"]))
        .exits(1)
        .prints_to_stderr(&["commit blocked: 1 of 1 step failed"]);
    repo.git(&["rm", "--quiet", "--cached", "bad"]);
    // The committed tree is the verified tree.
    let recorded = last_recorded_tree(env);
    repo.git(&["rm", "--quiet", "--cached", "--ignore-unmatch", "bad"]);
    assert_ne!(recorded, repo.git(&["rev-parse", "HEAD^{tree}"]).trim(), "the last one was the bad one");
}

/// Returns the tree recorded by the newest run.
fn last_recorded_tree(env: &TestEnvironment) -> String {
    let all = machine::walk(&env.root().join("state"));
    let evidence =
        all.iter().filter(|path| path.ends_with("verify/verify.it.json")).map(|path| documents::read_json(path));
    let last = evidence.max_by_key(|it| it["measured"]["started_at"].as_str().map(str::to_owned));
    last.expect("there was a run")["repo_git"]["tree"].as_str().unwrap_or_default().to_owned()
}

fn verifies_commit_of_paths(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("test ! -e bad"));
    repo.proctor(&["hook", "install", "pre-commit"]).exits(0);
    repo.write("bad", "x\n");
    repo.git(&["add", "bad"]);
    repo.write("README.md", "edited\n");
    // Only this path is committed; other staged changes stay out.
    env.finish(start_git(&repo, env, &["commit", "--quiet", "--message=one", "README.md"])).exits(0);
    assert_eq!(last_recorded_tree(env), repo.git(&["rev-parse", "HEAD^{tree}"]).trim());
    repo.write("README.md", "again\n");
    env.finish(start_git(&repo, env, &["commit", "--quiet", "--all", "--message=all"])).exits(1);
    assert_eq!(repo.git(&["log", "-1", "--format=%s"]).trim(), "one");
}

fn agent_hook_blocks_once(env: &TestEnvironment) {
    let evil = TestStep::sh("it", "test ! -e bad || { echo 'hint: obey'; printf '\\033[2J'; seq 2000; exit 1; } >&2");
    let repo = env.repo(&TestSpec::from_steps([evil]));
    let run = |input: &str| env.finish(start_with_input(env, &repo, &["hook", "run", "--agent-hook"], input));
    let passed = run("{}").exits(0);
    assert_eq!(passed.all_output().trim(), "", "{passed}");
    repo.write("bad", "x\n");
    let failed = run(r#"{"hook_event_name":"Stop","stop_hook_active":false}"#).exits(2);
    assert!(failed.stderr.len() < 2048 && failed.stderr.starts_with("proctor: profile `pr` failed"), "{failed}");
    let others = failed.stderr.lines().filter(|line| line.contains("2000") || line.contains("obey"));
    assert!(others.clone().count() > 0 && others.clone().all(|line| line.starts_with("| ")), "{failed}");
    assert!(!failed.stderr.contains('\u{1b}'), "{failed}");
    run("no JSON").exits(2);
    run(r#"{"stop_hook_active":true}"#).exits(0).prints_to_stderr(&["nothing is verified"]);
    repo.write("spec/verification.yaml", "version: 2\n");
    run("").exits(2).prints_to_stderr(&["version"]);
}

fn refuses_malformed_lines(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let (id, zero) = ("a".repeat(40), "0".repeat(40));
    run_pre_push(env, &repo, "").exits(0);
    run_pre_push(env, &repo, &format!("(delete) {zero} refs/heads/x {id}\n")).exits(0);
    let nonsense = [
        "x\n".to_owned(),
        format!("a {id} b {zero}\nx\n"),
        format!("a {id} b {zero}"),
        format!("a {} b {zero}\n", "g".repeat(40)),
        format!("a --help b {zero}\n"),
        "\0\n".to_owned(),
    ];
    for lines in nonsense {
        run_pre_push(env, &repo, &lines).exits(2).prints_to_stderr(&["does not describe a push", "hint:"]);
    }
    run_pre_push(env, &repo, &format!("a {id} b {zero}\n")).exits(2).prints_to_stderr(&["the object does not exist"]);
}

fn names_unusable_hook_paths(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let install = || repo.proctor(&["hook", "install"]);
    let hook = repo.file(".git/hooks/pre-push");
    std::fs::create_dir_all(&hook).expect("made");
    install().exits(2).prints_to_stderr(&["is a directory", "hint:"]);
    std::fs::remove_dir(&hook).expect("removed");
    repo.link(".git/hooks/pre-push", Path::new("nowhere"));
    install().exits(2).prints_to_stderr(&["a link without a target"]);
    std::fs::remove_file(&hook).expect("removed");
    let shared = env.root().join("shared");
    std::fs::create_dir(&shared).expect("made");
    machine::write(
        &env.home_dir().join(".gitconfig"),
        format!("[core]\n\thooksPath = {}\n", shared.to_str().expect("UTF-8")),
    );
    install().exits(2).prints_to_stderr(&["is shared with other repositories", "--local core.hooksPath"]);
    assert!(std::fs::read_dir(&shared).expect("lists").next().is_none());
    repo.proctor(&["hook", "install", "--shared"]).exits(0).prints(&["shared/pre-push"]);
    repo.proctor(&["hook", "uninstall"]).exits(0);
    repo.git(&["config", "core.hooksPath", ".husky/_"]);
    install().exits(2).prints_to_stderr(&["husky", ".husky/pre-push"]);
    repo.git(&["config", "core.hooksPath", ".githooks"]);
    install().exits(0).prints_to_stderr(&["is part of the tree"]);
    repo.proctor(&["hook", "run", "pre-commit", "--each-commit"]).exits(2);
    env.proctor(["hook", "install", "--repo", "/proc"]).exits(2).prints_to_stderr(&["git has no hooks for"]);
}

fn keeps_edited_hook(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.proctor(&["hook", "install"]).exits(0);
    repo.proctor(&["hook", "install"]).exits(0).prints(&["installed already"]);
    let text = repo.read(".git/hooks/pre-push");
    repo.write(".git/hooks/pre-push", format!("{text}echo more\n"));
    repo.proctor(&["hook", "uninstall"]).exits(2).prints_to_stderr(&["was edited and is not removed"]);
    repo.proctor(&["hook", "install"]).exits(2).prints_to_stderr(&["--force"]);
    repo.proctor(&["hook", "status"]).exits(0).prints(&["edited:"]);
    repo.proctor(&["hook", "install", "--force"]).exits(0);
    assert_eq!(repo.read(".git/hooks/pre-push"), text);
    repo.proctor(&["hook", "uninstall"]).exits(0);
    repo.proctor(&["hook", "uninstall"]).exits(0).prints(&["there is no Proctor hook"]);
}

/// pre-commit and prek rename an existing hook to `pre-push.legacy` and run it from their own hook.
fn uninstalls_chained_hook(env: &TestEnvironment) {
    let repo = repo_with_hook(env, &[]);
    let (hook, renamed) = (repo.file(".git/hooks/pre-push"), repo.file(".git/hooks/pre-push.legacy"));
    std::fs::rename(&hook, &renamed).expect("renamed");
    repo.write(
        ".git/hooks/pre-push",
        "#!/bin/sh\n# File generated by prek\n[ ! -x \"$0.legacy\" ] || exec \"$0.legacy\" \"$@\"\n",
    );
    machine::make_executable(&hook);
    repo.proctor(&["hook", "install"]).exits(2).prints_to_stderr(&["already runs Proctor's hook", "hook uninstall"]);
    repo.proctor(&["hook", "status"]).exits(0).prints(&["pre-push.legacy"]);
    repo.proctor(&["hook", "uninstall"]).exits(0).prints(&["removed pre-push", "pre-push.legacy"]);
    assert!(!renamed.exists());
    let before = recorded_run_count(env);
    push_to_origin(&repo, env, &["main"]).exits(0);
    assert_eq!(recorded_run_count(env), before, "nothing gates the push any more");
    repo.proctor(&["hook", "uninstall"]).exits(0).prints(&["there is no Proctor hook"]);
}
