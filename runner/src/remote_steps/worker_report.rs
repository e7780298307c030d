//! Examines the report of a worker's agent. The worker is another machine, and may be wrong or hostile.

use std::collections::BTreeMap;

use proctor_core::model::plan::PlannedCheck;
use proctor_core::record::evidence::{WorkerEvidence, WorkerProgram, escape_output};
use proctor_sandbox::WaitStatus;
use proctor_sandbox::agent::{AGENT_PROTOCOL, AgentReport, AgentRequest, AgentStream, CheckReport, WorkerFacts};

use crate::step::output::ReceivedStream;
use crate::step::toolchain_version;

/// Maximum number of characters of a text of the worker.
const MAX_TEXT: usize = 200;
/// Maximum number of programs of a report. A request has one for each check and one for the step.
const MAX_PROGRAMS: usize = 100;

/// The reason why a report does not count.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReportFault {
    /// The report belongs to another request.
    #[error("the report of the worker belongs to another request")]
    Foreign,
    /// The agent has another version.
    #[error("the agent of the worker uses protocol {0}, and {AGENT_PROTOCOL} is required")]
    Version(u32),
    /// The report contradicts itself or the request.
    #[error("the report of the worker is contradictory: {0}")]
    Contradiction(&'static str),
    /// The worker lacks a toolchain, or has the wrong version of one.
    #[error("the worker does not satisfy the toolchain `{toolchain}`: {problem}")]
    Toolchain {
        /// The toolchain.
        toolchain: String,
        /// What is wrong.
        problem: String,
    },
}

/// Requires that a report answers a request.
///
/// # Errors
/// It does not.
pub(crate) fn require_own_report(request: &AgentRequest, report: &AgentReport) -> Result<(), ReportFault> {
    if report.version != AGENT_PROTOCOL {
        return Err(ReportFault::Version(report.version));
    }
    if report.nonce != request.nonce {
        return Err(ReportFault::Foreign);
    }
    let names = |report: &CheckReport| report.name.clone();
    let expected = request.checks.iter().map(|check| check.name.clone());
    let are_same = report.checks.iter().map(names).zip(expected).all(|(one, other)| one == other);
    if !are_same || report.checks.len() > request.checks.len() {
        return Err(ReportFault::Contradiction("it has other checks than the request"));
    }
    let has_step = report.attempt.is_some();
    let have_passed = report.checks.len() == request.checks.len() && report.checks.iter().all(has_passed);
    if has_step != have_passed {
        return Err(ReportFault::Contradiction("the step ran without its checks, or did not run after them"));
    }
    let attempts = report.checks.iter().map(|check| &check.attempt).chain(&report.attempt);
    let is_possible = |attempt: &proctor_sandbox::agent::AgentAttempt| {
        // A status belongs to a command that was started, and every control was set up before.
        let has_ended = attempt.status.is_none() || (attempt.started && !attempt.enforcement.0.is_empty());
        has_ended && (attempt.started != attempt.not_started.is_some())
    };
    if !attempts.into_iter().all(is_possible) {
        return Err(ReportFault::Contradiction("a command has a result, but was not started"));
    }
    Ok(())
}

fn has_passed(check: &CheckReport) -> bool {
    let attempt = &check.attempt;
    attempt.status == Some(WaitStatus::Code(0)) && !attempt.timed_out && !attempt.cancelled && attempt.limit.is_none()
}

/// Returns the versions of the toolchains on the worker.
///
/// # Errors
/// A toolchain is missing, or has the wrong version.
pub(crate) fn examine_checks(
    checks: &[PlannedCheck],
    report: &AgentReport,
) -> Result<BTreeMap<String, Option<String>>, ReportFault> {
    let mut versions = BTreeMap::new();
    for (planned, found) in checks.iter().zip(&report.checks) {
        let toolchain = planned.toolchain.to_string();
        let command = &planned.run.cmd;
        let fault = |problem| ReportFault::Toolchain { toolchain: toolchain.clone(), problem };
        if !has_passed(found) {
            return Err(fault(match (&found.attempt.not_started, found.attempt.status) {
                (Some((_, reason)), _) => format!("`{command}` did not start: {}", worker_text(reason)),
                (None, Some(WaitStatus::Code(code))) => format!("`{command}` ended with exit code {code}"),
                (None, _) => format!("`{command}` did not pass"),
            }));
        }
        let reading = toolchain_version::check_version(&planned.version, &found.stdout, &found.stderr);
        if !reading.satisfied {
            let version = reading.version.map_or_else(|| "no version".to_owned(), |it| format!("version {it}"));
            return Err(fault(format!("`{command}` reports {version}, which is not in the required range")));
        }
        versions.insert(toolchain, reading.version.map(|version| worker_text(&version)));
    }
    Ok(versions)
}

/// Returns the record of a worker.
pub(crate) fn worker_evidence(facts: &WorkerFacts, toolchains: BTreeMap<String, Option<String>>) -> WorkerEvidence {
    let programs = facts.programs.iter().take(MAX_PROGRAMS).map(|program| WorkerProgram {
        name: worker_text(&program.name),
        path: program.path.as_ref().map(|path| worker_text(&path.display().to_string())),
        sha256: program.sha256.clone(),
    });
    WorkerEvidence {
        architecture: worker_text(&facts.architecture),
        kernel: worker_text(&facts.kernel),
        os: worker_text(&facts.os),
        processors: facts.processors,
        programs: programs.collect(),
        toolchains,
    }
}

/// Returns a text of the worker for records and screens: escaped and not too long.
pub(crate) fn worker_text(text: &str) -> String {
    escape_output(text.as_bytes()).chars().take(MAX_TEXT).collect()
}

/// Returns an output stream of a report with its content.
///
/// # Errors
/// The sizes contradict each other.
pub(crate) fn received_stream<'a>(
    stream: &'a AgentStream,
    content: &'a [u8],
) -> Result<ReceivedStream<'a>, ReportFault> {
    let contradiction = ReportFault::Contradiction("the sizes of an output do not fit");
    let head_bytes = usize::try_from(stream.head_bytes).ok().filter(|head| *head <= content.len());
    let (Some(head_bytes), Some(sha256)) = (head_bytes, &stream.sha256) else { return Err(contradiction) };
    let (head, tail) = content.split_at(head_bytes);
    let is_whole = stream.head_bytes == stream.bytes;
    if is_whole != tail.is_empty() || (content.len() as u64) > stream.bytes {
        return Err(contradiction);
    }
    Ok(ReceivedStream { head, tail, bytes: stream.bytes, sha256, complete: stream.complete })
}
