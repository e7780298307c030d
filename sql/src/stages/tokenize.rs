//! Checks that all tokens are terminated, and that the text contains nothing that engines read in different ways.

use std::ops::Range;

use proctor_core::sql::{Applicability, Diagnostic, Fix, SqlCode, StageName};

use crate::stage::{Case, Stage};
use crate::text::{self, Piece};

/// The stage `tokenize`.
pub(super) struct Tokenize;

impl Stage for Tokenize {
    fn name(&self) -> StageName {
        StageName::Tokenize
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        let text = case.text();
        let mut found = Vec::new();
        if let Some(at) = text.find('\0') {
            let message = "the text contains a NUL byte, where engines end it";
            found.push(
                Diagnostic::error(StageName::Tokenize, SqlCode::NulByte, message).at(Some(case.span(at..at + 1))),
            );
        }
        let mut depth = 0_u32;
        let mut backtick: Option<usize> = None;
        for (piece, range) in text::pieces(text, case.request.dialect) {
            let part = &text[range.clone()];
            match piece {
                Piece::Sign if part == "(" => {
                    depth += 1;
                    if depth == case.request.limits.depth.saturating_add(1) {
                        let message = format!("brackets stand within each other more than {} deep", depth - 1);
                        let found_it = Diagnostic::error(StageName::Tokenize, SqlCode::TooDeep, message);
                        found.push(found_it.at(Some(case.span(range))).advice("Write it with fewer brackets."));
                    }
                }
                Piece::Sign if part == ")" => depth = depth.saturating_sub(1),
                // In dialects where backticks quote names, they are not separate signs.
                Piece::Sign if part == "`" => match backtick.take() {
                    None => backtick = Some(range.start),
                    Some(from) => found.push(of_mysql(case, from..range.end)),
                },
                Piece::Open => {
                    let message = format!("{} has no end", kind(part));
                    let place = case.span(range.start..range.start + 1);
                    let found_it = Diagnostic::error(StageName::Tokenize, SqlCode::UnterminatedToken, message);
                    found.push(found_it.at(Some(place)).advice("Close it at its end."));
                }
                Piece::Comment if part.starts_with("/*!") || part.starts_with("/*M!") => {
                    let message = "MySQL and MariaDB execute this comment, but other engines ignore it";
                    let found_it = Diagnostic::error(StageName::Safety, SqlCode::ExecutableComment, message);
                    found.push(found_it.at(Some(case.span(range))).advice("Remove the comment."));
                }
                _ => {}
            }
        }
        found.into_iter().for_each(|found| case.found(found));
        Ok(())
    }
}

/// Reports a name in backticks in a dialect where they do not quote names.
fn of_mysql(case: &Case<'_>, range: Range<usize>) -> Diagnostic {
    let name = &case.text()[range.start + 1..range.end - 1];
    let replacement = case.engine.quoted(name);
    let message =
        format!("backticks quote names in MySQL and SQLite; {} takes `{replacement}`", case.request.dialect.title());
    let fix = Fix { start: range.start, end: range.end, replacement, applicability: Applicability::Safe };
    Diagnostic::error(StageName::Tokenize, SqlCode::OtherDialect, message)
        .at(Some(case.span(range)))
        .about(name)
        .advice("Write names in double quotes.")
        .fix(Some(fix))
}

fn kind(part: &str) -> &'static str {
    match part.as_bytes().first() {
        Some(b'\'' | b'x' | b'X' | b'e' | b'E' | b'$') => "a string",
        Some(b'/') => "a comment",
        _ => "a name in quotes",
    }
}
