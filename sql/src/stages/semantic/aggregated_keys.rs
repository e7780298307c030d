//! Finds keys that are added up or averaged: they identify rows, so their sum has no meaning.

use proctor_core::sql::SqlCode;

use super::query_shape::{Aggregate, AggregateKind, ColumnReference, QueryShape};
use super::semantic_finding::{SemanticFinding, SemanticInput};
use super::word_forms::name_words;
use crate::catalog::{Catalog, CatalogTable};

pub(super) fn check(input: &SemanticInput<'_>) -> Vec<SemanticFinding> {
    input.shape.aggregates().filter_map(|aggregate| key_finding(input, aggregate)).collect()
}

fn key_finding(input: &SemanticInput<'_>, aggregate: &Aggregate) -> Option<SemanticFinding> {
    if !matches!(aggregate.kind, AggregateKind::Sum | AggregateKind::Average) {
        return None;
    }
    let name = aggregate.column.as_ref()?;
    let is_named_so = name_words(&name.column).last().is_some_and(|last| {
        matches!(last.as_str(), "id" | "key" | "uuid" | "guid" | "pk")
            || (last.ends_with("id") && last.len() > 4 && last != "paid" && last != "valid")
    });
    let (kind, confidence) = match key_role(input.catalog, input.shape, name) {
        Some(KeyRole::Primary) if is_named_so => ("the primary key", 97),
        Some(KeyRole::Primary) => ("the primary key", 75),
        Some(KeyRole::Foreign) if is_named_so => ("a key of another table", 96),
        Some(KeyRole::Foreign) => ("a key of another table", 75),
        None if is_named_so => ("a key by its name", 75),
        None => return None,
    };
    let figure = aggregate.kind.as_sql();
    let message = format!("{figure} of `{}`, which is {kind}: the result has no meaning", name.column);
    let found = SemanticFinding::new(SqlCode::KeyAggregated, confidence, message)
        .at(&aggregate.range)
        .about(name.column.clone());
    Some(found.advice("Count it, or use a column that contains an amount."))
}

enum KeyRole {
    Primary,
    Foreign,
}

/// Returns the role that a column has in all tables of the query that contain it.
fn key_role(catalog: &Catalog, shape: &QueryShape, name: &ColumnReference) -> Option<KeyRole> {
    let tables: Vec<&CatalogTable> =
        catalog.tables_with(&name.column).filter(|table| shape.names.contains(&table.name.to_lowercase())).collect();
    let is_primary = |table: &&CatalogTable| {
        let keys = table.columns.iter().filter(|column| column.primary_key_position > 0).count();
        keys == 1 && table.column(&name.column).is_some_and(|column| column.primary_key_position > 0)
    };
    let is_foreign =
        |table: &&CatalogTable| table.foreign_keys.iter().any(|key| key.column.eq_ignore_ascii_case(&name.column));
    if tables.is_empty() {
        None
    } else if tables.iter().all(is_primary) {
        Some(KeyRole::Primary)
    } else if tables.iter().all(|table| is_primary(table) || is_foreign(table)) {
        Some(KeyRole::Foreign)
    } else {
        None
    }
}
