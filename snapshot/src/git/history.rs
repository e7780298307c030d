//! Opens a repository to read its commits, in any format: libgit2 reads the parts that it supports, and the output
//! of the `git` program supplies the rest. libgit2 reads sha1 objects even if it cannot read the refs.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use git2::{Odb, Repository};

use super::GitError;
use super::config::{RULES_BYTES, read_bounded};
use super::git_dir;
use super::object::{ObjectFormat, ObjectId};
use super::objects::Objects;
use super::program::Places;
use super::protocol::{GitHistory, RepoPath};
use super::reader::{Checked, Opened, unreadable};
use super::told::Told;

/// The commits of a repository.
pub(super) struct History<'t> {
    pub(super) places: Places,
    pub(super) source: Source<'t>,
}

/// The source of the repository's data.
pub(super) enum Source<'t> {
    /// libgit2 alone.
    Opened(Opened),
    /// Objects from libgit2, everything else from the `git` program. If the program has not been asked yet, the
    /// error contains the format that requires it.
    Objects(Repository, Result<Told<'t>, GitError>),
    /// The `git` program alone.
    Told(Told<'t>),
}

impl<'t> History<'t> {
    /// Opens the repository whose work tree is `path`. `told` is the output of the `git` program, if it was asked.
    pub(super) fn open(path: &Path, told: Option<&'t [u8]>) -> Result<Self, GitError> {
        let checked = Checked::at(path)?;
        let places = checked.places.clone();
        let Some(foreign) = checked.foreign() else { return Ok(Self::of(Opened::of(checked)?)) };
        let read = |printed, objects| {
            Told::read(printed, objects)
                .map_err(|problem| GitError::Unreadable { path: places.worktree.clone(), problem })
        };
        let objects = foreign.objects;
        let told = match told {
            Some(printed) => Ok(read(printed, objects)?),
            None => Err(foreign.refused(places.clone())),
        };
        let source = match objects {
            ObjectFormat::Sha256 => Source::Told(told?),
            ObjectFormat::Sha1 => {
                let repository =
                    without_refs(&places.common_dir).map_err(|error| unreadable(&places.worktree, &error))?;
                Source::Objects(repository, told)
            }
        };
        Ok(Self { places, source })
    }

    /// Wraps a repository that libgit2 can read.
    pub(super) fn of(opened: Opened) -> Self {
        Self { places: opened.places(), source: Source::Opened(opened) }
    }

    /// Returns the objects.
    pub(super) fn objects(&self) -> Result<Objects<'_>, GitError> {
        match &self.source {
            Source::Opened(Opened { repository, .. }) | Source::Objects(repository, _) => {
                Objects::of(repository).map_err(|error| self.unreadable(error.message()))
            }
            Source::Told(told) => Ok(Objects::Told(told)),
        }
    }

    /// Returns the output of the `git` program if libgit2 cannot read the refs.
    ///
    /// # Errors
    /// The program has not been asked.
    pub(super) fn told(&self) -> Result<Option<&Told<'t>>, GitError> {
        match &self.source {
            Source::Opened(_) => Ok(None),
            Source::Objects(_, Ok(told)) | Source::Told(told) => Ok(Some(told)),
            Source::Objects(_, Err(refused)) => Err(refused.clone()),
        }
    }

    /// Parses an object id.
    pub(super) fn id(&self, text: &str) -> Result<ObjectId, GitError> {
        ObjectId::from_hex(text.as_bytes()).ok_or_else(|| self.unreadable(format!("`{text}` is not an object ID")))
    }

    pub(super) fn worktree(&self) -> &Path {
        &self.places.worktree
    }

    /// Makes the error for a repository that could not be read.
    pub(super) fn unreadable(&self, problem: impl Into<String>) -> GitError {
        GitError::Unreadable { path: self.places.worktree.clone(), problem: problem.into() }
    }
}

/// Returns the refs of a repository and of those inside it, and the ignore rules in their git directories.
pub(super) fn state(history: &History<'_>, nested: &[RepoPath]) -> Result<GitHistory, GitError> {
    let of_nested = |path: &RepoPath| {
        let inside = History::open(&history.worktree().join(OsStr::from_bytes(&path.0)), None).ok()?;
        let state = state(&inside, &[]).ok()?;
        Some((path.clone(), state))
    };
    history.told()?;
    let common_dir = &history.places.common_dir;
    let (format, config) = match &history.source {
        Source::Opened(opened) => {
            let config = opened.repository.config().map_err(|error| history.unreadable(error.message()))?;
            (ObjectFormat::Sha1, Some(config))
        }
        Source::Objects(..) => (ObjectFormat::Sha1, None),
        Source::Told(_) => (ObjectFormat::Sha256, None),
    };
    let setting = config.as_ref().and_then(|config| config.get_path("core.excludesfile").ok());
    // If two rules match, the later one takes precedence; the rules of the setting come first.
    let mut exclude = Vec::new();
    for file in setting.into_iter().chain([common_dir.join("info/exclude")]) {
        exclude.extend(read_bounded(&file, RULES_BYTES)?.unwrap_or_default());
        exclude.push(b'\n');
    }
    let head = read_bounded(&history.places.git_dir.join("HEAD"), MAX_HEAD).ok().flatten();
    Ok(GitHistory {
        format,
        head: head.and_then(|bytes| head_line(&bytes)),
        objects: common_dir.join("objects"),
        refs: RepoPath(git_dir::packed_refs(history)?),
        shallow: git_dir::shallow(common_dir)?.map(RepoPath),
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
pub(super) fn without_refs(common_dir: &Path) -> Result<Repository, git2::Error> {
    let objects = Odb::new()?;
    let place = common_dir.join("objects");
    let place = place.to_str().ok_or_else(|| git2::Error::from_str("its path is no text"))?;
    objects.add_disk_alternate(place)?;
    Repository::from_odb(objects)
}
