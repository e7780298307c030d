//! Stores results of steps for reuse in `results/<key>/<inputs>.result` of the state directory.
//!
//! A key stands for everything besides the observed inputs that determines the result of a step. It has at most
//! [`MAX_RESULTS`] results, one for each set of inputs; the most recently used ones are kept. The time of modification of
//! a file is the time at which it was stored or last used. Results need not survive a crash: a damaged file is not used.
//!
//! Several processes may use the directory. Each file is replaced atomically, and a file that disappears does not
//! matter: its step is executed again. Only one process at a time removes results beyond the bound in bytes.

mod decoded_results;
pub(crate) mod maintenance;
mod secret;
mod worker_trees;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use proctor_core::decision::gc::FreedItems;
use proctor_core::record::evidence::FileDependence;
use proctor_core::reuse::{MAX_STORED_BYTES, StoredResult};
use proctor_core::text::digest::Sha256Hex;

pub(crate) use decoded_results::DecodedResults;
pub(crate) use secret::state_secret;
use secret::{SECRET_BYTES, ensure_secret};

use super::directory::Directory;
use super::freed_bytes::{BLOCK_SIZE, ignore_missing, remove_and_count, remove_dir_counted};
use super::{GcExtent, StoreError};

/// Directory of all results, in the state directory.
pub(crate) const RESULTS_DIR: &str = "results";
/// The file that excludes a step from reuse, with the reason.
const DISTRUST_FILE: &str = "distrusted";
/// The file with the observation that contradicts `per_file` of a step.
const PER_FILE_FILE: &str = "per-file-refuted";
/// The file with the reason why the result of the last execution was not stored.
const NOT_STORED_FILE: &str = "not-stored";
/// Maximum size of a file with a reason, in bytes.
const MAX_REASON: u64 = 64 << 10;
/// Suffix of the name of a stored result.
const SUFFIX: &str = ".result";
/// Maximum number of results of one key.
pub(crate) const MAX_RESULTS: usize = 16;
/// The part of the total size of all results that a single result may use.
const MAX_PART_OF_STORE: u64 = 8;
/// Maximum number of keys.
const MAX_KEYS: usize = 20_000;
/// Maximum age of a result.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The stored results of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct StepResults {
    root: Directory,
    secret: [u8; SECRET_BYTES],
    /// Maximum size of one result, in bytes.
    max_bytes: u64,
    decoded: Arc<DecodedResults>,
}

/// The decision about a result to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StoreDecision {
    /// The result is stored.
    Stored,
    /// The result is larger than the maximum, and is not stored.
    TooLarge {
        /// The size of the result, in bytes.
        bytes: u64,
        /// The maximum size of a result, in bytes.
        max_bytes: u64,
    },
}

impl StepResults {
    /// Opens the results, and creates their directory and secret if they do not exist. `max_store_bytes` is the maximum
    /// size of all results together.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub(crate) fn open(state: &Directory, max_store_bytes: u64) -> Result<Self, StoreError> {
        let root = state.ensure(RESULTS_DIR, 0o700)?;
        let secret = ensure_secret(&root)?;
        Ok(Self { root, secret, max_bytes: max_store_bytes / MAX_PART_OF_STORE, decoded: Arc::default() })
    }

    /// Returns the same results, with the results that the process has already decoded.
    pub(crate) fn with_decoded(self, decoded: Arc<DecodedResults>) -> Self {
        Self { decoded, ..self }
    }

    /// Returns the directory of all results.
    pub(crate) fn directory(&self) -> &Directory {
        &self.root
    }

    /// Returns the secret that keys depend on.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// Returns the stored results of a key, the most recently used ones first. The iterator reads each result when it
    /// reaches it. Damaged files are skipped.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn candidates(
        &self,
        key: &Sha256Hex,
    ) -> Result<impl Iterator<Item = Result<Arc<StoredResult>, StoreError>>, StoreError> {
        let directory = self.key_directory(key)?;
        let names = directory.as_ref().map_or_else(|| Ok(Vec::new()), names_by_age)?;
        let of_directory = directory.into_iter().flat_map(move |directory| {
            let newest_first = names.clone().into_iter().rev();
            newest_first.map(move |(_, name)| (directory.read(&name, MAX_STORED_BYTES as u64), name))
        });
        let (key, decoded) = (key.clone(), Arc::clone(&self.decoded));
        Ok(of_directory.filter_map(move |(read, name)| match read {
            // Another process may have removed the file.
            Ok(bytes) => {
                let result = decoded.get_or_decode(format!("{key}/{name}"), bytes?)?;
                (result.key == key).then_some(Ok(result))
            }
            Err(error) => Some(Err(error)),
        }))
    }

    /// Stores a result unless it is too large, and removes the least recently used ones beyond the maximum number.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn store(&self, result: &StoredResult) -> Result<StoreDecision, StoreError> {
        let encoded = result.encode();
        if encoded.len() as u64 > self.max_bytes {
            return Ok(StoreDecision::TooLarge { bytes: encoded.len() as u64, max_bytes: self.max_bytes });
        }
        let (directory, _) = self.root.ensure_unsynced(&result.key.to_string(), 0o700)?;
        directory.write_unsynced(&file_name(result), &encoded)?;
        directory.remove(NOT_STORED_FILE)?;
        let names = names_by_age(&directory)?;
        let excess = names.len().saturating_sub(MAX_RESULTS);
        names.into_iter().take(excess).try_for_each(|(_, name)| directory.remove(&name))?;
        Ok(StoreDecision::Stored)
    }

    /// Records that a result is used, so that results which are used less are removed first.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn mark_used(&self, result: &StoredResult) -> Result<(), StoreError> {
        match self.key_directory(&result.key)? {
            Some(directory) => directory.touch(&file_name(result)),
            None => Ok(()),
        }
    }

    /// Returns the reason why the results of a key are distrusted; `None` if no check has found a wrong result.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn distrust(&self, key: &Sha256Hex) -> Result<Option<String>, StoreError> {
        self.read_reason(key, DISTRUST_FILE)
    }

    /// Returns why the result of the last execution was not stored; `None` if it was stored.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn not_stored(&self, key: &Sha256Hex) -> Result<Option<String>, StoreError> {
        self.read_reason(key, NOT_STORED_FILE)
    }

    /// Records why the result of an execution is not stored.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn set_not_stored(&self, key: &Sha256Hex, reason: &str) -> Result<(), StoreError> {
        let (directory, _) = self.root.ensure_unsynced(&key.to_string(), 0o700)?;
        directory.write_unsynced(NOT_STORED_FILE, reason.as_bytes())
    }

    fn read_reason(&self, key: &Sha256Hex, file: &str) -> Result<Option<String>, StoreError> {
        let Some(directory) = self.key_directory(key)? else { return Ok(None) };
        let reason = directory.read(file, MAX_REASON)?;
        Ok(reason.map(|reason| String::from_utf8_lossy(&reason).into_owned()))
    }

    /// Excludes a step from reuse.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn set_distrust(&self, key: &Sha256Hex, reason: &str) -> Result<(), StoreError> {
        let directory = self.root.ensure(&key.to_string(), 0o700)?;
        directory.write(DISTRUST_FILE, reason.as_bytes())?;
        names_by_age(&directory)?.into_iter().try_for_each(|(_, name)| directory.remove(&name))
    }

    /// Returns the observation that contradicts `per_file` of a step.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(crate) fn per_file_refutation(&self, key: &Sha256Hex) -> Result<Option<FileDependence>, StoreError> {
        let Some(directory) = self.key_directory(key)? else { return Ok(None) };
        let Some(bytes) = directory.read(PER_FILE_FILE, MAX_REASON)? else { return Ok(None) };
        serde_json::from_slice(&bytes).map(Some).map_err(|error| StoreError::Io {
            action: "read",
            path: format!("{RESULTS_DIR}/{key}/{PER_FILE_FILE}"),
            source: error.into(),
        })
    }

    /// Records an observation that contradicts `per_file` of a step, and removes its results, which count for each file.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn refute_per_file(&self, key: &Sha256Hex, dependence: &FileDependence) -> Result<(), StoreError> {
        let directory = self.root.ensure(&key.to_string(), 0o700)?;
        // Serializing this type cannot fail.
        directory.write(PER_FILE_FILE, &serde_json::to_vec(dependence).unwrap_or_default())?;
        names_by_age(&directory)?.into_iter().try_for_each(|(_, name)| directory.remove(&name))
    }

    fn key_directory(&self, key: &Sha256Hex) -> Result<Option<Directory>, StoreError> {
        match self.root.descend(&key.to_string()) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }
}

fn file_name(result: &StoredResult) -> String {
    name_for(result, &result.inputs_sha256)
}

/// Returns the file name of a result with these inputs. With `per_file`, results of other machines can confirm other
/// files, so they must not replace the results of this machine.
fn name_for(result: &StoredResult, inputs: &Sha256Hex) -> String {
    match result.origin.as_ref().filter(|_| !result.files.is_empty()) {
        Some(_) => format!("{inputs}-{}{SUFFIX}", result.chain_digest()),
        None => format!("{inputs}{SUFFIX}"),
    }
}

/// The time at which a result was stored or last used, in seconds and nanoseconds since 1970, and its file name.
type WrittenResult = ((i64, i64), String);

/// Returns the results in a directory, the least recently used ones first.
fn names_by_age(directory: &Directory) -> Result<Vec<WrittenResult>, StoreError> {
    let mut found = Vec::new();
    for name in directory.names()?.into_iter().filter(|name| name.ends_with(SUFFIX)) {
        // Another process may have removed the file.
        if let Some(written) = directory.modified_at(&name)? {
            found.push((written, name));
        }
    }
    found.sort();
    Ok(found)
}

/// Removes the results of keys without a new result for [`MAX_AGE`], the least recently written keys beyond the maximum
/// number, and the least recently used results beyond `max_bytes`; all of them with [`GcExtent::All`].
///
/// # Errors
/// A directory cannot be listed.
pub(crate) fn evict(
    state: &Path,
    now: SystemTime,
    (max_bytes, extent): (u64, GcExtent),
    freed: &mut FreedItems,
) -> io::Result<()> {
    evict_keys(state, now, extent, freed)?;
    evict_bytes(state, max_bytes, freed)
}

fn evict_keys(state: &Path, now: SystemTime, extent: GcExtent, freed: &mut FreedItems) -> io::Result<()> {
    let everything = extent == GcExtent::All;
    let entries = match fs::read_dir(state.join(RESULTS_DIR)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let mut keys = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            // Each new result changes the time of its directory.
            keys.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    keys.sort();
    let excess = keys.len().saturating_sub(MAX_KEYS);
    for (number, (written, path)) in keys.into_iter().enumerate() {
        let is_old = now.duration_since(written).unwrap_or_default() > MAX_AGE;
        // The marks of distrusted steps and of wrong `per_file` declarations are kept.
        let is_marked = || [DISTRUST_FILE, PER_FILE_FILE].iter().any(|mark| path.join(mark).exists());
        if everything || number < excess || (is_old && !is_marked()) {
            remove_dir_counted(freed, &path);
        }
    }
    Ok(())
}

/// Removes the least recently used results until all of them together take at most `max_bytes` on disk. If another
/// process does the same now, this one does nothing: otherwise, both would remove results for the same excess.
fn evict_bytes(state: &Path, max_bytes: u64, freed: &mut FreedItems) -> io::Result<()> {
    let root = match Directory::open(&state.join(RESULTS_DIR)) {
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.map_err(io::Error::other)?,
    };
    if !root.try_lock().map_err(io::Error::other)? {
        return Ok(());
    }
    let mut results = results_by_use(&state.join(RESULTS_DIR))?;
    let mut bytes: u64 = results.iter().map(|result| result.bytes).sum();
    results.sort_by(|one, other| (one.used, &one.path).cmp(&(other.used, &other.path)));
    for result in results {
        if bytes <= max_bytes {
            break;
        }
        bytes -= result.bytes;
        // A result that was stored again or used in the meantime is no longer the least recently used one.
        let is_same =
            fs::symlink_metadata(&result.path).and_then(|now| now.modified()).is_ok_and(|at| at == result.used);
        if is_same {
            remove_and_count(freed, &result.path, || ignore_missing(fs::remove_file(&result.path)))?;
        }
    }
    Ok(())
}

/// A stored result on disk.
struct ResultFile {
    used: SystemTime,
    path: PathBuf,
    bytes: u64,
}

/// Returns all stored results. Skips what disappears in the meantime.
fn results_by_use(root: &Path) -> io::Result<Vec<ResultFile>> {
    let mut results = Vec::new();
    for key in fs::read_dir(root)? {
        let Ok(files) = fs::read_dir(key?.path()) else { continue };
        for file in files.flatten() {
            let Ok(meta) = file.metadata() else { continue };
            if meta.is_file() && file.file_name().as_encoded_bytes().ends_with(SUFFIX.as_bytes()) {
                results.push(ResultFile {
                    used: meta.modified()?,
                    path: file.path(),
                    bytes: meta.blocks() * BLOCK_SIZE,
                });
            }
        }
    }
    Ok(results)
}

#[cfg(test)]
pub(crate) mod tests {
    use proctor_core::model::names::RunId;
    use proctor_core::model::trace::{AccessTrace, AccessedPath, PathState};
    use proctor_core::reuse::ObservedInputs;

    use super::*;

    pub(crate) fn result(key: &str, path: &str) -> StoredResult {
        let absent = AccessedPath {
            path: path.as_bytes().to_vec(),
            state: PathState::Absent,
            stamp: None,
            read: false,
            listing: None,
        };
        let host = AccessTrace::new(vec![absent]).expect("a trace");
        let inputs = ObservedInputs::new(AccessTrace::default(), Vec::new(), host).expect("inputs");
        StoredResult {
            key: Sha256Hex::digest(key.as_bytes()),
            run_id: RunId::new("r1").expect("an id"),
            executed_at: "2026-01-01T00:00:00Z".to_owned(),
            executed_ms: 1,
            has_files: false,
            evidence: crate::test_support::step_evidence("s"),
            inputs_sha256: inputs.digest(),
            inputs,
            worker: None,
            files: Vec::new(),
            transparent_caches: Vec::new(),
            origin: None,
            images: Vec::new(),
        }
    }

    fn results() -> (tempfile::TempDir, StepResults) {
        let temp = tempfile::tempdir().expect("temp");
        let results = StepResults::open(&Directory::open(temp.path()).expect("opens"), u64::MAX).expect("opens");
        (temp, results)
    }

    fn candidates(results: &StepResults, key: &Sha256Hex) -> Vec<StoredResult> {
        let found = results.candidates(key).expect("lists");
        found.map(|result| Arc::unwrap_or_clone(result.expect("reads"))).collect()
    }

    #[test]
    fn finds_results_of_the_same_key_newest_first() {
        let (temp, results) = results();
        let key = Sha256Hex::digest(b"a");
        assert_eq!(candidates(&results, &key), []);
        let stored = [result("a", "/1"), result("a", "/2"), result("b", "/1")];
        for result in &stored {
            results.store(result).expect("stores");
        }
        assert_eq!(candidates(&results, &key), [stored[1].clone(), stored[0].clone()]);
        let again = StepResults::open(&Directory::open(temp.path()).expect("opens"), u64::MAX).expect("opens");
        assert_eq!(again.secret(), results.secret());
    }

    #[test]
    fn every_damage_of_a_result_is_found() {
        let intact = result("a", "/1").encode();
        assert_eq!(StoredResult::decode(&intact), Some(result("a", "/1")));
        for length in 0..intact.len() {
            assert_eq!(StoredResult::decode(&intact[..length]), None, "cut after {length} bytes");
        }
        let mut damaged = intact.clone();
        for bit in 0..8 * intact.len() {
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(StoredResult::decode(&damaged), None, "bit {bit}");
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(StoredResult::decode(&[&intact[..], b"x"].concat()), None);
        assert_eq!(StoredResult::decode(&vec![0; intact.len()]), None);
    }

    #[test]
    fn skips_damaged_results_and_results_of_another_key() {
        let (temp, results) = results();
        let key = Sha256Hex::digest(b"a");
        results.store(&result("a", "/1")).expect("stores");
        let directory = temp.path().join(RESULTS_DIR).join(key.to_string());
        let file = fs::read_dir(&directory).expect("lists").next().expect("a file").expect("an entry").path();
        let bytes = fs::read(&file).expect("reads");
        results.root.descend(&key.to_string()).expect("opens").write("x.result", &bytes[1..]).expect("writes");
        let other = result("b", "/1").encode();
        results.root.descend(&key.to_string()).expect("opens").write("y.result", &other).expect("writes");
        assert_eq!(candidates(&results, &key), [result("a", "/1")]);
    }

    #[test]
    fn reason_for_no_result_is_kept_until_a_result_is_stored() {
        let (_temp, results) = results();
        let key = Sha256Hex::digest(b"a");
        assert_eq!(results.not_stored(&key).expect("reads"), None);
        results.set_not_stored(&key, "it did not pass").expect("writes");
        assert_eq!(results.not_stored(&key).expect("reads").as_deref(), Some("it did not pass"));
        results.store(&result("a", "/1")).expect("stores");
        assert_eq!(results.not_stored(&key).expect("reads"), None);
    }

    #[test]
    fn keeps_the_newest_results() {
        let (_temp, results) = results();
        for number in 0..MAX_RESULTS + 3 {
            results.store(&result("a", &format!("/{number}"))).expect("stores");
        }
        assert_eq!(candidates(&results, &Sha256Hex::digest(b"a")).len(), MAX_RESULTS);
    }

    /// Returns the size of a result on disk.
    fn disk_bytes(temp: &tempfile::TempDir) -> u64 {
        let results = results_by_use(&temp.path().join(RESULTS_DIR)).expect("lists");
        results.iter().map(|result| result.bytes).max().expect("a result")
    }

    /// Sets the time of the last use of a result.
    fn set_used(temp: &tempfile::TempDir, result: &StoredResult, seconds: u64) {
        let path = temp.path().join(RESULTS_DIR).join(result.key.to_string()).join(file_name(result));
        let file = fs::File::options().write(true).open(path).expect("opens");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("sets the time");
    }

    #[test]
    fn removes_the_least_recently_used_results_beyond_the_size() {
        let (temp, results) = results();
        let stored = [result("a", "/1"), result("b", "/1"), result("c", "/1")];
        for (seconds, result) in stored.iter().enumerate() {
            results.store(result).expect("stores");
            set_used(&temp, result, 1_000 + seconds as u64);
        }
        // The oldest one is used, so that it becomes the newest.
        results.mark_used(&stored[0]).expect("marks");
        let evict_to = |bytes| {
            let mut freed = FreedItems::default();
            evict_bytes(temp.path(), bytes, &mut freed).expect("evicts");
            let is_left = |result: &StoredResult| !candidates(&results, &result.key).is_empty();
            (freed.number, stored.each_ref().map(is_left))
        };
        let one = disk_bytes(&temp);
        assert_eq!(evict_to(3 * one), (0, [true, true, true]));
        assert_eq!(evict_to(3 * one - 1), (1, [true, false, true]));
        assert_eq!(evict_to(one), (1, [true, false, false]));
        assert_eq!(evict_to(0), (1, [false, false, false]));
        results.mark_used(&stored[0]).expect("a result that another process has removed");
    }

    #[test]
    fn only_one_process_removes_results_beyond_the_size() {
        let (temp, results) = results();
        results.store(&result("a", "/1")).expect("stores");
        let other = Directory::open(&temp.path().join(RESULTS_DIR)).expect("opens");
        assert!(other.try_lock().expect("locks"));
        let evict = || evict_bytes(temp.path(), 0, &mut FreedItems::default()).expect("evicts");
        evict();
        assert_eq!(candidates(&results, &Sha256Hex::digest(b"a")).len(), 1);
        drop(other);
        evict();
        assert_eq!(candidates(&results, &Sha256Hex::digest(b"a")), []);
    }

    #[test]
    fn does_not_store_a_result_above_its_part_of_the_size() {
        let temp = tempfile::tempdir().expect("temp");
        let bytes = result("a", "/1").encode().len() as u64;
        let open = |most| StepResults::open(&Directory::open(temp.path()).expect("opens"), most).expect("opens");
        let refused = open(bytes * MAX_PART_OF_STORE - 1).store(&result("a", "/1")).expect("decides");
        assert_eq!(refused, StoreDecision::TooLarge { bytes, max_bytes: bytes - 1 });
        let results = open(bytes * MAX_PART_OF_STORE);
        assert_eq!(candidates(&results, &Sha256Hex::digest(b"a")), []);
        assert_eq!(results.store(&result("a", "/1")).expect("stores"), StoreDecision::Stored);
    }

    #[test]
    fn a_wrong_per_file_is_recorded_and_its_results_are_removed() {
        let (temp, results) = results();
        let key = Sha256Hex::digest(b"a");
        results.store(&result("a", "/1")).expect("stores");
        assert_eq!(results.per_file_refutation(&key).expect("reads"), None);
        let dependence = FileDependence::new(["a.py".to_owned()].into_iter(), "b.py".to_owned());
        results.refute_per_file(&key, &dependence).expect("writes");
        assert_eq!(results.per_file_refutation(&key).expect("reads"), Some(dependence.clone()));
        assert_eq!(candidates(&results, &key), []);
        let later = crate::clock::Clock::system().system_time() + MAX_AGE * 2;
        evict(temp.path(), later, (u64::MAX, GcExtent::Excess), &mut FreedItems::default()).expect("evicts");
        assert_eq!(results.per_file_refutation(&key).expect("reads"), Some(dependence));
        results.root.descend(&key.to_string()).expect("opens").write(PER_FILE_FILE, b"{").expect("writes");
        results.per_file_refutation(&key).expect_err("a damaged file does not mean that `per_file` is right");
        evict(temp.path(), later, (u64::MAX, GcExtent::All), &mut FreedItems::default()).expect("evicts");
        assert_eq!(results.per_file_refutation(&key).expect("reads"), None);
    }

    #[test]
    fn a_distrusted_step_has_no_results() {
        let (temp, results) = results();
        results.store(&result("a", "/1")).expect("stores");
        let key = Sha256Hex::digest(b"a");
        assert_eq!(results.distrust(&key).expect("reads"), None);
        results.set_distrust(&key, "it failed").expect("writes");
        assert_eq!(results.distrust(&key).expect("reads").as_deref(), Some("it failed"));
        assert_eq!(candidates(&results, &key), []);
        let later = crate::clock::Clock::system().system_time() + MAX_AGE * 2;
        evict(temp.path(), later, (u64::MAX, GcExtent::Excess), &mut FreedItems::default()).expect("evicts");
        assert!(results.distrust(&key).expect("reads").is_some());
        evict(temp.path(), later, (u64::MAX, GcExtent::All), &mut FreedItems::default()).expect("evicts");
        assert_eq!(results.distrust(&key).expect("reads"), None);
    }
}
