//! `cargo xtask tidy`: the rules of the house that no lint knows. Here: which rules there are,
//! and how their findings become an exit code. Each rule is a pure function over the files'
//! texts, so that each has its failing case in a test.

mod book;
mod dependencies;
mod links;
mod sources;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::files;

/// Every text file of the repository by its path relative to it, with `/` between components.
/// Files that are not UTF-8 are there with an empty text, so that links to them hold.
type Texts = BTreeMap<String, String>;

/// What breaks a rule: a sentence that begins with where.
type Findings = Vec<String>;

/// Every rule, in the order in which findings are shown.
const RULES: [fn(&Texts) -> Findings; 13] = [
    sources::headers,
    sources::lengths,
    sources::words,
    sources::pure_core,
    sources::unsafe_has_its_places,
    dependencies::documented,
    dependencies::used,
    dependencies::directions,
    links::relative,
    links::make_targets,
    links::named_sources,
    book::complete,
    book::anchors,
];

/// Applies every rule and shows all findings at once.
///
/// # Errors
/// The repository cannot be read.
pub(crate) fn check(root: &Path) -> Result<ExitCode> {
    let texts = read(root)?;
    let findings: Findings = RULES.iter().flat_map(|rule| rule(&texts)).collect();
    for finding in &findings {
        eprintln!("error: {finding}");
    }
    if findings.is_empty() {
        println!("tidy: {} rules hold", RULES.len());
        Ok(ExitCode::SUCCESS)
    } else {
        Ok(ExitCode::FAILURE)
    }
}

fn read(root: &Path) -> Result<Texts> {
    let mut texts = Texts::new();
    for path in files::all(root)? {
        let bytes = files::read(&root.join(&path))?;
        texts.insert(path.to_string_lossy().into_owned(), String::from_utf8(bytes).unwrap_or_default());
    }
    Ok(texts)
}

/// The Rust sources that are ours: those of fixtures are there to be wrong.
fn rust(texts: &Texts) -> impl Iterator<Item = (&str, &str)> {
    let ours = |path: &str| path.ends_with(".rs") && !path.starts_with("fixtures/");
    texts.iter().filter(move |(path, _)| ours(path)).map(|(path, text)| (path.as_str(), text.as_str()))
}

#[cfg(test)]
fn texts(files: &[(&str, &str)]) -> Texts {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}
