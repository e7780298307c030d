//! Tests migrations: each statement builds on those before it, in one database that is restored afterwards.

use proctor_core::sql::{Dialect, Judgement, SqlAllow, SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits, SqlVerdict};
use proctor_sql::worker::EngineCache;

const SCHEMA: &str = "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
    INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bo');";

fn engines() -> EngineCache {
    EngineCache::new(Err(proctor_duckdb::LibraryNotFound::NotPassed))
}

fn request(sql: &str) -> SqlRequest {
    SqlRequest { policy: SqlPolicy::Migrate, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Sqlite, sql) }
}

fn codes(judgement: &Judgement) -> Vec<SqlCode> {
    judgement.diagnostics.iter().map(|found| found.code).collect()
}

/// If each statement were judged together with all earlier ones, a migration of this length would take minutes.
#[test]
fn long_migration_runs_in_linear_time() {
    let step = |number: usize| {
        format!("CREATE TABLE t{number} (a INTEGER, b TEXT);\nINSERT INTO t{number} (a, b) VALUES ({number}, 'x');\n")
    };
    let text: String = (0..2_000).map(step).collect();
    let limits = SqlResourceLimits { time_ms: 60_000, ..SqlResourceLimits::default() };
    let judgement = engines().judge(&SqlRequest { limits, ..request(&text) });
    assert_eq!(judgement.verdict, SqlVerdict::Ok, "{:?}", judgement.diagnostics);
}

#[test]
fn migration_is_undone_after_any_verdict() {
    let mut engines = engines();
    let migrations = [
        ("CREATE TABLE notes (a INTEGER); INSERT INTO notes VALUES (1); DROP TABLE customers", SqlVerdict::Ok),
        (
            "CREATE TABLE notes (a INTEGER); ALTER TABLE customers RENAME TO people; SELECT nope FROM notes",
            SqlVerdict::Reject,
        ),
        (
            "ALTER TABLE customers ADD COLUMN tier TEXT; CREATE TABLE notes (a); COMMIT; DROP TABLE notes",
            SqlVerdict::Reject,
        ),
        ("CREATE TABLE notes (a); CREATE VIEW v AS SELECT * FROM notes; DELETE FROM notes", SqlVerdict::Reject),
    ];
    let before = engines.judge(&request("SELECT name FROM customers")).digest;
    for (sql, expected) in migrations {
        let judged = engines.judge(&request(sql));
        assert_eq!(judged.verdict, expected, "{sql}: {judged:#?}");
        let after = engines.judge(&request("SELECT a FROM notes"));
        assert_eq!(codes(&after), [SqlCode::UnknownTable], "{sql}");
        assert_eq!(engines.judge(&request("SELECT name FROM customers")).digest, before, "{sql}");
        assert_eq!(engines.judge(&request("SELECT tier FROM customers")).verdict, SqlVerdict::Reject, "{sql}");
    }
}

/// An engine that is extended by the next files gives the same judgements as a new engine with the same schema.
#[test]
fn extended_engine_equals_new_engine() {
    let files = [
        "CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT DEFAULT \"none\");",
        "INSERT INTO notes (body) VALUES ('a'), ('b'); CREATE INDEX by_body ON notes (body);",
        "ALTER TABLE notes ADD COLUMN author INTEGER REFERENCES customers(id); CREATE VIEW authors AS SELECT author FROM notes;",
        "ALTER TABLE notes RENAME COLUMN author TO writer; UPDATE notes SET writer = 1 WHERE body = 'a';",
        "SELECT nope FROM authors; INSERT INTO notes (writer) SELECT id FROM customers WHERE id > 1;",
    ];
    let mut extended = engines();
    let mut schema = vec![SCHEMA.to_owned()];
    for file in files {
        let file_request = SqlRequest { schema: schema.clone(), ..request(file) };
        let (continued, fresh) = (extended.judge(&file_request), engines().judge(&file_request));
        assert_eq!(continued.digest, fresh.digest, "{file}\n{continued:#?}\n{fresh:#?}");
        schema.push(file.to_owned());
    }
}

/// The lists also apply to objects that earlier statements created.
#[test]
fn lists_apply_to_objects_created_by_migration() {
    let allow = SqlAllow { tables: vec!["notes".to_owned()], ..SqlAllow::default() };
    let of = |sql: &str| codes(&engines().judge(&SqlRequest { allow: allow.clone(), ..request(sql) }));
    assert_eq!(of("CREATE TABLE notes (a TEXT); INSERT INTO notes (a) VALUES ('x')"), []);
    assert_eq!(
        of("CREATE TABLE notes (a TEXT); INSERT INTO notes SELECT name FROM customers"),
        [SqlCode::TableRefused]
    );
    assert_eq!(of("CREATE TABLE notes (a TEXT); CREATE TABLE more (b TEXT)"), [SqlCode::TableRefused]);
    let call = "CREATE TABLE notes (a TEXT); INSERT INTO notes SELECT load_extension(a) FROM notes";
    assert_eq!(of(call), [SqlCode::FunctionRefused]);
}
