//! Opens a repository to read its commits, in any format: libgit2 reads the parts that it supports, and the output
//! of the `git` program supplies the rest. libgit2 reads sha1 objects even if it cannot read the refs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use git2::{Odb, Repository};

use crate::config::config_files::{RULES_BYTES, read_bounded};
use crate::error::GitError;
use crate::files::repo_path::RepoPath;
use crate::object::object_id::{ObjectFormat, ObjectId};
use crate::program::program_output::ProgramOutput;
use crate::protocol::GitHistory;
use crate::repository::git_dir;
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
    /// The `git` program alone.
    Program(ProgramOutput<'t>),
}

impl<'t> RepositoryHistory<'t> {
    /// Opens the repository whose work tree is `path`. `told` is the output of the `git` program, if it was asked.
    pub(crate) fn open(path: &Path, program_output: Option<&'t [u8]>) -> Result<Self, GitError> {
        let checked = CheckedRepository::check(path)?;
        let places = checked.paths.clone();
        let Some(foreign) = checked.unsupported_format() else {
            return Ok(Self::from_opened(OpenRepository::from_checked(checked)?));
        };
        let read = |printed, objects| {
            ProgramOutput::parse(printed, objects)
                .map_err(|problem| GitError::Unreadable { path: places.worktree.clone(), problem })
        };
        let objects = foreign.objects;
        let told = match program_output {
            Some(printed) => Ok(read(printed, objects)?),
            None => Err(foreign.into_error(places.clone())),
        };
        let source = match objects {
            ObjectFormat::Sha256 => HistoryBackend::Program(told?),
            ObjectFormat::Sha1 => {
                let repository =
                    open_objects_only(&places.common_dir).map_err(|error| libgit2_error(&places.worktree, &error))?;
                HistoryBackend::Libgit2Objects(repository, told)
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
            HistoryBackend::Program(told) => Ok(ObjectReader::Program(told)),
        }
    }

    /// Returns the output of the `git` program if libgit2 cannot read the refs.
    ///
    /// # Errors
    /// The program has not been asked.
    pub(crate) fn program_output(&self) -> Result<Option<&ProgramOutput<'t>>, GitError> {
        match &self.backend {
            HistoryBackend::Libgit2(_) => Ok(None),
            HistoryBackend::Libgit2Objects(_, Ok(told)) | HistoryBackend::Program(told) => Ok(Some(told)),
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

/// Returns the refs of a repository and of those inside it, and the ignore rules in their git directories.
pub(crate) fn read_history(history: &RepositoryHistory<'_>, nested: &[RepoPath]) -> Result<GitHistory, GitError> {
    let of_nested = |path: &RepoPath| {
        let inside = RepositoryHistory::open(&history.worktree().join(OsStr::from_bytes(&path.0)), None).ok()?;
        let state = read_history(&inside, &[]).ok()?;
        Some((path.clone(), state))
    };
    history.program_output()?;
    let common_dir = &history.paths.common_dir;
    let (format, config) = match &history.backend {
        HistoryBackend::Libgit2(opened) => {
            let config = opened.repository.config().map_err(|error| history.unreadable(error.message()))?;
            (ObjectFormat::Sha1, Some(config))
        }
        HistoryBackend::Libgit2Objects(..) => (ObjectFormat::Sha1, None),
        HistoryBackend::Program(_) => (ObjectFormat::Sha256, None),
    };
    let setting = config.as_ref().and_then(|config| config.get_path("core.excludesfile").ok());
    // If two rules match, the later one takes precedence; the rules of the setting come first.
    let mut exclude = Vec::new();
    for file in setting.into_iter().chain([common_dir.join("info/exclude")]) {
        exclude.extend(read_bounded(&file, RULES_BYTES)?.unwrap_or_default());
        exclude.push(b'\n');
    }
    let head = read_bounded(&history.paths.git_dir.join("HEAD"), MAX_HEAD).ok().flatten();
    Ok(GitHistory {
        format,
        head: head.and_then(|bytes| head_line(&bytes)),
        objects: common_dir.join("objects"),
        refs: RepoPath(git_dir::packed_refs(history)?),
        shallow: git_dir::read_shallow(common_dir)?.map(RepoPath),
        exclude: RepoPath(exclude),
        ignore_case: config.is_some_and(|config| config.get_bool("core.ignorecase").unwrap_or(false)),
        nested: nested.iter().filter_map(of_nested).collect(),
    })
}

/// The largest HEAD that is read, in bytes.
const MAX_HEAD: u64 = 4096;

/// Returns the line of a HEAD file that names a branch or a commit.
fn head_line(bytes: &[u8]) -> Option<String> {
    let line = std::str::from_utf8(bytes).ok()?.trim_end();
    let is_ref = |name: &str| name.starts_with("refs/heads/") && !name.contains(|c: char| c <= ' ' || c == '\u{7f}');
    let is_line = line.strip_prefix("ref: ").is_some_and(is_ref) || ObjectId::from_hex(line.as_bytes()).is_some();
    is_line.then(|| line.to_owned())
}

/// Opens only the objects of a repository with libgit2.
pub(crate) fn open_objects_only(common_dir: &Path) -> Result<Repository, git2::Error> {
    let objects = Odb::new()?;
    let place = common_dir.join("objects");
    let place = place.to_str().ok_or_else(|| git2::Error::from_str("its path is no text"))?;
    objects.add_disk_alternate(place)?;
    Repository::from_odb(objects)
}
