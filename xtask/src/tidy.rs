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
type Texts = BTreeMap<String, String>;

/// Violations of a rule; each sentence begins with a location.
type Findings = Vec<String>;

/// Every rule, in the order of the output.
const RULES: [fn(&Texts) -> Findings; 14] = [
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
    prose::plain,
];

/// Checks every rule and prints all violations.
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

/// Returns our own Rust sources; sources in fixtures may violate the rules on purpose.
fn rust(texts: &Texts) -> impl Iterator<Item = (&str, &str)> {
    let ours = |path: &str| path.ends_with(".rs") && !path.starts_with("fixtures/");
    texts.iter().filter(move |(path, _)| ours(path)).map(|(path, text)| (path.as_str(), text.as_str()))
}

#[cfg(test)]
fn texts(files: &[(&str, &str)]) -> Texts {
    files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
}
