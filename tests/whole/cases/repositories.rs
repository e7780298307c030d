//! Tests unusual and hostile repositories.

use std::os::unix::fs::PermissionsExt as _;

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, Needs, case, dry_case};
use crate::process::Finished;
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    case("repositories::programs_that_a_config_names_do_not_run_on_the_host", config_programs),
    case("repositories::a_config_that_includes_a_fifo_does_not_hang", config_fifo),
    case("repositories::a_config_with_the_includes_of_a_ci_checkout_is_verified", ci_checkout),
    case("repositories::what_steps_cannot_read_is_refused_under_root_too", unreadable)
        .needs(&[Needs::Sandbox, Needs::Root]),
    case("repositories::a_permanent_property_of_a_repository_is_not_to_be_retried", permanent),
    case("repositories::a_config_cannot_point_at_another_worktree", foreign_worktree),
    case("repositories::without_a_commit", unborn),
    case("repositories::a_format_that_cannot_be_read_is_refused_with_a_hint", sha256_format),
    case("repositories::a_nested_repository_does_not_hide_drift", nested),
    case("repositories::a_case_of_every_file_kind", file_kinds),
    dry_case("repositories::a_directory_without_git_is_refused", no_git),
];

/// Asserts that a run neither passes nor fails, and that the message contains a hint.
#[track_caller]
fn demand_refused(run: &Finished) {
    assert!(matches!(run.code, Some(2 | 5)), "{run}");
    assert!(run.everything().contains("error[") && run.everything().contains("hint:"), "{run}");
}

fn config_programs(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("git status --porcelain >/dev/null; true"));
    let witness = env.root().join("sibling/witness");
    let program = env.root().join("evil.sh");
    machine::write(&program, format!("#!/bin/sh\necho ran >> '{}'\ncat\n", witness.display()));
    machine::open_to_all(&program);
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

fn config_fifo(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    let fifo = env.root().join("fifo");
    let mut command = machine::command("mkfifo");
    command.arg(&fifo);
    assert_eq!(crate::process::Running::start(command).wait().code, Some(0));
    // Write the file directly, because git itself would hang at its next start.
    let config = repo.read(".git/config");
    repo.write(".git/config", format!("{config}[include]\n\tpath = {}\n", fifo.display()));
    let run = repo.run();
    assert!(matches!(run.code, Some(0 | 2 | 5)), "{run}");
}

/// The repository is set up as `actions/checkout` does it since version 6.
fn ci_checkout(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("git status --porcelain"));
    let credentials = env.root().join("git-credentials-7.config");
    machine::write(&credentials, "[http \"https://github.com/\"]\n\textraheader = AUTHORIZATION: basic eA==\n");
    machine::open_to_all(&credentials);
    let git_dir = repo.file(".git");
    for (at, path) in [
        (git_dir.display().to_string(), credentials.display().to_string()),
        (format!("{}/worktrees/*", git_dir.display()), credentials.display().to_string()),
        ("/github/workspace/.git".to_owned(), "/github/runner_temp/git-credentials-7.config".to_owned()),
    ] {
        repo.git(&["config", "--local", &format!("includeIf.gitdir:{at}.path"), &path]);
    }
    repo.run().exits(0);
    repo.run_bare(&["--profile", "pr", "--rev", "HEAD"]).exits(0);
    repo.proctor(&["gate", "--profile", "pr", "--changeset", CHANGESET]).exits(0);
}

fn unreadable(env: &TestEnvironment) {
    let repo =
        env.repo(&Spec::of_script("for file in src/*; do test -r $file && grep -q ^no $file && exit 1; done; true"));
    repo.write("src/closed", "no\n");
    repo.commit();
    let give = |owner: &str| {
        let mut chown = machine::command("chown");
        chown.args(["-R", owner]).arg(repo.path());
        crate::process::Running::start(chown).wait().exits(0);
    };
    let chmod = |path: &str, mode: u32| {
        std::fs::set_permissions(repo.file(path), std::fs::Permissions::from_mode(mode)).expect("a mode");
    };
    for owner in ["0:0", "1001:1001"] {
        give(owner);
        for (path, mode) in [("src/closed", 0o644), ("src", 0o755)] {
            chmod(path, 0);
            let run = repo.run_bare(&["--profile", "pr"]);
            chmod(path, mode);
            assert_eq!(run.code, Some(5), "{owner} {path}\n{run}");
            assert!(run.everything().contains("Permission denied"), "{owner} {path}\n{run}");
        }
        repo.run_bare(&["--profile", "pr"]).exits(1);
    }
    give("0:0");
}

fn permanent(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    repo.git(&["config", "core.worktree", "/etc"]);
    let daemon = env.daemon();
    let asked = super::http::submission(repo.path(), &serde_json::json!({ "rev": "HEAD" }));
    let answer = daemon.ask("POST", "/v1/runs", Some(&asked));
    assert_eq!(answer.code, 422, "{answer:?}");
    assert!(!answer.head.to_ascii_lowercase().contains("retry-after"), "{answer:?}");
    assert!(answer.json()["hint"].is_string(), "{answer:?}");
}

fn foreign_worktree(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("cat ../sibling/secret.txt && exit 9; cat README.md"));
    let sibling = env.root().join("sibling");
    repo.git(&["config", "core.worktree", sibling.to_str().expect("UTF-8")]);
    let before = machine::walk(&sibling);
    let run = repo.run();
    assert!(matches!(run.code, Some(0 | 2 | 5)), "{run}");
    assert!(!run.everything().contains("a secret beside"), "{run}");
    assert_eq!(machine::walk(&sibling), before);
}

/// Without a commit all files are untracked, and protected like new files.
fn unborn(env: &TestEnvironment) {
    let made = env.repo(&Spec::of_script("echo x >> README.md"));
    std::fs::remove_dir_all(made.file(".git")).expect("it was there");
    made.git(&["init", "--quiet", "--initial-branch=main"]);
    made.run().exits(3);
}

fn sha256_format(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script("true"));
    std::fs::remove_dir_all(repo.file(".git")).expect("it was there");
    repo.git(&["init", "--quiet", "--object-format=sha256"]);
    repo.commit();
    let run = repo.run();
    if run.code != Some(0) {
        demand_refused(&run);
        assert!(run.everything().contains("sha256"), "{run}");
    }
}

fn nested(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script(
        "echo x >> src/lib.rs; mkdir -p src/.git/refs src/.git/objects; echo 'ref: refs/heads/m' > src/.git/HEAD",
    ));
    repo.run().exits(3).says(&["src/lib.rs"]);
}

fn file_kinds(env: &TestEnvironment) {
    let repo = env.repo(&Spec::of_script(
        "[ -x run.sh ] && [ -L link ] && [ -L dangling ] && [ ! -s empty ] && cat 'a b' deep/er/file",
    ));
    for (path, text) in
        [("run.sh", "#!/bin/sh\n"), ("empty", ""), ("a b", "x\n"), ("deep/er/file", "y\n"), ("-dash", "z\n")]
    {
        repo.write(path, text);
    }
    machine::open_to_all(&repo.file("run.sh"));
    let odd = std::os::unix::ffi::OsStrExt::from_bytes(b"odd \xff\n\x1bname");
    machine::write(&repo.path().join::<&std::ffi::OsStr>(odd), "odd\n");
    repo.link("link", std::path::Path::new("README.md"));
    repo.link("dangling", std::path::Path::new("/no/such/file"));
    repo.commit();
    repo.run().exits(0);
    assert_eq!(repo.step("it")["stdout_preview"], "x\ny\n");
}

fn no_git(env: &TestEnvironment) {
    let repo: Repo<'_> = env.repo(&Spec::of_script("true"));
    std::fs::remove_dir_all(repo.file(".git")).expect("it was there");
    demand_refused(&repo.run());
    assert!(!repo.file("changes").join(CHANGESET).join("verify").exists());
}
