//! Checks that a statement completes within its limits, on the given database or on rows generated from the schema. All
//! writes are rolled back, and the affected rows are counted. An UPDATE or DELETE also runs against unusual rows: if it
//! affects all of them, its filter has no effect.

use std::collections::BTreeSet;

use proctor_core::sql::{Diagnostic, Execution, Ground, Policy, Span, SqlCode, StageName, Touched};
use sqlparser::ast::{Expr, Visit, Visitor};

use crate::engine::{Action, Bound, Kind, Ran, Refusal, RunOn};
use crate::scratch;
use crate::stage::{Case, LESS, Stage, Statement, is_limit, on};
use crate::stages::{asked, rewrite, safety};

/// The stage `run`.
pub(super) struct Run;

impl Stage for Run {
    fn name(&self) -> StageName {
        StageName::Run
    }

    fn run(&self, case: &mut Case<'_>) -> Result<(), String> {
        if let Err(refusal) = asked::split(case) {
            let found = case.refused(StageName::Run, &refusal, 0);
            case.found(found);
            return Ok(());
        }
        asked::ask(case, StageName::Run)?;
        ground(case)?;
        let outcome = each(case, one);
        case.engine.rollback().map_err(|refusal| refusal.message)?;
        outcome?;
        each(case, tried_among_odd_rows)
    }
}

/// Does some work for each statement until the time is over.
fn each(case: &mut Case<'_>, work: fn(&mut Case<'_>, usize) -> Result<(), String>) -> Result<(), String> {
    for index in 0..case.statements.len() {
        if case.is_late(StageName::Run) {
            break;
        }
        work(case, index)?;
    }
    Ok(())
}

/// Begins the transaction that is rolled back at the end. Without a database file, empty tables get scratch rows.
fn ground(case: &mut Case<'_>) -> Result<(), String> {
    case.engine.begin().map_err(|refusal| refusal.message)?;
    if case.request.database.is_none() {
        let sources = sources(case);
        scratch::fill(case.engine, &case.request.sql, sources.as_ref());
    }
    Ok(())
}

/// Returns the tables whose rows can affect the statements; `None` if every table can affect them.
fn sources(case: &Case<'_>) -> Option<BTreeSet<String>> {
    // A statement of a migration refers to what earlier statements create.
    if case.request.policy == Policy::Migrate {
        return None;
    }
    let statements: Option<Vec<&Bound>> = case.statements.iter().map(Statement::bound).collect();
    case.engine.sources(&statements?)
}

fn one(case: &mut Case<'_>, index: usize) -> Result<(), String> {
    let bound = match asked::prepared(case, index) {
        Ok(bound) => bound.clone(),
        Err(refusal) if refusal.code.is_ours() => return Err(refusal.message),
        Err(refusal) => {
            let from = case.statements[index].range.start;
            let found = case.refused(StageName::Bind, &refusal, from);
            case.found(found);
            return Ok(());
        }
    };
    if !may_run(&bound, case.request.policy) {
        return Err("a statement that no policy allows came to be run".to_owned());
    }
    let written = written(&bound);
    let before = match &written {
        Some(table) => count(case, table),
        None => 0,
    };
    let bounds = case.bounds();
    let text = case.text_of(&case.statements[index]).to_owned();
    // Scratch rows are few: a statement that does not complete on them never does. An endless recursion does not
    // complete on any rows.
    let is_to_end = ground_of(case) == Ground::Scratch || bound.is_recursive();
    match case.engine.run(&text, &bound, case.request.policy, RunOn { is_to_end, ..on(&bounds) }) {
        Ok(ran) => {
            let span = case.span(case.statements[index].range.clone());
            if ran.truncated {
                let message =
                    format!("there are more than {} rows; the rest was not checked", case.request.limits.rows);
                case.found(Diagnostic::note(StageName::Run, SqlCode::RowsLeftOut, message).at(Some(span)));
            }
            case.execution = Some(execution(case, bound, &ran, written, before));
        }
        Err(refusal) if refusal.code.is_ours() => return Err(refusal.message),
        Err(refusal) => failed(case, index, &bound, refusal),
    }
    Ok(())
}

fn ground_of(case: &Case<'_>) -> Ground {
    if case.request.database.is_some() { Ground::Database } else { Ground::Scratch }
}

fn execution(case: &Case<'_>, bound: Bound, ran: &Ran, written: Option<String>, before: u64) -> Execution {
    let touched = written.map(|table| Touched { table, rows: ran.changed, of: before.max(ran.changed) });
    Execution {
        ground: ground_of(case),
        columns: bound.columns,
        rows: ran.rows,
        truncated: ran.truncated,
        touched: touched.into_iter().collect(),
    }
}

/// Reports whether a statement of this kind runs under the policy.
fn may_run(bound: &Bound, policy: Policy) -> bool {
    match bound.kind() {
        Kind::Read => true,
        Kind::Setting => true,
        Kind::Write => policy != Policy::Read,
        Kind::Schema => policy == Policy::Migrate,
        Kind::Transaction | Kind::Attach | Kind::Other => false,
    }
}

/// Reports a failed run. On scratch rows an error of the data is only a hint; a limit is always an error.
fn failed(case: &mut Case<'_>, index: usize, bound: &Bound, refusal: Refusal) {
    let is_limit = is_limit(refusal.code);
    let is_endless = bound.is_recursive() && matches!(refusal.code, SqlCode::TimeLimit | SqlCode::StepLimit);
    let refusal = match refusal.code {
        _ if is_endless => Refusal {
            code: SqlCode::EndlessRecursion,
            message: "the recursive query did not terminate".to_owned(),
            ..refusal
        },
        SqlCode::BindError => Refusal { code: SqlCode::RunFailed, ..refusal },
        _ => refusal,
    };
    let range = case.statements[index].range.clone();
    let mut found = case.refused(StageName::Run, &refusal, range.start);
    if found.span.is_none() {
        found.span = Some(case.span(range));
    }
    let is_of_data = matches!(refusal.code, SqlCode::RunFailed | SqlCode::ConstraintBroken | SqlCode::WrongType);
    if is_of_data && is_of_literal(case, &refusal, found.span) {
        found.stage = StageName::Bind;
    } else if is_of_data && needs_rows(bound) && ground_of(case) == Ground::Scratch {
        let message = format!("on rows made from the schema it failed: {}", found.message);
        let warning = Diagnostic::warning(StageName::Run, refusal.code, message, 40);
        found = Diagnostic { severity: warning.severity, message: warning.message, confidence: 40, ..found };
    }
    if is_limit {
        found = found.advice(LESS);
    }
    case.found(found);
}

/// Reports whether the result depends on rows or on parameters. Without them, a failure does not depend on the data.
fn needs_rows(bound: &Bound) -> bool {
    !bound.tables().is_empty() || bound.parameters > 0
}

/// Reports whether the value of a failed conversion is a literal of the text: `id = 'abc'` fails on any row.
fn is_of_literal(case: &Case<'_>, refusal: &Refusal, span: Option<Span>) -> bool {
    let Some(span) = span.filter(|_| refusal.code == SqlCode::WrongType) else { return false };
    let is_told =
        |text: &str| refusal.message.contains(&format!("'{text}'")) || refusal.message.contains(&format!("\"{text}\""));
    let is_of_column = refusal.message.contains("source column");
    let token = case.text().get(span.start..span.end).filter(|token| token.starts_with('\''));
    !is_of_column && token.is_some_and(|token| is_told(&crate::text::unquoted(token)))
}

/// Returns the table whose rows the statement changes, if there is exactly one.
fn written(bound: &Bound) -> Option<String> {
    if bound.kind() != Kind::Write {
        return None;
    }
    let mut tables = bound.actions.iter().filter_map(|action| match action {
        Action::Insert(table) | Action::Delete(table) | Action::Update { table, .. } => Some(table),
        _ => None,
    });
    let first = tables.next()?.clone();
    tables.all(|table| *table == first).then_some(first)
}

fn count(case: &mut Case<'_>, table: &str) -> u64 {
    let name = case.engine.quoted(table);
    case.engine
        .number(&format!("SELECT count(*) FROM {name}"))
        .ok()
        .and_then(|rows| u64::try_from(rows).ok())
        .unwrap_or(0)
}

/// Reports an UPDATE or DELETE that affects every one of many unusual rows.
fn tried_among_odd_rows(case: &mut Case<'_>, index: usize) -> Result<(), String> {
    let Some(bound) = case.statements[index].bound().cloned() else { return Ok(()) };
    let removes = bound.actions.iter().any(|action| matches!(action, Action::Delete(_) | Action::Update { .. }));
    let adds = bound.actions.iter().any(|action| matches!(action, Action::Insert(_)));
    if bound.kind() != Kind::Write || case.is_rejected() {
        return Ok(());
    }
    if adds {
        return taken_among_odd_rows(case, index, &bound);
    }
    if !removes {
        return Ok(());
    }
    let tree = case.statements[index].tree.clone();
    let target = tree.as_ref().and_then(safety::target).map(|(table, _)| table);
    let name = target.or_else(|| written(&bound)).map(|name| name.trim_matches(['"', '`', '[', ']']).to_owned());
    let Some(table) = name.and_then(|name| case.engine.catalog().table(bare(&name)).cloned()) else { return Ok(()) };
    let text = case.text_of(&case.statements[index]).to_owned();
    let bounds = case.bounds();
    case.engine.begin().map_err(|refusal| refusal.message)?;
    let (all, sources) = (case.request.sql.clone(), sources(case));
    scratch::fill(case.engine, &all, sources.as_ref());
    scratch::probe(case.engine, &table, &all);
    let rows = count(case, &table.name);
    let touched = match case.engine.run(&text, &bound, case.request.policy, on(&bounds)) {
        Ok(ran) => Some(ran.changed),
        // Referenced rows cannot be deleted, so the rows that the filter selects are counted instead.
        Err(refusal) if refusal.code == SqlCode::ConstraintBroken => tree.as_ref().and_then(|tree| chosen(case, tree)),
        Err(_) => None,
    };
    case.engine.rollback().map_err(|refusal| refusal.message)?;
    if rows < 2 || touched.is_none_or(|touched| touched < rows) {
        return Ok(());
    }
    let span = case.span(case.statements[index].range.clone());
    let message = format!("it touched each of the {rows} rows of `{}` that it was tried on", table.name);
    let is_of_others = bound.tables().iter().any(|name| !bare(name).eq_ignore_ascii_case(&table.name));
    let found = match is_of_others && tree.as_ref().is_some_and(asks_within) {
        // Rows of another table may exclude some.
        true => Diagnostic::warning(StageName::Safety, SqlCode::AlwaysTrueFilter, message, 50),
        false => Diagnostic::error(StageName::Safety, SqlCode::AlwaysTrueFilter, message),
    };
    case.found(found.at(Some(span)).about(table.name).advice("Select the rows with WHERE."));
    Ok(())
}

/// Reports a rewriting statement whose query returns every one of many unusual rows: its filter has no effect.
fn taken_among_odd_rows(case: &mut Case<'_>, index: usize, bound: &Bound) -> Result<(), String> {
    let source = case.statements[index].tree.as_ref().and_then(|tree| rewrite::source(tree, bound));
    let Some((name, query)) = source else { return Ok(()) };
    let Some(table) = case.engine.catalog().table(bare(&name)).cloned() else { return Ok(()) };
    let (all, sources) = (case.request.sql.clone(), sources(case));
    case.engine.begin().map_err(|refusal| refusal.message)?;
    scratch::fill(case.engine, &all, sources.as_ref());
    scratch::probe(case.engine, &table, &all);
    let rows = count(case, &table.name);
    let taken = case.engine.number(&format!("SELECT count(*) FROM ({query}) AS taken"));
    case.engine.rollback().map_err(|refusal| refusal.message)?;
    let taken = taken.ok().and_then(|taken| u64::try_from(taken).ok()).unwrap_or(0);
    if rows < 2 || taken < rows {
        return Ok(());
    }
    let span = case.span(case.statements[index].range.clone());
    let message = format!("it rewrites rows by each of the {rows} rows of `{}` that it was tried on", table.name);
    let found = Diagnostic::error(StageName::Safety, SqlCode::AlwaysTrueFilter, message).at(Some(span));
    case.found(found.about(table.name).advice("Select the rows with WHERE."));
    Ok(())
}

/// Returns the number of rows that the filter of a write selects.
fn chosen(case: &mut Case<'_>, tree: &sqlparser::ast::Statement) -> Option<u64> {
    let (table, filter) = safety::target(tree)?;
    let asked = format!("SELECT count(*) FROM {table} WHERE {}", filter?);
    case.engine.number(&asked).ok().and_then(|rows| u64::try_from(rows).ok())
}

fn bare(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(_, bare)| bare).trim_matches(['"', '`', '[', ']'])
}

/// Reports whether a statement contains a subquery.
fn asks_within(tree: &sqlparser::ast::Statement) -> bool {
    struct Asks(bool);
    impl Visitor for Asks {
        type Break = ();
        fn pre_visit_expr(&mut self, expr: &Expr) -> std::ops::ControlFlow<()> {
            self.0 |= matches!(expr, Expr::Subquery(_) | Expr::InSubquery { .. } | Expr::Exists { .. });
            std::ops::ControlFlow::Continue(())
        }
    }
    let mut asks = Asks(false);
    let _ = tree.visit(&mut asks);
    asks.0
}
