//! Reads the definitions of objects: their names, the query that fills an object or that is a view, and the functions
//! that their other expressions call. The server reports none of these before it executes the definition.

use std::collections::BTreeSet;

use super::command_tokens::CommandTokens;
use crate::catalog::{joined_name, split_name};

/// The words between the verb of a definition and the name of its object.
const WORDS_BEFORE_OBJECT: &[&str] = &[
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
/// The words between INTO and the name of the new table.
const WORDS_AFTER_INTO: &[&str] = &["global", "local", "table", "temp", "temporary", "unlogged"];
/// The words before the name of an object whose columns follow in brackets.
const WORDS_BEFORE_COLUMNS: &[&str] = &["exists", "of", "on", "only", "references", "table", "view"];
/// The commands whose object has a query.
const COMMANDS_WITH_QUERY: &[&str] = &["CREATE TABLE AS", "CREATE VIEW", "CREATE MATERIALIZED VIEW", "SELECT INTO"];
/// The function of the defaults of columns with a sequence. A migration may define such columns.
const SEQUENCE_FUNCTION: &str = "nextval";

/// The query of a definition.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DefiningQuery {
    /// The definition has no query.
    None,
    /// The query, with each character at the position that it has in the definition.
    Query(String),
    /// The definition has a query that cannot be separated from it.
    Unreadable,
}

/// Returns the query of a definition; `command` is the server's name of it.
pub(super) fn defining_query(command: &str, sql: &str) -> DefiningQuery {
    if !COMMANDS_WITH_QUERY.contains(&command) {
        return DefiningQuery::None;
    }
    let tokens = CommandTokens::new(sql);
    let query = match tokens.table_of_query() {
        Some((into, name)) => Some(blanked(sql, tokens.all[into].1.start, tokens.all[name].1.end)),
        None => tokens.query_range().map(|(start, end)| blanked(&sql[..end], 0, start)),
    };
    query.map_or(DefiningQuery::Unreadable, DefiningQuery::Query)
}

/// Returns a text with spaces instead of the characters between two positions.
fn blanked(text: &str, from: usize, to: usize) -> String {
    let blank = " ".repeat(text[from..to].chars().count());
    [&text[..from], &blank, &text[to..]].concat()
}

/// Returns the names of the objects that a command creates, alters or drops.
pub(super) fn changed_names(sql: &str) -> Vec<String> {
    let tokens = CommandTokens::new(sql);
    let mut at = match tokens.table_of_query() {
        Some((into, _)) => into + 1,
        None => 0,
    };
    while tokens.is_any(at, WORDS_BEFORE_OBJECT) {
        at += 1;
    }
    let is_list = tokens.is_any(0, &["drop", "truncate"]);
    let mut names = Vec::new();
    while let Some((name, last)) = tokens.object_name(at) {
        names.push(name);
        if !is_list || tokens.text(last + 1) != "," {
            break;
        }
        at = last + 2;
    }
    if names.is_empty() {
        // An index may have no name.
        names.push("(unnamed)".to_owned());
    }
    names
}

/// Returns the functions that a definition calls outside of its query: in defaults, conditions, generated columns,
/// indexes, and conversions of columns. A name before a bracket that no function has is a type or a keyword.
pub(super) fn called_functions(command: &str, sql: &str, functions: &BTreeSet<String>) -> BTreeSet<String> {
    let tokens = CommandTokens::new(sql);
    let query = tokens.query_range().filter(|_| COMMANDS_WITH_QUERY.contains(&command));
    let end = match command {
        "SELECT INTO" => 0,
        _ => query.map_or(sql.len(), |(start, _)| start),
    };
    (0..tokens.all.len())
        .take_while(|at| tokens.all[*at].1.start < end)
        .filter(|at| tokens.is_name(*at) && tokens.text(at.wrapping_sub(1)) != ".")
        .filter(|at| !at.checked_sub(1).is_some_and(|before| tokens.is_any(before, WORDS_BEFORE_COLUMNS)))
        .filter_map(|at| {
            let (parts, last) = tokens.name_parts(at).filter(|(_, last)| tokens.text(last + 1) == "(")?;
            let name = parts.last().filter(|name| functions.contains(&name.to_ascii_lowercase()))?;
            let is_sequence = parts.len() == 1 && name == SEQUENCE_FUNCTION && last == at;
            let schema = parts.first().filter(|schema| parts.len() > 1 && !is_usual_schema(schema));
            (!is_sequence).then(|| schema.map_or_else(|| name.clone(), |schema| format!("{schema}.{name}")))
        })
        .collect()
}

/// Reports whether the names of a schema's functions are written without the schema.
fn is_usual_schema(schema: &str) -> bool {
    matches!(schema, "pg_catalog" | "public")
}

/// Reports whether a `CREATE SCHEMA` also creates objects in the schema, or grants privileges on them.
pub(super) fn has_schema_elements(sql: &str) -> bool {
    let tokens = CommandTokens::new(sql);
    (1..tokens.all.len()).any(|at| tokens.is_any(at, &["create", "grant"]))
}

/// Reports whether a command also changes the objects that depend on those that it names. `ON DELETE CASCADE` is a part
/// of a foreign key instead.
pub(super) fn has_cascade(sql: &str) -> bool {
    let tokens = CommandTokens::new(sql);
    (1..tokens.all.len()).any(|at| tokens.is_word(at, "cascade") && !tokens.is_any(at - 1, &["delete", "update"]))
}

/// Returns the new name that a command gives to an object: by `RENAME TO`, or by `SET SCHEMA`. `name` is its old name.
pub(super) fn new_name(sql: &str, name: &str) -> Option<String> {
    let tokens = CommandTokens::new(sql);
    let mut parts = split_name(name, &['"']);
    let follows = |first: &str, second: &str| {
        (1..tokens.all.len()).find(|at| tokens.is_word(*at, first) && tokens.is_word(at + 1, second)).map(|at| at + 2)
    };
    if let Some(at) = follows("rename", "to").filter(|at| tokens.is_name(*at)) {
        *parts.last_mut()? = tokens.identifier(at);
    } else {
        let schema = tokens.identifier(follows("set", "schema")?);
        parts = vec![schema, parts.pop()?];
    }
    if parts.len() > 1 && parts[0] == "public" {
        parts.remove(0);
    }
    Some(joined_name(&parts))
}

/// Reports whether a command leaves out the tables that inherit from those that it names.
pub(super) fn has_only(sql: &str) -> bool {
    let tokens = CommandTokens::new(sql);
    (1..tokens.all.len()).any(|at| tokens.is_word(at, "only"))
}

impl CommandTokens<'_> {
    /// Returns the indexes of the INTO of a query and of the last token of the table that it creates.
    fn table_of_query(&self) -> Option<(usize, usize)> {
        if !self.is_any(self.first_word(), &["select", "with"]) {
            return None;
        }
        // A column may have the name `into` after AS or a dot.
        let is_label = |at: usize| at > 0 && (self.is_word(at - 1, "as") || self.text(at - 1) == ".");
        let into = self.find_outside(|at| self.is_word(at, "into") && !is_label(at))?;
        let name = (into + 1..self.all.len()).find(|at| !self.is_any(*at, WORDS_AFTER_INTO))?;
        self.name_parts(name).map(|(_, last)| (into, last))
    }

    /// Returns the index of the first token that is not an opening bracket.
    fn first_word(&self) -> usize {
        (0..self.all.len()).find(|at| self.text(*at) != "(").unwrap_or_default()
    }

    /// Returns the byte range of the query after AS. `WITH … CHECK OPTION` and `WITH … DATA` follow it.
    fn query_range(&self) -> Option<(usize, usize)> {
        let is_query = |at: usize| self.text(at) == "(" || self.is_any(at, &["select", "with", "values", "table"]);
        let start = self.find_outside(|at| self.is_word(at, "as") && is_query(at + 1))? + 1;
        let count = self.all.len();
        let ends_with = |words: &[&str]| {
            let from = count.checked_sub(words.len())?;
            (0..words.len()).all(|at| self.is_word(from + at, words[at])).then_some(from)
        };
        const CLAUSES: [&[&str]; 5] = [
            &["with", "data"],
            &["with", "no", "data"],
            &["with", "check", "option"],
            &["with", "local", "check", "option"],
            &["with", "cascaded", "check", "option"],
        ];
        let end = CLAUSES.iter().find_map(|words| ends_with(words)).unwrap_or(count);
        let last = end.checked_sub(1).filter(|last| *last >= start)?;
        Some((self.all.get(start)?.1.start, self.all[last].1.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separates_queries_from_definitions() {
        let query = |command: &str, sql: &str| match defining_query(command, sql) {
            DefiningQuery::Query(query) => {
                assert!(query.chars().count() <= sql.chars().count(), "{query}");
                Some(query.split_whitespace().collect::<Vec<_>>().join(" "))
            }
            DefiningQuery::None => None,
            DefiningQuery::Unreadable => Some("unreadable".to_owned()),
        };
        let cases = [
            ("CREATE VIEW", "CREATE VIEW v AS SELECT a FROM t -- x\n WITH LOCAL CHECK OPTION", "SELECT a FROM t"),
            ("CREATE VIEW", "CREATE VIEW v (\"as\") AS (VALUES (1)) WITH CHECK OPTION", "(VALUES (1))"),
            ("CREATE TABLE AS", "CREATE TABLE x AS SELECT f() AS data", "SELECT f() AS data"),
            (
                "CREATE TABLE AS",
                "CREATE TABLE x AS WITH q AS (SELECT 1) SELECT 2 data",
                "WITH q AS (SELECT 1) SELECT 2 data",
            ),
            ("CREATE TABLE AS", "CREATE TABLE é (a) AS TABLE t WITH NO DATA", "TABLE t"),
            ("CREATE TABLE AS", "CREATE TABLE x AS EXECUTE q", "unreadable"),
            ("SELECT INTO", "SELECT 1 AS into, t.into INTO TEMP public.x FROM t", "SELECT 1 AS into, t.into FROM t"),
            ("SELECT INTO", "WITH q AS (SELECT 1) SELECT * INTO x FROM q", "WITH q AS (SELECT 1) SELECT * FROM q"),
        ];
        for (command, sql, expected) in cases {
            assert_eq!(query(command, sql).as_deref(), Some(expected), "{sql}");
        }
        assert_eq!(query("CREATE TABLE", "CREATE TABLE t (a int GENERATED ALWAYS AS (1) STORED)"), None);
        let text = "CREATE TABLE é AS SELECT nmae";
        assert_eq!(
            defining_query("CREATE TABLE AS", text),
            DefiningQuery::Query(format!("{}SELECT nmae", " ".repeat(18))),
            "positions stay"
        );
    }

    #[test]
    fn finds_functions_of_definitions() {
        let functions = ["date", "lower", "nextval", "pg_sleep", "spy", "version"].map(str::to_owned).into();
        let called = |command: &str, sql: &str| {
            called_functions(command, sql, &functions).into_iter().collect::<Vec<_>>().join(" ")
        };
        let table = "CREATE TABLE version (id int DEFAULT nextval('s'), a varchar(9) DEFAULT \"lower\"('x'), d date, \
            CHECK (pg_catalog.PG_SLEEP (1) IS NULL), b int REFERENCES version (id), UNIQUE (version), \
            c text GENERATED ALWAYS AS (old.spy(a)) STORED)";
        assert_eq!(called("CREATE TABLE", table), "lower old.spy pg_sleep");
        assert_eq!(
            called("CREATE INDEX", "CREATE INDEX i ON ONLY version (version(1), U&\"\\0073py\"(a))"),
            "spy version"
        );
        assert_eq!(called("ALTER TABLE", "ALTER TABLE t ALTER a TYPE int USING spy(a)"), "spy");
        assert_eq!(called("CREATE VIEW", "CREATE VIEW version (a) AS SELECT spy(1)"), "");
        assert_eq!(called("SELECT INTO", "SELECT spy(1) INTO x"), "", "the server resolves the query");
    }

    #[test]
    fn finds_new_names() {
        let cases = [
            ("ALTER TABLE t RENAME TO \"U\"", "t", Some("U")),
            ("ALTER TABLE old.t RENAME TO u", "old.t", Some("old.u")),
            ("ALTER TABLE t SET SCHEMA old", "t", Some("old.t")),
            ("ALTER TABLE old.t SET SCHEMA public", "old.t", Some("t")),
            ("ALTER TABLE t RENAME COLUMN a TO b", "t", None),
        ];
        for (sql, name, expected) in cases {
            assert_eq!(new_name(sql, name).as_deref(), expected, "{sql}");
        }
    }

    #[test]
    fn finds_cascades() {
        for sql in ["TRUNCATE a CASCADE", "DROP TABLE a cascade", "ALTER TABLE a DROP b CASCADE"] {
            assert!(has_cascade(sql), "{sql}");
        }
        for sql in ["TRUNCATE \"cascade\"", "CREATE TABLE a (b int REFERENCES c ON DELETE CASCADE ON UPDATE CASCADE)"] {
            assert!(!has_cascade(sql), "{sql}");
        }
    }
}
