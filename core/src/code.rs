//! The codes of our messages: `P0123`, a name, and an explanation. A code never changes its meaning, and numbers
//! are never reused.
//!
//! Each kind of message is a separate enum (diagnostics of specs, findings of the gate, reasons for an inconclusive
//! run, …). One table for each enum assigns the codes with an exhaustive match, so a message without an explanation
//! does not compile. [`all`] returns the codes of all tables.

use std::sync::LazyLock;

use serde::{Deserialize, Deserializer};

mod command;
mod engine;
pub(crate) mod error_code;
mod gate;
mod problem;
mod run;
mod spec;
mod sql;
mod sql_queue;

pub use crate::code::error_code::{CodeExplanation, Coded, ErrorCode};
pub use command::CommandCode;
pub use engine::EngineCode;
pub use sql_queue::SqlQueueCode;

/// Returns all codes, ordered by number.
pub fn all() -> &'static [ErrorCode] {
    static CODES: LazyLock<Vec<ErrorCode>> = LazyLock::new(|| {
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
    });
    &CODES
}

impl ErrorCode {
    /// Finds a code by `P0123`, `p123`, `123` or its name, such as `spec::unknown_key`.
    pub fn find(text: &str) -> Option<Self> {
        let codes = all();
        let digits = text.strip_prefix(['P', 'p']).unwrap_or(text);
        let is_number = !digits.is_empty() && digits.len() <= 4 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let at = if is_number {
            let number: u16 = digits.parse().ok()?;
            codes.binary_search_by_key(&number, |code| code.number).ok()
        } else {
            codes.iter().position(|code| code.name == text)
        };
        at.map(|at| codes[at])
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

Every error of Proctor begins with a code, such as `error[P0116]: a step has no key `timout_ms``. `proctor explain P0116`
prints the section about the code on this page, and `proctor explain --codes` lists all codes. A code never changes its
meaning, and a number is never reused. In JSON, errors, problems, diagnostics and findings of the gate have the code in
`code`, and some also have its name in `name`.

| codes | about |
|---|---|
| `P00xx` | the command line, and its connection to the daemon |
| `P01xx` | specs, and the operator's config |
| `P02xx` | runs that were not possible |
| `P03xx` | reasons why the gate does not pass |
| `P04xx` | reasons why a run is inconclusive |
| `P05xx` | requests to the daemon |

<!-- Written by `cargo xtask schemas` from core/src/code/. -->
";

#[cfg(test)]
mod tests;
