//! Reasons why an answer of a model has no statement.

/// Maximum size of an answer that is read, in bytes.
pub(crate) const MAX_ANSWER_BYTES: usize = 256 << 10;

/// The reason why an answer has no statement. The message is feedback for the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnreadableAnswer {
    /// The answer is empty.
    #[error("the answer is empty")]
    Empty,
    /// The answer is too long.
    #[error("the answer is longer than {} KiB", MAX_ANSWER_BYTES >> 10)]
    TooLong,
    /// The answer contains no SQL.
    #[error("the answer contains no SQL statement")]
    NoStatement,
    /// The answer contains several statements, and it is not clear which one is meant.
    #[error("the answer contains several SQL statements, and it is not clear which one is the answer")]
    Ambiguous,
    /// A block starts and does not end.
    #[error("the code block in the answer is not closed")]
    OpenFence,
    /// The model stopped because of the maximum number of tokens.
    #[error("the answer was cut at the maximum number of tokens")]
    Truncated,
}
