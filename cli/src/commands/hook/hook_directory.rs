//! Finds the directory in which git looks for a repository's hooks: by default in the common directory, shared by all
//! linked worktrees; otherwise the one that `core.hooksPath` names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::git_command::{GitCommandOutput, GitContext};
use crate::error::CliError;
use crate::installation::show;

/// The hook directory of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HookDirectory {
    /// The top directory of the worktree.
    pub work_tree: PathBuf,
    /// The directory with objects, refs and config.
    pub common_dir: PathBuf,
    /// The hook directory, with symbolic links resolved if it exists.
    pub hooks: PathBuf,
    /// The setting that selects the directory, if any.
    pub configured: Option<HooksPathSetting>,
}

/// `core.hooksPath` as git resolves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HooksPathSetting {
    /// `system`, `global`, `local`, `worktree` or `command`.
    pub scope: String,
    /// Origin of the setting, such as `file:/etc/gitconfig`.
    pub origin: String,
    /// The value.
    pub value: String,
}

/// The users of a hook directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HookDirectoryUsers {
    /// Only this repository.
    Own,
    /// All clones of the repository, because the directory is part of the tree.
    Tree,
    /// Other repositories: those with the same setting, or those that share the target of a symbolic link.
    Others,
}

impl HookDirectory {
    /// Asks git for the directories.
    ///
    /// # Errors
    /// There is no repository with a worktree, or git fails.
    pub(super) fn find(git: GitContext<'_>) -> Result<Self, CliError> {
        const REV_PARSE_ARGS: [&str; 7] = [
            "rev-parse",
            "--path-format=absolute",
            "--show-toplevel",
            "--path-format=absolute",
            "--git-common-dir",
            "--git-path",
            "hooks",
        ];
        // A relative `core.hooksPath` is relative to the top directory, where git runs the hooks.
        let top = git.run(&REV_PARSE_ARGS[..3]).and_then(|output| parse_paths::<1>(&output, git.directory))?;
        let [top] = top;
        let [top, common_dir, hooks] = GitContext { directory: &top, ..git }
            .run(&REV_PARSE_ARGS)
            .and_then(|output| parse_paths::<3>(&output, git.directory))?;
        let hooks = hooks.canonicalize().unwrap_or(hooks);
        let configured = read_hooks_path(GitContext { directory: &top, ..git })?;
        Ok(Self { work_tree: top, common_dir: common_dir.canonicalize().unwrap_or(common_dir), hooks, configured })
    }

    /// Returns the users of the directory.
    pub(super) fn users(&self) -> HookDirectoryUsers {
        let is_wide = self.configured.as_ref().is_some_and(|set| !matches!(set.scope.as_str(), "local" | "worktree"));
        let top = self.work_tree.canonicalize().unwrap_or_else(|_| self.work_tree.clone());
        match () {
            () if self.hooks.starts_with(&self.common_dir) => HookDirectoryUsers::Own,
            () if is_wide => HookDirectoryUsers::Others,
            () if self.hooks.starts_with(&top) => HookDirectoryUsers::Tree,
            // Either the repository's own setting selects the directory, or the default directory is a symbolic link.
            () if self.configured.is_some() => HookDirectoryUsers::Own,
            () => HookDirectoryUsers::Others,
        }
    }

    /// Checks whether husky manages this directory and may rewrite it at any time.
    pub(super) fn is_managed_by_husky(&self) -> bool {
        self.hooks.ends_with(".husky/_")
    }

    /// Explains in human-readable form why git uses this directory.
    pub(super) fn reason(&self) -> String {
        match &self.configured {
            Some(HooksPathSetting { scope, origin, value }) => {
                format!(
                    "`core.hooksPath` is `{}` in the {scope} config ({})",
                    show(Path::new(value)),
                    show(Path::new(origin))
                )
            }
            None => "git's default hook directory".to_owned(),
        }
    }
}

fn read_hooks_path(git: GitContext<'_>) -> Result<Option<HooksPathSetting>, CliError> {
    let output = git.run(&["config", "--null", "--show-scope", "--show-origin", "--get", "core.hooksPath"])?;
    match output.code {
        Some(0) => {}
        // The setting does not exist.
        Some(1) => return Ok(None),
        _ => return Err(git_output_error(&output, git.directory)),
    }
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut parts = text.split('\0').map(str::to_owned);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(scope), Some(origin), Some(value)) => Ok(Some(HooksPathSetting { scope, origin, value })),
        _ => Err(git_output_error(&output, git.directory)),
    }
}

/// Parses the paths that git printed, one per line.
fn parse_paths<const N: usize>(output: &GitCommandOutput, at: &Path) -> Result<[PathBuf; N], CliError> {
    if output.code != Some(0) {
        return Err(git_output_error(output, at));
    }
    let text = output.stdout.strip_suffix(b"\n").unwrap_or(&output.stdout);
    let paths: Vec<PathBuf> =
        text.split(|byte| *byte == b'\n').map(|line| PathBuf::from(OsStr::from_bytes(line))).collect();
    paths.try_into().map_err(|_| git_output_error(output, at))
}

fn git_output_error(output: &GitCommandOutput, at: &Path) -> CliError {
    let words = output.stderr.lines().next().unwrap_or("its answer has an unknown format");
    CliError::Usage {
        message: format!("git has no hooks for `{}`: {words}", show(at)),
        hint: "go to the worktree of a repository, or name one with `--repo`; git 2.31 or newer is needed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(hooks: &str, scope: Option<&str>) -> HookDirectory {
        let configured =
            scope.map(|scope| HooksPathSetting { scope: scope.into(), origin: "file:x".into(), value: hooks.into() });
        HookDirectory {
            work_tree: "/absent/r".into(),
            common_dir: "/absent/r/.git".into(),
            hooks: hooks.into(),
            configured,
        }
    }

    #[test]
    fn determines_users_of_the_hook_directory() {
        for (hooks, scope, users) in [
            ("/absent/r/.git/hooks", None, HookDirectoryUsers::Own),
            ("/absent/r/.git/hooks", Some("global"), HookDirectoryUsers::Own),
            ("/absent/shared", Some("global"), HookDirectoryUsers::Others),
            ("/absent/shared", Some("system"), HookDirectoryUsers::Others),
            ("/absent/shared", Some("command"), HookDirectoryUsers::Others),
            ("/absent/mine", Some("local"), HookDirectoryUsers::Own),
            ("/absent/r/.githooks", Some("local"), HookDirectoryUsers::Tree),
            ("/absent/r/.githooks", Some("global"), HookDirectoryUsers::Others),
            ("/absent/elsewhere", None, HookDirectoryUsers::Others),
        ] {
            assert_eq!(directory(hooks, scope).users(), users, "{hooks} {scope:?}");
        }
        assert!(directory("/absent/r/.husky/_", Some("local")).is_managed_by_husky());
    }
}
