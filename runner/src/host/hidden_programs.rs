//! Explains why steps do not find a program that the caller finds: it is in a directory of the caller's `PATH` that
//! steps do not see.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};

use proctor_core::model::outcome::{StartFault, Termination};
use proctor_core::model::plan::Argv;
use proctor_core::record::evidence::HiddenProgram;
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

    /// Returns the program that the caller's `PATH` finds first, unless steps find it too. `is_seen` is true for the paths of
    /// the host that steps see, and `repo` is the repository.
    pub(crate) fn shadowed(
        &self,
        cmd: &Argv,
        repo: &Path,
        is_seen: &(dyn Fn(&Path) -> bool + Sync),
    ) -> Option<HiddenProgram> {
        let look = || self.first_hidden_directory(cmd.program(), is_seen);
        let directory = match self.reader {
            Some(reader) => reader.run(look).ok().flatten(),
            None => look(),
        }?;
        let advice = match directory.strip_prefix(repo) {
            Ok(below) => format!("write `{}` in the command", below.join(cmd.program()).display()),
            Err(_) => self.mount_advice(&directory),
        };
        Some(HiddenProgram { directory: self.display(&directory), advice })
    }

    /// Returns the directory of the program that the caller's `PATH` finds first, if steps do not find it: that of the
    /// `PATH`, or that of the file to which a link there leads.
    fn first_hidden_directory(&self, program: &str, is_seen: &(dyn Fn(&Path) -> bool + Sync)) -> Option<PathBuf> {
        if program.contains('/') {
            return None;
        }
        let path = self.inputs.caller_env.get("PATH")?;
        let mut dirs = path.split(':').filter(|dir| dir.starts_with('/')).map(PathBuf::from);
        let dir = dirs.find(|dir| is_plain(dir) && is_executable(&dir.join(program)))?;
        let target = fs::canonicalize(dir.join(program)).ok()?;
        let real = fs::canonicalize(&dir).ok()?;
        let is_searched = self.inputs.path.iter().map(Path::new).any(|seen| seen == dir || seen == real);
        match is_searched {
            false => Some(dir),
            true if is_seen(&target) => None,
            true => Some(target.parent()?.to_path_buf()),
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
        let (at, advice) = (self.display(directory), self.mount_advice(directory));
        format!("`{program}` not found. It is at `{at}`, which steps do not see; {advice}")
    }

    /// Returns the line of the config that shows a directory to steps.
    fn mount_advice(&self, directory: &Path) -> String {
        let mount = self.display(&tool_root(directory, Path::new(&self.inputs.home)));
        let config = if self.reader.is_some() { SYSTEM_CONFIG } else { OWN_CONFIG };
        format!("add `tool_mounts = [\"{mount}\"]` to `{config}`")
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
    fn names_a_program_that_steps_replace_by_another_one() {
        let home = tempfile::tempdir().expect("temp");
        let home_path = home.path().canonicalize().expect("a path");
        let (hidden, seen, repo) = (home_path.join(".foo/bin"), home_path.join("seen"), home_path.join("repo"));
        let venv = repo.join(".venv/bin");
        for dir in [&hidden, &seen, &venv] {
            fs::create_dir_all(dir).expect("makes");
        }
        for dir in [&hidden, &venv] {
            fs::write(dir.join("foo"), "").expect("writes");
            fs::set_permissions(dir.join("foo"), fs::Permissions::from_mode(0o755)).expect("sets");
        }
        let is_seen = |path: &Path| path.starts_with(&seen);
        let shadowed = |path: &[&PathBuf]| {
            let path: Vec<String> = path.iter().map(|dir| dir.display().to_string()).collect();
            let inputs = EnvironmentInputs {
                home: home_path.display().to_string(),
                path: vec![seen.display().to_string()],
                user: "step".to_owned(),
                toolchain_variables: BTreeMap::new(),
                caller_env: BTreeMap::from([("PATH".to_owned(), path.join(":"))]),
            };
            let cmd = Argv::new(vec!["foo".to_owned()]).expect("a command");
            let search = HiddenProgramSearch { inputs: &inputs, reader: None };
            search.shadowed(&cmd, &repo, &is_seen).map(|found| (found.directory, found.advice))
        };
        let of_foo = Some((
            "~/.foo/bin".to_owned(),
            "add `tool_mounts = [\"~/.foo\"]` to `~/.config/proctor/proctord.toml`".to_owned(),
        ));
        assert_eq!(shadowed(&[&seen, &hidden]), of_foo);
        let of_repo = Some(("~/repo/.venv/bin".to_owned(), "write `.venv/bin/foo` in the command".to_owned()));
        assert_eq!(shadowed(&[&venv, &hidden]), of_repo);
        // A link in a visible directory leads to the hidden program.
        std::os::unix::fs::symlink(hidden.join("foo"), seen.join("foo")).expect("links");
        assert_eq!(shadowed(&[&seen, &hidden]), of_foo);
        fs::remove_file(seen.join("foo")).expect("removes");
        fs::copy(hidden.join("foo"), seen.join("foo")).expect("copies");
        assert_eq!(shadowed(&[&seen, &hidden]), None);
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
