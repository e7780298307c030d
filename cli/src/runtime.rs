//! Runs asynchronous work to completion.

use std::num::NonZero;
use std::thread::available_parallelism;

use crate::error::CliError;

/// Maximum number of worker threads. Each one takes time to start, and the long work runs on other threads.
const MAX_WORKERS: usize = 4;

/// Runs `work` on a multi-threaded runtime.
pub(crate) fn block_on<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(available_parallelism().map_or(1, NonZero::get).min(MAX_WORKERS));
    block_on_runtime(builder, work)
}

/// Runs `work` on a single-threaded runtime. This suits work that mostly waits, for a daemon for example: starting
/// worker threads would take longer than the work itself.
pub(crate) fn block_on_one_thread<T>(work: impl Future<Output = Result<T, CliError>>) -> Result<T, CliError> {
    block_on_runtime(tokio::runtime::Builder::new_current_thread(), work)
}

fn block_on_runtime<T>(
    mut builder: tokio::runtime::Builder,
    work: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let runtime = builder.enable_all().build().map_err(|error| CliError::Environment {
        message: format!("threads could not be started: {error}"),
        hint: "raise the limit of processes (`ulimit -u`)".to_owned(),
    })?;
    let result = runtime.block_on(work);
    // Tasks that are still running have no result to deliver and must not delay the exit.
    runtime.shutdown_background();
    result
}
