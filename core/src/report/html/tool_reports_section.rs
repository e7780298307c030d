//! Writes the reports of a step's tools: failed cases and findings, each with its location.

use crate::model::plan::ReportFormat;
use crate::report::html::markup::Html;
use crate::report::html::page_text::{self, count};
use crate::report::report_input::{ToolReport, ToolReportContent};
use crate::report::tool::{self, SourceLocation, junit_reader, sarif_reader};

/// Maximum number of cases or findings of one file that are shown; the file contains more.
const MAX_SHOWN_ITEMS: usize = 200;
/// Number of cases that are initially open.
const OPEN_CASES: usize = 3;
/// Maximum number of characters that are shown of a case's detailed message.
const MAX_DETAIL_CHARS: usize = 4_000;

/// Writes each file. Skips files that the step did not write.
pub(super) fn write(html: &mut Html, files: &[&ToolReport]) {
    for file in files.iter().filter(|file| file.content != ToolReportContent::Missing) {
        if html.is_full() {
            html.leaf("p", "note", "Reports of tools are omitted: the page would be too large.");
            return;
        }
        self::write_tool_report(html, file);
    }
}

fn write_tool_report(html: &mut Html, file: &ToolReport) {
    let problem = match (&file.content, file.format) {
        (ToolReportContent::Missing, _) => return,
        (ToolReportContent::Unavailable(problem), _) => problem.clone(),
        (ToolReportContent::Read(bytes), ReportFormat::Junit) => match junit_reader::parse(bytes) {
            Ok(suites) => return write_cases(html, file, &suites),
            Err(error) => error.to_string(),
        },
        (ToolReportContent::Read(bytes), ReportFormat::Sarif) => match sarif_reader::parse(bytes) {
            Ok(runs) => return write_findings(html, file, &runs),
            Err(error) => error.to_string(),
        },
    };
    html.class("div", "report", |html| {
        write_heading(html, file, "not read");
        html.leaf("p", "note", &page_text::truncated_sentence(&tool::unreadable_report_message(&file.path, &problem)));
    });
}

fn write_heading(html: &mut Html, file: &ToolReport, tally: &str) {
    html.plain("h4", |html| {
        html.text("Report ");
        html.leaf("code", "path", &page_text::truncated_name(&file.path));
        html.text(" ");
        html.leaf("span", "soft", tally);
    });
}

fn write_cases(html: &mut Html, file: &ToolReport, suites: &[junit_reader::JunitSuite]) {
    let all = suites.iter().flat_map(|suite| &suite.cases);
    let failed: Vec<_> = all.clone().filter_map(|case| Some((case, case.failure()?))).collect();
    html.class("div", "report", |html| {
        write_heading(html, file, &format!("{} of {} failed", failed.len(), count(all.count(), "case")));
        let mut shown = 0;
        for (case, end) in failed.iter().take(MAX_SHOWN_ITEMS) {
            if html.is_full() {
                break;
            }
            self::write_case(html, case, end, shown < OPEN_CASES);
            shown += 1;
        }
        write_hidden_count(html, failed.len() - shown, "failed case");
    });
}

fn write_case(html: &mut Html, case: &junit_reader::JunitCase, end: &junit_reader::JunitCaseResult, open: bool) {
    let closed = [("class", "change")];
    let opened = [closed[0], ("open", "")];
    html.element("details", if open { &opened } else { &closed }, |html| {
        html.plain("summary", |html| {
            html.leaf(
                "span",
                "kind",
                if end.kind == junit_reader::JunitResultKind::Error { "error" } else { "failed" },
            );
            html.text(" ");
            let class = case.class.as_ref().map(|class| format!("{class} "));
            html.leaf(
                "code",
                "path",
                &page_text::truncated_name(&format!("{}{}", class.unwrap_or_default(), case.name)),
            );
            self::write_location(html, case.location.as_ref());
        });
        let message = end.message.as_deref().map(str::trim).filter(|text| !text.is_empty());
        if let Some(text) = message {
            html.leaf("p", "note", &page_text::truncated_sentence(text));
        }
        let details = end.text.trim_matches('\n');
        if !details.trim().is_empty() {
            html.class("pre", "log", |html| {
                // An HTML parser drops the first newline of a `pre` element, so add one to be dropped.
                html.verbatim("\n");
                html.text(&page_text::truncate_chars(details, MAX_DETAIL_CHARS));
            });
        }
    });
}

fn write_findings(html: &mut Html, file: &ToolReport, runs: &[sarif_reader::SarifRun]) {
    let found: Vec<_> = runs
        .iter()
        .flat_map(|run| run.results.iter().filter_map(|result| Some((run.tool_name(), run.to_finding(result)?))))
        .collect();
    html.class("div", "report", |html| {
        write_heading(html, file, &count(found.len(), "finding"));
        html.class("ul", "paths", |html| {
            for (tool, finding) in found.iter().take(MAX_SHOWN_ITEMS) {
                html.plain("li", |html| self::write_finding(html, tool, finding));
            }
        });
        write_hidden_count(html, found.len().saturating_sub(MAX_SHOWN_ITEMS), "finding");
        let broken: usize = runs.iter().map(|run| run.invalid_results).sum();
        if broken > 0 {
            let broken = count(broken, "result");
            html.leaf(
                "p",
                "note",
                &format!("{broken} of it cannot be read because they violate the schema of SARIF 2.1.0."),
            );
        }
    });
}

fn write_finding(html: &mut Html, tool: &str, finding: &sarif_reader::SarifFinding) {
    let (class, level) = match finding.level {
        sarif_reader::FindingLevel::Error => ("failed", "error"),
        sarif_reader::FindingLevel::Warning => ("unsure", "warning"),
        sarif_reader::FindingLevel::Note => ("soft", "note"),
    };
    html.leaf("span", class, level);
    html.text(" ");
    let rule = finding.rule.as_ref().map(|rule| format!(" {rule}"));
    html.leaf("span", "soft", &page_text::truncated_name(&format!("{tool}{}", rule.unwrap_or_default())));
    write_location(html, finding.location.as_ref());
    html.text(" ");
    html.text(&page_text::truncated_sentence(&finding.message));
}

/// Writes the location of a case or finding after its name.
fn write_location(html: &mut Html, place: Option<&SourceLocation>) {
    let Some(place) = place else { return };
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| format!(":{number}"));
    html.text(" ");
    let column = place.line.and(place.column);
    html.leaf(
        "code",
        "path",
        &page_text::truncated_name(&format!("{}{}{}", place.path, number(place.line), number(column))),
    );
}

fn write_hidden_count(html: &mut Html, hidden: usize, what: &str) {
    if hidden > 0 {
        html.leaf("p", "note", &format!("And {} in the file.", count(hidden, &format!("more {what}"))));
    }
}
