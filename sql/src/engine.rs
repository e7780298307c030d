//! What an engine has to answer. One file below for each that does: [`crate::sqlite`].

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::{Allow, Column, Dialect, Limits, Policy, SqlCode};

use crate::catalog::{Catalog, Table};
use crate::scratch::{self, Value};

/// One thing that a statement does, as its engine says.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It reads a table or a view; a column of it where the engine tells which.
    Read {
        /// The table.
        table: String,
        /// The column; `None` where rows are only counted.
        column: Option<String>,
    },
    /// It reads what the schema holds: names, columns, indexes, definitions, sizes.
    Metadata {
        /// The source, such as ``the pragma `table_info` ``.
        source: String,
        /// The only table that it describes; `None` where it describes others too.
        table: Option<String>,
    },
    /// It calls a function.
    Call(String),
    /// It adds rows.
    Insert(String),
    /// It changes rows.
    Update {
        /// The table.
        table: String,
        /// The column.
        column: String,
    },
    /// It takes rows away.
    Delete(String),
    /// It makes, changes or drops something of the schema: `create table`, `drop view`, ….
    Schema {
        /// What it does.
        what: String,
        /// To what.
        name: String,
    },
    /// It begins or ends a transaction.
    Transaction(String),
    /// It reads or changes a setting of the engine.
    Setting(String),
    /// It attaches, detaches, copies or rewrites a database.
    Attach(String),
    /// It reads or writes a file, or the network.
    File(String),
    /// It does something that no policy knows.
    Other(String),
    /// It recurs.
    Recursion,
}

/// What a statement is, in a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// It looks at rows.
    Read,
    /// It changes rows.
    Write,
    /// It changes the schema.
    Schema,
    /// It begins or ends a transaction.
    Transaction,
    /// It is about settings.
    Setting,
    /// It reaches another database or a file.
    Attach,
    /// None of these.
    Other,
}

impl Kind {
    /// The word of the documents.
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

/// A statement that the engine could prepare.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bound {
    /// Everything that it does.
    pub actions: BTreeSet<Action>,
    /// The columns of its result; empty where it has none.
    pub columns: Vec<Column>,
    /// How many parameters it waits for.
    pub parameters: usize,
    /// Whether it only explains another.
    pub is_explain: bool,
    /// Whether running it leaves the database as it is.
    pub is_readonly: bool,
    /// Whether it asks for rows.
    pub is_query: bool,
    /// Where texts in double quotes stand that the engine takes for strings, in bytes of the statement.
    pub strings: Vec<Range<usize>>,
}

impl Bound {
    /// What it is: the most far-reaching of its actions decides.
    pub fn kind(&self) -> Kind {
        let of = |action: &Action| match action {
            Action::Read { .. } | Action::Metadata { .. } | Action::Call(_) | Action::Recursion => Kind::Read,
            Action::Insert(_) | Action::Update { .. } | Action::Delete(_) => Kind::Write,
            Action::Schema { .. } => Kind::Schema,
            Action::Transaction(_) => Kind::Transaction,
            Action::Setting(_) => Kind::Setting,
            Action::Attach(_) | Action::File(_) => Kind::Attach,
            Action::Other(_) => Kind::Other,
        };
        let most = self.actions.iter().map(of).max().unwrap_or(Kind::Read);
        let is_known = self.is_explain || (self.is_readonly && self.is_query);
        if most == Kind::Read && !is_known { Kind::Other } else { most }
    }

    /// The tables and views that it reads or writes, each once.
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

    /// The functions that it calls, each once.
    pub fn functions(&self) -> BTreeSet<&str> {
        self.actions
            .iter()
            .filter_map(|action| match action {
                Action::Call(function) => Some(function.as_str()),
                _ => None,
            })
            .collect()
    }

    /// What it makes, changes or drops of the schema, each as what it does and to what.
    pub fn schema_changes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.actions.iter().filter_map(|action| match action {
            Action::Schema { what, name } => Some((what.as_str(), name.as_str())),
            _ => None,
        })
    }

    /// Whether it recurs.
    pub fn is_recursive(&self) -> bool {
        self.actions.contains(&Action::Recursion)
    }
}

/// What an engine has against a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// What kind of thing.
    pub code: SqlCode,
    /// What it says, in one sentence.
    pub message: String,
    /// What it calls that.
    pub engine_code: Option<String>,
    /// Where, in bytes of the statement.
    pub place: Option<Range<usize>>,
    /// The name that it is about.
    pub subject: Option<String>,
    /// Names that it proposes.
    pub candidates: Vec<String>,
}

impl Refusal {
    /// A refusal of a kind.
    pub fn new(code: SqlCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), engine_code: None, place: None, subject: None, candidates: Vec::new() }
    }
}

/// What running a statement came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ran {
    /// How many rows were read of its result.
    pub rows: u64,
    /// Whether there were more.
    pub truncated: bool,
    /// How many rows it changed itself.
    pub changed: u64,
}

/// Bounds for one statement.
#[derive(Debug, Clone, Copy)]
pub struct RunOn<'a> {
    /// How much it may take.
    pub limits: &'a Limits,
    /// When it must have ended.
    pub deadline: Instant,
    /// Whether it goes on to its end where more rows come than are looked at: what has no end is found so.
    pub is_to_end: bool,
}

/// An engine with a schema, warm. Whatever a method does is undone by [`rollback`](Self::rollback).
pub trait Engine {
    /// Whose SQL it takes.
    fn dialect(&self) -> Dialect;

    /// Its name and version, such as `SQLite 3.54.1`.
    fn version(&self) -> String;

    /// What the database holds.
    fn catalog(&self) -> &Catalog;

    /// The names of its functions, in lower case.
    fn functions(&self) -> &BTreeSet<String>;

    /// Whether a function reaches nothing beyond its arguments, so that everybody may call it.
    fn is_harmless(&self, function: &str) -> bool;

    /// Whether a table that is no table of the schema (a catalog, a table function) may be read by everybody.
    fn is_harmless_table(&self, table: &str) -> bool;

    /// Reports whether a table that is no table of the schema makes its rows of its arguments alone, such as `json_each`.
    fn is_pure_table(&self, _table: &str) -> bool {
        false
    }

    /// Checks that a statement works without anything that is off the lists of a request, where the engine has more to
    /// say than [`Bound::actions`] tells. `bound` is what [`bind`](Self::bind) returned for it.
    ///
    /// # Errors
    /// The first name that the statement needs and that is not on the lists, or a fault of the engine.
    fn check_lists(&mut self, _sql: &str, _bound: &Bound, _allow: &Allow, _on: RunOn<'_>) -> Result<(), Refusal> {
        Ok(())
    }

    /// Where each statement of a text stands, in bytes; comments and empty statements between them are none.
    ///
    /// # Errors
    /// The text does not fall into statements.
    fn split(&mut self, sql: &str) -> Result<Vec<Range<usize>>, Refusal>;

    /// Prepares one statement, and says what it would do. Nothing is executed, not even what an engine does while it
    /// prepares.
    ///
    /// # Errors
    /// What the engine has against it.
    fn bind(&mut self, sql: &str, on: RunOn<'_>) -> Result<Bound, Refusal>;

    /// Begins what [`rollback`](Self::rollback) undoes.
    ///
    /// # Errors
    /// The engine cannot.
    fn begin(&mut self) -> Result<(), Refusal>;

    /// Undoes everything since [`begin`](Self::begin).
    ///
    /// # Errors
    /// The engine cannot; it is not to be used again.
    fn rollback(&mut self) -> Result<(), Refusal>;

    /// Adds parts to the schema, as if the engine had been opened with them.
    ///
    /// # Errors
    /// They cannot be set up; it is not to be used again.
    fn extend(&mut self, schema: &[String], deadline: Instant) -> Result<(), Refusal>;

    /// Whether everything that statements do was undone, down to what no transaction holds.
    fn is_restored(&self) -> bool;

    /// Runs one statement, of which the engine refuses what `policy` does not allow. `bound` is what [`bind`](Self::bind)
    /// told of it where it stands now.
    ///
    /// # Errors
    /// What the engine has against it, limits among that.
    fn run(&mut self, sql: &str, bound: &Bound, policy: Policy, on: RunOn<'_>) -> Result<Ran, Refusal>;

    /// Runs a statement of ours that returns one number.
    ///
    /// # Errors
    /// What the engine has against it.
    fn number(&mut self, sql: &str) -> Result<i64, Refusal>;

    /// Runs a statement of ours and tells whether it went through.
    fn put(&mut self, sql: &str) -> bool;

    /// Reports whether a table has no row. One that cannot be read counts as a table with rows.
    fn is_empty(&mut self, table: &Table) -> bool {
        let name = self.quoted(&table.name);
        self.number(&format!("SELECT count(*) FROM (SELECT 1 FROM {name} LIMIT 1) AS one")) == Ok(0)
    }

    /// Inserts rows of ours into a table, of which each has a value for each column that takes one: those rows that break
    /// no constraint.
    fn insert(&mut self, table: &Table, rows: &[Vec<Value>]) {
        scratch::insert_by_text(self, table, rows);
    }

    /// Returns the names, in lower case, of the tables whose rows can make a difference to statements that do this;
    /// `None` if the rows of any table can.
    fn sources(&self, _statements: &[&Bound]) -> Option<BTreeSet<String>> {
        None
    }

    /// Puts a name in quotes as this dialect has them.
    fn quoted(&self, name: &str) -> String {
        format!("\"{}\"", name.replace('"', "\"\""))
    }
}
