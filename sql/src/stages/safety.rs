//! Checks that a statement may do what the engine reports. The check is an allow-list of actions: it does not depend on
//! keywords in the text, and unknown actions are refused.

use std::ops::Range;

use proctor_core::sql::{SqlBatch, SqlCode, SqlDiagnostic, SqlPolicy, SqlSpan, StageName};
use sqlparser::ast::{self, AssignmentTarget, Expr, FromTable, SetExpr};

use crate::allow_lists;
use crate::engine::{Action, BoundStatement, StatementKind};
use crate::lexer::{self, SqlTokenKind};
use crate::stage::{ChainContext, SqlStage, StageError};
use crate::stages::statement_tree::{common_table_expressions, find_inserts, find_writes, parse_tree};
use crate::stages::{filter_truth, rewrite_extent, statement_binding};

const STAGE: StageName = StageName::Safety;

/// Functions that access files, the network or the machine in engines that have them.
const EXTERNAL_FUNCTIONS: &[&str] = &[
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
pub(super) struct SafetyStage;

impl SqlStage for SafetyStage {
    fn name(&self) -> StageName {
        STAGE
    }

    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError> {
        if let Err(refusal) = statement_binding::split_statements(case) {
            let found = case.refusal_finding(STAGE, &refusal, 0);
            case.add_finding(found);
            return Ok(());
        }
        if case.request.batch() == SqlBatch::One && case.statements.len() > 1 {
            let second = case.span(case.statements[1].range.clone());
            let message = format!("there are {} statements, but only one is allowed", case.statements.len());
            let found = SqlDiagnostic::error(STAGE, SqlCode::StackedStatements, message).with_span(Some(second));
            case.add_finding(found.with_advice("Send one statement; the effects of the others are not checked."));
        }
        statement_binding::bind_statements(case, STAGE)?;
        for index in 0..case.statements.len() {
            if case.check_deadline(STAGE) {
                break;
            }
            let span = case.span(case.statements[index].range.clone());
            let findings = match statement_binding::bound_statement(case, index) {
                Ok(bound) => action_findings(case, index, bound, span),
                // A statement that did not bind is judged by its form, so that one judgement reports all problems.
                Err(refusal) if refusal.code.is_engine_problem() => return Err(refusal.into()),
                Err(_) => form_findings(case, index, span),
            };
            let filters = filter_findings(case, index, span);
            findings.into_iter().chain(filters).for_each(|found| case.add_finding(found));
        }
        Ok(())
    }
}

/// Returns a finding for each action of a statement that the policy refuses.
fn action_findings(case: &ChainContext<'_>, index: usize, bound: &BoundStatement, span: SqlSpan) -> Vec<SqlDiagnostic> {
    let policy = case.request.policy;
    let error = |code, message: String| SqlDiagnostic::error(STAGE, code, message).with_span(Some(span));
    let mut found: Vec<SqlDiagnostic> = Vec::new();
    for action in &bound.actions {
        let one = match action {
            Action::Read { table, column } => check_table_or_column(case, table, column.as_deref(), span),
            Action::Metadata { source, table } => check_metadata(case, source, table.as_deref(), span),
            Action::Call(function) => check_function(case, function, span),
            Action::Recursion => None,
            Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => {
                let column = match action {
                    Action::Update { column, .. } => Some(column.as_str()),
                    _ => None,
                };
                match policy {
                    SqlPolicy::Read => Some(
                        error(SqlCode::WriteRefused, format!("it changes rows of `{table}`, but the policy is `read`"))
                            .with_subject(table.clone())
                            .with_advice("Send a query that only reads."),
                    ),
                    SqlPolicy::Write | SqlPolicy::Migrate => {
                        check_table_or_column(case, table, column, span).or_else(|| {
                            let is_insert = matches!(action, Action::Insert(_));
                            is_insert.then(|| check_inserted_columns(case, index, table, span)).flatten()
                        })
                    }
                }
            }
            Action::Schema { operation: what, name } if policy == SqlPolicy::Migrate => {
                found.extend(check_body_calls(case, index, what, span));
                check_changed_object(case, what, name, span)
            }
            Action::Schema { operation: what, name } => Some(
                error(
                    SqlCode::SchemaChangeRefused,
                    format!("it changes the schema ({what} `{name}`), but the policy is `{}`", policy.as_str()),
                )
                .with_subject(name.clone())
                .with_advice("Do not change the schema."),
            ),
            Action::Transaction(what) => Some(
                error(SqlCode::TransactionControl, format!("`{what}` begins or ends a transaction"))
                    .with_advice("Leave transactions to the caller."),
            ),
            Action::Setting(name) if case.engine.is_harmless_table(&format!("pragma_{name}")) => None,
            Action::Setting(name) => Some(
                error(SqlCode::SettingRefused, format!("it changes or reads the setting `{name}`"))
                    .with_subject(name.clone())
                    .with_advice("Leave settings to the caller."),
            ),
            Action::Attach(what) => Some(
                error(SqlCode::DatabaseAttached, format!("it accesses another database: {what}"))
                    .with_advice("Use only objects of this database."),
            ),
            Action::File(what) => Some(
                error(SqlCode::FileAccess, format!("it accesses a file or the network: {what}"))
                    .with_advice("Use the tables of the schema."),
            ),
            Action::Other(what) => Some(
                error(SqlCode::StatementRefused, format!("no policy allows this: {what}")).with_advice("Send a query."),
            ),
        };
        found.extend(one);
    }
    let is_of_lists = |found: &SqlDiagnostic| {
        matches!(found.code, SqlCode::TableRefused | SqlCode::ColumnRefused | SqlCode::MetadataRefused)
    };
    if let Some(refusal) = case.statements[index].off_list_refusal.as_ref().filter(|_| !found.iter().any(is_of_lists)) {
        let mut one =
            error(refusal.code, refusal.message.clone()).with_advice("Use only the listed tables and columns.");
        one.subject.clone_from(&refusal.subject);
        found.push(one);
    }
    if found.is_empty() && bound.kind() == StatementKind::Other {
        let message = "it is not a query, and the engine does not report what it changes";
        found.push(error(SqlCode::StatementRefused, message.to_owned()).with_advice("Send a query."));
    }
    // Each table is reported only once.
    found.dedup_by(|one, other| one.code == other.code && one.subject == other.subject && one.subject.is_some());
    found
}

/// Checks the object that a migration creates, alters or drops against the list of tables.
fn check_changed_object(case: &ChainContext<'_>, what: &str, name: &str, span: SqlSpan) -> Option<SqlDiagnostic> {
    // The engine checks the tables to which these objects belong.
    if ["trigger", "index", "sequence"].iter().any(|kind| what.contains(kind)) {
        return None;
    }
    (!allow_lists::is_table_allowed(&case.lists, name)).then(|| table_refusal(name, span))
}

/// Checks a read of metadata against the lists. They allow it only for one table, all of whose columns may be used.
fn check_metadata(case: &ChainContext<'_>, source: &str, table: Option<&str>, span: SqlSpan) -> Option<SqlDiagnostic> {
    let allow = &case.lists;
    // A view shows the columns of its tables.
    let is_table = |name: &str| case.engine.catalog().table(name).is_some_and(|table| !table.is_view);
    let is_whole = |table: &str| {
        is_table(table)
            && allow_lists::is_table_allowed(allow, table)
            && allow_lists::allowed_columns(allow, table).is_none()
    };
    if !allow_lists::has_name_lists(allow) || table.is_some_and(is_whole) {
        return None;
    }
    let message = format!("{source} shows objects outside the lists");
    let found = SqlDiagnostic::error(STAGE, SqlCode::MetadataRefused, message).with_span(Some(span));
    Some(found.with_subject(table.unwrap_or(source)).with_advice("Use the tables and columns that are on the lists."))
}

/// Checks the columns of inserted rows against the list of columns. Engines do not report these columns, so the
/// statement must name them.
fn check_inserted_columns(case: &ChainContext<'_>, index: usize, table: &str, span: SqlSpan) -> Option<SqlDiagnostic> {
    let allow = &case.lists;
    let listed = allow_lists::allowed_columns(allow, table)?;
    let inserts = case.statements[index].tree.as_ref().map(find_inserts).unwrap_or_default();
    let is_into_table = |insert: &&ast::Insert| {
        let dialect = case.request.dialect;
        matches!(&insert.table, ast::TableObject::TableName(name) if allow_lists::is_name_of_table(&name.to_string(), table, dialect))
    };
    let names = inserts.into_iter().filter(is_into_table).map(inserted_columns).collect::<Option<Vec<_>>>();
    let message = match names.filter(|names| !names.is_empty()) {
        Some(names) => {
            let of_schema = case.engine.catalog().table(table);
            let mut names = names.into_iter().flatten();
            let column = names.find(|name| !allow_lists::contains_column(&listed, of_schema, name))?;
            format!("the column `{table}.{column}` is not on the list")
        }
        None => format!("it adds rows to `{table}` without naming their columns, but not all columns are on the list"),
    };
    let found = SqlDiagnostic::error(STAGE, SqlCode::ColumnRefused, message).with_span(Some(span)).with_subject(table);
    Some(found.with_advice("Name the columns of the new row, and only columns on the list."))
}

/// Returns the columns that an INSERT names; `None` if it sets columns without naming them.
fn inserted_columns(insert: &ast::Insert) -> Option<Vec<String>> {
    // `INSERT … SET a = 1` of MySQL names the columns in assignments.
    let assigned = insert.assignments.iter().map(|assignment| match &assignment.target {
        AssignmentTarget::ColumnName(name) => name.0.last().map(ToString::to_string),
        AssignmentTarget::Tuple(_) => None,
    });
    let names: Vec<String> =
        insert.columns.iter().map(|name| Some(name.to_string())).chain(assigned).collect::<Option<_>>()?;
    // `DEFAULT VALUES` sets no column.
    let is_named = !names.is_empty() || insert.source.is_none();
    is_named.then(|| names.iter().map(|name| lexer::unquote(name)).collect())
}

/// Checks the function calls in the body of a view or trigger against the list of functions. SQLite resolves the body
/// only when it is first used.
fn check_body_calls(case: &ChainContext<'_>, index: usize, what: &str, span: SqlSpan) -> Vec<SqlDiagnostic> {
    if !what.contains("view") && !what.contains("trigger") {
        return Vec::new();
    }
    let text = case.statement_text(&case.statements[index]);
    let solid =
        |(piece, _): &(SqlTokenKind, Range<usize>)| !matches!(piece, SqlTokenKind::Whitespace | SqlTokenKind::Comment);
    let pieces: Vec<(SqlTokenKind, Range<usize>)> =
        lexer::tokenize(text, case.request.dialect).into_iter().filter(solid).collect();
    let calls = pieces.windows(2).filter(|pair| {
        matches!(pair[0].0, SqlTokenKind::Word | SqlTokenKind::Quoted) && &text[pair[1].1.clone()] == "("
    });
    let names = calls.map(|pair| lexer::unquote(&text[pair[0].1.clone()]).to_ascii_lowercase());
    let is_function =
        |name: &String| case.engine.functions().contains(name) || EXTERNAL_FUNCTIONS.contains(&name.as_str());
    names.filter(is_function).filter_map(|name| check_function(case, &name, span)).collect()
}

/// Checks a table or a column against the lists.
fn check_table_or_column(
    case: &ChainContext<'_>,
    table: &str,
    column: Option<&str>,
    span: SqlSpan,
) -> Option<SqlDiagnostic> {
    let allow = &case.lists;
    let is_of_schema = case.engine.catalog().table(table).is_some();
    let is_ours = case.engine.is_harmless_table(table);
    if is_ours && !is_of_schema && allow_lists::has_name_lists(allow) && !allow_lists::contains_object(allow, table) {
        let is_pure = case.engine.is_pure_table(table);
        return if is_pure { None } else { check_metadata(case, &format!("`{table}`"), None, span) };
    }
    // A migration may have created the table; the schema contains only the tables that existed before.
    let is_new = case.request.policy == SqlPolicy::Migrate;
    if !is_of_schema && !is_ours && !is_new {
        let message = format!("`{table}` is not a table of the schema, so its effects are unknown");
        return Some(
            SqlDiagnostic::error(STAGE, SqlCode::TableRefused, message).with_span(Some(span)).with_subject(table),
        );
    }
    if !allow_lists::is_table_of_schema_allowed(allow, case.engine.catalog(), table) {
        return Some(table_refusal(table, span));
    }
    let (column, listed) = (column?, allow_lists::allowed_columns(allow, table)?);
    let of_schema = case.engine.catalog().table(table);
    let is_listed = |name: &str| allow_lists::contains_column(&listed, of_schema, name);
    let is_allowed = match of_schema {
        Some(of_schema) if column == "*" => of_schema.columns.iter().all(|column| is_listed(&column.name)),
        _ => is_listed(column),
    };
    (!is_allowed).then(|| {
        let message = match column {
            "*" => format!("it rewrites whole rows of `{table}`, but not all of its columns are on the list"),
            _ => format!("the column `{table}.{column}` is not on the list"),
        };
        SqlDiagnostic::error(STAGE, SqlCode::ColumnRefused, message)
            .with_span(Some(span))
            .with_subject(format!("{table}.{column}"))
            .with_candidates(listed.iter().take(8).map(|name| (*name).to_owned()).collect())
    })
}

fn table_refusal(table: &str, span: SqlSpan) -> SqlDiagnostic {
    let message = format!("the table `{table}` is not on the list");
    SqlDiagnostic::error(STAGE, SqlCode::TableRefused, message).with_span(Some(span)).with_subject(table)
}

/// Checks a function against the list of functions.
fn check_function(case: &ChainContext<'_>, function: &str, span: SqlSpan) -> Option<SqlDiagnostic> {
    let is_allowed = case.engine.is_harmless_function(function)
        || case.request.allow.functions.iter().any(|allowed| allowed.eq_ignore_ascii_case(function));
    (!is_allowed).then(|| {
        let message =
            format!("the function `{function}` is not on the list of functions that access only their arguments");
        SqlDiagnostic::error(STAGE, SqlCode::FunctionRefused, message).with_span(Some(span)).with_subject(function)
    })
}

/// Judges a statement that did not bind by its form.
fn form_findings(case: &ChainContext<'_>, index: usize, span: SqlSpan) -> Vec<SqlDiagnostic> {
    let statement = &case.statements[index];
    let policy = case.request.policy;
    let functions = dangerous_functions(case, index);
    let mut found: Vec<SqlDiagnostic> = functions.into_iter().map(|found| found.with_span(Some(span))).collect();
    let error = |code, message: String| SqlDiagnostic::error(STAGE, code, message).with_span(Some(span));
    let refusal = match statement.tree.as_ref().map_or(StatementKind::Read, kind_from_tree) {
        StatementKind::Write if policy == SqlPolicy::Read => {
            error(SqlCode::WriteRefused, "it changes rows, but the policy is `read`".to_owned())
        }
        StatementKind::Schema if policy != SqlPolicy::Migrate => error(
            SqlCode::SchemaChangeRefused,
            format!("it changes the schema, but the policy is `{}`", policy.as_str()),
        ),
        StatementKind::Transaction => error(SqlCode::TransactionControl, "it begins or ends a transaction".to_owned()),
        StatementKind::Setting => error(SqlCode::SettingRefused, "it changes or reads a setting".to_owned()),
        StatementKind::Attach => {
            error(SqlCode::FileAccess, "it accesses another database, a file or the network".to_owned())
        }
        StatementKind::Other => {
            error(SqlCode::StatementRefused, "no policy allows a statement of this kind".to_owned())
        }
        StatementKind::Read | StatementKind::Write | StatementKind::Schema => return found,
    };
    found.push(refusal);
    found
}

/// Returns the kind of a statement according to its form; a query if the form does not show it.
fn kind_from_tree(tree: &ast::Statement) -> StatementKind {
    use ast::Statement as S;
    match tree {
        S::Query(query) if contains_write(query) => StatementKind::Write,
        S::Explain { statement, .. } => kind_from_tree(statement),
        S::Insert(_) | S::Update(_) | S::Delete(_) | S::Merge(_) => StatementKind::Write,
        S::CreateTable(_)
        | S::CreateView(_)
        | S::CreateIndex(_)
        | S::AlterTable(_)
        | S::Drop { .. }
        | S::Truncate(_) => StatementKind::Schema,
        S::StartTransaction { .. }
        | S::Commit { .. }
        | S::Rollback { .. }
        | S::Savepoint { .. }
        | S::ReleaseSavepoint { .. } => StatementKind::Transaction,
        S::Set(_) => StatementKind::Setting,
        S::AttachDatabase { .. }
        | S::AttachDuckDBDatabase { .. }
        | S::DetachDuckDBDatabase { .. }
        | S::Copy { .. }
        | S::Install { .. }
        | S::Load { .. } => StatementKind::Attach,
        S::Prepare { .. } | S::Execute { .. } | S::Deallocate { .. } | S::Call(_) | S::Use(_) => StatementKind::Other,
        _ => StatementKind::Read,
    }
}

/// Returns findings about functions that the engine lacks and that access files in other engines.
fn dangerous_functions(case: &ChainContext<'_>, index: usize) -> Vec<SqlDiagnostic> {
    let Some(Err(refusal)) = &case.statements[index].prepared else { return Vec::new() };
    let is_function = matches!(refusal.code, SqlCode::UnknownFunction | SqlCode::UnknownTable);
    refusal
        .subject
        .iter()
        .filter(|name| is_function && EXTERNAL_FUNCTIONS.contains(&name.to_ascii_lowercase().as_str()))
        .map(|name| {
            let message = format!("`{name}` accesses a file, the network or the machine in engines that have it");
            SqlDiagnostic::error(STAGE, SqlCode::FileAccess, message).with_subject(name.clone())
        })
        .collect()
}

/// Reports a query that contains a write, in a text that the engine refuses as a whole: DuckDB's WITH does not accept
/// DELETE.
pub(super) fn hidden_write_finding(case: &ChainContext<'_>) -> Option<SqlDiagnostic> {
    let is_query_that_writes = case.request.policy == SqlPolicy::Read
        && matches!(parse_tree(case.text(), case.request.dialect), Some(ast::Statement::Query(query)) if contains_write(&query));
    is_query_that_writes.then(|| {
        let span = case.span(0..case.text().len());
        let message = "it changes rows in a subquery, but the policy is `read`";
        SqlDiagnostic::error(STAGE, SqlCode::WriteRefused, message)
            .with_span(Some(span))
            .with_advice("Send a query that only reads.")
    })
}

pub(super) fn contains_write(query: &ast::Query) -> bool {
    let in_with = query.with.iter().flat_map(|with| &with.cte_tables).any(|cte| contains_write(&cte.query));
    in_with || matches!(&*query.body, SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_))
}

/// Reports an UPDATE or DELETE whose filter is missing or always holds. The policy `read` refuses writes anyway.
fn filter_findings(case: &ChainContext<'_>, index: usize, span: SqlSpan) -> Vec<SqlDiagnostic> {
    if case.request.policy == SqlPolicy::Read {
        return Vec::new();
    }
    let statement = &case.statements[index];
    // An `EXPLAIN` that runs nothing changes no rows.
    if let Some(bound) = statement.bound().filter(|bound| bound.is_explain) {
        let is_write = bound.kind() == StatementKind::Write;
        return is_write
            .then(|| check_metadata(case, "the plan of a write", None, span))
            .flatten()
            .into_iter()
            .collect();
    }
    if let Some(found) = explained_write_finding(case, index, span) {
        return vec![found];
    }
    let writes = statement.tree.as_ref().map(find_writes).unwrap_or_default();
    if writes.is_empty() {
        return unparsed_write_findings(case, index, span);
    }
    let with = statement.tree.as_ref().map_or(&[][..], common_table_expressions);
    writes.into_iter().filter_map(|write| write_finding(write, with, statement.bound(), span)).collect()
}

/// Reports a write that may change all rows of a table.
fn write_finding(
    write: &ast::Statement,
    with: &[ast::Cte],
    bound: Option<&BoundStatement>,
    span: SqlSpan,
) -> Option<SqlDiagnostic> {
    if let Some((table, extent)) = rewrite_extent::rewritten_table(write, with, bound) {
        return rewrite_finding(table, extent, span);
    }
    let (table, selection) = write_target(write)?;
    let found = match selection {
        None => {
            let message = format!("it changes every row of `{table}`: there is no WHERE");
            SqlDiagnostic::error(STAGE, SqlCode::UnboundedWrite, message)
        }
        Some(expr) if filter_truth::is_always_true(expr) => {
            let message = format!("it changes every row of `{table}`: its WHERE matches all rows");
            SqlDiagnostic::error(STAGE, SqlCode::AlwaysTrueFilter, message)
        }
        Some(_) => return None,
    };
    Some(found.with_span(Some(span)).with_subject(table).with_advice("Select the rows with WHERE."))
}

/// Reports an `EXPLAIN ANALYZE` of a write: it changes rows, but the engine does not report how many.
fn explained_write_finding(case: &ChainContext<'_>, index: usize, span: SqlSpan) -> Option<SqlDiagnostic> {
    let statement = &case.statements[index];
    statement.bound().filter(|bound| bound.kind() == StatementKind::Write)?;
    let text = case.statement_text(statement);
    let tokens = lexer::tokenize(text, case.request.dialect);
    let first = tokens.into_iter().find(|(kind, _)| *kind == SqlTokenKind::Word)?;
    let word = text[first.1].to_ascii_uppercase();
    let is_explained = ["EXPLAIN", "ANALYZE", "DESCRIBE", "DESC"].contains(&word.as_str());
    is_explained.then(|| {
        let message = format!("`{word}` runs the write that it explains");
        SqlDiagnostic::error(STAGE, SqlCode::StatementRefused, message)
            .with_span(Some(span))
            .with_advice("Explain the statement without running it, or send it without `EXPLAIN`.")
    })
}

/// Reports a statement that may rewrite all rows of a table.
fn rewrite_finding(table: String, extent: rewrite_extent::RewriteExtent, span: SqlSpan) -> Option<SqlDiagnostic> {
    let (code, message) = match extent {
        rewrite_extent::RewriteExtent::Bounded => return None,
        rewrite_extent::RewriteExtent::Unbounded => (
            SqlCode::UnboundedWrite,
            format!("it may rewrite every row of `{table}`: the rows that it reads are not limited"),
        ),
        rewrite_extent::RewriteExtent::AlwaysTrue => {
            (SqlCode::AlwaysTrueFilter, format!("it may rewrite every row of `{table}`: its WHERE matches all rows"))
        }
    };
    let found = SqlDiagnostic::error(STAGE, code, message).with_span(Some(span)).with_subject(table);
    Some(found.with_advice("Select the rows with WHERE."))
}

/// Reports an UPDATE or DELETE that the parser cannot read, unless the stage `run` runs it. Its filter is unknown, and
/// only rows can show its effect.
fn unparsed_write_findings(case: &ChainContext<'_>, index: usize, span: SqlSpan) -> Vec<SqlDiagnostic> {
    let statement = &case.statements[index];
    let is_removal = |action: &Action| matches!(action, Action::Delete(_) | Action::Update { .. });
    let is_write = statement
        .bound()
        .is_some_and(|bound| bound.kind() == StatementKind::Write && bound.actions.iter().any(is_removal));
    // Rows do not show how many rows a statement rewrites if it also inserts some.
    let adds = statement.bound().is_some_and(|bound| bound.actions.iter().any(|one| matches!(one, Action::Insert(_))));
    // Neither do they for a write in a common table expression.
    let is_in_with = statement.bound().is_some_and(|bound| bound.writes_in_with);
    let is_run = case.request.stages().contains(&StageName::Run) && !adds && !is_in_with;
    if statement.tree.is_some() || !is_write || is_run {
        return Vec::new();
    }
    let message = match adds || is_in_with {
        true => "it rewrites rows, but its filter cannot be parsed",
        false => "its filter cannot be parsed, and no run on test rows checks it",
    };
    vec![SqlDiagnostic::error(STAGE, SqlCode::StatementRefused, message).with_span(Some(span))]
}

/// Returns the condition of the only join of a changed table, which filters its rows as in MySQL's
/// `UPDATE t JOIN u ON … SET …`. An outer join filters none.
fn join_condition(changed: &ast::TableWithJoins) -> Option<&Expr> {
    use ast::{JoinConstraint, JoinOperator};
    let [join] = changed.joins.as_slice() else { return None };
    match &join.join_operator {
        JoinOperator::Join(JoinConstraint::On(condition))
        | JoinOperator::Inner(JoinConstraint::On(condition))
        | JoinOperator::StraightJoin(JoinConstraint::On(condition)) => Some(condition),
        _ => None,
    }
}

/// Returns the table and the filter of an UPDATE or DELETE.
pub(super) fn write_target(statement: &ast::Statement) -> Option<(String, Option<&Expr>)> {
    match statement {
        ast::Statement::Delete(delete) => {
            let (FromTable::WithFromKeyword(from) | FromTable::WithoutKeyword(from)) = &delete.from;
            let table = from.first().map(|table| table.relation.to_string()).unwrap_or_default();
            let filter = delete.selection.as_ref().or_else(|| join_condition(from.first()?));
            // A `LIMIT` bounds the statement as well as a filter does.
            let is_limited = delete.limit.is_some();
            (!is_limited || filter.is_some()).then_some((table, filter))
        }
        ast::Statement::Update(update) => {
            let is_limited = update.limit.is_some();
            let table = update.table.relation.to_string();
            let filter = update.selection.as_ref().or_else(|| join_condition(&update.table));
            (!is_limited || filter.is_some()).then_some((table, filter))
        }
        // `WITH … DELETE …`
        ast::Statement::Query(query) => match &*query.body {
            SetExpr::Update(inner) | SetExpr::Delete(inner) => write_target(inner),
            _ => None,
        },
        _ => None,
    }
}
