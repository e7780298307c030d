//! DuckDB, its shared library loaded where there is one. What a statement does is read off the plan that DuckDB binds;
//! nothing of the machine can be reached from within: see `duckdb/open.rs`.
//!
//! A C++ exception that leaves the library ends the process. Only a worker opens one.
//!
//! Sources: <https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview>,
//! <https://duckdb.org/docs/stable/data/json/sql_to_and_from_json>, <https://duckdb.org/docs/stable/clients/c/overview>.

mod catalog;
mod follow;
mod forms;
mod functions;
mod generated;
mod keyed_update;
mod open;
mod plan;
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

use crate::catalog::Catalog;
use crate::engine::{Action, Bound, Engine, Kind, Ran, Refusal, RunOn};
use crate::text;
use catalog::{Held, Part};
use says::Said;

pub use proctor_duckdb::find as find_library;

/// How long a statement of ours may take.
const OURS: Duration = Duration::from_secs(5);

/// A database in memory, or a file that is only read.
pub struct DuckDb {
    connection: Connection,
    /// Asks for a plan, and for a tree.
    planner: Prepared,
    parser: Prepared,
    version: String,
    /// The name of the database.
    home: String,
    /// Whether it is a file that is only read.
    is_readonly: bool,
    held: Held,
    /// What was written since the beginning of what is undone; none where nothing has begun.
    written: Option<Vec<String>>,
    /// Whether what was written since then made other tables than there were.
    has_other_tables: bool,
}

/// What DuckDB says where it knows no type of a parameter.
const UNTYPED: &str = "unique_ptr that is NULL";
/// What is said where no type fits.
const UNKNOWN_TYPE: &str =
    "Binder Error: the types of its parameters are unknown; write `CAST(? AS INTEGER)` or another type";
/// Values that stand in for parameters, in the order in which they are tried.
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

/// What DuckDB has to do something with a whole statement.
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
        // No query, or none that is to be, has no tree: the plan says so too.
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

    /// The plan of a statement. DuckDB makes none of a parameter whose type it does not know yet; values of a type with
    /// which it does stand in for those.
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

    /// The text with values in place of its parameters, of the first type with which DuckDB makes a plan of it.
    fn typed(&self, sql: &str) -> Option<String> {
        let texts = TYPES.iter().filter_map(|value| forms::with_values_for_parameters(sql, value));
        texts.into_iter().find(|typed| asked(&self.planner, typed).is_ok())
    }

    /// What the body of a view reads that is made: DuckDB binds it, but shows it as a tree, in which columns are names.
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
            // A body with parameters has no plan: it may read each column.
            let read = actions.iter().filter_map(|action| match action {
                Action::Read { table, .. } => Some(Action::Read { table: table.clone(), column: Some("*".to_owned()) }),
                _ => None,
            });
            return Ok(read.collect());
        }
        Ok(BTreeSet::new())
    }

    /// With what preparing tells: columns, parameters, and whether it is a query. What reaches beyond the tables is not
    /// prepared.
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

    /// A statement that DuckDB makes no plan of, or refuses.
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
            // A query with a part that cannot be told in JSON: its tree names everything but what is behind names.
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

    /// A statement that DuckDB takes for several: PIVOT without values first looks them up; ALTER may be steps.
    fn of_many(&self, sql: &str, extracted: &Extracted) -> Result<Bound, Refusal> {
        if let Some(with_values) = forms::with_values(sql) {
            let bound = self.judged(&with_values);
            // Places behind the first value that was put in are not those of the text.
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
                // What the new column is filled with is a query of its own.
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

    /// What DuckDB refuses because it would reach beyond the tables is told as what it does; a policy judges that.
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

    /// A failed statement ends a transaction of DuckDB's: it is begun again, and all that went well is done again.
    fn heal(&mut self) {
        let Some(written) = &self.written else { return };
        if execute(&self.connection, "SELECT 1").is_err() {
            let again = ["ROLLBACK", "BEGIN TRANSACTION"].into_iter().chain(written.iter().map(String::as_str));
            again.for_each(|sql| drop(execute(&self.connection, sql)));
        }
    }
}

/// Whether an action reaches beyond the tables, so that its statement is not even prepared.
fn is_beyond(action: &Action) -> bool {
    matches!(
        action,
        Action::File(_) | Action::Attach(_) | Action::Setting(_) | Action::Transaction(_) | Action::Other(_)
    )
}

/// Whether a step only frames the others of one statement: they are within a transaction of ours already.
fn is_frame(kind: Statement) -> bool {
    matches!(kind, Statement::Transaction | Statement::Set)
}

fn columns(prepared: &Prepared) -> Vec<Column> {
    let column = |(name, kind): (String, Option<&str>)| Column { name, kind: kind.map(str::to_owned) };
    prepared.columns().into_iter().map(column).collect()
}

/// Asks one of our two questions about a text.
fn asked(question: &Prepared, sql: &str) -> Json {
    let text = one_text(question, sql).map_err(|error| Said::of_text(&error, sql))?;
    let json = slim::read(&text).map_err(|error| Said::of_text(&error, sql))?;
    Said::of_json(&json).map_or(Ok(json), Err)
}

fn one_text(question: &Prepared, parameter: &str) -> Result<String, String> {
    question.bind(1, parameter)?;
    let mut rows = question.run()?;
    let chunk = rows.next_chunk()?.ok_or("the engine gives no answer")?;
    chunk.text(0, 0).ok_or_else(|| "the engine gives no answer".to_owned())
}

/// Runs statements of ours to their end.
fn execute(connection: &Connection, sql: &str) -> Result<(), String> {
    let extracted = connection.extract(sql)?;
    for index in 0..extracted.count() {
        let mut rows = extracted.prepare(index)?.run()?;
        while rows.next_chunk()?.is_some() {}
    }
    Ok(())
}

/// The rows of a question of ours, whose columns are texts.
fn texts(connection: &Connection, sql: &str) -> Result<Vec<Vec<Option<String>>>, String> {
    let prepared = connection.extract(sql)?.prepare(0)?;
    let columns = prepared.columns().len() as u64;
    let mut rows = prepared.run()?;
    let mut found = Vec::new();
    while let Some(chunk) = rows.next_chunk()? {
        found.extend((0..chunk.rows()).map(|row| (0..columns).map(|column| chunk.text(column, row)).collect()));
    }
    Ok(found)
}

fn first_text(connection: &Connection, sql: &str) -> Result<String, String> {
    let rows = texts(connection, sql)?;
    rows.into_iter().flatten().flatten().next().ok_or_else(|| "the engine gives no answer".to_owned())
}

/// Reads a result within its bounds.
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
        // What a write returns has to be read to its end, or not all of it is written.
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
        // Views of the catalog are told as the table functions that they ask.
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
                // What DuckDB does not even look at, such as IMPORT, has its place in `bind`.
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
        // What was taken of a sequence stays taken.
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
        // A key that is there already would end the whole transaction.
        let patient = sql.strip_prefix("INSERT INTO ").map(|rest| format!("INSERT OR IGNORE INTO {rest}"));
        let sqls = patient.iter().map(String::as_str).chain([sql]);
        let deadline = Instant::now() + OURS;
        for sql in sqls {
            let put = watch::until(deadline, self.connection.interrupter(), || execute(&self.connection, sql));
            if put.is_ok() {
                self.written.iter_mut().for_each(|written| written.push(sql.to_owned()));
                return true;
            }
            // Without a key to look for, DuckDB refuses the patient form before anything has happened.
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
    /// A fault of form, with its place where DuckDB tells it in JSON.
    fn syntax(&self, sql: &str, said: &Said) -> Refusal {
        match asked(&self.planner, sql) {
            Err(told) if told.kind == "parser" => told.refusal(sql),
            _ => said.refusal(sql),
        }
    }
}
