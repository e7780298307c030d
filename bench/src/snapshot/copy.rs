//! Measures private copies of a tree: the first one, one of an unchanged tree, and one after a few edits. Each
//! includes the snapshot, and is the delay between a request and the first step.

use std::os::fd::OwnedFd;

use anyhow::{Context as _, Result, ensure};
use proctor_snapshot::{IgnoredWanted, Mirror, MirrorUpdate, Snapshot, SnapshotStore};
use tokio::time::Instant;

use super::{CHANGED, Ground, changed, open, path_of};
use crate::arena::write;
use crate::figures::Sample;

/// Number of files of a copy that are hashed again before each run.
const SAMPLE: usize = 8;

/// The measurements of the copies of one tree.
#[derive(Default)]
pub(super) struct Copies {
    pub(super) first: Sample,
    pub(super) unchanged: Sample,
    pub(super) edited: Sample,
}

impl Ground {
    /// Measures a new copy, an update without changes, and an update after some edits, which are reverted.
    pub(super) fn copies(&self, known: &Snapshot, round: usize, copies: &mut Copies) -> Result<()> {
        let directory = self.root.path().join(format!("copy{round}"));
        std::fs::create_dir(&directory)?;
        let place = || open(&directory);
        let began = Instant::now();
        let first = SnapshotStore::new(self.helper.clone(), None).take(&self.repository())?;
        self.copy(place()?, &first, first.entries.len())?;
        copies.first.push(began.elapsed());
        let began = Instant::now();
        let unchanged = self.store()?.take(&self.repository())?;
        self.copy(place()?, &unchanged, 0)?;
        copies.unchanged.push(began.elapsed());
        let original = self.edit(known.entries.len(), round)?;
        let began = Instant::now();
        let edited = self.store()?.take(&self.repository())?;
        self.copy(place()?, &edited, CHANGED)?;
        copies.edited.push(began.elapsed());
        ensure!(edited.id != known.id, "the edits are not seen");
        for (path, bytes) in original {
            write(&path, &bytes)?;
        }
        std::fs::remove_dir_all(&directory)?;
        Ok(())
    }

    fn copy(&self, place: OwnedFd, snapshot: &Snapshot, expected: usize) -> Result<()> {
        let history = self.helper.history(&self.repository(), &[])?;
        ensure!(!history.refs.0.is_empty(), "the repository has no refs");
        let mut mirror = Mirror::open(place, None)?;
        mirror.verify_sample(SAMPLE, 1)?;
        let wanted = IgnoredWanted { except: &[], rights: None, max_entries: usize::MAX, max_bytes: u64::MAX };
        match mirror.update(&self.repository(), snapshot, Some(&wanted))? {
            MirrorUpdate::Equal { copied, .. } => ensure!(copied == expected, "{copied} files were copied"),
            other => anyhow::bail!("the tree was not copied: {other:?}"),
        }
        ensure!(mirror.id() == snapshot.id, "the copy is another tree");
        Ok(())
    }

    /// Edits some files and returns their previous contents.
    fn edit(&self, files: usize, round: usize) -> Result<Vec<(std::path::PathBuf, Vec<u8>)>> {
        let edit = |number| {
            let path = self.repository().join(path_of(number));
            let before = std::fs::read(&path).context("a file of the tree cannot be read")?;
            write(&path, format!("edited {round}\n").as_bytes())?;
            Ok((path, before))
        };
        // One file of the tree is its `.gitignore`.
        changed(files - 1).map(edit).collect()
    }
}
