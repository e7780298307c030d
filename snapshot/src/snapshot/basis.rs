//! What a later snapshot can begin with, beside the entries: what git said, and what it was read from.

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

/// What git said of a work tree, and what it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Basis {
    /// The top of the work tree.
    pub(crate) worktree: PathBuf,
    /// What tells it from every other directory: device and inode. The device's times tell of changes.
    pub(crate) top: (u64, u64),
    /// When git's files were read.
    pub(crate) at: Moment,
    /// The files of git; nothing where it has to be asked each time.
    pub(crate) sources: Option<Vec<Source>>,
    /// Who owned the places at which they lie.
    pub(crate) owners: Vec<u32>,
    /// Where the repositories inside are.
    pub(crate) repositories: Vec<RepoPath>,
    /// Where there are or were submodules.
    pub(crate) submodules: Vec<RepoPath>,
    /// Whether an index skips a file of ignore rules.
    pub(crate) skips_rules: bool,
    /// The listing without its paths.
    pub(crate) listing: Told,
}

/// What git said, as bytes: JSON, then the entries of the indexes. It is as large as all the rest, and
/// needed only where something changed.
#[derive(Debug, Clone)]
pub(crate) enum Told {
    /// The bytes; as a `Vec`, since they need not be copied then, and may be many.
    Here(Arc<Vec<u8>>),
    /// A file that has them.
    There(Sidecar),
}

impl Basis {
    /// That of a listing, of the directory that is the top of its work tree now.
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

    /// Where there are or were submodules, where the index need not be read to know what is ignored.
    pub(crate) fn known_submodules(&self) -> Option<&[RepoPath]> {
        (!self.skips_rules).then_some(&self.submodules)
    }

    /// Whether git has nothing else to say than it said.
    pub(crate) fn git_is_unchanged(&self) -> bool {
        let Some(sources) = &self.sources else { return false };
        sources::are_unchanged(sources, self.at)
            && sources::owners(&self.worktree, sources).is_some_and(|owners| owners == self.owners)
    }
}

impl Told {
    /// Keeps what a listing says.
    pub(crate) fn of(listing: &Listing) -> Self {
        let mut writer = Writer::default();
        // Plain data of ours is always written.
        writer.bytes(&serde_json::to_vec(listing).unwrap_or_default());
        listing.write_indexes(&mut writer);
        Self::Here(Arc::new(writer.into_bytes()))
    }

    /// Returns the sha256 of the bytes; nothing where they are lost.
    pub(crate) fn sha256(&self) -> Option<Sha256Hex> {
        match self {
            Self::Here(bytes) => Some(Sha256Hex::of(bytes)),
            Self::There(sidecar) => sidecar.read().map(|bytes| Sha256Hex::of(&bytes)),
        }
    }

    /// What git said, without the paths; nothing where that is lost.
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
