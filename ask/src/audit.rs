//! The audit trail: every question, prompt, answer, judgement and execution in a SQLite database, in order. Each record
//! contains the hash of the previous one, and the head (the number and hash of the last record) is stored in a separate
//! file, so that a changed, missing or inserted record is found.

mod audit_lock;
mod head_file;
mod record;
mod trail;
mod verification;

use std::path::PathBuf;

pub use record::{AuditKind, StoredRecord};
pub use trail::{AskSummary, AuditTrail};
pub use verification::{AuditProblem, AuditReport};

/// The reason why the audit trail cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// A file cannot be read or written.
    #[error("the audit trail: `{}`: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The database cannot be read or written.
    #[error("the audit trail: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// Records are missing or were changed; nothing is appended to such a trail.
    #[error("the audit trail is damaged: {0}; hint: `proctor sql audit verify` shows details")]
    Damaged(AuditProblem),
    /// There is no audit trail.
    #[error("there is no audit trail in `{}`", .0.display())]
    Missing(PathBuf),
    /// A thread panicked.
    #[error("an internal task of proctor failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}
