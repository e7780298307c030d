//! Repositories of unusual or hostile kinds.

use crate::environment::{CHANGESET, Repo, TestEnvironment};
use crate::machine;
use crate::needs::{Case, case, dry_case};
use crate::process::Finished;
use crate::spec::Spec;

pub(super) const CASES: &[Case] = &[
    case("repositories::programs_that_a_config_names_do_not_run_on_the_host", config_programs),
    case("repositories::a_config_that_includes_a_fifo_does_not_hang", config_fifo),
    case("repositories::a_config_cannot_point_at_another_worktree", foreign_worktree),
    case("repositories::without_a_commit", unborn),
    case("repositories::a_format_that_cannot_be_read_is_refused_with_a_hint", sha256_format),
    case("repositories::a_nested_repository_does_not_hide_drift", nested),
    case("repositories::a_case_of_every_file_kind", file_kinds),
    dry_case("repositories::a_directory_without_git_is_refused", no_git),
];

/// Demands an answer that neither passes nor fails, and that says what to do.
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
    // By hand: git itself would hang at its next start.
    let config = repo.read(".git/config");
    repo.write(".git/config", format!("{config}[include]\n\tpath = {}\n", fifo.display()));
    let run = repo.run();
    assert!(matches!(run.code, Some(0 | 2 | 5)), "{run}");
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

/// Everything is untracked then, and so protected as a new file is.
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
