//! Reads the bytes of the spec: once, through one descriptor, and never through a link out of the repository.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use proctor_core::model::names::ProfileName;
use proctor_core::model::plan::RelPath;
use proctor_core::record::evidence::TreeSource;
use proctor_core::spec::{self, OperatorConfig, ParsedSpec, ResolvedPlan, Spec};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::path_resolution::{LinkPolicy, open_beneath};
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
    /// The sha256 of the bytes.
    pub sha256: Sha256Hex,
    /// The directory that contains `spec/`, relative to the repository. The paths in the spec are relative to it.
    pub directory: RelPath,
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
                let directory = repository.spec_dir.clone();
                Ok(Self { directory, ..Self::read_regular_file(path, &File::from(fd))? })
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
            Ok(fd) => Self::read_regular_file(path.to_path_buf(), &File::from(fd)),
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Err(EngineError::NoSpec(path.to_path_buf())),
            Err(errno) => Err(EngineError::UnreadableSpec { path: path.to_path_buf(), source: errno.into() }),
        }
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
            Ok(_) => Ok(Self { path, sha256: Sha256Hex::digest(&bytes), bytes, directory: RelPath::repository() }),
            Err(source) => Err(EngineError::UnreadableSpec { path, source }),
        }
    }

    /// Parses the spec.
    ///
    /// # Errors
    /// The spec is invalid; the error contains all problems.
    pub fn parse(&self) -> Result<ParsedSpec, EngineError> {
        spec::parse(&self.bytes).map_err(|diagnostics| self.spec_error(diagnostics))
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
        let source = std::str::from_utf8(&self.bytes).unwrap_or_default().to_owned();
        EngineError::Spec(SpecProblems { file: self.path.clone(), source, diagnostics })
    }
}
