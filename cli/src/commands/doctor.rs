//! Implements `proctor doctor`, which sets up one sandbox to find out what this machine can enforce, and reports
//! whether that is sufficient.

mod fix;
mod machine_facts;

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use proctor_core::api::{
    CopyReport, CopyState, DoctorAnswer, DoctorFinding, DoctorScope, RemoteCacheCheck, RemoteExecutorCheck, StepAccount,
};
use proctor_core::code::{Coded as _, EngineCode};
use proctor_core::decision::verdict::{EXIT_FAILED, EXIT_INCONCLUSIVE};
use proctor_core::model::enforcement::{Control, ControlState, Enforcement, SandboxMode, Tolerated};
use proctor_core::record::run_reuse::ReuseMode;
use proctor_core::spec::OperatorConfig;
use proctor_runner::EngineError;
use schemars::JsonSchema;
use serde::Serialize;
use tempfile::TempDir;

use crate::apparmor;
use crate::args::{DoctorArgs, OutputFormat};
use crate::caller::Caller;
use crate::daemon::{self, BackendCriteria, client_error};
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style::{self, BAD, DIM, GOOD, paint};
use crate::text::{escape_line, escape_text};
use fix::{FixRecord, ShellPaths};
use machine_facts::MachineFacts;

/// The output of `proctor doctor --format json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct DoctorRecord {
    /// True if a step can run here under the requested sandbox mode and the operator's config.
    pub ready: bool,
    /// The extent of the sandbox on this machine.
    pub reach: SandboxLevel,
    /// The sandbox mode, which decides how missing controls are treated.
    pub sandbox: SandboxMode,
    /// True if the program runs as root.
    pub root: bool,
    /// The user of a step; `null` if no step can run.
    pub user: Option<UserRecord>,
    /// The tree that the trial used.
    pub repo: String,
    /// The directory for outputs and for evidence without a changeset.
    pub state_dir: String,
    /// The location of control groups; `null` if no group can be created.
    pub control_groups: Option<String>,
    /// The reason why no command can run on a view of the host, which records what the command reads; `null` if commands
    /// can.
    pub no_view: Option<String>,
    /// The enforced and missing controls.
    pub enforcement: Enforcement,
    /// Missing requirements with hints; those that keep every step from running come first.
    pub findings: Vec<FindingRecord>,
    /// The fixes, each cause once, in the order in which they must be applied.
    pub fixes: Vec<FixRecord>,
    /// The private copies of the repository, each compared with its record; `null` without `--deep`. Damaged copies
    /// also appear in the findings.
    pub copies: Option<Vec<CopyReport>>,
    /// The check of the remote cache; `null` if none is configured.
    pub remote_cache: Option<RemoteCacheCheck>,
    /// The check of the remote executor; `null` if none is configured.
    pub remote_executor: Option<RemoteExecutorCheck>,
}

/// The extent of the sandbox on a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum SandboxLevel {
    /// All controls.
    Full,
    /// All controls except control groups: limits apply to each process separately, and a monitor watches the totals.
    FullWithoutCgroup,
    /// Fewer controls. This is only enough for `--sandbox=best-effort`, or if the operator tolerates the missing
    /// controls.
    Degraded,
    /// No step can run.
    Refused,
}

impl SandboxLevel {
    fn from_answer(report: &DoctorAnswer) -> Self {
        let missing: Vec<Control> = report.enforcement.missing().map(|(control, _)| control).collect();
        // A control that is missing from the report is unknown, so the machine cannot count as complete.
        let is_whole = Control::ALL.iter().all(|control| report.enforcement.0.contains_key(control));
        if !report.findings.is_empty() || !is_whole {
            return Self::Refused;
        }
        match missing.as_slice() {
            [] => Self::Full,
            [Control::Cgroup] => Self::FullWithoutCgroup,
            _ => Self::Degraded,
        }
    }

    fn description(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::FullWithoutCgroup => "full without control group; results are of tier 2",
            Self::Degraded => "degraded; results are of tier 2",
            Self::Refused => "refused",
        }
    }
}

/// The user of a step on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct UserRecord {
    /// The user id.
    pub uid: u32,
    /// The group id.
    pub gid: u32,
}

/// A missing requirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct FindingRecord {
    /// The missing control, if the finding is about a control.
    pub control: Option<Control>,
    /// The attempted operation and the error of the system.
    pub message: String,
    /// How to fix the finding.
    pub hint: String,
    /// True if the finding keeps steps from running.
    pub refuses: bool,
}

/// Sets up a sandbox once and reports the result. Returns code 0 if a step can run, 5 if not, and 1 if a private copy
/// is damaged.
///
/// # Errors
/// The trial could not be carried out.
pub(crate) async fn doctor(args: &DoctorArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    if args.apparmor_profile {
        let helper = installation::helpers(caller)?.sandbox;
        let helper = helper.canonicalize().map_err(|error| CliError::Internal(error.to_string()))?;
        screen.out(&apparmor::profile(&helper));
        return Ok(0);
    }
    let found = installation::repository(&args.repo, caller);
    let is_found = found.is_ok();
    // Keeps the directory in existence until the trial is over.
    let empty: TempDir;
    let repo = match (&args.repo.repo, found) {
        (_, Ok(repo)) => repo,
        (Some(_), Err(error)) => return Err(error),
        (None, Err(_)) if args.backend.daemon.daemon || is_suitable_directory(&caller.cwd, args, caller)? => {
            caller.cwd.clone()
        }
        (None, Err(_)) => {
            empty = empty_directory()?;
            empty.path().to_owned()
        }
    };
    let operator = installation::operator(&args.backend.operator, caller)?;
    let wanted = BackendCriteria { options: &args.backend, operator: &operator, repo: &repo };
    let scope = DoctorScope::from_deep(args.deep);
    // A daemon only inspects repositories of its callers, no other directories.
    let may_use_daemon = is_found || args.backend.daemon.daemon;
    let answer = match if may_use_daemon { daemon::select_backend(wanted, caller, screen).await? } else { None } {
        Some(daemon) => daemon.client.doctor(&daemon::repo_utf8(&repo)?, scope).await.map_err(client_error)?,
        None => run_trial(args, operator, &repo, caller, screen).await?,
    };
    let mode = args.sandbox.sandbox;
    let tolerated = answer.tolerated_controls(mode).ok_or_else(|| engine_error(EngineError::BestEffortForbidden))?;
    let mut record = build_record(answer, &StepRequirements { mode, tolerated }, &repo);
    record.fixes = fix::fixes(&record.findings, &MachineFacts::read(caller), &shell_paths(&repo, caller));
    // Added after the fixes were computed, because a damaged copy needs no action.
    record.findings.extend(record.copies.iter().flatten().filter_map(copy_finding));
    match args.format {
        OutputFormat::Human if args.fix => screen.out(&fix::render(&record.fixes)),
        OutputFormat::Human => screen.out(&render(&record)),
        OutputFormat::Json => screen.out_json(&record)?,
    }
    Ok(exit_code(&record))
}

/// Returns the exit code. A problem that keeps steps from running takes precedence over problems of private copies.
fn exit_code(record: &DoctorRecord) -> u8 {
    let has = |state| record.copies.iter().flatten().any(|copy| copy.state == state);
    match record.ready {
        true if has(CopyState::Damaged) => EXIT_FAILED,
        true if !has(CopyState::Unverified) => 0,
        _ => EXIT_INCONCLUSIVE,
    }
}

/// Returns the finding for a private copy that is damaged or could not be verified; such a finding never refuses a
/// step.
fn copy_finding(report: &CopyReport) -> Option<FindingRecord> {
    let problem = report.problem.as_deref().unwrap_or_default();
    let (message, hint) = match (report.state, report.removed) {
        (CopyState::Sound | CopyState::Held, _) => return None,
        (CopyState::Damaged, true) => (
            format!("the private copy `{}` was damaged and has been removed: {problem}", report.copy),
            "the next run recreates the copy; find the program that writes to the state directory, and repeat the runs \
                that have passed since",
        ),
        (CopyState::Damaged, false) => (
            format!("the private copy `{}` is damaged and could not be removed: {problem}", report.copy),
            "end the runs of the repository, then run `proctor gc --all`",
        ),
        (CopyState::Unverified, _) => (
            format!("the private copy `{}` could not be verified: {problem}", report.copy),
            "try again, or run `proctor gc --all`; the next run then recreates the copy",
        ),
    };
    Some(FindingRecord { control: None, message, hint: hint.to_owned(), refuses: false })
}

/// Checks whether the trial can use a directory that is not in a repository. The caller must own it, and it must not
/// contain the home or state directory, which are hidden from steps. The second rule excludes the directory in which
/// a login shell starts.
fn is_suitable_directory(directory: &Path, args: &DoctorArgs, caller: &Caller) -> Result<bool, CliError> {
    let state = installation::state_dir(&args.backend.state, caller)?;
    let is_ours = std::fs::metadata(directory).is_ok_and(|found| found.uid() == caller.uid);
    let hides = [caller.home.as_deref(), Some(state.as_path())].into_iter().flatten();
    Ok(is_ours && !hides.into_iter().any(|hidden| hidden.starts_with(directory)))
}

/// Creates an empty directory for the trial; it is removed when the value is dropped.
fn empty_directory() -> Result<TempDir, CliError> {
    let made = tempfile::Builder::new().prefix("proctor-doctor-").tempdir();
    made.map_err(|error| CliError::Environment {
        message: format!("no directory for a trial can be created: {error}"),
        hint: "free space in the directory for temporary files, or name a repository with `--repo DIR`".to_owned(),
    })
}

async fn run_trial(
    args: &DoctorArgs,
    operator: OperatorConfig,
    repo: &Path,
    caller: &Caller,
    screen: &mut Screen,
) -> Result<DoctorAnswer, CliError> {
    if operator.tolerated(args.sandbox.sandbox).is_none() {
        return Err(engine_error(EngineError::BestEffortForbidden));
    }
    let state_dir = installation::state_dir(&args.backend.state, caller)?;
    let engine = engine::open(&args.backend.state, operator.clone(), caller, screen)?;
    let report = engine.doctor(repo).await.map_err(engine_error)?;
    let copies = match DoctorScope::from_deep(args.deep) {
        DoctorScope::Machine => None,
        DoctorScope::MachineAndCopies => Some(engine.verify_copies(repo).await.map_err(engine_error)?),
    };
    let remote_cache = engine.check_remote_cache().await;
    let remote_executor = engine.check_remote_executor().await;
    Ok(DoctorAnswer { copies, remote_cache, remote_executor, ..report.answer(&operator, &state_dir) })
}

/// The requirements of a step.
struct StepRequirements {
    mode: SandboxMode,
    tolerated: Tolerated,
}

fn build_record(answer: DoctorAnswer, requirements: &StepRequirements, repo: &Path) -> DoctorRecord {
    let (reach, missing) =
        (SandboxLevel::from_answer(&answer), missing_control_findings(&answer.enforcement, &requirements.tolerated));
    let has_all = answer.enforcement.missing().all(|(control, _)| requirements.tolerated.contains(control));
    DoctorRecord {
        ready: reach != SandboxLevel::Refused && has_all,
        reach,
        sandbox: requirements.mode,
        control_groups: answer.control_groups,
        no_view: answer.no_view,
        root: answer.root,
        user: answer.user.map(|StepAccount { uid, gid }| UserRecord { uid, gid }),
        repo: show(repo),
        state_dir: answer.state_dir,
        enforcement: answer.enforcement,
        findings: answer.findings.into_iter().map(to_finding_record).chain(missing).collect(),
        fixes: Vec::new(),
        copies: answer.copies,
        remote_cache: answer.remote_cache,
        remote_executor: answer.remote_executor,
    }
}

/// Returns the paths of the program and of the repository, quoted for a shell.
fn shell_paths(repo: &Path, caller: &Caller) -> ShellPaths {
    ShellPaths { proctor: shell_quote(&caller.bin_dir.join("proctor")), repo: shell_quote(repo) }
}

/// Quotes a path as one word for a shell, see `sh`(1p), 2.2.2.
fn shell_quote(path: &Path) -> String {
    let text = show(path);
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

fn missing_control_findings(enforcement: &Enforcement, tolerated: &Tolerated) -> Vec<FindingRecord> {
    let to_record = |(control, reason): (Control, &str)| {
        let hint = enforcement.hint(control).unwrap_or_default().to_owned();
        let refuses = !tolerated.contains(control);
        FindingRecord { control: Some(control), message: reason.to_owned(), hint, refuses }
    };
    enforcement.missing().map(to_record).collect()
}

fn to_finding_record(finding: DoctorFinding) -> FindingRecord {
    FindingRecord { control: finding.control, message: finding.message, hint: finding.hint, refuses: true }
}

fn render(record: &DoctorRecord) -> String {
    let mut text = String::new();
    for (control, state) in &record.enforcement.0 {
        text.push_str(&control_line(*control, state));
    }
    record.copies.iter().flatten().for_each(|copy| text.push_str(&copy_line(copy)));
    for finding in &record.findings {
        let control = finding.control.map(|control| format!("{}: ", control.as_str())).unwrap_or_default();
        let hints: Vec<String> = Some(escape_text(&finding.hint)).filter(|hint| !hint.is_empty()).into_iter().collect();
        let message = format!("{control}{}", escape_text(&finding.message));
        text.push_str(&match finding.refuses {
            true => style::error(EngineCode::ControlsMissing.code(), &message, &hints),
            false => style::warning_with_hints(&message, &hints),
        });
    }
    text.push_str(&facts_block(record));
    text.push_str(&verdict_line(record));
    text
}

fn verdict_line(record: &DoctorRecord) -> String {
    let what = match (record.ready, record.reach) {
        (true, SandboxLevel::Full) => "steps run here with every control enforced",
        (true, _) => "steps run here, and each record lists the missing controls",
        (false, SandboxLevel::Refused) => "no step can run here",
        (false, _) => "no step can run here with the required controls; `--sandbox=best-effort` runs with fewer",
    };
    let word = if record.ready { paint(GOOD, "ready:") } else { paint(BAD, "not ready:") };
    format!("{word} {what}\n")
}

fn control_line(control: Control, state: &ControlState) -> String {
    let (style, word, why) = match state {
        ControlState::Enforced { mechanism } => (GOOD, "enforced", mechanism),
        ControlState::NotEnforced { reason, .. } => (BAD, "missing", reason),
        ControlState::NotRequested { reason } => (DIM, "not used", reason),
    };
    format!("{}  {:<18}  {}\n", paint(style, format!("{word:<9}")), control.as_str(), paint(DIM, escape_text(why)))
}

fn copy_line(report: &CopyReport) -> String {
    let (style, word) = match report.state {
        CopyState::Sound => (GOOD, "sound"),
        CopyState::Held => (DIM, "held"),
        CopyState::Damaged => (BAD, "damaged"),
        CopyState::Unverified => (BAD, "unknown"),
    };
    let why = if report.state == CopyState::Held { "; a run is using it, so it was not verified" } else { "" };
    let shown = paint(DIM, format!("{}{why}", escape_line(&report.copy)));
    format!("{}  {:<18}  {shown}\n", paint(style, format!("{word:<9}")), "private copy")
}

fn facts_block(record: &DoctorRecord) -> String {
    let account = if record.root { "root" } else { "an ordinary user" };
    let user = match &record.user {
        Some(user) => format!("uid {}, gid {}", user.uid, user.gid),
        None => "no user: no step can run".to_owned(),
    };
    let groups = record
        .control_groups
        .as_deref()
        .unwrap_or("none; limits apply to each process, and Proctor monitors the totals");
    let views = record.no_view.as_ref().map_or_else(|| "available".to_owned(), |reason| format!("none; {reason}"));
    let reuse = match record.no_view {
        None => ReuseMode::Observed.as_str().to_owned(),
        Some(_) => {
            format!(
                "{}; no result of a step is stored, because its inputs cannot be observed",
                ReuseMode::WholeTree.as_str()
            )
        }
    };
    let remote_cache = record.remote_cache.as_ref().map(RemoteCacheCheck::phrase);
    let remote_cache = remote_cache.as_deref().map(|check| ("remote cache", check));
    let remote_executor = record.remote_executor.as_ref().map(RemoteExecutorCheck::phrase);
    let remote_executor = remote_executor.as_deref().map(|check| ("executor", check));
    let rows = [
        ("we are", account),
        ("steps run as", &user),
        ("tried over", &record.repo),
        ("state in", &record.state_dir),
        ("groups", groups),
        ("views", &views),
        ("reuse", &reuse),
        ("reach", record.reach.description()),
    ];
    rows.into_iter()
        .chain(remote_cache)
        .chain(remote_executor)
        .map(|(label, value)| format!("{} {}\n", paint(DIM, format!("{label:<13}")), escape_line(value)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proctor_runner::{DoctorReport, UnmetRequirement};

    use super::*;

    fn report_with_missing(missing: &[Control]) -> DoctorReport {
        let mut enforcement = Enforcement::default();
        Control::ALL.into_iter().for_each(|control| enforcement.record_enforced(control, "x"));
        missing.iter().for_each(|control| enforcement.record_not_enforced_with_hint(*control, "no", "mend it"));
        let control_groups = Ok("cgroup v2".to_owned());
        DoctorReport { root: false, user: None, control_groups, enforcement, findings: Vec::new(), no_view: None }
    }

    fn record_for(report: DoctorReport, mode: SandboxMode, tolerated: Tolerated) -> DoctorRecord {
        let answer = report.answer(&OperatorConfig::default(), Path::new("/s"));
        super::build_record(answer, &StepRequirements { mode, tolerated }, Path::new("/r"))
    }

    #[test]
    fn missing_controls_determine_level_and_readiness() {
        let cases: [(&[Control], SandboxLevel, bool); 3] = [
            (&[], SandboxLevel::Full, true),
            (&[Control::Cgroup], SandboxLevel::FullWithoutCgroup, true),
            (&[Control::Cgroup, Control::Landlock], SandboxLevel::Degraded, false),
        ];
        for (missing, reach, ready) in cases {
            let strict = record_for(report_with_missing(missing), SandboxMode::Strict, Tolerated::default());
            assert_eq!((strict.reach, strict.ready, strict.findings.len()), (reach, ready, missing.len()));
            assert_eq!(strict.findings.iter().all(|finding| !finding.refuses), ready);
            let least = record_for(report_with_missing(missing), SandboxMode::BestEffort, Tolerated::all());
            assert!(least.ready, "{missing:?}");
        }
        assert!(
            !record_for(report_with_missing(&[Control::Cgroup]), SandboxMode::Strict, Tolerated::from_iter([])).ready
        );
    }

    fn copy(state: CopyState, removed: bool) -> CopyReport {
        let problem = Some("`a` differs from the copied content".to_owned());
        CopyReport { copy: "mirrors/0/1".to_owned(), state, problem, removed }
    }

    #[test]
    fn damaged_copy_changes_only_the_exit_code() {
        let code = |copies: Vec<CopyReport>, missing: &[Control]| {
            let mut record = record_for(report_with_missing(missing), SandboxMode::Strict, Tolerated::default());
            record.copies = Some(copies);
            exit_code(&record)
        };
        use CopyState::{Damaged, Held, Sound, Unverified};
        assert_eq!(code(vec![copy(Sound, false), copy(Held, false)], &[]), 0);
        assert_eq!(code(vec![copy(Unverified, false), copy(Damaged, true)], &[]), EXIT_FAILED);
        assert_eq!(code(vec![copy(Unverified, false)], &[]), EXIT_INCONCLUSIVE);
        assert_eq!(code(vec![copy(Damaged, true)], &[Control::Cgroup, Control::Landlock]), EXIT_INCONCLUSIVE);
        assert!([Sound, Held].iter().all(|state| copy_finding(&copy(*state, false)).is_none()));
        for (state, removed) in [(Damaged, true), (Damaged, false), (Unverified, false)] {
            let finding = copy_finding(&copy(state, removed)).expect("a finding");
            assert!(!finding.refuses && finding.message.contains("mirrors/0/1"), "{finding:?}");
            assert_eq!(finding.hint.contains("gc --all"), !removed, "{finding:?}");
        }
    }

    #[test]
    fn machine_that_runs_no_step_is_never_ready() {
        let finding = UnmetRequirement { control: None, message: "no".to_owned(), hint: String::new() };
        let refused = DoctorReport { findings: vec![finding], ..report_with_missing(&[]) };
        let silent = DoctorReport { enforcement: Enforcement::default(), ..report_with_missing(&[]) };
        for report in [refused, silent] {
            let record = record_for(report, SandboxMode::BestEffort, Tolerated::all());
            assert_eq!((record.reach, record.ready), (SandboxLevel::Refused, false));
        }
    }
}
