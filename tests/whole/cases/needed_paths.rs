//! Tests `needs_paths`: directories that no commit contains, from the worktree or prepared by a command.

use std::path::{Path, PathBuf};

use proctor_core::api::{RunSubmission, SubmissionOutcome};
use proctor_core::decision::verdict::Verdict;
use serde_json::{Value, json};

use super::missing_controls::wrapper_without;
use super::prior_results::with_reuse;
use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::in_process_service::{InProcessService, run_submission};
use crate::machine;
use crate::needs::{CaseDefinition, NEEDS_PYTHON, Needs, case};
use crate::test_spec::{TestSkill, TestSpec, TestStep};

pub(super) const CASES: &[CaseDefinition] = &[
    case("needed_paths::commit_sees_the_worktrees_path_and_cannot_change_it", commit_sees_path_of_worktree),
    case("", commit_sees_path_of_worktree).unprivileged("needed_paths::commit_sees_the_worktrees_path_as_a_user"),
    case("needed_paths::root_verifies_a_commit_with_a_path_of_another_user", root_shows_path_of_other_user)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("needed_paths::other_lock_file_makes_the_skill_inconclusive", other_lock_file_is_inconclusive).daemon_sample(),
    case("needed_paths::path_that_is_missing_or_a_link_is_inconclusive", missing_path_is_inconclusive),
    case("needed_paths::path_that_changes_is_copied_again", changed_path_is_copied_again),
    case("needed_paths::path_is_prepared_once_for_each_key", path_is_prepared_once),
    case("", path_is_prepared_once).unprivileged("needed_paths::path_is_prepared_once_as_a_user"),
    case("needed_paths::prepared_path_of_a_branch_does_not_reach_another", prepared_path_stays_in_its_branch),
    case("needed_paths::failed_preparation_is_inconclusive", failed_preparation_is_inconclusive),
    case("needed_paths::preparation_with_network_needs_tier_2", network_needs_tier_two),
    case("needed_paths::strict_step_that_changes_a_path_does_not_pass", strict_step_must_not_change_path),
    case("needed_paths::paths_are_copied_without_overlays", paths_without_overlays).needs(NEEDS_PYTHON),
    case("", paths_without_namespaces)
        .needs(NEEDS_PYTHON)
        .unprivileged("needed_paths::paths_are_copied_for_a_user_without_namespaces"),
    case(
        "needed_paths::verified_commit_is_not_run_again_while_its_paths_are_the_same",
        verified_commit_is_not_run_again,
    ),
    case("needed_paths::gc_removes_prepared_paths", gc_removes_prepared_paths),
];

const SKILL: &str = "verify.it";

/// Returns a spec with one skill that runs `script` and needs `paths`.
fn spec(paths: &str, script: &str) -> TestSpec {
    TestSpec::new([TestSkill::new(SKILL, [TestStep::sh("it", script)]).with_field(&format!("needs_paths: [{paths}]"))])
}

/// Creates a repository that ignores `deps`, with a committed lock file and the spec.
fn repo_with_deps<'e>(env: &'e TestEnvironment, spec: &TestSpec) -> Repo<'e> {
    let repo = env.repo(spec);
    repo.write(".gitignore", "deps\n");
    repo.write("uv.lock", "1\n");
    repo.commit();
    repo.write("deps/bin/tool", "#!/bin/sh\necho tool 1\n");
    machine::make_executable(&repo.file("deps/bin/tool"));
    env.give_to_actor(&repo.file("deps"));
    repo
}

fn stdout_of_step(repo: &Repo<'_>) -> String {
    repo.step("it")["stdout_preview"].as_str().expect("text").to_owned()
}

fn inputs(repo: &Repo<'_>) -> Value {
    repo.last_run()["unverified_inputs"]["entries"].clone()
}

/// Returns the stored paths.
fn stored_paths(env: &TestEnvironment) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(env.state_dir().join("skill-caches/prepared"));
    listed.into_iter().flatten().map(|entry| entry.expect("an entry").path()).collect()
}

/// Runs the tool, writes next to it, and fails if an earlier run has left something there.
const USE_AND_WRITE: &str = "deps/bin/tool && test ! -e deps/left && echo x > deps/left && rm deps/bin/tool";

fn commit_sees_path_of_worktree(env: &TestEnvironment) {
    let repo = repo_with_deps(env, &spec("deps", USE_AND_WRITE));
    for _ in 0..2 {
        repo.run_with(&["--rev", "HEAD"]).exits(0);
        assert_eq!(stdout_of_step(&repo), "tool 1\n");
    }
    assert!(repo.file("deps/bin/tool").exists() && !repo.file("deps/left").exists());
    assert_eq!(stored_paths(env).len(), 1);
    let recorded = inputs(&repo);
    assert_eq!(
        (&recorded[0]["path"], &recorded[0]["shown"], &recorded[0]["files"]),
        (&json!("deps"), &json!("mounted"), &json!(1))
    );
    assert!(recorded[0]["sha256"].is_string() && recorded[0]["prepared"].is_null(), "{recorded}");
    let gate = repo.proctor(&["gate", "--changeset", CHANGESET, "--profile", "pr", "--strict-inputs"]).exits(1);
    assert!(gate.all_output().contains("P0334"), "{gate}");
    // In a run of the worktree, the path is among the ignored files.
    repo.run().exits(0);
    assert_eq!(inputs(&repo)[0]["shown"], "copied");
}

fn root_shows_path_of_other_user(env: &TestEnvironment) {
    let repo = repo_with_deps(env, &spec("deps", USE_AND_WRITE));
    machine::change_owner(repo.path(), machine::UNPRIVILEGED_ID);
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    // A file that only root can read is not shown to another user.
    machine::write(&repo.file("deps/secret"), "x");
    std::fs::set_permissions(repo.file("deps/secret"), std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("sets");
    let run = repo.run_with(&["--rev", "HEAD"]).exits(5);
    assert!(run.all_output().contains("cannot read `secret`"), "{run}");
}

fn other_lock_file_is_inconclusive(env: &TestEnvironment) {
    let other = TestSkill::new("verify.other", [TestStep::sh("other", "true")]);
    let skill = TestSkill::new(SKILL, [TestStep::sh("it", "true")]).with_field("needs_paths: [deps]");
    let repo = repo_with_deps(env, &TestSpec::new([skill, other]));
    repo.write("uv.lock", "2\n");
    let run = repo.run_with(&["--rev", "HEAD"]).exits(5);
    assert!(
        run.all_output()
            .contains("`deps` is not part of a commit, and `uv.lock` differs from the file in the worktree"),
        "{run}"
    );
    assert_eq!(repo.last_run()["outcome"], "inconclusive");
    assert_eq!(repo.step("it")["outcome"], "skipped");
    assert_eq!(repo.evidence("verify.other")["summary"]["outcome"], "passed");
    // A lock file that the commit lacks counts as different too.
    repo.write("uv.lock", "1\n");
    repo.write("poetry.lock", "1\n");
    let run = repo.run_with(&["--rev", "HEAD"]).exits(5);
    assert!(run.all_output().contains("`poetry.lock` differs from the file in the worktree"), "{run}");
    repo.commit();
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

fn missing_path_is_inconclusive(env: &TestEnvironment) {
    let repo = repo_with_deps(env, &spec("deps", "ls deps"));
    let reason_of = |arguments: &[&str]| repo.run_with(arguments).exits(5).all_output();
    let deps = repo.file("deps");
    std::fs::rename(&deps, repo.file("deps.away")).expect("renames");
    assert!(
        reason_of(&["--rev", "HEAD"]).contains("`deps` is not part of a commit, and the worktree does not have it")
    );
    assert!(reason_of(&[]).contains("`deps` is not in the worktree"));
    for target in ["/etc", "src"] {
        repo.link("deps", Path::new(target));
        assert!(reason_of(&["--rev", "HEAD"]).contains("in the worktree it is a symbolic link"), "{target}");
        std::fs::remove_file(&deps).expect("removes");
    }
    repo.write("deps", "a file");
    assert!(reason_of(&["--rev", "HEAD"]).contains("in the worktree it is not a directory"));
    // A path with a part of the tree cannot be mounted.
    repo.write("spec/verification.yaml", spec("src", "true").to_yaml(env.marker()));
    repo.commit();
    assert!(reason_of(&["--rev", "HEAD"]).contains("`src` of `needs_paths` would hide `src/lib.rs`"));
    // Without a lock file, nothing determines the content.
    std::fs::remove_file(repo.file("uv.lock")).expect("removes");
    std::fs::remove_file(&deps).expect("removes");
    std::fs::rename(repo.file("deps.away"), &deps).expect("renames");
    repo.write("spec/verification.yaml", spec("deps", "true").to_yaml(env.marker()));
    repo.commit();
    assert!(reason_of(&["--rev", "HEAD"]).contains("there is no lock file next to it"));
    repo.write("spec/verification.yaml", spec("{ path: deps, key: [README.md] }", "true").to_yaml(env.marker()));
    repo.commit();
    repo.run_with(&["--rev", "HEAD"]).exits(0);
}

fn changed_path_is_copied_again(env: &TestEnvironment) {
    let repo = repo_with_deps(env, &spec("deps", "cat deps/version"));
    for version in ["one\n", "two\n", "six\n"] {
        repo.write("deps/version", version);
        repo.run_with(&["--rev", "HEAD"]).exits(0);
        assert_eq!(stdout_of_step(&repo), version);
        assert_eq!(stored_paths(env).len(), 1, "an older copy was kept");
    }
}

/// Shows the random number with which the command marks its result, and tries to change it.
const SHOW_ID: &str = "cat deps/id; echo evil > deps/id; touch deps/new";
/// A command that marks its result with a random number, and writes beside it.
const PREPARE: &str = r#"{ path: deps, prepare: { cmd: ["sh", "-c", "mkdir -p deps/bin; echo x > beside; od -An -N8 -tx8 /dev/urandom > deps/id"] } }"#;

fn path_is_prepared_once(env: &TestEnvironment) {
    let repo = repo_with_deps(env, &spec(PREPARE, SHOW_ID));
    let run = || {
        repo.run_with(&["--rev", "HEAD"]).exits(0);
        stdout_of_step(&repo)
    };
    let first = run();
    assert_eq!(run(), first, "it was prepared twice");
    let recorded = inputs(&repo)[0].clone();
    assert_eq!(
        (&recorded["path"], &recorded["shown"], &recorded["prepared"]["network"]),
        (&json!("deps"), &json!("mounted"), &json!("deny"))
    );
    assert_eq!(recorded["prepared"]["scope"], "commits-of-branch:main");
    assert!(recorded["prepared"]["cmd"].as_str().is_some_and(|cmd| cmd.contains("/dev/urandom")), "{recorded}");
    assert!(!repo.file("beside").exists());
    // A commit with the same key uses the same result; another key needs another one.
    repo.write("README.md", "other\n");
    repo.commit();
    assert_eq!(run(), first);
    repo.write("uv.lock", "2\n");
    repo.commit();
    let second = run();
    assert_ne!(second, first);
    assert_eq!(stored_paths(env).len(), 2);
    // A damaged result is not used.
    for stored in stored_paths(env) {
        machine::write(&stored.join("content/id"), "damaged");
    }
    let third = run();
    assert!(third != second && !third.contains("damaged"), "{third}");
    // A run of the worktree prepares a separate result, because the command can see ignored files.
    repo.run().exits(0);
    assert_ne!(stdout_of_step(&repo), third);
}

fn prepared_path_stays_in_its_branch(env: &TestEnvironment) {
    let repo = repo_with_deps(env, &spec(PREPARE, SHOW_ID));
    let run = |branch: &str| {
        repo.run_with(&["--rev", branch]).exits(0);
        stdout_of_step(&repo)
    };
    repo.git(&["checkout", "--quiet", "-b", "topic"]);
    repo.write("README.md", "topic\n");
    repo.commit();
    let of_topic = run("topic");
    let of_main = run("main");
    assert_ne!(of_topic, of_main, "a branch wrote what the default branch uses");
    assert_eq!(run("topic"), of_topic);
    repo.git(&["checkout", "--quiet", "-b", "new", "main"]);
    repo.write("README.md", "new\n");
    repo.commit();
    assert_eq!(run("new"), of_main, "a branch uses the result of the default branch");
}

fn failed_preparation_is_inconclusive(env: &TestEnvironment) {
    let fails = |script: &str| format!(r#"{{ path: deps, prepare: {{ cmd: ["sh", "-c", "{script}"] }} }}"#);
    let repo = repo_with_deps(env, &spec(&fails("mkdir deps/half; echo first; echo why >&2; exit 3"), "true"));
    let run = repo.run_with(&["--rev", "HEAD"]).exits(5);
    assert!(run.all_output().contains("which prepares `deps`, exited with code 3"), "{run}");
    assert!(run.all_output().contains("why"), "{run}");
    assert_eq!((repo.step("it")["outcome"].as_str(), stored_paths(env).len()), (Some("skipped"), 0));
    for (script, reason) in
        [("true", "wrote nothing to `deps`"), ("rm -r deps/* 2>/dev/null; kill -9 $$", "was ended by signal 9")]
    {
        repo.write("spec/verification.yaml", spec(&fails(script), "true").to_yaml(env.marker()));
        repo.commit();
        let run = repo.run_with(&["--rev", "HEAD"]).exits(5);
        assert!(run.all_output().contains(reason), "{script}: {run}");
        assert_eq!(stored_paths(env).len(), 0, "{script}");
    }
}

fn network_needs_tier_two(env: &TestEnvironment) {
    let prepare = r#"{ path: deps, prepare: { cmd: ["sh", "-c", "echo x > deps/id"], network: allow } }"#;
    let repo = repo_with_deps(env, &spec(prepare, "cat deps/id"));
    let refused = repo.run_with(&["--rev", "HEAD", "--max-tier", "1"]).exits(5);
    assert!(refused.all_output().contains("--max-tier 2"), "{refused}");
    assert_eq!(stored_paths(env).len(), 0, "the command ran");
    for _ in 0..2 {
        repo.run_with(&["--rev", "HEAD", "--max-tier", "2"]).exits(0);
        let evidence = repo.evidence(SKILL);
        assert_eq!(evidence["tier"], 2);
        let reasons = evidence["tier_reasons"].as_array().expect("a list");
        assert!(reasons.contains(&json!("network_allowed")), "{evidence:#}");
    }
    assert_eq!(inputs(&repo)[0]["prepared"]["network"], "allow");
}

fn strict_step_must_not_change_path(env: &TestEnvironment) {
    let strict = |scripts: &[&str]| {
        let step =
            |(at, script): (usize, &&str)| TestStep::sh(&format!("it{at}"), script).with_field("read_only: strict");
        let steps = scripts.iter().enumerate().map(step);
        TestSpec::new([TestSkill::new(SKILL, steps).with_field("needs_paths: [deps]")])
    };
    let repo = repo_with_deps(env, &strict(&["deps/bin/tool"]));
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    let undone = ["echo x > deps/new", "cat deps/new", "rm deps/new"];
    for script in [&["echo x > deps/new"][..], &["chmod 000 deps"], &undone] {
        repo.write("spec/verification.yaml", strict(script).to_yaml(env.marker()));
        repo.commit();
        let run = repo.run_with(&["--rev", "HEAD"]).exits(5);
        assert!(run.all_output().contains("changed `deps`, which `read_only: strict` protects"), "{script:?}\n{run}");
    }
}

fn paths_without_overlays(env: &TestEnvironment) {
    assert_paths_are_shown(env, "fsconfig:1@0=EINVAL");
}

fn paths_without_namespaces(env: &TestEnvironment) {
    assert_paths_are_shown(env, "unshare=EPERM");
}

fn assert_paths_are_shown(env: &TestEnvironment, lack: &str) {
    for paths in
        ["deps", r#"{ path: deps, prepare: { cmd: ["sh", "-c", "mkdir deps/bin; cp /bin/true deps/bin/tool"] } }"#]
    {
        let repo = match paths {
            "deps" => repo_with_deps(env, &spec(paths, USE_AND_WRITE)),
            _ => {
                let repo = Repo::at(env, env.root().join("repo"));
                repo.write("spec/verification.yaml", spec(paths, USE_AND_WRITE).to_yaml(env.marker()));
                repo.commit();
                repo
            }
        };
        for _ in 0..2 {
            let words = ["run", "--profile", "pr", "--changeset", CHANGESET, "--sandbox=best-effort", "--rev", "HEAD"];
            env.finish(env.start_through(repo.path(), &wrapper_without(&[lack]), &words)).exits(0);
        }
    }
}

fn verified_commit_is_not_run_again(env: &TestEnvironment) {
    for paths in ["deps", PREPARE] {
        let repo = env.repo_at(if paths == "deps" { "one" } else { "two" }, &spec(paths, "ls deps"));
        repo.write(".gitignore", "deps\n");
        repo.write("uv.lock", "1\n");
        repo.write("deps/a", "a\n");
        repo.git(&["add", "--all"]);
        repo.git(&["commit", "--quiet", "--message=all"]);
        let served = InProcessService::open(env);
        let of_commit = || with_reuse(RunSubmission { rev: Some("HEAD".into()), ..run_submission(&repo) });
        let runs_again = |why: &str| {
            let submitted = served.submit(of_commit());
            assert_eq!(submitted.how, SubmissionOutcome::Queued, "{paths}: {why}");
            assert_eq!(served.wait_for_end(&submitted.run.id).verdict, Some(Verdict::Passed), "{paths}: {why}");
        };
        runs_again("the first");
        assert_eq!(served.submit(of_commit()).how, SubmissionOutcome::Verified, "{paths}");
        if paths == "deps" {
            repo.write("deps/a", "b\n");
            runs_again("the path has changed");
        } else {
            let state = env.state_dir().display().to_string();
            env.proctor(["gc", "--all", "--state-dir", &state]).exits(0);
            runs_again("the prepared path was removed");
        }
    }
}

fn gc_removes_prepared_paths(env: &TestEnvironment) {
    let repo = repo_with_deps(env, &spec(PREPARE, SHOW_ID));
    repo.run_with(&["--rev", "HEAD"]).exits(0);
    let state = env.state_dir().display().to_string();
    env.proctor(["gc", "--state-dir", &state]).exits(0);
    assert_eq!(stored_paths(env).len(), 1);
    std::fs::create_dir_all(env.state_dir().join("skill-caches/prepared/removed-1/content")).expect("makes");
    env.proctor(["gc", "--all", "--state-dir", &state]).exits(0);
    assert_eq!(stored_paths(env).len(), 0);
}
