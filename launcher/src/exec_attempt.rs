//! Runs a command in a daemon if that is certain to behave like the full command line.

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use proctor_client::blocking_connection::BlockingConnection;
use proctor_client::exec_handover::ExecHandover;
use proctor_client::exec_options::CommonExecOptions;
use proctor_client::exec_response::ExecResponse;
use proctor_client::installation::{ProcessEnvironment, load_operator_config};
use proctor_client::repository::find_repository;
use proctor_client::socket_candidates::{all_candidates, is_env_surely_sendable, start_health_check};
use proctor_core::api::{ExecEvent, ExecSubmission, OutputStream, decode_hex};
use proctor_core::code::{Coded as _, CommandCode};
use proctor_core::decision::verdict::EXIT_INCONCLUSIVE;
use proctor_core::report::terminal_text::escape_for_terminal;
use proctor_core::text::safe_text::escape_format_controls;

use crate::report;

/// Time to wait for the result. A longer command needs progress and handling of signals.
const SHORT_WAIT: Duration = Duration::from_millis(100);
/// Maximum size of a response that is read here, in bytes. It also bounds the file of a handover.
const MAX_RESPONSE: usize = 1 << 20;

/// The result of an attempt to run a command.
pub(crate) enum ExecAttempt {
    /// No command was sent.
    NotStarted,
    /// The command passed, and its output was printed. Contains the exit code.
    Printed(u8),
    /// The command was sent, and the full command line must handle its result.
    HandOver(ExecHandover),
}

/// Runs the command of the command line `words` if it is a common `exec` command and a daemon is ready for it. Leaves
/// the termination signals blocked if the command is handed over, because the next program must handle them.
pub(crate) fn attempt_exec(words: &[OsString]) -> ExecAttempt {
    let (connection, submission) = match prepare_command(words) {
        Some(prepared) => prepared,
        None => return ExecAttempt::NotStarted,
    };
    let Ok(blocked_signals) = proctor_sandbox::block_termination_signals() else { return ExecAttempt::NotStarted };
    let mut response = match ExecResponse::send(connection, &submission) {
        Ok(response) => response,
        // The daemon may have received the command, so it must not run again.
        Err(error) => return ExecAttempt::Printed(report_lost_command(&error)),
    };
    let mut received = Vec::new();
    let is_complete = response.wait(SHORT_WAIT, &mut received, MAX_RESPONSE);
    if is_complete && let Some(output) = plain_output(&mut response) {
        drop(blocked_signals);
        return ExecAttempt::Printed(output.print());
    }
    match ExecHandover::new(&response, &received) {
        Ok(handover) => {
            std::mem::forget(blocked_signals);
            ExecAttempt::HandOver(handover)
        }
        Err(error) => ExecAttempt::Printed(report_lost_command(&error)),
    }
}

/// Finds a daemon that is ready for the command, and builds the request. Returns `None` if the full command line must
/// handle the command.
fn prepare_command(words: &[OsString]) -> Option<(BlockingConnection, ExecSubmission)> {
    let options = CommonExecOptions::parse(words)?;
    if options.no_daemon || options.state_dir.is_some() {
        return None;
    }
    let environment = ProcessEnvironment::read().ok()?;
    // Without the variable, the home directory comes from the user database, which this program does not read.
    let is_common = environment.unreadable.is_empty()
        && environment.var("HOME").is_some_and(|home| Path::new(home).is_absolute())
        && is_env_surely_sendable(&environment.env);
    if !is_common {
        return None;
    }
    let repo = find_repository(options.repo.as_deref(), &environment.cwd).ok()?;
    let operator = load_operator_config(None, &environment).ok()?.operator;
    let health_check = start_health_check(&all_candidates(options.socket.as_deref(), &operator, &environment))?;
    // The daemon responds while the request is built.
    let submission = options.into_submission(repo.to_str()?.to_owned(), environment.env)?;
    Some((health_check.into_ready_connection()?, submission))
}

/// The output of a command.
#[derive(Debug, Default, PartialEq, Eq)]
struct CommandOutput {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

/// Returns the output of a command that passed without anything to add and without anything to escape.
fn plain_output(response: &mut ExecResponse) -> Option<CommandOutput> {
    if !response.parse().ok()? {
        return None;
    }
    let mut output = CommandOutput::default();
    while let Some(event) = response.next_event() {
        match event {
            ExecEvent::Started { .. } | ExecEvent::Alive => {}
            ExecEvent::Output { stream, text } => output.push(stream, text.as_bytes()),
            ExecEvent::OutputBytes { stream, hex } => output.push(stream, &decode_hex(&hex)?),
            ExecEvent::Finished { record } => return (record.is_plain_pass() && output.is_plain()).then_some(output),
            ExecEvent::Failed { .. } => return None,
        }
    }
    None
}

impl CommandOutput {
    fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        match stream {
            OutputStream::Stdout => self.stdout.extend_from_slice(bytes),
            OutputStream::Stderr => self.stderr.extend_from_slice(bytes),
        }
    }

    /// Returns whether the output looks the same after escaping.
    fn is_plain(&self) -> bool {
        [&self.stdout, &self.stderr].iter().all(|bytes| {
            let escaped = escape_for_terminal(bytes);
            escape_format_controls(&escaped).as_bytes() == bytes.as_slice()
        })
    }

    /// Prints the output and returns the exit code. A reader that closed the pipe does not change it.
    fn print(&self) -> u8 {
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(&self.stdout).and_then(|()| stdout.flush());
        // An error is ignored, because there is no other stream to report it on.
        let _ = std::io::stderr().write_all(&self.stderr);
        match written {
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                let code = CommandCode::Unwritten.code();
                report(&format!(
                    "error[{code}]: the result could not be written: {error}\nhint: check where standard output goes; \
                     the disk may be full, for instance"
                ));
                EXIT_INCONCLUSIVE
            }
            _ => 0,
        }
    }
}

/// Reports a command whose result cannot be known, and returns the exit code.
fn report_lost_command(error: &dyn std::fmt::Display) -> u8 {
    report(&format!(
        "error[{}]: the result of the command is unknown, so it is not a pass: {error}\nhint: run it again; `proctor \
         daemon status` shows whether a daemon answers",
        CommandCode::Lost.code()
    ));
    EXIT_INCONCLUSIVE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_that_needs_escaping_is_not_plain() {
        let output = |text: &[u8]| CommandOutput { stdout: text.to_vec(), stderr: Vec::new() };
        for plain in [&b""[..], b"a\tb\n", "\u{e9} \u{2713}\n".as_bytes(), b"a ::b"] {
            assert!(output(plain).is_plain(), "{plain:?}");
            assert!(CommandOutput { stdout: Vec::new(), stderr: plain.to_vec() }.is_plain());
        }
        for other in [&b"\x1b[1m"[..], b"a\r\n", b"\xff", b"::error::x", b"##[x]", "\u{202e}".as_bytes(), b"\0"] {
            assert!(!output(other).is_plain(), "{other:?}");
            assert!(!CommandOutput { stdout: Vec::new(), stderr: other.to_vec() }.is_plain());
        }
    }
}
