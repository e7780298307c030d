//! Converts the path patterns of other tools (Python regular expressions and globs) to patterns of a spec. A pattern
//! that could match other paths there is rejected with a reason, never approximated.

use std::fmt;

use crate::decision::file_matcher::{FileMatcher, FileRuleError};
use crate::model::plan::{FileRules, REGEX_PREFIX};

/// Maximum length of a pattern, in bytes.
const MAX_LENGTH: usize = 16 << 10;

/// The reason why a pattern has no equivalent in a spec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnsupportedPattern {
    /// The regular expression is too long.
    #[error("a regular expression of more than {MAX_LENGTH} bytes")]
    RegexTooLong,
    /// The regular expression is invalid.
    #[error(transparent)]
    Invalid(#[from] FileRuleError),
    /// Python and the matcher of a spec interpret the regular expression differently.
    #[error("a regular expression with {0}, which not all engines interpret in the same way")]
    AmbiguousRegex(AmbiguousSyntax),
    /// The glob is too long.
    #[error("a glob of more than {MAX_LENGTH} bytes")]
    GlobTooLong,
    /// A brace of a glob is not closed.
    #[error("a glob with an open brace")]
    OpenBrace,
    /// A bracket of a glob is not closed.
    #[error("a glob with an open bracket")]
    OpenBracket,
    /// A glob ends before the character that it escapes.
    #[error("a glob that ends in a backslash")]
    TrailingBackslash,
    /// Brackets of a glob contain other members than letters and digits.
    #[error("a glob whose brackets hold more than letters and digits")]
    UnsupportedMember,
}

/// Syntax of a regular expression that Python and the matcher of a spec interpret differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AmbiguousSyntax {
    /// A backslash before this character.
    Escape(char),
    /// `[` inside brackets.
    NestedBracket,
    /// An operator on sets, such as `&&`, inside brackets.
    DoubledSign,
    /// A space or a `#` inside brackets in verbose mode.
    Space,
    /// `{` that begins no repetition.
    LoneBrace,
}

impl fmt::Display for AmbiguousSyntax {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Escape(escaped) => write!(f, "`\\{escaped}`"),
            Self::NestedBracket => f.write_str("`[` inside of brackets"),
            Self::DoubledSign => f.write_str("a doubled character inside brackets"),
            Self::Space => f.write_str("a space inside of brackets"),
            Self::LoneBrace => f.write_str("a lone `{`"),
        }
    }
}

/// A regular expression that is searched for in a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathPattern {
    regex: String,
}

impl PathPattern {
    /// Converts a regular expression of Python's `re.search`.
    ///
    /// # Errors
    /// The expression is invalid, or Python and the matcher of a spec could interpret it differently.
    pub(super) fn from_python_regex(text: &str) -> Result<Self, UnsupportedPattern> {
        if text.len() > MAX_LENGTH {
            return Err(UnsupportedPattern::RegexTooLong);
        }
        reject_ambiguous_syntax(text)?;
        Self::validated(text.to_owned())
    }

    /// Converts a glob of lefthook.
    ///
    /// # Errors
    /// The glob is invalid.
    pub(super) fn from_glob(text: &str, dialect: GlobDialect, case: GlobCase) -> Result<Self, UnsupportedPattern> {
        if text.len() > MAX_LENGTH {
            return Err(UnsupportedPattern::GlobTooLong);
        }
        let whole = format!("^{}$", GlobTranslator { dialect, braces: 0 }.translate(text)?);
        // A pattern is searched for anywhere in a path, so it need not begin or end with `.*`.
        let start = whole.strip_prefix("^.*").unwrap_or(&whole);
        let regex = if start.ends_with("\\.*$") { start } else { start.strip_suffix(".*$").unwrap_or(start) };
        let flag = if case == GlobCase::Ignored { "(?i)" } else { "" };
        Self::validated(format!("{flag}{regex}"))
    }

    fn validated(regex: String) -> Result<Self, UnsupportedPattern> {
        let pattern = Self { regex };
        let rules = FileRules { include: vec![pattern.to_spec_pattern()], ..FileRules::default() };
        FileMatcher::new(&rules)?;
        Ok(pattern)
    }

    /// Returns the pattern as written in a spec.
    pub(super) fn to_spec_pattern(&self) -> String {
        format!("{REGEX_PREFIX}{}", self.regex)
    }

    /// Returns a pattern that matches the paths that both patterns match.
    ///
    /// # Errors
    /// The combined pattern is invalid.
    pub(super) fn and(&self, other: &Self) -> Result<Self, UnsupportedPattern> {
        // A comment of the verbose mode ends at the end of a line.
        let group = |pattern: &Self| {
            let end = if has_verbose_flag(&pattern.regex) { "\n" } else { "" };
            format!("(?=(?s:.*?)(?:{}{end}))", pattern.regex)
        };
        if has_back_reference(&other.regex) {
            let text = other.regex.clone();
            return Err(FileRuleError::Regex { pattern: text, problem: "it refers to a group".to_owned() }.into());
        }
        Self::validated(format!("^{}{}", group(self), group(other)))
    }

    /// Returns whether every path matches.
    pub(super) fn matches_everything(&self) -> bool {
        ["", "^", ".*", "^.*", "^.*$"].contains(&self.regex.as_str())
    }

    /// Returns whether no path matches.
    pub(super) fn matches_nothing(&self) -> bool {
        self.regex == "^$"
    }
}

/// Returns whether a flag of the expression turns on the verbose mode.
fn has_verbose_flag(regex: &str) -> bool {
    regex.match_indices("(?").any(|(at, _)| {
        let flags = regex[at + 2..].split([')', ':']).next().unwrap_or_default();
        flags.contains('x') && flags.chars().all(|c| c.is_ascii_alphabetic() || c == '-')
    })
}

fn has_back_reference(regex: &str) -> bool {
    let is_digit = |at: usize| regex.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit);
    regex.match_indices('\\').any(|(at, _)| is_digit(at)) || regex.contains("(?P=") || regex.contains("(?(")
}

/// Rejects syntax that Python and the matcher of a spec interpret differently.
fn reject_ambiguous_syntax(text: &str) -> Result<(), UnsupportedPattern> {
    let refused = |syntax| Err(UnsupportedPattern::AmbiguousRegex(syntax));
    let is_verbose = has_verbose_flag(text);
    let mut in_class = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let escaped = after.chars().next().unwrap_or('\\');
                if "<>xuUNpPzRhHeGKO0".contains(escaped) {
                    return refused(AmbiguousSyntax::Escape(escaped));
                }
                rest = &after[escaped.len_utf8().min(after.len())..];
                continue;
            }
            '[' if in_class => return refused(AmbiguousSyntax::NestedBracket),
            '[' => {
                in_class = true;
                let negated = after.strip_prefix('^').unwrap_or(after);
                rest = negated.strip_prefix(']').unwrap_or(negated);
                continue;
            }
            ']' => in_class = false,
            '&' | '~' | '-' if in_class && after.starts_with(c) => return refused(AmbiguousSyntax::DoubledSign),
            '#' | ' ' | '\t' | '\n' if in_class && is_verbose => return refused(AmbiguousSyntax::Space),
            '{' if !in_class && !after.starts_with(|c: char| c.is_ascii_digit()) => {
                return refused(AmbiguousSyntax::LoneBrace);
            }
            _ => {}
        }
        rest = after;
    }
    Ok(())
}

/// The syntax of a glob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GlobDialect {
    /// `*` matches any characters including slashes, and `**` is the same.
    Gobwas,
    /// `*` stops at a slash, and `**/` matches any number of directories.
    Doublestar,
}

/// The treatment of upper and lower case by a glob.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GlobCase {
    /// Both match.
    Ignored,
    /// The case must be the same.
    Sensitive,
}

struct GlobTranslator {
    dialect: GlobDialect,
    braces: usize,
}

impl GlobTranslator {
    fn translate(mut self, text: &str) -> Result<String, UnsupportedPattern> {
        let mut regex = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            rest = self.translate_char(c, rest, &mut regex)?;
        }
        if self.braces == 0 { Ok(regex) } else { Err(UnsupportedPattern::OpenBrace) }
    }

    /// Translates `c`, which comes before `rest`; returns the unused part of `rest`.
    fn translate_char<'t>(
        &mut self,
        c: char,
        rest: &'t str,
        regex: &mut String,
    ) -> Result<&'t str, UnsupportedPattern> {
        let doublestar = self.dialect == GlobDialect::Doublestar;
        match c {
            '*' if !doublestar => {
                regex.push_str(".*");
                return Ok(rest.trim_start_matches('*'));
            }
            '*' => match (rest.strip_prefix("*/"), rest.strip_prefix('*')) {
                (Some(rest), _) => {
                    regex.push_str("(.*/)?");
                    return Ok(rest);
                }
                (None, Some(rest)) => {
                    regex.push_str(".*");
                    return Ok(rest);
                }
                (None, None) => regex.push_str("[^/]*"),
            },
            '?' => regex.push_str(if doublestar { "[^/]" } else { "." }),
            '{' => {
                self.braces += 1;
                regex.push('(');
            }
            '}' if self.braces > 0 => {
                self.braces -= 1;
                regex.push(')');
            }
            ',' if self.braces > 0 => regex.push('|'),
            '[' => return translate_brackets(rest, regex),
            '\\' => {
                let escaped = rest.chars().next().ok_or(UnsupportedPattern::TrailingBackslash)?;
                push_literal(escaped, regex);
                return Ok(&rest[escaped.len_utf8()..]);
            }
            c => push_literal(c, regex),
        }
        Ok(rest)
    }
}

/// Adds a character to a regular expression, which matches it literally.
fn push_literal(c: char, regex: &mut String) {
    if "\\^$.[]|()*+?{}".contains(c) {
        regex.push('\\');
    }
    regex.push(c);
}

/// Translates a bracket expression of a glob; `rest` starts after the opening bracket.
fn translate_brackets<'t>(rest: &'t str, regex: &mut String) -> Result<&'t str, UnsupportedPattern> {
    let (set, after) = rest.split_once(']').ok_or(UnsupportedPattern::OpenBracket)?;
    let negated = set.strip_prefix(['!', '^']);
    let members = negated.unwrap_or(set);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if members.is_empty() || members.contains("--") || !members.chars().all(plain) {
        return Err(UnsupportedPattern::UnsupportedMember);
    }
    regex.push_str(if negated.is_some() { "[^" } else { "[" });
    regex.push_str(members);
    regex.push(']');
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decision::file_matcher::{FileCandidate, FileMatch};
    use crate::model::drift::EntryKind;

    fn matches(pattern: &PathPattern, path: &str) -> bool {
        let rules = FileRules { include: vec![pattern.to_spec_pattern()], ..FileRules::default() };
        let file = FileCandidate { path: path.as_bytes(), kind: EntryKind::File, executable: false };
        FileMatcher::new(&rules).expect("valid").match_file(file) == FileMatch::Chosen
    }

    #[test]
    fn keeps_python_regexes() {
        let cases = [
            (r"^docs/", "docs/a.py", "x/docs/a.py"),
            (r"^(?!vendor/).*\.py$", "a.py", "vendor/a.py"),
            ("(?x)^(\n  src/one\\.py  # why\n  | src/two/.*\n)$", "src/two/x", "src/one.pyc"),
            (r"(?i)readme", "README", "read.me"),
            (r"^(a)\1\.py\Z", "aa.py", "ab.py"),
            (r"\ba[]-]b", "a]b", "za]b"),
            (r"(?<=x)y|(?P<q>z)(?P=q)", "zz", "z"),
        ];
        for (text, path, other) in cases {
            let pattern = PathPattern::from_python_regex(text).expect(text);
            assert!(matches(&pattern, path) && !matches(&pattern, other), "{text}");
        }
    }

    #[test]
    fn rejects_ambiguous_and_invalid_regexes_with_reason() {
        let long = "a".repeat(MAX_LENGTH + 1);
        let cases = [
            (r"[[a]", "inside of brackets"),
            (r"[a&&b]", "doubled"),
            (r"(?ix)[a #]", "space inside"),
            (r"(", "not a regular expression"),
            (r"\x41", "`\\x`"),
            (r"x{", "lone"),
            (long.as_str(), "more than 16384 bytes"),
        ];
        for (text, why) in cases {
            let problem = PathPattern::from_python_regex(text).expect_err(text).to_string();
            assert!(problem.contains(why), "{text}: {problem}");
        }
    }

    #[test]
    fn combined_pattern_matches_what_both_match() {
        let pattern = |text| PathPattern::from_python_regex(text).expect("valid");
        let both = pattern("(?x)^src/ # the sources").and(&pattern("(?i)\\.py$|b")).expect("valid");
        let matched =
            ["src/a.PY", "src/b", "a.py", "src/c", "SRC/a.py"].into_iter().filter(|path| matches(&both, path));
        assert_eq!(matched.collect::<Vec<_>>(), ["src/a.PY", "src/b"]);
        assert!(pattern("a").and(&pattern("(a)\\1")).is_err());
    }

    #[test]
    fn translates_globs() {
        use GlobDialect::{Doublestar, Gobwas};
        let cases = [
            (Gobwas, "*.{js,ts}", r"regex:(?i)\.(js|ts)$"),
            (Gobwas, "src/**/*.go", r"regex:(?i)^src/.*/.*\.go$"),
            (Doublestar, "**/*.go", r"regex:(?i)^(.*/)?[^/]*\.go$"),
            (Doublestar, "src/**", r"regex:(?i)^src/"),
            (Gobwas, "a?[!b-d]\\*", r"regex:(?i)^a.[^b-d]\*$"),
            (Gobwas, "a.*", r"regex:(?i)^a\."),
        ];
        for (dialect, text, regex) in cases {
            let pattern = PathPattern::from_glob(text, dialect, GlobCase::Ignored).expect(text);
            assert_eq!(pattern.to_spec_pattern(), regex, "{text}");
        }
        for bad in ["{a", "[a", "[]]", "a\\", "[a/b]"] {
            PathPattern::from_glob(bad, Gobwas, GlobCase::Sensitive).expect_err(bad);
        }
    }
}
