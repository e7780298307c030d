//! What bounds the checkouts: those that were not used for long go, and the least recently used ones
//! beyond a number and a size. One that is in use stays.

use std::fs::{self, DirEntry, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use proctor_core::gc::Freed;

use super::{DISCARDED, MANIFEST, MAX_MANIFEST, Manifest, UNFINISHED, hold_to_remove, remove};
use crate::store::freed::remove_counted;

/// How much is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// How many checkouts, of all repositories.
    pub(crate) checkouts: usize,
    /// How many bytes they have.
    pub(crate) bytes: u64,
    /// For how long one is kept that is not used.
    pub(crate) unused: Duration,
}

impl Bounds {
    /// Nothing is kept but what is in use.
    pub(crate) const NONE: Self = Self { checkouts: 0, bytes: 0, unused: Duration::ZERO };
}

/// Enough for the branches that a few people work on.
impl Default for Bounds {
    fn default() -> Self {
        Self { checkouts: 64, bytes: 16 << 30, unused: Duration::from_secs(14 * 24 * 60 * 60) }
    }
}

struct Kept {
    path: PathBuf,
    used: SystemTime,
    bytes: u64,
}

/// Removes what a killed run left, and the oldest checkouts beyond `bounds`.
///
/// # Errors
/// A directory of ours cannot be listed.
pub(crate) fn evict(checkouts: &Path, now: SystemTime, bounds: Bounds, freed: &mut Freed) -> io::Result<()> {
    let mut kept = Vec::new();
    for repository in entries(checkouts)? {
        for entry in entries(&repository.path())? {
            match left_over(&entry) {
                true => remove_unused(&entry.path(), freed),
                false => kept.push(measured(entry.path())),
            }
        }
    }
    kept.sort_by(|a, b| (b.used, &a.path).cmp(&(a.used, &b.path)));
    let mut bytes = 0u64;
    for (number, one) in kept.iter().enumerate() {
        bytes = bytes.saturating_add(one.bytes);
        let age = now.duration_since(one.used).unwrap_or_default();
        if number >= bounds.checkouts || bytes > bounds.bytes || age > bounds.unused {
            remove_unused(&one.path, freed);
        }
    }
    Ok(())
}

/// What a run was making when it was killed, or what was put aside.
fn left_over(entry: &DirEntry) -> bool {
    let name = entry.file_name();
    let name = name.to_string_lossy();
    name.starts_with(UNFINISHED) || name.starts_with(DISCARDED)
}

fn remove_unused(path: &Path, freed: &mut Freed) {
    let Some(held) = hold_to_remove(path) else {
        freed.in_use += 1;
        return;
    };
    // Under a name by which no run finds it, or a run could begin with what is half gone.
    let aside = path.with_file_name(format!("{DISCARDED}{}", path.file_name().unwrap_or_default().display()));
    match fs::rename(path, &aside) {
        Ok(()) => remove_counted(freed, &aside),
        Err(error) => tracing::debug!(%error, path = %path.display(), "a checkout stays"),
    }
    drop(held);
}

/// Where an earlier version kept the caches of a checkout.
const OLD_CACHES: &str = "caches";

/// When a checkout was last used, and how large it is. One without a manifest was never
/// used.
fn measured(path: PathBuf) -> Kept {
    let manifest = File::open(path.join(MANIFEST));
    let used = manifest.as_ref().ok().and_then(|file| file.metadata().ok()?.modified().ok());
    let read = manifest.ok().and_then(|file| serde_json::from_reader(file.take(MAX_MANIFEST)).ok());
    let bytes = read.map_or(0, |manifest: Manifest| manifest.bytes);
    remove(&path.join(OLD_CACHES));
    Kept { path, used: used.unwrap_or(SystemTime::UNIX_EPOCH), bytes }
}

/// A directory that is not there holds nothing.
fn entries(directory: &Path) -> io::Result<Vec<DirEntry>> {
    match fs::read_dir(directory) {
        Ok(entries) => entries.collect(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::directory::Directory;
    use proctor_core::digest::{Sha256Hex, SnapshotId};

    struct Room(tempfile::TempDir);

    impl Room {
        fn checkout(&self, name: &str, age: u64, bytes: u64) -> PathBuf {
            let path = self.0.path().join("repository").join(name);
            fs::create_dir_all(path.join("caches/target")).expect("makes");
            let open = |path: &Path| Directory::open(path).expect("opens");
            let snapshot = SnapshotId::from_root(&Sha256Hex::of(b""));
            let manifest = Manifest { snapshot, tree: String::new(), bytes, lfs_pointers: 0 };
            open(&path).write(MANIFEST, &serde_json::to_vec(&manifest).expect("json")).expect("writes");
            let manifest = fs::File::options().write(true).open(path.join(MANIFEST)).expect("opens");
            manifest.set_modified(Self::now() - Duration::from_secs(age)).expect("sets");
            path
        }

        fn now() -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
        }

        fn evict(&self, bounds: Bounds) -> Freed {
            let mut freed = Freed::default();
            evict(self.0.path(), Self::now(), bounds, &mut freed).expect("evicts");
            freed
        }
    }

    fn room() -> Room {
        Room(tempfile::tempdir().expect("temp"))
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let room = room();
        let (old, new, newest) = (room.checkout("a", 30, 10), room.checkout("b", 20, 10), room.checkout("c", 10, 10));
        room.evict(Bounds { checkouts: 2, ..Bounds::default() });
        assert!(!old.exists() && new.exists() && newest.exists());
        assert!(!new.join("caches").exists(), "an earlier version kept caches there");
        room.evict(Bounds { bytes: 15, ..Bounds::default() });
        assert!(!new.exists() && newest.exists());
        room.evict(Bounds { unused: Duration::from_secs(5), ..Bounds::default() });
        assert!(!newest.exists());
        assert_eq!(entries(&room.0.path().join("repository")).expect("lists").len(), 0);
    }

    #[test]
    fn what_is_in_use_stays_and_what_a_killed_run_left_goes() {
        let room = room();
        let (used, left, made) =
            (room.checkout("a", 30, 9), room.checkout("new-1", 0, 9), room.checkout("new-2", 0, 9));
        let held: Vec<_> = [&used, &made].map(|path| hold_to_remove(path).expect("held")).into();
        let freed = room.evict(Bounds { checkouts: 0, ..Bounds::default() });
        assert!(used.exists() && made.exists() && !left.exists());
        assert_eq!((freed.number, freed.in_use), (1, 2));
        drop(held);
        assert_eq!(room.evict(Bounds::NONE).number, 2);
        assert!(!used.exists() && !made.exists());
    }
}
