//! Checks that all tokens are terminated, and that the text contains nothing that engines read in different ways.

use std::ops::Range;

use proctor_core::sql::{Applicability, Dialect, SqlCode, SqlDiagnostic, SqlFix, StageName};

use crate::lexer::{self, SqlTokenKind};
use crate::stage::{ChainContext, SqlStage, StageError};

/// The stage `tokenize`.
pub(super) struct TokenizeStage;

impl SqlStage for TokenizeStage {
    fn name(&self) -> StageName {
        StageName::Tokenize
    }

    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError> {
        let text = case.text();
        let mut found = Vec::new();
        if let Some(at) = text.find('\0') {
            let message = "the text contains a NUL byte, which ends the text for engines";
            found.push(
                SqlDiagnostic::error(StageName::Tokenize, SqlCode::NulByte, message)
                    .with_span(Some(case.span(at..at + 1))),
            );
        }
        let mut depth = 0_u32;
        let mut backtick: Option<usize> = None;
        for (piece, range) in lexer::tokenize(text, case.request.dialect) {
            let part = &text[range.clone()];
            match piece {
                SqlTokenKind::Symbol if part == "(" => {
                    depth += 1;
                    if depth == case.request.limits.depth.saturating_add(1) {
                        let message = format!("brackets are nested more than {} deep", depth - 1);
                        let found_it = SqlDiagnostic::error(StageName::Tokenize, SqlCode::TooDeep, message);
                        found.push(
                            found_it.with_span(Some(case.span(range))).with_advice("Write it with fewer brackets."),
                        );
                    }
                }
                SqlTokenKind::Symbol if part == ")" => depth = depth.saturating_sub(1),
                // In dialects where backticks quote names, they are not separate signs.
                SqlTokenKind::Symbol if part == "`" => match backtick.take() {
                    None => backtick = Some(range.start),
                    Some(from) => found.push(backtick_finding(case, from..range.end)),
                },
                SqlTokenKind::Unterminated => {
                    let message = format!("{} has no end", unterminated_kind(part, case.request.dialect));
                    let place = case.span(range.start..range.start + 1);
                    let found_it = SqlDiagnostic::error(StageName::Tokenize, SqlCode::UnterminatedToken, message);
                    found.push(found_it.with_span(Some(place)).with_advice("Terminate it."));
                }
                SqlTokenKind::Comment if is_executable_comment(part) => {
                    let message = "MySQL and MariaDB execute this comment, but other engines ignore it";
                    let found_it = SqlDiagnostic::error(StageName::Safety, SqlCode::ExecutableComment, message);
                    found.push(found_it.with_span(Some(case.span(range))).with_advice("Remove the comment."));
                }
                _ => {}
            }
        }
        found.into_iter().for_each(|found| case.add_finding(found));
        Ok(())
    }
}

/// Reports whether some engine executes a comment. The hint `SET_VAR` changes a setting of MySQL.
fn is_executable_comment(comment: &str) -> bool {
    let is_setting = || comment.to_ascii_lowercase().contains("set_var");
    comment.starts_with("/*!") || comment.starts_with("/*M!") || (comment.starts_with("/*+") && is_setting())
}

/// Reports a name in backticks in a dialect where they do not quote names.
fn backtick_finding(case: &ChainContext<'_>, range: Range<usize>) -> SqlDiagnostic {
    let name = &case.text()[range.start + 1..range.end - 1];
    let replacement = case.engine.quote_name(name);
    let message = format!(
        "backticks quote names in MySQL and SQLite; {} uses `{replacement}`",
        case.request.dialect.display_name()
    );
    let fix = SqlFix { start: range.start, end: range.end, replacement, applicability: Applicability::Safe };
    SqlDiagnostic::error(StageName::Tokenize, SqlCode::OtherDialect, message)
        .with_span(Some(case.span(range)))
        .with_subject(name)
        .with_advice("Write names in double quotes.")
        .with_fix(Some(fix))
}

fn unterminated_kind(part: &str, dialect: Dialect) -> &'static str {
    match part.as_bytes().first() {
        Some(b'"') if dialect == Dialect::Mysql => "a string",
        Some(b'\'' | b'x' | b'X' | b'e' | b'E' | b'n' | b'N' | b'b' | b'B' | b'$') => "a string",
        Some(b'/') => "a comment",
        _ => "a name in quotes",
    }
}
