//! A repository whose commits are read, in whatever format it is: what libgit2 reads of it, and what the `git` program
//! has to tell. Sha1 objects are read here even where refs are not.

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

/// Who says what is in it.
pub(super) enum Source<'t> {
    /// Libgit2 alone.
    Opened(Opened),
    /// Libgit2 the objects, git the rest; where it was not asked, the refusal says what for.
    Objects(Repository, Result<Told<'t>, GitError>),
    /// Git.
    Told(Told<'t>),
}

impl<'t> History<'t> {
    /// Opens the repository whose work tree is `path`. `told` is what git told of it, where it was asked.
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

    /// That of a repository that libgit2 reads.
    pub(super) fn of(opened: Opened) -> Self {
        Self { places: opened.places(), source: Source::Opened(opened) }
    }

    /// Its objects.
    pub(super) fn objects(&self) -> Result<Objects<'_>, GitError> {
        match &self.source {
            Source::Opened(Opened { repository, .. }) | Source::Objects(repository, _) => {
                Objects::of(repository).map_err(|error| self.unreadable(error.message()))
            }
            Source::Told(told) => Ok(Objects::Told(told)),
        }
    }

    /// What git told, of a repository whose refs libgit2 does not read.
    ///
    /// # Errors
    /// It was not asked.
    pub(super) fn told(&self) -> Result<Option<&Told<'t>>, GitError> {
        match &self.source {
            Source::Opened(_) => Ok(None),
            Source::Objects(_, Ok(told)) | Source::Told(told) => Ok(Some(told)),
            Source::Objects(_, Err(refused)) => Err(refused.clone()),
        }
    }

    /// The id that is written so.
    pub(super) fn id(&self, text: &str) -> Result<ObjectId, GitError> {
        ObjectId::from_hex(text.as_bytes()).ok_or_else(|| self.unreadable(format!("`{text}` is not an object ID")))
    }

    pub(super) fn worktree(&self) -> &Path {
        &self.places.worktree
    }

    /// The error for what could not be read of it.
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
    // Of two rules that match, the later one counts: those of the setting come first.
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

/// A repository of which libgit2 reads the objects, and nothing else.
pub(super) fn without_refs(common_dir: &Path) -> Result<Repository, git2::Error> {
    let objects = Odb::new()?;
    let place = common_dir.join("objects");
    let place = place.to_str().ok_or_else(|| git2::Error::from_str("its path is no text"))?;
    objects.add_disk_alternate(place)?;
    Repository::from_odb(objects)
}
