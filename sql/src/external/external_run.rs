//! Describes statements that run on an external server, and how they end.

use crate::engine::{EngineRefusal, StatementOutcome};

/// A statement to run, with what its judgement found out.
pub(crate) struct JudgedStatement<'a> {
    pub(crate) sql: &'a str,
    /// True if the statement only reads.
    pub(crate) is_readonly: bool,
    /// True if the statement changes the schema.
    pub(crate) is_definition: bool,
    /// True if the rows beyond the limits may be left unread. The transaction cannot be continued afterwards.
    pub(crate) may_stop_early: bool,
}

/// The effects of statements on an external database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionEnd {
    /// The statements only read.
    ReadOnly,
    /// The effects are undone.
    Rollback,
    /// The effects are kept.
    Commit,
}

/// The reason why statements did not run to the end.
#[derive(Debug)]
pub(crate) enum RunFailure {
    /// The server cannot be reached.
    Connection(String),
    /// The server refuses a statement.
    Refused(EngineRefusal),
    /// The effects of a write on these tables cannot be undone.
    NotUndoable(Vec<String>),
    /// It is unknown whether the effects were kept.
    CommitUnknown(String),
}

impl From<EngineRefusal> for RunFailure {
    fn from(refusal: EngineRefusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Returns the number of rows that statements changed, including one more statement. The server also counts the rows
/// that a query returns.
pub(crate) fn add_changed(before: Option<u64>, ran: &StatementOutcome, is_readonly: bool) -> Option<u64> {
    match (is_readonly, ran.is_change_count_unknown) {
        (true, _) => before,
        (false, true) => None,
        (false, false) => before.map(|before| before + ran.changed),
    }
}

/// Returns the message of an error with those of its causes, none of them twice.
pub(crate) fn message_with_causes(error: &dyn std::error::Error) -> String {
    let mut messages: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let message = error.to_string();
        // Some errors repeat the message of their cause.
        messages.retain(|known| !message.contains(known.as_str()));
        if !messages.iter().any(|known| known.contains(&message)) {
            messages.push(message);
        }
        next = error.source();
    }
    messages.join(": ")
}
