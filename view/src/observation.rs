//! Observes paths of the host in the terms of a trace, to find out whether a trace still holds.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use proctor_core::model::trace::{EntryKind, FileStamp, ListingDigest, PathState};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use crate::directory_listing::DirectoryListing;
use crate::file_meta::OwnerMap;
use crate::host_files::examine_at;

/// Returns the state and the stamp that a view would record now for an absolute path. The last component is not followed
/// if it is a symbolic link. Links above it are followed, since each has a separate entry in a trace.
///
/// # Errors
/// The path cannot be examined.
pub fn observe_path(path: &Path) -> std::io::Result<(PathState, Option<FileStamp>)> {
    match examine_at(CWD, path.as_os_str().as_bytes()) {
        Ok((meta, target)) => Ok((meta.state(&OwnerMap::default(), target.as_deref()), Some(meta.stamp()))),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok((PathState::Absent, None)),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns the digest that a view would record now for a listing of a directory.
///
/// # Errors
/// The path is no directory, or cannot be read.
pub fn observe_listing(path: &Path) -> std::io::Result<ListingDigest> {
    observe_shown_listing(path, |_, _| true)
}

/// Returns the digest that a view would record now for a listing of a directory, if it shows only some of the entries.
///
/// # Errors
/// The path is no directory, or cannot be read.
pub fn observe_shown_listing(path: &Path, shows: impl Fn(&[u8], EntryKind) -> bool) -> std::io::Result<ListingDigest> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty())?;
    let mut listing = DirectoryListing::read(std::os::fd::AsFd::as_fd(&dir))?;
    listing.retain(shows);
    Ok(listing.digest())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files of a test")]
mod tests {
    use super::*;

    #[test]
    fn observes_each_kind() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "12345").expect("written");
        std::os::unix::fs::symlink("file", at("link")).expect("made");
        let state = |name: &str| observe_path(&at(name)).expect("examined").0;
        assert!(matches!(state("file"), PathState::File { size: 5, .. }));
        assert!(matches!(state("link"), PathState::Link { target, .. } if target == b"file"));
        assert!(matches!(state("."), PathState::Directory { .. }));
        assert_eq!(state("absent"), PathState::Absent);
        assert_eq!(state("file/below"), PathState::Absent);
        let names = vec![("link", EntryKind::Link), ("file", EntryKind::File)];
        assert_eq!(observe_listing(dir.path()).expect("listed"), ListingDigest::from_entries(names));
        observe_listing(&at("file")).expect_err("no directory");
    }
}
