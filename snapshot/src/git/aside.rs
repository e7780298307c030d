//! Ignore rules that are no part of the tree: `info/exclude` of the repository and of those inside it,
//! and what `core.excludesFile` of its config names. Whoever changes them while a run is under way
//! changes what counts as new, so they are compared at its end.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use proctor_core::digest::Sha256Hex;
use proctor_core::drift::EntryKind;

use super::config::gitfile_target;
use crate::beneath;
use crate::snapshot::{Snapshot, SnapshotError};

/// How much of a file of rules, or of a config, is read; a larger one counts as none.
const MAX_BYTES: u64 = 16 << 20;
/// How many files that include each other in turn are looked at.
const MAX_INCLUDES: usize = 3;

/// What such files held, by their place; nothing for those that were not there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RulesAside(BTreeMap<PathBuf, Option<Sha256Hex>>);

impl RulesAside {
    /// Reads them, for the repository of a snapshot and those that it found inside.
    ///
    /// # Errors
    /// One is there and cannot be read.
    pub fn read(snapshot: &Snapshot) -> Result<Self, SnapshotError> {
        Self::read_all(snapshot)
            .map_err(|source| SnapshotError::Io { path: "the ignore rules in git's directories".to_owned(), source })
    }

    fn read_all(snapshot: &Snapshot) -> io::Result<Self> {
        let mut found = Self::default();
        let git = &snapshot.git;
        found.add(&git.common_dir, b"info/exclude")?;
        for dir in [&git.common_dir, &git.git_dir] {
            for name in ["config", "config.worktree"] {
                found.add_excludes_file(dir, name)?;
            }
        }
        for path in nested(snapshot) {
            found.add_nested(&git.worktree.join(std::ffi::OsStr::from_bytes(&path)))?;
        }
        Ok(found)
    }

    /// The files that differ, sorted.
    pub fn difference(&self, later: &Self) -> Vec<PathBuf> {
        let all: std::collections::BTreeSet<&PathBuf> = self.0.keys().chain(later.0.keys()).collect();
        all.into_iter().filter(|path| self.0.get(*path) != later.0.get(*path)).cloned().collect()
    }

    fn add(&mut self, dir: &Path, path: &[u8]) -> io::Result<()> {
        let content = read(dir, path)?;
        let place = dir.join(std::ffi::OsStr::from_bytes(path));
        self.0.insert(place, content.map(|bytes| Sha256Hex::of(&bytes)));
        Ok(())
    }

    /// The settings that speak of a file of rules, and the file.
    fn add_excludes_file(&mut self, dir: &Path, name: &str) -> io::Result<()> {
        self.add_excludes_file_of(dir, name, MAX_INCLUDES)
    }

    fn add_excludes_file_of(&mut self, dir: &Path, name: &str, depth: usize) -> io::Result<()> {
        let config = read(dir, name.as_bytes())?.unwrap_or_default();
        let config = String::from_utf8_lossy(&config);
        self.add_included(dir, &config, depth)?;
        let settings: Vec<&str> =
            config.lines().filter(|line| line.to_ascii_lowercase().contains("excludesfile")).collect();
        if settings.is_empty() {
            return Ok(());
        }
        self.0.insert(dir.join(name), Some(Sha256Hex::of(settings.join("\n").as_bytes())));
        let values = settings.iter().filter_map(|line| line.split_once('=')).map(|(_, value)| value.trim());
        for value in values.map(|value| Path::new(value.trim_matches('"'))).filter(|value| value.is_absolute()) {
            if let (Some(parent), Some(file)) = (value.parent(), value.file_name()) {
                self.add(parent, file.as_bytes())?;
            }
        }
        Ok(())
    }

    /// The settings of the files that a config names, such as those that it includes, as far as they speak of a file
    /// of rules. A file that a condition leaves out is looked at as well.
    fn add_included(&mut self, dir: &Path, config: &str, depth: usize) -> io::Result<()> {
        let is_include = |line: &str| line.to_ascii_lowercase().contains("[include");
        if depth == 0 || !config.lines().any(is_include) {
            return Ok(());
        }
        let settings = config.lines().filter_map(|line| line.split_once('='));
        let paths = settings.filter(|(key, _)| key.to_ascii_lowercase().trim_end().ends_with("path"));
        for path in paths.map(|(_, value)| dir.join(value.trim().trim_matches('"'))) {
            if let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) {
                self.add_excludes_file_of(parent, name, depth - 1)?;
            }
        }
        Ok(())
    }

    fn add_nested(&mut self, worktree: &Path) -> io::Result<()> {
        let dot_git = match read(worktree, b".git")? {
            Some(_) => gitfile_target(&worktree.join(".git")).ok(),
            None => Some(worktree.join(".git")),
        };
        dot_git.map_or(Ok(()), |git_dir| self.add(&git_dir, b"info/exclude"))
    }
}

fn nested(snapshot: &Snapshot) -> Vec<Vec<u8>> {
    if let Some(basis) = &snapshot.basis {
        return basis.repositories.iter().map(|path| path.0.clone()).collect();
    }
    let links = snapshot.entries.iter().filter(|(_, entry)| entry.kind == EntryKind::Gitlink);
    links.map(|(path, _)| path).collect()
}

/// A regular file below a directory; nothing where there is none.
fn read(dir: &Path, path: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let dir = match dir.canonicalize().and_then(|dir| beneath::open_real(&dir)) {
        Ok(dir) => dir,
        Err(error) if beneath::is_nothing(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let is_file = beneath::look(dir.as_fd(), path)?
        .is_some_and(|(_, stat)| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_file());
    if is_file { beneath::content(dir.as_fd(), path, MAX_BYTES) } else { Ok(None) }
}
