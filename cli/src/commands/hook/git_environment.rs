//! Restores the environment from before git started the hook. Git sets variables that would make git commands in a
//! step use another repository, and puts its own directory first in `PATH`, so that other tools would be found than
//! in `proctor run`.

use std::path::{Path, PathBuf};

use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;

/// Prefix of git's variables.
const PREFIX: &str = "GIT_";
/// Name of the directory with git's own programs.
const EXEC_DIR: &str = "git-core";

/// Returns the caller without git's changes to the environment.
pub(super) fn without_git_changes(caller: &Caller) -> Caller {
    let mut before = caller.clone();
    let exec_path = caller.var("GIT_EXEC_PATH").map(str::to_owned);
    if let Some(path) = before.environment.env.get_mut("PATH") {
        *path = without_git_directories(path, exec_path.as_deref());
    }
    before.environment.env.retain(|name, _| !name.starts_with(PREFIX));
    before
}

/// Checks that `GIT_DIR`, which git sets in some cases, is `git_dir`, the directory of the repository that would be
/// verified.
///
/// # Errors
/// Git works in another repository.
pub(super) fn check_same_repository(caller: &Caller, git_dir: &Path, repo: &Path) -> Result<(), CliError> {
    let Some(named) = caller.var("GIT_DIR") else { return Ok(()) };
    let named: PathBuf = caller.cwd.join(named);
    if named.canonicalize().is_ok_and(|named| named == git_dir) {
        return Ok(());
    }
    Err(CliError::Usage {
        message: format!("git works in `{}`, which is not the git directory of `{}`", show(&named), show(repo)),
        hint: "run git in the worktree itself, without `GIT_DIR` and `--git-dir`".to_owned(),
    })
}

/// Removes git's own directory from the start of `PATH`. It occurs once for each nested git command.
fn without_git_directories(path: &str, exec_path: Option<&str>) -> String {
    let is_gits = |dir: &str| Some(dir) == exec_path || Path::new(dir).ends_with(EXEC_DIR);
    let mut rest = path;
    while let Some((first, behind)) = rest.split_once(':')
        && is_gits(first)
    {
        rest = behind;
    }
    rest.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_only_what_git_added() {
        let caller = Caller::for_tests(&[
            ("PATH", "/x/libexec/git-core:/usr/lib/git-core:/usr/bin:/usr/lib/git-core:/bin"),
            ("GIT_DIR", ".git"),
            ("GIT_QUARANTINE_PATH", "/q"),
            ("GITHUB_TOKEN", "x"),
        ]);
        let before = without_git_changes(&caller);
        assert_eq!(before.var("PATH"), Some("/usr/bin:/usr/lib/git-core:/bin"));
        assert_eq!((before.var("GIT_DIR"), before.var("GIT_QUARANTINE_PATH")), (None, None));
        assert_eq!(before.var("GITHUB_TOKEN"), Some("x"));
        assert_eq!(without_git_directories("/opt/git:/bin", Some("/opt/git")), "/bin");
        assert_eq!(without_git_directories("/opt/git-core", None), "/opt/git-core", "nothing else would be left");
    }
}
