//! Formats the live rows for running steps and for the run. The text depends only on the numbers and the available
//! width; `live_rows.rs` draws it.

use std::time::Duration;

use crate::screen::Glyphs;
use crate::text::{count, display_width, duration, exact_duration};

/// Number of steps in the plan and of steps that have ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StepProgressCounts {
    /// All steps of the plan.
    pub total: usize,
    /// Steps with an outcome.
    pub ended: usize,
}

/// A running step to show in a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct StepRowContent<'a> {
    /// `skill/step`.
    pub name: &'a str,
    /// Timeout in milliseconds.
    pub timeout_ms: Option<u64>,
    /// Duration of the last time, in milliseconds.
    pub expected_ms: Option<u64>,
    /// Last line that the step has printed; empty if it has printed nothing.
    pub last_line: &'a str,
}

/// The space for a row.
#[derive(Debug, Clone, Copy)]
pub(super) struct RowSpace {
    /// Number of columns.
    pub columns: usize,
    /// Character set.
    pub glyphs: Glyphs,
}

/// Number of cells of a step's bar, in a wide and in a narrow row.
const BAR_CELLS: usize = 10;
const NARROW_BAR_CELLS: usize = 5;
/// Number of cells of the run's bar in a wide row.
const WIDE_BAR_CELLS: usize = 24;
/// Minimum width of a name while there is other text to drop.
const MIN_NAME_WIDTH: usize = 12;
/// Separates the numbers from the name.
const GAP: &str = "  ";
/// Separates the name from the last line.
const LAST_LINE_SEPARATOR: &str = " | ";
/// Minimum width of a last line.
const MIN_LAST_LINE_WIDTH: usize = 10;

/// Formats the row of a step: a bar relative to the last duration if that is known, the elapsed time, the name, and
/// the last printed line if it fits.
pub(super) fn format_step(step: StepRowContent<'_>, elapsed: Duration, space: RowSpace) -> String {
    let left = |figures: &str| space.columns.saturating_sub(display_width(figures) + GAP.len());
    let needs = display_width(step.name).min(MIN_NAME_WIDTH);
    let mut variants = number_variants(step, elapsed, space.glyphs);
    let fits = variants.iter().position(|figures| left(figures) >= needs).unwrap_or(variants.len().saturating_sub(1));
    let figures = variants.swap_remove(fits);
    let name = truncate_name_start(step.name, left(&figures), space.glyphs);
    let row = format!("{figures}{GAP}{name}");
    let width = space.columns.saturating_sub(display_width(&row) + LAST_LINE_SEPARATOR.len());
    match step.last_line {
        "" => row,
        _ if width < MIN_LAST_LINE_WIDTH => row,
        line => row + LAST_LINE_SEPARATOR + &truncate_line(line, width, space.glyphs),
    }
}

/// Formats the row of the run: number of ended steps and elapsed time.
pub(super) fn format_run(steps: StepProgressCounts, elapsed: Duration, space: RowSpace) -> String {
    let words = format!("{} of {}, {}", steps.ended, count(steps.total, "step"), whole_seconds(millis(elapsed)));
    let cells = [WIDE_BAR_CELLS, BAR_CELLS, NARROW_BAR_CELLS];
    let with = |cells| format!("{} {words}", bar(steps.ended as u64, steps.total as u64, cells, space.glyphs));
    cells.map(with).into_iter().find(|row| display_width(row) <= space.columns).unwrap_or(words)
}

/// Returns variants of the step's numbers, the most detailed first. There is at least one.
fn number_variants(step: StepRowContent<'_>, elapsed: Duration, glyphs: Glyphs) -> Vec<String> {
    let ms = millis(elapsed);
    let now = whole_seconds(ms);
    let bar = |cells| bar(ms, step.expected_ms.unwrap_or(0), cells, glyphs);
    match (step.expected_ms, step.timeout_ms) {
        (Some(last), _) if ms / 1_000 > round_to_seconds(last) / 1_000 => {
            let last = whole_seconds(round_to_seconds(last));
            vec![
                format!("{} {now}, longer than the last time ({last})", bar(BAR_CELLS)),
                format!("{} {now} (last time {last})", bar(BAR_CELLS)),
                format!("{} {now} (last {last})", bar(NARROW_BAR_CELLS)),
                format!("{now} (last {last})"),
            ]
        }
        (Some(last), _) => {
            let words = format!("{now} of ~{}", whole_seconds(round_to_seconds(last)));
            vec![format!("{} {words}", bar(BAR_CELLS)), format!("{} {words}", bar(NARROW_BAR_CELLS)), words]
        }
        (None, Some(timeout)) => vec![format!("{now}, at most {}", exact_duration(timeout)), now],
        (None, None) => vec![now],
    }
}

/// Draws a bar for `part` of `whole`; it is full if `part` is larger.
fn bar(part: u64, whole: u64, cells: usize, glyphs: Glyphs) -> String {
    match glyphs {
        Glyphs::Unicode => {
            const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
            let eighths = filled_cells(part, whole, cells * PARTS.len());
            let (full, rest) = (eighths / PARTS.len(), PARTS[eighths % PARTS.len()]);
            let empty = cells - full - usize::from(!rest.is_empty());
            format!("▕{}{rest}{}▏", "█".repeat(full), " ".repeat(empty))
        }
        Glyphs::Ascii => {
            let full = filled_cells(part, whole, cells);
            format!("[{}{}]", "#".repeat(full), "-".repeat(cells - full))
        }
    }
}

fn filled_cells(part: u64, whole: u64, cells: usize) -> usize {
    let cells = cells as u128;
    let full = (u128::from(part) * cells).checked_div(u128::from(whole)).unwrap_or(cells).min(cells);
    usize::try_from(full).unwrap_or(0)
}

/// Returns the mark for omitted text.
fn cut_mark(glyphs: Glyphs) -> &'static str {
    match glyphs {
        Glyphs::Unicode => "…",
        Glyphs::Ascii => "...",
    }
}

/// Cuts a line after `width` columns.
fn truncate_line(line: &str, width: usize, glyphs: Glyphs) -> String {
    let line = match glyphs {
        Glyphs::Unicode => line.to_owned(),
        Glyphs::Ascii => line.chars().map(|c| if c.is_ascii() { c } else { '?' }).collect(),
    };
    if display_width(&line) <= width {
        return line;
    }
    let mark = cut_mark(glyphs);
    let kept_width = width.saturating_sub(display_width(mark));
    let ends = line.char_indices().map(|(at, _)| &line[..at]);
    let kept = ends.take_while(|kept| display_width(kept) <= kept_width).last().unwrap_or_default();
    format!("{kept}{mark}")
}

/// Cuts off the start of a name that is wider than `width`: names of steps differ at their end.
fn truncate_name_start(name: &str, width: usize, glyphs: Glyphs) -> String {
    if display_width(name) <= width {
        return name.to_owned();
    }
    let mark = cut_mark(glyphs);
    let Some(kept_width) = width.checked_sub(display_width(mark)) else { return String::new() };
    let starts = name.char_indices().map(|(at, _)| &name[at..]);
    let kept = starts.into_iter().find(|rest| display_width(rest) <= kept_width).unwrap_or_default();
    format!("{mark}{kept}")
}

/// Formats a duration in whole seconds, because finer values in a live row change too fast to read.
fn whole_seconds(ms: u64) -> String {
    match ms {
        0..60_000 => format!("{} s", ms / 1_000),
        _ => duration(ms),
    }
}

fn round_to_seconds(ms: u64) -> u64 {
    ms.saturating_add(500) / 1_000 * 1_000
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIDE: RowSpace = RowSpace { columns: 78, glyphs: Glyphs::Unicode };
    const NARROW: RowSpace = RowSpace { columns: 38, glyphs: Glyphs::Unicode };

    fn step(expected_ms: Option<u64>) -> StepRowContent<'static> {
        StepRowContent { name: "verify.test/cargo_test", timeout_ms: Some(600_000), expected_ms, last_line: "" }
    }

    fn row(expected_ms: Option<u64>, ms: u64, room: RowSpace) -> String {
        format_step(step(expected_ms), Duration::from_millis(ms), room)
    }

    #[test]
    fn step_row_compares_with_the_last_duration() {
        let last = Some(30_400);
        let rows = [0, 12_300, 30_400, 30_999, 31_000, 90_000].map(|ms| row(last, ms, WIDE));
        let expected = [
            "▕          ▏ 0 s of ~30 s  verify.test/cargo_test",
            "▕████      ▏ 12 s of ~30 s  verify.test/cargo_test",
            "▕██████████▏ 30 s of ~30 s  verify.test/cargo_test",
            "▕██████████▏ 30 s of ~30 s  verify.test/cargo_test",
            "▕██████████▏ 31 s, longer than the last time (30 s)  verify.test/cargo_test",
            "▕██████████▏ 1m30s, longer than the last time (30 s)  verify.test/cargo_test",
        ];
        assert_eq!(rows, expected);
        assert_eq!(row(None, 12_300, WIDE), "12 s, at most 10 min  verify.test/cargo_test");
        let waits =
            StepRowContent { name: "(waiting for its turn)", timeout_ms: None, expected_ms: None, last_line: "" };
        assert_eq!(format_step(waits, Duration::from_secs(3), WIDE), "3 s  (waiting for its turn)");
    }

    #[test]
    fn last_line_is_cut_to_the_remaining_width() {
        let row = |printed, room| {
            format_step(StepRowContent { last_line: printed, ..step(None) }, Duration::from_secs(12), room)
        };
        assert_eq!(row("running 3 tests", WIDE), "12 s, at most 10 min  verify.test/cargo_test | running 3 tests");
        let long = "test tests::a_test_with_a_rather_long_name ... ok";
        assert_eq!(row(long, WIDE), "12 s, at most 10 min  verify.test/cargo_test | test tests::a_test_with_a_rath…");
        assert_eq!(row(long, NARROW), "12 s, at most 10 min  …test/cargo_test", "too little room");
        let ascii = RowSpace { glyphs: Glyphs::Ascii, ..WIDE };
        assert_eq!(row("naïve ✓", ascii), "12 s, at most 10 min  verify.test/cargo_test | na?ve ?");
    }

    #[test]
    fn narrow_row_keeps_the_end_of_the_name() {
        assert_eq!(row(Some(30_000), 12_300, NARROW), "▕██   ▏ 12 s of ~30 s  …est/cargo_test");
        assert_eq!(row(Some(30_000), 41_000, NARROW), "▕█████▏ 41 s (last 30 s)  …/cargo_test");
        assert_eq!(row(Some(90_000), 101_000, NARROW), "1m41s (last 1m30s)  …y.test/cargo_test");
        assert_eq!(row(None, 12_300, NARROW), "12 s, at most 10 min  …test/cargo_test");
    }

    #[test]
    fn no_row_exceeds_its_width() {
        let times = [0, 9_999, 59_999, 100_000, 7_200_000, u64::MAX / 2];
        let names = ["a/b", "verify.a_rather_long_name/of_a_step_of_it", "verify.日本/語語語語語語語語語語"];
        for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
            for width in 24..=140 {
                let room = RowSpace { columns: width, glyphs };
                for (name, ms) in names.iter().flat_map(|name| times.map(|ms| (*name, ms))) {
                    for expected_ms in [None, Some(1_000), Some(90_000), Some(7_000_000)] {
                        let printed = "a line 語語 of some length";
                        let step = StepRowContent { name, timeout_ms: Some(60_000), expected_ms, last_line: printed };
                        let row = format_step(step, Duration::from_millis(ms.min(400_000_000)), room);
                        assert!(display_width(&row) <= width, "{width}: {row}");
                        assert!(glyphs == Glyphs::Unicode || !name.is_ascii() || row.is_ascii(), "{row}");
                    }
                }
                let row = format_run(StepProgressCounts { total: 120, ended: 17 }, Duration::from_secs(4_000), room);
                assert!(display_width(&row) <= width, "{width}: {row}");
            }
        }
    }

    #[test]
    fn ascii_rows_have_only_ascii() {
        let room = RowSpace { columns: 38, glyphs: Glyphs::Ascii };
        assert_eq!(row(Some(30_000), 12_300, room), "[##---] 12 s of ~30 s  ...t/cargo_test");
        let row = format_run(StepProgressCounts { total: 4, ended: 1 }, Duration::from_secs(7), room);
        assert_eq!(row, "[##--------] 1 of 4 steps, 7 s");
    }

    #[test]
    fn bar_fills_by_eighths_of_a_cell() {
        let bars = [0, 1, 7, 8, 9, 79, 80, 1_000].map(|part| bar(part, 80, 10, Glyphs::Unicode));
        let expected = [
            "▕          ▏",
            "▕▏         ▏",
            "▕▉         ▏",
            "▕█         ▏",
            "▕█▏        ▏",
            "▕█████████▉▏",
            "▕██████████▏",
            "▕██████████▏",
        ];
        assert_eq!(bars, expected);
        assert_eq!(bar(0, 0, 3, Glyphs::Ascii), "[###]");
        assert_eq!(bar(u64::MAX, u64::MAX, 2, Glyphs::Ascii), "[##]");
    }

    #[test]
    fn run_row_shows_ended_steps() {
        let steps = StepProgressCounts { total: 12, ended: 3 };
        let rows = [WIDE, NARROW].map(|room| format_run(steps, Duration::from_secs(65), room));
        assert_eq!(rows, ["▕██████                  ▏ 3 of 12 steps, 1m05s", "▕██▌       ▏ 3 of 12 steps, 1m05s"]);
    }
}
