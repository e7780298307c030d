//! Runs one step on a worker of a Remote Execution cluster: the request to the agent program, and its report.
//!
//! The agent is `proctor-sandbox agent`. It travels as an input of the action, next to everything that it needs:
//!
//! | path in the input root | content |
//! |---|---|
//! | [`AGENT_PROGRAM`] | this program |
//! | [`REQUEST_FILE`] | an [`AgentRequest`] |
//! | [`TREE_DIRECTORY`] | the files of the tree; the targets of links are encoded ([`sent_link_target`]) |
//! | [`GIT_DIRECTORY`] | the git directory of the tree, if the request says so |
//! | [`LAYERS_CONTENT_FILE`] | the content of the files in the request's layers |
//! | [`NEEDED_PATHS_DIRECTORY`]`/N/`[`NEEDED_PATH_CONTENT`] | the directories and files of needed path `N` of the request |
//! | [`NEEDED_PATHS_DIRECTORY`]`/N/`[`NEEDED_PATH_LINKS`] | its symbolic links. Servers may refuse absolute ones |
//!
//! The outputs of the action are [`REPORT_FILE`], [`STDOUT_FILE`], [`STDERR_FILE`] and [`CHANGES_CONTENT_FILE`]. Without a
//! report, nothing is known about the step.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proctor_core::model::enforcement::{Enforcement, Tolerated};
use proctor_core::model::leak::LeakedProcesses;
use proctor_core::model::outcome::{LimitKind, StartFault};
use proctor_core::model::plan::{Argv, Leaks, Limits, Network, RelPath};
use proctor_core::record::evidence::Resources;
use proctor_core::text::digest::Sha256Hex;
use serde::{Deserialize, Serialize};

mod link_target;

pub(crate) use link_target::received_link_target;
pub use link_target::sent_link_target;

use crate::file_batches::FileBatches;
use crate::resource_report::WaitStatus;

/// The version of the request, the report, and the encoding of links. A change of any must change it.
pub const AGENT_PROTOCOL: u32 = 4;
/// Name of the agent program in the input root.
pub const AGENT_PROGRAM: &str = "proctor-agent";
/// Name of the request in the input root.
pub const REQUEST_FILE: &str = "request.json";
/// Name of the directory with the tree in the input root.
pub const TREE_DIRECTORY: &str = "tree";
/// Name of the directory in the input root that becomes `.git` of the tree.
pub const GIT_DIRECTORY: &str = "git";
/// Name of the file in the input root with the content of earlier layers.
pub const LAYERS_CONTENT_FILE: &str = "layers.bin";
/// Name of the directory in the input root with the needed paths, each in the directory of its number.
pub const NEEDED_PATHS_DIRECTORY: &str = "needed-paths";
/// Name of the directory with the content of a needed path.
pub const NEEDED_PATH_CONTENT: &str = "content";
/// Name of the file with the symbolic links of a needed path, as a JSON list of [`InputLink`].
pub const NEEDED_PATH_LINKS: &str = "links.json";
/// Name of the output with the report.
pub const REPORT_FILE: &str = "report.json";
/// Name of the output with the step's standard output.
pub const STDOUT_FILE: &str = "stdout";
/// Name of the output with the step's standard error.
pub const STDERR_FILE: &str = "stderr";
/// Name of the output with the content of the files that the step wrote.
pub const CHANGES_CONTENT_FILE: &str = "changes.bin";
/// Maximum size of a report, in bytes.
pub const MAX_REPORT_BYTES: u64 = 64 << 20;

/// The task of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentRequest {
    /// [`AGENT_PROTOCOL`].
    pub version: u32,
    /// A random text, which the report repeats. A report with a different text belongs to a different request.
    pub nonce: String,
    /// The path of the repository on the machine that sends the request. The tree appears at this path if the worker
    /// allows it.
    pub repo: PathBuf,
    /// The home directory of the command, which is empty.
    pub home: PathBuf,
    /// The step.
    pub step: AgentCommand,
    /// Commands that show which tools the worker has. They run before the step, over a tree that has only the needed
    /// paths.
    pub checks: Vec<AgentCommand>,
    /// The writes of earlier steps, oldest first. Their content is in [`LAYERS_CONTENT_FILE`].
    pub layers: Vec<Vec<LayerChange>>,
    /// The caches of the step. They are empty at its start, and their content is not returned.
    pub caches: Vec<RelPath>,
    /// The paths that are not part of the tree, and that appear in it. Their content is in [`NEEDED_PATHS_DIRECTORY`].
    pub needed_paths: Vec<AgentNeededPath>,
    /// True if the input root contains [`GIT_DIRECTORY`].
    pub has_git: bool,
    /// The controls of the sandbox that may be missing. No command starts without the other ones: it could change the
    /// outputs of the action.
    pub tolerated: Tolerated,
    /// Maximum size of the content of all files that the step writes, in bytes. If it writes more, the report has no
    /// changes, but [`AgentReport::changes_error`].
    pub max_changes_bytes: u64,
}

/// A directory that the tree lacks, and that commands need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentNeededPath {
    /// The path in the tree.
    pub at: RelPath,
    /// True if the step does not see it.
    pub is_for_checks_only: bool,
}

/// A symbolic link of a needed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputLink {
    /// The path relative to the needed path, as bytes in hexadecimal.
    #[serde(with = "path_bytes")]
    pub path: Vec<u8>,
    /// The target of the link, as bytes in hexadecimal.
    #[serde(with = "path_bytes")]
    pub target: Vec<u8>,
}

/// A command that the agent runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentCommand {
    /// The name of the step, or of the toolchain check.
    pub name: String,
    /// Start directory, relative to the tree.
    pub workdir: RelPath,
    /// The command.
    pub argv: Argv,
    /// The files for the word `{files}` of the command.
    pub files: FileBatches,
    /// Its complete environment.
    pub env: BTreeMap<String, String>,
    /// The network that the command sees.
    pub network: Network,
    /// Its limits.
    pub limits: Limits,
    /// The handling of processes that the command leaves behind.
    pub leaks: Leaks,
    /// Time from the start of the command until it gets SIGTERM, in milliseconds.
    pub timeout_ms: u64,
    /// Time from SIGTERM to SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// Maximum number of bytes that are kept of each output stream: the first half and the last half.
    pub max_output_bytes: u64,
}

/// The events on the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    /// [`AGENT_PROTOCOL`].
    pub version: u32,
    /// The nonce of the request.
    pub nonce: String,
    /// The worker.
    pub worker: WorkerFacts,
    /// The path at which the tree appeared.
    pub repo: PathBuf,
    /// The results of the checks, in the order of the request. The step does not run after a check that did not exit
    /// with code 0.
    pub checks: Vec<CheckReport>,
    /// The execution of the step; `None` if it did not run because of a check.
    pub attempt: Option<AgentAttempt>,
    /// The standard output of the step.
    pub stdout: AgentStream,
    /// The standard error of the step.
    pub stderr: AgentStream,
    /// The writes of the step, without caches. Their content is in [`CHANGES_CONTENT_FILE`].
    pub changes: Vec<LayerChange>,
    /// Why the writes of the step are not in the report.
    pub changes_error: Option<String>,
}

/// Facts about the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerFacts {
    /// The architecture, such as `x86_64`.
    pub architecture: String,
    /// The release of the kernel.
    pub kernel: String,
    /// The operating system: `ID` and `VERSION_ID` of `/etc/os-release`, if there is one.
    pub os: String,
    /// The number of processors.
    pub processors: u32,
    /// The first programs of the checks and of the step, as found through `PATH`. A script counts as itself.
    pub programs: Vec<ProgramFingerprint>,
}

/// The file of a program on the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramFingerprint {
    /// The first word of the command.
    pub name: String,
    /// Its file, with all links resolved; `None` if there is none.
    pub path: Option<PathBuf>,
    /// The digest of the file.
    pub sha256: Option<Sha256Hex>,
}

/// The result of a toolchain check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The name of the check.
    pub name: String,
    /// The execution.
    pub attempt: AgentAttempt,
    /// The beginning of the standard output, at most 16 KiB, with invalid UTF-8 replaced.
    pub stdout: String,
    /// The same of the standard error.
    pub stderr: String,
}

/// One execution of a command on the worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentAttempt {
    /// True if the sandbox was complete, and the command was started in it.
    pub started: bool,
    /// Why the command did not start.
    pub not_started: Option<(StartFault, String)>,
    /// How the command ended.
    pub status: Option<WaitStatus>,
    /// The limit for which the sandbox ended the command.
    pub limit: Option<LimitKind>,
    /// True if the command was ended at its timeout.
    pub timed_out: bool,
    /// True if the command was ended because the worker asked the agent to end.
    pub cancelled: bool,
    /// Time from the start of the command to the end of its processes, in milliseconds.
    pub duration_ms: u64,
    /// The controls that the worker's kernel enforced.
    pub enforcement: Enforcement,
    /// The resources that the command used.
    pub resources: Resources,
    /// The processes that the command left behind.
    pub leaked: Option<LeakedProcesses>,
    /// True if all processes of the command have ended.
    pub processes_ended: bool,
    /// The resources of the layers' file system that were used up.
    pub exhausted: Vec<LimitKind>,
}

/// An output stream of the step.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentStream {
    /// The number of bytes that the step wrote.
    pub bytes: u64,
    /// The number of bytes at the beginning of the output file that are the beginning of the stream. The rest of the file
    /// is the end of the stream. If nothing is left out, it is `bytes`.
    pub head_bytes: u64,
    /// The digest of everything that the step wrote.
    pub sha256: Option<Sha256Hex>,
    /// True if the stream was read to its end.
    pub complete: bool,
}

/// One entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerChange {
    /// The path relative to the tree, as bytes in hexadecimal. A directory precedes its entries.
    #[serde(with = "path_bytes")]
    pub path: Vec<u8>,
    /// The new state of the path.
    pub kind: LayerChangeKind,
}

/// The new state of a path in a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum LayerChangeKind {
    /// A file. Its content is a range of the content file.
    File {
        /// The permission bits.
        mode: u32,
        /// The position of the first byte in the content file.
        offset: u64,
        /// Its size.
        bytes: u64,
        /// The digest of the content.
        sha256: Sha256Hex,
    },
    /// A directory.
    Directory {
        /// The permission bits.
        mode: u32,
        /// True if the directory hides the entries that it had before.
        opaque: bool,
    },
    /// A symbolic link.
    Symlink {
        /// The target of the link, as bytes in hexadecimal.
        #[serde(with = "path_bytes")]
        target: Vec<u8>,
    },
    /// The path does not exist any more.
    Deleted,
    /// A socket, fifo or device, whose content is not returned.
    Special {
        /// The type bits of the mode.
        file_type: u32,
    },
}

/// Bytes in hexadecimal.
mod path_bytes {
    use serde::de::Error as _;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            write!(text, "{byte:02x}").map_err(serde::ser::Error::custom)?;
        }
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        });
        pairs.collect::<Option<_>>().ok_or_else(|| D::Error::custom("bytes are not in hexadecimal"))
    }
}
