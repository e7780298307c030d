//! The rules that choose the files of a step by path and type.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::rel_path::RelPath;

/// The files that a step checks. A file is chosen if all rules accept it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileRules {
    /// Patterns, one of which must match the path: globs, or regular expressions after `regex:`. If the list is empty,
    /// every path matches.
    pub include: Vec<String>,
    /// Patterns, none of which may match the path.
    pub exclude: Vec<String>,
    /// Types that the file must all have.
    pub types: Vec<String>,
    /// Types of which the file must have one, unless the list is empty.
    pub types_or: Vec<String>,
    /// Types of which the file must have none.
    pub exclude_types: Vec<String>,
    /// The directory to which the patterns are relative, and below which files are chosen; absent for the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<RelPath>,
    /// Maximum number of batches of files that run at once, at least 1.
    pub parallel: u32,
    /// True if the result for a file depends on no other of these files; absent for `false`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub per_file: bool,
}

/// The word of a command that stands for the chosen files.
pub const FILES_PLACEHOLDER: &str = "{files}";

/// The beginning of a pattern that is a regular expression.
pub const REGEX_PREFIX: &str = "regex:";
