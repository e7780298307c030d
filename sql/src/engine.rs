//! Defines the interface of an engine. [`crate::sqlite`], [`crate::duckdb`] and [`crate::postgres`] implement it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Dialect, SqlCode, SqlColumn, SqlPolicy, SqlResourceLimits};

use crate::allow_lists::NameLists;
use crate::catalog::{Catalog, CatalogTable, SchemaComment};
use crate::row_buffer::RowBuffer;
use crate::scratch_value::ScratchValue;

/// One thing that a statement does, as the engine reports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The statement reads a table or a view, or one of its columns.
    Read {
        /// The table or view.
        table: String,
        /// The column; `None` if the statement only counts rows.
        column: Option<String>,
    },
    /// The statement reads metadata of the schema: names, columns, indexes, definitions, sizes.
    Metadata {
        /// The source of the metadata, such as ``the pragma `table_info` ``.
        source: String,
        /// The only table that the metadata describes; `None` if it describes others too.
        table: Option<String>,
    },
    /// The statement calls a function.
    Call(String),
    /// The statement inserts rows into a table.
    Insert(String),
    /// The statement updates rows.
    Update {
        /// The table.
        table: String,
        /// The column that the statement sets.
        column: String,
    },
    /// The statement deletes rows from a table.
    Delete(String),
    /// The statement creates, alters or drops an object of the schema.
    Schema {
        /// The operation, such as `create table` or `drop view`.
        operation: String,
        /// The name of the object.
        name: String,
    },
    /// The statement begins or ends a transaction.
    Transaction(String),
    /// The statement reads or changes a setting of the engine.
    Setting(String),
    /// The statement attaches, detaches, copies or rewrites a database.
    Attach(String),
    /// The statement reads or writes a file, or uses the network.
    File(String),
    /// The statement does something that no policy covers.
    Other(String),
    /// The statement has a recursive common table expression.
    Recursion,
}

/// The kind of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum StatementKind {
    /// The statement only reads rows or metadata.
    Read,
    /// The statement changes rows.
    Write,
    /// The statement changes the schema.
    Schema,
    /// The statement begins or ends a transaction.
    Transaction,
    /// The statement reads or changes a setting.
    Setting,
    /// The statement accesses another database, a file or the network.
    Attach,
    /// The statement does something else.
    Other,
}

impl StatementKind {
    /// Returns the name that judgements and reports use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Schema => "schema",
            Self::Transaction => "transaction",
            Self::Setting => "setting",
            Self::Attach => "attach",
            Self::Other => "other",
        }
    }
}

/// A statement that the engine has prepared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BoundStatement {
    /// All actions of the statement.
    pub actions: BTreeSet<Action>,
    /// The columns of the result; empty if there is none.
    pub columns: Vec<SqlColumn>,
    /// The number of parameters.
    pub parameters: usize,
    /// True if the statement only explains another one.
    pub is_explain: bool,
    /// True if the statement leaves the database unchanged.
    pub is_readonly: bool,
    /// True if the statement is a query.
    pub is_query: bool,
    /// True if common table expressions of the statement change rows, as PostgreSQL permits.
    pub writes_in_with: bool,
    /// The byte ranges of double-quoted texts in the statement that the engine treats as strings.
    pub double_quoted_strings: Vec<Range<usize>>,
}

impl BoundStatement {
    /// Returns the kind of the most far-reaching action.
    pub fn kind(&self) -> StatementKind {
        let of = |action: &Action| match action {
            Action::Read { .. } | Action::Metadata { .. } | Action::Call(_) | Action::Recursion => StatementKind::Read,
            Action::Insert(_) | Action::Update { .. } | Action::Delete(_) => StatementKind::Write,
            Action::Schema { .. } => StatementKind::Schema,
            Action::Transaction(_) => StatementKind::Transaction,
            Action::Setting(_) => StatementKind::Setting,
            Action::Attach(_) | Action::File(_) => StatementKind::Attach,
            Action::Other(_) => StatementKind::Other,
        };
        let strongest = self.actions.iter().map(of).max().unwrap_or(StatementKind::Read);
        let is_known = self.is_explain || (self.is_readonly && self.is_query);
        if strongest == StatementKind::Read && !is_known { StatementKind::Other } else { strongest }
    }

    /// Checks that a policy allows statements of this kind. Engines check it again right before they execute a statement.
    ///
    /// # Errors
    /// The policy does not allow it.
    pub fn check_policy(&self, policy: SqlPolicy) -> Result<(), EngineRefusal> {
        let allowed = match policy {
            SqlPolicy::Read => StatementKind::Read,
            SqlPolicy::Write => StatementKind::Write,
            SqlPolicy::Migrate => StatementKind::Schema,
        };
        if self.kind() <= allowed {
            return Ok(());
        }
        let message = format!("a statement of the kind `{}` was about to run", self.kind().as_str());
        Err(EngineRefusal::new(SqlCode::EngineFailed, message))
    }

    /// Returns the tables and views that the statement reads or writes.
    pub fn tables(&self) -> BTreeSet<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Read { table, .. }
                | Action::Insert(table)
                | Action::Update { table, .. }
                | Action::Delete(table) => Some(table.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Returns the functions that the statement calls.
    pub fn functions(&self) -> BTreeSet<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Call(function) => Some(function.as_str()),
                _ => None,
            })
            .collect()
    }

    /// Returns the changes of the schema as pairs of an operation and a name.
    pub fn schema_changes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.actions.iter().filter_map(|action| match action {
            Action::Schema { operation: what, name } => Some((what.as_str(), name.as_str())),
            _ => None,
        })
    }

    /// Reports whether the statement is recursive.
    pub fn is_recursive(&self) -> bool {
        self.actions.contains(&Action::Recursion)
    }
}

/// The reason why an engine refuses a statement.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct EngineRefusal {
    /// The code of the finding.
    pub code: SqlCode,
    /// The message of the engine, as one sentence.
    pub message: String,
    /// The engine's own name for the error.
    pub engine_code: Option<String>,
    /// The byte range in the statement that the error is about.
    pub range: Option<Range<usize>>,
    /// The name that the error is about.
    pub subject: Option<String>,
    /// Names that the engine suggests instead.
    pub candidates: Vec<String>,
}

impl EngineRefusal {
    /// Creates a refusal with a code and a message only.
    pub fn new(code: SqlCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), engine_code: None, range: None, subject: None, candidates: Vec::new() }
    }
}

/// Reports whether a code means that a limit was exceeded.
pub(crate) fn is_limit_code(code: SqlCode) -> bool {
    use SqlCode::{EndlessRecursion, MemoryLimit, ResultLimit, StepLimit, TimeLimit};
    matches!(code, TimeLimit | StepLimit | MemoryLimit | ResultLimit | EndlessRecursion)
}

/// The result of running a statement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatementOutcome {
    /// The number of rows read from the result.
    pub rows: u64,
    /// True if the result has more rows than were read.
    pub truncated: bool,
    /// The number of rows that the statement itself changed.
    pub changed: u64,
    /// True if the engine does not report the number of changed rows.
    pub is_change_count_unknown: bool,
    /// True if the columns that the engine reports do not belong to rows of the statement, but to its own report about
    /// the statement, such as the number of changed rows.
    pub is_report: bool,
    /// The columns of the result, if the engine reports them only when it runs the statement.
    pub columns: Vec<SqlColumn>,
}

/// The bounds within which a statement runs.
#[derive(Debug, Clone, Copy)]
pub struct ExecutionBounds<'a> {
    /// The limits of the request.
    pub limits: &'a SqlResourceLimits,
    /// The time at which the statement must have ended.
    pub deadline: Instant,
    /// True if a query continues after the limit of rows. A statement that never ends is only detected this way.
    pub continues_past_row_limit: bool,
}

/// The beginning of a message about a failure that depends on generated rows.
pub(crate) const GENERATED_ROWS_PREFIX: &str = "it failed on rows generated from the schema: ";
/// The message of an engine for a statement that ends too early.
pub(crate) const INCOMPLETE_STATEMENT: &str = "the statement is incomplete";

/// An open engine with its schema. [`rollback`](Self::rollback) undoes the effects of the other methods.
pub trait SqlEngine {
    /// Returns the dialect that the engine accepts.
    fn dialect(&self) -> Dialect;

    /// Returns the name and the version, such as `SQLite 3.54.1`.
    fn version(&self) -> String;

    /// Returns the tables and views of the database.
    fn catalog(&self) -> &Catalog;

    /// Returns the comments of tables and columns.
    ///
    /// # Errors
    /// The engine cannot read them.
    fn comments(&mut self, deadline: Instant) -> Result<Vec<SchemaComment>, EngineRefusal>;

    /// Returns the names of all functions, in lower case.
    fn functions(&self) -> &BTreeSet<String>;

    /// Reports whether a function accesses nothing but its arguments, so every request may call it.
    fn is_harmless_function(&self, function: &str) -> bool;

    /// Reports whether every request may read this table, which is not part of the schema (a catalog, a table
    /// function).
    fn is_harmless_table(&self, table: &str) -> bool;

    /// Reports whether a table that is not part of the schema computes its rows from its arguments alone, such as
    /// `json_each`.
    fn is_pure_table(&self, _table: &str) -> bool {
        false
    }

    /// Checks that a statement works without anything that is off the lists of a request. Engines implement this if
    /// [`BoundStatement::actions`] does not show everything that a statement uses. `bound` is the result of
    /// [`bind`](Self::bind) for the statement.
    ///
    /// # Errors
    /// The statement needs a name that is not on the lists (the first one is reported), or the engine fails.
    fn check_lists(
        &mut self,
        _sql: &str,
        _bound: &BoundStatement,
        _allow: &NameLists,
        _on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal> {
        Ok(())
    }

    /// Returns the byte range of each statement of a text. Comments and empty statements do not count as statements.
    ///
    /// # Errors
    /// The engine cannot split the text into statements.
    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, EngineRefusal>;

    /// Prepares one statement and reports what it would do. Nothing is executed, not even what an engine does while it
    /// prepares.
    ///
    /// # Errors
    /// The engine refuses the statement.
    fn bind(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<BoundStatement, EngineRefusal>;

    /// Begins the transaction that [`rollback`](Self::rollback) undoes.
    ///
    /// # Errors
    /// The engine cannot begin a transaction.
    fn begin(&mut self) -> Result<(), EngineRefusal>;

    /// Undoes everything since [`begin`](Self::begin).
    ///
    /// # Errors
    /// The rollback fails. The engine must not be used again.
    fn rollback(&mut self) -> Result<(), EngineRefusal>;

    /// Keeps everything since [`begin`](Self::begin). Only engines whose database file was opened for this can.
    ///
    /// # Errors
    /// The engine cannot keep the effects. They must be undone.
    fn commit(&mut self) -> Result<(), EngineRefusal> {
        Err(EngineRefusal::new(SqlCode::EngineFailed, "the database is not open for lasting changes"))
    }

    /// Adds parts to the schema, as if the engine had been opened with them.
    ///
    /// # Errors
    /// The parts cannot be set up. The engine must not be used again.
    fn extend_schema(&mut self, schema: &[String], deadline: Instant) -> Result<(), EngineRefusal>;

    /// Reports whether all effects of the statements have been undone, including those that transactions do not cover,
    /// such as the state of sequences.
    fn is_restored(&self) -> bool;

    /// Runs one statement, and counts the rows of its result. The engine refuses actions that `policy` does not allow.
    /// `bound` is the result of [`bind`](Self::bind) for the statement in the current state of the database.
    ///
    /// # Errors
    /// The engine refuses the statement, or the statement exceeds a limit.
    fn run(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        policy: SqlPolicy,
        on: ExecutionBounds<'_>,
    ) -> Result<StatementOutcome, EngineRefusal> {
        self.run_into(sql, bound, policy, on, None)
    }

    /// Runs one statement as [`run`](Self::run) does. If there is a buffer, the rows are stored in it instead of only
    /// being counted; the buffer then limits the size of the result.
    ///
    /// # Errors
    /// The engine refuses the statement, or the statement exceeds a limit.
    fn run_into(
        &mut self,
        sql: &str,
        bound: &BoundStatement,
        policy: SqlPolicy,
        on: ExecutionBounds<'_>,
        rows: Option<&mut RowBuffer>,
    ) -> Result<StatementOutcome, EngineRefusal>;

    /// Runs a query of Proctor that returns one number. It may contain the filter of a statement, and therefore has the
    /// same limits.
    ///
    /// # Errors
    /// The engine refuses the query, or the query exceeds a limit.
    fn query_number(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<i64, EngineRefusal>;

    /// Runs an insertion of scratch rows and reports whether the engine accepted it.
    ///
    /// # Errors
    /// The deadline passed.
    fn execute_internal(&mut self, sql: &str, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal>;

    /// Reports whether a table has no rows. A table that cannot be read counts as one with rows.
    ///
    /// # Errors
    /// The query exceeds a limit.
    fn is_table_empty(&mut self, table: &CatalogTable, on: ExecutionBounds<'_>) -> Result<bool, EngineRefusal> {
        let name = self.quote_name(&table.name);
        let query = format!("SELECT count(*) FROM (SELECT 1 FROM {name} LIMIT 1) AS one");
        match self.query_number(&query, on) {
            Err(refusal) if is_limit_code(refusal.code) => Err(refusal),
            counted => Ok(counted == Ok(0)),
        }
    }

    /// Inserts those of the given scratch rows that break no constraint. Each row has a value for every column that
    /// takes one.
    ///
    /// # Errors
    /// The deadline passed.
    fn insert_scratch_rows(
        &mut self,
        table: &CatalogTable,
        rows: &[Vec<ScratchValue>],
        on: ExecutionBounds<'_>,
    ) -> Result<(), EngineRefusal>;

    /// Returns the names, in lower case, of the tables whose rows can affect statements with these actions; `None` if
    /// every table can affect them.
    fn source_tables(&self, _statements: &[&BoundStatement]) -> Option<BTreeSet<String>> {
        None
    }

    /// Quotes a name as this dialect requires.
    fn quote_name(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policy_allows_its_kind_of_statements_and_weaker_ones() {
        let write = || Action::Insert("t".to_owned());
        let statement = |action| BoundStatement { actions: BTreeSet::from([action]), ..BoundStatement::default() };
        let read = BoundStatement { is_readonly: true, is_query: true, ..BoundStatement::default() };
        let allowed = |bound: &BoundStatement| {
            let policies = [SqlPolicy::Read, SqlPolicy::Write, SqlPolicy::Migrate];
            policies.map(|policy| bound.check_policy(policy).is_ok())
        };
        assert_eq!(allowed(&read), [true, true, true]);
        assert_eq!(allowed(&statement(write())), [false, true, true]);
        assert_eq!(allowed(&statement(Action::Other("VACUUM".to_owned()))), [false, false, false]);
        assert_eq!(allowed(&statement(Action::Attach("x".to_owned()))), [false, false, false]);
        // Nothing is known about it.
        assert_eq!(allowed(&BoundStatement::default()), [false, false, false]);
    }
}
