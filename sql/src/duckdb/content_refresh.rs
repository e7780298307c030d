//! Reads the content of the database again after statements have changed it, limited to the parts that can have
//! changed.

use serde_json::Value;

use super::catalog_reader::{self, ContentPart, DatabaseContent};
use super::duckdb_errors::ParsedError;
use super::internal_queries::query_texts;
use super::query_error::QueryError;
use super::{DuckDb, plan_actions, query_json};
use crate::engine::{Action, BoundStatement, EngineRefusal};

impl DuckDb {
    /// Reads a part of the content again.
    pub(super) fn refresh(&mut self, part: ContentPart<'_>) -> Result<(), EngineRefusal> {
        let (planner, connection) = (&self.planner, &self.connection);
        let generated = |table: &str| {
            let plan = query_json(planner, &format!("DELETE FROM {table}"));
            plan.map(|plan| catalog_reader::generated_columns(&plan)).unwrap_or_default()
        };
        let mut run_query = |sql: &str| query_texts(connection, sql);
        let read = self.content.read_part(part, &mut run_query, &generated);
        let read = read.and_then(|()| {
            if let ContentPart::All | ContentPart::Functions = part { self.read_macros() } else { Ok(()) }
        });
        read.map_err(|error| ParsedError::from_error(&error, "").to_refusal(""))
    }

    /// Reads the actions of all macros, including those of the macros that they call.
    fn read_macros(&mut self) -> Result<(), QueryError> {
        self.content.macros.clear();
        let mut trees: Vec<(String, Result<Value, ParsedError>)> = Vec::new();
        for row in query_texts(&self.connection, catalog_reader::MACROS_QUERY)? {
            let [Some(name), Some(makes_table), Some(body)] = row.as_slice() else { continue };
            let query = if makes_table == "true" { body.clone() } else { format!("SELECT (\n{body}\n)") };
            trees.push((name.clone(), query_json(&self.parser, &query)));
            self.content.macros.entry(name.clone()).or_default();
        }
        // A macro may call another one, so this repeats until nothing new is found.
        loop {
            let mut found = self.content.macros.clone();
            for (name, tree) in &trees {
                let actions = match tree {
                    Ok(tree) => self.plan_reader().tree_actions(tree),
                    Err(_) => [Action::Other(format!("the macro `{name}`, which cannot be examined"))].into(),
                };
                found.entry(name.clone()).or_default().extend(actions);
            }
            if found == self.content.macros {
                return Ok(());
            }
            self.content.macros = found;
        }
    }

    pub(super) fn plan_reader(&self) -> plan_actions::PlanReader<'_> {
        let DatabaseContent { catalog, functions, table_functions, macros, .. } = &self.content;
        plan_actions::PlanReader { catalog, database_name: &self.database_name, functions, table_functions, macros }
    }

    /// Updates the catalog after a statement that changed the schema.
    pub(super) fn update_content(&mut self, bound: &BoundStatement) -> Result<(), EngineRefusal> {
        for (what, name) in bound.schema_changes() {
            let is_plain = !name.contains(['.', '"']);
            let part = match what {
                "create index" | "create sequence" | "create type" | "create schema" => continue,
                "create macro" | "create table macro" | "drop macro" | "drop macro table" => ContentPart::Functions,
                "create table" | "create view" if is_plain && self.content.catalog.table(name).is_none() => {
                    ContentPart::NewTable(name)
                }
                "create table" | "create view" | "drop table" | "drop view" => ContentPart::Tables,
                _ if what.starts_with("alter") => ContentPart::Tables,
                _ => ContentPart::All,
            };
            self.refresh(part)?;
        }
        Ok(())
    }
}
