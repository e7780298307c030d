//! Tests PostgreSQL in workers in real sandboxes. Tests are skipped if sandboxes or the server are not available.

mod definitions;
#[path = "../pool/mod.rs"]
mod pool;

use pool::{Pool, ServerTest, TestFunction};
use proctor_core::sql::{
    Dialect, ResultRows, SchemaRequest, SqlAllow, SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits, SqlRunRequest,
    SqlSeverity, SqlVerdict,
};
use proctor_sql::postgres::PostgresPrograms;
use serde_json::json;

const SCHEMA: &str = "
    CREATE TABLE customers (id serial PRIMARY KEY, name text NOT NULL, tier text, born date);
    CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers(id), amount numeric, paid boolean);
    CREATE TABLE secret (id int PRIMARY KEY REFERENCES orders(id) ON DELETE CASCADE, pin text);
    CREATE TABLE computed (id int PRIMARY KEY, pin text, shown text GENERATED ALWAYS AS (pin || 'x') STORED);
    CREATE TABLE parent (id int, note text);
    CREATE TABLE child (pin text) INHERITS (parent);
    CREATE TABLE parts (id int) PARTITION BY RANGE (id);
    CREATE TABLE first_part PARTITION OF parts FOR VALUES FROM (1) TO (9);
    CREATE TABLE big (n int);
    INSERT INTO big SELECT generate_series(1, 3000);
    CREATE VIEW rich AS SELECT c.name, s.pin FROM customers c JOIN secret s ON s.id = c.id;
    CREATE VIEW plain AS SELECT id, name FROM customers;
    CREATE SCHEMA old;
    CREATE TABLE old.orders (id int);
    CREATE FUNCTION spy() RETURNS int LANGUAGE sql AS 'SELECT 1';
    CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
    CREATE TABLE watched (id int PRIMARY KEY);
    CREATE TRIGGER audited BEFORE INSERT ON watched FOR EACH ROW EXECUTE FUNCTION audit();
    SELECT set_config('search_path', '', false);";

fn main() {
    let tests: [(&str, TestFunction); 12] = [
        ("accepts_reads", accepts_reads),
        ("rejects_with_code_and_place", rejects_with_code_and_place),
        ("rejects_what_policies_do_not_allow", rejects_what_policies_do_not_allow),
        ("judges_writes", judges_writes),
        ("judges_migrations", judges_migrations),
        ("checks_functions_of_definitions", definitions::checks_functions_of_definitions),
        ("schemas_affect_no_other_database", definitions::schemas_affect_no_other_database),
        ("returns_typed_rows", returns_typed_rows),
        ("describes_schema", describes_schema),
        ("enforces_lists", enforces_lists),
        ("ends_expensive_statements", ends_expensive_statements),
        ("replaces_a_killed_server", replaces_a_killed_server),
    ];
    let reason = PostgresPrograms::find().err().map(|missing| missing.to_string());
    let unavailable_reason = reason.or_else(pool::sandbox_unavailable_reason);
    let test = |(name, test): (&'static str, TestFunction)| ServerTest {
        name,
        test,
        server: "PostgreSQL",
        unavailable_reason: unavailable_reason.clone(),
    };
    pool::run_tests(tests.into_iter().map(test).collect())
}

impl Pool {
    #[track_caller]
    fn rows(&self, request: SqlRequest) -> ResultRows {
        let request = SqlRunRequest { request, commit: false };
        let answer = self.runtime.block_on(self.workers.run_statement(&request));
        answer.result.unwrap_or_else(|| panic!("{:?}: {:#?}", answer.error, answer.judgement.diagnostics))
    }

    #[track_caller]
    fn assert_codes(&self, request: &SqlRequest, expected: &[SqlCode]) {
        let judgement = self.judge(request);
        let errors = judgement.diagnostics.iter().filter(|found| found.severity == SqlSeverity::Error);
        let codes: Vec<SqlCode> = errors.map(|found| found.code).collect();
        assert_eq!(codes, expected, "{}: {:#?}", request.sql, judgement.diagnostics);
        let verdict = if expected.is_empty() { SqlVerdict::Ok } else { SqlVerdict::Reject };
        assert_eq!(judgement.verdict, verdict, "{}: {:#?}", request.sql, judgement.diagnostics);
    }
}

fn returns_typed_rows(pool: &Pool) {
    let types = pool.rows(request(
        SqlPolicy::Read,
        "SELECT 9007199254740993::int8 AS big, 1.50::numeric AS price, 'NaN'::float8 AS no, true AS yes, NULL::int AS none,
            '\\x00ff'::bytea AS bytes, ARRAY[[1, NULL]] AS list, '{\"a\": [1]}'::jsonb AS doc, date '2026-01-02' AS day,
            interval '1 month 2 hours' AS span, '00000000-0000-0000-0000-000000000001'::uuid AS id, ARRAY['a,b', '\"'] AS texts",
    ));
    let names: Vec<_> =
        types.columns.iter().map(|column| (column.name.as_str(), column.kind.as_deref().unwrap_or(""))).collect();
    assert_eq!(names[..4], [("big", "int8"), ("price", "numeric"), ("no", "float8"), ("yes", "bool")]);
    let expected = json!([[
        "9007199254740993", "1.50", "NaN", true, null, {"base64": "AP8="}, [[1, null]], {"a": [1]}, "2026-01-02",
        "1 mon 02:00:00", "00000000-0000-0000-0000-000000000001", ["a,b", "\""]
    ]]);
    assert_eq!(json!(types.rows), expected);
    let limits = SqlResourceLimits { rows: 2, time_ms: 30_000, ..SqlResourceLimits::default() };
    let cut = pool.rows(SqlRequest { limits, ..request(SqlPolicy::Read, "SELECT n FROM big ORDER BY n") });
    assert_eq!((json!(cut.rows), cut.truncated), (json!([[1], [2]]), true));
    let write = "INSERT INTO customers (name) VALUES ('Ann'), ('Bo') RETURNING name";
    for _ in 0..2 {
        let written = pool.rows(SqlRequest { limits, ..request(SqlPolicy::Write, write) });
        assert_eq!(
            (json!(written.rows), written.changed, written.truncated),
            (json!([["Ann"], ["Bo"]]), Some(2), false)
        );
        assert_eq!(pool.rows(request(SqlPolicy::Read, "SELECT name FROM customers")).rows.len(), 0, "it is undone");
    }
    let plain = pool.rows(request(SqlPolicy::Write, "DELETE FROM big WHERE n < 3"));
    assert_eq!((plain.columns.len(), plain.rows.len(), plain.changed), (0, 0, Some(2)));
}

fn describes_schema(pool: &Pool) {
    let schema = "CREATE TABLE u (id int PRIMARY KEY); COMMENT ON TABLE u IS 'beside t';
        CREATE TABLE t (id int PRIMARY KEY, email text, u int NOT NULL REFERENCES u (id), tags text[]);
        COMMENT ON COLUMN t.u IS 'the u';
        INSERT INTO u VALUES (7); INSERT INTO t VALUES (1, 'ann@example.org', 7, '{a}');";
    let request = SchemaRequest {
        dialect: Dialect::Postgres,
        schema: vec![schema.to_owned()],
        database: None,
        allow: SqlAllow::default(),
        samples: 3,
        limits: SqlResourceLimits { time_ms: 30_000, ..SqlResourceLimits::default() },
    };
    let answer = pool.runtime.block_on(pool.workers.describe_schema(&request));
    let tables = answer.schema.unwrap_or_else(|| panic!("{:?}", answer.error)).tables;
    let table = |name: &str| tables.iter().find(|table| table.name == name).expect("a table");
    assert_eq!(table("u").comment.as_deref(), Some("beside t"));
    let columns = table("t").columns.iter();
    let described: Vec<_> = columns
        .map(|column| (&*column.name, column.comment.as_deref(), json!(column.samples), column.is_masked))
        .collect();
    let expected = [
        ("id", None, json!([1]), false),
        ("email", None, json!(["xxx@xxxxxxx.xxx"]), true),
        ("u", Some("the u"), json!([7]), false),
        ("tags", None, json!([["a"]]), false),
    ];
    assert_eq!(described, expected);
    let keys = &table("t").foreign_keys;
    assert_eq!((&*keys[0].column, &*keys[0].referenced_table), ("u", "u"));
    assert_eq!((table("t").columns[0].is_primary_key, table("t").columns[2].is_not_null), (true, true));
}

fn request(policy: SqlPolicy, sql: &str) -> SqlRequest {
    let limits = SqlResourceLimits { time_ms: 30_000, ..SqlResourceLimits::default() };
    SqlRequest { policy, limits, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Postgres, sql) }
}

fn accepts_reads(pool: &Pool) {
    for sql in [
        "SELECT name FROM customers WHERE id = $1",
        "SELECT count(*) FILTER (WHERE paid), percentile_cont(0.5) WITHIN GROUP (ORDER BY amount) FROM orders; -- end",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 9) SELECT sum(n) FROM s",
        "SELECT DISTINCT ON (tier) tier, upper(name)::varchar(9), now() - born FROM customers ORDER BY tier, name",
        "SELECT x->>'a' FROM (SELECT to_jsonb(c) AS x FROM customers c) q WHERE x @> '{}'",
        "EXPLAIN (COSTS off) SELECT 1 FROM rich",
        "SELECT table_name FROM information_schema.tables",
        "TABLE customers",
        "VALUES (1, 'a'), (2, 'b')",
        "SELECT 'DROP TABLE customers; -- $$' AS \"update\", $q$;$q$, E'\\';' /* ; /* */ ; */",
        "SELECT * FROM old.orders o JOIN orders p USING (id)",
    ] {
        pool.assert_codes(&request(SqlPolicy::Read, sql), &[]);
    }
    let judgement = pool.judge(&request(SqlPolicy::Read, "SELECT r.name FROM rich r"));
    assert!(judgement.audit.engine.starts_with("PostgreSQL 1"), "{judgement:#?}");
}

fn rejects_with_code_and_place(pool: &Pool) {
    for (sql, code, place, candidate) in [
        ("SELECT nmae FROM customers", SqlCode::UnknownColumn, "nmae", Some("name")),
        ("SELECT name FROM custommers", SqlCode::UnknownTable, "custommers", Some("customers")),
        ("SELECT o.cust_id FROM orders o", SqlCode::UnknownColumn, "cust_id", None),
        ("SELECT id FROM customers JOIN orders ON true", SqlCode::AmbiguousColumn, "id", None),
        ("SELECT lenght(name) FROM customers", SqlCode::UnknownFunction, "lenght", Some("length")),
        ("SELECT name, count(*) FROM customers", SqlCode::UngroupedColumn, "name", None),
        ("SELEC name FROM customers", SqlCode::SyntaxError, "SELEC", None),
        ("SELECT name FROM customers WHERE id = 'abc'", SqlCode::WrongType, "'abc'", None),
        ("SELECT \"Name\" FROM customers", SqlCode::UnknownColumn, "\"Name\"", Some("name")),
    ] {
        let judgement = pool.judge(&request(SqlPolicy::Read, sql));
        let found = &judgement.diagnostics[0];
        assert_eq!((judgement.verdict, found.code), (SqlVerdict::Reject, code), "{sql}: {judgement:#?}");
        let span = found.span.expect("a place");
        assert_eq!(&sql[span.start..span.end], place, "{sql}");
        assert_eq!(candidate.filter(|name| !found.candidates.iter().any(|one| one == name)), None, "{found:#?}");
    }
    for sql in [
        "DELETE FROM orders WHERE CURRENT OF c",
        "WITH w AS (UPDATE orders SET paid = true WHERE CURRENT OF c) SELECT 1",
    ] {
        pool.assert_codes(&request(SqlPolicy::Write, sql), &[SqlCode::BindError]);
    }
    // Every wrong name is reported at once.
    let judgement = pool.judge(&request(SqlPolicy::Read, "SELECT nmae, teir FROM customers WHERE born2 > now()"));
    assert_eq!(judgement.diagnostics.iter().filter(|found| found.code == SqlCode::UnknownColumn).count(), 3);
}

fn rejects_what_policies_do_not_allow(pool: &Pool) {
    for (sql, code) in [
        ("DELETE FROM customers WHERE id = 1", SqlCode::WriteRefused),
        ("WITH d AS (DELETE FROM customers RETURNING *) SELECT * FROM d", SqlCode::WriteRefused),
        ("EXPLAIN ANALYZE DELETE FROM customers WHERE id = 1", SqlCode::WriteRefused),
        ("SELECT * INTO copied FROM customers", SqlCode::SchemaChangeRefused),
        ("CREATE INDEX ON customers (name)", SqlCode::SchemaChangeRefused),
        ("TRUNCATE customers", SqlCode::SchemaChangeRefused),
        ("START TRANSACTION READ WRITE", SqlCode::TransactionControl),
        ("SET default_transaction_read_only = off", SqlCode::SettingRefused),
        ("SHOW data_directory", SqlCode::SettingRefused),
        ("SELECT set_config('role', 'x', false)", SqlCode::FunctionRefused),
        ("SELECT current_setting('data_directory')", SqlCode::FunctionRefused),
        ("SELECT \"pg_read_file\"('/etc/passwd')", SqlCode::FunctionRefused),
        ("SELECT * FROM pg_ls_dir('/etc')", SqlCode::FunctionRefused),
        ("SELECT nextval('customers_id_seq')", SqlCode::FunctionRefused),
        ("SELECT pg_sleep(1)", SqlCode::FunctionRefused),
        ("SELECT pg_advisory_lock(1)", SqlCode::FunctionRefused),
        ("SELECT query_to_xml('DELETE FROM customers', true, true, '')", SqlCode::FunctionRefused),
        ("SELECT spy()", SqlCode::FunctionRefused),
        ("SELECT pg_partition_root('orders')", SqlCode::FunctionRefused),
        ("SELECT current_user", SqlCode::FunctionRefused),
        ("SELECT name FROM customers FOR UPDATE", SqlCode::StatementRefused),
        ("SELECT setting FROM pg_settings", SqlCode::StatementRefused),
        ("SELECT last_value FROM customers_id_seq", SqlCode::StatementRefused),
        ("COPY customers TO PROGRAM 'id'", SqlCode::FileAccess),
        ("COPY (SELECT 1) TO STDOUT", SqlCode::FileAccess),
        ("DO $$ BEGIN DELETE FROM customers; END $$", SqlCode::StatementRefused),
        ("PREPARE s AS DELETE FROM customers", SqlCode::StatementRefused),
        ("LISTEN x", SqlCode::StatementRefused),
        ("LOCK TABLE customers", SqlCode::StatementRefused),
        ("CALL spy()", SqlCode::StatementRefused),
        ("CREATE EXTENSION dblink", SqlCode::DatabaseAttached),
    ] {
        let judgement = pool.judge(&request(SqlPolicy::Read, sql));
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}: {:#?}", judgement.diagnostics);
        let is_bound = !judgement.diagnostics.iter().any(|found| found.code == SqlCode::BindError);
        assert!(judgement.diagnostics.iter().any(|found| found.code == code) || !is_bound, "{sql}: {judgement:#?}");
    }
    for sql in ["SELECT 1; DELETE FROM customers", "COMMIT; DELETE FROM customers", "SELECT 1; END; DROP TABLE big; --"]
    {
        let judgement = pool.judge(&request(SqlPolicy::Read, sql));
        assert!(judgement.diagnostics.iter().any(|found| found.code == SqlCode::StackedStatements), "{judgement:#?}");
    }
}

fn judges_writes(pool: &Pool) {
    let write = |sql: &str| request(SqlPolicy::Write, sql);
    pool.assert_codes(&write("DELETE FROM orders WHERE id = 2"), &[]);
    pool.assert_codes(&write("INSERT INTO customers (name) VALUES ('Zed') ON CONFLICT DO NOTHING"), &[]);
    pool.assert_codes(&write("UPDATE customers SET tier = 'x' WHERE id = $1"), &[]);
    pool.assert_codes(&write("DELETE FROM orders"), &[SqlCode::UnboundedWrite]);
    pool.assert_codes(&write("UPDATE customers SET tier = 'x' WHERE id > 0 OR 1 = 1"), &[SqlCode::AlwaysTrueFilter]);
    pool.assert_codes(&write("DELETE FROM orders WHERE id IS NOT NULL OR id IS NULL"), &[SqlCode::AlwaysTrueFilter]);
    pool.assert_codes(&write("INSERT INTO watched VALUES (1)"), &[SqlCode::FunctionRefused]);
    pool.assert_codes(&write("DROP TABLE orders"), &[SqlCode::SchemaChangeRefused]);
    judges_each_write_of_a_statement(pool);
}

fn judges_each_write_of_a_statement(pool: &Pool) {
    for (sql, code) in [
        ("WITH d AS (DELETE FROM orders RETURNING id) SELECT id FROM d", SqlCode::UnboundedWrite),
        ("WITH d AS (DELETE FROM orders RETURNING id) INSERT INTO big SELECT id FROM d", SqlCode::UnboundedWrite),
        ("WITH u AS (UPDATE customers SET tier = 'x') DELETE FROM orders WHERE id = 1", SqlCode::UnboundedWrite),
        ("INSERT INTO big WITH d AS (SELECT 1 AS n) SELECT n FROM d; DELETE FROM orders", SqlCode::StackedStatements),
        ("WITH d AS (DELETE FROM orders WHERE id = 1 OR 1 = 1) SELECT 1", SqlCode::AlwaysTrueFilter),
        ("WITH d AS (DELETE FROM orders WHERE id IS NOT NULL) SELECT 1", SqlCode::AlwaysTrueFilter),
        (
            "WITH i AS (INSERT INTO customers SELECT * FROM customers ON CONFLICT (id) DO UPDATE SET tier = 'x') SELECT 1",
            SqlCode::UnboundedWrite,
        ),
        ("EXPLAIN ANALYZE DELETE FROM orders", SqlCode::StatementRefused),
        ("EXPLAIN (BUFFERS, ANALYZE) DELETE FROM orders WHERE id = 1", SqlCode::StatementRefused),
        ("EXPLAIN (\"analyze\") DELETE FROM orders", SqlCode::StatementRefused),
        ("EXPLAIN (costs off, U&\"\\0061nalyze\" on) DELETE FROM orders", SqlCode::StatementRefused),
        ("EXPLAIN --\ranalyze\nDELETE FROM orders", SqlCode::StatementRefused),
        ("DELETE FROM orders WHERE --\rtrue OR\n id = 1", SqlCode::AlwaysTrueFilter),
        ("DELETE FROM old.orders WHERE coalesce(id, 0) < 3000000000", SqlCode::AlwaysTrueFilter),
        ("WITH d AS (DELETE FROM old.orders WHERE coalesce(id, 0) < 3000000000) SELECT 1", SqlCode::AlwaysTrueFilter),
        ("WITH d AS (DELETE FROM orders AS o WHERE o.id IS NOT NULL) SELECT 1", SqlCode::AlwaysTrueFilter),
        ("WITH d AS (DELETE FROM ONLY orders WHERE id IS NOT NULL) SELECT 1", SqlCode::AlwaysTrueFilter),
        ("WITH d AS (DELETE FROM orders o USING orders p WHERE o.id = p.id) SELECT 1", SqlCode::AlwaysTrueFilter),
        (
            "WITH c AS (SELECT id FROM orders), d AS (DELETE FROM orders WHERE id IN (SELECT id FROM c)) SELECT 1",
            SqlCode::AlwaysTrueFilter,
        ),
        ("WITH d AS (DELETE FROM orders WHERE U&\"\\0069d\" IS NOT NULL) SELECT 1", SqlCode::StatementRefused),
        ("EXPLAIN ANALYZE WITH d AS (DELETE FROM orders RETURNING 1) SELECT 1", SqlCode::StatementRefused),
    ] {
        let judgement = pool.judge(&request(SqlPolicy::Write, sql));
        assert!(judgement.diagnostics.iter().any(|found| found.code == code), "{sql}: {judgement:#?}");
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}");
    }
    let created = "CREATE TABLE moved AS WITH d AS (DELETE FROM orders RETURNING id) SELECT id FROM d";
    pool.assert_codes(&request(SqlPolicy::Migrate, created), &[SqlCode::UnboundedWrite]);
    for sql in [
        "WITH s AS (SELECT 1 AS id), d AS (DELETE FROM orders WHERE id = 1 RETURNING id) SELECT d.id FROM d, s",
        "WITH s AS (SELECT 1 AS id), i AS (INSERT INTO customers (id, name) SELECT id, 'x' FROM s
            ON CONFLICT (id) DO UPDATE SET name = 'x') SELECT 1",
        "EXPLAIN DELETE FROM orders",
        "EXPLAIN (VERBOSE, FORMAT json) DELETE FROM orders",
        "EXPLAIN ANALYZE SELECT id FROM orders",
    ] {
        pool.assert_codes(&request(SqlPolicy::Write, sql), &[]);
    }
    let dependent = "WITH i AS (INSERT INTO big SELECT id FROM orders RETURNING n),
        d AS (DELETE FROM orders WHERE id IN (SELECT n FROM i)) SELECT 1";
    let judgement = pool.judge(&request(SqlPolicy::Write, dependent));
    let found = judgement.diagnostics.iter().find(|found| found.code == SqlCode::AlwaysTrueFilter);
    assert_eq!(found.map(|found| found.severity), Some(SqlSeverity::Warning), "{judgement:#?}");
    let moved = "WITH i AS (INSERT INTO big VALUES (91), (92), (93) RETURNING n) SELECT count(*) FROM i";
    assert_eq!(pool.rows(request(SqlPolicy::Write, moved)).changed, Some(3));
    assert_eq!(pool.rows(request(SqlPolicy::Write, "EXPLAIN DELETE FROM orders")).changed, Some(0));
    let schema = "CREATE TABLE log (n int); CREATE TABLE a (id int PRIMARY KEY);
        CREATE TABLE b (a int REFERENCES a ON DELETE CASCADE); CREATE TABLE plain (id int REFERENCES a);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO log VALUES (1); RETURN NEW; END $$;
        CREATE TRIGGER noted AFTER INSERT ON b FOR EACH ROW EXECUTE FUNCTION note();
        CREATE TABLE parts (id int) PARTITION BY LIST (id); CREATE TABLE part PARTITION OF parts DEFAULT;
        INSERT INTO a VALUES (1), (2); INSERT INTO b VALUES (1), (1);";
    for (sql, changed) in [
        ("WITH i AS (INSERT INTO plain VALUES (1), (2) RETURNING id) SELECT 1", Some(2)),
        ("INSERT INTO b VALUES (1)", Some(1)),
        ("WITH i AS (INSERT INTO b VALUES (1) RETURNING a) SELECT 1", None),
        ("DELETE FROM a WHERE id = 1", Some(1)),
        ("WITH d AS (DELETE FROM a WHERE id = 1 RETURNING id) SELECT id FROM d", None),
        ("WITH i AS (INSERT INTO parts VALUES (1) RETURNING id) SELECT 1", None),
    ] {
        let allow = SqlAllow { functions: vec!["note".to_owned()], ..SqlAllow::default() };
        let request = SqlRequest { allow, schema: vec![schema.to_owned()], ..request(SqlPolicy::Write, sql) };
        assert_eq!(pool.rows(request).changed, changed, "{sql}");
    }
}

fn judges_migrations(pool: &Pool) {
    let migrate = |sql: &str| request(SqlPolicy::Migrate, sql);
    let good = "CREATE TABLE notes (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, body text);
        CREATE VIEW short_notes AS SELECT id, left(body, 10) AS body FROM notes;
        INSERT INTO notes (body) VALUES ('a');
        ALTER TABLE customers ADD COLUMN nick text;
        UPDATE customers SET nick = name WHERE id = 1;";
    pool.assert_codes(&migrate(good), &[]);
    // The migration was undone.
    pool.assert_codes(&request(SqlPolicy::Read, "SELECT nick FROM customers"), &[SqlCode::UnknownColumn]);
    let refused = pool.judge(&migrate("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'"));
    assert_eq!(refused.verdict, SqlVerdict::Reject, "{refused:#?}");
    let broken = pool.judge(&migrate("CREATE TABLE a (id int); ALTER TABLE a ADD COLUMN id int"));
    assert_eq!(broken.verdict, SqlVerdict::Reject, "{broken:#?}");
}

fn enforces_lists(pool: &Pool) {
    let with_lists = |policy, tables: &str, columns: &str, sql: &str| {
        let names = |list: &str| list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let allow = SqlAllow { tables: names(tables), columns: names(columns), ..SqlAllow::default() };
        SqlRequest { allow, ..request(policy, sql) }
    };
    for (tables, columns, sql) in [
        ("orders", "", "SELECT id, amount FROM orders WHERE paid"),
        ("orders", "", "SELECT o.* FROM orders o JOIN LATERAL generate_series(1, o.id) ON true"),
        ("customers,plain", "", "SELECT name FROM plain"),
        ("", "customers.id,customers.name", "SELECT name FROM customers WHERE id = $1"),
        ("old.orders", "", "SELECT id FROM old.orders"),
        ("orders", "", "EXPLAIN SELECT id FROM orders"),
        ("", "computed.shown,computed.pin", "SELECT shown FROM computed"),
        ("customers,plain", "", "SELECT (NULL::plain).name"),
        ("parent", "", "SELECT note FROM ONLY parent"),
        ("parent,child", "", "SELECT note FROM parent"),
        ("parts", "", "SELECT id FROM parts"),
    ] {
        pool.assert_codes(&with_lists(SqlPolicy::Read, tables, columns, sql), &[]);
    }
    for (tables, columns, sql) in [
        ("orders", "", "SELECT name FROM customers"),
        ("orders", "", "SELECT g.pin FROM (SELECT '4711' AS pin) g NATURAL JOIN secret"),
        ("orders", "", "SELECT 1 FROM orders WHERE EXISTS (SELECT FROM secret)"),
        ("customers,rich", "", "SELECT name FROM rich"),
        ("plain", "", "SELECT name FROM plain"),
        ("orders", "", "SELECT id FROM old.orders"),
        ("old.orders", "", "SELECT id FROM orders"),
        ("", "customers.id", "SELECT c FROM customers c"),
        ("", "customers.id", "SELECT ctid FROM customers"),
        ("", "customers.id", "SELECT count(*) FROM customers c WHERE c IS NOT NULL"),
        ("", "customers.id", "SELECT id FROM customers ORDER BY tier"),
        ("", "customers.id", "SELECT a FROM customers AS c(a, b)  WHERE b = 'x'"),
        ("orders", "", "EXPLAIN SELECT name FROM customers"),
        ("orders", "", "SELECT (NULL::secret).*"),
        ("orders", "", "SELECT * FROM jsonb_populate_record(NULL::secret, '{}')"),
        ("orders", "", "SELECT ARRAY[NULL::secret]::text"),
        ("plain", "", "SELECT (NULL::plain).name"),
        ("parent", "", "SELECT note FROM parent"),
        ("", "child.id", "SELECT note FROM parent"),
        ("", "computed.shown", "SELECT shown FROM computed"),
        ("", "computed.id,computed.shown", "SELECT id FROM computed WHERE shown = 'x'"),
        ("orders", "", "SELECT (16384 + id)::oid::regclass::text FROM orders"),
        ("orders", "", "SELECT '{16384,16385}'::regclass[]"),
        ("orders", "", "SELECT r FROM json_to_record('{}') AS r(a regclass[])"),
        ("orders", "", "SELECT relname FROM pg_class"),
        ("orders", "", "SELECT table_name FROM information_schema.tables"),
    ] {
        let judgement = pool.judge(&with_lists(SqlPolicy::Read, tables, columns, sql));
        let is_of_lists =
            |code| matches!(code, SqlCode::TableRefused | SqlCode::ColumnRefused | SqlCode::MetadataRefused);
        assert!(judgement.diagnostics.iter().any(|found| is_of_lists(found.code)), "{sql}: {judgement:#?}");
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}");
    }
    names_that_differ_only_by_case_are_distinct(pool);
    raised_texts_are_hidden(pool);
    // A refused statement leaves nothing behind that would make the server refuse the next one.
    for sql in ["SELECT name FROM customers", "SELECT id FROM orders", "SELECT id FROM orders WHERE id = $1"] {
        let expected: &[SqlCode] = if sql.contains("customers") { &[SqlCode::TableRefused] } else { &[] };
        pool.assert_codes(&with_lists(SqlPolicy::Read, "orders", "", sql), expected);
    }
    for sql in [
        "INSERT INTO public.orders (id, paid) VALUES (1, true)",
        "INSERT INTO orders DEFAULT VALUES",
        "WITH made AS (INSERT INTO orders (id) VALUES (1) RETURNING id) INSERT INTO big (n) SELECT id FROM made",
    ] {
        pool.assert_codes(&with_lists(SqlPolicy::Write, "", "orders.id,orders.paid", sql), &[]);
    }
    for sql in [
        "INSERT INTO orders VALUES (1)",
        "WITH made AS (INSERT INTO orders (id, amount) VALUES (1, 2) RETURNING id) SELECT id FROM made",
        "WITH made AS (INSERT INTO orders (amount) VALUES (2)) INSERT INTO orders (id) VALUES (1)",
        "WITH made AS (INSERT INTO orders (id) VALUES (2)) INSERT INTO orders VALUES (1)",
    ] {
        pool.assert_codes(&with_lists(SqlPolicy::Write, "", "orders.id,orders.paid", sql), &[SqlCode::ColumnRefused]);
    }
    for (tables, sql) in [
        ("orders", "CREATE INDEX i ON orders (amount)"),
        ("orders", "ALTER INDEX orders_pkey RENAME TO kept"),
        ("orders", "ALTER TABLE orders RENAME COLUMN amount TO sum"),
        ("parent,child", "TRUNCATE parent"),
        ("parent", "ALTER TABLE ONLY parent ALTER COLUMN note SET DEFAULT ''"),
    ] {
        pool.assert_codes(&with_lists(SqlPolicy::Migrate, tables, "", sql), &[]);
    }
    for (tables, policy, sql) in [
        ("orders", SqlPolicy::Write, "DELETE FROM orders WHERE id = 1"),
        ("parent", SqlPolicy::Write, "DELETE FROM parent WHERE id = 1"),
        (
            "orders",
            SqlPolicy::Write,
            "UPDATE orders SET amount = 1 FROM secret WHERE secret.id = orders.id AND orders.id = 1",
        ),
        ("notes", SqlPolicy::Migrate, "CREATE TABLE notes (id int REFERENCES secret (id))"),
        ("notes", SqlPolicy::Migrate, "CREATE VIEW notes AS SELECT pin FROM secret"),
        ("notes", SqlPolicy::Migrate, "CREATE TABLE notes (LIKE secret)"),
        ("notes", SqlPolicy::Migrate, "CREATE TABLE notes (a secret[])"),
        ("notes", SqlPolicy::Migrate, "CREATE TABLE notes () INHERITS (\"secret\")"),
        ("orders", SqlPolicy::Migrate, "CREATE INDEX i ON old.orders (id)"),
        ("notes", SqlPolicy::Migrate, "DROP TABLE secret"),
        ("notes", SqlPolicy::Migrate, "CREATE TABLE notes (LIKE U&\"\\0073ecret\")"),
        ("notes", SqlPolicy::Migrate, "SELECT pin INTO notes FROM U&\"!0073ecret\" UESCAPE '!'"),
        ("orders", SqlPolicy::Migrate, "TRUNCATE orders CASCADE"),
        ("parent", SqlPolicy::Migrate, "TRUNCATE parent"),
        ("parent", SqlPolicy::Migrate, "ALTER TABLE parent ADD COLUMN more int"),
        ("customers", SqlPolicy::Migrate, "DROP TABLE customers CASCADE"),
        ("orders", SqlPolicy::Migrate, "ALTER INDEX secret_pkey RENAME TO kept"),
        ("orders", SqlPolicy::Migrate, "ALTER SEQUENCE customers_id_seq RESTART"),
        ("orders", SqlPolicy::Migrate, "ALTER TABLE orders RENAME TO more"),
    ] {
        let judgement = pool.judge(&with_lists(policy, tables, "", sql));
        let found = judgement.diagnostics.iter().find(|found| found.code == SqlCode::TableRefused);
        assert!(found.is_some() && judgement.verdict == SqlVerdict::Reject, "{sql}: {judgement:#?}");
    }
}

fn raised_texts_are_hidden(pool: &Pool) {
    for raise in [
        "EXCEPTION 'hidden text'",
        "EXCEPTION 'hidden text' USING ERRCODE = '22012'",
        "not_null_violation USING MESSAGE = 'the hidden number violates not-null constraint'",
    ] {
        let schema = format!(
            "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (2, 2);
            CREATE FUNCTION loud() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE {raise}; END $$;
            CREATE TRIGGER l BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION loud();"
        );
        let owned = |name: &str| vec![name.to_owned()];
        let judge = |tables| {
            let allow = SqlAllow { tables, functions: owned("loud"), ..SqlAllow::default() };
            let sql = "UPDATE t SET n = 3 WHERE id = 1";
            pool.judge(&SqlRequest { allow, schema: vec![schema.clone()], ..request(SqlPolicy::Write, sql) })
        };
        for (tables, is_shown) in [(owned("t"), false), (Vec::new(), true)] {
            let judgement = judge(tables);
            let shown = serde_json::to_string(&judgement.diagnostics).expect("JSON") + &judgement.feedback;
            assert_eq!(shown.contains("hidden"), is_shown, "{raise}: {judgement:#?}");
        }
    }
}

fn names_that_differ_only_by_case_are_distinct(pool: &Pool) {
    let schema = "CREATE TABLE users (id int, a text, \"A\" text); CREATE TABLE \"Users\" (id int, pin text);
        CREATE SCHEMA main; CREATE TABLE main.users (pin text);
        CREATE SCHEMA s; CREATE TABLE s.users (id int); CREATE TABLE \"s.users\" (id int, pin text);
        CREATE TABLE s.\"a.b\" (id int); CREATE TABLE \"s.a\" (b int);";
    let judge = |tables: &[&str], columns: &[&str], sql: &str| {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let allow = SqlAllow { tables: owned(tables), columns: owned(columns), ..SqlAllow::default() };
        let policy = if sql.starts_with("SELECT") { SqlPolicy::Read } else { SqlPolicy::Write };
        pool.judge(&SqlRequest { allow, schema: vec![schema.to_owned()], ..request(policy, sql) }).verdict
    };
    for (tables, columns, sql) in [
        (&["users"][..], &[][..], "SELECT pin FROM \"Users\""),
        (&["users"], &[], "SELECT pin FROM main.users"),
        (&["Users"], &[], "SELECT id FROM users"),
        (&["main.users"], &[], "SELECT id FROM users"),
        (&["s.users"], &[], "SELECT pin FROM \"s.users\""),
        (&["s.users"], &[], "DELETE FROM \"s.users\" WHERE id = 1"),
        (&["\"s.users\""], &[], "SELECT id FROM s.users"),
        (&["s.users"], &[], "CREATE TABLE s.users2 (id int)"),
        (&["s.a"], &[], "SELECT id FROM s.\"a.b\""),
        (&["\"s.users\""], &["\"s.users\".id", "s.users.pin"], "SELECT pin FROM \"s.users\""),
        (&[], &["users.a"], "SELECT \"A\" FROM users"),
        (&[], &["users.id", "users.a"], "SELECT * FROM users"),
        (&[], &["users.a"], "INSERT INTO users (\"A\") VALUES ('x')"),
    ] {
        assert_eq!(judge(tables, columns, sql), SqlVerdict::Reject, "{sql}");
    }
    for (tables, columns, sql) in [
        (&["users"][..], &["users.a"][..], "SELECT a FROM users"),
        (&["Users"], &[], "SELECT pin FROM \"Users\""),
        (&["public.users"], &[], "SELECT id FROM users"),
        (&["main.users"], &[], "SELECT pin FROM main.users"),
        (&["s.users"], &[], "SELECT id FROM s.users"),
        (&["\"s.users\""], &["\"s.users\".id"], "SELECT id FROM \"s.users\""),
        (&["\"s.users\""], &[], "DELETE FROM \"s.users\" WHERE id = 1"),
        (&["s.\"a.b\""], &[], "INSERT INTO s.\"a.b\" (id) VALUES (1)"),
        (&[], &["users.ID", "users.A"], "SELECT \"A\" FROM users WHERE id = 1"),
    ] {
        assert_eq!(judge(tables, columns, sql), SqlVerdict::Ok, "{sql}");
    }
}

fn ends_expensive_statements(pool: &Pool) {
    let limits = SqlResourceLimits { time_ms: 1_500, ..SqlResourceLimits::default() };
    // The first judgement also creates the template.
    pool.assert_codes(&request(SqlPolicy::Read, "SELECT 1"), &[]);
    for (sql, codes) in [
        ("SELECT count(*) FROM big a JOIN big b ON a.n <> b.n JOIN big c ON b.n <> c.n", &[SqlCode::TimeLimit][..]),
        (
            "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s) SELECT count(*) FROM s",
            &[SqlCode::EndlessRecursion, SqlCode::MemoryLimit],
        ),
        ("SELECT repeat('x', 1000000000)", &[SqlCode::MemoryLimit, SqlCode::ResultLimit, SqlCode::TimeLimit]),
    ] {
        let judgement = pool.judge(&SqlRequest { limits, ..request(SqlPolicy::Read, sql) });
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}: {judgement:#?}");
        assert!(judgement.diagnostics.iter().any(|found| codes.contains(&found.code)), "{sql}: {judgement:#?}");
        pool.assert_codes(&request(SqlPolicy::Read, "SELECT 1"), &[]);
    }
    // The process of the server gets an error from its own memory limit; the sandbox does not have to end it.
    pool.assert_codes(&request(SqlPolicy::Read, "SELECT repeat('x', 1000000000)"), &[SqlCode::MemoryLimit]);
}

/// A server that is killed makes one judgement an error; the next one gets a new server. Afterwards nothing is left.
fn replaces_a_killed_server(pool: &Pool) {
    pool.assert_codes(&request(SqlPolicy::Read, "SELECT 1"), &[]);
    let servers = servers_of_this_process();
    assert!(!servers.is_empty());
    for pid in &servers {
        let _ = rustix::process::kill_process(*pid, rustix::process::Signal::KILL);
    }
    let judgement = pool.judge(&request(SqlPolicy::Read, "SELECT name FROM customers"));
    assert_eq!(judgement.verdict, SqlVerdict::Error, "{judgement:#?}");
    pool.assert_codes(&request(SqlPolicy::Read, "SELECT name FROM customers"), &[]);
    pool.workers.release();
    assert!(servers_of_this_process().is_empty());
    let left: Vec<String> = std::fs::read_dir(pool.state.path().join("state/sql-templates"))
        .expect("a directory")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(left.len() == 1 && left[0].starts_with("postgres-"), "{left:?}");
}

/// Returns the processes of PostgreSQL that descend from this one.
fn servers_of_this_process() -> Vec<rustix::process::Pid> {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let pids: Vec<i32> = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let field = |pid: i32, name: &str| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    let own = i32::try_from(std::process::id()).expect("a pid");
    let descends = |pid: i32| {
        let mut at = pid;
        while at > 1 && at != own {
            at = field(at, "PPid:").and_then(|parent| parent.parse().ok()).unwrap_or(0);
        }
        at == own
    };
    let servers = pids.into_iter().filter(|pid| field(*pid, "Name:").as_deref() == Some("postgres") && descends(*pid));
    servers.filter_map(rustix::process::Pid::from_raw).collect()
}
