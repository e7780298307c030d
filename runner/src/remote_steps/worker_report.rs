//! Examines the report of a worker's agent. The worker is another machine, and may be wrong or hostile.

use std::collections::BTreeMap;

use proctor_core::model::enforcement::{Control, ControlState};
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::StartFault;
use proctor_core::model::plan::PlannedCheck;
use proctor_core::record::evidence::{WorkerEvidence, WorkerProgram, escape_output};
use proctor_sandbox::WaitStatus;
use proctor_sandbox::agent::{
    AGENT_PROTOCOL, AgentAttempt, AgentReport, AgentRequest, AgentStream, CheckReport, WorkerFacts,
};

use crate::step::output::ReceivedStream;
use crate::step::toolchain_version;

/// Maximum number of characters of a text of the worker.
const MAX_TEXT: usize = 200;
/// Maximum number of programs of a report. A request has one for each check and one for the step.
const MAX_PROGRAMS: usize = 100;

/// The reason why a report is not valid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReportFault {
    /// The report belongs to another request.
    #[error("the report of the worker belongs to another request")]
    Foreign,
    /// The version of the agent differs.
    #[error("the agent of the worker uses protocol {0}, and {AGENT_PROTOCOL} is required")]
    Version(u32),
    /// The report contradicts itself or the request.
    #[error("the report of the worker is contradictory: {0}")]
    Contradiction(&'static str),
    /// The worker lacks controls of the sandbox that must not be missing.
    #[error("the worker's sandbox is not sufficient: {0}")]
    Sandbox(String),
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
        return Err(ReportFault::Contradiction("its checks differ from the checks of the request"));
    }
    let has_step = report.attempt.is_some();
    let have_passed = report.checks.len() == request.checks.len() && report.checks.iter().all(has_passed);
    if has_step != have_passed {
        return Err(ReportFault::Contradiction("the step ran without its checks, or did not run after them"));
    }
    let checks = report.checks.iter().map(|check| &check.attempt).zip(&request.checks);
    for (attempt, command) in checks.chain(report.attempt.iter().map(|attempt| (attempt, &request.step))) {
        // A status belongs to a command that was started, and every control was set up before.
        let has_ended = attempt.status.is_none() || (attempt.started && !attempt.enforcement.0.is_empty());
        if !has_ended || attempt.started == attempt.not_started.is_some() {
            return Err(ReportFault::Contradiction("a command has a result, but was not started"));
        }
        if attempt.timed_out && attempt.started && attempt.duration_ms < command.timeout_ms {
            return Err(ReportFault::Contradiction("a command was ended before its timeout"));
        }
    }
    Ok(())
}

/// Requires that the worker's sandbox was complete enough for each command.
///
/// # Errors
/// A command did not start, because a control is missing.
pub(crate) fn require_controls(request: &AgentRequest, report: &AgentReport) -> Result<(), ReportFault> {
    let attempts = report.checks.iter().map(|check| &check.attempt).chain(&report.attempt);
    let refused = attempts.filter_map(|attempt| match &attempt.not_started {
        Some((StartFault::Sandbox, reason)) => Some((attempt, reason)),
        _ => None,
    });
    let Some((attempt, reason)) = refused.into_iter().next() else { return Ok(()) };
    let missing = attempt.enforcement.missing().map(|(control, _)| control);
    let missing = missing.filter(|control| !request.tolerated.contains(*control)).map(Control::as_str);
    let missing = missing.collect::<Vec<_>>().join(", ");
    Err(ReportFault::Sandbox(match missing.is_empty() {
        true => worker_text(reason),
        false => format!("it lacks {missing}, which `may_miss` of `[remote_executor]` does not contain"),
    }))
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

/// Cleans the texts of an attempt, which come from the worker: its controls, and the names of processes.
pub(crate) fn clean_texts(attempt: &mut AgentAttempt) {
    for state in attempt.enforcement.0.values_mut() {
        let (text, hint) = match state {
            ControlState::Enforced { mechanism } => (mechanism, None),
            ControlState::NotRequested { reason } => (reason, None),
            ControlState::NotEnforced { reason, hint } => (reason, hint.as_mut()),
        };
        [text].into_iter().chain(hint).for_each(clean);
    }
    if let Some(LeakedProcesses { processes, first, .. }) = attempt.leaked.take() {
        let mut leaked = LeakedProcesses::new(processes, first);
        leaked.first.iter_mut().for_each(|process| clean(&mut process.name));
        attempt.leaked = Some(leaked);
    }
}

/// Escapes and shortens a text, unless it is short and plain: an honest agent has escaped it already.
fn clean(text: &mut String) {
    let is_plain = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if text.len() > MAX_TEXT || !text.bytes().all(is_plain) {
        *text = worker_text(text);
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
    let contradiction = ReportFault::Contradiction("the sizes of an output are inconsistent");
    let head_bytes = usize::try_from(stream.head_bytes).ok().filter(|head| *head <= content.len());
    let (Some(head_bytes), Some(sha256)) = (head_bytes, &stream.sha256) else { return Err(contradiction) };
    let (head, tail) = content.split_at(head_bytes);
    let is_whole = stream.head_bytes == stream.bytes;
    if is_whole != tail.is_empty() || (content.len() as u64) > stream.bytes {
        return Err(contradiction);
    }
    Ok(ReceivedStream { head, tail, bytes: stream.bytes, sha256, complete: stream.complete })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use proctor_core::model::enforcement::{Control, Enforcement, Tolerated};
    use proctor_core::model::leak::LeakedProcess;
    use proctor_core::model::plan::VersionDemand;
    use proctor_core::record::evidence::Resources;
    use proctor_core::text::digest::Sha256Hex;
    use proctor_sandbox::FileBatches;
    use proctor_sandbox::agent::AgentCommand;

    use super::*;

    fn command(name: &str) -> AgentCommand {
        let step = crate::test_support::step("it", &["true"]);
        AgentCommand {
            name: name.to_owned(),
            workdir: step.workdir,
            argv: step.cmd,
            files: FileBatches::default(),
            env: BTreeMap::new(),
            network: step.network,
            limits: step.limits,
            leaks: step.leaks,
            timeout_ms: 1,
            grace_ms: 1,
            max_output_bytes: 1,
        }
    }

    fn request() -> AgentRequest {
        AgentRequest {
            version: AGENT_PROTOCOL,
            nonce: "n1".to_owned(),
            repo: PathBuf::from("/r"),
            home: PathBuf::from("/h"),
            step: command("it"),
            checks: vec![command("tool")],
            layers: Vec::new(),
            caches: Vec::new(),
            needed_paths: Vec::new(),
            has_git: false,
            tolerated: Tolerated::default(),
            max_changes_bytes: 1,
        }
    }

    fn ended(code: u8) -> AgentAttempt {
        let mut enforcement = Enforcement::default();
        enforcement.record_enforced(Control::Landlock, "ABI 7");
        AgentAttempt {
            started: true,
            not_started: None,
            status: Some(WaitStatus::Code(code)),
            limit: None,
            timed_out: false,
            cancelled: false,
            duration_ms: 1,
            enforcement,
            resources: Resources::default(),
            leaked: None,
            processes_ended: true,
            exhausted: Vec::new(),
        }
    }

    fn check(code: u8, stdout: &str) -> CheckReport {
        CheckReport { name: "tool".to_owned(), attempt: ended(code), stdout: stdout.to_owned(), stderr: String::new() }
    }

    fn report() -> AgentReport {
        AgentReport {
            version: AGENT_PROTOCOL,
            nonce: "n1".to_owned(),
            worker: WorkerFacts {
                architecture: "x86_64".to_owned(),
                kernel: "6.8\u{1b}[31m".to_owned(),
                os: "debian 12".to_owned(),
                processors: 4,
                programs: Vec::new(),
            },
            repo: PathBuf::from("/r"),
            checks: vec![check(0, "tool 1.2.3")],
            attempt: Some(ended(1)),
            stdout: AgentStream::default(),
            stderr: AgentStream::default(),
            changes: Vec::new(),
            changes_error: None,
        }
    }

    #[test]
    fn report_of_another_request_does_not_count() {
        let judge = |report| require_own_report(&request(), &report);
        assert_eq!(judge(report()), Ok(()));
        assert_eq!(judge(AgentReport { nonce: "n2".to_owned(), ..report() }), Err(ReportFault::Foreign));
        assert_eq!(judge(AgentReport { version: 99, ..report() }), Err(ReportFault::Version(99)));
    }

    #[test]
    fn contradictory_report_does_not_count() {
        let renamed = CheckReport { name: "other".to_owned(), ..check(0, "") };
        let unstarted = AgentAttempt { started: false, ..ended(0) };
        let unconfined = AgentAttempt { enforcement: Enforcement::default(), ..ended(0) };
        let fault = Some((StartFault::ProgramMissing, "no program".to_owned()));
        let early = AgentAttempt { timed_out: true, duration_ms: 0, ..ended(0) };
        let both = AgentAttempt { not_started: fault.clone(), ..ended(0) };
        for (case, wrong) in [
            ("a step without its check", AgentReport { checks: Vec::new(), ..report() }),
            ("a step after a failed check", AgentReport { checks: vec![check(1, "")], ..report() }),
            ("no step after its check", AgentReport { attempt: None, ..report() }),
            ("another check", AgentReport { checks: vec![renamed], ..report() }),
            ("more checks", AgentReport { checks: vec![check(0, ""), check(0, "")], ..report() }),
            ("a result without a start", AgentReport { attempt: Some(unstarted), ..report() }),
            ("a start without controls", AgentReport { attempt: Some(unconfined), ..report() }),
            ("a start and a reason against it", AgentReport { attempt: Some(both), ..report() }),
            ("a timeout before its time", AgentReport { attempt: Some(early), ..report() }),
        ] {
            let judged = require_own_report(&request(), &wrong);
            assert!(matches!(judged, Err(ReportFault::Contradiction(_))), "{case}: {judged:?}");
        }
        let missing = AgentAttempt { started: false, status: None, not_started: fault, ..ended(0) };
        assert_eq!(require_own_report(&request(), &AgentReport { attempt: Some(missing), ..report() }), Ok(()));
    }

    #[test]
    fn toolchain_of_the_worker_must_satisfy_the_plan() {
        let planned = |version| PlannedCheck {
            toolchain: "tool".parse().expect("a name"),
            version,
            run: crate::test_support::step("tool", &["tool", "--version"]),
        };
        let range = |range: &str| vec![planned(VersionDemand::Range { range: range.to_owned() })];
        let found = examine_checks(&range(">=1.2"), &report()).expect("satisfied");
        assert_eq!(found, BTreeMap::from([("tool".to_owned(), Some("1.2.3".to_owned()))]));
        let error = examine_checks(&range(">=2"), &report()).expect_err("too old").to_string();
        assert!(error.contains("`tool`") && error.contains("version 1.2.3"), "{error}");
        let failed = AgentReport { checks: vec![check(127, "")], attempt: None, ..report() };
        let error = examine_checks(&range(">=1"), &failed).expect_err("failed").to_string();
        assert!(error.contains("exit code 127"), "{error}");
    }

    #[test]
    fn names_all_controls_that_prevent_a_command() {
        assert_eq!(require_controls(&request(), &report()), Ok(()));
        let mut refused = AgentAttempt { started: false, status: None, ..ended(0) };
        refused.not_started = Some((StartFault::Sandbox, "no \u{7}reason".to_owned()));
        let judge = |refused: &AgentAttempt| {
            let check = CheckReport { attempt: refused.clone(), ..check(0, "") };
            let report = AgentReport { checks: vec![check], attempt: None, ..report() };
            require_controls(&request(), &report).expect_err("refused").to_string()
        };
        assert_eq!(judge(&refused), "the worker's sandbox is not sufficient: no \\x07reason");
        for control in [Control::Cgroup, Control::Landlock, Control::PidNamespace] {
            refused.enforcement.record_not_enforced(control, "no");
        }
        let expected = "it lacks pid_namespace, landlock, which `may_miss` of `[remote_executor]` does not contain";
        assert!(judge(&refused).ends_with(expected), "{}", judge(&refused));
    }

    #[test]
    fn texts_of_the_worker_are_escaped_and_bounded() {
        let evidence = worker_evidence(&report().worker, BTreeMap::new());
        assert_eq!(evidence.kernel, "6.8\\x1b[31m");
        assert_eq!(worker_text(&"x".repeat(1_000)).len(), MAX_TEXT);
        let mut attempt = ended(0);
        attempt.enforcement.record_enforced(Control::Keyring, "\u{1b}[2J");
        attempt.enforcement.record_not_enforced(Control::Cgroup, "x".repeat(1_000));
        let process = |pid, name: &str| LeakedProcess { pid, name: name.to_owned() };
        let first =
            [process(1, "\u{7}bell"), process(2, "a\\x07")].into_iter().chain((3..99).map(|pid| process(pid, "c")));
        attempt.leaked = Some(LeakedProcesses { processes: 98, at_least: false, first: first.collect() });
        clean_texts(&mut attempt);
        let controls = serde_json::to_string(&attempt.enforcement).expect("encoded");
        assert!(!controls.contains("u001b") && controls.len() < 1_000, "{controls}");
        assert!(controls.contains("ABI 7"), "a plain text is unchanged: {controls}");
        let leaked = attempt.leaked.expect("processes").first;
        assert_eq!((leaked.len(), leaked[0].name.as_str(), leaked[1].name.as_str()), (8, "\\x07bell", "a\\x07"));
    }

    #[test]
    fn sizes_of_an_output_must_fit() {
        let stream = |bytes, head_bytes| AgentStream {
            bytes,
            head_bytes,
            sha256: Some(Sha256Hex::digest(b"abcd")),
            complete: true,
        };
        let whole = stream(4, 4);
        assert_eq!(received_stream(&whole, b"abcd").expect("whole").head, b"abcd");
        let cut = stream(9, 2);
        let received = received_stream(&cut, b"abij").expect("cut");
        assert_eq!((received.head, received.tail, received.bytes), (&b"ab"[..], &b"ij"[..], 9));
        for (wrong, content) in
            [(stream(4, 5), "abcd"), (stream(4, 4), "abc"), (stream(9, 4), "abcd"), (stream(3, 2), "abcd")]
        {
            received_stream(&wrong, content.as_bytes()).expect_err(content);
        }
        received_stream(&AgentStream { sha256: None, ..stream(4, 4) }, b"abcd").expect_err("no digest");
    }
}
