//! `cargo xtask tidy`: checks rules of this repository that no lint covers. This file has the list of rules and
//! sets the exit code. Each rule is a pure function of the files' texts, so that a test can show a violation of
//! each.

mod book;
mod dependencies;
mod links;
mod prose;
mod sources;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::files;

/// Every text file by its path relative to the repository, with `/` between components. Files that are not UTF-8
/// have an empty text, so links to them are valid.
type SourceTexts = BTreeMap<String, String>;

/// Violations of a rule; each message starts with a location.
type TidyFindings = Vec<String>;

/// Every rule, in the order of the output.
const RULES: [fn(&SourceTexts) -> TidyFindings; 14] = [
    sources::source_headers,
    sources::source_lengths,
    sources::forbidden_words,
    sources::pure_core,
    sources::unsafe_only_where_allowed,
    dependencies::dependencies_documented,
    dependencies::dependencies_used,
    dependencies::dependency_directions,
    links::relative_links,
    links::make_targets,
    links::named_sources,
    book::contents_list_every_page,
    book::heading_links,
    prose::plain_language,
];

/// Checks every rule and prints all violations.
///
/// # Errors
/// The repository cannot be read.
pub(crate) fn check(root: &Path) -> Result<ExitCode> {
    let texts = read(root)?;
    let findings: TidyFindings = RULES.iter().flat_map(|rule| rule(&texts)).collect();
    for finding in &findings {
        eprintln!("error: {finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} rules checked, no violations", RULES.len());
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

fn read(root: &Path) -> Result<SourceTexts> {
    let mut texts = SourceTexts::new();
    for path in files::list_files(root)? {
        let bytes = files::read(&root.join(&path))?;
        texts.insert(path.to_string_lossy().into_owned(), String::from_utf8(bytes).unwrap_or_default());
    }
    Ok(texts)
}

/// Returns our own Rust sources; sources in fixtures may violate the rules on purpose.
fn rust_sources(texts: &SourceTexts) -> impl Iterator<Item = (&str, &str)> {
    let ours = |path: &str| path.ends_with(".rs") && !path.starts_with("fixtures/");
    texts.iter().filter(move |(path, _)| ours(path)).map(|(path, text)| (path.as_str(), text.as_str()))
}

#[cfg(test)]
fn texts(files: &[(&str, &str)]) -> SourceTexts {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}
