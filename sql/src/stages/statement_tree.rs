//! Parses a statement to the parser's tree, and finds the INSERT in it.

use std::borrow::Cow;

use proctor_core::sql::Dialect;
use sqlparser::ast::{self, SetExpr};
use sqlparser::dialect::{DuckDbDialect, MySqlDialect, PostgreSqlDialect, SQLiteDialect};
use sqlparser::parser::{Parser, ParserOptions};

use crate::lexer::{self, SqlTokenKind};

/// The parser's recursion limit: deeper than statements that people write, and far from a stack overflow.
const MAX_PARSER_DEPTH: usize = 150;
/// The maximum size of a statement whose tree is built, in bytes.
const MAX_PARSED_BYTES: usize = 256 << 10;

/// Returns the tree of one statement; `None` if the parser cannot read it as one.
pub(super) fn parse_tree(text: &str, dialect: Dialect) -> Option<ast::Statement> {
    if text.len() > MAX_PARSED_BYTES {
        return None;
    }
    let text = without_ambiguous_comments(text, dialect);
    // The text of a tree has to be read again as it was written, so the escapes in MySQL's strings stay.
    let unescapes = dialect != Dialect::Mysql;
    let dialect: &dyn sqlparser::dialect::Dialect = match dialect {
        Dialect::Sqlite => &SQLiteDialect {},
        Dialect::Duckdb => &DuckDbDialect {},
        Dialect::Postgres => &PostgreSqlDialect {},
        Dialect::Mysql => &MySqlDialect {},
    };
    let options = ParserOptions::new().with_trailing_commas(dialect.supports_trailing_commas());
    let parsed = Parser::new(dialect)
        .with_recursion_limit(MAX_PARSER_DEPTH)
        .with_options(options.with_unescape(unescapes))
        .try_with_sql(&text)
        .and_then(|mut parser| parser.parse_statements());
    let mut statements = parsed.ok()?.into_iter();
    let tree = statements.next()?;
    statements.next().is_none().then_some(tree)
}

/// Returns the text with spaces in place of its comments if it has a carriage return: the parser and some engines find
/// the end of a comment before it in different places.
fn without_ambiguous_comments(text: &str, dialect: Dialect) -> Cow<'_, str> {
    if !text.contains('\r') {
        return Cow::Borrowed(text);
    }
    // Each character stays one character, so that the positions of the tree fit the text.
    let blank = |c: char| if c == '\n' { c } else { ' ' };
    let plain = lexer::tokenize(text, dialect).into_iter().fold(String::new(), |mut plain, (kind, range)| {
        let part = &text[range];
        match kind {
            SqlTokenKind::Comment => plain.extend(part.chars().map(blank)),
            _ => plain.push_str(part),
        }
        plain
    });
    Cow::Owned(plain)
}

/// Returns every statement in a tree that changes rows: the statement itself, and those in common table expressions.
pub(super) fn find_writes(tree: &ast::Statement) -> Vec<&ast::Statement> {
    let mut found = Vec::new();
    collect_writes(tree, &mut found);
    found
}

fn collect_writes<'t>(tree: &'t ast::Statement, found: &mut Vec<&'t ast::Statement>) {
    match tree {
        ast::Statement::Update(_) | ast::Statement::Delete(_) | ast::Statement::Merge(_) => found.push(tree),
        ast::Statement::Insert(insert) => {
            found.push(tree);
            insert.source.iter().for_each(|source| collect_query_writes(source, found));
        }
        ast::Statement::Query(query) => collect_query_writes(query, found),
        ast::Statement::Explain { statement, .. } => collect_writes(statement, found),
        ast::Statement::CreateTable(created) => {
            created.query.iter().for_each(|query| collect_query_writes(query, found));
        }
        _ => {}
    }
}

fn collect_query_writes<'t>(query: &'t ast::Query, found: &mut Vec<&'t ast::Statement>) {
    find_with(query).iter().for_each(|part| collect_query_writes(&part.query, found));
    match &*query.body {
        SetExpr::Insert(inner) | SetExpr::Update(inner) | SetExpr::Delete(inner) | SetExpr::Merge(inner) => {
            collect_writes(inner, found);
        }
        SetExpr::Query(inner) => collect_query_writes(inner, found),
        _ => {}
    }
}

fn find_with(query: &ast::Query) -> &[ast::Cte] {
    query.with.as_ref().map_or(&[], |with| &with.cte_tables)
}

/// Returns the common table expressions of a statement.
pub(super) fn common_table_expressions(tree: &ast::Statement) -> &[ast::Cte] {
    match tree {
        ast::Statement::Query(query) => find_with(query),
        ast::Statement::Explain { statement, .. } => common_table_expressions(statement),
        _ => &[],
    }
}

/// Returns the INSERT of a statement, including one after WITH.
pub(super) fn find_insert(tree: &ast::Statement) -> Option<&ast::Insert> {
    match tree {
        ast::Statement::Insert(insert) => Some(insert),
        ast::Statement::Explain { statement, .. } => find_insert(statement),
        ast::Statement::Query(query) => match &*query.body {
            SetExpr::Insert(inner) => find_insert(inner),
            _ => None,
        },
        _ => None,
    }
}

/// Returns every INSERT of a statement: its own, and those in common table expressions.
pub(super) fn find_inserts(tree: &ast::Statement) -> Vec<&ast::Insert> {
    let with = match tree {
        ast::Statement::Explain { statement, .. } => return find_inserts(statement),
        ast::Statement::Query(query) => query.with.as_ref(),
        _ => None,
    };
    let expressions = with.into_iter().flat_map(|with| &with.cte_tables);
    let inner = expressions.filter_map(|expression| match &*expression.query.body {
        SetExpr::Insert(inner) => find_insert(inner),
        _ => None,
    });
    find_insert(tree).into_iter().chain(inner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_comments_as_the_engine_does() {
        let cases =
            [(Dialect::Duckdb, "true OR id = 1"), (Dialect::Postgres, "true OR id = 1"), (Dialect::Sqlite, "id = 1")];
        for (dialect, expected) in cases {
            let text = "DELETE FROM t /* \r */ WHERE -- \u{e9}\r true OR\n id = 1";
            let Some(ast::Statement::Delete(delete)) = parse_tree(text, dialect) else { panic!("{dialect:?}") };
            assert_eq!(delete.selection.map(|filter| filter.to_string()).as_deref(), Some(expected), "{dialect:?}");
        }
    }
}
