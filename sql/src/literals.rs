//! The values that a text names, as its tokens have them: what scratch rows are made of, beside values of our own.

use proctor_core::sql::Dialect;

use crate::text::{Piece, pieces, unquoted};

/// How many are taken.
const MOST: usize = 32;

/// A value that a text names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Literal {
    /// A number, as it stands.
    Number(String),
    /// A string, without its quotes.
    Text(String),
}

/// The first values of a text, each once.
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
