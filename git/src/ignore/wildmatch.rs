//! Matches names and paths against the glob patterns of `gitignore(5)`, byte by byte as git does.

use std::collections::HashMap;

/// How a pattern is matched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WildmatchMode {
    /// True if `*`, `?` and bracket expressions stop at a slash.
    pub(crate) is_path: bool,
    /// True if ASCII letters match in either case (`core.ignoreCase`).
    pub(crate) folds_case: bool,
}

/// Maximum number of runs of `*` in a pattern. Each run is one level of recursion.
pub(crate) const MAX_STARS: usize = 512;
/// Minimum number of runs of `*` for which failed attempts are cached. For fewer runs, retrying is cheaper than the
/// cache.
const MIN_CACHED_STARS: usize = 3;
/// Maximum number of cached failures in one match.
const MAX_CACHED_FAILURES: usize = 1 << 20;

/// Returns the number of runs of `*` in `pattern`.
pub(crate) fn star_runs(pattern: &[u8]) -> usize {
    let starts = |at: usize| pattern[at] == b'*' && (at == 0 || pattern[at - 1] != b'*');
    (0..pattern.len()).filter(|at| starts(*at)).count()
}

/// Returns whether a byte has a special meaning in a pattern.
pub(crate) fn is_special(byte: u8) -> bool {
    matches!(byte, b'*' | b'?' | b'[' | b'\\')
}

/// Returns whether the whole of `text` matches `pattern`, which has at most [`MAX_STARS`] runs of `*`.
pub(crate) fn matches(pattern: &[u8], text: &[u8], mode: WildmatchMode) -> bool {
    let remembers = star_runs(pattern) >= MIN_CACHED_STARS;
    let mut matcher = Wildmatcher { pattern, text, mode, failed: remembers.then(HashMap::new) };
    matcher.match_rest(0, 0).is_ok()
}

/// The reason why the rest of a pattern does not match the rest of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mismatch {
    /// The pattern does not match at this position.
    Here,
    /// The pattern does not match at any later position either, unless a `**` moves past a slash.
    BeforeSlash,
    /// The pattern does not match at any later position.
    Anywhere,
}

type MatchResult = Result<(), Mismatch>;

struct Wildmatcher<'a> {
    pattern: &'a [u8],
    text: &'a [u8],
    mode: WildmatchMode,
    /// The pairs of positions from which the match failed.
    failed: Option<HashMap<(usize, usize), Mismatch>>,
}

impl Wildmatcher<'_> {
    /// Matches the pattern from `p` on against the text from `t` on, and caches a failure.
    fn match_rest(&mut self, p: usize, t: usize) -> MatchResult {
        if let Some(mismatch) = self.failed.as_ref().and_then(|failed| failed.get(&(p, t))) {
            return Err(*mismatch);
        }
        let matched = self.match_from(p, t);
        if let (Err(mismatch), Some(failed)) = (matched, &mut self.failed)
            && failed.len() < MAX_CACHED_FAILURES
        {
            failed.insert((p, t), mismatch);
        }
        matched
    }

    fn match_from(&mut self, mut p: usize, mut t: usize) -> MatchResult {
        while let Some(byte) = self.pattern.get(p).copied() {
            let Some(here) = self.text_at(t) else {
                return if byte == b'*' { self.match_star(p, t) } else { Err(Mismatch::Anywhere) };
            };
            p = match byte {
                b'*' if self.is_single_component_star(p) => match self.slash_from(t) {
                    Some(slash) => {
                        t = slash;
                        p + 2
                    }
                    None => return Err(Mismatch::Anywhere),
                },
                b'*' => return self.match_star(p, t),
                b'?' if self.mode.is_path && here == b'/' => return Err(Mismatch::Here),
                b'?' => p + 1,
                b'[' => self.match_bracket(p, here)?,
                b'\\' if self.pattern.get(p + 1) == Some(&here) => p + 2,
                b'\\' => return Err(Mismatch::Here),
                literal if self.fold(literal) == here => p + 1,
                _ => return Err(Mismatch::Here),
            };
            t += 1;
        }
        if t < self.text.len() { Err(Mismatch::Here) } else { Ok(()) }
    }

    fn fold(&self, byte: u8) -> u8 {
        if self.mode.folds_case { byte.to_ascii_lowercase() } else { byte }
    }

    fn text_at(&self, t: usize) -> Option<u8> {
        self.text.get(t).map(|byte| self.fold(*byte))
    }

    fn slash_from(&self, t: usize) -> Option<usize> {
        self.text[t..].iter().position(|byte| *byte == b'/').map(|at| t + at)
    }

    /// Returns the position after the run of `*` at `p`, and whether the run also matches slashes.
    fn star_run(&self, p: usize) -> (usize, bool) {
        let next = p + self.pattern[p..].iter().take_while(|byte| **byte == b'*').count();
        if !self.mode.is_path {
            return (next, true);
        }
        let is_whole_part = (p == 0 || self.pattern[p - 1] == b'/')
            && matches!(&self.pattern[next..], [] | [b'/', ..] | [b'\\', b'/', ..]);
        (next, next > p + 1 && is_whole_part)
    }

    /// Returns whether the run of `*` at `p` is a single `*` before a slash, in a path.
    fn is_single_component_star(&self, p: usize) -> bool {
        let (next, crosses) = self.star_run(p);
        !crosses && next == p + 1 && self.pattern.get(next) == Some(&b'/')
    }

    /// Matches a pattern that starts with a run of `*`.
    fn match_star(&mut self, p: usize, t: usize) -> MatchResult {
        let (next, crosses) = self.star_run(p);
        // `**/` also matches zero directories.
        let is_directories = self.mode.is_path && crosses && self.pattern.get(next) == Some(&b'/');
        if is_directories && self.match_rest(next + 1, t).is_ok() {
            return Ok(());
        }
        let Some(byte) = self.pattern.get(next).copied() else {
            return if crosses || self.slash_from(t).is_none() { Ok(()) } else { Err(Mismatch::BeforeSlash) };
        };
        if !crosses && byte == b'/' {
            // Several `*` that are not a whole part, such as in `a**/b`.
            let slash = self.slash_from(t).ok_or(Mismatch::Anywhere)?;
            return self.match_rest(next + 1, slash + 1);
        }
        self.try_each_position(next, t, crosses)
    }

    /// Tries the pattern from `next` on at each position that the preceding `*` can reach from `t`.
    fn try_each_position(&mut self, next: usize, mut t: usize, crosses: bool) -> MatchResult {
        let literal = Some(self.pattern[next]).filter(|byte| !is_special(*byte)).map(|byte| self.fold(byte));
        let stopped = if crosses { Mismatch::Anywhere } else { Mismatch::BeforeSlash };
        while let Some(mut here) = self.text_at(t) {
            if let Some(literal) = literal {
                let ends = |byte: u8| byte == literal || (!crosses && byte == b'/');
                while !ends(here) {
                    t += 1;
                    here = self.text_at(t).ok_or(stopped)?;
                }
                if here != literal {
                    return Err(stopped);
                }
            }
            match self.match_rest(next, t) {
                Ok(()) => return Ok(()),
                Err(Mismatch::Here) if !crosses && here == b'/' => return Err(Mismatch::BeforeSlash),
                Err(Mismatch::BeforeSlash) if crosses => {}
                Err(Mismatch::Here) => {}
                Err(mismatch) => return Err(mismatch),
            }
            t += 1;
        }
        Err(Mismatch::Anywhere)
    }

    /// Matches one byte against the bracket expression at `p`. Returns the position after the expression.
    fn match_bracket(&self, p: usize, here: u8) -> Result<usize, Mismatch> {
        let is_negated = matches!(self.pattern.get(p + 1), Some(b'!' | b'^'));
        let mut set = BracketExpression {
            pattern: self.pattern,
            position: p + 1 + usize::from(is_negated),
            byte: here,
            mode: self.mode,
        };
        let found = set.parse().ok_or(Mismatch::Anywhere)?;
        if found == is_negated || (self.mode.is_path && here == b'/') {
            return Err(Mismatch::Here);
        }
        Ok(set.position)
    }
}

/// Parser state for a bracket expression.
struct BracketExpression<'a> {
    pattern: &'a [u8],
    position: usize,
    byte: u8,
    mode: WildmatchMode,
}

impl BracketExpression<'_> {
    /// Reads up to the closing bracket. Returns whether the byte is in the set, or `None` if the set is malformed.
    fn parse(&mut self) -> Option<bool> {
        let (mut found, mut before) = (false, None);
        // The first byte is never the closing bracket.
        loop {
            match (*self.pattern.get(self.position)?, before) {
                (b'\\', _) => {
                    let byte = *self.pattern.get(self.position + 1)?;
                    found |= self.byte == byte;
                    self.position += 2;
                    before = Some(byte);
                }
                (b'-', Some(low)) if self.pattern.get(self.position + 1).is_some_and(|byte| *byte != b']') => {
                    found |= self.in_range(low)?;
                    before = None;
                }
                (b'[', _) if self.pattern.get(self.position + 1) == Some(&b':') => {
                    let (holds, last) = self.parse_class()?;
                    found |= holds;
                    before = last;
                }
                (byte, _) => {
                    found |= self.byte == byte;
                    self.position += 1;
                    before = Some(byte);
                }
            }
            if *self.pattern.get(self.position)? == b']' {
                self.position += 1;
                return Some(found);
            }
        }
    }

    fn in_range(&mut self, low: u8) -> Option<bool> {
        let is_escaped = self.pattern.get(self.position + 1) == Some(&b'\\');
        let at = self.position + 1 + usize::from(is_escaped);
        let range = low..=*self.pattern.get(at)?;
        self.position = at + 1;
        Some(range.contains(&self.byte) || (self.mode.folds_case && range.contains(&self.byte.to_ascii_uppercase())))
    }

    /// Reads a class such as `[:alpha:]`. Returns whether the byte is in it, and the byte with which a range can
    /// begin.
    fn parse_class(&mut self) -> Option<(bool, Option<u8>)> {
        let inner = &self.pattern[self.position + 2..];
        let end = inner.iter().position(|byte| *byte == b']')?;
        let Some(name) = inner[..end].strip_suffix(b":") else {
            // This is not a class, so the bracket is a literal.
            self.position += 1;
            return Some((self.byte == b'[', Some(b'[')));
        };
        self.position += 2 + end + 1;
        let byte = self.byte;
        let holds = match name {
            b"alnum" => byte.is_ascii_alphanumeric(),
            b"alpha" => byte.is_ascii_alphabetic(),
            b"blank" => matches!(byte, b' ' | b'\t'),
            b"cntrl" => byte.is_ascii_control(),
            b"digit" => byte.is_ascii_digit(),
            b"graph" => byte.is_ascii_graphic(),
            b"lower" => byte.is_ascii_lowercase(),
            b"print" => byte.is_ascii_graphic() || byte == b' ',
            b"punct" => byte.is_ascii_punctuation(),
            // Git does not treat form feed and vertical tab as white space.
            b"space" => matches!(byte, b' ' | b'\t' | b'\n' | b'\r'),
            b"upper" => byte.is_ascii_uppercase() || (self.mode.folds_case && byte.is_ascii_lowercase()),
            b"xdigit" => byte.is_ascii_hexdigit(),
            _ => return None,
        };
        Some((holds, None))
    }
}
