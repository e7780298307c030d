//! Finds the functions that a statement calls by name.

use std::collections::BTreeSet;

use super::builtin_allowlist;
use super::statement_tokens::Tokens;
use crate::engine::Action;

/// Words before a table whose columns follow in brackets.
const WORDS_BEFORE_TABLE: &[&str] =
    &["delayed", "ignore", "insert", "into", "low_priority", "recursive", "replace", "with"];
/// Words before a name that is defined, and that a bracket follows.
const WORDS_BEFORE_DEFINITION: &[&str] = &[
    "constraint",
    "exists",
    "fulltext",
    "index",
    "key",
    "partition",
    "references",
    "spatial",
    "table",
    "unique",
    "view",
];
/// Words before the columns of a key, or before its name.
const KEY_WORDS: &[&str] = &["fulltext", "index", "key", "spatial", "unique"];

impl Tokens<'_> {
    /// Returns the functions that the statement calls: names before a bracket that are neither keywords nor tables.
    pub(super) fn calls(&self, is_definition: bool) -> BTreeSet<Action> {
        let mut calls = BTreeSet::new();
        // Records for each open bracket whether it encloses the columns of a key.
        let mut brackets = Vec::new();
        let query_start = self.inner_query_start().map_or(self.all.len(), |(start, _)| start);
        for at in 0..self.all.len() {
            let is_definition = is_definition && at < query_start;
            match self.text(at) {
                "(" => {
                    let is_key = is_definition && self.is_key_list(at);
                    if !is_key && brackets.last() != Some(&true) {
                        calls.extend(self.call_before(at, is_definition));
                    }
                    brackets.push(is_key);
                }
                ")" => {
                    brackets.pop();
                }
                _ => {}
            }
        }
        calls
    }

    /// Returns the index of the first token of the name that ends before a bracket.
    fn name_start(&self, bracket: usize) -> Option<usize> {
        let mut start = bracket.checked_sub(1).filter(|at| self.is_name(*at))?;
        while start >= 2 && self.text(start - 1) == "." && self.is_name(start - 2) {
            start -= 2;
        }
        Some(start)
    }

    fn call_before(&self, bracket: usize, is_definition: bool) -> Option<Action> {
        let start = self.name_start(bracket)?;
        let (name, _) = self.dotted_name(start)?;
        let name = name.to_ascii_lowercase();
        let is_keyword = start + 1 == bracket && builtin_allowlist::is_keyword(&self.word(start), is_definition);
        let before = start.checked_sub(1);
        let is_table = before.is_some_and(|before| {
            self.is_any(before, WORDS_BEFORE_TABLE)
                || (is_definition && self.is_any(before, WORDS_BEFORE_DEFINITION))
                || (is_definition && self.is_index_target(before))
        });
        let is_table_expression = || {
            self.is_word(self.bracket_end(bracket) + 1, "as") && {
                let after = self.bracket_end(bracket) + 2;
                self.text(after) == "("
            }
        };
        (!is_keyword && !is_table && !is_table_expression()).then_some(Action::Call(name))
    }

    /// Reports whether a word is the ON of CREATE INDEX.
    fn is_index_target(&self, at: usize) -> bool {
        let is_first = || (0..at).all(|before| self.text(before) != "(");
        self.is_word(at, "on") && self.is_word(0, "create") && is_first()
    }

    /// Reports whether a bracket opens the columns of a key: their prefixes have lengths.
    fn is_key_list(&self, bracket: usize) -> bool {
        let is_key_word = |at: Option<usize>| at.is_some_and(|at| self.is_any(at, KEY_WORDS));
        let before = bracket.checked_sub(1);
        let using = bracket.checked_sub(2).is_some_and(|at| self.is_word(at, "using"));
        let name_before = self.name_start(bracket).and_then(|start| start.checked_sub(1));
        is_key_word(before)
            || is_key_word(name_before)
            || using
            || name_before.is_some_and(|at| self.is_index_target(at))
    }

    /// Returns the index of the bracket that closes another one, or of the last token.
    fn bracket_end(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for at in open..self.all.len() {
            match self.text(at) {
                "(" => depth += 1,
                ")" if depth == 1 => return at,
                ")" => depth -= 1,
                _ => {}
            }
        }
        self.all.len()
    }
}

#[cfg(test)]
mod tests {
    use super::super::statement_form::classify;
    use super::*;

    fn actions(sql: &str) -> Vec<Action> {
        classify(sql).actions.into_iter().collect()
    }

    fn calls(sql: &str) -> Vec<String> {
        let name = |action| match action {
            Action::Call(name) => name,
            other => panic!("{sql}: {other:?}"),
        };
        actions(sql).into_iter().map(name).collect()
    }

    #[test]
    fn finds_calls() {
        let cases: &[(&str, &[&str])] = &[
            ("SELECT upper(name), COUNT(*) FROM t WHERE id IN (1) AND (a) > ALL (SELECT 1)", &["count", "upper"]),
            ("SELECT `sleep` (1), sleep/**/(2)", &["sleep"]),
            ("SELECT x.f(1), current_user FROM t", &["current_user", "x.f"]),
            ("INSERT INTO sleep (a, b) VALUES (1, now())", &["now"]),
            ("INSERT t (a) VALUES (1) ON DUPLICATE KEY UPDATE a = VALUES(a)", &[]),
            ("REPLACE t (a) SELECT REPLACE(a, 'b(', \"c(\") FROM u", &["replace"]),
            ("WITH a (x) AS (SELECT 1), b (y, z) AS (SELECT 1, f(2)) SELECT * FROM a JOIN b USING (x)", &["f"]),
            ("SELECT CAST(a AS DECIMAL(10, 2)), t.current_user FROM t -- f(1)\n USE INDEX (i)", &["cast"]),
            ("SELECT SUM(a) OVER (PARTITION BY b), 'f(1)' FROM t # f(1)", &["sum"]),
            ("SELECT jt.a FROM JSON_TABLE('[]', '$[*]' COLUMNS (a INT PATH '$')) jt", &["json_table"]),
        ];
        for (sql, expected) in cases {
            assert_eq!(calls(sql), *expected, "{sql}");
        }
    }

    #[test]
    fn finds_calls_in_definitions() {
        let found = |sql: &str| {
            let all = actions(sql).into_iter();
            all.filter_map(|action| if let Action::Call(name) = action { Some(name) } else { None }).collect::<Vec<_>>()
        };
        let table = "CREATE TABLE IF NOT EXISTS t (id INT(11) PRIMARY KEY, name VARCHAR(20) DEFAULT (upper('x')), \
            kind ENUM('a'), KEY idx (name(10), id), UNIQUE u (name(5)), CONSTRAINT c CHECK (abs(id) > 0), \
            CONSTRAINT f FOREIGN KEY fk (id) REFERENCES other (id), total INT AS (id + mod(id, 2)) STORED)";
        assert_eq!(found(table), ["abs", "mod", "upper"]);
        assert_eq!(found("CREATE TABLE t (a INT DEFAULT (sleep(10)))"), ["sleep"]);
        assert_eq!(found("CREATE UNIQUE INDEX i ON t (name(10))"), Vec::<String>::new());
        assert_eq!(
            found("CREATE VIEW v (a) AS SELECT load_file('x') AS a FROM t JOIN u ON sleep(1)"),
            ["load_file", "sleep"]
        );
        assert_eq!(found("CREATE TABLE t (KEY k (a)) AS SELECT UNIQUE sleep(1) AS k, hash(2)"), ["hash", "sleep"]);
        assert_eq!(found("ALTER TABLE t ADD INDEX i USING BTREE (name(10)), ADD COLUMN (a INT)"), Vec::<String>::new());
    }
}
