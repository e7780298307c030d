//! Tests lists of tables and columns with DuckDB, on handwritten cases and on the corpus of `tests/corpus`. A statement
//! that is `ok` under lists must give the same result after everything off the lists was removed, and after its content
//! was changed.

use libtest_mimic::Failed;
use proctor_core::sql::{Dialect, SqlAllow, SqlCode, SqlPolicy, SqlRequest, SqlVerdict, StageName};
use proctor_duckdb::{Connection, DuckDbError, Library};
use proctor_sql::child_worker::ChildWorker;

use crate::corpus::{self, Grammar, OBJECTS, RandomNumbers, StrictRefusals};
use crate::{judge, library};

type ListTest = fn() -> Result<(), Failed>;

pub(crate) fn all() -> Vec<(&'static str, ListTest)> {
    vec![
        ("rejects_names_off_lists", rejects_names_off_lists),
        ("accepts_names_on_lists", accepts_names_on_lists),
        ("enum_types_off_lists_show_no_values", enum_types_off_lists_show_no_values),
        ("names_with_dots_are_not_qualified_names", names_with_dots_are_not_qualified_names),
        ("rejects_unbounded_rewrites", rejects_unbounded_rewrites),
        ("findings_hide_names_off_lists", findings_hide_names_off_lists),
        ("rejects_functions_that_bind_text", rejects_functions_that_bind_text),
        ("judges_untyped_parameters", judges_untyped_parameters),
        ("no_corpus_statement_bypasses_lists", no_corpus_statement_bypasses_lists),
    ]
}

const SCHEMA: &str = "
    CREATE TABLE orders (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, made TIMESTAMP);
    CREATE TABLE secret (id INTEGER PRIMARY KEY, cust INTEGER, total INTEGER, pin VARCHAR);
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name VARCHAR, ssn VARCHAR);
    CREATE TABLE people (id INTEGER PRIMARY KEY, ssn VARCHAR, masked VARCHAR AS (substr(ssn, 2)));
    CREATE TABLE guests (name VARCHAR, masked VARCHAR);
    CREATE VIEW v AS SELECT id, total FROM orders;
    CREATE VIEW w AS SELECT id, total FROM secret;
    CREATE VIEW hints AS SELECT masked AS hint FROM people;
    CREATE VIEW over_hints AS SELECT hint FROM hints;
    CREATE MACRO first_hint() AS (SELECT min(masked) FROM people);
    CREATE MACRO all_hints() AS TABLE SELECT COLUMNS('mask.*') FROM people;
    INSERT INTO orders VALUES (1, 1, 10, NULL), (2, 1, 20, NULL);";

fn request(sql: &str, policy: SqlPolicy, tables: &str, columns: &str) -> SqlRequest {
    let names = |list: &str| list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let allow = SqlAllow { tables: names(tables), columns: names(columns), ..SqlAllow::default() };
    SqlRequest { policy, allow, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Duckdb, sql) }
}

type ListCase = (&'static str, SqlPolicy, &'static str, &'static str);

/// The stored columns of `people`.
const STORED: &str = "people.id,people.ssn";

const OFF_LIST_CASES: &[ListCase] = &[
    ("SELECT masked FROM people", SqlPolicy::Read, "", STORED),
    ("SELECT p.\"MASKED\" FROM people p", SqlPolicy::Read, "", "people.ssn"),
    ("SELECT id FROM people WHERE masked = 'x'", SqlPolicy::Read, "", STORED),
    ("SELECT * FROM people", SqlPolicy::Read, "", STORED),
    ("FROM people", SqlPolicy::Read, "", STORED),
    ("SELECT p FROM people p", SqlPolicy::Read, "", STORED),
    ("SELECT struct_extract(p, 'mas' || 'ked') FROM people p", SqlPolicy::Read, "", STORED),
    ("SELECT x.* FROM (SELECT * EXCLUDE (id) FROM people) x", SqlPolicy::Read, "", STORED),
    ("SELECT COLUMNS('mask.*') FROM people", SqlPolicy::Read, "", STORED),
    ("SELECT id * 2, (* LIKE 'mask%') FROM people", SqlPolicy::Read, "", STORED),
    ("SELECT 1 FROM guests NATURAL JOIN people", SqlPolicy::Read, "", STORED),
    ("SELECT c FROM people p(a, b, c)", SqlPolicy::Read, "", STORED),
    ("SELECT max(c) FROM people AS p(a, b, c)", SqlPolicy::Read, "", STORED),
    ("SELECT max(COLUMNS('mask.*')) FROM people", SqlPolicy::Read, "", STORED),
    ("UPDATE people SET id = 7 WHERE ssn = 'x'", SqlPolicy::Write, "", "people.id"),
    ("UPDATE people SET id = 7 WHERE hash(people) = 1", SqlPolicy::Write, "", "people.id"),
    ("PIVOT people ON ssn USING count(*)", SqlPolicy::Read, "", STORED),
    ("SELECT #3 FROM people", SqlPolicy::Read, "", STORED),
    ("SELECT max(#3) FROM people", SqlPolicy::Read, "", STORED),
    ("UPDATE people SET id = 7 WHERE #2 = 'x'", SqlPolicy::Write, "", "people.id"),
    ("UPDATE people SET id = length(#2) WHERE id = 1", SqlPolicy::Write, "", "people.id"),
    ("EXPLAIN SELECT * FROM people", SqlPolicy::Read, "", STORED),
    ("SELECT hint FROM hints", SqlPolicy::Read, "", STORED),
    ("SELECT hint FROM over_hints", SqlPolicy::Read, "", STORED),
    ("SELECT first_hint()", SqlPolicy::Read, "", STORED),
    ("SELECT * FROM all_hints()", SqlPolicy::Read, "", STORED),
    ("INSERT INTO guests SELECT 'x', masked FROM people", SqlPolicy::Write, "", STORED),
    ("DELETE FROM people WHERE masked = 'x'", SqlPolicy::Write, "", STORED),
    ("CREATE VIEW x AS SELECT masked FROM people", SqlPolicy::Migrate, "", STORED),
    ("CREATE VIEW x AS SELECT hint FROM hints", SqlPolicy::Migrate, "", STORED),
    ("SELECT g.pin FROM (SELECT '4711' AS pin) g JOIN secret USING (pin)", SqlPolicy::Read, "orders", ""),
    ("SELECT g.pin FROM (SELECT '4711' AS pin) g NATURAL LEFT JOIN secret", SqlPolicy::Read, "orders", ""),
    ("SELECT * FROM w", SqlPolicy::Read, "w", ""),
    ("SELECT * FROM v", SqlPolicy::Read, "orders", ""),
    ("SELECT total FROM v", SqlPolicy::Read, "", "v.id"),
    ("SHOW TABLES", SqlPolicy::Read, "orders", ""),
    ("SHOW ALL TABLES", SqlPolicy::Read, "orders", ""),
    ("DESCRIBE", SqlPolicy::Read, "orders", ""),
    ("DESCRIBE secret", SqlPolicy::Read, "orders", ""),
    ("DESCRIBE customers", SqlPolicy::Read, "", "customers.id"),
    ("DESCRIBE SELECT * FROM customers", SqlPolicy::Read, "", "customers.id"),
    ("SELECT * FROM (DESCRIBE secret)", SqlPolicy::Read, "orders", ""),
    ("SUMMARIZE customers", SqlPolicy::Read, "", "customers.id"),
    ("SUMMARIZE secret", SqlPolicy::Read, "orders", ""),
    ("PRAGMA table_info('secret')", SqlPolicy::Read, "orders", ""),
    ("PRAGMA show_tables", SqlPolicy::Read, "orders", ""),
    ("SELECT * FROM pragma_table_info('secret')", SqlPolicy::Read, "orders", ""),
    ("SELECT * FROM duckdb_columns()", SqlPolicy::Read, "orders", ""),
    ("CALL duckdb_tables()", SqlPolicy::Read, "orders", ""),
    ("SELECT * FROM information_schema.tables", SqlPolicy::Read, "orders", ""),
    ("SELECT * FROM pg_catalog.pg_class", SqlPolicy::Read, "", "customers.id"),
    ("SELECT * FROM sqlite_master", SqlPolicy::Read, "orders", ""),
    ("WITH x AS (SELECT * FROM duckdb_tables()) SELECT 1", SqlPolicy::Read, "orders", ""),
    ("INSERT INTO customers (id, ssn) VALUES (1, 'x')", SqlPolicy::Write, "", "customers.id"),
    ("INSERT INTO customers BY NAME SELECT 1 AS id, 'x' AS ssn", SqlPolicy::Write, "", "customers.id"),
    ("DELETE FROM customers WHERE id = 1 RETURNING *", SqlPolicy::Write, "", "customers.id"),
    ("DELETE FROM customers AS c WHERE id = 1 RETURNING c", SqlPolicy::Write, "", "customers.id"),
    ("UPDATE customers SET id = 5 WHERE id = 1 RETURNING ssn", SqlPolicy::Write, "", "customers.id"),
    ("UPDATE orders SET total = 1 FROM v WHERE v.id = orders.id AND v.total = 3", SqlPolicy::Write, "orders", ""),
    ("CREATE VIEW x AS SELECT * FROM secret", SqlPolicy::Migrate, "orders,x", ""),
    ("CREATE VIEW x AS SELECT ssn FROM customers", SqlPolicy::Migrate, "", "customers.id"),
    ("CREATE MACRO x() AS TABLE SELECT ssn FROM customers", SqlPolicy::Migrate, "", "customers.id"),
    ("CREATE TABLE x (a INTEGER REFERENCES secret(id))", SqlPolicy::Migrate, "orders,x", ""),
    ("CREATE TABLE x AS SELECT id FROM orders JOIN secret USING (id)", SqlPolicy::Migrate, "orders,x", ""),
    ("CREATE INDEX i ON secret (total)", SqlPolicy::Migrate, "orders", ""),
    ("ALTER TABLE orders RENAME TO elsewhere", SqlPolicy::Migrate, "orders", ""),
    ("ALTER TABLE customers RENAME TO people", SqlPolicy::Migrate, "", "customers.id"),
    ("COMMENT ON TABLE secret IS 'x'", SqlPolicy::Migrate, "orders", ""),
    ("SELECT o.id FROM orders o POSITIONAL JOIN secret", SqlPolicy::Read, "orders", ""),
    ("SELECT o.id FROM orders o ASOF JOIN secret s ON o.id >= s.id", SqlPolicy::Read, "orders", ""),
    (
        "SELECT o.id FROM orders o, LATERAL (SELECT s.pin FROM secret s WHERE s.id = o.id)",
        SqlPolicy::Read,
        "orders",
        "",
    ),
    ("UNPIVOT secret ON total INTO NAME n VALUE v", SqlPolicy::Read, "orders", ""),
    ("SELECT unnest(c, recursive := true) FROM customers c", SqlPolicy::Read, "", "customers.id"),
    ("SELECT * RENAME (ssn AS z) FROM customers", SqlPolicy::Read, "", "customers.id"),
    ("SELECT DISTINCT ON (ssn) id FROM customers", SqlPolicy::Read, "", "customers.id"),
    ("SELECT id, x FROM customers, LATERAL (SELECT ssn AS x)", SqlPolicy::Read, "", "customers.id"),
];

fn rejects_names_off_lists() -> Result<(), Failed> {
    let requests: Vec<SqlRequest> =
        OFF_LIST_CASES.iter().map(|(sql, policy, tables, columns)| request(sql, *policy, tables, columns)).collect();
    let of_lists =
        |code: SqlCode| matches!(code, SqlCode::TableRefused | SqlCode::ColumnRefused | SqlCode::MetadataRefused);
    let wrong = judge(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let is_it =
            judgement.verdict == SqlVerdict::Reject && judgement.diagnostics.iter().any(|found| of_lists(found.code));
        (!is_it).then(|| format!("{}: {:?} {:?}", request.sql, judgement.verdict, judgement.diagnostics))
    });
    expect_none(wrong)
}

/// Checks that findings do not reveal names off the lists that the statement does not contain.
fn findings_hide_names_off_lists() -> Result<(), Failed> {
    const CASES: &[ListCase] = &[
        ("SELECT * FROM nosuch", SqlPolicy::Read, "orders", ""),
        ("SELECT * FROM secre", SqlPolicy::Read, "orders", ""),
        ("SELECT pni FROM secre", SqlPolicy::Read, "orders", ""),
        ("SELECT pin FROM orders", SqlPolicy::Read, "orders", ""),
        ("SELECT o.ssn FROM orders o", SqlPolicy::Read, "orders", ""),
        ("SELECT snn FROM customers", SqlPolicy::Read, "", "customers.id"),
        ("SELECT snn /* ssn */ FROM customers", SqlPolicy::Read, "", "customers.id"),
        ("SELECT c.snn FROM customers c", SqlPolicy::Read, "", "customers.id"),
        ("SELECT * FROM customers", SqlPolicy::Read, "", "customers.id"),
        ("SELECT COLUMNS('s.*') FROM customers", SqlPolicy::Read, "", "customers.id"),
        ("SELECT * FROM w", SqlPolicy::Read, "w", ""),
        ("SELECT first_hint()", SqlPolicy::Read, "orders", ""),
        ("SELECT * FROM all_hints()", SqlPolicy::Read, "orders", ""),
        ("DELETE FROM customers WHERE id = 1 RETURNING *", SqlPolicy::Write, "", "customers.id"),
    ];
    let requests: Vec<SqlRequest> =
        CASES.iter().map(|(sql, policy, tables, columns)| request(sql, *policy, tables, columns)).collect();
    let wrong = judge(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let (sql, columns) = (&request.sql, !request.allow.columns.is_empty());
        let hidden: &[&str] = if columns { &["ssn"] } else { &["secret", "pin", "ssn", "people", "masked", "guests"] };
        let named = hidden.iter().find(|name| {
            judgement.diagnostics.iter().any(|found| {
                let suggested = format!("{:?} {:?} {:?}", found.candidates, found.advice, found.fix);
                let described = format!("{} {:?} {:?}", found.message, found.engine_code, found.subject);
                suggested.contains(*name) || (!sql.contains(*name) && described.contains(*name))
            }) || (!sql.contains(*name) && judgement.feedback.contains(*name))
        });
        let is_right = named.is_none() && judgement.verdict == SqlVerdict::Reject;
        (!is_right).then(|| format!("{sql}: {named:?} {:#?}", judgement.diagnostics))
    });
    expect_none(wrong)
}

/// A function that binds a text could show or read any table.
fn rejects_functions_that_bind_text() -> Result<(), Failed> {
    let requests = [
        "SELECT json_serialize_plan('SELECT * FROM secret')",
        "FROM query_table('secret')",
        "FROM query('SELECT pin FROM ' || 'secret')",
    ]
    .map(|sql| request(sql, SqlPolicy::Read, "orders", ""));
    expect_none(judge(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        (judgement.verdict != SqlVerdict::Reject).then(|| format!("{}: {judgement:#?}", request.sql))
    }))
}

fn expect_none(wrong: impl Iterator<Item = String>) -> Result<(), Failed> {
    let wrong: Vec<String> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

fn expect_each_ok(cases: &[ListCase]) -> Result<(), Failed> {
    let requests: Vec<SqlRequest> =
        cases.iter().map(|(sql, policy, tables, columns)| request(sql, *policy, tables, columns)).collect();
    expect_none(judge(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let reasons: Vec<_> = judgement.stages.iter().filter_map(|stage| stage.reason.clone()).collect();
        (judgement.verdict != SqlVerdict::Ok)
            .then(|| format!("{}: {:?} {reasons:?} {:?}", request.sql, judgement.verdict, judgement.diagnostics))
    }))
}

fn accepts_names_on_lists() -> Result<(), Failed> {
    expect_each_ok(&[
        ("SELECT * FROM json_each('[1]')", SqlPolicy::Read, "orders", ""),
        ("SELECT ssn, count(*), max(id * 2) FROM people GROUP BY ssn", SqlPolicy::Read, "", STORED),
        ("SELECT ssn, count(*) FROM people GROUP BY ALL", SqlPolicy::Read, "", STORED),
        ("SELECT masked FROM people", SqlPolicy::Read, "", "people.ssn,people.masked"),
        ("SELECT * FROM guests", SqlPolicy::Read, "", STORED),
        ("UPDATE people SET ssn = 'x' WHERE id = 1", SqlPolicy::Write, "", STORED),
        ("UPDATE people SET id = 7 WHERE people.id = 1", SqlPolicy::Write, "", "people.id"),
        ("SELECT o.id, r.range FROM orders o, range(3) r", SqlPolicy::Read, "orders", ""),
        ("SELECT unnest([1, 2]), id FROM orders", SqlPolicy::Read, "orders", "orders.id"),
        ("SELECT total FROM v", SqlPolicy::Read, "orders,v", ""),
        ("SELECT o.id FROM orders o JOIN customers USING (id)", SqlPolicy::Read, "", "customers.id"),
        ("SELECT * EXCLUDE (name, ssn) FROM customers", SqlPolicy::Read, "", "customers.id"),
        ("DESCRIBE orders", SqlPolicy::Read, "orders", ""),
        ("SUMMARIZE orders", SqlPolicy::Read, "orders", ""),
        ("PRAGMA table_info('orders')", SqlPolicy::Read, "orders", ""),
        ("SHOW TABLES", SqlPolicy::Read, "", ""),
        ("SELECT * FROM information_schema.tables", SqlPolicy::Read, "", ""),
        (
            "INSERT INTO customers (id, name) VALUES (1, 'x') RETURNING id",
            SqlPolicy::Write,
            "",
            "customers.id,customers.name",
        ),
        ("DELETE FROM customers WHERE id = 1 RETURNING id", SqlPolicy::Write, "", "customers.id"),
        ("CREATE VIEW x AS SELECT id FROM orders", SqlPolicy::Migrate, "orders,x", ""),
        ("CREATE TABLE x (a INTEGER REFERENCES orders(id))", SqlPolicy::Migrate, "orders,x", ""),
    ])
}

fn enum_types_off_lists_show_no_values() -> Result<(), Failed> {
    let schema = "CREATE TYPE mood AS ENUM ('fine', 'peeved'); CREATE TYPE size AS ENUM ('s', 'm');
        CREATE TABLE diary (id INTEGER, m mood); CREATE TABLE shirts (id INTEGER, size size, mood VARCHAR);
        CREATE MACRO moods() AS enum_range(NULL::mood); CREATE MACRO sizes() AS enum_range(NULL::size);";
    let judged = |sql: &str, tables: &str, columns: &str| {
        let policy = if sql.starts_with("INSERT") { SqlPolicy::Write } else { SqlPolicy::Read };
        let request = SqlRequest { schema: vec![schema.to_owned()], ..request(sql, policy, tables, columns) };
        judge(&[request]).map(|mut judgements| judgements.remove(0))
    };
    for (sql, tables, columns) in [
        ("SELECT enum_range(NULL::mood)", "shirts", ""),
        ("SELECT enum_last(CAST(NULL AS main.\"Mood\"))", "shirts", ""),
        ("SELECT enum_code('fine'::mood)", "shirts", ""),
        ("SELECT enum_range_boundary(NULL, 'fine'::mood)", "shirts", ""),
        ("SELECT typeof(NULL::mood), id FROM shirts", "shirts", ""),
        ("DESCRIBE SELECT NULL::mood AS m", "shirts", ""),
        ("SELECT typeof(json_transform('\"fine\"', '\"mood\"'))", "shirts", ""),
        ("SELECT CAST(0 AS mood)", "shirts", ""),
        ("SELECT moods()", "shirts", ""),
        ("SELECT enum_first(NULL::size)", "", "shirts.id"),
        ("INSERT INTO shirts (id, mood) SELECT 1, typeof(NULL::mood)", "shirts", ""),
    ] {
        let judgement = judged(sql, tables, columns)?;
        let shown = serde_json::to_string(&judgement).expect("JSON");
        if judgement.verdict != SqlVerdict::Reject || shown.contains("peeved") || shown.contains("'m'") {
            return Err(format!("{sql}: {judgement:#?}").into());
        }
    }
    for (sql, tables) in [
        ("SELECT enum_range(NULL::mood), moods()", ""),
        ("SELECT enum_range(NULL::size), sizes(), typeof(size) FROM shirts", "shirts"),
        ("SELECT mood, count(mood) FROM shirts WHERE mood = 'x' GROUP BY mood", "shirts"),
        ("INSERT INTO shirts (id, size, mood) VALUES (1, 'm', 'x')", "shirts"),
    ] {
        let judgement = judged(sql, tables, "")?;
        if judgement.verdict != SqlVerdict::Ok {
            return Err(format!("{sql}: {:#?}", judgement.diagnostics).into());
        }
    }
    Ok(())
}

fn names_with_dots_are_not_qualified_names() -> Result<(), Failed> {
    let schema = "CREATE SCHEMA s; CREATE TABLE s.users (id INTEGER); CREATE TABLE \"s.users\" (id INTEGER, pin INTEGER);
        CREATE TABLE users (id INTEGER); CREATE TABLE \"main.users\" (id INTEGER); CREATE TABLE s.\"a.b\" (id INTEGER);";
    let (ok, reject) = (SqlVerdict::Ok, SqlVerdict::Reject);
    for (sql, policy, tables, columns, expected) in [
        ("SELECT id FROM s.users", SqlPolicy::Read, "s.users", "", ok),
        ("SELECT pin FROM \"s.users\"", SqlPolicy::Read, "s.users", "", reject),
        ("SELECT pin FROM \"s.users\"", SqlPolicy::Read, "\"s.users\"", "", ok),
        ("SELECT id FROM s.users", SqlPolicy::Read, "\"s.users\"", "", reject),
        ("SELECT id FROM \"main.users\"", SqlPolicy::Read, "users", "", reject),
        ("SELECT id FROM users", SqlPolicy::Read, "main.users", "", ok),
        ("SELECT id FROM s.\"a.b\"", SqlPolicy::Read, "s.\"a.b\"", "", ok),
        ("SELECT pin FROM \"s.users\"", SqlPolicy::Read, "\"s.users\"", "\"s.users\".id,s.users.pin", reject),
        ("UPDATE \"s.users\" SET pin = 1 WHERE id = 1", SqlPolicy::Write, "s.users", "", reject),
        ("INSERT INTO \"s.users\" (id) VALUES (1)", SqlPolicy::Write, "\"s.users\"", "\"s.users\".id", ok),
        ("ALTER TABLE \"s.users\" ADD COLUMN x INTEGER DEFAULT 1", SqlPolicy::Migrate, "s.users", "", reject),
        ("ALTER TABLE \"s.users\" ADD COLUMN x INTEGER DEFAULT 1", SqlPolicy::Migrate, "\"s.users\"", "", ok),
        ("CREATE TABLE x (id INTEGER REFERENCES \"s.users\")", SqlPolicy::Migrate, "x,s.users", "", reject),
    ] {
        let request = SqlRequest { schema: vec![schema.to_owned()], ..request(sql, policy, tables, columns) };
        let judgement = judge(&[request])?.remove(0);
        if judgement.verdict != expected {
            return Err(format!("{sql} ({tables}; {columns}): {:#?}", judgement.diagnostics).into());
        }
    }
    Ok(())
}

fn rejects_unbounded_rewrites() -> Result<(), Failed> {
    let unbounded = [
        "INSERT OR REPLACE INTO orders SELECT * FROM orders",
        "INSERT INTO orders SELECT * FROM secret ON CONFLICT (id) DO UPDATE SET total = 0",
        "INSERT INTO orders SELECT * FROM orders WHERE id IS NOT NULL ON CONFLICT (id) DO UPDATE SET total = 0",
        "MERGE INTO orders USING orders AS o ON o.id = orders.id WHEN MATCHED THEN DELETE",
    ];
    let requests: Vec<SqlRequest> = unbounded.iter().map(|sql| request(sql, SqlPolicy::Write, "", "")).collect();
    expect_none(judge(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let is_it = judgement
            .diagnostics
            .iter()
            .any(|found| matches!(found.code, SqlCode::UnboundedWrite | SqlCode::AlwaysTrueFilter));
        (!is_it).then(|| format!("{}: {:?}", request.sql, judgement.diagnostics))
    }))?;
    expect_each_ok(&[
        ("INSERT OR REPLACE INTO orders (id, total) VALUES (1, 5)", SqlPolicy::Write, "", ""),
        (
            "INSERT INTO customers VALUES (1, 'x', 'y') ON CONFLICT (id) DO UPDATE SET name = excluded.name",
            SqlPolicy::Write,
            "",
            "",
        ),
    ])
}

fn judges_untyped_parameters() -> Result<(), Failed> {
    expect_each_ok(&[
        ("SELECT ? + 1", SqlPolicy::Read, "", ""),
        ("SELECT ?", SqlPolicy::Read, "", ""),
        ("SELECT date_trunc('month', ?)", SqlPolicy::Read, "", ""),
        ("SELECT $name || 'x', $name", SqlPolicy::Read, "", ""),
        ("SELECT sum(?) FROM orders WHERE id = ?", SqlPolicy::Read, "orders", ""),
        ("INSERT INTO orders VALUES (?, ? + 1, ?, ?)", SqlPolicy::Write, "", ""),
    ])?;
    let judgements = judge(&[
        request("SELECT ? + 1 FROM secret", SqlPolicy::Read, "orders", ""),
        request("SELECT ? + nmae FROM customers", SqlPolicy::Read, "", ""),
    ])?;
    let verdicts: Vec<SqlVerdict> = judgements.iter().map(|judgement| judgement.verdict).collect();
    if verdicts == [SqlVerdict::Reject; 2] { Ok(()) } else { Err(format!("{judgements:#?}").into()) }
}

fn run(connection: &Connection, sql: &str) -> Result<Vec<String>, DuckDbError> {
    let statements = connection.extract(sql)?;
    let mut found = Vec::new();
    for index in 0..statements.count() {
        let mut rows = statements.prepare(index)?.run()?;
        while let Some(chunk) = rows.next_chunk()? {
            found.extend((0..chunk.row_count()).map(|row| chunk.text(0, row).unwrap_or_default()));
        }
    }
    found.sort();
    Ok(found)
}

fn database(library: &Library, changes: &[String]) -> Result<Connection, Failed> {
    let settings = [("autoinstall_known_extensions", "false"), ("threads", "1"), ("memory_limit", "256MB")];
    let connection = library.open(None, &settings)?.connect()?;
    for part in corpus::schema(Dialect::Duckdb) {
        run(&connection, &part)?;
    }
    for change in changes {
        let done = run(&connection, change);
        if !change.starts_with("CREATE VIEW") {
            done.map_err(|error| format!("{change}: {error}"))?;
        }
    }
    Ok(connection)
}

/// Returns the result of a statement and the listed content after it, and rolls back.
fn effect(connection: &Connection, sql: &str, allow: &SqlAllow) -> Result<Vec<String>, ()> {
    let _ = run(connection, "BEGIN TRANSACTION");
    let is_write = ["INSERT", "UPDATE", "DELETE", "MERGE"].iter().any(|word| sql.starts_with(word));
    let wrapped = format!("SELECT CAST(q AS VARCHAR) FROM ({sql}) AS q");
    let mut outcome = if is_write {
        run(connection, sql)
    } else {
        run(connection, &wrapped).or_else(|_| {
            let _ = run(connection, "ROLLBACK");
            let _ = run(connection, "BEGIN TRANSACTION");
            run(connection, sql)
        })
    };
    if let Ok(found) = &mut outcome {
        // A plan shows estimates of the number of rows.
        if sql.starts_with("EXPLAIN") {
            found.clear();
        }
        for (table, columns) in OBJECTS.iter().filter(|(table, _)| is_write && !table.starts_with("v_")) {
            let listed: Vec<&str> =
                columns.iter().copied().filter(|column| !corpus::is_hidden(allow, table, column)).collect();
            if corpus::is_listed(allow, table) && !listed.is_empty() {
                let query = format!("SELECT concat_ws('|', {}) FROM {table}", listed.join(", "));
                found.extend(run(connection, &query).unwrap_or_default());
            }
        }
    }
    let _ = run(connection, "ROLLBACK");
    outcome.map_err(drop)
}

fn no_corpus_statement_bypasses_lists() -> Result<(), Failed> {
    const STATEMENTS_PER_LIST: usize = 25;
    let library = Library::load(&crate::library()?)?;
    let mut worker = ChildWorker::new(Ok(self::library()?));
    let (mut numbers, mut grammar) =
        (RandomNumbers::new(corpus::seed() + 1), Grammar::new(1_101 + corpus::seed(), Dialect::Duckdb));
    let stages = vec![StageName::Parse, StageName::Bind, StageName::Safety];
    let (mut judged, mut ok, mut slips, mut strict) = (0, 0, Vec::new(), StrictRefusals::default());
    while judged < corpus::count(75) {
        let allow = corpus::random_lists(&mut numbers);
        let whole = database(&library, &[])?;
        let others = [
            database(&library, &corpus::removals_off_lists(&allow))?,
            database(&library, &corpus::changes_off_lists(&allow))?,
        ];
        for _ in 0..STATEMENTS_PER_LIST {
            let sql = grammar.statement();
            judged += 1;
            let request = SqlRequest {
                policy: SqlPolicy::Write,
                allow: allow.clone(),
                stages: Some(stages.clone()),
                schema: corpus::schema(Dialect::Duckdb),
                ..SqlRequest::new(Dialect::Duckdb, sql.as_str())
            };
            let judgement = worker.judge(&request);
            let expected = effect(&whole, &sql, &allow);
            let same: Vec<bool> = others.iter().map(|other| effect(other, &sql, &allow) == expected).collect();
            let is_same = !same.contains(&false);
            if judgement.verdict == SqlVerdict::Ok {
                ok += 1;
                if !is_same {
                    slips.push(format!("{sql}\n    lists {allow:?}, same: {same:?}"));
                }
            } else if is_same && expected.is_ok() {
                let free = SqlRequest { allow: SqlAllow::default(), ..request };
                if worker.judge(&free).verdict == SqlVerdict::Ok {
                    strict.add(&judgement, &format!("{sql}\n    lists {allow:?}"));
                }
            }
        }
    }
    println!(
        "DuckDB, seed {}: {judged} judged, {ok} ok, {} slips, {} refused though nothing off the lists has an effect:",
        corpus::seed(),
        slips.len(),
        strict.count()
    );
    strict.print();
    if !slips.is_empty() {
        return Err(slips.join("\n").into());
    }
    if ok > judged / 10 { Ok(()) } else { Err(format!("only {ok} of {judged} are ok").into()) }
}
