//! Identifies the content of a directory: by stat data, which change with each write, and by a digest of all bytes.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::BorrowedFd;

use proctor_core::text::digest::Sha256Hex;
use proctor_git::files::file_stat::{self, FileStat, FileTime, RacyWindow};
use proctor_git::files::read_beneath;
use proctor_snapshot::StepRights;
use rustix::fs::{self, FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::store::caches::SkillCacheError;
use crate::store::caches::cache_layer::{self, WalkedEntry};

/// Size of the buffer for the content of files, in bytes.
const BUFFER: usize = 256 << 10;

/// The content of a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ContentDigest {
    /// The digest of everything in the directory that a program can observe, without owners and times: the paths, kinds,
    /// modes, contents, numbers of hard links and extended attributes of all entries.
    pub(crate) sha256: Sha256Hex,
    /// The digest of the paths of all files with their modification times.
    pub(crate) modified_sha256: Sha256Hex,
    /// Number of files and symbolic links.
    pub(crate) files: u64,
    /// The sum of the sizes of the files, in bytes.
    pub(crate) bytes: u64,
}

/// The state of a directory that other programs can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SourceState {
    /// The digest of names and stat data.
    seal: Sha256Hex,
    /// True if each later change of the content changes the stat data.
    is_settled: bool,
}

impl SourceState {
    /// Returns the value that the record of a copy has if the source was in this state.
    pub(crate) fn recorded(&self) -> Sha256Hex {
        if self.is_settled { self.seal.clone() } else { self.recorded_unsettled() }
    }

    /// Returns whether the names and the stat data of both states are the same.
    pub(crate) fn has_same_stat_data(&self, other: &Self) -> bool {
        self.seal == other.seal
    }

    /// Returns the recorded value if the copy has the same content as the source whenever the stat data are the same.
    pub(super) fn recorded_settled(&self) -> Option<&Sha256Hex> {
        self.is_settled.then_some(&self.seal)
    }

    /// Returns the recorded value if the content of the copy has to be compared.
    pub(super) fn recorded_unsettled(&self) -> Sha256Hex {
        Sha256Hex::digest(format!("unsettled {}", self.seal).as_bytes())
    }
}

/// Returns the state of a directory. With `rights`, refuses an entry that this user cannot read.
pub(super) fn source_state(root: BorrowedFd<'_>, rights: Option<StepRights>) -> Result<SourceState, SkillCacheError> {
    let time = file_stat::now();
    let device = read_beneath::trusted_device(root).ok().flatten();
    let mut is_settled = true;
    let seal = seal_with(root, rights, &mut |entry| {
        is_settled &= device == Some(entry.stat.st_dev) && is_settled_entry(entry, time);
    })?;
    Ok(SourceState { seal, is_settled })
}

/// Returns whether each change of an entry after `time` changes its stat data. A write through a shared mapping does not
/// for a while.
fn is_settled_entry(entry: &WalkedEntry<'_>, time: FileTime) -> bool {
    let stat = FileStat::from_stat(&entry.stat);
    let may_be_mapped = entry.kind().is_file() && stat.is_in_racy_window(time, RacyWindow::default());
    !may_be_mapped && !stat.is_racy(time)
}

/// Returns whether the files and links below two directories have the same paths and contents.
pub(super) fn has_same_bytes(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> Result<bool, SkillCacheError> {
    Ok(bytes_digest(one)? == bytes_digest(other)?)
}

fn bytes_digest(root: BorrowedFd<'_>) -> Result<[u8; 32], SkillCacheError> {
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; BUFFER]);
    cache_layer::walk_entries(root, &mut |entry| {
        let kind = entry.kind();
        if kind.is_file() || kind.is_symlink() {
            hash.update(u64::try_from(entry.path.len()).unwrap_or(u64::MAX).to_le_bytes());
            hash.update(entry.path);
            hash.update([u8::from(kind.is_file())]);
            hash.update(entry_content(entry, &mut buffer)?.0);
        }
        Ok(())
    })?;
    Ok(hash.finalize().into())
}

/// Returns a digest of the names and stat data of all entries below `root`, including the times of their last status
/// change, which no program can set.
pub(super) fn seal(root: BorrowedFd<'_>) -> Result<Sha256Hex, SkillCacheError> {
    seal_with(root, None, &mut |_| {})
}

/// Like [`seal`], and calls `visit` with each entry. With `rights`, refuses an entry that this user cannot read.
fn seal_with(
    root: BorrowedFd<'_>,
    rights: Option<StepRights>,
    visit: &mut dyn FnMut(&WalkedEntry<'_>),
) -> Result<Sha256Hex, SkillCacheError> {
    let mut hash = Sha256::new();
    hash.update(cache_layer::summarize(root)?.seal.to_string());
    cache_layer::walk_entries(root, &mut |entry| {
        let is_readable = |rights: StepRights| match entry.kind() {
            FileType::Symlink => true,
            FileType::Directory => rights.can_list(&entry.stat),
            _ => rights.can_read(&entry.stat),
        };
        if rights.is_some_and(|rights| !is_readable(rights)) {
            return Err(entry.error_for("read")(rustix::io::Errno::ACCESS));
        }
        hash.update(entry.stat.st_ctime.to_le_bytes());
        hash.update(entry.stat.st_ctime_nsec.to_le_bytes());
        hash.update(entry.stat.st_dev.to_le_bytes());
        visit(entry);
        Ok(())
    })?;
    Ok(Sha256Hex::from_raw(hash.finalize().into()))
}

/// The digests of one entry.
pub(super) struct EntryDigests {
    /// The sha256 of the bytes of a file, or of the target of a link.
    pub(super) content: [u8; 32],
    /// The size of a file, in bytes.
    pub(super) bytes: u64,
    /// The digest of the extended attributes that a step sees.
    pub(super) attributes: [u8; 32],
}

/// Returns the digest of the content of all entries below `root`.
pub(super) fn digest(root: BorrowedFd<'_>) -> Result<ContentDigest, SkillCacheError> {
    digest_with(root, &mut |_, _| Ok(()))
}

/// Like [`digest`], and calls `visit` with each entry, each directory before its content.
pub(super) fn digest_with(
    root: BorrowedFd<'_>,
    visit: &mut dyn FnMut(&WalkedEntry<'_>, &EntryDigests) -> Result<(), SkillCacheError>,
) -> Result<ContentDigest, SkillCacheError> {
    let (mut hash, mut modified, mut files, mut bytes) = (Sha256::new(), Sha256::new(), 0u64, 0u64);
    let mut buffer = vec![0; BUFFER];
    cache_layer::walk_entries(root, &mut |entry| {
        let (content, size) = entry_content(entry, &mut buffer)?;
        let digests = EntryDigests { content, bytes: size, attributes: entry.attributes_digest()? };
        hash.update(u64::try_from(entry.path.len()).unwrap_or(u64::MAX).to_le_bytes());
        hash.update(entry.path);
        hash.update(entry.stat.st_mode.to_le_bytes());
        hash.update(content);
        hash.update(digests.attributes);
        // The number of links of a directory depends on the file system.
        let links = if entry.kind().is_dir() { 0 } else { entry.stat.st_nlink };
        hash.update(links.to_le_bytes());
        if entry.kind().is_file() {
            modified.update(entry.path);
            modified.update([0]);
            modified.update(entry.stat.st_mtime.to_le_bytes());
            modified.update(entry.stat.st_mtime_nsec.to_le_bytes());
        }
        if !entry.kind().is_dir() {
            files += 1;
            bytes = bytes.saturating_add(size);
        }
        visit(entry, &digests)
    })?;
    let [sha256, modified_sha256] = [hash, modified].map(|hash| Sha256Hex::from_raw(hash.finalize().into()));
    Ok(ContentDigest { sha256, modified_sha256, files, bytes })
}

/// Returns the digest of the content of one entry, and its size.
fn entry_content(entry: &WalkedEntry<'_>, buffer: &mut [u8]) -> Result<([u8; 32], u64), SkillCacheError> {
    let kind = entry.kind();
    if kind.is_symlink() {
        let target = fs::readlinkat(entry.parent, entry.name, Vec::new()).map_err(entry.error_for("read"))?;
        return Ok((Sha256::digest(target.to_bytes()).into(), 0));
    }
    if !kind.is_file() {
        return Ok(([0; 32], 0));
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = fs::openat(entry.parent, entry.name, flags, Mode::empty()).map_err(entry.error_for("open"))?;
    let (mut file, mut hash, mut size) = (File::from(file), Sha256::new(), 0u64);
    loop {
        let count = match file.read(buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(source) => {
                let path = proctor_core::model::drift::display_path(entry.path);
                return Err(SkillCacheError::Entry { action: "read", path, source });
            }
        };
        hash.update(&buffer[..count]);
        size += count as u64;
    }
    Ok((hash.finalize().into(), size))
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::*;
    use crate::store::directory::Directory;

    fn digest_of(path: &Path) -> Sha256Hex {
        digest(Directory::open(path).expect("opens").as_fd()).expect("digests").sha256
    }

    #[test]
    fn digest_covers_what_a_program_can_observe() {
        let temp = tempfile::tempdir().expect("temp");
        let at = |name: &str| temp.path().join(name);
        std::fs::create_dir(at("d")).expect("makes");
        std::fs::write(at("d/file"), "one").expect("writes");
        let mut seen = vec![digest_of(temp.path())];
        let mut changed_by = |what: &str, change: &dyn Fn()| {
            change();
            let now = digest_of(temp.path());
            assert!(!seen.contains(&now), "{what}");
            seen.push(now);
        };
        changed_by("content of the same size", &|| std::fs::write(at("d/file"), "two").expect("writes"));
        let mode =
            |path, mode| std::fs::set_permissions(at(path), std::fs::Permissions::from_mode(mode)).expect("sets");
        changed_by("mode of a file", &|| mode("d/file", 0o755));
        changed_by("mode of a directory", &|| mode("d", 0o700));
        changed_by("link", &|| std::os::unix::fs::symlink("file", at("d/link")).expect("links"));
        changed_by("target of a link", &|| {
            std::fs::remove_file(at("d/link")).expect("removes");
            std::os::unix::fs::symlink("elif", at("d/link")).expect("links");
        });
        changed_by("number of links", &|| {
            std::fs::hard_link(at("d/file"), temp.path().with_extension("o")).expect("links");
        });
        changed_by("empty directory", &|| std::fs::create_dir(at("e")).expect("makes"));
        changed_by("name", &|| std::fs::rename(at("e"), at("f")).expect("renames"));
        let is_supported = rustix::fs::setxattr(at("d/file"), "user.a", b"1", rustix::fs::XattrFlags::empty()).is_ok();
        if is_supported {
            changed_by("attribute", &|| ());
        }
        std::fs::remove_file(temp.path().with_extension("o")).expect("removes");
    }

    #[test]
    fn recently_changed_source_is_compared_by_its_bytes() {
        let (one, other) = (tempfile::tempdir().expect("temp"), tempfile::tempdir().expect("temp"));
        for directory in [&one, &other] {
            std::fs::write(directory.path().join("file"), "text").expect("writes");
            std::os::unix::fs::symlink("file", directory.path().join("link")).expect("links");
        }
        let opened = [&one, &other].map(|directory| Directory::open(directory.path()).expect("opens"));
        let state = source_state(opened[0].as_fd(), None).expect("read");
        assert_eq!((state.recorded_settled(), state.recorded()), (None, state.recorded_unsettled()));
        let settled = SourceState { is_settled: true, ..state.clone() };
        assert_eq!(settled.recorded_settled(), Some(&settled.recorded()));
        assert_ne!(settled.recorded(), state.recorded());
        let is_same = || has_same_bytes(opened[0].as_fd(), opened[1].as_fd()).expect("read");
        assert!(is_same());
        std::fs::write(other.path().join("file"), "TEXT").expect("writes");
        assert!(!is_same());
    }

    #[test]
    fn digest_does_not_depend_on_times_and_attributes_of_overlays() {
        let temp = tempfile::tempdir().expect("temp");
        let file = temp.path().join("file");
        std::fs::write(&file, "one").expect("writes");
        let digest_of_times =
            || digest(Directory::open(temp.path()).expect("opens").as_fd()).expect("digests").modified_sha256;
        let (before, times_before) = (digest_of(temp.path()), digest_of_times());
        let _ = rustix::fs::setxattr(&file, "user.overlay.origin", b"1", rustix::fs::XattrFlags::empty());
        std::fs::File::options()
            .write(true)
            .open(&file)
            .expect("opens")
            .set_modified(std::time::UNIX_EPOCH)
            .expect("sets");
        assert_eq!(digest_of(temp.path()), before);
        assert_ne!(digest_of_times(), times_before);
    }
}
