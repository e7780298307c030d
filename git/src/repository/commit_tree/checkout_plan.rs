//! Plans a checkout. The whole tree is checked before any file is written, and so are the blobs to write. The headers
//! of other blobs are not read, since a large tree can have one file for each.

use std::collections::{HashMap, HashSet};

use proctor_core::model::drift::display_path;

use crate::error::GitError;
use crate::files::paths;
use crate::object::object_id::{ObjectId, ObjectKind};
use crate::object::object_parser::{self, TreeEntry};
use crate::object::{name_rules, tree_identity};
use crate::repository::commit_tree::open_commit::OpenCommit;
use crate::repository::commit_tree::planned_leaf::{PlannedLeaf, PlannedLeafKind, is_gitlink};

/// Maximum number of entries of a tree, including directories. Entries that occur repeatedly count each time.
const MAX_ENTRIES: usize = 1_000_000;
/// Maximum size of all files together, in bytes.
const MAX_BYTES: u64 = 8 << 30;
/// Maximum size of one file, in bytes; it is held in memory.
const MAX_BLOB: u64 = 512 << 20;
/// Maximum size of the object of one directory, in bytes.
const MAX_TREE: u64 = 64 << 20;
/// Maximum depth of nested directories, as for a snapshot.
const MAX_DEPTH: usize = 256;
/// Maximum length of a path, in bytes; together with our own directory it stays below PATH_MAX.
const MAX_PATH: usize = 2048;
/// Maximum length of all paths together, in bytes; they are held in memory.
const MAX_PATHS: usize = 256 << 20;
/// Maximum length of a link's target, in bytes (PATH_MAX including the NUL).
const MAX_TARGET: u64 = 4095;

/// Maximum number of paths with missing objects that are named.
const MAX_NAMED_MISSING: usize = 5;

/// The remaining budget for the tree and its submodules together.
pub(crate) struct CheckoutBudget {
    entries: usize,
    bytes: u64,
    paths: usize,
}

impl Default for CheckoutBudget {
    fn default() -> Self {
        Self { entries: MAX_ENTRIES, bytes: MAX_BYTES, paths: MAX_PATHS }
    }
}

impl CheckoutBudget {
    /// Returns the budget for a checkout that keeps files of `held` bytes.
    pub(crate) fn beside(held: u64) -> Self {
        Self { bytes: MAX_BYTES.saturating_sub(held), ..Self::default() }
    }
}

/// The planned entries, sorted by path.
#[derive(Debug, Default)]
pub(crate) struct CheckoutPlan {
    pub(crate) leaves: Vec<PlannedLeaf>,
    /// The directories whose tree objects are not in git's canonical form, with the bytes of these objects.
    /// Rewriting such a tree from its entries would result in another id.
    pub(crate) noncanonical_trees: Vec<(Vec<u8>, Vec<u8>)>,
}

impl CheckoutPlan {
    /// Plans the tree of a commit.
    pub(crate) fn for_commit(source: &OpenCommit<'_>, bounds: &mut CheckoutBudget) -> Result<Self, GitError> {
        let mut planner =
            CheckoutPlanner { source, objects: ObjectHeaders::new(source), budget: bounds, plan: Self::default() };
        planner.plan_tree(source.tree_id(), b"", 0)?;
        planner.objects.require_all()?;
        let mut plan = planner.plan;
        plan.leaves.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        Ok(plan)
    }
}

/// Checks that the blobs of these leaves exist and are within the bounds, before any of them is read.
pub(crate) fn check_blobs<'a>(
    source: &OpenCommit<'_>,
    leaves: impl Iterator<Item = &'a PlannedLeaf>,
    bounds: &mut CheckoutBudget,
) -> Result<(), GitError> {
    let mut objects = ObjectHeaders::new(source);
    leaves.filter(|leaf| !is_gitlink(leaf)).try_for_each(|leaf| objects.check_blob(leaf, bounds))?;
    objects.require_all()
}

struct CheckoutPlanner<'a, 'b> {
    source: &'a OpenCommit<'a>,
    objects: ObjectHeaders<'a>,
    budget: &'b mut CheckoutBudget,
    plan: CheckoutPlan,
}

/// Reads the kinds and sizes of objects, each once.
struct ObjectHeaders<'a> {
    source: &'a OpenCommit<'a>,
    sizes: HashMap<ObjectId, u64>,
    /// The first paths with missing objects in human-readable form, and their total number. The search continues
    /// after the first one, since a partial clone lacks many objects.
    missing: Vec<String>,
    missing_count: usize,
}

impl CheckoutPlanner<'_, '_> {
    fn plan_tree(&mut self, id: ObjectId, prefix: &[u8], depth: usize) -> Result<(), GitError> {
        if depth > MAX_DEPTH {
            return Err(self.source.tree_error(prefix, format!("is more than {MAX_DEPTH} directories deep")));
        }
        let Some(size) = self.objects.size(id, ObjectKind::Tree, prefix)? else { return Ok(()) };
        if size > MAX_TREE {
            return Err(self.source.tree_error(prefix, format!("is a directory of more than {MAX_TREE} bytes")));
        }
        let read = self.source.objects.read(id).map_err(|error| self.source.unreadable(prefix, &error.to_string()))?;
        let bytes = read.filter(|(kind, _)| *kind == ObjectKind::Tree).map(|(_, bytes)| bytes);
        let entries = bytes.as_deref().and_then(|bytes| object_parser::parse_tree(id.format(), bytes));
        let entries = entries.ok_or_else(|| self.source.unreadable(prefix, "it is not a valid tree object"))?;
        if !bytes.as_deref().is_some_and(|bytes| tree_identity::is_canonical(&entries, bytes)) {
            self.plan.noncanonical_trees.push((prefix.to_vec(), bytes.as_deref().unwrap_or_default().to_vec()));
        }
        self.plan_entries(&entries, prefix, depth)
    }

    fn plan_entries(&mut self, tree: &[TreeEntry<'_>], prefix: &[u8], depth: usize) -> Result<(), GitError> {
        let mut seen = HashSet::new();
        for entry in tree {
            let name = entry.name;
            let path = paths::join(prefix, name);
            self.charge_entry(&path)?;
            if let Some(problem) = name_rules::name_problem(name) {
                return Err(self.source.tree_error(&path, problem));
            }
            if !seen.insert(name) {
                return Err(self.source.tree_error(&path, "occurs twice in its directory"));
            }
            match entry.mode {
                0o040_000 => self.plan_tree(entry.id, &path, depth + 1)?,
                mode => match PlannedLeafKind::from_mode(mode) {
                    Some(kind) => self.plan.leaves.push(PlannedLeaf { path, kind, mode, id: entry.id }),
                    None => {
                        return Err(self
                            .source
                            .tree_error(&path, format!("has the mode {mode:o}, which is not a valid mode of a file")));
                    }
                },
            }
        }
        Ok(())
    }

    fn charge_entry(&mut self, path: &[u8]) -> Result<(), GitError> {
        if path.len() > MAX_PATH {
            return Err(self.source.tree_error(&path[..MAX_PATH], format!("has more than {MAX_PATH} bytes")));
        }
        let left = (self.budget.entries.checked_sub(1), self.budget.paths.checked_sub(path.len()));
        let (Some(entries), Some(paths)) = left else {
            let problem = format!(
                "is one entry too many: at most {MAX_ENTRIES} entries, with {MAX_PATHS} bytes of paths, are checked out"
            );
            return Err(self.source.tree_error(path, problem));
        };
        (self.budget.entries, self.budget.paths) = (entries, paths);
        Ok(())
    }
}

impl<'a> ObjectHeaders<'a> {
    fn new(source: &'a OpenCommit<'a>) -> Self {
        Self { source, sizes: HashMap::new(), missing: Vec::new(), missing_count: 0 }
    }

    /// Returns an error that names missing objects, if there are any.
    fn require_all(self) -> Result<(), GitError> {
        if self.missing_count == 0 {
            return Ok(());
        }
        let commit = self.source.commit.id.to_string();
        Err(GitError::Missing { commit, paths: self.missing, count: self.missing_count })
    }

    /// Checks the blob of a file or link. Records the path if the blob is missing.
    fn check_blob(&mut self, leaf: &PlannedLeaf, bounds: &mut CheckoutBudget) -> Result<(), GitError> {
        let Some(size) = self.size(leaf.id, ObjectKind::Blob, &leaf.path)? else { return Ok(()) };
        if leaf.kind == PlannedLeafKind::Symlink && !(1..=MAX_TARGET).contains(&size) {
            return Err(self.source.tree_error(&leaf.path, format!("is a link whose target has {size} bytes")));
        }
        if size > MAX_BLOB {
            return Err(self.source.tree_error(
                &leaf.path,
                format!("has {size} bytes; only files of at most {MAX_BLOB} bytes are checked out"),
            ));
        }
        let Some(left) = bounds.bytes.checked_sub(size) else {
            return Err(self.source.tree_error(
                &leaf.path,
                format!("exceeds the total size: all files together may have {MAX_BYTES} bytes"),
            ));
        };
        bounds.bytes = left;
        Ok(())
    }

    /// Returns the size of an object that must be of `kind`. Returns `None` and records the path if the object is
    /// missing.
    fn size(&mut self, id: ObjectId, kind: ObjectKind, path: &[u8]) -> Result<Option<u64>, GitError> {
        if let Some(size) = self.sizes.get(&id) {
            return Ok(Some(*size));
        }
        let head =
            self.source.objects.read_header(id).map_err(|error| self.source.unreadable(path, &error.to_string()))?;
        let Some((found, size)) = head else {
            self.record_missing(path);
            return Ok(None);
        };
        if found != kind {
            let (found, kind) = (found.as_str(), kind.as_str());
            return Err(self.source.tree_error(path, format!("is a {found}, but its mode is that of a {kind}")));
        }
        self.sizes.insert(id, size);
        Ok(Some(size))
    }

    fn record_missing(&mut self, path: &[u8]) {
        self.missing_count += 1;
        if self.missing.len() < MAX_NAMED_MISSING {
            self.missing.push(display_path(if path.is_empty() { b"." } else { path }));
        }
    }
}
