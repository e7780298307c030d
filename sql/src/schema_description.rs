//! Describes the schema of a database for people and models: tables, columns, keys, comments and sample values.
//!
//! Nothing that is off the lists of a request appears, neither as a name nor in a comment or a value. A query for
//! sample values is judged like a statement of a caller before it is run.

use std::time::Instant;

use proctor_core::sql::{
    DescribedColumn, DescribedForeignKey, DescribedSchema, DescribedTable, MAX_SAMPLES, SchemaRequest, SqlCode,
    SqlPolicy, SqlRequest, SqlResourceLimits, StageName,
};
use serde_json::Value;

use crate::allow_lists::NameLists;
use crate::catalog::{self, CatalogTable, SchemaComment};
use crate::engine::{EngineRefusal, SqlEngine};
use crate::hidden_names::{self, HiddenNames};
use crate::{personal_data, statement_run};

/// The maximum number of described tables.
const MAX_TABLES: usize = 5_000;
/// The maximum length of a comment, in characters.
const MAX_COMMENT_CHARS: usize = 1_000;
/// The maximum length of a sample value, in characters.
const MAX_SAMPLE_CHARS: usize = 64;
/// The number of rows in which sample values are sought.
const SAMPLED_ROWS: u64 = 200;
/// The sign after a text that was cut.
const ELLIPSIS: char = '…';

/// Describes the tables and columns that the lists of a request allow.
///
/// # Errors
/// The engine cannot read the schema, or the schema is too large.
pub(crate) fn describe(
    request: &SchemaRequest,
    engine: &mut dyn SqlEngine,
    deadline: Instant,
) -> Result<DescribedSchema, EngineRefusal> {
    let lists = NameLists::new(&request.allow, request.dialect);
    let visible = hidden_names::visible_catalog(engine.catalog(), &lists);
    if visible.tables.len() > MAX_TABLES {
        let message = format!("the schema has {} tables; list at most {MAX_TABLES} of them", visible.tables.len());
        return Err(EngineRefusal::new(SqlCode::EngineFailed, message));
    }
    let comments = engine.comments(deadline)?;
    let hidden = HiddenNames::new(engine.catalog(), &lists, "", request.dialect);
    let masked = |text: &str| hidden.as_ref().map_or_else(|| text.to_owned(), |hidden| hidden.mask_text(text));
    let mut tables = Vec::new();
    for table in &visible.tables {
        let mut described = described_table(table, &comments, &masked);
        if request.samples > 0 {
            add_samples(&mut described, request, engine, deadline);
        }
        tables.push(described);
    }
    Ok(DescribedSchema { tables })
}

fn described_table(
    table: &CatalogTable,
    comments: &[SchemaComment],
    masked: &dyn Fn(&str) -> String,
) -> DescribedTable {
    let comment = |column: Option<&str>| {
        let is_wanted = |comment: &&SchemaComment| comment.table == table.name && comment.column.as_deref() == column;
        comments.iter().find(is_wanted).map(|comment| shorten(&masked(&comment.text), MAX_COMMENT_CHARS))
    };
    let columns = table.columns.iter().map(|column| DescribedColumn {
        name: column.name.clone(),
        // A type may have the name of a table.
        declared_type: masked(&column.declared_type),
        is_not_null: column.is_not_null,
        is_primary_key: column.primary_key_position > 0,
        comment: comment(Some(&column.name)),
        samples: Vec::new(),
        is_masked: false,
    });
    let keys = table.foreign_keys.iter().map(|key| DescribedForeignKey {
        column: key.column.clone(),
        referenced_table: key.referenced_table.clone(),
        referenced_column: key.referenced_column.clone(),
    });
    DescribedTable {
        name: table.name.clone(),
        is_view: table.is_view,
        comment: comment(None),
        columns: columns.collect(),
        foreign_keys: keys.collect(),
    }
}

/// Adds sample values to the columns of a table. Columns that a judged query cannot read get none.
fn add_samples(table: &mut DescribedTable, request: &SchemaRequest, engine: &mut dyn SqlEngine, deadline: Instant) {
    let all: Vec<usize> = (0..table.columns.len()).collect();
    match sampled_rows(table, &all, request, engine, deadline) {
        Some(rows) => set_samples(table, &all, &rows, request),
        // One column may depend on names that are off the lists.
        None => {
            for column in all {
                if let Some(rows) = sampled_rows(table, &[column], request, engine, deadline) {
                    set_samples(table, &[column], &rows, request);
                }
            }
        }
    }
}

/// Reads rows of some columns; `None` if the query is rejected or fails.
fn sampled_rows(
    table: &DescribedTable,
    columns: &[usize],
    request: &SchemaRequest,
    engine: &mut dyn SqlEngine,
    deadline: Instant,
) -> Option<Vec<Vec<Value>>> {
    let left = deadline.saturating_duration_since(Instant::now()).as_millis();
    let time_ms = u64::try_from(left).ok().filter(|left| *left > 0)?;
    let names: Vec<String> = columns.iter().map(|at| engine.quote_name(&table.columns[*at].name)).collect();
    if names.is_empty() {
        return None;
    }
    let from = engine.quote_name(&table.name);
    let sql = format!("SELECT {} FROM {from} LIMIT {SAMPLED_ROWS}", names.join(", "));
    let query = SqlRequest {
        policy: SqlPolicy::Read,
        allow: request.allow.clone(),
        limits: SqlResourceLimits { time_ms, rows: SAMPLED_ROWS, ..request.limits },
        stages: Some(vec![StageName::Parse, StageName::Bind, StageName::Safety]),
        ..SqlRequest::new(request.dialect, sql)
    };
    let (answer, _) = statement_run::judge_and_run(Instant::now(), &query, engine);
    answer.result.map(|result| result.rows)
}

/// Sets the samples of some columns from rows of these columns.
fn set_samples(table: &mut DescribedTable, columns: &[usize], rows: &[Vec<Value>], request: &SchemaRequest) {
    let wanted = usize::try_from(request.samples.min(MAX_SAMPLES)).unwrap_or(0);
    for (place, at) in columns.iter().enumerate() {
        let name = catalog::bare_name(&table.name, request.dialect);
        let column = &mut table.columns[*at];
        let values: Vec<&Value> =
            rows.iter().filter_map(|row| row.get(place)).filter(|value| is_shown(value)).collect();
        let by_value = || {
            values
                .iter()
                .any(|value| personal_data::is_personal_value(value))
                .then_some(personal_data::Sensitivity::Personal)
        };
        let sensitivity = personal_data::of_column(&name, &column.name).or_else(by_value);
        column.is_masked = sensitivity.is_some();
        for value in values {
            let shown = match sensitivity {
                Some(sensitivity) => personal_data::mask(value, sensitivity),
                None => value.clone(),
            };
            let shown = shorten_value(shown);
            if !column.samples.contains(&shown) {
                column.samples.push(shown);
            }
            if column.samples.len() == wanted {
                break;
            }
        }
    }
}

/// Reports whether a value can be a sample. Bytes and large nested values cannot.
fn is_shown(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Object(fields) if fields.contains_key("base64") => false,
        Value::Array(_) | Value::Object(_) => value.to_string().chars().count() <= MAX_SAMPLE_CHARS,
        _ => true,
    }
}

fn shorten_value(value: Value) -> Value {
    match value {
        Value::String(text) => Value::String(shorten(&text, MAX_SAMPLE_CHARS)),
        other => other,
    }
}

/// Cuts a text to a number of characters.
fn shorten(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => text[..end].chars().chain([ELLIPSIS]).collect(),
        None => text.to_owned(),
    }
}
