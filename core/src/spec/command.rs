//! Parses commands of a spec into argument vectors.
//!
//! A list is an argument vector and never passes through a shell. A string is split into words as a POSIX shell does
//! (XCU 2.2 and 2.6.5). A string that uses other shell syntax is rejected.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::model::plan::{Argv, BadArgv};
use crate::spec::spec_text::SpecText;

/// A command as written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SpecCommand {
    /// An argument vector.
    Words(Vec<SpecText>),
    /// A line to split into words.
    Line(SpecText),
}

/// Error for a command that has no valid argument vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommandSyntaxError {
    /// The command names no program.
    #[error("the command is empty")]
    Empty,
    /// A word contains a NUL byte.
    #[error("an argument contains a NUL byte")]
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

impl SpecCommand {
    /// Returns the argument vector.
    ///
    /// # Errors
    /// Returns an error if there is no program, a word contains a NUL byte, a quote is not closed, or the line needs a
    /// shell.
    pub fn argv(&self) -> Result<Argv, CommandSyntaxError> {
        let words = match self {
            Self::Words(words) => words.iter().map(|word| word.0.clone()).collect(),
            Self::Line(line) => split_line(line.as_str())?,
        };
        Argv::new(words).map_err(|bad| match bad {
            BadArgv::Empty => CommandSyntaxError::Empty,
            BadArgv::Nul => CommandSyntaxError::Nul,
        })
    }
}

fn split_line(line: &str) -> Result<Vec<String>, CommandSyntaxError> {
    // A block scalar (`cmd: >`) ends with a line break; a shell ignores it too.
    let line = line.trim();
    if let Some(what) = find_shell_syntax(line) {
        return Err(CommandSyntaxError::NeedsShell { what });
    }
    let words = shlex::split(line).ok_or(CommandSyntaxError::OpenQuote)?;
    match words.first().and_then(|word| shell_construct(word)) {
        Some(what) => Err(CommandSyntaxError::NeedsShell { what }),
        None => Ok(words),
    }
}

/// The kind of quotes around the current character.
#[derive(Clone, Copy, PartialEq, Eq)]
enum QuoteState {
    None,
    Single,
    Double,
}

/// Returns the first syntax in `line` that only a shell can interpret, if any. Quoted characters are literal, except
/// for `$` and backticks in double quotes.
fn find_shell_syntax(line: &str) -> Option<&'static str> {
    let mut quote = QuoteState::None;
    let mut word_start = true;
    let mut chars = line.char_indices();
    while let Some((at, c)) = chars.next() {
        let begins = std::mem::replace(&mut word_start, quote == QuoteState::None && " \t".contains(c));
        match (quote, c) {
            (QuoteState::Single, '\'') | (QuoteState::Double, '"') => quote = QuoteState::None,
            (QuoteState::Single, _) => {}
            (_, '\\') => {
                chars.next();
            }
            (_, '$') if starts_expansion(&line[at + 1..]) => return Some("`$`"),
            (_, '`') => return Some("a backtick"),
            (QuoteState::Double, _) => {}
            (QuoteState::None, '\'') => quote = QuoteState::Single,
            (QuoteState::None, '"') => quote = QuoteState::Double,
            (QuoteState::None, _) => {
                if let Some(what) = unquoted_syntax(c, begins, &line[at + c.len_utf8()..]) {
                    return Some(what);
                }
            }
        }
    }
    None
}

/// Returns whether a `$` before `rest` starts an expansion. A lone `$` is literal.
fn starts_expansion(rest: &str) -> bool {
    rest.starts_with(|c: char| c.is_ascii_alphanumeric() || "_{(@*#?-$!'\"".contains(c))
}

/// Returns the shell syntax that the unquoted character `c` starts. `begins` is true if `c` is the first of a word.
fn unquoted_syntax(c: char, begins: bool, rest: &str) -> Option<&'static str> {
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
fn shell_construct(word: &str) -> Option<&'static str> {
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
        Some("a command that exists only in shells")
    } else {
        None
    }
}

impl<'de> Deserialize<'de> for SpecCommand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SpecCommandVisitor;
        impl<'de> Visitor<'de> for SpecCommandVisitor {
            type Value = SpecCommand;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string or a list of words")
            }
            fn visit_str<E: de::Error>(self, line: &str) -> Result<SpecCommand, E> {
                Ok(SpecCommand::Line(SpecText(line.to_owned())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<SpecCommand, A::Error> {
                let mut words = Vec::new();
                while let Some(word) = seq.next_element()? {
                    words.push(word);
                }
                Ok(SpecCommand::Words(words))
            }
        }
        deserializer.deserialize_any(SpecCommandVisitor)
    }
}

impl JsonSchema for SpecCommand {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Command".into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let word = generator.subschema_for::<SpecText>();
        json_schema!({
            "description": "A list of words, or a string that is split into words as a POSIX shell does, but without a shell.",
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

    fn argv(line: &str) -> Result<Vec<String>, CommandSyntaxError> {
        SpecCommand::Line(SpecText(line.to_owned())).argv().map(Into::into)
    }

    #[test]
    fn splits_lines_like_a_shell() {
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
    fn rejects_lines_that_need_a_shell() {
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
            assert!(matches!(argv(line), Err(CommandSyntaxError::NeedsShell { .. })), "{line:?}: {:?}", argv(line));
        }
    }

    #[test]
    fn rejects_empty_and_malformed_commands() {
        assert_eq!(argv(""), Err(CommandSyntaxError::Empty));
        assert_eq!(argv("   "), Err(CommandSyntaxError::Empty));
        assert_eq!(argv("'' a"), Err(CommandSyntaxError::Empty));
        assert_eq!(argv("a 'b"), Err(CommandSyntaxError::OpenQuote));
        assert_eq!(argv("a \\"), Err(CommandSyntaxError::OpenQuote));
        assert_eq!(SpecCommand::Words(vec![]).argv(), Err(CommandSyntaxError::Empty));
        assert_eq!(SpecCommand::Words(vec![SpecText("a\0".into())]).argv(), Err(CommandSyntaxError::Nul));
    }

    #[test]
    fn passes_lists_without_a_shell() {
        let words = ["sh", "-c", "a | b"].map(|word| SpecText(word.to_owned()));
        assert_eq!(SpecCommand::Words(words.to_vec()).argv().expect("argv").words(), ["sh", "-c", "a | b"]);
    }
}
