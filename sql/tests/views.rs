//! Tests lists of tables with views in SQLite: a view may be used only if the list contains it and everything that it
//! reads.

use proctor_core::sql::{Dialect, SqlAllow, SqlCode, SqlPolicy, SqlRequest, SqlVerdict};
use proctor_sql::sqlite::Sqlite;

const SCHEMA: &str = "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, pay INTEGER);
    CREATE TABLE towns (id INTEGER PRIMARY KEY, town TEXT);
    CREATE VIEW names AS SELECT id, name FROM people;
    CREATE VIEW first AS SELECT name FROM names WHERE id < 10;
    CREATE VIEW joined AS WITH t AS (SELECT town FROM towns) SELECT n.name, t.town FROM names AS n, t ON n.id > 0;
    CREATE VIEW counted AS SELECT count(*) AS n FROM people;
    INSERT INTO people VALUES (1, 'Ann', 7), (2, 'Bo', 8); INSERT INTO towns VALUES (1, 'Ulm');";

fn judge(sql: &str, tables: &[&str], policy: SqlPolicy) -> (SqlVerdict, Vec<SqlCode>) {
    let allow = SqlAllow { tables: tables.iter().map(|name| (*name).to_owned()).collect(), ..SqlAllow::default() };
    let request =
        SqlRequest { allow, policy, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Sqlite, sql) };
    let mut engine = Sqlite::open(&request).expect("opens");
    let judgement = proctor_sql::judge(&request, &mut engine);
    (judgement.verdict, judgement.diagnostics.iter().map(|found| found.code).collect())
}

#[test]
fn accepts_view_with_listed_tables() {
    let cases: &[(&str, &[&str])] = &[
        ("SELECT * FROM names", &["names", "people"]),
        ("SELECT n.name FROM NAMES AS n WHERE n.id = 1", &["main.names", "main.people"]),
        ("SELECT count(*) FROM names", &["names", "people"]),
        ("SELECT n FROM counted", &["counted", "people"]),
        ("SELECT name FROM first", &["first", "names", "people"]),
        ("SELECT * FROM joined", &["joined", "names", "people", "towns"]),
        ("WITH x AS (SELECT * FROM names) SELECT name FROM x", &["names", "people"]),
        ("SELECT * FROM names UNION ALL SELECT id, town FROM towns", &["names", "people", "towns"]),
    ];
    for (sql, tables) in cases {
        assert_eq!(judge(sql, tables, SqlPolicy::Read).0, SqlVerdict::Ok, "{sql}");
    }
    let write = "UPDATE towns SET town = 'x' WHERE id IN (SELECT id FROM names WHERE name = 'Ann')";
    assert_eq!(judge(write, &["towns", "names", "people"], SqlPolicy::Write).0, SqlVerdict::Ok);
}

#[test]
fn rejects_view_with_table_off_list() {
    let cases: &[(&str, &[&str])] = &[
        ("SELECT * FROM names", &["names"]),
        ("SELECT count(*) FROM names", &["names"]),
        ("SELECT name FROM first", &["first", "people"]),
        ("SELECT 1 FROM first", &["first", "names"]),
        ("SELECT t.id FROM towns t JOIN names USING (id)", &["towns", "names"]),
    ];
    for (sql, tables) in cases {
        let (verdict, codes) = judge(sql, tables, SqlPolicy::Read);
        assert_eq!(verdict, SqlVerdict::Reject, "{sql}");
        assert!(codes.contains(&SqlCode::TableRefused), "{sql}: {codes:?}");
    }
}

#[test]
fn view_name_gives_no_other_access() {
    let cases: &[(&str, &[&str])] = &[
        ("SELECT pay FROM people", &["names"]),
        ("SELECT * FROM names, people", &["names"]),
        ("SELECT (SELECT count(*) FROM counted) FROM names", &["names"]),
        ("SELECT (SELECT count(*) FROM first) FROM names", &["names"]),
        ("SELECT * FROM names WHERE id IN (SELECT pay FROM people)", &["names"]),
        ("SELECT * FROM names", &["people"]),
        ("SELECT * FROM first, names", &["first"]),
        ("SELECT * FROM joined, towns", &["joined"]),
        // A common table expression may have the name of a view.
        ("WITH names AS (SELECT pay FROM people) SELECT * FROM names", &["names"]),
        ("WITH names(x) AS MATERIALIZED (SELECT pay FROM people) SELECT * FROM names", &["names"]),
        ("WITH \"names\" AS NOT MATERIALIZED (SELECT pay FROM people) SELECT * FROM Names", &["names"]),
        ("WITH [names]/**/AS/**/(SELECT pay FROM people) SELECT * FROM names", &["names"]),
        ("WITH 'names' AS (SELECT pay FROM people) SELECT * FROM names", &["names"]),
        ("WITH `names` -- x\n AS (SELECT pay FROM people) SELECT * FROM names", &["names"]),
        ("SELECT * FROM (WITH names AS (SELECT pay FROM people) SELECT * FROM names)", &["names"]),
        ("WITH x AS (WITH names AS (SELECT pay FROM people) SELECT * FROM names) SELECT * FROM x", &["names"]),
        ("SELECT * FROM (SELECT pay FROM people) AS names", &["names"]),
        ("SELECT * FROM people AS names", &["names"]),
        ("SELECT (SELECT max(pay) FROM people) FROM names", &["names"]),
        (
            "WITH RECURSIVE names AS (SELECT pay FROM people UNION SELECT pay + 1 FROM names LIMIT 3) SELECT * FROM names",
            &["names"],
        ),
    ];
    for (sql, tables) in cases {
        let (verdict, codes) = judge(sql, tables, SqlPolicy::Read);
        assert_eq!(verdict, SqlVerdict::Reject, "{sql}");
        assert!(codes.contains(&SqlCode::TableRefused), "{sql}: {codes:?}");
    }
}

/// A migration could replace a listed view by another one.
#[test]
fn migration_cannot_replace_listed_view() {
    let cases = [
        "CREATE VIEW names2 AS SELECT 1 AS a; INSERT INTO towns (town) SELECT name FROM names",
        "DROP VIEW names; CREATE VIEW names AS SELECT pay FROM people; INSERT INTO towns (town) SELECT pay FROM names",
    ];
    for sql in cases {
        let (verdict, codes) = judge(sql, &["names", "names2", "towns"], SqlPolicy::Migrate);
        assert_eq!(verdict, SqlVerdict::Reject, "{sql}");
        assert!(codes.contains(&SqlCode::TableRefused), "{sql}: {codes:?}");
    }
}
