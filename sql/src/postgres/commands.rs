//! Classifies the commands that are neither a query nor a change of rows, by the names that the server gives to them.

use std::collections::BTreeSet;

use super::command_tokens::CommandTokens;
use super::definitions;
use crate::engine::Action;

/// The options of EXPLAIN that do not run the statement, and their values.
const EXPLAIN_WORDS: &[&str] = &[
    "buffers",
    "costs",
    "false",
    "format",
    "generic_plan",
    "json",
    "memory",
    "off",
    "on",
    "settings",
    "summary",
    "text",
    "true",
    "verbose",
    "xml",
    "yaml",
];

/// Returns what a command does. `command` is the server's name of it; `functions` are all functions of the server.
pub(super) fn actions(command: &str, sql: &str, functions: &BTreeSet<String>) -> BTreeSet<Action> {
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
        ("create", "schema") if definitions::has_schema_elements(sql) => {
            one(Action::Other("`CREATE SCHEMA` with the definitions of its objects".to_owned()))
        }
        ("create" | "alter" | "drop", "table" | "table as" | "index" | "view" | "materialized view" | "sequence")
        | ("create" | "alter" | "drop", "type" | "domain" | "schema")
        | ("comment" | "truncate" | "refresh", _)
        | ("select", "into") => {
            let operation = match (verb, object.as_str()) {
                ("select", _) | (_, "table as") => "create table".to_owned(),
                ("truncate", _) => "truncate table".to_owned(),
                _ => lower.clone(),
            };
            let names = definitions::changed_names(sql);
            let changes = names.into_iter().map(|name| Action::Schema { operation: operation.clone(), name });
            changes
                .chain(definitions::called_functions(command, sql, functions).into_iter().map(Action::Call))
                .collect()
        }
        _ => one(Action::Other(format!("`{command}`"))),
    }
}

/// Returns the name of the setting of SET, RESET or SHOW.
fn setting_name(sql: &str) -> String {
    let tokens = CommandTokens::new(sql);
    let name = (1..tokens.all.len()).find(|at| !tokens.is_any(*at, &["session", "local", "constraints"]));
    name.map_or_else(|| "all".to_owned(), |at| tokens.text(at).to_ascii_lowercase())
}

/// A statement that explains another one.
pub(super) struct Explained<'s> {
    /// The explained statement.
    pub(super) inner: &'s str,
    /// True if the explained statement also runs. Unknown options count as such.
    pub(super) is_run: bool,
}

/// Returns the statement that an EXPLAIN explains.
pub(super) fn explained(sql: &str) -> Option<Explained<'_>> {
    let tokens = CommandTokens::new(sql);
    if !tokens.is_word(0, "explain") {
        return None;
    }
    let (mut at, mut is_run) = (1, false);
    let has_statement = tokens.text(2) == "(" || tokens.is_any(2, &["select", "with", "values", "table"]);
    if tokens.text(1) == "(" && !has_statement {
        at = 2;
        while tokens.text(at) != ")" && at < tokens.all.len() {
            is_run |= tokens.text(at) != "," && !tokens.is_any(at, EXPLAIN_WORDS);
            at += 1;
        }
        at += 1;
    } else {
        while tokens.is_any(at, &["analyze", "analyse", "verbose"]) {
            is_run |= !tokens.is_word(at, "verbose");
            at += 1;
        }
    }
    let from = tokens.all.get(at)?.1.start;
    Some(Explained { inner: &sql[from..], is_run })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_commands() {
        let functions = ["now", "pg_sleep"].map(str::to_owned).into();
        let names = |command: &str, sql: &str| actions(command, sql, &functions).into_iter().collect::<Vec<_>>();
        let schema =
            |operation: &str, name: &str| Action::Schema { operation: operation.to_owned(), name: name.to_owned() };
        let other = |what: &str| vec![Action::Other(what.to_owned())];
        let cases = [
            ("CREATE TABLE", "CREATE TABLE IF NOT EXISTS public.\"A b\" (id int)", vec![schema("create table", "A b")]),
            (
                "ALTER TABLE",
                "ALTER TABLE t ADD x int DEFAULT pg_sleep(1)",
                vec![Action::Call("pg_sleep".to_owned()), schema("alter table", "t")],
            ),
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
            ("DO", "DO $$ $$", other("`DO`")),
            ("CREATE FUNCTION", "CREATE FUNCTION f() …", other("`CREATE FUNCTION`")),
            ("CREATE SCHEMA", "CREATE SCHEMA s", vec![schema("create schema", "s")]),
            (
                "CREATE SCHEMA",
                "CREATE SCHEMA s GRANT ALL ON t TO PUBLIC",
                other("`CREATE SCHEMA` with the definitions of its objects"),
            ),
        ];
        for (command, sql, mut expected) in cases {
            expected.sort();
            assert_eq!(names(command, sql), expected, "{sql}");
        }
    }

    #[test]
    fn finds_explained_statements() {
        let parts = |sql: &str| explained(sql).map(|found| (found.inner.to_owned(), found.is_run));
        let explains = |inner: &str, is_run| Some((inner.to_owned(), is_run));
        assert_eq!(parts("EXPLAIN SELECT 1"), explains("SELECT 1", false));
        assert_eq!(parts("explain (costs off, ANALYZE) DELETE FROM t"), explains("DELETE FROM t", true));
        assert_eq!(parts("EXPLAIN (FORMAT json, verbose true) DELETE FROM t"), explains("DELETE FROM t", false));
        assert_eq!(parts("EXPLAIN ANALYZE VERBOSE SELECT 1"), explains("SELECT 1", true));
        assert_eq!(parts("EXPLAIN (SELECT 1)"), explains("(SELECT 1)", false));
        assert!(explained("SELECT 1").is_none());
        // The server knows an option by its value, however it is quoted.
        for head in ["(\"analyze\")", "(costs off, \"analyze\" on)", "(U&\"\\0061nalyze\")", "--\ranalyze\n", "analyse"]
        {
            assert_eq!(parts(&format!("EXPLAIN {head} DELETE FROM t")), explains("DELETE FROM t", true), "{head}");
        }
    }
}
