//! Represents what the rules check: the texts of all files, and what the rules found.

use std::collections::BTreeMap;

/// Every text file by its path relative to the repository, with `/` between components. Files that are not UTF-8
/// have an empty text, so links to them are valid.
pub(super) type SourceTexts = BTreeMap<String, String>;

/// Violations of a rule; each message starts with a location.
pub(super) type TidyFindings = Vec<String>;

/// Returns our own Rust sources; sources in fixtures may violate the rules on purpose.
pub(super) fn rust_sources(texts: &SourceTexts) -> impl Iterator<Item = (&str, &str)> {
    let ours = |path: &str| path.ends_with(".rs") && !path.starts_with("fixtures/");
    texts.iter().filter(move |(path, _)| ours(path)).map(|(path, text)| (path.as_str(), text.as_str()))
}

/// Returns sources for the test of a rule.
#[cfg(test)]
pub(super) fn texts(files: &[(&str, &str)]) -> SourceTexts {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}
