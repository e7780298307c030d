//! Checks whether the query answers the question. Each submodule compares one aspect of the query's tree with the
//! question. Checks that need no question, such as tables joined without a condition or keys that are added up, also
//! run without one.
//!
//! Questions are noisy, and even reference queries are sometimes wrong. A finding is a warning with a confidence; only
//! a finding with a confidence of [`ERROR_CONFIDENCE`](semantic_finding::ERROR_CONFIDENCE) or more is an error.

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
mod semantic_finding;
mod shape_reader;
mod syntax_tree;
mod word_forms;

use std::ops::Range;

use proctor_core::sql::{SqlCode, SqlDiagnostic, StageName};
use sqlparser::ast;

use crate::catalog::Catalog;
use crate::stage::{ChainContext, SqlStage, StageError};
use language::is_english;
use question::ParsedQuestion;
use semantic_finding::{SemanticFinding, SemanticInput};

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
