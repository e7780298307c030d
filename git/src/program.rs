//! Defines how the `git` program is asked for data that libgit2 cannot read, in a way that nothing named by the
//! repository can do harm. This module defines the tasks; the implementor of [`GitProgram`] starts the processes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::files::repo_path::RepoPath;
use crate::index::GitIndex;
use crate::object::object_id::ObjectId;
use crate::repository_paths::{OriginalRepository, RepositoryPaths};

pub(crate) mod change_task;
pub mod conversion_task;
pub(crate) mod history_task;
pub(crate) mod ignore_task;
pub(crate) mod listing_task;
pub(crate) mod program_output;
pub(crate) mod script_output;

/// Runs the `git` program in one repository.
///
/// An implementation must isolate it like a step: the repository appears at its own path and cannot be changed,
/// other writes are discarded, and there is no network and no home directory. Time and output are limited.
pub trait GitProgram: fmt::Debug + Send + Sync {
    /// Runs `task` in the repository at `places`.
    ///
    /// # Errors
    /// The task could not be completed.
    fn run(&self, places: &RepositoryPaths, task: &GitTask) -> Result<GitOutput, GitProgramError>;
}

/// The reason why the `git` program gave no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum GitProgramError {
    /// The implementor of [`GitProgram`] could not run the task to its end.
    #[error(transparent)]
    NotRun(Box<dyn std::error::Error + Send + Sync>),
    /// Git failed.
    #[error("git reports: {message}")]
    Failed {
        /// The first line of its standard error, escaped.
        message: String,
    },
    /// The output of git is malformed.
    #[error("the answer of git has an unknown format")]
    MalformedOutput,
}

/// Runs `git` over checkouts of one repository. A checkout by itself only has its own git directory.
#[derive(Debug)]
pub(crate) struct CheckoutProgram {
    pub(crate) program: Arc<dyn GitProgram>,
    pub(crate) original: OriginalRepository,
}

impl GitProgram for CheckoutProgram {
    fn run(&self, places: &RepositoryPaths, task: &GitTask) -> Result<GitOutput, GitProgramError> {
        self.program.run(&RepositoryPaths { checkout_of: Some(self.original.clone()), ..places.clone() }, task)
    }
}

/// A task that is run as `/bin/sh -c <script>`, with [`ENVIRONMENT`] and no other variable that affects git.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitTask {
    /// One of Proctor's scripts. The script finds its input files in the directory `$INPUT`, and may write to
    /// `$TMPDIR`.
    pub script: &'static str,
    /// The working directory, relative to the work tree; empty for its top.
    pub directory: RepoPath,
    /// The input files, by name.
    pub input: BTreeMap<&'static str, Vec<u8>>,
}

/// The result of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitOutput {
    /// True if the task succeeded.
    pub success: bool,
    /// The complete standard output.
    pub stdout: Vec<u8>,
    /// The beginning of the standard error.
    pub stderr: Vec<u8>,
}

/// The environment variables of git. They disable all config except the repository's own, and all of its settings
/// with which a query would start a program, write files, or access the network. Filters are not disabled, since
/// git must run them to compute the converted content of a file.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("LC_ALL", "C"),
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_OPTIONAL_LOCKS", "0"),
    ("GIT_NO_LAZY_FETCH", "1"),
    ("GIT_NO_REPLACE_OBJECTS", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("GIT_PAGER", "cat"),
    ("GIT_CONFIG_COUNT", "12"),
    ("GIT_CONFIG_KEY_0", "core.fsmonitor"),
    ("GIT_CONFIG_VALUE_0", "false"),
    ("GIT_CONFIG_KEY_1", "core.hooksPath"),
    ("GIT_CONFIG_VALUE_1", "/dev/null"),
    ("GIT_CONFIG_KEY_2", "core.untrackedCache"),
    ("GIT_CONFIG_VALUE_2", "false"),
    ("GIT_CONFIG_KEY_3", "core.splitIndex"),
    ("GIT_CONFIG_VALUE_3", "false"),
    ("GIT_CONFIG_KEY_4", "index.sparse"),
    ("GIT_CONFIG_VALUE_4", "false"),
    // An irreversible conversion must not make git fail.
    ("GIT_CONFIG_KEY_5", "core.safecrlf"),
    ("GIT_CONFIG_VALUE_5", "false"),
    ("GIT_CONFIG_KEY_6", "protocol.allow"),
    ("GIT_CONFIG_VALUE_6", "never"),
    ("GIT_CONFIG_KEY_7", "gc.auto"),
    ("GIT_CONFIG_VALUE_7", "0"),
    // The caller has already checked the owner.
    ("GIT_CONFIG_KEY_8", "safe.directory"),
    ("GIT_CONFIG_VALUE_8", "*"),
    ("GIT_CONFIG_KEY_9", "core.checkStat"),
    ("GIT_CONFIG_VALUE_9", "default"),
    ("GIT_CONFIG_KEY_10", "core.ignoreStat"),
    ("GIT_CONFIG_VALUE_10", "false"),
    // Git LFS stores the objects that it has cleaned, but the git directory is read-only.
    ("GIT_CONFIG_KEY_11", "lfs.storage"),
    ("GIT_CONFIG_VALUE_11", "/tmp/lfs"),
];

/// The entries of a tree by path: mode and object.
pub type TreeEntries = BTreeMap<Vec<u8>, (u32, ObjectId)>;

/// Runs a task and returns its output.
pub(crate) fn run_task(
    program: &dyn GitProgram,
    places: &RepositoryPaths,
    task: &GitTask,
) -> Result<Vec<u8>, GitProgramError> {
    let output = program.run(places, task)?;
    if output.success {
        return Ok(output.stdout);
    }
    let stderr = proctor_core::record::evidence::escape_output(&output.stderr);
    Err(GitProgramError::Failed { message: stderr.trim().lines().next().unwrap_or("nothing").to_owned() })
}

/// Returns a file in the format of `git update-index -z --index-info`.
pub(crate) fn index_info<'a>(index: &GitIndex, paths: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut info = Vec::new();
    for entry in paths.flat_map(|path| index.entries_at(path)) {
        info.extend_from_slice(format!("{:o} {} {}\t", entry.mode, entry.id, entry.stage).as_bytes());
        info.extend_from_slice(&entry.path.0);
        info.push(0);
    }
    info
}

/// Parses one line of `git ls-files --stage -z`, without the NUL: mode, object, stage, path.
pub(crate) fn parse_staged_line(line: &[u8]) -> Option<(u32, ObjectId, u8, &[u8])> {
    let tab = line.iter().position(|b| *b == b'\t')?;
    let (head, path) = (std::str::from_utf8(&line[..tab]).ok()?, &line[tab + 1..]);
    let mut words = head.split(' ');
    let mode = u32::from_str_radix(words.next()?, 8).ok()?;
    let id = ObjectId::from_hex(words.next()?.as_bytes())?;
    let stage = words.next()?.parse().ok()?;
    Some((mode, id, stage, path))
}
