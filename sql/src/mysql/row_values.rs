//! Converts values of MySQL to JSON. Dates, times and decimals become texts.

use mysql_async::consts::ColumnType;
use mysql_async::{Column, Row, Value as MysqlValue};
use serde_json::Value;

use crate::row_values;

/// The number of the character set for bytes.
const BINARY_CHARACTER_SET: u16 = 63;

/// Converts a row.
pub(super) fn to_json(row: Row) -> Vec<Value> {
    let columns = row.columns();
    columns.iter().zip(row.unwrap()).map(|(column, value)| value_to_json(column, &value)).collect()
}

fn value_to_json(column: &Column, value: &MysqlValue) -> Value {
    match value {
        MysqlValue::NULL => Value::Null,
        MysqlValue::Int(number) => row_values::integer(*number),
        MysqlValue::UInt(number) => row_values::unsigned(*number),
        // The shortest text of a number is the same for both sizes.
        MysqlValue::Float(number) => number.to_string().parse().map_or(Value::Null, row_values::real),
        MysqlValue::Double(number) => row_values::real(*number),
        MysqlValue::Bytes(bytes) => bytes_to_json(column, bytes),
        MysqlValue::Date(year, month, day, hour, minute, second, micros) => {
            let date = format!("{year:04}-{month:02}-{day:02}");
            let has_time =
                !matches!(column.column_type(), ColumnType::MYSQL_TYPE_DATE | ColumnType::MYSQL_TYPE_NEWDATE);
            let time = format!(" {hour:02}:{minute:02}:{second:02}{}", fraction(*micros));
            Value::from(if has_time { date + &time } else { date })
        }
        MysqlValue::Time(is_negative, days, hours, minutes, seconds, micros) => {
            let sign = if *is_negative { "-" } else { "" };
            let hours = u64::from(*days) * 24 + u64::from(*hours);
            Value::from(format!("{sign}{hours:02}:{minutes:02}:{seconds:02}{}", fraction(*micros)))
        }
    }
}

fn bytes_to_json(column: &Column, bytes: &[u8]) -> Value {
    use ColumnType::{
        MYSQL_TYPE_BIT, MYSQL_TYPE_BLOB, MYSQL_TYPE_GEOMETRY, MYSQL_TYPE_LONG_BLOB, MYSQL_TYPE_MEDIUM_BLOB,
        MYSQL_TYPE_STRING, MYSQL_TYPE_TINY_BLOB, MYSQL_TYPE_VAR_STRING, MYSQL_TYPE_VARCHAR,
    };
    match column.column_type() {
        MYSQL_TYPE_BIT => bits(bytes),
        MYSQL_TYPE_GEOMETRY => row_values::bytes(bytes),
        MYSQL_TYPE_BLOB
        | MYSQL_TYPE_LONG_BLOB
        | MYSQL_TYPE_MEDIUM_BLOB
        | MYSQL_TYPE_TINY_BLOB
        | MYSQL_TYPE_STRING
        | MYSQL_TYPE_VAR_STRING
        | MYSQL_TYPE_VARCHAR
            if column.character_set() == BINARY_CHARACTER_SET =>
        {
            row_values::bytes(bytes)
        }
        _ => row_values::text(bytes),
    }
}

/// Converts a column of the type `BIT`, which has at most 64 bits, to a number.
fn bits(bytes: &[u8]) -> Value {
    let number = bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    row_values::unsigned(number)
}

fn fraction(micros: u32) -> String {
    match micros {
        0 => String::new(),
        micros => format!(".{}", format!("{micros:06}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn column(kind: ColumnType, character_set: u16) -> Column {
        Column::new(kind).with_character_set(character_set)
    }

    #[test]
    fn converts_times() {
        let date = column(ColumnType::MYSQL_TYPE_DATE, BINARY_CHARACTER_SET);
        let stamp = column(ColumnType::MYSQL_TYPE_DATETIME, BINARY_CHARACTER_SET);
        let value = MysqlValue::Date(2026, 1, 2, 3, 4, 5, 600_000);
        assert_eq!(value_to_json(&date, &value), json!("2026-01-02"));
        assert_eq!(value_to_json(&stamp, &value), json!("2026-01-02 03:04:05.6"));
        let time = column(ColumnType::MYSQL_TYPE_TIME, BINARY_CHARACTER_SET);
        assert_eq!(value_to_json(&time, &MysqlValue::Time(true, 2, 1, 2, 3, 0)), json!("-49:02:03"));
    }

    #[test]
    fn converts_bytes_by_type_and_character_set() {
        let bytes = MysqlValue::Bytes(b"1.50".to_vec());
        let decimal = column(ColumnType::MYSQL_TYPE_NEWDECIMAL, BINARY_CHARACTER_SET);
        assert_eq!(value_to_json(&decimal, &bytes), json!("1.50"));
        let blob = column(ColumnType::MYSQL_TYPE_BLOB, BINARY_CHARACTER_SET);
        assert_eq!(value_to_json(&blob, &bytes), json!({"base64": "MS41MA=="}));
        let text = column(ColumnType::MYSQL_TYPE_BLOB, 45);
        assert_eq!(value_to_json(&text, &bytes), json!("1.50"));
        let bit = column(ColumnType::MYSQL_TYPE_BIT, BINARY_CHARACTER_SET);
        assert_eq!(value_to_json(&bit, &MysqlValue::Bytes(vec![1, 0])), json!(256));
        assert_eq!(value_to_json(&text, &MysqlValue::Float(0.1)), json!(0.1));
    }
}
