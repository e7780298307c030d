//! Checks that a statement may do what the engine reports. The check is an allow-list of actions: it does not depend on
//! keywords in the text, and unknown actions are refused.

use std::ops::Range;

use proctor_core::sql::{Batch, Diagnostic, Policy, Span, SqlCode, StageName};
use sqlparser::ast::{self, Expr, FromTable, SetExpr};

use crate::engine::{Action, Bound, Kind};
use crate::lists;
use crate::stage::{Case, Stage};
use crate::stages::{asked, filter, parse, rewrite};
use crate::text::{self, Piece};

const STAGE: StageName = StageName::Safety;

/// Functions that access files, the network or the machine in engines that have them.
const REACHING: &[&str] = &[
    "readfile",
    "writefile",
    "load_extension",
    "load_file",
    "pg_read_file",
    "pg_read_binary_file",
    "pg_ls_dir",
    "lo_import",
    "lo_export",
    "dblink",
    "read_csv",
    "read_csv_auto",
    "read_json",
    "read_json_auto",
    "read_parquet",
    "read_text",
    "read_blob",
    "glob",
    "sys_exec",
    "sys_eval",
    "xp_cmdshell",
    "edit",
    "getenv",
    "pg_sleep",
    "sleep",
];

/// The stage `safety`.
pub(super) struct Safety;

impl Stage for Safety {
    fn name(&self) -> StageName {
        STAGE
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        if let Err(refusal) = asked::split(case) {
            let found = case.refused(STAGE, &refusal, 0);
            case.found(found);
            return Ok(());
        }
        if case.request.batch() == Batch::One && case.statements.len() > 1 {
            let second = case.span(case.statements[1].range.clone());
            let message = format!("there are {} statements, but only one is allowed", case.statements.len());
            let found = Diagnostic::error(STAGE, SqlCode::StackedStatements, message).at(Some(second));
            case.found(found.advice("Send one statement; the effects of the others are not checked."));
        }
        asked::ask(case, STAGE)?;
        for index in 0..case.statements.len() {
            if case.is_late(STAGE) {
                break;
            }
            let span = case.span(case.statements[index].range.clone());
            let findings = match asked::prepared(case, index) {
                Ok(bound) => of_actions(case, index, bound, span),
                // A statement that did not bind is judged by its form, so that one judgement reports all problems.
                Err(refusal) if refusal.code.is_ours() => return Err(refusal.message),
                Err(_) => of_form(case, index, span),
            };
            let filters = of_filter(case, index, span);
            findings.into_iter().chain(filters).for_each(|found| case.found(found));
        }
        Ok(())
    }
}

/// Returns a finding for each action of a statement that the policy refuses.
fn of_actions(case: &Case<'_>, index: usize, bound: &Bound, span: Span) -> Vec<Diagnostic> {
    let policy = case.request.policy;
    let error = |code, message: String| Diagnostic::error(STAGE, code, message).at(Some(span));
    let mut found: Vec<Diagnostic> = Vec::new();
    for action in &bound.actions {
        let one = match action {
            Action::Read { table, column } => named(case, table, column.as_deref(), span),
            Action::Metadata { source, table } => metadata(case, source, table.as_deref(), span),
            Action::Call(function) => called(case, function, span),
            Action::Recursion => None,
            Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => {
                let column = match action {
                    Action::Update { column, .. } => Some(column.as_str()),
                    _ => None,
                };
                match policy {
                    Policy::Read => Some(
                        error(SqlCode::WriteRefused, format!("it changes rows of `{table}`, and the policy is `read`"))
                            .about(table.clone())
                            .advice("Send a query that only reads."),
                    ),
                    Policy::Write | Policy::Migrate => named(case, table, column, span).or_else(|| {
                        let is_insert = matches!(action, Action::Insert(_));
                        is_insert.then(|| inserted(case, index, table, span)).flatten()
                    }),
                }
            }
            Action::Schema { what, name } if policy == Policy::Migrate => {
                found.extend(called_within(case, index, what, span));
                reached(case, what, name, span)
            }
            Action::Schema { what, name } => Some(
                error(
                    SqlCode::SchemaChangeRefused,
                    format!("it changes the schema ({what} `{name}`), and the policy is `{}`", policy.as_str()),
                )
                .about(name.clone())
                .advice("Do not change the schema."),
            ),
            Action::Transaction(what) => Some(
                error(SqlCode::TransactionControl, format!("`{what}` begins or ends a transaction"))
                    .advice("Leave transactions to the caller."),
            ),
            Action::Setting(name) if case.engine.is_harmless_table(&format!("pragma_{name}")) => None,
            Action::Setting(name) => Some(
                error(SqlCode::SettingRefused, format!("it changes or reads the setting `{name}`"))
                    .about(name.clone())
                    .advice("Leave settings to the caller."),
            ),
            Action::Attach(what) => Some(
                error(SqlCode::DatabaseAttached, format!("it reaches another database: {what}"))
                    .advice("Use only objects of this database."),
            ),
            Action::File(what) => Some(
                error(SqlCode::FileAccess, format!("it reaches a file or the network: {what}"))
                    .advice("Use the tables of the schema."),
            ),
            Action::Other(what) => {
                Some(error(SqlCode::StatementRefused, format!("no policy allows this: {what}")).advice("Send a query."))
            }
        };
        found.extend(one);
    }
    let is_of_lists = |found: &Diagnostic| {
        matches!(found.code, SqlCode::TableRefused | SqlCode::ColumnRefused | SqlCode::MetadataRefused)
    };
    if let Some(refusal) = case.statements[index].off_list.as_ref().filter(|_| !found.iter().any(is_of_lists)) {
        let mut one = error(refusal.code, refusal.message.clone()).advice("Use only the listed tables and columns.");
        one.subject.clone_from(&refusal.subject);
        found.push(one);
    }
    if found.is_empty() && bound.kind() == Kind::Other {
        let message = "it is not a query, and the engine does not report what it changes";
        found.push(error(SqlCode::StatementRefused, message.to_owned()).advice("Send a query."));
    }
    // Each table is reported only once.
    found.dedup_by(|one, other| one.code == other.code && one.subject == other.subject && one.subject.is_some());
    found
}

/// Checks the object that a migration creates, alters or drops against the list of tables.
fn reached(case: &Case<'_>, what: &str, name: &str, span: Span) -> Option<Diagnostic> {
    // The engine checks the tables to which these objects belong.
    if ["trigger", "index", "sequence"].iter().any(|kind| what.contains(kind)) {
        return None;
    }
    (!lists::allow_table(&case.request.allow, name)).then(|| refused_table(name, span))
}

/// Checks a read of metadata against the lists. They allow it only for one table, all of whose columns may be used.
fn metadata(case: &Case<'_>, source: &str, table: Option<&str>, span: Span) -> Option<Diagnostic> {
    let allow = &case.request.allow;
    // A view shows the columns of its tables.
    let is_table = |name: &str| case.engine.catalog().table(name).is_some_and(|table| !table.is_view);
    let is_whole =
        |table: &str| is_table(table) && lists::allow_table(allow, table) && lists::columns_of(allow, table).is_none();
    if !lists::are_given(allow) || table.is_some_and(is_whole) {
        return None;
    }
    let message = format!("{source} shows objects outside the lists");
    let found = Diagnostic::error(STAGE, SqlCode::MetadataRefused, message).at(Some(span));
    Some(found.about(table.unwrap_or(source)).advice("Use the tables and columns that are on the lists."))
}

/// Checks the columns of inserted rows against the list of columns. Engines do not report these columns, so the
/// statement must name them.
fn inserted(case: &Case<'_>, index: usize, table: &str, span: Span) -> Option<Diagnostic> {
    let allow = &case.request.allow;
    lists::columns_of(allow, table)?;
    let named = case.statements[index].tree.as_ref().and_then(insert).filter(
        |insert| matches!(&insert.table, ast::TableObject::TableName(name) if is_named(&name.to_string(), table)),
    );
    let message = match named {
        // `DEFAULT VALUES`
        Some(insert) if insert.source.is_none() && insert.assignments.is_empty() => return None,
        Some(insert) if !insert.columns.is_empty() => {
            let names = insert.columns.iter().map(|name| text::unquoted(&name.to_string()));
            let column = names.into_iter().find(|name| !lists::allow_column(allow, table, name))?;
            format!("the column `{table}.{column}` is not on the list")
        }
        _ => format!("it adds rows to `{table}` without naming their columns, and not all of them are on the list"),
    };
    let found = Diagnostic::error(STAGE, SqlCode::ColumnRefused, message).at(Some(span)).about(table);
    Some(found.advice("Name the columns of the new row, and only those that are on the list."))
}

/// Returns the INSERT of a statement, also after WITH.
pub(super) fn insert(tree: &ast::Statement) -> Option<&ast::Insert> {
    match tree {
        ast::Statement::Insert(insert) => Some(insert),
        ast::Statement::Explain { statement, .. } => insert(statement),
        ast::Statement::Query(query) => match &*query.body {
            SetExpr::Insert(inner) => insert(inner),
            _ => None,
        },
        _ => None,
    }
}

/// Reports whether a name in the text is that of a table.
fn is_named(written: &str, table: &str) -> bool {
    let parts: Vec<String> = written.split('.').map(text::unquoted).collect();
    let written = parts.join(".");
    lists::plain(&written).eq_ignore_ascii_case(lists::plain(table))
}

/// Checks the function calls in the body of a view or trigger against the list of functions. SQLite resolves the body
/// only when it is first used.
fn called_within(case: &Case<'_>, index: usize, what: &str, span: Span) -> Vec<Diagnostic> {
    if !what.contains("view") && !what.contains("trigger") {
        return Vec::new();
    }
    let text = case.text_of(&case.statements[index]);
    let solid = |(piece, _): &(Piece, Range<usize>)| !matches!(piece, Piece::Space | Piece::Comment);
    let pieces: Vec<(Piece, Range<usize>)> =
        text::pieces(text, case.request.dialect).into_iter().filter(solid).collect();
    let calls = pieces
        .windows(2)
        .filter(|pair| matches!(pair[0].0, Piece::Word | Piece::Quoted) && &text[pair[1].1.clone()] == "(");
    let names = calls.map(|pair| text::unquoted(&text[pair[0].1.clone()]).to_ascii_lowercase());
    let is_function = |name: &String| case.engine.functions().contains(name) || REACHING.contains(&name.as_str());
    names.filter(is_function).filter_map(|name| called(case, &name, span)).collect()
}

/// Checks a table or a column against the lists.
fn named(case: &Case<'_>, table: &str, column: Option<&str>, span: Span) -> Option<Diagnostic> {
    let allow = &case.request.allow;
    let is_of_schema = case.engine.catalog().table(table).is_some();
    let is_ours = case.engine.is_harmless_table(table);
    if is_ours && !is_of_schema && lists::are_given(allow) && !lists::hold(&allow.tables, table) {
        let is_pure = case.engine.is_pure_table(table);
        return if is_pure { None } else { metadata(case, &format!("`{table}`"), None, span) };
    }
    // A migration may have created the table; the schema contains only the tables that existed before.
    let is_new = case.request.policy == Policy::Migrate;
    if !is_of_schema && !is_ours && !is_new {
        let message = format!("`{table}` is not a table of the schema, so its effects are unknown");
        return Some(Diagnostic::error(STAGE, SqlCode::TableRefused, message).at(Some(span)).about(table));
    }
    if !lists::allow_table(allow, table) {
        return Some(refused_table(table, span));
    }
    let (column, listed) = (column?, lists::columns_of(allow, table)?);
    (!listed.iter().any(|allowed| allowed.eq_ignore_ascii_case(column))).then(|| {
        let message = match column {
            "*" => format!("it rewrites whole rows of `{table}`, and not all of its columns are on the list"),
            _ => format!("the column `{table}.{column}` is not on the list"),
        };
        Diagnostic::error(STAGE, SqlCode::ColumnRefused, message)
            .at(Some(span))
            .about(format!("{table}.{column}"))
            .candidates(listed.iter().take(8).map(|name| (*name).to_owned()).collect())
    })
}

fn refused_table(table: &str, span: Span) -> Diagnostic {
    let message = format!("the table `{table}` is not on the list");
    Diagnostic::error(STAGE, SqlCode::TableRefused, message).at(Some(span)).about(table)
}

/// Checks a function against the list of functions.
fn called(case: &Case<'_>, function: &str, span: Span) -> Option<Diagnostic> {
    let is_allowed = case.engine.is_harmless(function)
        || case.request.allow.functions.iter().any(|allowed| allowed.eq_ignore_ascii_case(function));
    (!is_allowed).then(|| {
        let message =
            format!("the function `{function}` is not on the list of those that reach nothing beyond their arguments");
        Diagnostic::error(STAGE, SqlCode::FunctionRefused, message).at(Some(span)).about(function)
    })
}

/// Judges a statement that did not bind by its form.
fn of_form(case: &Case<'_>, index: usize, span: Span) -> Vec<Diagnostic> {
    let statement = &case.statements[index];
    let policy = case.request.policy;
    let functions = dangerous_functions(case, index);
    let mut found: Vec<Diagnostic> = functions.into_iter().map(|found| found.at(Some(span))).collect();
    let error = |code, message: String| Diagnostic::error(STAGE, code, message).at(Some(span));
    let refusal = match statement.tree.as_ref().map_or(Kind::Read, kind_of_form) {
        Kind::Write if policy == Policy::Read => {
            error(SqlCode::WriteRefused, "it changes rows, and the policy is `read`".to_owned())
        }
        Kind::Schema if policy != Policy::Migrate => error(
            SqlCode::SchemaChangeRefused,
            format!("it changes the schema, and the policy is `{}`", policy.as_str()),
        ),
        Kind::Transaction => error(SqlCode::TransactionControl, "it begins or ends a transaction".to_owned()),
        Kind::Setting => error(SqlCode::SettingRefused, "it changes or reads a setting".to_owned()),
        Kind::Attach => error(SqlCode::FileAccess, "it reaches another database, a file or the network".to_owned()),
        Kind::Other => error(SqlCode::StatementRefused, "no policy allows a statement of this kind".to_owned()),
        Kind::Read | Kind::Write | Kind::Schema => return found,
    };
    found.push(refusal);
    found
}

/// Returns the kind of a statement according to its form; a query if the form does not show it.
fn kind_of_form(tree: &ast::Statement) -> Kind {
    use ast::Statement as S;
    match tree {
        S::Query(query) if writes(query) => Kind::Write,
        S::Explain { statement, .. } => kind_of_form(statement),
        S::Insert(_) | S::Update(_) | S::Delete(_) | S::Merge(_) => Kind::Write,
        S::CreateTable(_)
        | S::CreateView(_)
        | S::CreateIndex(_)
        | S::AlterTable(_)
        | S::Drop { .. }
        | S::Truncate(_) => Kind::Schema,
        S::StartTransaction { .. }
        | S::Commit { .. }
        | S::Rollback { .. }
        | S::Savepoint { .. }
        | S::ReleaseSavepoint { .. } => Kind::Transaction,
        S::Set(_) => Kind::Setting,
        S::AttachDatabase { .. }
        | S::AttachDuckDBDatabase { .. }
        | S::DetachDuckDBDatabase { .. }
        | S::Copy { .. }
        | S::Install { .. }
        | S::Load { .. } => Kind::Attach,
        S::Prepare { .. } | S::Execute { .. } | S::Deallocate { .. } | S::Call(_) | S::Use(_) => Kind::Other,
        _ => Kind::Read,
    }
}

/// Returns findings about functions that the engine lacks and that access files in other engines.
fn dangerous_functions(case: &Case<'_>, index: usize) -> Vec<Diagnostic> {
    let Some(Err(refusal)) = &case.statements[index].prepared else { return Vec::new() };
    let is_function = matches!(refusal.code, SqlCode::UnknownFunction | SqlCode::UnknownTable);
    refusal
        .subject
        .iter()
        .filter(|name| is_function && REACHING.contains(&name.to_ascii_lowercase().as_str()))
        .map(|name| {
            let message = format!("`{name}` reaches a file, the network or the machine where an engine has it");
            Diagnostic::error(STAGE, SqlCode::FileAccess, message).about(name.clone())
        })
        .collect()
}

/// Reports a query that contains a write, in a text that the engine refuses as a whole: DuckDB's WITH does not accept
/// DELETE.
pub(super) fn written_within(case: &Case<'_>) -> Option<Diagnostic> {
    let is_query_that_writes = case.request.policy == Policy::Read
        && matches!(parse::tree(case.text(), case.request.dialect), Some(ast::Statement::Query(query)) if writes(&query));
    is_query_that_writes.then(|| {
        let span = case.span(0..case.text().len());
        let message = "it changes rows within, and the policy is `read`";
        Diagnostic::error(STAGE, SqlCode::WriteRefused, message).at(Some(span)).advice("Send a query that only reads.")
    })
}

fn writes(query: &ast::Query) -> bool {
    let in_with = query.with.iter().flat_map(|with| &with.cte_tables).any(|cte| writes(&cte.query));
    in_with || matches!(&*query.body, SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_))
}

/// Reports an UPDATE or DELETE whose filter is missing or always holds. The policy `read` refuses writes anyway.
fn of_filter(case: &Case<'_>, index: usize, span: Span) -> Vec<Diagnostic> {
    if case.request.policy == Policy::Read {
        return Vec::new();
    }
    let statement = &case.statements[index];
    if let Some((table, extent)) = statement.tree.as_ref().and_then(|tree| rewrite::of(tree, statement.bound())) {
        return of_rewrite(table, extent, span).into_iter().collect();
    }
    let Some((table, selection)) = statement.tree.as_ref().and_then(target) else {
        return without_tree(case, index, span);
    };
    let found = match selection {
        None => {
            let message = format!("it touches every row of `{table}`: there is no WHERE");
            Diagnostic::error(STAGE, SqlCode::UnboundedWrite, message)
        }
        Some(expr) if filter::is_always_true(expr) => {
            let message = format!("it touches every row of `{table}`: its WHERE matches all of them");
            Diagnostic::error(STAGE, SqlCode::AlwaysTrueFilter, message)
        }
        Some(_) => return Vec::new(),
    };
    vec![found.at(Some(span)).about(table).advice("Select the rows with WHERE.")]
}

/// Reports a statement that may rewrite all rows of a table.
fn of_rewrite(table: String, extent: rewrite::Extent, span: Span) -> Option<Diagnostic> {
    let (code, message) = match extent {
        rewrite::Extent::Bounded => return None,
        rewrite::Extent::Unbounded => (
            SqlCode::UnboundedWrite,
            format!("it may rewrite every row of `{table}`: nothing bounds the rows that it takes"),
        ),
        rewrite::Extent::AlwaysTrue => {
            (SqlCode::AlwaysTrueFilter, format!("it may rewrite every row of `{table}`: its WHERE matches all of them"))
        }
    };
    let found = Diagnostic::error(STAGE, code, message).at(Some(span)).about(table);
    Some(found.advice("Select the rows with WHERE."))
}

/// Reports an UPDATE or DELETE that the parser cannot read, unless the stage `run` runs it. Its filter is unknown, and
/// only rows can show its effect.
fn without_tree(case: &Case<'_>, index: usize, span: Span) -> Vec<Diagnostic> {
    let statement = &case.statements[index];
    let is_removal = |action: &Action| matches!(action, Action::Delete(_) | Action::Update { .. });
    let is_write =
        statement.bound().is_some_and(|bound| bound.kind() == Kind::Write && bound.actions.iter().any(is_removal));
    // Rows do not show how many rows a statement rewrites if it also inserts some.
    let adds = statement.bound().is_some_and(|bound| bound.actions.iter().any(|one| matches!(one, Action::Insert(_))));
    let is_run = case.request.stages().contains(&StageName::Run) && !adds;
    if statement.tree.is_some() || !is_write || is_run {
        return Vec::new();
    }
    let message = match adds {
        true => "it rewrites rows, but its filter cannot be parsed",
        false => "its filter cannot be parsed, and no run on test rows checks it",
    };
    vec![Diagnostic::error(STAGE, SqlCode::StatementRefused, message).at(Some(span))]
}

/// Returns the table and the filter of an UPDATE or DELETE.
pub(super) fn target(statement: &ast::Statement) -> Option<(String, Option<&Expr>)> {
    match statement {
        ast::Statement::Delete(delete) => {
            let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
            let table = from.first().map(|table| table.relation.to_string()).unwrap_or_default();
            // A `LIMIT` bounds the statement as well as a filter does.
            let is_limited = delete.limit.is_some();
            (!is_limited || delete.selection.is_some()).then_some((table, delete.selection.as_ref()))
        }
        ast::Statement::Update(update) => {
            let is_limited = update.limit.is_some();
            let table = update.table.relation.to_string();
            (!is_limited || update.selection.is_some()).then_some((table, update.selection.as_ref()))
        }
        // `WITH … DELETE …`
        ast::Statement::Query(query) => match &*query.body {
            SetExpr::Update(inner) | SetExpr::Delete(inner) => target(inner),
            _ => None,
        },
        _ => None,
    }
}
