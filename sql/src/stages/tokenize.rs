//! Whether the text falls into tokens that have an end, and holds nothing that engines read in different ways.

use proctor_core::sql::{Diagnostic, SqlCode, StageName};

use crate::stage::{Case, Stage};
use crate::text::{self, Piece};

/// See the file.
pub(super) struct Tokenize;

impl Stage for Tokenize {
    fn name(&self) -> StageName {
        StageName::Tokenize
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        let text = case.text();
        let mut found = Vec::new();
        if let Some(at) = text.find('\0') {
            let message = "a zero byte stands in the text, where engines end it";
            found.push(
                Diagnostic::error(StageName::Tokenize, SqlCode::NulByte, message).at(Some(case.span(at..at + 1))),
            );
        }
        for (piece, range) in text::pieces(text, case.request.dialect) {
            let part = &text[range.clone()];
            match piece {
                Piece::Open => {
                    let message = format!("{} has no end", kind(part));
                    let place = case.span(range.start..range.start + 1);
                    let found_it = Diagnostic::error(StageName::Tokenize, SqlCode::UnterminatedToken, message);
                    found.push(found_it.at(Some(place)).advice("Close it where it ends."));
                }
                Piece::Comment if part.starts_with("/*!") || part.starts_with("/*M!") => {
                    let message = "MySQL and MariaDB run what stands in this comment, and others pass over it";
                    let found_it = Diagnostic::error(StageName::Safety, SqlCode::ExecutableComment, message);
                    found.push(found_it.at(Some(case.span(range))).advice("Take the comment away."));
                }
                _ => {}
            }
        }
        found.into_iter().for_each(|found| case.found(found));
        Ok(())
    }
}

fn kind(part: &str) -> &'static str {
    match part.as_bytes().first() {
        Some(b'\'' | b'x' | b'X' | b'e' | b'E' | b'$') => "a string",
        Some(b'/') => "a comment",
        _ => "a name in quotes",
    }
}
