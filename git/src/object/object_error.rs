//! Reports why an object could not be read.

use git2::{ObjectType, Oid};

use crate::object::object_id::{ObjectId, ObjectKind};

/// The reason why an object could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ObjectError {
    /// libgit2 could not read the object.
    #[error("{}", .0.message())]
    Libgit2(#[from] git2::Error),
    /// Libgit2 supports only ids of another format.
    #[error("{id} is not an id of this repository")]
    ForeignId {
        /// The id.
        id: ObjectId,
        /// The error of libgit2.
        source: git2::Error,
    },
    /// libgit2 returned something other than an id.
    #[error("{0} is not an object id")]
    InvalidId(Oid),
    /// The object is of a kind that git does not define.
    #[error("an object is a {0}")]
    UnknownKind(ObjectType),
    /// The bytes of the object do not have the form of its kind.
    #[error("the {} {id} is malformed", kind.as_str())]
    Malformed {
        /// The kind: a commit or a tag.
        kind: ObjectKind,
        /// The object.
        id: ObjectId,
    },
    /// The object is not a commit.
    #[error("{id} is a {}, not a commit", kind.as_str())]
    NotACommit {
        /// The object.
        id: ObjectId,
        /// Its kind.
        kind: ObjectKind,
    },
    /// The commit is missing.
    #[error("there is no commit {0}")]
    MissingCommit(ObjectId),
    /// A chain of tags is too long.
    #[error("more than {limit} tags lead from {id} to each other")]
    TooManyTags {
        /// The first tag.
        id: ObjectId,
        /// The bound.
        limit: usize,
    },
}
