//! Reads the objects of one repository: with libgit2 if their ids are sha1, or from the output of the `git` program
//! if their ids are sha256. In both cases the content is verified against the id: libgit2 hashes the objects that
//! it reads, and the output of the program is hashed on arrival.

use std::borrow::Cow;

use git2::{ErrorCode, ObjectType, Odb, Oid, Repository};

use crate::object::object_error::ObjectError;
use crate::object::object_id::{ObjectFormat, ObjectId, ObjectKind};
use crate::object::object_parser::{self, ParsedCommit};
use crate::program::program_output::ProgramOutput;

/// Maximum length of a chain of tags.
const MAX_TAGS: usize = 64;

/// The source of objects.
pub(crate) enum ObjectReader<'a> {
    Libgit2(Odb<'a>),
    Program(&'a ProgramOutput<'a>),
}

/// An object: its kind and its bytes.
pub(crate) type ObjectContent<'a> = (ObjectKind, Cow<'a, [u8]>);

impl<'a> ObjectReader<'a> {
    /// Returns the objects of a repository that libgit2 has opened.
    pub(crate) fn from_repository(repository: &'a Repository) -> Result<Self, git2::Error> {
        repository.odb().map(Self::Libgit2)
    }

    /// Returns the format of the object ids.
    pub(crate) fn format(&self) -> ObjectFormat {
        match self {
            Self::Libgit2(_) => ObjectFormat::Sha1,
            Self::Program(_) => ObjectFormat::Sha256,
        }
    }

    /// Returns the kind and the length of an object, or `None` if it is missing.
    pub(crate) fn read_header(&self, id: ObjectId) -> Result<Option<(ObjectKind, u64)>, ObjectError> {
        match self {
            Self::Libgit2(objects) => match optional(objects.read_header(to_oid(id)?))? {
                Some((size, kind)) => Ok(Some((object_kind(kind)?, size as u64))),
                None => Ok(None),
            },
            Self::Program(output) => Ok(output.object(id).map(|(kind, bytes)| (kind, bytes.len() as u64))),
        }
    }

    /// Returns an object, or `None` if it is missing.
    pub(crate) fn read(&self, id: ObjectId) -> Result<Option<ObjectContent<'a>>, ObjectError> {
        match self {
            Self::Libgit2(objects) => match optional(objects.read(to_oid(id)?))? {
                Some(object) => Ok(Some((object_kind(object.kind())?, Cow::Owned(object.data().to_vec())))),
                None => Ok(None),
            },
            Self::Program(output) => Ok(output.object(id).map(|(kind, bytes)| (kind, Cow::Borrowed(bytes)))),
        }
    }

    /// Returns the commit with this id.
    pub(crate) fn commit(&self, id: ObjectId) -> Result<ParsedCommit, ObjectError> {
        match self.read(id)? {
            Some((ObjectKind::Commit, bytes)) => {
                object_parser::parse_commit(id, &bytes).ok_or(ObjectError::Malformed { kind: ObjectKind::Commit, id })
            }
            Some((kind, _)) => Err(ObjectError::NotACommit { id, kind }),
            None => Err(ObjectError::MissingCommit(id)),
        }
    }

    /// Follows tags to the object that they name. Returns `None` if one of them is missing.
    pub(crate) fn peel_tags(&self, id: ObjectId) -> Result<Option<(ObjectKind, ObjectId)>, ObjectError> {
        let mut at = id;
        for _ in 0..MAX_TAGS {
            match self.read(at)? {
                Some((ObjectKind::Tag, bytes)) => {
                    at = object_parser::parse_tag_target(self.format(), &bytes)
                        .ok_or(ObjectError::Malformed { kind: ObjectKind::Tag, id: at })?;
                }
                Some((kind, _)) => return Ok(Some((kind, at))),
                None => return Ok(None),
            }
        }
        Err(ObjectError::TooManyTags { id, limit: MAX_TAGS })
    }
}

/// Converts an id for libgit2, which only supports sha1.
pub(crate) fn to_oid(id: ObjectId) -> Result<Oid, ObjectError> {
    Oid::from_bytes(id.as_bytes()).map_err(|source| ObjectError::ForeignId { id, source })
}

/// Converts an id from libgit2.
pub(crate) fn from_oid(id: Oid) -> Result<ObjectId, ObjectError> {
    ObjectId::from_raw(id.as_bytes()).ok_or(ObjectError::InvalidId(id))
}

fn optional<T>(read: Result<T, git2::Error>) -> Result<Option<T>, ObjectError> {
    match read {
        Ok(object) => Ok(Some(object)),
        Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn object_kind(kind: ObjectType) -> Result<ObjectKind, ObjectError> {
    ObjectKind::from_name(kind.str()).ok_or(ObjectError::UnknownKind(kind))
}
