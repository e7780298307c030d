//! Tests migrations: each statement builds on those before it, in one database that is restored afterwards.

use proctor_core::sql::{Allow, Dialect, Judgement, Limits, Policy, Request, SqlCode, Verdict};
use proctor_sql::worker::Engines;

const SCHEMA: &str = "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
    INSERT INTO customers VALUES (1, 'Ann'), (2, 'Bo');";

fn engines() -> Engines {
    Engines::new(Err("no test here needs it".to_owned()))
}

fn request(sql: &str) -> Request {
    Request { policy: Policy::Migrate, schema: vec![SCHEMA.to_owned()], ..Request::new(Dialect::Sqlite, sql) }
}

fn codes(judgement: &Judgement) -> Vec<SqlCode> {
    judgement.diagnostics.iter().map(|found| found.code).collect()
}

/// If each statement were judged together with all earlier ones, a migration of this length would take minutes.
#[test]
fn a_long_one_costs_no_more_for_each_statement_than_a_short_one() {
    let step = |number: usize| {
        format!("CREATE TABLE t{number} (a INTEGER, b TEXT);\nINSERT INTO t{number} (a, b) VALUES ({number}, 'x');\n")
    };
    let text: String = (0..2_000).map(step).collect();
    let limits = Limits { time_ms: 60_000, ..Limits::default() };
    let judgement = engines().judge(&Request { limits, ..request(&text) });
    assert_eq!(judgement.verdict, Verdict::Ok, "{:?}", judgement.diagnostics);
}

#[test]
fn what_a_migration_did_is_undone_whatever_became_of_it() {
    let mut engines = engines();
    let migrations = [
        ("CREATE TABLE notes (a INTEGER); INSERT INTO notes VALUES (1); DROP TABLE customers", Verdict::Ok),
        (
            "CREATE TABLE notes (a INTEGER); ALTER TABLE customers RENAME TO people; SELECT nope FROM notes",
            Verdict::Reject,
        ),
        (
            "ALTER TABLE customers ADD COLUMN tier TEXT; CREATE TABLE notes (a); COMMIT; DROP TABLE notes",
            Verdict::Reject,
        ),
        ("CREATE TABLE notes (a); CREATE VIEW v AS SELECT * FROM notes; DELETE FROM notes", Verdict::Reject),
    ];
    let before = engines.judge(&request("SELECT name FROM customers")).digest;
    for (sql, expected) in migrations {
        let judged = engines.judge(&request(sql));
        assert_eq!(judged.verdict, expected, "{sql}: {judged:#?}");
        let after = engines.judge(&request("SELECT a FROM notes"));
        assert_eq!(codes(&after), [SqlCode::UnknownTable], "{sql}");
        assert_eq!(engines.judge(&request("SELECT name FROM customers")).digest, before, "{sql}");
        assert_eq!(engines.judge(&request("SELECT tier FROM customers")).verdict, Verdict::Reject, "{sql}");
    }
}

/// An engine that is extended by the next files gives the same judgements as a new engine with the same schema.
#[test]
fn going_on_is_the_same_as_beginning_anew() {
    let files = [
        "CREATE TABLE notes (id INTEGER PRIMARY KEY AUTOINCREMENT, body TEXT DEFAULT \"none\");",
        "INSERT INTO notes (body) VALUES ('a'), ('b'); CREATE INDEX by_body ON notes (body);",
        "ALTER TABLE notes ADD COLUMN author INTEGER REFERENCES customers(id); CREATE VIEW authors AS SELECT author FROM notes;",
        "ALTER TABLE notes RENAME COLUMN author TO writer; UPDATE notes SET writer = 1 WHERE body = 'a';",
        "SELECT nope FROM authors; INSERT INTO notes (writer) SELECT id FROM customers WHERE id > 1;",
    ];
    let mut going_on = engines();
    let mut schema = vec![SCHEMA.to_owned()];
    for file in files {
        let asked = Request { schema: schema.clone(), ..request(file) };
        let (on, anew) = (going_on.judge(&asked), engines().judge(&asked));
        assert_eq!(on.digest, anew.digest, "{file}\n{on:#?}\n{anew:#?}");
        schema.push(file.to_owned());
    }
}

/// The lists also apply to objects that earlier statements created.
#[test]
fn lists_of_names_hold_for_what_a_migration_makes() {
    let allow = Allow { tables: vec!["notes".to_owned()], ..Allow::default() };
    let of = |sql: &str| codes(&engines().judge(&Request { allow: allow.clone(), ..request(sql) }));
    assert_eq!(of("CREATE TABLE notes (a TEXT); INSERT INTO notes (a) VALUES ('x')"), []);
    assert_eq!(
        of("CREATE TABLE notes (a TEXT); INSERT INTO notes SELECT name FROM customers"),
        [SqlCode::TableRefused]
    );
    assert_eq!(of("CREATE TABLE notes (a TEXT); CREATE TABLE more (b TEXT)"), [SqlCode::TableRefused]);
    let call = "CREATE TABLE notes (a TEXT); INSERT INTO notes SELECT load_extension(a) FROM notes";
    assert_eq!(of(call), [SqlCode::FunctionRefused]);
}
