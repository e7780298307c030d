//! Writes one step in full: its command, the reason for its outcome, its changes, its output and its resource use.

use crate::evidence::StepEvidence;
use crate::outcome::Outcome;
use crate::plan::Limit;
use crate::reason;
use crate::report::html::log::{self, Opening};
use crate::report::html::markup::Html;
use crate::report::html::view::Shown;
use crate::report::html::words::{self, bound, count, duration, size};
use crate::report::html::{drift, reports};

/// Maximum number of earlier attempts that are listed.
const ATTEMPTS: usize = 20;
/// Maximum number of variable names that are listed.
const VARIABLES: usize = 100;

/// Writes a step as a foldable element; `open` sets whether it is initially open.
pub(super) fn write(html: &mut Html, shown: &Shown<'_>, open: bool) {
    let class = format!("step {}", shown.step.outcome.as_str());
    let closed = [("class", class.as_str()), ("id", &shown.id)];
    let opened = [closed[0], closed[1], ("open", "")];
    html.element("details", if open { &opened } else { &closed }, |html| {
        html.plain("summary", |html| summary(html, shown));
        html.class("div", "inside", |html| inside(html, shown.step, shown));
    });
}

fn summary(html: &mut Html, shown: &Shown<'_>) {
    let step = shown.step;
    sign(html, step.outcome);
    html.class("span", "what", |html| {
        html.class("span", "step-name", |html| {
            if shown.is_reason() {
                html.leaf("span", "soft", &words::name(&format!("{}/", shown.skill.skill)));
            }
            html.text(&words::name(step.planned.name.as_str()));
        });
        html.text(" ");
        if step.flaky {
            html.leaf("span", "tag unsure", "flaky");
            html.text(" ");
        }
        if step.outcome != Outcome::Passed {
            html.leaf("span", "why", &words::sentence(&reason::of_step(step)));
        }
    });
    html.leaf("span", "spent", &if step.was_started() { duration(step.duration_ms) } else { String::new() });
}

/// Writes the outcome as a sign and as a word; screen readers get only the word.
pub(super) fn sign(html: &mut Html, outcome: Outcome) {
    html.class("span", &format!("sign {}", outcome.as_str()), |html| {
        html.element("span", &[("aria-hidden", "true")], |html| html.text(words::sign(Some(outcome))));
        html.text(" ");
        html.leaf("span", "word", &words::outcome(Some(outcome)));
    });
}

fn inside(html: &mut Html, step: &StepEvidence, shown: &Shown<'_>) {
    if html.is_full() {
        html.leaf("p", "note", "Left out here: the page would be too large. The evidence has it.");
        return;
    }
    html.class("pre", "command", |html| html.text(&format!("$ {}", words::command(&step.planned))));
    attempts(html, step);
    let opening = if shown.is_reason() { Opening::AtTheError } else { Opening::Whole };
    drift::write(html, &step.drift);
    reports::write(html, &shown.files);
    log::write(html, step, opening, shown.logs_command().as_deref());
    html.class("details", "rest", |html| {
        html.say("summary", "Conditions and use");
        html.class("dl", "facts small", |html| conditions(html, shown));
    });
}

/// Writes the result of each attempt, if the step was retried.
fn attempts(html: &mut Html, step: &StepEvidence) {
    if step.earlier_attempts.is_empty() {
        return;
    }
    html.class("ol", "attempts", |html| {
        for attempt in step.earlier_attempts.iter().take(ATTEMPTS) {
            let end = attempt.termination.phrase();
            html.plain("li", |html| {
                sign(html, attempt.outcome);
                html.text(&format!(" {end} after {}", duration(attempt.duration_ms)));
            });
        }
        html.plain("li", |html| {
            sign(html, step.outcome);
            html.text(&format!(" {}", words::sentence(&reason::of_step(step))));
        });
    });
}

fn conditions(html: &mut Html, shown: &Shown<'_>) {
    let step = shown.step;
    let planned = &step.planned;
    let mut fact = |name: &str, value: String| {
        html.plain("div", |html| {
            html.say("dt", name);
            html.say("dd", &value);
        });
    };
    for attempt in shown.attempts.iter().take(ATTEMPTS) {
        let ended = attempt.span.ended_ms.map_or("it did not end".to_owned(), duration);
        fact(
            &format!("Attempt {}", attempt.attempt),
            format!("{} to {ended}, from the run's start", duration(attempt.span.began_ms)),
        );
    }
    for (name, stream) in [("stdout", &step.stdout), ("stderr", &step.stderr)] {
        fact(&format!("{name}, sha256 of {}", size(stream.bytes)), stream.sha256.as_str().to_owned());
    }
    fact("Directory", words::name(planned.workdir.as_str()));
    fact("Timeout", format!("{}, then {} until SIGKILL", bound(planned.timeout_ms), bound(planned.grace_ms)));
    fact("Network", planned.network.as_str().to_owned());
    fact("read_only", planned.read_only.as_str().to_owned());
    fact("Retries", planned.retries.to_string());
    fact("leaks", planned.leaks.as_str().to_owned());
    if let Some(leaked) = &step.leaked {
        fact("Processes", words::sentence(&leaked.phrase()));
    }
    fact("Limits", limits(step));
    fact(
        "CPU time",
        format!("{} user, {} system", duration(step.resources.user_ms), duration(step.resources.system_ms)),
    );
    fact("Memory", memory(step));
    let names: Vec<&str> = step.env_names.iter().take(VARIABLES).map(String::as_str).collect();
    let more = step.env_names.len().saturating_sub(VARIABLES);
    let more = if more > 0 { format!(" and {}", count(more, "more name")) } else { String::new() };
    fact("Variables", words::sentence(&format!("{}{more}", names.join(" "))));
}

fn memory(step: &StepEvidence) -> String {
    let kib = |kib: u64| size(kib.saturating_mul(1024));
    let largest = format!("{} in its largest process", kib(step.resources.max_rss_kib));
    match step.resources.memory_peak_kib {
        Some(peak) => format!("{} at most, {largest}", kib(peak)),
        None => largest,
    }
}

fn limits(step: &StepEvidence) -> String {
    let limits = &step.planned.limits;
    let say = |name: &str, limit: Limit, unit: fn(u64) -> String| match limit {
        Limit::Max(bound) => format!("{name} {}", unit(bound)),
        Limit::Unlimited => format!("{name} unlimited"),
    };
    let number = |number: u64| number.to_string();
    [
        say("memory", limits.memory, size),
        say("processes", limits.pids, number),
        say("disk", limits.disk, size),
        say("output", limits.output, size),
        say("CPU seconds", limits.cpu_seconds, number),
        say("open files", limits.open_files, number),
    ]
    .join(", ")
}
