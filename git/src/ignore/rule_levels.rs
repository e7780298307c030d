//! Stores the rules of one repository, directory by directory, and evaluates paths against them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::rc::Rc;

use git2::Oid;
use rustix::fs::FileType;

use crate::config::bounded_read::{
    RULES_BYTES, check_regular, config_error, io_error, not_regular_error, too_large_error,
};
use crate::error::GitError;
use crate::files::{paths, read_beneath};
use crate::ignore::external_rules::{self, ExternalRules};
use crate::ignore::ignore_pattern::{CandidatePath, GitRelease, IgnorePatterns, breaks_libgit2};
use crate::ignore::wildmatch::MAX_STARS;
use crate::ignore::{IgnoreVerdict, absolute_path, libgit2_ignores};
use crate::repository::open_repository::{OpenRepository, libgit2_error};

/// The `skip-worktree` flag of an index entry.
const SKIP_WORKTREE: u16 = 1 << 14;

/// The rules that apply in one directory, and the verdict on the directory itself.
#[derive(Debug, Clone)]
pub(crate) struct DirectoryRules {
    level: Option<Rc<RuleLevel>>,
    verdict: IgnoreVerdict,
}

/// The rules of one file, and the outer rules, over which they take precedence.
#[derive(Debug)]
struct RuleLevel {
    outer: Option<Rc<RuleLevel>>,
    patterns: IgnorePatterns,
    /// Length of the path prefix that names the directory of the file.
    base: usize,
    /// True if git releases differ on a rule of this file or of an outer one.
    releases_differ: bool,
    /// True if one of these files would make libgit2 crash or hang.
    breaks_libgit2: bool,
}

/// How to find ignore files with `skip-worktree`, which are missing in the work tree and which git reads from the
/// index.
#[derive(Clone, Copy)]
pub(crate) enum SkippedRules<'a> {
    None,
    /// The skipped files of an index that was read before, by path.
    Known(&'a HashMap<Vec<u8>, Oid>),
    /// The ignore files are looked up in the index.
    InIndex,
}

/// The rules of a repository outside its tree, and its case sensitivity.
#[derive(Debug)]
pub(crate) struct RepositoryRules {
    outermost: Option<Rc<RuleLevel>>,
    folds_case: bool,
    /// The files and settings that affect the result, for the record.
    pub(crate) external: Vec<ExternalRules>,
}

impl RepositoryRules {
    /// Reads `info/exclude` and the `core.excludesFile` of the repository's config.
    ///
    /// # Errors
    /// A file is refused or cannot be read.
    pub(crate) fn read(opened: &OpenRepository) -> Result<Self, GitError> {
        let found = external_rules::read_external_rules(opened)?;
        let mut outermost = None;
        // The last file has the highest precedence.
        for (path, text) in &found.files {
            outermost = push_level(outermost, 0, parse_patterns(path, text)?);
        }
        Ok(Self { outermost, folds_case: found.folds_case, external: found.rules })
    }

    /// Returns only the rules outside the tree.
    pub(crate) fn outermost(&self) -> DirectoryRules {
        DirectoryRules { level: self.outermost.clone(), verdict: IgnoreVerdict::default() }
    }

    /// Returns the rules that apply in the directory `path` of the repository, including its own `.gitignore`.
    /// `outer` contains the rules of its parent directory.
    ///
    /// # Errors
    /// The file is refused or cannot be read.
    pub(crate) fn read_directory(
        &self,
        opened: &OpenRepository,
        outer: &DirectoryRules,
        path: &[u8],
        above: IgnoreVerdict,
        skipped: SkippedRules<'_>,
    ) -> Result<DirectoryRules, GitError> {
        let file = paths::join(path, b".gitignore");
        let failed = |error: std::io::Error| io_error(&absolute_path(opened, &file), &error);
        let found = read_beneath::open_entry(opened.top.as_fd(), &file).map_err(failed)?;
        let kind = found.map(|(_, stat)| FileType::from_raw_mode(stat.st_mode));
        self.with_ignore_file(opened, outer.clone().with_verdict(above), path, kind, skipped)
    }

    /// Adds the `.gitignore` of the directory `path` to the rules `here`; `kind` is the type of this file.
    ///
    /// # Errors
    /// The file is refused or cannot be read.
    pub(crate) fn with_ignore_file(
        &self,
        opened: &OpenRepository,
        rules: DirectoryRules,
        path: &[u8],
        kind: Option<FileType>,
        skipped: SkippedRules<'_>,
    ) -> Result<DirectoryRules, GitError> {
        let file = paths::join(path, b".gitignore");
        let place = absolute_path(opened, &file);
        let text = match kind {
            Some(FileType::RegularFile) => Some(read_ignore_file(opened, &file)?),
            None | Some(FileType::Symlink) => skipped.read_text(opened, &file)?,
            Some(FileType::Directory) => None,
            Some(_) => return Err(not_regular_error(&place)),
        };
        let mut patterns = parse_patterns(&place, &text.unwrap_or_default())?;
        if kind == Some(FileType::Symlink) {
            // libgit2 follows the link.
            patterns.breaks_libgit2 |= external_rules::read_rules(&place)?.is_some_and(|text| breaks_libgit2(&text));
        }
        let base = if path.is_empty() { 0 } else { path.len() + 1 };
        Ok(DirectoryRules { level: push_level(rules.level, base, patterns), verdict: rules.verdict })
    }

    /// Returns the verdict on a path in a directory to which the rules `here` apply.
    ///
    /// # Errors
    /// libgit2 cannot answer.
    pub(crate) fn evaluate(
        &self,
        opened: &OpenRepository,
        rules: &DirectoryRules,
        path: &[u8],
        is_directory: bool,
    ) -> Result<IgnoreVerdict, GitError> {
        let subject = CandidatePath { path, name: paths::file_name(path), is_directory, folds_case: self.folds_case };
        let level = rules.level.as_deref();
        let by = |reading| level.and_then(|level| level.decide(subject, reading)).unwrap_or(false);
        let mut verdict = rules.verdict;
        let first = by(GitRelease::Early);
        verdict.early_git |= first;
        verdict.late_git |= if level.is_some_and(|level| level.releases_differ) { by(GitRelease::Late) } else { first };
        if verdict.early_git && verdict.late_git && !verdict.libgit2 {
            // If libgit2 cannot answer, git's verdict applies.
            verdict.libgit2 =
                level.is_some_and(|level| level.breaks_libgit2) || libgit2_ignores(opened, path, is_directory)?;
        }
        Ok(verdict)
    }
}

impl DirectoryRules {
    /// Returns the same rules for a subdirectory with the verdict `above`.
    pub(crate) fn with_verdict(self, above: IgnoreVerdict) -> Self {
        Self { verdict: above, ..self }
    }
}

impl RuleLevel {
    /// Returns whether the deciding rule ignores the path, or `None` if no rule matches.
    fn decide(&self, subject: CandidatePath<'_>, reading: GitRelease) -> Option<bool> {
        let mut levels = std::iter::successors(Some(self), |level| level.outer.as_deref());
        levels.find_map(|level| level.patterns.decide(subject, level.base, reading))
    }
}

impl SkippedRules<'_> {
    fn read_text(self, opened: &OpenRepository, file: &[u8]) -> Result<Option<Vec<u8>>, GitError> {
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
        let failed = |error: git2::Error| libgit2_error(&opened.worktree, &error);
        let objects = opened.repository.odb().map_err(failed)?;
        if objects.read_header(id).map_err(failed)?.0 as u64 > RULES_BYTES {
            return Err(too_large_error(&absolute_path(opened, file), RULES_BYTES));
        }
        Ok(Some(objects.read(id).map_err(failed)?.data().to_vec()))
    }
}

/// Reads an ignore file that is a regular file.
fn read_ignore_file(opened: &OpenRepository, file: &[u8]) -> Result<Vec<u8>, GitError> {
    let place = absolute_path(opened, file);
    check_regular(&place)?;
    let text =
        read_beneath::read_content(opened.top.as_fd(), file, RULES_BYTES).map_err(|error| io_error(&place, &error))?;
    Ok(text.unwrap_or_default())
}

fn parse_patterns(file: &Path, text: &[u8]) -> Result<IgnorePatterns, GitError> {
    IgnorePatterns::parse(text).map_err(|line| {
        let problem = format!("line {line} has more than {MAX_STARS} wildcards `*`");
        config_error(file, problem, "shorten the pattern")
    })
}

/// Adds the rules of a file with precedence over those of `outer`.
fn push_level(outer: Option<Rc<RuleLevel>>, base: usize, patterns: IgnorePatterns) -> Option<Rc<RuleLevel>> {
    if patterns.is_empty() {
        return outer;
    }
    let readings_differ = patterns.releases_differ || outer.as_ref().is_some_and(|outer| outer.releases_differ);
    let breaks_libgit2 = patterns.breaks_libgit2 || outer.as_ref().is_some_and(|outer| outer.breaks_libgit2);
    Some(Rc::new(RuleLevel { outer, patterns, base, releases_differ: readings_differ, breaks_libgit2 }))
}
