//! Writes the reports of a step's tools: failed cases and findings, each with its location.

use crate::plan::ReportFormat;
use crate::report::html::markup::Html;
use crate::report::html::words::{self, count};
use crate::report::tool::{self, Place, junit, sarif};
use crate::report::{Content, ToolFile};

/// Maximum number of cases or findings of one file that are shown; the file contains more.
const SHOWN: usize = 200;
/// Number of cases that are initially open.
const OPEN: usize = 3;
/// Maximum number of characters that are shown of a case's detailed message.
const AT_LENGTH: usize = 4_000;

/// Writes each file. Skips files that the step did not write.
pub(super) fn write(html: &mut Html, files: &[&ToolFile]) {
    for file in files.iter().filter(|file| file.content != Content::Missing) {
        if html.is_full() {
            html.leaf("p", "note", "Reports of tools are left out here: the page would be too large.");
            return;
        }
        self::file(html, file);
    }
}

fn file(html: &mut Html, file: &ToolFile) {
    let problem = match (&file.content, file.format) {
        (Content::Missing, _) => return,
        (Content::Unread(problem), _) => problem.clone(),
        (Content::Read(bytes), ReportFormat::Junit) => match junit::read(bytes) {
            Ok(suites) => return cases(html, file, &suites),
            Err(problem) => problem,
        },
        (Content::Read(bytes), ReportFormat::Sarif) => match sarif::read(bytes) {
            Ok(runs) => return findings(html, file, &runs),
            Err(problem) => problem,
        },
    };
    html.class("div", "report", |html| {
        heading(html, file, "not read");
        html.leaf("p", "note", &words::sentence(&tool::unreadable(&file.path, &problem)));
    });
}

fn heading(html: &mut Html, file: &ToolFile, tally: &str) {
    html.plain("h4", |html| {
        html.text("Report ");
        html.leaf("code", "path", &words::name(&file.path));
        html.text(" ");
        html.leaf("span", "soft", tally);
    });
}

fn cases(html: &mut Html, file: &ToolFile, suites: &[junit::Suite]) {
    let all = suites.iter().flat_map(|suite| &suite.cases);
    let failed: Vec<_> = all.clone().filter_map(|case| Some((case, case.failure()?))).collect();
    html.class("div", "report", |html| {
        heading(html, file, &format!("{} of {} failed", failed.len(), count(all.count(), "case")));
        let mut shown = 0;
        for (case, end) in failed.iter().take(SHOWN) {
            if html.is_full() {
                break;
            }
            self::case(html, case, end, shown < OPEN);
            shown += 1;
        }
        more(html, failed.len() - shown, "failed case");
    });
}

fn case(html: &mut Html, case: &junit::Case, end: &junit::End, open: bool) {
    let closed = [("class", "change")];
    let opened = [closed[0], ("open", "")];
    html.element("details", if open { &opened } else { &closed }, |html| {
        html.plain("summary", |html| {
            html.leaf("span", "kind", if end.kind == junit::EndKind::Error { "error" } else { "failed" });
            html.text(" ");
            let class = case.class.as_ref().map(|class| format!("{class} "));
            html.leaf("code", "path", &words::name(&format!("{}{}", class.unwrap_or_default(), case.name)));
            self::place(html, case.place.as_ref());
        });
        let said = end.message.as_deref().map(str::trim).filter(|text| !text.is_empty());
        if let Some(said) = said {
            html.leaf("p", "note", &words::sentence(said));
        }
        let at_length = end.text.trim_matches('\n');
        if !at_length.trim().is_empty() {
            html.class("pre", "log", |html| {
                // An HTML parser drops the first newline of a `pre` element, so add one to be dropped.
                html.verbatim("\n");
                html.text(&words::cut(at_length, AT_LENGTH));
            });
        }
    });
}

fn findings(html: &mut Html, file: &ToolFile, runs: &[sarif::ToolRun]) {
    let found: Vec<_> = runs
        .iter()
        .flat_map(|run| run.results.iter().filter_map(|result| Some((run.tool(), run.finding(result)?))))
        .collect();
    html.class("div", "report", |html| {
        heading(html, file, &count(found.len(), "finding"));
        html.class("ul", "paths", |html| {
            for (tool, finding) in found.iter().take(SHOWN) {
                html.plain("li", |html| self::finding(html, tool, finding));
            }
        });
        more(html, found.len().saturating_sub(SHOWN), "finding");
        let broken: usize = runs.iter().map(|run| run.broken).sum();
        if broken > 0 {
            let broken = count(broken, "result");
            html.leaf(
                "p",
                "note",
                &format!("{broken} of it cannot be read: the schema of SARIF 2.1.0 is broken there."),
            );
        }
    });
}

fn finding(html: &mut Html, tool: &str, finding: &sarif::Finding) {
    let (class, level) = match finding.level {
        sarif::Level::Error => ("failed", "error"),
        sarif::Level::Warning => ("unsure", "warning"),
        sarif::Level::Note => ("soft", "note"),
    };
    html.leaf("span", class, level);
    html.text(" ");
    let rule = finding.rule.as_ref().map(|rule| format!(" {rule}"));
    html.leaf("span", "soft", &words::name(&format!("{tool}{}", rule.unwrap_or_default())));
    place(html, finding.place.as_ref());
    html.text(" ");
    html.text(&words::sentence(&finding.message));
}

/// Writes the location of a case or finding after its name.
fn place(html: &mut Html, place: Option<&Place>) {
    let Some(place) = place else { return };
    let number = |number: Option<u64>| number.map_or_else(String::new, |number| format!(":{number}"));
    html.text(" ");
    let column = place.line.and(place.column);
    html.leaf("code", "path", &words::name(&format!("{}{}{}", place.path, number(place.line), number(column))));
}

fn more(html: &mut Html, hidden: usize, what: &str) {
    if hidden > 0 {
        html.leaf("p", "note", &format!("And {} in the file.", count(hidden, &format!("more {what}"))));
    }
}
