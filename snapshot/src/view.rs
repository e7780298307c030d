//! What stands at each path before a step: the snapshot, and the sealed layers on top of it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proctor_core::digest::SnapshotId;
use proctor_core::drift::Entry;

use crate::git::GitError;
use crate::git::helper::IgnoreQuery;
use crate::layer::LayerScan;
use crate::snapshot::Snapshot;

/// The tree as a step sees it at its start. Cheap to clone: it holds what the layers touched.
#[derive(Debug, Clone)]
pub struct View {
    base: Arc<Snapshot>,
    touched: BTreeMap<Vec<u8>, Touched>,
    hidden: BTreeSet<Vec<u8>>,
}

#[derive(Debug, Clone)]
struct Touched {
    standing: Standing,
    covered: bool,
}

/// What is known of one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// This stands there.
    Entry(Entry),
    /// A file of a layer that was too large to be hashed.
    Unhashed,
    /// Nothing stands there.
    Absent,
    /// The snapshot does not cover it, and no layer touched it: the real tree has the answer.
    Uncovered,
}

impl View {
    /// The tree without layers.
    pub fn new(base: Arc<Snapshot>) -> Self {
        Self { base, touched: BTreeMap::new(), hidden: BTreeSet::new() }
    }

    /// The tree with one more layer on top.
    ///
    /// # Errors
    /// The git helper could not say which new paths are ignored.
    pub fn apply(&self, _scan: &LayerScan, _ignored: &IgnoreQuery) -> Result<Self, GitError> {
        unimplemented!()
    }

    /// The snapshot below all layers.
    pub fn base(&self) -> &Arc<Snapshot> {
        &self.base
    }

    /// The Merkle root over the covered paths as they stand now.
    pub fn id(&self) -> SnapshotId {
        unimplemented!()
    }

    /// The covered paths at which a real snapshot differs from this, sorted.
    pub fn difference(&self, _real: &Snapshot) -> Vec<Vec<u8>> {
        unimplemented!()
    }
}

/// The paths that two lists of layers both touched, sorted. A directory that merely exists in
/// both is no conflict; what one deletes or replaces, and the other touches inside, is.
pub fn conflicts(_a: &[&LayerScan], _b: &[&LayerScan]) -> Vec<Vec<u8>> {
    unimplemented!()
}
