//! Stores results of steps for reuse in `results/<key>/<inputs>.result` of the state directory.
//!
//! A key stands for everything besides the observed inputs that determines the result of a step. It has at most
//! [`MAX_RESULTS`] results, one for each set of inputs; the newest ones are kept. Results need not survive a crash: a
//! damaged file is not used.

pub(crate) mod maintenance;

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

use proctor_core::decision::gc::Freed;
use proctor_core::reuse::{MAX_STORED_BYTES, StoredResult};
use proctor_core::text::digest::Sha256Hex;

use super::StoreError;
use super::directory::{Directory, random_u64};
use super::freed_bytes::remove_dir_counted;

/// Directory of all results, in the state directory.
pub(crate) const RESULTS_DIR: &str = "results";
/// The file of the secret that keys depend on.
const SECRET_FILE: &str = "secret";
const SECRET_BYTES: usize = 32;
/// The file that excludes a step from reuse, with the reason.
const DISTRUST_FILE: &str = "distrusted";
/// The file with the reason why the result of the last execution was not stored.
const NOT_STORED_FILE: &str = "not-stored";
/// Maximum size of a file with a reason, in bytes.
const MAX_REASON: u64 = 64 << 10;
/// Suffix of the name of a stored result.
const SUFFIX: &str = ".result";
/// Maximum number of results of one key.
pub(crate) const MAX_RESULTS: usize = 16;
/// Maximum number of keys.
const MAX_KEYS: usize = 20_000;
/// Maximum age of a result.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// The stored results of a state directory.
#[derive(Debug, Clone)]
pub(crate) struct StepResults {
    root: Directory,
    secret: [u8; SECRET_BYTES],
}

impl StepResults {
    /// Opens the results, and creates their directory and secret if they do not exist.
    ///
    /// # Errors
    /// The directory cannot be read or written.
    pub(crate) fn open(state: &Directory) -> Result<Self, StoreError> {
        let root = state.ensure(RESULTS_DIR, 0o700)?;
        if let Some(secret) = read_secret(&root)? {
            return Ok(Self { root, secret });
        }
        let mut bytes = Vec::with_capacity(SECRET_BYTES);
        while bytes.len() < SECRET_BYTES {
            bytes.extend_from_slice(&random_u64()?.to_le_bytes());
        }
        // Another process may write its own at the same time; the one that is read afterwards counts.
        root.write(SECRET_FILE, &bytes)?;
        match read_secret(&root)? {
            Some(secret) => Ok(Self { root, secret }),
            None => Err(StoreError::Io {
                action: "read",
                path: format!("{RESULTS_DIR}/{SECRET_FILE}"),
                source: io::Error::other("it does not have the length of a secret"),
            }),
        }
    }

    /// Returns the secret that keys depend on.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        &self.secret
    }

    /// Returns the stored results of a key, newest first. Damaged files are skipped.
    ///
    /// # Errors
    /// A directory cannot be read.
    pub(crate) fn candidates(&self, key: &Sha256Hex) -> Result<Vec<StoredResult>, StoreError> {
        let Some(directory) = self.key_directory(key)? else { return Ok(Vec::new()) };
        let mut results = Vec::new();
        for (_, name) in names_by_age(&directory)?.iter().rev() {
            // Another process may remove the file.
            let bytes = directory.read(name, MAX_STORED_BYTES as u64)?;
            let result = bytes.and_then(|bytes| StoredResult::decode(&bytes)).filter(|result| result.key == *key);
            results.extend(result);
        }
        Ok(results)
    }

    /// Stores a result, and removes the oldest ones beyond the maximum number.
    ///
    /// # Errors
    /// A system call fails.
    pub(crate) fn store(&self, result: &StoredResult) -> Result<(), StoreError> {
        let (directory, _) = self.root.ensure_unsynced(result.key.as_str(), 0o700)?;
        directory.write_unsynced(&format!("{}{SUFFIX}", result.inputs_sha256), &result.encode())?;
        directory.remove(NOT_STORED_FILE)?;
        let names = names_by_age(&directory)?;
        let excess = names.len().saturating_sub(MAX_RESULTS);
        names.into_iter().take(excess).try_for_each(|(_, name)| directory.remove(&name))
    }

    /// Returns why no result of a key is used, if a check has found a wrong one.
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
        let (directory, _) = self.root.ensure_unsynced(key.as_str(), 0o700)?;
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
        let directory = self.root.ensure(key.as_str(), 0o700)?;
        directory.write(DISTRUST_FILE, reason.as_bytes())?;
        names_by_age(&directory)?.into_iter().try_for_each(|(_, name)| directory.remove(&name))
    }

    fn key_directory(&self, key: &Sha256Hex) -> Result<Option<Directory>, StoreError> {
        match self.root.descend(key.as_str()) {
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            other => other.map(Some),
        }
    }
}

fn read_secret(root: &Directory) -> Result<Option<[u8; SECRET_BYTES]>, StoreError> {
    let bytes = root.read(SECRET_FILE, SECRET_BYTES as u64)?;
    Ok(bytes.and_then(|bytes| bytes.try_into().ok()))
}

/// The time of the last write of a stored result, in seconds and nanoseconds since 1970, and its file name.
type WrittenResult = ((i64, i64), String);

/// Returns the results in a directory, oldest first.
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

/// Removes the results of keys without a new result for [`MAX_AGE`], and the least recently written keys beyond the
/// maximum number; all of them with `everything`.
///
/// # Errors
/// The directory cannot be listed.
pub(crate) fn evict(state: &Path, now: SystemTime, everything: bool, freed: &mut Freed) -> io::Result<()> {
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
        // A step that was found to be unsound stays excluded.
        if everything || number < excess || (is_old && !path.join(DISTRUST_FILE).exists()) {
            remove_dir_counted(freed, &path);
        }
    }
    Ok(())
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
            files: Vec::new(),
        }
    }

    fn results() -> (tempfile::TempDir, StepResults) {
        let temp = tempfile::tempdir().expect("temp");
        let results = StepResults::open(&Directory::open(temp.path()).expect("opens")).expect("opens");
        (temp, results)
    }

    #[test]
    fn finds_results_of_the_same_key_newest_first() {
        let (temp, results) = results();
        let key = Sha256Hex::digest(b"a");
        assert_eq!(results.candidates(&key).expect("reads"), []);
        let stored = [result("a", "/1"), result("a", "/2"), result("b", "/1")];
        stored.iter().for_each(|result| results.store(result).expect("stores"));
        assert_eq!(results.candidates(&key).expect("reads"), [stored[1].clone(), stored[0].clone()]);
        let again = StepResults::open(&Directory::open(temp.path()).expect("opens")).expect("opens");
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
        let directory = temp.path().join(RESULTS_DIR).join(key.as_str());
        let file = fs::read_dir(&directory).expect("lists").next().expect("a file").expect("an entry").path();
        let bytes = fs::read(&file).expect("reads");
        results.root.descend(key.as_str()).expect("opens").write("x.result", &bytes[1..]).expect("writes");
        let other = result("b", "/1").encode();
        results.root.descend(key.as_str()).expect("opens").write("y.result", &other).expect("writes");
        assert_eq!(results.candidates(&key).expect("reads"), [result("a", "/1")]);
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
        assert_eq!(results.candidates(&Sha256Hex::digest(b"a")).expect("reads").len(), MAX_RESULTS);
    }

    #[test]
    fn a_distrusted_step_has_no_results() {
        let (temp, results) = results();
        results.store(&result("a", "/1")).expect("stores");
        let key = Sha256Hex::digest(b"a");
        assert_eq!(results.distrust(&key).expect("reads"), None);
        results.set_distrust(&key, "it failed").expect("writes");
        assert_eq!(results.distrust(&key).expect("reads").as_deref(), Some("it failed"));
        assert_eq!(results.candidates(&key).expect("reads"), []);
        let later = crate::clock::Clock::system().system_time() + MAX_AGE * 2;
        evict(temp.path(), later, false, &mut Freed::default()).expect("evicts");
        assert!(results.distrust(&key).expect("reads").is_some());
        evict(temp.path(), later, true, &mut Freed::default()).expect("evicts");
        assert_eq!(results.distrust(&key).expect("reads"), None);
    }
}
