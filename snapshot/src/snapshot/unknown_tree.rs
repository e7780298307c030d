//! Defines the reasons why the tree of the tracked content is not known.

use serde::{Deserialize, Serialize};

/// The reason why the tree that `git add -u` and `git write-tree` would make is not known. Paths are in
/// human-readable form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum UnknownTree {
    /// The repository has no index.
    #[error("there is no index")]
    NoIndex,
    /// A tracked path is a socket, a device or a FIFO.
    #[error("`{path}` is not a file that git can add")]
    SpecialFile {
        /// The path.
        path: String,
    },
    /// A tracked path is a repository whose object ids have another hash algorithm.
    #[error("`{path}` is a repository of another object format")]
    ObjectFormat {
        /// The path.
        path: String,
    },
    /// A submodule with a merge conflict has no commit in the index.
    #[error("the submodule `{path}` has no commit")]
    UnbornSubmodule {
        /// The path.
        path: String,
    },
    /// A file changed each time it was read.
    #[error("`{path}` kept changing while it was read")]
    Unstable {
        /// The path.
        path: String,
    },
    /// A `.gitattributes` is not a regular file.
    #[error("`{path}` is not a regular file")]
    SpecialAttributesFile {
        /// The path.
        path: String,
    },
    /// Git may convert a file, and there is no `git` program.
    #[error("git converts `{path}` when it is added, and no sandbox was available to run git in")]
    NoGitProgram {
        /// The first path.
        path: String,
    },
    /// The `git` program did not convert the files.
    #[error("git converts `{path}` when it is added, and {problem}")]
    Conversion {
        /// The first path.
        path: String,
        /// The problem.
        problem: String,
    },
}
