//! What bounds the state directory: the oldest runs, outputs and records of runs go.
//!
//! Caches are the repository's own (`caches:`) and are not touched here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::attestations::ATTESTATIONS;
use super::directory::is_temporary;
use crate::git_program::INPUTS;

/// How old a temporary file is when its writer must be gone.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// How many runs without a changeset.
    pub runs: usize,
    /// How many bytes of outputs, as they are stored.
    pub object_bytes: u64,
    /// How many subjects' records of runs; each keeps a bounded number by itself.
    pub subjects: usize,
}

/// Enough for months of a person's work, and small for any disk.
impl Default for Bounds {
    fn default() -> Self {
        Self { runs: 500, object_bytes: 4 << 30, subjects: 1_000 }
    }
}

/// Removes the oldest runs and outputs beyond `bounds` from the state directory.
///
/// # Errors
/// The system refuses; what is removed by then stays removed.
pub(crate) fn tidy(state: &Path, bounds: Bounds) -> io::Result<()> {
    for temporary in abandoned(&state.join("objects"))? {
        fs::remove_file(temporary)?;
    }
    for input in abandoned(&state.join(INPUTS))? {
        fs::remove_dir_all(input)?;
    }
    for run in beyond(runs(&state.join("runs"))?, bounds.runs) {
        fs::remove_dir_all(run)?;
    }
    for subject in beyond(by_age(&state.join(ATTESTATIONS))?, bounds.subjects) {
        fs::remove_dir_all(subject)?;
    }
    let objects = objects(&state.join("objects"))?;
    let mut excess = objects.iter().map(|object| object.bytes).sum::<u64>().saturating_sub(bounds.object_bytes);
    for object in objects {
        if excess == 0 {
            break;
        }
        fs::remove_file(&object.path)?;
        excess = excess.saturating_sub(object.bytes);
    }
    Ok(())
}

/// The oldest of `sorted` beyond the newest `keep`.
fn beyond(sorted: Vec<PathBuf>, keep: usize) -> impl Iterator<Item = PathBuf> {
    let excess = sorted.len().saturating_sub(keep);
    sorted.into_iter().take(excess)
}

/// Run ids sort by the time of their run.
fn runs(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = entries(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Directories, those to which nothing was added for longest first.
fn by_age(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries(directory)? {
        let entry = entry?;
        found.push((entry.metadata()?.modified()?, entry.path()));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Temporary files whose writer must be gone: nobody has written to them for a day.
fn abandoned(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries(directory)? {
        let entry = entry?;
        let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        if entry.file_name().to_str().is_some_and(is_temporary) && age > ABANDONED {
            found.push(entry.path());
        }
    }
    Ok(found)
}

struct Object {
    written: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// Finished objects, oldest first.
fn objects(directory: &Path) -> io::Result<Vec<Object>> {
    let mut objects = Vec::new();
    for shard in entries(directory)? {
        let shard = shard?;
        if !shard.file_type()?.is_dir() {
            continue;
        }
        for entry in entries(&shard.path())? {
            let entry = entry?;
            let meta = entry.metadata()?;
            objects.push(Object { written: meta.modified()?, bytes: meta.len(), path: entry.path() });
        }
    }
    objects.sort_by(|a, b| (a.written, &a.path).cmp(&(b.written, &b.path)));
    Ok(objects)
}

/// A directory that is not there holds nothing.
fn entries(directory: &Path) -> io::Result<Box<dyn Iterator<Item = io::Result<fs::DirEntry>>>> {
    match fs::read_dir(directory) {
        Ok(entries) => Ok(Box::new(entries)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Box::new(std::iter::empty())),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::directory::Directory;
    use crate::store::objects::{Kept, Objects};
    use proctor_core::digest::Sha256Hex;

    #[test]
    fn the_oldest_runs_go() {
        let state = tempfile::tempdir().expect("temp");
        for run in ["20260101T000000Z-1", "20260102T000000Z-1", "20260103T000000Z-1"] {
            fs::create_dir_all(state.path().join("runs").join(run).join("verify")).expect("makes");
        }
        tidy(state.path(), Bounds { runs: 1, object_bytes: 0, subjects: 1 }).expect("tidies");
        let left = runs(&state.path().join("runs")).expect("lists");
        assert_eq!(left, [state.path().join("runs/20260103T000000Z-1")]);
    }

    #[test]
    fn the_subjects_that_nobody_ran_for_longest_are_forgotten() {
        let state = tempfile::tempdir().expect("temp");
        let all = state.path().join(ATTESTATIONS);
        for (subject, seconds) in [("b", 3), ("c", 1), ("a", 2)] {
            fs::create_dir_all(all.join(subject)).expect("makes");
            let opened = fs::File::open(all.join(subject)).expect("opens");
            opened.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("dates");
        }
        tidy(state.path(), Bounds { runs: 1, object_bytes: 0, subjects: 2 }).expect("tidies");
        assert_eq!(by_age(&all).expect("lists"), [all.join("a"), all.join("b")]);
    }

    #[test]
    fn outputs_are_bounded_in_bytes() {
        let state = tempfile::tempdir().expect("temp");
        let store = Objects::open(&Directory::open(state.path()).expect("opens")).expect("opens");
        for text in ["one", "two", "three"] {
            let mut writer = store.writer().expect("makes");
            writer.write(text.as_bytes()).expect("writes");
            writer.finish(&Sha256Hex::of(text.as_bytes()), Kept::Whole).expect("finishes");
        }
        let all = objects(&state.path().join("objects")).expect("lists");
        let newest = all.last().expect("three").bytes;
        tidy(state.path(), Bounds { runs: 1, object_bytes: newest, subjects: 1 }).expect("tidies");
        let left = objects(&state.path().join("objects")).expect("lists");
        assert_eq!((all.len(), left.len()), (3, 1));
        assert_eq!(left[0].path, all[2].path);
    }

    #[test]
    fn inputs_of_git_that_somebody_left_behind_go() {
        let state = tempfile::tempdir().expect("temp");
        let inputs = ["old", "new"].map(|name| state.path().join(INPUTS).join(format!(".{name}.0123456789abcdef.tmp")));
        for input in &inputs {
            fs::create_dir_all(input.join("entries")).expect("makes");
        }
        let long_ago = fs::metadata(&inputs[0]).expect("there").modified().expect("a time") - 2 * ABANDONED;
        fs::File::open(&inputs[0]).and_then(|file| file.set_modified(long_ago)).expect("sets");
        tidy(state.path(), Bounds::default()).expect("tidies");
        assert_eq!(inputs.map(|input| input.exists()), [false, true]);
    }

    #[test]
    fn an_empty_state_directory_is_tidy() {
        tidy(tempfile::tempdir().expect("temp").path(), Bounds::default()).expect("tidies");
    }
}
