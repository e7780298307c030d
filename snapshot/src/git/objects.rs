//! Reads the objects of one repository: with libgit2 if their ids are sha1, or from the output of the `git` program
//! if their ids are sha256. In both cases the content is verified against the id: libgit2 hashes the objects that
//! it reads, and the output of the program is hashed on arrival.

use std::borrow::Cow;

use git2::{ErrorCode, ObjectType, Odb, Oid, Repository};

use super::contents::{self, Commit};
use super::object::{ObjectFormat, ObjectId, ObjectKind};
use super::told::Told;

/// Maximum length of a chain of tags.
const MAX_TAGS: usize = 64;

/// The source of objects.
pub(super) enum Objects<'a> {
    Libgit2(Odb<'a>),
    Told(&'a Told<'a>),
}

/// An object: its kind and its bytes.
pub(super) type Object<'a> = (ObjectKind, Cow<'a, [u8]>);

impl<'a> Objects<'a> {
    /// Returns the objects of a repository that libgit2 has opened.
    pub(super) fn of(repository: &'a Repository) -> Result<Self, git2::Error> {
        repository.odb().map(Self::Libgit2)
    }

    /// Returns the format of the object ids.
    pub(super) fn format(&self) -> ObjectFormat {
        match self {
            Self::Libgit2(_) => ObjectFormat::Sha1,
            Self::Told(_) => ObjectFormat::Sha256,
        }
    }

    /// Returns the kind and the length of an object, or `None` if it is missing.
    pub(super) fn head(&self, id: ObjectId) -> Result<Option<(ObjectKind, u64)>, String> {
        match self {
            Self::Libgit2(objects) => match found(objects.read_header(oid(id)?))? {
                Some((size, kind)) => Ok(Some((kind_of(kind)?, size as u64))),
                None => Ok(None),
            },
            Self::Told(told) => Ok(told.object(id).map(|(kind, bytes)| (kind, bytes.len() as u64))),
        }
    }

    /// Returns an object, or `None` if it is missing.
    pub(super) fn read(&self, id: ObjectId) -> Result<Option<Object<'a>>, String> {
        match self {
            Self::Libgit2(objects) => match found(objects.read(oid(id)?))? {
                Some(object) => Ok(Some((kind_of(object.kind())?, Cow::Owned(object.data().to_vec())))),
                None => Ok(None),
            },
            Self::Told(told) => Ok(told.object(id).map(|(kind, bytes)| (kind, Cow::Borrowed(bytes)))),
        }
    }

    /// Returns the commit with this id.
    pub(super) fn commit(&self, id: ObjectId) -> Result<Commit, String> {
        match self.read(id)? {
            Some((ObjectKind::Commit, bytes)) => {
                contents::commit(id, &bytes).ok_or_else(|| format!("the commit {id} is not in the form of one"))
            }
            Some((kind, _)) => Err(format!("{id} is a {} and no commit", kind.as_str())),
            None => Err(format!("there is no commit {id}")),
        }
    }

    /// Follows tags to the object that they name. Returns `None` if one of them is missing.
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

/// Converts an id for libgit2, which only supports sha1.
pub(super) fn oid(id: ObjectId) -> Result<Oid, String> {
    Oid::from_bytes(id.as_bytes()).map_err(|_| format!("{id} is no id of this repository"))
}

/// Converts an id from libgit2.
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
