//! Paths that steps need although no commit contains them, and the toolchains of a skill.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Network, PlannedSkill, PlannedStep, RelPath};
use crate::model::names::ToolchainName;

/// A directory that git ignores and that the steps of a skill need, such as `.venv` or `node_modules`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NeededPath {
    /// The path, relative to the repository.
    pub path: RelPath,
    /// The files that determine the content of the path.
    pub key: PathKey,
    /// The origin of the content.
    pub source: PathSource,
}

/// The files that determine the content of a needed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum PathKey {
    /// The lock files in the directory that contains the path.
    LockFiles,
    /// The named files, relative to the repository.
    Files(Vec<RelPath>),
}

/// The origin of the content of a needed path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum PathSource {
    /// The worktree, if its key files are identical to those of the verified tree.
    Worktree,
    /// A command that writes the path. Its result is stored and used again as long as the key is the same.
    Prepare {
        /// The command with its settings.
        run: Box<PlannedStep>,
    },
}

impl NeededPath {
    /// Returns the command that writes the path, if it has one.
    pub fn prepare(&self) -> Option<&PlannedStep> {
        match &self.source {
            PathSource::Worktree => None,
            PathSource::Prepare { run } => Some(run),
        }
    }
}

/// The toolchains that a skill uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SkillToolchains {
    /// All toolchains of the spec.
    #[default]
    All,
    /// These toolchains only.
    Named(Vec<ToolchainName>),
}

impl SkillToolchains {
    /// Returns whether the skill uses `toolchain`.
    pub fn includes(&self, toolchain: &ToolchainName) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.contains(toolchain),
        }
    }

    /// Returns whether this is the default. Serialized plans omit the default so that their hashes do not change.
    pub(super) fn is_default(&self) -> bool {
        *self == Self::All
    }
}

impl PlannedSkill {
    /// Returns whether a path of the skill is prepared by a command that may use the network.
    pub fn prepares_with_network(&self) -> bool {
        self.needs_paths.iter().filter_map(NeededPath::prepare).any(|step| step.network == Network::Allow)
    }
}

/// Names of lock files, each of which determines the packages of the directory that contains it.
const LOCK_FILES: [&str; 11] = [
    "uv.lock",
    "poetry.lock",
    "pdm.lock",
    "Pipfile.lock",
    "package-lock.json",
    "npm-shrinkwrap.json",
    "pnpm-lock.yaml",
    "yarn.lock",
    "bun.lock",
    "bun.lockb",
    "Cargo.lock",
];

/// Returns whether a file of this name is a lock file: it determines the packages that a package manager installs.
pub fn is_lock_file(name: &[u8]) -> bool {
    let is_requirements = name.starts_with(b"requirements") && name.ends_with(b".txt");
    is_requirements || LOCK_FILES.iter().any(|known| known.as_bytes() == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognizes_lock_files() {
        for name in ["uv.lock", "requirements.txt", "requirements-dev.txt", "bun.lockb", "Cargo.lock"] {
            assert!(is_lock_file(name.as_bytes()), "{name}");
        }
        for name in ["pyproject.toml", "package.json", "lock", "my-requirements.txt", "requirements.in", ""] {
            assert!(!is_lock_file(name.as_bytes()), "{name}");
        }
    }
}
