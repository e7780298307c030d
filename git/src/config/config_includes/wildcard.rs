//! Matches paths against the wildcards in git's conditions. `*` and `?` do not match slashes; `**` does.

use std::collections::HashSet;

/// Maximum length of a pattern in bytes, and maximum number of wildcards; patterns beyond the limits match nothing.
const MAX_PATTERN: usize = 4096;
const MAX_STARS: usize = 64;

/// Returns whether the whole of `text` matches `pattern`.
pub(crate) fn matches(pattern: &[u8], text: &[u8], ignores_case: bool) -> bool {
    let fold = |bytes: &[u8]| if ignores_case { bytes.to_ascii_lowercase() } else { bytes.to_vec() };
    let (pattern, text) = (fold(pattern), fold(text));
    let stars = pattern.iter().filter(|byte| **byte == b'*').count();
    pattern.len() <= MAX_PATTERN
        && stars <= MAX_STARS
        && ConditionMatcher { pattern: &pattern, text: &text, failed: HashSet::new() }.rest_matches(0, 0)
}

struct ConditionMatcher<'a> {
    pattern: &'a [u8],
    text: &'a [u8],
    /// The pairs of positions from which the match failed, so that no pair is tried twice.
    failed: HashSet<(usize, usize)>,
}

impl ConditionMatcher<'_> {
    fn rest_matches(&mut self, mut p: usize, mut t: usize) -> bool {
        let begun = (p, t);
        if self.failed.contains(&begun) {
            return false;
        }
        let matched = loop {
            let (rest, here) = (&self.pattern[p..], self.text.get(t).copied());
            match rest {
                [] => break here.is_none(),
                [b'*', ..] => break self.match_star(p, t),
                [b'?', ..] if here.is_some_and(|byte| byte != b'/') => (p, t) = (p + 1, t + 1),
                [b'[', ..] => match match_class(rest, here) {
                    Some((true, length)) => (p, t) = (p + length, t + 1),
                    _ => break false,
                },
                [b'\\', byte, ..] if here == Some(*byte) => (p, t) = (p + 2, t + 1),
                [b'\\', ..] | [b'?', ..] => break false,
                [byte, ..] if here == Some(*byte) => (p, t) = (p + 1, t + 1),
                _ => break false,
            }
        };
        if !matched {
            self.failed.insert(begun);
        }
        matched
    }

    fn match_star(&mut self, p: usize, t: usize) -> bool {
        let stars = self.pattern[p..].iter().take_while(|byte| **byte == b'*').count();
        let (next, begins_part) = (p + stars, p == 0 || self.pattern[p - 1] == b'/');
        let after = self.pattern.get(next).copied();
        let crosses = stars > 1 && begins_part && matches!(after, None | Some(b'/'));
        // `**/` also matches zero parts.
        if crosses && after == Some(b'/') && self.rest_matches(next + 1, t) {
            return true;
        }
        let end = if crosses { self.text.len() } else { t + part_length(&self.text[t..]) };
        for at in t..=end {
            // All positions from this one on have been tried before.
            if self.failed.contains(&(p, at)) {
                return false;
            }
            if self.rest_matches(next, at) {
                return true;
            }
            self.failed.insert((p, at));
        }
        false
    }
}

fn part_length(text: &[u8]) -> usize {
    text.iter().position(|byte| *byte == b'/').unwrap_or(text.len())
}

/// Returns whether a bracket expression at the start of `pattern` matches a byte, and the length of the expression.
/// Returns `None` if the expression is not closed.
fn match_class(pattern: &[u8], byte: Option<u8>) -> Option<(bool, usize)> {
    let is_negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if is_negated { 2 } else { 1 };
    let (mut at, mut found) = (first, false);
    loop {
        match *pattern.get(at)? {
            b']' if at > first => break,
            b'\\' => {
                found |= byte == Some(*pattern.get(at + 1)?);
                at += 2;
            }
            low if pattern.get(at + 1) == Some(&b'-') && pattern.get(at + 2).is_some_and(|high| *high != b']') => {
                found |= byte.is_some_and(|byte| (low..=pattern[at + 2]).contains(&byte));
                at += 3;
            }
            other => {
                found |= byte == Some(other);
                at += 1;
            }
        }
    }
    let matched = byte.is_some_and(|byte| byte != b'/') && found != is_negated;
    Some((matched, at + 1))
}

#[cfg(test)]
mod tests {
    use crate::config::config_includes::wildcard::{MAX_STARS, matches};

    #[test]
    fn matches_as_git_does() {
        for (pattern, text) in [
            ("/a/b", "/a/b"),
            ("/a/*", "/a/b"),
            ("/a/?", "/a/b"),
            ("/a/[a-c]", "/a/b"),
            ("/a/[!x]", "/a/b"),
            ("/a/**", "/a/b/c"),
            ("**/c", "/a/b/c"),
            ("**/c", "c"),
            ("/a/**/c", "/a/c"),
            ("/a/**/c", "/a/b/b/c"),
            ("/a/\\*", "/a/*"),
            ("/*b*d*", "/abcd"),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} {text}");
        }
        for (pattern, text) in [
            ("/a/*", "/a/b/c"),
            ("/a?b", "/a/b"),
            ("/a[!x]b", "/a/b"),
            ("/a**", "/a/b"),
            ("/a/b", "/a/B"),
            ("/a/[b", "/a/b"),
            ("/a/\\*", "/a/b"),
            ("/a", "/a/b"),
            ("", "/a"),
        ] {
            assert!(!matches(pattern.as_bytes(), text.as_bytes(), false), "{pattern} {text}");
        }
        assert!(matches(b"/A/b", b"/a/B", true));
    }

    #[test]
    fn terminates_quickly_for_any_pattern() {
        let (pattern, text) = ("*a".repeat(MAX_STARS) + "b", "a".repeat(4_000));
        assert!(!matches(pattern.as_bytes(), text.as_bytes(), false));
    }
}
