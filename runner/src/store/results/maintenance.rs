//! Counts, checks and removes the stored results of steps, for the operator.
//!
//! A run may store or remove results at the same time. A file that disappears in between is not counted.

use std::path::Path;
use std::time::{Duration, SystemTime};

use proctor_core::decision::gc::FreedItems;
use proctor_core::reuse::{
    DamagedResult, DistrustedStep, MAX_STORED_BYTES, ResultStats, ResultVerification, StoredResult,
};

use super::{DISTRUST_FILE, MAX_AGE, MAX_REASON, RESULTS_DIR, evict, name_for, names_by_age};
use crate::clock::Clock;
use crate::store::freed_bytes::{disk_usage, remove_and_count};
use crate::store::{Directory, GcExtent, SNAPSHOTS_DIR, StoreError};

/// Number of hexadecimal digits of a key, which is the name of its directory.
const KEY_DIGITS: usize = 64;

/// Counts the stored results of a state directory.
///
/// # Errors
/// The directory is not a state directory, or cannot be read.
pub fn result_stats(state: &Path) -> Result<ResultStats, StoreError> {
    let mut stats = ResultStats::default();
    let Some(root) = open_results(state)? else { return Ok(stats) };
    let (mut oldest, mut newest) = (None, None);
    for key in keys(&root)? {
        let Some(directory) = descend(&root, &key)? else { continue };
        let names = names_by_age(&directory)?;
        stats.steps += u64::from(!names.is_empty());
        stats.results += names.len() as u64;
        for ((seconds, _), name) in names {
            stats.from_others += u64::from(is_from_another_machine(&directory, &name)?);
            oldest = Some(oldest.map_or(seconds, |oldest: i64| oldest.min(seconds)));
            newest = Some(newest.map_or(seconds, |newest: i64| newest.max(seconds)));
        }
        if let Some(reason) = directory.read(DISTRUST_FILE, MAX_REASON)? {
            stats.distrusted.push(DistrustedStep { key, reason: String::from_utf8_lossy(&reason).into_owned() });
        }
    }
    stats.bytes = disk_usage(&state.join(RESULTS_DIR)).unwrap_or(0);
    (stats.oldest, stats.newest) = (oldest.and_then(timestamp), newest.and_then(timestamp));
    Ok(stats)
}

fn is_from_another_machine(directory: &Directory, name: &str) -> Result<bool, StoreError> {
    let bytes = directory.read(name, MAX_STORED_BYTES as u64)?;
    Ok(bytes.and_then(|bytes| StoredResult::decode(&bytes)).is_some_and(|result| result.origin.is_some()))
}

/// Reads every stored result, and removes the damaged ones.
///
/// # Errors
/// The directory is not a state directory, or cannot be read or written.
pub fn verify_results(state: &Path) -> Result<ResultVerification, StoreError> {
    let mut verified = ResultVerification::default();
    let Some(root) = open_results(state)? else { return Ok(verified) };
    for key in keys(&root)? {
        let Some(directory) = descend(&root, &key)? else { continue };
        for (_, name) in names_by_age(&directory)? {
            let Some(problem) = find_damage(&directory, &key, &name)? else {
                verified.intact += 1;
                continue;
            };
            directory.remove(&name)?;
            verified.damaged.push(DamagedResult { file: format!("{RESULTS_DIR}/{key}/{name}"), problem });
        }
    }
    Ok(verified)
}

/// Removes the results that are too old to be used and those beyond the bounds, of which `max_bytes` is the size of all
/// results; with [`GcExtent::All`], every result and every mark of a distrusted step.
///
/// # Errors
/// The directory is not a state directory, or cannot be read or written.
pub fn prune_results(state: &Path, max_bytes: u64, extent: GcExtent) -> Result<FreedItems, StoreError> {
    let mut freed = FreedItems::default();
    let Some(root) = open_results(state)? else { return Ok(freed) };
    let now = Clock::system().system_time();
    if extent == GcExtent::Excess {
        for key in keys(&root)? {
            let Some(directory) = descend(&root, &key)? else { continue };
            for (written, name) in names_by_age(&directory)? {
                if is_too_old(written, now) {
                    let path = state.join(RESULTS_DIR).join(&key).join(&name);
                    remove_and_count(&mut freed, &path, || directory.remove(&name))?;
                }
            }
        }
    }
    evict(state, now, (max_bytes, extent), &mut freed).map_err(|source| StoreError::Io {
        action: "clean up",
        path: state.join(RESULTS_DIR).display().to_string(),
        source,
    })?;
    Ok(freed)
}

/// Returns the directory of the results; `None` if it does not exist.
fn open_results(state: &Path) -> Result<Option<Directory>, StoreError> {
    let directory = match Directory::open(state) {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        other => other?,
    };
    if !state.join(SNAPSHOTS_DIR).is_dir() {
        return Err(StoreError::NotState { path: state.display().to_string() });
    }
    descend(&directory, RESULTS_DIR)
}

fn descend(directory: &Directory, name: &str) -> Result<Option<Directory>, StoreError> {
    match directory.descend(name) {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

fn keys(root: &Directory) -> Result<Vec<String>, StoreError> {
    let is_key = |name: &String| name.len() == KEY_DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let mut keys: Vec<String> = root.names()?.into_iter().filter(is_key).collect();
    keys.sort_unstable();
    Ok(keys)
}

/// Returns why a stored result cannot be used; `None` if it can, or if it no longer exists.
fn find_damage(directory: &Directory, key: &str, name: &str) -> Result<Option<String>, StoreError> {
    let Some(bytes) = directory.read(name, MAX_STORED_BYTES as u64)? else { return Ok(None) };
    let Some(result) = StoredResult::decode(&bytes) else {
        return Ok(Some("its content is damaged, or was written by another version".to_owned()));
    };
    let is_named_right = result.key.to_string() == key && name_for(&result, &result.digest_inputs()) == name;
    Ok((!is_named_right).then(|| "it belongs to another step or to other inputs".to_owned()))
}

fn is_too_old((seconds, _): (i64, i64), now: SystemTime) -> bool {
    now.duration_since(system_time(seconds)).unwrap_or_default() > MAX_AGE
}

fn system_time(seconds: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

fn timestamp(seconds: i64) -> Option<String> {
    Some(humantime::format_rfc3339_seconds(system_time(seconds)).to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use proctor_core::text::digest::Sha256Hex;

    use super::super::tests::result;
    use super::super::{SUFFIX, StepResults};
    use super::*;

    fn state() -> (tempfile::TempDir, StepResults) {
        let temp = tempfile::tempdir().expect("temp");
        fs::create_dir(temp.path().join(SNAPSHOTS_DIR)).expect("makes");
        let results = StepResults::open(&Directory::open(temp.path()).expect("opens"), u64::MAX).expect("opens");
        (temp, results)
    }

    #[test]
    fn counts_results_and_distrusted_steps() {
        let (temp, results) = state();
        assert_eq!((result_stats(temp.path()).expect("counts").results, results.secret().len()), (0, 32));
        let stored = [("a", "/1"), ("a", "/2"), ("b", "/1")];
        for (key, path) in stored {
            results.store(&result(key, path)).expect("stores");
        }
        results.set_distrust(&Sha256Hex::digest(b"c"), "it failed").expect("writes");
        let stats = result_stats(temp.path()).expect("counts");
        assert_eq!((stats.steps, stats.results), (2, 3));
        assert_eq!(stats.distrusted.iter().map(|step| step.reason.as_str()).collect::<Vec<_>>(), ["it failed"]);
        assert!(stats.bytes > 0 && stats.oldest.is_some() && stats.oldest <= stats.newest, "{stats:?}");
    }

    #[test]
    fn removes_damaged_and_misplaced_results_only() {
        let (temp, results) = state();
        for n in [1, 2] {
            results.store(&result("a", &format!("/{n}"))).expect("stores");
        }
        let key = Sha256Hex::digest(b"a");
        let directory = Directory::open(temp.path()).expect("opens").descend(RESULTS_DIR).expect("opens");
        let directory = directory.descend(&key.to_string()).expect("opens");
        let names = names_by_age(&directory).expect("lists");
        let bytes = directory.read(&names[0].1, 1 << 20).expect("reads").expect("a file");
        directory.write(&names[0].1, &bytes[..bytes.len() - 1]).expect("writes");
        directory.write(&format!("x{SUFFIX}"), &result("b", "/1").encode()).expect("writes");
        let verified = verify_results(temp.path()).expect("verifies");
        assert_eq!((verified.intact, verified.damaged.len()), (1, 2), "{verified:?}");
        let again = verify_results(temp.path()).expect("verifies");
        assert_eq!((again.intact, again.damaged.len()), (1, 0));
    }

    #[test]
    fn prunes_old_results_and_keeps_marks_unless_all() {
        let (temp, results) = state();
        results.store(&result("a", "/1")).expect("stores");
        results.set_distrust(&Sha256Hex::digest(b"c"), "it failed").expect("writes");
        assert_eq!(prune_results(temp.path(), u64::MAX, GcExtent::Excess).expect("prunes").number, 0);
        let file = temp.path().join(RESULTS_DIR).join(Sha256Hex::digest(b"a").to_string());
        let file = fs::read_dir(file).expect("lists").next().expect("a file").expect("an entry").path();
        let old = Clock::system().system_time() - MAX_AGE - Duration::from_secs(60);
        fs::File::options().write(true).open(&file).and_then(|file| file.set_modified(old)).expect("sets the time");
        assert_eq!(prune_results(temp.path(), u64::MAX, GcExtent::Excess).expect("prunes").number, 1);
        let stats = result_stats(temp.path()).expect("counts");
        assert_eq!((stats.results, stats.distrusted.len()), (0, 1));
        prune_results(temp.path(), u64::MAX, GcExtent::All).expect("prunes");
        assert_eq!(result_stats(temp.path()).expect("counts").distrusted, []);
    }

    #[test]
    fn refuses_a_directory_that_is_not_a_state_directory() {
        let temp = tempfile::tempdir().expect("temp");
        assert!(matches!(result_stats(temp.path()), Err(StoreError::NotState { .. })));
        assert_eq!(result_stats(&temp.path().join("absent")).expect("counts"), ResultStats::default());
    }
}
