//! Quotes arguments for a shell, splits command lines of other tools, and detects commands that cannot work in a
//! step.

use crate::model::plan::FILES_PLACEHOLDER;
use crate::spec::quoted;

/// The reason why a step cannot run a command of a hook.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum ShellCommandError {
    /// There are no words.
    #[error("its command is empty")]
    Empty,
    /// Shells and hook runners interpret a `#` differently.
    #[error("its command has a `#`, which may or may not begin a comment: {}", quoted(.line))]
    AmbiguousComment { line: String },
    /// A quote is not closed.
    #[error("its command ends inside a quote: {}", quoted(.line))]
    OpenQuote { line: String },
    /// The command needs the index.
    #[error("it reads staged changes (`{word}`), but a run has a tree without staged changes")]
    StagedChanges { word: String },
    /// The command needs a daemon of the host.
    #[error("`{program}` talks to a daemon of the machine, which a step cannot reach")]
    HostDaemon { program: String },
    /// The command needs a terminal.
    #[error("it asks on the terminal, and a step has none")]
    Terminal,
    /// The command writes to `.git`.
    #[error("it changes the repository (`git {subcommand}`), which a step cannot")]
    RepositoryWrite { subcommand: &'static str },
}

/// Quotes an argument for a shell.
pub(super) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "%+-./:=@_,".contains(c);
    if word == FILES_PLACEHOLDER || !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Quotes arguments for a shell, separated by spaces.
pub(crate) fn quote_all(words: &[String]) -> String {
    words.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ")
}

/// Returns a command that runs a shell with `before`, the words, and `after`. The word for the files becomes the
/// arguments of the shell.
pub(super) fn in_shell(argv: &[String], before: &str, after: &str) -> Vec<String> {
    let is_files = |word: &String| word == FILES_PLACEHOLDER;
    let words: Vec<String> =
        argv.iter().map(|word| if is_files(word) { "\"$@\"".to_owned() } else { quote(word) }).collect();
    shell_command(&format!("{before}{}{after}", words.join(" ")), argv.iter().any(is_files))
}

/// Returns a command that runs a shell script, which gets the files as arguments if it uses them.
pub(super) fn shell_command(script: &str, uses_files: bool) -> Vec<String> {
    let files: &[&str] = if uses_files { &["sh", FILES_PLACEHOLDER] } else { &[] };
    ["sh", "-c", script].iter().chain(files).map(|word| (*word).to_owned()).collect()
}

/// Splits a line as Python's `shlex.split` does: only quotes and backslashes are special.
///
/// # Errors
/// There is an open quote, there are no words, or a `#` makes the line ambiguous.
pub(super) fn split(line: &str) -> Result<Vec<String>, ShellCommandError> {
    if line.split_whitespace().any(|word| word.starts_with('#')) {
        return Err(ShellCommandError::AmbiguousComment { line: line.to_owned() });
    }
    match shlex::split(line) {
        Some(words) if words.first().is_some_and(|word| !word.is_empty()) => Ok(words),
        Some(_) => Err(ShellCommandError::Empty),
        None => Err(ShellCommandError::OpenQuote { line: line.to_owned() }),
    }
}

/// Git commands that fail in a step, because `.git` is read-only there.
const WRITING_GIT_COMMANDS: [&str; 16] = [
    "add",
    "am",
    "apply",
    "checkout",
    "cherry-pick",
    "clean",
    "commit",
    "fetch",
    "merge",
    "pull",
    "push",
    "rebase",
    "reset",
    "restore",
    "stash",
    "switch",
];
/// Words that refer to staged changes, which a step cannot see.
const STAGING_WORDS: [&str; 5] = ["--cached", "--staged", "lint-staged", "nano-staged", "pretty-quick"];
/// Programs that connect to a daemon of the host, whose socket is hidden.
const DAEMON_CLIENTS: [&str; 6] = ["docker", "docker-compose", "podman", "podman-compose", "kubectl", "minikube"];

/// Rejects a command of a hook that cannot work in a step; `text` is the whole command, one or more lines of shell.
///
/// # Errors
/// The command needs the index, a daemon of the host, a terminal, or write access to `.git`.
pub(super) fn reject_unsupported(text: &str) -> Result<(), ShellCommandError> {
    let separators = |c: char| c.is_whitespace() || ";|&(){}<>\"'`".contains(c);
    let words: Vec<&str> = text.split(separators).filter(|word| !word.is_empty()).collect();
    if let Some(word) = words.iter().find(|word| STAGING_WORDS.contains(word)) {
        return Err(ShellCommandError::StagedChanges { word: (*word).to_owned() });
    }
    if let Some(program) = words.iter().map(|word| base_name(word)).find(|word| DAEMON_CLIENTS.contains(word)) {
        return Err(ShellCommandError::HostDaemon { program: program.to_owned() });
    }
    if text.contains("/dev/tty") {
        return Err(ShellCommandError::Terminal);
    }
    match words.iter().enumerate().find_map(|(at, word)| writing_git_command(word, &words[at + 1..])) {
        Some(subcommand) => Err(ShellCommandError::RepositoryWrite { subcommand }),
        None => Ok(()),
    }
}

fn base_name(word: &str) -> &str {
    word.rsplit('/').next().unwrap_or(word)
}

/// If `word` is git, returns the subcommand in `rest` if it is a subcommand that writes.
fn writing_git_command(word: &str, rest: &[&str]) -> Option<&'static str> {
    if base_name(word) != "git" {
        return None;
    }
    let mut rest = rest.iter();
    let mut next = rest.next()?;
    while next.starts_with('-') {
        // These options take a value.
        if ["-c", "-C"].contains(next) {
            rest.next();
        }
        next = rest.next()?;
    }
    WRITING_GIT_COMMANDS.iter().find(|verb| *verb == next).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_survive_shell_splitting() {
        for word in ["a", "", "a b", "it's", "$X `y` \"z\"", "-", "a\nb", "é", "*"] {
            assert_eq!(shlex::split(&quote(word)).expect("quoted"), [word], "{word:?}");
        }
    }

    #[test]
    fn splits_or_rejects_lines() {
        let words = split("bash -c 'exec \"$@\" | wc' --  x\\ y").expect("words");
        assert_eq!(words, ["bash", "-c", "exec \"$@\" | wc", "--", "x y"]);
        for bad in ["", "  ", "''", "a 'b", "a # b"] {
            split(bad).expect_err(bad);
        }
    }

    #[test]
    fn rejects_commands_that_need_index_daemon_or_terminal() {
        let unsupported = [
            "prettier --write x && git add x",
            "git -c a=b -C . commit -m x",
            "git diff --cached --check",
            "npx lint-staged",
            "gitleaks protect --staged",
            "docker run --rm x",
            "exec < /dev/tty",
            "x=$(/usr/bin/git stash)",
        ];
        for text in unsupported {
            reject_unsupported(text).expect_err(text);
        }
        for text in ["git diff --exit-code", "git ls-files", "add x", "cargo test", "echo docker-less", "git grep add"]
        {
            assert_eq!(reject_unsupported(text), Ok(()), "{text}");
        }
    }
}
