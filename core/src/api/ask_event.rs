//! The lines of the response to a question to a database with progress.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Problem;
use crate::sql::AskAnswer;

/// One line of the response to `POST /v1/sql/ask?progress=true`. The last line is `finished` or `failed`; a response
/// without either is incomplete.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
#[schemars(rename = "SqlAskEvent")]
pub enum AskEvent {
    /// The loop has begun a step.
    Step {
        /// A description in Proctor's own words. It contains no text of the model or the database.
        message: String,
    },
    /// The loop continues. The daemon sends a line at least every 15 s.
    Alive,
    /// The loop ended, with an answer or without one.
    Finished {
        /// The answer.
        answer: Box<AskAnswer>,
    },
    /// The daemon could not answer the question.
    Failed {
        /// The reason.
        problem: Box<Problem>,
    },
}
