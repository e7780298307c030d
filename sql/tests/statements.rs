//! Statements of SQLite and what is right for them: filters that leave nothing out, what never ends, migrations, and
//! fixes, each of which mends what it stands at.

use proctor_core::sql::{Dialect, Judgement, Policy, Request, Severity, SqlCode, Verdict};
use proctor_sql::sqlite::Sqlite;

const SCHEMA: &str = "
    CREATE TABLE authors (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT);
    CREATE TABLE books (id INTEGER PRIMARY KEY, author_id INTEGER REFERENCES authors(id), title TEXT, price REAL,
        printed DATE, state TEXT);
    CREATE TABLE \"order\" (id INTEGER PRIMARY KEY, \"group\" TEXT);
    INSERT INTO authors VALUES (1, 'Ada', 'GB'), (2, 'Bo', 'SE'), (3, 'Cy', NULL);
    INSERT INTO books VALUES (1, 1, 'One', 5, '2020-01-01', 'new'), (2, 1, 'Two', 7.5, '2021-01-01', 'sold'),
        (3, 2, 'Three', 9, NULL, 'new');";

fn judged(sql: &str, policy: Policy) -> Judgement {
    let request = Request { policy, schema: vec![SCHEMA.to_owned()], ..Request::new(Dialect::Sqlite, sql) };
    let mut engine = Sqlite::open(&request).expect("a schema");
    proctor_sql::judge(&request, &mut engine)
}

fn has(judgement: &Judgement, code: SqlCode) -> bool {
    judgement.diagnostics.iter().any(|found| found.code == code && found.severity == Severity::Error)
}

#[test]
fn a_filter_that_leaves_no_row_out_is_refused() {
    for filter in [
        "EXISTS (SELECT 1)",
        "NOT EXISTS (SELECT 1 WHERE 1 = 0)",
        "1 IN (SELECT 1)",
        "(SELECT 1) = 1",
        "id IN (SELECT id FROM books)",
        "id NOT IN (SELECT id FROM books WHERE 1 = 0)",
        "EXISTS (SELECT 1 FROM books b WHERE b.id = books.id)",
        "price IS NULL OR abs(price) >= 0",
        "length(id) > 0",
        "id >= id",
        "state = 'new' OR coalesce(state, '') <> 'new'",
    ] {
        let judgement = judged(&format!("DELETE FROM books WHERE {filter}"), Policy::Write);
        assert!(has(&judgement, SqlCode::AlwaysTrueFilter), "{filter}: {:#?}", judgement.diagnostics);
    }
}

#[test]
fn a_filter_that_leaves_a_row_out_is_none_of_these() {
    for sql in [
        "UPDATE books SET state = 'lost' WHERE state <> 'lost'",
        "UPDATE books SET state = 'lost' WHERE state = 'sold'",
        "UPDATE authors SET country = 'XX' WHERE country IS NULL",
        "DELETE FROM books WHERE id NOT IN (SELECT min(id) FROM books GROUP BY title)",
        "DELETE FROM books WHERE price < (SELECT avg(price) FROM books)",
        "DELETE FROM books WHERE author_id NOT IN (SELECT id FROM authors)",
        "DELETE FROM books WHERE printed IS NOT NULL",
        "DELETE FROM books WHERE id <> 1",
        "UPDATE books SET price = 10 WHERE price <> 10",
    ] {
        let judgement = judged(sql, Policy::Write);
        assert_eq!(judgement.verdict, Verdict::Ok, "{sql}: {:#?}", judgement.diagnostics);
    }
}

#[test]
fn what_never_ends_on_rows_of_ours_is_refused_though_rows_come() {
    let numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    let endless = judged(&format!("{numbers} SELECT i FROM n"), Policy::Read);
    assert!(has(&endless, SqlCode::EndlessRecursion), "{:#?}", endless.diagnostics);
    let bounded = judged(&format!("{numbers} SELECT i FROM n LIMIT 20000"), Policy::Read);
    assert_eq!(bounded.verdict, Verdict::Ok, "{:#?}", bounded.diagnostics);
    let execution = bounded.execution.expect("it ran");
    assert!(execution.truncated && execution.rows == 10_000);
}

#[test]
fn what_needs_no_rows_fails_everywhere() {
    let judgement = judged("SELECT abs(-9223372036854775808)", Policy::Read);
    assert!(has(&judgement, SqlCode::RunFailed), "{:#?}", judgement.diagnostics);
    let of_rows = judged("SELECT abs(-9223372036854775808) FROM books", Policy::Read);
    assert_eq!(of_rows.verdict, Verdict::Ok, "{:#?}", of_rows.diagnostics);
}

#[test]
fn brackets_have_a_depth() {
    let nested = |depth: usize| format!("SELECT {}1{}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(judged(&nested(40), Policy::Read).verdict, Verdict::Ok);
    assert!(has(&judged(&nested(500), Policy::Read), SqlCode::TooDeep));
}

#[test]
fn a_migration_may_alter_and_may_not_call() {
    for sql in [
        "ALTER TABLE books RENAME COLUMN price TO cost",
        "ALTER TABLE books RENAME TO volumes",
        "ALTER TABLE books DROP COLUMN printed",
        "ALTER TABLE books ADD COLUMN pages INTEGER DEFAULT 0",
        "CREATE VIEW dear AS SELECT upper(title) FROM books WHERE price > 8",
        "CREATE TRIGGER t AFTER INSERT ON books BEGIN UPDATE authors SET name = trim(name) WHERE id = new.author_id; END",
    ] {
        let judgement = judged(sql, Policy::Migrate);
        assert_eq!(judgement.verdict, Verdict::Ok, "{sql}: {:#?}", judgement.diagnostics);
    }
    for sql in [
        "CREATE VIEW v AS SELECT load_extension('x')",
        "CREATE VIEW v AS SELECT \"load_extension\" ('x')",
        "CREATE TRIGGER t AFTER INSERT ON books BEGIN SELECT load_extension('x'); END",
        "CREATE TRIGGER t AFTER INSERT ON books BEGIN SELECT readfile('/etc/passwd'); END",
    ] {
        assert!(has(&judged(sql, Policy::Migrate), SqlCode::FunctionRefused), "{sql}");
    }
}

#[test]
fn each_fix_mends_what_it_stands_at() {
    let broken = [
        "SELECT nmae FROM authors",
        "SELECT a.nmae, a.contry FROM authors a",
        "SELECT b.title FROM books b JOIN authors a ON a.id = b.auther_id",
        "SELECT * FROM authers",
        "SELECT * FROM order_lines",
        "SELECT name FROM shop.authors",
        "SELECT a.title FROM authors a JOIN books b ON b.author_id = a.id",
        "SELECT name FROM authors WHERE \"contry\" = 'GB'",
        "SELECT name FROM authors WHERE country = \"GB\"",
        "SELECT x.name FROM (SELECT id FROM authors) x",
        "SELECT authors.name FROM authors a",
        "UPDATE books SET prise = 1 WHERE id = 1",
        "DELETE FROM boks WHERE id = 1",
        "INSERT INTO authors (id, nam) VALUES (9, 'x')",
        "```sql\nSELECT name FROM authors\n```",
    ];
    let mut fixes = 0;
    for sql in broken {
        for found in judged(sql, Policy::Write).diagnostics {
            let Some(fix) = &found.fix else { continue };
            let mut mended = sql.to_owned();
            mended.replace_range(fix.start..fix.end, &fix.replacement);
            let again = judged(&mended, Policy::Write).diagnostics;
            let is_same = |one: &&_| {
                let one: &proctor_core::sql::Diagnostic = one;
                one.code == found.code && one.subject == found.subject
            };
            assert_eq!(again.iter().find(is_same), None, "{sql} -> {mended}");
            fixes += 1;
        }
    }
    assert!(fixes >= 10, "{fixes}");
}
