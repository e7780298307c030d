//! Finds a run that the caller names: at a daemon, or by its documents in the state directory or in a changeset.

use std::path::{Path, PathBuf};

use proctor_core::model::names::RunId;
use proctor_daemon::history::RunFilter;
use proctor_runner::repository_record_name;

use crate::args::{RepoArgs, RunReference, SocketArgs, StateArgs};
use crate::caller::Caller;
use crate::commands::runs::newest_recorded_run;
use crate::daemon::{self, Purpose, ReachableDaemon, client_error};
use crate::error::CliError;
use crate::installation::{self, show};
use crate::run_documents;

/// A run that was found.
pub(crate) struct NamedRun {
    /// The run.
    pub run: RunId,
    /// The source of its results.
    pub source: RunSource,
}

/// The source of the results of a run.
pub(crate) enum RunSource {
    /// A daemon, which knows the run.
    Daemon(ReachableDaemon),
    /// The directory with the documents of the run.
    Documents(PathBuf),
}

/// Finds the run that a reference names. A daemon comes first, since it also has the events of the run.
///
/// # Errors
/// The run is neither at a daemon nor in the state directory or a changeset. The error is that of the daemon only if it
/// does not know the run, or if the caller named its socket.
pub(crate) async fn find_named_run(
    named: &RunReference,
    repo: &RepoArgs,
    (state, socket): (&StateArgs, &SocketArgs),
    caller: &Caller,
) -> Result<NamedRun, CliError> {
    let state = installation::state_dir(state, caller)?;
    let found = installation::repository(repo, caller);
    let daemon = daemon::find_daemon(socket, Purpose::ReadRuns, caller).await;
    let (run, repo) = match named {
        RunReference::Id(run) => (run.clone(), found.ok()),
        RunReference::Last => {
            let repo = found?;
            (newest_run(&state, &repo, daemon.as_ref().ok()).await?, Some(repo))
        }
    };
    let unknown = match daemon {
        Ok(daemon) => match daemon.client.run(&run).await {
            Ok(_) => return Ok(NamedRun { run, source: RunSource::Daemon(daemon) }),
            Err(error) => client_error(error),
        },
        Err(error) if socket.socket.is_some() => error,
        Err(_) => unrecorded_run_error(&run, &state),
    };
    match run_documents::find_directory(&run, &state, repo.as_deref()) {
        Some(dir) => Ok(NamedRun { run, source: RunSource::Documents(dir) }),
        None => Err(unknown),
    }
}

/// Returns the newest run of a repository. The id of a run begins with its time.
async fn newest_run(state: &Path, repo: &Path, daemon: Option<&ReachableDaemon>) -> Result<RunId, CliError> {
    let recorded = newest_recorded_run(state, repo)?;
    let filter = RunFilter { repo: Some(repository_record_name(repo)), limit: Some(1), ..RunFilter::default() };
    let listed = match daemon {
        Some(daemon) => daemon.client.list(&filter).await.map_err(client_error)?.runs.into_iter().next(),
        None => None,
    };
    let newest = recorded.into_iter().chain(listed.map(|run| run.id)).max_by(|a, b| a.as_str().cmp(b.as_str()));
    newest.ok_or_else(|| CliError::Usage {
        message: format!("no run of `{}` is recorded in `{}`", show(repo), show(state)),
        hint: "`proctor run` records one; `proctor runs --all` lists the runs of other repositories".to_owned(),
    })
}

fn unrecorded_run_error(run: &RunId, state: &Path) -> CliError {
    CliError::Usage {
        message: format!(
            "the run {run} is recorded neither in `{}` nor in a changeset of this repository",
            show(state)
        ),
        hint:
            "`proctor runs` lists the recorded runs; name another state directory with `--state-dir`, or a daemon with \
               `--socket`"
                .to_owned(),
    }
}
