//! The part of a profile that a run executes, if it does not execute the whole profile over all files.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::text::digest::Sha256Hex;
use crate::text::humanize::count;

/// The part of a profile that a run executes. The result of such a run counts for the whole profile only if every file that
/// it left out has passed earlier (`checked_files.covers_all` of each step with `files`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RunScope {
    /// The selected skills (`SKILL`) and steps (`SKILL/STEP`), as requested; absent if none were selected, so that all
    /// run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selected: Vec<String>,
    /// The files to which the run is restricted; absent if it covers all files. Only steps with `files` are restricted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileScope>,
    /// True if the `fix` commands of the steps ran; absent if they did not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fix: bool,
}

/// The files to which a run is restricted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FileScope {
    /// How the files were chosen.
    #[serde(flatten)]
    pub origin: FileScopeOrigin,
    /// The number of files that exist in the verified tree.
    pub count: u64,
    /// The sha256 of the sorted paths, each followed by a NUL byte.
    pub sha256: Sha256Hex,
}

/// How the files of a run were chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "origin", rename_all = "snake_case")]
pub enum FileScopeOrigin {
    /// The files that differ from a commit.
    Changed {
        /// The id of the commit.
        base: String,
        /// The id of the commit that a forced push replaces; absent if there is none. The files that this commit
        /// changed count, too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replaced: Option<String>,
    },
    /// The files that the caller named.
    Named,
}

/// A request to restrict a run to a part of the profile or of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScopeRequest {
    /// The skills (`SKILL`) and steps (`SKILL/STEP`) to run; all if the list is empty. Skills that they need run too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selected: Vec<String>,
    /// A revision. Steps with `files` are restricted to the files that differ between the verified tree and the merge base
    /// of this revision and the verified commit; no restriction if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_since: Option<String>,
    /// The full id of a commit that the verified commit replaces, such as the former commit of a branch after a forced
    /// push. The files that differ between it and its merge base with the verified commit count as changed, too. Only
    /// together with `changed_since`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaced_commit: Option<String>,
    /// Paths relative to the top of the worktree, to which steps with `files` are restricted; no restriction if absent. A
    /// directory stands for the files in it. Not together with `changed_since`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<Vec<String>>,
    /// If true, the `fix` command of each step runs before the step, and its changes are applied to the worktree.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fix: bool,
}

impl ScopeRequest {
    /// Returns whether the request is for the whole profile and all files.
    pub fn is_whole(&self) -> bool {
        *self == Self::default()
    }

    /// Returns whether the request selects a part of the profile, or asks for fixes.
    pub fn changes_plan(&self) -> bool {
        !self.selected.is_empty() || self.fix
    }
}

impl RunScope {
    /// Returns whether the run executes every step, and is restricted only to some files.
    pub fn is_of_files(&self) -> bool {
        self.selected.is_empty() && !self.fix && self.files.is_some()
    }

    /// Returns a sentence that readers need to interpret the verdict.
    pub fn sentence(&self) -> String {
        format!("the run covers only a part of the profile or of the files: {}", self.phrase())
    }

    /// Returns a phrase that describes the scope, such as `2 files changed since 1a2b3c4d5e6f`.
    pub fn phrase(&self) -> String {
        let mut parts = Vec::new();
        if !self.selected.is_empty() {
            parts.push(format!("only {}", self.selected.join(", ")));
        }
        if let Some(files) = &self.files {
            parts.push(files.phrase());
        }
        if self.fix {
            parts.push("with fixes".to_owned());
        }
        parts.join("; ")
    }
}

impl FileScope {
    fn phrase(&self) -> String {
        let files = count(usize::try_from(self.count).unwrap_or(usize::MAX), "file");
        match &self.origin {
            FileScopeOrigin::Changed { base, replaced } => {
                let short = |id: &str| id.get(..12).unwrap_or(id).to_owned();
                let dropped =
                    replaced.as_ref().map_or_else(String::new, |id| format!(" or dropped from {}", short(id)));
                format!("{files} changed since {}{dropped}", short(base))
            }
            FileScopeOrigin::Named => format!("{files} named by the caller"),
        }
    }
}
