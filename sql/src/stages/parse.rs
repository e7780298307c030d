//! Checks that the text has the syntax of statements. The engine decides; later stages use the parser's tree.
//! Constructs of other engines are named in the findings.

use proctor_core::sql::{Diagnostic, Dialect, SqlCode, StageName};
use sqlparser::dialect::{DuckDbDialect, SQLiteDialect};
use sqlparser::parser::Parser;

use crate::engine::Refusal;
use crate::stage::{Case, Stage};
use crate::stages::slips::{self, is_of_form};
use crate::stages::{asked, dialects, safety};

/// The parser's recursion limit: deeper than statements that people write, and far from a stack overflow.
const DEPTH: usize = 150;
/// The maximum size of a statement whose tree is built, in bytes.
const MOST_BYTES: usize = 256 << 10;

/// The stage `parse`.
pub(super) struct Parse;

impl Stage for Parse {
    fn name(&self) -> StageName {
        StageName::Parse
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        if let Err(refusal) = asked::split(case) {
            let text = case.text().to_owned();
            report(case, &text, &refusal, 0);
            // A text that this engine refuses to parse may be a write for another engine.
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
                    let refusal = refusal.clone();
                    report(case, &text, &refusal, range.start);
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

/// Reports why the engine refuses the syntax of a statement that starts at `from`: misspelt keywords if they are the
/// cause, or else the engine's message, with the construct of another engine if there is one.
fn report(case: &mut Case<'_>, text: &str, refusal: &Refusal, from: usize) {
    let misspelt = slips::misspelt(case, text, refusal, from);
    if !misspelt.is_empty() {
        misspelt.into_iter().for_each(|found| case.found(found));
        return;
    }
    let found = case.refused(StageName::Parse, refusal, from);
    let found = slips::unfinished(found, case, text, refusal, from);
    case.found(dialects::explained(found, text, case.request.dialect));
}

/// Returns the tree of one statement; `None` if the parser cannot read it as one.
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
