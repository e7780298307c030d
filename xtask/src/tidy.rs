//! `cargo xtask tidy`: checks rules of this repository that no lint covers. This file has the list of rules and
//! sets the exit code. Each rule is a pure function of the files' texts, so that a test can show a violation of
//! each.

mod book;
mod dependencies;
mod import_circles;
mod links;
mod prose;
mod source_texts;
mod sources;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;

use crate::files;
use source_texts::{SourceTexts, TidyFindings};

/// Every rule, in the order of the output.
const RULES: [fn(&SourceTexts) -> TidyFindings; 17] = [
    sources::source_headers,
    sources::source_lengths,
    sources::forbidden_words,
    sources::no_doctests,
    sources::pure_core,
    sources::unsafe_only_where_allowed,
    dependencies::dependencies_documented,
    dependencies::dependencies_used,
    dependencies::dependency_directions,
    import_circles::import_circles,
    links::relative_links,
    links::make_targets,
    links::named_sources,
    book::contents_list_every_page,
    book::page_lengths,
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
