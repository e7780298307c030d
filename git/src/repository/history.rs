//! Opens a repository to read its commits, in any format: libgit2 reads the parts that it supports, and the output
//! of the `git` program supplies the rest. libgit2 reads sha1 objects even if it cannot read the refs.

use std::path::Path;

use git2::{Odb, Repository};

use crate::error::GitError;
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::program::program_output::ProgramOutput;
use crate::repository::object_reader::ObjectReader;
use crate::repository::open_repository::{CheckedRepository, OpenRepository, libgit2_error};
use crate::repository_paths::RepositoryPaths;

/// The commits of a repository.
pub(crate) struct RepositoryHistory<'t> {
    pub(crate) paths: RepositoryPaths,
    pub(crate) backend: HistoryBackend<'t>,
}

/// The source of the repository's data.
pub(crate) enum HistoryBackend<'t> {
    /// libgit2 alone.
    Libgit2(OpenRepository),
    /// Objects from libgit2, everything else from the `git` program. If the program has not been asked yet, the
    /// error contains the format that requires it.
    Libgit2Objects(Repository, Result<ProgramOutput<'t>, GitError>),
    /// Only the `git` program.
    Program(ProgramOutput<'t>),
}

impl<'t> RepositoryHistory<'t> {
    /// Opens the repository whose work tree is `path`. `told` is the output of the `git` program, if it was run.
    pub(crate) fn open(path: &Path, program_output: Option<&'t [u8]>) -> Result<Self, GitError> {
        let checked = CheckedRepository::check(path)?;
        let places = checked.paths.clone();
        let Some(foreign) = checked.unsupported_format() else {
            return Ok(Self::from_opened(OpenRepository::from_checked(checked)?));
        };
        let read = |printed, objects| {
            ProgramOutput::parse(printed, objects)
                .map_err(|error| GitError::Unreadable { path: places.worktree.clone(), problem: error.to_string() })
        };
        let objects = foreign.objects;
        let output = match program_output {
            Some(printed) => Ok(read(printed, objects)?),
            None => Err(foreign.into_error(places.clone())),
        };
        let source = match objects {
            ObjectFormat::Sha256 => HistoryBackend::Program(output?),
            ObjectFormat::Sha1 => {
                let repository =
                    open_objects_only(&places.common_dir).map_err(|error| libgit2_error(&places.worktree, &error))?;
                HistoryBackend::Libgit2Objects(repository, output)
            }
        };
        Ok(Self { paths: places, backend: source })
    }

    /// Wraps a repository that libgit2 can read.
    pub(crate) fn from_opened(opened: OpenRepository) -> Self {
        Self { paths: opened.paths(), backend: HistoryBackend::Libgit2(opened) }
    }

    /// Returns the objects.
    pub(crate) fn objects(&self) -> Result<ObjectReader<'_>, GitError> {
        match &self.backend {
            HistoryBackend::Libgit2(OpenRepository { repository, .. })
            | HistoryBackend::Libgit2Objects(repository, _) => {
                ObjectReader::from_repository(repository).map_err(|error| self.unreadable(error.message()))
            }
            HistoryBackend::Program(output) => Ok(ObjectReader::Program(output)),
        }
    }

    /// Returns the output of the `git` program if libgit2 cannot read the refs.
    ///
    /// # Errors
    /// The program has not been run.
    pub(crate) fn program_output(&self) -> Result<Option<&ProgramOutput<'t>>, GitError> {
        match &self.backend {
            HistoryBackend::Libgit2(_) => Ok(None),
            HistoryBackend::Libgit2Objects(_, Ok(output)) | HistoryBackend::Program(output) => Ok(Some(output)),
            HistoryBackend::Libgit2Objects(_, Err(refused)) => Err(refused.clone()),
        }
    }

    /// Parses an object id.
    pub(crate) fn parse_id(&self, text: &str) -> Result<ObjectId, GitError> {
        ObjectId::from_hex(text.as_bytes()).ok_or_else(|| self.unreadable(format!("`{text}` is not an object ID")))
    }

    pub(crate) fn worktree(&self) -> &Path {
        &self.paths.worktree
    }

    /// Makes the error for a repository that could not be read.
    pub(crate) fn unreadable(&self, problem: impl Into<String>) -> GitError {
        GitError::Unreadable { path: self.paths.worktree.clone(), problem: problem.into() }
    }
}

/// Opens only the objects of a repository with libgit2.
pub(crate) fn open_objects_only(common_dir: &Path) -> Result<Repository, git2::Error> {
    let objects = Odb::new()?;
    let place = common_dir.join("objects");
    let place = place.to_str().ok_or_else(|| git2::Error::from_str("its path is not text"))?;
    objects.add_disk_alternate(place)?;
    Repository::from_odb(objects)
}
