//! Holds the data, besides the entries, that a later snapshot can reuse: git's listing, and the files that it was
//! read from.

use std::path::PathBuf;
use std::sync::Arc;

use proctor_core::digest::Sha256Hex;
use rustix::fs::fstat;

use crate::beneath;
use crate::codec::{Reader, Writer};
use crate::git::protocol::{Listing, RepoPath, Source};
use crate::git::sources;
use crate::stamp::Moment;
use crate::store::Sidecar;

/// Git's listing of a work tree, and the files that it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Basis {
    /// The top of the work tree.
    pub(crate) worktree: PathBuf,
    /// Device and inode of the top directory. Timestamps on this device reveal every change.
    pub(crate) top: (u64, u64),
    /// When git's files were read.
    pub(crate) at: Moment,
    /// The git files; `None` if git must be asked every time.
    pub(crate) sources: Option<Vec<Source>>,
    /// The owners of the directories that contain these files.
    pub(crate) owners: Vec<u32>,
    /// The directories of the repositories inside.
    pub(crate) repositories: Vec<RepoPath>,
    /// The paths where submodules are, or were.
    pub(crate) submodules: Vec<RepoPath>,
    /// True if an index entry for an ignore file has `skip-worktree`.
    pub(crate) skips_rules: bool,
    /// The listing, without its paths.
    pub(crate) listing: Told,
}

/// Git's listing as bytes: JSON, then the entries of the indexes. It is as large as all other data together, and
/// needed only if the tree changed.
#[derive(Debug, Clone)]
pub(crate) enum Told {
    /// The bytes in memory. They are a `Vec` because converting a large one to a slice would copy it.
    Here(Arc<Vec<u8>>),
    /// A file that contains the bytes.
    There(Sidecar),
}

impl Basis {
    /// Creates the basis from a listing. Returns `None` if the top directory or the owners cannot be read.
    pub(crate) fn new(listing: &Listing, told: &Told, at: Moment) -> Option<Self> {
        let stat = fstat(beneath::open_real(&listing.worktree).ok()?).ok()?;
        let sources = listing.sources.clone();
        let owners = sources::owners(&listing.worktree, sources.as_deref().unwrap_or_default())?;
        let inside = listing.indexes.iter().map(|index| index.at.clone());
        Some(Self {
            worktree: listing.worktree.clone(),
            top: (stat.st_dev, stat.st_ino),
            at,
            sources,
            owners,
            repositories: inside.filter(|at| !at.0.is_empty()).collect(),
            submodules: listing.submodules(),
            skips_rules: listing.skips_rules,
            listing: told.clone(),
        })
    }

    /// Returns the paths of submodules if they suffice to evaluate ignore rules without reading the index.
    pub(crate) fn known_submodules(&self) -> Option<&[RepoPath]> {
        (!self.skips_rules).then_some(&self.submodules)
    }

    /// Checks whether git's files are unchanged, so that the listing is still valid.
    pub(crate) fn git_is_unchanged(&self) -> bool {
        let Some(sources) = &self.sources else { return false };
        sources::are_unchanged(sources, self.at)
            && sources::owners(&self.worktree, sources).is_some_and(|owners| owners == self.owners)
    }
}

impl Told {
    /// Encodes a listing.
    pub(crate) fn of(listing: &Listing) -> Self {
        let mut writer = Writer::default();
        // Serializing our plain data types cannot fail.
        writer.bytes(&serde_json::to_vec(listing).unwrap_or_default());
        listing.write_indexes(&mut writer);
        Self::Here(Arc::new(writer.into_bytes()))
    }

    /// Returns the sha256 of the bytes, or `None` if the file is lost.
    pub(crate) fn sha256(&self) -> Option<Sha256Hex> {
        match self {
            Self::Here(bytes) => Some(Sha256Hex::of(bytes)),
            Self::There(sidecar) => sidecar.read().map(|bytes| Sha256Hex::of(&bytes)),
        }
    }

    /// Decodes the listing without its paths. Returns `None` if the file is lost or damaged.
    pub(crate) fn read(&self) -> Option<Listing> {
        let bytes: Arc<Vec<u8>> = match self {
            Self::Here(bytes) => Arc::clone(bytes),
            Self::There(sidecar) => Arc::new(sidecar.read()?),
        };
        let mut reader = Reader::new(&bytes);
        let mut listing: Listing = serde_json::from_slice(reader.bytes()?).ok()?;
        listing.read_indexes(&mut reader)?;
        reader.is_at_end().then_some(listing)
    }
}
