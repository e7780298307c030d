//! Describes the schema of a database for people and models.

use std::time::Instant;

use proctor_core::sql::{DescribedColumn, DescribedForeignKey, DescribedSchema, DescribedTable, SchemaRequest};

use crate::catalog::CatalogTable;
use crate::engine::{EngineRefusal, SqlEngine};
use crate::hidden_names;

/// Describes the tables and columns that the lists of a request allow.
///
/// # Errors
/// The engine cannot read the schema.
pub(crate) fn describe(
    request: &SchemaRequest,
    engine: &mut dyn SqlEngine,
    _deadline: Instant,
) -> Result<DescribedSchema, EngineRefusal> {
    let visible = hidden_names::visible_catalog(engine.catalog(), &request.allow);
    Ok(DescribedSchema { tables: visible.tables.iter().map(described_table).collect() })
}

fn described_table(table: &CatalogTable) -> DescribedTable {
    let columns = table.columns.iter().map(|column| DescribedColumn {
        name: column.name.clone(),
        declared_type: column.declared_type.clone(),
        is_not_null: column.is_not_null,
        is_primary_key: column.primary_key_position > 0,
        ..DescribedColumn::default()
    });
    let keys = table.foreign_keys.iter().map(|key| DescribedForeignKey {
        column: key.column.clone(),
        referenced_table: key.referenced_table.clone(),
        referenced_column: key.referenced_column.clone(),
    });
    DescribedTable {
        name: table.name.clone(),
        is_view: table.is_view,
        comment: None,
        columns: columns.collect(),
        foreign_keys: keys.collect(),
    }
}
