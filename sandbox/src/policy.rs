//! Describes the controls and paths that the runner demands for one attempt, as plain data: a policy contains no
//! defaults and is built without reading the machine.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use proctor_core::decision::input_filter::InputRules;
use proctor_core::model::enforcement::Tolerated;
use proctor_core::model::plan::{Argv, Leaks, Limits, Network, RelPath};
use serde::{Deserialize, Serialize};

use crate::file_batches::FileBatches;

/// One command and the sandbox it needs. Absolute paths are canonical: they contain no symbolic links, `.` or `..`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// The repository. It stays visible at this path, as an overlay.
    pub repo: PathBuf,
    /// Location of the tree on the host if it differs from `repo`: a checkout made by proctor. Its `.git` appears as
    /// the repository's.
    pub checkout: Option<PathBuf>,
    /// The git directories that stay readable and are never writable.
    pub git: GitDirs,
    /// Start directory of the command, relative to the repository.
    pub workdir: RelPath,
    /// The command.
    pub argv: Argv,
    /// The files for the word `{files}` of the command. Without batches, the word is passed on as it is.
    pub files: FileBatches,
    /// The complete environment of the command; nothing is added to it.
    pub env: BTreeMap<String, String>,
    /// The network that the command sees.
    pub network: Network,
    /// Its limits.
    pub limits: Limits,
    /// How to treat processes that the command leaves behind. With [`Leaks::Ignore`] the sandbox does not look for
    /// them.
    pub leaks: Leaks,
    /// Path of the command's empty, writable home directory; `env` should name it as `HOME`.
    pub home: PathBuf,
    /// More directories to hide from the command, such as the one that holds the repository and its neighbours. `/`
    /// is skipped.
    pub hide: Vec<PathBuf>,
    /// Files and directories to show although their parent directory is hidden.
    pub tools: Vec<ToolMount>,
    /// Directories of the repository that are stored outside of it.
    pub caches: Vec<CacheMount>,
    /// Controls that may be missing without a refusal.
    pub tolerated: Tolerated,
    /// `true` to show the host through a view that records what the command reads of it; see
    /// [`RunningSandbox::take_view_trace`](crate::RunningSandbox::take_view_trace). Such a sandbox serves one command.
    pub view: bool,
    /// The files of the repository that the command sees, if it is not to see all of them. This needs a view, and has no
    /// effect if the view cannot be set up; see
    /// [`RunningSandbox::take_view_trace`](crate::RunningSandbox::take_view_trace).
    pub inputs: Option<InputRules>,
}

impl Policy {
    /// Returns the part that many commands share.
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
            view: self.view,
            inputs: self.inputs.clone(),
        }
    }

    /// Returns the part that is specific to this command.
    pub(crate) fn command(&self) -> CommandPolicy {
        CommandPolicy {
            workdir: self.workdir.clone(),
            argv: self.argv.clone(),
            files: self.files.clone(),
            env: self.env.clone(),
            limits: self.limits,
            leaks: self.leaks,
        }
    }
}

/// The part of a policy that does not depend on the command. A sandbox can be prepared from it.
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
    /// The limits, which are equal for most commands of a run, so that they can be set before a command arrives.
    pub(crate) limits: Limits,
    /// `true` to show the host through a view.
    pub(crate) view: bool,
    /// The files of the repository that the view shows; `None` for all.
    pub(crate) inputs: Option<InputRules>,
}

impl Frame {
    /// Returns the path of the tree on the host.
    pub(crate) fn tree(&self) -> &Path {
        self.checkout.as_deref().unwrap_or(&self.repo)
    }

    /// Returns the host path of the directory that steps see as the git directory `at`.
    pub(crate) fn git_source(&self, at: &Path) -> PathBuf {
        let is_of_tree = at == self.repo.join(".git") || self.git.nested.iter().any(|nested| nested.git == at);
        match (&self.checkout, at.strip_prefix(&self.repo)) {
            (Some(checkout), Ok(below)) if is_of_tree => checkout.join(below),
            _ => at.to_owned(),
        }
    }
}

/// The part of a policy that is specific to the command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CommandPolicy {
    pub(crate) workdir: RelPath,
    pub(crate) argv: Argv,
    pub(crate) files: FileBatches,
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) limits: Limits,
    pub(crate) leaks: Leaks,
}

/// The directories in which git stores data of a repository.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GitDirs {
    /// `<repo>/.git`, a directory or a file; `None` outside git.
    pub worktree_git: Option<PathBuf>,
    /// The common directory of a linked worktree; `None` if `.git` holds everything.
    pub common: Option<PathBuf>,
    /// The repositories nested inside a tree that is stored elsewhere.
    pub nested: Vec<NestedGit>,
}

/// The directories of a repository that is nested inside a tree stored elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NestedGit {
    /// The git directory, at the path that steps see.
    pub git: PathBuf,
    /// The object directory from which the repository borrows objects.
    pub objects: PathBuf,
}

impl GitDirs {
    /// Returns all paths, each before the paths that may be inside it.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let own = [&self.worktree_git, &self.common].into_iter().flatten();
        let nested = self.nested.iter().flat_map(|nested| [&nested.git, &nested.objects]);
        own.chain(nested).map(PathBuf::as_path)
    }
}

/// A file or directory of the host that a step sees although its parent directory is hidden.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolMount {
    /// The file or directory on the host, with all links resolved. It is skipped if it is absent or unreachable, or
    /// if a link has since replaced a component of the path.
    pub source: PathBuf,
    /// The path at which it appears; normally `source` before its links were resolved.
    pub at: PathBuf,
    /// How the file or directory appears.
    pub kind: ToolKind,
    /// The file access rights used to reach `source`.
    pub rights: AccessRights,
}

/// The user whose file access rights apply when a path of the host is resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccessRights {
    /// The rights of the step's user. The path was found for that user, who may have since replaced a component of
    /// it.
    Steps,
    /// Proctor's own rights: the path belongs to proctor, or the operator named it.
    Ours,
}

/// How a [`ToolMount`] appears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolKind {
    /// Unchanged, read-only.
    ReadOnly,
    /// A directory that package managers write to whenever they use it. If the kernel can create an overlay, the
    /// directory is writable, and the writes are discarded with the sandbox; otherwise it is read-only.
    Store,
    /// Show an empty file at the path. It hides credentials inside a directory that is otherwise shown, and must follow
    /// that directory in the list.
    Masked,
}

/// A cache: a directory of the repository that is stored outside of it and is writable for the step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheMount {
    /// The path in the repository.
    pub at: RelPath,
    /// The directory that appears there. Commands that run at the same time must not share a source.
    pub source: CacheSource,
}

/// The directories that a step sees as a cache.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheSource {
    /// One directory of the host, which receives the writes.
    Directory(PathBuf),
    /// One directory of the host as it is, which receives the writes. Unlike with `Directory`, its owner is not changed.
    /// Under a root daemon, root's files appear as the step's.
    Original(PathBuf),
    /// An overlay of immutable layers and one directory that receives the writes.
    Layers {
        /// The parent of [`CACHE_UPPER`], which receives the writes. The helper creates the directories that
        /// overlayfs needs next to it.
        room: PathBuf,
        /// The layers below, newest first; at least one.
        lowers: Vec<PathBuf>,
    },
}

/// Name of the directory that receives the writes to a cache, inside `room`.
pub const CACHE_UPPER: &str = "upper";

impl CacheSource {
    /// Returns the directory that receives the writes. A root daemon creates it as root; the helper changes its owner
    /// to the step's user, see [`StepUser`](crate::StepUser).
    pub fn upper(&self) -> PathBuf {
        match self {
            Self::Directory(path) | Self::Original(path) => path.clone(),
            Self::Layers { room, .. } => room.join(CACHE_UPPER),
        }
    }

    /// Returns every host path that the source consists of.
    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        let (first, lowers) = match self {
            Self::Directory(path) | Self::Original(path) => (path, &[][..]),
            Self::Layers { room, lowers } => (room, lowers.as_slice()),
        };
        [first].into_iter().chain(lowers).map(PathBuf::as_path)
    }
}
