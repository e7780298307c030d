//! Rules for documents: the targets of their references exist.

use super::source_texts::{SourceTexts, TidyFindings};

/// Checks that every relative link of a Markdown file leads to a file or a directory. Files in fixtures may be
/// wrong on purpose.
pub(super) fn relative_links(texts: &SourceTexts) -> TidyFindings {
    texts
        .iter()
        .filter(|(path, _)| path.ends_with(".md") && !path.starts_with("fixtures/"))
        .flat_map(|(path, text)| {
            let broken = link_targets(text).filter(|target| !has_target(texts, path, target));
            broken
                .map(move |target| format!("{path}: the target of the link `{target}` does not exist"))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Checks that every `make …` in the README is a target of the Makefile.
pub(super) fn make_targets(texts: &SourceTexts) -> TidyFindings {
    let makefile = texts.get("Makefile").map_or("", String::as_str);
    let readme = texts.get("README.md").map_or("", String::as_str);
    let is_target =
        |name: &str| makefile.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(':')));
    make_commands(readme)
        .filter(|name| !is_target(name))
        .map(|name| format!("README.md: the Makefile has no target `{name}`"))
        .collect()
}

/// Checks that every source file in a code span of a document exists, by its full path or the end of its path.
pub(super) fn named_sources(texts: &SourceTexts) -> TidyFindings {
    texts
        .iter()
        .filter(|(path, _)| path.ends_with(".md") && !path.starts_with("fixtures/"))
        .flat_map(|(path, text)| {
            let gone = source_names(text).filter(|name| !has_source(texts, name));
            gone.map(move |name| format!("{path}: the source `{name}` does not exist")).collect::<Vec<_>>()
        })
        .collect()
}

/// Returns code spans of one word that end in `.rs`.
fn source_names(text: &str) -> impl Iterator<Item = &str> {
    text.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(|span| {
        let is_path = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
        span.ends_with(".rs") && span.chars().all(is_path)
    })
}

fn has_source(texts: &SourceTexts, name: &str) -> bool {
    let below = format!("/{name}");
    texts.keys().any(|path| path == name || path.ends_with(&below))
}

/// Returns the words that follow `make ` at the start of a line or of a code span.
fn make_commands(text: &str) -> impl Iterator<Item = &str> {
    let starts = |at: usize| at == 0 || text[..at].ends_with(['\n', '`']);
    text.match_indices("make ").filter(move |(at, _)| starts(*at)).filter_map(|(at, word)| {
        let rest = &text[at + word.len()..];
        let end = rest.find(|c: char| !(c.is_ascii_lowercase() || c == '-')).unwrap_or(rest.len());
        (end > 0).then(|| &rest[..end])
    })
}

/// Returns the targets of relative Markdown links, without their anchors.
fn link_targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| {
        let target = rest.split_once(')')?.0;
        let path = target.split('#').next().unwrap_or_default();
        (!path.is_empty() && !target.contains("://")).then_some(path)
    })
}

/// Resolves a link relative to the file that contains it; `None` if it leads out of the repository.
pub(super) fn resolve_link(from: &str, target: &str) -> Option<String> {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            name => parts.push(name),
        }
    }
    Some(parts.join("/"))
}

fn has_target(texts: &SourceTexts, from: &str, target: &str) -> bool {
    let Some(path) = resolve_link(from, target) else { return false };
    let below = format!("{path}/");
    texts.contains_key(&path) || texts.keys().any(|file| file.starts_with(&below))
}

#[cfg(test)]
mod tests {
    use super::super::source_texts::texts;
    use super::*;

    #[test]
    fn reports_links_to_missing_files() {
        let readme = "[a](docs/a.md#x) [b](./core) [c](https://x/y) [d](#here) [e](docs/gone.md)";
        let a = "[up](../README.md) [out](../../x) [side](b.md)";
        let files = texts(&[("README.md", readme), ("docs/a.md", a), ("core/src/lib.rs", ""), ("fixtures/a.md", a)]);
        let found = relative_links(&files);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("`docs/gone.md`") && found[1].contains("`../../x`") && found[2].contains("`b.md`"));
    }

    #[test]
    fn reports_make_commands_without_target() {
        let readme = "make demo\nwe make it so\n`make test` or `make tset`\n";
        let files = texts(&[("README.md", readme), ("Makefile", "demo: build\n\tx\ntest:\n\tmake tset\n")]);
        assert_eq!(make_targets(&files), ["README.md: the Makefile has no target `tset`"]);
    }

    #[test]
    fn reports_missing_source_names() {
        let map = "`a.rs` and `x/b.rs`, not c.rs; `*.rs`, `let x.rs`, `gone.rs`\n";
        let files = texts(&[("docs/a.md", map), ("core/src/a.rs", ""), ("core/x/b.rs", "")]);
        assert_eq!(named_sources(&files), ["docs/a.md: the source `gone.rs` does not exist"]);
    }
}
