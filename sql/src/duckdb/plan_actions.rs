//! Derives the actions of a statement from two sources: its bound plan (`json_serialize_plan`), in which views, macros
//! and `query(…)` are expanded, and its tree (`json_serialize_sql`), in which they are names. An unknown operator
//! becomes an [`Action::Other`].

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::builtin_allowlist::{self, TableFunctionAccess};
use crate::catalog::{Catalog, joined_name};
use crate::engine::Action;

/// Operators that only compute rows from rows.
const ROW_OPERATORS: &[&str] = &[
    "AGGREGATE_AND_GROUP_BY",
    "ANY_JOIN",
    "ASOF_JOIN",
    "CHUNK_GET",
    "COLUMN_DATA_GET",
    "COMPARISON_JOIN",
    "CROSS_PRODUCT",
    "CTE",
    "CTE_REF",
    "DELIM_GET",
    "DELIM_JOIN",
    "DEPENDENT_JOIN",
    "DISTINCT",
    "DUMMY_SCAN",
    "EMPTY_RESULT",
    "EXCEPT",
    "EXPRESSION_GET",
    "FILTER",
    "INTERSECT",
    "JOIN",
    "LIMIT",
    "MATERIALIZED_CTE",
    "ORDER_BY",
    "PIVOT",
    "POSITIONAL_JOIN",
    "PROJECTION",
    "SAMPLE",
    "TOP_N",
    "UNION",
    "UNNEST",
    "WINDOW",
];

/// A reader of plans and trees.
pub(super) struct PlanReader<'a> {
    /// The tables and views of the database.
    pub(super) catalog: &'a Catalog,
    /// The name of the database. Names of its tables are reported without it.
    pub(super) database_name: &'a str,
    /// The functions that return a value.
    pub(super) functions: &'a BTreeSet<String>,
    /// The table functions that DuckDB provides.
    pub(super) table_functions: &'a BTreeSet<String>,
    /// The actions of the macros of the database.
    pub(super) macros: &'a MacroActions,
}

/// The actions of macros, by name. A plan shows a macro in its expanded form, but not if DuckDB has computed its value.
pub(super) type MacroActions = BTreeMap<String, BTreeSet<Action>>;

type PlanNode = Map<String, Value>;

impl PlanReader<'_> {
    /// Returns the actions of a plan.
    pub(super) fn plan_actions(&self, json: &Value) -> BTreeSet<Action> {
        let mut actions = BTreeSet::new();
        self.walk(json, &mut |part, actions| self.collect_node_actions(part, actions), &mut actions);
        // If a write uses a sequence for a default or a new row, this belongs to the write.
        let writes = |action: &Action| {
            matches!(action, Action::Insert(_) | Action::Update { .. } | Action::Delete(_) | Action::Schema { .. })
        };
        if actions.iter().any(writes) {
            actions.retain(|action| !is_sequence_call(action));
        }
        actions
    }

    /// Returns the actions that the tree of a query shows and its plan does not: reads of views and files, and calls of
    /// functions that are missing in the plan because DuckDB has evaluated or removed them.
    pub(super) fn tree_actions(&self, json: &Value) -> BTreeSet<Action> {
        let mut cte_names = BTreeSet::new();
        collect_cte_names(json, &mut cte_names);
        let mut actions = BTreeSet::new();
        let mut visit = |part: &PlanNode, actions: &mut BTreeSet<Action>| match text_field(part, "type") {
            "BASE_TABLE" => actions
                .extend(self.base_table_action(part).filter(|_| !cte_names.contains(text_field(part, "table_name")))),
            "TABLE_FUNCTION" => {
                actions.extend(self.table_function_actions(optional_text_field(part.get("function"), "function_name")));
            }
            "SHOW_REF" => actions.extend(self.shown_metadata(part)),
            _ if text_field(part, "class") == "FUNCTION" => {
                actions.extend(self.external_call_actions(text_field(part, "function_name")));
            }
            _ => {}
        };
        self.walk(json, &mut visit, &mut actions);
        actions
    }

    /// Returns the metadata that `DESCRIBE`, `SHOW` and `SUMMARIZE` show: of one table, of a query, or of the whole
    /// schema.
    fn shown_metadata(&self, part: &PlanNode) -> BTreeSet<Action> {
        let source = match text_field(part, "show_type") {
            "SUMMARY" => "SUMMARIZE",
            "DESCRIBE" => "DESCRIBE",
            _ => "SHOW",
        };
        let metadata = |table| Action::Metadata { source: format!("`{source}`"), table };
        let mut named = BTreeSet::new();
        let mut visit = |part: &PlanNode, into: &mut BTreeSet<Action>| {
            if text_field(part, "type") == "BASE_TABLE" {
                into.insert(metadata(Some(self.base_table_name(part))));
            }
        };
        if let Some(query) = part.get("query") {
            self.walk(query, &mut visit, &mut named);
        }
        let describes_a_query = part.get("query").is_some_and(|query| !query.is_null());
        if named.is_empty() && !describes_a_query { [metadata(None)].into() } else { named }
    }

    /// Returns the calls of table functions in a tree or a plan that do not exist. DuckDB ignores them in parts of a
    /// query that it removes; an engine with an extension may not.
    pub(super) fn missing_table_functions(&self, json: &Value) -> BTreeSet<Action> {
        let mut actions = BTreeSet::new();
        let mut visit = |part: &PlanNode, actions: &mut BTreeSet<Action>| {
            let name = optional_text_field(part.get("function"), "function_name").to_ascii_lowercase();
            let is_unknown = builtin_allowlist::table_function_access(&name) == TableFunctionAccess::Unknown
                && !self.table_functions.contains(&name)
                && !self.macros.contains_key(&name);
            if text_field(part, "type") == "TABLE_FUNCTION" && is_unknown {
                actions.insert(Action::Other(format!("the table function `{name}`, which does not exist")));
            }
        };
        self.walk(json, &mut visit, &mut actions);
        actions
    }

    /// Returns the call of a function that accesses more than its arguments or does not exist. For a macro, returns its
    /// actions.
    fn external_call_actions(&self, name: &str) -> Vec<Action> {
        let name = name.to_ascii_lowercase();
        if let Some(body) = self.macros.get(&name) {
            return body.iter().cloned().collect();
        }
        let is_known = builtin_allowlist::is_harmless_function(&name) && self.functions.contains(&name);
        let is_harmless = is_known
            || matches!(
                builtin_allowlist::table_function_access(&name),
                TableFunctionAccess::ArgumentsOnly | TableFunctionAccess::Catalog
            );
        call_action(&name).filter(|_| !is_harmless).into_iter().collect()
    }

    fn walk(&self, json: &Value, visit: &mut dyn FnMut(&PlanNode, &mut BTreeSet<Action>), into: &mut BTreeSet<Action>) {
        match json {
            Value::Array(parts) => parts.iter().for_each(|part| self.walk(part, visit, into)),
            Value::Object(part) => {
                visit(part, into);
                // `table_info` describes the target table of the write as it exists; it is not an action.
                let rest = part.iter().filter(|(name, _)| name.as_str() != "table_info");
                rest.for_each(|(_, inner)| self.walk(inner, visit, into));
            }
            _ => {}
        }
    }

    fn collect_node_actions(&self, part: &PlanNode, actions: &mut BTreeSet<Action>) {
        let kind = text_field(part, "type");
        if let Some(operator) = kind.strip_prefix("LOGICAL_") {
            self.collect_operator_actions(operator, part, actions);
        } else if part.contains_key("expression_class") {
            actions.extend(call_action(text_field(part, "name")));
        } else if text_field(part, "class") == "FUNCTION" {
            let name = text_field(part, "function_name");
            actions.extend(call_action(name).into_iter().chain(self.external_call_actions(name)));
        } else if kind == "TABLE_FUNCTION" {
            // A table function in the body of a new view or macro.
            actions.extend(self.table_function_actions(optional_text_field(part.get("function"), "function_name")));
        } else if kind == "BASE_TABLE" {
            actions.extend(self.base_table_action(part));
        }
    }

    fn collect_operator_actions(&self, operator: &str, part: &PlanNode, actions: &mut BTreeSet<Action>) {
        let table_info = part.get("table_info");
        let target = || self.info_table_name(table_info, "table");
        match operator {
            "GET" => actions.extend(self.scan_actions(part)),
            "INSERT" => {
                actions.insert(Action::Insert(target()));
                let is_update = !matches!(text_field(part, "action_type"), "" | "THROW" | "NOTHING");
                actions.extend(is_update.then(|| Action::Update { table: target(), column: "*".to_owned() }));
            }
            "UPDATE" => actions.extend(update_actions(part, table_info, &target())),
            "MERGE_INTO" => actions.extend(merge_actions(part, &target())),
            "DELETE" => actions.extend([Action::Delete(target())]),
            "RECURSIVE_CTE" => actions.extend([Action::Recursion]),
            _ if ROW_OPERATORS.contains(&operator) => {}
            _ => actions.extend([self.command_action(operator, part)]),
        }
    }

    /// Returns the action of an operator that does not produce rows.
    fn command_action(&self, operator: &str, part: &PlanNode) -> Action {
        let info = part.get("info");
        let words = || operator.to_ascii_lowercase().replace('_', " ");
        match operator {
            "SET" | "RESET" => Action::Setting(text_field(part, "name").to_owned()),
            "TRANSACTION" => {
                Action::Transaction(optional_text_field(info, "type").replace("_TRANSACTION", "").to_ascii_lowercase())
            }
            "ATTACH" => Action::Attach(format!("attach `{}`", optional_text_field(info, "path"))),
            "DETACH" => Action::Attach(format!("detach `{}`", optional_text_field(info, "name"))),
            "COPY_DATABASE" => Action::Attach(words()),
            "COPY_TO_FILE" | "EXPORT" | "UPDATE_EXTENSIONS" => Action::File(words()),
            "LOAD" => {
                let what = optional_text_field(info, "load_type").to_ascii_lowercase();
                Action::File(format!("{what} the extension `{}`", optional_text_field(info, "filename")))
            }
            "CREATE_SECRET" => Action::Other(words()),
            "ALTER" | "DROP" => self.schema_change_action(operator, info),
            _ if operator.starts_with("CREATE_") => self.schema_change_action(operator, info),
            _ => Action::Other(words()),
        }
    }

    /// Returns the actions of a table scan or a table function.
    fn scan_actions(&self, part: &PlanNode) -> Vec<Action> {
        let scanned = part.get("function_data").filter(|data| !optional_text_field(Some(*data), "table").is_empty());
        let Some(scanned) = scanned.filter(|_| text_field(part, "name") == "seq_scan") else {
            return self.table_function_actions(text_field(part, "name"));
        };
        let table = self.info_table_name(Some(scanned), "table");
        let names = list_field(part, "names");
        let columns = list_field(part, "column_indexes").iter().filter_map(|column| column["index"].as_u64());
        // The row number is a column without a name.
        let read: Vec<Action> = columns
            .filter_map(|index| names.get(usize::try_from(index).ok()?)?.as_str())
            .map(|column| Action::Read { table: table.clone(), column: Some(column.to_owned()) })
            .collect();
        if read.is_empty() { vec![Action::Read { table, column: None }] } else { read }
    }

    fn schema_change_action(&self, operator: &str, info: Option<&Value>) -> Action {
        let entry = optional_text_field(info, "type").trim_end_matches("_ENTRY").to_ascii_lowercase().replace('_', " ");
        if ["prepared statement", "secret", "database"].contains(&entry.as_str()) {
            return Action::Other(format!("{} {entry}", operator.to_ascii_lowercase()));
        }
        let what = match operator.strip_prefix("CREATE_") {
            Some(made) => format!("create {}", made.to_ascii_lowercase().replace('_', " ")),
            None if operator == "DROP" => format!("drop {entry}"),
            None => entry,
        };
        let of = ["table", "view_name", "name"].into_iter().find(|of| !optional_text_field(info, of).is_empty());
        let name =
            of.map_or_else(|| optional_text_field(info, "schema").to_owned(), |of| self.info_table_name(info, of));
        Action::Schema { operation: what, name }
    }

    fn table_function_actions(&self, name: &str) -> Vec<Action> {
        let name = name.to_ascii_lowercase();
        if let Some(body) = self.macros.get(&name) {
            return body.iter().cloned().collect();
        }
        match builtin_allowlist::table_function_access(&name) {
            TableFunctionAccess::ArgumentsOnly => vec![Action::Call(name)],
            TableFunctionAccess::Catalog => {
                vec![Action::Metadata { source: format!("`{name}`"), table: None }, Action::Call(name)]
            }
            TableFunctionAccess::Files => vec![Action::File(format!("`{name}`"))],
            TableFunctionAccess::Settings => vec![Action::Setting(name)],
            TableFunctionAccess::Unknown if !self.table_functions.contains(&name) => Vec::new(),
            TableFunctionAccess::Unknown => vec![Action::Other(format!("the table function `{name}`"))],
        }
    }

    /// Returns the action of a name in FROM that is a view of the database or a file. The plan reports tables, with
    /// their columns.
    fn base_table_action(&self, part: &PlanNode) -> Option<Action> {
        let (schema, table) = (text_field(part, "schema_name"), text_field(part, "table_name"));
        let catalog = text_field(part, "catalog_name");
        let name = self.base_table_name(part);
        if let Some(found) = self.catalog.table(&name) {
            return Some(Action::Read { table: found.name.clone(), column: None });
        }
        let written: Vec<&str> = [catalog, schema, table].into_iter().filter(|part| !part.is_empty()).collect();
        let written = written.join(".");
        if builtin_allowlist::is_file_name(&written) {
            return Some(Action::File(format!("`{written}`")));
        }
        // A built-in view, such as those of `information_schema`.
        let is_own = matches!(schema.to_ascii_lowercase().as_str(), "information_schema" | "pg_catalog")
            || builtin_allowlist::is_builtin_view(table);
        is_own.then(|| Action::Metadata { source: format!("`{written}`"), table: None })
    }

    /// Returns the name of a table in FROM.
    fn base_table_name(&self, part: &PlanNode) -> String {
        let schema = text_field(part, "schema_name");
        self.catalog_name(
            text_field(part, "catalog_name"),
            if schema.is_empty() { "main" } else { schema },
            text_field(part, "table_name"),
        )
    }

    fn info_table_name(&self, at: Option<&Value>, field: &str) -> String {
        self.catalog_name(
            optional_text_field(at, "catalog"),
            optional_text_field(at, "schema"),
            optional_text_field(at, field),
        )
    }

    /// Returns the name of a table as the catalog has it: without the default database and schema.
    pub(super) fn catalog_name(&self, catalog: &str, schema: &str, table: &str) -> String {
        let is_home = catalog.is_empty() || catalog.eq_ignore_ascii_case(self.database_name);
        match (is_home, schema.is_empty() || schema.eq_ignore_ascii_case("main")) {
            (true, true) => joined_name(&[table]),
            (true, false) => joined_name(&[schema, table]),
            (false, _) => joined_name(&[catalog, schema, table]),
        }
    }
}

/// Reports whether an action is a call that takes or reads the value of a sequence, as defaults do.
pub(super) fn is_sequence_call(action: &Action) -> bool {
    matches!(action, Action::Call(name) if name == "nextval" || name == "currval")
}

/// Returns the call of a function; `None` for an operator, whose name does not start with a letter.
fn call_action(name: &str) -> Option<Action> {
    let is_named = name.starts_with(|first: char| first.is_alphabetic() || first == '_');
    is_named.then(|| Action::Call(name.to_ascii_lowercase()))
}

/// Returns the actions of a MERGE, or of an INSERT with ON CONFLICT.
fn merge_actions(part: &PlanNode, table: &str) -> Vec<Action> {
    let table = table.to_owned();
    let whens = list_field(part, "actions").iter().flat_map(|when| when["value"].as_array().into_iter().flatten());
    let of = |action: &PlanNode| match text_field(action, "action_type") {
        "MERGE_INSERT" => vec![Action::Insert(table.clone())],
        "MERGE_DELETE" => vec![Action::Delete(table.clone())],
        "MERGE_UPDATE" => {
            let columns = update_actions(action, part.get("table_info"), &table);
            let all = Action::Update { table: table.clone(), column: "*".to_owned() };
            if columns.is_empty() { vec![all] } else { columns }
        }
        "MERGE_DO_NOTHING" | "MERGE_ERROR" => Vec::new(),
        other => vec![Action::Other(other.to_ascii_lowercase().replace('_', " "))],
    };
    whens.filter_map(Value::as_object).flat_map(of).collect()
}

/// Returns the columns that an UPDATE sets. The plan gives their positions among the stored columns.
fn update_actions(part: &PlanNode, table_info: Option<&Value>, table: &str) -> Vec<Action> {
    let columns = table_info.and_then(|info| info["columns"]["columns"].as_array());
    let stored: Vec<&str> = columns
        .into_iter()
        .flatten()
        .filter(|column| column["category"] != "GENERATED")
        .filter_map(|column| column["name"].as_str())
        .collect();
    let places = list_field(part, "columns").iter().filter_map(Value::as_u64);
    places
        .map(|place| usize::try_from(place).ok().and_then(|place| stored.get(place)).map_or("*", |name| *name))
        .map(|column| Action::Update { table: table.to_owned(), column: column.to_owned() })
        .collect()
}

/// Collects the names of common table expressions.
fn collect_cte_names(json: &Value, names: &mut BTreeSet<String>) {
    match json {
        Value::Array(parts) => parts.iter().for_each(|part| collect_cte_names(part, names)),
        Value::Object(part) => {
            if let Some(own) = part.get("cte_map").and_then(|map| map["map"].as_array()) {
                names.extend(own.iter().filter_map(|entry| entry["key"].as_str()).map(str::to_owned));
            }
            part.values().for_each(|inner| collect_cte_names(inner, names));
        }
        _ => {}
    }
}

fn text_field<'a>(part: &'a PlanNode, field: &str) -> &'a str {
    part.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn optional_text_field<'a>(part: Option<&'a Value>, field: &str) -> &'a str {
    part.and_then(|part| part[field].as_str()).unwrap_or_default()
}

fn list_field<'a>(part: &'a PlanNode, field: &str) -> &'a [Value] {
    part.get(field).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::CatalogTable;
    use serde_json::json;

    fn plan_and_tree_actions(plan: &Value) -> Vec<Action> {
        let view = CatalogTable { name: "v".to_owned(), is_view: true, ..CatalogTable::default() };
        let (catalog, known) = (Catalog { tables: vec![view], ..Catalog::default() }, ["query".to_owned()].into());
        let macro_actions = [Action::Call("current_setting".to_owned())].into();
        let (functions, macros) =
            (["upper".to_owned()].into(), MacroActions::from([("told".to_owned(), macro_actions)]));
        let reader = PlanReader {
            catalog: &catalog,
            database_name: "memory",
            functions: &functions,
            table_functions: &known,
            macros: &macros,
        };
        reader.plan_actions(plan).into_iter().chain(reader.tree_actions(plan)).collect()
    }

    fn scan_node(table: &str, columns: &[u64]) -> Value {
        let columns: Vec<Value> = columns.iter().map(|index| json!({"index": index})).collect();
        json!({"type": "LOGICAL_GET", "name": "seq_scan", "names": ["id", "name"], "column_indexes": columns,
            "function_data": {"catalog": "memory", "schema": "main", "table": table}})
    }

    #[test]
    fn scan_reads_only_requested_columns() {
        let of = |column: Option<&str>| Action::Read { table: "t".to_owned(), column: column.map(str::to_owned) };
        assert_eq!(plan_and_tree_actions(&scan_node("t", &[1, u64::MAX])), [of(Some("name"))]);
        assert_eq!(plan_and_tree_actions(&scan_node("t", &[u64::MAX])), [of(None)]);
    }

    #[test]
    fn unknown_operator_is_other_action() {
        assert_eq!(
            plan_and_tree_actions(&json!({"type": "LOGICAL_BREW_COFFEE"})),
            [Action::Other("brew coffee".to_owned())]
        );
        let call = json!({"type": "LOGICAL_GET", "name": "query", "function_data": null});
        assert_eq!(plan_and_tree_actions(&call), [Action::Other("the table function `query`".to_owned())]);
    }

    #[test]
    fn write_names_columns_without_sequence_call() {
        let columns = json!([{"name": "a"}, {"name": "b", "category": "GENERATED"}, {"name": "c"}]);
        let plan = json!({"type": "LOGICAL_UPDATE", "columns": [1], "children": [scan_node("t", &[0])],
            "table_info": {"catalog": "memory", "schema": "s", "table": "t", "columns": {"columns": columns}},
            "expressions": [{"expression_class": "BOUND_FUNCTION", "name": "nextval"}]});
        let found = plan_and_tree_actions(&plan);
        assert!(found.contains(&Action::Update { table: "s.t".to_owned(), column: "c".to_owned() }), "{found:?}");
        assert!(!found.contains(&Action::Call("nextval".to_owned())));
        let alone = json!({"type": "LOGICAL_PROJECTION", "expressions": [{"expression_class": "BOUND_FUNCTION", "name": "nextval"}]});
        assert_eq!(plan_and_tree_actions(&alone), [Action::Call("nextval".to_owned())]);
    }

    #[test]
    fn tree_names_views_and_files_but_not_ctes() {
        let from =
            |name: &str| json!({"type": "BASE_TABLE", "table_name": name, "schema_name": "", "catalog_name": ""});
        let view = Action::Read { table: "v".to_owned(), column: None };
        assert!(plan_and_tree_actions(&from("v")).contains(&view));
        assert!(plan_and_tree_actions(&from("x.csv")).contains(&Action::File("`x.csv`".to_owned())));
        let own = json!({"cte_map": {"map": [{"key": "v"}]}, "from_table": from("v")});
        let catalog = Catalog {
            tables: vec![CatalogTable { name: "v".to_owned(), ..CatalogTable::default() }],
            ..Catalog::default()
        };
        let (none, macros) = (BTreeSet::new(), MacroActions::new());
        let reader = PlanReader {
            catalog: &catalog,
            database_name: "memory",
            functions: &none,
            table_functions: &none,
            macros: &macros,
        };
        assert!(reader.tree_actions(&own).is_empty());
        let table = |name: &str| json!({"type": "TABLE_FUNCTION", "function": {"function_name": name}});
        assert!(reader.missing_table_functions(&table("range")).is_empty());
        let absent = Action::Other("the table function `what`, which does not exist".to_owned());
        assert_eq!(reader.missing_table_functions(&table("What")), [absent].into());
    }

    #[test]
    fn reports_evaluated_external_functions() {
        let calls =
            |name: &str| plan_and_tree_actions(&json!({"list": [{"class": "FUNCTION", "function_name": name}]}));
        let call = |name: &str| Action::Call(name.to_owned());
        assert_eq!(calls("Current_Setting"), [call("current_setting"), call("current_setting")]);
        assert!(calls("told").contains(&call("current_setting")), "the body of a macro");
    }
}
