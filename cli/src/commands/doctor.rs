//! `proctor doctor`: what this machine can enforce, found by doing it once.

use std::path::Path;

use proctor_core::enforcement::{Control, ControlState, Enforcement};
use proctor_core::verdict::EXIT_INCONCLUSIVE;
use proctor_runner::{DoctorReport, Finding};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{DoctorArgs, Format};
use crate::caller::Caller;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style::{self, BAD, DIM, GOOD, paint};
use crate::text::shown;

/// What `proctor doctor --format json` prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct DoctorRecord {
    /// Whether a step can run here as it must.
    pub ready: bool,
    /// Whether we are root.
    pub root: bool,
    /// Who a step is; `null` where there can be no step.
    pub user: Option<UserRecord>,
    /// The tree over which it was tried.
    pub repo: String,
    /// Where outputs and evidence without a changeset are kept.
    pub state_dir: String,
    /// What the kernel was made to enforce.
    pub enforcement: Enforcement,
    /// What is missing.
    pub findings: Vec<FindingRecord>,
}

/// Who a step is on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct UserRecord {
    /// Its user id.
    pub uid: u32,
    /// Its group id.
    pub gid: u32,
}

/// Something that is missing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct FindingRecord {
    /// The control that cannot be had, where it is one.
    pub control: Option<Control>,
    /// What was tried and what the system says.
    pub message: String,
    /// How to mend it.
    pub hint: String,
}

/// Sets a sandbox up once, and says what came of it: code 0 where a step can run, 5 where not.
///
/// # Errors
/// Not even the trial could be made.
pub(crate) async fn doctor(args: &DoctorArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = match (&args.repo.repo, installation::repository(&args.repo, caller)) {
        (_, Ok(repo)) => repo,
        (Some(_), Err(error)) => return Err(error),
        (None, Err(_)) => caller.cwd.clone(),
    };
    let operator = installation::operator(&args.operator, caller)?;
    let state_dir = installation::state_dir(&args.state, caller)?;
    let engine = engine::open(&args.state, operator, caller, screen)?;
    let report = engine.doctor(&repo).await.map_err(engine_error)?;
    let record = record(report, &repo, &state_dir);
    match args.format {
        Format::Human => screen.out(&render(&record)),
        Format::Json => screen.out_json(&record)?,
    }
    Ok(if record.ready { 0 } else { EXIT_INCONCLUSIVE })
}

fn record(report: DoctorReport, repo: &Path, state_dir: &Path) -> DoctorRecord {
    let whole = report.enforcement.missing().next().is_none() && !report.enforcement.0.is_empty();
    DoctorRecord {
        ready: whole && report.findings.is_empty(),
        root: report.root,
        user: report.user.map(|user| UserRecord { uid: user.uid(), gid: user.gid() }),
        repo: show(repo),
        state_dir: show(state_dir),
        enforcement: report.enforcement,
        findings: report.findings.into_iter().map(finding).collect(),
    }
}

fn finding(finding: Finding) -> FindingRecord {
    FindingRecord { control: finding.control, message: finding.message, hint: finding.hint }
}

fn render(record: &DoctorRecord) -> String {
    let mut text = String::new();
    for (control, state) in &record.enforcement.0 {
        text.push_str(&control_line(*control, state));
    }
    for finding in &record.findings {
        let control = finding.control.map(|control| format!("{}: ", control.as_str())).unwrap_or_default();
        let hints: Vec<String> = Some(shown(&finding.hint)).filter(|hint| !hint.is_empty()).into_iter().collect();
        text.push_str(&style::error(&format!("{control}{}", shown(&finding.message)), &hints));
    }
    text.push_str(&facts(record));
    text.push_str(&match record.ready {
        true => format!("{} steps run here with every control enforced\n", paint(GOOD, "ready:")),
        false => format!("{} no step can run here as it must\n", paint(BAD, "not ready:")),
    });
    text
}

fn control_line(control: Control, state: &ControlState) -> String {
    let (style, word, why) = match state {
        ControlState::Enforced { mechanism } => (GOOD, "enforced", mechanism),
        ControlState::NotEnforced { reason } => (BAD, "missing", reason),
        ControlState::NotRequested { reason } => (DIM, "not asked", reason),
    };
    format!("{}  {:<18}  {}\n", paint(style, format!("{word:<9}")), control.as_str(), paint(DIM, shown(why)))
}

fn facts(record: &DoctorRecord) -> String {
    let we = if record.root { "root" } else { "an ordinary user" };
    let user = match &record.user {
        Some(user) => format!("uid {}, gid {}", user.uid, user.gid),
        None => "nobody: no step can run".to_owned(),
    };
    let rows = [("we are", we), ("steps run as", &user), ("tried over", &record.repo), ("state in", &record.state_dir)];
    rows.iter().map(|(label, value)| format!("{} {value}\n", paint(DIM, format!("{label:<13}")))).collect()
}
