//! Lists the built-in functions and catalogs that every request may use. Immutable functions depend on their arguments
//! alone and need no entry.
//!
//! Source: <https://www.postgresql.org/docs/current/functions.html>.

/// Functions that depend on the time, the session's formats or chance, but access nothing.
const HARMLESS_FUNCTIONS: &[&str] = &[
    "age",
    "array_in",
    "array_out",
    "array_to_json",
    "array_to_string",
    "clock_timestamp",
    "concat",
    "concat_ws",
    "date",
    "date_add",
    "date_bin",
    "date_part",
    "date_subtract",
    "date_trunc",
    "extract",
    "format",
    "gen_random_uuid",
    "generate_series",
    "jsonb_build_array",
    "jsonb_build_object",
    "jsonb_object_agg",
    "jsonb_path_exists_tz",
    "jsonb_path_match_tz",
    "jsonb_path_query_array_tz",
    "jsonb_path_query_first_tz",
    "jsonb_path_query_tz",
    "jsonb_populate_record",
    "jsonb_populate_recordset",
    "jsonb_to_record",
    "jsonb_to_recordset",
    "json_agg",
    "json_build_array",
    "json_build_object",
    "json_object_agg",
    "json_populate_record",
    "json_populate_recordset",
    "json_to_record",
    "json_to_recordset",
    "jsonb_agg",
    "justify_interval",
    "length",
    "make_timestamptz",
    "now",
    "overlaps",
    "percentile_cont",
    "percentile_disc",
    "pg_typeof",
    "phraseto_tsquery",
    "plainto_tsquery",
    "quote_literal",
    "quote_nullable",
    "random",
    "row_to_json",
    "statement_timestamp",
    "string_to_array",
    "time",
    "timestamp",
    "timestamptz",
    "timetz",
    "timezone",
    "to_char",
    "to_date",
    "to_json",
    "to_jsonb",
    "to_number",
    "to_timestamp",
    "to_tsquery",
    "to_tsvector",
    "transaction_timestamp",
    "ts_headline",
    "websearch_to_tsquery",
];

/// The types whose values are shown as names of objects, by object id: `regclass`, `regproc`, `regprocedure`,
/// `regoper`, `regoperator`, `regtype`, `regrole`, `regnamespace`, `regcollation`, and the arrays of each.
const NAME_TYPES: &[u32] =
    &[2205, 24, 2202, 2203, 2204, 2206, 4096, 4089, 4191, 2210, 1008, 2207, 2208, 2209, 2211, 4097, 4090, 4192];

/// Views and tables of `pg_catalog` that describe the schema of the database, and nothing of the server.
const SCHEMA_CATALOGS: &[&str] = &[
    "pg_attrdef",
    "pg_attribute",
    "pg_class",
    "pg_collation",
    "pg_constraint",
    "pg_description",
    "pg_enum",
    "pg_index",
    "pg_indexes",
    "pg_inherits",
    "pg_matviews",
    "pg_namespace",
    "pg_range",
    "pg_sequence",
    "pg_sequences",
    "pg_tables",
    "pg_type",
    "pg_views",
];

pub(super) fn is_harmless(function: &str) -> bool {
    HARMLESS_FUNCTIONS.contains(&function)
}

/// Reports whether an immutable function is about the server, and is therefore not harmless by itself.
pub(super) fn is_of_server(function: &str) -> bool {
    (function.starts_with("pg_") && !function.starts_with("pg_size_")) || function.starts_with("txid_")
}

/// Reports whether values of a type are shown as names of objects.
pub(super) fn is_name_type(oid: u32) -> bool {
    NAME_TYPES.contains(&oid)
}

/// Reports whether a relation of the server only describes the schema.
pub(super) fn is_schema_catalog(schema: &str, name: &str) -> bool {
    schema == "information_schema" || (schema == "pg_catalog" && SCHEMA_CATALOGS.contains(&name))
}

/// Returns the name of a keyword that has a value, by its number in `SQLValueFunctionOp`; `None` for the harmless ones,
/// which are dates and times.
pub(super) fn keyword_of_session(number: u32) -> Option<&'static str> {
    match number {
        0..=8 => None,
        9 => Some("current_role"),
        10 => Some("current_user"),
        11 => Some("user"),
        12 => Some("session_user"),
        13 => Some("current_catalog"),
        14 => Some("current_schema"),
        _ => Some("a keyword of the session"),
    }
}
