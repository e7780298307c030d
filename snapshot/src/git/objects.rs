//! The objects of one repository: read by libgit2 where they are named by sha1, and among those that the `git` program
//! told where they are named by sha256. Whoever answers, an object is what its name says: libgit2 hashes what it
//! reads, and what was told was hashed when it came.

use std::borrow::Cow;

use git2::{ErrorCode, ObjectType, Odb, Oid, Repository};

use super::contents::{self, Commit};
use super::object::{ObjectFormat, ObjectId, ObjectKind};
use super::told::Told;

/// How many tags may lead to each other.
const MAX_TAGS: usize = 64;

/// Where objects are read from.
pub(super) enum Objects<'a> {
    Libgit2(Odb<'a>),
    Told(&'a Told<'a>),
}

/// An object: its kind and its bytes.
pub(super) type Object<'a> = (ObjectKind, Cow<'a, [u8]>);

impl<'a> Objects<'a> {
    /// Those of a repository that libgit2 has opened.
    pub(super) fn of(repository: &'a Repository) -> Result<Self, git2::Error> {
        repository.odb().map(Self::Libgit2)
    }

    /// How they are named.
    pub(super) fn format(&self) -> ObjectFormat {
        match self {
            Self::Libgit2(_) => ObjectFormat::Sha1,
            Self::Told(_) => ObjectFormat::Sha256,
        }
    }

    /// The kind and the length of an object; none where it is not here.
    pub(super) fn head(&self, id: ObjectId) -> Result<Option<(ObjectKind, u64)>, String> {
        match self {
            Self::Libgit2(objects) => match found(objects.read_header(oid(id)?))? {
                Some((size, kind)) => Ok(Some((kind_of(kind)?, size as u64))),
                None => Ok(None),
            },
            Self::Told(told) => Ok(told.object(id).map(|(kind, bytes)| (kind, bytes.len() as u64))),
        }
    }

    /// An object; none where it is not here.
    pub(super) fn read(&self, id: ObjectId) -> Result<Option<Object<'a>>, String> {
        match self {
            Self::Libgit2(objects) => match found(objects.read(oid(id)?))? {
                Some(object) => Ok(Some((kind_of(object.kind())?, Cow::Owned(object.data().to_vec())))),
                None => Ok(None),
            },
            Self::Told(told) => Ok(told.object(id).map(|(kind, bytes)| (kind, Cow::Borrowed(bytes)))),
        }
    }

    /// The commit with this id.
    pub(super) fn commit(&self, id: ObjectId) -> Result<Commit, String> {
        match self.read(id)? {
            Some((ObjectKind::Commit, bytes)) => {
                contents::commit(id, &bytes).ok_or_else(|| format!("the commit {id} is not in the form of one"))
            }
            Some((kind, _)) => Err(format!("{id} is a {} and no commit", kind.as_str())),
            None => Err(format!("there is no commit {id}")),
        }
    }

    /// What stands behind the tags that lead to it; none where one of them is not here.
    pub(super) fn behind_tags(&self, id: ObjectId) -> Result<Option<(ObjectKind, ObjectId)>, String> {
        let mut at = id;
        for _ in 0..MAX_TAGS {
            match self.read(at)? {
                Some((ObjectKind::Tag, bytes)) => {
                    at = contents::tagged(self.format(), &bytes)
                        .ok_or_else(|| format!("the tag {at} is not in the form of one"))?;
                }
                Some((kind, _)) => return Ok(Some((kind, at))),
                None => return Ok(None),
            }
        }
        Err(format!("more than {MAX_TAGS} tags lead from {id} to each other"))
    }
}

/// The id as libgit2 has it, which knows those of sha1 alone.
pub(super) fn oid(id: ObjectId) -> Result<Oid, String> {
    Oid::from_bytes(id.as_bytes()).map_err(|_| format!("{id} is no id of this repository"))
}

/// The id that libgit2 has.
pub(super) fn of_oid(id: Oid) -> Result<ObjectId, String> {
    ObjectId::from_raw(id.as_bytes()).ok_or_else(|| format!("{id} is no id"))
}

fn found<T>(read: Result<T, git2::Error>) -> Result<Option<T>, String> {
    match read {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error.message().to_owned()),
    }
}

fn kind_of(kind: ObjectType) -> Result<ObjectKind, String> {
    ObjectKind::named(kind.str()).ok_or_else(|| format!("an object is a {kind}"))
}
