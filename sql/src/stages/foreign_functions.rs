//! Lists functions of other engines, each with the equivalents of the dialects that lack it.

use proctor_core::sql::Dialect;

use Dialect::{Duckdb, Mysql, Postgres, Sqlite};

/// A function of another engine, and its equivalents.
struct ForeignFunction {
    name: &'static str,
    sqlite: Option<&'static str>,
    duckdb: Option<&'static str>,
    postgres: Option<&'static str>,
    mysql: Option<&'static str>,
}

const fn foreign_function(
    name: &'static str,
    sqlite: Option<&'static str>,
    duckdb: Option<&'static str>,
    postgres: Option<&'static str>,
    mysql: Option<&'static str>,
) -> ForeignFunction {
    ForeignFunction { name, sqlite, duckdb, postgres, mysql }
}

const FOREIGN_FUNCTIONS: &[ForeignFunction] = &[
    foreign_function("age", None, None, None, Some("timestampdiff")),
    foreign_function("any_value", Some("min"), None, None, Some("min")),
    foreign_function(
        "approx_count_distinct",
        Some("count(DISTINCT …)"),
        None,
        Some("count(DISTINCT …)"),
        Some("count(DISTINCT …)"),
    ),
    foreign_function(
        "arg_max",
        Some("max"),
        None,
        Some("the first row of ORDER BY … DESC"),
        Some("the first row of ORDER BY … DESC"),
    ),
    foreign_function("array_agg", Some("json_group_array"), None, None, Some("json_arrayagg")),
    foreign_function("bool_and", Some("min"), None, None, Some("min")),
    foreign_function("bool_or", Some("max"), None, None, Some("max")),
    foreign_function("char_length", Some("length"), None, None, None),
    foreign_function("character_length", Some("length"), None, None, None),
    foreign_function("charindex", Some("instr"), Some("instr"), Some("strpos"), Some("locate")),
    foreign_function("concat_agg", Some("group_concat"), Some("string_agg"), Some("string_agg"), Some("group_concat")),
    foreign_function("curdate", Some("date('now')"), Some("current_date"), Some("current_date"), None),
    foreign_function("date_add", Some("date"), None, Some("day + interval '1 day'"), None),
    foreign_function("date_diff", Some("julianday"), None, Some("age"), Some("datediff")),
    foreign_function("date_format", Some("strftime"), Some("strftime"), Some("to_char"), None),
    foreign_function("date_part", Some("strftime"), None, None, Some("extract(year FROM …)")),
    foreign_function("date_sub", Some("date"), None, Some("day - interval '1 day'"), None),
    foreign_function("date_trunc", Some("strftime"), None, None, Some("date_format")),
    foreign_function("dateadd", Some("date"), Some("date_add"), Some("day + interval '1 day'"), Some("date_add")),
    foreign_function("datediff", Some("julianday"), Some("date_diff"), Some("age"), None),
    foreign_function("day", Some("strftime('%d', …)"), None, Some("extract(day FROM …)"), None),
    foreign_function("dayofweek", Some("strftime('%w', …)"), None, Some("extract(dow FROM …)"), None),
    foreign_function("decode", Some("iif"), None, None, None),
    foreign_function("first", Some("first_value"), None, Some("first_value"), Some("first_value")),
    foreign_function("from_unixtime", Some("datetime"), Some("to_timestamp"), Some("to_timestamp"), None),
    foreign_function("gen_random_uuid", None, None, None, Some("uuid")),
    foreign_function("getdate", Some("datetime('now')"), Some("now"), Some("now"), Some("now")),
    foreign_function("greatest", Some("max"), None, None, None),
    foreign_function("group_concat", None, Some("string_agg"), Some("string_agg"), None),
    foreign_function("hour", Some("strftime('%H', …)"), None, Some("extract(hour FROM …)"), None),
    foreign_function("ifnull", None, None, Some("coalesce"), None),
    foreign_function(
        "iif",
        None,
        Some("CASE WHEN … THEN … ELSE … END"),
        Some("CASE WHEN … THEN … ELSE … END"),
        Some("if"),
    ),
    foreign_function("instr", None, None, Some("strpos"), None),
    foreign_function("isnull", Some("ifnull"), Some("ifnull"), Some("coalesce"), None),
    foreign_function("json_agg", Some("json_group_array"), Some("json_group_array"), None, Some("json_arrayagg")),
    foreign_function("json_group_array", None, None, Some("json_agg"), Some("json_arrayagg")),
    foreign_function("jsonb_agg", Some("json_group_array"), Some("json_group_array"), None, Some("json_arrayagg")),
    foreign_function("julianday", None, Some("julian"), Some("extract(epoch FROM …)"), Some("to_days")),
    foreign_function("last", Some("last_value"), None, Some("last_value"), Some("last_value")),
    foreign_function("least", Some("min"), None, None, None),
    foreign_function("left", Some("substr"), None, None, None),
    foreign_function("len", Some("length"), None, Some("length"), Some("length")),
    foreign_function("listagg", Some("group_concat"), None, Some("string_agg"), Some("group_concat")),
    foreign_function("locate", Some("instr"), Some("instr"), Some("strpos"), None),
    foreign_function("lpad", Some("printf"), None, None, None),
    foreign_function("minute", Some("strftime('%M', …)"), None, Some("extract(minute FROM …)"), None),
    foreign_function("month", Some("strftime('%m', …)"), None, Some("extract(month FROM …)"), None),
    foreign_function("now", Some("datetime('now')"), None, None, None),
    foreign_function("nvl", Some("coalesce"), Some("coalesce"), Some("coalesce"), None),
    foreign_function("position", Some("instr"), None, None, None),
    foreign_function("quarter", Some("strftime('%m', …)"), None, Some("extract(quarter FROM …)"), None),
    foreign_function("rand", Some("random"), Some("random"), Some("random"), None),
    foreign_function("regexp_matches", Some("like"), None, None, Some("regexp_substr")),
    foreign_function("regexp_replace", Some("replace"), None, None, None),
    foreign_function("right", Some("substr"), None, None, None),
    foreign_function("rpad", Some("printf"), None, None, None),
    foreign_function("split_part", Some("substr"), None, None, Some("substring_index")),
    foreign_function("stddev", Some("sqrt"), None, None, None),
    foreign_function("str_to_date", Some("date"), Some("strptime"), Some("to_date"), None),
    foreign_function("strftime", None, None, Some("to_char"), Some("date_format")),
    foreign_function("string_agg", None, None, None, Some("group_concat")),
    foreign_function("strpos", Some("instr"), None, None, Some("locate")),
    foreign_function("substring_index", Some("substr"), Some("split_part"), Some("split_part"), None),
    foreign_function("to_char", Some("strftime"), Some("strftime"), None, None),
    foreign_function("to_date", Some("date"), Some("strptime"), None, Some("str_to_date")),
    foreign_function("to_number", Some("cast"), Some("cast"), None, Some("cast")),
    foreign_function("to_timestamp", Some("datetime"), None, None, Some("from_unixtime")),
    foreign_function("total", None, Some("sum"), Some("sum"), Some("sum")),
    foreign_function("trunc", None, Some("trunc"), None, Some("truncate")),
    foreign_function("unix_timestamp", Some("unixepoch"), Some("epoch"), Some("extract(epoch FROM …)"), None),
    foreign_function("unixepoch", None, Some("epoch"), Some("extract(epoch FROM …)"), Some("unix_timestamp")),
    foreign_function("uuid", Some("hex(randomblob(16))"), None, Some("gen_random_uuid"), None),
    foreign_function("week", Some("strftime('%W', …)"), None, Some("extract(week FROM …)"), None),
    foreign_function("year", Some("strftime('%Y', …)"), None, Some("extract(year FROM …)"), None),
];

/// Returns the function of a dialect that is equivalent to one of another engine.
pub(super) fn equivalent_function(name: &str, dialect: Dialect) -> Option<&'static str> {
    let row = FOREIGN_FUNCTIONS.iter().find(|row| row.name.eq_ignore_ascii_case(name))?;
    match dialect {
        Sqlite => row.sqlite,
        Duckdb => row.duckdb,
        Postgres => row.postgres,
        Mysql => row.mysql,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_equivalent_functions() {
        assert!(FOREIGN_FUNCTIONS.is_sorted_by(|one, other| one.name < other.name));
        assert_eq!(equivalent_function("FIRST", Sqlite), Some("first_value"));
        assert_eq!(equivalent_function("group_concat", Duckdb), Some("string_agg"));
        assert_eq!(equivalent_function("strpos", Mysql), Some("locate"));
        assert_eq!(equivalent_function("nothing", Duckdb), None);
    }
}
