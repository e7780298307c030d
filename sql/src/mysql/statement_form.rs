//! Classifies a statement by its words: whether it is a query, a change of rows, a definition, or another command, and
//! which effects it has. The server reports the tables that it uses. Unknown commands are actions that no policy
//! allows.

use std::collections::BTreeSet;

use proctor_core::sql::Dialect;

use super::builtin_allowlist;
use super::statement_tokens::Tokens;
use crate::engine::Action;
use crate::lexer;

/// The engines of tables whose content is part of the database.
const TABLE_ENGINES: &[&str] = &["innodb", "myisam", "aria", "memory", "heap"];
/// The objects that a definition may create, alter or drop.
const OBJECTS: &[&str] = &[
    "aggregate",
    "database",
    "event",
    "function",
    "index",
    "package",
    "procedure",
    "role",
    "schema",
    "sequence",
    "server",
    "table",
    "tables",
    "tablespace",
    "trigger",
    "user",
    "view",
];
/// The kind of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FormKind<'s> {
    /// A query or a change of rows. The server reports the tables and columns.
    Rows,
    /// A statement that explains another one; `is_run` is true if it also runs it.
    Explain { inner: &'s str, is_run: bool },
    /// A definition, with the query that fills the object or that is a view.
    Definition { query: Option<&'s str> },
    /// Another command. Its actions are complete.
    Command,
}

/// A classified statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StatementForm<'s> {
    pub(super) kind: FormKind<'s>,
    pub(super) actions: BTreeSet<Action>,
}

/// Classifies a statement.
pub(super) fn classify(sql: &str) -> StatementForm<'_> {
    let tokens = Tokens::new(sql);
    let (kind, mut actions) = tokens.kind();
    // The words of a command that no policy allows have special meanings.
    if kind != FormKind::Command || actions.iter().any(|action| matches!(action, Action::Metadata { .. })) {
        actions.extend(tokens.actions(matches!(kind, FormKind::Definition { .. })));
    }
    StatementForm { kind, actions }
}

/// Returns the statement that EXPLAIN or DESCRIBE explains.
pub(super) fn explained(sql: &str) -> Option<&str> {
    match Tokens::new(sql).kind().0 {
        FormKind::Explain { inner, .. } => Some(inner),
        _ => None,
    }
}

/// Returns the functions that an expression of the schema calls, and the columns that it may name.
pub(super) fn expression_parts(sql: &str) -> (BTreeSet<Action>, BTreeSet<String>) {
    let tokens = Tokens::new(sql);
    let names = (0..tokens.all.len()).filter(|at| tokens.is_name(*at)).map(|at| tokens.name(at));
    (tokens.actions(false), names.collect())
}

/// Returns the tables that a definition names besides the object itself: after `REFERENCES`, `LIKE`, `WITH TABLE`, and
/// `ON` of an index.
pub(super) fn defined_references(sql: &str) -> Vec<String> {
    let tokens = Tokens::new(sql);
    let is_index = (0..4).any(|at| tokens.is_word(at, "index")) && !tokens.is_word(1, "table");
    let starts = (0..tokens.all.len()).filter_map(|at| {
        let is_table = tokens.is_word(at, "references")
            || (tokens.is_word(at, "like") && tokens.is_name(at + 1))
            || (tokens.is_word(at, "table") && tokens.is_word(at.wrapping_sub(1), "with"))
            || (is_index && tokens.is_word(at, "on"));
        is_table.then_some(at + 1)
    });
    starts.filter_map(|at| tokens.dotted_name(at)).map(|(name, _)| name).collect()
}

impl<'s> Tokens<'s> {
    fn begins_rows(&self, at: usize) -> bool {
        let is_bracketed = self.text(at) == "(";
        let first = self.first_after_brackets(at);
        self.is_any(first, &["select", "with", "values"])
            || (!is_bracketed && self.is_any(first, &["insert", "replace", "update", "delete"]))
    }

    /// Returns the kind of the statement, and the actions that follow from it.
    fn kind(&self) -> (FormKind<'s>, BTreeSet<Action>) {
        let command = |action| (FormKind::Command, BTreeSet::from([action]));
        if self.begins_rows(0) {
            return (FormKind::Rows, BTreeSet::new());
        }
        let (first, second) = (self.word(0), self.word(1));
        match (first.as_str(), second.as_str()) {
            ("explain" | "describe" | "desc" | "analyze", _) => self.explain_kind(),
            ("show", _) => command(self.show_action()),
            ("begin", "not") => command(Action::Other("`BEGIN NOT ATOMIC`".to_owned())),
            ("begin" | "commit" | "rollback" | "savepoint" | "release" | "xa", _) | ("start", "transaction") => {
                command(Action::Transaction(first.to_ascii_uppercase()))
            }
            ("set", _) => command(Action::Setting(self.setting_name())),
            ("load", _) => command(Action::File(format!("`{}`", self.heading()))),
            ("create" | "alter" | "drop" | "truncate" | "rename", _) => self.definition_kind(),
            ("use" | "install" | "uninstall", _) => command(Action::Attach(format!("`{}`", self.heading()))),
            _ => command(Action::Other(format!("`{}`", self.heading()))),
        }
    }

    /// Returns the first words of the statement, which name the command.
    fn heading(&self) -> String {
        let words = (0..2).map(|at| self.word(at)).take_while(|word| !word.is_empty());
        words.collect::<Vec<_>>().join(" ").to_ascii_uppercase()
    }

    fn explain_kind(&self) -> (FormKind<'s>, BTreeSet<Action>) {
        let mut is_run = self.is_word(0, "analyze");
        let mut at = 1;
        loop {
            if self.is_any(at, &["extended", "partitions"]) && self.begins_rows(at + 1) {
                at += 1;
            } else if self.is_word(at, "analyze") {
                is_run = true;
                at += 1;
            } else if self.is_word(at, "format") && self.text(at + 1) == "=" {
                at += 3;
            } else {
                break;
            }
        }
        if self.begins_rows(at)
            && let Some(inner) = self.rest(at)
        {
            return (FormKind::Explain { inner, is_run }, BTreeSet::new());
        }
        let is_description = !is_run && !self.is_word(at, "for");
        let action = match self.dotted_name(at).filter(|_| is_description) {
            Some((table, _)) => metadata("`DESCRIBE`", table),
            None => Action::Other(format!("`{}`", self.heading())),
        };
        (FormKind::Command, BTreeSet::from([action]))
    }

    fn show_action(&self) -> Action {
        let at = 1 + usize::from(self.is_any(1, &["full", "extended"]));
        let word = self.word(at);
        let is_of = |at: usize| self.is_any(at, &["from", "in"]);
        let of_table = |at: usize| match self.dotted_name(at) {
            // A second FROM names another database.
            Some((table, last)) if !is_of(last + 1) => Some(metadata(&format!("`{}`", self.heading()), table)),
            _ => None,
        };
        let other = || Action::Setting(word.clone());
        if (at..self.all.len()).any(|at| self.is_word(at, "select")) {
            // The tables that the condition reads would not be reported.
            return Action::Other("the condition of `SHOW` has a subquery".to_owned());
        }
        match word.as_str() {
            "tables" if is_of(at + 1) => Action::Other("it shows the tables of another database".to_owned()),
            "tables" => Action::Metadata { source: "`SHOW TABLES`".to_owned(), table: None },
            "columns" | "fields" | "index" | "indexes" | "keys" if is_of(at + 1) => {
                of_table(at + 2).unwrap_or_else(other)
            }
            // The definition names other tables: those of foreign keys, and of a view.
            "create" if self.is_any(at + 1, &["table", "view"]) => match of_table(at + 2) {
                Some(Action::Metadata { source, .. }) => Action::Metadata { source, table: None },
                found => found.unwrap_or_else(other),
            },
            _ => other(),
        }
    }

    fn setting_name(&self) -> String {
        let mut words = (1..self.all.len()).filter(|at| self.is_name(*at)).map(|at| self.name(at).to_ascii_lowercase());
        words.find(|word| !["global", "session", "local", "statement"].contains(&word.as_str())).unwrap_or_default()
    }

    fn definition_kind(&self) -> (FormKind<'s>, BTreeSet<Action>) {
        let verb = self.word(0);
        let refused = || {
            let what = format!("`{}`", self.heading());
            let is_server = (1..4).any(|at| self.is_word(at, "server"));
            let action = if is_server { Action::Attach(what) } else { Action::Other(what) };
            (FormKind::Command, BTreeSet::from([action]))
        };
        let object_at = match verb.as_str() {
            "truncate" => usize::from(self.is_word(1, "table")),
            _ => match (1..self.all.len()).find(|at| self.is_any(*at, OBJECTS)) {
                Some(at) if self.is_any(at, &["table", "tables", "index", "view"]) => at,
                _ => return refused(),
            },
        };
        let object = match self.word(object_at).as_str() {
            "truncate" | "tables" => "table".to_owned(),
            word => word.to_owned(),
        };
        let operation = format!("{verb} {object}");
        let names = self.defined_names(object_at + 1, ["drop", "rename"].contains(&verb.as_str()));
        if names.is_empty() {
            return refused();
        }
        let names = names.into_iter().chain(self.new_table_name());
        let changed = names.map(|name| Action::Schema { operation: operation.clone(), name });
        let mut actions: BTreeSet<Action> = changed.collect();
        actions.extend(self.storage_actions());
        (FormKind::Definition { query: self.inner_query() }, actions)
    }

    /// Returns the names of the objects that a definition creates, changes or drops.
    fn defined_names(&self, from: usize, is_list: bool) -> Vec<String> {
        let mut at = from;
        while self.is_any(at, &["if", "not", "exists"]) {
            at += 1;
        }
        let mut names = Vec::new();
        while let Some((name, last)) = self.dotted_name(at) {
            names.push(name);
            at = last + 1;
            // `RENAME TABLE a TO b, c TO d`
            let is_next = self.text(at) == "," || (self.is_word(0, "rename") && self.is_word(at, "to"));
            if !is_list || !is_next {
                break;
            }
            at += 1;
        }
        names
    }

    /// Returns the new name that `ALTER TABLE … RENAME` gives to a table. `RENAME COLUMN` and `RENAME INDEX` give none.
    fn new_table_name(&self) -> Option<String> {
        let rename = (1..self.all.len()).find(|at| self.is_word(0, "alter") && self.is_word(*at, "rename"))?;
        let is_filler = |at: usize| self.is_any(at, &["to", "as"]) || self.text(at) == "=";
        let at = rename + 1 + usize::from(is_filler(rename + 1));
        let is_part = at == rename + 1 && self.is_any(at, &["column", "index", "key"]);
        self.dotted_name(at).filter(|_| !is_part).map(|(name, _)| name)
    }

    /// Returns the use of files and of other servers by the options of a table.
    fn storage_actions(&self) -> BTreeSet<Action> {
        let mut actions = BTreeSet::new();
        for at in 0..self.all.len() {
            let value = at + 1 + usize::from(self.text(at + 1) == "=");
            let is_option = |word: &str| self.is_word(at, word) && self.text(at.wrapping_sub(1)) != ".";
            let engine = || lexer::string_value(self.text(value), Dialect::Mysql).to_ascii_lowercase();
            if is_option("engine") && self.text(at + 1) == "=" && !TABLE_ENGINES.contains(&engine().as_str()) {
                actions.insert(Action::File(format!("the storage engine `{}`", engine())));
            }
            if is_option("engine") && self.is_name(at + 1) && !TABLE_ENGINES.contains(&engine().as_str()) {
                actions.insert(Action::File(format!("the storage engine `{}`", engine())));
            }
            if is_option("directory") && self.is_any(at.wrapping_sub(1), &["data", "index"]) {
                actions.insert(Action::File("the directory of a table".to_owned()));
            }
            if is_option("tablespace") {
                actions.insert(Action::File("a tablespace".to_owned()));
            }
            if is_option("connection") && self.text(at + 1) == "=" {
                actions.insert(Action::File("the table of another server".to_owned()));
            }
        }
        actions
    }

    /// Returns the query of a definition: from its first word at the outermost level, or after `AS (`.
    fn inner_query(&self) -> Option<&'s str> {
        let (start, first) = self.inner_query_start()?;
        let mut end = self.all.len();
        // `WITH … CHECK OPTION` follows the query of a view.
        if self.is_word(end - 1, "option") {
            end = (first + 1..end).rev().find(|at| self.is_word(*at, "with"))?;
        }
        self.sql.get(self.all[start].1.start..self.all[end.checked_sub(1)?].1.end)
    }

    /// Returns the index of the first token of the query of a definition, with and without its opening brackets.
    pub(super) fn inner_query_start(&self) -> Option<(usize, usize)> {
        let is_start = |at: &usize| {
            let before = (0..*at).rev().find(|before| self.text(*before) != "(");
            let is_after = || before.is_some_and(|before| self.is_any(before, &["as", "ignore", "replace"]));
            self.is_word(*at, "select") || (self.is_any(*at, &["with", "values"]) && is_after())
        };
        let first = (1..self.all.len()).find(is_start)?;
        let start = (1..=first).rev().take_while(|at| *at == first || self.text(*at) == "(").last()?;
        Some((start, first))
    }

    /// Returns what the words of the statement do, wherever they are in it.
    fn actions(&self, is_definition: bool) -> BTreeSet<Action> {
        let mut actions = self.calls(is_definition);
        for at in 0..self.all.len() {
            if let Some(action) = self.sign_action(at).or_else(|| self.word_action(at)) {
                actions.insert(action);
            }
        }
        actions
    }

    fn sign_action(&self, at: usize) -> Option<Action> {
        let previous = at.checked_sub(1).map_or("", |before| self.text(before));
        match self.text(at) {
            "@" if previous == "@" => None,
            "@" if self.text(at + 1) == "@" => {
                let names =
                    (at + 2..at + 5).filter(|at| self.is_name(*at)).map(|at| self.name(at).to_ascii_lowercase());
                let mut names = names.skip_while(|name| ["global", "session", "local"].contains(&name.as_str()));
                Some(Action::Setting(names.next().unwrap_or_default()))
            }
            "@" => Some(Action::Other("it uses a variable of the session".to_owned())),
            "=" if previous == ":" => Some(Action::Other("it assigns a variable".to_owned())),
            _ => None,
        }
    }

    fn word_action(&self, at: usize) -> Option<Action> {
        let is_column = at > 0 && self.text(at - 1) == ".";
        if self.is_name(at) && !is_column && self.text(at + 1) == "." {
            return self.information_schema_action(at);
        }
        let other = |what: &str| Some(Action::Other(what.to_owned()));
        match self.word(at).as_str() {
            _ if is_column => None,
            "for" if self.is_any(at + 1, &["update", "share"]) => other("it locks rows"),
            "lock" if self.is_word(at + 1, "in") && self.is_word(at + 2, "share") => other("it locks rows"),
            "into" if !self.is_insert_target(at) => match self.word(at + 1).as_str() {
                word @ ("outfile" | "dumpfile") => Some(Action::File(format!("`INTO {}`", word.to_ascii_uppercase()))),
                _ => other("it stores its result in variables"),
            },
            "procedure" => other("it calls a procedure"),
            "next" | "previous" if self.is_word(at + 1, "value") && self.is_word(at + 2, "for") => {
                other("it uses a sequence")
            }
            word @ ("current_user" | "current_role") => Some(Action::Call(word.to_owned())),
            "recursive" if at > 0 && self.is_word(at - 1, "with") => Some(Action::Recursion),
            _ => None,
        }
    }

    /// Returns the read of a table of `information_schema`, for which no privilege is needed.
    fn information_schema_action(&self, at: usize) -> Option<Action> {
        let is_ours = self.name(at).eq_ignore_ascii_case("information_schema");
        let table = is_ours.then(|| self.name(at + 2).to_ascii_lowercase())?;
        Some(if builtin_allowlist::is_schema_table(&table) {
            Action::Metadata { source: format!("`information_schema.{table}`"), table: None }
        } else {
            Action::Other(format!("it reads `information_schema.{table}`, which describes the server"))
        })
    }

    /// Reports whether an INTO follows INSERT or REPLACE.
    fn is_insert_target(&self, into: usize) -> bool {
        let modifiers = ["low_priority", "delayed", "high_priority", "ignore"];
        let before = (0..into).rev().find(|at| !self.is_any(*at, &modifiers));
        before.is_some_and(|at| self.is_any(at, &["insert", "replace"]))
    }
}

/// Returns the read of the metadata of one table. A qualified name is that of another database.
fn metadata(source: &str, table: String) -> Action {
    if table.contains('.') {
        return Action::Other(format!("{source} describes a table of another database"));
    }
    Action::Metadata { source: source.to_owned(), table: Some(table) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(sql: &str) -> Vec<Action> {
        classify(sql).actions.into_iter().collect()
    }

    #[test]
    fn classifies_commands() {
        let schema =
            |operation: &str, name: &str| Action::Schema { operation: operation.to_owned(), name: name.to_owned() };
        let metadata = |source: &str, table: Option<&str>| Action::Metadata {
            source: source.to_owned(),
            table: table.map(str::to_owned),
        };
        let other = |what: &str| Action::Other(what.to_owned());
        let cases = [
            ("DROP TABLE IF EXISTS a, `B c` CASCADE", vec![schema("drop table", "B c"), schema("drop table", "a")]),
            ("dRoP/**/tAbLe customers", vec![schema("drop table", "customers")]),
            ("TRUNCATE orders", vec![schema("truncate table", "orders")]),
            ("RENAME TABLE a TO b", vec![schema("rename table", "a"), schema("rename table", "b")]),
            ("CREATE OR REPLACE TEMPORARY TABLE x (id int)", vec![schema("create table", "x")]),
            ("ALTER TABLE old.t ADD x INT", vec![schema("alter table", "old.t")]),
            ("ALTER TABLE a RENAME TO `b`", vec![schema("alter table", "a"), schema("alter table", "b")]),
            ("ALTER TABLE a RENAME b", vec![schema("alter table", "a"), schema("alter table", "b")]),
            ("ALTER TABLE a RENAME COLUMN b TO c", vec![schema("alter table", "a")]),
            ("BEGIN", vec![Action::Transaction("BEGIN".to_owned())]),
            ("START TRANSACTION READ ONLY", vec![Action::Transaction("START".to_owned())]),
            ("SET GLOBAL general_log = 1", vec![Action::Setting("general_log".to_owned())]),
            ("SHOW VARIABLES", vec![Action::Setting("variables".to_owned())]),
            ("SHOW TABLES", vec![metadata("`SHOW TABLES`", None)]),
            ("SHOW CREATE TABLE t", vec![metadata("`SHOW CREATE`", None)]),
            ("SHOW CREATE TABLE mysql.user", vec![other("`SHOW CREATE` describes a table of another database")]),
            ("SHOW FULL COLUMNS FROM t", vec![metadata("`SHOW FULL`", Some("t"))]),
            ("SHOW COLUMNS FROM t FROM mysql", vec![Action::Setting("columns".to_owned())]),
            ("SHOW COLUMNS FROM t WHERE EXISTS (SELECT 1)", vec![other("the condition of `SHOW` has a subquery")]),
            ("SHOW TABLES FROM mysql", vec![other("it shows the tables of another database")]),
            ("DESC t", vec![metadata("`DESCRIBE`", Some("t"))]),
            ("DESCRIBE mysql.user", vec![other("`DESCRIBE` describes a table of another database")]),
            ("EXPLAIN FOR CONNECTION 1", vec![other("`EXPLAIN FOR`")]),
            ("ANALYZE TABLE t", vec![other("`ANALYZE TABLE`")]),
            ("LOAD DATA INFILE '/x' INTO TABLE t", vec![Action::File("`LOAD DATA`".to_owned())]),
            ("KILL 1", vec![other("`KILL`")]),
            ("USE mysql", vec![Action::Attach("`USE MYSQL`".to_owned())]),
            (
                "CREATE SERVER s FOREIGN DATA WRAPPER mysql OPTIONS ()",
                vec![Action::Attach("`CREATE SERVER`".to_owned())],
            ),
            ("CREATE PROCEDURE", vec![other("`CREATE PROCEDURE`")]),
            ("", vec![other("``")]),
        ];
        for (sql, expected) in cases {
            let mut expected = expected;
            expected.sort();
            assert_eq!(actions(sql), expected, "{sql}");
        }
        assert_eq!(
            actions("CREATE TABLE t (a INT) ENGINE=CSV DATA DIRECTORY '/x'"),
            [
                schema("create table", "t"),
                Action::File("the directory of a table".to_owned()),
                Action::File("the storage engine `csv`".to_owned())
            ]
        );
    }

    #[test]
    fn finds_what_no_policy_allows() {
        let other = |what: &str| Action::Other(what.to_owned());
        let cases = [
            (
                "SELECT id INTO @x FROM t",
                vec![other("it stores its result in variables"), other("it uses a variable of the session")],
            ),
            ("SELECT 1 INTO OUTFILE '/x'", vec![Action::File("`INTO OUTFILE`".to_owned())]),
            ("SELECT @@global.datadir", vec![Action::Setting("datadir".to_owned())]),
            ("SELECT @a := 1", vec![other("it assigns a variable"), other("it uses a variable of the session")]),
            ("SELECT 1.for update", vec![other("it locks rows")]),
            ("SELECT a FROM t LOCK IN SHARE MODE", vec![other("it locks rows")]),
            ("SELECT NEXT VALUE FOR s", vec![other("it uses a sequence")]),
            (
                "SELECT * FROM `information_schema` . processlist",
                vec![other("it reads `information_schema.processlist`, which describes the server")],
            ),
            (
                "SELECT * FROM INFORMATION_SCHEMA.TABLES",
                vec![Action::Metadata { source: "`information_schema.tables`".to_owned(), table: None }],
            ),
            ("SELECT 'for update', \"into outfile\" FROM t -- into @x", Vec::new()),
            ("INSERT IGNORE INTO t SELECT 1", Vec::new()),
        ];
        for (sql, expected) in cases {
            assert_eq!(actions(sql), expected, "{sql}");
        }
    }

    #[test]
    fn finds_inner_statements() {
        let kind = |sql: &'static str| classify(sql).kind;
        assert_eq!(kind("EXPLAIN SELECT 1"), FormKind::Explain { inner: "SELECT 1", is_run: false });
        assert_eq!(kind("desc extended DELETE FROM t"), FormKind::Explain { inner: "DELETE FROM t", is_run: false });
        assert_eq!(kind("EXPLAIN FORMAT=JSON (SELECT 1)"), FormKind::Explain { inner: "(SELECT 1)", is_run: false });
        assert_eq!(
            kind("ANALYZE FORMAT=JSON DELETE FROM t"),
            FormKind::Explain { inner: "DELETE FROM t", is_run: true }
        );
        assert_eq!(kind("((SELECT 1))"), FormKind::Rows);
        assert_eq!(kind("(DELETE FROM t)"), FormKind::Command);
        let query = |sql: &'static str| match kind(sql) {
            FormKind::Definition { query } => query,
            other => panic!("{other:?}"),
        };
        assert_eq!(query("CREATE VIEW v AS SELECT a FROM t WITH LOCAL CHECK OPTION"), Some("SELECT a FROM t"));
        assert_eq!(query("CREATE TABLE t (a int) SELECT 1 AS a"), Some("SELECT 1 AS a"));
        assert_eq!(
            query("CREATE TABLE t AS (WITH x AS (SELECT 1) SELECT * FROM x)"),
            Some("(WITH x AS (SELECT 1) SELECT * FROM x)")
        );
        assert_eq!(query("CREATE TABLE t (a int DEFAULT 1)"), None);
    }

    #[test]
    fn finds_tables_in_definitions() {
        let sql = "CREATE TABLE t (a int REFERENCES `Se cret`(id), b int CHECK (c LIKE 'x'))";
        assert_eq!(defined_references(sql), ["Se cret"]);
        assert_eq!(defined_references("CREATE TABLE t LIKE secret"), ["secret"]);
        assert_eq!(defined_references("CREATE UNIQUE INDEX i ON orders (a)"), ["orders"]);
    }
}
