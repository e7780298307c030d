//! Loads the documents of a recorded run: from the state directory, a changeset of the repository, any directory that
//! holds them, or a daemon. A document is accepted only if it has the hash that the run's status cites.

use std::io::Read as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::api::{RunState, RunView};
use proctor_core::decision::compare::RunDocuments;
use proctor_core::decision::rerun::Rerun;
use proctor_core::model::names::RunId;
use proctor_core::record::evidence::{SkillEvidence, ToolchainEvidence};
use proctor_core::record::status::{self, LastRun};
use proctor_core::text::strict_deserialize;
use proctor_daemon::client::Client;
use proctor_runner::recorded_document;
use serde::de::DeserializeOwned;

use crate::daemon::client_error;
use crate::error::CliError;
use crate::installation::show;

/// Name of the status file, which cites the other documents.
const STATUS: &str = "05-status.json";
/// Document of the toolchain checks, as a status cites it.
const TOOLCHAIN: &str = "verify/_toolchain.json";
/// Largest status file that is read, in bytes.
const MAX_STATUS: u64 = 8 << 20;
/// Largest document that is read, in bytes.
const MAX_DOCUMENT: u64 = 64 << 20;
/// Number of changesets of a repository that are searched for a run.
const MAX_CHANGESETS: usize = 10_000;

/// Finds the directory that holds the documents of a run: below the state directory, or a changeset of the
/// repository. Returns `None` if the documents are in neither (or were removed).
pub(crate) fn find_directory(run: &RunId, state: &Path, repo: Option<&Path>) -> Option<PathBuf> {
    let is_of_run = |dir: &PathBuf| last_run(dir).is_ok_and(|last| last.run_id == *run);
    let own = state.join("runs").join(run.as_str());
    if is_of_run(&own) {
        return Some(own);
    }
    let changesets = std::fs::read_dir(repo?.join("changes")).ok()?;
    changesets.take(MAX_CHANGESETS).flatten().map(|entry| entry.path()).find(is_of_run)
}

/// Loads the documents from a directory.
///
/// # Errors
/// The directory has no valid status, or a document does not have the cited hash.
pub(crate) fn load(dir: &Path) -> Result<RunDocuments, CliError> {
    let last_run = last_run(dir)?;
    let mut read = RunDocumentCollector::new(last_run);
    for (file, sha256) in read.last_run.evidence.clone() {
        let bytes = recorded_document(dir, &file, &sha256, MAX_DOCUMENT);
        let bytes = bytes.map_err(|error| unusable_run_error(dir, &error.to_string()))?;
        let bytes = bytes.ok_or_else(|| {
            unusable_run_error(dir, &format!("`{file}` was changed after the run, or no longer exists"))
        })?;
        read.add_document(&file, &bytes).map_err(|error| unusable_run_error(dir, &error.to_string()))?;
    }
    Ok(read.finish())
}

/// Fetches the documents of a run from a daemon.
///
/// # Errors
/// The run does not exist, has not ended, or a document is no longer kept.
pub(crate) async fn fetch(client: &Client, run: &RunId) -> Result<RunDocuments, CliError> {
    let view = client.run(run).await.map_err(client_error)?;
    let mut read = RunDocumentCollector::new(last_run_from_view(&view)?);
    for file in view.evidence.keys() {
        let bytes = client.evidence(run, file).await.map_err(client_error)?;
        read.add_document(file, &bytes)
            .map_err(|error| CliError::Internal(format!("the daemon sent an invalid document: {error}")))?;
    }
    Ok(read.finish())
}

fn last_run_from_view(view: &RunView) -> Result<LastRun, CliError> {
    let ended = view.verdict.zip(view.tier).zip(view.snapshot.clone()).zip(view.spec_sha256.clone());
    let Some((((outcome, tier), snapshot), spec_sha256)) = ended.filter(|_| view.state == RunState::Finished) else {
        return Err(CliError::Usage {
            message: format!("run {} has no documents: it is {}", view.id, view.state.as_str()),
            hint: "name a run that has ended; `proctor status` lists them".to_owned(),
        });
    };
    Ok(LastRun {
        version: status::VERSION,
        profile: view.request.profile.clone(),
        outcome,
        timestamp: view.finished_at.clone().unwrap_or_default(),
        run_id: view.id.clone(),
        tier,
        snapshot,
        snapshot_after: None,
        source: view.source.clone().unwrap_or_default(),
        spec_sha256,
        evidence: view.evidence.clone(),
        external_ignores: None,
        unverified_inputs: None,
        rerun: view.rerun.clone().filter(Rerun::is_partial),
        scope: view.scope.clone(),
        reuse: view.reuse.clone(),
    })
}

/// A file that is not the expected document.
#[derive(Debug, thiserror::Error)]
#[error("`{file}` is not a Proctor document: {source}")]
struct InvalidRunDocument {
    /// Name of the file, as a status cites it.
    file: String,
    source: serde_json::Error,
}

/// Documents collected so far.
struct RunDocumentCollector {
    last_run: LastRun,
    toolchain: Option<ToolchainEvidence>,
    skills: Vec<SkillEvidence>,
}

impl RunDocumentCollector {
    fn new(last_run: LastRun) -> Self {
        Self { last_run, toolchain: None, skills: Vec::new() }
    }

    fn add_document(&mut self, file: &str, bytes: &[u8]) -> Result<(), InvalidRunDocument> {
        match file {
            TOOLCHAIN => self.toolchain = Some(parse_document(file, bytes)?),
            _ => self.skills.push(parse_document(file, bytes)?),
        }
        Ok(())
    }

    fn finish(self) -> RunDocuments {
        RunDocuments { last_run: self.last_run, toolchain: self.toolchain, skills: self.skills }
    }
}

fn parse_document<T: DeserializeOwned>(file: &str, bytes: &[u8]) -> Result<T, InvalidRunDocument> {
    strict_deserialize::from_json(bytes).map_err(|source| InvalidRunDocument { file: file.to_owned(), source })
}

/// Reads the last run from the status file in a directory. The open neither follows a link nor blocks on a FIFO.
fn last_run(dir: &Path) -> Result<LastRun, CliError> {
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let opened = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(dir.join(STATUS));
    let mut bytes = Vec::new();
    let read = opened.and_then(|file| match file.metadata()?.is_file() {
        true => file.take(MAX_STATUS).read_to_end(&mut bytes),
        false => Err(std::io::Error::other("it is not a regular file")),
    });
    read.map_err(|error| unusable_run_error(dir, &format!("`{STATUS}` cannot be read: {error}")))?;
    match status::last_run(&bytes) {
        Ok(Some(last_run)) => Ok(last_run),
        Ok(None) => Err(unusable_run_error(dir, &format!("`{STATUS}` records no run"))),
        Err(error) => Err(unusable_run_error(dir, &format!("`{STATUS}`: {error}"))),
    }
}

fn unusable_run_error(dir: &Path, why: &str) -> CliError {
    CliError::Usage {
        message: format!("`{}` has no run that can be read: {why}", show(dir)),
        hint: "name a run, or a directory with its `05-status.json` and `verify/`".to_owned(),
    }
}
