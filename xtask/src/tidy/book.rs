//! Rules for the manual: its table of contents lists every page, no page is too long, and links to headings are valid.

use std::collections::BTreeMap;

use super::links::resolve_link;
use super::prose::GENERATED_PAGES;
use super::source_texts::{SourceTexts, TidyFindings};

/// The table of contents of mdBook.
const CONTENTS: &str = "docs/SUMMARY.md";
/// Maximum length of a page, in lines.
const MAX_PAGE_LINES: usize = 300;

/// Checks that the table of contents lists every page in `docs/` exactly once.
pub(super) fn contents_list_every_page(texts: &SourceTexts) -> TidyFindings {
    let Some(contents) = texts.get(CONTENTS) else { return Vec::new() };
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let pages = links(contents).filter_map(|(path, _)| resolve_link(CONTENTS, path));
    pages.for_each(|page| *counts.entry(page).or_default() += 1);
    let is_page = |path: &&String| path.starts_with("docs/") && path.ends_with(".md") && *path != CONTENTS;
    let finding = |path: &String| match counts.get(path) {
        Some(1) => None,
        Some(count) => Some(format!("{CONTENTS}: `{path}` is listed {count} times")),
        None => Some(format!("{CONTENTS}: `{path}` is not listed")),
    };
    texts.keys().filter(is_page).filter_map(finding).collect()
}

/// Checks that no page of the manual has more than [`MAX_PAGE_LINES`] lines, except pages that are generated.
pub(super) fn page_lengths(texts: &SourceTexts) -> TidyFindings {
    let is_written =
        |path: &str| path.starts_with("docs/") && path.ends_with(".md") && !GENERATED_PAGES.contains(&path);
    let pages = texts.iter().filter(|(path, _)| is_written(path)).map(|(path, text)| (path, text.lines().count()));
    let long = pages.filter(|(_, lines)| *lines > MAX_PAGE_LINES);
    long.map(|(path, lines)| format!("{path}: {lines} lines; a page may have {MAX_PAGE_LINES}; split it by topic"))
        .collect()
}

/// Checks links to headings in our Markdown files. Files in fixtures may be wrong on purpose.
pub(super) fn heading_links(texts: &SourceTexts) -> TidyFindings {
    let ours = |path: &str| path.ends_with(".md") && !path.starts_with("fixtures/");
    let headings: BTreeMap<&str, Vec<String>> = texts
        .iter()
        .filter(|(path, _)| ours(path))
        .map(|(path, text)| (path.as_str(), heading_anchors(text)))
        .collect();
    let mut findings = Vec::new();
    for path in headings.keys() {
        for (target, anchor) in links(&texts[*path]).filter(|(_, anchor)| !anchor.is_empty()) {
            let page = if target.is_empty() { Some((*path).to_owned()) } else { resolve_link(path, target) };
            let known = page.as_deref().and_then(|page| headings.get(page));
            // If the page does not exist, the rule for links reports it.
            if known.is_some_and(|known| !known.iter().any(|slug| slug == anchor)) {
                findings.push(format!("{path}: `{target}` has no heading `#{anchor}`"));
            }
        }
    }
    findings
}

/// Returns the lines of a page outside of code blocks.
fn lines_outside_code(text: &str) -> impl Iterator<Item = &str> {
    let mut fenced = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        fenced ^= is_fence;
        !fenced && !is_fence
    })
}

/// Returns the relative links of a page: the target, and the heading after `#`.
fn links(text: &str) -> impl Iterator<Item = (&str, &str)> {
    lines_outside_code(text).flat_map(|line| line.split("](").skip(1)).filter_map(|rest| {
        let target = rest.split_once(')')?.0;
        (!target.contains("://")).then(|| target.split_once('#').unwrap_or((target, "")))
    })
}

/// Returns the anchors of all headings, as GitHub and mdBook generate them.
fn heading_anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for heading in lines_outside_code(text).filter(|line| line.starts_with('#')) {
        let words = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let slug: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = found.iter().filter(|other| **other == slug).count();
        found.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::source_texts::texts;
    use super::*;

    #[test]
    fn contents_must_list_every_page_once() {
        let contents = "# Contents\n- [a](a.md)\n  - [b](x/b.md)\n- [a again](a.md)\n- [out](../README.md)\n";
        let files = texts(&[
            ("docs/SUMMARY.md", contents),
            ("docs/a.md", ""),
            ("docs/x/b.md", ""),
            ("docs/c.md", ""),
            ("README.md", ""),
        ]);
        assert_eq!(
            contents_list_every_page(&files),
            ["docs/SUMMARY.md: `docs/a.md` is listed 2 times", "docs/SUMMARY.md: `docs/c.md` is not listed"]
        );
    }

    #[test]
    fn written_pages_have_a_maximum_length() {
        let (longest, longer) = ("x\n".repeat(MAX_PAGE_LINES), "x\n".repeat(MAX_PAGE_LINES + 1));
        let files = texts(&[
            ("docs/a.md", &longest),
            ("docs/b.md", &longer),
            ("docs/errors.md", &longer),
            ("README.md", &longer),
        ]);
        assert_eq!(page_lengths(&files), ["docs/b.md: 301 lines; a page may have 300; split it by topic"]);
    }

    #[test]
    fn reports_links_to_missing_headings() {
        let a = "# One: `x.toml`, it's\n## One\n## One\n```sh\n# no heading\n[no](#link)\n```\n[self](#one-1) [gone](#no-heading)\n";
        let readme = "[1](docs/a.md#one-xtoml-its) [2](docs/a.md#two) [3](docs/gone.md#x) [4](https://a/b#c)\n";
        let found = heading_links(&texts(&[("docs/a.md", a), ("README.md", readme)]));
        assert_eq!(
            found,
            ["README.md: `docs/a.md` has no heading `#two`", "docs/a.md: `` has no heading `#no-heading`"]
        );
    }
}
