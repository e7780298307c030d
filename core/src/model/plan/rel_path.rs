//! Checks and normalizes paths that are relative to the repository.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A normalized path in the repository: relative, without `..`, with single `/` separators and no trailing `/`. `.` is
/// the repository itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
pub struct RelPath(String);

/// Error for a path that is not inside the repository.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` {problem}")]
pub struct BadRelPath {
    /// The path as given.
    pub path: String,
    /// The problem, as a phrase that follows the path.
    pub problem: &'static str,
}

impl RelPath {
    /// Checks and normalizes a path.
    ///
    /// # Errors
    /// Returns an error if the path is empty or absolute, contains `..`, or contains a NUL byte.
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

    /// Returns the path of the repository itself.
    pub fn repository() -> Self {
        Self(".".to_owned())
    }

    /// Returns `path`, which is relative to this directory, relative to the repository.
    #[must_use]
    pub fn join(&self, path: &Self) -> Self {
        match (self.0.as_str(), path.0.as_str()) {
            (".", _) => path.clone(),
            (_, ".") => self.clone(),
            (directory, below) => Self(format!("{directory}/{below}")),
        }
    }

    /// Returns whether this is the repository itself.
    pub fn is_repository(&self) -> bool {
        self.0 == "."
    }

    /// Returns the path as text; `.` is the repository itself.
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
