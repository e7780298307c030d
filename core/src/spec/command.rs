//! Parses commands of a spec into argument vectors.
//!
//! A list is an argument vector and never passes through a shell. A string is split into words as a POSIX shell does
//! (XCU 2.2 and 2.6.5). A string that uses other shell syntax is rejected.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::written::Text;
use crate::plan::{Argv, BadArgv};

/// A command as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Command {
    /// An argument vector.
    Words(Vec<Text>),
    /// A line to split into words.
    Line(Text),
}

/// Error for a command that has no valid argument vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadCommand {
    /// The command names no program.
    #[error("the command is empty")]
    Empty,
    /// A word contains a NUL byte.
    #[error("an argument holds a NUL byte")]
    Nul,
    /// A quote is not closed, or a backslash ends the line.
    #[error("the command ends inside a quote")]
    OpenQuote,
    /// The line uses syntax that only a shell can interpret.
    #[error("{what} needs a shell, but commands run without one")]
    NeedsShell {
        /// Human-readable name of the shell syntax.
        what: &'static str,
    },
}

impl Command {
    /// Returns the argument vector.
    ///
    /// # Errors
    /// Returns an error if there is no program, a word contains a NUL byte, a quote is not closed, or the line needs a
    /// shell.
    pub fn argv(&self) -> Result<Argv, BadCommand> {
        let words = match self {
            Self::Words(words) => words.iter().map(|word| word.0.clone()).collect(),
            Self::Line(line) => split(line.as_str())?,
        };
        Argv::new(words).map_err(|bad| match bad {
            BadArgv::Empty => BadCommand::Empty,
            BadArgv::Nul => BadCommand::Nul,
        })
    }
}

fn split(line: &str) -> Result<Vec<String>, BadCommand> {
    // A block scalar (`cmd: >`) ends with a line break; a shell ignores it too.
    let line = line.trim();
    if let Some(what) = shell_syntax(line) {
        return Err(BadCommand::NeedsShell { what });
    }
    let words = shlex::split(line).ok_or(BadCommand::OpenQuote)?;
    match words.first().and_then(|word| shell_word(word)) {
        Some(what) => Err(BadCommand::NeedsShell { what }),
        None => Ok(words),
    }
}

/// The kind of quotes around the current character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    None,
    Single,
    Double,
}

/// Returns the first syntax in `line` that only a shell can interpret, if any. Quoted characters are literal, except
/// for `$` and backticks in double quotes.
fn shell_syntax(line: &str) -> Option<&'static str> {
    let mut quote = Quote::None;
    let mut word_start = true;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        let begins = std::mem::replace(&mut word_start, quote == Quote::None && " \t".contains(c));
        match (quote, c) {
            (Quote::Single, '\'') | (Quote::Double, '"') => quote = Quote::None,
            (Quote::Single, _) => {}
            (_, '\\') => {
                chars.next();
            }
            (_, '$') if expands(&line[at + 1..]) => return Some("`$`"),
            (_, '`') => return Some("a backtick"),
            (Quote::Double, _) => {}
            (Quote::None, '\'') => quote = Quote::Single,
            (Quote::None, '"') => quote = Quote::Double,
            (Quote::None, _) => {
                if let Some(what) = operator(c, begins, &line[at + c.len_utf8()..]) {
                    return Some(what);
                }
            }
        }
    }
    None
}

/// Returns whether a `$` before `rest` starts an expansion. A lone `$` is literal.
fn expands(rest: &str) -> bool {
    rest.starts_with(|c: char| c.is_ascii_alphanumeric() || "_{(@*#?-$!'\"".contains(c))
}

/// Returns the shell syntax that the unquoted character `c` starts. `begins` is true if `c` is the first of a word.
fn operator(c: char, begins: bool, rest: &str) -> Option<&'static str> {
    let rest_of_word = || rest.split([' ', '\t', '\n']).next().unwrap_or("");
    match c {
        '|' => Some("a pipe"),
        '&' => Some("`&`"),
        ';' => Some("`;`"),
        '<' | '>' => Some("a redirection"),
        '(' | ')' => Some("a parenthesis"),
        '\n' => Some("a second line"),
        '*' | '?' => Some("a glob"),
        '[' if rest_of_word().contains(']') => Some("a glob"),
        '~' if begins => Some("`~`"),
        '#' if begins => Some("a comment"),
        _ => None,
    }
}

/// Returns the shell construct if the first word of a command is not a program.
fn shell_word(word: &str) -> Option<&'static str> {
    const RESERVED: [&str; 16] = [
        "!", "{", "}", "case", "do", "done", "elif", "else", "esac", "fi", "for", "if", "in", "then", "until", "while",
    ];
    const BUILTIN: [&str; 15] = [
        ".", ":", "alias", "cd", "eval", "exec", "exit", "export", "readonly", "set", "shift", "source", "trap",
        "umask", "unset",
    ];
    let assigns = word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
    });
    if assigns {
        Some("an assignment before the program")
    } else if RESERVED.contains(&word) {
        Some("a reserved word of shells")
    } else if BUILTIN.contains(&word) {
        Some("a command that only shells have")
    } else {
        None
    }
}

impl<'de> Deserialize<'de> for Command {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CommandVisitor;
        impl<'de> Visitor<'de> for CommandVisitor {
            type Value = Command;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of words")
            }
            fn visit_str<E: de::Error>(self, line: &str) -> Result<Command, E> {
                Ok(Command::Line(Text(line.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Command, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = seq.next_element()? {
                    words.push(word);
                }
                Ok(Command::Words(words))
            }
        }
        deserializer.deserialize_any(CommandVisitor)
    }
}

impl JsonSchema for Command {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Command".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let word = generator.subschema_for::<Text>();
        json_schema!({
            "description": "A list of words, or a string that is split into words as a POSIX shell does; no shell ever sees it.",
            "anyOf": [
                { "type": "string", "minLength": 1 },
                { "type": "array", "items": word, "minItems": 1 },
            ],
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn argv(line: &str) -> Result<Vec<String>, BadCommand> {
        Command::Line(Text(line.to_owned())).argv().map(Into::into)
    }

    #[test]
    fn a_line_is_split_as_a_shell_splits_words() {
        let cases: &[(&str, &[&str])] = &[
            ("cargo fmt --check", &["cargo", "fmt", "--check"]),
            ("grep 'a b' \"c  d\" e\\ f", &["grep", "a b", "c  d", "e f"]),
            ("  x   y ", &["x", "y"]),
            ("printf '%s|&;<>()$`*?[a]~#' \"a|b\"", &["printf", "%s|&;<>()$`*?[a]~#", "a|b"]),
            ("echo \\$HOME \\* a#b a~ 5$ [", &["echo", "$HOME", "*", "a#b", "a~", "5$", "["]),
            ("find . -exec true {} +", &["find", ".", "-exec", "true", "{}", "+"]),
            ("cargo test --features=a", &["cargo", "test", "--features=a"]),
            ("x ''", &["x", ""]),
            ("a block scalar ends in a line break\n", &["a", "block", "scalar", "ends", "in", "a", "line", "break"]),
        ];
        for (line, words) in cases {
            assert_eq!(argv(line).expect(line), *words, "{line}");
        }
    }

    #[test]
    fn a_line_that_only_a_shell_could_run_is_refused() {
        let lines = [
            "a | b",
            "a && b",
            "a & b",
            "a; b",
            "a > b",
            "a 2>&1",
            "a < b",
            "echo $X",
            "echo \"$X\"",
            "echo ${X}",
            "echo $(b)",
            "echo `b`",
            "echo \"`b`\"",
            "(a)",
            "ls *.rs",
            "ls a?",
            "ls [ab]",
            "ls ~/x",
            "a\nb",
            "a # b",
            "X=1 a",
            "if true",
            "cd a",
            "! a",
            "export A",
            "echo $?",
            "echo $'a'",
        ];
        for line in lines {
            assert!(matches!(argv(line), Err(BadCommand::NeedsShell { .. })), "{line:?}: {:?}", argv(line));
        }
    }

    #[test]
    fn what_is_no_command_is_refused() {
        assert_eq!(argv(""), Err(BadCommand::Empty));
        assert_eq!(argv("   "), Err(BadCommand::Empty));
        assert_eq!(argv("'' a"), Err(BadCommand::Empty));
        assert_eq!(argv("a 'b"), Err(BadCommand::OpenQuote));
        assert_eq!(argv("a \\"), Err(BadCommand::OpenQuote));
        assert_eq!(Command::Words(vec![]).argv(), Err(BadCommand::Empty));
        assert_eq!(Command::Words(vec![Text("a\0".into())]).argv(), Err(BadCommand::Nul));
    }

    #[test]
    fn a_list_never_meets_a_shell() {
        let words = ["sh", "-c", "a | b"].map(|word| Text(word.to_owned()));
        assert_eq!(Command::Words(words.to_vec()).argv().expect("argv").words(), ["sh", "-c", "a | b"]);
    }
}
