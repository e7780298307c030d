//! Explains why steps do not find a program that the caller finds: it is in a directory of the caller's `PATH` that
//! steps do not see.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use proctor_core::model::outcome::{StartFault, Termination};
use proctor_core::model::plan::Argv;
use proctor_sandbox::FsCredentials;

use crate::host::environment::EnvironmentInputs;

/// The file in which a user shows more directories to steps.
const OWN_CONFIG: &str = "~/.config/proctor/proctord.toml";
/// The file in which the operator of a daemon does.
const SYSTEM_CONFIG: &str = "/etc/proctor/proctord.toml";
/// Directories below a home whose entries each belong to one tool.
const TOOL_PARENTS: [&str; 4] = [".local/share", ".local", ".config", ".cache"];

/// The inputs of the search for a hidden program.
pub(crate) struct HiddenProgramSearch<'a> {
    pub(crate) inputs: &'a EnvironmentInputs,
    /// User whose rights apply to the search; `None` uses the rights of this process.
    pub(crate) reader: Option<FsCredentials>,
}

impl HiddenProgramSearch<'_> {
    /// Replaces the reason why a command did not start, if its program is in a directory that steps do not see.
    pub(crate) fn explain(&self, cmd: &Argv, termination: &mut Termination) {
        let Termination::NotStarted { reason, fault: StartFault::ProgramMissing } = termination else { return };
        let look = || self.hidden_directory(cmd.program());
        let found = match self.reader {
            Some(reader) => reader.run(look).ok().flatten(),
            None => look(),
        };
        if let Some(directory) = found {
            *reason = self.message(cmd.program(), &directory);
        }
    }

    /// Returns the first directory of the caller's `PATH` with this program that the steps' `PATH` lacks.
    fn hidden_directory(&self, program: &str) -> Option<PathBuf> {
        if program.contains('/') {
            return None;
        }
        let path = self.inputs.caller_env.get("PATH")?;
        let is_hidden = |dir: &&str| dir.starts_with('/') && !self.inputs.path.iter().any(|seen| seen == dir);
        let mut hidden = path.split(':').filter(is_hidden).map(PathBuf::from);
        hidden.find(|dir| is_plain(dir) && is_executable(&dir.join(program)))
    }

    fn message(&self, program: &str, directory: &Path) -> String {
        let (at, mount) = (self.display(directory), self.display(&tool_root(directory, Path::new(&self.inputs.home))));
        let config = if self.reader.is_some() { SYSTEM_CONFIG } else { OWN_CONFIG };
        format!(
            "`{program}` not found. It is at `{at}`, which steps do not see; add `tool_mounts = [\"{mount}\"]` to \
             `{config}`"
        )
    }

    /// Returns a path with `~` for the home.
    fn display(&self, path: &Path) -> String {
        match path.strip_prefix(&self.inputs.home) {
            Ok(below) => format!("~/{}", below.display()),
            Err(_) => path.display().to_string(),
        }
    }
}

/// Returns the directory of the tool that a program directory belongs to: below a home, the entry of the home or of a
/// directory for tools; otherwise the directory that contains `bin`.
fn tool_root(directory: &Path, home: &Path) -> PathBuf {
    let Ok(below) = directory.strip_prefix(home) else {
        let is_bin = directory.ends_with("bin");
        let parent =
            directory.parent().filter(|parent| is_bin && parent.parent().is_some_and(|up| up != Path::new("/")));
        return parent.unwrap_or(directory).to_path_buf();
    };
    let parent = TOOL_PARENTS.iter().find(|parent| below.starts_with(parent) && below != Path::new(parent));
    let depth = parent.map_or(0, |parent| Path::new(parent).components().count());
    home.join(below.components().take(depth + 1).collect::<PathBuf>())
}

fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "fixtures, not Proctor documents")]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn missing(program: &str, home: &Path, path: &str, seen: &str) -> String {
        let inputs = EnvironmentInputs {
            home: home.display().to_string(),
            path: vec![seen.to_owned()],
            user: "step".to_owned(),
            toolchain_variables: BTreeMap::new(),
            caller_env: BTreeMap::from([("PATH".to_owned(), path.to_owned())]),
        };
        let cmd = Argv::new(vec![program.to_owned()]).expect("a command");
        let mut termination = Termination::NotStarted { reason: "?".to_owned(), fault: StartFault::ProgramMissing };
        HiddenProgramSearch { inputs: &inputs, reader: None }.explain(&cmd, &mut termination);
        match termination {
            Termination::NotStarted { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_directory_and_config_line() {
        let home = tempfile::tempdir().expect("temp");
        let bin = home.path().join(".local/share/tools/installs/foo/1.0/bin");
        fs::create_dir_all(&bin).expect("makes");
        fs::write(bin.join("foo"), "").expect("writes");
        let path = format!("relative:/nowhere:{}", bin.display());
        assert_eq!(missing("foo", home.path(), &path, "/usr/bin"), "?", "the file is not executable");
        fs::set_permissions(bin.join("foo"), fs::Permissions::from_mode(0o755)).expect("sets");
        assert_eq!(
            missing("foo", home.path(), &path, "/usr/bin"),
            "`foo` not found. It is at `~/.local/share/tools/installs/foo/1.0/bin`, which steps do not see; add \
             `tool_mounts = [\"~/.local/share/tools\"]` to `~/.config/proctor/proctord.toml`"
        );
        assert_eq!(missing("bar", home.path(), &path, "/usr/bin"), "?");
        assert_eq!(missing("./foo", home.path(), &path, "/usr/bin"), "?");
        assert_eq!(missing("foo", home.path(), &path, &bin.display().to_string()), "?", "steps see the directory");
    }

    #[test]
    fn finds_the_root_of_a_tool() {
        let root = |dir: &str| tool_root(Path::new(dir), Path::new("/home/a")).display().to_string();
        assert_eq!(root("/home/a/.local/share/mise/installs/foo/1.0/bin"), "/home/a/.local/share/mise");
        assert_eq!(root("/home/a/.foo/bin"), "/home/a/.foo");
        assert_eq!(root("/home/a/bin"), "/home/a/bin");
        assert_eq!(root("/home/a/.local/other"), "/home/a/.local/other");
        assert_eq!(root("/srv/tools/bin"), "/srv/tools");
        assert_eq!(root("/srv/bin"), "/srv/bin");
    }
}
