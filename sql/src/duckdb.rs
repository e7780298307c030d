//! Runs DuckDB, whose shared library is loaded if it is available. The plan that DuckDB binds shows what a statement
//! does. A statement cannot access anything of the machine: see `duckdb/open.rs`.
//!
//! A C++ exception that leaves the library ends the process. Therefore only workers open DuckDB.
//!
//! Sources: <https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview>,
//! <https://duckdb.org/docs/stable/data/json/sql_to_and_from_json>,
//! <https://duckdb.org/docs/stable/clients/c/overview>.

mod catalog;
mod follow;
mod forms;
mod functions;
mod generated;
mod keyed_update;
mod open;
mod plan;
mod query;
mod restricted;
mod says;
mod slim;
mod watch;

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::{Duration, Instant};

use proctor_core::sql::{Allow, Column, Dialect, Policy, SqlCode};
use proctor_duckdb::words::Statement;
use proctor_duckdb::{Connection, Extracted, Prepared, Rows};
use serde_json::Value;

use self::query::{execute, first_text, one_text, texts};
use crate::catalog::Catalog;
use crate::engine::{Action, Bound, Engine, Kind, Ran, Refusal, RunOn};
use crate::text;
use catalog::{Held, Part};
use says::Said;

pub use proctor_duckdb::find as find_library;

/// The time limit of an internal statement.
const OURS: Duration = Duration::from_secs(5);

/// A DuckDB database in memory, or a file that is opened read-only.
pub struct DuckDb {
    connection: Connection,
    /// The prepared queries that return the plan and the tree of a statement.
    planner: Prepared,
    parser: Prepared,
    version: String,
    /// The name of the database.
    home: String,
    /// True if the database is a file that is opened read-only.
    is_readonly: bool,
    held: Held,
    /// The statements that were written since the last `begin`; `None` outside of a transaction.
    written: Option<Vec<String>>,
    /// True if statements since the last `begin` changed the schema.
    has_other_tables: bool,
}

/// A part of DuckDB's message about a parameter of unknown type.
const UNTYPED: &str = "unique_ptr that is NULL";
/// The error if no type of a parameter fits.
const UNKNOWN_TYPE: &str =
    "Binder Error: the types of its parameters are unknown; write `CAST(? AS INTEGER)` or another type";
/// Values that replace parameters, in the order in which they are tried.
const TYPES: &[&str] = &[
    "NULL",
    "CAST(NULL AS INTEGER)",
    "CAST(NULL AS VARCHAR)",
    "CAST(NULL AS TIMESTAMP)",
    "CAST(NULL AS DATE)",
    "CAST(NULL AS DOUBLE)",
    "CAST(NULL AS INTEGER[])",
    "CAST(NULL AS BOOLEAN)",
    "CAST(NULL AS BLOB)",
];

/// The JSON of a plan or a tree, or DuckDB's error about the statement.
type Json = Result<Value, Said>;

impl DuckDb {
    fn over(connection: Connection, version: String, is_readonly: bool) -> Result<Self, Refusal> {
        let failed = |error: String| Said::of_text(&error, "").refusal("");
        let prepare = |sql: &str| connection.extract(sql).and_then(|one| one.prepare(0)).map_err(failed);
        let planner = prepare("SELECT CAST(json_serialize_plan(CAST($1 AS VARCHAR)) AS VARCHAR)")?;
        let parser = prepare("SELECT CAST(json_serialize_sql(CAST($1 AS VARCHAR)) AS VARCHAR)")?;
        let home = first_text(&connection, "SELECT current_database()").map_err(failed)?;
        let held = Held::default();
        let mut engine = Self {
            connection,
            planner,
            parser,
            version,
            home,
            is_readonly,
            held,
            written: None,
            has_other_tables: false,
        };
        engine.refresh(Part::All)?;
        Ok(engine)
    }

    fn judged(&self, sql: &str) -> Result<Bound, Refusal> {
        let extracted = match self.connection.extract(sql) {
            Ok(extracted) if extracted.count() == 0 => {
                return Err(Refusal::new(SqlCode::EmptyText, "the text contains no statement"));
            }
            Ok(extracted) => extracted,
            Err(error) => return self.known_or_refused(&Said::of_text(&error, sql), sql),
        };
        let reader = self.reader();
        // A statement that is not a query, or is invalid, has no tree. The plan reports the error.
        let tree = asked(&self.parser, sql).ok();
        let mut actions = tree.as_ref().map(|tree| reader.of_tree(tree)).unwrap_or_default();
        if actions.iter().any(is_beyond) {
            return Ok(Bound { actions, ..Bound::default() });
        }
        match self.planned(sql) {
            Ok(plan) => {
                actions.extend(reader.of_plan(&plan));
                keyed_update::drop_copied(sql, &plan, &self.held.macros, &mut actions);
                actions.extend(self.of_body(sql, &actions)?);
                tree.iter().chain([&plan]).for_each(|json| actions.extend(reader.absent(json)));
                self.bound(sql, actions, &extracted)
            }
            Err(said) => self.unplanned(sql, &said, &extracted, actions),
        }
    }

    /// Returns the plan of a statement. DuckDB makes no plan if it does not know the type of a parameter. Parameters
    /// are then replaced by values of the first type that gives a plan.
    fn planned(&self, sql: &str) -> Json {
        let said = match asked(&self.planner, sql) {
            Err(said) if said.message.contains(UNTYPED) => said,
            other => return other,
        };
        let Some(typed) = self.typed(sql) else {
            return Err(if forms::has_parameters(sql) { Said::of_text(UNKNOWN_TYPE, sql) } else { said });
        };
        asked(&self.planner, &typed)
    }

    /// Returns the text with its parameters replaced by values of the first type for which DuckDB makes a plan.
    fn typed(&self, sql: &str) -> Option<String> {
        let texts = TYPES.iter().filter_map(|value| forms::with_values_for_parameters(sql, value));
        texts.into_iter().find(|typed| asked(&self.planner, typed).is_ok())
    }

    /// Returns what the body of a new view or macro reads. DuckDB binds the body but shows it as a tree, in which
    /// columns are mere names.
    fn of_body(&self, sql: &str, actions: &BTreeSet<Action>) -> Result<BTreeSet<Action>, Refusal> {
        let made = |kind: &str| {
            actions.iter().any(|action| matches!(action, Action::Schema { what, .. } if what.contains(kind)))
        };
        if made("create view") {
            let body = forms::body(sql).map(|body| asked(&self.planner, body));
            return match body {
                Some(Ok(plan)) => Ok(self.reader().of_plan(&plan)),
                _ => Ok([Action::Other("a view whose body cannot be examined".to_owned())].into()),
            };
        }
        if made("macro") {
            // A body with parameters has no plan, so it counts as reading every column.
            let read = actions.iter().filter_map(|action| match action {
                Action::Read { table, .. } => Some(Action::Read { table: table.clone(), column: Some("*".to_owned()) }),
                _ => None,
            });
            return Ok(read.collect());
        }
        Ok(BTreeSet::new())
    }

    /// Prepares a statement to add its columns, the number of its parameters, and whether it is a query. Statements
    /// that access more than tables are not prepared.
    fn bound(&self, sql: &str, mut actions: BTreeSet<Action>, extracted: &Extracted) -> Result<Bound, Refusal> {
        if actions.iter().any(is_beyond) {
            return Ok(Bound { actions, ..Bound::default() });
        }
        let prepared = match extracted.prepare(0) {
            Ok(prepared) => prepared,
            Err(error) => return self.known_or_refused(&Said::of_text(&error, sql), sql),
        };
        let is_query = prepared.kind() == Statement::Select;
        if prepared.kind() == Statement::Call {
            actions.insert(Action::Other("call a procedure".to_owned()));
        }
        let advances = actions.contains(&Action::Call("nextval".to_owned()));
        let reads = |action: &Action| {
            matches!(action, Action::Read { .. } | Action::Metadata { .. } | Action::Call(_) | Action::Recursion)
        };
        Ok(Bound {
            is_readonly: is_query && !advances && actions.iter().all(reads),
            is_query,
            columns: columns(&prepared),
            parameters: usize::try_from(prepared.parameters()).unwrap_or(usize::MAX),
            actions,
            ..Bound::default()
        })
    }

    /// Classifies a statement for which DuckDB makes no plan, or that it refuses.
    fn unplanned(
        &self,
        sql: &str,
        said: &Said,
        extracted: &Extracted,
        tree: BTreeSet<Action>,
    ) -> Result<Bound, Refusal> {
        if extracted.count() > 1 {
            return self.of_many(sql, extracted);
        }
        let is_without_plan = said.message.contains("does not support serialization")
            || said.message.contains("does not have a function specified");
        if !is_without_plan {
            return self.known_or_refused(said, sql);
        }
        let only = |action: Action| Ok(Bound { actions: [action].into(), ..Bound::default() });
        if let Some(pragma) = forms::pragma(sql) {
            return only(Action::Setting(pragma.to_owned())).and_then(|bound: Bound| {
                if functions::is_harmless_pragma(pragma) {
                    let table = forms::argument_of_pragma(sql).filter(|_| pragma.eq_ignore_ascii_case("table_info"));
                    let metadata = Action::Metadata { source: format!("the pragma `{pragma}`"), table };
                    let is_of_engine = functions::is_of_engine(pragma);
                    self.bound(sql, Some(metadata).filter(|_| !is_of_engine).into_iter().collect(), extracted)
                } else {
                    Ok(bound)
                }
            });
        }
        let prepared = match extracted.prepare(0) {
            Ok(prepared) => prepared,
            Err(error) => return self.known_or_refused(&Said::of_text(&error, sql), sql),
        };
        match prepared.kind() {
            Statement::Explain => self.explained(sql, &prepared),
            Statement::Prepare => only(Action::Other("prepare a statement".to_owned())),
            Statement::Execute => only(Action::Other("run a prepared statement".to_owned())),
            // A part of the query cannot be serialized to JSON. Its tree still names everything except what views and
            // macros contain.
            Statement::Select if !tree.is_empty() => self.bound(sql, tree, extracted),
            other => only(Action::Other(format!("{other:?}").to_lowercase())),
        }
    }

    fn explained(&self, sql: &str, prepared: &Prepared) -> Result<Bound, Refusal> {
        let is_statement = |text: &str| self.connection.extract(text).is_ok_and(|found| found.count() > 0);
        let Some(inner) = forms::explained(sql, is_statement) else {
            return Ok(Bound { actions: [Action::Other("explain".to_owned())].into(), ..Bound::default() });
        };
        let shifted = |refusal: Refusal| Refusal {
            place: refusal.place.map(|place| place.start + inner.from..place.end + inner.from),
            ..refusal
        };
        let bound = self.judged(&sql[inner.from..]).map_err(shifted)?;
        Ok(Bound { is_explain: !inner.is_run, columns: columns(prepared), ..bound })
    }

    /// Classifies a statement that DuckDB splits into several: PIVOT without values looks them up first, and ALTER may
    /// consist of several steps.
    fn of_many(&self, sql: &str, extracted: &Extracted) -> Result<Bound, Refusal> {
        if let Some(with_values) = forms::with_values(sql) {
            let bound = self.judged(&with_values);
            // Positions after the first inserted value do not match the original text.
            return bound.map(|bound| Bound { columns: Vec::new(), ..bound }).map_err(|refusal| Refusal {
                place: refusal.place.filter(|place| sql.get(place.clone()) == with_values.get(place.clone())),
                ..refusal
            });
        }
        let kinds = (0..extracted.count()).map(|index| extracted.prepare(index).map(|prepared| prepared.kind()));
        let kinds: Vec<Statement> = kinds.filter_map(Result::ok).filter(|kind| !is_frame(*kind)).collect();
        let is_alter =
            !kinds.is_empty() && kinds.iter().all(|kind| matches!(kind, Statement::Alter | Statement::Update));
        let action = match forms::added_column(sql).filter(|_| is_alter) {
            Some(added) => {
                // The default of the new column is a query.
                let default = self.judged(&format!("SELECT (\n{}\n)", added.default));
                let default = default.map_err(|refusal| Refusal { place: None, ..refusal })?;
                let parts: Vec<String> = added.table.split('.').map(text::unquoted).collect();
                let name = match parts.as_slice() {
                    [table] => self.reader().name("", "", table),
                    [schema, table] => self.reader().name("", schema, table),
                    other => other.join("."),
                };
                let alter = Action::Schema { what: "alter table".to_owned(), name };
                let filled = default.actions.into_iter().filter(|action| !plan::takes_of_a_sequence(action));
                return Ok(Bound { actions: filled.chain([alter]).collect(), ..Bound::default() });
            }
            None => Action::Other("several statements in one".to_owned()),
        };
        Ok(Bound { actions: [action].into(), ..Bound::default() })
    }

    /// Converts an error about access outside of the tables to the attempted action, so that the policy can judge it.
    /// Returns other errors as refusals.
    fn known_or_refused(&self, said: &Said, sql: &str) -> Result<Bound, Refusal> {
        let name = said.name.clone().unwrap_or_default();
        let is_function = said.entry.contains("Function");
        let is_of_extension = said.message.contains("is not in the catalog, but it exists in the");
        let action = match said.kind.as_str() {
            "permission" | "io" | "http" | "missing extension" | "autoload" => {
                let what =
                    said.message.split('"').nth(1).map_or_else(|| "a file".to_owned(), |file| format!("`{file}`"));
                Action::File(what)
            }
            "invalid configuration" => Action::Setting("a setting that is locked".to_owned()),
            _ if said.message.starts_with("Secret ") => Action::Other("create a secret".to_owned()),
            "catalog" if said.entry == "Table" && functions::is_file(&name) => Action::File(format!("`{name}`")),
            "catalog" if is_of_extension && said.message.starts_with("Table Function") => {
                Action::File(format!("`{name}`, a table function of an extension"))
            }
            "catalog" if is_function && functions::of_table(&name) == functions::Reach::Files => {
                Action::File(format!("`{name}`"))
            }
            "catalog" if is_function && !functions::is_harmless(&name.to_ascii_lowercase()) => Action::Call(name),
            "catalog" if said.message.starts_with("unrecognized configuration parameter") => Action::Setting(name),
            _ => return Err(said.refusal(sql)),
        };
        Ok(Bound { actions: [action].into(), ..Bound::default() })
    }

    fn ran(&self, sql: &str, bound: &Bound, on: RunOn<'_>) -> Result<Ran, String> {
        let is_untyped =
            bound.parameters > 0 && asked(&self.planner, sql).is_err_and(|said| said.message.contains(UNTYPED));
        let typed = if is_untyped { self.typed(sql) } else { None };
        let extracted = self.connection.extract(typed.as_deref().unwrap_or(sql))?;
        let mut ran = Ran::default();
        for index in 0..extracted.count() {
            let prepared = extracted.prepare(index)?;
            if extracted.count() > 1 && is_frame(prepared.kind()) {
                continue;
            }
            (1..=prepared.parameters()).try_for_each(|parameter| prepared.bind_null(parameter))?;
            ran = fetched(prepared.run()?, bound, on)?;
        }
        Ok(ran)
    }

    /// Restores the transaction after an error: a failed statement ends DuckDB's transaction, so it begins again and
    /// repeats the statements that succeeded.
    fn heal(&mut self) {
        let Some(written) = &self.written else { return };
        if execute(&self.connection, "SELECT 1").is_err() {
            let again = ["ROLLBACK", "BEGIN TRANSACTION"].into_iter().chain(written.iter().map(String::as_str));
            again.for_each(|sql| drop(execute(&self.connection, sql)));
        }
    }
}

/// Reports whether an action accesses more than tables, so that its statement is not even prepared.
fn is_beyond(action: &Action) -> bool {
    matches!(
        action,
        Action::File(_) | Action::Attach(_) | Action::Setting(_) | Action::Transaction(_) | Action::Other(_)
    )
}

/// Reports whether a step only wraps the other steps of a statement. They run in the engine's transaction already.
fn is_frame(kind: Statement) -> bool {
    matches!(kind, Statement::Transaction | Statement::Set)
}

fn columns(prepared: &Prepared) -> Vec<Column> {
    let column = |(name, kind): (String, Option<&str>)| Column { name, kind: kind.map(str::to_owned) };
    prepared.columns().into_iter().map(column).collect()
}

/// Runs one of the two prepared queries for a text.
fn asked(question: &Prepared, sql: &str) -> Json {
    let text = one_text(question, sql).map_err(|error| Said::of_text(&error, sql))?;
    let json = slim::read(&text).map_err(|error| Said::of_text(&error, sql))?;
    Said::of_json(&json).map_or(Ok(json), Err)
}

/// Reads a result within the limits.
fn fetched(mut rows: Rows, bound: &Bound, on: RunOn<'_>) -> Result<Ran, String> {
    let is_count = rows.is_count_of_changes();
    let mut ran = Ran::default();
    let mut bytes = 0_u64;
    while let Some(chunk) = rows.next_chunk()? {
        if is_count {
            ran.changed += chunk.number(0, 0).and_then(|count| u64::try_from(count).ok()).unwrap_or(0);
            continue;
        }
        if ran.truncated {
            continue;
        }
        bytes = bytes.saturating_add(chunk.bytes());
        if bytes > on.limits.result {
            return Err(format!("{}{}", says::TOO_LARGE, on.limits.result));
        }
        ran.rows += chunk.rows();
        // The rows that a write returns must all be read; otherwise DuckDB does not complete the write.
        if ran.rows > on.limits.rows && bound.is_readonly {
            ran.rows = on.limits.rows;
            ran.truncated = true;
            if !on.is_to_end {
                break;
            }
        }
    }
    if !is_count && bound.kind() == Kind::Write {
        ran.changed = ran.rows;
    }
    Ok(ran)
}

impl Engine for DuckDb {
    fn dialect(&self) -> Dialect {
        Dialect::Duckdb
    }

    fn version(&self) -> String {
        format!("DuckDB {}", self.version.trim_start_matches('v'))
    }

    fn catalog(&self) -> &Catalog {
        &self.held.catalog
    }

    fn functions(&self) -> &BTreeSet<String> {
        &self.held.functions
    }

    fn is_harmless(&self, function: &str) -> bool {
        let name = function.to_ascii_lowercase();
        if matches!(functions::of_table(&name), functions::Reach::Nothing | functions::Reach::Catalog) {
            return true;
        }
        functions::is_harmless(&name) && self.held.functions.contains(&name)
    }

    fn is_harmless_table(&self, _table: &str) -> bool {
        // Views of the catalog are reported as the table functions that they call.
        false
    }

    fn check_lists(&mut self, sql: &str, bound: &Bound, allow: &Allow, _on: RunOn<'_>) -> Result<(), Refusal> {
        restricted::check(&self.held, sql, bound, allow)?;
        generated::check(self, sql, bound, allow)
    }

    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, Refusal> {
        let ranges = text::statements(sql, Dialect::Duckdb);
        let count = |text: &str| self.connection.extract(text).map(|found| found.count());
        let all = match count(sql) {
            Ok(all) => all,
            Err(error) => {
                let said = Said::of_text(&error, sql);
                // DuckDB refuses some statements, such as IMPORT, before it parses them; `bind` reports those.
                return if said.is_of_form() { Err(self.syntax(sql, &said)) } else { Ok(ranges) };
            }
        };
        let each: u64 = ranges.iter().map(|range| count(&sql[range.clone()]).unwrap_or(0)).sum();
        if all == each {
            return Ok(ranges);
        }
        let message = format!("DuckDB finds {all} statements where the text seems to have {}", ranges.len());
        Err(Refusal::new(SqlCode::SyntaxError, message))
    }

    fn bind(&mut self, sql: &str, on: RunOn<'_>) -> Result<Bound, Refusal> {
        watch::until(on.deadline, self.connection.interrupter(), || self.judged(sql))
    }

    fn begin(&mut self) -> Result<(), Refusal> {
        execute(&self.connection, "BEGIN TRANSACTION").map_err(|error| Said::of_text(&error, "").failed())?;
        self.written = Some(Vec::new());
        Ok(())
    }

    fn rollback(&mut self) -> Result<(), Refusal> {
        if self.written.take().is_none() {
            return Ok(());
        }
        execute(&self.connection, "ROLLBACK").map_err(|error| Said::of_text(&error, "").failed())?;
        if std::mem::take(&mut self.has_other_tables) { self.refresh(Part::All) } else { Ok(()) }
    }

    fn extend(&mut self, schema: &[String], deadline: Instant) -> Result<(), Refusal> {
        open::set_up(&self.connection, schema, deadline)?;
        self.refresh(Part::All)
    }

    fn is_restored(&self) -> bool {
        // A rollback does not undo `nextval`.
        first_text(&self.connection, "SELECT CAST(count(*) AS VARCHAR) FROM duckdb_sequences()")
            .is_ok_and(|count| count == "0")
    }

    fn run(&mut self, sql: &str, bound: &Bound, policy: Policy, on: RunOn<'_>) -> Result<Ran, Refusal> {
        let most = match policy {
            Policy::Read => Kind::Read,
            Policy::Write => Kind::Write,
            Policy::Migrate => Kind::Schema,
        };
        if bound.kind() > most {
            let message = format!("a statement of the kind `{}` came to be run", bound.kind().as_str());
            return Err(Refusal::new(SqlCode::EngineFailed, message));
        }
        if bound.kind() > Kind::Read && self.is_readonly {
            return Err(Refusal::new(SqlCode::EngineFailed, "the database is open for reading only"));
        }
        let is_alone = self.written.is_none();
        if is_alone {
            self.begin()?;
        }
        let ran = watch::until(on.deadline, self.connection.interrupter(), || self.ran(sql, bound, on));
        match (&ran, &mut self.written) {
            (Ok(_), Some(written)) if bound.kind() > Kind::Read => written.push(sql.to_owned()),
            (Err(_), _) => self.heal(),
            _ => {}
        }
        self.has_other_tables |= bound.kind() >= Kind::Schema;
        if is_alone {
            self.rollback()?;
        } else if bound.kind() == Kind::Schema && ran.is_ok() {
            self.follow(bound)?;
        }
        ran.map_err(|error| Said::of_text(&error, sql).refusal(sql))
    }

    fn number(&mut self, sql: &str) -> Result<i64, Refusal> {
        let asked = || -> Result<Option<i64>, String> {
            let mut rows = self.connection.extract(sql)?.prepare(0)?.run()?;
            Ok(rows.next_chunk()?.and_then(|chunk| chunk.number(0, 0)))
        };
        let number = watch::until(Instant::now() + OURS, self.connection.interrupter(), asked);
        if number.is_err() {
            self.heal();
        }
        number
            .map_err(|error| Said::of_text(&error, sql).failed())?
            .ok_or_else(|| Refusal::new(SqlCode::EngineFailed, "the engine gives no number"))
    }

    fn put(&mut self, sql: &str) -> bool {
        // A duplicate key would end the whole transaction, so conflicts are ignored first.
        let patient = sql.strip_prefix("INSERT INTO ").map(|rest| format!("INSERT OR IGNORE INTO {rest}"));
        let sqls = patient.iter().map(String::as_str).chain([sql]);
        let deadline = Instant::now() + OURS;
        for sql in sqls {
            let put = watch::until(deadline, self.connection.interrupter(), || execute(&self.connection, sql));
            if put.is_ok() {
                self.written.iter_mut().for_each(|written| written.push(sql.to_owned()));
                return true;
            }
            // For a table without a key DuckDB refuses OR IGNORE before it changes anything.
            if !put.is_err_and(|error| error.starts_with("Binder Error")) {
                break;
            }
        }
        self.heal();
        false
    }

    fn quoted(&self, name: &str) -> String {
        self.held.quoted.get(name).cloned().unwrap_or_else(|| catalog::quoted(name))
    }
}

impl DuckDb {
    /// Returns a syntax error, with its position if DuckDB reports one in JSON.
    fn syntax(&self, sql: &str, said: &Said) -> Refusal {
        match asked(&self.planner, sql) {
            Err(told) if told.kind == "parser" => told.refusal(sql),
            _ => said.refusal(sql),
        }
    }
}
