//! Restores the environment from before git started the hook. Git sets variables that would make git commands in a
//! step use another repository, and puts its own directory first in `PATH`, so that other tools would be found than
//! in `proctor run`.

use std::path::Path;

use crate::caller::Caller;

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
