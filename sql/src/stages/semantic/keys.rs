//! Finds keys that are added up or averaged: they identify rows, so their sum has no meaning.

use proctor_core::sql::SqlCode;

use super::shape::{Aggregate, Figure, Name, Shape};
use super::words::parts;
use super::{Finding, Sheet};
use crate::catalog::{Catalog, Table};

pub(super) fn check(sheet: &Sheet<'_>) -> Vec<Finding> {
    sheet.shape.aggregates().filter_map(|aggregate| of(sheet, aggregate)).collect()
}

fn of(sheet: &Sheet<'_>, aggregate: &Aggregate) -> Option<Finding> {
    if !matches!(aggregate.figure, Figure::Sum | Figure::Average) {
        return None;
    }
    let name = aggregate.column.as_ref()?;
    let is_named_so = parts(&name.column).last().is_some_and(|last| {
        matches!(last.as_str(), "id" | "key" | "uuid" | "guid" | "pk")
            || (last.ends_with("id") && last.len() > 4 && last != "paid" && last != "valid")
    });
    let (kind, confidence) = match role(sheet.catalog, sheet.shape, name) {
        Some(Role::Primary) if is_named_so => ("the primary key", 97),
        Some(Role::Primary) => ("the primary key", 75),
        Some(Role::Foreign) if is_named_so => ("a key of another table", 96),
        Some(Role::Foreign) => ("a key of another table", 75),
        None if is_named_so => ("a key by its name", 75),
        None => return None,
    };
    let figure = aggregate.figure.as_sql();
    let message = format!("{figure} of `{}`, which is {kind}: the figure has no meaning", name.column);
    let found =
        Finding::new(SqlCode::KeyAggregated, confidence, message).at(&aggregate.place).about(name.column.clone());
    Some(found.advice("Count it, or use a column that contains an amount."))
}

enum Role {
    Primary,
    Foreign,
}

/// Returns the role that a column has in all tables of the query that contain it.
fn role(catalog: &Catalog, shape: &Shape, name: &Name) -> Option<Role> {
    let tables: Vec<&Table> =
        catalog.tables_with(&name.column).filter(|table| shape.names.contains(&table.name.to_lowercase())).collect();
    let is_primary = |table: &&Table| {
        let keys = table.columns.iter().filter(|column| column.key > 0).count();
        keys == 1 && table.column(&name.column).is_some_and(|column| column.key > 0)
    };
    let is_foreign =
        |table: &&Table| table.foreign_keys.iter().any(|key| key.column.eq_ignore_ascii_case(&name.column));
    if tables.is_empty() {
        None
    } else if tables.iter().all(is_primary) {
        Some(Role::Primary)
    } else if tables.iter().all(|table| is_primary(table) || is_foreign(table)) {
        Some(Role::Foreign)
    } else {
        None
    }
}
