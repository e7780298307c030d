//! Runs the whole set-up once with `/bin/true`, to find out which controls are available on this machine.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use proctor_core::api::{DoctorAnswer, DoctorFinding, StepAccount};
use proctor_core::model::drift::display_path;
use proctor_core::model::enforcement::{Control, Enforcement, Tolerated};
use proctor_core::model::plan::{Argv, Leaks, Limit, Limits, Network, RelPath};
use proctor_core::model::trace::NoTrace;
use proctor_core::spec::OperatorConfig;
use rustix::event::{PollFd, PollFlags};

use crate::cgroup::NoCgroupError;
use crate::error::SandboxError;
use crate::host::{RepoFacts, StepUser};
use crate::launcher::Launcher;
use crate::policy::{GitDirs, Policy};
use crate::resource_report::WaitStatus;
use crate::run_space::{RunSpace, RunSpaceConfig, SandboxReuse};
use crate::running_sandbox::{EventPoll, RunningSandbox, SandboxEvent};

/// The results of the trial.
#[derive(Debug, Clone)]
pub struct DoctorReport {
    /// `true` if the set-up runs as root of the host.
    pub root: bool,
    /// The user of a step over this repository; `None` if no step can run.
    pub user: Option<StepUser>,
    /// The location where control groups are created, or the reason for having none.
    pub control_groups: Result<String, NoCgroupError>,
    /// The enforced controls if none is demanded, and the reasons why the others are missing; empty if not even such
    /// a sandbox was possible.
    pub enforcement: Enforcement,
    /// The reason why no command can run on a view of the host; `None` if commands can.
    pub no_view: Option<String>,
    /// The reason why no step can run at all; empty if one can.
    pub findings: Vec<UnmetRequirement>,
}

/// A missing requirement of every step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnmetRequirement {
    /// The missing control, if the requirement is a control.
    pub control: Option<Control>,
    /// The attempted action and the system's answer.
    pub message: String,
    /// How to fix the problem.
    pub hint: String,
}

impl DoctorReport {
    /// Converts the report to an API answer, with the operator's settings and the state directory.
    pub fn answer(self, operator: &OperatorConfig, state_dir: &Path) -> DoctorAnswer {
        let finding = |UnmetRequirement { control, message, hint }| DoctorFinding { control, message, hint };
        DoctorAnswer {
            root: self.root,
            user: self.user.map(|user| StepAccount { uid: user.uid(), gid: user.gid() }),
            control_groups: self.control_groups.ok(),
            enforcement: self.enforcement,
            findings: self.findings.into_iter().map(finding).collect(),
            state_dir: display_path(state_dir.as_os_str().as_encoded_bytes()),
            may_miss: operator.may_miss.controls().collect(),
            allows_best_effort: operator.allow_best_effort,
            no_view: self.no_view,
            copies: None,
            remote_cache: None,
            remote_executor: None,
        }
    }
}

/// Timeout of the trial.
const DEADLINE: Duration = Duration::from_secs(20);

/// Runs the whole set-up over `repo` once, with the network denied and `/bin/true` as the command. Missing controls
/// are left out where possible, so that one trial finds all of them.
pub fn doctor(launcher: &Launcher, repo: &Path) -> DoctorReport {
    let mut report = DoctorReport {
        root: launcher.host().is_root(),
        user: None,
        control_groups: launcher.control_groups().map_err(Clone::clone),
        enforcement: Enforcement::default(),
        no_view: None,
        findings: Vec::new(),
    };
    if let Err(error) = trial(launcher, repo, Tolerated::all(), &mut report) {
        // With every control demanded, the first failure is closer to the cause.
        if let Err(cause) = trial(launcher, repo, Tolerated::default(), &mut report) {
            report.findings.push(cause.into());
        }
        report.findings.extend(Some(error.into()).filter(|finding| !report.findings.contains(finding)));
    }
    report.no_view = match report.findings.as_slice() {
        [] => view_obstacle(launcher, repo),
        _ => Some("no step can run".to_owned()),
    };
    report
}

/// Returns the reason why no command over `repo` can run on a view of the host; `None` if commands can. Runs `/bin/true`.
pub fn view_obstacle(launcher: &Launcher, repo: &Path) -> Option<String> {
    try_view(launcher, repo).unwrap_or_else(|error| Some(error.to_string()))
}

/// Runs `/bin/true` on a view. Returns the reason why that is not possible.
fn try_view(launcher: &Launcher, repo: &Path) -> Result<Option<String>, SandboxError> {
    let facts = RepoFacts::read(repo)?;
    let space = trial_space(launcher, Tolerated::all())?;
    let policy = Policy { view: true, ..trial_policy(launcher, &facts, Tolerated::all())? };
    let (running, _layer) = launcher.spawn(&space, &[], &facts, &policy)?;
    let mut report = Vec::new();
    collect_events(&running, |event| report.extend(unmet_requirement(event)))
        .map_err(|source| SandboxError::System { what: "the trial of a view cannot be monitored", source })?;
    Ok(match running.take_view_trace() {
        Some(Err(NoTrace::Unavailable { message })) => Some(message),
        Some(Err(reason @ NoTrace::Failed { .. })) => Some(reason.to_string()),
        // The view may only have failed because the host changed during the trial.
        Some(_) => None,
        None => Some(report.into_iter().next().map_or_else(String::new, |finding| finding.message)),
    })
}

fn trial_space(launcher: &Launcher, tolerated: Tolerated) -> Result<RunSpace, SandboxError> {
    let config =
        RunSpaceConfig { disk_bytes: 16 << 20, inodes: 4096, tolerated, reuse: SandboxReuse::Never, caches: None };
    RunSpace::create(launcher, config)
}

impl From<SandboxError> for UnmetRequirement {
    fn from(error: SandboxError) -> Self {
        if let SandboxError::RunSpaceRefused { control, message, hint } = error {
            return Self { control: Some(control), message, hint };
        }
        let text = error.to_string();
        let (message, hint) = text.split_once("\nhint: ").unwrap_or((&text, ""));
        Self { control: None, message: message.to_owned(), hint: hint.to_owned() }
    }
}

fn trial(
    launcher: &Launcher,
    repo: &Path,
    tolerated: Tolerated,
    report: &mut DoctorReport,
) -> Result<(), SandboxError> {
    let facts = RepoFacts::read(repo)?;
    let space = trial_space(launcher, tolerated.clone())?;
    let policy = trial_policy(launcher, &facts, tolerated)?;
    report.user = Some(StepUser::choose(launcher.host(), &facts)?);
    let (running, _layer) = launcher.spawn(&space, &[], &facts, &policy)?;
    let observe = |event| match event {
        SandboxEvent::Ready { enforcement } => report.enforcement = enforcement,
        other => report.findings.extend(unmet_requirement(other)),
    };
    collect_events(&running, observe)
        .map_err(|source| SandboxError::System { what: "the trial cannot be monitored", source })
}

fn trial_policy(launcher: &Launcher, facts: &RepoFacts, tolerated: Tolerated) -> Result<Policy, SandboxError> {
    let internal = |error: &dyn std::fmt::Display| SandboxError::Protocol(error.to_string());
    let git = facts.path.join(".git");
    Ok(Policy {
        repo: facts.path.clone(),
        checkout: None,
        git: GitDirs { worktree_git: git.exists().then_some(git), ..GitDirs::default() },
        workdir: RelPath::new(".").map_err(|error| internal(&error))?,
        argv: Argv::new(vec!["/bin/true".to_owned()]).map_err(|error| internal(&error))?,
        files: crate::FileBatches::default(),
        env: BTreeMap::new(),
        network: Network::Deny,
        leaks: Leaks::Ignore,
        limits: Limits {
            memory: Limit::Max(256 << 20),
            pids: Limit::Max(64),
            disk: Limit::Max(16 << 20),
            output: Limit::Max(1 << 16),
            cpu_seconds: Limit::Max(DEADLINE.as_secs()),
            open_files: Limit::Max(256),
        },
        home: launcher.host().home.clone(),
        hide: Vec::new(),
        tools: Vec::new(),
        caches: Vec::new(),
        tolerated,
        view: false,
        inputs: None,
    })
}

fn collect_events(running: &RunningSandbox, mut observe: impl FnMut(SandboxEvent)) -> std::io::Result<()> {
    let deadline = rustix::time::Timespec::try_from(DEADLINE).map_err(std::io::Error::other)?;
    loop {
        match running.recv()? {
            EventPoll::Event(event) => observe(event),
            EventPoll::Closed => return Ok(()),
            EventPoll::WouldBlock => {
                let mut waited = [PollFd::from_borrowed_fd(running.as_fd(), PollFlags::IN)];
                if rustix::io::retry_on_intr(|| rustix::event::poll(&mut waited, Some(&deadline)))? == 0 {
                    return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "no answer within 20 s"));
                }
            }
        }
    }
}

fn unmet_requirement(report: SandboxEvent) -> Option<UnmetRequirement> {
    match report {
        SandboxEvent::Refused { control, message, hint } => {
            Some(UnmetRequirement { control: Some(control), message, hint })
        }
        SandboxEvent::NotStarted { message, .. } => {
            Some(UnmetRequirement { control: None, message, hint: String::new() })
        }
        SandboxEvent::Exited { status: WaitStatus::Code(0), .. } | SandboxEvent::Ready { .. } => None,
        SandboxEvent::Exited { status, .. } => Some(UnmetRequirement {
            control: None,
            message: format!("/bin/true ended with {status:?} in the sandbox"),
            hint: String::new(),
        }),
    }
}
