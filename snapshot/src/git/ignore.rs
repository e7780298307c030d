//! Which paths the rules on disk ignore, as git decides it: from the top down, so that nothing
//! inside an ignored directory can be taken back, and by the rules of the innermost repository.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use super::GitError;
use super::config::check_regular;
use super::protocol::RepoPath;
use super::reader::{Opened, holds_repository, is_real_directory, unreadable};
use crate::paths;

/// The rules of one work tree and of the repositories inside it.
pub(super) struct Rules {
    opened: Vec<Opened>,
    directories: HashMap<Vec<u8>, State>,
    /// Where submodules are, where that is known without the index.
    submodules: Option<HashSet<Vec<u8>>>,
}

#[derive(Clone, Copy)]
enum State {
    Ignored,
    /// The repository whose rules hold inside, and how many bytes of a path name its place.
    Ruled {
        by: usize,
        prefix: usize,
    },
}

impl Rules {
    /// The rules that hold at the top of `opened`.
    pub(super) fn new(opened: Opened, submodules: Option<&[RepoPath]>) -> Self {
        let top = (Vec::new(), State::Ruled { by: 0, prefix: 0 });
        let submodules = submodules.map(|paths| paths.iter().map(|path| path.0.clone()).collect());
        Self { opened: vec![opened], directories: HashMap::from([top]), submodules }
    }

    /// Whether `path` is ignored. What lies in a `.git` is ignored exactly where the directory that
    /// holds it is.
    pub(super) fn ignores(&mut self, path: &[u8], is_directory: bool) -> Result<bool, GitError> {
        let mut here = State::Ruled { by: 0, prefix: 0 };
        let above = paths::ancestors(path).chain(is_directory.then_some(path));
        for directory in above {
            if paths::name(directory) == b".git" {
                return Ok(matches!(here, State::Ignored));
            }
            here = self.state_of(directory, here)?;
        }
        match here {
            State::Ignored => Ok(true),
            State::Ruled { by, prefix } if !is_directory && paths::name(path) != b".git" => {
                leaf_is_ignored(&self.opened[by], &path[prefix..])
            }
            State::Ruled { .. } => Ok(false),
        }
    }

    fn state_of(&mut self, directory: &[u8], parent: State) -> Result<State, GitError> {
        if let Some(state) = self.directories.get(directory) {
            return Ok(*state);
        }
        let state = self.find_state(directory, parent)?;
        self.directories.insert(directory.to_vec(), state);
        Ok(state)
    }

    fn find_state(&mut self, directory: &[u8], parent: State) -> Result<State, GitError> {
        let State::Ruled { by, prefix } = parent else {
            return if self.is_known_submodule(directory) { self.ruled_inside(directory, parent) } else { Ok(parent) };
        };
        let outer = &self.opened[by];
        let inside = &directory[prefix..];
        let is_submodule = || match &self.submodules {
            Some(known) => Ok(known.contains(directory)),
            None => outer.has_gitlink(inside),
        };
        if directory_is_ignored(outer, inside)? && !is_submodule()? {
            return Ok(State::Ignored);
        }
        self.ruled_inside(directory, parent)
    }

    fn is_known_submodule(&self, directory: &[u8]) -> bool {
        self.submodules.as_ref().is_some_and(|known| known.contains(directory))
    }

    /// What holds inside a directory: the rules of the repository that it is, or else what holds
    /// around it.
    fn ruled_inside(&mut self, directory: &[u8], parent: State) -> Result<State, GitError> {
        let place = on_disk(&self.opened[0], directory);
        if !is_real_directory(&self.opened[0], directory)? || !holds_repository(&place)? {
            return Ok(parent);
        }
        self.opened.push(Opened::open(&place)?);
        Ok(State::Ruled { by: self.opened.len() - 1, prefix: directory.len() + 1 })
    }
}

/// Where a path relative to the top of `opened` is on disk.
pub(super) fn on_disk(opened: &Opened, path: &[u8]) -> PathBuf {
    opened.worktree.join(OsStr::from_bytes(path))
}

/// Whether a directory is ignored, given that none above it is.
pub(super) fn directory_is_ignored(opened: &Opened, path: &[u8]) -> Result<bool, GitError> {
    let with_slash = [path, b"/"].concat();
    ask(opened, &with_slash)
}

/// Whether something that is no directory is ignored, given that no directory above it is.
///
/// libgit2 asks the disk whether the path is a directory and follows links for that, so that a
/// rule `x/` would wrongly ignore a link to a directory. Where the disk would mislead it, the
/// path counts as not ignored: rather one path too many in a snapshot than one too few.
pub(super) fn leaf_is_ignored(opened: &Opened, path: &[u8]) -> Result<bool, GitError> {
    Ok(ask(opened, path)? && !on_disk(opened, path).is_dir())
}

fn ask(opened: &Opened, path: &[u8]) -> Result<bool, GitError> {
    // libgit2 takes whatever it is asked about for a directory, and would wait for the writer of a fifo.
    check_regular(&on_disk(opened, path).join(".gitignore"))?;
    opened
        .repository
        .is_path_ignored(Path::new(OsStr::from_bytes(path)))
        .map_err(|error| unreadable(&opened.worktree, &error))
}
