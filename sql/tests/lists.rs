//! Tests lists of tables and columns with SQLite, on handwritten cases and on a corpus with an independent oracle. A
//! statement that is `ok` under lists must open no page of a table off the list. It must give the same result after
//! everything off the lists was removed, and after its content was changed.

mod corpus;

use std::collections::{BTreeMap, BTreeSet};

use corpus::{Grammar, OBJECTS, RandomNumbers, StrictRefusals};
use proctor_core::sql::{Dialect, Judgement, SqlAllow, SqlCode, SqlPolicy, SqlRequest, SqlVerdict, StageName};
use proctor_sql::SqlEngine as _;
use proctor_sql::sqlite::Sqlite;
use rusqlite::Connection;
use rusqlite::types::Value;

const SCHEMA: &str = "
    CREATE TABLE orders (id INTEGER PRIMARY KEY, cust INTEGER REFERENCES customers(id), total REAL);
    CREATE TABLE copies (id INTEGER PRIMARY KEY, cust INTEGER, total REAL);
    CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, ssn TEXT UNIQUE, masked AS (substr(ssn, -4)));
    CREATE TABLE secret (id INTEGER PRIMARY KEY, cust INTEGER REFERENCES orders(id) ON DELETE CASCADE, total REAL, pin TEXT UNIQUE);
    CREATE TABLE spare (id INTEGER PRIMARY KEY, cust INTEGER, total REAL);
    CREATE TABLE log (id INTEGER PRIMARY KEY, what TEXT);
    CREATE TABLE once (id INTEGER PRIMARY KEY ON CONFLICT REPLACE, a TEXT);
    CREATE INDEX by_total ON secret (total);
    CREATE INDEX by_name ON customers (lower(name));
    CREATE VIEW v AS SELECT id, total FROM orders;
    CREATE VIEW w AS SELECT o.id FROM orders o JOIN secret USING (id);
    CREATE VIEW m AS SELECT name FROM sqlite_master;
    CREATE TRIGGER logged AFTER INSERT ON copies BEGIN INSERT INTO log (what) SELECT pin FROM secret JOIN (SELECT new.id AS id) USING (id); END;
    CREATE VIRTUAL TABLE notes USING fts5(body);
    CREATE VIRTUAL TABLE mirror USING fts5(pin, content='secret', content_rowid='id');";

fn allow(tables: &str, columns: &str) -> SqlAllow {
    let names = |list: &str| list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
    SqlAllow { tables: names(tables), columns: names(columns), ..SqlAllow::default() }
}

fn judge(sql: &str, policy: SqlPolicy, allow: SqlAllow) -> Judgement {
    let request =
        SqlRequest { policy, allow, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Sqlite, sql) };
    let mut engine = Sqlite::open(&request).expect("opens");
    proctor_sql::judge(&request, &mut engine)
}

fn assert_refused(cases: &[(&str, &str, &str)], policy: SqlPolicy) {
    for (sql, tables, columns) in cases {
        let judgement = judge(sql, policy, allow(tables, columns));
        let of_lists =
            |code: SqlCode| matches!(code, SqlCode::TableRefused | SqlCode::ColumnRefused | SqlCode::MetadataRefused);
        let is_refused = judgement.diagnostics.iter().any(|found| of_lists(found.code));
        assert!(is_refused && judgement.verdict == SqlVerdict::Reject, "{sql}: {:#?}", judgement.diagnostics);
    }
}

fn assert_accepted(cases: &[(&str, &str, &str)], policy: SqlPolicy) {
    for (sql, tables, columns) in cases {
        let judgement = judge(sql, policy, allow(tables, columns));
        assert_eq!(judgement.verdict, SqlVerdict::Ok, "{sql}: {:#?}", judgement.diagnostics);
    }
}

#[test]
fn rejects_reads_off_lists() {
    assert_refused(
        &[
            ("SELECT g.pin FROM (SELECT '4711' AS pin) g JOIN secret USING (pin)", "orders", ""),
            ("SELECT g.pin FROM (SELECT '4711' AS pin) g NATURAL JOIN secret", "orders", ""),
            ("SELECT g.pin FROM (SELECT '4711' AS pin) g LEFT JOIN secret USING (pin)", "orders", ""),
            ("SELECT g.pin FROM (SELECT '4711' AS pin) g JOIN 'secret' USING (pin)", "orders", ""),
            ("SELECT 1 FROM orders JOIN spare USING (id)", "orders", ""),
            ("SELECT 1 FROM orders NATURAL JOIN w", "orders", ""),
            ("SELECT 1 FROM orders NATURAL JOIN w", "orders,w", ""),
            ("SELECT id FROM v", "orders", ""),
            ("SELECT rowid FROM mirror", "mirror", ""),
            ("SELECT 1 FROM orders WHERE id IN (SELECT 1 FROM orders JOIN spare USING (id))", "orders", ""),
            ("SELECT g.ssn FROM (SELECT 'x' AS ssn) g JOIN customers USING (ssn)", "", "customers.id"),
            ("SELECT g.ssn FROM (SELECT 'x' AS ssn) g NATURAL JOIN customers", "", "customers.id"),
            ("SELECT g.ssn FROM (SELECT 'x' AS ssn) g NATURAL LEFT JOIN customers", "", "customers.id"),
            ("SELECT x.id FROM customers x NATURAL JOIN customers y", "", "customers.id"),
            (
                "SELECT count(*) FROM \"Customers\" NATURAL LEFT JOIN main.customers AS y",
                "",
                "customers.id,customers.name",
            ),
            ("SELECT 1 FROM customers x NATURAL JOIN orders NATURAL JOIN [customers] y", "", "customers.id"),
            ("SELECT masked FROM customers", "", "customers.id,customers.masked"),
            ("SELECT rowid FROM customers", "", "customers.name"),
            ("SELECT 1 FROM customers WHERE lower(name) = 'x'", "", "customers.id"),
            ("SELECT * FROM customers", "", "customers.id"),
            ("SELECT id FROM v WHERE total > 1", "", "v.id"),
            ("SELECT 1 FROM (SELECT 5 AS total) NATURAL JOIN v", "", "v.id"),
        ],
        SqlPolicy::Read,
    );
}

#[test]
fn hidden_columns_are_neither_searched_nor_compared() {
    let schema = "
        CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, ssn TEXT);
        CREATE TABLE towns (name TEXT, mayor TEXT);
        CREATE VIEW same AS SELECT p.id FROM people p NATURAL JOIN people q;
        CREATE VIRTUAL TABLE notes USING fts5(body, ssn);
        CREATE VIRTUAL TABLE letters USING fts4(body, ssn);";
    let verdict = |sql: &str, policy| {
        let columns = "people.id,people.name,towns.name,towns.mayor,notes.body,letters.body,same.id";
        let schema = vec![schema.to_owned()];
        let request = SqlRequest { policy, allow: allow("", columns), schema, ..SqlRequest::new(Dialect::Sqlite, sql) };
        let mut engine = Sqlite::open(&request).expect("opens");
        proctor_sql::judge(&request, &mut engine)
    };
    for sql in [
        "SELECT body FROM notes('x')",
        "SELECT body FROM main.notes('x', 'bm25(1)')",
        "SELECT n.body FROM people p, notes(p.name) n",
        "SELECT (SELECT count(*) FROM notes('x')) FROM people",
        "SELECT body FROM letters WHERE body MATCH 'ssn:x'",
        "SELECT body FROM letters WHERE rowid > 1 AND body MATCH 'x'",
        "SELECT p.id FROM people p NATURAL JOIN people q",
        "SELECT p.id FROM people p NATURAL LEFT JOIN main.\"People\" AS q",
        "SELECT id FROM same",
        "EXPLAIN SELECT p.id FROM people p NATURAL JOIN people q",
    ] {
        let judgement = verdict(sql, SqlPolicy::Read);
        assert!(
            judgement.diagnostics.iter().any(|found| found.code == SqlCode::ColumnRefused),
            "{sql}: {judgement:#?}"
        );
    }
    for sql in
        ["DELETE FROM people WHERE id IN (SELECT rowid FROM notes('x'))", "DELETE FROM letters WHERE body MATCH 'x'"]
    {
        let judgement = verdict(sql, SqlPolicy::Write);
        assert!(
            judgement.diagnostics.iter().any(|found| found.code == SqlCode::ColumnRefused),
            "{sql}: {judgement:#?}"
        );
    }
    for sql in [
        "SELECT body FROM notes WHERE body MATCH 'x'",
        "SELECT body FROM letters",
        "SELECT people.id FROM people NATURAL JOIN towns",
        "SELECT t.mayor FROM towns t NATURAL JOIN towns u",
        "SELECT p.id FROM people p JOIN people q USING (id)",
    ] {
        let judgement = verdict(sql, SqlPolicy::Read);
        assert_eq!(judgement.verdict, SqlVerdict::Ok, "{sql}: {judgement:#?}");
    }
}

#[test]
fn failures_hide_values_and_names_off_lists() {
    let schema = "
        CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, ssn TEXT DEFAULT 'hidden-7', CHECK (ssn <> name),
            CONSTRAINT hidden_rule CHECK (length(name) < 9));
        CREATE UNIQUE INDEX hidden_index ON people (lower(name));
        CREATE TRIGGER hidden_trigger BEFORE DELETE ON people BEGIN SELECT RAISE(ABORT, 'hidden text'); END;
        CREATE TRIGGER hidden_null BEFORE UPDATE ON people WHEN NEW.name = 'a'
            BEGIN SELECT RAISE(ABORT, 'the hidden number cannot be null'); END;
        CREATE TRIGGER hidden_table BEFORE UPDATE ON people WHEN NEW.name = 'b'
            BEGIN SELECT RAISE(ABORT, 'no such table: hidden'); END;
        CREATE TRIGGER hidden_unique BEFORE UPDATE ON people WHEN NEW.name = 'c'
            BEGIN SELECT RAISE(FAIL, 'UNIQUE constraint failed: people.name, hidden number'); END;
        INSERT INTO people (id, name) VALUES (1, 'Ann');";
    for sql in [
        "INSERT INTO people (id, name) VALUES (2, 'ann')",
        "INSERT INTO people (id, name) VALUES (2, 'much too long')",
        "INSERT INTO people (id, name) VALUES (2, 'hidden' || '-7')",
        "DELETE FROM people WHERE id = 1",
        "UPDATE people SET name = 'a' WHERE id = 1",
        "UPDATE people SET name = 'b' WHERE id = 1",
        "UPDATE people SET name = 'c' WHERE id = 1",
        "EXPLAIN INSERT INTO people (id, name) VALUES (2, 'x')",
    ] {
        let (allow, schema) = (allow("", "people.id,people.name"), vec![schema.to_owned()]);
        let request = SqlRequest { policy: SqlPolicy::Write, allow, schema, ..SqlRequest::new(Dialect::Sqlite, sql) };
        let mut engine = Sqlite::open(&request).expect("opens");
        let judgement = proctor_sql::judge(&request, &mut engine);
        let codes: Vec<SqlCode> = judgement.diagnostics.iter().map(|found| found.code).collect();
        let expected = if sql.starts_with("EXPLAIN") { SqlCode::MetadataRefused } else { SqlCode::ConstraintBroken };
        assert_eq!(codes, [expected], "{sql}: {judgement:#?}");
        let shown = serde_json::to_string(&judgement.diagnostics).expect("serializes") + &judgement.feedback;
        assert!(!shown.contains("hidden") && !shown.contains("ssn"), "{sql}: {shown}");
    }
}

#[test]
fn rejects_metadata_off_lists() {
    assert_refused(
        &[
            ("PRAGMA table_info(secret)", "orders", ""),
            ("PRAGMA table_xinfo(secret)", "orders", ""),
            ("PRAGMA index_list(secret)", "orders", ""),
            ("PRAGMA index_info(by_total)", "orders", ""),
            ("PRAGMA foreign_key_list(secret)", "orders", ""),
            ("PRAGMA table_list", "orders", ""),
            ("PRAGMA page_count", "orders", ""),
            ("PRAGMA table_info(w)", "w", ""),
            ("PRAGMA table_info(customers)", "", "customers.id"),
            ("SELECT * FROM sqlite_master", "", "customers.id"),
            ("SELECT * FROM sqlite_schema", "orders", ""),
            ("SELECT 1 FROM (SELECT 'secret' AS name) JOIN sqlite_master USING (name)", "orders", ""),
            ("SELECT 1 FROM (SELECT 'secret' AS name) NATURAL JOIN pragma_table_list", "orders", ""),
            ("SELECT * FROM pragma_table_info('secret')", "orders", ""),
            ("SELECT name FROM m", "m", ""),
            ("SELECT * FROM notes_content", "notes", ""),
            ("SELECT 1 FROM (SELECT 1 AS id) JOIN notes_content USING (id)", "notes", ""),
        ],
        SqlPolicy::Read,
    );
}

#[test]
fn findings_hide_names_off_lists() {
    const CASES: &[(&str, &str, &str)] = &[
        ("SELECT * FROM nosuch", "orders", ""),
        ("SELECT id FROM orders INDEXED BY nosuch", "orders", ""),
        ("SELECT * FROM secre", "orders", ""),
        ("SELECT pni FROM secre", "orders", ""),
        ("SELECT * FROM seecret s WHERE s.pni = 1", "orders", ""),
        ("SELECT pin FROM orders", "orders", ""),
        ("SELECT ssn FROM orders", "orders", ""),
        ("SELECT o.pin FROM orders o", "orders", ""),
        ("SELECT pni /* pin */ FROM secret", "orders", ""),
        ("SELECT snn FROM customers", "", "customers.id"),
        ("SELECT c.maskd FROM customers c", "", "customers.id"),
        ("UPDATE customers SET snn = 1 WHERE id = 1", "", "customers.id"),
        ("INSERT INTO customers (id, snn) VALUES (1, 2)", "", "customers.id"),
        ("SELECT id FROM w", "w", ""),
        ("SELECT * FROM customers", "", "customers.id"),
        ("SELECT * FROM orders NATURAL JOIN w", "orders,w", ""),
        ("SELECT o.id FROM orders o JOIN customers c ON c.id = o.id", "orders", ""),
        ("SELECT 1 FROM (SELECT 's' AS ssn) NATURAL JOIN customers", "", "customers.id"),
        ("DELETE FROM orders WHERE id = 1", "orders", ""),
        ("INSERT INTO copies (id) VALUES (1)", "copies", ""),
    ];
    let question = Some("How many secret customers with a pin, an ssn and a mask are there?".to_owned());
    for (sql, tables, columns) in CASES {
        let request = SqlRequest {
            policy: SqlPolicy::Write,
            allow: allow(tables, columns),
            schema: vec![SCHEMA.to_owned()],
            question: question.clone(),
            ..SqlRequest::new(Dialect::Sqlite, *sql)
        };
        let mut engine = Sqlite::open(&request).expect("opens");
        let judgement = proctor_sql::judge(&request, &mut engine);
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}");
        let hidden = ["secret", "pin", "ssn", "masked", "spare", "log", "mirror", "notes"].into_iter();
        let is_hidden =
            |name: &&str| if tables.is_empty() { ["ssn", "masked"].contains(name) } else { !tables.contains(name) };
        for name in hidden.filter(is_hidden) {
            for found in &judgement.diagnostics {
                let suggested = format!("{:?} {:?} {:?}", found.candidates, found.advice, found.fix);
                assert!(!suggested.contains(name), "{sql}: {name}: {found:#?}");
                let described = format!("{} {:?} {:?}", found.message, found.engine_code, found.subject);
                assert!(sql.contains(name) || !described.contains(name), "{sql}: {name}: {found:#?}");
            }
            assert!(sql.contains(name) || !judgement.feedback.contains(name), "{sql}: {}", judgement.feedback);
            let reached = &judgement.statements[0].tables;
            assert!(sql.contains(name) || !reached.iter().any(|table| table == name), "{sql}: {reached:?}");
        }
    }
}

#[test]
fn hides_column_whose_name_another_table_shows() {
    let judgement = judge("SELECT * FROM orders", SqlPolicy::Read, allow("", "orders.id"));
    assert!(!judgement.feedback.contains("total"), "{}", judgement.feedback);
    let judgement = judge("SELECT total FROM orders", SqlPolicy::Read, allow("", "orders.id"));
    assert!(judgement.feedback.contains("orders.total"), "{}", judgement.feedback);
}

#[test]
fn accepts_names_on_lists() {
    assert_accepted(
        &[
            ("SELECT value FROM json_each('[1]')", "orders", ""),
            ("SELECT o.id, j.value FROM orders o, json_each('[1]') j", "orders", "orders.id"),
            ("SELECT 1 FROM orders JOIN spare USING (id)", "orders,spare", ""),
            ("SELECT 1 FROM orders NATURAL JOIN w", "orders,w,secret", ""),
            ("SELECT o.id FROM orders o JOIN customers c USING (id)", "", "customers.id"),
            ("SELECT o.id FROM orders o NATURAL JOIN customers c", "", "customers.id"),
            ("SELECT customers.id FROM orders NATURAL JOIN customers WHERE customers.id > 1", "", "customers.id"),
            ("SELECT x.id FROM orders x NATURAL JOIN orders y", "", "orders.id,orders.cust,orders.total"),
            ("SELECT x.id FROM customers x JOIN customers y USING (id)", "", "customers.id"),
            ("SELECT total FROM v", "orders,v", ""),
            ("SELECT id FROM v", "", "v.id"),
            ("PRAGMA table_info(orders)", "orders", ""),
            ("PRAGMA table_info(secret)", "", ""),
            ("SELECT name FROM sqlite_master", "", ""),
            ("SELECT body FROM notes WHERE notes MATCH 'x'", "notes", ""),
            ("WITH part AS (SELECT id FROM orders) SELECT id FROM part", "orders", ""),
            ("SELECT \"name\" FROM customers WHERE name = \"x\"", "customers", "customers.name"),
            ("SELECT rank() OVER (ORDER BY id) FROM orders UNION SELECT id FROM spare", "orders,spare", ""),
        ],
        SqlPolicy::Read,
    );
}

#[test]
fn lists_apply_to_writes() {
    assert_refused(
        &[
            ("INSERT INTO spare SELECT * FROM orders", "spare", ""),
            ("INSERT INTO spare SELECT * FROM copies WHERE id IN (SELECT id FROM spare)", "spare", ""),
            ("INSERT INTO copies (id) VALUES (1)", "copies", ""),
            ("INSERT INTO customers (id, ssn) VALUES (1, 'x')", "", "customers.id"),
            ("INSERT INTO customers VALUES (1, 'x', 'y')", "", "customers.id"),
            ("WITH x AS (SELECT 1) INSERT INTO customers (id, ssn) SELECT 1, 2 FROM x", "", "customers.id"),
            ("REPLACE INTO customers (id) VALUES (1)", "", "customers.id"),
            ("INSERT INTO customers (id) VALUES (1) ON CONFLICT (ssn) DO NOTHING", "", "customers.id"),
            ("INSERT INTO customers (id) VALUES (1) ON CONFLICT DO UPDATE SET ssn = 1", "", "customers.id"),
            ("INSERT INTO customers (id) VALUES (1) RETURNING *", "", "customers.id"),
            ("UPDATE customers SET id = 7 WHERE id = 1 RETURNING ssn", "", "customers.id"),
            ("DELETE FROM customers WHERE id = 1 RETURNING *", "", "customers.id"),
            (
                "UPDATE orders SET total = 1 FROM (SELECT 1 AS id) x NATURAL JOIN spare WHERE orders.id = x.id",
                "orders",
                "",
            ),
            ("DELETE FROM orders WHERE id = 1", "orders", ""),
        ],
        SqlPolicy::Write,
    );
    assert_accepted(
        &[
            ("INSERT INTO spare SELECT * FROM orders", "spare,orders", ""),
            ("INSERT INTO customers (id, name) VALUES (1, 'x') RETURNING id", "", "customers.id,customers.name"),
            ("INSERT INTO customers DEFAULT VALUES", "", "customers.id"),
            ("INSERT INTO copies (id) VALUES (1)", "copies,log,secret", ""),
            ("DELETE FROM spare WHERE id = 1", "spare", ""),
            ("UPDATE orders SET total = 1 WHERE id = 1", "orders", ""),
        ],
        SqlPolicy::Write,
    );
}

#[test]
fn lists_apply_to_migration_bodies() {
    assert_refused(
        &[
            ("CREATE VIEW leak AS SELECT * FROM secret", "orders,leak", ""),
            ("CREATE VIEW leak AS SELECT id FROM orders JOIN secret USING (id)", "orders,leak", ""),
            ("CREATE VIEW leak AS SELECT ssn FROM customers", "", "customers.id"),
            ("CREATE VIEW leak AS SELECT name FROM sqlite_master", "orders,leak", ""),
            ("CREATE TRIGGER t AFTER INSERT ON orders BEGIN DELETE FROM secret; END", "orders", ""),
            ("CREATE TRIGGER t AFTER INSERT ON secret BEGIN DELETE FROM orders; END", "orders", ""),
            (
                "CREATE TRIGGER t BEFORE UPDATE OF total ON orders WHEN (SELECT 1 FROM secret) BEGIN SELECT 1; END",
                "orders",
                "",
            ),
            ("CREATE TRIGGER t INSTEAD OF DELETE ON v BEGIN DELETE FROM secret WHERE id = old.id; END", "orders,v", ""),
            (
                "CREATE TRIGGER t AFTER DELETE ON orders BEGIN INSERT INTO spare SELECT * FROM copies; END",
                "orders,spare",
                "",
            ),
            ("CREATE VIRTUAL TABLE f USING fts5(pin, content='secret')", "orders,f", ""),
            ("CREATE VIRTUAL TABLE f USING fts4(content=\"secret\", pin)", "orders,f", ""),
            ("CREATE VIRTUAL TABLE g USING fts5(pin)", "orders,f", ""),
            ("CREATE TABLE o2 (id INTEGER REFERENCES secret ON DELETE CASCADE)", "orders,o2", ""),
            ("ALTER TABLE orders ADD COLUMN s INTEGER REFERENCES secret(id)", "orders", ""),
            ("CREATE TABLE o2 AS SELECT id FROM orders JOIN secret USING (id)", "orders,o2", ""),
            ("CREATE INDEX i ON secret (total)", "orders", ""),
            ("DROP INDEX by_total", "orders", ""),
            ("DROP TRIGGER logged", "orders", ""),
            ("ALTER TABLE orders RENAME TO elsewhere", "orders", ""),
            ("ALTER TABLE customers RENAME TO people", "", "customers.id"),
            ("ALTER TABLE customers RENAME COLUMN ssn TO id2", "", "customers.id"),
            ("CREATE INDEX i ON customers (upper(ssn))", "", "customers.id"),
        ],
        SqlPolicy::Migrate,
    );
    assert_accepted(
        &[
            ("CREATE VIEW leak AS SELECT * FROM orders", "orders,leak", ""),
            (
                "CREATE TRIGGER t AFTER INSERT ON orders BEGIN UPDATE spare SET total = 1 WHERE id = new.id; END",
                "orders,spare",
                "",
            ),
            (
                "CREATE TABLE o2 (id INTEGER REFERENCES orders(id)); CREATE INDEX i ON o2 (id); INSERT INTO o2 (id) VALUES (1)",
                "orders,o2",
                "",
            ),
            (
                "CREATE TABLE o2 (a TEXT); ALTER TABLE o2 ADD COLUMN b TEXT; CREATE VIEW leak AS SELECT a, b FROM o2",
                "o2,leak",
                "",
            ),
            ("CREATE VIRTUAL TABLE f USING fts5(body)", "f", ""),
            ("ALTER TABLE orders RENAME COLUMN total TO sum", "orders", ""),
        ],
        SqlPolicy::Migrate,
    );
}

#[test]
fn rejects_unbounded_rewrites() {
    for sql in [
        "REPLACE INTO orders SELECT * FROM orders",
        "INSERT OR REPLACE INTO orders SELECT * FROM copies",
        "INSERT INTO orders SELECT * FROM copies WHERE true ON CONFLICT (id) DO UPDATE SET total = 0",
        "INSERT INTO orders SELECT * FROM copies WHERE id IS NOT NULL ON CONFLICT (id) DO UPDATE SET total = 0",
        "UPDATE OR REPLACE orders SET total = 0",
        "INSERT INTO once SELECT * FROM once",
    ] {
        let judgement = judge(sql, SqlPolicy::Write, SqlAllow::default());
        let is_found = |code| matches!(code, SqlCode::UnboundedWrite | SqlCode::AlwaysTrueFilter);
        assert!(judgement.diagnostics.iter().any(|found| is_found(found.code)), "{sql}: {:#?}", judgement.diagnostics);
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}");
    }
    assert_accepted(
        &[
            ("REPLACE INTO orders VALUES (1, 1, 5.0)", "", ""),
            ("INSERT INTO orders SELECT * FROM copies WHERE id = 1 ON CONFLICT (id) DO UPDATE SET total = 0", "", ""),
            ("INSERT INTO orders SELECT * FROM spare", "", ""),
        ],
        SqlPolicy::Write,
    );
}

#[test]
fn reports_tables_missed_by_authorizer() {
    let tables = |sql: &str| judge(sql, SqlPolicy::Write, SqlAllow::default()).statements[0].tables.clone();
    assert_eq!(tables("SELECT g.pin FROM (SELECT '4711' AS pin) g JOIN secret USING (pin)"), ["secret"]);
    assert_eq!(tables("SELECT o.id FROM orders o NATURAL JOIN spare"), ["orders", "spare"]);
    assert_eq!(tables("INSERT INTO spare SELECT * FROM orders"), ["orders", "spare"]);
    assert_eq!(tables("EXPLAIN QUERY PLAN SELECT o.id FROM orders o NATURAL JOIN spare"), ["orders", "spare"]);
}

/// Returns a database on which the oracle runs statements.
fn database(changes: &[String]) -> Connection {
    let connection = Connection::open_in_memory().expect("opens");
    connection.execute_batch("PRAGMA foreign_keys = OFF").expect("a setting");
    connection.execute_batch(&corpus::schema(Dialect::Sqlite).join(";")).expect("a schema");
    for change in changes {
        let done = connection.execute_batch(change);
        assert!(done.is_ok() || change.starts_with("CREATE VIEW"), "{change}: {done:?}");
    }
    connection
}

/// Returns the result of a statement and the listed content after it, and rolls back.
fn effect(connection: &Connection, sql: &str, allow: &SqlAllow) -> Result<Vec<String>, String> {
    let rows = |sql: &str| -> Result<Vec<String>, rusqlite::Error> {
        let mut statement = connection.prepare(sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query([])?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let values: Result<Vec<Value>, _> = (0..columns).map(|at| row.get::<_, Value>(at)).collect();
            found.push(format!("{:?}", values?));
        }
        found.sort();
        Ok(found)
    };
    connection.execute_batch("BEGIN").expect("begins");
    let outcome = rows(sql).map_err(|error| error.to_string()).map(|mut found| {
        // A program shows page numbers and the schema version.
        if sql.starts_with("EXPLAIN") {
            found.clear();
        }
        for (table, columns) in OBJECTS.iter().filter(|(table, _)| !table.starts_with("v_")) {
            let listed: Vec<&str> =
                columns.iter().copied().filter(|column| !corpus::is_hidden(allow, table, column)).collect();
            if corpus::is_listed(allow, table) && !listed.is_empty() {
                found.push((*table).to_owned());
                let query = format!("SELECT {} FROM {table}", listed.join(", "));
                found.extend(rows(&query).unwrap_or_default());
            }
        }
        found
    });
    connection.execute_batch("ROLLBACK").expect("ends");
    outcome
}

/// Returns the tables whose pages a program opens.
fn opened_tables(connection: &Connection, sql: &str) -> BTreeSet<String> {
    let mut statement =
        connection.prepare("SELECT rootpage, tbl_name FROM sqlite_master WHERE rootpage > 0").expect("prepared");
    let roots: BTreeMap<i64, String> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .expect("rows")
        .map(|row| row.expect("a row"))
        .collect();
    let sql = if sql.starts_with("EXPLAIN") {
        sql.replace("EXPLAIN QUERY PLAN", "EXPLAIN")
    } else {
        format!("EXPLAIN {sql}")
    };
    let mut statement = connection.prepare(&sql).expect("prepares");
    let mut rows = statement.query([]).expect("a program");
    let mut tables = BTreeSet::new();
    while let Some(row) = rows.next().expect("an instruction") {
        let (opcode, page): (String, i64) = (row.get(1).expect("a name"), row.get(3).expect("a number"));
        if matches!(opcode.as_str(), "OpenRead" | "OpenWrite") {
            tables.insert(roots.get(&page).cloned().unwrap_or_else(|| "sqlite_master".to_owned()));
        }
    }
    tables
}

#[test]
fn no_corpus_statement_bypasses_lists() {
    const STATEMENTS_PER_LIST: usize = 25;
    let (mut numbers, mut grammar) =
        (RandomNumbers::new(corpus::seed()), Grammar::new(1_100 + corpus::seed(), Dialect::Sqlite));
    let base = SqlRequest { schema: corpus::schema(Dialect::Sqlite), ..SqlRequest::new(Dialect::Sqlite, "SELECT 1") };
    let mut engine = Sqlite::open(&base).expect("opens");
    assert_eq!(engine.catalog().tables.len(), OBJECTS.len());
    let stages = vec![StageName::Parse, StageName::Bind, StageName::Safety];
    let (mut judged, mut ok, mut strict) = (0, 0, StrictRefusals::default());
    let mut slips = Vec::new();
    while judged < corpus::count(600) {
        let allow = corpus::random_lists(&mut numbers);
        let whole = database(&[]);
        let others = [database(&corpus::removals_off_lists(&allow)), database(&corpus::changes_off_lists(&allow))];
        for _ in 0..STATEMENTS_PER_LIST {
            let sql = grammar.statement();
            let request = SqlRequest {
                sql: sql.clone(),
                policy: SqlPolicy::Write,
                allow: allow.clone(),
                stages: Some(stages.clone()),
                ..base.clone()
            };
            judged += 1;
            let judgement = proctor_sql::judge(&request, &mut engine);
            let expected = effect(&whole, &sql, &allow);
            let is_same = others.iter().all(|other| effect(other, &sql, &allow) == expected);
            if judgement.verdict != SqlVerdict::Ok {
                let free = SqlRequest { allow: SqlAllow::default(), ..request };
                let is_harmless = is_same && expected.is_ok();
                if is_harmless && proctor_sql::judge(&free, &mut engine).verdict == SqlVerdict::Ok {
                    strict.add(&judgement, &format!("{sql}\n    lists {allow:?}"));
                }
                continue;
            }
            ok += 1;
            let off: Vec<String> =
                opened_tables(&whole, &sql).into_iter().filter(|table| !corpus::is_listed(&allow, table)).collect();
            if !off.is_empty() || !is_same {
                slips.push(format!("{sql}\n    lists {allow:?}, opens {off:?}, same: {is_same}"));
            }
        }
    }
    println!(
        "SQLite, seed {}: {judged} judged, {ok} ok, {} slips, {} refused though nothing off the lists has an effect:",
        corpus::seed(),
        slips.len(),
        strict.count()
    );
    strict.print();
    assert!(slips.is_empty(), "{}", slips.join("\n"));
    assert!(ok > judged / 10, "only {ok} of {judged} are ok: the corpus says little");
}
