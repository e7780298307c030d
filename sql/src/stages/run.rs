//! Checks that a statement completes within its limits, on the given database or on rows generated from the schema. All
//! writes are rolled back, and the affected rows are counted. An UPDATE or DELETE also runs against unusual rows: if it
//! affects all of them, its filter has no effect.

use std::collections::BTreeSet;
use std::ops::Range;

use proctor_core::sql::{
    AffectedRows, ExecutionData, SqlCode, SqlDiagnostic, SqlExecution, SqlPolicy, SqlSpan, StageName,
};
use sqlparser::ast::{Expr, Visitor};

use crate::allow_lists;
use crate::catalog::CatalogTable;
use crate::engine::{
    Action, BoundStatement, EngineRefusal, ExecutionBounds, GENERATED_ROWS_PREFIX, StatementKind, StatementOutcome,
    is_limit_code,
};
use crate::scratch_rows;
use crate::stage::{ChainContext, REDUCE_ADVICE, SqlStage, StageError, Statement, execution_bounds};
use crate::stages::selected_rows::{self, SelectedRows};
use crate::stages::statement_tree::{common_table_expressions, find_writes};
use crate::stages::tree_walk::walk;
use crate::stages::{rewrite_extent, safety, statement_binding};

/// The stage `run`.
pub(super) struct RunStage;

impl SqlStage for RunStage {
    fn name(&self) -> StageName {
        StageName::Run
    }

    fn run(&self, case: &mut ChainContext<'_>) -> Result<(), StageError> {
        if let Err(refusal) = statement_binding::split_statements(case) {
            let found = case.refusal_finding(StageName::Run, &refusal, 0);
            case.add_finding(found);
            return Ok(());
        }
        statement_binding::bind_statements(case, StageName::Run)?;
        let outcome = prepare_rows(case).and_then(|()| for_each_statement(case, run_statement));
        case.engine.rollback()?;
        outcome.and_then(|()| for_each_statement(case, check_filter_on_unusual_rows))
    }
}

/// Does some work for each statement until the time limit was reached.
fn for_each_statement(
    case: &mut ChainContext<'_>,
    work: fn(&mut ChainContext<'_>, usize) -> Result<(), StageError>,
) -> Result<(), StageError> {
    for index in 0..case.statements.len() {
        if case.check_deadline(StageName::Run) {
            break;
        }
        let range = case.statements[index].range.clone();
        work(case, index).or_else(|error| limit_as_finding(case, error, Some(range)))?;
    }
    Ok(())
}

/// Converts a limit that ended an internal statement to a finding. Without that statement, nothing shows that the text
/// is right.
fn limit_as_finding(
    case: &mut ChainContext<'_>,
    error: StageError,
    range: Option<Range<usize>>,
) -> Result<(), StageError> {
    match error {
        StageError::Engine(refusal) if is_limit_code(refusal.code) => {
            let span = range.map(|range| case.span(range));
            let found = SqlDiagnostic::error(StageName::Run, refusal.code, refusal.message);
            case.add_finding(found.with_span(span).with_advice(REDUCE_ADVICE));
            Ok(())
        }
        other => Err(other),
    }
}

/// Begins the transaction that is rolled back at the end. Without a database file, empty tables get scratch rows.
fn prepare_rows(case: &mut ChainContext<'_>) -> Result<(), StageError> {
    case.engine.begin()?;
    if case.request.database.is_some() {
        return Ok(());
    }
    let (sources, bounds) = (source_tables(case), case.limits_and_deadline());
    let text = &case.request.sql;
    let filled = scratch_rows::fill_empty_tables(case.engine, text, sources.as_ref(), execution_bounds(&bounds));
    filled.or_else(|refusal| limit_as_finding(case, refusal.into(), None))
}

/// Returns the tables whose rows can affect the statements; `None` if every table can affect them.
fn source_tables(case: &ChainContext<'_>) -> Option<BTreeSet<String>> {
    // A statement of a migration refers to what earlier statements create.
    if case.request.policy == SqlPolicy::Migrate {
        return None;
    }
    let statements: Option<Vec<&BoundStatement>> = case.statements.iter().map(Statement::bound).collect();
    case.engine.source_tables(&statements?)
}

fn run_statement(case: &mut ChainContext<'_>, index: usize) -> Result<(), StageError> {
    let bound = match statement_binding::bound_statement(case, index) {
        Ok(bound) => bound.clone(),
        Err(refusal) if refusal.code.is_engine_problem() => return Err(refusal.into()),
        Err(refusal) => {
            let from = case.statements[index].range.start;
            let found = case.refusal_finding(StageName::Bind, &refusal, from);
            case.add_finding(found);
            return Ok(());
        }
    };
    if !is_run_allowed(&bound, case.request.policy) {
        return Err(StageError::ForbiddenStatement);
    }
    let written = written_table(&bound);
    let before = match &written {
        Some(table) => count_rows(case, table)?,
        None => 0,
    };
    let bounds = case.limits_and_deadline();
    let text = case.statement_text(&case.statements[index]).to_owned();
    // Scratch rows are few: a statement that does not complete on them never does. An endless recursion does not
    // complete on any rows.
    let is_to_end = execution_data(case) == ExecutionData::Scratch || bound.is_recursive();
    match case.engine.run(
        &text,
        &bound,
        case.request.policy,
        ExecutionBounds { continues_past_row_limit: is_to_end, ..execution_bounds(&bounds) },
    ) {
        Ok(ran) => {
            let span = case.span(case.statements[index].range.clone());
            if ran.truncated {
                let message =
                    format!("there are more than {} rows; the rest were not checked", case.request.limits.rows);
                case.add_finding(
                    SqlDiagnostic::note(StageName::Run, SqlCode::RowsLeftOut, message).with_span(Some(span)),
                );
            }
            case.execution = Some(build_execution(case, bound, &ran, written, before));
        }
        Err(refusal) if refusal.code.is_engine_problem() => return Err(refusal.into()),
        Err(refusal) => report_failure(case, index, &bound, refusal),
    }
    Ok(())
}

fn execution_data(case: &ChainContext<'_>) -> ExecutionData {
    if case.request.database.is_some() { ExecutionData::Database } else { ExecutionData::Scratch }
}

fn build_execution(
    case: &ChainContext<'_>,
    bound: BoundStatement,
    ran: &StatementOutcome,
    written: Option<String>,
    before: u64,
) -> SqlExecution {
    let affected = written.filter(|_| !ran.is_change_count_unknown).map(|table| AffectedRows {
        table,
        rows: ran.changed,
        of: before.max(ran.changed),
    });
    SqlExecution {
        data: execution_data(case),
        columns: bound.columns,
        rows: ran.rows,
        truncated: ran.truncated,
        affected: affected.into_iter().collect(),
    }
}

/// Reports whether a statement of this kind runs under the policy.
pub(crate) fn is_run_allowed(bound: &BoundStatement, policy: SqlPolicy) -> bool {
    match bound.kind() {
        StatementKind::Read => true,
        StatementKind::Setting => true,
        StatementKind::Write => policy != SqlPolicy::Read,
        StatementKind::Schema => policy == SqlPolicy::Migrate,
        StatementKind::Transaction | StatementKind::Attach | StatementKind::Other => false,
    }
}

/// Reports a failed run. On scratch rows an error of the data is only a hint; a limit is always an error.
fn report_failure(case: &mut ChainContext<'_>, index: usize, bound: &BoundStatement, refusal: EngineRefusal) {
    let is_limit = is_limit_code(refusal.code);
    let is_endless = bound.is_recursive() && matches!(refusal.code, SqlCode::TimeLimit | SqlCode::StepLimit);
    let refusal = match refusal.code {
        _ if is_endless => EngineRefusal {
            code: SqlCode::EndlessRecursion,
            message: "the recursive query did not terminate".to_owned(),
            ..refusal
        },
        SqlCode::BindError => EngineRefusal { code: SqlCode::RunFailed, ..refusal },
        _ => refusal,
    };
    let range = case.statements[index].range.clone();
    let mut found = case.refusal_finding(StageName::Run, &refusal, range.start);
    if found.span.is_none() {
        found.span = Some(case.span(range));
    }
    let is_of_data = matches!(refusal.code, SqlCode::RunFailed | SqlCode::ConstraintBroken | SqlCode::WrongType);
    if is_of_data && is_literal_conversion(case, &refusal, found.span) {
        found.stage = StageName::Bind;
    } else if is_of_data && depends_on_data(bound) && execution_data(case) == ExecutionData::Scratch {
        let message = format!("{GENERATED_ROWS_PREFIX}{}", found.message);
        let warning = SqlDiagnostic::warning(StageName::Run, refusal.code, message, 40);
        found = SqlDiagnostic { severity: warning.severity, message: warning.message, confidence: 40, ..found };
    }
    if is_limit {
        found = found.with_advice(REDUCE_ADVICE);
    }
    case.add_finding(found);
}

/// Reports whether the result depends on rows or on parameters. Without them, a failure does not depend on the data.
fn depends_on_data(bound: &BoundStatement) -> bool {
    !bound.tables().is_empty() || bound.parameters > 0
}

/// Reports whether the value of a failed conversion is a literal of the text: `id = 'abc'` fails on any row.
fn is_literal_conversion(case: &ChainContext<'_>, refusal: &EngineRefusal, span: Option<SqlSpan>) -> bool {
    let Some(span) = span.filter(|_| refusal.code == SqlCode::WrongType) else { return false };
    let is_in_message =
        |text: &str| refusal.message.contains(&format!("'{text}'")) || refusal.message.contains(&format!("\"{text}\""));
    let is_of_column = refusal.message.contains("source column");
    let token = case.text().get(span.start..span.end).filter(|token| token.starts_with('\''));
    !is_of_column && token.is_some_and(|token| is_in_message(&crate::lexer::unquote(token)))
}

/// Returns the table whose rows the statement changes, if there is exactly one.
fn written_table(bound: &BoundStatement) -> Option<String> {
    if bound.kind() != StatementKind::Write || bound.is_explain {
        return None;
    }
    let mut tables = bound.actions.iter().filter_map(|action| match action {
        Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => Some(table),
        _ => None,
    });
    let first = tables.next()?.clone();
    tables.all(|table| *table == first).then_some(first)
}

/// Returns the number of rows of a table or view, or zero if the engine cannot read it.
fn count_rows(case: &mut ChainContext<'_>, table: &str) -> Result<u64, EngineRefusal> {
    let name = case.engine.quote_name(table);
    Ok(query_count(case, &format!("SELECT count(*) FROM {name}"))?.unwrap_or(0))
}

/// Returns the result of a query that counts rows; `None` if the engine refuses it.
///
/// # Errors
/// The query exceeds a limit.
fn query_count(case: &mut ChainContext<'_>, query: &str) -> Result<Option<u64>, EngineRefusal> {
    let bounds = case.limits_and_deadline();
    match case.engine.query_number(query, execution_bounds(&bounds)) {
        Ok(rows) => Ok(u64::try_from(rows).ok()),
        Err(refusal) if is_limit_code(refusal.code) => Err(refusal),
        Err(_) => Ok(None),
    }
}

/// Does some work on a table with many unusual rows, and undoes it. Returns the number of rows before the work.
fn on_unusual_rows<T>(
    case: &mut ChainContext<'_>,
    table: &CatalogTable,
    work: impl FnOnce(&mut ChainContext<'_>) -> Result<T, EngineRefusal>,
) -> Result<(u64, T), EngineRefusal> {
    let (sources, bounds) = (source_tables(case), case.limits_and_deadline());
    let (text, on) = (&case.request.sql, execution_bounds(&bounds));
    case.engine.begin()?;
    let done = scratch_rows::fill_empty_tables(case.engine, text, sources.as_ref(), on)
        .and_then(|()| scratch_rows::insert_unusual_rows(case.engine, table, text, on))
        .and_then(|()| count_rows(case, &table.name))
        .and_then(|rows| work(case).map(|done| (rows, done)));
    case.engine.rollback()?;
    done
}

/// Reports an UPDATE or DELETE that affects every one of many unusual rows.
fn check_filter_on_unusual_rows(case: &mut ChainContext<'_>, index: usize) -> Result<(), StageError> {
    let Some(bound) = case.statements[index].bound().cloned() else { return Ok(()) };
    let removes = bound.actions.iter().any(|action| matches!(action, Action::Delete(_) | Action::Update { .. }));
    let adds = bound.actions.iter().any(|action| matches!(action, Action::Insert(_)));
    if bound.kind() != StatementKind::Write || bound.is_explain || case.is_rejected() {
        return Ok(());
    }
    if bound.writes_in_with {
        return check_each_filter_on_unusual_rows(case, index, &bound);
    }
    if adds {
        return check_rewrite_on_unusual_rows(case, index, &bound);
    }
    if !removes {
        return Ok(());
    }
    let tree = case.statements[index].tree.clone();
    let target = tree.as_ref().and_then(safety::write_target).map(|(table, _)| table);
    // The engine reports the name of the catalog, and the tree has the name as it is written, with its alias.
    let written = || target.as_deref().and_then(|name| find_written_table(case, name.split(" AS ").next()?));
    let reported = written_table(&bound).and_then(|name| case.engine.catalog().table(&name).cloned());
    let Some(table) = reported.or_else(written) else { return Ok(()) };
    let text = case.statement_text(&case.statements[index]).to_owned();
    let bounds = case.limits_and_deadline();
    let (rows, affected) = on_unusual_rows(case, &table, |case| {
        match case.engine.run(&text, &bound, case.request.policy, execution_bounds(&bounds)) {
            Ok(ran) => Ok(Some(ran.changed)),
            Err(refusal) if is_limit_code(refusal.code) => Err(refusal),
            // Referenced rows cannot be deleted, so the rows that the filter selects are counted instead.
            Err(refusal) if refusal.code == SqlCode::ConstraintBroken => match &tree {
                Some(tree) => count_selected_rows(case, tree),
                None => Ok(None),
            },
            Err(_) => Ok(None),
        }
    })?;
    if rows >= 2 && affected.is_some_and(|affected| affected >= rows) {
        let is_of_others = bound.tables().iter().any(|name| !name.eq_ignore_ascii_case(&table.name));
        // Rows of another table may exclude some.
        let is_certain = !(is_of_others && tree.as_ref().is_some_and(has_subquery));
        add_filter_finding(case, index, &table, rows, is_certain);
    }
    Ok(())
}

fn add_filter_finding(case: &mut ChainContext<'_>, index: usize, table: &CatalogTable, rows: u64, is_certain: bool) {
    let span = case.span(case.statements[index].range.clone());
    let message = format!("it changed each of the {rows} test rows of `{}`", table.name);
    let found = match is_certain {
        true => SqlDiagnostic::error(StageName::Safety, SqlCode::AlwaysTrueFilter, message),
        false => SqlDiagnostic::warning(StageName::Safety, SqlCode::AlwaysTrueFilter, message, 50),
    };
    let found = found.with_span(Some(span)).with_subject(table.name.clone());
    case.add_finding(found.with_advice("Select the rows with WHERE."));
}

/// Reports each UPDATE and DELETE of a statement whose filter selects every one of many unusual rows. The statement may
/// have several, whose changed rows the engine does not report separately, so the selected rows are counted.
fn check_each_filter_on_unusual_rows(
    case: &mut ChainContext<'_>,
    index: usize,
    bound: &BoundStatement,
) -> Result<(), StageError> {
    let Some(tree) = case.statements[index].tree.clone() else { return Ok(()) };
    let with = common_table_expressions(&tree);
    for write in find_writes(&tree) {
        let Some(selected) = selected_rows::find(write, with, bound.is_recursive()) else { continue };
        let Some(table) = find_written_table(case, &selected.table) else {
            add_uncounted_filter(case, index, &selected);
            continue;
        };
        let (rows, count) = on_unusual_rows(case, &table, |case| query_count(case, &selected.count))?;
        match count {
            None => add_uncounted_filter(case, index, &selected),
            Some(count) if rows >= 2 && count >= rows => {
                let is_certain = bound.tables().len() < 2 || !has_subquery(write);
                add_filter_finding(case, index, &table, rows, is_certain);
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Reports a filter whose rows cannot be counted: it depends on rows that the statement changes, or Proctor's parser reads
/// it in another way than the engine.
fn add_uncounted_filter(case: &mut ChainContext<'_>, index: usize, selected: &SelectedRows) {
    let span = case.span(case.statements[index].range.clone());
    let table = &selected.table;
    let found = if selected.depends_on_changes {
        let message = format!("which rows of `{table}` it changes depends on its other changes and was not checked");
        SqlDiagnostic::warning(StageName::Safety, SqlCode::AlwaysTrueFilter, message, 50)
    } else {
        let message = format!("it changes rows of `{table}`, but its filter cannot be checked");
        SqlDiagnostic::error(StageName::Safety, SqlCode::StatementRefused, message)
    };
    case.add_finding(found.with_span(Some(span)).with_subject(table).with_advice("Select the rows with WHERE."));
}

/// Reports a rewriting statement whose query returns every one of many unusual rows: its filter has no effect.
fn check_rewrite_on_unusual_rows(
    case: &mut ChainContext<'_>,
    index: usize,
    bound: &BoundStatement,
) -> Result<(), StageError> {
    let source = case.statements[index].tree.as_ref().and_then(|tree| rewrite_extent::rewrite_source(tree, bound));
    let Some((name, query)) = source else { return Ok(()) };
    let Some(table) = find_written_table(case, &name) else { return Ok(()) };
    let count = format!("SELECT count(*) FROM ({query}) AS taken");
    let (rows, taken) = on_unusual_rows(case, &table, |case| query_count(case, &count))?;
    if rows < 2 || taken.unwrap_or(0) < rows {
        return Ok(());
    }
    let span = case.span(case.statements[index].range.clone());
    let message = format!("it rewrites rows through each of the {rows} test rows of `{}`", table.name);
    let found = SqlDiagnostic::error(StageName::Safety, SqlCode::AlwaysTrueFilter, message).with_span(Some(span));
    case.add_finding(found.with_subject(table.name).with_advice("Select the rows with WHERE."));
    Ok(())
}

/// Returns the number of rows that the filter of a write selects.
fn count_selected_rows(
    case: &mut ChainContext<'_>,
    tree: &sqlparser::ast::Statement,
) -> Result<Option<u64>, EngineRefusal> {
    let Some((table, Some(filter))) = safety::write_target(tree) else { return Ok(None) };
    query_count(case, &format!("SELECT count(*) FROM {table} WHERE {filter}"))
}

/// Returns the table with a name as a statement writes it.
fn find_written_table(case: &ChainContext<'_>, written: &str) -> Option<CatalogTable> {
    let dialect = case.request.dialect;
    let mut tables = case.engine.catalog().tables.iter();
    tables.find(|table| allow_lists::is_name_of_table(written, &table.name, dialect)).cloned()
}

/// Reports whether a statement contains a subquery.
fn has_subquery(tree: &sqlparser::ast::Statement) -> bool {
    struct SubqueryVisitor(bool);
    impl Visitor for SubqueryVisitor {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> std::ops::ControlFlow<()> {
            self.0 |= matches!(expr, Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. });
            std::ops::ControlFlow::Continue(())
        }
    }
    let mut asks = SubqueryVisitor(false);
    walk(tree, &mut asks);
    asks.0
}
