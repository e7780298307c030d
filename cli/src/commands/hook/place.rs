//! Finds the directory in which git looks for a repository's hooks: by default in the common directory, shared by all
//! linked worktrees; otherwise the one that `core.hooksPath` names.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::git::{Git, Said};
use crate::error::CliError;
use crate::installation::show;

/// The hook directory of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The top directory of the worktree.
    pub top: PathBuf,
    /// The directory with objects, refs and config.
    pub common_dir: PathBuf,
    /// The hook directory, with symbolic links resolved if it exists.
    pub hooks: PathBuf,
    /// The setting that selects the directory, if any.
    pub configured: Option<Configured>,
}

/// `core.hooksPath` as git resolves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Configured {
    /// `system`, `global`, `local`, `worktree` or `command`.
    pub scope: String,
    /// Origin of the setting, such as `file:/etc/gitconfig`.
    pub origin: String,
    /// The value.
    pub value: String,
}

/// The users of a hook directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Users {
    /// Only this repository.
    Own,
    /// Everyone who has the tree, because the directory is part of it.
    Tree,
    /// Other repositories: those with the same setting, or those that share the target of a symbolic link.
    Others,
}

impl Place {
    /// Asks git for the directories.
    ///
    /// # Errors
    /// There is no repository with a worktree, or git fails.
    pub(super) fn find(git: Git<'_>) -> Result<Self, CliError> {
        const WHERE: [&str; 7] = [
            "rev-parse",
            "--path-format=absolute",
            "--show-toplevel",
            "--path-format=absolute",
            "--git-common-dir",
            "--git-path",
            "hooks",
        ];
        // A relative `core.hooksPath` is relative to the top directory, where git runs the hooks.
        let top = git.ask(&WHERE[..3]).and_then(|said| lines::<1>(&said, git.at))?;
        let [top] = top;
        let [top, common_dir, hooks] =
            Git { at: &top, ..git }.ask(&WHERE).and_then(|said| lines::<3>(&said, git.at))?;
        let hooks = hooks.canonicalize().unwrap_or(hooks);
        let configured = configured(Git { at: &top, ..git })?;
        Ok(Self { top, common_dir: common_dir.canonicalize().unwrap_or(common_dir), hooks, configured })
    }

    /// Returns the users of the directory.
    pub(super) fn users(&self) -> Users {
        let is_wide = self.configured.as_ref().is_some_and(|set| !matches!(set.scope.as_str(), "local" | "worktree"));
        let top = self.top.canonicalize().unwrap_or_else(|_| self.top.clone());
        match () {
            () if self.hooks.starts_with(&self.common_dir) => Users::Own,
            () if is_wide => Users::Others,
            () if self.hooks.starts_with(&top) => Users::Tree,
            // Either the repository's own setting selects the directory, or the default directory is a symbolic link.
            () if self.configured.is_some() => Users::Own,
            () => Users::Others,
        }
    }

    /// Checks whether husky manages this directory and may rewrite it at any time.
    pub(super) fn is_huskys(&self) -> bool {
        self.hooks.ends_with(".husky/_")
    }

    /// Explains in human-readable form why git uses this directory.
    pub(super) fn reason(&self) -> String {
        match &self.configured {
            Some(Configured { scope, origin, value }) => {
                format!(
                    "`core.hooksPath` is `{}` in the {scope} config ({})",
                    show(Path::new(value)),
                    show(Path::new(origin))
                )
            }
            None => "git's own place for them".to_owned(),
        }
    }
}

fn configured(git: Git<'_>) -> Result<Option<Configured>, CliError> {
    let said = git.ask(&["config", "--null", "--show-scope", "--show-origin", "--get", "core.hooksPath"])?;
    match said.code {
        Some(0) => {}
        // The setting does not exist.
        Some(1) => return Ok(None),
        _ => return Err(refused(&said, git.at)),
    }
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let mut parts = text.split('\0').map(str::to_owned);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(scope), Some(origin), Some(value)) => Ok(Some(Configured { scope, origin, value })),
        _ => Err(refused(&said, git.at)),
    }
}

/// Parses the paths that git printed, one per line.
fn lines<const N: usize>(said: &Said, at: &Path) -> Result<[PathBuf; N], CliError> {
    if said.code != Some(0) {
        return Err(refused(said, at));
    }
    let text = said.stdout.strip_suffix(b"\n").unwrap_or(&said.stdout);
    let paths: Vec<PathBuf> =
        text.split(|byte| *byte == b'\n').map(|line| PathBuf::from(OsStr::from_bytes(line))).collect();
    paths.try_into().map_err(|_| refused(said, at))
}

fn refused(said: &Said, at: &Path) -> CliError {
    let words = said.stderr.lines().next().unwrap_or("it answered in words that are not understood");
    CliError::Usage {
        message: format!("git has no hooks for `{}`: {words}", show(at)),
        hint: "go to the worktree of a repository, or name one with `--repo`; git 2.31 or newer is needed".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(hooks: &str, scope: Option<&str>) -> Place {
        let configured =
            scope.map(|scope| Configured { scope: scope.into(), origin: "file:x".into(), value: hooks.into() });
        Place { top: "/absent/r".into(), common_dir: "/absent/r/.git".into(), hooks: hooks.into(), configured }
    }

    #[test]
    fn who_else_uses_a_directory_of_hooks() {
        for (hooks, scope, users) in [
            ("/absent/r/.git/hooks", None, Users::Own),
            ("/absent/r/.git/hooks", Some("global"), Users::Own),
            ("/absent/shared", Some("global"), Users::Others),
            ("/absent/shared", Some("system"), Users::Others),
            ("/absent/shared", Some("command"), Users::Others),
            ("/absent/mine", Some("local"), Users::Own),
            ("/absent/r/.githooks", Some("local"), Users::Tree),
            ("/absent/r/.githooks", Some("global"), Users::Others),
            ("/absent/elsewhere", None, Users::Others),
        ] {
            assert_eq!(place(hooks, scope).users(), users, "{hooks} {scope:?}");
        }
        assert!(place("/absent/r/.husky/_", Some("local")).is_huskys());
    }
}
