//! What must hold for one attempt, as the runner demands it. Plain data: no defaults, no
//! look at the machine.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proctor_core::plan::{Argv, Limits, Network, RelPath};
use serde::{Deserialize, Serialize};

/// One command and what must hold around it. Absolute paths are canonical: without symbolic
/// links, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The repository; it stays visible at this path, as an overlay.
    pub repo: PathBuf,
    /// What of git must stay readable and cannot be written.
    pub git: GitDirs,
    /// Where the command starts, relative to the repository.
    pub workdir: RelPath,
    /// The command.
    pub argv: Argv,
    /// The whole environment of the command; nothing is added to it.
    pub env: BTreeMap<String, String>,
    /// What network it sees.
    pub network: Network,
    /// Its limits.
    pub limits: Limits,
    /// Where its empty, writable home directory appears; `env` should name it as `HOME`.
    pub home: PathBuf,
    /// More directories that it must not see, such as the one that holds the repository and
    /// its neighbours. `/` is no such directory and is passed over.
    pub hide: Vec<PathBuf>,
    /// What of the host's hidden directories it needs.
    pub tools: Vec<ToolMount>,
    /// Directories of the repository that outlive the run.
    pub caches: Vec<CacheMount>,
}

/// Where git keeps its data for a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitDirs {
    /// `<repo>/.git`, a directory or a file; `None` outside git.
    pub worktree_git: Option<PathBuf>,
    /// The common directory of a linked worktree; `None` where `.git` is all there is.
    pub common: Option<PathBuf>,
}

/// Something of the host that a step may see although its directory is hidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolMount {
    /// The file or directory on the host; symbolic links are followed. It is passed over
    /// where it is absent.
    pub source: PathBuf,
    /// Where it appears; normally the same path as `source` before links are followed.
    pub at: PathBuf,
    /// In which way.
    pub kind: ToolKind,
}

/// In which way a [`ToolMount`] appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// As it is, read-only.
    ReadOnly,
    /// As an empty file: credentials inside a directory that is shown otherwise. It must come
    /// after that directory in the list.
    Masked,
}

/// A directory of the repository that is kept outside of it, writable for the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMount {
    /// The directory on the host. A root daemon gives it to the step's user when it is made;
    /// see [`StepUser`](crate::StepUser).
    pub source: PathBuf,
    /// Where it appears in the repository.
    pub at: RelPath,
}
