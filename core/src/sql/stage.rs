//! Names the stages of judging SQL.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A stage of the analysis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StageName {
    /// Checks that the text contains SQL and nothing else.
    Extract,
    /// Splits the text into tokens.
    Tokenize,
    /// Parses the statements.
    Parse,
    /// Checks that all names exist.
    Bind,
    /// Checks that the policy allows the statements.
    Safety,
    /// Runs the statements within the limits.
    Run,
    /// Checks whether the statement answers the question.
    Semantic,
    /// A verifier of the operator. It runs whenever the operator's config has one, whatever stages a request names.
    Custom,
}

impl StageName {
    /// Every built-in stage, in the default order.
    pub const ALL: [Self; 7] =
        [Self::Extract, Self::Tokenize, Self::Parse, Self::Bind, Self::Safety, Self::Run, Self::Semantic];

    /// Returns the name in documents and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Extract => "extract",
            Self::Tokenize => "tokenize",
            Self::Parse => "parse",
            Self::Bind => "bind",
            Self::Safety => "safety",
            Self::Run => "run",
            Self::Semantic => "semantic",
            Self::Custom => "custom",
        }
    }
}
