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

use super::GitError;
use super::config::check_regular;
use super::protocol::RepoPath;
use super::reader::{Opened, holds_repository, is_real_directory, unreadable};
use crate::paths;

pub(super) mod external;
mod level;
mod pattern;
mod wildmatch;

pub use external::ExternalRules;
pub(super) use level::{Directory, RepositoryRules, SkippedRules};

/// The implementations that ignore a path. The path is ignored if all of them ignore it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Verdict {
    /// Git, in the interpretation of earlier and later releases.
    early: bool,
    late: bool,
    libgit2: bool,
}

impl Verdict {
    pub(super) fn is_ignored(self) -> bool {
        self.early && self.late && self.libgit2
    }
}

/// The rules of one work tree and of the repositories inside it.
pub(super) struct Rules {
    repositories: Vec<(Opened, RepositoryRules)>,
    directories: HashMap<Vec<u8>, State>,
    /// The paths of submodules, if they are known without the index.
    submodules: Option<HashSet<Vec<u8>>>,
}

#[derive(Clone)]
enum State {
    Ignored,
    /// The index of the repository whose rules apply inside, the length of the prefix that names its directory, and
    /// the rules.
    Ruled {
        by: usize,
        prefix: usize,
        rules: Directory,
    },
}

impl Rules {
    /// Returns the rules that apply at the top of `opened`.
    ///
    /// # Errors
    /// An ignore file is refused or cannot be read.
    pub(super) fn new(opened: Opened, submodules: Option<&[RepoPath]>) -> Result<Self, GitError> {
        let submodules = submodules.map(|paths| paths.iter().map(|path| path.0.clone()).collect());
        let mut rules = Self { repositories: Vec::new(), directories: HashMap::new(), submodules };
        let top = rules.add_repository(opened, 0)?;
        rules.directories.insert(Vec::new(), top);
        Ok(rules)
    }

    /// Returns whether `path` is ignored. Paths inside a `.git` are ignored if and only if the parent directory of
    /// the `.git` is.
    pub(super) fn ignores(&mut self, path: &[u8], is_directory: bool) -> Result<bool, GitError> {
        let mut here = self.directories[&b""[..]].clone();
        let above = paths::ancestors(path).chain(is_directory.then_some(path));
        for directory in above.filter(|directory| !directory.is_empty()) {
            if paths::name(directory) == b".git" {
                return Ok(matches!(here, State::Ignored));
            }
            here = self.state_of(directory, here)?;
        }
        match here {
            State::Ignored => Ok(true),
            State::Ruled { by, prefix, rules } if !is_directory && paths::name(path) != b".git" => {
                let (opened, own) = &self.repositories[by];
                Ok(own.judge(opened, &rules, &path[prefix..], false)?.is_ignored())
            }
            State::Ruled { .. } => Ok(false),
        }
    }

    fn state_of(&mut self, directory: &[u8], parent: State) -> Result<State, GitError> {
        if let Some(state) = self.directories.get(directory) {
            return Ok(state.clone());
        }
        let state = self.find_state(directory, parent)?;
        self.directories.insert(directory.to_vec(), state.clone());
        Ok(state)
    }

    fn find_state(&mut self, directory: &[u8], parent: State) -> Result<State, GitError> {
        let State::Ruled { by, prefix, rules } = parent else {
            let inside = if self.is_known_submodule(directory) { self.repository_at(directory)? } else { None };
            return Ok(inside.unwrap_or(State::Ignored));
        };
        let (opened, own) = &self.repositories[by];
        let inside = &directory[prefix..];
        let mut verdict = own.judge(opened, &rules, inside, true)?;
        let is_submodule = || match &self.submodules {
            Some(known) => Ok(known.contains(directory)),
            None => opened.has_gitlink(inside),
        };
        if verdict.is_ignored() {
            if !is_submodule()? {
                return Ok(State::Ignored);
            }
            verdict = Verdict::default();
        }
        if let Some(repository) = self.repository_at(directory)? {
            return Ok(repository);
        }
        let (opened, own) = &self.repositories[by];
        // The index is read only if it may contain skipped ignore files.
        let skipped = if self.submodules.is_some() { SkippedRules::None } else { SkippedRules::InIndex };
        let rules = own.read_directory(opened, &rules, inside, verdict, skipped)?;
        Ok(State::Ruled { by, prefix, rules })
    }

    fn is_known_submodule(&self, directory: &[u8]) -> bool {
        self.submodules.as_ref().is_some_and(|known| known.contains(directory))
    }

    /// Opens the repository at `directory`; returns `None` if no repository exists there.
    fn repository_at(&mut self, directory: &[u8]) -> Result<Option<State>, GitError> {
        let top = &self.repositories[0].0;
        let place = on_disk(top, directory);
        if !is_real_directory(top, directory)? || !holds_repository(&place)? {
            return Ok(None);
        }
        self.add_repository(Opened::open(&place)?, directory.len() + 1).map(Some)
    }

    fn add_repository(&mut self, opened: Opened, prefix: usize) -> Result<State, GitError> {
        let own = RepositoryRules::read(&opened)?;
        let skipped = if self.submodules.is_some() { SkippedRules::None } else { SkippedRules::InIndex };
        let rules = own.read_directory(&opened, &own.outermost(), b"", Verdict::default(), skipped)?;
        self.repositories.push((opened, own));
        Ok(State::Ruled { by: self.repositories.len() - 1, prefix, rules })
    }
}

/// Returns the path on disk of a path relative to the top of `opened`.
pub(super) fn on_disk(opened: &Opened, path: &[u8]) -> PathBuf {
    opened.worktree.join(OsStr::from_bytes(path))
}

/// Returns whether libgit2 ignores a path or one of its parent directories; returns `true` if libgit2 cannot
/// answer.
fn libgit2_ignores(opened: &Opened, path: &[u8], is_directory: bool) -> Result<bool, GitError> {
    let ask = |path: &[u8]| {
        let path = Path::new(OsStr::from_bytes(path));
        opened.repository.is_path_ignored(path).map_err(|error| unreadable(&opened.worktree, &error))
    };
    let as_directory = |path: &[u8]| [path, b"/"].concat();
    // libgit2 treats every path as a directory and reads its `.gitignore`, which would block on a fifo.
    let own_file = on_disk(opened, path).join(".gitignore");
    check_regular(&own_file)?;
    if external::read_rules(&own_file)?.is_some_and(|text| pattern::breaks_libgit2(&text)) {
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
