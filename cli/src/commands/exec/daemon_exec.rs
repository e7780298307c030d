//! Runs a command in a daemon, and converts the answer to the result that this process would have produced.

use proctor_client::error::ClientError;
use proctor_core::api::{ExecEvent, OutputStream, decode_hex};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::{EXIT_INCONCLUSIVE, EXIT_INTERRUPTED, Verdict};
use proctor_core::model::exec::ExecRecord;
use proctor_core::model::names::ExecId;
use proctor_core::model::outcome::Outcome;
use proctor_daemon::client::{Client, RemoteExecution};
use tokio_util::sync::CancellationToken;

use super::CompletedExec;
use crate::daemon::{client_error, problem_error};
use crate::error::CliError;

/// Follows a command whose request is in progress until it ends. A cancellation is forwarded. If this process exits,
/// the daemon kills the command.
///
/// # Errors
/// The daemon does not run the command, or its end is unknown.
pub(super) async fn follow_request(
    client: Client,
    request: impl Future<Output = Result<RemoteExecution, ClientError>>,
    cancel: CancellationToken,
) -> Result<CompletedExec, CliError> {
    let execution = tokio::select! {
        biased;
        execution = request => execution.map_err(client_error)?,
        () = cancel.cancelled() => return Err(cancelled_early_error()),
    };
    follow(&client, execution, &cancel).await
}

async fn follow(
    client: &Client,
    mut execution: RemoteExecution,
    cancel: &CancellationToken,
) -> Result<CompletedExec, CliError> {
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    let mut ending: Option<ExecId> = None;
    loop {
        let event = tokio::select! {
            event = execution.next() => event.map_err(lost_command_error)?,
            cancelled = forward_cancellation(client, ending.clone(), cancel), if ending.is_some() => {
                cancelled.map_err(lost_command_error)?;
                ending = None;
                continue;
            }
        };
        let mut print = |stream, piece: Vec<u8>| match stream {
            OutputStream::Stdout => stdout.extend(piece),
            OutputStream::Stderr => stderr.extend(piece),
        };
        match event {
            Some(ExecEvent::Started { id }) => ending = Some(id),
            Some(ExecEvent::Alive) => {}
            Some(ExecEvent::Output { stream, text }) => print(stream, text.into_bytes()),
            Some(ExecEvent::OutputBytes { stream, hex }) => print(stream, decode_hex(&hex).ok_or_else(bad_hex_error)?),
            Some(ExecEvent::Finished { record }) => return check_result(*record, stdout, stderr),
            Some(ExecEvent::Failed { problem }) => return Err(problem_error(*problem)),
            None => return Err(CliError::Internal("the daemon's response ended without a result".to_owned())),
        }
    }
}

/// Waits for a cancellation and forwards it to the daemon. A problem answer is ignored: the command has ended and its
/// result is about to arrive.
async fn forward_cancellation(
    client: &Client,
    id: Option<ExecId>,
    cancel: &CancellationToken,
) -> Result<(), ClientError> {
    let Some(id) = id else { return Ok(()) };
    cancel.cancelled().await;
    match client.cancel_exec(&id).await {
        Err(ClientError::Problem(_)) | Ok(()) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Rejects a result whose verdict and exit code contradict each other.
fn check_result(record: ExecRecord, stdout: Vec<u8>, stderr: Vec<u8>) -> Result<CompletedExec, CliError> {
    let passed = record.verdict == Verdict::Passed;
    if passed != (record.exit_code == 0) || passed && record.step.outcome != Outcome::Passed {
        let verdict = record.verdict.as_str();
        return Err(CliError::Internal(format!(
            "the daemon reported contradictory results for the command: verdict {verdict}, exit code {}, outcome {}",
            record.exit_code,
            record.step.outcome.as_str()
        )));
    }
    Ok(CompletedExec { record, stdout, stderr })
}

fn bad_hex_error() -> CliError {
    CliError::Internal("the daemon sent output of the command that is not hexadecimal".to_owned())
}

fn lost_command_error(error: ClientError) -> CliError {
    match error {
        ClientError::Problem(problem) => problem_error(*problem),
        error => CliError::Engine {
            message: format!("the result of the command is unknown, so it is not a pass: {error}"),
            hint: Some("run it again; `proctor daemon status` shows whether a daemon answers".to_owned()),
            exit_code: EXIT_INCONCLUSIVE,
            code: CommandCode::Lost.code(),
        },
    }
}

/// Returns the error for a cancellation before the daemon had answered.
fn cancelled_early_error() -> CliError {
    CliError::Engine {
        message: "the command was interrupted before the daemon had answered; the daemon ends it".to_owned(),
        hint: Some("run it again".to_owned()),
        exit_code: EXIT_INTERRUPTED,
        code: CommandCode::Unheard.code(),
    }
}
