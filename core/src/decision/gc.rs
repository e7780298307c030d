//! Describes what `proctor gc` removes from the state directory.

use schemars::JsonSchema;
use serde::Serialize;

use crate::spec::Retention;

/// Name of the kind for private copies.
pub const PRIVATE_COPIES: &str = "private copies";
/// Name of the kind for caches of skills.
pub const CACHES: &str = "caches";
/// Name of the kind for documents of runs.
pub const RUNS: &str = "runs";
/// Name of the kind for outputs of steps.
pub const OUTPUTS: &str = "outputs";
/// Name of the kind for stored results of steps.
pub const RESULTS: &str = "results of steps";
/// Name of the kind for everything else.
pub const OTHER: &str = "other";

/// The number and size of removed items of one kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FreedItems {
    /// The number of removed items.
    pub number: u64,
    /// The freed disk space, in bytes. A file counts when its last link is removed.
    pub bytes: u64,
    /// The number of items that were to be removed, but were kept because a run uses them.
    pub in_use: u64,
}

impl FreedItems {
    /// Counts a removed item and its size.
    pub fn add(&mut self, bytes: u64) {
        self.number += 1;
        self.add_bytes(bytes);
    }

    /// Adds the size of a remainder of an item that is already counted or was never complete.
    pub fn add_bytes(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// The items that were removed from a state directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RemovedItems {
    /// Private copies of worktrees and commits.
    pub copies: FreedItems,
    /// Caches of skills.
    pub caches: FreedItems,
    /// Documents of runs without a changeset.
    pub runs: FreedItems,
    /// Outputs of steps.
    pub outputs: FreedItems,
    /// Records of earlier runs, and files that killed processes left behind.
    pub other: FreedItems,
}

impl RemovedItems {
    /// Returns each kind with its name, in display order.
    pub fn kinds(&self) -> [(&'static str, FreedItems); 5] {
        let Self { copies, caches, runs, outputs, other } = *self;
        [(PRIVATE_COPIES, copies), (CACHES, caches), (RUNS, runs), (OUTPUTS, outputs), (OTHER, other)]
    }

    /// Returns the freed disk space of all kinds together.
    pub fn bytes(&self) -> u64 {
        self.kinds().iter().fold(0, |bytes, (_, freed)| bytes.saturating_add(freed.bytes))
    }
}

/// The used space of one kind of content in a state directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct KindUsage {
    /// The kind: `private copies`, `caches`, `runs`, `outputs`, `results of steps` or `other`.
    pub kind: String,
    /// The used bytes on the disk.
    pub bytes: u64,
    /// The parts whose repository is known, largest first.
    pub repositories: Vec<RepositoryUsage>,
    /// The used bytes whose repository is not known.
    pub unassigned_bytes: u64,
    /// The bound for the used bytes according to the operator's config; `null` if the kind has no such bound.
    pub max_bytes: Option<u64>,
}

/// The used space of one repository.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct RepositoryUsage {
    /// The path of the repository, or of a subdirectory with its own spec.
    pub repository: String,
    /// The used bytes on the disk.
    pub bytes: u64,
}

impl KindUsage {
    /// Returns the usage of a kind, sorted by size.
    pub fn new(kind: &str, bytes: u64, repositories: impl IntoIterator<Item = (String, u64)>) -> Self {
        let mut repositories: Vec<RepositoryUsage> =
            repositories.into_iter().map(|(repository, bytes)| RepositoryUsage { repository, bytes }).collect();
        repositories
            .sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.repository.cmp(&other.repository)));
        let assigned = repositories.iter().fold(0_u64, |sum, usage| sum.saturating_add(usage.bytes));
        let unassigned_bytes = bytes.saturating_sub(assigned);
        Self { kind: kind.to_owned(), bytes, repositories, unassigned_bytes, max_bytes: None }
    }

    /// Sets the bound of the kind.
    pub fn with_bound(self, retention: &Retention) -> Self {
        let max_bytes = match self.kind.as_str() {
            PRIVATE_COPIES => Some(retention.max_copy_bytes),
            CACHES => Some(retention.caches.max_bytes),
            OUTPUTS => Some(retention.max_output_bytes),
            RESULTS => Some(retention.max_result_bytes),
            _ => None,
        };
        Self { max_bytes, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_the_bytes_of_all_kinds() {
        let mut collected = RemovedItems::default();
        collected.copies.add(3);
        collected.outputs.add(4);
        collected.other.add_bytes(5);
        assert_eq!(collected.bytes(), 12);
        assert_eq!(collected.kinds().map(|(_, freed)| freed.number), [1, 0, 0, 1, 0]);
        collected.caches.add(u64::MAX);
        assert_eq!(collected.bytes(), u64::MAX);
    }
}
