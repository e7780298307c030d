//! Runs asynchronous work to completion.

use std::num::NonZero;
use std::thread::available_parallelism;

use tokio::runtime::{Builder, Runtime};

use crate::error::CliError;

/// Maximum number of worker threads. Each one takes time to start, and the long work runs on other threads.
const MAX_WORKERS: usize = 4;

/// Runs `work` on a multi-threaded runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let mut builder = Builder::new_multi_thread();
    builder.worker_threads(available_parallelism().map_or(1, NonZero::get).min(MAX_WORKERS));
    StartedRuntime::start(builder)?.block_on(work)
}

/// Runs `work` on a single-threaded runtime. This suits work that mostly waits, for a daemon for example: starting
/// worker threads would take longer than the work itself.
pub(crate) fn block_on_one_thread<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    StartedRuntime::one_thread()?.block_on(work)
}

/// A runtime that keeps its connections from one piece of work to the next. When it is dropped, it does not wait for tasks
/// that are still running: they have no result to deliver and must not delay the exit.
pub(crate) struct StartedRuntime(Option<Runtime>);

impl StartedRuntime {
    /// Starts a single-threaded runtime.
    ///
    /// # Errors
    /// The system refuses what a runtime needs.
    pub(crate) fn one_thread() -> Result<Self, CliError> {
        Self::start(Builder::new_current_thread())
    }

    fn start(mut builder: Builder) -> Result<Self, CliError> {
        let runtime = builder.enable_all().build().map_err(|error| CliError::Environment {
            message: format!("threads could not be started: {error}"),
            hint: "raise the limit of processes (`ulimit -u`)".to_owned(),
        })?;
        Ok(Self(Some(runtime)))
    }

    /// Runs `work` to completion.
    pub(crate) fn block_on<T>(&self, work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
        match &self.0 {
            Some(runtime) => runtime.block_on(work),
            None => Err(CliError::Internal("the runtime has ended".to_owned())),
        }
    }
}

impl Drop for StartedRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
