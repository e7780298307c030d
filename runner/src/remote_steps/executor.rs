//! Executes one action of the agent: uploads its inputs, waits for the worker, and reads the outputs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proctor_core::spec::RemoteExecutorSettings;
use proctor_remote::messages::{Action, ActionResult, Command, NamedValue, Platform};
use proctor_remote::{
    BlobDigest, BlobSource, Bytes, Client, ExecutionLimits, ExecutionRequest, MerkleError, MerkleTree, RemoteError,
    TreeBuilder,
};
use proctor_sandbox::agent::{
    AGENT_PROGRAM, AgentReport, AgentRequest, CHANGES_CONTENT_FILE, GIT_DIRECTORY, LAYERS_CONTENT_FILE,
    MAX_REPORT_BYTES, NEEDED_PATHS_DIRECTORY, REPORT_FILE, REQUEST_FILE, STDERR_FILE, STDOUT_FILE, TREE_DIRECTORY,
};
use prost::Message as _;
use tokio_util::sync::CancellationToken;

use super::input_root::GitTree;

/// The first argument of the agent program.
const AGENT_COMMAND: &str = "agent";
/// Maximum number of times that an action is sent to a server that loses its inputs.
const MAX_EXECUTIONS: usize = 3;
/// Maximum number of characters of the agent's own error that a message contains.
const MAX_AGENT_ERROR: usize = 300;

/// The agent program, as a blob.
#[derive(Debug, Clone)]
pub(crate) struct AgentProgram {
    pub(crate) path: PathBuf,
    pub(crate) digest: BlobDigest,
}

/// The cluster during one run.
#[derive(Debug)]
pub(crate) struct RemoteExecutor {
    client: Client,
    pub(crate) settings: RemoteExecutorSettings,
    pub(crate) agent: AgentProgram,
    /// The digests of the trees that the server has, as far as this run knows.
    uploaded: Mutex<BTreeSet<BlobDigest>>,
    /// Held while trees are uploaded, so that steps which start together do not send the same files.
    uploading: tokio::sync::Mutex<()>,
    timeouts: Mutex<ActionTimeouts>,
}

/// The timeouts that the server accepts for actions, as far as this run knows. A server refuses an action whose timeout
/// exceeds its limit, and applies its own limit to an action without a timeout. The agent enforces the timeout of the
/// step itself.
#[derive(Debug, Default)]
struct ActionTimeouts {
    /// The shortest timeout that the server has refused.
    refused: Option<Duration>,
}

impl ActionTimeouts {
    /// Returns the timeout for an action whose commands need the time `needed`; `None` to let the server apply its own
    /// limit.
    fn timeout(&self, needed: Duration) -> Option<Duration> {
        self.refused.is_none_or(|refused| needed < refused).then_some(needed)
    }

    fn note_refused(&mut self, timeout: Duration) {
        self.refused = Some(self.refused.map_or(timeout, |refused| refused.min(timeout)));
    }
}

/// A step to execute.
#[derive(Debug)]
pub(crate) struct RemoteJob {
    pub(crate) request: AgentRequest,
    /// The content of the files in the request's layers.
    pub(crate) layers: Bytes,
    pub(crate) tree: Arc<MerkleTree>,
    pub(crate) git: Option<Arc<GitTree>>,
    /// The needed paths, in the order of the request.
    pub(crate) needed_paths: Vec<Arc<MerkleTree>>,
    /// The reason why `git` has no objects, unless there is no commit.
    pub(crate) no_git_objects: Option<String>,
    /// The properties of the worker.
    pub(crate) platform: BTreeMap<String, String>,
    /// Time from the start of the action to its end.
    pub(crate) run_limit: Duration,
    /// Maximum size of an output stream of the step, in bytes.
    pub(crate) max_stream_bytes: u64,
}

/// The outputs of an action.
#[derive(Debug)]
pub(crate) struct RemoteOutputs {
    pub(crate) action: BlobDigest,
    pub(crate) report: AgentReport,
    pub(crate) stdout: Bytes,
    pub(crate) stderr: Bytes,
    pub(crate) changes: Bytes,
}

/// The reason why a step has no outputs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteFailure {
    /// The run was cancelled.
    #[error("the run was cancelled")]
    Cancelled,
    /// The server failed.
    #[error(transparent)]
    Server(RemoteError),
    /// The server ended the action at its own limit, which is shorter than the timeout of the step.
    #[error(
        "{error}. The server refuses the timeout of {}, which the step and its checks need: increase the limit of the \
         server, or lower `timeout_ms`",
        humantime::format_duration(*.needed)
    )]
    LimitOfServer {
        /// The cause.
        error: RemoteError,
        /// The timeout that the server refused.
        needed: Duration,
    },
    /// No worker started the action in time.
    #[error("{error}; {properties}")]
    NoWorker {
        /// The cause.
        error: RemoteError,
        /// The requested properties, as a phrase.
        properties: String,
    },
    /// The inputs cannot be described.
    #[error(transparent)]
    Inputs(#[from] MerkleError),
    /// The request cannot be encoded.
    #[error("the request to the agent cannot be encoded: {0}")]
    Request(#[source] serde_json::Error),
    /// The action ended without a report of the agent.
    #[error("the worker wrote no report (exit code {exit_code}){detail}")]
    NoReport {
        /// The exit code of the action.
        exit_code: i32,
        /// The agent's own error, with a colon before it; empty if there is none.
        detail: String,
    },
    /// The document is not a valid report.
    #[error("the report of the worker cannot be read: {0}")]
    BadReport(String),
    /// The server lost an output.
    #[error("the server does not have the output `{0}` any more")]
    LostOutput(&'static str),
}

impl From<RemoteError> for RemoteFailure {
    fn from(error: RemoteError) -> Self {
        match error {
            RemoteError::Cancelled => Self::Cancelled,
            error => Self::Server(error),
        }
    }
}

impl RemoteExecutor {
    pub(crate) fn new(client: Client, settings: RemoteExecutorSettings, agent: AgentProgram) -> Self {
        Self {
            client,
            settings,
            agent,
            uploaded: Mutex::default(),
            uploading: tokio::sync::Mutex::default(),
            timeouts: Mutex::default(),
        }
    }

    /// Executes a step.
    ///
    /// # Errors
    /// The cluster did not execute it to its end, or not all of its outputs are available.
    pub(crate) async fn execute(
        &self,
        job: &RemoteJob,
        cancel: &CancellationToken,
    ) -> Result<RemoteOutputs, RemoteFailure> {
        // These futures are large.
        let (action, result) = Box::pin(self.execute_action(job, cancel)).await?;
        let outputs = Box::pin(self.read_outputs(job, action, &result));
        cancel.run_until_cancelled(outputs).await.unwrap_or(Err(RemoteFailure::Cancelled))
    }

    /// Uploads the inputs of a step, and executes it. Returns the digest of the action and its result.
    async fn execute_action(
        &self,
        job: &RemoteJob,
        cancel: &CancellationToken,
    ) -> Result<(BlobDigest, ActionResult), RemoteFailure> {
        let mut timeout = self.timeouts.lock().unwrap_or_else(PoisonError::into_inner).timeout(job.run_limit);
        let mut action = self.describe(job, timeout)?;
        let queue = Duration::from_millis(self.settings.queue_timeout_ms);
        let limits = ExecutionLimits { queue, run: job.run_limit };
        let mut executions = 0;
        let response = loop {
            let uploaded = cancel.run_until_cancelled(Box::pin(self.upload(job, &action))).await;
            uploaded.unwrap_or(Err(RemoteFailure::Cancelled))?;
            executions += 1;
            // The server must not use a stored result: the step has to run now.
            let request = ExecutionRequest { action: action.digest.clone(), skip_cache: true, limits };
            match self.client.execute(&request, cancel.cancelled()).await {
                Ok(response) => break response,
                Err(error) if error.refuses_action() && timeout.is_some() => {
                    tracing::debug!(%error, "a step is sent again without a timeout");
                    timeout = None;
                    action = self.describe(job, timeout)?;
                }
                // An input was removed between its upload and its use.
                Err(error) if error.lacks_input() && executions < MAX_EXECUTIONS => {
                    tracing::debug!(%error, "the inputs of a step are uploaded again");
                    self.uploaded.lock().unwrap_or_else(PoisonError::into_inner).clear();
                }
                Err(error) if error.is_timeout_of_action() && timeout.is_none() => {
                    return Err(RemoteFailure::LimitOfServer { error, needed: job.run_limit });
                }
                Err(error) if error.is_without_worker() => {
                    return Err(RemoteFailure::NoWorker { error, properties: requested_properties(&job.platform) });
                }
                Err(error) => return Err(error.into()),
            }
        };
        if timeout.is_none() {
            self.timeouts.lock().unwrap_or_else(PoisonError::into_inner).note_refused(job.run_limit);
        }
        Ok((action.digest, response.result.unwrap_or_default()))
    }

    fn describe(&self, job: &RemoteJob, timeout: Option<Duration>) -> Result<DescribedAction, RemoteFailure> {
        let request = serde_json::to_vec(&job.request).map_err(RemoteFailure::Request)?;
        let mut root = TreeBuilder::default();
        root.file(AGENT_PROGRAM, self.agent.digest.clone(), true, BlobSource::File(self.agent.path.clone()))?;
        root.content(REQUEST_FILE, request)?;
        root.content(LAYERS_CONTENT_FILE, job.layers.clone())?;
        root.tree(TREE_DIRECTORY, job.tree.root.clone())?;
        if let Some(git) = &job.git {
            root.tree(GIT_DIRECTORY, git.tree.root.clone())?;
        }
        for (number, path) in job.needed_paths.iter().enumerate() {
            root.tree(&format!("{NEEDED_PATHS_DIRECTORY}/{number}"), path.root.clone())?;
        }
        let MerkleTree { root, mut blobs } = root.finish();
        let named = |(name, value): (&String, &String)| NamedValue { name: name.clone(), value: value.clone() };
        let platform = Platform { properties: job.platform.iter().map(named).collect() };
        let mut outputs = OUTPUTS.map(str::to_owned).to_vec();
        outputs.sort();
        let command = Command {
            arguments: vec![format!("./{AGENT_PROGRAM}"), AGENT_COMMAND.to_owned()],
            environment_variables: vec![NamedValue { name: "PATH".to_owned(), value: self.settings.path.clone() }],
            platform: Some(platform.clone()),
            output_paths: outputs.clone(),
            // Servers of version 2.0 know only this list.
            output_files: outputs,
            ..Command::default()
        };
        let command = insert(&mut blobs, command.encode_to_vec());
        let action = Action {
            command_digest: Some(command.to_message()),
            input_root_digest: Some(root.to_message()),
            timeout: timeout.map(|timeout| proctor_remote::messages::Duration {
                seconds: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
                nanos: 0,
            }),
            do_not_cache: true,
            platform: Some(platform),
            ..Action::default()
        };
        Ok(DescribedAction { digest: insert(&mut blobs, action.encode_to_vec()), blobs })
    }

    /// Uploads what the server lacks. The trees are the same for most steps of a run, so the server is asked only once
    /// for them.
    async fn upload(&self, job: &RemoteJob, action: &DescribedAction) -> Result<(), RemoteFailure> {
        let git = job.git.as_ref().map(|git| &git.tree);
        let others = self.uploading.lock().await;
        for tree in [Some(&*job.tree), git].into_iter().flatten().chain(job.needed_paths.iter().map(|path| &**path)) {
            let is_known = |uploaded: &Mutex<BTreeSet<BlobDigest>>| {
                uploaded.lock().unwrap_or_else(PoisonError::into_inner).contains(&tree.root)
            };
            if !is_known(&self.uploaded) {
                let sent = self.client.upload(&tree.blobs).await?;
                tracing::debug!(blobs = sent.len(), of = tree.blobs.len(), "a tree was uploaded");
                self.uploaded.lock().unwrap_or_else(PoisonError::into_inner).insert(tree.root.clone());
            }
        }
        drop(others);
        self.client.upload(&action.blobs).await?;
        Ok(())
    }

    async fn read_outputs(
        &self,
        job: &RemoteJob,
        action: BlobDigest,
        result: &ActionResult,
    ) -> Result<RemoteOutputs, RemoteFailure> {
        let Some(report) = self.read_output(result, REPORT_FILE, MAX_REPORT_BYTES).await? else {
            let detail = self.agent_error(result).await;
            return Err(RemoteFailure::NoReport { exit_code: result.exit_code, detail });
        };
        let report: AgentReport =
            serde_json::from_slice(&report).map_err(|error| RemoteFailure::BadReport(error.to_string()))?;
        let stdout = self.read_output(result, STDOUT_FILE, job.max_stream_bytes).await?.unwrap_or_default();
        let stderr = self.read_output(result, STDERR_FILE, job.max_stream_bytes).await?.unwrap_or_default();
        let changes = self.read_output(result, CHANGES_CONTENT_FILE, job.request.max_changes_bytes).await?;
        Ok(RemoteOutputs { action, report, stdout, stderr, changes: changes.unwrap_or_default() })
    }

    /// Reads an output; `None` if the action has no such output.
    async fn read_output(
        &self,
        result: &ActionResult,
        name: &'static str,
        max_bytes: u64,
    ) -> Result<Option<Bytes>, RemoteFailure> {
        let Some(file) = result.output_files.iter().find(|file| file.path == name) else { return Ok(None) };
        let digest = BlobDigest::from_message(file.digest.as_ref())
            .map_err(|error| RemoteFailure::BadReport(format!("the output `{name}`: {error}")))?;
        if digest.matches(&file.contents) {
            return Ok(Some(Bytes::from(file.contents.clone())));
        }
        let read = self.client.read(&BTreeSet::from([digest.clone()]), max_bytes).await?;
        read.get(&digest).cloned().map(Some).ok_or(RemoteFailure::LostOutput(name))
    }

    /// Returns the beginning of what the agent wrote to its standard error.
    async fn agent_error(&self, result: &ActionResult) -> String {
        let mut text = result.stderr_raw.clone();
        if text.is_empty()
            && let Ok(digest) = BlobDigest::from_message(result.stderr_digest.as_ref())
            && let Ok(found) = self.client.read(&BTreeSet::from([digest.clone()]), MAX_REPORT_BYTES).await
        {
            text = found.get(&digest).map(|content| content.to_vec()).unwrap_or_default();
        }
        let text = proctor_core::record::evidence::escape_output(&text);
        let text: String = text.trim().chars().take(MAX_AGENT_ERROR).collect();
        if text.is_empty() { text } else { format!(": {text}") }
    }
}

const OUTPUTS: [&str; 4] = [REPORT_FILE, STDOUT_FILE, STDERR_FILE, CHANGES_CONTENT_FILE];

/// Describes the requested properties of the worker.
fn requested_properties(platform: &BTreeMap<String, String>) -> String {
    let listed: Vec<String> = platform.iter().map(|(name, value)| format!("`{name}` = `{value}`")).collect();
    match listed.as_slice() {
        [] => "no property of the worker was requested".to_owned(),
        listed => format!("the requested properties of the worker are {}", listed.join(", ")),
    }
}

/// An action with the blobs that belong to it alone.
#[derive(Debug)]
struct DescribedAction {
    digest: BlobDigest,
    blobs: BTreeMap<BlobDigest, BlobSource>,
}

fn insert(blobs: &mut BTreeMap<BlobDigest, BlobSource>, content: Vec<u8>) -> BlobDigest {
    let digest = BlobDigest::for_bytes(&content);
    blobs.insert(digest.clone(), BlobSource::Bytes(content.into()));
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_above_the_limit_of_the_server_is_left_out() {
        let [short, long, longer] = [60, 1_500, 2_000].map(Duration::from_secs);
        let mut timeouts = ActionTimeouts::default();
        assert_eq!(timeouts.timeout(longer), Some(longer));
        timeouts.note_refused(long);
        timeouts.note_refused(longer);
        assert_eq!([short, long, longer].map(|needed| timeouts.timeout(needed)), [Some(short), None, None]);
    }
}
