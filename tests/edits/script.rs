//! Generates random edits of a small tree. An edit that fails is skipped, and the script continues.

use std::os::fd::BorrowedFd;

use proptest::prelude::*;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, Timespec, Timestamps, UTIME_NOW, chmodat, linkat, mkdirat, mknodat,
    openat, renameat, renameat_with, symlinkat, unlinkat, utimensat,
};
use rustix::io::Errno;

/// Names that paths are made of. Git ignores `ign/` and `*.log`.
pub(crate) const PATH_NAMES: [&str; 5] = ["a", "b", "ign", "c.log", "d"];
/// Maximum number of names in a path.
pub(crate) const MAX_DEPTH: usize = 3;
/// Contents of initial and written files; two have the same size.
pub(crate) const CONTENTS: [&str; 5] = ["first\n", "FIRST\n", "", "second line\n", "x"];

/// An edit.
#[derive(Debug, Clone)]
pub(crate) enum TreeEdit {
    Write(String, &'static str),
    Append(String),
    Truncate(String, u64),
    Remove(String),
    Directory(String),
    Rename(String, String),
    Exchange(String, String),
    Link(String, String),
    Symlink(String, &'static str),
    Chmod(String, u32),
    Fifo(String),
    Touch(String),
}

/// The edits of one step.
pub(crate) type EditScript = Vec<TreeEdit>;

/// Generates scripts of up to a dozen edits.
pub(crate) fn edit_scripts() -> impl Strategy<Value = EditScript> {
    prop::collection::vec(random_edit(), 1..12)
}

fn random_path() -> impl Strategy<Value = String> {
    prop::collection::vec(prop::sample::select(&PATH_NAMES[..]), 1..=MAX_DEPTH).prop_map(|names| names.join("/"))
}

fn random_edit() -> impl Strategy<Value = TreeEdit> {
    let content = prop::sample::select(&CONTENTS[..]);
    let mode = prop::sample::select(&[0o644, 0o755, 0o600, 0o000, 0o700][..]);
    prop_oneof![
        4 => (random_path(), content).prop_map(|(path, content)| TreeEdit::Write(path, content)),
        1 => random_path().prop_map(TreeEdit::Append),
        1 => (random_path(), 0..8_u64).prop_map(|(path, length)| TreeEdit::Truncate(path, length)),
        3 => random_path().prop_map(TreeEdit::Remove),
        2 => random_path().prop_map(TreeEdit::Directory),
        3 => (random_path(), random_path()).prop_map(|(from, to)| TreeEdit::Rename(from, to)),
        1 => (random_path(), random_path()).prop_map(|(from, to)| TreeEdit::Exchange(from, to)),
        1 => (random_path(), random_path()).prop_map(|(from, to)| TreeEdit::Link(from, to)),
        1 => (random_path(), prop::sample::select(&["a", "b", "ign/kept", "nowhere"][..])).prop_map(|(path, to)| TreeEdit::Symlink(path, to)),
        2 => (random_path(), mode).prop_map(|(path, mode)| TreeEdit::Chmod(path, mode)),
        1 => random_path().prop_map(TreeEdit::Fifo),
        1 => random_path().prop_map(TreeEdit::Touch),
    ]
}

impl TreeEdit {
    /// Performs the edit below `top`.
    pub(crate) fn apply(&self, top: BorrowedFd<'_>) -> Result<(), Errno> {
        match self {
            Self::Write(path, content) => write_file(top, path, OFlags::TRUNC, content),
            Self::Append(path) => write_file(top, path, OFlags::APPEND, "more\n"),
            Self::Truncate(path, length) => {
                let flags = OFlags::WRONLY | OFlags::NONBLOCK;
                rustix::fs::ftruncate(openat(top, path, flags, Mode::empty())?, *length)
            }
            Self::Remove(path) => remove_recursively(top, path),
            Self::Directory(path) => mkdirat(top, path, Mode::from_raw_mode(0o755)),
            Self::Rename(from, to) => renameat(top, from, top, to),
            Self::Exchange(from, to) => renameat_with(top, from, top, to, RenameFlags::EXCHANGE),
            Self::Link(from, to) => linkat(top, from, top, to, AtFlags::empty()),
            Self::Symlink(path, target) => symlinkat(*target, top, path),
            Self::Chmod(path, mode) => chmodat(top, path, Mode::from_raw_mode(*mode), AtFlags::empty()),
            Self::Fifo(path) => mknodat(top, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0),
            Self::Touch(path) => {
                let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
                let times = Timestamps { last_access: now, last_modification: now };
                utimensat(top, path, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
    }
}

fn write_file(top: BorrowedFd<'_>, path: &str, extra_flags: OFlags, content: &str) -> Result<(), Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NONBLOCK | extra_flags;
    let file = openat(top, path, flags, Mode::from_raw_mode(0o644))?;
    rustix::io::write(&file, content.as_bytes()).map(drop)
}

fn remove_recursively(top: BorrowedFd<'_>, path: &str) -> Result<(), Errno> {
    match unlinkat(top, path, AtFlags::empty()) {
        Err(Errno::ISDIR) => {}
        other => return other,
    }
    let dir = openat(top, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    for entry in rustix::fs::Dir::read_from(&dir)?.flatten() {
        let name = entry.file_name().to_str().expect("names of ours");
        if !matches!(name, "." | "..") {
            remove_recursively(top, &format!("{path}/{name}"))?;
        }
    }
    unlinkat(top, path, AtFlags::REMOVEDIR)
}
