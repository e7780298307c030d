//! Tests texts with their expected verdicts.

use libtest_mimic::Failed;
use proctor_core::sql::{Dialect, Judgement, SqlCode, SqlPolicy, SqlRequest, SqlVerdict, StageName};

use crate::{errors, judge};

type CaseTest = fn() -> Result<(), Failed>;

const SCHEMA: &str = "
    CREATE TABLE people (id INTEGER PRIMARY KEY, name VARCHAR NOT NULL, town VARCHAR, born DATE);
    CREATE TABLE bills (id INTEGER PRIMARY KEY, person INTEGER REFERENCES people(id), total DECIMAL(10, 2),
        state VARCHAR, made TIMESTAMP);
    CREATE TABLE \"order\" (\"group\" VARCHAR, n INTEGER);
    CREATE SCHEMA old; CREATE TABLE old.people (id INTEGER, name VARCHAR);
    CREATE SEQUENCE counter; CREATE TABLE counted (id INTEGER DEFAULT nextval('counter'), what VARCHAR);
    CREATE TABLE squares (n INTEGER, square INTEGER GENERATED ALWAYS AS (n * n));
    CREATE VIEW debtors AS SELECT p.name, sum(b.total) AS debt FROM people p JOIN bills b ON b.person = p.id GROUP BY ALL;
    CREATE VIEW rich AS SELECT name FROM debtors WHERE debt < 0;
    CREATE MACRO twice(x) AS x + x;
    CREATE MACRO setting_of(x) AS current_setting(x);
    CREATE MACRO of_town(t) AS TABLE SELECT * FROM people WHERE town = t;
    INSERT INTO people VALUES (1, 'Ann', 'Ulm', '1970-01-01'), (2, 'Bo', 'Rom', NULL), (3, 'Cy', NULL, '2001-02-03');
    INSERT INTO bills VALUES (1, 1, 10.5, 'paid', '2024-01-01'), (2, 1, 7, 'open', NULL), (3, 2, 99, 'open', NULL);";

pub(crate) fn all() -> Vec<(&'static str, CaseTest)> {
    vec![
        ("accepts_queries", accepts_queries),
        ("accepts_allowed_writes", accepts_allowed_writes),
        ("rejects_invalid_syntax", rejects_invalid_syntax),
        ("rejects_unknown_names", rejects_unknown_names),
        ("rejects_external_access", rejects_external_access),
        ("rejects_forbidden_writes", rejects_forbidden_writes),
        ("enforces_limits", enforces_limits),
        ("findings_have_positions_and_candidates", findings_have_positions_and_candidates),
        ("enforces_allow_lists", enforces_allow_lists),
        ("leaves_database_file_unchanged", leaves_database_file_unchanged),
        ("counts_touched_rows", counts_touched_rows),
        ("migration_sees_earlier_statements", migration_sees_earlier_statements),
        ("equal_requests_give_equal_judgements", equal_requests_give_equal_judgements),
    ]
}

fn request(sql: &str, policy: SqlPolicy) -> SqlRequest {
    SqlRequest { policy, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Duckdb, sql) }
}

fn check_each(sqls: &[&str], policy: SqlPolicy, check: impl Fn(&Judgement) -> Option<String>) -> Result<(), Failed> {
    let requests: Vec<SqlRequest> = sqls.iter().map(|sql| request(sql, policy)).collect();
    let wrong: Vec<String> = judge(&requests)?
        .iter()
        .zip(sqls)
        .filter_map(|(judgement, sql)| {
            check(judgement).map(|why| format!("{sql}: {why}\n{:#?}", judgement.diagnostics))
        })
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

fn expect_ok(judgement: &Judgement) -> Option<String> {
    let failed: Vec<&str> = judgement.stages.iter().filter_map(|stage| stage.reason.as_deref()).collect();
    (judgement.verdict != SqlVerdict::Ok).then(|| format!("not let through {failed:?}"))
}

/// Checks that a stage rejected the text.
fn rejected_by(stage: StageName) -> impl Fn(&Judgement) -> Option<String> {
    move |judgement| {
        let is_it = judgement.verdict == SqlVerdict::Reject && errors(judgement).iter().any(|(by, _)| *by == stage);
        (!is_it).then(|| format!("{:?}, and not by `{}`", judgement.verdict, stage.as_str()))
    }
}

fn accepts_queries() -> Result<(), Failed> {
    const QUERIES: &[&str] = &[
        "SELECT 1",
        "SELECT name -- drop table people\nFROM people",
        "/* delete */ SELECT name, town FROM PEOPLE WHERE Name LIKE '%--%;'",
        "FROM people",
        "TABLE people",
        "VALUES (1, 'a'), (2, 'b')",
        "SELECT * FROM debtors WHERE debt > 5 ORDER BY debt DESC LIMIT 3",
        "SELECT town, count(*) AS n FROM people GROUP BY ALL HAVING n > 1",
        "SELECT * EXCLUDE (id) REPLACE (upper(name) AS name) FROM people",
        "SELECT COLUMNS('.*a.*') FROM people",
        "SELECT p.name, (SELECT max(b.total) FROM bills b WHERE b.person = p.id) FROM people p",
        "SELECT id, row_number() OVER (PARTITION BY person ORDER BY made DESC) AS rn FROM bills QUALIFY rn = 1",
        "SELECT sum(total) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW), rank() OVER (ORDER BY total) FROM bills",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 10) SELECT n FROM s",
        "WITH a AS (SELECT * FROM people), people AS (SELECT 1 AS x) SELECT * FROM a, people",
        "SELECT name FROM people UNION ALL SELECT state FROM bills EXCEPT SELECT 'x'",
        "SELECT \"order\".\"group\" FROM \"order\"",
        "SELECT o.name FROM old.people o JOIN main.people USING (id)",
        "SELECT date_trunc('month', made), time_bucket(INTERVAL '1 hour', made), strftime(made, '%Y') FROM bills",
        "SELECT now(), current_date, random(), uuid(), version()",
        "SELECT list_transform([1, 2], x -> x + 1), [y * 2 FOR y IN [1, 2]], {'a': 1}.a, MAP {'k': 1}['k']",
        "SELECT unnest([1, 2, 3])",
        "SELECT * FROM range(10) t(i), generate_series(1, 3), unnest(['a', 'b'])",
        "SELECT string_agg(name, ', ' ORDER BY name), approx_quantile(id, 0.5), arg_max(name, id), any_value(town) FROM people",
        "SELECT * FROM people ASOF JOIN bills ON people.born >= bills.made",
        "SELECT * FROM people p POSITIONAL JOIN bills b",
        "SELECT * FROM people SEMI JOIN bills ON people.id = bills.person",
        "SELECT p.name, b.total FROM people p, LATERAL (SELECT * FROM bills WHERE person = p.id) b",
        "SELECT * FROM bills USING SAMPLE 50%",
        "SELECT * FROM bills TABLESAMPLE reservoir(2 ROWS)",
        "PIVOT bills ON state USING sum(total)",
        "PIVOT bills ON state IN ('paid', 'open') USING sum(total), count(*) GROUP BY person",
        "WITH p AS (PIVOT bills ON state, person USING count(*)) SELECT * FROM p",
        "UNPIVOT people ON name, town INTO NAME k VALUE v",
        "EXPLAIN SELECT name FROM people",
        "EXPLAIN ANALYZE SELECT name FROM people",
        "EXPLAIN (FORMAT json) SELECT name FROM people",
        "DESCRIBE people",
        "DESCRIBE SELECT name FROM people",
        "SUMMARIZE people",
        "SHOW TABLES",
        "SHOW ALL TABLES",
        "SELECT table_name FROM information_schema.tables",
        "SELECT * FROM duckdb_columns() WHERE table_name = 'people'",
        "PRAGMA table_info('people')",
        "PRAGMA show_tables",
        "SELECT twice(id) FROM of_town('Ulm')",
        "SELECT CAST('x' || id AS VARCHAR), name::VARCHAR, TRY_CAST(town AS INTEGER) FROM people",
        "SELECT * FROM people WHERE id = $id AND town = $name",
        "SELECT CASE WHEN town IS NULL THEN 'none' ELSE town END, coalesce(town, 'x'), nullif(town, 'Ulm') FROM people",
        "SELECT name FROM people WHERE id IN (SELECT person FROM bills) AND EXISTS (FROM bills) AND town NOT IN ('x')",
        "SELECT json_extract('{\"a\": 1}', '$.a'), regexp_matches(name, 'A.*'), name SIMILAR TO 'A.*' FROM people",
        "SELECT square FROM squares",
        "SELECT 1e400, -1e400, 'NaN'::DOUBLE, 'Infinity'",
        "SELECT grouping(town), town, count(*) FROM people GROUP BY ROLLUP (town)",
        "SELECT last_update FROM (SELECT max(made) AS last_update FROM bills)",
        "SELECT 'DROP TABLE people; COPY x TO y' AS text",
    ];
    check_each(QUERIES, SqlPolicy::Read, expect_ok)
}

fn accepts_allowed_writes() -> Result<(), Failed> {
    const WRITES: &[&str] = &[
        "INSERT INTO people (id, name) VALUES (100, 'Zed')",
        "INSERT INTO people VALUES (101, 'Yo', 'Ulm', '1999-09-09') RETURNING id",
        "INSERT INTO counted (what) VALUES ('x')",
        "INSERT INTO counted SELECT nextval('counter'), name FROM people",
        "INSERT INTO people BY NAME SELECT 102 AS id, 'Xu' AS name",
        "INSERT OR REPLACE INTO people (id, name) VALUES (3, 'Cyd')",
        "INSERT INTO people (id, name) VALUES (3, 'C') ON CONFLICT (id) DO UPDATE SET name = excluded.name",
        "UPDATE people SET town = lower(town) WHERE id = 1",
        "UPDATE bills SET state = 'paid' FROM people p WHERE p.id = bills.person AND p.name = 'Ann'",
        "DELETE FROM bills WHERE total > 50",
        "DELETE FROM bills USING people p WHERE p.id = bills.person AND p.town = 'Rom'",
        "MERGE INTO bills USING (SELECT 1 AS id, 5 AS total) s ON bills.id = s.id WHEN MATCHED THEN UPDATE SET total = s.total",
    ];
    check_each(WRITES, SqlPolicy::Write, expect_ok)?;
    const MIGRATIONS: &[&str] = &[
        "CREATE TABLE notes (id INTEGER PRIMARY KEY DEFAULT nextval('counter'), text VARCHAR CHECK (length(text) > 0))",
        "CREATE TABLE copies AS SELECT * FROM people",
        "CREATE VIEW towns AS SELECT DISTINCT lower(town) AS town FROM people",
        "CREATE INDEX by_state ON bills (state)",
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE MACRO thrice(x) AS twice(x) + x",
        "ALTER TABLE people ADD COLUMN mail VARCHAR",
        "ALTER TABLE bills ADD COLUMN number INTEGER DEFAULT nextval('counter')",
        "COMMENT ON TABLE people IS 'who'",
        "DROP VIEW debtors",
    ];
    check_each(MIGRATIONS, SqlPolicy::Migrate, expect_ok)
}

fn rejects_invalid_syntax() -> Result<(), Failed> {
    const FORMS: &[&str] =
        &["SELEC name FROM people", "SELECT name, FROM people WHERE", "SELECT (1", "SELECT name FROM people WHERE )"];
    check_each(FORMS, SqlPolicy::Read, rejected_by(StageName::Parse))?;
    check_each(&["", " -- nothing\n;", "```sql\nSELECT 1\n```"], SqlPolicy::Read, rejected_by(StageName::Extract))?;
    check_each(
        &["SELECT 'abc", "SELECT \"abc", "SELECT /* abc", "SELECT `name` FROM people WHERE town = 'a'"],
        SqlPolicy::Read,
        rejected_by(StageName::Tokenize),
    )
}

fn rejects_unknown_names() -> Result<(), Failed> {
    const NAMES: &[&str] = &[
        "SELECT nmae FROM people",
        "SELECT x.name FROM people p",
        "SELECT * FROM poeple",
        "SELECT * FROM archive.people",
        "SELECT * FROM a.b.c",
        "SELECT id FROM people JOIN bills ON people.id = bills.person",
        "SELECT lowr(name) FROM people",
        "SELECT * FROM rnge(3)",
        "SELECT sum(name) FROM people",
        "SELECT name, count(*) FROM people",
        "SELECT name FROM people WHERE town = \"Ulm\"",
        "SELECT name FROM people ORDER BY age",
        "SELECT row_number() FROM people",
        "SELECT id FROM people UNION SELECT id, name FROM people",
        "DESCRIBE poeple",
        "EXPLAIN SELECT nmae FROM people",
        "PIVOT bills ON sate USING sum(total)",
        "SELECT sum(total) OVER w FROM bills",
        "SELECT name FROM people WHERE id = 'abc'",
        "SELECT id FROM bills WHERE made > 'yesterday'",
    ];
    check_each(NAMES, SqlPolicy::Read, rejected_by(StageName::Bind))?;
    const WRITES: &[&str] = &[
        "INSERT INTO people (id, nmae) VALUES (9, 'x')",
        "UPDATE people SET twon = 'x' WHERE id = 1",
        "DELETE FROM poeple WHERE id = 1",
    ];
    check_each(WRITES, SqlPolicy::Write, rejected_by(StageName::Bind))?;
    check_each(
        &["DROP TABLE poeple", "CREATE VIEW w AS SELECT nmae FROM people"],
        SqlPolicy::Migrate,
        rejected_by(StageName::Bind),
    )
}

fn rejects_external_access() -> Result<(), Failed> {
    const REACHING: &[&str] = &[
        "SELECT * FROM read_csv('/etc/passwd', header = false)",
        "SELECT * FROM read_csv_auto('https://example.com/x.csv')",
        "SELECT * FROM read_text('/etc/passwd')",
        "SELECT * FROM read_blob(['/etc/shadow'])",
        "SELECT * FROM read_parquet('s3://bucket/*.parquet')",
        "SELECT * FROM parquet_metadata('x.parquet')",
        "SELECT * FROM sniff_csv('/etc/passwd')",
        "SELECT * FROM glob('/etc/*')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'people.csv'",
        "SELECT * FROM people.parquet",
        "SELECT * FROM \"data.json\"",
        "SELECT name FROM people WHERE name IN (SELECT content FROM read_text('/etc/passwd'))",
        "WITH f AS (FROM '/etc/passwd') SELECT 1",
        "DESCRIBE SELECT * FROM read_csv('/etc/passwd')",
        "SUMMARIZE '/etc/passwd.csv'",
        "SELECT * FROM sqlite_scan('a.db', 't')",
        "SELECT * FROM postgres_scan('host=x', 'public', 't')",
        "SELECT getenv('HOME')",
        "SELECT current_setting('threads')",
        "SELECT setting_of('threads')",
        "SELECT nextval('counter')",
        "SELECT pg_sleep(10)",
        "SELECT write_log('x')",
        "SELECT * FROM query('SELECT * FROM people')",
        "SELECT * FROM query_table('people')",
        "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
        "SELECT * FROM duckdb_secrets()",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM checkpoint()",
        "COPY people TO '/tmp/leak.csv'",
        "COPY (SELECT * FROM people) TO '/tmp/leak.parquet' (FORMAT parquet)",
        "COPY people FROM '/etc/passwd'",
        "EXPORT DATABASE '/tmp/leak'",
        "IMPORT DATABASE '/tmp/leak'",
        "ATTACH '/tmp/x.db' AS x",
        "ATTACH ':memory:' AS x",
        "DETACH memory",
        "USE old",
        "INSTALL httpfs",
        "LOAD httpfs",
        "LOAD '/tmp/x.so'",
        "UPDATE EXTENSIONS",
        "SET enable_external_access = true",
        "SET VARIABLE x = 1",
        "RESET threads",
        "PRAGMA memory_limit = '10GB'",
        "PRAGMA enable_profiling",
        "CALL pragma_version()",
        "CALL enable_logging()",
        "CHECKPOINT",
        "VACUUM",
        "ANALYZE",
        "BEGIN",
        "COMMIT",
        "PREPARE p AS SELECT 1",
        "EXECUTE p",
        "DEALLOCATE p",
        "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
        "COPY FROM DATABASE memory TO memory",
        "EXPLAIN COPY people TO '/tmp/leak.csv'",
        "EXPLAIN ANALYZE COPY people TO '/tmp/leak.csv'",
    ];
    for policy in [SqlPolicy::Read, SqlPolicy::Write] {
        // `EXECUTE p` does not bind without a prepared statement, so another stage also refuses it.
        let rest: Vec<&str> = REACHING.iter().copied().filter(|sql| *sql != "EXECUTE p").collect();
        check_each(&rest, policy, rejected_by(StageName::Safety))?;
    }
    const MIGRATIONS: &[&str] = &[
        "CREATE VIEW leak AS SELECT * FROM read_text('/etc/passwd')",
        "CREATE VIEW leak AS SELECT * FROM duckdb_secrets()",
        "CREATE MACRO leak(x) AS current_setting(x)",
        "CREATE MACRO leak() AS TABLE SELECT * FROM duckdb_secrets()",
        "CREATE TABLE leak AS SELECT * FROM '/etc/passwd'",
        "CREATE TABLE leak (x VARCHAR DEFAULT current_setting('threads'))",
        "CREATE TABLE a (x INTEGER); ATTACH '/tmp/x.db'",
    ];
    check_each(MIGRATIONS, SqlPolicy::Migrate, rejected_by(StageName::Safety))
}

fn rejects_forbidden_writes() -> Result<(), Failed> {
    const WRITES: &[&str] = &[
        "DELETE FROM people",
        "DELETE FROM bills WHERE id = 1",
        "TRUNCATE bills",
        "WITH gone AS (DELETE FROM bills RETURNING id) SELECT * FROM gone",
        "UPDATE people SET town = 'x' WHERE id = 1",
        "INSERT INTO people (id, name) VALUES (9, 'x')",
        "INSERT INTO people (id, name) VALUES (9, 'x') RETURNING id",
        "INSERT OR REPLACE INTO people (id, name) VALUES (1, 'x')",
        "MERGE INTO bills USING people ON bills.person = people.id WHEN MATCHED THEN DELETE",
        "EXPLAIN ANALYZE DELETE FROM bills",
        "EXPLAIN (ANALYZE) UPDATE people SET town = 'x'",
        "CREATE TABLE evil (id INTEGER)",
        "CREATE TEMP TABLE evil AS SELECT 1",
        "CREATE OR REPLACE VIEW debtors AS SELECT 1",
        "DROP VIEW IF EXISTS debtors",
        "dRoP/**/tAbLe people",
        "ALTER TABLE people DROP COLUMN town",
        "SELECT id FROM people;;DELETE FROM bills WHERE id = 1",
        "SELECT 1; -- \nDROP TABLE people",
        "COMMIT; DELETE FROM people",
        "EXECUTE p",
    ];
    check_each(WRITES, SqlPolicy::Read, rejected_by(StageName::Safety))?;
    const UNBOUNDED: &[&str] = &[
        "DELETE FROM bills",
        "DELETE FROM bills WHERE 1 = 1",
        "DELETE FROM bills -- WHERE id = 1",
        "TRUNCATE bills",
        "UPDATE people SET town = 'x' WHERE id > 0 OR 1 = 1",
        "UPDATE people SET town = 'x' WHERE 'a' = 'a'",
        "DELETE FROM bills WHERE id IS NOT NULL OR id IS NULL",
        "DELETE FROM people WHERE name IS NOT NULL",
        "DELETE FROM bills WHERE id IN (SELECT id FROM bills)",
        "DELETE FROM bills WHERE EXISTS (SELECT 1)",
        "DROP TABLE bills",
        "EXPLAIN ANALYZE DELETE FROM bills",
        "EXPLAIN (ANALYZE) DELETE FROM bills WHERE id = 1",
        "EXPLAIN --\ranalyze\nDELETE FROM bills",
        "DELETE FROM bills WHERE --\rtrue OR\n id = 1",
        "DELETE FROM old.people WHERE coalesce(id, 0) < 3000000000",
        "UPDATE old.people SET name = 'x' WHERE coalesce(id, 0) < 3000000000",
    ];
    check_each(UNBOUNDED, SqlPolicy::Write, rejected_by(StageName::Safety))
}

fn enforces_limits() -> Result<(), Failed> {
    let cases: &[(&str, &[SqlCode])] = &[
        ("SELECT count(*) FROM range(1000000000000) t(i) WHERE i % 3 = 1", &[SqlCode::TimeLimit]),
        (
            "SELECT count(*) FROM range(10000000) a, range(10000000) b WHERE a.range < b.range",
            &[SqlCode::TimeLimit, SqlCode::MemoryLimit],
        ),
        (
            "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT count(*) FROM s",
            &[SqlCode::EndlessRecursion, SqlCode::MemoryLimit],
        ),
        ("SELECT list(i) FROM range(1000000000) t(i)", &[SqlCode::MemoryLimit, SqlCode::TimeLimit]),
        ("SELECT repeat('x', 1000) FROM range(20000)", &[SqlCode::ResultLimit]),
        ("SELECT len(range(1000000000))", &[SqlCode::MemoryLimit]),
        ("SELECT * FROM range(1000000000000)", &[SqlCode::TimeLimit]),
        ("SELECT repeat('x', 10000000000)", &[SqlCode::MemoryLimit]),
    ];
    let mut requests: Vec<SqlRequest> = cases.iter().map(|(sql, _)| request(sql, SqlPolicy::Read)).collect();
    for request in &mut requests {
        request.limits.time_ms = 1_500;
        request.limits.memory = 256 << 20;
        request.limits.result = 4 << 20;
        request.limits.rows = 100_000;
    }
    for (judgement, (sql, expected)) in judge(&requests)?.iter().zip(cases) {
        let found = errors(judgement);
        let is_it = found.iter().any(|(stage, code)| *stage == StageName::Run && expected.contains(code));
        if !is_it || judgement.timing.total_us > 4_000_000 {
            return Err(
                format!("{sql}: {found:?} after {} µs\n{:#?}", judgement.timing.total_us, judgement.stages).into()
            );
        }
    }
    let mut many = request("SELECT i FROM range(100000) t(i)", SqlPolicy::Read);
    many.limits.rows = 50;
    let judgement = &judge(&[many])?[0];
    let execution = judgement.execution.as_ref().ok_or("it was not run")?;
    if !execution.truncated || execution.rows != 50 || judgement.verdict != SqlVerdict::Ok {
        return Err(format!("{execution:?}").into());
    }
    Ok(())
}

fn findings_have_positions_and_candidates() -> Result<(), Failed> {
    let cases: &[(&str, SqlCode, &str, &[&str])] = &[
        ("SELECT 'é', nmae FROM people", SqlCode::UnknownColumn, "nmae", &["name"]),
        ("SELECT\n  p.twon\nFROM people p", SqlCode::UnknownColumn, "twon", &["town"]),
        ("SELECT * FROM poeple", SqlCode::UnknownTable, "poeple", &["people"]),
        ("SELECT lowr(name) FROM people", SqlCode::UnknownFunction, "lowr", &["lower"]),
        ("SELEC name FROM people", SqlCode::SyntaxError, "SELEC", &[]),
        ("SELECT name FROM people WHERE town = \"Ulm\"", SqlCode::UnknownColumn, "\"Ulm\"", &[]),
        ("SELECT id FROM people p, bills b", SqlCode::AmbiguousColumn, "id", &["p.id", "b.id"]),
    ];
    let requests: Vec<SqlRequest> = cases.iter().map(|(sql, ..)| request(sql, SqlPolicy::Read)).collect();
    for (judgement, (sql, code, place, candidates)) in judge(&requests)?.iter().zip(cases) {
        let found = judgement.diagnostics.iter().find(|found| found.code == *code);
        let found = found.ok_or_else(|| format!("{sql}: {:#?}", judgement.diagnostics))?;
        let at = found.span.map(|span| &sql[span.start..span.end]);
        if at != Some(*place) || !candidates.iter().all(|one| found.candidates.iter().any(|of| of == one)) {
            return Err(format!("{sql}: {found:#?}").into());
        }
    }
    Ok(())
}

fn enforces_allow_lists() -> Result<(), Failed> {
    let of = |sql: &str, tables: &[&str], columns: &[&str], functions: &[&str]| {
        let mut request = request(sql, SqlPolicy::Read);
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        (request.allow.tables, request.allow.columns, request.allow.functions) =
            (owned(tables), owned(columns), owned(functions));
        request
    };
    let cases = [
        (of("SELECT name FROM people", &["people"], &[], &[]), None),
        (of("SELECT name FROM people", &["bills"], &[], &[]), Some(SqlCode::TableRefused)),
        (of("SELECT name FROM of_town('Ulm')", &["bills"], &[], &[]), Some(SqlCode::TableRefused)),
        (of("SELECT * FROM debtors", &["debtors"], &[], &[]), Some(SqlCode::TableRefused)),
        (of("SELECT d.name FROM Debtors AS d WHERE d.debt > 5", &["main.debtors", "people", "bills"], &[], &[]), None),
        (of("SELECT * FROM rich, debtors", &["rich"], &[], &[]), Some(SqlCode::TableRefused)),
        (of("SELECT * FROM debtors", &["people", "bills"], &[], &[]), Some(SqlCode::TableRefused)),
        (of("SELECT * FROM debtors, people", &["debtors"], &[], &[]), Some(SqlCode::TableRefused)),
        (of("SELECT * FROM debtors, of_town('Ulm')", &["debtors"], &[], &[]), Some(SqlCode::TableRefused)),
        (
            of("SELECT * FROM debtors WHERE name IN (SELECT town FROM people)", &["debtors"], &[], &[]),
            Some(SqlCode::TableRefused),
        ),
        (
            of("WITH debtors AS (SELECT * FROM people) SELECT * FROM debtors", &["debtors"], &[], &[]),
            Some(SqlCode::TableRefused),
        ),
        (
            of(
                "WITH people AS (SELECT 1), x AS (SELECT * FROM main.people) SELECT * FROM x, debtors",
                &["debtors"],
                &[],
                &[],
            ),
            Some(SqlCode::TableRefused),
        ),
        (of("SELECT * FROM (SELECT * FROM people) AS debtors", &["debtors"], &[], &[]), Some(SqlCode::TableRefused)),
        (of("SELECT name FROM people", &[], &["people.name"], &[]), None),
        (of("SELECT name FROM people WHERE town = 'Ulm'", &[], &["people.name"], &[]), Some(SqlCode::ColumnRefused)),
        (of("SELECT * FROM people", &[], &["people.name"], &[]), Some(SqlCode::ColumnRefused)),
        (of("SELECT id FROM old.people", &[], &["old.people.name"], &[]), Some(SqlCode::ColumnRefused)),
        (of("SELECT count(*) FROM people", &[], &["people.name"], &[]), None),
        (of("SELECT current_setting('threads')", &[], &[], &["current_setting"]), None),
    ];
    let requests: Vec<SqlRequest> = cases.iter().map(|(request, _)| request.clone()).collect();
    for (judgement, (request, expected)) in judge(&requests)?.iter().zip(&cases) {
        let is_it = match expected {
            None => judgement.verdict == SqlVerdict::Ok,
            Some(code) => errors(judgement).contains(&(StageName::Safety, *code)),
        };
        if !is_it {
            return Err(format!("{}: {:#?}", request.sql, judgement.diagnostics).into());
        }
    }
    Ok(())
}

fn leaves_database_file_unchanged() -> Result<(), Failed> {
    let place = tempfile::tempdir()?;
    let file = place.path().join("given.duckdb");
    crate::create_database(&file, SCHEMA)?;
    let before = std::fs::read(&file)?;
    let name = file.to_string_lossy().into_owned();
    let of =
        |sql: &str, policy| SqlRequest { database: Some(name.clone()), schema: Vec::new(), ..request(sql, policy) };
    let requests = [
        of("SELECT name FROM people", SqlPolicy::Read),
        of(&format!("SELECT * FROM read_blob('{name}')"), SqlPolicy::Read),
        of("DELETE FROM bills WHERE id = 1", SqlPolicy::Write),
        of("CREATE TABLE more (id INTEGER)", SqlPolicy::Migrate),
    ];
    let judgements = judge(&requests)?;
    let verdicts: Vec<SqlVerdict> = judgements.iter().map(|judgement| judgement.verdict).collect();
    if verdicts != [SqlVerdict::Ok, SqlVerdict::Reject, SqlVerdict::Ok, SqlVerdict::Ok] {
        return Err(format!("{judgements:#?}").into());
    }
    if std::fs::read(&file)? != before {
        return Err("the file was changed".into());
    }
    let execution = judgements[0].execution.as_ref().ok_or("it was not run")?;
    if execution.rows == 3 { Ok(()) } else { Err(format!("{execution:?}").into()) }
}

fn counts_touched_rows() -> Result<(), Failed> {
    let judgement = &judge(&[request("UPDATE bills SET total = 1 WHERE state = 'open'", SqlPolicy::Write)])?[0];
    let touched = judgement.execution.as_ref().map(|execution| execution.affected.clone()).unwrap_or_default();
    match touched.as_slice() {
        [touched] if touched.table == "bills" && touched.rows == 2 && touched.of == 3 => Ok(()),
        _ => Err(format!("{judgement:#?}").into()),
    }
}

fn migration_sees_earlier_statements() -> Result<(), Failed> {
    let sql = "CREATE TABLE towns (name VARCHAR PRIMARY KEY); INSERT INTO towns SELECT DISTINCT town FROM people \
               WHERE town IS NOT NULL; ALTER TABLE towns ADD COLUMN land VARCHAR; UPDATE towns SET land = 'x' WHERE name = 'Ulm'";
    check_each(&[sql], SqlPolicy::Migrate, expect_ok)?;
    check_each(
        &["CREATE TABLE towns (name VARCHAR); SELECT nmae FROM towns"],
        SqlPolicy::Migrate,
        rejected_by(StageName::Bind),
    )
}

fn equal_requests_give_equal_judgements() -> Result<(), Failed> {
    let sqls = ["SELECT nmae FROM people", "PIVOT bills ON state USING sum(total)", "DELETE FROM bills WHERE id = 1"];
    let requests: Vec<SqlRequest> = sqls.iter().map(|sql| request(sql, SqlPolicy::Write)).collect();
    let digests = |judgements: Vec<Judgement>| -> Vec<_> {
        judgements.into_iter().map(|one| (one.verdict != SqlVerdict::Error).then_some(one.digest)).collect()
    };
    let (once, again) = (digests(judge(&requests)?), digests(judge(&requests)?));
    if once == again && once.iter().all(Option::is_some) { Ok(()) } else { Err("they differ".into()) }
}
