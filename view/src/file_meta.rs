//! Reads the attributes of files, and converts owners that a mount maps.

use proctor_core::model::trace::{EntryKind, FileStamp, PathState};
use rustix::fs::{FileType, Stat};

/// The attributes of a file of the host, as the server sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileMeta {
    pub(crate) dev: u64,
    pub(crate) ino: u64,
    /// File type and permission bits.
    pub(crate) mode: u32,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) device_number: u32,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
    pub(crate) ctime_ns: i64,
}

impl From<&Stat> for FileMeta {
    fn from(stat: &Stat) -> Self {
        let ns = |seconds: i64, rest: u64| seconds.saturating_mul(1_000_000_000).saturating_add_unsigned(rest);
        Self {
            dev: stat.st_dev,
            ino: stat.st_ino,
            mode: stat.st_mode,
            links: u32::try_from(stat.st_nlink).unwrap_or(u32::MAX),
            uid: stat.st_uid,
            gid: stat.st_gid,
            device_number: encode_device(stat.st_rdev),
            size: stat.st_size.unsigned_abs(),
            blocks: stat.st_blocks.unsigned_abs(),
            atime_ns: ns(stat.st_atime, stat.st_atime_nsec),
            mtime_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
            ctime_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
        }
    }
}

/// Encodes a device number in the 32 bits of the protocol.
fn encode_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

impl FileMeta {
    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Returns whether both are the attributes of the same file of the host.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.dev, self.ino, self.file_type()) == (other.dev, other.ino, other.file_type())
    }

    pub(crate) fn stamp(&self) -> FileStamp {
        let Self { dev, ino, size, mtime_ns, ctime_ns, .. } = *self;
        FileStamp { dev, ino, size, mtime_ns, ctime_ns }
    }

    /// Returns the state for a trace. `target` is the text of a symbolic link.
    pub(crate) fn state(&self, owners: &OwnerMap, target: Option<&[u8]>) -> PathState {
        let (uid, gid) = (owners.on_disk(self.uid), owners.on_disk(self.gid));
        let mode = self.mode & 0o7777;
        match (self.file_type(), target) {
            (FileType::RegularFile, _) => PathState::File { mode, size: self.size, uid, gid },
            (FileType::Directory, _) => PathState::Directory { mode, uid, gid },
            (FileType::Symlink, Some(target)) => PathState::Link { target: target.to_vec(), uid, gid },
            _ => PathState::Other { mode: self.mode, uid, gid },
        }
    }
}

/// The user and the groups of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProcessIds {
    pub(crate) uid: u32,
    gid: u32,
    /// The supplementary groups.
    groups: Vec<u32>,
}

impl ProcessIds {
    pub(crate) fn of_this_process() -> Self {
        let groups = rustix::process::getgroups().unwrap_or_default();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
        }
    }

    /// Returns the attributes that the kernel gets. The user namespace of a step contains only one group. The kernel would
    /// therefore ignore that the step is also in the group of the file, and would refuse or permit what the host does not.
    /// In that case, the file appears to belong to the step's own group.
    pub(crate) fn shown_meta(&self, meta: &FileMeta) -> FileMeta {
        const READ_AND_SEARCH: u32 = 0o5;
        let differs = (meta.mode >> 3 ^ meta.mode) & READ_AND_SEARCH != 0;
        let is_member = meta.gid != self.gid && self.groups.contains(&meta.gid);
        let gid = if is_member && differs && meta.uid != self.uid { self.gid } else { meta.gid };
        FileMeta { gid, ..*meta }
    }
}

impl ProcessIds {
    /// Returns whether the mode and the owner of a directory permit this process to search it.
    pub(crate) fn may_search(&self, dir: &FileMeta) -> bool {
        const SEARCH: u32 = 0o1;
        let shift = if dir.uid == self.uid {
            6
        } else if dir.gid == self.gid || self.groups.contains(&dir.gid) {
            3
        } else {
            0
        };
        dir.mode >> shift & SEARCH != 0
    }
}

/// Returns the kind of a directory entry; `None` if the file system does not report it.
pub(crate) fn entry_kind(file_type: FileType) -> Option<EntryKind> {
    Some(match file_type {
        FileType::RegularFile => EntryKind::File,
        FileType::Directory => EntryKind::Directory,
        FileType::Symlink => EntryKind::Link,
        FileType::Fifo => EntryKind::Fifo,
        FileType::Socket => EntryKind::Socket,
        FileType::CharacterDevice => EntryKind::CharacterDevice,
        FileType::BlockDevice => EntryKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

/// The owners on the disk of an export whose mount maps owners. A trace contains the owners on the disk, because the
/// shown ones differ from run to run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerMap(pub Vec<IdRange>);

/// Consecutive user and group ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    /// The first id on the disk.
    pub on_disk: u32,
    /// The id under which the mount shows the owner.
    pub shown: u32,
    /// The number of ids.
    pub count: u32,
}

impl OwnerMap {
    fn on_disk(&self, shown: u32) -> u32 {
        let within = |range: &&IdRange| shown.checked_sub(range.shown).is_some_and(|offset| offset < range.count);
        self.0.iter().find(within).map_or(shown, |range| range.on_disk + (shown - range.shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl FileMeta {
        pub(crate) fn for_test() -> Self {
            let (dev, ino, mode, links) = (1, 2, 0o100_644, 1);
            let (uid, gid, device_number, size, blocks) = (3, 4, 0, 5, 8);
            Self {
                dev,
                ino,
                mode,
                links,
                uid,
                gid,
                device_number,
                size,
                blocks,
                atime_ns: 0,
                mtime_ns: -1,
                ctime_ns: 1,
            }
        }
    }

    #[test]
    fn returns_owners_on_disk() {
        let map = OwnerMap(vec![
            IdRange { on_disk: 0, shown: 5_000, count: 1 },
            IdRange { on_disk: 1, shown: 8_001, count: 99 },
        ]);
        let ids = [5_000, 8_001, 8_099, 8_100, 0, 65_534].map(|id| map.on_disk(id));
        assert_eq!(ids, [0, 1, 99, 8_100, 0, 65_534]);
        assert_eq!(OwnerMap::default().on_disk(7), 7);
    }

    #[test]
    fn shows_own_group_where_a_supplementary_group_decides() {
        let ids = ProcessIds { uid: 1_001, gid: 1_001, groups: vec![1_001, 27] };
        let shown = |mode, uid, gid| ids.shown_meta(&FileMeta { mode, uid, gid, ..FileMeta::for_test() }).gid;
        assert_eq!(shown(0o100_640, 0, 27), 1_001, "readable for the group only");
        assert_eq!(shown(0o100_604, 0, 27), 1_001, "readable for everyone but the group");
        assert_eq!(shown(0o100_664, 0, 27), 27, "a view is read-only");
        assert_eq!(shown(0o100_640, 1_001, 27), 27, "the owner's rights decide");
        assert_eq!(shown(0o100_640, 0, 28), 28, "not a member");
    }

    #[test]
    fn one_class_of_the_mode_decides_about_a_search() {
        let ids = ProcessIds { uid: 1_001, gid: 1_001, groups: vec![27] };
        let may = |mode, uid, gid| ids.may_search(&FileMeta { mode, uid, gid, ..FileMeta::for_test() });
        assert!(may(0o040_100, 1_001, 0) && !may(0o040_011, 1_001, 0), "the owner");
        assert!(may(0o040_010, 0, 1_001) && !may(0o040_701, 0, 1_001), "the group");
        assert!(may(0o040_010, 0, 27) && !may(0o040_701, 0, 27), "a supplementary group");
        assert!(may(0o040_001, 0, 0) && !may(0o040_770, 0, 0), "others");
    }

    #[test]
    fn describes_kinds() {
        let meta = FileMeta::for_test();
        assert_eq!(meta.state(&OwnerMap::default(), None), PathState::File { mode: 0o644, size: 5, uid: 3, gid: 4 });
        let fifo = FileMeta { mode: 0o010_600, ..meta };
        assert_eq!(fifo.state(&OwnerMap::default(), None), PathState::Other { mode: 0o010_600, uid: 3, gid: 4 });
    }
}
