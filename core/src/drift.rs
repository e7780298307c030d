//! What a step changed, path by path.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::digest::Sha256Hex;

/// How a changed path differs from what was there before the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was not there before.
    Created,
    /// Its content, or the target of the link, differs.
    Modified,
    /// It is gone.
    Deleted,
    /// Its executable bit differs, its content does not.
    ModeChanged,
    /// It is another kind of thing: a file that became a link, and so on.
    TypeChanged,
}

/// What stands at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A directory; only where it stands in place of something else.
    Directory,
    /// A submodule or nested repository, named by the commit that it is at.
    Gitlink,
    /// A fifo, socket or device.
    Special,
}

/// The identity of what stands at one path.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct Entry {
    /// What it is.
    pub kind: EntryKind,
    /// Whether its owner may execute it; `false` for all but files.
    pub executable: bool,
    /// The sha256 of the file's raw bytes, of the link's target, or of the gitlink's commit
    /// id in hex; of nothing for directories and special files.
    pub sha256: Sha256Hex,
}

/// One change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Change {
    /// The path relative to the repository; bytes that are not UTF-8 and control characters
    /// are written as `\xNN`, a backslash as `\\`.
    pub path: String,
    /// How it differs.
    pub kind: ChangeKind,
    /// What was there before, where something was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<Entry>,
    /// What is there now, where something is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<Entry>,
    /// The unified diff, or why there is none.
    pub diff: Diff,
}

/// A bounded unified diff.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Diff {
    /// The whole diff.
    Whole {
        /// Unified diff with `a/` and `b/` headers, escaped like a preview.
        text: String,
    },
    /// The first part of a diff that is larger than the bound.
    Truncated {
        /// The part that is kept, whole lines.
        text: String,
        /// How many lines were left out.
        omitted_lines: u64,
    },
    /// One side is not text.
    Binary,
    /// There is nothing to show: only the mode or the type differs.
    None,
    /// It was left out, because the bound for the whole step was reached or the content could
    /// not be read any more.
    Omitted {
        /// Why, as a phrase for people.
        reason: String,
    },
}

/// What one step changed that the plan does not allow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepDrift {
    /// The changes, by path; at most [`MAX_CHANGES`].
    pub changes: Vec<Change>,
    /// How many more there were.
    pub omitted: u64,
}

/// How many changes of one step are recorded; what is beyond is counted.
pub const MAX_CHANGES: usize = 1_000;
/// How many bytes of diff are recorded for one file.
pub const MAX_FILE_DIFF: usize = 16 << 10;
/// How many bytes of diff are recorded for one step.
pub const MAX_STEP_DIFF: usize = 128 << 10;

impl StepDrift {
    /// Whether the step changed nothing that it must not.
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.omitted == 0
    }
}

/// How the drift of a step was found. Whatever the way, what is found is compared with the same
/// hashes of the tree before the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DriftMethod {
    /// Read off the overlay's upper directory, which the kernel wrote.
    Layer,
    /// The step had a copy of the tree. What differs there from a record of each file's inode,
    /// size, mode and times before the step was hashed.
    Stat,
    /// The step had a copy of the tree, on a file system whose times do not tell of every change:
    /// each file was hashed before the step and after it.
    Rehash,
}

/// Whether a file system of this kind (`f_type` of statfs(2), linux/magic.h) sets a file's `st_ctime`
/// whenever its content changes, so that equal stat data mean equal content: those with a
/// `page_mkwrite` of their own that does it for writes through a mapping, on a disk of this
/// machine.
///
/// Not tmpfs: there a page of a shared mapping that was read first is written later without
/// anybody's notice. Not overlayfs, whose layers can lie on one; not those whose times somebody
/// else sets, as NFS, 9p and FUSE.
pub fn times_tell_of_changes(f_type: u64) -> bool {
    const EXT2_TO_4: u64 = 0xEF53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683E;
    const F2FS: u64 = 0xF2F5_2010;
    matches!(f_type, EXT2_TO_4 | XFS | BTRFS | F2FS)
}

/// Whether a path holds evidence of ours, which is never drift and no part of a snapshot:
/// `changes/<id>/verify/…` and `changes/<id>/05-status.json`. `path` is relative to the
/// repository, components separated by `/`.
pub fn is_our_artifact(path: &[u8]) -> bool {
    let mut parts = path.splitn(4, |b| *b == b'/');
    let (Some(b"changes"), Some(id), Some(third)) = (parts.next(), parts.next(), parts.next()) else {
        return false;
    };
    let id_is_valid = std::str::from_utf8(id).is_ok_and(|id| crate::names::ChangesetId::new(id).is_ok());
    match (third, parts.next()) {
        (b"verify", Some(rest)) => id_is_valid && !rest.is_empty(),
        (b"05-status.json", None) => id_is_valid,
        _ => false,
    }
}

/// A path as text for documents and screens: bytes that are not UTF-8 and control characters
/// become `\xNN`, a backslash `\\`.
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
    fn only_our_own_files_are_our_artifacts() {
        for ours in ["changes/009_x/verify/a.json", "changes/a/verify/b/c", "changes/a/05-status.json"] {
            assert!(is_our_artifact(ours.as_bytes()), "{ours}");
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
            assert!(!is_our_artifact(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn paths_are_shown_without_control_characters() {
        assert_eq!(display_path(b"a\nb\\\xff\x1b[0m"), "a\\x0ab\\\\\\xff\\x1b[0m");
        assert_eq!(display_path("ä".as_bytes()), "ä");
    }
}
