//! Flattens a config: inserts the files that it includes, so that libgit2 reads one text without includes.
//!
//! Settings of an included file apply as if they were in the config itself, and all files have the same size
//! limits. No setting starts a program, whichever file contains it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::config::bounded_read::{CONFIG_BYTES, POINTER_BYTES, config_error, not_regular_error, read_bounded};
use crate::error::GitError;
use config_syntax::ConfigSetting;

mod config_syntax;
mod wildcard;

/// Maximum depth of nested includes, as in git.
const MAX_DEPTH: usize = 10;
/// Maximum number of files that one config may include.
const MAX_FILES: usize = 64;

/// The facts that conditions of `includeIf` are compared with.
#[derive(Debug)]
pub(crate) struct IncludeConditions<'a> {
    git_dir: &'a Path,
    /// The branch that HEAD names; `None` if HEAD is detached.
    branch: Option<Vec<u8>>,
}

impl<'a> IncludeConditions<'a> {
    /// Reads the facts of the repository with this git directory.
    ///
    /// # Errors
    /// `HEAD` is not a regular file, or is too large.
    pub(crate) fn read(git_dir: &'a Path) -> Result<Self, GitError> {
        let head = read_bounded(&git_dir.join("HEAD"), POINTER_BYTES)?.unwrap_or_default();
        let branch = head.strip_prefix(b"ref:").map(|name| name.trim_ascii());
        let branch = branch.and_then(|name| name.strip_prefix(b"refs/heads/")).map(<[u8]>::to_vec);
        Ok(Self { git_dir, branch })
    }

    /// Checks whether the condition of an `includeIf` in `file` holds. Unknown conditions do not hold, as in git.
    fn holds_for(&self, condition: &[u8], file: &Path, urls: &[Vec<u8>]) -> bool {
        let Some(colon) = condition.iter().position(|byte| *byte == b':') else { return false };
        let (kind, pattern) = (&condition[..colon], &condition[colon + 1..]);
        match kind {
            b"gitdir" => self.matches_git_dir(pattern, file, false),
            b"gitdir/i" => self.matches_git_dir(pattern, file, true),
            b"onbranch" => {
                let pattern = extend_to_subtree(pattern.to_vec());
                self.branch.as_ref().is_some_and(|branch| wildcard::matches(&pattern, branch, false))
            }
            b"hasconfig" => pattern
                .strip_prefix(b"remote.*.url:")
                .is_some_and(|pattern| urls.iter().any(|url| wildcard::matches(pattern, url, false))),
            _ => false,
        }
    }

    fn matches_git_dir(&self, pattern: &[u8], file: &Path, ignores_case: bool) -> bool {
        let mut whole = match pattern {
            // The home of the user who runs git is not part of the repository.
            [b'~', ..] => return false,
            [b'.', b'/', rest @ ..] => {
                let Some(here) = file.parent().and_then(|here| here.canonicalize().ok()) else { return false };
                [&escape_pattern(here.as_os_str().as_bytes()), b"/".as_slice(), rest].concat()
            }
            [b'/', ..] => pattern.to_vec(),
            _ => [b"**/".as_slice(), pattern].concat(),
        };
        whole = extend_to_subtree(whole);
        wildcard::matches(&whole, self.git_dir.as_os_str().as_bytes(), ignores_case)
    }
}

/// Escapes a text so that the pattern matches only that text.
fn escape_pattern(text: &[u8]) -> Vec<u8> {
    text.iter().flat_map(|byte| [b'\\', *byte]).collect()
}

/// Extends a pattern for a directory to everything below it.
fn extend_to_subtree(mut pattern: Vec<u8>) -> Vec<u8> {
    if pattern.ends_with(b"/") {
        pattern.extend_from_slice(b"**");
    }
    pattern
}

/// Returns the text of the config `file`, whose own text is `bytes`, with the settings of all included files
/// inserted.
///
/// # Errors
/// A named file is not a regular file or is too large, even if its condition does not hold, since libgit2
/// evaluates conditions itself when it opens a repository. Or a file that applies cannot be read or parsed.
pub(crate) fn flatten(file: &Path, bytes: &[u8], conditions: &IncludeConditions<'_>) -> Result<Vec<u8>, GitError> {
    let settings = parse_settings(file, bytes)?;
    let urls = settings.iter().filter(|setting| setting.has_name("remote", "url") && setting.subsection.is_some());
    let urls = urls.filter_map(|setting| setting.value.clone()).collect();
    let mut reading = IncludeExpansion { conditions, urls, files: 0, text: Vec::new() };
    reading.add(file, settings, true, 0)?;
    Ok(reading.text)
}

fn parse_settings(file: &Path, bytes: &[u8]) -> Result<Vec<ConfigSetting>, GitError> {
    config_syntax::parse(bytes).map_err(|line| {
        config_error(
            file,
            format!("line {line} is not a setting"),
            "fix that line; `git config --list --show-origin` shows it",
        )
    })
}

struct IncludeExpansion<'a> {
    conditions: &'a IncludeConditions<'a>,
    /// The URLs of remotes, for `hasconfig`.
    urls: Vec<Vec<u8>>,
    /// Number of files included so far.
    files: usize,
    text: Vec<u8>,
}

impl IncludeExpansion<'_> {
    /// Adds the settings of a file if they apply, and processes its includes.
    fn add(&mut self, file: &Path, settings: Vec<ConfigSetting>, applies: bool, depth: usize) -> Result<(), GitError> {
        for setting in settings {
            let is_included =
                match setting.include_applies(|condition| self.conditions.holds_for(condition, file, &self.urls)) {
                    None => {
                        if applies {
                            setting.write(&mut self.text);
                        }
                        continue;
                    }
                    Some(holds) => applies && holds,
                };
            let path = setting.value.as_deref().and_then(|path| include_path(file, path));
            if let Some(path) = path {
                self.include(&path, file, is_included, depth + 1)?;
            }
        }
        Ok(())
    }

    fn include(&mut self, path: &Path, by: &Path, applies: bool, depth: usize) -> Result<(), GitError> {
        self.files += 1;
        if depth > MAX_DEPTH || self.files > MAX_FILES {
            let problem = format!("it includes more than {MAX_FILES} files, or files more than {MAX_DEPTH} deep");
            return Err(config_error(by, problem, "remove the sections `include` and `includeIf` that are not needed"));
        }
        match path.metadata() {
            Ok(found) if !found.is_file() => return Err(not_regular_error(path)),
            // Git ignores a missing file.
            Err(error) if is_absent(&error) => return Ok(()),
            Err(_) if !applies => return Ok(()),
            _ => {}
        }
        let real = path.canonicalize().map_err(|error| crate::config::bounded_read::io_error(path, &error))?;
        let bytes = match read_bounded(&real, CONFIG_BYTES) {
            Ok(bytes) => bytes.unwrap_or_default(),
            Err(GitError::Io { .. }) if !applies => return Ok(()),
            Err(error) => return Err(error),
        };
        self.add(path, parse_settings(path, &bytes)?, applies, depth)
    }
}

fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
}

/// Returns the path of an included file, or `None` if it is in a home directory, which is not part of the
/// repository.
fn include_path(file: &Path, path: &[u8]) -> Option<PathBuf> {
    if path.is_empty() || path.starts_with(b"~") || path.starts_with(b"%(prefix)") {
        return None;
    }
    Some(file.parent().unwrap_or(Path::new("/")).join(OsStr::from_bytes(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct TestGitDir(tempfile::TempDir);

    impl TestGitDir {
        fn new() -> Self {
            let place = Self(tempfile::tempdir().expect("temp"));
            std::fs::create_dir(place.git_dir()).expect("makes");
            place.write(".git/HEAD", "ref: refs/heads/topic/x\n");
            place
        }

        fn root(&self) -> PathBuf {
            self.0.path().canonicalize().expect("there")
        }

        fn git_dir(&self) -> PathBuf {
            self.root().join(".git")
        }

        #[expect(clippy::disallowed_methods, reason = "a test's own files")]
        fn write(&self, path: &str, text: &str) {
            std::fs::write(self.root().join(path), text).expect("writes");
        }

        fn read(&self, config: &str) -> Result<String, GitError> {
            let (git_dir, file) = (self.git_dir(), self.git_dir().join("config"));
            let text = flatten(&file, config.as_bytes(), &IncludeConditions::read(&git_dir)?)?;
            Ok(String::from_utf8(text).expect("text"))
        }

        fn keys(&self, config: &str) -> String {
            let text = self.read(config).expect("reads");
            let keys = text.lines().filter_map(|line| line.trim().split_once(" = ").map(|(_, value)| value.to_owned()));
            keys.collect::<Vec<_>>().join(" ")
        }
    }

    #[test]
    fn inserts_included_settings_in_order() {
        let place = TestGitDir::new();
        place.write(".git/more", "[core]\n\teol = lf\n[include]\n\tpath = ../last\n");
        place.write("last", "[core] autocrlf = input");
        let config = "[core]\n\tx = 1\n[include]\n\tpath = more\n\tpath = absent\n\tpath = ~/home\n[core]\n\tx = 2\n";
        assert_eq!(place.keys(config), r#""1" "lf" "input" "2""#);
    }

    #[test]
    fn evaluates_conditions_as_git_does() {
        let place = TestGitDir::new();
        place.write(".git/yes", "[a]\n\tb = yes\n");
        let root = place.root().display().to_string();
        let here = place.root().file_name().expect("a name").to_string_lossy().into_owned();
        let holds = |condition: &str| {
            let config = format!("[remote \"o\"]\n\turl = https://h/x/y\n[includeIf \"{condition}\"]\n\tpath = yes\n");
            place.keys(&config).ends_with("\"yes\"")
        };
        for yes in [
            format!("gitdir:{root}/.git"),
            format!("gitdir:{root}/"),
            format!("gitdir:{here}/"),
            format!("gitdir:{root}/.g?t"),
            format!("gitdir:/**/{here}/.git"),
            format!("gitdir/i:{}/.GIT", root.to_uppercase()),
            "onbranch:topic/x".to_owned(),
            "onbranch:topic/".to_owned(),
            "hasconfig:remote.*.url:https://h/**".to_owned(),
        ] {
            assert!(holds(&yes), "{yes}");
        }
        for no in [
            format!("gitdir:{root}/.git/worktrees/*"),
            format!("gitdir:{}/.GIT", root.to_uppercase()),
            "gitdir:~/".to_owned(),
            "gitdir:/github/workspace/.git".to_owned(),
            "onbranch:topic".to_owned(),
            "hasconfig:remote.*.url:https://i/**".to_owned(),
            "else:x".to_owned(),
            "else".to_owned(),
        ] {
            assert!(!holds(&no), "{no}");
        }
    }

    #[test]
    fn refuses_special_files_and_cycles_regardless_of_condition() {
        let place = TestGitDir::new();
        let fifo = place.git_dir().join("fifo");
        let mode = rustix::fs::Mode::from_raw_mode(0o644);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("makes");
        place.write(".git/loop", "[include]\n\tpath = loop\n");
        for config in [
            "[include]\n\tpath = fifo\n",
            "[includeIf \"gitdir:/nowhere/\"]\n\tpath = fifo\n",
            "[include]\n\tpath = /dev/null\n",
            "[include]\n\tpath = loop\n",
            "[include]\n\tpath = \"unclosed\n",
        ] {
            assert!(matches!(place.read(config), Err(GitError::Config { .. })), "{config}");
        }
    }
}
