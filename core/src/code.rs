//! The codes of our messages: `P0123`, a name, and an explanation. A code never changes its meaning, and numbers
//! are never reused.
//!
//! Each kind of message is a separate enum (diagnostics of specs, findings of the gate, reasons for an inconclusive
//! run, …). One table for each enum assigns the codes with an exhaustive match, so a message without an explanation
//! does not compile. [`all`] returns the codes of all tables.

mod command;
mod engine;
mod gate;
mod problem;
mod run;
mod spec;
mod sql;
mod sql_queue;

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use command::CommandCode;
pub use engine::EngineCode;
pub use sql_queue::SqlQueueCode;

/// A code with its explanation.
#[derive(Debug, Clone, Copy)]
pub struct ErrorCode {
    number: u16,
    name: &'static str,
    explanation: CodeExplanation,
}

/// The explanation of a code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeExplanation {
    /// What happened.
    pub meaning: &'static str,
    /// The reason why this is an error.
    pub reason: &'static str,
    /// What to do.
    pub remedy: &'static str,
    /// An example: lines of a spec, a config or a shell.
    pub example: &'static str,
}

/// A type whose values have codes.
pub trait Coded {
    /// Returns the code.
    fn code(&self) -> ErrorCode;
}

/// Assigns a code to each member of an enum, and lists the members.
macro_rules! codes {
    ($family:ty; $($variant:ident, $number:literal, $name:literal, $means:literal, $why:literal, $mend:literal, $example:literal;)*) => {
        impl $crate::code::Coded for $family {
            fn code(&self) -> $crate::code::ErrorCode {
                match self {
                    $(Self::$variant => $crate::code::ErrorCode {
                        number: $number,
                        name: $name,
                        explanation: $crate::code::CodeExplanation {
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
        pub(super) const ALL: &[$family] = &[$(<$family>::$variant,)*];
    };
}
use codes;

/// Returns all codes, ordered by number.
pub fn all() -> Vec<ErrorCode> {
    fn codes_of<T: Coded>(members: &[T]) -> impl Iterator<Item = ErrorCode> {
        members.iter().map(Coded::code)
    }
    let mut codes: Vec<ErrorCode> = codes_of(command::ALL)
        .chain(codes_of(spec::ALL))
        .chain(codes_of(engine::ALL))
        .chain(codes_of(gate::ALL))
        .chain(codes_of(run::ALL))
        .chain(codes_of(problem::ALL))
        .chain(codes_of(sql::ALL))
        .chain(codes_of(sql_queue::ALL))
        .collect();
    codes.sort_by_key(|code| code.number);
    codes
}

impl ErrorCode {
    /// Finds a code by `P0123`, `p123`, `123` or its name, such as `spec::unknown_key`.
    pub fn find(text: &str) -> Option<Self> {
        let digits = text.strip_prefix(['P', 'p']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.len() <= 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let number: Option<u16> = if is_number { digits.parse().ok() } else { None };
        all().into_iter().find(|code| Some(code.number) == number || code.name == text)
    }

    /// Returns the name, such as `spec::unknown_key`.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// Returns the explanation.
    pub fn explanation(self) -> CodeExplanation {
        self.explanation
    }
}

impl PartialEq for ErrorCode {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for ErrorCode {}

/// Formats the code as `P0123`.
impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "P{:04}", self.number)
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ErrorCode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::find(&text).ok_or_else(|| {
            let quoted = crate::spec::quoted(&text);
            serde::de::Error::custom(format!("{quoted} is not an error code of Proctor"))
        })
    }
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

/// Returns the page of the manual that lists every code.
pub fn render_manual_page() -> String {
    let mut text = String::from(PAGE_HEADER);
    for code in all() {
        let CodeExplanation { meaning: means, reason: why, remedy: mend, example } = code.explanation;
        text.push_str(&format!(
            "\n## {code}\n\n`{name}`. {means}\n\n*Why.* {why}\n\n*What to do.* {mend}\n\n```text\n{example}\n```\n",
            name = code.name
        ));
    }
    text
}

const PAGE_HEADER: &str = "\
# Error codes

Every error of Proctor has a code in its head, such as `error[P0116]: a step has no key `timout_ms``. `proctor explain
P0116` prints what stands here about it, and `proctor explain --codes` the list of all. A code never changes its
meaning, and its number is never used again. In JSON it is `code` of errors, problems, diagnostics and findings of the
gate, and `name` beside it, where there is one, its name.

| codes | about |
|---|---|
| `P00xx` | the command line, and the daemon as it sees it |
| `P01xx` | specs, and the operator's config |
| `P02xx` | runs that could not be had |
| `P03xx` | what speaks against a pass at the gate |
| `P04xx` | what makes a run inconclusive |
| `P05xx` | requests to the daemon |

<!-- Written by `cargo xtask schemas` from core/src/code/. -->
";

#[cfg(test)]
mod tests;
