//! Defines the errors of reading a repository.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::object::object_id::ObjectFormat;
use crate::repository_paths::RepositoryPaths;

/// The reason why a repository could not be read. Each message ends with a `hint:` line that says how to fix the
/// problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum GitError {
    /// The directory is not the top of a work tree.
    #[error("`{}` is not a git repository\nhint: run `git init` there, or name the top directory of a repository", path.display())]
    NotARepository {
        /// The directory.
        path: PathBuf,
    },
    /// The directory is below the top of a work tree. Runs, specs and evidence belong to the top.
    #[error(
        "`{}` is not the top directory of its repository, but Proctor reads the spec only there\nhint: name the top directory (`--repo {}`) and give the steps `workdir: {}`",
        path.display(),
        top.display(),
        path.strip_prefix(top).unwrap_or(path).display()
    )]
    BelowTop {
        /// The directory.
        path: PathBuf,
        /// The top of the work tree that contains it.
        top: PathBuf,
    },
    /// The repository has no work tree.
    #[error("`{}` is a bare repository; there is no tree to verify\nhint: clone it, and verify the clone", path.display())]
    Bare {
        /// The repository.
        path: PathBuf,
    },
    /// The repository does not belong to the user who reads it.
    #[error(
        "`{}` is owned by another user\nhint: run as its owner, or as root (which reads it as its owner); the work tree, `.git` and the directory that it points to must have the same owner",
        path.display()
    )]
    ForeignOwner {
        /// The repository.
        path: PathBuf,
    },
    /// The config would make git read something other than this repository.
    #[error("{} is refused: {problem}\nhint: {mend}", path.display())]
    Config {
        /// The config file.
        path: PathBuf,
        /// The problem with the file.
        problem: String,
        /// How to fix the problem.
        mend: String,
    },
    /// The repository uses a git format that libgit2 cannot read.
    #[error("`{}` uses {what}, which Proctor does not support yet\nhint: {mend}", path.display())]
    Unsupported {
        /// The repository.
        path: PathBuf,
        /// The format.
        what: String,
        /// How to fix the problem.
        mend: String,
    },
    /// The repository uses a git format that libgit2 cannot read but the `git` program can.
    #[error(
        "`{}` uses {what}, which only the `git` program can read, but its sandbox is not available\nhint: {mend}",
        places.worktree.display()
    )]
    Format {
        /// The paths of the repository, which passed all checks.
        places: RepositoryPaths,
        /// The hash algorithm of the object ids.
        objects: ObjectFormat,
        /// The format.
        what: String,
        /// How to avoid the unsupported format.
        mend: String,
    },
    /// libgit2 could not read the repository.
    #[error("cannot read the repository `{}`: {problem}\nhint: `git fsck` and `git status` there show details", path.display())]
    Unreadable {
        /// The repository.
        path: PathBuf,
        /// The message of libgit2.
        problem: String,
    },
    /// A file or directory of the work tree or of `.git` could not be read.
    #[error("cannot read `{}`: {problem}\nhint: fix its permissions, or have git ignore it", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system error.
        problem: String,
    },
    /// The repository exceeds a bound.
    #[error("`{}` has more than {limit} {what}\nhint: make git ignore files that do not belong to the tree", path.display())]
    TooMany {
        /// The repository.
        path: PathBuf,
        /// The bound.
        limit: usize,
        /// The kind of item that is counted.
        what: String,
    },
    /// A revision is invalid, or cannot be verified.
    #[error("cannot use the revision `{revision}`: {problem}\nhint: {mend}")]
    Revision {
        /// The repository.
        path: PathBuf,
        /// The requested revision, in human-readable form.
        revision: String,
        /// The problem with the revision.
        problem: String,
        /// How to fix the problem.
        mend: String,
    },
    /// The tree of a commit is invalid or too large.
    #[error(
        "the tree of commit {commit} is not checked out: `{path}` {problem}\nhint: `git ls-tree -r -t {commit}` shows it"
    )]
    Tree {
        /// The commit.
        commit: String,
        /// The path in the commit's tree, in human-readable form.
        path: String,
        /// The problem at that path.
        problem: String,
    },
    /// Objects of a commit are missing. In a partial clone, git fetches objects on demand; Proctor never does.
    #[error(
        "commit {commit} cannot be checked out: {count} of its files and directories are not in this clone, and nothing \
            is fetched: {}\nhint: in a partial clone, `git ls-tree -r -l {commit}` fetches them; in any other, `git \
            fsck` lists the missing objects",
        some_of(paths, *count)
    )]
    Missing {
        /// The commit.
        commit: String,
        /// The first of the affected paths, in human-readable form.
        paths: Vec<String>,
        /// The number of missing objects.
        count: usize,
    },
    /// A submodule that should be checked out is missing.
    #[error(
        "the submodule `{path}` cannot be checked out: its commit {commit} is not in this clone\nhint: `git submodule update --init --recursive` fetches it; without `--submodules` its directory remains empty"
    )]
    Submodule {
        /// The path of the submodule, in human-readable form.
        path: String,
        /// The commit that is recorded for the submodule.
        commit: String,
    },
    /// A checkout in the state directory could not be written.
    #[error("cannot write the checkout `{}`: {problem}\nhint: fix the permissions of the state directory, or free space there", path.display())]
    CheckOut {
        /// The path.
        path: PathBuf,
        /// The system error.
        problem: String,
    },
    /// The helper did not answer in time, and was killed.
    #[error(
        "reading `{}` took longer than {} s and was stopped\nhint: look for a fifo or a dead network mount that `.git` or an ignore file points to",
        path.display(), deadline.as_secs_f32()
    )]
    Deadline {
        /// The repository.
        path: PathBuf,
        /// The deadline.
        deadline: Duration,
    },
    /// The helper could not be started, died, or violated the protocol.
    #[error("the git helper `{}` failed: {problem}\nhint: it is installed next to `proctor`; reinstall both together", exe.display())]
    Helper {
        /// The program.
        exe: PathBuf,
        /// The problem.
        problem: String,
    },
}

/// System errors that are caused by the machine and not by the repository: `EIO`, `ENOMEM`, `ENFILE`, `EMFILE`,
/// `ENOSPC`.
const MACHINE_ERRORS: [&str; 5] = ["(os error 5)", "(os error 12)", "(os error 23)", "(os error 24)", "(os error 28)"];

impl GitError {
    /// Returns whether the repository itself is refused, so a retry gives the same result until a user changes it.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Io { problem, .. } => !MACHINE_ERRORS.iter().any(|code| problem.contains(code)),
            Self::CheckOut { .. } | Self::Deadline { .. } | Self::Helper { .. } => false,
            Self::NotARepository { .. }
            | Self::BelowTop { .. }
            | Self::Bare { .. }
            | Self::ForeignOwner { .. }
            | Self::Config { .. }
            | Self::Unsupported { .. }
            | Self::Format { .. }
            | Self::Unreadable { .. }
            | Self::TooMany { .. }
            | Self::Revision { .. }
            | Self::Tree { .. }
            | Self::Missing { .. }
            | Self::Submodule { .. } => true,
        }
    }
}

/// Formats the first paths of `count`, each in backquotes.
fn some_of(paths: &[String], count: usize) -> String {
    let named: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    match count.saturating_sub(paths.len()) {
        0 => named.join(", "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}
