//! Positions in the text of a spec, and values that carry their position.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A range of bytes in the spec, and the line and column of its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Span {
    /// Offset of the first byte.
    pub start: u32,
    /// Offset after the last byte.
    pub end: u32,
    /// Line of the start, counted from 1.
    pub line: u32,
    /// Column of the start in characters, counted from 1.
    pub column: u32,
    /// The file: 0 for the spec itself, otherwise the number of an included file, in the order of the includes.
    #[serde(default, skip_serializing_if = "is_main_file")]
    pub file: u16,
}

/// Returns whether a position is in the spec itself.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
fn is_main_file(file: &u16) -> bool {
    *file == 0
}

impl Span {
    /// Returns whether this span contains all of `other`.
    pub fn contains(self, other: Self) -> bool {
        self.file == other.file && self.start <= other.start && other.end <= self.end
    }

    /// Returns the same position in another file.
    pub(super) fn in_file(self, file: u16) -> Self {
        Self { file, ..self }
    }
}

/// Formats the start as `line:column`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)?;
        match self.file {
            0 => Ok(()),
            number => write!(f, " of included file {number}"),
        }
    }
}

/// A value with its position. Comparison and serialization ignore the position.
#[derive(Debug, Clone, Copy, Default)]
pub struct Spanned<T> {
    /// The value.
    pub value: T,
    /// The position. A value that was not read from a spec has the default span.
    pub span: Span,
}

impl<T> Spanned<T> {
    /// Creates a value at `span`.
    pub fn new(value: T, span: Span) -> Self {
        Self { value, span }
    }
}

impl<T: PartialEq> PartialEq for Spanned<T> {
    fn eq(&self, other: &Self) -> bool {
        self.value == other.value
    }
}
impl<T: Eq> Eq for Spanned<T> {}

impl<T: Serialize> Serialize for Spanned<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.value.serialize(serializer)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Spanned<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::new(T::deserialize(deserializer)?, Span::default()))
    }
}

impl<T: JsonSchema> JsonSchema for Spanned<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }
    fn schema_id() -> std::borrow::Cow<'static, str> {
        T::schema_id()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        T::json_schema(generator)
    }
}
