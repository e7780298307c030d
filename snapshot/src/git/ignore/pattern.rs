//! Parses a file of ignore rules and finds the rule that decides about a path, as `gitignore(5)` and git's own reader
//! have it.
//!
//! `gix-ignore` (0.24) was compared and is not exact: it drops patterns of blanks alone, keeps a carriage return at the end
//! of a file, reads on behind a NUL, takes the mark of UTF-16 for no text, and reads `a**/b` as late releases alone do.

use super::wildmatch::{self, MAX_STARS, Mode};

/// How a git release reads `**` behind other characters of the same part, such as `a**/b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// Up to 2.51: what follows the literal beginning of a pattern is matched alone, so that the `**` matches slashes.
    Early,
    /// Later ones: the `**` is a plain `*`.
    Late,
}

/// The rules of one file.
#[derive(Debug, Default)]
pub(super) struct Patterns {
    list: Vec<Pattern>,
    /// Whether git releases differ on a rule.
    pub(super) readings_differ: bool,
    /// Whether libgit2 would crash over the file, or never end reading it.
    pub(super) breaks_libgit2: bool,
}

/// One rule.
#[derive(Debug)]
struct Pattern {
    /// The pattern without `!`, without a slash at its end, and without one at its beginning.
    text: Vec<u8>,
    /// The number of bytes before the first special one.
    literal: usize,
    kind: Kind,
    takes_back: bool,
    only_directories: bool,
}

/// How the text of a rule is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// With the name, byte by byte.
    Name,
    /// With the end of the name, behind a single `*`.
    NameEnd,
    /// With the name, by wildcards.
    NameGlob,
    /// With the path relative to the directory of the file.
    Path,
}

/// A path that rules are applied to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    /// The path relative to the top of the repository.
    pub(super) path: &'a [u8],
    /// Its last part.
    pub(super) name: &'a [u8],
    pub(super) is_directory: bool,
    /// `core.ignoreCase`.
    pub(super) folds_case: bool,
}

/// Returns the lines of a file of rules that hold a rule, each with its number: without comments, line ends and
/// blanks that do not count.
pub(super) fn rule_lines(text: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !line.starts_with(b"#"));
    let lines = lines.map(|(line, number)| {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        // Git reads up to the first NUL.
        let line = line.split(|byte| *byte == 0).next().unwrap_or_default();
        (number, without_trailing_spaces(line))
    });
    lines.filter(|(_, line)| !line.is_empty())
}

/// Returns whether libgit2 (1.9) could crash over a file of rules or never end reading it: it does not get past a line
/// whose pattern begins with a form feed or a vertical tab, and crashes over `!` before an empty pattern such as `//`.
pub(super) fn breaks_libgit2(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    // It reads up to the first NUL.
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    text.split(|byte| *byte == b'\n').any(|line| {
        let pattern = line.strip_prefix(b"!").unwrap_or(line);
        let takes_back = pattern.len() < line.len();
        let first = pattern.iter().find(|byte| !matches!(byte, b'/' | b' ' | b'\t' | b'\r' | b'\\'));
        first.map_or(takes_back && !pattern.is_empty(), |byte| matches!(byte, b'\x0b' | b'\x0c'))
    })
}

/// Cuts the spaces at the end of a line, unless a backslash escapes the first of them. No other blank is cut.
fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let (mut end, mut at) = (0, 0);
    while at < line.len() {
        match line[at] {
            b' ' => at += 1,
            // A backslash at the very end keeps everything.
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

impl Patterns {
    /// Parses the text of a file.
    ///
    /// # Errors
    /// A line has more wildcards than are matched; its number.
    pub(super) fn parse(text: &[u8]) -> Result<Self, usize> {
        let mut patterns = Self { breaks_libgit2: breaks_libgit2(text), ..Self::default() };
        for (number, line) in rule_lines(text) {
            if wildmatch::stars(line) > MAX_STARS {
                return Err(number);
            }
            patterns.list.extend(Pattern::parse(line));
        }
        patterns.readings_differ = patterns.list.iter().any(Pattern::readings_differ);
        Ok(patterns)
    }

    /// Returns whether the file has no say.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && !self.breaks_libgit2
    }

    /// Returns whether the last rule that matches ignores the path; `None` where no rule matches. The first `base`
    /// bytes of the path name the directory of the file.
    pub(super) fn decide(&self, subject: Subject<'_>, base: usize, reading: Reading) -> Option<bool> {
        let last = self.list.iter().rev().find(|pattern| pattern.matches(subject, base, reading))?;
        Some(!last.takes_back)
    }
}

impl Pattern {
    /// Parses a line; `None` where its pattern is empty, which matches nothing.
    fn parse(line: &[u8]) -> Option<Self> {
        let (takes_back, text) = line.strip_prefix(b"!").map_or((false, line), |rest| (true, rest));
        let (only_directories, text) = text.strip_suffix(b"/").map_or((false, text), |rest| (true, rest));
        let is_path = text.contains(&b'/');
        let text = text.strip_prefix(b"/").unwrap_or(text);
        let special = |text: &[u8]| text.iter().position(|byte| wildmatch::is_special(*byte));
        let kind = match (is_path, special(text), text) {
            (true, ..) => Kind::Path,
            (false, None, _) => Kind::Name,
            (false, _, [b'*', end @ ..]) if special(end).is_none() => Kind::NameEnd,
            _ => Kind::NameGlob,
        };
        let literal = special(text).unwrap_or(text.len());
        (!text.is_empty()).then(|| Self { text: text.to_vec(), literal, kind, takes_back, only_directories })
    }

    fn readings_differ(&self) -> bool {
        let (before, rest) = self.text.split_at(self.literal);
        self.kind == Kind::Path && before.last().is_some_and(|byte| *byte != b'/') && rest.starts_with(b"**")
    }

    fn matches(&self, subject: Subject<'_>, base: usize, reading: Reading) -> bool {
        if self.only_directories && !subject.is_directory {
            return false;
        }
        let same = |one: &[u8], other: &[u8]| match subject.folds_case {
            true => one.eq_ignore_ascii_case(other),
            false => one == other,
        };
        let name = subject.name;
        match self.kind {
            Kind::Name => same(&self.text, name),
            Kind::NameEnd => {
                let end = &self.text[1..];
                name.len().checked_sub(end.len()).is_some_and(|from| same(end, &name[from..]))
            }
            Kind::NameGlob => {
                wildmatch::matches(&self.text, name, Mode { is_path: false, folds_case: subject.folds_case })
            }
            Kind::Path => {
                let path = &subject.path[base..];
                let begins = path.get(..self.literal).is_some_and(|start| same(&self.text[..self.literal], start));
                if !begins || self.literal == self.text.len() {
                    return begins && path.len() == self.literal;
                }
                let skipped = match reading {
                    Reading::Early => self.literal,
                    Reading::Late => self.literal.saturating_sub(1),
                };
                let mode = Mode { is_path: true, folds_case: subject.folds_case };
                wildmatch::matches(&self.text[skipped..], &path[skipped..], mode)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decides(rules: &str, path: &str) -> Option<bool> {
        decides_as(rules, path, Reading::Early)
    }

    fn decides_as(rules: &str, path: &str, reading: Reading) -> Option<bool> {
        let (path, is_directory) = path.strip_suffix('/').map_or((path, false), |path| (path, true));
        let name = path.rsplit('/').next().unwrap_or(path).as_bytes();
        let subject = Subject { path: path.as_bytes(), name, is_directory, folds_case: false };
        Patterns::parse(rules.as_bytes()).expect("parses").decide(subject, 0, reading)
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
    fn cuts_only_what_git_cuts() {
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
    fn reads_stars_within_a_part_as_each_release_does() {
        assert_eq!(decides_as("a**/b", "ax/y/b", Reading::Early), Some(true));
        assert_eq!(decides_as("a**/b", "ax/y/b", Reading::Late), None);
        assert_eq!(decides_as("a**/b", "ax/b", Reading::Late), Some(true));
        assert!(Patterns::parse(b"a**/b").expect("parses").readings_differ);
        assert!(!Patterns::parse(b"a/**/b\n**/b\na**\n").expect("parses").readings_differ);
    }

    #[test]
    fn knows_what_libgit2_cannot_read() {
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
    fn refuses_more_wildcards_than_are_matched() {
        let line = "*a".repeat(MAX_STARS + 1);
        assert_eq!(Patterns::parse(format!("x\n{line}\n").as_bytes()).err(), Some(2));
    }
}
