//! Tests of excerpts.

use super::*;
use proptest::prelude::*;

const LIMITS: ExcerptLimits = ExcerptLimits { lines: 24, bytes: 4 << 10 };

fn numbered(count: usize, errors: &[usize]) -> Vec<String> {
    let line = |at: usize| if errors.contains(&at) { format!("error: e{at}") } else { format!("line {at}") };
    (0..count).map(line).collect()
}

/// Returns the first and last selected line of an excerpt with one segment.
fn only_segment(excerpt: &Excerpt) -> (usize, usize) {
    assert_eq!(excerpt.segments.len(), 1, "{excerpt:?}");
    (excerpt.segments[0].start, excerpt.segments[0].end)
}

fn select(lines: &[String], limits: ExcerptLimits) -> Excerpt {
    Excerpt::select(&lines.iter().map(String::as_str).collect::<Vec<_>>(), limits)
}

#[test]
fn short_output_is_shown_whole() {
    let excerpt = select(&numbered(24, &[3]), LIMITS);
    assert_eq!(only_segment(&excerpt), (0, 24));
    assert_eq!((excerpt.error_lines, excerpt.hidden_errors), ([3].into(), 0));
    let unlimited = ExcerptLimits { lines: usize::MAX, bytes: usize::MAX };
    assert_eq!(only_segment(&select(&numbered(100, &[3]), unlimited)), (0, 100));
    assert!(select(&[], LIMITS).segments.is_empty());
}

#[test]
fn single_error_has_lines_around_it() {
    let excerpt = select(&numbered(100, &[50]), ExcerptLimits { lines: 40, ..LIMITS });
    assert_eq!(excerpt.segments, [46..66, 88..100]);
}

#[test]
fn many_errors_have_fewer_lines_around_them() {
    let excerpt = select(&numbered(100, &[20, 40, 60]), LIMITS);
    assert_eq!(excerpt.segments, [20..23, 40..43, 60..63, 88..100]);
    assert_eq!(excerpt.hidden_errors, 0);
}

#[test]
fn reports_errors_that_do_not_fit() {
    let errors: Vec<usize> = (0..20).map(|at| at * 4).collect();
    let excerpt = select(&numbered(100, &errors), LIMITS);
    assert_eq!((excerpt.error_lines.len(), excerpt.hidden_errors), (12, 8));
    assert_eq!(excerpt.segments.last(), Some(&(88..100)));
}

#[test]
fn output_without_errors_shows_its_end() {
    let excerpt = select(&numbered(100, &[]), LIMITS);
    assert_eq!((only_segment(&excerpt), excerpt.kind), ((88, 100), None));
}

#[test]
fn parts_name_the_number_of_omitted_lines() {
    let lines = numbered(100, &[50]);
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let excerpt = Excerpt::select(&lines, LIMITS);
    let parts = excerpt.parts(&lines);
    assert_eq!(parts.first(), Some(&ExcerptPart::Omitted(49)));
    assert_eq!(parts.get(2), Some(&ExcerptPart::ErrorLine("error: e50")));
    assert_eq!(parts.last(), Some(&ExcerptPart::Line("line 99")));
}

proptest! {
    #[test]
    fn excerpt_is_within_its_limits(
        count in 0..200_usize,
        errors in prop::collection::vec(0..200_usize, 0..40),
        lines in 1..50_usize,
        bytes in 0..2_000_usize,
    ) {
        let text = numbered(count, &errors);
        let excerpt = select(&text, ExcerptLimits { lines, bytes });
        let shown: usize = excerpt.segments.iter().map(ExactSizeIterator::len).sum();
        // A gap of one line is filled.
        prop_assert!(shown <= lines.max(1) * 2);
        prop_assert!(excerpt.segments.windows(2).all(|pair| pair[0].end + 1 < pair[1].start));
        prop_assert!(excerpt.segments.last().is_none_or(|last| last.end <= count));
    }
}
