//! Lists what every request may call in DuckDB. A scalar function, an aggregate or a macro is allowed if DuckDB lists
//! it and it is not in [`EXTERNAL_FUNCTIONS`]. A table function is allowed only if it is listed here, so that functions
//! of newer versions are refused until they have been reviewed.
//!
//! Source: `duckdb_functions()` of DuckDB 1.5, and
//! <https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview>.

/// Functions that access more than their arguments: settings, sequences, the log, sleeping, and SQL in a text (whose
/// plan shows columns of tables).
const EXTERNAL_FUNCTIONS: &[&str] = &[
    "current_setting",
    "currval",
    "getenv",
    "json_serialize_plan",
    "nextval",
    "parse_duckdb_log_message",
    "pg_sleep",
    "setseed",
    "set_config",
    "sleep_ms",
    "write_log",
];

/// Table functions that compute rows from their arguments, or describe the engine.
const HARMLESS_TABLE_FUNCTIONS: &[&str] = &[
    "duckdb_keywords",
    "generate_series",
    "generate_subscripts",
    "histogram",
    "histogram_values",
    "icu_calendar_names",
    "json_each",
    "json_tree",
    "pg_timezone_names",
    "pragma_collations",
    "range",
    "regexp_split_to_table",
    "repeat",
    "repeat_row",
    "summary",
    "test_all_types",
    "test_vector_types",
    "unnest",
];

/// Table functions that describe the catalog.
const CATALOG_FUNCTIONS: &[&str] = &[
    "duckdb_columns",
    "duckdb_constraints",
    "duckdb_databases",
    "duckdb_dependencies",
    "duckdb_functions",
    "duckdb_indexes",
    "duckdb_schemas",
    "duckdb_sequences",
    "duckdb_tables",
    "duckdb_types",
    "duckdb_views",
    "pragma_show",
    "pragma_table_info",
];

/// Pragmas that are queries of the catalog.
const CATALOG_PRAGMAS: &[&str] =
    &["collations", "database_list", "functions", "show", "show_databases", "show_tables", "table_info", "version"];

/// Pragmas that describe only the engine, not a database.
const ENGINE_PRAGMAS: &[&str] = &["collations", "version"];

/// Prefixes and suffixes of the names of table functions that read files or use the network.
const FILE_FUNCTION_AFFIXES: (&[&str], &[&str]) = (
    &["read_", "parquet_", "glob", "sniff_", "st_read", "http_", "delta_", "iceberg_", "ducklake_", "shellfs", "sheet"],
    &["_scan", "_scan_pushdown", "_query", "_execute", "_attach", "_metadata", "_snapshots"],
);

/// The resources that a function accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TableFunctionAccess {
    /// The function accesses only its arguments.
    ArgumentsOnly,
    /// The catalog.
    Catalog,
    /// The function accesses files or the network.
    Files,
    /// The function accesses settings of the engine.
    Settings,
    /// Unknown: the function is not listed here.
    Unknown,
}

/// Reports whether a scalar function, an aggregate or a macro accesses only its arguments. The name must be one of
/// DuckDB's functions.
pub(super) fn is_harmless_function(function: &str) -> bool {
    !EXTERNAL_FUNCTIONS.contains(&function)
}

/// Returns what a table function accesses.
pub(super) fn table_function_access(function: &str) -> TableFunctionAccess {
    let name = function.to_ascii_lowercase();
    if HARMLESS_TABLE_FUNCTIONS.contains(&name.as_str()) {
        return TableFunctionAccess::ArgumentsOnly;
    }
    if CATALOG_FUNCTIONS.contains(&name.as_str()) {
        return TableFunctionAccess::Catalog;
    }
    let (beginnings, ends) = FILE_FUNCTION_AFFIXES;
    if beginnings.iter().any(|begin| name.starts_with(begin)) || ends.iter().any(|end| name.ends_with(end)) {
        return TableFunctionAccess::Files;
    }
    let is_setting = ["duckdb_settings", "duckdb_variables", "duckdb_profiling_settings"].contains(&name.as_str())
        || ["enable_", "disable_"].iter().any(|begin| name.starts_with(begin));
    if is_setting { TableFunctionAccess::Settings } else { TableFunctionAccess::Unknown }
}

/// Reports whether a pragma only reads the catalog.
pub(super) fn is_harmless_pragma(pragma: &str) -> bool {
    CATALOG_PRAGMAS.contains(&pragma.to_ascii_lowercase().as_str())
}

/// Reports whether a pragma describes only the engine, not a database.
pub(super) fn is_engine_pragma(pragma: &str) -> bool {
    ENGINE_PRAGMAS.contains(&pragma.to_ascii_lowercase().as_str())
}

/// Reports whether a name is that of a built-in view that describes the catalog.
pub(super) fn is_builtin_view(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("duckdb_") || name.starts_with("pg_") || name.starts_with("pragma_") || name.starts_with("sqlite_")
}

/// Reports whether a name in FROM is that of a file, which DuckDB would read if there is no such table.
pub(super) fn is_file_name(name: &str) -> bool {
    const FILE_EXTENSIONS: &[&str] = &[
        ".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".ipc", ".avro", ".xlsx", ".db",
        ".duckdb", ".sqlite", ".gz", ".zst", ".vortex", ".geojson", ".gpkg", ".shp", ".fgb",
    ];
    let lower = name.to_ascii_lowercase();
    name.contains(['/', '\\', '*', '?'])
        || lower.contains("://")
        || FILE_EXTENSIONS.iter().any(|end| lower.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classifies_table_functions_by_access() {
        let cases = [
            ("range", TableFunctionAccess::ArgumentsOnly),
            ("Unnest", TableFunctionAccess::ArgumentsOnly),
            ("duckdb_tables", TableFunctionAccess::Catalog),
            ("pragma_table_info", TableFunctionAccess::Catalog),
            ("read_csv_auto", TableFunctionAccess::Files),
            ("parquet_metadata", TableFunctionAccess::Files),
            ("sqlite_scan", TableFunctionAccess::Files),
            ("postgres_query", TableFunctionAccess::Files),
            ("glob", TableFunctionAccess::Files),
            ("duckdb_settings", TableFunctionAccess::Settings),
            ("enable_logging", TableFunctionAccess::Settings),
            ("duckdb_secrets", TableFunctionAccess::Unknown),
            ("query", TableFunctionAccess::Unknown),
            ("checkpoint", TableFunctionAccess::Unknown),
            ("what_comes_next", TableFunctionAccess::Unknown),
        ];
        for (name, expected) in cases {
            assert_eq!(table_function_access(name), expected, "{name}");
        }
    }

    #[test]
    fn distinguishes_file_names_from_table_names() {
        for name in ["/etc/passwd", "x.csv", "DATA.PARQUET", "s3://b/k", "*.x", "https://h/x", "a.json.gz"] {
            assert!(is_file_name(name), "{name}");
        }
        for name in ["orders", "ordres", "archive.customers", "weird name", "main.t"] {
            assert!(!is_file_name(name), "{name}");
        }
    }
}
