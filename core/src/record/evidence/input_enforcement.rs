//! Records whether a step saw only its `inputs`, and which other files it looked for.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::model::withheld::WithheldPaths;

/// Whether the last attempt of a step saw only its `inputs`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", rename_all = "snake_case", deny_unknown_fields)]
pub enum InputEnforcement {
    /// The step saw no other file of the tree.
    Enforced {
        /// The first paths of the tree that the step looked for and that are not inputs, sorted; at most 50.
        withheld: Vec<String>,
        /// The number of paths that are not inputs; at most 100,000.
        withheld_count: u64,
        /// True if the step was killed before the view could report all of these paths, or ran on a worker, where lookups
        /// are not observed; absent otherwise.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        incomplete: bool,
    },
    /// The step saw the whole tree.
    NotEnforced {
        /// The reason.
        reason: String,
    },
}

/// Maximum number of withheld paths that a phrase names.
const MAX_NAMED_PATHS: usize = 5;

impl InputEnforcement {
    /// Creates the record of an attempt that saw only its inputs. `withheld` is `None` if the view did not report the
    /// withheld paths.
    pub fn enforced(withheld: Option<WithheldPaths>) -> Self {
        let incomplete = withheld.is_none();
        let WithheldPaths { listed, count } = withheld.unwrap_or_default();
        Self::Enforced { withheld: listed, withheld_count: count, incomplete }
    }

    /// Returns the withheld paths that the step looked for, or the reason why it saw the whole tree, as a phrase; `None`
    /// if there is neither.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Enforced { withheld_count: 0, .. } => None,
            Self::Enforced { withheld, withheld_count, .. } => {
                let named: Vec<&str> = withheld.iter().take(MAX_NAMED_PATHS).map(String::as_str).collect();
                let more = withheld_count.saturating_sub(named.len() as u64);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                let paths = match withheld_count {
                    1 => "1 path that is not an input".to_owned(),
                    number => format!("{number} paths that are not inputs"),
                };
                Some(format!("looked for {paths}: {}{more}", named.join(", ")))
            }
            Self::NotEnforced { reason } => Some(format!("saw the whole tree, not only its `inputs`: {reason}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enforced(listed: &[&str], count: u64) -> InputEnforcement {
        let listed = listed.iter().map(|path| (*path).to_owned()).collect();
        InputEnforcement::enforced(Some(WithheldPaths { listed, count }))
    }

    #[test]
    fn note_names_the_first_withheld_paths() {
        assert_eq!(enforced(&[], 0).note(), None);
        assert_eq!(enforced(&["a"], 1).note().as_deref(), Some("looked for 1 path that is not an input: a"));
        let two = enforced(&["a", "b"], 2).note();
        assert_eq!(two.as_deref(), Some("looked for 2 paths that are not inputs: a, b"));
        let many = enforced(&["1", "2", "3", "4", "5", "6"], 80).note();
        assert_eq!(many.as_deref(), Some("looked for 80 paths that are not inputs: 1, 2, 3, 4, 5 and 75 more"));
    }

    #[test]
    fn missing_report_is_recorded() {
        let json = serde_json::to_value(InputEnforcement::enforced(None)).expect("writes");
        let expected =
            serde_json::json!({ "state": "enforced", "withheld": [], "withheld_count": 0, "incomplete": true });
        assert_eq!(json, expected);
    }

    #[test]
    fn note_gives_the_reason_for_missing_enforcement() {
        let missing = InputEnforcement::NotEnforced { reason: "no fuse".to_owned() };
        assert_eq!(missing.note().as_deref(), Some("saw the whole tree, not only its `inputs`: no fuse"));
    }
}
