//! Writes one step in full: its command, the reason for its outcome, its changes, its output and its resource use.

use crate::model::outcome::Outcome;
use crate::model::outcome_reason;
use crate::record::evidence::StepEvidence;
use crate::report::failure_hints::failure_hints;
use crate::report::html::markup::Html;
use crate::report::html::output_section::{self, InitialExcerpt};
use crate::report::html::page_text::{self, count, duration, exact_duration, size};
use crate::report::html::page_view::ShownStep;
use crate::report::html::{drift_section, tool_reports_section};
use crate::report::stream_texts::StreamTexts;

/// Maximum number of earlier attempts that are listed.
const MAX_ATTEMPTS: usize = 20;
/// Maximum number of variable names that are listed.
const MAX_VARIABLES: usize = 100;

/// Writes a step as a foldable element; `open` sets whether it is initially open.
pub(super) fn write(html: &mut Html, shown: &ShownStep<'_>, open: bool) {
    let class = format!("step {}", shown.step.outcome.as_str());
    let closed = [("class", class.as_str()), ("id", &shown.id)];
    let opened = [closed[0], closed[1], ("open", "")];
    html.element("details", if open { &opened } else { &closed }, |html| {
        html.plain("summary", |html| write_summary(html, shown));
        html.class("div", "inside", |html| write_body(html, shown.step, shown));
    });
}

fn write_summary(html: &mut Html, shown: &ShownStep<'_>) {
    let step = shown.step;
    write_outcome(html, step.outcome);
    html.class("span", "what", |html| {
        html.class("span", "step-name", |html| {
            if shown.is_reason() {
                html.leaf("span", "soft", &page_text::truncated_name(&format!("{}/", shown.skill.skill)));
            }
            html.text(&page_text::truncated_name(step.planned.name.as_str()));
        });
        html.text(" ");
        if step.flaky {
            html.leaf("span", "tag unsure", "flaky");
            html.text(" ");
        }
        if let Some(source) = &step.reused {
            html.leaf("span", "soft", &source.phrase());
        }
        for note in step.notes() {
            html.leaf("span", "soft", &page_text::truncated_sentence(&note));
        }
        if step.outcome != Outcome::Passed {
            html.leaf("span", "why", &page_text::truncated_sentence(&outcome_reason::step_reason(step)));
        }
    });
    html.leaf("span", "spent", &if step.was_started() { step.time_text() } else { String::new() });
}

/// Writes the outcome as a sign and as a word; screen readers get only the word.
pub(super) fn write_outcome(html: &mut Html, outcome: Outcome) {
    html.class("span", &format!("sign {}", outcome.as_str()), |html| {
        html.element("span", &[("aria-hidden", "true")], |html| html.text(page_text::outcome_symbol(Some(outcome))));
        html.text(" ");
        html.leaf("span", "word", &page_text::outcome_text(Some(outcome)));
    });
}

fn write_body(html: &mut Html, step: &StepEvidence, shown: &ShownStep<'_>) {
    if html.is_full() {
        html.leaf("p", "note", "Omitted: the page would be too large. The evidence contains it.");
        return;
    }
    html.class("pre", "command", |html| html.text(&format!("$ {}", page_text::command_line(&step.planned))));
    write_attempts(html, step);
    let opening = if shown.is_reason() { InitialExcerpt::AroundErrors } else { InitialExcerpt::Whole };
    drift_section::write(html, &step.drift);
    tool_reports_section::write(html, &shown.tool_reports);
    output_section::write(html, step, opening, shown.logs_command().as_deref());
    for hint in failure_hints(step, &StreamTexts::default()) {
        html.leaf("p", "note", &format!("Hint: {hint}."));
    }
    html.class("details", "rest", |html| {
        html.text_element("summary", "Limits, sandbox, resources");
        html.class("dl", "facts small", |html| write_conditions(html, shown));
    });
}

/// Writes the result of each attempt, if the step was retried.
fn write_attempts(html: &mut Html, step: &StepEvidence) {
    if step.earlier_attempts.is_empty() {
        return;
    }
    html.class("ol", "attempts", |html| {
        for attempt in step.earlier_attempts.iter().take(MAX_ATTEMPTS) {
            let end = attempt.termination.phrase();
            html.plain("li", |html| {
                write_outcome(html, attempt.outcome);
                html.text(&format!(" {end} after {}", duration(attempt.duration_ms)));
            });
        }
        html.plain("li", |html| {
            write_outcome(html, step.outcome);
            html.text(&format!(" {}", page_text::truncated_sentence(&outcome_reason::step_reason(step))));
        });
    });
}

fn write_conditions(html: &mut Html, shown: &ShownStep<'_>) {
    let step = shown.step;
    let planned = &step.planned;
    let mut fact = |name: &str, value: String| {
        html.plain("div", |html| {
            html.text_element("dt", name);
            html.text_element("dd", &value);
        });
    };
    for attempt in shown.attempts.iter().take(MAX_ATTEMPTS) {
        let ended = attempt.span.ended_ms.map_or("it did not end".to_owned(), duration);
        fact(
            &format!("Attempt {}", attempt.attempt),
            format!("{} to {ended}, from the run's start", duration(attempt.span.began_ms)),
        );
    }
    for (name, stream) in [("stdout", &step.stdout), ("stderr", &step.stderr)] {
        fact(&format!("{name}, sha256 of {}", size(stream.bytes)), stream.sha256.to_string());
    }
    fact("Directory", page_text::truncated_name(planned.workdir.as_str()));
    fact(
        "Timeout",
        format!("{}, then {} until SIGKILL", exact_duration(planned.timeout_ms), exact_duration(planned.grace_ms)),
    );
    fact("Network", planned.network.as_str().to_owned());
    fact("read_only", planned.read_only.as_str().to_owned());
    fact("Retries", planned.retries.to_string());
    fact("leaks", planned.leaks.as_str().to_owned());
    if let Some(leaked) = &step.leaked {
        fact("Processes", page_text::truncated_sentence(&leaked.phrase()));
    }
    fact("Limits", step.planned.limits.phrase());
    fact(
        "CPU time",
        format!("{} user, {} system", duration(step.resources.user_ms), duration(step.resources.system_ms)),
    );
    fact("Memory", memory_text(step));
    let names: Vec<&str> = step.env_names.iter().take(MAX_VARIABLES).map(String::as_str).collect();
    let more = step.env_names.len().saturating_sub(MAX_VARIABLES);
    let more = if more > 0 { format!(" and {}", count(more, "more name")) } else { String::new() };
    fact("Variables", page_text::truncated_sentence(&format!("{}{more}", names.join(" "))));
}

fn memory_text(step: &StepEvidence) -> String {
    let kib = |kib: u64| size(kib.saturating_mul(1024));
    let largest = format!("{} in its largest process", kib(step.resources.max_rss_kib));
    match step.resources.memory_peak_kib {
        Some(peak) => format!("{} at most, {largest}", kib(peak)),
        None => largest,
    }
}
