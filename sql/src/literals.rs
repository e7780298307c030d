//! Collects the literal values of a text. Scratch rows contain them in addition to generated values.

use proctor_core::sql::Dialect;

use crate::lexer::{SqlTokenKind, string_value, tokenize};

/// The maximum number of literals.
const MAX_LITERALS: usize = 32;

/// A literal value of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Literal {
    /// A number, as written.
    Number(String),
    /// A string, without its quotes.
    Text(String),
}

/// Returns the first distinct literals of a text, at most [`MAX_LITERALS`].
pub(crate) fn collect_literals(text: &str, dialect: Dialect) -> Vec<Literal> {
    let mut found: Vec<Literal> = Vec::new();
    for (piece, range) in tokenize(text, dialect) {
        let literal = match piece {
            SqlTokenKind::Number => Literal::Number(text[range].to_owned()),
            SqlTokenKind::String | SqlTokenKind::Quoted => Literal::Text(string_value(&text[range], dialect)),
            _ => continue,
        };
        if !found.contains(&literal) {
            found.push(literal);
        }
        if found.len() == MAX_LITERALS {
            break;
        }
    }
    found
}
