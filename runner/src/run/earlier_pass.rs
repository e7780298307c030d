//! Withdraws the earlier pass that a run could refute, before its first command starts.

use std::sync::Weak;

use proctor_core::record::status::LastRun;
use tokio::sync::OnceCell;

use crate::error::{EngineError, one_line};
use crate::store::documents::RunDocumentDir;

/// The earlier pass of a run that may start no command, because the results of all of its steps may be reused.
#[derive(Debug)]
pub(crate) struct EarlierPass {
    /// The documents of the run. Their lock must not outlast the run.
    documents: Weak<RunDocumentDir>,
    /// The state of the run while it has no result.
    pending: LastRun,
    withdrawn: OnceCell<Result<(), String>>,
}

impl EarlierPass {
    pub(crate) fn new(documents: Weak<RunDocumentDir>, pending: LastRun) -> Self {
        Self { documents, pending, withdrawn: OnceCell::new() }
    }

    /// Withdraws the pass durably, once. Must complete before a command starts.
    ///
    /// # Errors
    /// The pass cannot be withdrawn, as a sentence; no command may start.
    pub(crate) async fn withdraw(&self) -> Result<(), String> {
        self.withdrawn.get_or_init(|| self.withdraw_now()).await.clone()
    }

    async fn withdraw_now(&self) -> Result<(), String> {
        let (documents, pending) = (self.documents.clone(), self.pending.clone());
        let work = tokio::task::spawn_blocking(move || match documents.upgrade() {
            Some(documents) => documents.withdraw_earlier_pass(&pending).map_err(EngineError::from),
            None => Err(EngineError::Internal("the run has ended".to_owned())),
        });
        let reason = match work.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) => one_line(&error),
            Err(error) => error.to_string(),
        };
        Err(format!("an earlier pass cannot be withdrawn before the first command: {reason}"))
    }
}
