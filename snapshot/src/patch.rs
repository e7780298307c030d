//! Writes the changes of layers as a patch that `git apply` accepts, in git's extended diff format (git-diff(1),
//! "Generating patch text with -p").
//!
//! A patch is complete or not written at all. A change that the format cannot express is an error that names the
//! path.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;

use proctor_core::model::drift::{Entry, EntryKind, display_path};
use proctor_core::text::digest::Sha256Hex;
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices, group_diff_ops};

use crate::tree_view::{PathState, TreeView};
use proctor_git::files::paths;
use proctor_git::files::read_beneath;
use proctor_git::object::object_id::{ObjectKind, object_id};

mod binary_patch;
mod name_quoting;

use self::name_quoting::quote_name;

/// The largest file in a patch, in bytes.
const MAX_FILE: u64 = 32 << 20;
/// The largest patch, in bytes.
const MAX_PATCH: usize = 64 << 20;
/// Maximum number of differing lines, on both sides together, before they are written as one replacement.
const MAX_LINES: usize = 10_000;
/// Number of context lines around a change.
const CONTEXT: usize = 3;

/// The inputs of [`patch`].
#[derive(Debug, Clone, Copy)]
pub struct PatchInput<'a> {
    /// The tree without layers.
    pub before: &'a TreeView,
    /// The tree with all layers.
    pub after: &'a TreeView,
    /// The top of the tree without layers.
    pub repo: BorrowedFd<'a>,
    /// The upper directories of the layers, newest first.
    pub uppers: &'a [BorrowedFd<'a>],
}

/// The reason why a change cannot be written as a patch.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// Git cannot store the old or new entry at a path.
    #[error("`{path}` {problem}")]
    Inexpressible {
        /// The path, in human-readable form.
        path: String,
        /// The reason.
        problem: &'static str,
    },
    /// The patch is too large.
    #[error("the patch has more than {} MiB at `{path}`", MAX_PATCH >> 20)]
    TooLarge {
        /// The path at which the bound was exceeded.
        path: String,
    },
}

/// Writes a patch of all covered paths that differ; it is empty if none differs.
///
/// # Errors
/// A change cannot be expressed, its content is no longer available, or the patch is too large.
pub fn patch(input: PatchInput<'_>) -> Result<Vec<u8>, PatchError> {
    let mut text = Vec::new();
    for path in input.after.difference(input.before.base()) {
        let writer = FilePatch { input, path: &path };
        writer.write_change(&mut text)?;
        if text.len() > MAX_PATCH {
            return Err(PatchError::TooLarge { path: display_path(&path) });
        }
    }
    Ok(text)
}

/// One side of a change.
#[derive(Debug, PartialEq, Eq)]
struct PatchSide {
    mode: &'static str,
    content: Vec<u8>,
}

struct FilePatch<'a> {
    input: PatchInput<'a>,
    path: &'a [u8],
}

impl FilePatch<'_> {
    fn inexpressible(&self, problem: &'static str) -> PatchError {
        PatchError::Inexpressible { path: display_path(self.path), problem }
    }

    fn write_change(&self, text: &mut Vec<u8>) -> Result<(), PatchError> {
        if self.is_in_nested_repository() {
            return Err(self.inexpressible("is in a nested repository, which a patch of this one cannot change"));
        }
        let before = self.read_side(self.input.before, &[self.input.repo])?;
        let places: Vec<BorrowedFd<'_>> = self.input.uppers.iter().copied().chain([self.input.repo]).collect();
        let after = self.read_side(self.input.after, &places)?;
        match (&before, &after) {
            (Some(old), Some(new)) if file_type(old) != file_type(new) => {
                self.write_file_change(Some(old), None, text);
                self.write_file_change(None, Some(new), text);
            }
            _ => self.write_file_change(before.as_ref(), after.as_ref(), text),
        }
        Ok(())
    }

    /// Checks whether a parent directory of the path is a repository, before or after the changes.
    fn is_in_nested_repository(&self) -> bool {
        let is_repository = |view: &TreeView, path: &[u8]| matches!(view.path_state(path), PathState::Entry(entry) if entry.kind == EntryKind::Gitlink);
        let [before, after] = [self.input.before, self.input.after];
        paths::ancestors(self.path).any(|above| is_repository(before, above) || is_repository(after, above))
    }

    fn read_side(&self, view: &TreeView, directories: &[BorrowedFd<'_>]) -> Result<Option<PatchSide>, PatchError> {
        let entry = match view.path_state(self.path) {
            PathState::Absent | PathState::Uncovered | PathState::Directory => return Ok(None),
            PathState::Entry(entry) => entry,
            _ => return Err(self.inexpressible("is a file that was too large to be read")),
        };
        let mode = match (entry.kind, entry.executable) {
            (EntryKind::File, false) => "100644",
            (EntryKind::File, true) => "100755",
            (EntryKind::Symlink, _) => "120000",
            (EntryKind::Gitlink, _) => return Err(self.inexpressible("is, or was, a nested repository")),
            (EntryKind::Special, _) => {
                return Err(self.inexpressible("is a fifo, socket or device, which git cannot store"));
            }
            (EntryKind::Directory, _) => return Ok(None),
        };
        let content = self.read_content(&entry, directories)?;
        Ok(Some(PatchSide { mode, content }))
    }

    /// Returns the content from the first directory that still has exactly these bytes.
    fn read_content(&self, entry: &Entry, directories: &[BorrowedFd<'_>]) -> Result<Vec<u8>, PatchError> {
        let read = |place: &BorrowedFd<'_>| read_beneath::read_content(*place, self.path, MAX_FILE).ok().flatten();
        let found =
            directories.iter().find_map(|place| read(place).filter(|bytes| Sha256Hex::digest(bytes) == entry.sha256));
        found.ok_or_else(|| self.inexpressible("has more than 32 MiB, or was changed after it was read"))
    }

    /// Returns git's object id of a content, or zeros for a missing side.
    fn id(&self, side: Option<&PatchSide>) -> String {
        let id = |content: &[u8]| {
            object_id(self.input.before.base().git.object_format, ObjectKind::Blob, content).to_string()
        };
        match side {
            Some(side) => id(&side.content),
            None => "0".repeat(id(b"").len()),
        }
    }

    /// Writes the change of one file or link. `None` on one side means that the file is created or deleted.
    fn write_file_change(&self, old: Option<&PatchSide>, new: Option<&PatchSide>, text: &mut Vec<u8>) {
        let (a, b) = (quote_name(b"a/", self.path), quote_name(b"b/", self.path));
        let mut line = |parts: &[&[u8]]| {
            parts.iter().for_each(|part| text.extend_from_slice(part));
            text.push(b'\n');
        };
        line(&[b"diff --git ", &a, b" ", &b]);
        match (old, new) {
            (Some(old), None) => line(&[b"deleted file mode ", old.mode.as_bytes()]),
            (None, Some(new)) => line(&[b"new file mode ", new.mode.as_bytes()]),
            (Some(old), Some(new)) if old.mode != new.mode => {
                line(&[b"old mode ", old.mode.as_bytes()]);
                line(&[b"new mode ", new.mode.as_bytes()]);
            }
            _ => {}
        }
        let contents = [old, new].map(|side| side.map_or(&b""[..], |side| &side.content));
        if contents[0] == contents[1] && old.is_some() && new.is_some() {
            return;
        }
        let [old_id, new_id] = [old, new].map(|side| self.id(side));
        let same_mode = old.zip(new).filter(|(old, new)| old.mode == new.mode).map(|(old, _)| format!(" {}", old.mode));
        let same_mode = same_mode.unwrap_or_default();
        line(&[b"index ", old_id.as_bytes(), b"..", new_id.as_bytes(), same_mode.as_bytes()]);
        if contents.iter().any(|content| content.contains(&0)) {
            binary_patch::write_binary_patch(contents, text);
        } else if contents[0] != contents[1] {
            let dev_null = b"/dev/null".to_vec();
            line(&[b"--- ", old.map_or(&dev_null, |_| &a)]);
            line(&[b"+++ ", new.map_or(&dev_null, |_| &b)]);
            write_hunks(contents, text);
        }
    }
}

/// Returns the file type of an entry: the first half of its mode.
fn file_type(side: &PatchSide) -> &'static str {
    &side.mode[..3]
}

fn write_hunks([old, new]: [&[u8]; 2], text: &mut Vec<u8>) {
    let (a, b) = (lines(old), lines(new));
    for hunk in group_diff_ops(edit_script(&a, &b), CONTEXT) {
        let (Some(first), Some(last)) = (hunk.first(), hunk.last()) else { continue };
        let (from, to) = (first.old_range().start..last.old_range().end, first.new_range().start..last.new_range().end);
        text.extend_from_slice(format!("@@ -{} +{} @@\n", hunk_range(&from), hunk_range(&to)).as_bytes());
        for op in hunk {
            match op.tag() {
                DiffTag::Equal => push_lines(text, b' ', &a[op.old_range()]),
                _ => {
                    push_lines(text, b'-', &a[op.old_range()]);
                    push_lines(text, b'+', &b[op.new_range()]);
                }
            }
        }
    }
}

fn lines(content: &[u8]) -> Vec<&[u8]> {
    content.split_inclusive(|byte| *byte == b'\n').collect()
}

/// Returns the shortest edit script, or one replacement if finding it would take too long.
fn edit_script(a: &[&[u8]], b: &[&[u8]]) -> Vec<DiffOp> {
    // Lines are replaced by numbers, so that each long line is compared only once.
    let mut numbers = BTreeMap::new();
    let mut number = |line: &&[u8]| {
        let next = numbers.len();
        *numbers.entry(line.to_vec()).or_insert(next)
    };
    let (a, b): (Vec<usize>, Vec<usize>) = (a.iter().map(&mut number).collect(), b.iter().map(&mut number).collect());
    let before = a.iter().zip(&b).take_while(|(a, b)| a == b).count();
    let (rest_a, rest_b) = (&a[before..], &b[before..]);
    let after = rest_a.iter().rev().zip(rest_b.iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_len, new_len) = (rest_a.len() - after, rest_b.len() - after);
    if old_len + new_len <= MAX_LINES {
        return capture_diff_slices(Algorithm::Myers, &a, &b);
    }
    vec![
        DiffOp::Equal { old_index: 0, new_index: 0, len: before },
        DiffOp::Replace { old_index: before, old_len, new_index: before, new_len },
        DiffOp::Equal { old_index: before + old_len, new_index: before + new_len, len: after },
    ]
}

/// Formats a range for a unified diff: lines count from one, and an empty range names the line before it.
fn hunk_range(range: &std::ops::Range<usize>) -> String {
    match range.len() {
        0 => format!("{},0", range.start),
        1 => (range.start + 1).to_string(),
        count => format!("{},{count}", range.start + 1),
    }
}

fn push_lines(text: &mut Vec<u8>, sign: u8, lines: &[&[u8]]) {
    for line in lines {
        text.push(sign);
        text.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            text.extend_from_slice(b"\n\\ No newline at end of file\n");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_hunks_as_unified_diff() {
        let mut text = Vec::new();
        write_hunks([b"1\n2\n3\n4\n5\n6\n", b"1\n2\n3\n4\nfive\n6"], &mut text);
        let expected = "@@ -2,5 +2,5 @@\n 2\n 3\n 4\n-5\n-6\n+five\n+6\n\\ No newline at end of file\n";
        assert_eq!(String::from_utf8_lossy(&text), expected);
        text.clear();
        write_hunks([b"", b"\xff\r\n"], &mut text);
        assert_eq!(text, b"@@ -0,0 +1 @@\n+\xff\r\n");
    }
}
