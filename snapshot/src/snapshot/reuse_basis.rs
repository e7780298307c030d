//! Holds the data, besides the entries, that a later snapshot can reuse: git's listing, and the files that it was
//! read from.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::text::digest::Sha256Hex;
use rustix::fs::fstat;

use crate::snapshot_store::ListingFile;
use proctor_git::files::file_stat::FileTime;
use proctor_git::files::read_beneath;
use proctor_git::files::repo_path::RepoPath;
use proctor_git::protocol::{GitSourceFile, WorktreeListing};
use proctor_git::repository::source_files;
use proctor_git::wire::codec::{BinaryDecoder, BinaryEncoder};

/// Git's listing of a work tree, and the files that it was read from.
#[derive(Debug, Clone)]
pub(crate) struct ReuseBasis {
    /// The top of the work tree.
    pub(crate) worktree: PathBuf,
    /// Device and inode of the top directory. Timestamps on this device reveal every change.
    pub(crate) top: (u64, u64),
    /// Time at which git's files were read.
    pub(crate) read_at: FileTime,
    /// The git files; `None` if git must be asked every time.
    pub(crate) sources: Option<Vec<GitSourceFile>>,
    /// The owners of the directories that contain these files.
    pub(crate) owners: Vec<u32>,
    /// The directories of the repositories inside.
    pub(crate) repositories: Vec<RepoPath>,
    /// The paths where submodules are, or were.
    pub(crate) submodules: Vec<RepoPath>,
    /// True if an index entry for an ignore file has `skip-worktree`.
    pub(crate) skips_rules: bool,
    /// The listing, without its paths.
    pub(crate) listing: EncodedListing,
}

/// Git's listing as bytes: JSON, then the entries of the indexes. It is as large as all other data together, and
/// needed only if the tree changed.
#[derive(Debug, Clone)]
pub(crate) enum EncodedListing {
    /// The bytes in memory. They are a `Vec` because converting a large one to a slice would copy it.
    InMemory(Arc<Vec<u8>>),
    /// A file that contains the bytes.
    InFile(ListingFile),
}

impl ReuseBasis {
    /// Creates the basis from a listing. Returns `None` if the top directory or the owners cannot be read.
    pub(crate) fn new(listing: &WorktreeListing, encoded: &EncodedListing, at: FileTime) -> Option<Self> {
        let stat = fstat(read_beneath::open_canonical(&listing.worktree).ok()?).ok()?;
        let sources = listing.sources.clone();
        let owners = source_files::directory_owners(&listing.worktree, sources.as_deref().unwrap_or_default())?;
        let inside = listing.indexes.iter().map(|index| index.at.clone());
        Some(Self {
            worktree: listing.worktree.clone(),
            top: (stat.st_dev, stat.st_ino),
            read_at: at,
            sources,
            owners,
            repositories: inside.filter(|at| !at.0.is_empty()).collect(),
            submodules: listing.submodules(),
            skips_rules: listing.skips_rules,
            listing: encoded.clone(),
        })
    }

    /// Returns the paths of submodules if they suffice to evaluate ignore rules without reading the index.
    pub(crate) fn known_submodules(&self) -> Option<&[RepoPath]> {
        (!self.skips_rules).then_some(&self.submodules)
    }

    /// Checks whether git's files are unchanged, so the listing is still valid.
    pub(crate) fn is_git_unchanged(&self) -> bool {
        let Some(sources) = &self.sources else { return false };
        source_files::are_unchanged(sources, self.read_at)
            && source_files::directory_owners(&self.worktree, sources).is_some_and(|owners| owners == self.owners)
    }
}

impl EncodedListing {
    /// Encodes a listing.
    pub(crate) fn encode(listing: &WorktreeListing) -> Self {
        let mut writer = BinaryEncoder::default();
        // Serializing our plain data types cannot fail.
        writer.bytes(&serde_json::to_vec(listing).unwrap_or_default());
        listing.write_indexes(&mut writer);
        Self::InMemory(Arc::new(writer.into_bytes()))
    }

    /// Returns the sha256 of the bytes, or `None` if the file is lost.
    pub(crate) fn sha256(&self) -> Option<Sha256Hex> {
        match self {
            Self::InMemory(bytes) => Some(Sha256Hex::digest(bytes)),
            Self::InFile(sidecar) => sidecar.read().map(|bytes| Sha256Hex::digest(&bytes)),
        }
    }

    /// Decodes the listing without its paths. Returns `None` if the file is lost or damaged.
    pub(crate) fn decode(&self) -> Option<WorktreeListing> {
        let bytes: Arc<Vec<u8>> = match self {
            Self::InMemory(bytes) => Arc::clone(bytes),
            Self::InFile(sidecar) => Arc::new(sidecar.read()?),
        };
        let mut reader = BinaryDecoder::new(&bytes);
        let mut listing: WorktreeListing = serde_json::from_slice(reader.bytes()?).ok()?;
        listing.read_indexes(&mut reader)?;
        reader.is_at_end().then_some(listing)
    }
}
