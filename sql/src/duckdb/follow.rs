//! Reads the content of the database again after statements have changed it, limited to the parts that can have
//! changed.

use serde_json::Value;

use super::catalog::{self, Held, Part};
use super::says::Said;
use super::{DuckDb, asked, plan, texts};
use crate::engine::{Action, Bound, Refusal};

impl DuckDb {
    /// Reads a part of the content again.
    pub(super) fn refresh(&mut self, part: Part<'_>) -> Result<(), Refusal> {
        let (planner, connection) = (&self.planner, &self.connection);
        let generated = |table: &str| {
            let plan = asked(planner, &format!("DELETE FROM {table}"));
            plan.map(|plan| catalog::generated(&plan)).unwrap_or_default()
        };
        let mut ask = |sql: &str| texts(connection, sql);
        let read = self.held.read(part, &mut ask, &generated);
        let read = read.and_then(|()| if let Part::All | Part::Functions = part { self.read_macros() } else { Ok(()) });
        read.map_err(|error| Said::of_text(&error, "").refusal(""))
    }

    /// Reads the actions of all macros, including those of the macros that they call.
    fn read_macros(&mut self) -> Result<(), String> {
        self.held.macros.clear();
        let mut trees: Vec<(String, Result<Value, Said>)> = Vec::new();
        for row in texts(&self.connection, catalog::MACROS)? {
            let [Some(name), Some(makes_table), Some(body)] = row.as_slice() else { continue };
            let query = if makes_table == "true" { body.clone() } else { format!("SELECT (\n{body}\n)") };
            trees.push((name.clone(), asked(&self.parser, &query)));
            self.held.macros.entry(name.clone()).or_default();
        }
        // A macro may call another one, so this repeats until nothing new is found.
        loop {
            let mut found = self.held.macros.clone();
            for (name, tree) in &trees {
                let does = match tree {
                    Ok(tree) => self.reader().of_tree(tree),
                    Err(_) => [Action::Other(format!("the macro `{name}`, which cannot be examined"))].into(),
                };
                found.entry(name.clone()).or_default().extend(does);
            }
            if found == self.held.macros {
                return Ok(());
            }
            self.held.macros = found;
        }
    }

    pub(super) fn reader(&self) -> plan::Reader<'_> {
        let Held { catalog, functions, table_functions, macros, .. } = &self.held;
        plan::Reader { catalog, home: &self.home, functions, table_functions, macros }
    }

    /// Updates the catalog after a statement that changed the schema.
    pub(super) fn follow(&mut self, bound: &Bound) -> Result<(), Refusal> {
        for (what, name) in bound.schema_changes() {
            let is_plain = !name.contains('.');
            let part = match what {
                "create index" | "create sequence" | "create type" | "create schema" => continue,
                "create macro" | "create table macro" | "drop macro" | "drop macro table" => Part::Functions,
                "create table" | "create view" if is_plain && self.held.catalog.table(name).is_none() => {
                    Part::New(name)
                }
                "create table" | "create view" | "drop table" | "drop view" => Part::Tables,
                _ if what.starts_with("alter") => Part::Tables,
                _ => Part::All,
            };
            self.refresh(part)?;
        }
        Ok(())
    }
}
