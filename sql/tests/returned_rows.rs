//! Statements that are judged and run, with SQLite: typed rows, limits, and effects that are undone.

use proctor_core::sql::{
    DescribedTable, Dialect, ResultRows, SchemaRequest, SqlAllow, SqlPolicy, SqlRequest, SqlResourceLimits,
    SqlRunAnswer, SqlRunRequest, SqlVerdict, StageName,
};
use proctor_sql::worker::EngineCache;
use serde_json::json;

fn engines() -> EngineCache {
    EngineCache::new(Err(proctor_duckdb::LibraryNotFound::NotPassed))
}

fn request(schema: &str, sql: &str) -> SqlRequest {
    SqlRequest { schema: vec![schema.to_owned()], ..SqlRequest::new(Dialect::Sqlite, sql) }
}

fn run(request: SqlRequest) -> SqlRunAnswer {
    engines().run(&SqlRunRequest { request, commit: false })
}

fn result(request: SqlRequest) -> ResultRows {
    let answer = run(request);
    answer.result.unwrap_or_else(|| panic!("{:?}: {}", answer.error, answer.judgement.feedback))
}

const SHOP: &str = "CREATE TABLE orders (id INTEGER PRIMARY KEY, total REAL, note TEXT);
    INSERT INTO orders VALUES (1, 2.5, 'first'), (2, 7.0, 'it''s'), (3, 9e999, NULL);";

#[test]
fn returns_typed_values() {
    let sql = "SELECT 9007199254740993 AS big, -1 AS small, 0.5 AS real, 9e999 AS endless, 'ä' AS text, NULL AS none, \
               x'00ff' AS bytes, CAST(x'ff' AS TEXT) AS broken";
    let rows = result(request("", sql));
    let names: Vec<&str> = rows.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["big", "small", "real", "endless", "text", "none", "bytes", "broken"]);
    let expected = json!([
        "9007199254740993", -1, 0.5, "Infinity", "ä", null, {"base64": "AP8="}, {"base64": "/w=="}
    ]);
    assert_eq!(json!(rows.rows), json!([expected]));
    assert!(!rows.truncated && !rows.committed && rows.changed == Some(0));
}

#[test]
fn returns_rows_of_the_schema_and_no_scratch_rows() {
    let rows = result(request(SHOP, "SELECT id, note FROM orders ORDER BY id"));
    assert_eq!(json!(rows.rows), json!([[1, "first"], [2, "it's"], [3, null]]));
    let empty = result(request("CREATE TABLE t (a)", "SELECT a FROM t"));
    assert_eq!((empty.rows.len(), empty.truncated), (0, false));
}

#[test]
fn schema_fills_virtual_tables() {
    for (schema, sql) in [
        ("CREATE VIRTUAL TABLE n USING fts3(body); INSERT INTO n VALUES ('x y')", "SELECT 1 FROM n WHERE n MATCH 'x'"),
        ("CREATE VIRTUAL TABLE n USING fts4(body); INSERT INTO n VALUES ('x y')", "SELECT 1 FROM n WHERE n MATCH 'x'"),
        ("CREATE VIRTUAL TABLE n USING fts5(body); INSERT INTO n VALUES ('x y')", "SELECT 1 FROM n WHERE n MATCH 'x'"),
        (
            "CREATE VIRTUAL TABLE r USING rtree(id, a, b); INSERT INTO r VALUES (1, 2, 3)",
            "SELECT id FROM r WHERE a > 1",
        ),
        ("CREATE VIRTUAL TABLE r USING rtree_i32(id, a, b); INSERT INTO r VALUES (1, 2, 3)", "SELECT id FROM r"),
    ] {
        assert_eq!(json!(result(request(schema, sql)).rows), json!([[1]]), "{schema}");
    }
    let dump = "PRAGMA writable_schema = ON; INSERT INTO sqlite_master (type, name, tbl_name, rootpage, sql)
        VALUES ('table', 'n', 'n', 0, 'CREATE VIRTUAL TABLE n USING fts4(body)')";
    let refused = format!("{:?}", run(request(dump, "SELECT 1")));
    assert!(refused.contains("may not be modified; dumps with virtual tables"), "{refused}");
}

#[test]
fn limits_rows_and_bytes() {
    let limits = SqlResourceLimits { rows: 2, ..SqlResourceLimits::default() };
    let two = result(SqlRequest { limits, ..request(SHOP, "SELECT id FROM orders ORDER BY id") });
    assert_eq!((json!(two.rows), two.truncated), (json!([[1], [2]]), true));
    let exact = SqlResourceLimits { rows: 3, ..limits };
    let three = result(SqlRequest { limits: exact, ..request(SHOP, "SELECT id FROM orders") });
    assert_eq!((three.rows.len(), three.truncated), (3, false));
    // The values have 9 bytes, but 24 as JSON.
    let limits = SqlResourceLimits { result: 20, ..SqlResourceLimits::default() };
    let cut = result(SqlRequest { limits, ..request("", "SELECT char(1, 1, 1) UNION ALL SELECT char(1, 1)") });
    assert_eq!((cut.rows.len(), cut.truncated), (0, true));
}

#[test]
fn write_is_undone_and_reports_its_rows() {
    let mut engines = engines();
    let write = SqlRequest {
        policy: SqlPolicy::Write,
        ..request(SHOP, "UPDATE orders SET note = 'x' WHERE id < 3 RETURNING id, note")
    };
    let limits = SqlResourceLimits { rows: 1, ..SqlResourceLimits::default() };
    for limits in [SqlResourceLimits::default(), limits] {
        let answer = engines.run(&SqlRunRequest { request: SqlRequest { limits, ..write.clone() }, commit: false });
        let rows = answer.result.unwrap_or_else(|| panic!("{:?} {}", answer.error, answer.judgement.feedback));
        assert_eq!((rows.changed, rows.committed, rows.truncated), (Some(2), false, limits.rows == 1));
        assert_eq!(json!(rows.rows[0]), json!([1, "x"]));
        let read = SqlRequest { sql: "SELECT note FROM orders WHERE id = 1".to_owned(), limits, ..write.clone() };
        let read = engines.run(&SqlRunRequest { request: read, commit: false });
        assert_eq!(json!(read.result.expect("rows").rows), json!([["first"]]));
    }
}

#[test]
fn rejected_statement_is_not_run() {
    for (sql, policy) in
        [("DELETE FROM orders WHERE id = 1", SqlPolicy::Read), ("SELECT nmae FROM orders", SqlPolicy::Read)]
    {
        let answer = run(SqlRequest { policy, ..request(SHOP, sql) });
        assert_eq!(answer.judgement.verdict, SqlVerdict::Reject, "{sql}");
        assert!(answer.result.is_none() && answer.error.is_none(), "{sql}");
    }
}

#[test]
fn stages_bind_and_safety_are_required() {
    for left_out in [StageName::Bind, StageName::Safety] {
        let stages = StageName::ALL.into_iter().filter(|stage| *stage != left_out).collect();
        let answer = run(SqlRequest { stages: Some(stages), ..request(SHOP, "SELECT 1") });
        assert_eq!(answer.judgement.verdict, SqlVerdict::Error);
        let message = &answer.judgement.diagnostics[0].message;
        assert!(message.contains(left_out.as_str()), "{message}");
    }
    let few = vec![StageName::Bind, StageName::Safety];
    assert_eq!(result(SqlRequest { stages: Some(few), ..request(SHOP, "SELECT 1") }).rows.len(), 1);
}

#[test]
fn parameters_have_no_values() {
    let answer = run(request(SHOP, "SELECT note FROM orders WHERE id = ?"));
    assert_eq!(answer.judgement.verdict, SqlVerdict::Ok, "{}", answer.judgement.feedback);
    assert!(answer.result.is_none());
    assert!(answer.error.expect("a reason").contains("parameter"));
}

#[test]
fn migration_runs_its_statements_in_order() {
    let sql = "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2); SELECT a FROM t ORDER BY a";
    let rows = result(SqlRequest { policy: SqlPolicy::Migrate, ..request("", sql) });
    assert_eq!((json!(rows.rows), rows.changed), (json!([[1], [2]]), Some(2)));
}

#[test]
fn error_at_run_time_has_no_result() {
    // The chain does not see the rows of this schema without the stage `run`.
    let stages = Some(vec![StageName::Bind, StageName::Safety]);
    let sql = "INSERT INTO orders VALUES (1, 0, '')";
    let answer = run(SqlRequest { stages, policy: SqlPolicy::Write, ..request(SHOP, sql) });
    assert_eq!(answer.judgement.verdict, SqlVerdict::Ok);
    assert!(answer.result.is_none() && answer.error.expect("a reason").contains("UNIQUE"));
}

fn describe(schema: &str, allow: SqlAllow, samples: u32) -> Vec<DescribedTable> {
    let answer = engines().describe(&SchemaRequest {
        dialect: Dialect::Sqlite,
        schema: vec![schema.to_owned()],
        database: None,
        allow,
        samples,
        limits: SqlResourceLimits::default(),
    });
    answer.schema.unwrap_or_else(|| panic!("{:?}", answer.error)).tables
}

#[test]
fn describes_only_what_the_lists_allow() {
    let schema = "CREATE TABLE secret (id INTEGER PRIMARY KEY, pin TEXT);
        CREATE TABLE t ( -- beside secret
            id INTEGER PRIMARY KEY, -- not the pin
            a TEXT NOT NULL, -- the text, see hidden and secret.pin
            s INT REFERENCES secret (id), hidden TEXT,
            copy TEXT AS (hidden || '!'));
        CREATE VIEW v AS SELECT pin AS shown FROM secret;
        INSERT INTO secret VALUES (7, '1234');
        INSERT INTO t VALUES (1, 'alpha', 7, 'concealed'), (2, 'beta', NULL, 'concealed');";
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let allow = SqlAllow {
        tables: names(&["t", "v"]),
        columns: names(&["t.id", "t.a", "t.s", "t.copy"]),
        ..SqlAllow::default()
    };
    let tables = describe(schema, allow, 5);
    let described = serde_json::to_string(&tables).expect("JSON");
    for hidden in ["secret", "hidden", "concealed", "1234", "pin"] {
        assert!(!described.contains(hidden), "{hidden}: {described}");
    }
    let columns: Vec<_> = tables[0]
        .columns
        .iter()
        .map(|column| (column.name.as_str(), column.is_not_null, column.is_primary_key, json!(column.samples)))
        .collect();
    let expected = [
        ("id", false, true, json!([1, 2])),
        ("a", true, false, json!(["alpha", "beta"])),
        ("s", false, false, json!([7])),
        // The generated column is computed from a column that is off the list.
        ("copy", false, false, json!([])),
    ];
    assert_eq!(columns, expected);
    assert_eq!(tables[0].comment.as_deref(), Some("beside …"));
    assert_eq!(
        (tables[1].is_view, json!(tables[1].columns[0].samples)),
        (true, json!([])),
        "the table behind is hidden"
    );
}

#[test]
fn describes_samples_with_masked_personal_data() {
    let schema =
        "CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, note TEXT, long TEXT, tier TEXT, raw BLOB);
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INT REFERENCES customers);
        INSERT INTO customers VALUES (1, 'Ann Lee', 'call +49 170 1234567', hex(zeroblob(100)), 'gold', x'00'),
            (2, 'Bo', 'none', 'b', 'gold', NULL), (3, NULL, '', '', 'tin', NULL);";
    let tables = describe(schema, SqlAllow::default(), 2);
    let column = |name: &str| {
        let column = tables[0].columns.iter().find(|column| column.name == name).expect("a column");
        (json!(column.samples), column.is_masked)
    };
    assert_eq!(column("name"), (json!(["Xxx Xxx", "Xx"]), true));
    assert_eq!(column("note"), (json!(["xxxx +00 000 0000000", "xxxx"]), true), "one value shows personal data");
    assert_eq!(column("tier"), (json!(["gold", "tin"]), false));
    assert_eq!(column("raw"), (json!([]), false));
    let long = format!("{}…", "0".repeat(64));
    assert_eq!(column("long"), (json!([long, "b"]), false));
    let keys = &tables[1].foreign_keys;
    assert_eq!((keys[0].column.as_str(), keys[0].referenced_table.as_str()), ("customer", "customers"));
    assert!(describe(schema, SqlAllow::default(), 0)[0].columns.iter().all(|column| column.samples.is_empty()));
}
