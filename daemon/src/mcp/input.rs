//! What the tools take: types, their schemas, and the bounds that a schema only tells of. No client
//! is relied on to have looked at a schema.

use proctor_core::api::SkillsAsked;
use proctor_core::names::{ChangesetId, ProfileName, RunId};
use proctor_core::sql::{Allow, Dialect, Policy, Request};
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::service::{MAX_WAIT, Stdio, Unit};

/// The longest path that is looked at, in bytes (`PATH_MAX`).
const MAX_PATH: usize = 4096;
/// The longest statement, and the longest schema, in bytes.
const MAX_SQL: usize = 256 << 10;
/// The longest question, in bytes.
const MAX_QUESTION: usize = 4 << 10;

/// The arguments of `antigravity.verify`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Verify {
    /// The top of the repository's work tree, as an absolute path.
    #[schemars(length(min = 1, max = MAX_PATH), extend("pattern" = "^/"))]
    pub(super) repo_root: String,
    /// The directory below `changes/` that gets the evidence. Without one it goes to proctor's own store.
    #[serde(default)]
    pub(super) changeset_id: Option<ChangesetId>,
    /// The profile of `spec/verification.yaml` that is verified.
    #[serde(default = "pr")]
    pub(super) profile: ProfileName,
    /// Which skills of the profile run. `not_passed` is for the time while you mend: a quick look, that verifies nothing as
    /// a whole.
    #[serde(default)]
    pub(super) skills: SkillsAsked,
    /// How long the answer may take, in seconds. A run that has not ended by then goes on; ask
    /// `antigravity.verify_status` for it.
    #[serde(default = "long")]
    #[schemars(range(min = 0, max = MAX_WAIT.as_secs()))]
    pub(super) wait_s: u64,
}

/// The arguments of `antigravity.verify_status`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Status {
    /// The run, as `antigravity.verify` named it.
    pub(super) run_id: RunId,
    /// How long to wait for the run's end, in seconds.
    #[serde(default)]
    #[schemars(range(min = 0, max = MAX_WAIT.as_secs()))]
    pub(super) wait_s: u64,
}

/// The arguments of `antigravity.verify_cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Cancel {
    /// The run, as `antigravity.verify` named it.
    pub(super) run_id: RunId,
    /// How long to wait for the run's end, in seconds.
    #[serde(default = "short")]
    #[schemars(range(min = 0, max = MAX_WAIT.as_secs()))]
    pub(super) wait_s: u64,
}

/// The arguments of `antigravity.verify_logs`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Logs {
    /// The run, as `antigravity.verify` named it.
    pub(super) run_id: RunId,
    /// Whether the output of a step or of a toolchain check is wanted.
    #[serde(default)]
    pub(super) of: LogsOf,
    /// The number of the step or check, from 0. Default: the first that did not pass.
    #[serde(default)]
    pub(super) n: Option<u32>,
    /// The stream. Default: standard error, or standard output where that is empty.
    #[serde(default)]
    pub(super) stream: Option<LogStream>,
    /// The first byte that is wanted. Default: so that the end of the output is in the answer.
    #[serde(default)]
    pub(super) offset: Option<u64>,
}

/// What an output is of.
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

/// The arguments of `antigravity.verify_explain`: a run, or a repository.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Explain {
    /// The run whose verdict is explained.
    #[serde(default)]
    pub(super) run_id: Option<RunId>,
    /// The top of a repository's work tree, as an absolute path: what a run of it would do, and whether
    /// its tree is verified already.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_PATH), extend("pattern" = "^/"))]
    pub(super) repo_root: Option<String>,
    /// The profile, where a repository is explained.
    #[serde(default = "pr")]
    pub(super) profile: ProfileName,
    /// The changeset whose evidence counts, where a repository is explained.
    #[serde(default)]
    pub(super) changeset_id: Option<ChangesetId>,
}

/// The arguments of `sql.verify`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Sql {
    /// The statement.
    #[schemars(length(min = 1, max = MAX_SQL))]
    pub(super) sql: String,
    /// The engine that would run it.
    #[serde(default = "sqlite")]
    pub(super) dialect: Dialect,
    /// The statements that make the schema, such as the `CREATE TABLE`s; they may insert rows.
    #[serde(default)]
    #[schemars(length(max = MAX_SQL))]
    pub(super) schema: String,
    /// A database file, as an absolute path, to judge against; it is never changed.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_PATH), extend("pattern" = "^/"))]
    pub(super) database: Option<String>,
    /// What it may do.
    #[serde(default)]
    pub(super) policy: Policy,
    /// What somebody wanted to know.
    #[serde(default)]
    #[schemars(length(max = MAX_QUESTION))]
    pub(super) question: Option<String>,
    /// The only tables that it may name; all of them where there is none.
    #[serde(default)]
    #[schemars(length(max = 256))]
    pub(super) tables: Vec<String>,
}

impl Sql {
    /// What is asked of the service.
    pub(super) fn request(self) -> Request {
        Request {
            schema: if self.schema.is_empty() { Vec::new() } else { vec![self.schema] },
            database: self.database,
            policy: self.policy,
            allow: Allow { tables: self.tables, ..Allow::default() },
            question: self.question,
            ..Request::new(self.dialect, self.sql)
        }
    }
}

fn sqlite() -> Dialect {
    Dialect::Sqlite
}

fn pr() -> ProfileName {
    ProfileName::new("pr").unwrap_or_else(|_| unreachable!("`pr` is a profile's name"))
}

/// Less than clients give a call, which is a minute at the least.
fn long() -> u64 {
    45
}

/// What steps need to end once they are cancelled.
fn short() -> u64 {
    5
}

impl From<LogsOf> for Unit {
    fn from(of: LogsOf) -> Self {
        match of {
            LogsOf::Step => Self::Step,
            LogsOf::Check => Self::Check,
        }
    }
}

impl From<LogStream> for Stdio {
    fn from(stream: LogStream) -> Self {
        match stream {
            LogStream::Stdout => Self::Stdout,
            LogStream::Stderr => Self::Stderr,
        }
    }
}

/// Arguments that keep their bounds.
pub(super) trait Arguments: DeserializeOwned {
    /// What is wrong with them, as a sentence.
    fn check(&self) -> Result<(), String>;
}

impl Arguments for Verify {
    fn check(&self) -> Result<(), String> {
        path(&self.repo_root)?;
        wait(self.wait_s)
    }
}

impl Arguments for Sql {
    fn check(&self) -> Result<(), String> {
        self.database.as_deref().map_or(Ok(()), path)?;
        let bounds = [
            ("sql", self.sql.len(), MAX_SQL),
            ("schema", self.schema.len(), MAX_SQL),
            ("question", self.question.as_ref().map_or(0, String::len), MAX_QUESTION),
        ];
        match bounds.iter().find(|(_, length, most)| length > most) {
            Some((name, length, most)) => Err(format!("`{name}` has {length} bytes, and {most} at most are taken")),
            None => Ok(()),
        }
    }
}

impl Arguments for Status {
    fn check(&self) -> Result<(), String> {
        wait(self.wait_s)
    }
}

impl Arguments for Cancel {
    fn check(&self) -> Result<(), String> {
        wait(self.wait_s)
    }
}

impl Arguments for Logs {
    fn check(&self) -> Result<(), String> {
        Ok(())
    }
}

impl Arguments for Explain {
    fn check(&self) -> Result<(), String> {
        match (&self.run_id, &self.repo_root) {
            (Some(_), None) => Ok(()),
            (None, Some(repo)) => path(repo),
            _ => Err("either `run_id` or `repo_root` is expected, and not both".to_owned()),
        }
    }
}

fn wait(seconds: u64) -> Result<(), String> {
    let most = MAX_WAIT.as_secs();
    if seconds <= most { Ok(()) } else { Err(format!("`wait_s` is {seconds}; 0 to {most} are allowed")) }
}

fn path(repo: &str) -> Result<(), String> {
    match repo {
        _ if repo.len() > MAX_PATH => Err(format!("`repo_root` is longer than {MAX_PATH} bytes")),
        _ if !repo.starts_with('/') => Err("`repo_root` is not an absolute path".to_owned()),
        _ if repo.contains('\0') => Err("`repo_root` holds a NUL".to_owned()),
        _ => Ok(()),
    }
}

/// Reads the arguments of a call.
pub(super) fn read<T: Arguments>(arguments: Option<JsonObject>) -> Result<T, String> {
    let value = serde_json::Value::Object(arguments.unwrap_or_default());
    let read: T = serde_json::from_value(value).map_err(|error| error.to_string())?;
    read.check()?;
    Ok(read)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn verify(arguments: &serde_json::Value) -> Result<Verify, String> {
        read(arguments.as_object().cloned())
    }

    #[test]
    fn one_argument_is_enough() {
        let asked = verify(&json!({"repo_root": "/r"})).expect("reads");
        assert_eq!((asked.profile.as_str(), asked.changeset_id, asked.wait_s), ("pr", None, 45));
    }

    #[test]
    fn bounds_hold_whatever_a_client_looked_at() {
        for (bad, word) in [
            (json!({}), "repo_root"),
            (json!({"repo_root": "r"}), "absolute"),
            (json!({"repo_root": "/r\0"}), "NUL"),
            (json!({"repo_root": format!("/{}", "r".repeat(MAX_PATH))}), "longer"),
            (json!({"repo_root": "/r", "wait_s": 56}), "0 to 55"),
            (json!({"repo_root": "/r", "wait_s": -1}), "-1"),
            (json!({"repo_root": "/r", "changeset_id": "../x"}), "changeset id"),
            (json!({"repo_root": "/r", "profil": "pr"}), "unknown field"),
        ] {
            let error = verify(&bad).expect_err("bad");
            assert!(error.contains(word), "{bad}: {error}");
        }
    }

    #[test]
    fn either_a_run_or_a_repository_is_explained() {
        let explain = |arguments: &serde_json::Value| read::<Explain>(arguments.as_object().cloned());
        explain(&json!({"run_id": "r1"})).expect("reads");
        explain(&json!({"repo_root": "/r"})).expect("reads");
        explain(&json!({})).expect_err("neither");
        explain(&json!({"run_id": "r1", "repo_root": "/r"})).expect_err("both");
    }
}
