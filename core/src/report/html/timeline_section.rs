//! Draws when each command ran: a lane for the toolchain checks and one for each skill, with a bar for each attempt
//! of a step.
//!
//! Bars are SVG, because the page's content security policy forbids style attributes. The times are those at which
//! the recording process received the events.

use crate::model::outcome::Outcome;
use crate::record::run_record::{SkillRecord, Span};
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count, duration};
use crate::report::html::page_view::{RunPageView, ShownStep};
use crate::report::html::section::write_section;

/// Maximum number of lanes that are drawn.
const MAX_LANES: usize = 200;
/// Maximum number of bars that are drawn in all.
const MAX_BARS: usize = 3_000;
/// Minimum width of a bar, in hundredths of a percent of the lane, so that every bar is visible.
const MIN_BAR_WIDTH: u64 = 50;
/// Maximum number of divisions of the axis.
const MAX_AXIS_DIVISIONS: u64 = 5;
/// The height of a lane.
const LANE_HEIGHT: &str = "26";

/// A bar.
struct TimelineBar {
    span: Span,
    outcome: Outcome,
    target: String,
    label: String,
}

/// Writes the timeline; writes nothing if no times were recorded.
pub(super) fn write(html: &mut Html, view: &RunPageView<'_>) {
    let Some(total) = run_duration_ms(view) else { return };
    write_section(html, view, "timeline", "Timeline", |html| {
        html.element("p", &[("class", "note reading"), ("aria-live", "polite")], |html| {
            html.text("A bar is an attempt of a step and links to the step. Tall bars did not pass.");
        });
        html.class("div", "lanes", |html| {
            write_lane(html, &view.element_id("toolchain"), "toolchain checks", &check_bars(view), total);
            let drawn = view.record.skills.iter().enumerate().filter(|(_, skill)| skill.span.is_some());
            let mut left = MAX_BARS;
            for (index, skill) in drawn.take(MAX_LANES) {
                let bars = skill_bars(view, skill, total, left);
                left -= bars.len();
                write_lane(html, &view.skill_id(index), &page_text::truncated_name(skill.skill.as_str()), &bars, total);
            }
            write_axis(html, total);
        });
        write_omissions(html, view);
    });
}

/// Returns the duration of the run, in milliseconds; `None` if there is nothing to draw.
fn run_duration_ms(view: &RunPageView<'_>) -> Option<u64> {
    let record = view.record;
    let spans =
        record.skills.iter().flat_map(|skill| skill.span.iter().chain(skill.attempts.iter().map(|it| &it.span)));
    let seen = spans.chain(&record.check_spans).map(|span| span.ended_ms.unwrap_or(span.began_ms)).max()?;
    let finished = record.finished.as_ref().map_or(0, |finished| finished.duration_ms);
    (seen > 0).then(|| seen.max(finished))
}

fn check_bars(view: &RunPageView<'_>) -> Vec<TimelineBar> {
    let checks = view.record.checks.iter().zip(&view.record.check_spans).take(MAX_BARS);
    let bar = |(check, span): (&crate::record::evidence::CheckEvidence, &Span)| TimelineBar {
        span: *span,
        outcome: if check.satisfied { Outcome::Passed } else { Outcome::Inconclusive },
        target: view.element_id("toolchain"),
        label: bar_label(
            &page_text::truncated_name(check.toolchain.as_str()),
            if check.satisfied { "satisfied" } else { "unsatisfied" },
            *span,
        ),
    };
    checks.map(bar).collect()
}

fn skill_bars(view: &RunPageView<'_>, skill: &SkillRecord, total: u64, max_bars: usize) -> Vec<TimelineBar> {
    let shown = view.steps.iter().filter(|shown| std::ptr::eq(shown.skill, skill));
    let attempts = shown.flat_map(|shown| shown.attempts.iter().map(move |attempt| (shown, *attempt)));
    let bar = |(shown, attempt): (&ShownStep<'_>, &crate::record::run_record::AttemptSpan)| {
        let outcome = shown.attempt_outcome(attempt.attempt);
        let name = match shown.attempts.len() {
            1 => shown.display_name(),
            _ => format!("{}, attempt {}", shown.display_name(), attempt.attempt),
        };
        let span = Span { ended_ms: Some(attempt.span.ended_ms.unwrap_or(total)), ..attempt.span };
        TimelineBar {
            span,
            outcome,
            target: shown.id.clone(),
            label: bar_label(&name, &page_text::outcome_text(Some(outcome)), span),
        }
    };
    attempts.take(max_bars).map(bar).collect()
}

fn bar_label(name: &str, outcome: &str, span: Span) -> String {
    let ended = span.ended_ms.unwrap_or(span.began_ms);
    let spent = duration(ended.saturating_sub(span.began_ms));
    format!("{name}: {outcome}, {} to {}, {spent}", duration(span.began_ms), duration(ended))
}

fn write_lane(html: &mut Html, id: &str, name: &str, bars: &[TimelineBar], total: u64) {
    if bars.is_empty() {
        return;
    }
    html.class("div", "lane", |html| {
        html.class("span", "lane-name", |html| html.link(id, name));
        let named = format!("{name}: {}", count(bars.len(), "attempt"));
        html.element(
            "svg",
            &[("width", "100%"), ("height", LANE_HEIGHT), ("role", "group"), ("aria-label", &named)],
            |html| {
                for part in 1..axis_divisions(total).1 {
                    let at = percent_of_total(part * axis_divisions(total).0, total);
                    html.element(
                        "line",
                        &[("class", "grid"), ("x1", &at), ("x2", &at), ("y1", "0"), ("y2", LANE_HEIGHT)],
                        |_| {},
                    );
                }
                bars.iter().for_each(|bar| self::write_bar(html, bar, total));
            },
        );
    });
}

fn write_bar(html: &mut Html, bar: &TimelineBar, total: u64) {
    let ended = bar.span.ended_ms.unwrap_or(bar.span.began_ms);
    let share = |ms: u64| hundredths_of_percent(ms, total);
    let width = share(ended.saturating_sub(bar.span.began_ms)).max(MIN_BAR_WIDTH);
    let left = share(bar.span.began_ms).min(10_000 - MIN_BAR_WIDTH);
    let (y, height) = if bar.outcome == Outcome::Passed { ("7", "12") } else { ("2", "22") };
    let target = format!("#{}", bar.target);
    html.element("a", &[("href", &target), ("class", "bar"), ("aria-label", &bar.label)], |html| {
        html.text_element("title", &bar.label);
        let class = bar.outcome.as_str();
        let (x, width) = (format_percent(left), format_percent(width.min(10_000 - left)));
        html.element(
            "rect",
            &[("class", class), ("x", &x), ("y", y), ("width", &width), ("height", height), ("rx", "2")],
            |_| {},
        );
    });
}

fn write_axis(html: &mut Html, total: u64) {
    let (step, number) = axis_divisions(total);
    html.class("div", "lane axis", |html| {
        html.leaf("span", "lane-name", "");
        html.element("svg", &[("width", "100%"), ("height", "18"), ("aria-hidden", "true")], |html| {
            for part in 0..number {
                let at = percent_of_total(part * step, total);
                let anchor = if part == 0 { "start" } else { "middle" };
                html.element("text", &[("x", &at), ("y", "13"), ("text-anchor", anchor)], |html| {
                    html.text(&if part == 0 { "0".to_owned() } else { duration(part * step) });
                });
            }
        });
    });
}

/// Divides the axis. Returns the milliseconds of a division and the number of marks, including the one at zero. A
/// mark close to the end is left out, because its label would be cut off.
fn axis_divisions(total: u64) -> (u64, u64) {
    let fits = |step: &u64| total / step <= MAX_AXIS_DIVISIONS;
    let by_tens = (0..16).flat_map(|power| [1, 2, 5].map(|digit| digit * 10u64.pow(power)));
    let by_minutes = [15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 1_800_000, 3_600_000, 7_200_000, 18_000_000];
    let step = match total {
        0..60_000 => by_tens.into_iter().find(fits),
        _ => by_minutes.into_iter().find(fits),
    };
    let step = step.unwrap_or(total).max(1);
    let number = (0..=MAX_AXIS_DIVISIONS).take_while(|part| hundredths_of_percent(part * step, total) <= 9_500).count();
    (step, number as u64)
}

fn percent_of_total(ms: u64, total: u64) -> String {
    format_percent(hundredths_of_percent(ms, total))
}

/// Returns a share of the total, in hundredths of a percent.
fn hundredths_of_percent(ms: u64, total: u64) -> u64 {
    let share = u128::from(ms) * 10_000 / u128::from(total.max(1));
    u64::try_from(share).unwrap_or(10_000).min(10_000)
}

fn format_percent(hundredths: u64) -> String {
    format!("{}.{:02}%", hundredths / 100, hundredths % 100)
}

fn write_omissions(html: &mut Html, view: &RunPageView<'_>) {
    let lanes = view.record.skills.iter().filter(|skill| skill.span.is_some()).count();
    if lanes > MAX_LANES {
        html.leaf("p", "note", &format!("The first {MAX_LANES} of {lanes} skills are shown."));
    }
    let attempts: usize = view.record.skills.iter().take(MAX_LANES).map(|skill| skill.attempts.len()).sum();
    if attempts > MAX_BARS {
        html.leaf("p", "note", &format!("The first {MAX_BARS} of {attempts} attempts are shown."));
    }
    let never = view.record.skills.iter().filter(|skill| skill.span.is_none()).count();
    if never > 0 {
        html.leaf("p", "note", &format!("{} never began.", count(never, "skill")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divides_axis_at_round_values() {
        let cases = [1, 7, 100, 420, 1_000, 4_200, 59_999, 90_000, 600_000, 7_200_000, u64::MAX];
        let parts = cases.map(axis_divisions);
        assert_eq!(parts[..4], [(1, 1), (2, 4), (20, 5), (100, 4)]);
        assert_eq!(
            parts[4..],
            [(200, 5), (1_000, 4), (10_000, 6), (30_000, 3), (120_000, 5), (1_800_000, 4), (u64::MAX, 1)]
        );
    }

    #[test]
    fn share_never_exceeds_100_percent() {
        assert_eq!(percent_of_total(1, 3), "33.33%");
        assert_eq!(percent_of_total(u64::MAX, 1), "100.00%");
        assert_eq!(percent_of_total(0, 0), "0.00%");
    }
}
