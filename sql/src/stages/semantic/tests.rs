//! Tests questions and statements on the schema of a small shop: which are errors, which are warnings, and which pass.

use std::ops::Range;

use sqlparser::dialect::SQLiteDialect;
use sqlparser::parser::Parser;

use super::question::Question;
use super::{CERTAIN, Finding, findings};
use crate::catalog::{Catalog, Column, ForeignKey, Table};

/// The confidence from which a warning counts.
const WARNED: u8 = 70;

fn table(name: &str, columns: &[(&str, &str)]) -> Table {
    let columns = columns.iter().enumerate().map(|(at, (name, kind))| Column {
        name: (*name).to_owned(),
        kind: (*kind).to_owned(),
        key: u32::from(at == 0),
        ..Column::default()
    });
    Table { name: name.to_owned(), columns: columns.collect(), ..Table::default() }
}

fn shop() -> Catalog {
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
    orders.foreign_keys.push(ForeignKey { column: "customer_id".to_owned(), table: "customers".to_owned(), to: None });
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
    }
}

fn found(question: &str, sql: &str) -> Vec<Finding> {
    let tree = Parser::parse_sql(&SQLiteDialect {}, sql).unwrap().remove(0);
    let question = (!question.is_empty()).then(|| Question::of(question));
    findings(&tree, sql, question.as_ref(), &shop())
}

fn surest(question: &str, sql: &str) -> u8 {
    found(question, sql).iter().map(|finding| finding.confidence).max().unwrap_or(0)
}

/// Splits lines of the form `question | statement`.
fn each(lines: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = lines.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.map(|line| line.split_once("|").map(|(question, sql)| (question.trim(), sql.trim())).unwrap())
}

/// Returns the lines whose highest confidence is out of range.
fn others(lines: &'static str, sure: Range<u8>) -> Vec<String> {
    let wrong = each(lines).filter(|(question, sql)| !sure.contains(&surest(question, sql)));
    wrong.map(|(question, sql)| format!("{question}: {sql}: {:?}", found(question, sql))).collect()
}

#[test]
fn what_cannot_be_meant_rejects() {
    assert_eq!(others(include_str!("tests/rejected.txt"), CERTAIN..100), [""; 0]);
}

#[test]
fn what_answers_the_question_passes() {
    assert_eq!(others(include_str!("tests/passed.txt"), 0..WARNED), [""; 0]);
}

#[test]
fn what_is_likely_wrong_is_warned_about() {
    assert_eq!(others(include_str!("tests/warned.txt"), WARNED..CERTAIN), [""; 0]);
}

#[test]
fn a_finding_stands_where_its_cause_is() {
    let cases = [
        ("top 5 products by price", "SELECT name\nFROM products ORDER BY price DESC\nLIMIT 50", "50"),
        ("cheapest product", "SELECT name FROM products ORDER BY price desc LIMIT 1", "price desc"),
        ("highest price", "SELECT MIN(price) FROM products", "MIN(price)"),
        ("", "SELECT c.name FROM customers c, orders o", "o"),
        ("", "SELECT 'é', SUM(id) FROM orders", "SUM(id)"),
    ];
    for (question, sql, expected) in cases {
        let found = found(question, sql);
        let place = found.iter().max_by_key(|finding| finding.confidence).and_then(|finding| finding.place.clone());
        assert_eq!(place.map(|place| &sql[place]), Some(expected), "{sql}");
    }
}

#[test]
fn a_statement_that_is_no_query_says_nothing() {
    for sql in
        ["DELETE FROM orders WHERE id = 1", "CREATE TABLE t (a INT)", "INSERT INTO orders VALUES (1, 2, 3, 4, 5)"]
    {
        assert!(found("How many orders are there?", sql).is_empty(), "{sql}");
    }
}
