//! Implements the agent program of a remote worker, `proctor-sandbox agent`. It runs one request of [`agent`], in the
//! directory that is the input root of its action:
//!
//! 1. It reads the request, and copies the tree to a separate directory. The inputs themselves may be links to files of
//!    the worker's store, so no step may write them.
//! 2. It creates a run space, and a layer for each earlier step.
//! 3. It runs the checks of the toolchains over a tree that has only the needed paths, and then the step over the whole
//!    tree. Each command has its own sandbox, in which only the controls that the request names may be missing.
//! 4. It lists the writes of the step, stores the outputs, and writes the report last.
//!
//! The exit code of the agent means nothing: the report describes the step, and without a report nothing is known about
//! it.
//!
//! [`agent`]: crate::agent

mod agent_error;
mod attempt;
mod command_runner;
mod input_root;
mod mount_points;
mod needed_paths;
mod outputs;
mod request;
mod stream_capture;
mod termination_signals;
mod tree_import;
mod worker_facts;

use std::process::ExitCode;

use self::agent_error::AgentError;
use self::command_runner::{CommandRunner, StepRun};
use self::input_root::InputRoot;
use self::termination_signals::TerminationSignals;
use crate::agent::{AGENT_PROTOCOL, AgentReport, AgentRequest, CheckReport};
use crate::resource_report::WaitStatus;

/// The first argument of the program that selects the agent.
pub const AGENT_ARGUMENT: &str = "agent";
/// Exit code for a request that the agent cannot read.
const EXIT_BAD_REQUEST: u8 = 65;
/// Exit code for an error of the worker that prevents a report.
const EXIT_NO_REPORT: u8 = 70;

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
    // Must come before the first thread, which inherits the blocked signals.
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
    let mut checks = Vec::new();
    for check in request.checks.iter().take_while(|_| !signals.is_pending()) {
        checks.push(runner.run_check(check)?);
    }
    runner.complete_tree()?;
    let worker = worker_facts::read(request, runner.tree());
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
