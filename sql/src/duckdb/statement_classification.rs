//! Classifies statements: determines what each of them does, from its plan, its tree or DuckDB's error.

use std::collections::BTreeSet;

use proctor_core::sql::{SqlCode, SqlColumn};
use proctor_duckdb::api_constants::StatementType;
use proctor_duckdb::{ExtractedStatements, PreparedStatement};

use super::duckdb_errors::ParsedError;
use super::{
    DuckDb, DuckDbJsonResult, UNTYPED_PARAMETER, builtin_allowlist, is_wrapper_step, keyed_update, plan_actions,
    query_json, special_statements,
};
use crate::catalog::{joined_name, split_name};
use crate::engine::{Action, BoundStatement, EngineRefusal};

/// The error if no type of a parameter fits.
const UNKNOWN_PARAMETER_TYPE: &str =
    "Binder Error: the types of its parameters are unknown; write `CAST(? AS INTEGER)` or another type";
/// Values that replace parameters, in the order in which they are tried.
const PARAMETER_VALUES: &[&str] = &[
    "NULL",
    "CAST(NULL AS INTEGER)",
    "CAST(NULL AS VARCHAR)",
    "CAST(NULL AS TIMESTAMP)",
    "CAST(NULL AS DATE)",
    "CAST(NULL AS DOUBLE)",
    "CAST(NULL AS INTEGER[])",
    "CAST(NULL AS BOOLEAN)",
    "CAST(NULL AS BLOB)",
];

impl DuckDb {
    /// Returns what a statement does.
    pub(super) fn classify(&self, sql: &str) -> Result<BoundStatement, EngineRefusal> {
        let extracted = match self.connection.extract(sql) {
            Ok(extracted) if extracted.count() == 0 => {
                return Err(EngineRefusal::new(SqlCode::EmptyText, "the text contains no statement"));
            }
            Ok(extracted) => extracted,
            Err(error) => return self.action_or_refusal(&ParsedError::from_error(&error, sql), sql),
        };
        let reader = self.plan_reader();
        // A statement that is not a query, or is invalid, has no tree. The plan reports the error.
        let tree = query_json(&self.parser, sql).ok();
        let mut actions = tree.as_ref().map(|tree| reader.tree_actions(tree)).unwrap_or_default();
        if actions.iter().any(is_external_action) {
            return Ok(BoundStatement { actions, ..BoundStatement::default() });
        }
        match self.plan_statement(sql) {
            Ok(plan) => {
                actions.extend(reader.plan_actions(&plan));
                keyed_update::drop_copied_columns(sql, &plan, &self.content.macros, &mut actions);
                actions.extend(self.body_actions(sql, &actions)?);
                tree.iter().chain([&plan]).for_each(|json| actions.extend(reader.missing_table_functions(json)));
                self.bind_prepared(sql, actions, &extracted)
            }
            Err(duckdb_error) => self.classify_without_plan(sql, &duckdb_error, &extracted, actions),
        }
    }

    /// Returns the plan of a statement. DuckDB makes no plan if it does not know the type of a parameter. Parameters
    /// are then replaced by values of the first type that gives a plan.
    fn plan_statement(&self, sql: &str) -> DuckDbJsonResult {
        let duckdb_error = match query_json(&self.planner, sql) {
            Err(said) if said.message.contains(UNTYPED_PARAMETER) => said,
            other => return other,
        };
        let Some(typed) = self.with_typed_parameters(sql) else {
            return Err(if special_statements::has_parameters(sql) {
                ParsedError::from_text(UNKNOWN_PARAMETER_TYPE, sql)
            } else {
                duckdb_error
            });
        };
        query_json(&self.planner, &typed)
    }

    /// Returns the text with its parameters replaced by values of the first type for which DuckDB makes a plan.
    pub(super) fn with_typed_parameters(&self, sql: &str) -> Option<String> {
        let texts = PARAMETER_VALUES.iter().filter_map(|value| special_statements::replace_parameters(sql, value));
        texts.into_iter().find(|typed| query_json(&self.planner, typed).is_ok())
    }

    /// Returns what the body of a new view or macro reads. DuckDB binds the body but shows it as a tree, in which
    /// columns are mere names.
    fn body_actions(&self, sql: &str, actions: &BTreeSet<Action>) -> Result<BTreeSet<Action>, EngineRefusal> {
        let creates = |kind: &str| {
            actions.iter().any(|action| matches!(action, Action::Schema { operation, .. } if operation.contains(kind)))
        };
        if creates("create view") {
            let body = special_statements::view_query(sql).map(|body| query_json(&self.planner, body));
            return match body {
                Some(Ok(plan)) => Ok(self.plan_reader().plan_actions(&plan)),
                _ => Ok([Action::Other("a view whose body cannot be examined".to_owned())].into()),
            };
        }
        if creates("macro") {
            // A body with parameters has no plan, so it counts as reading every column.
            let read = actions.iter().filter_map(|action| match action {
                Action::Read { table, .. } => Some(Action::Read { table: table.clone(), column: Some("*".to_owned()) }),
                _ => None,
            });
            return Ok(read.collect());
        }
        Ok(BTreeSet::new())
    }

    /// Prepares a statement to add its columns, the number of its parameters, and whether it is a query. Statements
    /// that access more than tables are not prepared.
    fn bind_prepared(
        &self,
        sql: &str,
        mut actions: BTreeSet<Action>,
        extracted: &ExtractedStatements,
    ) -> Result<BoundStatement, EngineRefusal> {
        if actions.iter().any(is_external_action) {
            return Ok(BoundStatement { actions, ..BoundStatement::default() });
        }
        let prepared = match extracted.prepare(0) {
            Ok(prepared) => prepared,
            Err(error) => return self.action_or_refusal(&ParsedError::from_error(&error, sql), sql),
        };
        let is_query = prepared.statement_type() == StatementType::Select;
        if prepared.statement_type() == StatementType::Call {
            actions.insert(Action::Other("call a procedure".to_owned()));
        }
        let advances = actions.contains(&Action::Call("nextval".to_owned()));
        let reads = |action: &Action| {
            matches!(action, Action::Read { .. } | Action::Metadata { .. } | Action::Call(_) | Action::Recursion)
        };
        Ok(BoundStatement {
            is_readonly: is_query && !advances && actions.iter().all(reads),
            is_query,
            columns: result_columns(&prepared),
            parameters: usize::try_from(prepared.parameter_count()).unwrap_or(usize::MAX),
            actions,
            ..BoundStatement::default()
        })
    }

    /// Classifies a statement for which DuckDB makes no plan, or that it refuses.
    fn classify_without_plan(
        &self,
        sql: &str,
        duckdb_error: &ParsedError,
        extracted: &ExtractedStatements,
        tree: BTreeSet<Action>,
    ) -> Result<BoundStatement, EngineRefusal> {
        if extracted.count() > 1 {
            return self.classify_multiple(sql, extracted);
        }
        let is_without_plan = duckdb_error.message.contains("does not support serialization")
            || duckdb_error.message.contains("does not have a function specified");
        if !is_without_plan {
            return self.action_or_refusal(duckdb_error, sql);
        }
        let only = |action: Action| Ok(BoundStatement { actions: [action].into(), ..BoundStatement::default() });
        if let Some(pragma) = special_statements::pragma_name(sql) {
            return only(Action::Setting(pragma.to_owned())).and_then(|bound: BoundStatement| {
                if builtin_allowlist::is_harmless_pragma(pragma) {
                    let table =
                        special_statements::pragma_argument(sql).filter(|_| pragma.eq_ignore_ascii_case("table_info"));
                    let metadata = Action::Metadata { source: format!("the pragma `{pragma}`"), table };
                    let is_of_engine = builtin_allowlist::is_engine_pragma(pragma);
                    self.bind_prepared(sql, Some(metadata).filter(|_| !is_of_engine).into_iter().collect(), extracted)
                } else {
                    Ok(bound)
                }
            });
        }
        let prepared = match extracted.prepare(0) {
            Ok(prepared) => prepared,
            Err(error) => return self.action_or_refusal(&ParsedError::from_error(&error, sql), sql),
        };
        match prepared.statement_type() {
            StatementType::Explain => self.classify_explain(sql, &prepared),
            StatementType::Prepare => only(Action::Other("prepare a statement".to_owned())),
            StatementType::Execute => only(Action::Other("run a prepared statement".to_owned())),
            // A part of the query cannot be serialized to JSON. Its tree still names everything except what views and
            // macros contain.
            StatementType::Select if !tree.is_empty() => self.bind_prepared(sql, tree, extracted),
            other => only(Action::Other(format!("{other:?}").to_lowercase())),
        }
    }

    fn classify_explain(&self, sql: &str, prepared: &PreparedStatement) -> Result<BoundStatement, EngineRefusal> {
        let is_statement = |text: &str| self.connection.extract(text).is_ok_and(|found| found.count() > 0);
        let Some(inner) = special_statements::explained_statement(sql, is_statement) else {
            return Ok(BoundStatement {
                actions: [Action::Other("explain".to_owned())].into(),
                ..BoundStatement::default()
            });
        };
        let shifted = |refusal: EngineRefusal| EngineRefusal {
            range: refusal.range.map(|place| place.start + inner.offset..place.end + inner.offset),
            ..refusal
        };
        let bound = self.classify(&sql[inner.offset..]).map_err(shifted)?;
        Ok(BoundStatement { is_explain: !inner.is_executed, columns: result_columns(prepared), ..bound })
    }

    /// Classifies a statement that DuckDB splits into several: PIVOT without values looks them up first, and ALTER may
    /// consist of several steps.
    fn classify_multiple(&self, sql: &str, extracted: &ExtractedStatements) -> Result<BoundStatement, EngineRefusal> {
        if let Some(with_values) = special_statements::add_pivot_values(sql) {
            let bound = self.classify(&with_values);
            // Positions after the first inserted value do not match the original text.
            return bound.map(|bound| BoundStatement { columns: Vec::new(), ..bound }).map_err(|refusal| {
                EngineRefusal {
                    range: refusal.range.filter(|place| sql.get(place.clone()) == with_values.get(place.clone())),
                    ..refusal
                }
            });
        }
        let kinds =
            (0..extracted.count()).map(|index| extracted.prepare(index).map(|prepared| prepared.statement_type()));
        let kinds: Vec<StatementType> = kinds.filter_map(Result::ok).filter(|kind| !is_wrapper_step(*kind)).collect();
        let is_alter =
            !kinds.is_empty() && kinds.iter().all(|kind| matches!(kind, StatementType::Alter | StatementType::Update));
        let action = match special_statements::added_column(sql).filter(|_| is_alter) {
            Some(added) => {
                // The default of the new column is a query.
                let default = self.classify(&format!("SELECT (\n{}\n)", added.default));
                let default = default.map_err(|refusal| EngineRefusal { range: None, ..refusal })?;
                let parts = split_name(added.table, &['"']);
                let name = match parts.as_slice() {
                    [table] => self.plan_reader().catalog_name("", "", table),
                    [schema, table] => self.plan_reader().catalog_name("", schema, table),
                    other => joined_name(other),
                };
                let alter = Action::Schema { operation: "alter table".to_owned(), name };
                let filled = default.actions.into_iter().filter(|action| !plan_actions::is_sequence_call(action));
                return Ok(BoundStatement { actions: filled.chain([alter]).collect(), ..BoundStatement::default() });
            }
            None => Action::Other("several statements in one".to_owned()),
        };
        Ok(BoundStatement { actions: [action].into(), ..BoundStatement::default() })
    }

    /// Converts an error about access outside of the tables to the attempted action, so that the policy can judge it.
    /// Returns other errors as refusals.
    fn action_or_refusal(&self, duckdb_error: &ParsedError, sql: &str) -> Result<BoundStatement, EngineRefusal> {
        let name = duckdb_error.name.clone().unwrap_or_default();
        let is_function = duckdb_error.entry_kind.contains("Function");
        let is_of_extension = duckdb_error.message.contains("is not in the catalog, but it exists in the");
        let action = match duckdb_error.kind.as_str() {
            "permission" | "io" | "http" | "missing extension" | "autoload" => {
                let what = duckdb_error
                    .message
                    .split('"')
                    .nth(1)
                    .map_or_else(|| "a file".to_owned(), |file| format!("`{file}`"));
                Action::File(what)
            }
            "invalid configuration" => Action::Setting("a setting that is locked".to_owned()),
            _ if duckdb_error.message.starts_with("Secret ") => Action::Other("create a secret".to_owned()),
            "catalog" if duckdb_error.entry_kind == "Table" && builtin_allowlist::is_file_name(&name) => {
                Action::File(format!("`{name}`"))
            }
            "catalog" if is_of_extension && duckdb_error.message.starts_with("Table Function") => {
                Action::File(format!("`{name}`, a table function of an extension"))
            }
            "catalog"
                if is_function
                    && builtin_allowlist::table_function_access(&name)
                        == builtin_allowlist::TableFunctionAccess::Files =>
            {
                Action::File(format!("`{name}`"))
            }
            "catalog" if is_function && !builtin_allowlist::is_harmless_function(&name.to_ascii_lowercase()) => {
                Action::Call(name)
            }
            "catalog" if duckdb_error.message.starts_with("unrecognized configuration parameter") => {
                Action::Setting(name)
            }
            _ => return Err(duckdb_error.to_refusal(sql)),
        };
        Ok(BoundStatement { actions: [action].into(), ..BoundStatement::default() })
    }
}

/// Reports whether an action accesses more than tables, so its statement is not even prepared.
fn is_external_action(action: &Action) -> bool {
    matches!(
        action,
        Action::File(_) | Action::Attach(_) | Action::Setting(_) | Action::Transaction(_) | Action::Other(_)
    )
}

fn result_columns(prepared: &PreparedStatement) -> Vec<SqlColumn> {
    let column = |(name, kind): (String, Option<&str>)| SqlColumn { name, kind: kind.map(str::to_owned) };
    prepared.columns().into_iter().map(column).collect()
}
