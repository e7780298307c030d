//! A text with its judgement.

use proctor_core::sql::Judgement;
use schemars::JsonSchema;
use serde::Serialize;

/// A text that was judged.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Judged {
    /// The file name; `-` is standard input.
    pub(crate) file: String,
    /// The judgement.
    pub(crate) judgement: Judgement,
    /// The text.
    #[serde(skip)]
    pub(crate) text: String,
}
