//! Converts the path patterns of other tools (Python regular expressions and globs) to POSIX extended regular
//! expressions. A pattern without an exact equivalent is rejected with a reason, never approximated.

use std::fmt;

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, ClassBytes, ClassBytesRange, Hir, HirKind, Look, Repetition};

/// Maximum length of a pattern, in bytes.
const MAX_LENGTH: usize = 16 << 10;
/// Maximum nesting of the groups.
const MAX_NESTING: u32 = 64;
/// The largest number in braces; larger ones are not portable.
const MAX_COUNT: u32 = 255;
/// The characters of `\s` without Unicode.
const SPACE: [u8; 6] = [b'\t', b'\n', 0x0b, 0x0c, b'\r', b' '];

/// The reason why a pattern has no equivalent extended regular expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum UnsupportedPattern {
    /// The regular expression is too long.
    #[error("a regular expression of more than {MAX_LENGTH} bytes")]
    RegexTooLong,
    /// The regular expression is invalid, or uses features such as look-around.
    #[error("a regular expression that cannot be translated: {}", parse_error_reason(.0))]
    RegexSyntax(#[source] regex_syntax::Error),
    /// Python and our parser interpret the regular expression differently.
    #[error("a regular expression with {0}, which not all engines interpret in the same way")]
    AmbiguousRegex(AmbiguousSyntax),
    /// A literal is not UTF-8.
    #[error("a regular expression with bytes that are not UTF-8")]
    NonUtf8Literal,
    /// An alternation of single characters has one beyond ASCII.
    #[error("a regular expression with a choice of characters beyond ASCII")]
    NonAsciiChoice,
    /// An anchor other than those of a line.
    #[error("a regular expression with a word boundary (`\\b`)")]
    WordBoundary,
    /// An anchor is repeated.
    #[error("a regular expression that repeats an anchor")]
    RepeatedAnchor,
    /// A number in braces is not portable.
    #[error("a regular expression that repeats more than {MAX_COUNT} times")]
    TooManyRepetitions,
    /// A control character outside brackets, in a regular expression or a glob.
    #[error("a regular expression with control characters")]
    ControlCharacter,
    /// Brackets contain other members than visible ASCII characters.
    #[error("a regular expression with control characters or bytes in brackets")]
    UnprintableMember,
    /// The only member of brackets is `^`.
    #[error("a regular expression with `^` alone in brackets")]
    LoneCaret,
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

/// Syntax of a regular expression that Python and our parser interpret differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AmbiguousSyntax {
    /// A backslash before this character.
    Escape(char),
    /// `[` inside brackets.
    NestedBracket,
    /// An operator on sets, such as `&&`, inside brackets.
    DoubledSign,
    /// A space inside brackets in verbose mode.
    Space,
    /// The flag `R` or `U`.
    Flag,
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
            Self::Flag => f.write_str("a flag"),
            Self::LoneBrace => f.write_str("a lone `{`"),
        }
    }
}

/// An extended regular expression that is searched for in a path, byte by byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PathPattern {
    /// The expression.
    pub(super) ere: String,
    /// True if the pattern ignores case.
    pub(super) ignores_case: bool,
}

impl PathPattern {
    /// Converts a regular expression of Python's `re.search`.
    ///
    /// # Errors
    /// There is no equivalent extended regular expression.
    pub(super) fn from_python_regex(text: &str) -> Result<Self, UnsupportedPattern> {
        if text.len() > MAX_LENGTH {
            return Err(UnsupportedPattern::RegexTooLong);
        }
        reject_ambiguous_syntax(text)?;
        let parsed = ParserBuilder::new().unicode(false).utf8(false).nest_limit(MAX_NESTING).build().parse(text);
        let hir = parsed.map_err(UnsupportedPattern::RegexSyntax)?;
        let mut ere = String::new();
        write_hir(&hir, &mut ere)?;
        Ok(Self { ere, ignores_case: false })
    }

    /// Converts a glob, which ignores case.
    ///
    /// # Errors
    /// The glob is invalid.
    pub(super) fn from_glob(text: &str, dialect: GlobDialect) -> Result<Self, UnsupportedPattern> {
        if text.len() > MAX_LENGTH {
            return Err(UnsupportedPattern::GlobTooLong);
        }
        Ok(Self { ere: format!("^{}$", GlobTranslator { dialect, braces: 0 }.translate(text)?), ignores_case: true })
    }

    /// Returns whether every path matches.
    pub(super) fn matches_everything(&self) -> bool {
        ["", "^", ".*", "^.*", "^.*$"].contains(&self.ere.as_str())
    }
}

/// Returns the parser's error message without its excerpt of the expression.
fn parse_error_reason(error: &regex_syntax::Error) -> String {
    match error {
        regex_syntax::Error::Parse(error) => error.kind().to_string(),
        regex_syntax::Error::Translate(error) => error.kind().to_string(),
        _ => "it is not understood".to_owned(),
    }
}

/// Rejects syntax that Python and our parser interpret differently.
fn reject_ambiguous_syntax(text: &str) -> Result<(), UnsupportedPattern> {
    let refused = |syntax| Err(UnsupportedPattern::AmbiguousRegex(syntax));
    let mut in_class = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let escaped = after.chars().next().unwrap_or('\\');
                if "<>xuUNpPzRhH".contains(escaped) {
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
            ' ' | '#' if in_class && text.starts_with("(?x") => return refused(AmbiguousSyntax::Space),
            '(' if !in_class && (after.starts_with("?R") || after.starts_with("?U")) => {
                return refused(AmbiguousSyntax::Flag);
            }
            '{' if !in_class && !after.starts_with(|c: char| c.is_ascii_digit()) => {
                return refused(AmbiguousSyntax::LoneBrace);
            }
            _ => {}
        }
        rest = after;
    }
    Ok(())
}

fn write_hir(hir: &Hir, ere: &mut String) -> Result<(), UnsupportedPattern> {
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| UnsupportedPattern::NonUtf8Literal)?;
            text.chars().try_for_each(|c| write_char(c, ere))?;
        }
        HirKind::Class(Class::Bytes(class)) => write_class(class, ere)?,
        // An alternation of single characters is parsed as such a class, too.
        HirKind::Class(Class::Unicode(class)) => match class.to_byte_class() {
            Some(class) => write_class(&class, ere)?,
            None => return Err(UnsupportedPattern::NonAsciiChoice),
        },
        HirKind::Look(look) => ere.push(anchor_char(*look)?),
        HirKind::Repetition(repetition) => write_repetition(repetition, ere)?,
        HirKind::Capture(capture) => {
            ere.push('(');
            write_hir(&capture.sub, ere)?;
            ere.push(')');
        }
        HirKind::Concat(parts) => {
            for part in parts {
                let group = matches!(part.kind(), HirKind::Alternation(_));
                write_grouped(part, group, ere)?;
            }
        }
        HirKind::Alternation(parts) => {
            for (at, part) in parts.iter().enumerate() {
                ere.push_str(if at == 0 { "" } else { "|" });
                // An empty alternative is not portable.
                write_grouped(part, matches!(part.kind(), HirKind::Empty), ere)?;
            }
        }
    }
    Ok(())
}

fn write_grouped(hir: &Hir, group: bool, ere: &mut String) -> Result<(), UnsupportedPattern> {
    if !group {
        return write_hir(hir, ere);
    }
    ere.push('(');
    write_hir(hir, ere)?;
    ere.push(')');
    Ok(())
}

fn anchor_char(look: Look) -> Result<char, UnsupportedPattern> {
    match look {
        Look::Start | Look::StartLF => Ok('^'),
        Look::End | Look::EndLF => Ok('$'),
        _ => Err(UnsupportedPattern::WordBoundary),
    }
}

fn write_repetition(repetition: &Repetition, ere: &mut String) -> Result<(), UnsupportedPattern> {
    let single = match repetition.sub.kind() {
        HirKind::Literal(literal) => literal.0.len() == 1,
        HirKind::Class(_) | HirKind::Capture(_) => true,
        HirKind::Look(_) => return Err(UnsupportedPattern::RepeatedAnchor),
        _ => false,
    };
    write_grouped(&repetition.sub, !single, ere)?;
    match (repetition.min, repetition.max) {
        (0, None) => ere.push('*'),
        (1, None) => ere.push('+'),
        (0, Some(1)) => ere.push('?'),
        (min, max) if min.max(max.unwrap_or(0)) > MAX_COUNT => {
            return Err(UnsupportedPattern::TooManyRepetitions);
        }
        (min, None) => ere.push_str(&format!("{{{min},}}")),
        (min, Some(max)) if min == max => ere.push_str(&format!("{{{min}}}")),
        (min, Some(max)) => ere.push_str(&format!("{{{min},{max}}}")),
    }
    Ok(())
}

fn write_char(c: char, ere: &mut String) -> Result<(), UnsupportedPattern> {
    if c.is_control() {
        return Err(UnsupportedPattern::ControlCharacter);
    }
    if "\\^$.[|()*+?{".contains(c) {
        ere.push('\\');
    }
    ere.push(c);
    Ok(())
}

/// Writes a set of bytes as a bracket expression. A set that contains the last byte comes from a negated set, and
/// is written as one.
fn write_class(class: &ClassBytes, ere: &mut String) -> Result<(), UnsupportedPattern> {
    let mut set = class.clone();
    let negated = set.ranges().last().is_some_and(|range| range.end() == u8::MAX);
    if negated {
        set.negate();
    }
    if negated && set.ranges().iter().all(|range| (range.start(), range.end()) == (b'\n', b'\n')) {
        ere.push('.');
        return Ok(());
    }
    let space = ClassBytes::new(SPACE.map(|byte| ClassBytesRange::new(byte, byte)));
    let mut common = set.clone();
    common.intersect(&space);
    let has_space = common == space;
    if has_space {
        set.difference(&space);
    }
    ere.push_str(if negated { "[^" } else { "[" });
    write_members(&set, ere)?;
    ere.push_str(if has_space { "[:space:]]" } else { "]" });
    Ok(())
}

/// Writes the members of a bracket expression. Special characters get positions where they have no special meaning:
/// `]` first, `^` not first, a backslash not before a letter, `-` last.
fn write_members(set: &ClassBytes, ere: &mut String) -> Result<(), UnsupportedPattern> {
    let has = |byte: u8| set.ranges().iter().any(|range| range.start() <= byte && byte <= range.end());
    let specials = *b"]^\\-[";
    let mut plain = set.clone();
    plain.difference(&ClassBytes::new(specials.map(|byte| ClassBytesRange::new(byte, byte))));
    let mut members = String::from(if has(b']') { "]" } else { "" });
    for range in plain.ranges() {
        if !(b' '..=b'~').contains(&range.start()) || !(b' '..=b'~').contains(&range.end()) {
            return Err(UnsupportedPattern::UnprintableMember);
        }
        let (start, end) = (char::from(range.start()), char::from(range.end()));
        match range.len() {
            1 => members.push(start),
            2 => members.extend([start, end]),
            _ => members.extend([start, '-', end]),
        }
    }
    members.extend(specials.iter().filter(|byte| **byte != b']' && has(**byte)).map(|byte| char::from(*byte)));
    if members == "^" {
        return Err(UnsupportedPattern::LoneCaret);
    }
    // `[` is last, so that it cannot start a class name such as `[:space:]`, which needs a following `:`, `.` or
    // `=`.
    ere.push_str(&members.replacen("-[", "[-", 1));
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

struct GlobTranslator {
    dialect: GlobDialect,
    braces: usize,
}

impl GlobTranslator {
    fn translate(mut self, text: &str) -> Result<String, UnsupportedPattern> {
        let mut ere = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            rest = self.translate_char(c, rest, &mut ere)?;
        }
        if self.braces == 0 { Ok(ere) } else { Err(UnsupportedPattern::OpenBrace) }
    }

    /// Translates `c`, which comes before `rest`; returns the unused part of `rest`.
    fn translate_char<'t>(&mut self, c: char, rest: &'t str, ere: &mut String) -> Result<&'t str, UnsupportedPattern> {
        let doublestar = self.dialect == GlobDialect::Doublestar;
        match c {
            '*' if !doublestar => ere.push_str(".*"),
            '*' => match (rest.strip_prefix("*/"), rest.strip_prefix('*')) {
                (Some(rest), _) => {
                    ere.push_str("(.*/)?");
                    return Ok(rest);
                }
                (None, Some(rest)) => {
                    ere.push_str(".*");
                    return Ok(rest);
                }
                (None, None) => ere.push_str("[^/]*"),
            },
            '?' => ere.push_str(if doublestar { "[^/]" } else { "." }),
            '{' => {
                self.braces += 1;
                ere.push('(');
            }
            '}' if self.braces > 0 => {
                self.braces -= 1;
                ere.push(')');
            }
            ',' if self.braces > 0 => ere.push('|'),
            '[' => return translate_brackets(rest, ere),
            '\\' => {
                let escaped = rest.chars().next().ok_or(UnsupportedPattern::TrailingBackslash)?;
                write_char(escaped, ere)?;
                return Ok(&rest[escaped.len_utf8()..]);
            }
            c => write_char(c, ere)?,
        }
        Ok(rest)
    }
}

/// Translates a bracket expression of a glob; `rest` starts after the opening bracket.
fn translate_brackets<'t>(rest: &'t str, ere: &mut String) -> Result<&'t str, UnsupportedPattern> {
    let (set, after) = rest.split_once(']').ok_or(UnsupportedPattern::OpenBracket)?;
    let negated = set.strip_prefix(['!', '^']);
    let members = negated.unwrap_or(set);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if members.is_empty() || !members.chars().all(plain) {
        return Err(UnsupportedPattern::UnsupportedMember);
    }
    ere.push_str(if negated.is_some() { "[^" } else { "[" });
    ere.push_str(members);
    ere.push(']');
    Ok(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translate_python(text: &str) -> Result<String, UnsupportedPattern> {
        PathPattern::from_python_regex(text).map(|pattern| pattern.ere)
    }

    #[test]
    fn translates_python_regexes() {
        let cases = [
            (r"^docs/", r"^docs/"),
            (r"\.py$", r"\.py$"),
            (r"^(a|b)\.(c|dd)$", r"^([ab])\.(c|dd)$"),
            (
                r"(?x)^(  src/one\.py  # why
              | src/two/.* )$",
                r"^(src/one\.py|src/two/.*)$",
            ),
            (r"(?i)readme", r"[Rr][Ee][Aa][Dd][Mm][Ee]"),
            (r"[^/]+\.lock", r"[^/]+\.lock"),
            (r"a[\\/]b", r"a[/\]b"),
            (r"\d{2,3}\s\S?", r"[0-9]{2,3}[[:space:]][^[:space:]]?"),
            (r"(?:ab)+?c", r"(ab)+c"),
            (r"(?P<x>a)?", r"(a)?"),
            (r"", r""),
            (r"a|", r"a|()"),
            (r"[]a-]", r"[]a-]"),
        ];
        let wrong = cases.iter().filter(|(text, ere)| translate_python(text).as_deref() != Ok(*ere));
        let wrong: Vec<_> = wrong.map(|(text, ere)| (text, ere, translate_python(text))).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }

    #[test]
    fn rejects_untranslatable_regexes_with_reason() {
        let cases = [
            (r"^(?!vendor/)", "look-around"),
            (r"(?<=a)b", "look-around"),
            (r"(a)\1", "backreferences"),
            (r"\bx\b", "word boundary"),
            (r"[[a]", "inside of brackets"),
            (r"(", "unclosed group"),
            (r"\x41", "`\\x`"),
            (r"x{", "lone"),
            ("a\u{1}", "control"),
            (r"a{300}", "more than 255"),
            (r"[é]", "Unicode"),
        ];
        let named =
            |text: &str, why: &str| translate_python(text).is_err_and(|refused| refused.to_string().contains(why));
        let wrong: Vec<_> = cases
            .iter()
            .filter(|(text, why)| !named(text, why))
            .map(|(text, _)| (text, translate_python(text)))
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        assert!(translate_python(&"(".repeat(200)).is_err());
        assert!(translate_python(&"a".repeat(MAX_LENGTH + 1)).is_err());
    }

    #[test]
    fn translates_globs() {
        use GlobDialect::{Doublestar, Gobwas};
        let cases = [
            (Gobwas, "*.{js,ts}", r"^.*\.(js|ts)$"),
            (Gobwas, "src/**/*.go", r"^src/.*.*/.*\.go$"),
            (Doublestar, "**/*.go", r"^(.*/)?[^/]*\.go$"),
            (Doublestar, "src/**", r"^src/.*$"),
            (Gobwas, "a?[!b-d]\\*", r"^a.[^b-d]\*$"),
        ];
        for (dialect, text, ere) in cases {
            assert_eq!(PathPattern::from_glob(text, dialect).expect(text).ere, ere, "{text}");
        }
        for bad in ["{a", "[a", "[]]", "a\\", "[a/b]"] {
            PathPattern::from_glob(bad, Gobwas).expect_err(bad);
        }
    }
}
