//! Maps the numbers of types (`duckdb_type`) to the form in which DuckDB stores their values.

use crate::cell::TimeUnit;

/// The form of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NumberKind {
    I8,
    I16,
    I32,
    I64,
    I128,
    U8,
    U16,
    U32,
    U64,
}

/// The form in which a vector stores its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ColumnLayout {
    Boolean,
    Number(NumberKind),
    UnsignedHuge,
    Float,
    Double,
    Decimal {
        storage: NumberKind,
        scale: u8,
    },
    Enum(NumberKind),
    Text,
    Blob,
    Bits,
    BigNumber,
    Date,
    Time(TimeUnit),
    TimeWithZone,
    Timestamp {
        unit: TimeUnit,
        has_zone: bool,
    },
    Interval,
    Uuid,
    List,
    Map,
    /// An array of this size.
    Array(usize),
    /// A struct with these fields.
    Struct(Vec<String>),
    /// A union. The first vector in it holds the tags.
    Union,
    Null,
    /// A type that is not known, by its number.
    Unknown(u32),
}

impl ColumnLayout {
    /// Returns the layout of a type that is neither nested nor a decimal nor an enum.
    pub(crate) fn from_type(number: u32) -> Self {
        let timestamp = |unit, has_zone| Self::Timestamp { unit, has_zone };
        match number {
            1 => Self::Boolean,
            10 => Self::Float,
            11 => Self::Double,
            12 => timestamp(TimeUnit::Microseconds, false),
            13 => Self::Date,
            14 => Self::Time(TimeUnit::Microseconds),
            15 => Self::Interval,
            17 => Self::Text,
            18 => Self::Blob,
            20 => timestamp(TimeUnit::Seconds, false),
            21 => timestamp(TimeUnit::Milliseconds, false),
            22 => timestamp(TimeUnit::Nanoseconds, false),
            27 => Self::Uuid,
            29 => Self::Bits,
            30 => Self::TimeWithZone,
            31 => timestamp(TimeUnit::Microseconds, true),
            32 => Self::UnsignedHuge,
            35 => Self::BigNumber,
            36 => Self::Null,
            39 => Self::Time(TimeUnit::Nanoseconds),
            other => number_kind(other).map_or(Self::Unknown(other), Self::Number),
        }
    }

    /// Returns the layout of a decimal type whose values are stored as a type of integers.
    pub(crate) fn decimal(storage: u32, scale: u8) -> Self {
        number_kind(storage).map_or(Self::Unknown(storage), |storage| Self::Decimal { storage, scale })
    }

    /// Returns the layout of an enum whose values are stored as a type of integers.
    pub(crate) fn enumeration(storage: u32) -> Self {
        number_kind(storage).map_or(Self::Unknown(storage), Self::Enum)
    }
}

fn number_kind(number: u32) -> Option<NumberKind> {
    Some(match number {
        2 => NumberKind::I8,
        3 => NumberKind::I16,
        4 => NumberKind::I32,
        5 => NumberKind::I64,
        6 => NumberKind::U8,
        7 => NumberKind::U16,
        8 => NumberKind::U32,
        9 => NumberKind::U64,
        16 => NumberKind::I128,
        _ => return None,
    })
}
