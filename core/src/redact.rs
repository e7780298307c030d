//! Takes the secrets of a caller out of what is shown and recorded of a run.
//!
//! A step gets none of them unasked; this is for the one that was let in by an allow-list, that
//! lies in the tree, or that a tool found some other way. It finds what stands there in one
//! piece and in a usual encoding, and is no wall against a step that hides what it prints.

mod record;
mod secrets;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, AhoCorasickKind, packed};

pub use secrets::{MIN_SECRET, is_secret_name};

/// What stands where a secret stood.
pub const MARK: &str = "[redacted]";

/// Knows the secrets of one caller, and never shows them.
#[derive(Clone, Default)]
pub struct Redactor(Option<Arc<Finder>>);

struct Finder {
    shapes: Vec<Vec<u8>>,
    longest: usize,
    all: AhoCorasick,
    /// Says quickly that there is none; there are machines and sets of secrets without it.
    any: Option<packed::Searcher>,
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shapes = self.0.as_ref().map_or(0, |finder| finder.shapes.len());
        write!(f, "Redactor({shapes} shapes)")
    }
}

impl Redactor {
    /// Takes the secrets out of `environment`: values of variables whose names say so
    /// ([`is_secret_name`]), and passwords in URLs, of at least [`MIN_SECRET`] bytes. `is_path`
    /// says whether an absolute path names something that is there.
    pub fn of<'e>(environment: impl IntoIterator<Item = (&'e str, &'e str)>, is_path: impl Fn(&str) -> bool) -> Self {
        let found = secrets::of(environment, is_path);
        let shapes: BTreeSet<Vec<u8>> = found.iter().flat_map(|secret| secrets::shapes(secret)).collect();
        Self(Finder::of(shapes.into_iter().collect()).map(Arc::new))
    }

    /// How many bytes beside a part must be known to find every secret that reaches into it.
    pub fn margin(&self) -> usize {
        self.0.as_ref().map_or(0, |finder| finder.longest - 1)
    }

    /// `text` without secrets.
    pub fn text<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let spans = self.spans(text.as_bytes());
        if spans.is_empty() {
            return Cow::Borrowed(text);
        }
        let clean = without(text.as_bytes(), 0..text.len(), &spans);
        Cow::Owned(String::from_utf8_lossy(&clean).into_owned())
    }

    /// The part of `bytes` without secrets, and where in `bytes` the secrets begin that reach
    /// into it. Right where [`Redactor::margin`] bytes on both sides of the part are there, or
    /// all that there are.
    pub fn part(&self, bytes: &[u8], part: Range<usize>) -> (Vec<u8>, Vec<usize>) {
        let mut spans = self.spans(bytes);
        spans.retain(|span| span.start < part.end && span.end > part.start);
        (without(bytes, part, &spans), spans.into_iter().map(|span| span.start).collect())
    }

    /// Begins with a stream.
    pub fn stream(&self) -> RedactedStream {
        RedactedStream { redactor: self.clone(), pending: Vec::new(), covered: 0, found: 0 }
    }

    /// Where secrets stand, in order; those that overlap are one.
    fn spans(&self, bytes: &[u8]) -> Vec<Range<usize>> {
        self.spans_before(bytes, bytes.len())
    }

    /// The same for those that begin before `limit`.
    fn spans_before(&self, bytes: &[u8], limit: usize) -> Vec<Range<usize>> {
        let Some(finder) = self.0.as_ref().filter(|finder| finder.may_find(bytes)) else { return Vec::new() };
        let mut spans: Vec<Range<usize>> = Vec::new();
        for found in finder.all.find_overlapping_iter(bytes).filter(|found| found.start() < limit) {
            // They come in the order of their ends.
            let mut span = found.start()..found.end();
            while let Some(last) = spans.pop_if(|last| last.end > span.start) {
                span.start = span.start.min(last.start);
            }
            spans.push(span);
        }
        spans
    }

    /// How long a tail of `bytes` is that may be the beginning of a secret.
    fn begun(&self, bytes: &[u8]) -> usize {
        let Some(finder) = &self.0 else { return 0 };
        let begins = |shape: &Vec<u8>, tail: &[u8]| shape.len() > tail.len() && shape.starts_with(tail);
        let tails = (1..=bytes.len().min(self.margin())).rev();
        let begun = |length: &usize| {
            let tail = &bytes[bytes.len() - length..];
            finder.shapes.iter().any(|shape| begins(shape, tail))
        };
        tails.into_iter().find(begun).unwrap_or(0)
    }
}

impl Finder {
    /// `None` where there is nothing to find.
    fn of(shapes: Vec<Vec<u8>>) -> Option<Self> {
        let longest = shapes.iter().map(Vec::len).max()?;
        // A table of every byte in every state would be made anew by each short-lived process.
        let mut builder = AhoCorasick::builder();
        let all = builder.kind(Some(AhoCorasickKind::ContiguousNFA)).build(&shapes).ok()?;
        let any = packed::Searcher::new(&shapes);
        Some(Self { shapes, longest, all, any })
    }

    fn may_find(&self, bytes: &[u8]) -> bool {
        self.any.as_ref().is_none_or(|any| any.find(bytes).is_some())
    }
}

/// The part of `bytes` with a mark for each of `spans`, of which each reaches into it.
fn without(bytes: &[u8], part: Range<usize>, spans: &[Range<usize>]) -> Vec<u8> {
    let mut clean = Vec::with_capacity(part.len());
    let mut at = part.start;
    for span in spans {
        clean.extend_from_slice(&bytes[at..span.start.max(at)]);
        clean.extend_from_slice(MARK.as_bytes());
        at = span.end.min(part.end);
    }
    clean.extend_from_slice(&bytes[at..part.end]);
    clean
}

/// A stream of bytes on its way out, without secrets, wherever the pieces are cut in which it
/// comes. It holds back less than the longest secret.
#[derive(Debug)]
pub struct RedactedStream {
    redactor: Redactor,
    /// What may be the beginning of a secret.
    pending: Vec<u8>,
    /// How much of `pending` belongs to a secret whose mark is written.
    covered: usize,
    found: u64,
}

impl RedactedStream {
    /// Takes the next piece in; answers what can be let out.
    pub fn push<'b>(&mut self, piece: &'b [u8]) -> Cow<'b, [u8]> {
        if self.redactor.0.is_none() {
            return Cow::Borrowed(piece);
        }
        self.pending.extend_from_slice(piece);
        // What begins before here is seen whole.
        let limit = self.pending.len().saturating_sub(self.redactor.margin());
        Cow::Owned(self.let_out(limit))
    }

    /// Whether bytes are held back.
    pub fn is_holding(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns all bytes that cannot belong to a secret that continues. What is left is the beginning of
    /// a secret. For a reader that sees the stream while it pauses.
    pub fn release(&mut self) -> Vec<u8> {
        let begun = self.redactor.begun(&self.pending);
        self.let_out(self.pending.len() - begun)
    }

    /// Answers the rest, and how many secrets there were. Where the stream was cut here, what
    /// may be the beginning of a secret is one.
    pub fn finish(mut self, cut: bool) -> (Vec<u8>, u64) {
        let begun = if cut { self.redactor.begun(&self.pending) } else { 0 };
        let mut rest = self.let_out(self.pending.len() - begun);
        if begun > self.covered {
            rest.extend_from_slice(MARK.as_bytes());
            self.found += 1;
        }
        (rest, self.found)
    }

    fn let_out(&mut self, limit: usize) -> Vec<u8> {
        let spans = self.redactor.spans_before(&self.pending, limit);
        let mut clean = Vec::with_capacity(limit);
        let mut at = self.covered;
        for span in spans {
            if span.start >= at {
                clean.extend_from_slice(&self.pending[at..span.start]);
                clean.extend_from_slice(MARK.as_bytes());
                self.found += 1;
            }
            at = at.max(span.end);
        }
        clean.extend_from_slice(&self.pending[at.min(limit)..limit]);
        self.covered = at.saturating_sub(limit);
        self.pending.drain(..limit);
        clean
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        Redactor::of(secrets.iter().map(|secret| ("A_TOKEN", *secret)), |_| false)
    }

    /// The same with a pause behind each piece, in which all that may be seen is released.
    fn paused(redactor: &Redactor, pieces: &[&[u8]], cut: bool) -> (String, u64) {
        let mut stream = redactor.stream();
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&stream.push(piece));
            out.extend(stream.release());
        }
        let (rest, found) = stream.finish(cut);
        out.extend(rest);
        (String::from_utf8(out).expect("UTF-8"), found)
    }

    fn streamed(redactor: &Redactor, pieces: &[&[u8]], cut: bool) -> (String, u64) {
        let mut stream = redactor.stream();
        let mut out: Vec<u8> = pieces.iter().flat_map(|piece| stream.push(piece).into_owned()).collect();
        let (rest, found) = stream.finish(cut);
        out.extend(rest);
        (String::from_utf8(out).expect("UTF-8"), found)
    }

    #[test]
    fn a_secret_is_taken_out_in_every_shape() {
        let redactor = redactor(&["s3cr3t-value"]);
        let text = "a s3cr3t-value b czNjcjN0LXZhbHVl c YXMzY3IzdC12YWx1ZQ== d";
        assert_eq!(redactor.text(text), "a [redacted] b [redacted] c YX[redacted]Q== d");
        assert!(matches!(redactor.text("nothing here"), Cow::Borrowed(_)));
        assert_eq!(format!("{redactor:?}"), "Redactor(4 shapes)");
    }

    #[test]
    fn no_half_of_an_overlapping_secret_stays() {
        let redactor = redactor(&["abcdefgh", "efghijkl", "bcdefghi"]);
        assert_eq!(redactor.text("-abcdefghijkl-abcdefghbcdefghi-"), "-[redacted]-[redacted][redacted]-");
    }

    #[test]
    fn a_part_shows_no_half_of_what_reaches_over_its_edge() {
        let redactor = redactor(&["0123456789"]);
        let bytes = b"ab0123456789cd0123456789ef";
        assert_eq!(redactor.part(bytes, 0..5), (b"ab[redacted]".to_vec(), vec![2]));
        assert_eq!(redactor.part(bytes, 5..16), (b"[redacted]cd[redacted]".to_vec(), vec![2, 14]));
        assert_eq!(redactor.part(bytes, 12..14), (b"cd".to_vec(), vec![]));
    }

    #[test]
    fn a_secret_across_pieces_is_found_and_a_cut_one_is_not_shown() {
        let redactor = redactor(&["0123456789"]);
        assert_eq!(streamed(&redactor, &[b"ab012", b"345", b"6789cd"], false), ("ab[redacted]cd".into(), 1));
        assert_eq!(streamed(&redactor, &[b"ab0123456"], true), ("ab[redacted]".into(), 1));
        assert_eq!(streamed(&redactor, &[b"ab0123456"], false), ("ab0123456".into(), 0));
        assert_eq!(streamed(&redactor, &[b"0123456789012"], true), ("[redacted][redacted]".into(), 2));
        assert_eq!(streamed(&Redactor::default(), &[b"ab", b"c"], true), ("abc".into(), 0));
    }

    #[test]
    fn a_pause_releases_all_but_the_beginning_of_a_secret() {
        let redactor = redactor(&["0123456789"]);
        let mut stream = redactor.stream();
        let mut seen = stream.push(b"a line\nab012").into_owned();
        assert!(stream.is_holding());
        seen.extend(stream.release());
        assert_eq!(seen, b"a line\nab");
        assert!(stream.release().is_empty() && stream.is_holding());
        seen.extend(stream.push(b"3456789cd").into_owned());
        seen.extend(stream.release());
        assert_eq!((seen.as_slice(), stream.is_holding()), (b"a line\nab[redacted]cd".as_slice(), false));
    }

    #[test]
    fn a_secret_that_overlaps_itself_without_end_needs_no_memory() {
        let redactor = redactor(&["aaaaaaaa"]);
        let mut stream = redactor.stream();
        for _ in 0..100 {
            stream.push(&[b'a'; 1000]);
            assert!(stream.pending.len() <= redactor.margin());
        }
        assert_eq!(stream.finish(false).1, 1);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            text in "[ab-]{0,200}",
            cuts in proptest::collection::vec(0usize..200, 0..6),
            secrets in proptest::collection::vec("[ab-]{8,12}", 0..4),
        ) {
            let secrets: Vec<&str> = secrets.iter().map(String::as_str).collect();
            let redactor = redactor(&secrets);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text.as_bytes()[pair[0]..pair[1]]).collect();
            let (clean, _) = streamed(&redactor, &pieces, false);
            prop_assert_eq!(&clean, &redactor.text(&text));
            for cut in [false, true] {
                prop_assert_eq!(paused(&redactor, &pieces, cut), streamed(&redactor, &pieces, cut));
            }
            for secret in secrets.iter().map(|secret| secret.trim()).filter(|secret| secret.len() >= MIN_SECRET) {
                prop_assert!(!clean.contains(secret));
            }
        }
    }
}
