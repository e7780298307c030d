//! Implements `proctor runs`, which lists the runs that the state directory records, and finds the newest one. It needs
//! no daemon.

use std::path::Path;

use proctor_core::decision::verdict::Verdict;
use proctor_core::model::names::{ChangesetId, ProfileName, RunId};
use proctor_core::model::tier::Tier;
use proctor_core::record::attestation::Attestation;
use proctor_core::record::evidence::TreeSource;
use proctor_core::record::run_reuse::RunReuse;
use proctor_core::text::digest::SnapshotId;
use proctor_runner::{EngineError, recorded_runs, repository_record_name};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{OutputFormat, RunsArgs};
use crate::caller::Caller;
use crate::engine::engine_error;
use crate::error::CliError;
use crate::installation;
use crate::run_display::short_timestamp;
use crate::screen::Screen;
use crate::style::{self, DIM, paint};
use crate::text::escape_line;

/// Number of runs shown as text without `--all`.
const DEFAULT_RUNS: usize = 20;
/// Number of characters of a tree's identity that are shown.
const TREE_CHARS: usize = 12;

/// A run that the state directory records. Of several runs with the same repository, changeset, profile and tree, only
/// the newest one is listed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct RecordedRun {
    /// The run.
    pub run_id: RunId,
    /// The directory of the spec: the repository, or a subdirectory with its own spec.
    pub repository: String,
    /// The changeset; `null` if the run had none.
    pub changeset_id: Option<ChangesetId>,
    /// The profile.
    pub profile: ProfileName,
    /// The verdict.
    pub outcome: Verdict,
    /// The highest effective tier.
    pub tier: Tier,
    /// End time of the run, RFC 3339 in UTC.
    pub finished_at: String,
    /// The verified tree.
    pub snapshot: SnapshotId,
    /// The kind of the verified tree.
    pub source: TreeSource,
    /// The reuse of results; `null` if the record does not contain it.
    pub reuse: Option<RunReuse>,
}

impl From<Attestation> for RecordedRun {
    fn from(record: Attestation) -> Self {
        let Attestation { subject, last_run, .. } = record;
        Self {
            run_id: last_run.run_id,
            repository: subject.repository,
            changeset_id: subject.changeset_id,
            profile: subject.profile,
            outcome: last_run.outcome,
            tier: last_run.tier,
            finished_at: last_run.timestamp,
            snapshot: last_run.snapshot,
            source: last_run.source,
            reuse: last_run.reuse,
        }
    }
}

/// Lists the runs, newest first. The code is 0 even if there are none.
///
/// # Errors
/// The state directory cannot be read, or the caller is in no repository and did not ask for all.
pub(crate) fn runs(args: &RunsArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let state = installation::state_dir(&args.state, caller)?;
    let repo = if args.all { None } else { Some(installation::repository(&args.repo, caller)?) };
    let found = list_runs(&state, repo.as_deref())?;
    match args.format {
        OutputFormat::Json => screen.out_json(&found)?,
        OutputFormat::Human => screen.out(&render(&found, args.all)),
    }
    Ok(0)
}

/// Returns the recorded runs of a repository, or of all, newest first.
fn list_runs(state: &Path, repo: Option<&Path>) -> Result<Vec<RecordedRun>, CliError> {
    let all = recorded_runs(state).map_err(|error| engine_error(EngineError::Store(error)))?;
    let name = repo.map(repository_record_name);
    let is_wanted = |run: &RecordedRun| name.as_ref().is_none_or(|name| run.repository == *name);
    Ok(all.into_iter().map(RecordedRun::from).filter(is_wanted).collect())
}

/// Returns the newest recorded run of a repository.
///
/// # Errors
/// The state directory cannot be read.
pub(crate) fn newest_recorded_run(state: &Path, repo: &Path) -> Result<Option<RunId>, CliError> {
    Ok(list_runs(state, Some(repo))?.into_iter().next().map(|run| run.run_id))
}

fn render(runs: &[RecordedRun], all: bool) -> String {
    if runs.is_empty() {
        return "no runs are recorded\n".to_owned();
    }
    let shown = if all { runs.len() } else { runs.len().min(DEFAULT_RUNS) };
    let heading =
        format!("{:<28} {:<12} {:<10} {:<19} {:<TREE_CHARS$} CACHED", "RUN", "VERDICT", "PROFILE", "ENDED", "TREE");
    let mut text = format!("{}\n", paint(DIM, heading.trim_end()));
    for run in &runs[..shown] {
        let verdict = paint(style::verdict_style(run.outcome), format!("{:<12}", run.outcome.as_str()));
        let tree = match &run.source {
            TreeSource::Worktree { .. } => run.snapshot.as_str().trim_start_matches("sha256:").get(..TREE_CHARS),
            TreeSource::Rev { commit, .. } => commit.get(..TREE_CHARS),
        };
        let cached = run.reuse.as_ref().map(|reuse| format!("{} of {}", reuse.cached_steps, reuse.steps));
        let changeset = run.changeset_id.as_ref().map(|id| format!(" for {id}")).unwrap_or_default();
        let repository = if all { format!(" {}", escape_line(&run.repository)) } else { String::new() };
        let line = format!(
            "{:<28} {verdict} {:<10} {:<19} {:<TREE_CHARS$} {:<8}{}{repository}",
            run.run_id.as_str(),
            escape_line(run.profile.as_str()),
            short_timestamp(&run.finished_at),
            escape_line(tree.unwrap_or_default()),
            cached.unwrap_or_default(),
            escape_line(&changeset),
        );
        text.push_str(&format!("{}\n", line.trim_end()));
    }
    if runs.len() > shown {
        text.push_str(&format!("and {} more: `proctor runs --all`\n", runs.len() - shown));
    }
    text
}

#[cfg(test)]
mod tests {
    use proctor_core::text::digest::Sha256Hex;

    use super::*;
    use crate::text::strip_colours;

    fn recorded(run: &str, reuse: Option<RunReuse>) -> RecordedRun {
        RecordedRun {
            run_id: RunId::new(run).expect("an id"),
            repository: "/r".to_owned(),
            changeset_id: Some(ChangesetId::new("001_x").expect("an id")),
            profile: ProfileName::new("pr").expect("a name"),
            outcome: Verdict::Passed,
            tier: Tier::ONE,
            finished_at: "2026-01-02T03:04:05.678Z".to_owned(),
            snapshot: SnapshotId::from_root(&Sha256Hex::digest(b"tree")),
            source: TreeSource::default(),
            reuse,
        }
    }

    #[test]
    fn lists_the_number_of_cached_steps() {
        let runs = [recorded("r2", Some(crate::fixture::observed_reuse())), recorded("r1", None)];
        insta::assert_snapshot!(strip_colours(&render(&runs, false)));
    }
}
