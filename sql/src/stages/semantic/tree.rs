//! Facts of a tree that are known without its surroundings: what an expression is, and where it stands.

use std::ops::Range;

use sqlparser::ast::{
    BinaryOperator, DuplicateTreatment, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, UnaryOperator,
    Value,
};
use sqlparser::tokenizer::{Location, Span};

use super::shape::Figure;

/// A statement's text, to turn lines and columns into bytes.
pub(super) struct Text<'a> {
    pub text: &'a str,
    /// Where each line begins, in characters.
    lines: Vec<usize>,
    /// Where each character begins; empty where each is one byte.
    characters: Vec<usize>,
}

impl<'a> Text<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        let after = |(at, sign): (usize, char)| (sign == '\n').then_some(at + 1);
        let lines = std::iter::once(0).chain(text.chars().enumerate().filter_map(after)).collect();
        let characters = if text.is_ascii() { Vec::new() } else { text.char_indices().map(|(at, _)| at).collect() };
        Self { text, lines, characters }
    }

    fn byte(&self, location: Location) -> usize {
        let number = |from_one: u64| usize::try_from(from_one).unwrap_or(usize::MAX).saturating_sub(1);
        let Some(begin) = self.lines.get(number(location.line)) else { return self.text.len() };
        let at = begin.saturating_add(number(location.column));
        let byte = if self.characters.is_empty() { Some(at) } else { self.characters.get(at).copied() };
        byte.unwrap_or(self.text.len()).min(self.text.len())
    }

    /// Where something stands; nothing where the parser does not say.
    pub(super) fn range(&self, span: Span) -> Range<usize> {
        if span.start.line == 0 {
            return 0..0;
        }
        let (start, end) = (self.byte(span.start), self.byte(span.end));
        start..end.max(start)
    }

    /// A place with the parentheses closed that are open in it: the parser's place of a call ends before its last.
    pub(super) fn closed(&self, place: Range<usize>) -> Range<usize> {
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

/// An expression without the parentheses and casts around it.
pub(super) fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => bare(inner),
        Expr::Cast { expr: inner, .. } => bare(inner),
        other => other,
    }
}

/// A value as text; `None` for NULL and placeholders.
pub(super) fn literal(value: &Value) -> Option<String> {
    match value {
        Value::Number(number, _) => Some(number.to_string()),
        Value::Boolean(_) | Value::Null | Value::Placeholder(_) => None,
        other => other.clone().into_string(),
    }
}

/// The aggregate that a call is.
pub(super) fn aggregate_of(function: &Function) -> Option<Figure> {
    let figure = Figure::of(&function.name.to_string())?;
    // MAX and MIN of several values are no aggregates in SQLite.
    let is_scalar = matches!(figure, Figure::Max | Figure::Min) && arguments(function).len() > 1;
    (!is_scalar).then_some(figure)
}

/// What a function is called with.
pub(super) fn arguments(function: &Function) -> Vec<&Expr> {
    let FunctionArguments::List(list) = &function.args else { return Vec::new() };
    let expr = |argument| match argument {
        &FunctionArg::Unnamed(FunctionArgExpr::Expr(ref expr)) => Some(expr),
        _ => None,
    };
    list.args.iter().filter_map(expr).collect()
}

/// Whether an aggregate takes each value once.
pub(super) fn is_distinct(function: &Function) -> bool {
    matches!(&function.args, FunctionArguments::List(list) if list.duplicate_treatment == Some(DuplicateTreatment::Distinct))
}

/// Whether an operator compares.
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

/// Whether an expression is a condition, or a value where a condition holds and zero elsewhere.
pub(super) fn is_condition(expr: &Expr) -> bool {
    let is_zero = |expr: &Expr| bare(expr).to_string().trim_end_matches(['0', '.']).is_empty();
    match bare(expr) {
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

/// Whether larger values make an expression smaller: `-x`, `1 / x`.
pub(super) fn is_inverse(expr: &Expr) -> bool {
    match bare(expr) {
        Expr::UnaryOp { op: UnaryOperator::Minus, .. } => true,
        Expr::BinaryOp { left, op: BinaryOperator::Divide, .. } => matches!(bare(left), Expr::Value(_)),
        _ => false,
    }
}

/// Whether an expression subtracts one value from another, at any depth: `now - birth`, `julianday(a) - julianday(b)`,
/// `timestampdiff(year, a, b)`.
pub(super) fn is_difference(expr: &Expr) -> bool {
    match bare(expr) {
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
