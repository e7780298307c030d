//! Converts values of DuckDB to JSON. Dates, times, decimals, intervals and UUIDs become texts as DuckDB shows them.

use proctor_duckdb::{Cell, TimeUnit};
use serde_json::{Map, Value, json};

use crate::row_values;

const SECONDS_PER_DAY: i64 = 86_400;
/// The offset of a time zone that is stored as 0, in seconds.
const MAX_ZONE_OFFSET: i64 = 16 * 3_600 - 1;

/// Converts a value.
pub(super) fn to_json(cell: Cell) -> Value {
    match cell {
        Cell::Null => Value::Null,
        Cell::Boolean(value) => Value::Bool(value),
        Cell::Integer(number) => match i64::try_from(number) {
            Ok(number) => row_values::integer(number),
            Err(_) => Value::from(number.to_string()),
        },
        Cell::Unsigned(number) => match u64::try_from(number) {
            Ok(number) => row_values::unsigned(number),
            Err(_) => Value::from(number.to_string()),
        },
        Cell::Real(number) => row_values::real(number),
        Cell::Text(text) => row_values::text(&text),
        Cell::Blob(bytes) => row_values::bytes(&bytes),
        Cell::List(cells) => Value::Array(cells.into_iter().map(to_json).collect()),
        Cell::Struct(fields) => struct_value(fields),
        Cell::Map(entries) => map_value(entries),
        Cell::Unknown(kind) => json!({ "unknown_type": kind }),
        other => Value::from(to_text(&other)),
    }
}

/// Converts a struct to an object. A struct without names becomes a list.
fn struct_value(fields: Vec<(String, Cell)>) -> Value {
    if fields.iter().any(|(name, _)| name.is_empty()) {
        return Value::Array(fields.into_iter().map(|(_, cell)| to_json(cell)).collect());
    }
    Value::Object(fields.into_iter().map(|(name, cell)| (name, to_json(cell))).collect())
}

/// Converts a map to an object if its keys are texts, otherwise to a list of pairs.
fn map_value(entries: Vec<(Cell, Cell)>) -> Value {
    let keys: Option<Vec<String>> = entries.iter().map(|(key, _)| text_key(key)).collect();
    match keys {
        Some(keys) => {
            let values = entries.into_iter().map(|(_, value)| to_json(value));
            Value::Object(keys.into_iter().zip(values).collect::<Map<_, _>>())
        }
        None => entries.into_iter().map(|(key, value)| json!([to_json(key), to_json(value)])).collect(),
    }
}

fn text_key(key: &Cell) -> Option<String> {
    match key {
        Cell::Text(text) => String::from_utf8(text.clone()).ok(),
        _ => None,
    }
}

/// Returns a value as text.
fn to_text(cell: &Cell) -> String {
    match cell {
        Cell::Decimal { digits, scale } => decimal_text(*digits, *scale),
        Cell::BigNumber(bytes) => big_number_text(bytes),
        Cell::Bits(bytes) => bits_text(bytes),
        Cell::Date(days) => date_text(*days),
        Cell::Time(ticks, unit) => time_text(*ticks, *unit),
        Cell::TimeWithZone(bits) => time_with_zone_text(*bits),
        Cell::Timestamp { ticks, unit, has_zone } => timestamp_text(*ticks, *unit, *has_zone),
        Cell::Interval { months, days, micros } => interval_text(*months, *days, *micros),
        Cell::Uuid(stored) => uuid_text(*stored),
        // The other values are not texts.
        _ => String::new(),
    }
}

fn decimal_text(digits: i128, scale: u8) -> String {
    let scale = usize::from(scale);
    let sign = if digits < 0 { "-" } else { "" };
    let all = format!("{:0>width$}", digits.unsigned_abs(), width = scale + 1);
    match all.split_at(all.len() - scale) {
        (whole, "") => format!("{sign}{whole}"),
        (whole, fraction) => format!("{sign}{whole}.{fraction}"),
    }
}

/// Returns an integer of any length. It is stored as three bytes, of which the highest bit is set for a positive
/// number, and the big-endian bytes of the number. All bytes of a negative number are inverted.
fn big_number_text(stored: &[u8]) -> String {
    let is_negative = stored.first().is_some_and(|first| first & 0x80 == 0);
    let bytes = stored.iter().skip(3).map(|byte| if is_negative { !byte } else { *byte });
    // Groups of nine decimal digits, the lowest first.
    let mut groups: Vec<u64> = vec![0];
    for byte in bytes {
        let mut carry = u64::from(byte);
        for group in &mut groups {
            let value = *group * 256 + carry;
            *group = value % 1_000_000_000;
            carry = value / 1_000_000_000;
        }
        if carry > 0 {
            groups.push(carry);
        }
    }
    let mut text = if is_negative { "-".to_owned() } else { String::new() };
    let mut groups = groups.iter().rev();
    text += &groups.next().map_or_else(String::new, u64::to_string);
    groups.for_each(|group| text += &format!("{group:09}"));
    text
}

fn bits_text(stored: &[u8]) -> String {
    let unused = stored.first().map_or(0, |unused| usize::from(*unused));
    let bits = stored.iter().skip(1).flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1));
    bits.skip(unused).map(|bit| if bit == 1 { '1' } else { '0' }).collect()
}

/// Returns a date. The two extreme numbers stand for infinity.
fn date_text(days: i32) -> String {
    match days {
        i32::MAX => "infinity".to_owned(),
        value if value == -i32::MAX => "-infinity".to_owned(),
        days => day_text(i64::from(days)),
    }
}

/// Returns the date of a day after 1970-01-01 in the proleptic Gregorian calendar.
fn day_text(days: i64) -> String {
    // The calendar repeats after 400 years. Years start in March, so that the leap day is the last one.
    const DAYS_PER_CYCLE: i64 = 146_097;
    let since = days + 719_468;
    let (cycle, day) = (since.div_euclid(DAYS_PER_CYCLE), since.rem_euclid(DAYS_PER_CYCLE));
    let year_of_cycle = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day_of_year = day - (365 * year_of_cycle + year_of_cycle / 4 - year_of_cycle / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_cycle + cycle * 400 + i64::from(month <= 2);
    match year {
        1.. => format!("{year:04}-{month:02}-{day:02}"),
        // There is no year 0.
        _ => format!("{:04}-{month:02}-{day:02} (BC)", 1 - year),
    }
}

/// Returns a time, with as many digits of a second as it has.
fn time_text(ticks: i64, unit: TimeUnit) -> String {
    let per_second = unit.per_second();
    let (seconds, fraction) = (ticks.div_euclid(per_second), ticks.rem_euclid(per_second));
    let text = format!("{:02}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    if fraction == 0 {
        return text;
    }
    let digits = if per_second == 1_000_000_000 { 9 } else { 6 };
    let fraction = fraction * (i64::pow(10, digits) / per_second);
    let fraction = format!("{fraction:0width$}", width = digits as usize);
    format!("{text}.{}", fraction.trim_end_matches('0'))
}

fn time_with_zone_text(bits: u64) -> String {
    let micros = i64::try_from(bits >> 24).unwrap_or(0);
    let offset = MAX_ZONE_OFFSET - i64::try_from(bits & 0xff_ffff).unwrap_or(0);
    let (sign, offset) = if offset < 0 { ('-', -offset) } else { ('+', offset) };
    let mut zone = format!("{sign}{:02}", offset / 3_600);
    if offset % 3_600 != 0 {
        zone += &format!(":{:02}", offset / 60 % 60);
    }
    if offset % 60 != 0 {
        zone += &format!(":{:02}", offset % 60);
    }
    time_text(micros, TimeUnit::Microseconds) + &zone
}

fn timestamp_text(ticks: i64, unit: TimeUnit, has_zone: bool) -> String {
    if ticks == i64::MAX {
        return "infinity".to_owned();
    }
    if ticks == -i64::MAX {
        return "-infinity".to_owned();
    }
    let per_day = SECONDS_PER_DAY * unit.per_second();
    let (days, rest) = (ticks.div_euclid(per_day), ticks.rem_euclid(per_day));
    let (date, era) = match day_text(days).strip_suffix(" (BC)") {
        Some(date) => (date.to_owned(), " (BC)"),
        None => (day_text(days), ""),
    };
    let zone = if has_zone { "+00" } else { "" };
    format!("{date}{era} {}{zone}", time_text(rest, unit))
}

fn interval_text(months: i32, days: i32, micros: i64) -> String {
    let count = |number: i32, unit: &str| match number {
        0 => None,
        1 | -1 => Some(format!("{number} {unit}")),
        _ => Some(format!("{number} {unit}s")),
    };
    let time = (micros != 0).then(|| {
        let sign = if micros < 0 { "-" } else { "" };
        let magnitude = i64::try_from(micros.unsigned_abs()).unwrap_or(i64::MAX);
        format!("{sign}{}", time_text(magnitude, TimeUnit::Microseconds))
    });
    let parts = [count(months / 12, "year"), count(months % 12, "month"), count(days, "day"), time];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join(" ");
    if text.is_empty() { "00:00:00".to_owned() } else { text }
}

fn uuid_text(stored: u128) -> String {
    let hex = format!("{:032x}", stored ^ (1 << 127));
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_dates_and_times() {
        let cases = [
            (date_text(0), "1970-01-01"),
            (date_text(-1), "1969-12-31"),
            (date_text(11_016), "2000-02-29"),
            (date_text(-719_163), "0001-12-31 (BC)"),
            (date_text(i32::MAX), "infinity"),
            (time_text(0, TimeUnit::Microseconds), "00:00:00"),
            (time_text(86_399_500_000, TimeUnit::Microseconds), "23:59:59.5"),
            (time_text(1, TimeUnit::Nanoseconds), "00:00:00.000000001"),
            (timestamp_text(-1, TimeUnit::Seconds, false), "1969-12-31 23:59:59"),
            (timestamp_text(1_500, TimeUnit::Milliseconds, true), "1970-01-01 00:00:01.5+00"),
            (interval_text(14, -1, 0), "1 year 2 months -1 day"),
            (interval_text(0, 0, -1_500_000), "-00:00:01.5"),
            (interval_text(0, 0, 0), "00:00:00"),
        ];
        for (text, expected) in cases {
            assert_eq!(text, expected);
        }
    }

    #[test]
    fn formats_numbers_and_bits() {
        assert_eq!(decimal_text(-5, 2), "-0.05");
        assert_eq!(decimal_text(12_345, 0), "12345");
        assert_eq!(decimal_text(12_345, 3), "12.345");
        assert_eq!(big_number_text(&[0x80, 0, 2, 0x01, 0x00]), "256");
        assert_eq!(big_number_text(&[0x7f, 0xff, 0xfd, 0xfe, 0xff]), "-256");
        assert_eq!(big_number_text(&[0x80, 0, 5, 0x02, 0x54, 0x0b, 0xe4, 0x00]), "10000000000");
        assert_eq!(bits_text(&[5, 0b1111_1101]), "101");
        assert_eq!(uuid_text(1 << 127), "00000000-0000-0000-0000-000000000000");
    }

    #[test]
    fn nested_values_are_json() {
        let text = |text: &str| Cell::Text(text.as_bytes().to_vec());
        let pairs = vec![(Cell::Integer(1), Cell::Null)];
        let cell = Cell::Struct(vec![
            ("list".to_owned(), Cell::List(vec![Cell::Integer(1 << 60), Cell::Boolean(true)])),
            ("map".to_owned(), Cell::Map(vec![(text("k"), text("v"))])),
            ("pairs".to_owned(), Cell::Map(pairs)),
        ]);
        let expected = json!({"list": ["1152921504606846976", true], "map": {"k": "v"}, "pairs": [[1, null]]});
        assert_eq!(to_json(cell), expected);
    }
}
