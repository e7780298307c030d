//! Decides which paths the ignore rules on disk ignore: those that both git and libgit2 ignore.
//!
//! The two differ on some rules, and a path that one of them shows belongs to the tree. This module implements
//! git's rules as described in `gitignore(5)`, and asks libgit2 only about paths that git ignores. Evaluation
//! starts at the top, so nothing inside an ignored directory can be re-included, and the rules of the innermost
//! repository apply.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::config::bounded_read::check_regular;
use crate::error::GitError;
use crate::files::paths;
use crate::files::repo_path::RepoPath;
use crate::repository::open_repository::{OpenRepository, is_directory_without_links, is_repository, libgit2_error};

pub mod external_rules;
mod ignore_pattern;
pub(crate) mod rule_levels;
mod wildmatch;

pub(crate) use rule_levels::{DirectoryRules, RepositoryRules, SkippedRules};

/// The implementations that ignore a path. The path is ignored if all of them ignore it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct IgnoreVerdict {
    /// Git, in the interpretation of earlier and later releases.
    early_git: bool,
    late_git: bool,
    libgit2: bool,
}

impl IgnoreVerdict {
    pub(crate) fn is_ignored(self) -> bool {
        self.early_git && self.late_git && self.libgit2
    }
}

/// The rules of one work tree and of the repositories inside it.
pub(crate) struct WorktreeIgnoreRules {
    repositories: Vec<(OpenRepository, RepositoryRules)>,
    directories: HashMap<Vec<u8>, DirectoryIgnoreState>,
    /// The paths of submodules, if they are known without the index.
    submodules: Option<HashSet<Vec<u8>>>,
}

#[derive(Clone)]
enum DirectoryIgnoreState {
    Ignored,
    /// The index of the repository whose rules apply inside, the length of the prefix that names its directory, and
    /// the rules.
    Ruled {
        repository: usize,
        prefix: usize,
        rules: DirectoryRules,
    },
}

impl WorktreeIgnoreRules {
    /// Returns the rules that apply at the top of `opened`.
    ///
    /// # Errors
    /// An ignore file is refused or cannot be read.
    pub(crate) fn new(opened: OpenRepository, submodules: Option<&[RepoPath]>) -> Result<Self, GitError> {
        let submodules = submodules.map(|paths| paths.iter().map(|path| path.0.clone()).collect());
        let mut rules = Self { repositories: Vec::new(), directories: HashMap::new(), submodules };
        let top = rules.add_repository(opened, 0)?;
        rules.directories.insert(Vec::new(), top);
        Ok(rules)
    }

    /// Returns whether `path` is ignored. Paths inside a `.git` are ignored if and only if the parent directory of
    /// the `.git` is.
    pub(crate) fn is_ignored(&mut self, path: &[u8], is_directory: bool) -> Result<bool, GitError> {
        let mut here = self.directories[&b""[..]].clone();
        let above = paths::ancestors(path).chain(is_directory.then_some(path));
        for directory in above.filter(|directory| !directory.is_empty()) {
            if paths::file_name(directory) == b".git" {
                return Ok(matches!(here, DirectoryIgnoreState::Ignored));
            }
            here = self.cached_state(directory, here)?;
        }
        match here {
            DirectoryIgnoreState::Ignored => Ok(true),
            DirectoryIgnoreState::Ruled { repository: by, prefix, rules }
                if !is_directory && paths::file_name(path) != b".git" =>
            {
                let (opened, own) = &self.repositories[by];
                Ok(own.evaluate(opened, &rules, &path[prefix..], false)?.is_ignored())
            }
            DirectoryIgnoreState::Ruled { .. } => Ok(false),
        }
    }

    fn cached_state(
        &mut self,
        directory: &[u8],
        parent: DirectoryIgnoreState,
    ) -> Result<DirectoryIgnoreState, GitError> {
        if let Some(state) = self.directories.get(directory) {
            return Ok(state.clone());
        }
        let state = self.evaluate_directory(directory, parent)?;
        self.directories.insert(directory.to_vec(), state.clone());
        Ok(state)
    }

    fn evaluate_directory(
        &mut self,
        directory: &[u8],
        parent: DirectoryIgnoreState,
    ) -> Result<DirectoryIgnoreState, GitError> {
        let DirectoryIgnoreState::Ruled { repository: by, prefix, rules } = parent else {
            let inside = if self.is_known_submodule(directory) { self.repository_at(directory)? } else { None };
            return Ok(inside.unwrap_or(DirectoryIgnoreState::Ignored));
        };
        let (opened, own) = &self.repositories[by];
        let inside = &directory[prefix..];
        let mut verdict = own.evaluate(opened, &rules, inside, true)?;
        let is_submodule = || match &self.submodules {
            Some(known) => Ok(known.contains(directory)),
            None => opened.has_gitlink(inside),
        };
        if verdict.is_ignored() {
            if !is_submodule()? {
                return Ok(DirectoryIgnoreState::Ignored);
            }
            verdict = IgnoreVerdict::default();
        }
        if let Some(repository) = self.repository_at(directory)? {
            return Ok(repository);
        }
        let (opened, own) = &self.repositories[by];
        // The index is read only if it may contain skipped ignore files.
        let skipped = if self.submodules.is_some() { SkippedRules::None } else { SkippedRules::InIndex };
        let rules = own.read_directory(opened, &rules, inside, verdict, skipped)?;
        Ok(DirectoryIgnoreState::Ruled { repository: by, prefix, rules })
    }

    fn is_known_submodule(&self, directory: &[u8]) -> bool {
        self.submodules.as_ref().is_some_and(|known| known.contains(directory))
    }

    /// Opens the repository at `directory`; returns `None` if no repository exists there.
    fn repository_at(&mut self, directory: &[u8]) -> Result<Option<DirectoryIgnoreState>, GitError> {
        let top = &self.repositories[0].0;
        let place = absolute_path(top, directory);
        if !is_directory_without_links(top, directory)? || !is_repository(&place)? {
            return Ok(None);
        }
        self.add_repository(OpenRepository::open(&place)?, directory.len() + 1).map(Some)
    }

    fn add_repository(&mut self, opened: OpenRepository, prefix: usize) -> Result<DirectoryIgnoreState, GitError> {
        let own = RepositoryRules::read(&opened)?;
        let skipped = if self.submodules.is_some() { SkippedRules::None } else { SkippedRules::InIndex };
        let rules = own.read_directory(&opened, &own.outermost(), b"", IgnoreVerdict::default(), skipped)?;
        self.repositories.push((opened, own));
        Ok(DirectoryIgnoreState::Ruled { repository: self.repositories.len() - 1, prefix, rules })
    }
}

/// Returns the path on disk of a path relative to the top of `opened`.
pub(crate) fn absolute_path(opened: &OpenRepository, path: &[u8]) -> PathBuf {
    opened.worktree.join(OsStr::from_bytes(path))
}

/// Returns whether libgit2 ignores a path or one of its parent directories; returns `true` if libgit2 cannot
/// answer.
fn libgit2_ignores(opened: &OpenRepository, path: &[u8], is_directory: bool) -> Result<bool, GitError> {
    let ask = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path));
        opened.repository.is_path_ignored(path).map_err(|error| libgit2_error(&opened.worktree, &error))
    };
    let as_directory = |path: &[u8]| [path, b"/"].concat();
    // libgit2 treats every path as a directory and reads its `.gitignore`, which would block on a fifo.
    let own_file = absolute_path(opened, path).join(".gitignore");
    check_regular(&own_file)?;
    if external_rules::read_rules(&own_file)?.is_some_and(|text| ignore_pattern::breaks_libgit2(&text)) {
        return Ok(true);
    }
    if if is_directory { ask(&as_directory(path))? } else { ask(path)? } {
        return Ok(true);
    }
    // When asked about a single path, libgit2 re-includes paths inside ignored directories.
    for above in paths::ancestors(path).filter(|above| !above.is_empty()) {
        if ask(&as_directory(above))? {
            return Ok(true);
        }
    }
    Ok(false)
}
