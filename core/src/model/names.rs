//! Types for the names in specs and requests. Each kind of name has its own type and is validated when it is parsed.

use std::borrow::Borrow;
use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Error for text that is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind}: {rule}")]
pub struct BadName {
    /// The expected kind of name, such as `step name`.
    pub kind: &'static str,
    /// The text as given.
    pub text: String,
    /// The violated rule, as a human-readable phrase.
    pub rule: &'static str,
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $pattern:literal, $rule:literal, $accepts:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
        #[serde(try_from = "String", into = "String")]
        #[schemars(extend("pattern" = $pattern))]
        pub struct $name(String);

        impl $name {
            /// The rule for this kind of name, as a human-readable phrase.
            pub const RULE: &'static str = $rule;

            /// Parses a name.
            ///
            /// # Errors
            /// Returns an error if the text violates the rule for this kind of name.
            pub fn new(text: impl Into<String>) -> Result<Self, BadName> {
                let text = text.into();
                let accepts: fn(&str) -> bool = $accepts;
                if accepts(&text) {
                    Ok(Self(text))
                } else {
                    Err(BadName { kind: $kind, text, rule: $rule })
                }
            }

            /// Returns the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                Self::new(text)
            }
        }
        impl std::str::FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                Self::new(text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0
            }
        }
        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }
    };
}

name!(
    /// The name of a group of steps, such as `verify.format.check`.
    SkillName, "skill name", r"^[^\x00-\x1f\x7f]{1,200}$",
    "1 to 200 bytes without control characters are expected",
    |t| is_printable(t)
);
name!(
    /// The name of a profile, such as `pr`.
    ProfileName, "profile name", r"^[^\x00-\x1f\x7f]{1,200}$",
    "1 to 200 bytes without control characters are expected",
    |t| is_printable(t)
);
name!(
    /// The name of a toolchain, such as `rust`.
    ToolchainName, "toolchain name", r"^[^\x00-\x1f\x7f]{1,200}$",
    "1 to 200 bytes without control characters are expected",
    |t| is_printable(t)
);
name!(
    /// The name of a step, unique in its skill.
    StepName, "step name", r"^[a-zA-Z0-9_.-]+$",
    "letters, digits, `_`, `.` and `-` are allowed",
    |t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(&b))
);
name!(
    /// The name of an environment variable that a step inherits from the caller.
    EnvName, "environment variable name", r"^[A-Z0-9_]+$",
    "upper-case letters, digits and `_` are allowed",
    |t| !t.is_empty() && t.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
);
name!(
    /// The name of a variable that a spec sets. Less strict than [`EnvName`], because programs use variables such as
    /// `npm_config_offline`.
    VarName, "environment variable name", r"^[A-Za-z_][A-Za-z0-9_]*$",
    "letters, digits and `_` are allowed, no digit first",
    |t| !t.starts_with(|c: char| c.is_ascii_digit())
        && !t.is_empty()
        && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
);
name!(
    /// The ID of a proposed change: the name of its directory in `changes/`.
    ChangesetId, "changeset id", r"^(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9._-]{0,127}$",
    "a letter or digit, then up to 127 letters, digits, `.`, `_` or `-`, without `..`",
    is_changeset_id
);
name!(
    /// The ID of a run: sortable by start time, and safe as a file name.
    RunId, "run id", r"^[0-9A-Za-z][0-9A-Za-z-]{0,63}$",
    "up to 64 letters, digits and `-`",
    |t| (1..=64).contains(&t.len())
        && !t.starts_with('-')
        && t.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
);
name!(
    /// The ID of a single command that a daemon runs, valid while the command runs.
    ExecId, "command id", r"^[0-9a-f]{32}$",
    "32 hexadecimal digits",
    |t| t.len() == 32 && t.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
);
name!(
    /// The value of the header `Idempotency-Key`, which identifies a request of one user.
    IdempotencyKey, "idempotency key", r"^[!-~]{1,255}$",
    "1 to 255 visible ASCII characters without spaces are expected",
    |t| (1..=255).contains(&t.len()) && t.bytes().all(|b| b.is_ascii_graphic())
);

fn is_printable(text: &str) -> bool {
    (1..=200).contains(&text.len()) && !text.chars().any(char::is_control)
}

fn is_changeset_id(text: &str) -> bool {
    let tail = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    (1..=128).contains(&text.len())
        && text.as_bytes()[0].is_ascii_alphanumeric()
        && text.bytes().all(tail)
        && !text.contains("..")
}

impl SkillName {
    /// Returns the file name of the skill's evidence in `verify/`: the name with each character outside
    /// `[A-Za-z0-9._-]` replaced by `_`, and the suffix `.json`. Different names can have the same file name; see
    /// [`find_artifact_clash`].
    pub fn artifact(&self) -> String {
        let keep = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        let stem: String = self.0.chars().map(|c| if keep(c) { c } else { '_' }).collect();
        format!("{stem}.json")
    }
}

/// File name of the evidence of the toolchain checks.
pub const TOOLCHAIN_ARTIFACT: &str = "_toolchain.json";

/// Returns the first two skills with the same evidence file name, or the first skill whose file name is that of the
/// toolchain checks. Such a spec is rejected, because one file would overwrite the other.
pub fn find_artifact_clash<'a>(
    skills: impl IntoIterator<Item = &'a SkillName>,
) -> Option<(Option<&'a SkillName>, &'a SkillName)> {
    let mut seen = std::collections::BTreeMap::new();
    seen.insert(TOOLCHAIN_ARTIFACT.to_owned(), None);
    for skill in skills {
        if let Some(earlier) = seen.insert(skill.artifact(), Some(skill)) {
            return Some((earlier, skill));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejects_changeset_ids_with_traversal_or_leading_dot() {
        for bad in ["", ".", "..", "a..b", ".a", "-a", "a/b", "a b", "a\n", &"a".repeat(129)] {
            assert!(ChangesetId::new(bad).is_err(), "{bad:?}");
        }
        for good in ["009_x", "a", "A.b-c_d", &"a".repeat(128)] {
            assert!(ChangesetId::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn idempotency_key_has_no_spaces_and_a_maximum_length() {
        for bad in ["", "a b", " ", "a\tb", "a\n", "\u{e9}", "\u{7f}", &"a".repeat(256)] {
            assert!(IdempotencyKey::new(bad).is_err(), "{bad:?}");
        }
        for good in ["!", "~", "5f6c2e", &"a".repeat(255)] {
            assert!(IdempotencyKey::new(good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn artifact_is_a_file_name() {
        let skill = SkillName::new("verify/lint: all").expect("a name");
        assert_eq!(skill.artifact(), "verify_lint__all.json");
    }

    #[test]
    fn finds_skills_with_the_same_artifact() {
        let name = |t: &str| SkillName::new(t).expect("a name");
        let (a, b, toolchain) = (name("a b"), name("a/b"), name("_toolchain"));
        assert_eq!(find_artifact_clash([&a, &b]), Some((Some(&a), &b)));
        assert_eq!(find_artifact_clash([&a, &toolchain]), Some((None, &toolchain)));
        assert_eq!(find_artifact_clash([&a]), None);
    }
}
