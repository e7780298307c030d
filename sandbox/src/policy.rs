//! What must hold for one attempt, as the runner demands it. Plain data: no defaults, no
//! look at the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proctor_core::enforcement::Tolerated;
use proctor_core::plan::{Argv, Leaks, Limits, Network, RelPath};
use serde::{Deserialize, Serialize};

/// One command and what must hold around it. Absolute paths are canonical: without symbolic
/// links, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The repository; it stays visible at this path, as an overlay.
    pub repo: PathBuf,
    /// Where the tree that appears there lies on the host, where that is elsewhere: a checkout of
    /// ours. Its `.git` appears as the repository's.
    pub checkout: Option<PathBuf>,
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
    /// What processes mean that it leaves behind: with [`Leaks::Ignore`] they are not looked for.
    pub leaks: Leaks,
    /// Where its empty, writable home directory appears; `env` should name it as `HOME`.
    pub home: PathBuf,
    /// More directories that it must not see, such as the one that holds the repository and
    /// its neighbours. `/` is no such directory and is passed over.
    pub hide: Vec<PathBuf>,
    /// What of the host's hidden directories it needs.
    pub tools: Vec<ToolMount>,
    /// Directories of the repository that are stored outside of it.
    pub caches: Vec<CacheMount>,
    /// Which controls may be missing without a refusal.
    pub tolerated: Tolerated,
}

impl Policy {
    /// The part that is the same for many commands.
    pub(crate) fn frame(&self) -> Frame {
        Frame {
            repo: self.repo.clone(),
            checkout: self.checkout.clone(),
            git: self.git.clone(),
            network: self.network,
            home: self.home.clone(),
            hide: self.hide.clone(),
            tools: self.tools.clone(),
            caches: self.caches.clone(),
            tolerated: self.tolerated.clone(),
            limits: self.limits,
        }
    }

    /// The part that is this command's own.
    pub(crate) fn command(&self) -> Command {
        Command {
            workdir: self.workdir.clone(),
            argv: self.argv.clone(),
            env: self.env.clone(),
            limits: self.limits,
            leaks: self.leaks,
        }
    }
}

/// What of a policy does not depend on the command: a sandbox can be prepared from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) repo: PathBuf,
    pub(crate) checkout: Option<PathBuf>,
    pub(crate) git: GitDirs,
    pub(crate) network: Network,
    pub(crate) home: PathBuf,
    pub(crate) hide: Vec<PathBuf>,
    pub(crate) tools: Vec<ToolMount>,
    pub(crate) caches: Vec<CacheMount>,
    pub(crate) tolerated: Tolerated,
    /// The same for most commands of a run, so that they can be set before one comes.
    pub(crate) limits: Limits,
}

impl Frame {
    /// Where the tree lies on the host.
    pub(crate) fn tree(&self) -> &Path {
        self.checkout.as_deref().unwrap_or(&self.repo)
    }

    /// Where on the host that lies which appears as the git directory `at`.
    pub(crate) fn git_source(&self, at: &Path) -> PathBuf {
        let is_of_tree = at == self.repo.join(".git") || self.git.nested.iter().any(|nested| nested.git == at);
        match (&self.checkout, at.strip_prefix(&self.repo)) {
            (Some(checkout), Ok(below)) if is_of_tree => checkout.join(below),
            _ => at.to_owned(),
        }
    }
}

/// What of a policy is the command's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Command {
    pub(crate) workdir: RelPath,
    pub(crate) argv: Argv,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) limits: Limits,
    pub(crate) leaks: Leaks,
}

/// Where git keeps its data for a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitDirs {
    /// `<repo>/.git`, a directory or a file; `None` outside git.
    pub worktree_git: Option<PathBuf>,
    /// The common directory of a linked worktree; `None` where `.git` is all there is.
    pub common: Option<PathBuf>,
    /// The repositories inside a tree that lies elsewhere.
    pub nested: Vec<NestedGit>,
}

/// Where git keeps its data for a repository inside a tree that lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedGit {
    /// Its git directory, where steps see it.
    pub git: PathBuf,
    /// The directory of the objects that it borrows.
    pub objects: PathBuf,
}

impl GitDirs {
    /// Returns all of them, each before those that may lie in it.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let own = [&self.worktree_git, &self.common].into_iter().flatten();
        let nested = self.nested.iter().flat_map(|nested| [&nested.git, &nested.objects]);
        own.chain(nested).map(PathBuf::as_path)
    }
}

/// Something of the host that a step may see although its directory is hidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolMount {
    /// The file or directory on the host, all links followed. It is passed over where it is absent,
    /// may not be reached, or a link has come in its way.
    pub source: PathBuf,
    /// Where it appears; normally the same path as `source` before links are followed.
    pub at: PathBuf,
    /// In which way.
    pub kind: ToolKind,
    /// With whose rights on files `source` is reached.
    pub rights: Rights,
}

/// Whose rights on files count on the way to something of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rights {
    /// The step's user's: its path was found for that user, who may have another one put something
    /// else there.
    Steps,
    /// Ours: it is ours, or the operator named it.
    Ours,
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

/// A cache: a directory of the repository that is stored outside of it and that the step can write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMount {
    /// Where it appears in the repository.
    pub at: RelPath,
    /// What appears there. No two commands that run at the same time may have the same source.
    pub source: CacheSource,
}

/// What a step sees as a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheSource {
    /// One directory of the host, which takes the writes.
    Directory(PathBuf),
    /// An overlay of layers that stay as they are and one directory that takes the writes.
    Layers {
        /// The directory that holds [`CACHE_UPPER`], which takes the writes. The helper makes the directories that
        /// overlayfs needs beside it.
        room: PathBuf,
        /// The layers below, newest first; at least one.
        lowers: Vec<PathBuf>,
    },
}

/// The directory that takes the writes to a cache, below its room.
pub const CACHE_UPPER: &str = "upper";

impl CacheSource {
    /// Returns the directory that takes the writes. A root daemon makes it as root; the helper gives it to the step's
    /// user, see [`StepUser`](crate::StepUser).
    pub fn upper(&self) -> PathBuf {
        match self {
            Self::Directory(path) => path.clone(),
            Self::Layers { room, .. } => room.join(CACHE_UPPER),
        }
    }

    /// Returns every path of the host that it consists of.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let (first, lowers) = match self {
            Self::Directory(path) => (path, &[][..]),
            Self::Layers { room, lowers } => (room, lowers.as_slice()),
        };
        [first].into_iter().chain(lowers).map(PathBuf::as_path)
    }
}
