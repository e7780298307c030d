//! Why something cannot be remembered, or not be recalled.

use proctor_core::api::{Problem, ProblemType};
use proctor_core::names::RunId;
use proctor_runner::StoreError;

/// Why something cannot be remembered, or not be recalled.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// The file system refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The index cannot be used.
    #[error("the index of runs cannot be used: {0}")]
    Index(#[from] rusqlite::Error),
    /// The index failed, and is not at hand.
    #[error("the index of runs is not available")]
    NoIndex,
    /// The key was used for another run.
    #[error("the key was already used for the run `{0}`")]
    KeyUsed(RunId),
    /// There is no such run.
    #[error("there is no run `{0}`")]
    NoRun(RunId),
    /// A cursor that no page has given.
    #[error("`{0}` is not a page cursor")]
    Cursor(String),
    /// The log of a run does not tell what it must.
    #[error("the log of the run `{run}` is damaged: {reason}")]
    Damaged {
        /// The run.
        run: RunId,
        /// What was found.
        reason: String,
    },
    /// An event that cannot be where it was to be logged: the beginning or the end of a run.
    #[error("the start and the end of a run can be logged only once")]
    Misplaced,
    /// An event that cannot be written as JSON.
    #[error("an event cannot be written: {0}")]
    Unwritable(serde_json::Error),
    /// An event that is larger than any.
    #[error("an event has {bytes} bytes, but a log accepts at most {limit}")]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The bound.
        limit: usize,
    },
}

impl HistoryError {
    /// The message, and what to do on a line of its own.
    pub fn with_hint(&self) -> String {
        match self.problem().hint {
            Some(hint) => format!("{self}\nhint: {hint}"),
            None => self.to_string(),
        }
    }

    /// The same on one line.
    pub(super) fn on_a_line(&self) -> String {
        self.with_hint().replace("\nhint: ", "; ")
    }

    /// What a caller is told.
    pub fn problem(&self) -> Problem {
        let kind = match self {
            Self::Cursor(_) => ProblemType::InvalidRequest,
            Self::KeyUsed(_) => ProblemType::Conflict,
            Self::NoRun(_) => ProblemType::NotFound,
            Self::Store(_) | Self::Index(_) | Self::NoIndex => ProblemType::Unavailable,
            Self::Damaged { .. } | Self::Misplaced | Self::Unwritable(_) | Self::TooLarge { .. } => {
                ProblemType::Internal
            }
        };
        let problem = Problem::new(kind, self.to_string());
        match self {
            Self::Store(_) | Self::Index(_) => {
                problem.with_hint("make room in the daemon's state directory, and make sure that it can be written")
            }
            Self::Cursor(_) => problem.with_hint("use the unchanged `next_cursor` of the previous page, or omit it"),
            _ => problem,
        }
    }
}
