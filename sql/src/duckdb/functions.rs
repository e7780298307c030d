//! Lists what every request may call in DuckDB. A scalar function, an aggregate or a macro is allowed if DuckDB lists
//! it and it is not in [`REACHING`]. A table function is allowed only if it is listed here, so that those of newer
//! versions are refused until someone reviews them.
//!
//! Source: `duckdb_functions()` of DuckDB 1.5, and
//! <https://duckdb.org/docs/stable/operations_manual/securing_duckdb/overview>.

/// Functions that access more than their arguments: settings, sequences, the log, sleeping, and SQL in a text (whose
/// plan shows columns of tables).
const REACHING: &[&str] = &[
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
const TABLES: &[&str] = &[
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
const CATALOG: &[&str] = &[
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
const PRAGMAS: &[&str] =
    &["collations", "database_list", "functions", "show", "show_databases", "show_tables", "table_info", "version"];

/// Pragmas that describe only the engine, not a database.
const PRAGMAS_OF_ENGINE: &[&str] = &["collations", "version"];

/// Prefixes and suffixes of the names of table functions that read files or use the network.
const FILES: (&[&str], &[&str]) = (
    &["read_", "parquet_", "glob", "sniff_", "st_read", "http_", "delta_", "iceberg_", "ducklake_", "shellfs", "sheet"],
    &["_scan", "_scan_pushdown", "_query", "_execute", "_attach", "_metadata", "_snapshots"],
);

/// The resources that a function accesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// Only its arguments.
    Nothing,
    /// The catalog.
    Catalog,
    /// Files or the network.
    Files,
    /// Settings of the engine.
    Settings,
    /// Unknown: the function is not listed here.
    Unknown,
}

/// Reports whether a scalar function, an aggregate or a macro accesses only its arguments. The name must be one of
/// DuckDB's functions.
pub(super) fn is_harmless(function: &str) -> bool {
    !REACHING.contains(&function)
}

/// Returns what a table function accesses.
pub(super) fn of_table(function: &str) -> Reach {
    let name = function.to_ascii_lowercase();
    if TABLES.contains(&name.as_str()) {
        return Reach::Nothing;
    }
    if CATALOG.contains(&name.as_str()) {
        return Reach::Catalog;
    }
    let (beginnings, ends) = FILES;
    if beginnings.iter().any(|begin| name.starts_with(begin)) || ends.iter().any(|end| name.ends_with(end)) {
        return Reach::Files;
    }
    let is_setting = ["duckdb_settings", "duckdb_variables", "duckdb_profiling_settings"].contains(&name.as_str())
        || ["enable_", "disable_"].iter().any(|begin| name.starts_with(begin));
    if is_setting { Reach::Settings } else { Reach::Unknown }
}

/// Reports whether a pragma only reads the catalog.
pub(super) fn is_harmless_pragma(pragma: &str) -> bool {
    PRAGMAS.contains(&pragma.to_ascii_lowercase().as_str())
}

/// Reports whether a pragma describes only the engine, not a database.
pub(super) fn is_of_engine(pragma: &str) -> bool {
    PRAGMAS_OF_ENGINE.contains(&pragma.to_ascii_lowercase().as_str())
}

/// Reports whether a name is that of a built-in view that describes the catalog.
pub(super) fn is_own_view(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    name.starts_with("duckdb_") || name.starts_with("pg_") || name.starts_with("pragma_") || name.starts_with("sqlite_")
}

/// Reports whether a name in FROM is that of a file, which DuckDB would read if there is no such table.
pub(super) fn is_file(name: &str) -> bool {
    const ENDS: &[&str] = &[
        ".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".ipc", ".avro", ".xlsx", ".db",
        ".duckdb", ".sqlite", ".gz", ".zst", ".vortex", ".geojson", ".gpkg", ".shp", ".fgb",
    ];
    let lower = name.to_ascii_lowercase();
    name.contains(['/', '\\', '*', '?']) || lower.contains("://") || ENDS.iter().any(|end| lower.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_functions_are_known_by_what_they_reach() {
        let cases = [
            ("range", Reach::Nothing),
            ("Unnest", Reach::Nothing),
            ("duckdb_tables", Reach::Catalog),
            ("pragma_table_info", Reach::Catalog),
            ("read_csv_auto", Reach::Files),
            ("parquet_metadata", Reach::Files),
            ("sqlite_scan", Reach::Files),
            ("postgres_query", Reach::Files),
            ("glob", Reach::Files),
            ("duckdb_settings", Reach::Settings),
            ("enable_logging", Reach::Settings),
            ("duckdb_secrets", Reach::Unknown),
            ("query", Reach::Unknown),
            ("checkpoint", Reach::Unknown),
            ("what_comes_next", Reach::Unknown),
        ];
        for (name, expected) in cases {
            assert_eq!(of_table(name), expected, "{name}");
        }
    }

    #[test]
    fn names_of_files_are_none_of_tables() {
        for name in ["/etc/passwd", "x.csv", "DATA.PARQUET", "s3://b/k", "*.x", "https://h/x", "a.json.gz"] {
            assert!(is_file(name), "{name}");
        }
        for name in ["orders", "ordres", "archive.customers", "weird name", "main.t"] {
            assert!(!is_file(name), "{name}");
        }
    }
}
