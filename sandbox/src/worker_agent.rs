//! Implements the agent program of a remote worker, `proctor-sandbox agent`. It runs one request of [`agent`], in the
//! directory that is the input root of its action:
//!
//! 1. It reads the request, and copies the tree to a directory of its own. The inputs themselves may be links to files
//!    of the worker's store, so no step may write them.
//! 2. It creates a run space, and a layer for each earlier step.
//! 3. It runs the checks of the toolchains over an empty tree, and then the step. Each command has its own sandbox, in
//!    which missing controls are tolerated and recorded.
//! 4. It lists the writes of the step, stores the outputs, and writes the report last.
//!
//! The agent has no result of its own: a report says what happened, and without a report nothing is known.
//!
//! [`agent`]: crate::agent

mod attempt;
mod command_runner;
mod input_root;
mod mount_points;
mod outputs;
mod request;
mod stream_capture;
mod termination_signals;
mod tree_import;
mod worker_facts;

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

use self::command_runner::{CommandRunner, StepRun};
use self::input_root::InputRoot;
use self::termination_signals::TerminationSignals;
use crate::agent::{AGENT_PROTOCOL, AgentReport, AgentRequest, CheckReport};
use crate::error::SandboxError;
use crate::layer_changes::LayerChangeError;
use crate::resource_report::WaitStatus;

/// The first argument of the program that selects the agent.
pub const AGENT_ARGUMENT: &str = "agent";
/// Exit code for a request that the agent cannot read.
const EXIT_BAD_REQUEST: u8 = 65;
/// Exit code for an error of the worker that prevents a report.
const EXIT_NO_REPORT: u8 = 70;

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
enum AgentError {
    /// The request cannot be read or contains an invalid value.
    #[error("the request is not valid: {0}\nhint: the worker must run the agent of the version that wrote the request")]
    BadRequest(String),
    /// A file or directory of the worker cannot be used.
    #[error("{what} `{}`: {source}", path.display())]
    Path { what: &'static str, path: PathBuf, source: io::Error },
    /// A system call failed.
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
    /// An earlier layer cannot be created.
    #[error("cannot apply the writes of an earlier step: {0}")]
    Layer(#[from] LayerChangeError),
    /// No sandbox can be started.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
}

impl AgentError {
    fn path<E: Into<io::Error>>(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(E) -> Self {
        let path = path.into();
        move |source| Self::Path { what, path, source: source.into() }
    }

    fn system<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Self {
        move |source| Self::System { what, source: source.into() }
    }
}

/// Runs the agent in the current directory.
pub fn main() -> ExitCode {
    match serve_request() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(match error {
                AgentError::BadRequest(_) => EXIT_BAD_REQUEST,
                _ => EXIT_NO_REPORT,
            })
        }
    }
}

fn serve_request() -> Result<(), AgentError> {
    // This comes before the first thread, which inherits the blocked signals.
    let signals = TerminationSignals::block()?;
    let root = InputRoot::current()?;
    root.remove_outputs()?;
    let request = request::read(&root)?;
    let report = run(&request, &root, &signals)?;
    outputs::write_report(&root, report)
}

/// Runs the commands of the request. All of the agent's own files are removed at the end, except for the outputs.
fn run(request: &AgentRequest, root: &InputRoot, signals: &TerminationSignals) -> Result<AgentReport, AgentError> {
    let mut runner = CommandRunner::prepare(request, root, signals)?;
    let worker = worker_facts::read(request, runner.tree());
    let mut checks = Vec::new();
    for check in request.checks.iter().take_while(|_| !signals.is_pending()) {
        checks.push(runner.run_check(check)?);
    }
    let may_run = checks.len() == request.checks.len() && checks.iter().all(has_succeeded) && !signals.is_pending();
    let StepRun { repo, attempt, stdout, stderr, changes, changes_error } = match may_run {
        true => runner.run_step()?,
        false => runner.skip_step()?,
    };
    Ok(AgentReport {
        version: AGENT_PROTOCOL,
        nonce: request.nonce.clone(),
        worker,
        repo,
        checks,
        attempt,
        stdout,
        stderr,
        changes,
        changes_error,
    })
}

fn has_succeeded(check: &CheckReport) -> bool {
    check.attempt.started && check.attempt.status == Some(WaitStatus::Code(0))
}
