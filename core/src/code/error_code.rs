//! Represents the code of a message, and assigns codes to enums.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};

/// A code with its explanation.
#[derive(Debug, Clone, Copy)]
pub struct ErrorCode {
    pub(super) number: u16,
    pub(super) name: &'static str,
    pub(super) explanation: CodeExplanation,
}

/// The explanation of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeExplanation {
    /// What happened.
    pub meaning: &'static str,
    /// The reason why this is an error.
    pub reason: &'static str,
    /// The suggested fix.
    pub remedy: &'static str,
    /// An example: lines of a spec, a config or a shell.
    pub example: &'static str,
}

/// A type whose values have codes.
pub trait Coded {
    /// Returns the code.
    fn code(&self) -> ErrorCode;
}

impl JsonSchema for ErrorCode {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "MessageCode".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "The kind of the message; `proctor explain P0123` describes it.",
            "type": "string",
            "pattern": "^P[0-9]{4}$"
        })
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Formats the code as `P0123`.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P{:04}", self.number)
    }
}

impl Eq for ErrorCode {}

impl PartialEq for ErrorCode {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl ErrorCode {
    /// Returns the name, such as `spec::unknown_key`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the explanation.
    pub fn explanation(self) -> CodeExplanation {
        self.explanation
    }
}

/// Assigns a code to each member of an enum, and lists the members.
macro_rules! codes {
    ($family:ty; $($variant:ident, $number:literal, $name:literal, $means:literal, $why:literal, $mend:literal, $example:literal;)*) => {
        impl $crate::code::error_code::Coded for $family {
            fn code(&self) -> $crate::code::error_code::ErrorCode {
                match self {
                    $(Self::$variant => $crate::code::error_code::ErrorCode {
                        number: $number,
                        name: $name,
                        explanation: $crate::code::error_code::CodeExplanation {
                            meaning: $means,
                            reason: $why,
                            remedy: $mend,
                            example: $example,
                        },
                    },)*
                }
            }
        }

        /// All members of this enum.
        pub(in crate::code) const ALL: &[$family] = &[$(<$family>::$variant,)*];
    };
}
pub(super) use codes;
