//! Checks whether the query answers the question. Each submodule compares one aspect of the query's tree with the
//! question. Checks that need no question, such as tables joined without a condition or keys that are added up, also
//! run without one.
//!
//! Questions are noisy, and even reference queries are sometimes wrong. A finding is a warning with a confidence; only
//! a finding with a confidence of [`ERROR_CONFIDENCE`] or more is an error.

mod aggregated_keys;
mod aggregates;
mod conditions;
mod distinct;
mod entities;
mod extreme;
mod filters;
mod grouping;
mod joins;
mod language;
mod limit;
mod negation;
mod order;
mod query_shape;
mod question;
mod requested_aggregates;
mod shape_reader;
mod syntax_tree;
mod word_forms;

use std::ops::Range;

use proctor_core::sql::{SqlCode, SqlDiagnostic, StageName};
use sqlparser::ast;

use crate::catalog::Catalog;
use crate::stage::{ChainContext, SqlStage, StageError};
use language::is_english;
use query_shape::QueryShape;
use question::ParsedQuestion;

/// The confidence, in percent, from which a finding is an error.
const ERROR_CONFIDENCE: u8 = 95;

/// The stage `semantic`.
pub(super) struct SemanticStage;

impl SqlStage for SemanticStage {
    fn name(&self) -> StageName {
        StageName::Semantic
    }

    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError> {
        let question = case.request.question.as_deref().map(ParsedQuestion::parse);
        let catalog = case.visible_catalog();
        let mut found = Vec::new();
        for statement in &case.statements {
            let Some(tree) = &statement.tree else { continue };
            let findings = statement_findings(tree, case.statement_text(statement), question.as_ref(), &catalog);
            let begin = statement.range.start;
            let place = |place: &Range<usize>| case.span(begin + place.start..begin + place.end);
            found.extend(findings.iter().map(|finding| finding.to_diagnostic(finding.range.as_ref().map(place))));
        }
        drop(catalog);
        if question.as_ref().is_some_and(|question| !is_english(question)) {
            let message = "the question is not in English: only checks that need no question ran";
            found.push(SqlDiagnostic::note(StageName::Semantic, SqlCode::QuestionUnread, message));
        }
        found.into_iter().for_each(|found| case.add_finding(found));
        Ok(())
    }
}

/// The input of the checks.
struct SemanticInput<'a> {
    shape: &'a QueryShape,
    catalog: &'a Catalog,
}

/// A finding of a check.
#[derive(Debug, Clone)]
struct SemanticFinding {
    code: SqlCode,
    /// The difference between the question and the query.
    message: String,
    confidence: u8,
    /// The byte range in the statement.
    range: Option<Range<usize>>,
    advice: String,
    subject: Option<String>,
}

impl SemanticFinding {
    fn new(code: SqlCode, confidence: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), confidence, range: None, advice: String::new(), subject: None }
    }

    fn at(mut self, place: &Range<usize>) -> Self {
        self.range = (!place.is_empty()).then(|| place.clone());
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

    fn to_diagnostic(&self, span: Option<proctor_core::sql::SqlSpan>) -> SqlDiagnostic {
        let mut found = SqlDiagnostic::warning(StageName::Semantic, self.code, self.message.clone(), self.confidence);
        if self.confidence >= ERROR_CONFIDENCE {
            found.severity = proctor_core::sql::SqlSeverity::Error;
        }
        found.subject.clone_from(&self.subject);
        found.with_span(span).with_advice(self.advice.clone())
    }
}

/// Returns the findings about a statement, one for each code.
fn statement_findings(
    tree: &ast::Statement,
    text: &str,
    question: Option<&ParsedQuestion>,
    catalog: &Catalog,
) -> Vec<SemanticFinding> {
    let mut found = joins::check(tree, text, question, catalog);
    found.extend(conditions::check(tree, text, catalog));
    let Some(shape) = shape_reader::read_shape(tree, text, catalog) else { return found };
    let input = SemanticInput { shape: &shape, catalog };
    found.extend(aggregated_keys::check(&input));
    if let Some(question) = question.filter(|question| !question.words.is_empty() && is_english(question)) {
        const CHECKS: [fn(&SemanticInput<'_>, &ParsedQuestion) -> Vec<SemanticFinding>; 8] = [
            aggregates::check,
            requested_aggregates::check,
            order::check,
            limit::check,
            grouping::check,
            filters::check,
            distinct::check,
            negation::check,
        ];
        found.extend(CHECKS.iter().flat_map(|check| check(&input, question)));
        found.extend(entities::check(&input, question));
    }
    strongest_per_code(found)
}

/// Keeps the finding with the highest confidence for each code, so that one mistake is reported once.
fn strongest_per_code(mut found: Vec<SemanticFinding>) -> Vec<SemanticFinding> {
    found.sort_by(|one, other| (one.code, other.confidence).cmp(&(other.code, one.confidence)));
    found.dedup_by(|later, earlier| later.code == earlier.code);
    found
}

#[cfg(test)]
mod tests;
