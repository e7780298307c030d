//! Tests questions and statements on the schema of a small shop: which are errors, which are warnings, and which pass.

use std::ops::Range;

use sqlparser::dialect::SQLiteDialect;
use sqlparser::parser::Parser;

use super::question::ParsedQuestion;
use super::semantic_finding::{ERROR_CONFIDENCE, SemanticFinding};
use super::statement_findings;
use crate::catalog::{Catalog, CatalogColumn, CatalogTable, ForeignKey};

/// The confidence from which a warning counts.
const WARNING_CONFIDENCE: u8 = 70;

fn table(name: &str, columns: &[(&str, &str)]) -> CatalogTable {
    let columns = columns.iter().enumerate().map(|(at, (name, kind))| CatalogColumn {
        name: (*name).to_owned(),
        declared_type: (*kind).to_owned(),
        primary_key_position: u32::from(at == 0),
        ..CatalogColumn::default()
    });
    CatalogTable { name: name.to_owned(), columns: columns.collect(), ..CatalogTable::default() }
}

fn shop_catalog() -> Catalog {
    let customers =
        [("id", "INTEGER"), ("name", "TEXT"), ("email", "TEXT"), ("created_at", "TIMESTAMP"), ("tier", "TEXT")];
    let orders = [
        ("id", "INTEGER"),
        ("customer_id", "INTEGER"),
        ("amount", "NUMERIC"),
        ("order_date", "TIMESTAMP"),
        ("status", "TEXT"),
    ];
    let products =
        [("id", "INTEGER"), ("name", "TEXT"), ("price", "NUMERIC"), ("category", "TEXT"), ("stock", "INTEGER")];
    let mut orders = table("orders", &orders);
    orders.foreign_keys.push(ForeignKey {
        column: "customer_id".to_owned(),
        referenced_table: "customers".to_owned(),
        referenced_column: None,
    });
    let staff = [
        ("id", "INTEGER"),
        ("name", "TEXT"),
        ("birth_year", "INTEGER"),
        ("kids", "TEXT"),
        ("lat", "REAL"),
        ("rating", "REAL"),
    ];
    Catalog {
        tables: vec![table("customers", &customers), orders, table("products", &products), table("staff", &staff)],
        ..Catalog::default()
    }
}

fn findings_for(question: &str, sql: &str) -> Vec<SemanticFinding> {
    let tree = Parser::parse_sql(&SQLiteDialect {}, sql).unwrap().remove(0);
    let question = (!question.is_empty()).then(|| ParsedQuestion::parse(question));
    statement_findings(&tree, sql, question.as_ref(), &shop_catalog())
}

fn highest_confidence(question: &str, sql: &str) -> u8 {
    findings_for(question, sql).iter().map(|finding| finding.confidence).max().unwrap_or(0)
}

/// Splits lines of the form `question | statement`.
fn test_cases(lines: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.split_once("|").map(|(question, sql)| (question.trim(), sql.trim())).unwrap())
}

/// Returns the lines whose highest confidence is out of range.
fn outside_confidence(lines: &'static str, sure: Range<u8>) -> Vec<String> {
    let wrong = test_cases(lines).filter(|(question, sql)| !sure.contains(&highest_confidence(question, sql)));
    wrong.map(|(question, sql)| format!("{question}: {sql}: {:?}", findings_for(question, sql))).collect()
}

#[test]
fn contradictory_queries_are_errors() {
    assert_eq!(outside_confidence(include_str!("tests/rejected.txt"), ERROR_CONFIDENCE..100), [""; 0]);
}

#[test]
fn matching_queries_pass() {
    assert_eq!(outside_confidence(include_str!("tests/passed.txt"), 0..WARNING_CONFIDENCE), [""; 0]);
}

#[test]
fn suspicious_queries_are_warnings() {
    assert_eq!(outside_confidence(include_str!("tests/warned.txt"), WARNING_CONFIDENCE..ERROR_CONFIDENCE), [""; 0]);
}

#[test]
fn findings_point_at_their_cause() {
    let cases = [
        ("top 5 products by price", "SELECT name\nFROM products ORDER BY price DESC\nLIMIT 50", "50"),
        ("cheapest product", "SELECT name FROM products ORDER BY price desc LIMIT 1", "price desc"),
        ("highest price", "SELECT MIN(price) FROM products", "MIN(price)"),
        ("", "SELECT c.name FROM customers c, orders o", "o"),
        ("", "SELECT 'é', SUM(id) FROM orders", "SUM(id)"),
    ];
    for (question, sql, expected) in cases {
        let found = findings_for(question, sql);
        let place = found.iter().max_by_key(|finding| finding.confidence).and_then(|finding| finding.range.clone());
        assert_eq!(place.map(|place| &sql[place]), Some(expected), "{sql}");
    }
}

#[test]
fn ignores_statements_other_than_queries() {
    for sql in
        ["DELETE FROM orders WHERE id = 1", "CREATE TABLE t (a INT)", "INSERT INTO orders VALUES (1, 2, 3, 4, 5)"]
    {
        assert!(findings_for("How many orders are there?", sql).is_empty(), "{sql}");
    }
}
