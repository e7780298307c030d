//! Reading git's own files, in a process of its own: the errors, and the parts.
//!
//! A repository's config is hostile input, so libgit2 never runs in this process: [`helper`]
//! starts `proctor-git`, which answers by [`reader`] in the words of [`protocol`].

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

mod config;
pub(crate) mod helper;
mod ignore;
mod listing;
pub mod protocol;
pub mod reader;
mod tree_id;

/// Why a repository could not be read. Every message ends with how to mend it, on a `hint:` line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "error", rename_all = "snake_case")]
pub enum GitError {
    /// The directory is not the top of a work tree.
    #[error("`{}` is not under git\nhint: run `git init` there, or name the top of a repository", path.display())]
    NotARepository {
        /// The directory.
        path: PathBuf,
    },
    /// There is a repository, but no work tree.
    #[error("`{}` is a bare repository; there is no tree to verify\nhint: clone it, and verify the clone", path.display())]
    Bare {
        /// The repository.
        path: PathBuf,
    },
    /// The repository belongs to another user than the one who reads it.
    #[error(
        "`{}` is owned by somebody else\nhint: run as its owner, or as root (then it is read as its owner); the work tree, `.git` and what it points to must have one owner",
        path.display()
    )]
    ForeignOwner {
        /// The repository.
        path: PathBuf,
    },
    /// The config would make git read something else than this repository.
    #[error("{} is refused: {problem}\nhint: {mend}", path.display())]
    Config {
        /// The config file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
        /// How to mend it.
        mend: String,
    },
    /// A format of git that libgit2 cannot read.
    #[error("`{}` uses {what}, which cannot be read yet\nhint: {mend}", path.display())]
    Unsupported {
        /// The repository.
        path: PathBuf,
        /// The format.
        what: String,
        /// How to mend it.
        mend: String,
    },
    /// libgit2 could not read the repository.
    #[error("cannot read the repository `{}`: {problem}\nhint: `git fsck` and `git status` there say more", path.display())]
    Unreadable {
        /// The repository.
        path: PathBuf,
        /// libgit2's own words.
        problem: String,
    },
    /// A file or directory of the work tree or of `.git` could not be read.
    #[error("cannot read `{}`: {problem}\nhint: mend its permissions, or have git ignore it", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// The system's own words.
        problem: String,
    },
    /// The repository is larger than we read.
    #[error("`{}` has more than {limit} {what}\nhint: have git ignore what does not belong to the tree", path.display())]
    TooMany {
        /// The repository.
        path: PathBuf,
        /// The bound.
        limit: usize,
        /// Of what.
        what: String,
    },
    /// The helper did not answer in time, and was killed.
    #[error(
        "reading `{}` took longer than {} s and was ended\nhint: look for a fifo or a dead network mount that `.git` or an ignore file points to",
        path.display(), deadline.as_secs_f32()
    )]
    Deadline {
        /// The repository.
        path: PathBuf,
        /// The time that it had.
        deadline: Duration,
    },
    /// The helper could not be started, died, or did not speak its protocol.
    #[error("the git helper `{}` failed: {problem}\nhint: it is installed beside `proctor`; reinstall both together", exe.display())]
    Helper {
        /// The program.
        exe: PathBuf,
        /// What happened.
        problem: String,
    },
}
