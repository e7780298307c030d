//! Reads the recorded documents of a run. `proctor-runner` writes them.

use std::io::{self, ErrorKind};
use std::path::PathBuf;

use bytes::Bytes;
use proctor_core::api::{Problem, ProblemType};
use proctor_core::model::names::RunId;
use proctor_runner::{StoreError, recorded_document};

use crate::caller::Caller;
use crate::service::Service;

/// Maximum size of a document that is read, in bytes.
pub const MAX_DOCUMENT: u64 = 64 << 20;

impl Service {
    /// Returns a document of a run by its name in [`proctor_core::api::RunView::evidence`], such as
    /// `verify/verify.lint.json`.
    ///
    /// The document is returned only if its bytes match the recorded digest, so the daemon never returns a file that
    /// was replaced.
    ///
    /// # Errors
    /// As [`Service::run`]; also if the run wrote no such document or the document no longer exists.
    pub async fn evidence(&self, caller: Caller, id: &RunId, file: &str) -> Result<Bytes, Problem> {
        let run = self.run(caller, id).await?;
        let unknown = || Problem::new(ProblemType::NotFound, format!("the run `{id}` has no document of this name"));
        let (directory, sha256) =
            run.view.evidence_dir.clone().zip(run.view.evidence.get(file).cloned()).ok_or_else(unknown)?;
        let (name, lost) = (file.to_owned(), document_gone(id, file));
        let read = move || recorded_document(&PathBuf::from(directory), &name, &sha256, MAX_DOCUMENT);
        match tokio::task::spawn_blocking(read).await {
            Ok(Ok(bytes)) => bytes.map(Bytes::from).ok_or(lost),
            Ok(Err(error)) => Err(read_problem(&error)),
            Err(panic) => Err(Problem::new(ProblemType::Internal, panic.to_string())),
        }
    }
}

fn document_gone(id: &RunId, file: &str) -> Problem {
    Problem::new(ProblemType::Gone, format!("`{file}` was changed after the run `{id}` wrote it"))
        .with_hint("a later run of the changeset replaced the file, or it was deleted; run again")
}

/// Maps a read error to a problem: `Gone` if something else is in the document's place, `Unavailable` if the disk
/// failed.
fn read_problem(error: &StoreError) -> Problem {
    let is_disk_error = |source: &io::Error| !matches!(source.kind(), ErrorKind::Other | ErrorKind::NotADirectory);
    let kind = match error {
        StoreError::Io { source, .. } if is_disk_error(source) => ProblemType::Unavailable,
        _ => ProblemType::Gone,
    };
    let problem = Problem::new(kind, error.to_string());
    error.hint().into_iter().fold(problem, Problem::with_hint)
}
