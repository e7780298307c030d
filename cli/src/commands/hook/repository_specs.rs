//! Finds the specs of the worktree, for the installation and the status of hooks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use proctor_core::decision::spec_selection::spec_directory;
use proctor_core::spec;

use super::git_command::GitContext;
use super::hook_directory::HookDirectory;
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;

/// Number of subdirectories with a spec that a line names.
const MAX_NAMED_SPECS: usize = 8;

/// The specs of a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepositorySpecs {
    /// True if the worktree or the index has a spec at the top.
    pub is_at_top: bool,
    /// The subdirectories with a spec that git tracks, or that it neither tracks nor ignores; sorted.
    pub subdirectories: Vec<Vec<u8>>,
}

impl RepositorySpecs {
    /// Asks git for the specs.
    ///
    /// # Errors
    /// Git fails.
    pub(super) fn find(directory: &HookDirectory, caller: &Caller) -> Result<Self, CliError> {
        let pattern = format!(":(glob)**/{}", spec::PATH);
        let git = GitContext { directory: &directory.work_tree, is_directory_named: true, caller };
        let listed = git.run(&["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", &pattern])?;
        let paths = listed.stdout.split(|byte| *byte == 0);
        let mut found: Vec<Vec<u8>> = paths.filter_map(spec_directory).map(<[u8]>::to_vec).collect();
        found.sort();
        found.dedup();
        let is_at_top = directory.work_tree.join(spec::PATH).is_file() || found.iter().any(Vec::is_empty);
        found.retain(|directory| !directory.is_empty());
        Ok(Self { is_at_top, subdirectories: found })
    }

    /// Returns the directories with a spec, relative to the worktree.
    pub(super) fn directories(&self) -> Vec<PathBuf> {
        let top = self.is_at_top.then(PathBuf::new);
        top.into_iter().chain(self.subdirectories.iter().map(|path| OsStr::from_bytes(path).into())).collect()
    }

    /// Returns whether a hook that uses only the spec at the top would block every commit, although there are specs.
    pub(super) fn needs_each_spec(&self) -> bool {
        !self.is_at_top && !self.subdirectories.is_empty()
    }

    /// Returns the subdirectories as a list of a limited length.
    pub(super) fn list(&self) -> String {
        let mut names: Vec<String> = self
            .subdirectories
            .iter()
            .take(MAX_NAMED_SPECS)
            .map(|path| show(Path::new(OsStr::from_bytes(path))))
            .collect();
        let more = self.subdirectories.len() - names.len();
        names.extend((more > 0).then(|| format!("{more} more")));
        names.join(", ")
    }
}
