//! Measures private copies of a tree: the first one, one of an unchanged tree, and one after a few edits. Each
//! includes the snapshot, and is the delay between a request and the first step.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use proctor_snapshot::{IgnoredSelection, Mirror, MirrorUpdate, Snapshot, SnapshotStore};
use tokio::time::Instant;

use super::snapshot_fixture::{CHANGED, SnapshotFixture, changed_files, file_path, open_directory};
use crate::engine_fixture::write;
use crate::samples::Sample;

/// Number of files of a copy that are hashed again before each run.
const SAMPLE_SIZE: usize = 8;

/// The measurements of the copies of one tree.
#[derive(Default)]
pub(super) struct CopySamples {
    pub(super) first: Sample,
    pub(super) unchanged: CopyStageSamples,
    pub(super) edited: CopyStageSamples,
}

/// Durations of an update of a copy, and of its parts.
#[derive(Default)]
pub(super) struct CopyStageSamples {
    pub(super) all: Sample,
    /// The snapshot of the worktree.
    pub(super) snapshot: Sample,
    /// Refs and objects of the repository, which another process reads.
    pub(super) history: Sample,
    /// Reading the record of the copy, and hashing some files again.
    pub(super) opened: Sample,
    /// Copying what differs.
    pub(super) updated: Sample,
}

impl SnapshotFixture {
    /// Makes a copy of a tree whose files are all old enough to be trusted by their times, and updates the copy without
    /// a change.
    pub(super) fn measure_copies(&self, round: usize, copies: &mut CopySamples) -> Result<()> {
        let directory = self.copy_directory(round);
        std::fs::create_dir(&directory)?;
        let began = Instant::now();
        let first = SnapshotStore::new(self.helper.clone(), None).take(&self.repository())?;
        self.copy(&directory, &first, first.entries.len(), &mut CopyStageSamples::default())?;
        copies.first.push(began.elapsed());
        self.update(&directory, 0, &mut copies.unchanged)?;
        if round > 0 {
            std::fs::remove_dir_all(&directory)?;
        }
        Ok(())
    }

    /// Edits some files and brings the first copy up to date. Each round edits the same files, so that these, and no
    /// others, differ from the last snapshot and are too young to be trusted.
    pub(super) fn measure_edited(&self, known: &Snapshot, round: usize, copies: &mut CopySamples) -> Result<()> {
        // One file of the tree is its `.gitignore`.
        for number in changed_files(known.entries.len() - 1) {
            write(&self.repository().join(file_path(number)), format!("edited {round}\n").as_bytes())?;
        }
        let edited = self.update(&self.copy_directory(0), CHANGED, &mut copies.edited)?;
        ensure!(edited.id != known.id, "the snapshot does not include the edits");
        Ok(())
    }

    fn copy_directory(&self, round: usize) -> std::path::PathBuf {
        self.root.path().join(format!("copy{round}"))
    }

    /// Updates a copy as a new process does, from the state that the last process stored in files.
    fn update(&self, directory: &Path, expected: usize, parts: &mut CopyStageSamples) -> Result<Arc<Snapshot>> {
        let began = Instant::now();
        let snapshot = self.store()?.take(&self.repository())?;
        parts.snapshot.push(began.elapsed());
        self.copy(directory, &snapshot, expected, parts)?;
        parts.all.push(began.elapsed());
        Ok(snapshot)
    }

    fn copy(&self, directory: &Path, snapshot: &Snapshot, expected: usize, parts: &mut CopyStageSamples) -> Result<()> {
        let began = Instant::now();
        let history = self.helper.history(&self.repository(), &[])?;
        ensure!(!history.refs.0.is_empty(), "the repository has no refs");
        parts.history.push(began.elapsed());
        let began = Instant::now();
        let mut mirror = Mirror::open(open_directory(directory)?, None)?;
        mirror.verify_sample(SAMPLE_SIZE, 1)?;
        parts.opened.push(began.elapsed());
        let began = Instant::now();
        let wanted = IgnoredSelection { except: &[], rights: None, max_entries: usize::MAX, max_bytes: u64::MAX };
        match mirror.update(&self.repository(), snapshot, Some(&wanted))? {
            MirrorUpdate::Equal { copied, .. } => ensure!(copied == expected, "{copied} files were copied"),
            other => anyhow::bail!("the tree was not copied: {other:?}"),
        }
        parts.updated.push(began.elapsed());
        ensure!(mirror.id() == snapshot.id, "the copy differs from the snapshot");
        Ok(())
    }
}
