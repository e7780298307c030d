//! Defines the value of a cell in a result.

/// The unit of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Milliseconds,
    /// Microseconds.
    Microseconds,
    /// Nanoseconds.
    Nanoseconds,
}

impl TimeUnit {
    /// Returns the number of units in a second.
    pub fn per_second(self) -> i64 {
        match self {
            Self::Seconds => 1,
            Self::Milliseconds => 1_000,
            Self::Microseconds => 1_000_000,
            Self::Nanoseconds => 1_000_000_000,
        }
    }
}

/// A value as DuckDB stores it.
#[derive(Debug, Clone, PartialEq)]
pub enum Cell {
    /// NULL.
    Null,
    /// A truth value.
    Boolean(bool),
    /// An integer of any size, except an unsigned one of 128 bits.
    Integer(i128),
    /// An unsigned integer of 128 bits.
    Unsigned(u128),
    /// A floating-point number.
    Real(f64),
    /// A decimal number.
    Decimal {
        /// The number without its decimal point.
        digits: i128,
        /// The number of digits after the decimal point.
        scale: u8,
    },
    /// An integer of any length, in DuckDB's own format.
    BigNumber(Vec<u8>),
    /// A text, or the name of a value of an enum. DuckDB checks that it is UTF-8.
    Text(Vec<u8>),
    /// Bytes.
    Blob(Vec<u8>),
    /// Bits, in DuckDB's own format: the number of unused bits in the first byte of the bits, and then the bits.
    Bits(Vec<u8>),
    /// The number of days since 1970-01-01.
    Date(i32),
    /// The time since midnight.
    Time(i64, TimeUnit),
    /// The time since midnight in microseconds in the upper 40 bits, and the offset in the lower 24 bits.
    TimeWithZone(u64),
    /// The time since 1970-01-01.
    Timestamp {
        /// The number of units.
        ticks: i64,
        /// The unit.
        unit: TimeUnit,
        /// True if the time is in UTC, and not in an unknown time zone.
        has_zone: bool,
    },
    /// A duration.
    Interval {
        /// The months.
        months: i32,
        /// The days.
        days: i32,
        /// The remaining time, in microseconds.
        micros: i64,
    },
    /// A UUID, with its highest bit flipped.
    Uuid(u128),
    /// A list or an array.
    List(Vec<Cell>),
    /// A struct: the names of its fields, and their values.
    Struct(Vec<(String, Cell)>),
    /// A map: keys and values.
    Map(Vec<(Cell, Cell)>),
    /// A value of a type that is not known, by its number.
    Unknown(u32),
}
