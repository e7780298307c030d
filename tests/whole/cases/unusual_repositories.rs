//! Tests unusual and hostile repositories.

use std::os::unix::fs::PermissionsExt as _;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{CaseDefinition, Needs, case, dry_case};
use crate::process::FinishedProcess;
use crate::test_spec::TestSpec;

pub(super) const CASES: &[CaseDefinition] = &[
    case("unusual_repositories::configured_programs_do_not_run_on_the_host", configured_programs_do_not_run),
    case("unusual_repositories::a_config_that_includes_a_fifo_does_not_hang", config_including_fifo_does_not_hang),
    case("unusual_repositories::ci_checkout_with_config_includes_is_verified", ci_checkout_is_verified),
    case(
        "unusual_repositories::files_unreadable_for_steps_are_refused_for_root",
        files_unreadable_for_steps_are_refused,
    )
    .needs(&[Needs::Sandbox, Needs::Root]),
    case("unusual_repositories::permanent_error_has_no_retry_after", permanent_error_has_no_retry_after),
    case("unusual_repositories::a_config_cannot_point_at_another_worktree", config_cannot_select_other_worktree),
    case("unusual_repositories::repository_without_a_commit_is_protected", repository_without_commit_is_protected),
    case("unusual_repositories::unreadable_object_format_is_refused_with_a_hint", unreadable_object_format_is_refused),
    case("unusual_repositories::a_nested_repository_does_not_hide_drift", nested_repository_hides_no_drift),
    case("unusual_repositories::every_file_kind_is_supported", every_file_kind_is_supported),
    dry_case("unusual_repositories::a_directory_without_git_is_refused", directory_without_git_is_refused),
];

/// Asserts that a run neither passes nor fails, and that the message contains a hint.
#[track_caller]
fn assert_refused_with_hint(run: &FinishedProcess) {
    assert!(matches!(run.code, Some(2 | 5)), "{run}");
    assert!(run.all_output().contains("error[") && run.all_output().contains("hint:"), "{run}");
}

fn configured_programs_do_not_run(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("git status --porcelain >/dev/null; true"));
    let witness = env.root().join("sibling/witness");
    let program = env.root().join("evil.sh");
    machine::write(&program, format!("#!/bin/sh\necho ran >> '{}'\ncat\n", witness.display()));
    machine::make_dir_public(&program);
    let program = program.to_str().expect("UTF-8");
    for (key, value) in [
        ("core.fsmonitor", program),
        ("filter.evil.clean", program),
        ("filter.evil.smudge", program),
        ("filter.evil.process", program),
        ("diff.evil.textconv", program),
        ("diff.external", program),
        ("core.pager", program),
        ("core.sshCommand", program),
        ("gpg.program", program),
    ] {
        repo.git(&["config", key, value]);
    }
    let more = format!("[core]\n\tfsmonitor = {program}\n\thooksPath = ..\n[filter \"evil\"]\n\tclean = {program}\n");
    repo.write(".git/more", more);
    repo.git(&["config", "include.path", "more"]);
    repo.write(".git/hooks/post-checkout", "#!/bin/sh\nexec sh ../evil.sh\n");
    repo.write(".gitattributes", "*.md filter=evil diff=evil\n");
    repo.write("README.md", "changed\n");
    let run = repo.run();
    assert!(matches!(run.code, Some(0 | 2 | 5)), "{run}");
    assert!(!witness.exists(), "a program of the repository ran on the host");
}

fn config_including_fifo_does_not_hang(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    let fifo = env.root().join("fifo");
    let mut command = machine::command("mkfifo");
    command.arg(&fifo);
    assert_eq!(crate::process::RunningProcess::start(command).wait().code, Some(0));
    // Write the file directly, because git itself would hang at its next start.
    let config = repo.read(".git/config");
    repo.write(".git/config", format!("{config}[include]\n\tpath = {}\n", fifo.display()));
    let run = repo.run();
    assert!(matches!(run.code, Some(0 | 2 | 5)), "{run}");
}

/// The repository is set up as `actions/checkout` does it since version 6.
fn ci_checkout_is_verified(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("git status --porcelain"));
    let credentials = env.root().join("git-credentials-7.config");
    machine::write(&credentials, "[http \"https://github.com/\"]\n\textraheader = AUTHORIZATION: basic eA==\n");
    machine::make_dir_public(&credentials);
    let git_dir = repo.file(".git");
    for (at, path) in [
        (git_dir.display().to_string(), credentials.display().to_string()),
        (format!("{}/worktrees/*", git_dir.display()), credentials.display().to_string()),
        ("/github/workspace/.git".to_owned(), "/github/runner_temp/git-credentials-7.config".to_owned()),
    ] {
        repo.git(&["config", "--local", &format!("includeIf.gitdir:{at}.path"), &path]);
    }
    repo.run().exits(0);
    repo.run_with_only(&["--profile", "pr", "--rev", "HEAD"]).exits(0);
    repo.proctor(&["gate", "--profile", "pr", "--changeset", CHANGESET]).exits(0);
}

fn files_unreadable_for_steps_are_refused(env: &TestEnvironment) {
    let repo = env
        .repo(&TestSpec::from_script("for file in src/*; do test -r $file && grep -q ^no $file && exit 1; done; true"));
    repo.write("src/closed", "no\n");
    repo.commit();
    let give = |owner: &str| {
        let mut chown = machine::command("chown");
        chown.args(["-R", owner]).arg(repo.path());
        crate::process::RunningProcess::start(chown).wait().exits(0);
    };
    let chmod = |path: &str, mode: u32| {
        std::fs::set_permissions(repo.file(path), std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    for owner in ["0:0", "1001:1001"] {
        give(owner);
        for (path, mode) in [("src/closed", 0o644), ("src", 0o755)] {
            chmod(path, 0);
            let run = repo.run_with_only(&["--profile", "pr"]);
            chmod(path, mode);
            assert_eq!(run.code, Some(5), "{owner} {path}\n{run}");
            assert!(run.all_output().contains("Permission denied"), "{owner} {path}\n{run}");
        }
        repo.run_with_only(&["--profile", "pr"]).exits(1);
    }
    give("0:0");
}

fn permanent_error_has_no_retry_after(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    repo.git(&["config", "core.worktree", "/etc"]);
    let daemon = env.start_ready_daemon();
    let request = super::http::run_request(repo.path(), &serde_json::json!({ "rev": "HEAD" }));
    let answer = daemon.request("POST", "/v1/runs", Some(&request));
    assert_eq!(answer.status, 422, "{answer:?}");
    assert!(!answer.header_text.to_ascii_lowercase().contains("retry-after"), "{answer:?}");
    assert!(answer.parse_json_body()["hint"].is_string(), "{answer:?}");
}

fn config_cannot_select_other_worktree(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("cat ../sibling/secret.txt && exit 9; cat README.md"));
    let sibling = env.root().join("sibling");
    repo.git(&["config", "core.worktree", sibling.to_str().expect("UTF-8")]);
    let before = machine::walk(&sibling);
    let run = repo.run();
    assert!(matches!(run.code, Some(0 | 2 | 5)), "{run}");
    assert!(!run.all_output().contains("a secret beside"), "{run}");
    assert_eq!(machine::walk(&sibling), before);
}

/// Without a commit all files are untracked, and protected like new files.
fn repository_without_commit_is_protected(env: &TestEnvironment) {
    let made = env.repo(&TestSpec::from_script("echo x >> README.md"));
    std::fs::remove_dir_all(made.file(".git")).expect("it was there");
    made.git(&["init", "--quiet", "--initial-branch=main"]);
    made.run().exits(3);
}

fn unreadable_object_format_is_refused(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script("true"));
    std::fs::remove_dir_all(repo.file(".git")).expect("it was there");
    repo.git(&["init", "--quiet", "--object-format=sha256"]);
    repo.commit();
    let run = repo.run();
    if run.code != Some(0) {
        assert_refused_with_hint(&run);
        assert!(run.all_output().contains("sha256"), "{run}");
    }
}

fn nested_repository_hides_no_drift(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(
        "echo x >> src/lib.rs; mkdir -p src/.git/refs src/.git/objects; echo 'ref: refs/heads/m' > src/.git/HEAD",
    ));
    repo.run().exits(3).prints(&["src/lib.rs"]);
}

fn every_file_kind_is_supported(env: &TestEnvironment) {
    let repo = env.repo(&TestSpec::from_script(
        "[ -x run.sh ] && [ -L link ] && [ -L dangling ] && [ ! -s empty ] && cat 'a b' deep/er/file",
    ));
    for (path, text) in
        [("run.sh", "#!/bin/sh\n"), ("empty", ""), ("a b", "x\n"), ("deep/er/file", "y\n"), ("-dash", "z\n")]
    {
        repo.write(path, text);
    }
    machine::make_dir_public(&repo.file("run.sh"));
    let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"odd \xff\n\x1bname");
    machine::write(&repo.path().join::<&std::ffi::OsStr>(odd), "odd\n");
    repo.link("link", std::path::Path::new("README.md"));
    repo.link("dangling", std::path::Path::new("/no/such/file"));
    repo.commit();
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "x\ny\n");
}

fn directory_without_git_is_refused(env: &TestEnvironment) {
    let repo: Repo<'_> = env.repo(&TestSpec::from_script("true"));
    std::fs::remove_dir_all(repo.file(".git")).expect("it was there");
    assert_refused_with_hint(&repo.run());
    assert!(!repo.file("changes").join(CHANGESET).join("verify").exists());
}
