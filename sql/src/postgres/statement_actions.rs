//! Converts what the server reports about a statement to actions. A query or a change of rows is read from its resolved
//! tree. Any other command is classified by the name that the server gives to it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Instant;

use proctor_core::sql::Dialect;

use super::builtin_allowlist;
use super::catalog_reader::{self, DatabaseContent, Relation, RelationKind};
use super::node_tree::{
    ACL_DELETE, ACL_INSERT, ACL_SELECT, ACL_UPDATE, RelationUse, StatementFacts, WHOLE_ROW, column_number,
};
use super::session::{Session, SessionError};
use crate::catalog::joined_name;
use crate::engine::Action;
use crate::lexer::{self, SqlTokenKind};

/// The first object id that is not built in.
const FIRST_USER_OID: u32 = 16_384;
/// The maximum nesting of views.
const MAX_VIEW_DEPTH: usize = 64;
/// Bits of `pg_trigger.tgtype`.
const TRIGGER_INSERT: u32 = 4;
const TRIGGER_DELETE: u32 = 8;
const TRIGGER_UPDATE: u32 = 16;

/// Returns everything that a query or a change of rows does.
pub(super) fn from_facts(
    facts: &StatementFacts,
    content: &DatabaseContent,
    session: &Session,
    deadline: Instant,
) -> Result<BTreeSet<Action>, SessionError> {
    let mut collected =
        Collector { content, actions: BTreeSet::new(), functions: BTreeSet::new(), system: BTreeSet::new() };
    collected.add_facts(facts, 0);
    let Collector { mut actions, functions, system, .. } = collected;
    let called = catalog_reader::read_functions(session, &functions, deadline)?;
    actions.extend(called.into_iter().map(|function| Action::Call(function.name)));
    let named = catalog_reader::read_system_relations(session, &system, deadline)?;
    for oid in system {
        actions.insert(match named.get(&oid) {
            Some((schema, name)) if builtin_allowlist::is_schema_catalog(schema, name) => {
                Action::Metadata { source: format!("`{schema}.{name}`"), table: None }
            }
            Some((schema, name)) => Action::Other(format!("it reads `{schema}.{name}`, which describes the server")),
            None => Action::Other("it reads a table that the server does not name".to_owned()),
        });
    }
    Ok(actions)
}

struct Collector<'a> {
    content: &'a DatabaseContent,
    actions: BTreeSet<Action>,
    functions: BTreeSet<u32>,
    /// The relations that are not part of the schema.
    system: BTreeSet<u32>,
}

impl Collector<'_> {
    fn add_facts(&mut self, facts: &StatementFacts, depth: usize) {
        if depth > MAX_VIEW_DEPTH {
            self.actions.insert(Action::Other("its views are nested too deeply".to_owned()));
            return;
        }
        self.functions.extend(&facts.functions);
        // Built-in casts and operators access nothing but their operands.
        self.functions.extend(facts.implicit_functions.iter().filter(|oid| **oid >= FIRST_USER_OID));
        let keywords = facts.keyword_values.iter().filter_map(|number| builtin_allowlist::keyword_of_session(*number));
        self.actions.extend(keywords.map(|keyword| Action::Call(keyword.to_owned())));
        if facts.is_recursive {
            self.actions.insert(Action::Recursion);
        }
        if facts.locks_rows {
            self.actions.insert(Action::Other("it locks rows".to_owned()));
        }
        if facts.types.iter().any(|oid| builtin_allowlist::is_name_type(*oid)) {
            self.actions.insert(Action::Metadata {
                source: "a type of object names, such as `regclass`".to_owned(),
                table: None,
            });
        }
        for relation in facts.types.iter().filter_map(|kind| self.content.row_types.get(kind)) {
            if let Some(relation) = self.content.relations.get(relation) {
                // The type of a row shows the names of all columns.
                self.add_reads(relation, &[WHOLE_ROW]);
                if relation.kind == RelationKind::View {
                    self.add_definition(relation, depth);
                }
            }
        }
        for relation in &facts.relations {
            self.add_relation(relation, depth);
        }
    }

    fn add_relation(&mut self, used: &RelationUse, depth: usize) {
        let Some(relation) = self.content.relations.get(&used.oid) else {
            if used.permissions != ACL_SELECT {
                self.actions.insert(Action::Other("it changes a table of the server".to_owned()));
            }
            self.system.insert(used.oid);
            return;
        };
        let name = &relation.name;
        match relation.kind {
            RelationKind::Table | RelationKind::View => {}
            RelationKind::Sequence => {
                self.actions.insert(Action::Other(format!("it reads the sequence `{name}`")));
            }
            RelationKind::Foreign => {
                self.actions.insert(Action::File(format!("the table `{name}` of another server")));
            }
        }
        let known = ACL_SELECT | ACL_INSERT | ACL_UPDATE | ACL_DELETE;
        if used.permissions & !known != 0 {
            self.actions.insert(Action::Other(format!("it needs unusual permissions on `{name}`")));
        }
        if used.permissions & ACL_SELECT != 0 {
            self.add_reads(relation, &used.selected);
        }
        if used.permissions & ACL_INSERT != 0 {
            self.actions.insert(Action::Insert(name.clone()));
        }
        // `FOR UPDATE` needs the permission to update, but names no column.
        for column in columns(relation, &used.updated) {
            self.actions.insert(Action::Update { table: name.clone(), column });
        }
        if used.permissions & ACL_DELETE != 0 {
            self.actions.insert(Action::Delete(name.clone()));
        }
        self.add_triggers(relation, used.permissions);
        if !used.is_only {
            self.add_children(relation, used, depth);
        }
        if relation.kind == RelationKind::View {
            if used.permissions & !ACL_SELECT != 0 {
                self.actions.insert(Action::Other(format!("it changes rows through the view `{name}`")));
            }
            self.add_definition(relation, depth);
        }
    }

    /// Adds everything that the definition of a view does.
    fn add_definition(&mut self, view: &Relation, depth: usize) {
        match &view.definition {
            Some(facts) => self.add_facts(facts, depth + 1),
            None => {
                let message = format!("the definition of the view `{}` cannot be read", view.name);
                self.actions.insert(Action::Other(message));
            }
        }
    }

    /// Adds the uses of the tables that inherit from a table: a statement uses them with it. Their columns have the same
    /// names, but may have other numbers.
    fn add_children(&mut self, parent: &Relation, used: &RelationUse, depth: usize) {
        let (selected, updated) = (columns(parent, &used.selected), columns(parent, &used.updated));
        for (oid, child) in parent.children.iter().filter_map(|oid| Some((*oid, self.content.relations.get(oid)?))) {
            let numbers = |names: &BTreeSet<String>| {
                let own = child.columns.iter().filter(|(_, name)| names.contains(*name));
                own.map(|(number, _)| number + WHOLE_ROW).collect()
            };
            let inherited = RelationUse {
                oid,
                permissions: used.permissions & !ACL_INSERT,
                selected: numbers(&selected),
                updated: numbers(&updated),
                ..RelationUse::default()
            };
            self.add_relation(&inherited, depth + 1);
        }
    }

    fn add_reads(&mut self, relation: &Relation, selected: &[i32]) {
        let table = &relation.name;
        let mut columns = columns(relation, selected);
        // A generated column shows the columns that it is computed from.
        let sources = relation
            .generated
            .iter()
            .filter(|(number, _)| relation.columns.get(number).is_some_and(|generated| columns.contains(generated)));
        let sources: Vec<String> = sources
            .flat_map(|(_, sources)| sources)
            .filter_map(|source| relation.columns.get(source).cloned())
            .collect();
        columns.extend(sources);
        if columns.is_empty() {
            self.actions.insert(Action::Read { table: table.clone(), column: None });
        }
        for column in columns {
            self.actions.insert(Action::Read { table: table.clone(), column: Some(column) });
        }
    }

    /// Adds the functions that changes of rows call. Their effects are unknown.
    fn add_triggers(&mut self, relation: &Relation, permissions: u32) {
        let events = [(ACL_INSERT, TRIGGER_INSERT), (ACL_UPDATE, TRIGGER_UPDATE), (ACL_DELETE, TRIGGER_DELETE)];
        let wanted = events.iter().filter(|(acl, _)| permissions & acl != 0).fold(0, |all, (_, event)| all | event);
        for (_, function) in relation.triggers.iter().filter(|(events, _)| events & wanted != 0) {
            self.actions.insert(Action::Call(function.clone()));
        }
        if wanted != 0 && relation.has_rules {
            self.actions.insert(Action::Other(format!("a rule of `{}` replaces the statement", relation.name)));
        }
    }
}

/// Returns the names of columns; a whole row is all columns.
fn columns(relation: &Relation, entries: &[i32]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for number in entries.iter().map(|entry| column_number(*entry)) {
        match number {
            0 => names.extend(relation.columns.values().cloned()),
            1.. => {
                names.insert(relation.columns.get(&number).cloned().unwrap_or_else(|| format!("column {number}")));
            }
            -6 => {
                names.insert("tableoid".to_owned());
            }
            _ => {
                names.insert("ctid".to_owned());
            }
        }
    }
    names
}

/// Returns what a command does that is neither a query nor a change of rows. `command` is the server's name of it.
pub(super) fn from_command(command: &str, sql: &str) -> BTreeSet<Action> {
    let lower = command.to_ascii_lowercase();
    let words: Vec<&str> = lower.split(' ').collect();
    let (verb, object) = (words[0], words[1..].join(" "));
    let one = |action| BTreeSet::from([action]);
    match (verb, object.as_str()) {
        ("begin" | "commit" | "rollback" | "savepoint" | "release", _) | ("start" | "prepare", "transaction") => {
            one(Action::Transaction(command.to_owned()))
        }
        ("set" | "reset" | "show" | "discard", _) | ("alter", "system" | "database" | "role") => {
            one(Action::Setting(setting_name(sql)))
        }
        ("copy" | "load", _) => one(Action::File(format!("`{command}`"))),
        ("create" | "alter" | "drop", "extension" | "server" | "foreign table" | "subscription" | "tablespace")
        | ("create" | "alter" | "drop", "foreign data wrapper" | "user mapping" | "database")
        | ("import", _) => one(Action::Attach(format!("`{command}`"))),
        ("create" | "alter" | "drop", "table" | "table as" | "index" | "view" | "materialized view" | "sequence")
        | ("create" | "alter" | "drop", "type" | "domain" | "schema")
        | ("comment" | "truncate" | "refresh", _)
        | ("select", "into") => {
            let operation = match (verb, object.as_str()) {
                ("select", _) | (_, "table as") => "create table".to_owned(),
                ("truncate", _) => "truncate table".to_owned(),
                _ => lower.clone(),
            };
            let names = changed_names(sql);
            names.into_iter().map(|name| Action::Schema { operation: operation.clone(), name }).collect()
        }
        _ => one(Action::Other(format!("`{command}`"))),
    }
}

/// Returns the words and signs of a statement, without comments.
fn solid_tokens(sql: &str) -> Vec<(SqlTokenKind, Range<usize>)> {
    let mut tokens = lexer::tokenize(sql, Dialect::Postgres);
    tokens.retain(|(kind, _)| !matches!(kind, SqlTokenKind::Whitespace | SqlTokenKind::Comment));
    tokens
}

/// Returns the name of the setting of SET, RESET or SHOW.
fn setting_name(sql: &str) -> String {
    let tokens = solid_tokens(sql);
    let mut words = tokens.iter().map(|(_, range)| &sql[range.clone()]).skip(1);
    let name = words.find(|word| !["session", "local", "constraints"].contains(&word.to_ascii_lowercase().as_str()));
    name.unwrap_or("all").to_ascii_lowercase()
}

/// Returns the names of the objects that a command creates, alters or drops.
fn changed_names(sql: &str) -> Vec<String> {
    /// The words before a name.
    const WORDS: &[&str] = &[
        "alter",
        "as",
        "column",
        "comment",
        "concurrently",
        "create",
        "data",
        "domain",
        "drop",
        "exists",
        "global",
        "if",
        "index",
        "local",
        "materialized",
        "no",
        "not",
        "on",
        "only",
        "or",
        "recursive",
        "refresh",
        "replace",
        "schema",
        "sequence",
        "table",
        "temp",
        "temporary",
        "truncate",
        "type",
        "unique",
        "unlogged",
        "view",
        "with",
    ];
    let tokens = solid_tokens(sql);
    let text = |at: usize| tokens.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is_word = |at: usize, word: &str| text(at).eq_ignore_ascii_case(word);
    let mut at = if is_word(0, "select") || is_word(0, "with") {
        (0..tokens.len()).find(|at| is_word(*at, "into")).map_or(tokens.len(), |at| at + 1)
    } else {
        0
    };
    while tokens.get(at).is_some_and(|(kind, _)| *kind == SqlTokenKind::Word)
        && WORDS.contains(&text(at).to_ascii_lowercase().as_str())
    {
        at += 1;
    }
    let is_list = is_word(0, "drop") || is_word(0, "truncate");
    let mut names = Vec::new();
    while let Some((SqlTokenKind::Word | SqlTokenKind::Quoted, _)) = tokens.get(at) {
        let mut parts = vec![identifier(text(at))];
        while text(at + 1) == "." {
            parts.push(identifier(text(at + 2)));
            at += 2;
        }
        if parts.len() > 1 && parts[0] == "public" {
            parts.remove(0);
        }
        names.push(joined_name(&parts));
        if !is_list || text(at + 1) != "," {
            break;
        }
        at += 2;
    }
    if names.is_empty() {
        // An index may have no name.
        names.push("(unnamed)".to_owned());
    }
    names
}

/// Returns the value of an identifier: unquoted letters are lower case.
fn identifier(text: &str) -> String {
    if text.starts_with('"') { lexer::unquote(text) } else { text.to_ascii_lowercase() }
}

/// Returns the query within a command that creates a table or a view from it.
pub(super) fn inner_query(sql: &str) -> Option<&str> {
    let tokens = solid_tokens(sql);
    let text = |at: usize| tokens.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is_any = |at: usize, words: &[&str]| words.iter().any(|word| text(at).eq_ignore_ascii_case(word));
    let start = (0..tokens.len()).find(|at| {
        is_any(*at, &["as"]) && (is_any(at + 1, &["select", "with", "values", "table"]) || text(at + 1) == "(")
    })?;
    let mut end = tokens.len();
    // `WITH … CHECK OPTION` and `WITH … DATA` follow the query.
    if is_any(end - 1, &["option"]) || is_any(end - 1, &["data"]) {
        end = (0..end).rev().find(|at| is_any(*at, &["with"]))?;
    }
    let (first, last) = (tokens.get(start + 1)?, tokens.get(end.checked_sub(1)?)?);
    sql.get(first.1.start..last.1.end)
}

/// A statement that explains another one.
pub(super) struct Explained<'s> {
    /// The explained statement.
    pub(super) inner: &'s str,
    /// True if the explained statement also runs.
    pub(super) is_run: bool,
}

/// Returns the statement that an EXPLAIN explains.
pub(super) fn explained(sql: &str) -> Option<Explained<'_>> {
    let tokens = solid_tokens(sql);
    let text = |at: usize| tokens.get(at).map_or("", |(_, range)| &sql[range.clone()]);
    let is_word = |at: usize, word: &str| text(at).eq_ignore_ascii_case(word);
    if !is_word(0, "explain") {
        return None;
    }
    let (mut at, mut is_run) = (1, false);
    if text(1) == "(" && !["select", "with", "values", "(", "table"].contains(&text(2).to_ascii_lowercase().as_str()) {
        while text(at) != ")" && at < tokens.len() {
            is_run |= is_word(at, "analyze");
            at += 1;
        }
        at += 1;
    } else {
        while is_word(at, "analyze") || is_word(at, "verbose") {
            is_run |= is_word(at, "analyze");
            at += 1;
        }
    }
    let from = tokens.get(at)?.1.start;
    Some(Explained { inner: &sql[from..], is_run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_commands() {
        let names = |command: &str, sql: &str| from_command(command, sql).into_iter().collect::<Vec<_>>();
        let schema =
            |operation: &str, name: &str| Action::Schema { operation: operation.to_owned(), name: name.to_owned() };
        let cases = [
            ("CREATE TABLE", "CREATE TABLE IF NOT EXISTS public.\"A b\" (id int)", vec![schema("create table", "A b")]),
            ("SELECT INTO", "SELECT 1 AS a INTO TEMP x", vec![schema("create table", "x")]),
            (
                "DROP TABLE",
                "DROP TABLE IF EXISTS a, Old.B CASCADE",
                vec![schema("drop table", "a"), schema("drop table", "old.b")],
            ),
            ("TRUNCATE TABLE", "TRUNCATE orders", vec![schema("truncate table", "orders")]),
            ("SET", "SET LOCAL role TO x", vec![Action::Setting("role".to_owned())]),
            ("COPY", "COPY t TO STDOUT", vec![Action::File("`COPY`".to_owned())]),
            ("START TRANSACTION", "START TRANSACTION", vec![Action::Transaction("START TRANSACTION".to_owned())]),
            ("DO", "DO $$ $$", vec![Action::Other("`DO`".to_owned())]),
            ("CREATE FUNCTION", "CREATE FUNCTION f() …", vec![Action::Other("`CREATE FUNCTION`".to_owned())]),
        ];
        for (command, sql, expected) in cases {
            assert_eq!(names(command, sql), expected, "{sql}");
        }
    }

    #[test]
    fn finds_inner_statements() {
        let view = "CREATE VIEW v AS SELECT a FROM t -- x\n WITH LOCAL CHECK OPTION";
        assert_eq!(inner_query(view), Some("SELECT a FROM t"));
        assert_eq!(inner_query("CREATE TABLE t (a int)"), None);
        let parts = |sql| explained(sql).map(|found| (found.inner.to_owned(), found.is_run));
        assert_eq!(parts("EXPLAIN SELECT 1"), Some(("SELECT 1".to_owned(), false)));
        assert_eq!(parts("explain (costs off, ANALYZE) DELETE FROM t"), Some(("DELETE FROM t".to_owned(), true)));
        assert_eq!(parts("EXPLAIN ANALYZE VERBOSE SELECT 1"), Some(("SELECT 1".to_owned(), true)));
        assert_eq!(parts("EXPLAIN (SELECT 1)"), Some(("(SELECT 1)".to_owned(), false)));
        assert!(explained("SELECT 1").is_none());
    }
}
