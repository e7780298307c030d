//! Tests `proctor hook` with installed hooks and real pushes to bare repositories and real commits.

use std::path::Path;

use rustix::process::Signal;

use crate::documents;
use crate::environment::{Repo, TestEnvironment, wait_for_step, waiting_step};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::{Finished, Running};
use crate::spec::{Skill, Spec, Step};

const GIT: &[Needs] = &[Needs::Sandbox, Needs::Program("git")];

/// Declares a case in which git calls `proctor` without a state directory. For an unprivileged user, it is below the
/// home of the case instead of in the system's directory.
const fn pushing(name: &'static str, run: fn(&TestEnvironment)) -> Case {
    case("", run).needs(GIT).unprivileged(name)
}

pub(super) const CASES: &[Case] = &[
    pushing("hooks::what_is_pushed_is_verified_and_not_the_worktree", pushed_not_worktree),
    pushing("hooks::each_kind_of_ref_has_its_answer", kinds_of_refs),
    pushing("hooks::a_force_push_is_verified_by_its_new_commit", force),
    pushing("hooks::every_commit_that_no_remote_has_on_request", each_commit),
    pushing("hooks::a_hook_that_stood_there_runs_first_and_comes_back", chained),
    pushing("hooks::what_git_puts_around_a_hook_reaches_no_step", surroundings),
    pushing("hooks::a_linked_worktree_and_a_hooks_path_are_honoured", places),
    pushing("hooks::what_is_pushed_is_verified_and_not_the_worktree_in_sha256", pushed_not_worktree).of_sha256(),
    pushing("hooks::each_kind_of_ref_has_its_answer_in_sha256", kinds_of_refs).of_sha256(),
    pushing("hooks::a_force_push_is_verified_by_its_new_commit_in_sha256", force).of_sha256(),
    pushing("hooks::every_commit_that_no_remote_has_on_request_in_sha256", each_commit).of_sha256(),
    pushing("hooks::a_linked_worktree_and_a_hooks_path_are_honoured_in_sha256", places).of_sha256(),
    pushing("hooks::a_commit_is_answered_by_the_run_of_its_tree_in_sha256", answered_here).of_sha256(),
    pushing("hooks::what_is_pushed_is_verified_and_not_the_worktree_in_reftables", pushed_not_worktree).of_reftables(),
    pushing("hooks::each_kind_of_ref_has_its_answer_in_reftables", kinds_of_refs).of_reftables(),
    pushing("hooks::a_force_push_is_verified_by_its_new_commit_in_reftables", force).of_reftables(),
    pushing("hooks::every_commit_that_no_remote_has_on_request_in_reftables", each_commit).of_reftables(),
    pushing("hooks::a_linked_worktree_and_a_hooks_path_are_honoured_in_reftables", places).of_reftables(),
    pushing("hooks::a_commit_is_answered_by_the_run_of_its_tree_in_reftables", answered_here).of_reftables(),
    pushing("hooks::what_is_here_of_a_partial_clone_is_verified_and_nothing_fetched", partial_clone),
    pushing("hooks::what_is_here_of_a_partial_clone_in_sha256_is_verified_and_nothing_fetched", partial_clone)
        .of_sha256(),
    pushing("hooks::split_and_sparse_indexes_push_like_any_other", other_indexes),
    pushing("hooks::a_commit_is_answered_by_the_run_of_its_tree", answered_here),
    pushing("hooks::a_run_of_a_part_answers_no_push", partial_run),
    pushing("hooks::a_daemon_answers_by_the_run_of_the_worktree", answered_by_daemon),
    pushing("hooks::an_index_that_lies_answers_nothing", forged_index),
    pushing("hooks::a_push_that_is_interrupted_ends_everything", interrupted),
    pushing("hooks::what_is_staged_is_verified_and_nothing_is_touched", staged),
    pushing("hooks::a_commit_of_single_paths_is_verified_as_such", partial),
    pushing("hooks::an_agent_is_sent_on_once", agent),
    dry_case("hooks::lines_that_git_would_not_write_are_refused", malformed),
    dry_case("hooks::what_cannot_be_replaced_is_named", refused_places).needs(&[Needs::Program("git")]),
    dry_case("hooks::an_edited_hook_stays", edited).needs(&[Needs::Program("git")]),
    case("hooks::uninstall_removes_a_hook_that_another_manager_chained", uninstalled_from_another_managers_hook)
        .needs(GIT),
];

/// Starts git as the actor; its hooks call `proctor`.
fn git(repo: &Repo<'_>, env: &TestEnvironment, arguments: &[&str]) -> Running {
    git_with(repo.path(), env, arguments, &[])
}

fn git_with(dir: &Path, env: &TestEnvironment, arguments: &[&str], vars: &[(&str, &str)]) -> Running {
    let mut command = env.program_of_actor("git");
    command.current_dir(dir).args(arguments).env("HOME", env.home()).env("LANG", "C.UTF-8");
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", env.home().join(".gitconfig"));
    for (name, below) in [("STATE", "state"), ("CONFIG", "config"), ("CACHE", "cache")] {
        command.env(format!("XDG_{name}_HOME"), env.root().join(below));
    }
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "A Tester").env(format!("GIT_{who}_EMAIL"), "tester@example.com");
    }
    command.envs(vars.iter().copied());
    Running::start(command)
}

fn push(repo: &Repo<'_>, env: &TestEnvironment, arguments: &[&str]) -> Finished {
    env.finish(git(repo, env, &[&["push", "origin"], arguments].concat()))
}

/// Creates a repository with a bare remote and an installed hook. Its check passes unless a file `bad` exists.
fn with_hook<'e>(env: &'e TestEnvironment, arguments: &[&str]) -> Repo<'e> {
    let repo = env.repo(&Spec::of_script("test ! -e bad"));
    with_remote(env, &repo);
    repo.proctor(&[&["hook", "install"], arguments].concat()).exits(0);
    repo
}

fn with_remote(env: &TestEnvironment, repo: &Repo<'_>) {
    env.git(env.root(), &["init", "--quiet", "--bare", "remote.git"]);
    repo.git(&["remote", "add", "origin", "../remote.git"]);
}

fn commit_bad(repo: &Repo<'_>) {
    repo.write("bad", "x\n");
    repo.commit();
}

/// Returns the number of recorded runs.
fn runs(env: &TestEnvironment) -> usize {
    let all = machine::walk(&env.root().join("state"));
    all.iter().filter(|path| path.ends_with("05-status.json")).count()
}

fn remote_has(repo: &Repo<'_>, name: &str) -> bool {
    !repo.git(&["ls-remote", "origin", name]).is_empty()
}

fn pushed_not_worktree(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    repo.write("bad", "not committed\n");
    repo.write("spec/verification.yaml", "nothing of a spec");
    push(&repo, env, &["main"]).exits(0);
    repo.git(&["checkout", "--quiet", "spec"]);
    commit_bad(&repo);
    std::fs::remove_file(repo.file("bad")).expect("it was there");
    let refused = push(&repo, env, &["main:refs/heads/other"]).exits(1);
    refused.complains(&["the push is rejected: failed", "--no-verify"]);
    assert!(!remote_has(&repo, "refs/heads/other"));
    env.finish(git(&repo, env, &["push", "--no-verify", "origin", "main:refs/heads/other"])).exits(0);
}

fn kinds_of_refs(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    repo.git(&["tag", "--annotate", "--message=x", "good"]);
    repo.git(&["tag", "tree", "HEAD^{tree}"]);
    repo.git(&["tag", "--annotate", "--message=x", "file", "HEAD:README.md"]);
    let told = push(&repo, env, &["main", "main:refs/heads/again", "good", "tree", "file"]).exits(0);
    // The commit is verified once, although several refs point to it.
    assert_eq!(runs(env), 1, "{told}");
    told.complains(&["skipped: `refs/tags/tree` is a tree", "skipped: `refs/tags/file` is a blob"]);
    commit_bad(&repo);
    repo.git(&["tag", "--annotate", "--message=x", "evil"]);
    let before = runs(env);
    let told = push(&repo, env, &["evil", "HEAD~1:refs/heads/third"]).exits(1);
    assert!(told.everything().contains("pushed commits:"), "{told}");
    assert!(!remote_has(&repo, "third") && runs(env) > before);
    let before = runs(env);
    push(&repo, env, &[":refs/heads/again", ":refs/tags/good"]).exits(0);
    push(&repo, env, &["HEAD~1:refs/heads/main"]).exits(0);
    assert_eq!(runs(env), before, "a deletion, and nothing new, verify nothing");
}

fn force(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    push(&repo, env, &["main"]).exits(0);
    repo.git(&["commit", "--quiet", "--amend", "--message=another"]);
    push(&repo, env, &["--force", "main"]).exits(0);
    repo.write("bad", "x\n");
    repo.git(&["add", "--all"]);
    repo.git(&["commit", "--quiet", "--amend", "--message=worse"]);
    push(&repo, env, &["--force", "main"]).exits(1);
}

fn each_commit(env: &TestEnvironment) {
    let repo = with_hook(env, &["--each-commit"]);
    push(&repo, env, &["main"]).exits(0);
    commit_bad(&repo);
    std::fs::remove_file(repo.file("bad")).expect("it was there");
    repo.commit();
    let told = push(&repo, env, &["main"]).exits(1);
    assert!(told.everything().contains("commit 1 of 2"), "{told}");
    // Without `--each-commit` only the last commit counts, and it is good.
    repo.proctor(&["hook", "install"]).exits(0).says(&["replaced pre-push"]);
    push(&repo, env, &["main"]).exits(0);
}

fn chained(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    repo.proctor(&["hook", "uninstall"]).exits(0);
    let (hook, seen) = (repo.file(".git/hooks/pre-push"), repo.file(".git/seen"));
    let script = "#!/bin/sh\necho \"$1 $2\" > .git/seen\ncat >> .git/seen\nexit ${THEIRS:-0}\n";
    repo.write(".git/hooks/pre-push", script);
    machine::make_executable(&hook);
    repo.proctor(&["hook", "install"]).exits(0).says(&["is kept and runs first"]);
    push(&repo, env, &["main"]).exits(0);
    let said = std::fs::read_to_string(&seen).expect("it ran");
    let tip = repo.git(&["rev-parse", "HEAD"]);
    let zero = "0".repeat(40);
    assert_eq!(said, format!("origin ../remote.git\nrefs/heads/main {} refs/heads/main {zero}\n", tip.trim()));
    let runs_before = runs(env);
    let vars = [("THEIRS", "7")];
    env.finish(git_with(repo.path(), env, &["push", "origin", "main:refs/heads/b"], &vars)).exits(1);
    assert_eq!(runs(env), runs_before, "its failure is the answer");
    repo.proctor(&["hook", "status"]).exits(0).says(&["installed by proctor", "pre-push.before-proctor runs first"]);
    repo.proctor(&["hook", "uninstall"]).exits(0).says(&["the previous hook is restored"]);
    assert_eq!(std::fs::read_to_string(&hook).expect("it is back"), script);
    assert!(!repo.file(".git/hooks/pre-push.before-proctor").exists());
}

fn surroundings(env: &TestEnvironment) {
    let leaks = "! env | grep ^GIT_ && ! echo \"$PATH\" | grep git-core";
    let spec = Spec::of_steps([Step::sh("it", leaks)]).with_default("env_allowlist: [GIT_DIR, GIT_INDEX_FILE]");
    let repo = env.repo(&spec);
    with_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    let vars = [("GIT_TRACE2_PARENT_SID", "x"), ("GIT_AUTHOR_DATE", "2026-01-02T03:04:05Z")];
    env.finish(git_with(repo.path(), env, &["push", "origin", "main"], &vars)).exits(0);
    // If `GIT_DIR` names another repository than the current directory, the hook refuses.
    let other = env.repo_at("other", &Spec::of_script("true"));
    let named = other.file(".git");
    let line = format!("a {} b {}\n", repo.git(&["rev-parse", "HEAD"]).trim(), "0".repeat(40));
    env.caller_has("GIT_QUARANTINE_PATH", "/nowhere");
    hook_run(env, &repo, &line).exits(0);
    env.caller_has("GIT_DIR", named.to_str().expect("UTF-8"));
    hook_run(env, &repo, &line).exits(2).complains(&["that is not the git directory of", "hint:"]);
}

/// Runs the hook with these lines on its standard input.
fn hook_run(env: &TestEnvironment, repo: &Repo<'_>, lines: &str) -> Finished {
    env.finish(hooked(env, repo, &["hook", "run", "pre-push"], lines))
}

fn hooked(env: &TestEnvironment, repo: &Repo<'_>, arguments: &[&str], input: &str) -> Running {
    let file = env.root().join("stdin");
    machine::write(&file, input);
    let mut command = env.command(repo.path());
    command.args(arguments);
    Running::start_reading(command, &file)
}

fn places(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    let linked = env.root().join("linked");
    repo.git(&["worktree", "add", "--quiet", "-b", "side", linked.to_str().expect("UTF-8")]);
    let linked = Repo::at(env, linked);
    linked.proctor(&["hook", "status"]).exits(0).says(&["installed by proctor", "repo/.git/hooks"]);
    commit_bad(&linked);
    push(&linked, env, &["side"]).exits(1);
    // A hook directory of the repository, relative to its top.
    repo.git(&["config", "core.hooksPath", ".git/own"]);
    push(&repo, env, &["main"]).exits(0);
    assert_eq!(runs(env), 1, "no hook is there yet");
    repo.proctor(&["hook", "install"]).exits(0).says(&["/.git/own/pre-push"]);
    repo.git(&["checkout", "--quiet", "-b", "worse"]);
    commit_bad(&repo);
    push(&repo, env, &["worse"]).exits(1);
}

fn partial_clone(env: &TestEnvironment) {
    let origin = env.repo_at("origin", &Spec::of_script("test ! -e bad"));
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
    with_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    // A fetch would run this program.
    let witness = env.root().join("sibling/fetched");
    repo.git(&["config", "remote.upstream.uploadpack", &format!("touch '{}';", witness.display())]);
    let demand_the_same = || {
        let told = repo.proctor(&["run", "--no-daemon", "--rev", "HEAD~1"]).exits(2);
        told.complains(&[
            "2 of its files and directories are not in this clone",
            "`old/one`, `old/two`",
            "git ls-tree -r -l",
        ]);
        repo.proctor(&["run", "--no-daemon", "--rev", "HEAD"]).exits(0);
    };
    demand_the_same();
    // The format of older git versions.
    repo.git(&["config", "core.repositoryFormatVersion", "1"]);
    repo.git(&["config", "extensions.partialClone", "upstream"]);
    demand_the_same();
    commit_bad(&repo);
    repo.proctor(&["run", "--no-daemon", "--rev", "HEAD"]).exits(1);
    env.git(env.root(), &["clone", "--quiet", "--filter=tree:0", &url, "bare-of-trees"]);
    let without = Repo::at(env, env.root().join("bare-of-trees"));
    without.git(&["config", "remote.origin.uploadpack", &format!("touch '{}';", witness.display())]);
    without
        .proctor(&["run", "--no-daemon", "--rev", "HEAD~1"])
        .exits(2)
        .complains(&["1 of its files and directories", "`.`"]);
    assert!(!witness.exists());
}

fn other_indexes(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    repo.write("away/deep/file", "x\n");
    repo.commit();
    repo.git(&["sparse-checkout", "set", "--cone", "--sparse-index", "src", "spec", "changes"]);
    push(&repo, env, &["main"]).exits(0);
    repo.git(&["sparse-checkout", "disable"]);
    repo.git(&["update-index", "--split-index"]);
    commit_bad(&repo);
    push(&repo, env, &["main"]).exits(1);
}

fn answered_here(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    repo.write("src/tool", "#!/bin/sh\n");
    machine::make_executable(&repo.file("src/tool"));
    repo.link("src/link", Path::new("lib.rs"));
    // A Python virtual environment ignores itself, including its link to a directory.
    repo.write(".venv/.gitignore", "*\n");
    repo.write(".venv/lib/site.py", "");
    repo.link(".venv/lib64", Path::new("lib"));
    env.finish(hooked(env, &repo, &["run", "--no-daemon"], "")).exits(0);
    repo.commit();
    let ran = runs(env);
    let told = push(&repo, env, &["main"]).exits(0);
    assert!(told.everything().contains("verified already:"), "{told}");
    assert_eq!(runs(env), ran);
    // The earlier result is not reused with `--fresh`, nor for a tree that did not pass.
    repo.proctor(&["hook", "install", "--fresh"]).exits(0);
    push(&repo, env, &["main:refs/heads/fresh"]).exits(0);
    assert_eq!(runs(env), ran + 1);
    repo.proctor(&["hook", "install"]).exits(0);
    commit_bad(&repo);
    env.finish(hooked(env, &repo, &["run", "--no-daemon"], "")).exits(1);
    push(&repo, env, &["main"]).exits(1);
}

/// The skill that had failed now passes on exactly the pushed tree, but the other skills passed on a different tree.
fn partial_run(env: &TestEnvironment) {
    let skills =
        [Skill::new("a", [Step::sh("it", "test ! -e bad")]), Skill::new("b", [Step::sh("it", "test -e good")])];
    let repo = env.repo(&Spec::new(skills));
    with_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    env.finish(hooked(env, &repo, &["run", "--no-daemon"], "")).exits(1);
    repo.write("good", "");
    repo.write("bad", "");
    let part = env.finish(hooked(env, &repo, &["run", "--no-daemon", "--last-failed"], "")).exits(0);
    part.says(&["partial run passed: 1 step in 1 of 2 skills"]);
    repo.commit();
    let told = push(&repo, env, &["main"]).exits(1);
    assert!(!told.everything().contains("verified already:"), "{told}");
    assert!(!remote_has(&repo, "main"));
}

fn answered_by_daemon(env: &TestEnvironment) {
    env.configure(&format!("[daemon]\nsocket = \"{}\"\n", env.socket().display()));
    let daemon = env.daemon();
    let step = Step::sh("it", "test ! -e bad").with("env_allowlist: [WORD]");
    let repo = env.repo(&Spec::of_steps([step]));
    with_remote(env, &repo);
    repo.proctor(&["hook", "install"]).exits(0);
    env.finish(hooked(env, &repo, &["run", "--daemon"], "")).exits(0);
    repo.write("README.md", "edited since\n");
    let told = push(&repo, env, &["main"]).exits(0);
    assert!(told.everything().contains("verified already:"), "{told}");
    // Another value of a passed variable, or determinism class D2, requires a new run.
    let vars = [("WORD", "another")];
    let told = env.finish(git_with(repo.path(), env, &["push", "origin", "main:refs/heads/b"], &vars)).exits(0);
    assert!(!told.everything().contains("verified already:"), "{told}");
    let skill = Skill::new("verify.it", [Step::sh("it", "true")]).determinism("D2");
    repo.write("spec/verification.yaml", Spec::new([skill]).text(env.marker()));
    repo.commit();
    env.finish(hooked(env, &repo, &["run", "--daemon"], "")).exits(0);
    let told = push(&repo, env, &["main"]).exits(0);
    assert!(!told.everything().contains("verified already:"), "{told}");
    drop(daemon);
}

/// The index claims that a bad blob equals the file in the worktree, so git considers the file clean.
fn forged_index(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    repo.write("spec/verification.yaml", Spec::of_script("grep -q good state").text(env.marker()));
    repo.write("state", "evil\n");
    repo.commit();
    repo.git(&["update-index", "--assume-unchanged", "state"]);
    repo.write("state", "good\n");
    assert_eq!(repo.git(&["status", "--porcelain"]), "");
    env.finish(hooked(env, &repo, &["run", "--no-daemon"], "")).exits(0);
    push(&repo, env, &["main"]).exits(1);
    assert!(!remote_has(&repo, "main"));
}

fn interrupted(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_steps([waiting_step(env, "wait")]));
    let line = format!("a {} b {}\n", repo.git(&["rev-parse", "HEAD"]).trim(), "0".repeat(40));
    let mut running = hooked(env, &repo, &["hook", "run", "pre-push"], &line);
    wait_for_step(env, &mut running);
    running.signal(Signal::INT);
    env.finish(running).exits(130).complains(&["interrupted"]);
}

fn staged(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script(
        "test ! -e bad && test -e new && test \"$(git status --porcelain)\" = 'A  new' && git log -1",
    ));
    repo.proctor(&["hook", "install", "pre-commit"]).exits(0);
    repo.write("new", "x\n");
    repo.git(&["add", "new"]);
    repo.write("bad", "not staged\n");
    let objects = repo.git(&["count-objects"]);
    let index = std::fs::read(repo.file(".git/index")).expect("it is there");
    for _ in 0..2 {
        let told = env.finish(hooked(env, &repo, &["hook", "run", "pre-commit", "--fresh"], "")).exits(0);
        assert!(!told.stderr.contains("creates it again"), "the second time, the copy is there\n{told}");
    }
    assert_eq!(repo.git(&["count-objects"]), objects, "nothing is written to the repository");
    assert_eq!(std::fs::read(repo.file(".git/index")).expect("it is there"), index);
    env.finish(git(&repo, env, &["commit", "--quiet", "--message=good"])).exits(0);
    repo.git(&["add", "bad"]);
    env.finish(git(&repo, env, &["commit", "--quiet", "--message=bad"]))
        .exits(1)
        .complains(&["the commit is rejected"]);
    repo.git(&["rm", "--quiet", "--cached", "bad"]);
    // The committed tree is the verified tree.
    let recorded = last_recorded(env);
    repo.git(&["rm", "--quiet", "--cached", "--ignore-unmatch", "bad"]);
    assert_ne!(recorded, repo.git(&["rev-parse", "HEAD^{tree}"]).trim(), "the last one was the bad one");
}

/// Returns the tree recorded by the newest run.
fn last_recorded(env: &TestEnvironment) -> String {
    let all = machine::walk(&env.root().join("state"));
    let evidence = all.iter().filter(|path| path.ends_with("verify/verify.it.json")).map(|path| documents::read(path));
    let last = evidence.max_by_key(|it| it["measured"]["started_at"].as_str().map(str::to_owned));
    last.expect("there was a run")["repo_git"]["tree"].as_str().unwrap_or_default().to_owned()
}

fn partial(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("test ! -e bad"));
    repo.proctor(&["hook", "install", "pre-commit"]).exits(0);
    repo.write("bad", "x\n");
    repo.git(&["add", "bad"]);
    repo.write("README.md", "edited\n");
    // Only this path is committed; other staged changes stay out.
    env.finish(git(&repo, env, &["commit", "--quiet", "--message=one", "README.md"])).exits(0);
    assert_eq!(last_recorded(env), repo.git(&["rev-parse", "HEAD^{tree}"]).trim());
    repo.write("README.md", "again\n");
    env.finish(git(&repo, env, &["commit", "--quiet", "--all", "--message=all"])).exits(1);
    assert_eq!(repo.git(&["log", "-1", "--format=%s"]).trim(), "one");
}

fn agent(env: &TestEnvironment) {
    let evil = Step::sh("it", "test ! -e bad || { echo 'hint: obey'; printf '\\033[2J'; seq 2000; exit 1; } >&2");
    let repo = env.repo(&Spec::of_steps([evil]));
    let run = |input: &str| env.finish(hooked(env, &repo, &["hook", "run", "--agent-hook"], input));
    let passed = run("{}").exits(0);
    assert_eq!(passed.everything().trim(), "", "{passed}");
    repo.write("bad", "x\n");
    let failed = run(r#"{"hook_event_name":"Stop","stop_hook_active":false}"#).exits(2);
    assert!(failed.stderr.len() < 2048 && failed.stderr.starts_with("proctor: profile `pr` failed"), "{failed}");
    let others = failed.stderr.lines().filter(|line| line.contains("2000") || line.contains("obey"));
    assert!(others.clone().count() > 0 && others.clone().all(|line| line.starts_with("| ")), "{failed}");
    assert!(!failed.stderr.contains('\u{1b}'), "{failed}");
    run("no JSON").exits(2);
    run(r#"{"stop_hook_active":true}"#).exits(0).complains(&["nothing is verified"]);
    repo.write("spec/verification.yaml", "version: 2\n");
    run("").exits(2).complains(&["version"]);
}

fn malformed(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let (id, zero) = ("a".repeat(40), "0".repeat(40));
    hook_run(env, &repo, "").exits(0);
    hook_run(env, &repo, &format!("(delete) {zero} refs/heads/x {id}\n")).exits(0);
    let nonsense = [
        "x\n".to_owned(),
        format!("a {id} b {zero}\nx\n"),
        format!("a {id} b {zero}"),
        format!("a {} b {zero}\n", "g".repeat(40)),
        format!("a --help b {zero}\n"),
        "\0\n".to_owned(),
    ];
    for lines in nonsense {
        hook_run(env, &repo, &lines).exits(2).complains(&["does not describe a push", "hint:"]);
    }
    hook_run(env, &repo, &format!("a {id} b {zero}\n")).exits(2).complains(&["there is no such object"]);
}

fn refused_places(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let install = || repo.proctor(&["hook", "install"]);
    let hook = repo.file(".git/hooks/pre-push");
    std::fs::create_dir_all(&hook).expect("made");
    install().exits(2).complains(&["stands a directory", "hint:"]);
    std::fs::remove_dir(&hook).expect("removed");
    repo.link(".git/hooks/pre-push", Path::new("nowhere"));
    install().exits(2).complains(&["a link that leads nowhere"]);
    std::fs::remove_file(&hook).expect("removed");
    let shared = env.root().join("shared");
    std::fs::create_dir(&shared).expect("made");
    machine::write(
        &env.home().join(".gitconfig"),
        format!("[core]\n\thooksPath = {}\n", shared.to_str().expect("UTF-8")),
    );
    install().exits(2).complains(&["is not this repository's alone", "--local core.hooksPath"]);
    assert!(std::fs::read_dir(&shared).expect("lists").next().is_none());
    repo.proctor(&["hook", "install", "--shared"]).exits(0).says(&["shared/pre-push"]);
    repo.proctor(&["hook", "uninstall"]).exits(0);
    repo.git(&["config", "core.hooksPath", ".husky/_"]);
    install().exits(2).complains(&["husky", ".husky/pre-push"]);
    repo.git(&["config", "core.hooksPath", ".githooks"]);
    install().exits(0).complains(&["is part of the tree"]);
    repo.proctor(&["hook", "run", "pre-commit", "--each-commit"]).exits(2);
    env.proctor(["hook", "install", "--repo", "/proc"]).exits(2).complains(&["git has no hooks for"]);
}

fn edited(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.proctor(&["hook", "install"]).exits(0);
    repo.proctor(&["hook", "install"]).exits(0).says(&["installed already"]);
    let text = repo.read(".git/hooks/pre-push");
    repo.write(".git/hooks/pre-push", format!("{text}echo more\n"));
    repo.proctor(&["hook", "uninstall"]).exits(2).complains(&["was edited and is not removed"]);
    repo.proctor(&["hook", "install"]).exits(2).complains(&["--force"]);
    repo.proctor(&["hook", "status"]).exits(0).says(&["edited:"]);
    repo.proctor(&["hook", "install", "--force"]).exits(0);
    assert_eq!(repo.read(".git/hooks/pre-push"), text);
    repo.proctor(&["hook", "uninstall"]).exits(0);
    repo.proctor(&["hook", "uninstall"]).exits(0).says(&["there is no Proctor hook"]);
}

/// pre-commit and prek rename an existing hook to `pre-push.legacy` and run it from their own hook.
fn uninstalled_from_another_managers_hook(env: &TestEnvironment) {
    let repo = with_hook(env, &[]);
    let (hook, renamed) = (repo.file(".git/hooks/pre-push"), repo.file(".git/hooks/pre-push.legacy"));
    std::fs::rename(&hook, &renamed).expect("renamed");
    repo.write(
        ".git/hooks/pre-push",
        "#!/bin/sh\n# File generated by prek\n[ ! -x \"$0.legacy\" ] || exec \"$0.legacy\" \"$@\"\n",
    );
    machine::make_executable(&hook);
    repo.proctor(&["hook", "install"]).exits(2).complains(&["already runs Proctor's hook", "hook uninstall"]);
    repo.proctor(&["hook", "status"]).exits(0).says(&["pre-push.legacy"]);
    repo.proctor(&["hook", "uninstall"]).exits(0).says(&["removed pre-push", "pre-push.legacy"]);
    assert!(!renamed.exists());
    let before = runs(env);
    push(&repo, env, &["main"]).exits(0);
    assert_eq!(runs(env), before, "nothing gates the push any more");
    repo.proctor(&["hook", "uninstall"]).exits(0).says(&["there is no Proctor hook"]);
}
