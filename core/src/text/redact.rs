//! Removes the secrets of a caller from the output and the records of a run.
//!
//! Steps do not inherit secrets by default. Redaction covers secrets that are allowed by an allowlist, stored in the
//! tree, or found by a tool in another way. It detects secrets that appear in one piece and in a common encoding; it
//! cannot stop a step that disguises its output.

mod record_redaction;
mod secret_patterns;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, packed};

pub use secret_patterns::{MIN_SECRET_BYTES, is_secret_name};

/// The replacement for a secret.
pub const REDACTION_MARK: &str = "[redacted]";

/// The secrets of one caller. Its `Debug` output does not contain them.
#[derive(Clone, Default)]
pub struct Redactor(Option<Arc<SecretFinder>>);

struct SecretFinder {
    patterns: Vec<Vec<u8>>,
    max_pattern_bytes: usize,
    matcher: AhoCorasick,
    /// A fast check that excludes most text without secrets; `None` if the CPU or the set of patterns does not support
    /// it.
    prefilter: Option<packed::Searcher>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes = self.0.as_ref().map_or(0, |finder| finder.patterns.len());
        write!(f, "Redactor({shapes} shapes)")
    }
}

impl Redactor {
    /// Collects the secrets in `environment`: values of variables with secret names ([`is_secret_name`]) and passwords
    /// in URLs, of at least [`MIN_SECRET_BYTES`] bytes. `is_path` returns whether an absolute path exists.
    pub fn from_environment<'e>(
        environment: impl IntoIterator<Item = (&'e str, &'e str)>,
        is_path: impl Fn(&str) -> bool,
    ) -> Self {
        let found = secret_patterns::find_secrets(environment, is_path);
        let shapes: BTreeSet<Vec<u8>> =
            found.iter().flat_map(|secret| secret_patterns::search_patterns(secret)).collect();
        Self(SecretFinder::new(shapes.into_iter().collect()).map(Arc::new))
    }

    /// Returns the number of bytes around a part that are needed to find all secrets that overlap the part.
    pub fn margin(&self) -> usize {
        self.0.as_ref().map_or(0, |finder| finder.max_pattern_bytes - 1)
    }

    /// Returns `text` without secrets.
    pub fn redact_text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let spans = self.secret_ranges(text.as_bytes());
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let clean = replace_ranges(text.as_bytes(), 0..text.len(), &spans);
        Cow::Owned(String::from_utf8_lossy(&clean).into_owned())
    }

    /// Returns the part of `bytes` without secrets, and the start offsets in `bytes` of the secrets that overlap the
    /// part. The result is correct if `bytes` contains [`Redactor::margin`] bytes on each side of the part, or all that
    /// exist.
    pub fn redact_part(&self, bytes: &[u8], part: Range<usize>) -> (Vec<u8>, Vec<usize>) {
        let mut spans = self.secret_ranges(bytes);
        spans.retain(|span| span.start < part.end && span.end > part.start);
        (replace_ranges(bytes, part, &spans), spans.into_iter().map(|span| span.start).collect())
    }

    /// Creates a redactor for a stream.
    pub fn redact_stream(&self) -> RedactedStream {
        RedactedStream { redactor: self.clone(), pending: Vec::new(), redacted_prefix: 0, redacted_count: 0 }
    }

    /// Returns the ranges of secrets, in order; overlapping ranges are merged.
    fn secret_ranges(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        self.secret_ranges_before(bytes, bytes.len())
    }

    /// Returns the ranges of secrets that start before `limit`, in order; overlapping ranges are merged.
    fn secret_ranges_before(&self, bytes: &[u8], limit: usize) -> Vec<Range<usize>> {
        let Some(finder) = self.0.as_ref().filter(|finder| finder.may_contain_secret(bytes)) else { return Vec::new() };
        let mut spans: Vec<Range<usize>> = Vec::new();
        for found in finder.matcher.find_overlapping_iter(bytes).filter(|found| found.start() < limit) {
            // Matches are ordered by their ends.
            let mut span = found.start()..found.end();
            while let Some(last) = spans.pop_if(|last| last.end > span.start) {
                span.start = span.start.min(last.start);
            }
            spans.push(span);
        }
        spans
    }

    /// Returns the length of the longest tail of `bytes` that may be the start of a secret.
    fn partial_secret_bytes(&self, bytes: &[u8]) -> usize {
        let Some(finder) = &self.0 else { return 0 };
        let begins = |shape: &Vec<u8>, tail: &[u8]| shape.len() > tail.len() && shape.starts_with(tail);
        let tails = (1..=bytes.len().min(self.margin())).rev();
        let begun = |length: &usize| {
            let tail = &bytes[bytes.len() - length..];
            finder.patterns.iter().any(|shape| begins(shape, tail))
        };
        tails.into_iter().find(begun).unwrap_or(0)
    }
}

impl SecretFinder {
    /// Returns `None` if there are no secrets.
    fn new(shapes: Vec<Vec<u8>>) -> Option<Self> {
        let longest = shapes.iter().map(Vec::len).max()?;
        // The automaton is not a DFA: each short-lived process would have to build the complete transition table.
        let mut builder = AhoCorasick::builder();
        let all = builder.kind(Some(AhoCorasickKind::ContiguousNFA)).build(&shapes).ok()?;
        let any = packed::Searcher::new(&shapes);
        Some(Self { patterns: shapes, max_pattern_bytes: longest, matcher: all, prefilter: any })
    }

    fn may_contain_secret(&self, bytes: &[u8]) -> bool {
        self.prefilter.as_ref().is_none_or(|any| any.find(bytes).is_some())
    }
}

/// Returns the part of `bytes` with [`REDACTION_MARK`] in place of each span. All spans overlap the part.
fn replace_ranges(bytes: &[u8], part: Range<usize>, spans: &[Range<usize>]) -> Vec<u8> {
    let mut clean = Vec::with_capacity(part.len());
    let mut at = part.start;
    for span in spans {
        clean.extend_from_slice(&bytes[at..span.start.max(at)]);
        clean.extend_from_slice(REDACTION_MARK.as_bytes());
        at = span.end.min(part.end);
    }
    clean.extend_from_slice(&bytes[at..part.end]);
    clean
}

/// Removes secrets from a stream of bytes, even if they are split between pieces. The bytes that it holds back are
/// fewer than the bytes of the longest secret.
#[derive(Debug)]
pub struct RedactedStream {
    redactor: Redactor,
    /// Bytes that are held back, because they may contain the start of a secret.
    pending: Vec<u8>,
    /// Number of bytes at the start of `pending` that belong to a secret whose mark was already written.
    redacted_prefix: usize,
    redacted_count: u64,
}

impl RedactedStream {
    /// Adds a piece of the stream and returns the bytes that can be released.
    pub fn push_chunk<'b>(&mut self, piece: &'b [u8]) -> Cow<'b, [u8]> {
        if self.redactor.0.is_none() {
            return Cow::Borrowed(piece);
        }
        self.pending.extend_from_slice(piece);
        // Secrets that start before this offset are completely buffered.
        let limit = self.pending.len().saturating_sub(self.redactor.margin());
        Cow::Owned(self.drain_redacted(limit))
    }

    /// Returns whether bytes are held back.
    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns all bytes that cannot be part of an unfinished secret, and keeps the rest. For readers that display the
    /// stream while it pauses.
    pub fn release_safe_bytes(&mut self) -> Vec<u8> {
        let begun = self.redactor.partial_secret_bytes(&self.pending);
        self.drain_redacted(self.pending.len() - begun)
    }

    /// Returns the remaining bytes and the number of secrets in the stream. If the stream was cut here, a possible
    /// start of a secret at its end counts as a secret.
    pub fn finish(mut self, cut: bool) -> (Vec<u8>, u64) {
        let begun = if cut { self.redactor.partial_secret_bytes(&self.pending) } else { 0 };
        let mut rest = self.drain_redacted(self.pending.len() - begun);
        if begun > self.redacted_prefix {
            rest.extend_from_slice(REDACTION_MARK.as_bytes());
            self.redacted_count += 1;
        }
        (rest, self.redacted_count)
    }

    fn drain_redacted(&mut self, limit: usize) -> Vec<u8> {
        let spans = self.redactor.secret_ranges_before(&self.pending, limit);
        let mut clean = Vec::with_capacity(limit);
        let mut at = self.redacted_prefix;
        for span in spans {
            if span.start >= at {
                clean.extend_from_slice(&self.pending[at..span.start]);
                clean.extend_from_slice(REDACTION_MARK.as_bytes());
                self.redacted_count += 1;
            }
            at = at.max(span.end);
        }
        clean.extend_from_slice(&self.pending[at.min(limit)..limit]);
        self.redacted_prefix = at.saturating_sub(limit);
        self.pending.drain(..limit);
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        Redactor::from_environment(secrets.iter().map(|secret| ("A_TOKEN", *secret)), |_| false)
    }

    /// Redacts `pieces` and releases as much as possible after each piece.
    fn redact_with_releases(redactor: &Redactor, pieces: &[&[u8]], cut: bool) -> (String, u64) {
        let mut stream = redactor.redact_stream();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&stream.push_chunk(piece));
            out.extend(stream.release_safe_bytes());
        }
        let (rest, found) = stream.finish(cut);
        out.extend(rest);
        (String::from_utf8(out).expect("UTF-8"), found)
    }

    fn redact_in_chunks(redactor: &Redactor, pieces: &[&[u8]], cut: bool) -> (String, u64) {
        let mut stream = redactor.redact_stream();
        let mut out: Vec<u8> = pieces.iter().flat_map(|piece| stream.push_chunk(piece).into_owned()).collect();
        let (rest, found) = stream.finish(cut);
        out.extend(rest);
        (String::from_utf8(out).expect("UTF-8"), found)
    }

    #[test]
    fn redacts_every_encoding_of_a_secret() {
        let redactor = redactor(&["s3cr3t-value"]);
        let text = "a s3cr3t-value b czNjcjN0LXZhbHVl c YXMzY3IzdC12YWx1ZQ== d";
        assert_eq!(redactor.redact_text(text), "a [redacted] b [redacted] c YX[redacted]Q== d");
        assert!(matches!(redactor.redact_text("nothing here"), Cow::Borrowed(_)));
        assert_eq!(format!("{redactor:?}"), "Redactor(4 shapes)");
    }

    #[test]
    fn redacts_overlapping_secrets() {
        let redactor = redactor(&["abcdefgh", "efghijkl", "bcdefghi"]);
        assert_eq!(redactor.redact_text("-abcdefghijkl-abcdefghbcdefghi-"), "-[redacted]-[redacted][redacted]-");
    }

    #[test]
    fn redacts_secrets_across_the_edges_of_a_part() {
        let redactor = redactor(&["0123456789"]);
        let bytes = b"ab0123456789cd0123456789ef";
        assert_eq!(redactor.redact_part(bytes, 0..5), (b"ab[redacted]".to_vec(), vec![2]));
        assert_eq!(redactor.redact_part(bytes, 5..16), (b"[redacted]cd[redacted]".to_vec(), vec![2, 14]));
        assert_eq!(redactor.redact_part(bytes, 12..14), (b"cd".to_vec(), vec![]));
    }

    #[test]
    fn redacts_secrets_across_chunks_and_at_a_cut() {
        let redactor = redactor(&["0123456789"]);
        assert_eq!(redact_in_chunks(&redactor, &[b"ab012", b"345", b"6789cd"], false), ("ab[redacted]cd".into(), 1));
        assert_eq!(redact_in_chunks(&redactor, &[b"ab0123456"], true), ("ab[redacted]".into(), 1));
        assert_eq!(redact_in_chunks(&redactor, &[b"ab0123456"], false), ("ab0123456".into(), 0));
        assert_eq!(redact_in_chunks(&redactor, &[b"0123456789012"], true), ("[redacted][redacted]".into(), 2));
        assert_eq!(redact_in_chunks(&Redactor::default(), &[b"ab", b"c"], true), ("abc".into(), 0));
    }

    #[test]
    fn release_holds_back_start_of_a_secret() {
        let redactor = redactor(&["0123456789"]);
        let mut stream = redactor.redact_stream();
        let mut seen = stream.push_chunk(b"a line\nab012").into_owned();
        assert!(stream.has_pending());
        seen.extend(stream.release_safe_bytes());
        assert_eq!(seen, b"a line\nab");
        assert!(stream.release_safe_bytes().is_empty() && stream.has_pending());
        seen.extend(stream.push_chunk(b"3456789cd").into_owned());
        seen.extend(stream.release_safe_bytes());
        assert_eq!((seen.as_slice(), stream.has_pending()), (b"a line\nab[redacted]cd".as_slice(), false));
    }

    #[test]
    fn self_overlapping_secret_needs_bounded_memory() {
        let redactor = redactor(&["aaaaaaaa"]);
        let mut stream = redactor.redact_stream();
        for _ in 0..100 {
            stream.push_chunk(&[b'a'; 1000]);
            assert!(stream.pending.len() <= redactor.margin());
        }
        assert_eq!(stream.finish(false).1, 1);
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_affect_redaction(
            text in "[ab-]{0,200}",
            cuts in proptest::collection::vec(0usize..200, 0..6),
            secrets in proptest::collection::vec("[ab-]{8,12}", 0..4),
        ) {
            let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
            let redactor = redactor(&secrets);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            let (clean, _) = redact_in_chunks(&redactor, &pieces, false);
            prop_assert_eq!(&clean, &redactor.redact_text(&text));
            for cut in [false, true] {
                prop_assert_eq!(redact_with_releases(&redactor, &pieces, cut), redact_in_chunks(&redactor, &pieces, cut));
            }
            for secret in secrets.iter().map(|secret| secret.trim()).filter(|secret| secret.len() >= MIN_SECRET_BYTES) {
                prop_assert!(!clean.contains(secret));
            }
        }
    }
}
