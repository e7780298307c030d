//! Whether the text has the form of statements. The engine decides; the parser's tree serves the stages behind. A form
//! that belongs to another engine is named as such.

use proctor_core::sql::{Batch, Diagnostic, Dialect, SqlCode, StageName};
use sqlparser::dialect::{DuckDbDialect, SQLiteDialect};
use sqlparser::parser::Parser;

use crate::engine::Refusal;
use crate::stage::{Case, Stage, Statement, on};
use crate::stages::{dialects, safety};

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
        if let Err(refusal) = split(case) {
            let found = case.refused(StageName::Parse, &refusal, 0);
            case.found(found);
            // What this engine does not even read may be a write where another does.
            let written = safety::written_within(case);
            written.into_iter().for_each(|found| case.found(found));
            return Ok(());
        }
        let bounds = case.bounds();
        for index in 0..case.statements.len() {
            let range = case.statements[index].range.clone();
            let text = case.text()[range.clone()].to_owned();
            let tree = tree(&text, case.request.dialect);
            let prepared = case.engine.bind(&text, on(&bounds));
            match &prepared {
                Err(refusal) if is_of_form(refusal.code) => {
                    let found = case.refused(StageName::Parse, refusal, range.start);
                    let found = dialects::explained(found, &text, case.request.dialect);
                    case.found(found);
                }
                // A statement that needs what the one before it makes cannot be prepared yet.
                _ => {}
            }
            if tree.is_none() && prepared.is_ok() {
                let message =
                    format!("{} takes this statement; our parser does not read its form", case.engine.version());
                let found = Diagnostic::note(StageName::Parse, SqlCode::ParserDisagrees, message);
                let found = found.at(Some(case.span(range)));
                case.found(found);
            }
            let statement = &mut case.statements[index];
            statement.tree = tree;
            statement.prepared = Some(prepared);
        }
        Ok(())
    }
}

/// Finds the statements of the text, where no stage has.
pub(super) fn split(case: &mut Case<'_>) -> Result<(), Refusal> {
    if case.statements.is_empty() {
        let request = case.request;
        let ranges = case.engine.split(&request.sql)?;
        case.statements = ranges.into_iter().map(|range| Statement { range, tree: None, prepared: None }).collect();
    }
    Ok(())
}

/// The engine's word on a statement, asked once. In a batch, where one may need what another makes, it is asked again.
pub(super) fn prepared(case: &mut Case<'_>, index: usize) -> Result<crate::engine::Bound, Refusal> {
    let is_known = case.statements[index].prepared.is_some();
    let is_batch = case.request.batch() == Batch::Many && case.statements.len() > 1;
    if !is_known || is_batch {
        let bounds = case.bounds();
        let text = case.text_of(&case.statements[index]).to_owned();
        let prepared = case.engine.bind(&text, on(&bounds));
        case.statements[index].prepared = Some(prepared);
    }
    match &case.statements[index].prepared {
        Some(prepared) => prepared.clone(),
        None => Err(Refusal::new(SqlCode::EngineFailed, "the engine was not asked")),
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
