//! Classifies parts of a syntax tree that can be understood without their context, and maps them to positions.

use std::ops::Range;

use sqlparser::ast::{
    BinaryOperator, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator,
    Value,
};
use sqlparser::tokenizer::{Location, Span};

use super::query_shape::AggregateKind;

/// The text of a statement, to convert lines and columns to byte positions.
pub(super) struct StatementText<'a> {
    pub text: &'a str,
    /// The start of each line, in characters.
    lines: Vec<usize>,
    /// The byte position of each character; empty if the text is ASCII.
    characters: Vec<usize>,
}

impl<'a> StatementText<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let after = |(at, sign): (usize, char)| (sign == '\n').then_some(at + 1);
        let lines = std::iter::once(0).chain(text.chars().enumerate().filter_map(after)).collect();
        let characters = if text.is_ascii() { Vec::new() } else { text.char_indices().map(|(at, _)| at).collect() };
        Self { text, lines, characters }
    }

    fn byte_position(&self, location: Location) -> usize {
        let number = |from_one: u64| usize::try_from(from_one).unwrap_or(usize::MAX).saturating_sub(1);
        let Some(begin) = self.lines.get(number(location.line)) else { return self.text.len() };
        let at = begin.saturating_add(number(location.column));
        let byte = if self.characters.is_empty() { Some(at) } else { self.characters.get(at).copied() };
        byte.unwrap_or(self.text.len()).min(self.text.len())
    }

    /// Returns the byte range of a span; an empty range if the parser does not report a position.
    pub(super) fn range(&self, span: Span) -> Range<usize> {
        if span.start.line == 0 {
            return 0..0;
        }
        let (start, end) = (self.byte_position(span.start), self.byte_position(span.end));
        start..end.max(start)
    }

    /// Extends a range to include the parentheses that are open in it. The parser's range of a call ends before its
    /// last parenthesis.
    pub(super) fn close_parentheses(&self, place: Range<usize>) -> Range<usize> {
        let count = |sign: char| self.text.get(place.clone()).unwrap_or_default().matches(sign).count();
        let mut open = count('(').saturating_sub(count(')'));
        let mut end = place.end;
        for (at, sign) in self.text.get(place.end..).unwrap_or_default().char_indices() {
            match sign {
                _ if open == 0 => break,
                ')' => {
                    open -= 1;
                    end = place.end + at + 1;
                }
                _ if sign.is_whitespace() => {}
                _ => break,
            }
        }
        place.start..end
    }
}

/// Removes the parentheses and casts around an expression.
pub(super) fn strip_wrappers(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => strip_wrappers(inner),
        Expr::Cast { expr: inner, .. } => strip_wrappers(inner),
        other => other,
    }
}

/// Returns a value as text; `None` for NULL, booleans and placeholders.
pub(super) fn literal_text(value: &Value) -> Option<String> {
    match value {
        Value::Number(number, _) => Some(number.to_string()),
        Value::Boolean(_) | Value::Null | Value::Placeholder(_) => None,
        other => other.clone().into_string(),
    }
}

/// Returns the kind of aggregate that a function call is.
pub(super) fn aggregate_kind(function: &Function) -> Option<AggregateKind> {
    let figure = AggregateKind::from_name(&function.name.to_string())?;
    // In SQLite, MAX and MIN of several values are not aggregates.
    let is_scalar = matches!(figure, AggregateKind::Max | AggregateKind::Min) && arguments(function).len() > 1;
    (!is_scalar).then_some(figure)
}

/// Returns the arguments of a function call.
pub(super) fn arguments(function: &Function) -> Vec<&Expr> {
    let FunctionArguments::List(list) = &function.args else { return Vec::new() };
    let expr = |argument| match argument {
        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expr)) => Some(expr),
        _ => None,
    };
    list.args.iter().filter_map(expr).collect()
}

/// Reports whether an aggregate has DISTINCT.
pub(super) fn is_distinct(function: &Function) -> bool {
    matches!(&function.args, FunctionArguments::List(list) if list.duplicate_treatment == Some(DuplicateTreatment::Distinct))
}

/// Reports whether an operator is a comparison.
pub(super) fn is_comparison(op: &BinaryOperator) -> bool {
    matches!(
        op,
        BinaryOperator::Eq
            | BinaryOperator::NotEq
            | BinaryOperator::Lt
            | BinaryOperator::LtEq
            | BinaryOperator::Gt
            | BinaryOperator::GtEq
    )
}

/// Reports whether an expression is a condition, or a value that is zero where a condition does not hold.
pub(super) fn is_condition(expr: &Expr) -> bool {
    let is_zero = |expr: &Expr| strip_wrappers(expr).to_string().trim_end_matches(['0', '.']).is_empty();
    match strip_wrappers(expr) {
        Expr::BinaryOp { op, .. } => is_comparison(op) || matches!(op, BinaryOperator::And | BinaryOperator::Or),
        Expr::InList { .. } | Expr::Like { .. } | Expr::Between { .. } | Expr::IsNull(_) | Expr::IsNotNull(_) => true,
        Expr::Case { else_result: Some(otherwise), .. } => is_zero(otherwise),
        Expr::Function(function) => {
            let name = function.name.to_string();
            let arguments = arguments(function);
            (name.eq_ignore_ascii_case("iif") || name.eq_ignore_ascii_case("if"))
                && arguments.len() == 3
                && is_zero(arguments[2])
        }
        _ => false,
    }
}

/// Reports whether an expression becomes smaller as its values grow: `-x`, `1 / x`.
pub(super) fn is_inverse(expr: &Expr) -> bool {
    match strip_wrappers(expr) {
        Expr::UnaryOp { op: UnaryOperator::Minus, .. } => true,
        Expr::BinaryOp { left, op: BinaryOperator::Divide, .. } => matches!(strip_wrappers(left), Expr::Value(_)),
        _ => false,
    }
}

/// Reports whether an expression subtracts one value from another, at any depth: `now - birth`, `julianday(a) -
/// julianday(b)`, `timestampdiff(year, a, b)`.
pub(super) fn is_difference(expr: &Expr) -> bool {
    match strip_wrappers(expr) {
        Expr::BinaryOp { op: BinaryOperator::Minus, .. } => true,
        Expr::BinaryOp { left, right, .. } => is_difference(left) || is_difference(right),
        Expr::UnaryOp { expr, .. } => is_difference(expr),
        Expr::Function(function) => {
            let name = function.name.to_string().to_ascii_lowercase();
            name.contains("diff") || name == "age" || arguments(function).into_iter().any(is_difference)
        }
        _ => false,
    }
}
