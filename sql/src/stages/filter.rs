//! Decides from the form of a filter whether it holds for every row, with three-valued logic over literals, names and
//! their combinations. For other filters the stage `run` decides with rows.

use sqlparser::ast::{BinaryOperator, Expr, SelectItem, SetExpr, UnaryOperator, Value};

/// The value of a filter over all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Truth {
    /// It holds for every row.
    Always,
    /// It holds for no row.
    Never,
    /// It depends on the row.
    Depends,
}

/// Reports whether a filter holds for every row, whatever the row contains.
pub(super) fn is_always_true(filter: &Expr) -> bool {
    truth(filter) == Truth::Always
}

fn truth(expr: &Expr) -> Truth {
    match expr {
        Expr::Nested(inner) => truth(inner),
        Expr::Value(value) => of_value(&value.value),
        Expr::UnaryOp { op: UnaryOperator::Not, expr } => match truth(expr) {
            Truth::Always => Truth::Never,
            Truth::Never => Truth::Always,
            Truth::Depends => Truth::Depends,
        },
        Expr::BinaryOp { left, op: BinaryOperator::And, right } => match (truth(left), truth(right)) {
            (Truth::Always, Truth::Always) => Truth::Always,
            (Truth::Never, _) | (_, Truth::Never) => Truth::Never,
            _ => Truth::Depends,
        },
        Expr::BinaryOp { left, op: BinaryOperator::Or, right } => match (truth(left), truth(right)) {
            (Truth::Always, _) | (_, Truth::Always) => Truth::Always,
            (Truth::Never, Truth::Never) => Truth::Never,
            _ if are_opposite(left, right) => Truth::Always,
            _ => Truth::Depends,
        },
        Expr::BinaryOp { left, op, right } => compared(left, op, right),
        Expr::IsNotNull(inner) | Expr::IsNotDistinctFrom(inner, _) if is_constant(inner) => Truth::Always,
        Expr::IsTrue(inner) => truth(inner),
        Expr::InList { expr, list, negated: false } if list.contains(expr) => Truth::Always,
        Expr::Between { expr, negated: false, low, high } if expr == low && expr == high => Truth::Always,
        Expr::Like { negated: false, pattern, .. } if is_all_pattern(pattern) => Truth::Always,
        _ => Truth::Depends,
    }
}

/// Recognizes `x IS NULL OR x IS NOT NULL`, `a OR NOT a` and `x = 1 OR x <> 1`.
fn are_opposite(left: &Expr, right: &Expr) -> bool {
    match (bare(left), bare(right)) {
        (Expr::IsNull(one), Expr::IsNotNull(other)) | (Expr::IsNotNull(one), Expr::IsNull(other)) => one == other,
        (one, Expr::UnaryOp { op: UnaryOperator::Not, expr })
        | (Expr::UnaryOp { op: UnaryOperator::Not, expr }, one) => bare(expr) == one,
        (Expr::BinaryOp { left: a, op: first, right: b }, Expr::BinaryOp { left: c, op: second, right: d }) => {
            a == c && b == d && negation(first).as_ref() == Some(second)
        }
        _ => false,
    }
}

fn negation(op: &BinaryOperator) -> Option<BinaryOperator> {
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

fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Nested(inner) => bare(inner),
        other => other,
    }
}

fn is_constant(expr: &Expr) -> bool {
    matches!(bare(expr), Expr::Value(value) if !matches!(value.value, Value::Null))
}

/// Reports whether a pattern consists of `%` only.
fn is_all_pattern(pattern: &Expr) -> bool {
    match bare(pattern) {
        Expr::Value(value) => matches!(&value.value, Value::SingleQuotedString(text)
            if !text.is_empty() && text.chars().all(|c| c == '%')),
        _ => false,
    }
}

fn of_value(value: &Value) -> Truth {
    match value {
        Value::Boolean(true) => Truth::Always,
        Value::Boolean(false) | Value::Null => Truth::Never,
        Value::Number(text, _) => match text.parse::<f64>() {
            Ok(0.0) => Truth::Never,
            Ok(_) => Truth::Always,
            Err(_) => Truth::Depends,
        },
        _ => Truth::Depends,
    }
}

/// Compares two literals, or an expression with itself. NULL is ignored here: the author of `id = id` means a filter
/// that always holds.
fn compared(left: &Expr, op: &BinaryOperator, right: &Expr) -> Truth {
    let (left, right) = (bare(left), bare(right));
    let is_equal_op =
        matches!(op, BinaryOperator::Eq | BinaryOperator::GtEq | BinaryOperator::LtEq | BinaryOperator::Spaceship);
    if left == right && is_deterministic(left) {
        return if is_equal_op {
            Truth::Always
        } else if matches!(op, BinaryOperator::NotEq | BinaryOperator::Lt | BinaryOperator::Gt) {
            Truth::Never
        } else {
            Truth::Depends
        };
    }
    let is_floor = match op {
        BinaryOperator::GtEq => is_number(right, |number| number <= 0.0) && is_never_negative(left),
        BinaryOperator::Gt => is_number(right, |number| number < 0.0) && is_never_negative(left),
        BinaryOperator::LtEq => is_number(left, |number| number <= 0.0) && is_never_negative(right),
        BinaryOperator::Lt => is_number(left, |number| number < 0.0) && is_never_negative(right),
        _ => false,
    };
    if is_floor {
        return Truth::Always;
    }
    let ordering = match (literal(left), literal(right)) {
        (Some(Plain::Number(a)), Some(Plain::Number(b))) => a.partial_cmp(&b),
        (Some(Plain::Text(a)), Some(Plain::Text(b))) => Some(a.cmp(b)),
        _ => None,
    };
    let Some(ordering) = ordering else { return Truth::Depends };
    let holds = match op {
        BinaryOperator::Eq => ordering.is_eq(),
        BinaryOperator::NotEq => ordering.is_ne(),
        BinaryOperator::Lt => ordering.is_lt(),
        BinaryOperator::LtEq => ordering.is_le(),
        BinaryOperator::Gt => ordering.is_gt(),
        BinaryOperator::GtEq => ordering.is_ge(),
        _ => return Truth::Depends,
    };
    if holds { Truth::Always } else { Truth::Never }
}

fn is_number(expr: &Expr, fits: impl Fn(f64) -> bool) -> bool {
    matches!(literal(expr), Some(Plain::Number(number)) if fits(number))
}

/// Reports whether an expression is never negative: a count, a length, an absolute value, or a subquery for a count.
fn is_never_negative(expr: &Expr) -> bool {
    match bare(expr) {
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

enum Plain<'a> {
    Number(f64),
    Text(&'a str),
}

fn literal(expr: &Expr) -> Option<Plain<'_>> {
    match expr {
        Expr::Value(value) => match &value.value {
            Value::Number(text, _) => text.parse().ok().map(Plain::Number),
            Value::SingleQuotedString(text) => Some(Plain::Text(text)),
            _ => None,
        },
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match literal(expr)? {
            Plain::Number(number) => Some(Plain::Number(-number)),
            Plain::Text(_) => None,
        },
        Expr::BinaryOp { left, op, right } => {
            let (Plain::Number(a), Plain::Number(b)) = (literal(bare(left))?, literal(bare(right))?) else {
                return None;
            };
            match op {
                BinaryOperator::Plus => Some(Plain::Number(a + b)),
                BinaryOperator::Minus => Some(Plain::Number(a - b)),
                BinaryOperator::Multiply => Some(Plain::Number(a * b)),
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

    fn filter_of(filter: &str) -> bool {
        let text = format!("DELETE FROM t WHERE {filter}");
        match crate::stages::parse::tree(&text, Dialect::Sqlite).expect("parses") {
            Statement::Delete(delete) => is_always_true(&delete.selection.expect("has a filter")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_filter_that_holds_for_every_row_is_told() {
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
            assert!(filter_of(filter), "{filter}");
        }
    }

    #[test]
    fn a_filter_that_depends_on_the_row_is_not() {
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
            assert!(!filter_of(filter), "{filter}");
        }
    }
}
