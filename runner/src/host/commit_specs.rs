//! Finds the specs of a commit or of the worktree, without an engine, because no step runs.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::decision::spec_selection::{CommitChanges, CommittedSpec, affected_specs, spec_directory};
use proctor_core::model::drift::display_path;
use proctor_core::model::plan::RelPath;
use proctor_core::spec::{self, SpecSource};
use proctor_git::files::path_resolution::{LinkPolicy, open_beneath};
use proctor_git::helper::GitHelper;
use proctor_git::protocol::{ChangedFiles, CommitRef, RangeBase};
use rustix::fs::OFlags;

use crate::error::EngineError;
use crate::host::git_on_demand::git_on_demand;
use crate::host::repository::Repository;
use crate::host::spec_file::commit_include;
use crate::run::engine::file_scope::add_dropped_changes;
use crate::run::request::EngineConfig;

/// Mode bits of a symbolic link in a tree object.
const LINK_MODE: u32 = 0o120_000;

/// A question about the specs of a commit.
#[derive(Debug, Clone)]
pub struct CommitSpecQuery {
    /// The commit.
    pub commit: CommitRef,
    /// The commits from which its changes count; `None` if everything counts as changed.
    pub base: Option<RangeBase>,
    /// Other commits or tags that the commit replaces, by their ids.
    pub former: Vec<String>,
    /// True if specs that the changes do not affect are skipped.
    pub skips_unaffected: bool,
}

/// The specs of a commit, by the directories that contain `spec/`, sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommitSpecs {
    /// The specs to verify.
    pub verified: Vec<RelPath>,
    /// The specs that the changes do not affect.
    pub skipped: Vec<RelPath>,
    /// The specs that an earlier commit has and this commit lacks.
    pub removed: Vec<RemovedSpec>,
    /// The id of the commit from which the changes count, if it is known.
    pub base: Option<String>,
    /// The ids of earlier commits that cannot be read, so that their specs are not known.
    pub unreadable: Vec<String>,
}

/// A spec that a commit lacks.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RemovedSpec {
    /// The path of the spec, in human-readable form.
    pub path: String,
    /// The id of an earlier commit that has it.
    pub commit: String,
}

/// The specs of a worktree.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorktreeSpecs {
    /// The directories that contain `spec/`, sorted.
    pub present: Vec<RelPath>,
    /// The paths of specs that git tracks and that the worktree does not have as files, in human-readable form.
    pub missing: Vec<String>,
}

/// Returns the specs of a commit in the repository at `repo`. Blocks.
///
/// # Errors
/// The repository or the commit cannot be read, or a spec is in a directory whose path is not UTF-8.
pub fn commit_specs(config: EngineConfig, repo: &Path, query: &CommitSpecQuery) -> Result<CommitSpecs, EngineError> {
    let repository = Repository::find(repo)?;
    let search = SpecSearch { helper: git_on_demand(config), repository };
    search.commit_specs(query)
}

/// Returns the specs of the worktree at `repo`: those that git tracks, and those that it neither tracks nor ignores. Blocks.
///
/// # Errors
/// The worktree cannot be read, or a spec is in a directory whose path is not UTF-8.
pub fn worktree_specs(config: EngineConfig, repo: &Path) -> Result<WorktreeSpecs, EngineError> {
    let repository = Repository::find(repo)?;
    let listing = git_on_demand(config).list(repository.path(), &mut |_| {})?;
    let indexed = listing.indexes.iter().flat_map(|index| index.entries.iter().map(|entry| (&index.at, &entry.path)));
    let joined = indexed.filter(|(at, _)| at.0.is_empty()).map(|(_, path)| path);
    let paths: BTreeSet<&[u8]> =
        listing.tracked.iter().chain(joined).chain(&listing.untracked).map(|path| path.0.as_slice()).collect();
    let mut found = WorktreeSpecs::default();
    for path in paths {
        let Some(directory) = spec_directory(path) else { continue };
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let at = if directory.is_empty() { Path::new(".") } else { Path::new(OsStr::from_bytes(directory)) };
        // A link in place of the directory would lead to another spec.
        let is_present = open_beneath(repository.as_fd(), at, flags, LinkPolicy::Reject).is_ok_and(|fd| {
            open_beneath(fd.as_fd(), Path::new(spec::PATH), OFlags::PATH, LinkPolicy::FollowWithin).is_ok()
        });
        match is_present {
            true => found.present.push(rel_path(&repository, directory)?),
            false => found.missing.push(display_path(path)),
        }
    }
    Ok(found)
}

fn rel_path(repository: &Repository, directory: &[u8]) -> Result<RelPath, EngineError> {
    if directory.is_empty() {
        return Ok(RelPath::repository());
    }
    let path = std::str::from_utf8(directory).ok().and_then(|text| RelPath::new(text).ok());
    path.ok_or_else(|| EngineError::SpecDirectory(repository.path().join(OsStr::from_bytes(directory))))
}

/// Returns the specs among the deleted files. Unlike the earlier tree, they are known even in a partial clone.
fn deleted_specs(changed: &ChangedFiles, base: &str, now: &BTreeSet<RelPath>) -> Vec<RemovedSpec> {
    let is_gone = |path: &[u8]| {
        let directory = spec_directory(path).and_then(|directory| std::str::from_utf8(directory).ok());
        let directory = directory.map(|text| if text.is_empty() { "." } else { text });
        directory.and_then(|text| RelPath::new(text).ok()).is_some_and(|directory| !now.contains(&directory))
    };
    let deleted = changed.deleted.iter().filter(|path| is_gone(&path.0));
    deleted.map(|path| RemovedSpec { path: display_path(&path.0), commit: base.to_owned() }).collect()
}

/// Reads the specs of commits.
struct SpecSearch {
    helper: GitHelper,
    repository: Repository,
}

impl SpecSearch {
    fn commit_specs(&self, query: &CommitSpecQuery) -> Result<CommitSpecs, EngineError> {
        let directories = self.spec_directories(&query.commit)?;
        let mut found = CommitSpecs::default();
        let changed = query.base.as_ref().map(|base| self.changed_files(&query.commit, base)).transpose()?;
        // Before the first commit, the id consists of zeros.
        let changed = changed.filter(|changed| changed.base.bytes().any(|digit| digit != b'0'));
        found.base = changed.as_ref().map(|changed| changed.base.clone());
        if let (Some(changed), Some(base)) = (&changed, &found.base) {
            found.removed.extend(deleted_specs(changed, base, &directories));
        }
        let replaced = query.base.iter().filter_map(|base| base.replaced.clone());
        let mut earlier_specs = None;
        for id in found.base.clone().into_iter().chain(replaced).chain(query.former.iter().cloned()) {
            let Some((commit, earlier)) = self.earlier_specs(&id) else {
                found.unreadable.push(id);
                continue;
            };
            found.removed.extend(self.removed_specs(&directories, &earlier, &commit));
            if found.base.as_ref() == Some(&commit) {
                earlier_specs.get_or_insert(earlier);
            }
        }
        found.removed.sort();
        found.removed.dedup_by(|next, kept| next.path == kept.path);
        let changes =
            changed.filter(|_| query.skips_unaffected).zip(earlier_specs).map(|(changed, earlier)| CommitChanges {
                paths: changed.paths.into_iter().chain(changed.deleted).map(|path| path.0).collect(),
                earlier_specs: earlier,
            });
        let specs: Vec<CommittedSpec> = directories
            .into_iter()
            .map(|directory| CommittedSpec {
                files: changes.as_ref().and_then(|_| self.files_of_spec(&query.commit, &directory)),
                directory,
            })
            .collect();
        for (spec, is_affected) in specs.iter().zip(affected_specs(&specs, changes.as_ref())) {
            let list = if is_affected { &mut found.verified } else { &mut found.skipped };
            list.push(spec.directory.clone());
        }
        Ok(found)
    }

    /// Returns the directories that have a spec in the tree of a commit. At the top, `spec` can also be a link.
    fn spec_directories(&self, commit: &CommitRef) -> Result<BTreeSet<RelPath>, EngineError> {
        let tree = self.helper.tree(self.repository.path(), commit, false)?;
        let is_linked_top = |leaf_mode: u32, path: &[u8]| leaf_mode == LINK_MODE && path == b"spec";
        let directories = tree.leaves.iter().filter_map(|leaf| match is_linked_top(leaf.mode, &leaf.path) {
            true => Some(&b""[..]),
            false => spec_directory(&leaf.path),
        });
        directories.map(|directory| rel_path(&self.repository, directory)).collect()
    }

    /// Returns the commit that an id names, with the directories of its specs; `None` if it cannot be read.
    fn earlier_specs(&self, id: &str) -> Option<(String, BTreeSet<RelPath>)> {
        let commit = self.helper.resolve(self.repository.path(), id, 1).ok()?.pop()?.id;
        let directories = self.spec_directories(&CommitRef::from(&commit)).ok()?;
        Some((commit, directories))
    }

    fn removed_specs(&self, now: &BTreeSet<RelPath>, earlier: &BTreeSet<RelPath>, commit: &str) -> Vec<RemovedSpec> {
        let removed = earlier.difference(now).map(|directory| RemovedSpec {
            path: self.repository.clone().with_spec_dir(directory.clone()).spec_path(),
            commit: commit.to_owned(),
        });
        removed.collect()
    }

    fn changed_files(&self, commit: &CommitRef, base: &RangeBase) -> Result<ChangedFiles, EngineError> {
        let top = self.repository.path();
        let mut changed = self.helper.changed_files(top, Some(&base.since), Some(commit))?;
        if let Some(replaced) = &base.replaced {
            let dropped = self.helper.changed_files(top, Some(&commit.id), Some(&CommitRef::from(replaced)))?;
            add_dropped_changes(&mut changed, dropped);
        }
        Ok(changed)
    }

    /// Returns the paths of a spec and of the files that it includes; `None` if one of them cannot be read as text.
    fn files_of_spec(&self, commit: &CommitRef, directory: &RelPath) -> Option<BTreeSet<Vec<u8>>> {
        let path = self.repository.clone().with_spec_dir(directory.clone()).spec_path();
        let read = |path: &str| commit_include(&self.helper, self.repository.path(), commit, path);
        let main = SpecSource { bytes: read(&path).ok()?, path };
        let included = spec::read_includes(&main, read).ok()?;
        Some(included.into_iter().chain([main]).map(|source| source.path.into_bytes()).collect())
    }
}
