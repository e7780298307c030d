//! Finds out which tables, columns and routines a statement uses. The server checks the privileges on all of them when
//! it prepares a statement, and names the first missing one. The probe is a user without privileges: a statement is
//! repeatedly prepared as this user, who gets each missing privilege that the server reports, until none is missing.
//!
//! A column counts as used only if the server refused the statement without the privilege on this column.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::catalog_reader::{DatabaseContent, quote_identifier};
use super::database_users;
use super::mysql_errors::{self, MissingPrivilege};
use super::server::Server;
use super::session::{Session, SessionError, SqlMode};

/// The maximum number of privileges that are granted for one statement.
const MAX_GRANTS: usize = 512;
/// The number of columns of a table after which the whole table is granted. All its columns are then reported.
const MAX_COLUMN_GRANTS: usize = 48;

/// A privilege that can be restricted to columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ColumnPrivilege {
    Select,
    Update,
}

impl ColumnPrivilege {
    fn as_str(self) -> &'static str {
        match self {
            Self::Select => "SELECT",
            Self::Update => "UPDATE",
        }
    }
}

/// What a statement uses.
#[derive(Debug, Default)]
pub(super) struct StatementNeeds {
    pub(super) tables: BTreeMap<String, TableNeeds>,
    /// The routines that the statement calls.
    pub(super) routines: BTreeSet<String>,
    /// Everything else that the server refuses to the probe.
    pub(super) others: BTreeSet<String>,
}

/// The parts of a table that a statement uses.
#[derive(Debug, Default)]
pub(super) struct TableNeeds {
    pub(super) inserts: bool,
    pub(super) deletes: bool,
    pub(super) columns: BTreeMap<ColumnPrivilege, ColumnNeeds>,
}

/// The columns of a table that a statement uses in one way.
#[derive(Debug, Default)]
pub(super) struct ColumnNeeds {
    /// True if all columns are used.
    pub(super) is_whole: bool,
    /// The columns that the server named.
    pub(super) named: BTreeSet<String>,
    /// A column that was granted because the server misses a privilege on any column.
    first: Option<String>,
}

/// The privileges with which a statement is prepared.
#[derive(Debug, Default)]
pub(super) struct GivenPrivileges {
    /// Privileges such as ``SELECT (`id`)``, and their tables.
    pub(super) tables: Vec<(String, String)>,
    pub(super) routines: Vec<String>,
}

/// The connection of the probe, with the objects on which it has privileges.
pub(super) struct PrivilegeProbe {
    session: Session,
    database: String,
    granted_tables: BTreeSet<String>,
    granted_routines: BTreeSet<String>,
}

impl PrivilegeProbe {
    /// Connects as the probe of a database, and takes back all its privileges. The server keeps those on tables that
    /// were dropped.
    ///
    /// # Errors
    /// The server does not accept the connection.
    pub(super) fn connect(server: &Server, database: &str, deadline: Instant) -> Result<Self, SessionError> {
        server.reset_probe(database, deadline)?;
        Ok(Self {
            session: server.connect(&database_users::probe_of(database), database)?,
            database: database.to_owned(),
            granted_tables: BTreeSet::new(),
            granted_routines: BTreeSet::new(),
        })
    }

    /// Returns what a statement uses. The owner of the database can prepare the statement.
    pub(super) fn find_needs(
        &mut self,
        server: &Server,
        content: &DatabaseContent,
        sql: &str,
        deadline: Instant,
    ) -> Result<StatementNeeds, SessionError> {
        self.revoke_all(server, deadline)?;
        let mut search = Search { probe: self, server, content, sql, deadline, needs: StatementNeeds::default() };
        search.grant_missing_privileges()?;
        if search.needs.others.is_empty() {
            search.remove_unused_columns()?;
        }
        Ok(search.needs)
    }

    /// Prepares statements with exactly the given privileges.
    ///
    /// # Errors
    /// A privilege is missing, or the server refuses a statement.
    pub(super) fn check_privileges(
        &mut self,
        server: &Server,
        privileges: &GivenPrivileges,
        statements: &[&str],
        deadline: Instant,
    ) -> Result<(), SessionError> {
        self.revoke_all(server, deadline)?;
        for (privileges, table) in &privileges.tables {
            self.grant(server, privileges, table, deadline)?;
        }
        for routine in &privileges.routines {
            self.grant_execution(server, routine, deadline)?;
        }
        statements.iter().try_for_each(|sql| self.session.prepare(sql, SqlMode::Strict, deadline).map(drop))
    }

    /// Grants the execution of a function or procedure.
    fn grant_execution(&mut self, server: &Server, routine: &str, deadline: Instant) -> Result<(), SessionError> {
        self.granted_routines.insert(routine.to_owned());
        let (object, user) = (self.object(routine), self.user());
        let grant = |kind| format!("GRANT EXECUTE ON {kind} {object} TO {user}");
        let granted = server.administer(&[grant("FUNCTION")], deadline);
        granted.or_else(|_| server.administer(&[grant("PROCEDURE")], deadline))
    }

    /// Grants privileges such as ``SELECT (`id`)`` on a table.
    fn grant(&mut self, server: &Server, privileges: &str, table: &str, deadline: Instant) -> Result<(), SessionError> {
        self.granted_tables.insert(table.to_owned());
        let sql = format!("GRANT {privileges} ON {} TO {}", self.object(table), self.user());
        server.administer(&[sql], deadline)
    }

    fn revoke_all(&mut self, server: &Server, deadline: Instant) -> Result<(), SessionError> {
        let tables = std::mem::take(&mut self.granted_tables).into_iter();
        let revoke = |table: String| format!("REVOKE ALL PRIVILEGES ON {} FROM {}", self.object(&table), self.user());
        let mut statements: Vec<String> = tables.map(revoke).collect();
        for routine in std::mem::take(&mut self.granted_routines) {
            for kind in ["FUNCTION", "PROCEDURE"] {
                let object = self.object(&routine);
                statements.push(format!("REVOKE EXECUTE ON {kind} {object} FROM {}", self.user()));
            }
        }
        for sql in statements {
            match server.administer(&[sql], deadline) {
                Ok(()) => {}
                // Its grant failed.
                Err(SessionError::Server(error)) if mysql_errors::NO_SUCH_GRANT.contains(&error.code) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn object(&self, name: &str) -> String {
        format!("{}.{}", quote_identifier(&self.database), quote_identifier(name))
    }

    fn user(&self) -> String {
        format!("{}@localhost", database_users::probe_of(&self.database))
    }
}

/// The search for the needs of one statement.
struct Search<'a> {
    probe: &'a mut PrivilegeProbe,
    server: &'a Server,
    content: &'a DatabaseContent,
    sql: &'a str,
    deadline: Instant,
    needs: StatementNeeds,
}

impl Search<'_> {
    fn prepare(&mut self) -> Result<(), SessionError> {
        self.probe.session.prepare(self.sql, SqlMode::Strict, self.deadline).map(drop)
    }

    fn grant(&mut self, privileges: &str, table: &str) -> Result<(), SessionError> {
        self.probe.grant(self.server, privileges, table, self.deadline)
    }

    /// Grants a privilege on one column.
    fn grant_column(&mut self, privilege: ColumnPrivilege, table: &str, column: &str) -> Result<(), SessionError> {
        self.grant(&format!("{} ({})", privilege.as_str(), quote_identifier(column)), table)
    }

    fn revoke_column(&mut self, privilege: ColumnPrivilege, table: &str, column: &str) -> Result<(), SessionError> {
        let (what, column) = (privilege.as_str(), quote_identifier(column));
        let sql = format!("REVOKE {what} ({column}) ON {} FROM {}", self.probe.object(table), self.probe.user());
        self.server.administer(&[sql], self.deadline)
    }

    fn grant_missing_privileges(&mut self) -> Result<(), SessionError> {
        for _ in 0..MAX_GRANTS {
            let error = match self.prepare() {
                Ok(()) => return Ok(()),
                Err(error @ SessionError::Server(_)) => error,
                Err(error) => return Err(error),
            };
            let granted = match mysql_errors::missing_privilege(&error) {
                Some(missing) => self.grant_missing(missing)?,
                None => false,
            };
            if !granted {
                let message = mysql_errors::to_refusal(&error, self.sql, &self.probe.database).message;
                self.needs.others.insert(message);
                return Ok(());
            }
        }
        self.needs.others.insert("it uses too many tables and columns".to_owned());
        Ok(())
    }

    /// Grants a missing privilege. Returns false if it cannot be granted.
    fn grant_missing(&mut self, missing: MissingPrivilege) -> Result<bool, SessionError> {
        let granted = match missing {
            MissingPrivilege::Table { database, .. } if database != self.probe.database => return Ok(false),
            MissingPrivilege::Table { commands, table, .. } => {
                for command in commands {
                    let granted = self.grant_on_table(&command, &table);
                    if !matches!(granted, Ok(true)) {
                        return refused_as_false(granted);
                    }
                }
                Ok(true)
            }
            MissingPrivilege::Column { command, column, table } => self.grant_on_column(&command, &column, &table),
            MissingPrivilege::Routine(name) => self.grant_on_routine(&name),
        };
        refused_as_false(granted)
    }

    fn grant_on_table(&mut self, command: &str, table: &str) -> Result<bool, SessionError> {
        let needs = self.needs.tables.entry(table.to_owned()).or_default();
        let privilege = match command {
            "INSERT" | "DELETE" => {
                let is_granted = if command == "INSERT" { &mut needs.inserts } else { &mut needs.deletes };
                let was_granted = std::mem::replace(is_granted, true);
                return self.grant(command, table).map(|()| !was_granted);
            }
            "SELECT" => ColumnPrivilege::Select,
            "UPDATE" => ColumnPrivilege::Update,
            _ => return Ok(false),
        };
        let columns = needs.columns.entry(privilege).or_default();
        let first = first_column(self.content, table, self.sql);
        match first {
            // Any column gives access to the table. The server then names the columns that it misses.
            Some(first) if columns.first.is_none() && columns.named.is_empty() => {
                columns.first = Some(first.clone());
                match self.grant_column(privilege, table, &first) {
                    // The server cannot grant a column of a view over another view.
                    Err(SessionError::Server(error)) if error.code == mysql_errors::INVALID_VIEW => {
                        self.grant_whole(privilege, table)?;
                    }
                    granted => granted?,
                }
            }
            _ if columns.is_whole => return Ok(false),
            // Access to one column is not enough: the statement uses all of them.
            _ => self.grant_whole(privilege, table)?,
        }
        Ok(true)
    }

    /// Grants a privilege on all columns, which then all count as used.
    fn grant_whole(&mut self, privilege: ColumnPrivilege, table: &str) -> Result<(), SessionError> {
        let columns = self.needs.tables.entry(table.to_owned()).or_default().columns.entry(privilege).or_default();
        columns.is_whole = true;
        self.grant(privilege.as_str(), table)
    }

    fn grant_on_column(&mut self, command: &str, column: &str, table: &str) -> Result<bool, SessionError> {
        let privilege = match command {
            "SELECT" => ColumnPrivilege::Select,
            "UPDATE" => ColumnPrivilege::Update,
            "INSERT" => return self.grant_on_table(command, table),
            _ => return Ok(false),
        };
        let columns = self.needs.tables.entry(table.to_owned()).or_default().columns.entry(privilege).or_default();
        let is_new = columns.named.insert(column.to_owned());
        if columns.named.len() > MAX_COLUMN_GRANTS {
            columns.is_whole = true;
            self.grant(privilege.as_str(), table)?;
        } else {
            self.grant_column(privilege, table, column)?;
        }
        Ok(is_new)
    }

    fn grant_on_routine(&mut self, name: &str) -> Result<bool, SessionError> {
        let Some(bare) = name.strip_prefix(&format!("{}.", self.probe.database)) else { return Ok(false) };
        let is_new = self.needs.routines.insert(bare.to_owned());
        self.probe.grant_execution(self.server, bare, self.deadline)?;
        Ok(is_new)
    }

    /// Takes back each column that was granted only to give access to its table. If the server then refuses the
    /// statement, the statement uses the column.
    fn remove_unused_columns(&mut self) -> Result<(), SessionError> {
        let all: Vec<(String, ColumnPrivilege, String)> = self
            .needs
            .tables
            .iter()
            .flat_map(|(table, needs)| {
                needs.columns.iter().map(move |(privilege, columns)| (table, privilege, columns))
            })
            .filter(|(_, _, columns)| !columns.is_whole)
            .filter_map(|(table, privilege, columns)| Some((table.clone(), *privilege, columns.first.clone()?)))
            .collect();
        for (table, privilege, first) in all {
            if self.is_column_used(privilege, &table, &first)?
                && let Some(columns) = self.columns_mut(privilege, &table)
            {
                columns.named.insert(first);
            }
        }
        Ok(())
    }

    fn is_column_used(&mut self, privilege: ColumnPrivilege, table: &str, column: &str) -> Result<bool, SessionError> {
        let has_others = self.columns_mut(privilege, table).is_some_and(|columns| !columns.named.is_empty());
        if !has_others {
            // The server refuses a table without a permitted column, so another column is granted first.
            let columns = self.content.table(table).map(|table| table.columns.as_slice()).unwrap_or_default();
            let Some(other) = columns.iter().find(|other| other.name != column) else { return Ok(true) };
            self.grant_column(privilege, table, &other.name)?;
        }
        self.revoke_column(privilege, table, column)?;
        match self.prepare() {
            Ok(()) => Ok(false),
            Err(SessionError::Server(_)) => {
                self.grant_column(privilege, table, column)?;
                Ok(true)
            }
            Err(error) => Err(error),
        }
    }

    fn columns_mut(&mut self, privilege: ColumnPrivilege, table: &str) -> Option<&mut ColumnNeeds> {
        self.needs.tables.get_mut(table)?.columns.get_mut(&privilege)
    }
}

/// Converts a refused grant: the object is not part of the schema, such as a temporary table.
fn refused_as_false(granted: Result<bool, SessionError>) -> Result<bool, SessionError> {
    match granted {
        Err(SessionError::Server(_)) => Ok(false),
        other => other,
    }
}

/// Returns the first column of a table that a text mentions, or the first column of the table.
fn first_column(content: &DatabaseContent, table: &str, sql: &str) -> Option<String> {
    let columns = &content.table(table)?.columns;
    let names = crate::lexer::possible_names(sql, proctor_core::sql::Dialect::Mysql);
    let mentioned = columns.iter().find(|column| names.contains(&column.name.to_ascii_lowercase()));
    mentioned.or_else(|| columns.first()).map(|column| column.name.clone())
}
