//! Scans a repository for `proctor init`: file names, breadth first, and the content of the few files that matter. It
//! follows no links, opens only regular files and directories, and has a named constant for each of its bounds.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::init::{Content, MAX_DEPTH, MAX_MARKER, MAX_MARKERS, PROGRAMS, Reading, Tree, is_entered, reading};
use proctor_runner::{Directory, StoreError};
use rustix::fs::{Access, AtFlags, Dir, FileType, accessat, statat};

use super::place::refused;
use crate::caller::Caller;
use crate::error::CliError;
use crate::text::shown_line;

/// Maximum number of scanned names, in total and in one directory.
const MAX_NAMES: usize = 100_000;
const MAX_NAMES_OF_ONE: usize = 20_000;
/// Bytes of a file that are read to find its first line.
const FIRST_LINE: usize = 256;

/// Scans a repository, and checks which programs the caller has.
///
/// # Errors
/// The top directory cannot be listed.
pub(super) fn walk(repo: &Directory, caller: &Caller) -> Result<Tree, CliError> {
    let mut walk = Walk { tree: Tree::default(), names: 0, read: 0, queue: VecDeque::new() };
    walk.enter(repo, "").map_err(|error| refused(&error))?;
    while let Some(path) = walk.queue.pop_front() {
        let entered = repo.descend(&path).and_then(|directory| walk.enter(&directory, &path));
        if let Err(error) = entered {
            walk.tree.add_note(shown_line(&error.to_string()), "what lies in it is not in the spec");
        }
        if walk.names >= MAX_NAMES {
            walk.queue.clear();
            walk.tree.add_note(
                format!("the scan stopped after {MAX_NAMES} names"),
                "the spec may lack checks for files deep in the repository",
            );
        }
    }
    let mut tree = walk.tree;
    PROGRAMS.into_iter().filter(|name| has_program(caller, name)).for_each(|name| tree.add_program(name));
    Ok(tree)
}

struct Walk {
    tree: Tree,
    /// Number of names scanned so far.
    names: usize,
    /// Number of files read so far.
    read: usize,
    /// Directories to enter next.
    queue: VecDeque<String>,
}

impl Walk {
    fn enter(&mut self, directory: &Directory, path: &str) -> Result<(), StoreError> {
        let (entries, is_all) = entries(directory)?;
        self.names += entries.len();
        if !is_all {
            let message = format!("`{}` has more than {MAX_NAMES_OF_ONE} names", shown_line(directory.name()));
            self.tree.add_note(message, "the spec ignores the rest of them");
        }
        for (name, kind) in entries {
            let Ok(name) = String::from_utf8(name) else { continue };
            let at = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            if kind == FileType::Directory {
                self.add_directory(at);
            } else {
                let content = self.content(directory, &name, &at, kind);
                self.tree.add_file(at, content);
            }
        }
        Ok(())
    }

    fn add_directory(&mut self, path: String) {
        let depth = path.split('/').count();
        if depth <= MAX_DEPTH && is_entered(&path) {
            self.queue.push_back(path.clone());
        }
        self.tree.add_directory(path);
    }

    fn content(&mut self, directory: &Directory, name: &str, path: &str, kind: FileType) -> Content {
        let how = reading(path);
        if how == Reading::Name {
            return Content::Name;
        }
        match kind {
            FileType::RegularFile => {}
            FileType::Symlink => return Content::Unread("is a symbolic link, which is not followed".to_owned()),
            _ => return Content::Unread("is not a regular file".to_owned()),
        }
        if self.read >= MAX_MARKERS {
            return Content::Unread(format!("is one of more than {MAX_MARKERS} files of its kind"));
        }
        self.read += 1;
        match how {
            Reading::FirstLine => first_line(directory, name),
            Reading::Whole | Reading::Name => whole(directory, name),
        }
    }
}

/// A name in a directory with its file type.
type Named = (Vec<u8>, FileType);

/// Returns the sorted names of a directory with their types, and whether the list is complete.
fn entries(directory: &Directory) -> Result<(Vec<Named>, bool), StoreError> {
    let failed = |errno: rustix::io::Errno| {
        let path = directory.name().to_owned();
        StoreError::Io { action: "list", path, source: errno.into() }
    };
    let mut entries = Vec::new();
    for entry in Dir::read_from(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        if entries.len() == MAX_NAMES_OF_ONE {
            return Ok((sorted(entries), false));
        }
        let kind = match entry.file_type() {
            // Some file systems do not report the type.
            FileType::Unknown => kind_of(directory, name),
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    Ok((sorted(entries), true))
}

fn sorted(mut entries: Vec<(Vec<u8>, FileType)>) -> Vec<(Vec<u8>, FileType)> {
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    entries
}

fn kind_of(directory: &Directory, name: &[u8]) -> FileType {
    let name = Path::new(std::ffi::OsStr::from_bytes(name));
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

fn whole(directory: &Directory, name: &str) -> Content {
    match directory.read(name, MAX_MARKER) {
        Ok(Some(bytes)) => match String::from_utf8(bytes) {
            Ok(text) => Content::Text(text),
            Err(_) => Content::Unread("is not UTF-8".to_owned()),
        },
        Ok(None) => Content::Unread("has gone away".to_owned()),
        Err(StoreError::TooLarge { limit, .. }) => Content::Unread(format!("is larger than {limit} bytes")),
        Err(_) => Content::Unread("cannot be read".to_owned()),
    }
}

fn first_line(directory: &Directory, name: &str) -> Content {
    use std::io::Read as _;
    let Ok(Some(file)) = directory.open_file(name) else { return Content::Unread("cannot be read".to_owned()) };
    let mut bytes = Vec::new();
    if file.take(FIRST_LINE as u64).read_to_end(&mut bytes).is_err() {
        return Content::Unread("cannot be read".to_owned());
    }
    let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Content::Text(String::from_utf8_lossy(line).into_owned())
}

/// Checks whether a program is in the caller's `PATH`. The program is not started; the toolchain checks of a run ask
/// for its version inside the sandbox.
fn has_program(caller: &Caller, name: &str) -> bool {
    let path = caller.var("PATH").unwrap_or_default();
    path.split(':').filter(|dir| dir.starts_with('/')).any(|dir| {
        let file = Path::new(dir).join(name);
        file.is_file() && accessat(rustix::fs::CWD, &file, Access::EXEC_OK, AtFlags::empty()).is_ok()
    })
}
