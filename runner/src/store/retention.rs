//! Limits the size of the state directory: removes the oldest runs, outputs and records.
//!
//! `caches/eviction.rs` limits the caches of skills.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proctor_core::decision::gc::{FreedItems, RemovedItems};
use proctor_core::spec::Retention;

use super::attestations::ATTESTATIONS_DIR;
use super::directory::{Directory, is_temporary};
use super::documents::RUNS_DIR;
use super::durations::DURATIONS_DIR;
use super::freed_bytes::{ignore_missing, remove_and_count};
use crate::host::sandboxed_git::INPUTS_DIR;

/// Age after which a temporary file counts as abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Directory of the caches of an earlier version, which the skills of a repository shared.
const OLD_CACHES_DIR: &str = "caches";

/// Maximum number of subjects whose records are kept; the records of one subject have a separate limit.
const MAX_SUBJECTS: usize = 1_000;

/// The limits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RetentionBounds {
    /// Maximum number of runs without a changeset.
    pub runs: usize,
    /// Maximum age of these runs and of outputs; `None` sets no limit.
    pub age: Option<Duration>,
    /// Maximum size of the stored outputs on disk, in bytes.
    pub object_bytes: u64,
    /// Maximum number of subjects whose records are kept, and of profiles whose durations are kept.
    pub subjects: usize,
}

/// Takes the limits from the operator's configuration.
impl From<&Retention> for RetentionBounds {
    fn from(keep: &Retention) -> Self {
        Self {
            runs: usize::try_from(keep.max_runs).unwrap_or(usize::MAX),
            age: keep.max_age,
            object_bytes: keep.max_output_bytes,
            subjects: MAX_SUBJECTS,
        }
    }
}

/// Removes the oldest runs and outputs beyond `bounds` from the state directory, as of `now`. Keeps runs in
/// progress. Another process may do the same concurrently.
///
/// # Errors
/// A system call fails. Earlier removals remain and are counted.
pub(crate) fn apply_retention(
    state: &Path,
    bounds: RetentionBounds,
    now: SystemTime,
    collected: &mut RemovedItems,
) -> io::Result<()> {
    let other = &mut collected.other;
    for temporary in
        abandoned_files(&state.join("objects"))?.into_iter().chain(abandoned_files(&state.join(DURATIONS_DIR))?)
    {
        remove_file(&temporary, other)?;
    }
    for input in abandoned_files(&state.join(INPUTS_DIR))? {
        remove_directory(&input, other)?;
    }
    remove_directory(&state.join(OLD_CACHES_DIR), other)?;
    for subject in excess(entries_by_age(&state.join(ATTESTATIONS_DIR))?, bounds.subjects) {
        remove_directory(&subject, other)?;
    }
    for subject in excess(entries_by_age(&state.join(DURATIONS_DIR))?, bounds.subjects) {
        remove_file(&subject, other)?;
    }
    let oldest = bounds.age.and_then(|age| now.checked_sub(age));
    for run in outdated(sorted_runs(&state.join(RUNS_DIR))?, bounds.runs, oldest) {
        match is_in_progress(&run) {
            true => collected.runs.in_use += 1,
            false => remove_directory(&run, &mut collected.runs)?,
        }
    }
    let objects = objects_by_age(&state.join("objects"))?;
    let mut excess = objects.iter().map(|object| object.bytes).sum::<u64>().saturating_sub(bounds.object_bytes);
    for object in objects {
        if excess == 0 && oldest.is_none_or(|oldest| object.modified_at >= oldest) {
            break;
        }
        remove_file(&object.path, &mut collected.outputs)?;
        excess = excess.saturating_sub(object.bytes);
    }
    Ok(())
}

fn remove_file(path: &Path, freed: &mut FreedItems) -> io::Result<()> {
    remove_and_count(freed, path, || ignore_missing(fs::remove_file(path)))
}

fn remove_directory(path: &Path, freed: &mut FreedItems) -> io::Result<()> {
    remove_and_count(freed, path, || ignore_missing(fs::remove_dir_all(path)))
}

/// Returns whether a run is in progress: it then holds the lock of its documents.
fn is_in_progress(run: &Path) -> bool {
    Directory::open(run).and_then(|directory| directory.is_locked()).unwrap_or(true)
}

/// Returns the oldest of `sorted` beyond the newest `keep`, and those unchanged since `oldest`.
fn outdated(sorted: Vec<PathBuf>, keep: usize, oldest: Option<SystemTime>) -> impl Iterator<Item = PathBuf> {
    let excess = sorted.len().saturating_sub(keep);
    let is_old = move |path: &Path| {
        let written = fs::metadata(path).and_then(|meta| meta.modified()).ok();
        oldest.zip(written).is_some_and(|(oldest, written)| written < oldest)
    };
    sorted.into_iter().enumerate().filter(move |(n, path)| *n < excess || is_old(path)).map(|(_, path)| path)
}

/// Returns the oldest of `sorted` beyond the newest `keep`.
fn excess(sorted: Vec<PathBuf>, keep: usize) -> impl Iterator<Item = PathBuf> {
    let excess = sorted.len().saturating_sub(keep);
    sorted.into_iter().take(excess)
}

/// Returns the runs, oldest first: run ids sort by time.
fn sorted_runs(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = entries(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the entries of a directory, least recently modified first.
fn entries_by_age(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries(directory)? {
        let entry = entry?;
        found.push((entry.metadata()?.modified()?, entry.path()));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// Returns temporary files that were not written for [`ABANDONED_AFTER`], so that their writer must have ended.
fn abandoned_files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in entries(directory)? {
        let entry = entry?;
        let age = entry.metadata()?.modified()?.elapsed().unwrap_or_default();
        if entry.file_name().to_str().is_some_and(is_temporary) && age > ABANDONED_AFTER {
            found.push(entry.path());
        }
    }
    Ok(found)
}

struct OutputObject {
    modified_at: SystemTime,
    bytes: u64,
    path: PathBuf,
}

/// Returns finished objects, oldest first.
fn objects_by_age(directory: &Path) -> io::Result<Vec<OutputObject>> {
    let mut objects = Vec::new();
    for shard in entries(directory)? {
        let shard = shard?;
        if !shard.file_type()?.is_dir() {
            continue;
        }
        for entry in entries(&shard.path())? {
            let entry = entry?;
            let meta = entry.metadata()?;
            objects.push(OutputObject { modified_at: meta.modified()?, bytes: meta.len(), path: entry.path() });
        }
    }
    objects.sort_by(|a, b| (a.modified_at, &a.path).cmp(&(b.modified_at, &b.path)));
    Ok(objects)
}

/// Returns the entries of a directory; none if it does not exist.
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
    use crate::clock::Clock;
    use crate::store::objects::{Objects, StoredForm};
    use proctor_core::spec::DaemonSettings;
    use proctor_core::text::digest::Sha256Hex;

    fn bounds() -> RetentionBounds {
        RetentionBounds::from(&DaemonSettings::default().retention)
    }

    fn retain(state: &Path, bounds: RetentionBounds, now: SystemTime) -> io::Result<RemovedItems> {
        let mut collected = RemovedItems::default();
        super::apply_retention(state, bounds, now, &mut collected).map(|()| collected)
    }

    fn now() -> SystemTime {
        Clock::system().system_time()
    }

    fn set_age(path: &Path, ago: Duration) {
        let file = fs::File::open(path).expect("opens");
        file.set_modified(now() - ago).expect("dates");
    }

    #[test]
    fn removes_old_runs_except_those_in_progress() {
        let state = tempfile::tempdir().expect("temp");
        let hour = Duration::from_secs(60 * 60);
        let runs = ["1", "2", "3"].map(|run| state.path().join(RUNS_DIR).join(run));
        for (run, hours) in runs.iter().zip([3, 3, 1]) {
            fs::create_dir_all(run).expect("makes");
            set_age(run, hour * hours);
        }
        let shard = state.path().join("objects/00");
        fs::create_dir_all(&shard).expect("makes");
        for (object, hours) in [("old.zst", 3), ("new.zst", 1)] {
            fs::File::create_new(shard.join(object)).expect("makes");
            set_age(&shard.join(object), hour * hours);
        }
        let in_progress = Directory::open(&runs[0]).expect("opens");
        assert!(in_progress.try_lock().expect("locks"));
        let tidied = retain(state.path(), RetentionBounds { age: Some(hour * 2), ..bounds() }, now()).expect("tidies");
        assert_eq!((tidied.runs.number, tidied.runs.in_use, tidied.outputs.number), (1, 1, 1));
        assert_eq!(runs.each_ref().map(|run| run.exists()), [true, false, true]);
        assert_eq!(["old.zst", "new.zst"].map(|object| shard.join(object).exists()), [false, true]);
        retain(state.path(), RetentionBounds { runs: 0, ..bounds() }, now()).expect("tidies");
        assert_eq!(runs.map(|run| run.exists()), [true, false, false]);
    }

    #[test]
    fn removes_oldest_runs() {
        let state = tempfile::tempdir().expect("temp");
        for run in ["20260101T000000Z-1", "20260102T000000Z-1", "20260103T000000Z-1"] {
            fs::create_dir_all(state.path().join("runs").join(run).join("verify")).expect("makes");
        }
        retain(state.path(), RetentionBounds { runs: 1, object_bytes: 0, ..bounds() }, now()).expect("tidies");
        let left = sorted_runs(&state.path().join("runs")).expect("lists");
        assert_eq!(left, [state.path().join("runs/20260103T000000Z-1")]);
    }

    #[test]
    fn removes_least_recently_run_subjects() {
        let state = tempfile::tempdir().expect("temp");
        let all = state.path().join(ATTESTATIONS_DIR);
        for (subject, seconds) in [("b", 3), ("c", 1), ("a", 2)] {
            fs::create_dir_all(all.join(subject)).expect("makes");
            let opened = fs::File::open(all.join(subject)).expect("opens");
            opened.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("dates");
        }
        retain(state.path(), RetentionBounds { subjects: 2, ..bounds() }, now()).expect("tidies");
        assert_eq!(entries_by_age(&all).expect("lists"), [all.join("a"), all.join("b")]);
    }

    #[test]
    fn limits_durations_by_subject() {
        let state = tempfile::tempdir().expect("temp");
        let all = state.path().join(DURATIONS_DIR);
        fs::create_dir_all(&all).expect("makes");
        for (name, hours) in [("b.json", 3), ("a.json", 1), (".a.json.0123456789abcdef.tmp", 48)] {
            fs::File::create_new(all.join(name)).expect("makes");
            set_age(&all.join(name), Duration::from_secs(60 * 60) * hours);
        }
        retain(state.path(), bounds(), now()).expect("tidies");
        assert_eq!(entries_by_age(&all).expect("lists"), [all.join("b.json"), all.join("a.json")]);
        retain(state.path(), RetentionBounds { subjects: 1, ..bounds() }, now()).expect("tidies");
        assert_eq!(entries_by_age(&all).expect("lists"), [all.join("a.json")]);
    }

    #[test]
    fn limits_total_size_of_outputs() {
        let state = tempfile::tempdir().expect("temp");
        let store = Objects::open(&Directory::open(state.path()).expect("opens")).expect("opens");
        for text in ["one", "two", "three"] {
            let mut writer = store.writer().expect("makes");
            writer.write(text.as_bytes()).expect("writes");
            writer.finish(&Sha256Hex::digest(text.as_bytes()), StoredForm::Whole).expect("finishes");
        }
        let all = objects_by_age(&state.path().join("objects")).expect("lists");
        let newest = all.last().expect("three").bytes;
        retain(state.path(), RetentionBounds { object_bytes: newest, ..bounds() }, now()).expect("tidies");
        let left = objects_by_age(&state.path().join("objects")).expect("lists");
        assert_eq!((all.len(), left.len()), (3, 1));
        assert_eq!(left[0].path, all[2].path);
    }

    #[test]
    fn removes_abandoned_git_inputs() {
        let state = tempfile::tempdir().expect("temp");
        let inputs =
            ["old", "new"].map(|name| state.path().join(INPUTS_DIR).join(format!(".{name}.0123456789abcdef.tmp")));
        for input in &inputs {
            fs::create_dir_all(input.join("entries")).expect("makes");
        }
        let long_ago = fs::metadata(&inputs[0]).expect("there").modified().expect("a time") - 2 * ABANDONED_AFTER;
        fs::File::open(&inputs[0]).and_then(|file| file.set_modified(long_ago)).expect("sets");
        retain(state.path(), bounds(), now()).expect("tidies");
        assert_eq!(inputs.map(|input| input.exists()), [false, true]);
    }

    #[test]
    fn removes_the_caches_of_an_earlier_version() {
        let state = tempfile::tempdir().expect("temp");
        fs::create_dir_all(state.path().join("caches/0123/target")).expect("makes");
        retain(state.path(), bounds(), now()).expect("tidies");
        assert!(!state.path().join("caches").exists());
    }

    #[test]
    fn accepts_empty_state_directory() {
        retain(tempfile::tempdir().expect("temp").path(), bounds(), now()).expect("tidies");
    }
}
