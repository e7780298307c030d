//! Creates a tree for the measurements of snapshots, and the layer of a step that changed a few of its files.

use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use proctor_core::model::plan::ReadOnly;
use proctor_git::helper::{GitHelper, IgnoreQuery};
use proctor_snapshot::{DriftInput, LayerScan, Snapshot, SnapshotStore, TreeView, find_drift};
use tempfile::TempDir;
use tokio::time::Instant;

use crate::engine_fixture::{git_commit, write};

/// Number of files in a directory, and number of these directories in their parent.
const FILES_OF_A_DIRECTORY: usize = 20;
const DIRECTORIES_OF_ONE: usize = 50;
/// Number of files that the step changes.
pub(super) const CHANGED: usize = 3;
/// Maximum wait until all files are old enough to be trusted by their times.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);

/// A tree, and a step's layer.
pub(super) struct SnapshotFixture {
    pub(super) root: TempDir,
    pub(super) upper: TempDir,
    pub(super) helper: GitHelper,
}

impl SnapshotFixture {
    pub(super) fn create(files: usize) -> Result<Self> {
        let root = TempDir::with_prefix("proctor-bench.").context("cannot create a scratch directory")?;
        // Layers are on a tmpfs.
        let upper =
            TempDir::with_prefix_in("proctor-bench.", "/dev/shm").context("cannot create a directory on a tmpfs")?;
        let own = std::env::current_exe().context("cannot determine the path of this program")?;
        let made = Self { root, upper, helper: GitHelper::new(own.with_file_name("proctor-git")) };
        let at = made.repository();
        for number in 0..files {
            let path = at.join(file_path(number));
            if number % FILES_OF_A_DIRECTORY == 0 {
                std::fs::create_dir_all(path.parent().context("path has no parent")?)?;
            }
            let line = format!("fn f{number}() -> u32 {{ {number} }}\n");
            write(&path, line.repeat(5 + number % 60).as_bytes())?;
        }
        write(&at.join(".gitignore"), b"target/\n*.o\n")?;
        git_commit(&at)?;
        for number in changed_files(files) {
            let path = made.upper.path().join(file_path(number));
            std::fs::create_dir_all(path.parent().context("path has no parent")?)?;
            write(&path, format!("changed {number}\n").repeat(20).as_bytes())?;
        }
        std::fs::create_dir(made.root.path().join("snapshots"))?;
        Ok(made)
    }

    pub(super) fn repository(&self) -> PathBuf {
        self.root.path().join("repository")
    }

    pub(super) fn store(&self) -> Result<SnapshotStore> {
        let directory = std::fs::File::open(self.root.path().join("snapshots"))?;
        Ok(SnapshotStore::new(self.helper.clone(), Some(OwnedFd::from(directory))))
    }

    /// Returns a snapshot of the tree after all files are old enough to be trusted and the snapshot file is
    /// written.
    pub(super) fn settled_snapshot(&self, store: &SnapshotStore) -> Result<Arc<Snapshot>> {
        let until = Instant::now() + SETTLE_TIMEOUT;
        loop {
            let taken = store.take(&self.repository())?;
            if taken.stats.hashed == 0 && !taken.stats.git_was_read {
                return Ok(taken);
            }
            ensure!(Instant::now() < until, "snapshots still rehash files: {:?}", taken.stats);
        }
    }

    pub(super) fn step_layer(&self, known: &Arc<Snapshot>) -> Result<StepLayer> {
        Ok(StepLayer {
            repo: open_directory(&self.repository())?,
            upper: open_directory(self.upper.path())?,
            ignored: IgnoreQuery::new(self.helper.clone(), self.repository()).with_submodules(known.known_submodules()),
            view: TreeView::new(Arc::clone(known)),
        })
    }
}

/// The result of a step, and the tree before it.
pub(super) struct StepLayer {
    repo: OwnedFd,
    pub(super) upper: OwnedFd,
    pub(super) ignored: IgnoreQuery,
    pub(super) view: TreeView,
}

impl StepLayer {
    /// Returns the number of changes in the layer.
    pub(super) fn count_changes(&self, scan: &LayerScan) -> Result<usize> {
        let drift = find_drift(DriftInput {
            view: &self.view,
            scan,
            mode: ReadOnly::Tracked,
            ignored: &self.ignored,
            repo: self.repo.as_fd(),
            upper: self.upper.as_fd(),
            lower_uppers: &[],
            caches: &[],
        })?;
        Ok(drift.changes.len())
    }
}

/// Returns the path of a file of the tree.
pub(super) fn file_path(number: usize) -> String {
    let directory = number / FILES_OF_A_DIRECTORY;
    format!("src/m{}/p{}/file_{number}.rs", directory / DIRECTORIES_OF_ONE, directory % DIRECTORIES_OF_ONE)
}

/// Returns the files that the step changes, which are far apart.
pub(super) fn changed_files(files: usize) -> impl Iterator<Item = usize> {
    (0..CHANGED).map(move |nth| files / (CHANGED + 1) * (nth + 1))
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd> {
    Ok(OwnedFd::from(std::fs::File::open(path)?))
}
