//! Decides from the form of a filter whether it holds for every row, with three-valued logic over literals, names and
//! their combinations. For other filters the stage `run` decides with rows.

use sqlparser::ast::{BinaryOperator, Expr, SelectItem, SetExpr, UnaryOperator, Value};

/// The value of a filter over all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilterTruth {
    /// The filter is true for every row.
    Always,
    /// The filter is true for no row.
    Never,
    /// The result of the filter depends on the row.
    Depends,
}

/// Reports whether a filter holds for every row, whatever the row contains.
pub(super) fn is_always_true(filter: &Expr) -> bool {
    filter_truth(filter) == FilterTruth::Always
}

fn filter_truth(expr: &Expr) -> FilterTruth {
    match expr {
        Expr::Nested(inner) => filter_truth(inner),
        Expr::Value(value) => literal_truth(&value.value),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => match filter_truth(expr) {
            FilterTruth::Always => FilterTruth::Never,
            FilterTruth::Never => FilterTruth::Always,
            FilterTruth::Depends => FilterTruth::Depends,
        },
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => match (filter_truth(left), filter_truth(right)) {
            (FilterTruth::Always, FilterTruth::Always) => FilterTruth::Always,
            (FilterTruth::Never, _) | (_, FilterTruth::Never) => FilterTruth::Never,
            _ => FilterTruth::Depends,
        },
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => match (filter_truth(left), filter_truth(right)) {
            (FilterTruth::Always, _) | (_, FilterTruth::Always) => FilterTruth::Always,
            (FilterTruth::Never, FilterTruth::Never) => FilterTruth::Never,
            _ if are_complementary(left, right) => FilterTruth::Always,
            _ => FilterTruth::Depends,
        },
        Expr::BinaryOp { left, op, right } => comparison_truth(left, op, right),
        Expr::IsNotNull(inner) | Expr::IsNotDistinctFrom(inner, _) if is_constant(inner) => FilterTruth::Always,
        Expr::IsTrue(inner) => filter_truth(inner),
        Expr::InList { expr, list, negated: false } if list.contains(expr) => FilterTruth::Always,
        Expr::Between { expr, negated: false, low, high } if expr == low && expr == high => FilterTruth::Always,
        Expr::Like { negated: false, pattern, .. } if is_all_pattern(pattern) => FilterTruth::Always,
        _ => FilterTruth::Depends,
    }
}

/// Recognizes `x IS NULL OR x IS NOT NULL`, `a OR NOT a` and `x = 1 OR x <> 1`.
fn are_complementary(left: &Expr, right: &Expr) -> bool {
    match (strip_parentheses(left), strip_parentheses(right)) {
        (Expr::IsNull(one), Expr::IsNotNull(other)) | (Expr::IsNotNull(one), Expr::IsNull(other)) => one == other,
        (one, Expr::UnaryOp { op: UnaryOperator::Not, expr })
        | (Expr::UnaryOp { op: UnaryOperator::Not, expr }, one) => strip_parentheses(expr) == one,
        (Expr::BinaryOp { left: a, op: first, right: b }, Expr::BinaryOp { left: c, op: second, right: d }) => {
            a == c && b == d && negated_operator(first).as_ref() == Some(second)
        }
        _ => false,
    }
}

fn negated_operator(op: &BinaryOperator) -> Option<BinaryOperator> {
    Some(match op {
        BinaryOperator::Eq => BinaryOperator::NotEq,
        BinaryOperator::NotEq => BinaryOperator::Eq,
        BinaryOperator::Lt => BinaryOperator::GtEq,
        BinaryOperator::GtEq => BinaryOperator::Lt,
        BinaryOperator::Gt => BinaryOperator::LtEq,
        BinaryOperator::LtEq => BinaryOperator::Gt,
        _ => return None,
    })
}

fn strip_parentheses(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => strip_parentheses(inner),
        other => other,
    }
}

fn is_constant(expr: &Expr) -> bool {
    matches!(strip_parentheses(expr), Expr::Value(value) if !matches!(value.value, Value::Null))
}

/// Reports whether a pattern consists of `%` only.
fn is_all_pattern(pattern: &Expr) -> bool {
    match strip_parentheses(pattern) {
        Expr::Value(value) => matches!(&value.value, Value::SingleQuotedString(text)
            if !text.is_empty() && text.chars().all(|c| c == '%')),
        _ => false,
    }
}

fn literal_truth(value: &Value) -> FilterTruth {
    match value {
        Value::Boolean(true) => FilterTruth::Always,
        Value::Boolean(false) | Value::Null => FilterTruth::Never,
        Value::Number(text, _) => match text.parse::<f64>() {
            Ok(0.0) => FilterTruth::Never,
            Ok(_) => FilterTruth::Always,
            Err(_) => FilterTruth::Depends,
        },
        _ => FilterTruth::Depends,
    }
}

/// Compares two literals, or an expression with itself. NULL is ignored here: the author of `id = id` means a filter
/// that always holds.
fn comparison_truth(left: &Expr, op: &BinaryOperator, right: &Expr) -> FilterTruth {
    let (left, right) = (strip_parentheses(left), strip_parentheses(right));
    let is_equal_op =
        matches!(op, BinaryOperator::Eq | BinaryOperator::GtEq | BinaryOperator::LtEq | BinaryOperator::Spaceship);
    if left == right && is_deterministic(left) {
        return if is_equal_op {
            FilterTruth::Always
        } else if matches!(op, BinaryOperator::NotEq | BinaryOperator::Lt | BinaryOperator::Gt) {
            FilterTruth::Never
        } else {
            FilterTruth::Depends
        };
    }
    let is_floor = match op {
        BinaryOperator::GtEq => is_number_where(right, |number| number <= 0.0) && is_never_negative(left),
        BinaryOperator::Gt => is_number_where(right, |number| number < 0.0) && is_never_negative(left),
        BinaryOperator::LtEq => is_number_where(left, |number| number <= 0.0) && is_never_negative(right),
        BinaryOperator::Lt => is_number_where(left, |number| number < 0.0) && is_never_negative(right),
        _ => false,
    };
    if is_floor {
        return FilterTruth::Always;
    }
    let ordering = match (literal_value(left), literal_value(right)) {
        (Some(FilterLiteral::Number(a)), Some(FilterLiteral::Number(b))) => a.partial_cmp(&b),
        (Some(FilterLiteral::Text(a)), Some(FilterLiteral::Text(b))) => Some(a.cmp(b)),
        _ => None,
    };
    let Some(ordering) = ordering else { return FilterTruth::Depends };
    let holds = match op {
        BinaryOperator::Eq => ordering.is_eq(),
        BinaryOperator::NotEq => ordering.is_ne(),
        BinaryOperator::Lt => ordering.is_lt(),
        BinaryOperator::LtEq => ordering.is_le(),
        BinaryOperator::Gt => ordering.is_gt(),
        BinaryOperator::GtEq => ordering.is_ge(),
        _ => return FilterTruth::Depends,
    };
    if holds { FilterTruth::Always } else { FilterTruth::Never }
}

fn is_number_where(expr: &Expr, fits: impl Fn(f64) -> bool) -> bool {
    matches!(literal_value(expr), Some(FilterLiteral::Number(number)) if fits(number))
}

/// Reports whether an expression is never negative: a count, a length, an absolute value, or a subquery for a count.
fn is_never_negative(expr: &Expr) -> bool {
    match strip_parentheses(expr) {
        Expr::Function(function) => {
            let name = function.name.to_string().to_ascii_lowercase();
            matches!(name.as_str(), "count" | "length" | "abs")
        }
        Expr::Subquery(query) => match &*query.body {
            SetExpr::Select(select) if select.having.is_none() && query.limit_clause.is_none() => {
                matches!(select.projection.as_slice(), [SelectItem::UnnamedExpr(Expr::Function(function))]
                    if function.name.to_string().eq_ignore_ascii_case("count"))
            }
            _ => false,
        },
        _ => false,
    }
}

/// Reports whether an expression has the same value each time that it is computed: it calls no function.
fn is_deterministic(expr: &Expr) -> bool {
    matches!(expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_))
}

enum FilterLiteral<'a> {
    Number(f64),
    Text(&'a str),
}

fn literal_value(expr: &Expr) -> Option<FilterLiteral<'_>> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => text.parse().ok().map(FilterLiteral::Number),
            Value::SingleQuotedString(text) => Some(FilterLiteral::Text(text)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match literal_value(expr)? {
            FilterLiteral::Number(number) => Some(FilterLiteral::Number(-number)),
            FilterLiteral::Text(_) => None,
        },
        Expr::BinaryOp { left, op, right } => {
            let (FilterLiteral::Number(a), FilterLiteral::Number(b)) =
                (literal_value(strip_parentheses(left))?, literal_value(strip_parentheses(right))?)
            else {
                return None;
            };
            match op {
                BinaryOperator::Plus => Some(FilterLiteral::Number(a + b)),
                BinaryOperator::Minus => Some(FilterLiteral::Number(a - b)),
                BinaryOperator::Multiply => Some(FilterLiteral::Number(a * b)),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::sql::Dialect;
    use sqlparser::ast::Statement;

    fn is_filter_always_true(filter: &str) -> bool {
        let text = format!("DELETE FROM t WHERE {filter}");
        match crate::stages::statement_tree::parse_tree(&text, Dialect::Sqlite).expect("parses") {
            Statement::Delete(delete) => is_always_true(&delete.selection.expect("has a filter")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn detects_filters_that_always_hold() {
        for filter in [
            "1 = 1",
            "1",
            "TRUE",
            "'a' = 'a'",
            "id > 0 OR 1=1",
            "(1 = 1)",
            "NOT 1 = 2",
            "2 > 1 AND 'x' = 'x'",
            "id = id",
            "id IS NULL OR id IS NOT NULL",
            "a = 1 OR a <> 1",
            "a = 1 OR NOT (a = 1)",
            "1 + 1 = 2",
            "name LIKE '%'",
            "1 <> 2",
            "id IN (id)",
            "-1 < 0",
            "NOT (1 = 0)",
            "1 IS NOT NULL",
            "id < 5 OR id >= 5",
            "length(name) >= 0",
            "0 <= abs(id)",
            "(SELECT count(*) FROM u) >= 0",
            "(SELECT count(*) FROM u) > -1",
        ] {
            assert!(is_filter_always_true(filter), "{filter}");
        }
    }

    #[test]
    fn ignores_filters_that_depend_on_row() {
        for filter in [
            "id = 1",
            "id > 0",
            "name = 'name'",
            "1 = 2",
            "id IS NOT NULL",
            "0",
            "a = b",
            "id = 1 OR id = 2",
            "random() = random()",
            "name LIKE '%a%'",
            "NULL",
            "id = 1 AND 1 = 1",
            "a = 1 OR b <> 1",
            "EXISTS (SELECT 1)",
            "length(name) > 0",
            "(SELECT count(*) FROM u) > 0",
            "(SELECT count(*) FROM u GROUP BY a HAVING count(*) > 1) >= 0",
        ] {
            assert!(!is_filter_always_true(filter), "{filter}");
        }
    }
}
