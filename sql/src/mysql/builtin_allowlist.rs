//! Lists the built-in functions and the tables of `information_schema` that every request may use, and the keywords
//! that may precede a bracket without being a function.
//!
//! Sources: <https://mariadb.com/kb/en/function-and-operator-reference/>, <https://mariadb.com/kb/en/reserved-words/>.

/// Functions that depend on their arguments, the time or chance, but access nothing.
const HARMLESS_FUNCTIONS: &[&str] = &[
    "abs", "acos", "add_months", "adddate", "addtime", "aes_decrypt", "aes_encrypt", "any_value", "area", "asbinary",
    "ascii", "asin", "astext", "aswkb", "aswkt", "atan", "atan2", "avg", "bin", "bit_and", "bit_count", "bit_length",
    "bit_or", "bit_xor", "cast", "ceil", "ceiling", "centroid", "char", "char_length", "character_length", "charset",
    "chr", "coalesce", "coercibility", "collation", "column_add", "column_check", "column_create", "column_delete",
    "column_exists", "column_get", "column_json", "column_list", "compress", "concat", "concat_ws", "conv", "convert",
    "convert_tz", "cos", "cot", "count", "crc32", "crc32c", "cume_dist", "curdate", "current_date", "current_time",
    "current_timestamp", "curtime", "date", "date_add", "date_format", "date_sub", "datediff", "day", "dayname",
    "dayofmonth", "dayofweek", "dayofyear", "decode", "default", "degrees", "dense_rank", "elt", "encode", "exp",
    "export_set", "extract", "extractvalue", "field", "find_in_set", "first_value", "floor", "format", "format_bytes",
    "from_base64", "from_days", "from_unixtime", "get_format", "greatest", "group_concat", "grouping", "hex", "hour",
    "if", "ifnull", "inet6_aton", "inet6_ntoa", "inet_aton", "inet_ntoa", "insert", "instr", "interval", "is_ipv4",
    "is_ipv4_compat", "is_ipv4_mapped", "is_ipv6", "isnull", "json_array", "json_array_append", "json_array_insert",
    "json_array_intersect", "json_arrayagg", "json_compact", "json_contains", "json_contains_path", "json_depth",
    "json_detailed", "json_equals", "json_exists", "json_extract", "json_insert", "json_key_value", "json_keys",
    "json_length", "json_loose", "json_merge", "json_merge_patch", "json_merge_preserve", "json_normalize",
    "json_object", "json_object_filter_keys", "json_object_to_array", "json_objectagg", "json_overlaps", "json_pretty",
    "json_query", "json_quote", "json_remove", "json_replace", "json_schema_valid", "json_search", "json_set",
    "json_table", "json_type", "json_unquote", "json_valid", "json_value", "kdf", "lag", "last_day", "last_value",
    "lcase", "lead", "least", "left", "length", "lengthb", "linestring", "ln", "localtime", "localtimestamp", "locate",
    "log", "log10", "log2", "lower", "lpad", "ltrim", "make_set", "makedate", "maketime", "max", "md5", "median",
    "microsecond", "mid", "min", "minute", "mod", "month", "monthname", "multilinestring", "multipoint",
    "multipolygon", "natural_sort_key", "now", "nth_value", "ntile", "nullif", "nvl", "nvl2", "oct", "octet_length",
    "ord", "percent_rank", "percentile_cont", "percentile_disc", "period_add", "period_diff", "pi", "point", "polygon",
    "position", "pow", "power", "quarter", "quote", "radians", "rand", "random_bytes", "rank", "regexp_instr",
    "regexp_like", "regexp_replace", "regexp_substr", "repeat", "replace", "reverse", "right", "round", "row",
    "row_number", "rpad", "rtrim", "sec_to_time", "second", "sformat", "sha", "sha1", "sha2", "sign", "sin", "soundex",
    "space", "sqrt", "std", "stddev", "stddev_pop", "stddev_samp", "str_to_date", "strcmp", "subdate", "substr",
    "substring", "substring_index", "subtime", "sum", "sysdate", "tan", "time", "time_format", "time_to_sec",
    "timediff", "timestamp", "timestampadd", "timestampdiff", "to_base64", "to_char", "to_days", "to_seconds", "trim",
    "truncate", "ucase", "uncompress", "uncompressed_length", "unhex", "unix_timestamp", "updatexml", "upper",
    "utc_date", "utc_time", "utc_timestamp", "uuid", "uuid_v4", "uuid_v7", "values", "var_pop", "var_samp", "variance",
    "week", "weekday", "weekofyear", "weight_string", "year", "yearweek",
];

/// Prefixes of the names of functions for shapes, which depend on their arguments alone.
const SHAPE_PREFIXES: &[&str] = &["st_", "mbr"];

/// Tables of `information_schema` that describe the schema of the databases, and nothing of the server.
const SCHEMA_TABLES: &[&str] = &[
    "applicable_roles", "character_sets", "check_constraints", "collation_character_set_applicability", "collations",
    "columns", "key_column_usage", "partitions", "referential_constraints", "schemata", "statistics",
    "table_constraints", "tables", "triggers", "views",
];

/// Keywords and types that a bracket may follow in a query or a change of rows.
const KEYWORDS: &[&str] = &[
    "against", "all", "and", "any", "as", "asc", "between", "binary", "by", "case", "cross", "desc", "distinct",
    "distinctrow", "div", "else", "except", "exists", "filter", "for", "force", "from", "group", "having", "ignore",
    "in", "index", "inner", "intersect", "into", "is", "join", "key", "lateral", "left", "like", "limit", "match",
    "minus", "natural", "not", "offset", "on", "or", "order", "outer", "over", "partition", "regexp", "returning",
    "right", "rlike", "row", "select", "separator", "set", "some", "sounds", "straight_join", "then", "union", "update",
    "use", "using", "value", "values", "when", "where", "with", "xor",
    // Types of CAST, CONVERT and JSON_TABLE.
    "bigint", "bit", "blob", "character", "columns", "dec", "datetime", "decimal", "double", "enum", "fixed", "float",
    "int", "int1", "int2", "int3", "int4", "int8", "integer", "mediumint", "nchar", "numeric", "nvarchar", "precision",
    "real", "signed", "smallint", "text", "tinyint", "unsigned", "varbinary", "varchar", "varchar2", "varcharacter",
    "varying", "year",
];

/// Further keywords that a bracket may follow in a definition.
const DEFINITION_KEYWORDS: &[&str] = &[
    "add", "always", "btree", "change", "check", "clob", "column", "constraint", "default", "fulltext", "generated",
    "hash", "list", "longblob", "longtext", "mediumblob", "mediumtext", "modify", "number", "primary", "range", "raw",
    "references", "rtree", "spatial", "than", "tinyblob", "tinytext", "unique",
];

pub(super) fn is_harmless(function: &str) -> bool {
    HARMLESS_FUNCTIONS.binary_search(&function).is_ok()
        || SHAPE_PREFIXES.iter().any(|prefix| function.starts_with(prefix))
}

/// Returns the names of the harmless functions.
pub(super) fn harmless_functions() -> impl Iterator<Item = &'static str> {
    HARMLESS_FUNCTIONS.iter().copied()
}

/// Reports whether a table of `information_schema` only describes the schema.
pub(super) fn is_schema_table(name: &str) -> bool {
    SCHEMA_TABLES.iter().any(|table| table.eq_ignore_ascii_case(name))
}

/// Reports whether an unquoted word, in lower case, is a keyword or a type where a bracket follows it.
pub(super) fn is_keyword(word: &str, is_definition: bool) -> bool {
    KEYWORDS.contains(&word) || (is_definition && DEFINITION_KEYWORDS.contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_sorted() {
        assert!(HARMLESS_FUNCTIONS.is_sorted());
    }

    #[test]
    fn refuses_functions_of_the_session_and_the_server() {
        let refused = [
            "benchmark", "connection_id", "current_role", "current_user", "database", "des_encrypt", "encrypt",
            "found_rows", "get_lock", "is_free_lock", "is_used_lock", "last_insert_id", "lastval", "load_file",
            "master_gtid_wait", "master_pos_wait", "name_const", "nextval", "password", "release_all_locks",
            "release_lock", "row_count", "schema", "session_user", "setval", "sleep", "sys_eval", "sys_exec",
            "system_user", "user", "uuid_short", "version", "wsrep_last_written_gtid",
        ];
        assert!(!refused.iter().any(|function| is_harmless(function) || is_keyword(function, true)));
    }
}
