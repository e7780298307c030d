//! The inputs of a step as they are now, in the tree of a run and on the host.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::drift::{Entry, EntryKind};
use proctor_core::model::trace::{AccessedPath, EntryKind as FileKind, ListingDigest, PathState};
use proctor_core::record::evidence::escape_output;
use proctor_core::reuse::{ContentPin, CurrentInputs, FileContents, InputArea, PassedFile, PathNow};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::index::entries_digest;
use proctor_sandbox::{observe_path, observe_shown_listing};
use proctor_snapshot::EntryTree;
use rustix::fs::{Mode, OFlags};

use crate::shared_results::ContentHashes;

/// The largest file in a git directory that is hashed, in bytes.
const MAX_GIT_FILE: u64 = 512 << 20;

/// The tree of a run, for the comparison of inputs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObservedTree<'a> {
    /// The covered files.
    pub(crate) entries: &'a EntryTree,
    /// The directory of the private copy.
    pub(crate) directory: &'a Path,
    /// The files that the step sees; `None` for all.
    pub(crate) inputs: Option<&'a InputFilter>,
}

/// Looks up the inputs of a step as they are now.
#[derive(Debug, Clone, Copy)]
pub(super) struct TreeInputs<'a>(pub(super) ObservedTree<'a>);

impl TreeInputs<'_> {
    /// Returns a covered file as it is now; `None` if there is none, or if its path is not text.
    pub(super) fn file(&self, path: &[u8]) -> Option<PassedFile> {
        let Entry { kind: EntryKind::File, executable, sha256 } = self.covered(path)? else { return None };
        Some(PassedFile { path: std::str::from_utf8(path).ok()?.to_owned(), sha256, executable })
    }

    /// Returns the content of a path of the tree, for the record.
    pub(super) fn pin(&self, entry: &AccessedPath, path: &[u8]) -> Result<ContentPin, String> {
        let shown = || escape_output(path);
        if is_in_git_directory(path) {
            let is_file = matches!(entry.state, PathState::File { .. });
            if !is_file || (!entry.read && is_git_object(path)) {
                return Ok(ContentPin::None);
            }
            let sha256 = self.git_content(path).ok_or_else(|| format!("`{}` cannot be read", shown()))?;
            return Ok(ContentPin::Git { sha256 });
        }
        match self.covered(path) {
            Some(Entry { kind: EntryKind::File, executable, sha256 }) => {
                let is_same = matches!(entry.state, PathState::File { mode, .. } if (mode & 0o100 != 0) == executable);
                is_same.then(|| ContentPin::Covered { sha256: sha256.to_raw(), executable })
            }
            Some(Entry { kind: EntryKind::Symlink, sha256, .. }) => {
                let is_same =
                    matches!(&entry.state, PathState::Link { target, .. } if Sha256Hex::digest(target) == sha256);
                is_same.then(|| ContentPin::Covered { sha256: sha256.to_raw(), executable: false })
            }
            Some(Entry { kind: EntryKind::Gitlink, .. }) | None => Some(ContentPin::None),
            Some(_) => None,
        }
        .ok_or_else(|| format!("`{}` differs from its recorded state", shown()))
    }

    fn shows(&self, path: &[u8], is_directory: bool) -> bool {
        self.0.inputs.is_none_or(|inputs| inputs.shows(path, is_directory))
    }

    fn host_path(&self, area: InputArea, path: &[u8]) -> PathBuf {
        let path = Path::new(std::ffi::OsStr::from_bytes(path));
        match area {
            InputArea::Tree => self.0.directory.join(path),
            InputArea::Host => path.to_owned(),
        }
    }
}

impl CurrentInputs for TreeInputs<'_> {
    fn covered(&self, path: &[u8]) -> Option<Entry> {
        self.0.entries.get(path).filter(|_| self.shows(path, false))
    }

    fn state(&self, area: InputArea, path: &[u8]) -> Option<PathNow> {
        let (state, stamp) = observe_path(&self.host_path(area, path)).ok()?;
        let is_directory = matches!(state, PathState::Directory { .. });
        let is_shown = area == InputArea::Host || self.shows(path, is_directory);
        Some(if is_shown { (state, stamp) } else { (PathState::Absent, None) })
    }

    fn listing(&self, area: InputArea, path: &[u8]) -> Option<ListingDigest> {
        let shows = |name: &[u8], kind| {
            let separator: &[u8] = if path.is_empty() { b"" } else { b"/" };
            area == InputArea::Host || self.shows(&[path, separator, name].concat(), kind == FileKind::Directory)
        };
        observe_shown_listing(&self.host_path(area, path), shows).ok()
    }

    fn git_content(&self, path: &[u8]) -> Option<[u8; 32]> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file: OwnedFd = rustix::fs::open(self.host_path(InputArea::Tree, path), flags, Mode::empty()).ok()?;
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut io::Read::take(fs::File::from(file), MAX_GIT_FILE), &mut bytes).ok()?;
        if bytes.len() as u64 >= MAX_GIT_FILE {
            return None;
        }
        let entries = path.ends_with(b"/index").then(|| entries_digest(&bytes)).flatten();
        Some(entries.unwrap_or_else(|| Sha256Hex::digest(&bytes).to_raw()))
    }
}

/// Reads files so that they can be compared between machines.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedInputs<'a> {
    pub(super) tree: TreeInputs<'a>,
    pub(super) hashes: &'a ContentHashes,
    /// The present time, in nanoseconds since 1970.
    pub(super) now_ns: i64,
}

impl FileContents for SharedInputs<'_> {
    fn content(&self, area: InputArea, file: &AccessedPath) -> Option<[u8; 32]> {
        let path = match area {
            InputArea::Tree => file.path.strip_prefix(b"/").unwrap_or(&file.path),
            InputArea::Host => &file.path,
        };
        if area == InputArea::Tree && is_in_git_directory(path) {
            // An object that was not read: its content never changes.
            return Some([0; 32]);
        }
        self.hashes.hash(&self.tree.host_path(area, path), file.stamp.as_ref()?, self.now_ns)
    }
}

/// Returns whether a path of the tree is inside a git directory.
fn is_in_git_directory(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|name| name == b".git")
}

/// Returns whether a path of the tree is an object of a git directory. The content of an object never changes.
fn is_git_object(path: &[u8]) -> bool {
    let mut names = path.split(|byte| *byte == b'/').skip_while(|name| *name != b".git");
    names.next().is_some() && names.any(|name| name == b"objects")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_below_a_git_directory() {
        for path in [&b".git/objects/pack/p.pack"[..], b"sub/.git/objects/0a/1"] {
            assert!(is_git_object(path));
        }
        for path in [&b"objects/a"[..], b".git/HEAD", b"objects/.git/HEAD", b".gitignore/objects"] {
            assert!(!is_git_object(path));
        }
    }
}
