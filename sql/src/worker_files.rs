//! Determines the files of the host that the sandbox of a worker shows.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_core::model::plan::RelPath;
use proctor_core::sql::Dialect;
use proctor_sandbox::{AccessRights, CacheMount, CacheSource, ToolKind, ToolMount};

/// The directory in which a worker that keeps effects sees the directory of its database.
const WRITABLE_DIRECTORY: &str = "database";
/// The directory in which a worker sees the directory for sockets that other programs reach.
const SOCKET_DIRECTORY: &str = "sockets";

/// The properties of a request that a worker must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WorkerKey {
    /// The id of the user whose requests the worker answers.
    pub(crate) user: u32,
    pub(crate) dialect: Dialect,
    /// DuckDB's library, or the template of a server.
    pub(crate) library: Option<MountedFile>,
    pub(crate) database: Option<MountedDatabase>,
    /// The memory limit in bytes. An engine can only lower it, so workers are not shared between limits.
    pub(crate) memory: u64,
    /// The directory of the host in which the server of the worker creates a socket for other programs of the user.
    pub(crate) sockets: Option<PathBuf>,
}

impl WorkerKey {
    /// Returns the mount of the directory for sockets.
    pub(crate) fn sockets_mount(&self) -> Option<CacheMount> {
        let at = RelPath::new(SOCKET_DIRECTORY).ok()?;
        self.sockets.clone().map(|directory| CacheMount { at, source: CacheSource::Original(directory) })
    }

    /// Returns the path at which a worker whose sandbox shows `root` as its directory sees the directory for sockets.
    pub(crate) fn sockets_in_sandbox(&self, root: &Path) -> Option<PathBuf> {
        self.sockets.as_ref().map(|_| root.join(SOCKET_DIRECTORY))
    }
}

/// A file that is mounted into a sandbox. The sandbox keeps showing this file if another one takes its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountedFile {
    /// The canonical path. A symbolic link cannot be a mount point.
    pub(crate) file: PathBuf,
    /// The device and the inode.
    file_id: (u64, u64),
}

impl MountedFile {
    pub(crate) fn from_path(file: &Path) -> io::Result<Self> {
        let file = file.canonicalize()?;
        let meta = file.metadata()?;
        Ok(Self { file, file_id: (meta.dev(), meta.ino()) })
    }

    pub(crate) fn to_mount(&self) -> ToolMount {
        let (source, at) = (self.file.clone(), self.file.clone());
        ToolMount { source, at, kind: ToolKind::ReadOnly, rights: AccessRights::Ours }
    }
}

/// A database file with the files next to it that hold some of its changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MountedDatabase {
    pub(crate) file: MountedFile,
    beside: Vec<MountedFile>,
    /// True if the worker may change the file. It then sees the whole directory, in which the engine creates its
    /// journal.
    is_writable: bool,
}

/// Returns the endings of the names of the files in which an engine keeps changes of a database.
pub(crate) fn change_file_suffixes(dialect: Dialect) -> &'static [&'static str] {
    match dialect {
        Dialect::Sqlite => &["-wal", "-shm", "-journal"],
        Dialect::Duckdb => &[".wal"],
        Dialect::Postgres | Dialect::Mysql => &[],
    }
}

/// Returns the path of a file next to a database.
pub(crate) fn beside(file: &Path, suffix: &str) -> PathBuf {
    let mut path = file.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

impl MountedDatabase {
    /// Finds the files of a database.
    ///
    /// # Errors
    /// The database cannot be read.
    pub(crate) fn from_path(file: &Path, dialect: Dialect, is_writable: bool) -> io::Result<Self> {
        let file = MountedFile::from_path(file)?;
        let suffixes = change_file_suffixes(dialect).iter();
        let beside = suffixes.filter_map(|suffix| MountedFile::from_path(&beside(&file.file, suffix)).ok()).collect();
        Ok(Self { file, beside, is_writable })
    }

    /// Reports whether two workers have the same database.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        self.file == other.file
    }

    /// Returns the path at which a worker whose sandbox shows `root` as its directory sees the file.
    pub(crate) fn path_in_sandbox(&self, root: &Path) -> PathBuf {
        match self.file.file.file_name().filter(|_| self.is_writable) {
            Some(name) => root.join(WRITABLE_DIRECTORY).join(name),
            None => self.file.file.clone(),
        }
    }

    /// Returns the mounts of files that the worker reads.
    pub(crate) fn read_only_mounts(&self) -> impl Iterator<Item = ToolMount> {
        let files = std::iter::once(&self.file).chain(&self.beside).filter(|_| !self.is_writable);
        files.map(MountedFile::to_mount)
    }

    /// Returns the mount of the directory that the worker may change.
    pub(crate) fn writable_mount(&self) -> Option<CacheMount> {
        let directory = self.file.file.parent().filter(|_| self.is_writable)?;
        let at = RelPath::new(WRITABLE_DIRECTORY).ok()?;
        Some(CacheMount { at, source: CacheSource::Original(directory.to_owned()) })
    }

    /// Returns the size of the file in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.file.file.metadata().map_or(0, |meta| meta.len())
    }
}
