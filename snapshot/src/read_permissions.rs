//! Finds covered paths that a step cannot read although the snapshot could be taken, because it was taken with
//! more rights than the step has.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use proctor_git::files::file_stat::FileStat;
use proctor_git::files::read_beneath;
use rustix::fs::Stat;

use crate::entries::ScannedKind;
use crate::snapshot::taken_snapshot::Snapshot;

/// The owner and group by whose permission bits a step reads the tree, as the file system records them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRights {
    /// The user.
    pub uid: u32,
    /// The one group that the user is in.
    pub gid: u32,
}

/// The permission bits of a file that anyone may read.
const FILE_BITS: u32 = 0o444;
/// The permission bits of a directory that anyone may list and search.
const DIRECTORY_BITS: u32 = 0o555;

impl StepRights {
    /// Returns whether the permission bits let the user read a file.
    pub fn can_read(self, stat: &Stat) -> bool {
        self.allow(stat, FILE_BITS)
    }

    /// Returns whether the permission bits let the user list and search a directory.
    pub fn can_list(self, stat: &Stat) -> bool {
        self.allow(stat, DIRECTORY_BITS)
    }

    /// Returns whether the permission bits that apply to the user include all of `wanted`.
    fn allow(self, stat: &Stat, wanted: u32) -> bool {
        let mode = stat.st_mode;
        let class = if stat.st_uid == self.uid {
            0o700
        } else if stat.st_gid == self.gid {
            0o070
        } else {
            0o007
        };
        mode & class & wanted == class & wanted
    }
}

impl Snapshot {
    /// Returns the first covered file, or directory with covered files, that a user with these rights cannot read.
    /// A check that skips unreadable files would pass without having seen it.
    ///
    /// # Errors
    /// The tree cannot be read.
    pub fn first_unreadable(&self, rights: StepRights) -> io::Result<Option<Vec<u8>>> {
        let top = read_beneath::open_canonical(&self.git.worktree)?;
        let entries = &self.entries;
        for at in 0..entries.directory_count() {
            let path = entries.directory_path(at);
            let stamp = &entries.directory(at).scan_state.stat;
            if *stamp != FileStat::default() && is_denied(top.as_fd(), path, stamp, rights, DIRECTORY_BITS)? {
                return Ok(Some(path.to_vec()));
            }
            for leaf in entries.leaf_range(at) {
                let found = &entries.leaf_at(leaf).found;
                if matches!(found.kind, ScannedKind::File | ScannedKind::Executable)
                    && found.stat.mode & FILE_BITS != FILE_BITS
                {
                    let path = entries.leaf_path(at, leaf);
                    if is_denied(top.as_fd(), &path, &found.stat, rights, FILE_BITS)? {
                        return Ok(Some(path));
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Checks whether the rights lack some of the `wanted` permission bits at a path.
fn is_denied(top: BorrowedFd<'_>, path: &[u8], stamp: &FileStat, rights: StepRights, wanted: u32) -> io::Result<bool> {
    if stamp.mode & wanted == wanted {
        return Ok(false);
    }
    Ok(read_beneath::open_entry(top, path)?.is_some_and(|(_, stat)| !rights.allow(&stat, wanted)))
}
