//! Collects the literal values of a text. Scratch rows contain them in addition to generated values.

use proctor_core::sql::Dialect;

use crate::text::{Piece, pieces, unquoted};

/// The maximum number of literals.
const MOST: usize = 32;

/// A literal value of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Literal {
    /// A number, as written.
    Number(String),
    /// A string, without its quotes.
    Text(String),
}

/// Returns the first distinct literals of a text, at most [`MOST`].
pub(crate) fn literals(text: &str, dialect: Dialect) -> Vec<Literal> {
    let mut found: Vec<Literal> = Vec::new();
    for (piece, range) in pieces(text, dialect) {
        let literal = match piece {
            Piece::Number => Literal::Number(text[range].to_owned()),
            Piece::String | Piece::Quoted => Literal::Text(unquoted(&text[range])),
            _ => continue,
        };
        if !found.contains(&literal) {
            found.push(literal);
        }
        if found.len() == MOST {
            break;
        }
    }
    found
}
