//! Defines the values of scratch rows and their SQL literals.

use proctor_core::sql::Dialect;

/// A value of an ordinary row.
#[derive(Debug, Clone, PartialEq)]
pub enum ScratchValue {
    /// An integer.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// A boolean.
    Boolean(bool),
    /// A text, a date or a time.
    Text(String),
    /// A blob of one byte.
    Byte(u8),
}

impl ScratchValue {
    /// Returns the value as an SQL literal.
    pub(crate) fn to_sql_literal(&self, dialect: Dialect) -> String {
        match self {
            Self::Integer(number) => number.to_string(),
            Self::Real(number) => number.to_string(),
            Self::Boolean(true) => "TRUE".to_owned(),
            Self::Boolean(false) => "FALSE".to_owned(),
            Self::Text(text) => string_literal(text, dialect),
            Self::Byte(byte) => format!("x'{byte:02x}'"),
        }
    }
}

/// Returns a text as an SQL literal.
pub(crate) fn string_literal(text: &str, dialect: Dialect) -> String {
    let text = text.replace('\'', "''");
    // In MySQL, a backslash escapes the next character.
    if dialect == Dialect::Mysql { format!("'{}'", text.replace('\\', "\\\\")) } else { format!("'{text}'") }
}
