//! Determines what uses the space of a state directory, by kind and by repository.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use proctor_core::decision::gc::{CACHES, KindUsage, OTHER, OUTPUTS, PRIVATE_COPIES, RESULTS, RUNS};

use super::attestations::recorded_runs;
use super::caches::{SKILL_CACHES_DIR, eviction};
use super::directory::Directory;
use super::documents::RUNS_DIR;
use super::freed_bytes::disk_usage;
use super::private_copies::{MIRRORS_DIR, copies_name};
use super::results::RESULTS_DIR;
use super::{SNAPSHOTS_DIR, StoreError};

/// The kinds of content by the names of their directories. The rest is `other`.
const KINDS: [(&str, &str); 5] = [
    (PRIVATE_COPIES, MIRRORS_DIR),
    (CACHES, SKILL_CACHES_DIR),
    (RUNS, RUNS_DIR),
    (OUTPUTS, "objects"),
    (RESULTS, RESULTS_DIR),
];

/// Returns the used space of each kind, largest first. The list is empty if the state directory does not exist.
///
/// # Errors
/// The directory is not a state directory, or cannot be read.
pub fn state_usage(state: &Path) -> Result<Vec<KindUsage>, StoreError> {
    let directory = match Directory::open(state) {
        Err(StoreError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    if !state.join(SNAPSHOTS_DIR).is_dir() {
        return Err(StoreError::NotState { path: state.display().to_string() });
    }
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for name in directory.names()? {
        let kind = KINDS.iter().find(|(_, known)| *known == name).map_or(OTHER, |(kind, _)| kind);
        let used = bytes.entry(kind).or_default();
        *used = used.saturating_add(disk_usage(&state.join(&name)).unwrap_or(0));
    }
    let mut by_repository = repositories(state)?;
    let usage = bytes.into_iter().map(|(kind, bytes)| {
        let repositories = by_repository.remove(kind).unwrap_or_default();
        KindUsage::new(kind, bytes, repositories)
    });
    let mut usage: Vec<KindUsage> = usage.collect();
    usage.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.kind.cmp(&other.kind)));
    Ok(usage)
}

/// Returns the used bytes by kind and by repository, as far as the repository is known.
fn repositories(state: &Path) -> Result<BTreeMap<&'static str, BTreeMap<String, u64>>, StoreError> {
    let [(copies, mirrors_dir), (caches, _), (runs, runs_dir), ..] = KINDS;
    let mut found: BTreeMap<&str, BTreeMap<String, u64>> = BTreeMap::new();
    let mut add = |kind: &'static str, repository: &str, bytes: u64| {
        let of_kind = found.entry(kind).or_default();
        let used = of_kind.entry(repository.to_owned()).or_default();
        *used = used.saturating_add(bytes);
    };
    let mut known: BTreeMap<String, ()> = BTreeMap::new();
    for record in recorded_runs(state)? {
        let repository = record.subject.repository;
        let directory = state.join(runs_dir).join(record.last_run.run_id.as_str());
        if let Some(bytes) = disk_usage(&directory) {
            add(runs, &repository, bytes);
        }
        known.insert(repository, ());
    }
    // The name of a directory of copies is a digest, so it is computed for each known repository. The copies of a spec
    // in a subdirectory belong to the repository above it.
    let mut tops: BTreeMap<&Path, u32> = BTreeMap::new();
    for path in known.keys().flat_map(|repository| Path::new(repository).ancestors()) {
        if let Some(metadata) = path.join(".git").symlink_metadata().ok().and_then(|_| path.metadata().ok()) {
            tops.insert(path, metadata.uid());
        }
    }
    for (top, uid) in tops {
        let name = copies_name(top.as_os_str().as_bytes(), uid);
        for directory in [name.clone(), format!("{name}-commits")] {
            if let Some(bytes) = disk_usage(&state.join(mirrors_dir).join(directory)) {
                add(copies, &top.display().to_string(), bytes);
            }
        }
    }
    for (repository, bytes) in eviction::bytes_by_repository(state)? {
        add(caches, &repository, bytes);
    }
    Ok(found)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
mod tests {
    use super::*;

    #[test]
    fn counts_each_kind_and_names_the_rest_other() {
        let temp = tempfile::tempdir().expect("temp");
        assert!(matches!(state_usage(temp.path()), Err(StoreError::NotState { .. })));
        for (path, size) in [
            ("mirrors/a/1/x", 200 << 10),
            ("objects/ab", 100 << 10),
            ("results/a/b", 50 << 10),
            ("snapshots/s", 1),
            ("probe", 1),
        ] {
            let path = temp.path().join(path);
            std::fs::create_dir_all(path.parent().expect("inside")).expect("makes");
            std::fs::write(path, vec![1; size]).expect("writes");
        }
        let usage = state_usage(temp.path()).expect("counts");
        let kinds: Vec<&str> = usage.iter().map(|usage| usage.kind.as_str()).collect();
        assert_eq!(kinds, ["private copies", "outputs", "results of steps", "other"]);
        assert!(usage[0].bytes >= 200 << 10 && usage[1].bytes >= 100 << 10, "{usage:?}");
        assert_eq!(usage[0].unassigned_bytes, usage[0].bytes);
        assert_eq!(state_usage(&temp.path().join("absent")).expect("none"), []);
    }
}
