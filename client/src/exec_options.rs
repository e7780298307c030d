//! The few options of most `exec` commands, with the command after `--`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use proctor_core::api::ExecSubmission;
use proctor_core::model::enforcement::SandboxMode;
use proctor_core::model::plan::{Argv, LimitSettings};

/// The options of a common `exec` command. This parser takes a tenth of the time of the full parser and must agree with
/// it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommonExecOptions {
    /// `--repo DIR`.
    pub repo: Option<PathBuf>,
    /// `--socket PATH`.
    pub socket: Option<PathBuf>,
    /// `--state-dir DIR`.
    pub state_dir: Option<PathBuf>,
    /// `--daemon`.
    pub daemon: bool,
    /// `--no-daemon`.
    pub no_daemon: bool,
    /// `--no-spec`.
    pub no_spec: bool,
    /// The program and its arguments, which are never empty.
    pub cmd: Vec<String>,
}

impl CommonExecOptions {
    /// Parses a whole command line, `proctor exec …`. Returns `None` for every other form; the full parser handles
    /// those, including errors.
    pub fn parse(words: &[OsString]) -> Option<Self> {
        if words.get(1)? != "exec" {
            return None;
        }
        let mut options = Self::default();
        let mut words = words.get(2..)?.iter().map(|word| word.to_str());
        loop {
            match words.next()?? {
                "--repo" => set_once(&mut options.repo, words.next()??)?,
                "--socket" => set_once(&mut options.socket, words.next()??)?,
                "--state-dir" => set_once(&mut options.state_dir, words.next()??)?,
                "--daemon" => options.daemon = (!options.daemon).then_some(true)?,
                "--no-daemon" => options.no_daemon = (!options.no_daemon).then_some(true)?,
                "--no-spec" => options.no_spec = (!options.no_spec).then_some(true)?,
                "--" => break,
                _ => return None,
            }
        }
        options.cmd = words.map(|word| word.map(str::to_owned)).collect::<Option<_>>()?;
        let is_command = !options.cmd.is_empty() && !options.cmd.iter().any(|word| word == "--");
        (is_command && !options.has_conflict()).then_some(options)
    }

    fn has_conflict(&self) -> bool {
        self.no_daemon && (self.daemon || self.socket.is_some())
            || self.state_dir.is_some() && (self.daemon || self.socket.is_some())
    }

    /// Returns the request for this command in the repository `repo`, with the caller's environment. Returns `None` if
    /// the command is not valid.
    pub fn into_submission(self, repo: String, env: BTreeMap<String, String>) -> Option<ExecSubmission> {
        Some(ExecSubmission {
            repo,
            cmd: Argv::new(self.cmd).ok()?,
            workdir: None,
            timeout_ms: None,
            grace_ms: None,
            network: None,
            read_only: None,
            leaks: None,
            set_env: BTreeMap::new(),
            limits: LimitSettings::default(),
            no_spec: self.no_spec,
            sandbox: SandboxMode::Strict,
            env: Some(env),
        })
    }
}

/// Sets an option that is not set yet. Returns `None` for a repeated option, and for a value that could be another
/// option.
fn set_once(option: &mut Option<PathBuf>, value: &str) -> Option<()> {
    let is_accepted = option.is_none() && !value.is_empty() && !value.starts_with('-');
    is_accepted.then(|| *option = Some(value.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_common_commands() {
        let parses = |words: &[&str]| {
            let words: Vec<OsString> = ["proctor", "exec"].iter().chain(words).map(OsString::from).collect();
            CommonExecOptions::parse(&words).is_some()
        };
        for words in
            [&["--", "ls", "-l", ""][..], &["--socket", "s", "--repo", "r", "--", "ls"], &["--no-daemon", "--", "x"]]
        {
            assert!(parses(words), "{words:?}");
        }
        let others = [&["ls"][..], &["--"], &[], &["--help"], &["-x", "--", "ls"], &["--raw", "--", "ls"], &["--repo"]];
        for words in others {
            assert!(!parses(words), "{words:?}");
        }
        assert_eq!(CommonExecOptions::parse(&["proctor", "run", "--", "ls"].map(OsString::from)), None);
        assert_eq!(CommonExecOptions::parse(&["proctor".into()]), None);
    }
}
