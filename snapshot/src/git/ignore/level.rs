//! Holds the rules of one repository, directory by directory, and judges paths by them.

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

/// The flag of an index entry that need not be in the work tree.
const SKIP_WORKTREE: u16 = 1 << 14;

/// The rules that hold in one directory, and who ignores the directory itself.
#[derive(Debug, Clone)]
pub(in crate::git) struct Directory {
    level: Option<Rc<Level>>,
    above: Verdict,
}

/// The rules of one file, and those that they precede over.
#[derive(Debug)]
struct Level {
    outer: Option<Rc<Level>>,
    patterns: Patterns,
    /// The number of bytes of a path that name the directory of the file.
    base: usize,
    /// Whether git releases differ on a rule of this file or of an outer one.
    readings_differ: bool,
    /// Whether libgit2 would crash over one of these files, or never end reading it.
    breaks_libgit2: bool,
}

/// Files of rules that are not in the work tree because the index skips them. Git reads them from the index.
#[derive(Clone, Copy)]
pub(in crate::git) enum SkippedRules<'a> {
    None,
    /// Those of an index that was read, by their paths.
    Known(&'a HashMap<Vec<u8>, Oid>),
    /// They are looked up in the index.
    InIndex,
}

/// The rules of a repository that lie outside of its tree, and how it compares names.
#[derive(Debug)]
pub(in crate::git) struct RepositoryRules {
    outermost: Option<Rc<Level>>,
    folds_case: bool,
    /// What of it decides, for the record.
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
        // The last one precedes over the others.
        for (path, text) in &found.files {
            outermost = add(outermost, 0, parsed(path, text)?);
        }
        Ok(Self { outermost, folds_case: found.folds_case, external: found.rules })
    }

    /// The rules outside of the tree alone.
    pub(in crate::git) fn outermost(&self) -> Directory {
        Directory { level: self.outermost.clone(), above: Verdict::default() }
    }

    /// Returns the rules that hold in the directory `path` of the repository, which is inside `outer`, with those of
    /// its own `.gitignore`.
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

    /// Returns the rules that hold in the directory `path`, which are `here` and those of its `.gitignore`, of which
    /// the kind of file is known.
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
            // Libgit2 follows it.
            patterns.breaks_libgit2 |= external::read_rules(&place)?.is_some_and(|text| breaks_libgit2(&text));
        }
        let base = if path.is_empty() { 0 } else { path.len() + 1 };
        Ok(Directory { level: add(here.level, base, patterns), above: here.above })
    }

    /// Returns who ignores the path in a directory in which the rules `here` hold.
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
            // Where libgit2 has no answer, git's stands.
            verdict.libgit2 =
                level.is_some_and(|level| level.breaks_libgit2) || libgit2_ignores(opened, path, is_directory)?;
        }
        Ok(verdict)
    }
}

impl Directory {
    /// The same rules in a directory inside, of which `above` says who ignores it.
    pub(in crate::git) fn within(self, above: Verdict) -> Self {
        Self { above, ..self }
    }
}

impl Level {
    /// Returns what the rule says that decides about a path; `None` where no rule matches.
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
                // Where case is ignored, libgit2 finds the file of another directory too.
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

/// The text of a file of rules that is a regular file.
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

/// The rules of a file before those of `outer`.
fn add(outer: Option<Rc<Level>>, base: usize, patterns: Patterns) -> Option<Rc<Level>> {
    if patterns.is_empty() {
        return outer;
    }
    let readings_differ = patterns.readings_differ || outer.as_ref().is_some_and(|outer| outer.readings_differ);
    let breaks_libgit2 = patterns.breaks_libgit2 || outer.as_ref().is_some_and(|outer| outer.breaks_libgit2);
    Some(Rc::new(Level { outer, patterns, base, readings_differ, breaks_libgit2 }))
}
