//! Tests the rows of statements that are judged and run.

use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use libtest_mimic::Failed;
use proctor_core::sql::{
    Dialect, ResultRows, SchemaAnswer, SchemaRequest, SqlAllow, SqlPolicy, SqlRequest, SqlResourceLimits, SqlRunAnswer,
    SqlRunRequest, SqlVerdict, StageName,
};
use proctor_sql::worker::EngineCache;
use serde_json::json;

use crate::create_database;

type RowsTest = fn() -> Result<(), Failed>;

pub(crate) fn all() -> Vec<(&'static str, RowsTest)> {
    vec![
        ("returns_typed_values", returns_typed_values),
        ("limits_stored_rows", limits_stored_rows),
        ("undoes_writes_after_their_rows", undoes_writes_after_their_rows),
        ("keeps_effects_only_on_request", keeps_effects_only_on_request),
        ("reads_write_ahead_log", reads_write_ahead_log),
        ("describes_schema", describes_schema),
    ]
}

/// Runs each request of standard input, one per line, with the engines of one worker.
pub(crate) fn run_all(library: &Path) {
    let mut engines = EngineCache::new(Ok(library.to_owned()));
    let mut output = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let request: SqlRunRequest = serde_json::from_str(&line.expect("a line")).expect("a request");
        let json = serde_json::to_string(&engines.run(&request)).expect("an answer is JSON");
        writeln!(output, "{json}").expect("the parent listens");
    }
}

/// Describes the schema of the request on standard input.
pub(crate) fn describe_schema(library: &Path) {
    let request = std::io::read_to_string(std::io::stdin()).expect("a request");
    let request: SchemaRequest = serde_json::from_str(&request).expect("a request");
    let answer = EngineCache::new(Ok(library.to_owned())).describe(&request);
    println!("{}", serde_json::to_string(&answer).expect("an answer is JSON"));
}

fn run(requests: Vec<SqlRequest>) -> Result<Vec<ResultRows>, Failed> {
    let answers = answers(requests.into_iter().map(|request| SqlRunRequest { request, commit: false }).collect())?;
    let rows = answers.into_iter().map(|answer| {
        answer.result.ok_or_else(|| format!("{:?}: {:#?}", answer.error, answer.judgement.diagnostics).into())
    });
    rows.collect()
}

fn answers(requests: Vec<SqlRunRequest>) -> Result<Vec<SqlRunAnswer>, Failed> {
    let mut child =
        Command::new(std::env::current_exe()?).arg("--run").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    let count = requests.len();
    for request in requests {
        writeln!(input, "{}", serde_json::to_string(&request)?)?;
    }
    drop(input);
    let output = String::from_utf8(child.wait_with_output()?.stdout)?;
    let answers: Vec<SqlRunAnswer> = output.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    assert_eq!(answers.len(), count);
    Ok(answers)
}

fn request(schema: &str, policy: SqlPolicy, sql: &str) -> SqlRequest {
    SqlRequest { policy, schema: vec![schema.to_owned()], ..SqlRequest::new(Dialect::Duckdb, sql) }
}

fn returns_typed_values() -> Result<(), Failed> {
    // Each value with the text that DuckDB itself shows, or with its JSON.
    let texts = [
        "DATE '1969-12-31'",
        "DATE '0044-03-15 (BC)'",
        "'infinity'::DATE",
        "TIME '12:34:56.5'",
        "TIMETZ '12:34:56+02:30'",
        "TIMESTAMP '2026-01-02 03:04:05.000006'",
        "TIMESTAMP_S '2026-01-02 03:04:05'",
        "TIMESTAMP_MS '1960-01-02 03:04:05.5'",
        "TIMESTAMP_NS '2026-01-02 03:04:05.000000001'",
        "INTERVAL '14 months -3 days 04:05:06.7'",
        "-12.50::DECIMAL(4, 2)",
        "-0.05::DECIMAL(38, 10)",
        "'01020304-0506-0708-090a-0b0c0d0e0f10'::UUID",
        "'10110'::BIT",
        "170141183460469231731687303715884105727::HUGEINT",
        "340282366920938463463374607431768211455::UHUGEINT",
        "123456789012345678901234567890123456789012345::BIGNUM",
        "-300::BIGNUM",
        "'b'::ENUM('a', 'b')",
    ];
    let pairs: Vec<String> = texts.iter().map(|value| format!("{value}, CAST({value} AS VARCHAR)")).collect();
    let json_values = [
        ("1::TINYINT", json!(1)),
        ("65535::USMALLINT", json!(65_535)),
        ("9007199254740993", json!("9007199254740993")),
        ("18446744073709551615::UBIGINT", json!("18446744073709551615")),
        ("0.5::FLOAT", json!(0.5)),
        ("'nan'::DOUBLE", json!("NaN")),
        ("true", json!(true)),
        ("NULL", json!(null)),
        ("'a longer text than twelve bytes: ä'", json!("a longer text than twelve bytes: ä")),
        ("'\\x00\\xFF'::BLOB", json!({"base64": "AP8="})),
        ("[1, NULL, 3]", json!([1, null, 3])),
        ("{'a': 1, 'b': [DATE '2026-01-02']}", json!({"a": 1, "b": ["2026-01-02"]})),
        ("MAP {'k': [1]}", json!({"k": [1]})),
        ("MAP {1: 'a'}", json!([[1, "a"]])),
        ("[[1, 2], [3, 4]]::INTEGER[2][2]", json!([[1, 2], [3, 4]])),
        ("union_value(n := 5)", json!(5)),
    ];
    let values: Vec<&str> = json_values.iter().map(|(sql, _)| *sql).collect();
    let rows = run(vec![
        request("", SqlPolicy::Read, &format!("SELECT {}", pairs.join(", "))),
        request("", SqlPolicy::Read, &format!("SELECT {}", values.join(", "))),
        // Lists of different rows follow each other in one vector.
        request("", SqlPolicy::Read, "SELECT range(n) AS l FROM range(3) t(n) ORDER BY n"),
        request("", SqlPolicy::Read, "SELECT n FROM range(5000) t(n) ORDER BY n"),
    ])?;
    let shown = &rows[0].rows[0];
    for (at, value) in texts.iter().enumerate() {
        assert_eq!(shown[2 * at], shown[2 * at + 1], "{value}");
    }
    for ((sql, expected), value) in json_values.iter().zip(&rows[1].rows[0]) {
        assert_eq!(value, expected, "{sql}");
    }
    assert_eq!(json!(rows[2].rows), json!([[[]], [[0]], [[0, 1]]]));
    assert_eq!((rows[3].rows.len(), &rows[3].rows[4_999]), (5_000, &vec![json!(4_999)]), "several chunks");
    Ok(())
}

fn limits_stored_rows() -> Result<(), Failed> {
    let few = SqlResourceLimits { rows: 2, ..SqlResourceLimits::default() };
    let read = request("", SqlPolicy::Read, "SELECT n FROM range(5000) t(n) ORDER BY n");
    let bytes = SqlResourceLimits { result: 50_000, ..SqlResourceLimits::default() };
    let escaped = "SELECT repeat(chr(1), 300) FROM range(100) t(n)";
    let rows = run(vec![
        SqlRequest { limits: few, ..read },
        SqlRequest { limits: bytes, ..request("", SqlPolicy::Read, escaped) },
    ])?;
    assert_eq!((json!(rows[0].rows), rows[0].truncated), (json!([[0], [1]]), true));
    assert!(rows[1].truncated && (20..30).contains(&rows[1].rows.len()), "{}", rows[1].rows.len());
    Ok(())
}

fn undoes_writes_after_their_rows() -> Result<(), Failed> {
    let schema = "CREATE TABLE t (a INTEGER, b VARCHAR); INSERT INTO t VALUES (1, 'x'), (2, 'y'), (3, 'z')";
    let rows = run(vec![
        request(schema, SqlPolicy::Write, "UPDATE t SET b = 'new' WHERE a < 3 RETURNING a, b"),
        request(schema, SqlPolicy::Write, "DELETE FROM t WHERE a = 1"),
        request(schema, SqlPolicy::Write, "SELECT count(*) FROM t WHERE b <> 'new'"),
        request(schema, SqlPolicy::Migrate, "CREATE TABLE u (a INTEGER); INSERT INTO u VALUES (5); SELECT a FROM u"),
    ])?;
    assert_eq!((json!(rows[0].rows), rows[0].changed), (json!([[1, "new"], [2, "new"]]), Some(2)));
    assert_eq!((rows[1].columns.len(), rows[1].rows.len(), rows[1].changed), (0, 0, Some(1)));
    assert_eq!(json!(rows[2].rows), json!([[3]]));
    assert_eq!((json!(rows[3].rows), rows[3].changed), (json!([[5]]), Some(1)));
    Ok(())
}

fn of_file(file: &Path, policy: SqlPolicy, sql: &str) -> SqlRequest {
    let database = Some(file.to_string_lossy().into_owned());
    SqlRequest { policy, database, ..SqlRequest::new(Dialect::Duckdb, sql) }
}

fn keeps_effects_only_on_request() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("shop.duckdb");
    create_database(
        &file,
        "CREATE TABLE t (a INTEGER PRIMARY KEY, b VARCHAR); INSERT INTO t VALUES (1, 'x'), (2, 'y')",
    )?;
    let before = std::fs::read(&file)?;
    let update = of_file(&file, SqlPolicy::Write, "UPDATE t SET b = 'new' WHERE a = 1 RETURNING b");
    let migrate = of_file(
        &file,
        SqlPolicy::Migrate,
        "CREATE TABLE u (c INTEGER); INSERT INTO u SELECT a FROM t; INSERT INTO t VALUES (3, 'w')",
    );
    // The second statement fails, which only the stage `run` would see.
    let stages = Some(vec![StageName::Bind, StageName::Safety]);
    let late = "INSERT INTO t VALUES (8, 'v'); INSERT INTO t VALUES (1, 'again')";
    let late = SqlRequest { stages, ..of_file(&file, SqlPolicy::Migrate, late) };
    let undone = answers(vec![
        SqlRunRequest { request: update.clone(), commit: false },
        SqlRunRequest { request: late, commit: true },
        SqlRunRequest { request: of_file(&file, SqlPolicy::Write, "DELETE FROM t"), commit: true },
    ])?;
    assert_eq!(undone[0].result.as_ref().map(|result| (result.changed, result.committed)), Some((Some(1), false)));
    assert!(undone[1].result.is_none() && undone[1].error.is_some(), "{:#?}", undone[1]);
    assert!(undone[2].result.is_none() && undone[2].judgement.verdict == SqlVerdict::Reject);
    let unchanged = run(vec![of_file(&file, SqlPolicy::Read, "SELECT * FROM t ORDER BY a")])?;
    assert_eq!(json!(unchanged[0].rows), json!([[1, "x"], [2, "y"]]));
    // Opening a file for a commit may change its header. The other answer must not have changed the file.
    assert_eq!(std::fs::metadata(&file)?.len(), before.len() as u64);
    let kept = answers(vec![
        SqlRunRequest { request: update, commit: true },
        SqlRunRequest { request: migrate, commit: true },
    ])?;
    for answer in &kept {
        assert!(answer.result.as_ref().is_some_and(|result| result.committed), "{answer:#?}");
    }
    let rows = run(vec![
        of_file(&file, SqlPolicy::Read, "SELECT b FROM t ORDER BY a"),
        of_file(&file, SqlPolicy::Read, "SELECT c FROM u ORDER BY c"),
    ])?;
    assert_eq!(json!(rows[0].rows), json!([["new"], ["y"], ["w"]]));
    assert_eq!(json!(rows[1].rows), json!([[1], [2]]));
    Ok(())
}

fn reads_write_ahead_log() -> Result<(), Failed> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("shop.duckdb");
    create_database(
        &file,
        "CREATE TABLE t (a INTEGER); CHECKPOINT; PRAGMA disable_checkpoint_on_shutdown; INSERT INTO t VALUES (7)",
    )?;
    assert!(std::fs::metadata(directory.path().join("shop.duckdb.wal"))?.len() > 0, "the row is only in the log");
    let rows = run(vec![
        of_file(&file, SqlPolicy::Read, "SELECT a FROM t"),
        of_file(&file, SqlPolicy::Write, "UPDATE t SET a = 8 WHERE a = 7 RETURNING a"),
    ])?;
    assert_eq!((json!(rows[0].rows), json!(rows[1].rows)), (json!([[7]]), json!([[8]])));
    Ok(())
}

fn describes_schema() -> Result<(), Failed> {
    let schema = "CREATE SCHEMA old; CREATE TABLE old.u (id INTEGER PRIMARY KEY); COMMENT ON TABLE old.u IS 'beside t';
        CREATE TABLE t (id INTEGER PRIMARY KEY, email VARCHAR, day DATE NOT NULL, tags VARCHAR[]);
        COMMENT ON COLUMN t.day IS 'the day';
        CREATE VIEW v AS SELECT id FROM t;
        INSERT INTO t VALUES (1, 'ann@example.org', '2026-01-02', ['a'])";
    let request = SchemaRequest {
        dialect: Dialect::Duckdb,
        schema: vec![schema.to_owned()],
        database: None,
        allow: SqlAllow::default(),
        samples: 3,
        limits: SqlResourceLimits::default(),
    };
    let mut child = Command::new(std::env::current_exe()?)
        .arg("--describe")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    child.stdin.take().ok_or("no input")?.write_all(&serde_json::to_vec(&request)?)?;
    let answer: SchemaAnswer = serde_json::from_slice(&child.wait_with_output()?.stdout)?;
    let tables = answer.schema.ok_or_else(|| format!("{:?}", answer.error))?.tables;
    let table = |name: &str| tables.iter().find(|table| table.name == name).ok_or(format!("no {name}: {tables:#?}"));
    assert_eq!(table("old.u")?.comment.as_deref(), Some("beside t"));
    let columns = table("t")?.columns.iter();
    let described: Vec<_> = columns
        .map(|column| (&*column.name, column.comment.as_deref(), json!(column.samples), column.is_masked))
        .collect();
    let expected = [
        ("id", None, json!([1]), false),
        ("email", None, json!(["xxx@xxxxxxx.xxx"]), true),
        ("day", Some("the day"), json!(["2026-01-02"]), false),
        ("tags", None, json!([["a"]]), false),
    ];
    assert_eq!(described, expected);
    assert_eq!((table("v")?.is_view, json!(table("v")?.columns[0].samples)), (true, json!([1])));
    Ok(())
}
