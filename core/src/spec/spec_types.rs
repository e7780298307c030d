//! Types for the spec as written: an absent key is `None`, and no defaults are applied.
//!
//! The doc comments of fields become the descriptions in the JSON Schema, which editors show.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::caches::WrittenCache;
use super::command::SpecCommand;
use super::needed_paths::WrittenPath;
use super::size::ByteSize;
use super::span::Spanned;
pub use super::spanned_map::SpannedMap;
use crate::model::names::{EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName};
use crate::model::plan::{
    Determinism, FileRules, Ignored, Leaks, Limit, LimitDefinition, LimitDocument, LimitUnit, Network, PerLimit,
    ReadOnly, RelPath,
};
use crate::model::tier::Tier;
use crate::spec::spec_text::SpecText;
use crate::sql::SqlCheck;
use crate::sql::sql_policy::{Dialect, SqlAllow, SqlPolicy, SqlResourceLimits};

/// A verification spec, version 1: the checks of this repository and how they run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of this format: 1.
    #[schemars(schema_with = "version_schema")]
    pub version: Spanned<u64>,
    /// Files with further toolchains, defaults, profiles and skills, relative to this file.
    pub include: Option<Vec<Spanned<SpecText>>>,
    /// Tools that must be available before any skill runs, by name.
    pub toolchains: Option<SpannedMap<ToolchainName, Toolchain>>,
    /// The git-ignored files that steps see in a run of a worktree: `worktree` (the default) shows those of the
    /// worktree, `hidden` shows none. Examples are `node_modules`, `.venv` and `.env`.
    pub ignored: Option<Spanned<Ignored>>,
    /// Settings for all skills and steps, which can override them.
    pub defaults: Option<Defaults>,
    /// Named lists of skills; `proctor run --profile NAME` runs one of them. Without profiles, there is one profile `pr`
    /// with all skills.
    #[serde(default)]
    pub profiles: SpannedMap<ProfileName, Profile>,
    /// Named groups of steps.
    pub skills: SpannedMap<SkillName, Skill>,
}

/// A file that a spec includes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IncludedSpec {
    pub(super) version: Option<Spanned<u64>>,
    pub(super) include: Option<Vec<Spanned<SpecText>>>,
    pub(super) toolchains: Option<SpannedMap<ToolchainName, Toolchain>>,
    pub(super) defaults: Option<Defaults>,
    pub(super) profiles: Option<SpannedMap<ProfileName, Profile>>,
    pub(super) skills: Option<SpannedMap<SkillName, Skill>>,
}

/// A tool and the checks for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Toolchain {
    /// Checks that must all pass; if one fails, the run is inconclusive.
    pub required: Option<Vec<ToolCheck>>,
}

/// A check that a tool is available.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCheck {
    /// The command; it must exit with code 0.
    pub cmd: Spanned<SpecCommand>,
    /// A semver range, such as `>=1.80, <2`. The first version in the output of the command must satisfy it.
    pub version: Option<Spanned<String>>,
}

/// Settings for all skills and steps, which can override them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// The determinism of skills that set none: `D0`, `D1` or `D2` (the default). It does not apply to toolchain checks
    /// and single commands.
    pub determinism: Option<Spanned<Determinism>>,
    /// The tier of skills that set none: 1 or 2 (the default). It does not apply to toolchain checks and single commands.
    #[schemars(with = "Option<DeclaredTier>")]
    pub tier: Option<Spanned<Tier>>,
    /// The directory in which commands run, relative to the repository. Default: `.`.
    pub workdir: Option<Spanned<RelPath>>,
    /// Timeout of a command, in milliseconds. Default: 600000.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<Spanned<u64>>,
    /// Network access of commands: `deny` (the default) gives each command an isolated loopback interface only, `allow`
    /// the host's network, which raises the tier to 2.
    pub network: Option<Spanned<Network>>,
    /// Files that commands must not change: `off` protects only `.git`, `tracked` (the default) the files that the
    /// snapshot covers, `strict` the whole tree except for `caches`.
    pub read_only: Option<Spanned<ReadOnly>>,
    /// How to treat processes that are still running when a command has ended: `ignore` does not report them, `warn`
    /// (the default) reports a warning, `fail` fails the step. They are killed in all cases.
    pub leaks: Option<Spanned<Leaks>>,
    /// Environment variables that commands inherit from the caller. A list in a skill or step replaces this list; the
    /// lists are not merged.
    pub env_allowlist: Option<Spanned<Vec<Spanned<EnvName>>>>,
    /// Environment variables that are set. The maps of defaults, skill and step are merged by name; step values
    /// override skill values, which override defaults.
    pub env: Option<SpannedMap<VarName, SpecText>>,
    /// Directories that git ignores and that the steps of every skill need, such as `.venv` or `node_modules`.
    pub needs_paths: Option<Spanned<Vec<Spanned<WrittenPath>>>>,
}

/// A named list of skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The skills, in the order in which they run.
    #[schemars(length(min = 1))]
    pub include: Spanned<Vec<Spanned<SkillName>>>,
    /// The maximum number of skills that run at once if any skill of the spec uses `needs`. Default: the number of
    /// processors.
    #[schemars(range(min = 1))]
    pub parallel: Option<Spanned<u32>>,
}

/// A named group of steps with one purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Skill {
    /// A human-readable description.
    pub description: Option<SpecText>,
    /// `D0`: a rerun gives the same output. `D1`: a rerun gives the same outcome. `D2`: results may vary. Default: that
    /// of `defaults`, otherwise `D2`.
    pub determinism: Option<Spanned<Determinism>>,
    /// 1: any caller may run it, including agents. 2: the caller must be trusted. Default: that of `defaults`, otherwise
    /// 2.
    #[schemars(with = "Option<DeclaredTier>")]
    pub tier: Option<Spanned<Tier>>,
    /// The skills whose changes this skill sees. If no skill of the spec has this key, each skill sees the changes of
    /// all skills before it.
    pub needs: Option<Spanned<Vec<Spanned<SkillName>>>>,
    /// Directories in the repository that the skill keeps from its last passed run for the next one, such as `target`.
    /// With a cache that is not declared as transparent, results of the skill's steps are not reused.
    pub caches: Option<Vec<Spanned<WrittenCache>>>,
    /// Directories that git ignores and that the steps of the skill need, such as `.venv` or `node_modules`, in addition
    /// to those of `defaults`.
    pub needs_paths: Option<Spanned<Vec<Spanned<WrittenPath>>>>,
    /// The toolchains that the skill uses. If one of them is missing, the skill does not run. Default: all.
    pub toolchains: Option<Spanned<Vec<Spanned<ToolchainName>>>>,
    /// The container image for remote execution.
    pub container: Option<Spanned<SpecText>>,
    /// Properties of the worker machine for remote execution.
    pub platform: Option<SpannedMap<SpecText, SpecText>>,
    /// The steps, in order; the first step that fails ends the skill.
    #[schemars(length(min = 1))]
    pub steps: Spanned<Vec<Step>>,
    /// The directory in which commands run, relative to the repository.
    pub workdir: Option<Spanned<RelPath>>,
    /// Timeout of a command, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<Spanned<u64>>,
    /// Network access of commands: `deny` or `allow`.
    pub network: Option<Spanned<Network>>,
    /// Files that commands must not change: `off`, `tracked` or `strict`.
    pub read_only: Option<Spanned<ReadOnly>>,
    /// How to treat processes that are still running when a command has ended: `ignore`, `warn` or `fail`.
    pub leaks: Option<Spanned<Leaks>>,
    /// Environment variables that commands inherit from the caller; replaces the list of `defaults`.
    pub env_allowlist: Option<Spanned<Vec<Spanned<EnvName>>>>,
    /// Environment variables that are set, in addition to those of `defaults`.
    pub env: Option<SpannedMap<VarName, SpecText>>,
}

impl Skill {
    /// Returns the skills that this skill needs, as written.
    pub(super) fn needs(&self) -> impl Iterator<Item = &Spanned<SkillName>> {
        self.needs.iter().flat_map(|needs| &needs.value)
    }
}

/// A command or an SQL check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{ "required": ["cmd"] }, { "required": ["sql"] }]))]
pub struct Step {
    /// The name, unique in the skill.
    pub name: Spanned<StepName>,
    /// The command: a list of words, or a string that is split into words as a POSIX shell does. Proctor runs it
    /// without a shell; write `["sh", "-c", "…"]` to use one.
    pub cmd: Option<Spanned<SpecCommand>>,
    /// SQL to check with its own database engine, instead of a command.
    pub sql: Option<Spanned<SqlStep>>,
    /// The directory in which the step runs, relative to the repository.
    pub workdir: Option<Spanned<RelPath>>,
    /// Timeout, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<Spanned<u64>>,
    /// Time between SIGTERM and SIGKILL, in milliseconds. Default: 5000.
    pub grace_ms: Option<Spanned<u64>>,
    /// Network access: `deny` or `allow`.
    pub network: Option<Spanned<Network>>,
    /// Files that the step must not change: `off`, `tracked` or `strict`.
    pub read_only: Option<Spanned<ReadOnly>>,
    /// How to treat processes that are still running when the command has ended: `ignore`, `warn` or `fail`.
    pub leaks: Option<Spanned<Leaks>>,
    /// Environment variables that the step inherits from the caller; replaces the lists of the skill and of `defaults`.
    pub env_allowlist: Option<Spanned<Vec<Spanned<EnvName>>>>,
    /// Environment variables that are set, in addition to those of the skill and of `defaults`.
    pub env: Option<SpannedMap<VarName, SpecText>>,
    /// Resource limits.
    pub limits: Option<StepLimits>,
    /// Maximum number of retries after a failed attempt. A step that passes on a retry is recorded as flaky. Default:
    /// 0.
    pub retries: Option<Spanned<u32>>,
    /// The files that the step checks. In the command, the word `{files}` stands for them; without it, the step runs
    /// when there is any such file.
    pub files: Option<Spanned<StepFiles>>,
    /// Maximum number of batches of `{files}` that run at once. Default: 1.
    #[schemars(range(min = 1))]
    pub parallel: Option<Spanned<u32>>,
    /// If true, the result for a file depends on no other file of `{files}`. After a pass, only changed files are checked
    /// again. Default: false.
    pub per_file: Option<Spanned<bool>>,
    /// The command that fixes what the step reports, for `proctor run --fix`.
    pub fix: Option<Spanned<SpecCommand>>,
    /// Globs of the files on which the result depends. The step sees no other file. Default: the whole tree.
    #[schemars(length(min = 1))]
    pub inputs: Option<Spanned<Vec<Spanned<SpecText>>>>,
    /// Directories that git ignores and that the step needs. All steps of the skill see them.
    pub needs_paths: Option<Spanned<Vec<Spanned<WrittenPath>>>>,
    /// Report files that the step writes, relative to the repository. Proctor merges them into its own reports.
    pub reports: Option<Reports>,
    /// The condition for success.
    pub expect: Option<Expect>,
}

/// The files that a step checks, by path and type. All keys that are given must accept a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepFiles {
    /// Patterns, one of which must match the path: globs, such as `src/**/*.py`, or regular expressions after `regex:`.
    /// Default: all paths.
    #[schemars(length(min = 1))]
    pub include: Option<Spanned<Vec<Spanned<SpecText>>>>,
    /// Patterns, none of which may match the path.
    pub exclude: Option<Spanned<Vec<Spanned<SpecText>>>>,
    /// Types that a file must all have, such as `python` or `text`. Default: `[file]`, which is every regular file.
    pub types: Option<Spanned<Vec<Spanned<SpecText>>>>,
    /// Types of which a file must have one.
    pub types_or: Option<Spanned<Vec<Spanned<SpecText>>>>,
    /// Types of which a file must have none.
    pub exclude_types: Option<Spanned<Vec<Spanned<SpecText>>>>,
}

impl StepFiles {
    /// Returns the rules, with the defaults filled in.
    pub(crate) fn to_rules(&self, parallel: u32, per_file: bool) -> FileRules {
        let texts = |list: &Option<Spanned<Vec<Spanned<SpecText>>>>| -> Vec<String> {
            list.iter().flat_map(|list| &list.value).map(|text| text.value.0.clone()).collect()
        };
        FileRules {
            include: texts(&self.include),
            exclude: texts(&self.exclude),
            types: texts(&self.types),
            types_or: texts(&self.types_or),
            exclude_types: texts(&self.exclude_types),
            base: None,
            parallel,
            per_file,
        }
    }
}

/// An SQL check of files of the repository, or of one query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlStep {
    /// Globs of the files to check, in the order of their names.
    #[schemars(length(min = 1))]
    pub files: Option<Spanned<Vec<Spanned<SpecText>>>>,
    /// One query, instead of files.
    pub query: Option<Spanned<SpecText>>,
    /// The SQL dialect: `sqlite`, `duckdb`, `postgres` or `mysql`.
    pub dialect: Spanned<Dialect>,
    /// Files with the statements that create the schema, in order.
    pub schema: Option<Vec<Spanned<RelPath>>>,
    /// A database file to check against; it is never changed.
    pub database: Option<Spanned<RelPath>>,
    /// Allowed kinds of statements: `read`, `write` rows, or `migrate` the schema. Default: `read`.
    pub policy: Option<Spanned<SqlPolicy>>,
    /// The question that the query should answer, in natural language.
    pub question: Option<Spanned<SpecText>>,
    /// The only tables that statements may use.
    pub tables: Option<Vec<Spanned<SpecText>>>,
    /// The only columns of these tables that statements may use, as `table.column`.
    pub columns: Option<Vec<Spanned<SpecText>>>,
    /// Functions that statements may call in addition to those known to be harmless.
    pub functions: Option<Vec<Spanned<SpecText>>>,
    /// Limits for the check of each file.
    pub limits: Option<SqlLimits>,
    /// The confidence in percent at which a warning rejects a statement. Default: warnings never reject.
    #[schemars(range(min = 1, max = 100))]
    pub reject_at: Option<Spanned<u64>>,
}

impl SqlStep {
    /// Returns the check to run, with the defaults filled in.
    pub(super) fn to_check(&self) -> SqlCheck {
        let texts = |list: Option<&Vec<Spanned<SpecText>>>| -> Vec<String> {
            list.into_iter().flatten().map(|text| text.value.0.clone()).collect()
        };
        let text = |text: Option<&Spanned<SpecText>>| text.map(|text| text.value.0.clone());
        let built_in = SqlResourceLimits::default();
        let limits = self.limits.clone().unwrap_or_default();
        let count = |requested: Option<Spanned<u64>>, built_in| requested.map_or(built_in, |requested| requested.value);
        let size =
            |requested: Option<Spanned<ByteSize>>, built_in| requested.map_or(built_in, |requested| requested.value.0);
        SqlCheck {
            files: texts(self.files.as_ref().map(|files| &files.value)),
            query: text(self.query.as_ref()),
            dialect: self.dialect.value,
            schema: self.schema.iter().flatten().map(|file| file.value.clone()).collect(),
            database: self.database.as_ref().map(|file| file.value.clone()),
            policy: self.policy.map_or(SqlPolicy::default(), |policy| policy.value),
            question: text(self.question.as_ref()),
            allow: SqlAllow {
                tables: texts(self.tables.as_ref()),
                columns: texts(self.columns.as_ref()),
                functions: texts(self.functions.as_ref()),
            },
            limits: SqlResourceLimits {
                time_ms: count(limits.time_ms, built_in.time_ms),
                steps: count(limits.steps, built_in.steps),
                rows: count(limits.rows, built_in.rows),
                memory: size(limits.memory, built_in.memory),
                result: size(limits.result, built_in.result),
                ..built_in
            },
            reject_at: self.reject_at.and_then(|least| least.value.try_into().ok()),
        }
    }
}

/// Limits for the check of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlLimits {
    /// Time limit, in milliseconds. Default: 5000.
    #[schemars(range(min = 1, max = 600_000))]
    pub time_ms: Option<Spanned<u64>>,
    /// Maximum number of SQLite virtual machine instructions for one statement. Default: 200000000.
    #[schemars(range(min = 1))]
    pub steps: Option<Spanned<u64>>,
    /// Maximum number of rows that are read from a result. Default: 10000.
    #[schemars(range(min = 1))]
    pub rows: Option<Spanned<u64>>,
    /// Memory limit of the engine. Default: 512MiB.
    pub memory: Option<Spanned<ByteSize>>,
    /// Maximum size of a result. Default: 16MiB.
    pub result: Option<Spanned<ByteSize>>,
}

/// Resource limits of a step as written.
pub type StepLimits = PerLimit<Option<Spanned<ByteSize>>, Option<Spanned<u64>>>;

impl LimitDocument for StepLimits {
    const NAME: &'static str = "StepLimits";
    const DESCRIPTION: &'static str = "Resource limits of a step. Sizes are in bytes, or numbers with a unit: B, kB, MB, \
        GB, TB (powers of 1000), KiB, MiB, GiB or TiB (powers of 1024).";
    const REQUIRED: bool = false;

    fn describe(definition: &LimitDefinition, property: &mut Schema) {
        let default = match (definition.built_in, definition.unit) {
            (Limit::Unlimited, _) => "no limit".to_owned(),
            (Limit::Max(bytes), LimitUnit::Bytes) => ByteSize(bytes).to_string(),
            (Limit::Max(number), _) => number.to_string(),
        };
        property.insert("description".to_owned(), format!("{}. Default: {default}.", definition.description).into());
        if let Some(minimum) = property.get_mut("minimum") {
            *minimum = 1.into();
        }
    }
}

/// Report files that a step writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reports {
    /// Path of a JUnit XML file.
    pub junit: Option<Spanned<RelPath>>,
    /// Path of a SARIF 2.1.0 file.
    pub sarif: Option<Spanned<RelPath>>,
}

/// The condition for success.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// Exit codes that count as success. Default: `[0]`.
    #[schemars(length(min = 1))]
    pub exit: Option<Spanned<Vec<u8>>>,
}

fn version_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "const": 1 })
}

/// The tiers that a skill may declare; replaces [`Tier`] in the schema.
struct DeclaredTier;

impl JsonSchema for DeclaredTier {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "DeclaredTier".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "enum": [1, 2] })
    }
}
