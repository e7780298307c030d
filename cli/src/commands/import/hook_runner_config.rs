//! Finds and reads the configuration to import, and checks which tools are installed.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::adopt::import::{Source, detect};
use proctor_core::spec::MAX_BYTES;
use proctor_runner::Directory;
use rustix::fs::{Mode, OFlags, open};

use super::{Tool, imported_spec_file};
use crate::args::ImportArgs;
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;

/// Formats of lefthook's configuration that are not supported.
const UNSUPPORTED_FILES: [&str; 4] = ["lefthook.toml", "lefthook.json", ".lefthook.toml", ".lefthook.json"];

/// A configuration of another hook runner.
pub(super) struct HookRunnerConfig {
    /// The path.
    pub(super) path: PathBuf,
    /// The content; a file above the size limit is cut one byte after the limit.
    pub(super) bytes: Vec<u8>,
    /// The hook runner.
    pub(super) source: Source,
}

impl HookRunnerConfig {
    /// Finds the configuration: the named file, or that of the repository.
    ///
    /// # Errors
    /// The configuration is missing, ambiguous or unreadable, or its format is not recognised.
    pub(super) fn find(args: &ImportArgs, repo: &Directory, caller: &Caller) -> Result<Self, CliError> {
        let from = args.from.map(|from| from.source());
        let Some(file) = &args.file else { return Self::from_repository(from, repo) };
        let path = caller.cwd.join(file);
        let bytes = read(&path).map_err(|error| unreadable_error(&path, &error))?;
        let source = match from.or_else(|| source_from_name(&path)) {
            Some(source) => Some(source),
            None => detect(&bytes).map_err(|diagnostics| {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                CliError::Invalid { file: path.clone(), text, diagnostics }.with_path_relative_to(&caller.cwd)
            })?,
        };
        let source = source.ok_or_else(|| CliError::Usage {
            message: format!("`{}` does not look like a configuration of pre-commit or lefthook", show(&path)),
            hint: "name its tool with `--from pre-commit` or `--from lefthook`".to_owned(),
        })?;
        Ok(Self { path, bytes, source })
    }

    fn from_repository(from: Option<Source>, repo: &Directory) -> Result<Self, CliError> {
        let sources = [Source::PreCommit, Source::Lefthook];
        let mut found = Vec::new();
        for source in sources.into_iter().filter(|source| from.is_none_or(|from| from == *source)) {
            for name in source.files() {
                let Some(file) = repo.open_file(name).map_err(|error| imported_spec_file::store_error(&error))? else {
                    continue;
                };
                let path = Path::new(repo.name()).join(name);
                let bytes = read_bounded(file).map_err(|error| unreadable_error(&path, &error))?;
                found.push(Self { path, bytes, source });
            }
        }
        let names: Vec<String> = found.iter().map(|config| format!("`{}`", show(&config.path))).collect();
        match (found.pop(), found.is_empty()) {
            (Some(config), true) => Ok(config),
            (Some(_), false) => Err(CliError::Usage {
                message: format!("found more than one configuration: {}", names.join(", ")),
                hint: "name one of them".to_owned(),
            }),
            (None, _) => Err(no_config_error(from, repo)),
        }
    }
}

fn unreadable_error(path: &Path, error: &std::io::Error) -> CliError {
    CliError::Usage {
        message: format!("`{}` cannot be read: {error}", show(path)),
        hint: "name a `.pre-commit-config.yaml` or a `lefthook.yml`".to_owned(),
    }
}

fn no_config_error(from: Option<Source>, repo: &Directory) -> CliError {
    let names: Vec<&str> = match from {
        Some(source) => source.files().to_vec(),
        None => Source::PreCommit.files().iter().chain(Source::Lefthook.files()).copied().collect(),
    };
    let other = UNSUPPORTED_FILES.iter().find(|name| matches!(repo.open_file(name), Ok(Some(_))));
    let hint = match other {
        Some(name) => format!("`{name}` is not read because only YAML is supported: `lefthook dump` prints it as YAML"),
        None => "name the file; `proctor init` makes a spec without one".to_owned(),
    };
    let repo = show(Path::new(repo.name()));
    CliError::Usage { message: format!("`{repo}` contains none of these files: {}", names.join(", ")), hint }
}

fn source_from_name(path: &Path) -> Option<Source> {
    let name = path.file_name()?.to_str()?;
    [Source::PreCommit, Source::Lefthook].into_iter().find(|source| source.files().contains(&name))
}

/// Reads a named file. Other kinds of file are refused: a device may never end, and a FIFO may never answer.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("it is not a regular file"));
    }
    read_bounded(file)
}

/// Reads one byte more than the size limit, so that the parser reports a file that is too large.
fn read_bounded(file: File) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Checks whether a tool is in the caller's `PATH`.
pub(super) fn is_installed(tool: &Tool, caller: &Caller) -> bool {
    let dirs = caller.var("PATH").unwrap_or_default().split(':').filter(|dir| !dir.is_empty());
    let is_program =
        |path: PathBuf| path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0);
    dirs.map(|dir| caller.cwd.join(dir).join(&tool.name)).any(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_hook_runner_by_file_name() {
        assert_eq!(source_from_name(Path::new("/x/.pre-commit-config.yaml")), Some(Source::PreCommit));
        assert_eq!(source_from_name(Path::new("lefthook.yml")), Some(Source::Lefthook));
        assert_eq!(source_from_name(Path::new("hooks.yml")), None);
    }

    #[test]
    fn looks_for_tools_in_path() {
        let tool = |name: &str| Tool { name: name.to_owned(), cmd: Vec::new(), version: None };
        let caller = Caller::for_tests(&[("PATH", "/nowhere::/bin:/usr/bin")]);
        assert!(is_installed(&tool("sh"), &caller));
        assert!(!is_installed(&tool("no-such-tool-anywhere"), &caller));
    }

    #[test]
    fn rejects_devices_and_directories() {
        read(Path::new("/dev/zero")).expect_err("a device");
        read(Path::new("/proc")).expect_err("a directory");
    }
}
