//! A request to run a statement, and the rows of its result.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Judgement, SqlColumn, SqlRequest};

/// A request to judge a statement and, if the verdict is `ok`, to run it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "SqlRunRequest")]
pub struct SqlRunRequest {
    /// The statement, the database and the policy.
    pub request: SqlRequest,
    /// True if the effects of a write are kept. Without it, a write is rolled back.
    #[serde(default)]
    pub commit: bool,
}

/// The judgement of a statement, and its result if the verdict is `ok`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SqlRunAnswer {
    /// The version of this document's format.
    pub version: u32,
    /// The judgement.
    pub judgement: Judgement,
    /// The result; missing if the verdict is not `ok`, or if the statement failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<ResultRows>,
    /// The reason why a statement whose verdict is `ok` has no result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The result of a statement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "SqlResult")]
pub struct ResultRows {
    /// The columns.
    pub columns: Vec<SqlColumn>,
    /// The rows, one list of values each. A number that JSON cannot represent exactly is a string, and so are dates,
    /// times and decimals. Bytes are an object with the key `base64`.
    pub rows: Vec<Vec<Value>>,
    /// True if the result has more rows than the limits permit.
    pub truncated: bool,
    /// The number of rows that a write changed itself, without those that triggers and foreign keys changed. Absent if
    /// the engine does not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed: Option<u64>,
    /// True if the effects were kept.
    pub committed: bool,
}
