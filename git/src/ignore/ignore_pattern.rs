//! Parses an ignore file and finds the rule that decides about a path, following `gitignore(5)` and git's
//! implementation.
//!
//! `gix-ignore` (0.24) was evaluated and is not exact. It drops patterns that consist of spaces and keeps a
//! carriage return at the end of a file. It reads past a NUL, does not treat a UTF-16 byte order mark as text, and
//! only supports the interpretation of `a**/b` in later releases.

use crate::ignore::wildmatch::{self, MAX_STARS, WildmatchMode};

/// How a git release interprets `**` next to other characters of the same part, such as `a**/b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GitRelease {
    /// Releases up to 2.51: the text after the literal prefix of a pattern is matched separately, so that the `**`
    /// matches slashes.
    Early,
    /// Later releases: the `**` is a plain `*`.
    Late,
}

/// The rules of one file.
#[derive(Debug, Default)]
pub(crate) struct IgnorePatterns {
    list: Vec<IgnorePattern>,
    /// True if git releases differ on a rule.
    pub(crate) releases_differ: bool,
    /// True if the file would make libgit2 crash or hang.
    pub(crate) breaks_libgit2: bool,
}

/// One rule.
#[derive(Debug)]
struct IgnorePattern {
    /// The pattern without `!` and without a leading and a trailing slash.
    text: Vec<u8>,
    /// Number of bytes before the first special character.
    literal_len: usize,
    kind: PatternKind,
    is_negated: bool,
    only_directories: bool,
}

/// How the text of a rule is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PatternKind {
    /// With the name, byte by byte.
    Name,
    /// With the end of the name; the pattern is a single `*` and a literal.
    NameEnd,
    /// With the name, using wildcards.
    NameGlob,
    /// With the path relative to the directory of the file.
    Path,
}

/// A path to which rules are applied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CandidatePath<'a> {
    /// The path relative to the top of the repository.
    pub(crate) path: &'a [u8],
    /// The last part of the path.
    pub(crate) name: &'a [u8],
    pub(crate) is_directory: bool,
    /// The value of `core.ignoreCase`.
    pub(crate) folds_case: bool,
}

/// Returns the lines that contain a rule, each with its number. Comments, line ends and insignificant spaces are
/// removed.
pub(crate) fn rule_lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !line.starts_with(b"#"));
    let lines = lines.map(|(line, number)| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Git stops at the first NUL.
        let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
        (number, without_trailing_spaces(line))
    });
    lines.filter(|(_, line)| !line.is_empty())
}

/// Returns whether an ignore file could make libgit2 (1.9) crash or hang. It hangs on a pattern that begins with a
/// form feed or a vertical tab, and crashes on `!` before an empty pattern such as `//`.
pub(crate) fn breaks_libgit2(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    // libgit2 stops at the first NUL.
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    text.split(|byte| *byte == b'\n').any(|line| {
        let pattern = line.strip_prefix(b"!").unwrap_or(line);
        let takes_back = pattern.len() < line.len();
        let first = pattern.iter().find(|byte| !matches!(byte, b'/' | b' ' | b'\t' | b'\r' | b'\\'));
        first.map_or(takes_back && !pattern.is_empty(), |byte| matches!(byte, b'\x0b' | b'\x0c'))
    })
}

/// Removes the spaces at the end of a line, unless the first of them is escaped with a backslash. Other whitespace
/// is kept.
fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let (mut end, mut at) = (0, 0);
    while at < line.len() {
        match line[at] {
            b' ' => at += 1,
            // A backslash at the very end keeps all spaces.
            b'\\' if at + 1 == line.len() => return line,
            b'\\' => {
                at += 2;
                end = at;
            }
            _ => {
                at += 1;
                end = at;
            }
        }
    }
    &line[..end]
}

impl IgnorePatterns {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// The number of a line with more wildcards than the matcher supports.
    pub(crate) fn parse(text: &[u8]) -> Result<Self, usize> {
        let mut patterns = Self { breaks_libgit2: breaks_libgit2(text), ..Self::default() };
        for (number, line) in rule_lines(text) {
            if wildmatch::star_runs(line) > MAX_STARS {
                return Err(number);
            }
            patterns.list.extend(IgnorePattern::parse(line));
        }
        patterns.releases_differ = patterns.list.iter().any(IgnorePattern::differs_by_release);
        Ok(patterns)
    }

    /// Returns whether the file has no effect.
    pub(crate) fn is_empty(&self) -> bool {
        self.list.is_empty() && !self.breaks_libgit2
    }

    /// Returns whether the last matching rule ignores the path, or `None` if no rule matches. The first `base`
    /// bytes of the path are the directory of the file.
    pub(crate) fn decide(&self, subject: CandidatePath<'_>, base: usize, reading: GitRelease) -> Option<bool> {
        let last = self.list.iter().rev().find(|pattern| pattern.matches(subject, base, reading))?;
        Some(!last.is_negated)
    }
}

impl IgnorePattern {
    /// Parses a line. Returns `None` if its pattern is empty, since it matches no path.
    fn parse(line: &[u8]) -> Option<Self> {
        let (takes_back, text) = line.strip_prefix(b"!").map_or((false, line), |rest| (true, rest));
        let (only_directories, text) = text.strip_suffix(b"/").map_or((false, text), |rest| (true, rest));
        let is_path = text.contains(&b'/');
        let text = text.strip_prefix(b"/").unwrap_or(text);
        let special = |text: &[u8]| text.iter().position(|byte| wildmatch::is_special(*byte));
        let kind = match (is_path, special(text), text) {
            (true, ..) => PatternKind::Path,
            (false, None, _) => PatternKind::Name,
            (false, _, [b'*', end @ ..]) if special(end).is_none() => PatternKind::NameEnd,
            _ => PatternKind::NameGlob,
        };
        let literal = special(text).unwrap_or(text.len());
        (!text.is_empty()).then(|| Self {
            text: text.to_vec(),
            literal_len: literal,
            kind,
            is_negated: takes_back,
            only_directories,
        })
    }

    fn differs_by_release(&self) -> bool {
        let (before, rest) = self.text.split_at(self.literal_len);
        self.kind == PatternKind::Path && before.last().is_some_and(|byte| *byte != b'/') && rest.starts_with(b"**")
    }

    fn matches(&self, subject: CandidatePath<'_>, base: usize, reading: GitRelease) -> bool {
        if self.only_directories && !subject.is_directory {
            return false;
        }
        let same = |one: &[u8], other: &[u8]| match subject.folds_case {
            true => one.eq_ignore_ascii_case(other),
            false => one == other,
        };
        let name = subject.name;
        match self.kind {
            PatternKind::Name => same(&self.text, name),
            PatternKind::NameEnd => {
                let end = &self.text[1..];
                name.len().checked_sub(end.len()).is_some_and(|from| same(end, &name[from..]))
            }
            PatternKind::NameGlob => {
                wildmatch::matches(&self.text, name, WildmatchMode { is_path: false, folds_case: subject.folds_case })
            }
            PatternKind::Path => {
                let path = &subject.path[base..];
                let begins =
                    path.get(..self.literal_len).is_some_and(|start| same(&self.text[..self.literal_len], start));
                if !begins || self.literal_len == self.text.len() {
                    return begins && path.len() == self.literal_len;
                }
                let skipped = match reading {
                    GitRelease::Early => self.literal_len,
                    GitRelease::Late => self.literal_len.saturating_sub(1),
                };
                let mode = WildmatchMode { is_path: true, folds_case: subject.folds_case };
                wildmatch::matches(&self.text[skipped..], &path[skipped..], mode)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decides(rules: &str, path: &str) -> Option<bool> {
        decides_as(rules, path, GitRelease::Early)
    }

    fn decides_as(rules: &str, path: &str, reading: GitRelease) -> Option<bool> {
        let (path, is_directory) = path.strip_suffix('/').map_or((path, false), |path| (path, true));
        let name = path.rsplit('/').next().unwrap_or(path).as_bytes();
        let subject = CandidatePath { path: path.as_bytes(), name, is_directory, folds_case: false };
        IgnorePatterns::parse(rules.as_bytes()).expect("parses").decide(subject, 0, reading)
    }

    #[test]
    fn the_last_matching_rule_decides() {
        assert_eq!(decides("*.log\n!k.log\n", "d/k.log"), Some(false));
        assert_eq!(decides("!k.log\n*.log\n", "d/k.log"), Some(true));
        assert_eq!(decides("*.log\n", "d/k.txt"), None);
        assert_eq!(decides("d/\n", "d"), None);
        assert_eq!(decides("d/\n", "d/"), Some(true));
        assert_eq!(decides("/d\n", "e/d"), None);
        assert_eq!(decides("e/d", "e/d"), Some(true));
        assert_eq!(decides("e/d", "x/e/d"), None);
    }

    #[test]
    fn trims_lines_as_git_does() {
        let lines = |text: &'static str| rule_lines(text.as_bytes()).map(|(_, line)| line).collect::<Vec<_>>();
        assert_eq!(
            lines("\u{feff}a\r\n#b\n\n \n c \\  \nd\t\ne\u{c}\nf\\\n"),
            [&b"a"[..], b" c \\ ", b"d\t", b"e\x0c", b"f\\"]
        );
        assert_eq!(lines("a\r"), [b"a"]);
        assert_eq!(lines("a\r\r\n"), [b"a\r"]);
        assert_eq!(lines("a\0b\n\0\n"), [b"a"]);
    }

    #[test]
    fn interprets_inner_double_stars_by_release() {
        assert_eq!(decides_as("a**/b", "ax/y/b", GitRelease::Early), Some(true));
        assert_eq!(decides_as("a**/b", "ax/y/b", GitRelease::Late), None);
        assert_eq!(decides_as("a**/b", "ax/b", GitRelease::Late), Some(true));
        assert!(IgnorePatterns::parse(b"a**/b").expect("parses").releases_differ);
        assert!(!IgnorePatterns::parse(b"a/**/b\n**/b\na**\n").expect("parses").releases_differ);
    }

    #[test]
    fn detects_patterns_that_break_libgit2() {
        for text in [
            "\u{c}\n",
            "a\n!\u{b}b",
            "/\u{c}",
            " \t\u{c}x",
            "\r\u{b}",
            "!//",
            "!\\\0a",
            "*a\n!// \t\n",
            "!\\",
            "\u{feff}\u{c}",
        ] {
            assert!(breaks_libgit2(text.as_bytes()), "{text:?}");
        }
        for text in ["", "a\u{c}\n", "#\u{c}\n", "!", "!\n", "//", "!/a"] {
            assert!(!breaks_libgit2(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn rejects_too_many_wildcards() {
        let line = "*a".repeat(MAX_STARS + 1);
        assert_eq!(IgnorePatterns::parse(format!("x\n{line}\n").as_bytes()).err(), Some(2));
    }
}
