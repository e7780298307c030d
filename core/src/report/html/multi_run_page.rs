//! Writes several runs on one page, such as those of a range of commits: the combined verdict, one line for each
//! run, then each run in full.

use crate::decision::verdict::Verdict;
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count};
use crate::report::html::page_view::{MAX_STEPS, RunPageView};
use crate::report::html::{PageRun, step_list, verdict_header, write_sections};

/// Maximum number of runs that are shown in full.
const MAX_SHOWN_RUNS: usize = 100;

/// Writes the runs.
pub(super) fn write(html: &mut Html, verdict: Verdict, parts: &[PageRun<'_>]) {
    let views: Vec<Option<RunPageView<'_>>> =
        parts.iter().enumerate().map(|(at, part)| run_view(at, part, parts.len())).collect();
    html.class("header", "verdict", |html| {
        html.class("div", "wide", |html| {
            html.plain("h1", |html| {
                verdict_header::write_verdict(html, verdict.as_str());
                html.leaf("span", "profile", &count(parts.len(), "run"));
            });
            html.leaf("p", "meaning", page_text::combined_verdict_explanation(verdict));
            html.class("ol", "runs", |html| {
                for (at, (part, view)) in parts.iter().zip(&views).enumerate().take(MAX_SHOWN_RUNS) {
                    write_run_line(html, at, part, view.as_ref());
                }
            });
            if parts.len() > MAX_SHOWN_RUNS {
                html.leaf("p", "note", &format!("And {} more, which are not shown.", parts.len() - MAX_SHOWN_RUNS));
            }
        });
    });
    html.element("main", &[("id", "main")], |html| {
        step_list::write_search_form(html);
        for (at, (part, view)) in parts.iter().zip(&views).enumerate().take(MAX_SHOWN_RUNS) {
            write_run(html, at, part, view.as_ref());
        }
    });
}

/// Returns the view of a run; the runs share the maximum number of steps of a page.
fn run_view<'a>(at: usize, part: &PageRun<'a>, parts: usize) -> Option<RunPageView<'a>> {
    let steps = MAX_STEPS / parts.clamp(1, MAX_SHOWN_RUNS);
    Some(RunPageView::with_prefix(part.result.ok()?, part.tool_reports, format!("{}-", run_element_id(at)), steps))
}

fn run_element_id(at: usize) -> String {
    format!("run-{}", at + 1)
}

fn verdict_word(view: Option<&RunPageView<'_>>) -> &'static str {
    view.map_or("inconclusive", RunPageView::verdict_word)
}

fn write_run_line(html: &mut Html, at: usize, part: &PageRun<'_>, view: Option<&RunPageView<'_>>) {
    html.plain("li", |html| {
        html.leaf("span", &format!("word {}", verdict_word(view)), verdict_word(view));
        html.text(" ");
        html.link(&run_element_id(at), &page_text::truncated_name(part.name));
    });
}

fn write_run(html: &mut Html, at: usize, part: &PageRun<'_>, view: Option<&RunPageView<'_>>) {
    let attributes = [
        ("class", "run"),
        ("id", &run_element_id(at)),
        ("data-verdict", verdict_word(view)),
        ("aria-label", part.name),
    ];
    html.element("article", &attributes, |html| {
        html.leaf("p", "run-name", &page_text::truncated_name(part.name));
        match (view, part.result) {
            (Some(view), _) => {
                verdict_header::write(html, view);
                write_sections(html, view);
            }
            (None, Err(reason)) => html.leaf("div", "doubt", &page_text::truncated_sentence(reason)),
            (None, Ok(_)) => {}
        }
    });
}
