//! Checks whether the query answers the question. Each submodule compares one aspect of the query's tree with the
//! question. Checks that need no question, such as tables joined without a condition or keys that are added up, also
//! run without one.
//!
//! Questions are noisy, and even reference queries are sometimes wrong. A finding is a warning with a confidence; only
//! a finding with a confidence of [`CERTAIN`] or more is an error.

mod aggregates;
mod conditions;
mod distinct;
mod entities;
mod extreme;
mod filters;
mod grouping;
mod joins;
mod keys;
mod language;
mod limit;
mod negation;
mod order;
mod question;
mod reader;
mod requested;
mod shape;
mod tree;
mod words;

use std::ops::Range;

use proctor_core::sql::{Diagnostic, SqlCode, StageName};
use sqlparser::ast;

use crate::catalog::Catalog;
use crate::stage::{Case, Stage};
use language::is_english;
use question::Question;
use shape::Shape;

/// The confidence, in percent, from which a finding is an error.
const CERTAIN: u8 = 95;

/// The stage `semantic`.
pub(super) struct Semantic;

impl Stage for Semantic {
    fn name(&self) -> StageName {
        StageName::Semantic
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        let question = case.request.question.as_deref().map(Question::of);
        let catalog = case.visible();
        let mut found = Vec::new();
        for statement in &case.statements {
            let Some(tree) = &statement.tree else { continue };
            let findings = findings(tree, case.text_of(statement), question.as_ref(), &catalog);
            let begin = statement.range.start;
            let place = |place: &Range<usize>| case.span(begin + place.start..begin + place.end);
            found.extend(findings.iter().map(|finding| finding.diagnostic(finding.place.as_ref().map(place))));
        }
        drop(catalog);
        if question.as_ref().is_some_and(|question| !is_english(question)) {
            let message = "the question is not in English: only checks that need no question ran";
            found.push(Diagnostic::note(StageName::Semantic, SqlCode::QuestionUnread, message));
        }
        found.into_iter().for_each(|found| case.found(found));
        Ok(())
    }
}

/// The input of the checks.
struct Sheet<'a> {
    shape: &'a Shape,
    catalog: &'a Catalog,
}

/// A finding of a check.
#[derive(Debug, Clone)]
struct Finding {
    code: SqlCode,
    /// The difference between the question and the query.
    message: String,
    confidence: u8,
    /// The byte range in the statement.
    place: Option<Range<usize>>,
    advice: String,
    subject: Option<String>,
}

impl Finding {
    fn new(code: SqlCode, confidence: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), confidence, place: None, advice: String::new(), subject: None }
    }

    fn at(mut self, place: &Range<usize>) -> Self {
        self.place = (!place.is_empty()).then(|| place.clone());
        self
    }

    fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    fn diagnostic(&self, span: Option<proctor_core::sql::Span>) -> Diagnostic {
        let mut found = Diagnostic::warning(StageName::Semantic, self.code, self.message.clone(), self.confidence);
        if self.confidence >= CERTAIN {
            found.severity = proctor_core::sql::Severity::Error;
        }
        found.subject.clone_from(&self.subject);
        found.at(span).advice(self.advice.clone())
    }
}

/// Returns the findings about a statement, one for each code.
fn findings(tree: &ast::Statement, text: &str, question: Option<&Question>, catalog: &Catalog) -> Vec<Finding> {
    let mut found = joins::check(tree, text, question, catalog);
    found.extend(conditions::check(tree, text, catalog));
    let Some(shape) = reader::read(tree, text, catalog) else { return found };
    let sheet = Sheet { shape: &shape, catalog };
    found.extend(keys::check(&sheet));
    if let Some(question) = question.filter(|question| !question.words.is_empty() && is_english(question)) {
        const CHECKS: [fn(&Sheet<'_>, &Question) -> Vec<Finding>; 8] = [
            aggregates::check,
            requested::check,
            order::check,
            limit::check,
            grouping::check,
            filters::check,
            distinct::check,
            negation::check,
        ];
        found.extend(CHECKS.iter().flat_map(|check| check(&sheet, question)));
        found.extend(entities::check(&sheet, question));
    }
    strongest(found)
}

/// Keeps the finding with the highest confidence for each code, so that one mistake is reported once.
fn strongest(mut found: Vec<Finding>) -> Vec<Finding> {
    found.sort_by(|one, other| (one.code, other.confidence).cmp(&(other.code, one.confidence)));
    found.dedup_by(|later, earlier| later.code == earlier.code);
    found
}

#[cfg(test)]
mod tests;
