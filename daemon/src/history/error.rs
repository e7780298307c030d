//! Errors of the history.

use std::path::PathBuf;

use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::names::RunId;
use proctor_runner::StoreError;

/// Reason why the history cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenHistoryError {
    /// Another daemon uses the state directory.
    #[error("another daemon uses the state directory `{}`\nhint: `proctor daemon status` shows it; or choose another directory with `--state-dir`", .0.display())]
    InUse(PathBuf),
    /// A file or the index cannot be used.
    #[error("the history of runs in `{}` cannot be opened: {}", path.display(), source.message_with_hint())]
    Failed {
        /// Directory of the history.
        path: PathBuf,
        /// Cause of the failure.
        source: HistoryError,
    },
}

/// Reason why a run cannot be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A file operation failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index cannot be used.
    #[error("the index of runs cannot be used: {0}")]
    Index(#[from] rusqlite::Error),
    /// The index failed and could not be reopened.
    #[error("the index of runs is not available")]
    IndexUnavailable,
    /// The idempotency key was used for another run.
    #[error("the key was already used for the run `{0}`")]
    KeyUsed(RunId),
    /// The run does not exist.
    #[error("there is no run `{0}`")]
    UnknownRun(RunId),
    /// The cursor is invalid.
    #[error("`{0}` is not a page cursor")]
    InvalidCursor(String),
    /// The log of a run is damaged.
    #[error("the log of the run `{run}` is damaged: {reason}")]
    Damaged {
        /// The run.
        run: RunId,
        /// Description of the damage.
        reason: String,
    },
    /// The event is the first or the last one of a run, and cannot be logged at this position.
    #[error("the start and the end of a run can be logged only once")]
    MisplacedEvent,
    /// The event cannot be serialized as JSON.
    #[error("an event cannot be written: {0}")]
    UnserializableEvent(serde_json::Error),
    /// The event exceeds the size limit.
    #[error("an event has {bytes} bytes, but a log accepts at most {limit}")]
    TooLarge {
        /// Size of the event in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl HistoryError {
    /// Returns the message, with the hint on a second line.
    pub fn message_with_hint(&self) -> String {
        match self.problem().hint {
            Some(hint) => format!("{self}\nhint: {hint}"),
            None => self.to_string(),
        }
    }

    /// Returns the message and the hint on one line.
    pub(super) fn single_line_message(&self) -> String {
        self.message_with_hint().replace("\nhint: ", "; ")
    }

    /// Returns the problem that the caller receives.
    pub fn problem(&self) -> Problem {
        let kind = match self {
            Self::InvalidCursor(_) => ProblemType::InvalidRequest,
            Self::KeyUsed(_) => ProblemType::Conflict,
            Self::UnknownRun(_) => ProblemType::NotFound,
            Self::Store(_) | Self::Index(_) | Self::IndexUnavailable => ProblemType::Unavailable,
            Self::Damaged { .. } | Self::MisplacedEvent | Self::UnserializableEvent(_) | Self::TooLarge { .. } => {
                ProblemType::Internal
            }
        };
        let problem = Problem::new(kind, self.to_string());
        match self {
            Self::Store(_) | Self::Index(_) => {
                problem.with_hint("free space in the daemon's state directory, and make sure that it is writable")
            }
            Self::InvalidCursor(_) => {
                problem.with_hint("use the unchanged `next_cursor` of the previous page, or omit it")
            }
            _ => problem,
        }
    }
}
