//! Reads the bytes of the spec: once, through one descriptor, and never through a link out of the repository.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use proctor_core::model::names::ProfileName;
use proctor_core::model::plan::RelPath;
use proctor_core::record::evidence::TreeSource;
use proctor_core::spec::{
    self, IncludeError, IncludeProblems, OperatorConfig, ParsedSpec, ResolvedPlan, Spec, SpecSource,
};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::path_resolution::{LinkPolicy, open_beneath};
use proctor_git::files::repo_path::RepoPath;
use proctor_git::helper::GitHelper;
use proctor_git::protocol::CommitRef;
use rustix::fs::{self, Mode, OFlags};

use crate::error::{EngineError, SpecProblems};
use crate::host::repository::Repository;
use crate::run::prepared_tree::PreparedTree;

/// The content of a spec file.
#[derive(Debug, Clone)]
pub struct SpecFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The bytes. If the file is too large, they are one byte longer than the parser's limit.
    pub bytes: Vec<u8>,
    /// The sha256 of the bytes. With included files, it covers them too.
    pub sha256: Sha256Hex,
    /// The directory that contains `spec/`, relative to the repository. The paths in the spec are relative to it.
    pub directory: RelPath,
    /// The files that the spec includes, with paths relative to the repository.
    pub included: Vec<SpecSource>,
}

impl SpecFile {
    /// Reads the spec of the repository `repo`.
    ///
    /// # Errors
    /// There is no spec, it is not a regular file below the repository, or it cannot be read.
    pub fn read_repository(repo: &Path) -> Result<Self, EngineError> {
        Self::read_in(&Repository::find(repo)?)
    }

    /// Reads the spec of an open repository.
    pub(crate) fn read_in(repository: &Repository) -> Result<Self, EngineError> {
        let below = repository.spec_path();
        let path = repository.path().join(&below);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match open_beneath(repository.as_fd(), Path::new(&below), flags, LinkPolicy::FollowWithin) {
            Ok(fd) => {
                let file = Self::read_regular_file(path, &File::from(fd))?;
                let file = Self { directory: repository.spec_dir.clone(), ..file };
                file.with_includes(below, |path| read_include(repository.as_fd(), path))
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Err(EngineError::NoSpec(path)),
            Err(errno) => Err(EngineError::UnreadableSpec { path, source: errno.into() }),
        }
    }

    /// Reads a spec at a path that the caller named.
    ///
    /// # Errors
    /// There is no spec, it is not a regular file, or it cannot be read.
    pub fn read_at(path: &Path) -> Result<Self, EngineError> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        match fs::open(path, flags, Mode::empty()) {
            Ok(fd) => {
                let file = Self::read_regular_file(path.to_path_buf(), &File::from(fd))?;
                // Nothing above the directory of the file is known to belong to its repository.
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                file.with_includes(name, |path| {
                    let root = fs::open(directory, flags, Mode::empty()).map_err(|_| IncludeError::Unreadable)?;
                    read_include(root.as_fd(), path)
                })
            }
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Err(EngineError::NoSpec(path.to_path_buf())),
            Err(errno) => Err(EngineError::UnreadableSpec { path: path.to_path_buf(), source: errno.into() }),
        }
    }

    /// Reads the files that the spec includes. `path` is the path of the spec for [`spec::read_includes`].
    ///
    /// # Errors
    /// A file cannot be included.
    pub(crate) fn with_includes(
        mut self,
        path: String,
        read: impl FnMut(&str) -> Result<Vec<u8>, IncludeError>,
    ) -> Result<Self, EngineError> {
        let main = SpecSource { path, bytes: std::mem::take(&mut self.bytes) };
        let included = spec::read_includes(&main, read);
        self.bytes = main.bytes;
        match included {
            Ok(included) => self.included = included,
            Err(IncludeProblems { included, diagnostics }) => {
                self.included = included;
                return Err(self.spec_error(diagnostics));
            }
        }
        self.sha256 = spec::digest_sources(&self.bytes, &self.included);
        Ok(self)
    }

    /// Returns the sha256 of each file: the spec, whose path is `path`, and the included ones.
    pub(crate) fn file_digests(&self, path: String) -> impl Iterator<Item = (String, Sha256Hex)> {
        let included = self.included.iter().map(|source| (source.path.clone(), Sha256Hex::digest(&source.bytes)));
        std::iter::once((path, Sha256Hex::digest(&self.bytes))).chain(included)
    }

    /// For the tree of a commit, replaces the path by the name that git uses, `<commit>:<path>`.
    pub(crate) fn named_for(self, source: &PreparedTree) -> Self {
        match &source.recorded {
            TreeSource::Worktree { .. } => self,
            TreeSource::Rev { commit, .. } => {
                Self { path: format!("{commit}:{}", source.repository.spec_path()).into(), ..self }
            }
        }
    }

    /// Reads a regular file. A device or a FIFO could block or have no end.
    fn read_regular_file(path: PathBuf, file: &File) -> Result<Self, EngineError> {
        let mut bytes = Vec::new();
        let read = file.metadata().and_then(|meta| {
            if !meta.is_file() {
                return Err(std::io::Error::other("it is not a regular file"));
            }
            file.take(spec::MAX_BYTES as u64 + 1).read_to_end(&mut bytes)
        });
        match read {
            Ok(_) => Ok(Self {
                path,
                sha256: Sha256Hex::digest(&bytes),
                bytes,
                directory: RelPath::repository(),
                included: Vec::new(),
            }),
            Err(source) => Err(EngineError::UnreadableSpec { path, source }),
        }
    }

    /// Parses the spec.
    ///
    /// # Errors
    /// The spec is invalid; the error contains all problems.
    pub fn parse(&self) -> Result<ParsedSpec, EngineError> {
        spec::parse_with_includes(&self.bytes, &self.included).map_err(|diagnostics| self.spec_error(diagnostics))
    }

    /// Resolves a profile of the parsed spec under an operator's configuration, for this machine.
    ///
    /// # Errors
    /// The profile does not exist, or asks for more than the operator allows.
    pub fn resolve(
        &self,
        spec: &Spec,
        profile: &ProfileName,
        operator: &OperatorConfig,
    ) -> Result<ResolvedPlan, EngineError> {
        let cpus = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
        let resolved = spec::resolve(spec, profile, operator, self.sha256.clone(), cpus)
            .map_err(|diagnostics| self.spec_error(diagnostics))?;
        Ok(ResolvedPlan { plan: resolved.plan.relocated_below(&self.directory), ..resolved })
    }

    /// Returns an error with problems of this spec.
    pub fn spec_error(&self, diagnostics: Vec<spec::Diagnostic>) -> EngineError {
        let main = self.path.display().to_string();
        let (number, diagnostics) = spec::select_file(&main, &self.included, diagnostics);
        let (file, bytes) = match number.checked_sub(1).and_then(|at| self.included.get(at)) {
            Some(source) => (self.path_of_included(source), &source.bytes),
            None => (self.path.clone(), &self.bytes),
        };
        let source = std::str::from_utf8(bytes).unwrap_or_default().to_owned();
        EngineError::Spec(SpecProblems { file, source, diagnostics })
    }

    /// Returns the path of an included file in the form of the spec's path.
    fn path_of_included(&self, source: &SpecSource) -> PathBuf {
        let spec = match self.directory.is_repository() {
            true => spec::PATH.to_owned(),
            false => format!("{}/{}", self.directory, spec::PATH),
        };
        let named = self.path.to_string_lossy();
        named
            .strip_suffix(&spec)
            .map_or_else(|| source.path.clone().into(), |top| format!("{top}{}", source.path).into())
    }
}

/// Reads a file of a commit that is a spec or that a spec includes.
pub(crate) fn commit_include(
    helper: &GitHelper,
    repo: &Path,
    commit: &CommitRef,
    path: &str,
) -> Result<Vec<u8>, IncludeError> {
    let wanted = vec![RepoPath(path.as_bytes().to_vec())];
    let mut content = helper.content(repo, commit, wanted, false).map_err(|_| IncludeError::Unreadable)?;
    content.texts.pop().flatten().map(String::into_bytes).ok_or(IncludeError::Missing)
}

/// Reads a file that a spec includes.
fn read_include(root: BorrowedFd<'_>, path: &str) -> Result<Vec<u8>, IncludeError> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let fd = open_beneath(root, Path::new(path), flags, LinkPolicy::FollowWithin).map_err(|errno| match errno {
        rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR => IncludeError::Missing,
        _ => IncludeError::Unreadable,
    })?;
    let file = SpecFile::read_regular_file(path.into(), &File::from(fd));
    file.map(|file| file.bytes).map_err(|_| IncludeError::Unreadable)
}
