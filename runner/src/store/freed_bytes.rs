//! Counts the bytes that a removal frees on disk.
//!
//! Steps wrote some of the removed trees, so links in them are not followed. Directories more than [`MAX_DEPTH`]
//! levels deep are removed but not counted.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use proctor_core::decision::gc::FreedItems;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, openat, statat};

/// Maximum depth of directories that are counted: each level holds a descriptor.
const MAX_DEPTH: usize = 128;
/// Block size in which `stat(2)` counts.
pub(crate) const BLOCK_SIZE: u64 = 512;

/// Removes `path` with `remove`, and counts it. If a part remains, only the bytes are counted.
pub(crate) fn remove_and_count<R>(freed: &mut FreedItems, path: &Path, remove: impl FnOnce() -> R) -> R {
    let Some(before) = disk_usage(path) else { return remove() };
    let removed = remove();
    match disk_usage(path) {
        Some(left) => freed.add_bytes(before.saturating_sub(left)),
        None => freed.add(before),
    }
    removed
}

/// Ignores files that another process has already removed.
pub(crate) fn ignore_missing(removed: std::io::Result<()>) -> std::io::Result<()> {
    match removed {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes a directory in the state directory and counts it. A later clean-up repeats a removal that fails.
pub(crate) fn remove_dir_counted(freed: &mut FreedItems, path: &Path) {
    remove_and_count(freed, path, || {
        if let Err(error) = std::fs::remove_dir_all(path) {
            tracing::debug!(%error, path = %path.display(), "a directory could not be removed");
        }
    });
}

/// Returns the bytes on disk that the removal of a path would free; `None` if it does not exist.
pub(crate) fn disk_usage(path: &Path) -> Option<u64> {
    let found: Metadata = path.symlink_metadata().ok()?;
    let own = found.blocks() * BLOCK_SIZE;
    if !found.is_dir() {
        return Some(if found.nlink() > 1 { 0 } else { own });
    }
    let mut count = DiskUsageCounter::default();
    if let Ok(directory) = rustix::fs::open(path, DIRECTORY_FLAGS, Mode::empty()) {
        count.count_directory(directory.as_fd(), 0);
    }
    Some(own.saturating_add(count.bytes))
}

const DIRECTORY_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Default)]
struct DiskUsageCounter {
    bytes: u64,
    /// Number of links found so far of each file.
    links: HashMap<(u64, u64), usize>,
}

impl DiskUsageCounter {
    /// Counts the content of a directory; skips what cannot be read.
    fn count_directory(&mut self, directory: BorrowedFd<'_>, depth: usize) {
        let Ok(entries) = Dir::read_from(directory) else { return };
        for entry in entries.flatten() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Ok(stat) = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                self.count_file(&stat);
                continue;
            }
            self.add(&stat);
            let inner: Option<OwnedFd> = openat(directory, name, DIRECTORY_FLAGS, Mode::empty()).ok();
            if let Some(inner) = inner.filter(|_| depth < MAX_DEPTH) {
                self.count_directory(inner.as_fd(), depth + 1);
            }
        }
    }

    /// Counts a file when its last link is found: a file with another link elsewhere remains on disk.
    fn count_file(&mut self, stat: &Stat) {
        let seen = self.links.entry((stat.st_dev, stat.st_ino)).or_default();
        *seen += 1;
        if usize::try_from(stat.st_nlink) == Ok(*seen) {
            self.add(stat);
        }
    }

    fn add(&mut self, stat: &Stat) {
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK_SIZE));
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test's own files need not survive a crash")]
mod tests {
    use std::fs;

    use super::*;

    const SIZE: usize = 64 << 10;

    #[test]
    fn counts_each_file_with_its_last_link() {
        let state = tempfile::tempdir().expect("temp");
        let (first, second) = (state.path().join("1"), state.path().join("2"));
        fs::create_dir_all(first.join("deep")).expect("makes");
        fs::create_dir(&second).expect("makes");
        fs::write(first.join("deep/own"), vec![1; SIZE]).expect("writes");
        fs::write(first.join("shared"), vec![1; SIZE]).expect("writes");
        fs::hard_link(first.join("shared"), second.join("shared")).expect("links");
        fs::hard_link(first.join("deep/own"), first.join("again")).expect("links");
        std::os::unix::fs::symlink("/", first.join("link")).expect("links");
        let (mut of_first, mut of_second) = (FreedItems::default(), FreedItems::default());
        remove_dir_counted(&mut of_first, &first);
        remove_dir_counted(&mut of_second, &second);
        let is_one_file = |freed: FreedItems| (SIZE..2 * SIZE).contains(&usize::try_from(freed.bytes).expect("small"));
        assert!(is_one_file(of_first) && is_one_file(of_second), "{of_first:?} {of_second:?}");
        assert_eq!((of_first.number, of_second.number), (1, 1));
        remove_dir_counted(&mut of_first, &first);
        assert_eq!(of_first.number, 1, "no file is left");
    }

    #[test]
    fn does_not_count_remaining_directory() {
        let state = tempfile::tempdir().expect("temp");
        fs::write(state.path().join("one"), vec![1; SIZE]).expect("writes");
        let mut freed = FreedItems::default();
        let removed = remove_and_count(&mut freed, state.path(), || fs::remove_dir(state.path()));
        assert!(removed.is_err());
        assert_eq!(freed, FreedItems::default());
    }
}
