//! Tests lists of tables and columns with DuckDB, on handwritten cases and on the corpus of `tests/corpus`. A statement
//! that is `ok` under lists must give the same result after everything off the lists was removed, and after its content
//! was changed.

use libtest_mimic::Failed;
use proctor_core::sql::{Allow, Dialect, Policy, Request, SqlCode, StageName, Verdict};
use proctor_duckdb::{Connection, Library};
use proctor_sql::child::ChildWorker;

use crate::corpus::{self, Grammar, Numbers, OBJECTS, Strict};
use crate::{judged, library};

type Test = fn() -> Result<(), Failed>;

pub(crate) fn all() -> Vec<(&'static str, Test)> {
    vec![
        ("refuses_what_is_off_the_lists", refuses_off_lists),
        ("allows_what_is_on_the_lists", allows_on_lists),
        ("refuses_rewriting_without_bounds", refuses_rewriting),
        ("findings_do_not_describe_what_is_off_the_lists", findings_keep_silent),
        ("refuses_functions_that_bind_a_text", refuses_binding_of_text),
        ("judges_parameters_of_unknown_type", judges_parameters),
        ("no_statement_of_a_corpus_slips_past_the_lists", corpus_slips_nothing),
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

fn request(sql: &str, policy: Policy, tables: &str, columns: &str) -> Request {
    let names = |list: &str| list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    let allow = Allow { tables: names(tables), columns: names(columns), ..Allow::default() };
    Request { policy, allow, schema: vec![SCHEMA.to_owned()], ..Request::new(Dialect::Duckdb, sql) }
}

type Case = (&'static str, Policy, &'static str, &'static str);

/// The stored columns of `people`.
const STORED: &str = "people.id,people.ssn";

const OFF_LISTS: &[Case] = &[
    ("SELECT masked FROM people", Policy::Read, "", STORED),
    ("SELECT p.\"MASKED\" FROM people p", Policy::Read, "", "people.ssn"),
    ("SELECT id FROM people WHERE masked = 'x'", Policy::Read, "", STORED),
    ("SELECT * FROM people", Policy::Read, "", STORED),
    ("FROM people", Policy::Read, "", STORED),
    ("SELECT p FROM people p", Policy::Read, "", STORED),
    ("SELECT struct_extract(p, 'mas' || 'ked') FROM people p", Policy::Read, "", STORED),
    ("SELECT x.* FROM (SELECT * EXCLUDE (id) FROM people) x", Policy::Read, "", STORED),
    ("SELECT COLUMNS('mask.*') FROM people", Policy::Read, "", STORED),
    ("SELECT id * 2, (* LIKE 'mask%') FROM people", Policy::Read, "", STORED),
    ("SELECT 1 FROM guests NATURAL JOIN people", Policy::Read, "", STORED),
    ("SELECT c FROM people p(a, b, c)", Policy::Read, "", STORED),
    ("SELECT max(c) FROM people AS p(a, b, c)", Policy::Read, "", STORED),
    ("SELECT max(COLUMNS('mask.*')) FROM people", Policy::Read, "", STORED),
    ("UPDATE people SET id = 7 WHERE ssn = 'x'", Policy::Write, "", "people.id"),
    ("UPDATE people SET id = 7 WHERE hash(people) = 1", Policy::Write, "", "people.id"),
    ("PIVOT people ON ssn USING count(*)", Policy::Read, "", STORED),
    ("SELECT #3 FROM people", Policy::Read, "", STORED),
    ("SELECT max(#3) FROM people", Policy::Read, "", STORED),
    ("UPDATE people SET id = 7 WHERE #2 = 'x'", Policy::Write, "", "people.id"),
    ("UPDATE people SET id = length(#2) WHERE id = 1", Policy::Write, "", "people.id"),
    ("EXPLAIN SELECT * FROM people", Policy::Read, "", STORED),
    ("SELECT hint FROM hints", Policy::Read, "", STORED),
    ("SELECT hint FROM over_hints", Policy::Read, "", STORED),
    ("SELECT first_hint()", Policy::Read, "", STORED),
    ("SELECT * FROM all_hints()", Policy::Read, "", STORED),
    ("INSERT INTO guests SELECT 'x', masked FROM people", Policy::Write, "", STORED),
    ("DELETE FROM people WHERE masked = 'x'", Policy::Write, "", STORED),
    ("CREATE VIEW x AS SELECT masked FROM people", Policy::Migrate, "", STORED),
    ("CREATE VIEW x AS SELECT hint FROM hints", Policy::Migrate, "", STORED),
    ("SELECT g.pin FROM (SELECT '4711' AS pin) g JOIN secret USING (pin)", Policy::Read, "orders", ""),
    ("SELECT g.pin FROM (SELECT '4711' AS pin) g NATURAL LEFT JOIN secret", Policy::Read, "orders", ""),
    ("SELECT * FROM w", Policy::Read, "w", ""),
    ("SELECT * FROM v", Policy::Read, "orders", ""),
    ("SELECT total FROM v", Policy::Read, "", "v.id"),
    ("SHOW TABLES", Policy::Read, "orders", ""),
    ("SHOW ALL TABLES", Policy::Read, "orders", ""),
    ("DESCRIBE", Policy::Read, "orders", ""),
    ("DESCRIBE secret", Policy::Read, "orders", ""),
    ("DESCRIBE customers", Policy::Read, "", "customers.id"),
    ("DESCRIBE SELECT * FROM customers", Policy::Read, "", "customers.id"),
    ("SELECT * FROM (DESCRIBE secret)", Policy::Read, "orders", ""),
    ("SUMMARIZE customers", Policy::Read, "", "customers.id"),
    ("SUMMARIZE secret", Policy::Read, "orders", ""),
    ("PRAGMA table_info('secret')", Policy::Read, "orders", ""),
    ("PRAGMA show_tables", Policy::Read, "orders", ""),
    ("SELECT * FROM pragma_table_info('secret')", Policy::Read, "orders", ""),
    ("SELECT * FROM duckdb_columns()", Policy::Read, "orders", ""),
    ("CALL duckdb_tables()", Policy::Read, "orders", ""),
    ("SELECT * FROM information_schema.tables", Policy::Read, "orders", ""),
    ("SELECT * FROM pg_catalog.pg_class", Policy::Read, "", "customers.id"),
    ("SELECT * FROM sqlite_master", Policy::Read, "orders", ""),
    ("WITH x AS (SELECT * FROM duckdb_tables()) SELECT 1", Policy::Read, "orders", ""),
    ("INSERT INTO customers (id, ssn) VALUES (1, 'x')", Policy::Write, "", "customers.id"),
    ("INSERT INTO customers BY NAME SELECT 1 AS id, 'x' AS ssn", Policy::Write, "", "customers.id"),
    ("DELETE FROM customers WHERE id = 1 RETURNING *", Policy::Write, "", "customers.id"),
    ("DELETE FROM customers AS c WHERE id = 1 RETURNING c", Policy::Write, "", "customers.id"),
    ("UPDATE customers SET id = 5 WHERE id = 1 RETURNING ssn", Policy::Write, "", "customers.id"),
    ("UPDATE orders SET total = 1 FROM v WHERE v.id = orders.id AND v.total = 3", Policy::Write, "orders", ""),
    ("CREATE VIEW x AS SELECT * FROM secret", Policy::Migrate, "orders,x", ""),
    ("CREATE VIEW x AS SELECT ssn FROM customers", Policy::Migrate, "", "customers.id"),
    ("CREATE MACRO x() AS TABLE SELECT ssn FROM customers", Policy::Migrate, "", "customers.id"),
    ("CREATE TABLE x (a INTEGER REFERENCES secret(id))", Policy::Migrate, "orders,x", ""),
    ("CREATE TABLE x AS SELECT id FROM orders JOIN secret USING (id)", Policy::Migrate, "orders,x", ""),
    ("CREATE INDEX i ON secret (total)", Policy::Migrate, "orders", ""),
    ("ALTER TABLE orders RENAME TO elsewhere", Policy::Migrate, "orders", ""),
    ("ALTER TABLE customers RENAME TO people", Policy::Migrate, "", "customers.id"),
    ("COMMENT ON TABLE secret IS 'x'", Policy::Migrate, "orders", ""),
    ("SELECT o.id FROM orders o POSITIONAL JOIN secret", Policy::Read, "orders", ""),
    ("SELECT o.id FROM orders o ASOF JOIN secret s ON o.id >= s.id", Policy::Read, "orders", ""),
    ("SELECT o.id FROM orders o, LATERAL (SELECT s.pin FROM secret s WHERE s.id = o.id)", Policy::Read, "orders", ""),
    ("UNPIVOT secret ON total INTO NAME n VALUE v", Policy::Read, "orders", ""),
    ("SELECT unnest(c, recursive := true) FROM customers c", Policy::Read, "", "customers.id"),
    ("SELECT * RENAME (ssn AS z) FROM customers", Policy::Read, "", "customers.id"),
    ("SELECT DISTINCT ON (ssn) id FROM customers", Policy::Read, "", "customers.id"),
    ("SELECT id, x FROM customers, LATERAL (SELECT ssn AS x)", Policy::Read, "", "customers.id"),
];

fn refuses_off_lists() -> Result<(), Failed> {
    let requests: Vec<Request> =
        OFF_LISTS.iter().map(|(sql, policy, tables, columns)| request(sql, *policy, tables, columns)).collect();
    let of_lists =
        |code: SqlCode| matches!(code, SqlCode::TableRefused | SqlCode::ColumnRefused | SqlCode::MetadataRefused);
    let wrong = judged(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let is_it =
            judgement.verdict == Verdict::Reject && judgement.diagnostics.iter().any(|found| of_lists(found.code));
        (!is_it).then(|| format!("{}: {:?} {:?}", request.sql, judgement.verdict, judgement.diagnostics))
    });
    none_of(wrong)
}

/// Checks that findings do not reveal names off the lists that the statement does not contain.
fn findings_keep_silent() -> Result<(), Failed> {
    const CASES: &[Case] = &[
        ("SELECT * FROM nosuch", Policy::Read, "orders", ""),
        ("SELECT * FROM secre", Policy::Read, "orders", ""),
        ("SELECT pni FROM secre", Policy::Read, "orders", ""),
        ("SELECT pin FROM orders", Policy::Read, "orders", ""),
        ("SELECT o.ssn FROM orders o", Policy::Read, "orders", ""),
        ("SELECT snn FROM customers", Policy::Read, "", "customers.id"),
        ("SELECT snn /* ssn */ FROM customers", Policy::Read, "", "customers.id"),
        ("SELECT c.snn FROM customers c", Policy::Read, "", "customers.id"),
        ("SELECT * FROM customers", Policy::Read, "", "customers.id"),
        ("SELECT COLUMNS('s.*') FROM customers", Policy::Read, "", "customers.id"),
        ("SELECT * FROM w", Policy::Read, "w", ""),
        ("SELECT first_hint()", Policy::Read, "orders", ""),
        ("SELECT * FROM all_hints()", Policy::Read, "orders", ""),
        ("DELETE FROM customers WHERE id = 1 RETURNING *", Policy::Write, "", "customers.id"),
    ];
    let requests: Vec<Request> =
        CASES.iter().map(|(sql, policy, tables, columns)| request(sql, *policy, tables, columns)).collect();
    let wrong = judged(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let (sql, columns) = (&request.sql, !request.allow.columns.is_empty());
        let hidden: &[&str] = if columns { &["ssn"] } else { &["secret", "pin", "ssn", "people", "masked", "guests"] };
        let named = hidden.iter().find(|name| {
            judgement.diagnostics.iter().any(|found| {
                let suggested = format!("{:?} {:?} {:?}", found.candidates, found.advice, found.fix);
                let told = format!("{} {:?} {:?}", found.message, found.engine_code, found.subject);
                suggested.contains(*name) || (!sql.contains(*name) && told.contains(*name))
            }) || (!sql.contains(*name) && judgement.feedback.contains(*name))
        });
        let is_right = named.is_none() && judgement.verdict == Verdict::Reject;
        (!is_right).then(|| format!("{sql}: {named:?} {:#?}", judgement.diagnostics))
    });
    none_of(wrong)
}

/// A function that binds a text could show or read any table.
fn refuses_binding_of_text() -> Result<(), Failed> {
    let requests = [
        "SELECT json_serialize_plan('SELECT * FROM secret')",
        "FROM query_table('secret')",
        "FROM query('SELECT pin FROM ' || 'secret')",
    ]
    .map(|sql| request(sql, Policy::Read, "orders", ""));
    none_of(judged(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        (judgement.verdict != Verdict::Reject).then(|| format!("{}: {judgement:#?}", request.sql))
    }))
}

fn none_of(wrong: impl Iterator<Item = String>) -> Result<(), Failed> {
    let wrong: Vec<String> = wrong.collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n").into()) }
}

fn each_is_ok(cases: &[Case]) -> Result<(), Failed> {
    let requests: Vec<Request> =
        cases.iter().map(|(sql, policy, tables, columns)| request(sql, *policy, tables, columns)).collect();
    none_of(judged(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let reasons: Vec<_> = judgement.stages.iter().filter_map(|stage| stage.reason.clone()).collect();
        (judgement.verdict != Verdict::Ok)
            .then(|| format!("{}: {:?} {reasons:?} {:?}", request.sql, judgement.verdict, judgement.diagnostics))
    }))
}

fn allows_on_lists() -> Result<(), Failed> {
    each_is_ok(&[
        ("SELECT * FROM json_each('[1]')", Policy::Read, "orders", ""),
        ("SELECT ssn, count(*), max(id * 2) FROM people GROUP BY ssn", Policy::Read, "", STORED),
        ("SELECT ssn, count(*) FROM people GROUP BY ALL", Policy::Read, "", STORED),
        ("SELECT masked FROM people", Policy::Read, "", "people.ssn,people.masked"),
        ("SELECT * FROM guests", Policy::Read, "", STORED),
        ("UPDATE people SET ssn = 'x' WHERE id = 1", Policy::Write, "", STORED),
        ("UPDATE people SET id = 7 WHERE people.id = 1", Policy::Write, "", "people.id"),
        ("SELECT o.id, r.range FROM orders o, range(3) r", Policy::Read, "orders", ""),
        ("SELECT unnest([1, 2]), id FROM orders", Policy::Read, "orders", "orders.id"),
        ("SELECT total FROM v", Policy::Read, "orders,v", ""),
        ("SELECT o.id FROM orders o JOIN customers USING (id)", Policy::Read, "", "customers.id"),
        ("SELECT * EXCLUDE (name, ssn) FROM customers", Policy::Read, "", "customers.id"),
        ("DESCRIBE orders", Policy::Read, "orders", ""),
        ("SUMMARIZE orders", Policy::Read, "orders", ""),
        ("PRAGMA table_info('orders')", Policy::Read, "orders", ""),
        ("SHOW TABLES", Policy::Read, "", ""),
        ("SELECT * FROM information_schema.tables", Policy::Read, "", ""),
        (
            "INSERT INTO customers (id, name) VALUES (1, 'x') RETURNING id",
            Policy::Write,
            "",
            "customers.id,customers.name",
        ),
        ("DELETE FROM customers WHERE id = 1 RETURNING id", Policy::Write, "", "customers.id"),
        ("CREATE VIEW x AS SELECT id FROM orders", Policy::Migrate, "orders,x", ""),
        ("CREATE TABLE x (a INTEGER REFERENCES orders(id))", Policy::Migrate, "orders,x", ""),
    ])
}

fn refuses_rewriting() -> Result<(), Failed> {
    let unbounded = [
        "INSERT OR REPLACE INTO orders SELECT * FROM orders",
        "INSERT INTO orders SELECT * FROM secret ON CONFLICT (id) DO UPDATE SET total = 0",
        "INSERT INTO orders SELECT * FROM orders WHERE id IS NOT NULL ON CONFLICT (id) DO UPDATE SET total = 0",
        "MERGE INTO orders USING orders AS o ON o.id = orders.id WHEN MATCHED THEN DELETE",
    ];
    let requests: Vec<Request> = unbounded.iter().map(|sql| request(sql, Policy::Write, "", "")).collect();
    none_of(judged(&requests)?.into_iter().zip(&requests).filter_map(|(judgement, request)| {
        let is_it = judgement
            .diagnostics
            .iter()
            .any(|found| matches!(found.code, SqlCode::UnboundedWrite | SqlCode::AlwaysTrueFilter));
        (!is_it).then(|| format!("{}: {:?}", request.sql, judgement.diagnostics))
    }))?;
    each_is_ok(&[
        ("INSERT OR REPLACE INTO orders (id, total) VALUES (1, 5)", Policy::Write, "", ""),
        (
            "INSERT INTO customers VALUES (1, 'x', 'y') ON CONFLICT (id) DO UPDATE SET name = excluded.name",
            Policy::Write,
            "",
            "",
        ),
    ])
}

fn judges_parameters() -> Result<(), Failed> {
    each_is_ok(&[
        ("SELECT ? + 1", Policy::Read, "", ""),
        ("SELECT ?", Policy::Read, "", ""),
        ("SELECT date_trunc('month', ?)", Policy::Read, "", ""),
        ("SELECT $name || 'x', $name", Policy::Read, "", ""),
        ("SELECT sum(?) FROM orders WHERE id = ?", Policy::Read, "orders", ""),
        ("INSERT INTO orders VALUES (?, ? + 1, ?, ?)", Policy::Write, "", ""),
    ])?;
    let judgements = judged(&[
        request("SELECT ? + 1 FROM secret", Policy::Read, "orders", ""),
        request("SELECT ? + nmae FROM customers", Policy::Read, "", ""),
    ])?;
    let verdicts: Vec<Verdict> = judgements.iter().map(|judgement| judgement.verdict).collect();
    if verdicts == [Verdict::Reject; 2] { Ok(()) } else { Err(format!("{judgements:#?}").into()) }
}

fn run(connection: &Connection, sql: &str) -> Result<Vec<String>, String> {
    let statements = connection.extract(sql)?;
    let mut found = Vec::new();
    for index in 0..statements.count() {
        let mut rows = statements.prepare(index)?.run()?;
        while let Some(chunk) = rows.next_chunk()? {
            found.extend((0..chunk.rows()).map(|row| chunk.text(0, row).unwrap_or_default()));
        }
    }
    found.sort();
    Ok(found)
}

fn database(library: &Library, changes: &[String]) -> Result<Connection, Failed> {
    let settings = [("autoinstall_known_extensions", "false"), ("threads", "1"), ("memory_limit", "256MB")];
    let connection = library.open(None, &settings)?.connect()?;
    for part in corpus::schema() {
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
fn effect(connection: &Connection, sql: &str, allow: &Allow) -> Result<Vec<String>, ()> {
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
                let asked = format!("SELECT concat_ws('|', {}) FROM {table}", listed.join(", "));
                found.extend(run(connection, &asked).unwrap_or_default());
            }
        }
    }
    let _ = run(connection, "ROLLBACK");
    outcome.map_err(drop)
}

fn corpus_slips_nothing() -> Result<(), Failed> {
    const EACH: usize = 25;
    let library = Library::load(&crate::library()?)?;
    let mut worker = ChildWorker::new(Ok(self::library()?));
    let (mut numbers, mut grammar) =
        (Numbers::new(corpus::seed() + 1), Grammar::new(1_101 + corpus::seed(), Dialect::Duckdb));
    let stages = vec![StageName::Parse, StageName::Bind, StageName::Safety];
    let (mut judged, mut ok, mut slips, mut strict) = (0, 0, Vec::new(), Strict::default());
    while judged < corpus::count(75) {
        let allow = corpus::lists(&mut numbers);
        let whole = database(&library, &[])?;
        let others = [database(&library, &corpus::removed(&allow))?, database(&library, &corpus::perturbed(&allow))?];
        for _ in 0..EACH {
            let sql = grammar.statement();
            judged += 1;
            let request = Request {
                policy: Policy::Write,
                allow: allow.clone(),
                stages: Some(stages.clone()),
                schema: corpus::schema(),
                ..Request::new(Dialect::Duckdb, sql.as_str())
            };
            let judgement = worker.judge(&request);
            let expected = effect(&whole, &sql, &allow);
            let same: Vec<bool> = others.iter().map(|other| effect(other, &sql, &allow) == expected).collect();
            let is_same = !same.contains(&false);
            if judgement.verdict == Verdict::Ok {
                ok += 1;
                if !is_same {
                    slips.push(format!("{sql}\n    lists {allow:?}, same: {same:?}"));
                }
            } else if is_same && expected.is_ok() {
                let free = Request { allow: Allow::default(), ..request };
                if worker.judge(&free).verdict == Verdict::Ok {
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
