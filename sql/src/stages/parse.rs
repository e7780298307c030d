//! Whether the text has the form of statements. The engine decides; the parser's tree serves the stages behind. A form
//! that belongs to another engine is named as such.

use proctor_core::sql::{Diagnostic, Dialect, SqlCode, StageName};
use sqlparser::dialect::{DuckDbDialect, SQLiteDialect};
use sqlparser::parser::Parser;

use crate::stage::{Case, Stage};
use crate::stages::{asked, dialects, safety};

/// How deep the parser goes: deeper than any statement that people write, and far from the end of a stack.
const DEPTH: usize = 150;
/// The longest statement whose tree is built, in bytes.
const MOST_BYTES: usize = 256 << 10;

/// See the file.
pub(super) struct Parse;

impl Stage for Parse {
    fn name(&self) -> StageName {
        StageName::Parse
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        if let Err(refusal) = asked::split(case) {
            let found = case.refused(StageName::Parse, &refusal, 0);
            case.found(found);
            // What this engine does not even read may be a write where another does.
            let written = safety::written_within(case);
            written.into_iter().for_each(|found| case.found(found));
            return Ok(());
        }
        asked::ask(case, StageName::Parse)?;
        for index in 0..case.statements.len() {
            if case.is_late(StageName::Parse) {
                break;
            }
            let range = case.statements[index].range.clone();
            let text = case.text()[range.clone()].to_owned();
            let tree = tree(&text, case.request.dialect);
            match &case.statements[index].prepared {
                Some(Err(refusal)) if is_of_form(refusal.code) => {
                    let found = case.refused(StageName::Parse, refusal, range.start);
                    let found = dialects::explained(found, &text, case.request.dialect);
                    case.found(found);
                }
                Some(Ok(_)) if tree.is_none() => {
                    let message =
                        format!("{} takes this statement; our parser does not read its form", case.engine.version());
                    let found = Diagnostic::note(StageName::Parse, SqlCode::ParserDisagrees, message);
                    let found = found.at(Some(case.span(range)));
                    case.found(found);
                }
                _ => {}
            }
            case.statements[index].tree = tree;
        }
        Ok(())
    }
}

/// Whether a refusal is about the form of a statement, and not about what it names.
fn is_of_form(code: SqlCode) -> bool {
    matches!(code, SqlCode::SyntaxError | SqlCode::UnterminatedToken | SqlCode::TooDeep | SqlCode::NulByte)
}

/// The tree of one statement, where the parser reads it as one.
pub(crate) fn tree(text: &str, dialect: Dialect) -> Option<sqlparser::ast::Statement> {
    if text.len() > MOST_BYTES {
        return None;
    }
    let dialect: &dyn sqlparser::dialect::Dialect = match dialect {
        Dialect::Sqlite => &SQLiteDialect {},
        Dialect::Duckdb => &DuckDbDialect {},
    };
    let parsed = Parser::new(dialect)
        .with_recursion_limit(DEPTH)
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_statements());
    let mut statements = parsed.ok()?.into_iter();
    let tree = statements.next()?;
    statements.next().is_none().then_some(tree)
}
