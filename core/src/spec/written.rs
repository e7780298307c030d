//! The spec as a person wrote it: what is absent is `None`, nothing is defaulted.
//!
//! The doc comments of fields are the descriptions that an editor shows from the JSON Schema.

use std::borrow::Borrow;
use std::fmt;
use std::marker::PhantomData;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::command::Command;
use super::size::Size;
use super::span::Spanned;
use crate::names::{EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName};
use crate::plan::{Determinism, Ignored, Leaks, Network, ReadOnly, RelPath};
use crate::sql::{Allow, Check, Dialect, Limits, Policy};
use crate::tier::Tier;

/// A verification spec, version 1: what is checked in this repository, and how.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The version of this format: 1.
    #[schemars(schema_with = "version_schema")]
    pub version: Spanned<u64>,
    /// The tools that must be there before any skill runs, by name.
    pub toolchains: Option<Table<ToolchainName, Toolchain>>,
    /// What the steps of a run of a worktree see of the files that git ignores, such as `node_modules`, `.venv` and
    /// `.env`: `worktree` (the default) those of the worktree, `hidden` none.
    pub ignored: Option<Spanned<Ignored>>,
    /// Settings for every step that does not have its own.
    pub defaults: Option<Defaults>,
    /// Named lists of skills; `proctor run --profile NAME` runs one of them.
    pub profiles: Table<ProfileName, Profile>,
    /// Named groups of steps.
    pub skills: Table<SkillName, Skill>,
}

/// A tool, and the checks that prove it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Toolchain {
    /// Checks that must all hold; one that fails ends the run as inconclusive.
    pub required: Option<Vec<ToolCheck>>,
}

/// One proof that a tool is there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCheck {
    /// The command; it must exit with 0.
    pub cmd: Spanned<Command>,
    /// A semver range that the first version in its output must satisfy, such as `>=1.80, <2`.
    pub version: Option<Spanned<String>>,
}

/// Settings for every step that does not have its own.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Defaults {
    /// The directory in which commands run, relative to the repository. Default: `.`.
    pub workdir: Option<Spanned<RelPath>>,
    /// When a command must have ended, in milliseconds. Default: 600000.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<Spanned<u64>>,
    /// What network commands see: `deny` (the default) is a loopback of their own, `allow` the
    /// host's network, which raises the tier to 2.
    pub network: Option<Spanned<Network>>,
    /// What commands must not change: `off` nothing, `tracked` (the default) what the snapshot
    /// covers, `strict` the whole tree, `caches` aside.
    pub read_only: Option<Spanned<ReadOnly>>,
    /// What processes mean that are left when a command has ended: `ignore` nothing, `warn` (the
    /// default) a warning, `fail` that the step fails. They are killed in any case.
    pub leaks: Option<Spanned<Leaks>>,
    /// Variables that are passed on from the caller. The nearest list wins as a whole.
    pub env_allowlist: Option<Spanned<Vec<Spanned<EnvName>>>>,
    /// Variables that are set. Maps of defaults, skill and step are merged by name; the nearest
    /// value of a name wins.
    pub env: Option<Table<VarName, Text>>,
}

/// A named list of skills.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// The skills, in the order in which they run.
    #[schemars(length(min = 1))]
    pub include: Spanned<Vec<Spanned<SkillName>>>,
    /// How many skills may run at once where some skill of the spec uses `needs`. Default: the
    /// number of processors.
    #[schemars(range(min = 1))]
    pub parallel: Option<Spanned<u32>>,
}

/// A named group of steps with one purpose.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Skill {
    /// What it is for, for people.
    pub description: Option<Text>,
    /// `D0`: a rerun gives the same output. `D1`: the same outcome. `D2` (the default): may vary.
    pub determinism: Option<Spanned<Determinism>>,
    /// 1: anyone may run it, agents too. 2 (the default): needs trust.
    #[schemars(with = "Option<DeclaredTier>")]
    pub tier: Option<Spanned<Tier>>,
    /// The skills whose changes this one sees. Where no skill of the spec has this key, each
    /// sees those of all skills before it.
    pub needs: Option<Spanned<Vec<Spanned<SkillName>>>>,
    /// Directories below the repository that the skill keeps from its last pass to the next run, such as `target`.
    pub caches: Option<Vec<Spanned<RelPath>>>,
    /// The container image in which it runs, for remote execution.
    pub container: Option<Spanned<Text>>,
    /// Properties of the machine on which it runs, for remote execution.
    pub platform: Option<Table<Text, Text>>,
    /// The commands, in order; the first that fails ends the skill.
    #[schemars(length(min = 1))]
    pub steps: Spanned<Vec<Step>>,
    /// The directory in which commands run, relative to the repository.
    pub workdir: Option<Spanned<RelPath>>,
    /// When a command must have ended, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<Spanned<u64>>,
    /// What network commands see: `deny` or `allow`.
    pub network: Option<Spanned<Network>>,
    /// What commands must not change: `off`, `tracked` or `strict`.
    pub read_only: Option<Spanned<ReadOnly>>,
    /// What processes mean that are left when a command has ended: `ignore`, `warn` or `fail`.
    pub leaks: Option<Spanned<Leaks>>,
    /// Variables that are passed on from the caller, instead of those of the defaults.
    pub env_allowlist: Option<Spanned<Vec<Spanned<EnvName>>>>,
    /// Variables that are set, beside those of the defaults.
    pub env: Option<Table<VarName, Text>>,
}

impl Skill {
    /// The skills that it needs, as written.
    pub(super) fn needs(&self) -> impl Iterator<Item = &Spanned<SkillName>> {
        self.needs.iter().flat_map(|needs| &needs.value)
    }
}

/// One command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{ "required": ["cmd"] }, { "required": ["sql"] }]))]
pub struct Step {
    /// Its name, unique in its skill.
    pub name: Spanned<StepName>,
    /// The command: a list of words, or a string that is split into words as a POSIX shell does.
    /// No shell ever sees it; write `["sh", "-c", "…"]` where one is meant.
    pub cmd: Option<Spanned<Command>>,
    /// SQL that is judged by the engine that would run it, in place of a command.
    pub sql: Option<Spanned<SqlStep>>,
    /// The directory in which it runs, relative to the repository.
    pub workdir: Option<Spanned<RelPath>>,
    /// When it must have ended, in milliseconds.
    #[schemars(range(min = 1))]
    pub timeout_ms: Option<Spanned<u64>>,
    /// How long it has between SIGTERM and SIGKILL, in milliseconds. Default: 5000.
    pub grace_ms: Option<Spanned<u64>>,
    /// What network it sees: `deny` or `allow`.
    pub network: Option<Spanned<Network>>,
    /// What it must not change: `off`, `tracked` or `strict`.
    pub read_only: Option<Spanned<ReadOnly>>,
    /// What processes mean that are left when it has ended: `ignore`, `warn` or `fail`.
    pub leaks: Option<Spanned<Leaks>>,
    /// Variables that are passed on from the caller, instead of those of skill and defaults.
    pub env_allowlist: Option<Spanned<Vec<Spanned<EnvName>>>>,
    /// Variables that are set, beside those of skill and defaults.
    pub env: Option<Table<VarName, Text>>,
    /// Bounds on what it may use.
    pub limits: Option<StepLimits>,
    /// How often a failed attempt is repeated; a pass after that is recorded as flaky. Default: 0.
    pub retries: Option<Spanned<u32>>,
    /// Globs of the files on which its result depends. Default: the whole tree.
    #[schemars(length(min = 1))]
    pub inputs: Option<Spanned<Vec<Spanned<Text>>>>,
    /// Reports that it writes, relative to the repository; they are merged into ours.
    pub reports: Option<Reports>,
    /// What counts as success.
    pub expect: Option<Expect>,
}

/// SQL that is judged: files of the repository, or one query.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlStep {
    /// Globs of the files that are judged, in the order of their names.
    #[schemars(length(min = 1))]
    pub files: Option<Spanned<Vec<Spanned<Text>>>>,
    /// One query, in place of files.
    pub query: Option<Spanned<Text>>,
    /// Whose SQL it is: `sqlite` or `duckdb`.
    pub dialect: Spanned<Dialect>,
    /// Files with the statements that make the schema, in order.
    pub schema: Option<Vec<Spanned<RelPath>>>,
    /// A database file to judge against; it is never changed.
    pub database: Option<Spanned<RelPath>>,
    /// What a statement may do: `read`, `write` rows, or `migrate` the schema. Default: `read`.
    pub policy: Option<Spanned<Policy>>,
    /// What somebody wanted to know, for one query.
    pub question: Option<Spanned<Text>>,
    /// The only tables that may be named.
    pub tables: Option<Vec<Spanned<Text>>>,
    /// The only columns of their tables that may be named, as `table.column`.
    pub columns: Option<Vec<Spanned<Text>>>,
    /// Functions that may be called beside the harmless ones.
    pub functions: Option<Vec<Spanned<Text>>>,
    /// Bounds on each file.
    pub limits: Option<SqlLimits>,
    /// The confidence in percent from which on a warning rejects. Default: warnings never reject.
    #[schemars(range(min = 1, max = 100))]
    pub reject_at: Option<Spanned<u64>>,
}

impl SqlStep {
    /// What it has judged, with everything that it leaves out.
    pub(super) fn check(&self) -> Check {
        let texts = |list: Option<&Vec<Spanned<Text>>>| -> Vec<String> {
            list.into_iter().flatten().map(|text| text.value.0.clone()).collect()
        };
        let text = |text: Option<&Spanned<Text>>| text.map(|text| text.value.0.clone());
        let built_in = Limits::default();
        let asked = self.limits.clone().unwrap_or_default();
        let count = |asked: Option<Spanned<u64>>, built_in| asked.map_or(built_in, |asked| asked.value);
        let size = |asked: Option<Spanned<Size>>, built_in| asked.map_or(built_in, |asked| asked.value.0);
        Check {
            files: texts(self.files.as_ref().map(|files| &files.value)),
            query: text(self.query.as_ref()),
            dialect: self.dialect.value,
            schema: self.schema.iter().flatten().map(|file| file.value.clone()).collect(),
            database: self.database.as_ref().map(|file| file.value.clone()),
            policy: self.policy.map_or(Policy::default(), |policy| policy.value),
            question: text(self.question.as_ref()),
            allow: Allow {
                tables: texts(self.tables.as_ref()),
                columns: texts(self.columns.as_ref()),
                functions: texts(self.functions.as_ref()),
            },
            limits: Limits {
                time_ms: count(asked.time_ms, built_in.time_ms),
                steps: count(asked.steps, built_in.steps),
                rows: count(asked.rows, built_in.rows),
                memory: size(asked.memory, built_in.memory),
                result: size(asked.result, built_in.result),
                ..built_in
            },
            reject_at: self.reject_at.and_then(|least| least.value.try_into().ok()),
        }
    }
}

/// Bounds on the judging of one file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SqlLimits {
    /// How long it may take, in milliseconds. Default: 5000.
    #[schemars(range(min = 1, max = 600_000))]
    pub time_ms: Option<Spanned<u64>>,
    /// How many instructions of SQLite's machine a statement may take. Default: 200000000.
    #[schemars(range(min = 1))]
    pub steps: Option<Spanned<u64>>,
    /// How many rows are read of a result. Default: 10000.
    #[schemars(range(min = 1))]
    pub rows: Option<Spanned<u64>>,
    /// How much memory the engine may hold. Default: 512MiB.
    pub memory: Option<Spanned<Size>>,
    /// How large a result may be. Default: 16MiB.
    pub result: Option<Spanned<Size>>,
}

/// Bounds on what a step may use. Sizes are bytes, or a number with B, kB, MB, GB, TB (powers
/// of 1000), KiB, MiB, GiB or TiB (powers of 1024).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StepLimits {
    /// Memory. Default: no bound.
    pub memory: Option<Spanned<Size>>,
    /// Processes and threads. Default: 4096.
    #[schemars(range(min = 1))]
    pub pids: Option<Spanned<u64>>,
    /// What it may write. Default: 2GiB.
    pub disk: Option<Spanned<Size>>,
    /// How much of its output is kept, for each stream. Default: 64MiB.
    pub output: Option<Spanned<Size>>,
    /// CPU time of one process, in seconds. Default: no bound.
    #[schemars(range(min = 1))]
    pub cpu_seconds: Option<Spanned<u64>>,
    /// Open files of one process. Default: 65536.
    #[schemars(range(min = 1))]
    pub open_files: Option<Spanned<u64>>,
}

/// Reports that a step writes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reports {
    /// A JUnit XML file.
    pub junit: Option<Spanned<RelPath>>,
    /// A SARIF 2.1.0 file.
    pub sarif: Option<Spanned<RelPath>>,
}

/// What counts as success.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The exit codes that count as success. Default: `[0]`.
    #[schemars(length(min = 1))]
    pub exit: Option<Spanned<Vec<u8>>>,
}

/// Text whose value is what is written: `1.10` is `1.10`, and `no` is `no`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Text(pub String);

impl Text {
    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Text {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl JsonSchema for Text {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Text".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "number", "boolean", "null"] })
    }
}

/// A map that a person wrote: in the order of the file, each key with its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table<K, V>(pub Vec<(Spanned<K>, V)>);

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<K: Borrow<str>, V> Table<K, V> {
    /// The entries, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&Spanned<K>, &V)> {
        self.0.iter().map(|(key, value)| (key, value))
    }

    /// The keys as text, in the order of the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(key, _)| key.value.borrow())
    }

    /// The entry of a name.
    pub fn entry(&self, name: &str) -> Option<(&Spanned<K>, &V)> {
        self.iter().find(|(key, _)| key.value.borrow() == name)
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.entry(name).map(|(_, value)| value)
    }
}

impl<K: Serialize, V: Serialize> Serialize for Table<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (key, value) in &self.0 {
            map.serialize_entry(key, value)?;
        }
        map.end()
    }
}

impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Deserialize<'de> for Table<K, V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries<K, V>(PhantomData<(K, V)>);
        impl<'de, K: Deserialize<'de>, V: Deserialize<'de>> Visitor<'de> for Entries<K, V> {
            type Value = Table<K, V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut table = Table::default();
                while let Some(entry) = map.next_entry()? {
                    table.0.push(entry);
                }
                Ok(table)
            }
        }
        deserializer.deserialize_map(Entries(PhantomData))
    }
}

impl<K: JsonSchema, V: JsonSchema> JsonSchema for Table<K, V> {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Table_of_{}", V::schema_name()).into()
    }
    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let values = generator.subschema_for::<V>();
        let keys = key_schema(&K::json_schema(generator));
        json_schema!({ "type": "object", "propertyNames": keys, "additionalProperties": values })
    }
}

/// What a key must look like: keys are strings always, so of their schema the pattern counts.
fn key_schema(schema: &Schema) -> serde_json::Value {
    match schema.get("pattern") {
        Some(pattern) => serde_json::json!({ "pattern": pattern }),
        None => serde_json::json!(true),
    }
}

fn version_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "integer", "const": 1 })
}

/// The tiers that may be declared; stands for [`Tier`] in the schema only.
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
