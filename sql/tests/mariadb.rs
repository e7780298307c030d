//! Tests MySQL with MariaDB in workers in real sandboxes. Tests are skipped if sandboxes or the server are not
//! available.

mod pool;

use pool::{Pool, ServerTest, TestFunction};
use proctor_core::sql::{
    Dialect, ResultRows, SchemaRequest, SqlAllow, SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits, SqlRunRequest,
    SqlSeverity, SqlVerdict,
};
use proctor_sql::mysql::MariadbPrograms;
use serde_json::json;

const SCHEMA: &str = "
    CREATE TABLE customers (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(50) NOT NULL, tier VARCHAR(20), born DATE);
    CREATE TABLE orders (id INT PRIMARY KEY, customer_id INT, amount DECIMAL(10, 2), paid BOOLEAN,
        FOREIGN KEY (customer_id) REFERENCES customers (id));
    CREATE TABLE secret (id INT PRIMARY KEY, pin VARCHAR(9), FOREIGN KEY (id) REFERENCES orders (id) ON DELETE CASCADE);
    CREATE TABLE big (n INT);
    INSERT INTO big WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 3000) SELECT n FROM s;
    CREATE VIEW rich AS SELECT c.name, s.pin FROM customers c JOIN secret s ON s.id = c.id;
    CREATE VIEW plain AS SELECT id, name FROM customers;
    CREATE FUNCTION spy() RETURNS INT DETERMINISTIC RETURN 1;
    CREATE VIEW spied AS SELECT spy() AS a, name FROM plain;
    CREATE VIEW nested AS SELECT id FROM plain WHERE name <> '';
    CREATE TABLE watched (id INT PRIMARY KEY);
    CREATE TRIGGER audited BEFORE INSERT ON watched FOR EACH ROW SET NEW.id = 1;
    CREATE TRIGGER `upper` AFTER DELETE ON watched FOR EACH ROW SET @a = 1;
    CREATE TABLE computed (id INT PRIMARY KEY, pin VARCHAR(9), shown VARCHAR(9) AS (concat(pin, 'x')));
    CREATE TABLE `we``i'rd` (`a'b` INT, `select` INT);
    CREATE TABLE fast (id INT) ENGINE = MyISAM;
    SET SESSION sql_mode = 'ANSI_QUOTES';";

fn main() {
    let tests: [(&str, TestFunction); 11] = [
        ("accepts_reads", accepts_reads),
        ("rejects_with_code_and_place", rejects_with_code_and_place),
        ("rejects_what_policies_do_not_allow", rejects_what_policies_do_not_allow),
        ("judges_writes", judges_writes),
        ("judges_migrations", judges_migrations),
        ("returns_typed_rows", returns_typed_rows),
        ("describes_schema", describes_schema),
        ("enforces_lists", enforces_lists),
        ("restores_the_database", restores_the_database),
        ("ends_expensive_statements", ends_expensive_statements),
        ("replaces_a_killed_server", replaces_a_killed_server),
    ];
    let reason = MariadbPrograms::find().err().map(|missing| missing.to_string());
    let unavailable_reason = reason.or_else(pool::sandbox_unavailable_reason);
    let test = |(name, test): (&'static str, TestFunction)| ServerTest {
        name,
        test,
        server: "MariaDB",
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
        "SELECT 9007199254740993 AS big, 1.50 AS price, 0.5e0 AS r, TRUE AS yes, NULL AS none, x'00ff' AS bytes,
            CAST('2026-01-02' AS DATE) AS day, CAST('2026-01-02 03:04:05.5' AS DATETIME(1)) AS at,
            CAST('-26:00:01' AS TIME) AS span, 'ä' AS text, b'101' + 0 AS bits",
    ));
    let expected = json!([[
        "9007199254740993", "1.50", 0.5, 1, null, {"base64": "AP8="}, "2026-01-02", "2026-01-02 03:04:05.5",
        "-26:00:01", "ä", 5
    ]]);
    assert_eq!(json!(types.rows), expected);
    let limits = SqlResourceLimits { rows: 2, time_ms: 30_000, ..SqlResourceLimits::default() };
    let cut = pool.rows(SqlRequest { limits, ..request(SqlPolicy::Read, "SELECT n FROM big ORDER BY n") });
    assert_eq!((json!(cut.rows), cut.truncated), (json!([[1], [2]]), true));
    for _ in 0..2 {
        let write = "INSERT INTO customers (id, name) VALUES (7, 'Ann'), (8, 'Bo') RETURNING name";
        let written = pool.rows(request(SqlPolicy::Write, write));
        assert_eq!((json!(written.rows), written.changed), (json!([["Ann"], ["Bo"]]), Some(2)));
        assert_eq!(written.columns.iter().map(|column| column.name.as_str()).collect::<Vec<_>>(), ["name"]);
        assert_eq!(pool.rows(request(SqlPolicy::Read, "SELECT name FROM customers WHERE id = 7")).rows.len(), 0);
    }
    let plain = pool.rows(request(SqlPolicy::Write, "DELETE FROM big WHERE n < 3"));
    assert_eq!((plain.columns.len(), plain.rows.len(), plain.changed), (0, 0, Some(2)));
}

fn describes_schema(pool: &Pool) {
    let schema = "CREATE TABLE u (id INT PRIMARY KEY) COMMENT = 'beside t';
        CREATE TABLE t (id INT PRIMARY KEY, email VARCHAR(99), u INT NOT NULL COMMENT 'the u', tags INT,
            FOREIGN KEY (u) REFERENCES u (id));
        INSERT INTO u VALUES (7); INSERT INTO t VALUES (1, 'ann@example.org', 7, 5);";
    let request = SchemaRequest {
        dialect: Dialect::Mysql,
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
        ("tags", None, json!([5]), false),
    ];
    assert_eq!(described, expected);
    let keys = &table("t").foreign_keys;
    assert_eq!((&*keys[0].column, &*keys[0].referenced_table), ("u", "u"));
    assert_eq!((table("t").columns[0].is_primary_key, table("t").columns[2].is_not_null), (true, true));
}

fn request(policy: SqlPolicy, sql: &str) -> SqlRequest {
    let limits = SqlResourceLimits { time_ms: 30_000, ..SqlResourceLimits::default() };
    SqlRequest { policy, limits, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Mysql, sql) }
}

fn accepts_reads(pool: &Pool) {
    for sql in [
        "SELECT name FROM customers WHERE id = ?",
        "SELECT count(*), SUM(CASE WHEN paid THEN 1 ELSE 0 END), group_concat(id SEPARATOR ';') FROM orders; -- end",
        "WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 9) SELECT sum(n) FROM s",
        "SELECT c.id, c.name, count(*) FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY c.id",
        "SELECT c.name, count(*) FROM customers c JOIN orders o ON o.customer_id = c.id GROUP BY o.customer_id",
        "SELECT row_number() OVER (PARTITION BY tier ORDER BY born DESC) AS n, date_format(born, '%Y') FROM customers",
        "SELECT json_extract('{}', '$.a'), CAST(id AS SIGNED), NOW() - INTERVAL 7 DAY FROM customers",
        "EXPLAIN SELECT 1 FROM rich",
        "DESCRIBE customers",
        "SHOW TABLES",
        "SHOW FULL COLUMNS FROM customers",
        "SELECT table_name FROM information_schema.tables",
        "VALUES (1, 'a'), (2, 'b')",
        r#"SELECT 'DROP TABLE customers; -- ', "it\";s", '\';' AS `update`, 5--3 # ; DELETE FROM customers"#,
        "(SELECT id FROM orders) UNION (SELECT id FROM secret) ORDER BY 1",
        "SELECT `a'b`, w.`select` FROM `we``i'rd` w",
        "SELECT shown FROM computed",
        "SELECT n.id FROM nested n JOIN nested m ON m.id = n.id",
        "SELECT tier, count(*) AS n FROM customers GROUP BY tier ORDER BY CASE WHEN n IS NULL THEN 1 ELSE 0 END, n",
        "SELECT any_value(name), tier FROM customers WHERE regexp_like(name, '^a') GROUP BY tier",
    ] {
        pool.assert_codes(&request(SqlPolicy::Read, sql), &[]);
    }
    let judgement = pool.judge(&request(SqlPolicy::Read, "SELECT r.name FROM rich r"));
    assert!(judgement.audit.engine.starts_with("MariaDB 1"), "{judgement:#?}");
    assert_eq!(judgement.statements[0].tables, ["customers", "rich", "secret"]);
}

fn rejects_with_code_and_place(pool: &Pool) {
    for (sql, code, place, candidate) in [
        ("SELECT nmae FROM customers", SqlCode::UnknownColumn, "nmae", Some("name")),
        ("SELECT c.`nmae` FROM customers c", SqlCode::UnknownColumn, "c.`nmae`", Some("name")),
        ("SELECT name FROM custommers", SqlCode::UnknownTable, "custommers", Some("customers")),
        ("SELECT name FROM Customers", SqlCode::UnknownTable, "Customers", Some("customers")),
        ("SELECT name FROM archive.customers", SqlCode::UnknownTable, "archive.customers", None),
        ("SELECT id FROM customers JOIN orders ON true", SqlCode::AmbiguousColumn, "id", None),
        ("SELECT lenght(name) FROM customers", SqlCode::UnknownFunction, "lenght", Some("length")),
        ("SELECT strpos(name, 'a') FROM customers", SqlCode::UnknownFunction, "strpos", Some("locate")),
        ("SELECT name, count(*) FROM customers GROUP BY tier", SqlCode::UngroupedColumn, "name", None),
        ("SELEC name FROM customers", SqlCode::SyntaxError, "SELEC", None),
        ("SELECT name FROM customers ORDER id", SqlCode::SyntaxError, "id", None),
        ("SELECT born::date FROM customers", SqlCode::SyntaxError, ":", None),
    ] {
        let judgement = pool.judge(&request(SqlPolicy::Read, sql));
        let found = &judgement.diagnostics[0];
        assert_eq!((judgement.verdict, found.code), (SqlVerdict::Reject, code), "{sql}: {judgement:#?}");
        let span = found.span.unwrap_or_else(|| panic!("{sql}: {found:#?}"));
        assert_eq!(&sql[span.start..span.end], place, "{sql}");
        assert_eq!(candidate.filter(|name| !found.candidates.iter().any(|one| one == name)), None, "{found:#?}");
        assert!(!judgement.feedback.contains("judged_"), "{}", judgement.feedback);
    }
    for (sql, code) in [
        ("SELECT name, count(*) FROM customers", SqlCode::UngroupedColumn),
        ("SELECT name FROM customers UNION SELECT id, name FROM customers", SqlCode::ColumnCount),
        ("SELECT sum(count(*)) FROM customers", SqlCode::MisusedFunction),
        ("SELECT abs(1, 2)", SqlCode::WrongArguments),
        ("SELECT name FROM customers WHERE (tier = 'a'", SqlCode::SyntaxError),
        ("SELECT name FROM customers WHERE name = 'abc\\'", SqlCode::UnterminatedToken),
        ("SELECT name FROM customers WHERE tier ILIKE 'p%'", SqlCode::SyntaxError),
    ] {
        let judgement = pool.judge(&request(SqlPolicy::Read, sql));
        assert_eq!((judgement.verdict, judgement.diagnostics[0].code), (SqlVerdict::Reject, code), "{judgement:#?}");
    }
    // Every wrong name is reported at once.
    let judgement = pool.judge(&request(SqlPolicy::Read, "SELECT nmae, teir FROM customers WHERE born2 > now()"));
    assert_eq!(judgement.diagnostics.iter().filter(|found| found.code == SqlCode::UnknownColumn).count(), 3);
}

fn rejects_what_policies_do_not_allow(pool: &Pool) {
    for (sql, code) in [
        ("DELETE FROM customers WHERE id = 1", SqlCode::WriteRefused),
        ("REPLACE INTO customers (id, name) VALUES (1, 'a')", SqlCode::WriteRefused),
        ("UPDATE customers c JOIN orders o ON o.customer_id = c.id SET c.tier = 'x'", SqlCode::WriteRefused),
        ("EXPLAIN DELETE FROM customers WHERE id = 1", SqlCode::WriteRefused),
        ("ANALYZE DELETE FROM customers", SqlCode::WriteRefused),
        ("CREATE INDEX i ON customers (name)", SqlCode::SchemaChangeRefused),
        ("CREATE TEMPORARY TABLE t AS SELECT * FROM customers", SqlCode::SchemaChangeRefused),
        ("TRUNCATE customers", SqlCode::SchemaChangeRefused),
        ("dRoP/**/tAbLe customers", SqlCode::SchemaChangeRefused),
        ("DROP VIEW IF EXISTS v", SqlCode::SchemaChangeRefused),
        ("START TRANSACTION READ WRITE", SqlCode::TransactionControl),
        ("BEGIN", SqlCode::TransactionControl),
        ("XA START 'x'", SqlCode::TransactionControl),
        ("SET SESSION sql_mode = ''", SqlCode::SettingRefused),
        ("SET @a = 1", SqlCode::SettingRefused),
        ("SET STATEMENT max_statement_time = 0 FOR SELECT 1", SqlCode::SettingRefused),
        ("SHOW VARIABLES", SqlCode::SettingRefused),
        ("SHOW GRANTS", SqlCode::SettingRefused),
        ("SHOW PROCESSLIST", SqlCode::SettingRefused),
        ("SHOW COLUMNS FROM orders WHERE EXISTS (SELECT 1 FROM secret)", SqlCode::StatementRefused),
        ("SELECT @@datadir", SqlCode::SettingRefused),
        ("SELECT @@global . version", SqlCode::SettingRefused),
        ("SELECT sleep(1)", SqlCode::FunctionRefused),
        ("SELECT `sleep` /* x */ (1)", SqlCode::FunctionRefused),
        ("SELECT benchmark(1000000, md5('a'))", SqlCode::FunctionRefused),
        ("SELECT GET_LOCK('x', 10)", SqlCode::FunctionRefused),
        ("SELECT load_file('/etc/passwd')", SqlCode::FunctionRefused),
        ("SELECT current_user", SqlCode::FunctionRefused),
        ("SELECT database(), version()", SqlCode::FunctionRefused),
        ("SELECT spy()", SqlCode::FunctionRefused),
        ("SELECT name FROM spied", SqlCode::FunctionRefused),
        ("SELECT name FROM customers FOR UPDATE", SqlCode::StatementRefused),
        ("SELECT name FROM customers LOCK IN SHARE MODE", SqlCode::StatementRefused),
        ("SELECT id INTO @x FROM customers LIMIT 1", SqlCode::StatementRefused),
        ("SELECT @x := 1", SqlCode::StatementRefused),
        ("SELECT user FROM mysql.user", SqlCode::StatementRefused),
        ("SELECT * FROM information_schema.processlist", SqlCode::StatementRefused),
        ("SELECT name FROM customers INTO OUTFILE '/tmp/x'", SqlCode::FileAccess),
        ("SELECT name FROM customers INTO DUMPFILE '/tmp/x'", SqlCode::FileAccess),
        ("LOAD DATA INFILE '/etc/passwd' INTO TABLE customers", SqlCode::FileAccess),
        ("HANDLER customers OPEN", SqlCode::StatementRefused),
        ("KILL 1", SqlCode::StatementRefused),
        ("FLUSH TABLES", SqlCode::StatementRefused),
        ("CALL p()", SqlCode::StatementRefused),
        ("DO sleep(1)", SqlCode::StatementRefused),
        ("PREPARE s FROM 'DELETE FROM customers'", SqlCode::StatementRefused),
        ("EXECUTE IMMEDIATE 'DELETE FROM customers'", SqlCode::StatementRefused),
        ("LOCK TABLES customers WRITE", SqlCode::StatementRefused),
        ("GRANT ALL ON *.* TO 'x'@'%'", SqlCode::StatementRefused),
        ("CREATE FUNCTION x RETURNS STRING SONAME 'x.so'", SqlCode::StatementRefused),
        ("BEGIN NOT ATOMIC SELECT 1", SqlCode::SyntaxError),
        ("USE mysql", SqlCode::DatabaseAttached),
        ("INSTALL SONAME 'ha_example'", SqlCode::DatabaseAttached),
        ("SELECT 1 /*!50000 FOR UPDATE */", SqlCode::ExecutableComment),
        ("SELECT name FROM customers /*M!100100 FOR UPDATE */", SqlCode::ExecutableComment),
        ("SELECT 1 /*!50000 ; DROP TABLE customers */", SqlCode::ExecutableComment),
    ] {
        let judgement = pool.judge(&request(SqlPolicy::Read, sql));
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}: {:#?}", judgement.diagnostics);
        assert!(judgement.diagnostics.iter().any(|found| found.code == code), "{sql}: {judgement:#?}");
    }
    for sql in ["SELECT 1; DELETE FROM customers", "COMMIT; DELETE FROM customers", "SELECT '\\';'; DROP TABLE big; --"]
    {
        let judgement = pool.judge(&request(SqlPolicy::Read, sql));
        assert!(judgement.diagnostics.iter().any(|found| found.code == SqlCode::StackedStatements), "{judgement:#?}");
    }
}

fn judges_writes(pool: &Pool) {
    let write = |sql: &str| request(SqlPolicy::Write, sql);
    pool.assert_codes(&write("DELETE FROM orders WHERE id = 2"), &[]);
    pool.assert_codes(&write("INSERT IGNORE INTO customers (name) VALUES ('Zed')"), &[]);
    pool.assert_codes(&write("UPDATE customers SET tier = 'x' WHERE id = ?"), &[]);
    pool.assert_codes(&write("UPDATE customers SET tier = 'it\\'s' WHERE name = 'a\\\\'"), &[]);
    pool.assert_codes(
        &write("INSERT INTO customers (id, name) VALUES (1, 'a') ON DUPLICATE KEY UPDATE name = VALUES(name)"),
        &[],
    );
    pool.assert_codes(&write("REPLACE INTO customers (id, name) VALUES (1, 'a')"), &[]);
    pool.assert_codes(
        &write("DELETE o FROM orders o JOIN customers c ON c.id = o.customer_id WHERE c.tier = 'x'"),
        &[],
    );
    pool.assert_codes(&write("UPDATE orders o JOIN customers c ON c.id = o.customer_id SET o.paid = 1"), &[]);
    pool.assert_codes(&write("DELETE o FROM orders o JOIN customers c ON c.id = o.customer_id"), &[]);
    pool.assert_codes(&write("UPDATE orders o JOIN customers c ON 1 = 1 SET o.paid = 1"), &[SqlCode::AlwaysTrueFilter]);
    pool.assert_codes(
        &write("UPDATE orders o LEFT JOIN customers c ON c.id = 1 SET o.paid = 1"),
        &[SqlCode::UnboundedWrite],
    );
    pool.assert_codes(&write("DELETE FROM orders"), &[SqlCode::UnboundedWrite]);
    pool.assert_codes(&write("REPLACE INTO orders SELECT * FROM orders"), &[SqlCode::UnboundedWrite]);
    pool.assert_codes(&write("UPDATE customers SET tier = 'x' WHERE id > 0 OR 1 = 1"), &[SqlCode::AlwaysTrueFilter]);
    pool.assert_codes(&write("DELETE FROM orders WHERE id IS NOT NULL OR id IS NULL"), &[SqlCode::AlwaysTrueFilter]);
    pool.assert_codes(&write("DELETE o FROM orders o WHERE o.id > -2000000 OR o.id < 0"), &[SqlCode::AlwaysTrueFilter]);
    pool.assert_codes(&write("UPDATE orders SET paid = 1 WHERE 'a' = 'a'"), &[SqlCode::AlwaysTrueFilter]);
    pool.assert_codes(&write("INSERT INTO watched VALUES (1)"), &[SqlCode::FunctionRefused]);
    pool.assert_codes(&write("DELETE FROM watched WHERE id = 1"), &[SqlCode::FunctionRefused]);
    pool.assert_codes(&write("DROP TABLE orders"), &[SqlCode::SchemaChangeRefused]);
    pool.assert_codes(&write("ANALYZE DELETE FROM orders WHERE id = 1"), &[SqlCode::StatementRefused]);
    pool.assert_codes(&write("ANALYZE FORMAT=JSON UPDATE orders SET paid = 1"), &[SqlCode::StatementRefused]);
    pool.assert_codes(&write("EXPLAIN DELETE FROM orders"), &[]);
    let touched = pool.judge(&write("INSERT INTO orders (id, customer_id) VALUES (100, 1), (101, 1)"));
    let changed = touched.execution.as_ref().map(|execution| execution.affected[0].rows);
    assert_eq!(changed, Some(2), "{touched:#?}");
}

fn judges_migrations(pool: &Pool) {
    let migrate = |sql: &str| request(SqlPolicy::Migrate, sql);
    let good = "CREATE TABLE notes (id BIGINT AUTO_INCREMENT PRIMARY KEY, body TEXT, KEY short (body(10)));
        CREATE VIEW short_notes AS SELECT id, left(body, 10) AS body FROM notes;
        INSERT INTO notes (body) VALUES ('a');
        ALTER TABLE customers ADD COLUMN nick VARCHAR(20);
        UPDATE customers SET nick = name WHERE id = 1;";
    pool.assert_codes(&migrate(good), &[]);
    // The migration was undone.
    pool.assert_codes(&request(SqlPolicy::Read, "SELECT nick FROM customers"), &[SqlCode::UnknownColumn]);
    for sql in [
        "CREATE FUNCTION f() RETURNS INT RETURN 1",
        "CREATE TRIGGER t BEFORE INSERT ON orders FOR EACH ROW SET NEW.id = 1",
        "CREATE EVENT e ON SCHEDULE EVERY 1 DAY DO DELETE FROM orders",
        "CREATE DATABASE other",
        "CREATE TABLE t (a INT) ENGINE = CSV",
        "CREATE TABLE t (a INT) DATA DIRECTORY = '/tmp'",
        "CREATE TABLE t (a INT DEFAULT (sleep(1)))",
        "CREATE VIEW v AS SELECT load_file('/etc/passwd') AS a",
        "CREATE TABLE other.t (a INT)",
        "CREATE TABLE a (id INT); ALTER TABLE a ADD COLUMN id INT",
        "DROP TABLE nothing",
    ] {
        let refused = pool.judge(&migrate(sql));
        assert_eq!(refused.verdict, SqlVerdict::Reject, "{sql}: {refused:#?}");
    }
}

fn raised_texts_are_hidden(pool: &Pool) {
    let schema = "CREATE TABLE t (id INT PRIMARY KEY, n INT); INSERT INTO t VALUES (1, 1), (2, 2);
        CREATE TRIGGER loud BEFORE UPDATE ON t FOR EACH ROW SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'hidden text';
        CREATE TRIGGER odd BEFORE DELETE ON t FOR EACH ROW
            SIGNAL SQLSTATE '23000' SET MYSQL_ERRNO = 1048, MESSAGE_TEXT = 'the hidden number cannot be null';";
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    for sql in ["UPDATE t SET n = 3 WHERE id = 1", "DELETE FROM t WHERE id = 1"] {
        let allow = SqlAllow { tables: owned(&["t"]), functions: owned(&["loud", "odd"]), ..SqlAllow::default() };
        let request = SqlRequest { allow, schema: vec![schema.to_owned()], ..request(SqlPolicy::Write, sql) };
        let judgement = pool.judge(&request);
        let shown = serde_json::to_string(&judgement.diagnostics).expect("JSON") + &judgement.feedback;
        assert!(!judgement.diagnostics.is_empty() && !shown.contains("hidden"), "{sql}: {judgement:#?}");
    }
}

fn enforces_lists(pool: &Pool) {
    raised_texts_are_hidden(pool);
    let with_lists = |policy, tables: &str, columns: &str, sql: &str| {
        let names = |list: &str| list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
        let allow = SqlAllow { tables: names(tables), columns: names(columns), ..SqlAllow::default() };
        SqlRequest { allow, ..request(policy, sql) }
    };
    for (tables, columns, sql) in [
        ("orders", "", "SELECT id, amount FROM orders WHERE paid"),
        ("customers,plain", "", "SELECT name FROM plain"),
        ("customers,plain,nested", "", "SELECT id FROM nested"),
        ("", "customers.id,customers.name", "SELECT id FROM nested"),
        ("", "customers.id,customers.name", "SELECT name FROM customers WHERE id = ?"),
        ("", "customers.id,customers.name", "SELECT id AS tier FROM customers ORDER BY tier"),
        ("", "customers.tier", "SELECT count(*) FROM customers"),
        ("", "computed.shown,computed.pin", "SELECT shown FROM computed"),
        ("orders", "", "SHOW COLUMNS FROM orders"),
    ] {
        pool.assert_codes(&with_lists(SqlPolicy::Read, tables, columns, sql), &[]);
    }
    for (tables, columns, sql) in [
        ("orders", "", "SELECT name FROM customers"),
        ("orders", "", "SELECT g.pin FROM (SELECT '4711' AS pin) g NATURAL JOIN secret"),
        ("orders", "", "SELECT 1 FROM orders WHERE EXISTS (SELECT 1 FROM secret)"),
        ("orders", "", "SELECT o.id FROM orders o JOIN secret USING (id)"),
        ("customers,rich", "", "SELECT name FROM rich"),
        ("plain", "", "SELECT name FROM plain"),
        ("plain,nested", "", "SELECT id FROM nested"),
        ("customers,nested", "", "SELECT id FROM nested"),
        ("", "customers.id", "SELECT id FROM nested"),
        ("", "customers.id", "SELECT * FROM customers"),
        ("", "customers.id", "SELECT c.* FROM customers c"),
        ("", "customers.id", "SELECT id FROM customers ORDER BY tier"),
        ("", "customers.id", "SELECT id FROM customers GROUP BY id HAVING max(tier) > 'a'"),
        ("", "customers.id", "SELECT x.a FROM (SELECT tier AS a FROM customers) x"),
        ("", "customers.id", "SELECT o.id FROM orders o NATURAL JOIN customers JOIN customers d ON d.tier = 'x'"),
        ("", "computed.shown", "SELECT shown FROM computed"),
        ("orders", "", "SELECT table_name FROM information_schema.tables"),
        ("orders", "", "SHOW TABLES"),
        ("orders", "", "DESCRIBE secret"),
        ("orders", "", "EXPLAIN SELECT 1 FROM secret"),
        ("orders", "", "SELECT id FROM orders ORDER BY (SELECT max(pin) FROM secret)"),
        ("", "customers.id", "SELECT 1 FROM (SELECT 'gold' AS tier) g JOIN customers USING (tier)"),
        ("", "customers.id", "SELECT g.tier FROM (SELECT 'gold' AS tier) g NATURAL JOIN customers"),
        ("", "customers.id", "SELECT 1 FROM customers c JOIN customers d USING (id, tier)"),
        ("", "secret.pin", "SELECT 1 FROM orders JOIN secret USING (id)"),
    ] {
        let judgement = pool.judge(&with_lists(SqlPolicy::Read, tables, columns, sql));
        let is_of_lists =
            |code| matches!(code, SqlCode::TableRefused | SqlCode::ColumnRefused | SqlCode::MetadataRefused);
        assert!(judgement.diagnostics.iter().any(|found| is_of_lists(found.code)), "{sql}: {judgement:#?}");
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}");
    }
    for sql in [
        "DELETE o FROM orders o JOIN plain p ON p.id = o.customer_id WHERE o.paid = 1",
        "DELETE FROM o USING orders o JOIN plain p ON p.id = o.amount",
        "DELETE o FROM orders o JOIN (SELECT 5 AS amount) d USING (amount)",
        "DELETE o FROM orders o NATURAL JOIN (SELECT 5 AS amount) d",
        "DELETE FROM orders WHERE id = 1 ORDER BY amount LIMIT 1",
        "UPDATE orders o JOIN plain p ON p.id = o.id SET o.customer_id = o.amount WHERE o.id = 1",
        "UPDATE orders o JOIN (SELECT 5 AS amount) d USING (amount) SET o.customer_id = 1 WHERE o.id = 1",
        "INSERT INTO big (n) SELECT id FROM orders WHERE id = 1 ON DUPLICATE KEY UPDATE n = orders.amount",
        "INSERT INTO orders SET id = 1, amount = 2",
        "INSERT INTO big (n) SELECT id FROM orders RETURNING (SELECT max(amount) FROM orders)",
        "INSERT INTO orders (id) SELECT id FROM plain RETURNING amount",
    ] {
        let judgement = pool.judge(&with_lists(SqlPolicy::Write, "", "orders.id,orders.customer_id", sql));
        let found = judgement.diagnostics.iter().find(|found| found.code == SqlCode::ColumnRefused);
        assert!(found.is_some() && judgement.verdict == SqlVerdict::Reject, "{sql}: {judgement:#?}");
    }
    for sql in [
        "INSERT INTO orders SET id = 1, `customer_id` = 2",
        "UPDATE orders o JOIN plain p ON p.id = o.id SET o.customer_id = DEFAULT WHERE o.id = 1",
        "EXPLAIN SELECT p.id FROM orders JOIN plain p USING (id)",
    ] {
        pool.assert_codes(&with_lists(SqlPolicy::Write, "", "orders.id,orders.customer_id", sql), &[]);
    }
    let all_columns = "orders.id,orders.customer_id,orders.amount,orders.paid";
    pool.assert_codes(&with_lists(SqlPolicy::Write, "", all_columns, "REPLACE INTO orders (id) VALUES (1)"), &[]);
    for (tables, policy, sql) in [
        ("orders", SqlPolicy::Write, "DELETE FROM orders WHERE id = 1"),
        ("orders", SqlPolicy::Write, "UPDATE orders JOIN secret USING (id) SET amount = 1 WHERE orders.id = 1"),
        ("notes", SqlPolicy::Migrate, "CREATE TABLE notes (id INT REFERENCES secret (id))"),
        ("notes", SqlPolicy::Migrate, "CREATE VIEW notes AS SELECT pin FROM secret"),
        ("notes", SqlPolicy::Migrate, "CREATE TABLE notes LIKE secret"),
        ("notes", SqlPolicy::Migrate, "RENAME TABLE secret TO notes"),
        ("notes", SqlPolicy::Migrate, "DROP TABLE secret"),
    ] {
        let judgement = pool.judge(&with_lists(policy, tables, "", sql));
        let found = judgement.diagnostics.iter().find(|found| found.code == SqlCode::TableRefused);
        assert!(found.is_some() && judgement.verdict == SqlVerdict::Reject, "{sql}: {judgement:#?}");
    }
}

/// Neither definitions, which commit, nor tables without transactions leave anything behind.
fn restores_the_database(pool: &Pool) {
    for (policy, sql) in [
        (SqlPolicy::Write, "INSERT INTO fast VALUES (1)"),
        (SqlPolicy::Migrate, "INSERT INTO orders (id) VALUES (77); CREATE TABLE extra (id INT)"),
        (SqlPolicy::Migrate, "ALTER TABLE orders DROP COLUMN paid; INSERT INTO orders (id) VALUES (78)"),
        (SqlPolicy::Migrate, "RENAME TABLE orders TO purchases"),
        (SqlPolicy::Migrate, "CREATE OR REPLACE VIEW plain AS SELECT tier AS name FROM customers"),
    ] {
        pool.assert_codes(&request(policy, sql), &[]);
        pool.assert_codes(&request(SqlPolicy::Read, "SELECT paid FROM orders JOIN plain USING (id)"), &[]);
    }
    // Empty tables get eight rows; a table that was not restored would not be empty.
    for table in ["fast", "orders"] {
        let judgement = pool.judge(&request(SqlPolicy::Write, &format!("DELETE FROM {table} WHERE id = 77")));
        let touched =
            judgement.execution.as_ref().map(|execution| (execution.affected[0].rows, execution.affected[0].of));
        assert_eq!(touched, Some((0, 8)), "{judgement:#?}");
    }
    pool.assert_codes(&request(SqlPolicy::Read, "SELECT id FROM extra"), &[SqlCode::UnknownTable]);
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
        (
            "SELECT repeat('x', 16000000), repeat('y', 16000000) FROM big",
            &[SqlCode::MemoryLimit, SqlCode::ResultLimit, SqlCode::TimeLimit],
        ),
    ] {
        let judgement = pool.judge(&SqlRequest { limits, ..request(SqlPolicy::Read, sql) });
        assert_eq!(judgement.verdict, SqlVerdict::Reject, "{sql}: {judgement:#?}");
        assert!(judgement.diagnostics.iter().any(|found| codes.contains(&found.code)), "{sql}: {judgement:#?}");
        pool.assert_codes(&request(SqlPolicy::Read, "SELECT 1"), &[]);
    }
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
    assert!(left.len() == 1 && left[0].starts_with("mariadb-"), "{left:?}");
}

/// Returns the processes of MariaDB that descend from this one.
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
    let servers = pids.into_iter().filter(|pid| field(*pid, "Name:").as_deref() == Some("mariadbd") && descends(*pid));
    servers.filter_map(rustix::process::Pid::from_raw).collect()
}
