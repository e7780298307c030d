//! A plan: a resolved spec and profile with all defaults applied.
//!
//! A plan is immutable and has a digest. The executor runs from the plan and the record embeds
//! it; no defaults are applied after `resolve`.

mod file_rules;
mod limit;
mod limits;
mod needed_path;
mod rel_path;
mod relocation;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::names::{EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName};
use crate::model::run_scope::RunScope;
use crate::model::tier::Tier;
use crate::sql::sql_policy::Dialect;
use crate::text::canonical;
use crate::text::digest::Sha256Hex;

pub use file_rules::{FILES_PLACEHOLDER, FileRules, REGEX_PREFIX};
pub use limit::Limit;
pub(crate) use limits::LimitDocument;
pub use limits::{LIMIT_DEFINITIONS, LimitDefinition, LimitSettings, LimitUnit, Limits, PerLimit, max_files};
pub use needed_path::{NeededPath, PathKey, PathSource, SkillToolchains, is_lock_file};
pub use rel_path::{BadRelPath, RelPath};

/// Everything that a run will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Version of the spec format.
    pub version: u32,
    /// The resolved profile.
    pub profile: ProfileName,
    /// The sha256 of the spec file.
    pub spec_sha256: Sha256Hex,
    /// The directory that contains `spec/`, relative to the repository; absent for the repository itself.
    #[serde(default = "RelPath::repository", skip_serializing_if = "RelPath::is_repository")]
    pub spec_dir: RelPath,
    /// How the skills see each other's changes.
    pub order: SkillOrder,
    /// Checks that must pass before any skill runs, in order.
    pub toolchain: Vec<PlannedCheck>,
    /// The skills, in the order of `include`.
    pub skills: Vec<PlannedSkill>,
    /// The ignored files that steps see; absent for `worktree`.
    #[serde(default, skip_serializing_if = "Ignored::is_default")]
    pub ignored: Ignored,
    /// Skills of the profile that a partial run leaves out because they passed before; absent if the plan is complete.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<SkillName>,
    /// The part of the profile that the run executes; absent if it executes all steps over all files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<RunScope>,
}

/// The git-ignored files that steps see in a run of a worktree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ignored {
    /// The worktree's ignored files.
    #[default]
    Worktree,
    /// No ignored files.
    Hidden,
}

impl Ignored {
    /// Returns the word for specs and human-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worktree => "worktree",
            Self::Hidden => "hidden",
        }
    }

    /// Returns whether this is the default. Serialized plans omit the default so that their hashes do not change.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How the skills of a plan see each other's changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SkillOrder {
    /// No skill uses `needs`: skills run one after the other, and each sees the changes of all skills before it.
    Sequence,
    /// At least one skill uses `needs`: each skill sees the snapshot and the changes of the skills that it needs.
    Graph {
        /// Maximum number of skills that run at once, at least 1.
        parallel: u32,
    },
}

/// A toolchain check with its command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedCheck {
    /// The toolchain that the check belongs to.
    pub toolchain: ToolchainName,
    /// The required version.
    pub version: VersionDemand,
    /// The command.
    pub run: PlannedStep,
}

/// The requirement for the version in the output of a toolchain check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum VersionDemand {
    /// Any version.
    Any,
    /// A semver range in cargo's syntax.
    Range {
        /// The range as written, such as `>=1.80, <2`.
        range: String,
    },
}

/// A skill in a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedSkill {
    /// The name.
    pub name: SkillName,
    /// The description from the spec; empty if absent.
    pub description: String,
    /// The determinism class.
    pub determinism: Determinism,
    /// The tier declared in the spec, 1 or 2.
    pub declared_tier: Tier,
    /// The skills whose changes this skill sees, in the order of the plan.
    pub needs: Vec<SkillName>,
    /// Directories in the repository that the skill keeps from its last passed run for the next one.
    pub caches: Vec<RelPath>,
    /// The caches whose content never changes the result of a step, as the spec declares; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transparent_caches: Vec<RelPath>,
    /// Directories that git ignores and that the steps need, sorted by path; absent if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs_paths: Vec<NeededPath>,
    /// The toolchains that the skill uses; absent for all.
    #[serde(default, skip_serializing_if = "SkillToolchains::is_default")]
    pub toolchains: SkillToolchains,
    /// Properties of the worker machine by name, for remote execution.
    pub platform: BTreeMap<String, String>,
    /// The container image for remote execution; empty if the spec names none.
    pub container: String,
    /// The steps, in order; at least one.
    pub steps: Vec<PlannedStep>,
}

/// A step of a plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedStep {
    /// The name, unique in the skill.
    pub name: StepName,
    /// The argument vector; the first word is the program.
    pub cmd: Argv,
    /// The SQL dialect if the spec has `sql` instead of a command. The command then is Proctor's own SQL checker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<Dialect>,
    /// The working directory, relative to the repository.
    pub workdir: RelPath,
    /// Timeout, in milliseconds; at least 1.
    pub timeout_ms: u64,
    /// Time between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// Network access.
    pub network: Network,
    /// Files that the step must not change.
    pub read_only: ReadOnly,
    /// Environment variables that the step inherits from the caller.
    pub env_allowlist: Vec<EnvName>,
    /// Environment variables that the spec sets.
    pub env: BTreeMap<VarName, String>,
    /// Resource limits.
    pub limits: Limits,
    /// Maximum number of retries after a failed attempt.
    pub retries: u32,
    /// How to treat processes that are still running when the command has ended; absent for `warn`.
    #[serde(default, skip_serializing_if = "Leaks::is_default")]
    pub leaks: Leaks,
    /// Exit codes that count as success; at least one.
    pub expect_exit: Vec<u8>,
    /// The files that the step checks; absent if the step checks the tree as a whole. In the command, the word
    /// `{files}` stands for the files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files: Option<FileRules>,
    /// The command that fixes what the step reports; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<Argv>,
    /// The step whose findings this step fixes; absent for steps of the spec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fixes: Option<StepName>,
    /// The files on which the result depends. The step sees no other file of the tree.
    pub inputs: Inputs,
    /// Report files that the step declares.
    pub reports: Vec<ReportFile>,
}

impl PlannedStep {
    /// Returns whether a pass counts for each checked file by itself. A report describes all files of an execution, so that
    /// a step with `reports` passes for all of its files together.
    pub fn passes_per_file(&self) -> bool {
        self.files.as_ref().is_some_and(|rules| rules.per_file) && self.reports.is_empty()
    }
}

/// An argument vector: at least one word, and the first is not empty.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(extend("minItems" = 1))]
pub struct Argv(Vec<String>);

/// Error for words that are not a valid argument vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadArgv {
    /// The words contain no program.
    #[error("the command is empty")]
    Empty,
    /// A word contains a NUL byte, which the kernel does not allow in arguments.
    #[error("an argument contains a NUL byte")]
    Nul,
}

impl Argv {
    /// Checks the words.
    ///
    /// # Errors
    /// Returns an error if there is no program or a word contains a NUL byte.
    pub fn new(words: Vec<String>) -> Result<Self, BadArgv> {
        if words.first().is_none_or(String::is_empty) {
            return Err(BadArgv::Empty);
        }
        if words.iter().any(|word| word.contains('\0')) {
            return Err(BadArgv::Nul);
        }
        Ok(Self(words))
    }

    /// Returns the program: a path, or a name to look up in `PATH`.
    pub fn program(&self) -> &str {
        &self.0[0]
    }

    /// Returns all words, including the program.
    pub fn words(&self) -> &[String] {
        &self.0
    }
}

impl TryFrom<Vec<String>> for Argv {
    type Error = BadArgv;
    fn try_from(words: Vec<String>) -> Result<Self, BadArgv> {
        Self::new(words)
    }
}

impl From<Argv> for Vec<String> {
    fn from(argv: Argv) -> Vec<String> {
        argv.0
    }
}

/// Formats the vector as a POSIX shell command line.
impl fmt::Display for Argv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.iter().map(String::as_str);
        match shlex::try_join(words) {
            Ok(line) => f.write_str(&line),
            Err(_) => write!(f, "{:?}", self.0),
        }
    }
}

/// Network access of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// An isolated loopback interface only.
    Deny,
    /// The host's network.
    Allow,
}

impl Network {
    /// Returns the word for documents and human-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}

/// Files that a step must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadOnly {
    /// Only `.git` is protected; changes are applied to the worktree after a pass.
    Off,
    /// All files that the snapshot covers.
    Tracked,
    /// The whole tree including ignored files, except for caches.
    Strict,
}

impl ReadOnly {
    /// Returns the word for documents and human-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tracked => "tracked",
            Self::Strict => "strict",
        }
    }
}

/// How to treat processes that a step leaves behind. They are killed in all cases.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Leaks {
    /// The processes are not detected or reported.
    Ignore,
    /// The processes are recorded and reported as a warning.
    #[default]
    Warn,
    /// The step fails.
    Fail,
}

impl Leaks {
    /// Returns the word for specs and human-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }

    /// Returns whether this is the default. Serialized plans omit the default so that their hashes do not change.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// Determinism class of a skill.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Determinism {
    /// The stable evidence is byte-equal on a rerun, including output hashes.
    D0,
    /// The outcome is equal on a rerun; the output may differ.
    D1,
    /// The result may vary; it is never reused.
    D2,
}

/// The files on which the result of a step depends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// The whole tree.
    Tree,
    /// The files that match one of these globs.
    Globs(Vec<String>),
}

/// A report file that a step declares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportFile {
    /// The format.
    pub format: ReportFormat,
    /// The path, relative to the repository.
    pub path: RelPath,
}

/// The format of a report file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportFormat {
    /// JUnit XML.
    Junit,
    /// SARIF 2.1.0.
    Sarif,
}

impl ReportFormat {
    /// Returns the word for specs, documents and paths.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Junit => "junit",
            Self::Sarif => "sarif",
        }
    }

    /// Returns the format that `word` names.
    pub fn from_name(word: &str) -> Option<Self> {
        [Self::Junit, Self::Sarif].into_iter().find(|format| format.as_str() == word)
    }
}

impl Plan {
    /// Returns the sha256 of the plan's canonical JSON.
    pub fn digest(&self) -> Sha256Hex {
        Sha256Hex::digest(&canonical::to_vec(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalizes_paths_and_rejects_traversal() {
        assert_eq!(RelPath::new("./a//b/").expect("ok").as_str(), "a/b");
        assert_eq!(RelPath::new("./").expect("ok").as_str(), ".");
        for bad in ["", "/a", "a/../..", "..", "a\0"] {
            assert!(RelPath::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn rejects_command_without_program() {
        assert_eq!(Argv::new(vec![]), Err(BadArgv::Empty));
        assert_eq!(Argv::new(vec![String::new()]), Err(BadArgv::Empty));
        assert_eq!(Argv::new(vec!["a b".into(), "c".into()]).expect("ok").to_string(), "'a b' c");
    }
}
