//! A plan: spec × profile with every default applied. There is no `Option` in it, it has a
//! digest, and it never changes. The executor runs from these values, and the record embeds
//! the same ones: nothing is defaulted after `resolve`.

mod limit;

use std::collections::BTreeMap;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::canonical;
use crate::digest::Sha256Hex;
use crate::names::{EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName};
use crate::sql::Dialect;
use crate::tier::Tier;

pub use limit::Limit;

/// Everything that one run will do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// The version of the spec's format.
    pub version: u32,
    /// The profile that was resolved.
    pub profile: ProfileName,
    /// The sha256 of the spec's bytes.
    pub spec_sha256: Sha256Hex,
    /// How skills see each other.
    pub order: SkillOrder,
    /// Checks that gate every skill, in order.
    pub toolchain: Vec<PlannedCheck>,
    /// The skills, in the order of `include`.
    pub skills: Vec<PlannedSkill>,
    /// What steps see of the files that git ignores; absent where that is `worktree`.
    #[serde(default, skip_serializing_if = "Ignored::is_default")]
    pub ignored: Ignored,
    /// The skills of the profile that are left out, since only what had not passed is to run; absent from a whole plan.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<SkillName>,
}

/// What the steps of a run of a worktree see of the files that git ignores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Ignored {
    /// Those of the worktree.
    #[default]
    Worktree,
    /// None.
    Hidden,
}

impl Ignored {
    /// Returns the word that specs and screens use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Worktree => "worktree",
            Self::Hidden => "hidden",
        }
    }

    /// Returns whether this is what holds for a spec that says nothing. Plans leave it out, so that they keep their hash.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// How the skills of a plan see each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum SkillOrder {
    /// No skill uses `needs`: one after the other, each on the layers of all before it.
    Sequence,
    /// Some skill uses `needs`: each sees the snapshot and the layers of what it needs.
    Graph {
        /// How many skills may run at once, at least 1.
        parallel: u32,
    },
}

/// One toolchain check, with the command that will run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedCheck {
    /// The toolchain that it proves.
    pub toolchain: ToolchainName,
    /// The range that the version must satisfy.
    pub version: VersionDemand,
    /// The command.
    pub run: PlannedStep,
}

/// What a toolchain check demands of the version that its output names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum VersionDemand {
    /// Nothing.
    Any,
    /// A semver range in the syntax of cargo.
    Range {
        /// The range as written, such as `>=1.80, <2`.
        range: String,
    },
}

/// One skill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedSkill {
    /// Its name.
    pub name: SkillName,
    /// What a person wrote about it; empty where nothing was written.
    pub description: String,
    /// Its determinism class.
    pub determinism: Determinism,
    /// The tier that the spec declares, 1 or 2.
    pub declared_tier: Tier,
    /// The skills whose layers it sees, in the order of the plan.
    pub needs: Vec<SkillName>,
    /// Directories below the repository that the skill keeps from its last pass to the next run.
    pub caches: Vec<RelPath>,
    /// Where it runs, for remote execution: properties by name.
    pub platform: BTreeMap<String, String>,
    /// The container image for remote execution; empty where none was named.
    pub container: String,
    /// The steps, in order; at least one.
    pub steps: Vec<PlannedStep>,
}

/// One command as it will run. (Evidence embeds it flat, so it cannot deny unknown fields.)
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedStep {
    /// Its name, unique in its skill.
    pub name: StepName,
    /// The argument vector; the first is the program.
    pub cmd: Argv,
    /// Whose SQL it judges, where the spec has `sql` in place of a command. Our own program carries that out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sql: Option<Dialect>,
    /// Where it runs, relative to the repository.
    pub workdir: RelPath,
    /// When it must have ended, in milliseconds; at least 1.
    pub timeout_ms: u64,
    /// How long it has between SIGTERM and SIGKILL, in milliseconds.
    pub grace_ms: u64,
    /// What network it sees.
    pub network: Network,
    /// What it must not change.
    pub read_only: ReadOnly,
    /// The variables that it gets from the caller.
    pub env_allowlist: Vec<EnvName>,
    /// The variables that the spec sets.
    pub env: BTreeMap<VarName, String>,
    /// Its limits.
    pub limits: Limits,
    /// How often a failed attempt is repeated.
    pub retries: u32,
    /// What processes mean that are left when the command has ended; absent where that is `warn`.
    #[serde(default, skip_serializing_if = "Leaks::is_default")]
    pub leaks: Leaks,
    /// The exit codes that count as success; at least one.
    pub expect_exit: Vec<u8>,
    /// What its result depends on.
    pub inputs: Inputs,
    /// Reports that it writes.
    pub reports: Vec<ReportFile>,
}

/// An argument vector: at least the program, never an empty program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
#[schemars(extend("minItems" = 1))]
pub struct Argv(Vec<String>);

/// A list of words that is no argument vector.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadArgv {
    /// There is no program in it.
    #[error("the command is empty")]
    Empty,
    /// A word holds a NUL, which no argument can.
    #[error("an argument holds a NUL byte")]
    Nul,
}

impl Argv {
    /// Checks the words.
    ///
    /// # Errors
    /// There is no program, or a word holds a NUL byte.
    pub fn new(words: Vec<String>) -> Result<Self, BadArgv> {
        if words.first().is_none_or(String::is_empty) {
            return Err(BadArgv::Empty);
        }
        if words.iter().any(|word| word.contains('\0')) {
            return Err(BadArgv::Nul);
        }
        Ok(Self(words))
    }

    /// The program: a path or a name that is looked up in `PATH`.
    pub fn program(&self) -> &str {
        &self.0[0]
    }

    /// All words, the program first.
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

/// As a POSIX shell would have to be told it.
impl fmt::Display for Argv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = self.0.iter().map(String::as_str);
        match shlex::try_join(words) {
            Ok(line) => f.write_str(&line),
            Err(_) => write!(f, "{:?}", self.0),
        }
    }
}

/// A path below the repository: relative, without `..`, `.` alone for the repository itself.
/// Written with single `/` between its components and none at its end.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RelPath(String);

/// A path that does not lie below the repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` {problem}")]
pub struct BadRelPath {
    /// The path as it was given.
    pub path: String,
    /// What is wrong with it, as a phrase that follows the path.
    pub problem: &'static str,
}

impl RelPath {
    /// Checks and normalises a path.
    ///
    /// # Errors
    /// The path is empty or absolute, climbs with `..`, or holds a NUL byte.
    pub fn new(path: impl Into<String>) -> Result<Self, BadRelPath> {
        let path = path.into();
        let problem = if path.is_empty() {
            "is empty; write `.` for the repository itself"
        } else if path.starts_with('/') {
            "is absolute; a path relative to the repository is expected"
        } else if path.contains('\0') {
            "holds a NUL byte"
        } else if path.split('/').any(|part| part == "..") {
            "leaves the repository by `..`"
        } else {
            let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
            return Ok(Self(if parts.is_empty() { ".".to_owned() } else { parts.join("/") }));
        };
        Err(BadRelPath { path, problem })
    }

    /// The repository itself.
    pub fn repository() -> Self {
        Self(".".to_owned())
    }

    /// The path as text; `.` is the repository itself.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl TryFrom<String> for RelPath {
    type Error = BadRelPath;
    fn try_from(path: String) -> Result<Self, BadRelPath> {
        Self::new(path)
    }
}

impl From<RelPath> for String {
    fn from(path: RelPath) -> String {
        path.0
    }
}

impl fmt::Display for RelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What network a step sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Network {
    /// Its own loopback and nothing else.
    Deny,
    /// The host's.
    Allow,
}

impl Network {
    /// The word of the documents and of the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
        }
    }
}

/// What a step must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadOnly {
    /// Nothing is protected but `.git`; changes are applied to the worktree after a pass.
    Off,
    /// Everything that the snapshot covers.
    Tracked,
    /// The whole tree, ignored paths too, caches aside.
    Strict,
}

impl ReadOnly {
    /// The word of the documents and of the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tracked => "tracked",
            Self::Strict => "strict",
        }
    }
}

/// What processes mean that a step leaves behind. They are killed in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Leaks {
    /// Nothing: they are not looked for.
    Ignore,
    /// They are recorded and reported as a warning.
    #[default]
    Warn,
    /// The step fails.
    Fail,
}

impl Leaks {
    /// Returns the word that specs and screens use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ignore => "ignore",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }

    /// Returns whether this is the mode of a step that sets none. Plans leave it out, so that they keep their hash.
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// D0: stable evidence is byte-equal on a rerun, output hashes included. D1: the outcome is
/// equal, output may differ. D2: may vary; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Determinism {
    /// Byte-equal.
    D0,
    /// Equal outcome.
    D1,
    /// May vary.
    D2,
}

/// The limits of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Memory, in bytes.
    pub memory: Limit,
    /// Processes and threads.
    pub pids: Limit,
    /// What its layer may hold, in bytes.
    pub disk: Limit,
    /// What is kept of its output, in bytes for each stream; all of it is hashed and counted.
    pub output: Limit,
    /// CPU time of one process, in seconds.
    pub cpu_seconds: Limit,
    /// Open files of one process.
    pub open_files: Limit,
}

/// One file for each so many bytes of `disk`: an empty file costs the kernel memory too, which the
/// size of a tmpfs does not count.
const BYTES_PER_FILE: u64 = 16 << 10;
/// However little that is, so many files have room.
const MIN_FILES: u64 = 4096;

/// How many files go with so many bytes of disk.
pub fn files_of(bytes: u64) -> u64 {
    (bytes / BYTES_PER_FILE).max(MIN_FILES)
}

/// What the result of a step depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Inputs {
    /// The whole tree.
    Tree,
    /// The files that match one of these globs.
    Globs(Vec<String>),
}

/// A report that a step writes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ReportFile {
    /// Its format.
    pub format: ReportFormat,
    /// Where the step writes it, relative to the repository.
    pub path: RelPath,
}

/// The format of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReportFormat {
    /// JUnit XML.
    Junit,
    /// SARIF 2.1.0.
    Sarif,
}

impl ReportFormat {
    /// The word of the spec, of the documents and of paths.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Junit => "junit",
            Self::Sarif => "sarif",
        }
    }

    /// What a word means.
    pub fn of(word: &str) -> Option<Self> {
        [Self::Junit, Self::Sarif].into_iter().find(|format| format.as_str() == word)
    }
}

impl Plan {
    /// The sha256 of the plan's canonical JSON.
    pub fn digest(&self) -> Sha256Hex {
        Sha256Hex::of(&canonical::to_vec(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_normalised_and_cannot_climb() {
        assert_eq!(RelPath::new("./a//b/").expect("ok").as_str(), "a/b");
        assert_eq!(RelPath::new("./").expect("ok").as_str(), ".");
        for bad in ["", "/a", "a/../..", "..", "a\0"] {
            assert!(RelPath::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_command_needs_a_program() {
        assert_eq!(Argv::new(vec![]), Err(BadArgv::Empty));
        assert_eq!(Argv::new(vec![String::new()]), Err(BadArgv::Empty));
        assert_eq!(Argv::new(vec!["a b".into(), "c".into()]).expect("ok").to_string(), "'a b' c");
    }
}
