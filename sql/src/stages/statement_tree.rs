//! Parses a statement to the parser's tree, and finds the INSERT in it.

use proctor_core::sql::Dialect;
use sqlparser::ast::{self, SetExpr};
use sqlparser::dialect::{DuckDbDialect, MySqlDialect, PostgreSqlDialect, SQLiteDialect};
use sqlparser::parser::{Parser, ParserOptions};

/// The parser's recursion limit: deeper than statements that people write, and far from a stack overflow.
const MAX_PARSER_DEPTH: usize = 150;
/// The maximum size of a statement whose tree is built, in bytes.
const MAX_PARSED_BYTES: usize = 256 << 10;

/// Returns the tree of one statement; `None` if the parser cannot read it as one.
pub(super) fn parse_tree(text: &str, dialect: Dialect) -> Option<ast::Statement> {
    if text.len() > MAX_PARSED_BYTES {
        return None;
    }
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
        .try_with_sql(text)
        .and_then(|mut parser| parser.parse_statements());
    let mut statements = parsed.ok()?.into_iter();
    let tree = statements.next()?;
    statements.next().is_none().then_some(tree)
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
