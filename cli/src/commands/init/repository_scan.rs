//! Scans a repository for `proctor init`: file names, breadth first, and the content of the few files that matter. It
//! follows no links, opens only regular files and directories, and has a named constant for each of its bounds.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use proctor_core::adopt::init::{
    MAX_DEPTH, MAX_MARKER_BYTES, MAX_MARKERS, MAX_SCRIPT_BYTES, PROGRAMS, ReadScope, RepoScan, ScannedContent,
    is_searched, is_template, read_scope,
};
use proctor_runner::{Directory, StoreError};
use rustix::fs::{Access, AtFlags, Dir, FileType, accessat, statat};

use super::new_spec_file::store_error;
use crate::caller::Caller;
use crate::error::CliError;
use crate::text::escape_line;

/// Maximum number of scanned names, in total and in one directory.
const MAX_NAMES: usize = 100_000;
const MAX_NAMES_OF_ONE: usize = 20_000;

/// Scans a repository, and checks which programs the caller has.
///
/// # Errors
/// The top directory cannot be listed.
pub(super) fn scan_repository(repo: &Directory, caller: &Caller) -> Result<RepoScan, CliError> {
    let mut scan =
        RepositoryScan { tree: RepoScan::default(), scanned_names: 0, read_files: 0, queue: VecDeque::new() };
    scan.scan_directory(repo, "").map_err(|error| store_error(&error))?;
    while let Some(path) = scan.queue.pop_front() {
        let entered = repo.descend(&path).and_then(|directory| scan.scan_directory(&directory, &path));
        if let Err(error) = entered {
            scan.tree.add_note(escape_line(&error.to_string()), "the spec has no checks for its content");
        }
        if scan.scanned_names >= MAX_NAMES {
            scan.queue.clear();
            scan.tree.add_note(
                format!("the scan stopped after {MAX_NAMES} names"),
                "the spec may lack checks for files deep in the repository",
            );
        }
    }
    let mut tree = scan.tree;
    PROGRAMS.into_iter().filter(|name| has_program(caller, name)).for_each(|name| tree.add_program(name));
    Ok(tree)
}

struct RepositoryScan {
    tree: RepoScan,
    /// Number of names scanned so far.
    scanned_names: usize,
    /// Number of files read so far.
    read_files: usize,
    /// Directories to enter next.
    queue: VecDeque<String>,
}

impl RepositoryScan {
    fn scan_directory(&mut self, directory: &Directory, path: &str) -> Result<(), StoreError> {
        let (entries, is_all) = list_entries(directory)?;
        self.scanned_names += entries.len();
        if !is_all {
            let message = format!("`{}` has more than {MAX_NAMES_OF_ONE} names", escape_line(directory.name()));
            self.tree.add_note(message, "the spec ignores the rest of them");
        }
        for (name, kind) in entries {
            let Ok(name) = String::from_utf8(name) else { continue };
            let at = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            if kind == FileType::Directory {
                self.add_directory(at);
            } else {
                let content = self.read_content(directory, &name, &at, kind);
                self.tree.add_file(at, content);
            }
        }
        Ok(())
    }

    fn add_directory(&mut self, path: String) {
        let depth = path.split('/').count();
        if depth <= MAX_DEPTH && is_searched(&path) {
            self.queue.push_back(path.clone());
        }
        self.tree.add_directory(path);
    }

    fn read_content(&mut self, directory: &Directory, name: &str, path: &str, kind: FileType) -> ScannedContent {
        let how = read_scope(path);
        if how == ReadScope::Name {
            return ScannedContent::NameOnly;
        }
        match kind {
            FileType::RegularFile => {}
            FileType::Symlink => {
                return ScannedContent::Unreadable("is a symbolic link, which is not followed".to_owned());
            }
            _ => return ScannedContent::Unreadable("is not a regular file".to_owned()),
        }
        if self.read_files >= MAX_MARKERS {
            return ScannedContent::Unreadable(format!("is one of more than {MAX_MARKERS} files of its kind"));
        }
        self.read_files += 1;
        match how {
            ReadScope::Script => read_script(directory, name),
            ReadScope::Whole | ReadScope::Name => read_whole(directory, name),
        }
    }
}

/// A name in a directory with its file type.
type ScannedEntry = (Vec<u8>, FileType);

/// Returns the sorted names of a directory with their types, and whether the list is complete.
fn list_entries(directory: &Directory) -> Result<(Vec<ScannedEntry>, bool), StoreError> {
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
            return Ok((sort_entries(entries), false));
        }
        let kind = match entry.file_type() {
            // Some file systems do not report the type.
            FileType::Unknown => file_type(directory, name),
            kind => kind,
        };
        entries.push((name.to_owned(), kind));
    }
    Ok((sort_entries(entries), true))
}

fn sort_entries(mut entries: Vec<(Vec<u8>, FileType)>) -> Vec<(Vec<u8>, FileType)> {
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    entries
}

fn file_type(directory: &Directory, name: &[u8]) -> FileType {
    let name = Path::new(std::ffi::OsStr::from_bytes(name));
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    stat.map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
}

fn read_whole(directory: &Directory, name: &str) -> ScannedContent {
    match directory.read(name, MAX_MARKER_BYTES) {
        Ok(Some(bytes)) => match String::from_utf8(bytes) {
            Ok(text) => ScannedContent::Text(text),
            Err(_) => ScannedContent::Unreadable("is not UTF-8".to_owned()),
        },
        Ok(None) => ScannedContent::Unreadable("no longer exists".to_owned()),
        Err(StoreError::TooLarge { limit, .. }) => ScannedContent::Unreadable(format!("is larger than {limit} bytes")),
        Err(_) => ScannedContent::Unreadable("cannot be read".to_owned()),
    }
}

fn read_script(directory: &Directory, name: &str) -> ScannedContent {
    use std::io::Read as _;
    let Ok(Some(file)) = directory.open_file(name) else {
        return ScannedContent::Unreadable("cannot be read".to_owned());
    };
    let mut bytes = Vec::new();
    if file.take(MAX_SCRIPT_BYTES as u64).read_to_end(&mut bytes).is_err() {
        return ScannedContent::Unreadable("cannot be read".to_owned());
    }
    let text = String::from_utf8_lossy(&bytes).into_owned();
    if is_template(&text) { ScannedContent::Template } else { ScannedContent::Text(text) }
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
