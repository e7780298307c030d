//! The description of a database for people and models: tables, columns, keys, comments and sample values.

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Dialect, SqlAllow, SqlResourceLimits};
use crate::sql::text_list::{OneOrMany, one_or_many};

/// Maximum number of sample values of a column.
pub const MAX_SAMPLES: u32 = 10;

/// A request to describe the schema of a database.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SqlSchemaRequest")]
pub struct SchemaRequest {
    /// The SQL dialect.
    pub dialect: Dialect,
    /// Statements of the same dialect that create the schema, in order, as one text or as a list of texts.
    #[serde(default, deserialize_with = "one_or_many")]
    #[schemars(with = "OneOrMany")]
    pub schema: Vec<String>,
    /// A database file to describe, instead of or in addition to `schema`. It is never changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// The tables and columns to describe.
    #[serde(default)]
    pub allow: SqlAllow,
    /// The number of sample values of each column, at most [`MAX_SAMPLES`].
    #[serde(default, deserialize_with = "sample_count")]
    #[schemars(range(max = 10))]
    pub samples: u32,
    /// The resource limits.
    #[serde(default)]
    pub limits: SqlResourceLimits,
}

fn sample_count<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let count = u32::deserialize(deserializer)?;
    if count > MAX_SAMPLES {
        return Err(D::Error::custom(format!("`samples` is {count}, but must be at most {MAX_SAMPLES}")));
    }
    Ok(count)
}

/// The schema of a database.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DescribedSchema {
    /// The tables and views, in the order of the engine.
    pub tables: Vec<DescribedTable>,
}

/// A table or a view.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DescribedTable {
    /// The name.
    pub name: String,
    /// True if this is a view.
    #[serde(default)]
    pub is_view: bool,
    /// The comment of the table, if the engine or the statement that created the table has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// The columns, in order.
    pub columns: Vec<DescribedColumn>,
    /// The foreign keys.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub foreign_keys: Vec<DescribedForeignKey>,
}

/// A column of a table or a view.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DescribedColumn {
    /// The name.
    pub name: String,
    /// The declared type; empty if there is none.
    #[serde(rename = "type")]
    pub declared_type: String,
    /// True if the column is NOT NULL.
    #[serde(default)]
    pub is_not_null: bool,
    /// True if the column is part of the primary key.
    #[serde(default)]
    pub is_primary_key: bool,
    /// The comment of the column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
    /// Distinct values of the column, if the request asks for them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Value>,
    /// True if the column seems to contain personal data. Its sample values are masked.
    #[serde(default)]
    pub is_masked: bool,
}

/// A foreign key of one column.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DescribedForeignKey {
    /// The referencing column.
    pub column: String,
    /// The referenced table.
    pub referenced_table: String,
    /// The referenced column; `None` if it is the primary key of the table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub referenced_column: Option<String>,
}

/// The answer to a request for a schema: the schema, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlSchemaAnswer")]
pub struct SchemaAnswer {
    /// The version of this document's format.
    pub version: u32,
    /// The SQL dialect.
    pub dialect: Dialect,
    /// The engine and its version.
    pub engine: String,
    /// The schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<DescribedSchema>,
    /// The reason why there is no schema.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}
