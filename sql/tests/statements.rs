//! Tests statements of SQLite with their expected verdicts: filters that exclude nothing, statements that never end,
//! migrations, and fixes, each of which must correct its finding.

use proctor_core::sql::{
    Dialect, Judgement, SqlCode, SqlPolicy, SqlRequest, SqlResourceLimits, SqlSeverity, SqlVerdict,
};
use proctor_sql::sqlite::Sqlite;

const SCHEMA: &str = "
    CREATE TABLE authors (id INTEGER PRIMARY KEY, name TEXT NOT NULL, country TEXT);
    CREATE TABLE books (id INTEGER PRIMARY KEY, author_id INTEGER REFERENCES authors(id), title TEXT, price REAL,
        printed DATE, state TEXT);
    CREATE TABLE \"order\" (id INTEGER PRIMARY KEY, \"group\" TEXT);
    INSERT INTO authors VALUES (1, 'Ada', 'GB'), (2, 'Bo', 'SE'), (3, 'Cy', NULL);
    INSERT INTO books VALUES (1, 1, 'One', 5, '2020-01-01', 'new'), (2, 1, 'Two', 7.5, '2021-01-01', 'sold'),
        (3, 2, 'Three', 9, NULL, 'new');";

fn judge(sql: &str, policy: SqlPolicy) -> Judgement {
    let request = SqlRequest { policy, schema: vec![SCHEMA.to_owned()], ..SqlRequest::new(Dialect::Sqlite, sql) };
    let mut engine = Sqlite::open(&request).expect("a schema");
    proctor_sql::judge(&request, &mut engine)
}

fn has_error(judgement: &Judgement, code: SqlCode) -> bool {
    judgement.diagnostics.iter().any(|found| found.code == code && found.severity == SqlSeverity::Error)
}

#[test]
fn rejects_filter_that_excludes_no_row() {
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
        let judgement = judge(&format!("DELETE FROM books WHERE {filter}"), SqlPolicy::Write);
        assert!(has_error(&judgement, SqlCode::AlwaysTrueFilter), "{filter}: {:#?}", judgement.diagnostics);
    }
}

#[test]
fn accepts_filter_that_excludes_rows() {
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
        let judgement = judge(sql, SqlPolicy::Write);
        assert_eq!(judgement.verdict, SqlVerdict::Ok, "{sql}: {:#?}", judgement.diagnostics);
    }
}

#[test]
fn rejects_endless_recursion_with_rows() {
    let numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";
    let endless = judge(&format!("{numbers} SELECT i FROM n"), SqlPolicy::Read);
    assert!(has_error(&endless, SqlCode::EndlessRecursion), "{:#?}", endless.diagnostics);
    let bounded = judge(&format!("{numbers} SELECT i FROM n LIMIT 20000"), SqlPolicy::Read);
    assert_eq!(bounded.verdict, SqlVerdict::Ok, "{:#?}", bounded.diagnostics);
    let execution = bounded.execution.expect("it ran");
    assert!(execution.truncated && execution.rows == 10_000);
}

/// On ordinary rows the query of each statement ends. On the unusual rows that its filter is tried on, it does not.
#[test]
fn filter_that_never_ends_on_unusual_rows_exceeds_limit() {
    let endless =
        "WITH RECURSIVE n(i) AS (SELECT id FROM books WHERE id < 0 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n";
    for (sql, code) in [
        (format!("REPLACE INTO books (id, title) SELECT id, title FROM books WHERE id IN ({endless})"), "rewrite"),
        (format!("DELETE FROM books WHERE id IN ({endless})"), "delete"),
    ] {
        let limits = SqlResourceLimits { steps: 1_000_000, ..SqlResourceLimits::default() };
        let request = SqlRequest {
            policy: SqlPolicy::Write,
            schema: vec![SCHEMA.to_owned()],
            limits,
            ..SqlRequest::new(Dialect::Sqlite, sql)
        };
        let mut engine = Sqlite::open(&request).expect("a schema");
        let judgement = proctor_sql::judge(&request, &mut engine);
        assert!(has_error(&judgement, SqlCode::StepLimit), "{code}: {:#?}", judgement.diagnostics);
        assert_eq!(judgement.verdict, SqlVerdict::Reject);
    }
}

#[test]
fn failure_without_rows_is_error() {
    let judgement = judge("SELECT abs(-9223372036854775808)", SqlPolicy::Read);
    assert!(has_error(&judgement, SqlCode::RunFailed), "{:#?}", judgement.diagnostics);
    let of_rows = judge("SELECT abs(-9223372036854775808) FROM books", SqlPolicy::Read);
    assert_eq!(of_rows.verdict, SqlVerdict::Ok, "{:#?}", of_rows.diagnostics);
}

#[test]
fn limits_bracket_depth() {
    let nested = |depth: usize| format!("SELECT {}1{}", "(".repeat(depth), ")".repeat(depth));
    assert_eq!(judge(&nested(40), SqlPolicy::Read).verdict, SqlVerdict::Ok);
    assert!(has_error(&judge(&nested(500), SqlPolicy::Read), SqlCode::TooDeep));
}

#[test]
fn migration_may_alter_but_not_call_unlisted_functions() {
    for sql in [
        "ALTER TABLE books RENAME COLUMN price TO cost",
        "ALTER TABLE books RENAME TO volumes",
        "ALTER TABLE books DROP COLUMN printed",
        "ALTER TABLE books ADD COLUMN pages INTEGER DEFAULT 0",
        "CREATE VIEW dear AS SELECT upper(title) FROM books WHERE price > 8",
        "CREATE TRIGGER t AFTER INSERT ON books BEGIN UPDATE authors SET name = trim(name) WHERE id = new.author_id; END",
    ] {
        let judgement = judge(sql, SqlPolicy::Migrate);
        assert_eq!(judgement.verdict, SqlVerdict::Ok, "{sql}: {:#?}", judgement.diagnostics);
    }
    for sql in [
        "CREATE VIEW v AS SELECT load_extension('x')",
        "CREATE VIEW v AS SELECT \"load_extension\" ('x')",
        "CREATE TRIGGER t AFTER INSERT ON books BEGIN SELECT load_extension('x'); END",
        "CREATE TRIGGER t AFTER INSERT ON books BEGIN SELECT readfile('/etc/passwd'); END",
    ] {
        assert!(has_error(&judge(sql, SqlPolicy::Migrate), SqlCode::FunctionRefused), "{sql}");
    }
}

#[test]
fn each_fix_corrects_its_finding() {
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
        for found in judge(sql, SqlPolicy::Write).diagnostics {
            let Some(fix) = &found.fix else { continue };
            let mut mended = sql.to_owned();
            mended.replace_range(fix.start..fix.end, &fix.replacement);
            let again = judge(&mended, SqlPolicy::Write).diagnostics;
            let is_same = |one: &&_| {
                let one: &proctor_core::sql::SqlDiagnostic = one;
                one.code == found.code && one.subject == found.subject
            };
            assert_eq!(again.iter().find(is_same), None, "{sql} -> {mended}");
            fixes += 1;
        }
    }
    assert!(fixes >= 10, "{fixes}");
}

/// Returns the errors: the text at each position, and the candidates.
fn errors(sql: &str) -> Vec<(String, Vec<String>)> {
    let judgement = judge(sql, SqlPolicy::Write);
    let errors = judgement.diagnostics.iter().filter(|found| found.severity == SqlSeverity::Error);
    let place = |found: &proctor_core::sql::SqlDiagnostic| {
        found.span.map_or_else(|| "nowhere".to_owned(), |span| sql[span.start..span.end].to_owned())
    };
    errors.map(|found| (place(found), found.candidates.clone())).collect()
}

/// Returns the text with every fix applied.
fn apply_fixes(sql: &str) -> String {
    let mut fixes: Vec<_> =
        judge(sql, SqlPolicy::Write).diagnostics.into_iter().filter_map(|found| found.fix).collect();
    fixes.sort_by_key(|fix| std::cmp::Reverse(fix.start));
    fixes.iter().fold(sql.to_owned(), |mut text, fix| {
        text.replace_range(fix.start..fix.end, &fix.replacement);
        text
    })
}

#[test]
fn reports_all_errors_after_unknown_table() {
    let cases: &[(&str, &[&str])] = &[
        (
            "SELECT a.nmae, b.titel FROM author a JOIN boooks b ON a.id = b.auther_id",
            // SQLite reports no position for a name after ON; the test expects the position of its bare name.
            &["a.nmae", "b.titel", "author", "boooks", "auther_id"],
        ),
        // The columns of a missing table are unknown.
        ("SELECT x.a, b.titel FROM nothing_like_it x JOIN books b ON b.id = x.b", &["b.titel", "nothing_like_it"]),
        ("SELECT boks.titel, boks.price FROM boks", &["boks.titel", "boks"]),
        ("SELECT nmae FROM authors WHERE contry = 'GB' ORDER BY idd", &["nmae", "contry", "idd"]),
        ("SELECT n.nmae FROM (SELECT nmae FROM authors) n", &["nmae"]),
        ("UPDATE boks SET prise = 1 WHERE titel = 'x'", &["boks", "prise", "titel"]),
        ("INSERT INTO author (id, nam) VALUES (9, 'x')", &["author", "nam"]),
        ("SELECT frobnicate(nmae), a.contry FROM authors a", &["frobnicate", "nmae", "a.contry"]),
        (
            "SELECT a.nmae FROM authors a WHERE a.idd IN (SELECT b.autor FROM boks b)",
            &["a.nmae", "a.idd", "b.autor", "boks"],
        ),
    ];
    let mut wrong = Vec::new();
    for (sql, expected) in cases {
        let found = errors(sql);
        let places: Vec<&str> = found.iter().map(|(place, _)| place.as_str()).collect();
        if places != *expected {
            wrong.push(format!("{sql}: {found:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    let fixed = apply_fixes("SELECT a.nmae, b.titel FROM author a JOIN boooks b ON a.id = b.auther_id");
    assert_eq!(judge(&fixed, SqlPolicy::Read).verdict, SqlVerdict::Ok, "{fixed}");
}

#[test]
fn explains_table_hidden_by_alias() {
    for sql in [
        "SELECT authors.name FROM authors a",
        "SELECT a.id FROM authors a JOIN books AS b ON books.author_id = a.id",
        "SELECT a.id FROM authors a WHERE a.id > 1 ORDER BY authors.name",
    ] {
        let judgement = judge(sql, SqlPolicy::Read);
        let found = judgement.diagnostics.first().expect("a finding");
        assert!(found.message.contains("has the alias `"), "{sql}: {found:#?}");
        let fixed = apply_fixes(sql);
        assert_eq!(judge(&fixed, SqlPolicy::Read).verdict, SqlVerdict::Ok, "{sql} -> {fixed}");
    }
}

#[test]
fn suggests_misspelt_keywords_at_their_position() {
    let cases: &[(&str, &[&str])] = &[
        ("SELEC name FROM authors", &["SELEC"]),
        ("select name form authors", &["form"]),
        ("SELECT name FORM authors WEHRE id = 1", &["FORM", "WEHRE"]),
        ("SELECT country, count(*) FROM authors GRUOP BY country", &["GRUOP"]),
        ("SELECT name FROM authors ORDER YB name", &["YB"]),
        ("SELECT name FROM authors LIMTI 5", &["LIMTI"]),
        ("SELECT a.name FROM authors a JION books b ON b.author_id = a.id", &["JION"]),
        ("SELECT name FROM authors WHERE id BETWEN 1 AND 2", &["BETWEN"]),
        ("SELECT DISTNCT name FROM authors", &["DISTNCT"]),
        ("UPDTE books SET price = 1 WHERE id = 1", &["UPDTE"]),
        ("DELETE FORM books WHERE id = 1", &["FORM"]),
        ("INSERT INOT authors (id, name) VALEUS (9, 'x')", &["INOT", "VALEUS"]),
        ("SELCT name FORM authors WEHRE id = 1 ODER BY name", &["SELCT", "FORM", "WEHRE", "ODER"]),
    ];
    for (sql, expected) in cases {
        let found = errors(sql);
        let places: Vec<&str> = found.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(places, *expected, "{sql}: {found:?}");
        let fixed = apply_fixes(sql);
        assert_eq!(judge(&fixed, SqlPolicy::Write).verdict, SqlVerdict::Ok, "{sql} -> {fixed}");
    }
}

#[test]
fn locates_end_of_unfinished_statement() {
    for (sql, place) in [
        ("SELECT name FROM authors WHERE", "WHERE"),
        ("SELECT name FROM authors WHERE;", "WHERE"),
        ("SELECT name FROM authors ORDER BY", "BY"),
        ("SELECT count(name", "("),
        ("SELECT CASE WHEN id = 1 THEN 2", "CASE"),
    ] {
        assert_eq!(errors(sql).first().map(|(place, _)| place.as_str()), Some(place), "{sql}");
    }
}

#[test]
fn reports_fences_and_prose_with_fix() {
    let select = "SELECT name\nFROM authors\nWHERE country = 'GB';";
    let cases = [
        (format!("{select}\n```"), SqlCode::FencedText),
        (format!("{select}```"), SqlCode::FencedText),
        ("SELECT name FROM authors\n```\n".to_owned(), SqlCode::FencedText),
        (format!("{select}\n```\n\nThis query returns the authors' names."), SqlCode::FencedText),
        (format!("```sql\n{select}\n```\nThis is it."), SqlCode::FencedText),
        (format!("{select}\n\nThis query returns the name of each author."), SqlCode::ProseAroundSql),
        (format!("{select} This query isn't slow."), SqlCode::ProseAroundSql),
        ("SELECT name FROM authors\n\nExplanation: it's simple.".to_owned(), SqlCode::ProseAroundSql),
        ("SELECT name FROM authors\n\n**Note**: it's simple.".to_owned(), SqlCode::ProseAroundSql),
        (format!("Select all names like this:\n{select}"), SqlCode::ProseAroundSql),
        (format!("With this query you get the names:\n\n{select}\n\nI hope this helps!"), SqlCode::ProseAroundSql),
        (format!("Sure! Here is the query:\n{select}"), SqlCode::ProseAroundSql),
        (format!("Here is the query:\n\n{select}\n\nThis returns all names."), SqlCode::ProseAroundSql),
        ("Sure! ```sql\nSELECT name FROM authors\n``` Hope this helps".to_owned(), SqlCode::FencedText),
        ("sqlite> SELECT name FROM authors;".to_owned(), SqlCode::ProseAroundSql),
        (r#"{"sql": "SELECT name FROM authors"}"#.to_owned(), SqlCode::ProseAroundSql),
        ("```json\n{\"query\": \"SELECT name\\nFROM authors\"}\n```".to_owned(), SqlCode::ProseAroundSql),
        (r#"["SELECT name FROM authors"]"#.to_owned(), SqlCode::ProseAroundSql),
        ("sql: |\n  SELECT name\n  FROM authors\nexplanation: all of them".to_owned(), SqlCode::ProseAroundSql),
        ("sql: \"SELECT name FROM authors\"".to_owned(), SqlCode::ProseAroundSql),
    ];
    for (sql, code) in cases {
        let judgement = judge(&sql, SqlPolicy::Read);
        let found: Vec<SqlCode> = judgement.diagnostics.iter().map(|found| found.code).collect();
        assert_eq!(found, [code], "{sql}: {:#?}", judgement.diagnostics);
        let fixed = apply_fixes(&sql);
        assert_eq!(judge(&fixed, SqlPolicy::Read).verdict, SqlVerdict::Ok, "{sql} -> {fixed}");
    }
    // Statements that contain text that only looks like prose or a fence are accepted.
    for sql in [
        "SELECT name\nFROM authors\nWhere country = 'GB'",
        "SELECT name AS \"a\nThis is\" FROM authors",
        "SELECT ';\nThis is a text' AS a",
        "SELECT id,\nName\nFROM authors",
        "-- This query\nSELECT name FROM authors -- ```\n",
        "SELECT '```' AS fence",
    ] {
        assert_eq!(judge(sql, SqlPolicy::Read).verdict, SqlVerdict::Ok, "{sql}");
    }
}
