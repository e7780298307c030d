//! Tests hostile statements made of fragments that have broken other SQL guards. Judging them must not panic. A
//! statement that is `ok` under `read` must not change a byte of a database, and an independent authorizer that allows
//! only reads must accept it.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use proctor_core::sql::{Dialect, SqlPolicy, SqlRequest, SqlResourceLimits, SqlVerdict};
use proctor_sql::sqlite::Sqlite;
use proptest::prelude::*;
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};

const SCHEMA: &str = "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT); CREATE TABLE u (a INTEGER, c TEXT);
    CREATE VIEW v AS SELECT a FROM t; INSERT INTO t VALUES (1, 'x'), (2, 'y'); INSERT INTO u VALUES (1, 'z');";

/// Fragments of texts: harmful statements, their beginnings and ends, and syntax that hides them.
const FRAGMENTS: &[&str] = &[
    "SELECT",
    "a",
    "b",
    "*",
    "FROM",
    "t",
    "u",
    "v",
    "WHERE",
    "1=1",
    "1",
    "'x'",
    "\"b\"",
    "\"teir\"",
    "[a]",
    "`b`",
    ";",
    ";;",
    ",",
    "(",
    ")",
    "--",
    "\n",
    "/*",
    "*/",
    "/*!50000",
    "UNION",
    "ALL",
    "WITH",
    "x AS (",
    "RECURSIVE",
    "INSERT INTO t VALUES (9, 'q')",
    "UPDATE t SET b = 'q'",
    "DELETE FROM t",
    "DROP TABLE t",
    "CREATE TABLE e (a)",
    "ALTER TABLE t ADD COLUMN z",
    "VACUUM",
    "VACUUM INTO '/tmp/proctor-leak.db'",
    "ATTACH ':memory:' AS m",
    "DETACH main",
    "PRAGMA writable_schema = ON",
    "PRAGMA table_info(t)",
    "PRAGMA user_version = 3",
    "pragma_table_info('t')",
    "REINDEX",
    "ANALYZE",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT s",
    "RELEASE s",
    "EXPLAIN",
    "EXPLAIN QUERY PLAN",
    "RETURNING a",
    "REPLACE INTO t VALUES (1, 'q')",
    "load_extension('x')",
    "fts3_tokenizer('simple', x'41')",
    "readfile('/etc/passwd')",
    "writefile('/tmp/proctor-leak', 'x')",
    "randomblob(10)",
    "sqlite_master",
    "sqlite_dbpage",
    "dbstat",
    "json_each('[1]')",
    "total_changes()",
    "zeroblob(100000000)",
    "CREATE TRIGGER g AFTER INSERT ON t BEGIN DELETE FROM u; END",
    "LIMIT 1",
    "ORDER BY a",
    "AS",
    "CASE WHEN 1 THEN 2 END",
    "?",
    ":p",
    "\0",
    "é",
    "'",
    "\"",
    "EXISTS (SELECT 1)",
    "||",
    "=",
    "IN (1, 2)",
    "INDEXED BY i",
    "VALUES (1)",
    "CAST(a AS TEXT)",
    "GROUP BY b",
    "HAVING count(*) > 0",
    "count(*)",
    "printf('%d', a)",
];

thread_local! {
    static ENGINE: RefCell<Sqlite> = RefCell::new(Sqlite::open(&request("SELECT 1")).expect("opens"));
}

fn request(sql: &str) -> SqlRequest {
    let limits = SqlResourceLimits { time_ms: 2_000, steps: 200_000, ..SqlResourceLimits::default() };
    SqlRequest { schema: vec![SCHEMA.to_owned()], limits, ..SqlRequest::new(Dialect::Sqlite, sql) }
}

fn judge(sql: &str, policy: SqlPolicy) -> SqlVerdict {
    let request = SqlRequest { policy, ..request(sql) };
    ENGINE.with_borrow_mut(|engine| proctor_sql::judge(&request, engine).verdict)
}

/// An independent authorizer that allows only reads.
fn authorize_reads(context: &AuthContext<'_>) -> Authorization {
    match context.action {
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive => Authorization::Allow,
        AuthAction::Function { function_name } => match function_name.to_ascii_lowercase().as_str() {
            "load_extension" | "fts3_tokenizer" | "readfile" | "writefile" => Authorization::Deny,
            _ => Authorization::Allow,
        },
        AuthAction::Pragma { pragma_name, pragma_value } => {
            let looks = pragma_name.starts_with("table_") || pragma_value.is_none();
            if looks { Authorization::Allow } else { Authorization::Deny }
        }
        _ => Authorization::Deny,
    }
}

/// Runs a text as a caller who trusts the verdict would. Returns what changed or was refused.
fn find_harm(sql: &str) -> Option<String> {
    let mut database = Connection::open_in_memory().expect("opens");
    database.execute_batch(SCHEMA).expect("a schema");
    let before = database.serialize("main").expect("bytes").to_vec();
    database.authorizer(Some(|context: AuthContext<'_>| authorize_reads(&context))).expect("an authorizer");
    let until = Instant::now() + Duration::from_secs(2);
    database.progress_handler(1_000, Some(move || Instant::now() > until)).expect("a clock");
    let ran = database.execute_batch(sql);
    database.authorizer(None::<fn(AuthContext<'_>) -> Authorization>).expect("none");
    if let Err(error) = ran
        && error.to_string().contains("not authorized")
    {
        return Some(format!("it is refused: {error}"));
    }
    let after = database.serialize("main").expect("bytes").to_vec();
    (before != after || !database.is_autocommit()).then(|| "it changed the database".to_owned())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accepted_reads_are_harmless(parts in prop::collection::vec(prop::sample::select(FRAGMENTS), 1..12)) {
        let sql = parts.join(" ");
        if judge(&sql, SqlPolicy::Read) == SqlVerdict::Ok {
            prop_assert_eq!(find_harm(&sql), None, "{}", sql);
        }
    }

    #[test]
    fn detects_harm_after_valid_statement(tail in prop::collection::vec(prop::sample::select(FRAGMENTS), 1..6)) {
        let sql = format!("SELECT a FROM t {}", tail.join(" "));
        if judge(&sql, SqlPolicy::Read) == SqlVerdict::Ok {
            prop_assert_eq!(find_harm(&sql), None, "{}", sql);
        }
    }

    #[test]
    fn every_policy_rejects_transactions_and_settings(
        harmful in prop::sample::select(&["COMMIT", "ATTACH 'x' AS x", "PRAGMA writable_schema = ON", "VACUUM", "DETACH main"][..]),
        head in prop::sample::select(&["", "SELECT 1;", "-- x\n", "/* x */", "EXPLAIN SELECT 1; "][..]),
        policy in prop::sample::select(&SqlPolicy::ALL[..]),
    ) {
        prop_assert_ne!(judge(&format!("{head}{harmful}"), policy), SqlVerdict::Ok);
    }

    #[test]
    fn judges_any_text(text in "(?s).{0,60}") {
        judge(&text, SqlPolicy::Write);
    }
}
