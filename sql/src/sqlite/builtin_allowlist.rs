//! Lists what every request may use in SQLite: functions that access only their arguments, pragmas that only read, and
//! tables that SQLite provides. All other names are refused, including those that newer versions of SQLite add.
//!
//! Sources: <https://sqlite.org/lang_corefunc.html>, `lang_datefunc.html`, `lang_aggfunc.html`, `windowfunctions.html`,
//! `lang_mathfunc.html`, `json1.html`, `fts5.html`, `rtree.html`, `pragma.html`.

use std::collections::BTreeSet;

use rusqlite::Connection;

const HARMLESS_FUNCTIONS: &[&str] = &[
    "->",
    "->>",
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "avg",
    "bm25",
    "ceil",
    "ceiling",
    "changes",
    "char",
    "coalesce",
    "concat",
    "concat_ws",
    "cos",
    "cosh",
    "count",
    "cume_dist",
    "current_date",
    "current_time",
    "current_timestamp",
    "date",
    "datetime",
    "degrees",
    "dense_rank",
    "exp",
    "first_value",
    "floor",
    "format",
    "glob",
    "group_concat",
    "hex",
    "highlight",
    "if",
    "ifnull",
    "iif",
    "instr",
    "json",
    "json_array",
    "json_array_insert",
    "json_array_length",
    "json_error_position",
    "json_extract",
    "json_group_array",
    "json_group_object",
    "json_insert",
    "json_object",
    "json_patch",
    "json_pretty",
    "json_quote",
    "json_remove",
    "json_replace",
    "json_set",
    "json_type",
    "json_valid",
    "jsonb",
    "jsonb_array",
    "jsonb_array_insert",
    "jsonb_extract",
    "jsonb_group_array",
    "jsonb_group_object",
    "jsonb_insert",
    "jsonb_object",
    "jsonb_patch",
    "jsonb_remove",
    "jsonb_replace",
    "jsonb_set",
    "julianday",
    "lag",
    "last_insert_rowid",
    "last_value",
    "lead",
    "length",
    "like",
    "likelihood",
    "likely",
    "ln",
    "log",
    "log10",
    "log2",
    "lower",
    "ltrim",
    "match",
    "matchinfo",
    "max",
    "median",
    "min",
    "mod",
    "nth_value",
    "ntile",
    "nullif",
    "octet_length",
    "offsets",
    "percent_rank",
    "percentile",
    "percentile_cont",
    "percentile_disc",
    "pi",
    "pow",
    "power",
    "printf",
    "quote",
    "radians",
    "random",
    "randomblob",
    "rank",
    "replace",
    "round",
    "row_number",
    "rtrim",
    "sign",
    "sin",
    "sinh",
    "snippet",
    "soundex",
    "sqlite_compileoption_get",
    "sqlite_compileoption_used",
    "sqlite_source_id",
    "sqlite_version",
    "sqrt",
    "strftime",
    "string_agg",
    "substr",
    "substring",
    "subtype",
    "sum",
    "tan",
    "tanh",
    "time",
    "timediff",
    "total",
    "total_changes",
    "trim",
    "trunc",
    "typeof",
    "unhex",
    "unicode",
    "unistr",
    "unistr_quote",
    "unixepoch",
    "unlikely",
    "upper",
    "zeroblob",
];

/// Pragmas that only read, and whose value names the object that they describe.
const DESCRIBING_PRAGMAS: &[&str] =
    &["foreign_key_list", "index_info", "index_list", "index_xinfo", "table_info", "table_list", "table_xinfo"];
/// Pragmas that only read if they get no value.
const READ_ONLY_PRAGMAS: &[&str] = &[
    "application_id",
    "collation_list",
    "compile_options",
    "encoding",
    "freelist_count",
    "function_list",
    "module_list",
    "page_count",
    "page_size",
    "pragma_list",
    "schema_version",
    "user_version",
];

/// Pragmas that describe only the table that they name.
const TABLE_PRAGMAS: &[&str] = &["index_list", "table_info", "table_xinfo"];
/// Pragmas that describe only the engine, not a database.
const ENGINE_PRAGMAS: &[&str] = &["collation_list", "compile_options", "encoding", "function_list", "pragma_list"];
/// Tables that compute their rows from their arguments.
const PURE_TABLES: &[&str] = &["json_each", "json_tree", "jsonb_each", "jsonb_tree"];

/// Modules that a migration may use for virtual tables: they store all their data in the database itself.
const HARMLESS_MODULES: &[&str] = &["fts3", "fts4", "fts5", "rtree", "rtree_i32", "geopoly"];

/// Reports whether a function accesses only its arguments.
pub(super) fn is_harmless_function(function: &str) -> bool {
    HARMLESS_FUNCTIONS.binary_search(&function.to_ascii_lowercase().as_str()).is_ok()
}

/// Reports whether a pragma only reads.
pub(super) fn is_harmless_pragma(name: &str) -> bool {
    DESCRIBING_PRAGMAS.contains(&name) || READ_ONLY_PRAGMAS.contains(&name)
}

/// Reports whether the value of a pragma is the name of the object that it describes.
pub(super) fn takes_object_name(pragma: &str) -> bool {
    DESCRIBING_PRAGMAS.contains(&pragma)
}

/// Reports whether a pragma describes only the table that it names.
pub(super) fn describes_single_table(pragma: &str) -> bool {
    TABLE_PRAGMAS.contains(&pragma)
}

/// Reports whether a pragma describes only the engine, not a database.
pub(super) fn is_engine_pragma(pragma: &str) -> bool {
    ENGINE_PRAGMAS.contains(&pragma)
}

/// Reports whether a table computes its rows from its arguments.
pub(super) fn is_pure_table(table: &str) -> bool {
    PURE_TABLES.iter().any(|pure| pure.eq_ignore_ascii_case(table))
}

/// Reports whether virtual tables of a module store all their data in the database.
pub(super) fn is_harmless_module(module: &str) -> bool {
    HARMLESS_MODULES.contains(&module.to_ascii_lowercase().as_str())
}

/// Reports whether a table that SQLite provides only shows data of the database or of its arguments.
pub(super) fn is_harmless_table(table: &str) -> bool {
    let table = table.to_ascii_lowercase();
    match table.strip_prefix("pragma_") {
        Some(pragma) => is_harmless_pragma(pragma),
        None => {
            let schema_tables =
                ["sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema", "sqlite_sequence"];
            let statistics_tables = ["sqlite_stat1", "sqlite_stat4"];
            schema_tables.contains(&table.as_str())
                || statistics_tables.contains(&table.as_str())
                || is_pure_table(&table)
        }
    }
}

/// Returns the names of the available functions.
pub(super) fn read_functions(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut statement = connection.prepare("SELECT DISTINCT lower(name) FROM pragma_function_list")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

/// Returns the names of the available virtual table modules, in lower case.
pub(super) fn read_modules(connection: &Connection) -> rusqlite::Result<BTreeSet<String>> {
    let mut statement = connection.prepare("SELECT DISTINCT lower(name) FROM pragma_module_list")?;
    statement.query_map([], |row| row.get(0))?.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_list_is_sorted_and_excludes_dangerous_functions() {
        assert!(HARMLESS_FUNCTIONS.is_sorted());
        for name in ["load_extension", "fts3_tokenizer", "readfile", "writefile", "edit", "eval", "sqlite_log", ""] {
            assert!(!is_harmless_function(name), "{name}");
        }
        assert!(is_harmless_function("COUNT") && is_harmless_function("->>"));
    }

    #[test]
    fn linked_functions_are_listed_or_refused() {
        let connection = Connection::open_in_memory().expect("opens");
        let unknown: Vec<String> = read_functions(&connection)
            .expect("reads")
            .into_iter()
            .filter(|name| !is_harmless_function(name))
            .collect();
        // Each of these is refused on purpose; a new name in SQLite needs a review.
        let known = [
            "fts3_tokenizer",
            "fts5",
            "fts5_get_locale",
            "fts5_insttoken",
            "fts5_locale",
            "fts5_source_id",
            "load_extension",
            "optimize",
            "rtreecheck",
            "rtreedepth",
            "rtreenode",
            "sqlite_log",
        ];
        let new_functions: Vec<&String> = unknown.iter().filter(|name| !known.contains(&name.as_str())).collect();
        assert!(new_functions.is_empty(), "{new_functions:?}");
    }
}
