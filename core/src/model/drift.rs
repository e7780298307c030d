//! The changes of a step, path by path.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::digest::Sha256Hex;
use crate::text::humanize::count;

/// The kind of a change, relative to the tree before the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// The path did not exist before.
    Created,
    /// The content of the file or the target of the link differs.
    Modified,
    /// The path no longer exists.
    Deleted,
    /// Only the executable bit differs.
    ModeChanged,
    /// The path has a different type, for example a link instead of a file.
    TypeChanged,
}

/// The type of the entry at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A directory; recorded only if it replaced something else.
    Directory,
    /// A submodule or nested repository, identified by its commit.
    Gitlink,
    /// A fifo, socket or device.
    Special,
}

/// The identity of the entry at a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// The type of the entry.
    pub kind: EntryKind,
    /// True if its owner may execute it; `false` for everything but files.
    pub executable: bool,
    /// The sha256 of the file's raw bytes, of the link's target, or of the gitlink's commit id in hex. For
    /// directories and special files, the sha256 of no bytes.
    pub sha256: Sha256Hex,
}

/// A change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The path relative to the repository. Bytes that are not UTF-8 and control characters are written as `\xNN`,
    /// a backslash as `\\`.
    pub path: String,
    /// The kind of the change.
    pub kind: ChangeKind,
    /// The entry before the step, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Entry>,
    /// The entry after the step, if there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Entry>,
    /// The unified diff, or the reason why it is missing.
    pub diff: Diff,
}

/// A bounded unified diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Diff {
    /// The complete diff.
    Whole {
        /// Unified diff with `a/` and `b/` headers, escaped like a preview.
        text: String,
    },
    /// The first part of a diff that exceeds the limit.
    Truncated {
        /// The beginning of the diff, in whole lines.
        text: String,
        /// The number of lines that were left out.
        omitted_lines: u64,
    },
    /// One side is not text.
    Binary,
    /// There is no diff: only the mode or the type differs.
    None,
    /// The diff was left out, because the step's diffs reached their limit or the content was no longer readable.
    Omitted {
        /// The reason, as a human-readable phrase.
        reason: String,
    },
}

/// The changes of a step that the plan does not allow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepDrift {
    /// The changes, ordered by path; at most [`MAX_CHANGES`].
    pub changes: Vec<Change>,
    /// The number of further changes.
    pub omitted: u64,
}

/// Maximum number of changes of a step that are recorded; further ones are only counted.
pub const MAX_CHANGES: usize = 1_000;
/// Maximum size of the recorded diff of one file, in bytes.
pub const MAX_FILE_DIFF: usize = 16 << 10;
/// Maximum size of the recorded diffs of one step, in bytes.
pub const MAX_STEP_DIFF: usize = 128 << 10;

impl StepDrift {
    /// Returns the changes in the order of display: changes of files that existed before the step, then new files.
    pub fn changes_for_display(&self) -> impl Iterator<Item = &Change> {
        let is_new = |change: &&Change| change.kind == ChangeKind::Created;
        let existing = self.changes.iter().filter(move |change| !is_new(change));
        existing.chain(self.changes.iter().filter(is_new))
    }

    /// Returns a phrase with the number of changes of each kind: `modified 1 file, created 13`.
    pub fn summary(&self) -> String {
        const ORDER: [(ChangeKind, &str); 5] = [
            (ChangeKind::Modified, "modified"),
            (ChangeKind::Deleted, "deleted"),
            (ChangeKind::ModeChanged, "changed the mode of"),
            (ChangeKind::TypeChanged, "changed the type of"),
            (ChangeKind::Created, "created"),
        ];
        let number = |kind| self.changes.iter().filter(|change| change.kind == kind).count();
        let counted = ORDER.iter().map(|(kind, verb)| (number(*kind), verb)).filter(|(number, _)| *number > 0);
        let mut parts: Vec<String> = Vec::new();
        for (number, verb) in counted {
            let number = if parts.is_empty() { count(number, "file") } else { number.to_string() };
            parts.push(format!("{verb} {number}"));
        }
        match (self.omitted, parts.is_empty()) {
            (0, _) => {}
            (omitted, true) => parts.push(format!("changed {omitted} files")),
            (omitted, false) => parts.push(format!("changed {omitted} more")),
        }
        parts.join(", ")
    }

    /// Returns whether the step made no forbidden changes.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.omitted == 0
    }
}

/// The method that detected the changes of a step. Every method compares with the same hashes of the tree before
/// the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftMethod {
    /// Reads the overlay's upper directory, which the kernel wrote.
    Layer,
    /// Compares the step's copy of the tree with recorded inodes, sizes, modes and times of the files, and hashes
    /// those that differ.
    Stat,
    /// Hashes each file of the step's copy before and after the step, because the times of the file system do not
    /// change with every write.
    Rehash,
}

/// Returns whether a file system (`f_type` of statfs(2), linux/magic.h) sets a file's `st_ctime` on every change of
/// its content, so that equal stat data mean equal content. These are local file systems whose own `page_mkwrite`
/// updates the time for writes through a mapping.
///
/// Not tmpfs: if a page of a shared mapping was read first, a later write to it goes unnoticed. Not overlayfs,
/// whose layers can be on a tmpfs. Not NFS, 9p and FUSE, whose times are set by a server or a user program.
pub fn ctime_detects_all_changes(f_type: u64) -> bool {
    const EXT2_TO_4: u64 = 0xEF53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683E;
    const F2FS: u64 = 0xF2F5_2010;
    matches!(f_type, EXT2_TO_4 | XFS | BTRFS | F2FS)
}

/// Returns whether the stamp of a file that steps only read shows a change of its content, some time after the change.
/// In addition to the file systems of [`ctime_detects_all_changes`], these are ZFS and bcachefs, which set the time
/// when they write a page, overlayfs, with which containers show their programs, and [images](is_image_file_system), as
/// long as the same image is mounted.
///
/// Not tmpfs: a write through a mapping never sets a time. Not network file systems and FUSE: the kernel does not
/// notice a change by another machine or by the server until it asks for the attributes again.
pub fn stamp_detects_settled_changes(f_type: u64) -> bool {
    const OVERLAYFS: u64 = 0x794C_7630;
    const ZFS: u64 = 0x2FC1_2FC1;
    const BCACHEFS: u64 = 0xCA45_1A4E;
    let sets_times = ctime_detects_all_changes(f_type) || matches!(f_type, OVERLAYFS | ZFS | BCACHEFS);
    sets_times || is_image_file_system(f_type)
}

/// Returns whether a file system shows a read-only image, whose author chose the times of its files. An image that is
/// mounted later can have the same device, inodes, sizes and times, but different content.
pub fn is_image_file_system(f_type: u64) -> bool {
    const SQUASHFS: u64 = 0x7371_7368;
    const EROFS: u64 = 0xE0F5_E1E2;
    const ISO9660: u64 = 0x9660;
    const CRAMFS: u64 = 0x28CD_3D45;
    const ROMFS: u64 = 0x7275;
    matches!(f_type, SQUASHFS | EROFS | ISO9660 | CRAMFS | ROMFS)
}

/// Returns whether a path belongs to our own evidence, which is never drift and not part of a snapshot:
/// `changes/<id>/verify/…` and `changes/<id>/05-status.json`. `path` is relative to the repository, with components
/// separated by `/`.
pub fn is_evidence_path(path: &[u8]) -> bool {
    let mut parts = path.splitn(4, |b| *b == b'/');
    let (Some(b"changes"), Some(id), Some(third)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let id_is_valid = std::str::from_utf8(id).is_ok_and(|id| crate::model::names::ChangesetId::new(id).is_ok());
    match (third, parts.next()) {
        (b"verify", Some(rest)) => id_is_valid && !rest.is_empty(),
        (b"05-status.json", None) => id_is_valid,
        _ => false,
    }
}

/// Formats a path for documents and screens: bytes that are not UTF-8 and control characters become `\xNN`, a
/// backslash becomes `\\`.
pub fn display_path(path: &[u8]) -> String {
    let mut text = String::with_capacity(path.len());
    for chunk in path.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => text.push_str("\\\\"),
                c if c.is_control() => c.to_string().bytes().for_each(|b| push_hex(&mut text, b)),
                c => text.push(c),
            }
        }
        chunk.invalid().iter().for_each(|b| push_hex(&mut text, *b));
    }
    text
}

fn push_hex(text: &mut String, byte: u8) {
    text.push_str(&format!("\\x{byte:02x}"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_trusted_only_where_each_change_sets_a_time() {
        let (ext4, overlayfs, tmpfs, nfs, fuse) = (0xEF53, 0x794C_7630, 0x0102_1994, 0x6969, 0x6573_5546);
        let trusted = [ext4, overlayfs, tmpfs, nfs, fuse].map(stamp_detects_settled_changes);
        assert_eq!(trusted, [true, true, false, false, false]);
        assert_eq!([ext4, overlayfs, tmpfs].map(ctime_detects_all_changes), [true, false, false]);
    }

    #[test]
    fn recognizes_only_evidence_paths() {
        for ours in ["changes/009_x/verify/a.json", "changes/a/verify/b/c", "changes/a/05-status.json"] {
            assert!(is_evidence_path(ours.as_bytes()), "{ours}");
        }
        let others = [
            "changes/a/verify",
            "changes/a/00-meta.json",
            "changes/../verify/a",
            "changes/a/05-status.json/x",
            "x/changes/a/05-status.json",
            "changes/a..b/05-status.json",
            "changes/a/verify/",
        ];
        for other in others {
            assert!(!is_evidence_path(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn escapes_control_characters_in_paths() {
        assert_eq!(display_path(b"a\nb\\\xff\x1b[0m"), "a\\x0ab\\\\\\xff\\x1b[0m");
        assert_eq!(display_path("ä".as_bytes()), "ä");
    }
}
