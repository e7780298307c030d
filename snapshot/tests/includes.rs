//! Tests config files with includes.

use proctor_snapshot::Snapshot;

use crate::repository::{FixtureRepo, fifo, helper};
use crate::snapshot::assert_refused;

pub(crate) fn refuses_include_of_fifo() {
    let repo = FixtureRepo::small();
    fifo(&repo.dir.path().join("fifo"));
    repo.git(&["config", "include.path", "../../fifo.not-yet"]);
    let config = repo.read(".git/config").replace("fifo.not-yet", "fifo");
    repo.write(".git/config", config);
    assert_refused(&repo, &["fifo", "not a regular file"]);
}

/// The includes that `actions/checkout` writes since version 6, in a repository, a linked worktree and a submodule.
pub(crate) fn accepts_includes_of_ci_checkout() {
    let repo = FixtureRepo::small();
    let expected = repo.snapshot().id;
    let credentials = repo.dir.path().join("git-credentials-7.config");
    repo.write(
        "../git-credentials-7.config",
        "[http \"https://github.com/\"]\n\textraheader = AUTHORIZATION: basic eA==\n",
    );
    let git_dir = repo.top.join(".git").display().to_string();
    for (at, path) in [
        (git_dir.clone(), credentials.display().to_string()),
        (format!("{git_dir}/worktrees/*"), credentials.display().to_string()),
        ("/github/workspace/.git".to_owned(), "/github/runner_temp/git-credentials-7.config".to_owned()),
        ("/github/workspace/.git/worktrees/*".to_owned(), "/github/runner_temp/git-credentials-7.config".to_owned()),
    ] {
        repo.git(&["config", "--local", &format!("includeIf.gitdir:{at}.path"), &path]);
    }
    assert_eq!(repo.snapshot().id, expected);
    let linked = repo.dir.path().join("linked");
    repo.git(&["worktree", "add", "-q", "--detach", &linked.display().to_string()]);
    assert_eq!(Snapshot::take(&linked, &helper()).expect("a tree").id, expected);
}

/// Settings in an included file have the same effect as in the config itself.
pub(crate) fn applies_included_settings() {
    let repo = FixtureRepo::small();
    repo.write("a.extra", "x");
    repo.write(".git/rules", "*.extra\n");
    let excludes = repo.top.join(".git/rules").display().to_string();
    repo.write(".git/more", format!("[core]\n\texcludesFile = {excludes}\n\tfsmonitor = touch ../ran; false\n"));
    assert!(repo.snapshot().entries.contains(b"a.extra"));
    repo.git(&["config", "includeIf.gitdir:/elsewhere/.path", "more"]);
    assert!(repo.snapshot().entries.contains(b"a.extra"), "the includeIf condition does not match");
    repo.git(&["config", "includeIf.gitdir:.git.path", "more"]);
    assert!(!repo.snapshot().entries.contains(b"a.extra"));
    assert!(!repo.dir.path().join("ran").exists() && !repo.top.join("ran").exists());
    repo.write(".git/more", "[core]\n\tworktree = /etc\n");
    assert_refused(&repo, &["core.worktree", "/etc"]);
}
