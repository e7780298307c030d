//! Defines the input and the findings of the semantic checks.

use std::ops::Range;

use proctor_core::sql::{SqlCode, SqlDiagnostic, SqlSeverity, SqlSpan, StageName};

use super::query_shape::{Aggregate, AggregateKind, QueryShape};
use crate::catalog::Catalog;

/// The confidence, in percent, from which a finding is an error.
pub(super) const ERROR_CONFIDENCE: u8 = 95;

/// The input of the checks.
pub(super) struct SemanticInput<'a> {
    pub(super) shape: &'a QueryShape,
    pub(super) catalog: &'a Catalog,
}

/// A finding of a check.
#[derive(Debug, Clone)]
pub(super) struct SemanticFinding {
    pub(super) code: SqlCode,
    /// The difference between the question and the query.
    pub(super) message: String,
    pub(super) confidence: u8,
    /// The byte range in the statement.
    pub(super) range: Option<Range<usize>>,
    pub(super) advice: String,
    pub(super) subject: Option<String>,
}

impl SemanticFinding {
    pub(super) fn new(code: SqlCode, confidence: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), confidence, range: None, advice: String::new(), subject: None }
    }

    /// Creates a finding about an aggregate in the place of the expected one.
    pub(super) fn other_aggregate(
        confidence: u8,
        message: impl Into<String>,
        aggregate: &Aggregate,
        expected: AggregateKind,
    ) -> Self {
        let found = Self::new(SqlCode::OtherAggregate, confidence, message).at(&aggregate.range);
        found.advice(format!("Use {}.", expected.as_sql()))
    }

    pub(super) fn at(mut self, place: &Range<usize>) -> Self {
        self.range = (!place.is_empty()).then(|| place.clone());
        self
    }

    pub(super) fn advice(mut self, advice: impl Into<String>) -> Self {
        self.advice = advice.into();
        self
    }

    pub(super) fn about(mut self, subject: impl Into<String>) -> Self {
        self.subject = Some(subject.into());
        self
    }

    pub(super) fn to_diagnostic(&self, span: Option<SqlSpan>) -> SqlDiagnostic {
        let mut found = SqlDiagnostic::warning(StageName::Semantic, self.code, self.message.clone(), self.confidence);
        if self.confidence >= ERROR_CONFIDENCE {
            found.severity = SqlSeverity::Error;
        }
        found.subject.clone_from(&self.subject);
        found.with_span(span).with_advice(self.advice.clone())
    }
}
