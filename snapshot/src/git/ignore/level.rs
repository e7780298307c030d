//! Stores the rules of one repository, directory by directory, and evaluates paths against them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use git2::Oid;
use rustix::fs::FileType;

use super::external::{self, ExternalRules};
use super::pattern::{Patterns, Reading, Subject, breaks_libgit2};
use super::wildmatch::MAX_STARS;
use super::{Verdict, libgit2_ignores, on_disk};
use crate::git::GitError;
use crate::git::config::{RULES_BYTES, check_regular, io, not_regular, refused, too_large};
use crate::git::reader::{Opened, unreadable};
use crate::{beneath, paths};

/// The `skip-worktree` flag of an index entry.
const SKIP_WORKTREE: u16 = 1 << 14;

/// The rules that apply in one directory, and the verdict on the directory itself.
#[derive(Debug, Clone)]
pub(in crate::git) struct Directory {
    level: Option<Rc<Level>>,
    above: Verdict,
}

/// The rules of one file, and the outer rules, over which they take precedence.
#[derive(Debug)]
struct Level {
    outer: Option<Rc<Level>>,
    patterns: Patterns,
    /// Length of the path prefix that names the directory of the file.
    base: usize,
    /// True if git releases differ on a rule of this file or of an outer one.
    readings_differ: bool,
    /// True if one of these files would make libgit2 crash or hang.
    breaks_libgit2: bool,
}

/// How to find ignore files with `skip-worktree`, which are missing in the work tree and which git reads from the
/// index.
#[derive(Clone, Copy)]
pub(in crate::git) enum SkippedRules<'a> {
    None,
    /// The skipped files of an index that was read before, by path.
    Known(&'a HashMap<Vec<u8>, Oid>),
    /// They are looked up in the index.
    InIndex,
}

/// The rules of a repository outside its tree, and its case sensitivity.
#[derive(Debug)]
pub(in crate::git) struct RepositoryRules {
    outermost: Option<Rc<Level>>,
    folds_case: bool,
    /// The files and settings that affect the result, for the record.
    pub(in crate::git) external: Vec<ExternalRules>,
}

impl RepositoryRules {
    /// Reads `info/exclude` and the `core.excludesFile` of the repository's config.
    ///
    /// # Errors
    /// A file is refused or cannot be read.
    pub(in crate::git) fn read(opened: &Opened) -> Result<Self, GitError> {
        let found = external::read(opened)?;
        let mut outermost = None;
        // The last file has the highest precedence.
        for (path, text) in &found.files {
            outermost = add(outermost, 0, parsed(path, text)?);
        }
        Ok(Self { outermost, folds_case: found.folds_case, external: found.rules })
    }

    /// Returns only the rules outside the tree.
    pub(in crate::git) fn outermost(&self) -> Directory {
        Directory { level: self.outermost.clone(), above: Verdict::default() }
    }

    /// Returns the rules that apply in the directory `path` of the repository, including its own `.gitignore`.
    /// `outer` contains the rules of its parent directory.
    ///
    /// # Errors
    /// The file is refused or cannot be read.
    pub(in crate::git) fn read_directory(
        &self,
        opened: &Opened,
        outer: &Directory,
        path: &[u8],
        above: Verdict,
        skipped: SkippedRules<'_>,
    ) -> Result<Directory, GitError> {
        let file = paths::join(path, b".gitignore");
        let failed = |error: std::io::Error| io(&on_disk(opened, &file), &error);
        let found = beneath::look(opened.top.as_fd(), &file).map_err(failed)?;
        let kind = found.map(|(_, stat)| FileType::from_raw_mode(stat.st_mode));
        self.with_file(opened, outer.clone().within(above), path, kind, skipped)
    }

    /// Adds the `.gitignore` of the directory `path` to the rules `here`; `kind` is the type of this file.
    ///
    /// # Errors
    /// The file is refused or cannot be read.
    pub(in crate::git) fn with_file(
        &self,
        opened: &Opened,
        here: Directory,
        path: &[u8],
        kind: Option<FileType>,
        skipped: SkippedRules<'_>,
    ) -> Result<Directory, GitError> {
        let file = paths::join(path, b".gitignore");
        let place = on_disk(opened, &file);
        let text = match kind {
            Some(FileType::RegularFile) => Some(text_of(opened, &file)?),
            None | Some(FileType::Symlink) => skipped.text(opened, &file)?,
            Some(FileType::Directory) => None,
            Some(_) => return Err(not_regular(&place)),
        };
        let mut patterns = parsed(&place, &text.unwrap_or_default())?;
        if kind == Some(FileType::Symlink) {
            // libgit2 follows the link.
            patterns.breaks_libgit2 |= external::read_rules(&place)?.is_some_and(|text| breaks_libgit2(&text));
        }
        let base = if path.is_empty() { 0 } else { path.len() + 1 };
        Ok(Directory { level: add(here.level, base, patterns), above: here.above })
    }

    /// Returns the verdict on a path in a directory to which the rules `here` apply.
    ///
    /// # Errors
    /// libgit2 cannot answer.
    pub(in crate::git) fn judge(
        &self,
        opened: &Opened,
        here: &Directory,
        path: &[u8],
        is_directory: bool,
    ) -> Result<Verdict, GitError> {
        let subject = Subject { path, name: paths::name(path), is_directory, folds_case: self.folds_case };
        let level = here.level.as_deref();
        let by = |reading| level.and_then(|level| level.decide(subject, reading)).unwrap_or(false);
        let mut verdict = here.above;
        let first = by(Reading::Early);
        verdict.early |= first;
        verdict.late |= if level.is_some_and(|level| level.readings_differ) { by(Reading::Late) } else { first };
        if verdict.early && verdict.late && !verdict.libgit2 {
            // If libgit2 cannot answer, git's verdict applies.
            verdict.libgit2 =
                level.is_some_and(|level| level.breaks_libgit2) || libgit2_ignores(opened, path, is_directory)?;
        }
        Ok(verdict)
    }
}

impl Directory {
    /// Returns the same rules for a subdirectory with the verdict `above`.
    pub(in crate::git) fn within(self, above: Verdict) -> Self {
        Self { above, ..self }
    }
}

impl Level {
    /// Returns whether the deciding rule ignores the path, or `None` if no rule matches.
    fn decide(&self, subject: Subject<'_>, reading: Reading) -> Option<bool> {
        let mut levels = std::iter::successors(Some(self), |level| level.outer.as_deref());
        levels.find_map(|level| level.patterns.decide(subject, level.base, reading))
    }
}

impl SkippedRules<'_> {
    fn text(self, opened: &Opened, file: &[u8]) -> Result<Option<Vec<u8>>, GitError> {
        let id = match self {
            Self::None => None,
            Self::Known(known) => known.get(file).copied(),
            Self::InIndex => {
                let path = Path::new(OsStr::from_bytes(file));
                let entry = opened.index()?.get_path(path, 0);
                // With `core.ignoreCase`, libgit2 also finds the file of a directory whose name differs in case.
                let is_it = |entry: &git2::IndexEntry| entry.path == file && entry.flags_extended & SKIP_WORKTREE != 0;
                entry.filter(is_it).map(|entry| entry.id)
            }
        };
        let Some(id) = id else { return Ok(None) };
        let failed = |error: git2::Error| unreadable(&opened.worktree, &error);
        let objects = opened.repository.odb().map_err(failed)?;
        if objects.read_header(id).map_err(failed)?.0 as u64 > RULES_BYTES {
            return Err(too_large(&on_disk(opened, file), RULES_BYTES));
        }
        Ok(Some(objects.read(id).map_err(failed)?.data().to_vec()))
    }
}

/// Reads an ignore file that is a regular file.
fn text_of(opened: &Opened, file: &[u8]) -> Result<Vec<u8>, GitError> {
    let place = on_disk(opened, file);
    check_regular(&place)?;
    let text = beneath::content(opened.top.as_fd(), file, RULES_BYTES).map_err(|error| io(&place, &error))?;
    Ok(text.unwrap_or_default())
}

fn parsed(file: &Path, text: &[u8]) -> Result<Patterns, GitError> {
    Patterns::parse(text).map_err(|line| {
        let problem = format!("line {line} has more than {MAX_STARS} wildcards `*`");
        refused(file, problem, "shorten the pattern")
    })
}

/// Adds the rules of a file with precedence over those of `outer`.
fn add(outer: Option<Rc<Level>>, base: usize, patterns: Patterns) -> Option<Rc<Level>> {
    if patterns.is_empty() {
        return outer;
    }
    let readings_differ = patterns.readings_differ || outer.as_ref().is_some_and(|outer| outer.readings_differ);
    let breaks_libgit2 = patterns.breaks_libgit2 || outer.as_ref().is_some_and(|outer| outer.breaks_libgit2);
    Some(Rc::new(Level { outer, patterns, base, readings_differ, breaks_libgit2 }))
}
