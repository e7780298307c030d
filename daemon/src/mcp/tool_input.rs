//! Defines the arguments of the tools with their schemas, and checks their limits. The server does not rely on
//! clients to check a schema.

use std::borrow::Cow;

use proctor_core::api::SkillFilter;
use proctor_core::model::names::{ChangesetId, ProfileName, RunId};
use proctor_core::sql::{
    Dialect, MAX_SAMPLES, Percent, SchemaRequest, SqlAllow, SqlBatch, SqlPolicy, SqlRequest, SqlResourceLimits,
    SqlRunRequest, StageName, one_or_many,
};
use proctor_core::text::strict_deserialize;
use rmcp::model::JsonObject;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};

use crate::service::{MAX_WAIT, OutputUnit, StdStream};

/// Maximum length of a path in bytes (`PATH_MAX`).
pub(super) const MAX_PATH: usize = 4096;
/// Maximum length of a statement and of a schema in bytes.
pub(super) const MAX_SQL: usize = 256 << 10;
/// Maximum number of tables, columns or functions in a list.
pub(super) const MAX_NAMES: usize = 256;
/// Maximum length of a question in bytes.
pub(super) const MAX_QUESTION: usize = 4 << 10;

/// Arguments of `antigravity_verify`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Verify {
    /// Absolute path of the top of the repository's work tree. Default: the client's only root, else the repository
    /// in which `proctor mcp` was started.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_PATH), extend("pattern" = "^/"))]
    pub(super) repo_root: Option<String>,
    /// Directory below `changes/` that receives the evidence. Default: Proctor's own store.
    #[serde(default)]
    pub(super) changeset_id: Option<ChangesetId>,
    /// Profile of `spec/verification.yaml` to verify.
    #[serde(default = "pr")]
    pub(super) profile: ProfileName,
    /// Skills of the profile to run. Use `not_passed` for quick checks while you fix failures; it does not verify the
    /// whole profile.
    #[serde(default)]
    pub(super) skills: SkillFilter,
    /// Skills (`SKILL`) and steps (`SKILL/STEP`) to run, and the skills that they need. Default: all. This does not
    /// verify the whole profile.
    #[serde(default)]
    #[schemars(length(max = MAX_NAMES))]
    pub(super) steps: Vec<String>,
    /// Revision, such as `HEAD` or `main`: steps with `files` check only the files that differ from it. This does not
    /// verify the whole profile.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_PATH))]
    pub(super) changed_since: Option<String>,
    /// If true, each skill starts with empty caches and discards them afterwards. A build from scratch takes longer.
    #[serde(default)]
    pub(super) no_caches: bool,
    /// Maximum time to wait for the result, in seconds. After that, the run continues; call
    /// `antigravity_verify_status` for its result.
    #[serde(default = "long")]
    #[schemars(range(min = 0, max = MAX_WAIT.as_secs()))]
    pub(super) wait_s: u64,
    /// If true, the result also contains resource links, for clients that display them. Many clients reject them.
    #[serde(default)]
    pub(super) links: bool,
}

/// Arguments of `antigravity_verify_status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Status {
    /// Run id that `antigravity_verify` returned.
    pub(super) run_id: RunId,
    /// Maximum time to wait for the end of the run, in seconds.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_WAIT.as_secs()))]
    pub(super) wait_s: u64,
    /// If true, the result also contains resource links, for clients that display them.
    #[serde(default)]
    pub(super) links: bool,
}

/// Arguments of `antigravity_verify_cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    /// Run id that `antigravity_verify` returned.
    pub(super) run_id: RunId,
    /// Maximum time to wait for the end of the run, in seconds.
    #[serde(default = "short")]
    #[schemars(range(min = 0, max = MAX_WAIT.as_secs()))]
    pub(super) wait_s: u64,
    /// If true, the result also contains resource links, for clients that display them.
    #[serde(default)]
    pub(super) links: bool,
}

/// Arguments of `antigravity_verify_logs`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Logs {
    /// Run id that `antigravity_verify` returned.
    pub(super) run_id: RunId,
    /// Unit whose output is returned: a step or a toolchain check.
    #[serde(default)]
    pub(super) of: LogsOf,
    /// Number of the step or check, from 0. Default: the first one that did not pass.
    #[serde(default)]
    pub(super) n: Option<u32>,
    /// Output stream. Default: standard error, or standard output if standard error is empty.
    #[serde(default)]
    pub(super) stream: Option<LogStream>,
    /// Offset of the first byte to return. Default: such that the result contains the end of the output.
    #[serde(default)]
    pub(super) offset: Option<u64>,
}

/// Kind of unit that produced the output.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogsOf {
    /// A step.
    #[default]
    Step,
    /// A toolchain check.
    Check,
}

/// An output stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(super) enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Arguments of `antigravity_verify_explain`: a run or a repository. Default: the repository that
/// `antigravity_verify` would use.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Explain {
    /// Run whose verdict is explained.
    #[serde(default)]
    pub(super) run_id: Option<RunId>,
    /// Absolute path of the top of a repository's work tree. The result explains what a run would do and whether the
    /// tree is verified already.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_PATH), extend("pattern" = "^/"))]
    pub(super) repo_root: Option<String>,
    /// Profile, if a repository is explained.
    #[serde(default = "pr")]
    pub(super) profile: ProfileName,
    /// Changeset whose evidence counts, if a repository is explained.
    #[serde(default)]
    pub(super) changeset_id: Option<ChangesetId>,
    /// If true, the result also contains resource links, for clients that display them.
    #[serde(default)]
    pub(super) links: bool,
}

/// Arguments of `sql_verify`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sql {
    /// The SQL statement to judge.
    #[schemars(length(min = 1, max = MAX_SQL))]
    pub(super) sql: String,
    /// Engine that would run the statement.
    #[serde(default = "sqlite")]
    pub(super) dialect: Dialect,
    /// Statements that create the schema, such as `CREATE TABLE`, in order. They may insert rows.
    #[serde(default, deserialize_with = "one_or_many")]
    pub(super) schema: Vec<String>,
    /// Absolute path of a database file to judge against. The file is never changed.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_PATH), extend("pattern" = "^/"))]
    pub(super) database: Option<String>,
    /// Kind of access that the statement may have.
    #[serde(default)]
    pub(super) policy: SqlPolicy,
    /// Question that the statement should answer, for the semantic stage.
    #[serde(default)]
    #[schemars(length(max = MAX_QUESTION))]
    pub(super) question: Option<String>,
    /// The only tables that the statement may use. Default: all tables.
    #[serde(default)]
    #[schemars(length(max = MAX_NAMES))]
    pub(super) tables: Vec<String>,
    /// The only columns that the statement may use, as `table.column`. Tables without an entry are unrestricted.
    #[serde(default)]
    #[schemars(length(max = MAX_NAMES))]
    pub(super) columns: Vec<String>,
    /// Functions that the statement may call in addition to the harmless ones.
    #[serde(default)]
    #[schemars(length(max = MAX_NAMES))]
    pub(super) functions: Vec<String>,
    /// Limits on time, memory and result size.
    #[serde(default)]
    pub(super) limits: SqlResourceLimits,
    /// Stages to run, in order. Default: all stages.
    #[serde(default)]
    pub(super) stages: Option<Vec<StageName>>,
    /// Number of statements in `sql`: `one` or `many`. Default: one; with the policy `migrate`: many.
    #[serde(default)]
    pub(super) batch: Option<SqlBatch>,
    /// Confidence in percent at which a warning causes rejection. Default: warnings never reject.
    #[serde(default)]
    pub(super) reject_at: Option<Percent>,
}

impl Sql {
    /// Converts the arguments to a request of the service.
    pub(super) fn into_request(self) -> SqlRequest {
        SqlRequest {
            schema: self.schema,
            database: self.database,
            policy: self.policy,
            allow: SqlAllow { tables: self.tables, columns: self.columns, functions: self.functions },
            question: self.question,
            limits: self.limits,
            stages: self.stages,
            batch: self.batch,
            reject_at: self.reject_at,
            ..SqlRequest::new(self.dialect, self.sql)
        }
    }
}

/// Arguments of `sql_run`: those of `sql_verify`, and `commit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SqlRun {
    /// The statement and its policy.
    pub(super) statement: Sql,
    /// True to keep the effects of a write.
    pub(super) commit: bool,
}

/// The name of the argument that `sql_run` has in addition to `sql_verify`.
const COMMIT: &str = "commit";

// A derived implementation of a flattened struct would accept unknown arguments.
impl<'de> Deserialize<'de> for SqlRun {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut arguments = JsonObject::deserialize(deserializer)?;
        let commit = arguments.remove(COMMIT).map(serde_json::from_value).transpose().map_err(D::Error::custom)?;
        let statement = serde_json::from_value(arguments.into()).map_err(D::Error::custom)?;
        Ok(Self { statement, commit: commit.unwrap_or(false) })
    }
}

impl JsonSchema for SqlRun {
    fn schema_name() -> Cow<'static, str> {
        "SqlRun".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = Sql::json_schema(generator);
        let commit = serde_json::json!({
            "type": "boolean",
            "description": "True to keep the effects of a write on `database`. Default: they are undone.",
            "default": false,
        });
        if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
            properties.insert(COMMIT.to_owned(), commit);
        }
        schema
    }
}

/// Arguments of `sql_schema`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SqlSchema {
    /// Engine of the schema.
    #[serde(default = "sqlite")]
    pub(super) dialect: Dialect,
    /// Statements that create the schema, such as `CREATE TABLE`, in order. They may insert rows.
    #[serde(default, deserialize_with = "one_or_many")]
    pub(super) schema: Vec<String>,
    /// Absolute path of a database file to describe. The file is never changed.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_PATH), extend("pattern" = "^/"))]
    pub(super) database: Option<String>,
    /// The only tables to describe. Default: all tables.
    #[serde(default)]
    #[schemars(length(max = MAX_NAMES))]
    pub(super) tables: Vec<String>,
    /// The only columns to describe, as `table.column`. Tables without an entry are unrestricted.
    #[serde(default)]
    #[schemars(length(max = MAX_NAMES))]
    pub(super) columns: Vec<String>,
    /// Number of sample values of each column. Default: none.
    #[serde(default)]
    #[schemars(range(max = 10))]
    pub(super) samples: u32,
    /// Limits on time, memory and result size.
    #[serde(default)]
    pub(super) limits: SqlResourceLimits,
}

impl SqlRun {
    /// Converts the arguments to a request of the service.
    pub(super) fn into_request(self) -> SqlRunRequest {
        SqlRunRequest { request: self.statement.into_request(), commit: self.commit }
    }
}

impl SqlSchema {
    /// Converts the arguments to a request of the service.
    pub(super) fn into_request(self) -> SchemaRequest {
        SchemaRequest {
            dialect: self.dialect,
            schema: self.schema,
            database: self.database,
            allow: SqlAllow { tables: self.tables, columns: self.columns, functions: Vec::new() },
            samples: self.samples.min(MAX_SAMPLES),
            limits: self.limits,
        }
    }
}

pub(super) fn sqlite() -> Dialect {
    Dialect::Sqlite
}

fn pr() -> ProfileName {
    ProfileName::new("pr").unwrap_or_else(|_| unreachable!("`pr` is a profile's name"))
}

/// Returns a time below the timeout of clients, which is at least a minute.
fn long() -> u64 {
    45
}

/// Returns the time that steps need to end after cancellation.
fn short() -> u64 {
    5
}

impl From<LogsOf> for OutputUnit {
    fn from(of: LogsOf) -> Self {
        match of {
            LogsOf::Step => Self::Step,
            LogsOf::Check => Self::Check,
        }
    }
}

impl From<LogStream> for StdStream {
    fn from(stream: LogStream) -> Self {
        match stream {
            LogStream::Stdout => Self::Stdout,
            LogStream::Stderr => Self::Stderr,
        }
    }
}

/// Reason why the arguments of a call are not valid. Each message is a sentence.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArgumentError {
    /// The arguments do not have the form that the tool requires.
    #[error("{}", reword_for_tools(&.0.to_string()))]
    Malformed(#[source] serde_json::Error),
    #[error("`repo_root` is missing")]
    NoRepository,
    #[error("`run_id` or `repo_root` is missing")]
    NoRunOrRepository,
    #[error("`run_id` and `repo_root` exclude each other")]
    RunAndRepository,
    #[error("`{name}` has {length} bytes, but at most {max} are allowed")]
    TooLong { name: &'static str, length: usize, max: usize },
    #[error("`{name}` has {count} names, but at most {MAX_NAMES} are allowed")]
    TooManyNames { name: &'static str, count: usize },
    #[error("`wait_s` is {seconds}; the allowed range is 0 to {}", MAX_WAIT.as_secs())]
    LongWait { seconds: u64 },
    #[error("`{0}` is longer than {MAX_PATH} bytes")]
    LongPath(&'static str),
    #[error("`{0}` is not an absolute path")]
    RelativePath(&'static str),
    #[error("`{0}` holds a NUL")]
    NulByte(&'static str),
}

/// Arguments with limits that a schema does not enforce.
pub(super) trait ToolArguments: DeserializeOwned {
    /// Checks the limits.
    fn check(&self) -> Result<(), ArgumentError>;
}

impl ToolArguments for Verify {
    fn check(&self) -> Result<(), ArgumentError> {
        match &self.repo_root {
            Some(root) => check_path("repo_root", root)?,
            None => return Err(ArgumentError::NoRepository),
        }
        if self.steps.len() > MAX_NAMES {
            return Err(ArgumentError::TooManyNames { name: "steps", count: self.steps.len() });
        }
        if let Some(length) = self.changed_since.as_ref().map(String::len).filter(|length| *length > MAX_PATH) {
            return Err(ArgumentError::TooLong { name: "changed_since", length, max: MAX_PATH });
        }
        check_wait(self.wait_s)
    }
}

impl ToolArguments for Sql {
    fn check(&self) -> Result<(), ArgumentError> {
        self.database.as_deref().map_or(Ok(()), |file| check_path("database", file))?;
        let bounds = [
            ("sql", self.sql.len(), MAX_SQL),
            ("schema", self.schema.iter().map(String::len).sum(), MAX_SQL),
            ("question", self.question.as_ref().map_or(0, String::len), MAX_QUESTION),
        ];
        if let Some((name, length, most)) = bounds.iter().find(|(_, length, most)| length > most) {
            return Err(ArgumentError::TooLong { name, length: *length, max: *most });
        }
        let lists = [("tables", &self.tables), ("columns", &self.columns), ("functions", &self.functions)];
        match lists.iter().find(|(_, list)| list.len() > MAX_NAMES) {
            Some((name, list)) => Err(ArgumentError::TooManyNames { name, count: list.len() }),
            None => Ok(()),
        }
    }
}

impl ToolArguments for SqlRun {
    fn check(&self) -> Result<(), ArgumentError> {
        self.statement.check()
    }
}

impl ToolArguments for SqlSchema {
    fn check(&self) -> Result<(), ArgumentError> {
        self.database.as_deref().map_or(Ok(()), |file| check_path("database", file))?;
        let length = self.schema.iter().map(String::len).sum();
        if length > MAX_SQL {
            return Err(ArgumentError::TooLong { name: "schema", length, max: MAX_SQL });
        }
        let lists = [("tables", &self.tables), ("columns", &self.columns)];
        match lists.iter().find(|(_, list)| list.len() > MAX_NAMES) {
            Some((name, list)) => Err(ArgumentError::TooManyNames { name, count: list.len() }),
            None => Ok(()),
        }
    }
}

impl ToolArguments for Status {
    fn check(&self) -> Result<(), ArgumentError> {
        check_wait(self.wait_s)
    }
}

impl ToolArguments for Cancel {
    fn check(&self) -> Result<(), ArgumentError> {
        check_wait(self.wait_s)
    }
}

impl ToolArguments for Logs {
    fn check(&self) -> Result<(), ArgumentError> {
        Ok(())
    }
}

impl ToolArguments for Explain {
    fn check(&self) -> Result<(), ArgumentError> {
        match (&self.run_id, &self.repo_root) {
            (Some(_), None) => Ok(()),
            (None, Some(repo)) => check_path("repo_root", repo),
            (Some(_), Some(_)) => Err(ArgumentError::RunAndRepository),
            (None, None) => Err(ArgumentError::NoRunOrRepository),
        }
    }
}

fn check_wait(seconds: u64) -> Result<(), ArgumentError> {
    if seconds <= MAX_WAIT.as_secs() { Ok(()) } else { Err(ArgumentError::LongWait { seconds }) }
}

pub(super) fn check_path(argument: &'static str, path: &str) -> Result<(), ArgumentError> {
    match path {
        _ if path.len() > MAX_PATH => Err(ArgumentError::LongPath(argument)),
        _ if !path.starts_with('/') => Err(ArgumentError::RelativePath(argument)),
        _ if path.contains('\0') => Err(ArgumentError::NulByte(argument)),
        _ => Ok(()),
    }
}

/// Parses and checks the arguments of a call.
pub(super) fn parse<T: ToolArguments>(arguments: Option<JsonObject>) -> Result<T, ArgumentError> {
    let value = serde_json::Value::Object(arguments.unwrap_or_default());
    let read: T = strict_deserialize::from_json_value(value).map_err(ArgumentError::Malformed)?;
    read.check()?;
    Ok(read)
}

/// Rewords a parser error as a sentence about arguments.
fn reword_for_tools(message: &str) -> String {
    strict_deserialize::use_json_terms(message).replace("missing field", "missing argument").replacen(
        "unknown field",
        "unknown argument",
        1,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verify(arguments: &serde_json::Value) -> Result<Verify, ArgumentError> {
        parse(arguments.as_object().cloned())
    }

    #[test]
    fn only_repo_root_is_required() {
        let request = verify(&json!({"repo_root": "/r"})).expect("reads");
        assert_eq!((request.profile.as_str(), request.changeset_id, request.wait_s), ("pr", None, 45));
    }

    #[test]
    fn rejects_arguments_outside_limits() {
        for (bad, word) in [
            (json!({}), "repo_root"),
            (json!({"repo_root": "r"}), "absolute"),
            (json!({"repo_root": "/r\0"}), "NUL"),
            (json!({"repo_root": format!("/{}", "r".repeat(MAX_PATH))}), "longer"),
            (json!({"repo_root": "/r", "wait_s": 56}), "0 to 55"),
            (json!({"repo_root": "/r", "wait_s": -1}), "-1"),
            (json!({"repo_root": "/r", "changeset_id": "../x"}), "changeset id"),
            (json!({"repo_root": "/r", "profil": "pr"}), "unknown argument `profil`"),
            (json!({"repo_root": "/r", "profile": ["pr"]}), "array"),
        ] {
            let error = verify(&bad).expect_err("bad");
            assert!(error.to_string().contains(word), "{bad}: {error}");
        }
    }

    #[test]
    fn explain_takes_either_run_or_repository() {
        let explain = |arguments: &serde_json::Value| parse::<Explain>(arguments.as_object().cloned());
        explain(&json!({"run_id": "r1"})).expect("reads");
        explain(&json!({"repo_root": "/r"})).expect("reads");
        explain(&json!({})).expect_err("neither");
        explain(&json!({"run_id": "r1", "repo_root": "/r"})).expect_err("both");
    }
    #[test]
    fn sql_run_accepts_the_fields_of_sql_and_commit() {
        let run = |arguments: serde_json::Value| parse::<SqlRun>(arguments.as_object().cloned());
        let read = run(json!({"sql": "SELECT 1", "policy": "write", "commit": true})).expect("reads").into_request();
        assert_eq!((read.commit, read.request.sql.as_str(), read.request.policy), (true, "SELECT 1", SqlPolicy::Write));
        assert!(!run(json!({"sql": "SELECT 1"})).expect("reads").commit);
        for wrong in [json!({"sql": "SELECT 1", "comit": true}), json!({"sql": "SELECT 1", "commit": 1}), json!({})] {
            assert!(run(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sql_accepts_same_fields_as_http() {
        let sql = |arguments: &serde_json::Value| parse::<Sql>(arguments.as_object().cloned()).map(Sql::into_request);
        let whole = json!({
            "sql": "SELECT a FROM t", "dialect": "sqlite", "schema": ["CREATE TABLE t (a)"], "policy": "write",
            "limits": {"time_ms": 100}, "batch": "many", "question": "which", "stages": ["bind"], "reject_at": 80,
        });
        let mut flat = whole.clone();
        for (key, value) in [("tables", "t"), ("columns", "t.a"), ("functions", "f")] {
            flat[key] = json!([value]);
        }
        let mut nested = whole;
        nested["allow"] = json!({"tables": ["t"], "columns": ["t.a"], "functions": ["f"]});
        let over_http: SqlRequest = serde_json::from_value(nested).expect("reads");
        assert_eq!(sql(&flat).expect("reads"), over_http);
        flat["schema"] = json!("CREATE TABLE t (a)");
        assert_eq!(sql(&flat).expect("reads").schema, ["CREATE TABLE t (a)"]);
        let many = json!({"sql": "SELECT 1", "columns": vec!["a"; MAX_NAMES + 1]});
        assert!(sql(&many).expect_err("too many").to_string().contains("at most 256"));
        assert!(sql(&json!({"sql": "SELECT 1", "schema": ["x".repeat(MAX_SQL), "y"]})).is_err());
    }
}
