//! Diagnostics for specs: a stable code, a one-line message, a position and hints.
//!
//! Diagnostics are plain values; the callers render excerpts and carets.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};

use super::span::Span;
use crate::code::error_code::Coded as _;
use crate::text::escape::quoted;

/// Severity of a diagnostic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The spec cannot be used.
    Error,
    /// The spec can be used, but probably does not mean what the author intended.
    Warning,
}

impl Severity {
    /// Returns the word for human-readable output.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident,)*) => {
        /// The kind of a problem. The name of a code never changes and is never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// All codes, in the order of the stages of parsing and checking.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the name of the code, such as `spec::unknown_key`; [`crate::code`] has its number.
            pub fn as_str(self) -> &'static str {
                self.code().name()
            }
        }
    };
}

codes! {
    /// The file is larger than the limit for specs.
    TooLarge,
    /// The file is not UTF-8.
    NotUtf8,
    /// A control character, or a character that YAML readers interpret differently.
    ForbiddenCharacter,
    /// The file is not valid YAML.
    Syntax,
    /// The file is empty.
    Empty,
    /// Values are nested too deeply.
    TooDeep,
    /// There are too many values.
    TooManyValues,
    /// An anchor or an alias.
    Alias,
    /// A tag.
    Tag,
    /// A `%` directive.
    Directive,
    /// A second document.
    SecondDocument,
    /// A key that is a list or a map.
    ComplexKey,
    /// A key that occurs twice in one map.
    DuplicateKey,
    /// Two YAML parsers read different values.
    ReadersDisagree,
    /// There are more problems than the list holds.
    TooManyProblems,
    /// A key that is not defined in this place.
    UnknownKey,
    /// A required key is missing.
    MissingKey,
    /// A value of the wrong type.
    WrongType,
    /// A value outside the allowed set or range.
    BadValue,
    /// A name that breaks the rule for its kind.
    BadName,
    /// A path outside the repository.
    BadPath,
    /// An invalid SQL step.
    SqlStep,
    /// A format version other than 1.
    UnsupportedVersion,
    /// A profile without skills.
    EmptyProfile,
    /// A profile names a skill that does not exist.
    UnknownSkill,
    /// A profile names a skill twice.
    DuplicateInclude,
    /// A skill without steps.
    NoSteps,
    /// Two steps of a skill have the same name.
    DuplicateStep,
    /// A skill declares tier 3.
    TierThree,
    /// A command without a program.
    EmptyCommand,
    /// A command string that uses shell syntax.
    NeedsShell,
    /// A command string that cannot be split into words.
    BadCommand,
    /// A limit of zero, with which a step could not run.
    Zero,
    /// A skill needs a skill that does not exist.
    UnknownNeed,
    /// A skill needs itself.
    SelfNeed,
    /// A skill lists another skill twice in `needs`.
    DuplicateNeed,
    /// Skills that need each other in a cycle.
    NeedCycle,
    /// A profile includes a skill without another skill that it needs.
    NeedNotIncluded,
    /// Two skills, or a skill and the toolchain checks, whose evidence would have the same file name.
    ArtifactClash,
    /// An invalid version range.
    BadVersionRange,
    /// An invalid glob.
    BadGlob,
    /// An empty list where at least one item is required.
    EmptyList,
    /// A cache directory that would hide the repository, its git directory or `changes`.
    BadCache,
    /// A needed path that would hide the tree, overlaps another one, or has an invalid key.
    BadNeededPath,
    /// A skill names a toolchain that does not exist.
    UnknownToolchain,
    /// A skill that no profile includes.
    UnusedSkill,
    /// A toolchain without checks.
    NoChecks,
    /// A `parallel` without effect.
    IdleParallel,
    /// A file that cannot be included.
    BadInclude,
    /// A name or setting that two files define.
    DuplicateDefinition,
    /// An invalid rule for the files of a step.
    BadFiles,
    /// A key or word that has an effect only in a step with `files`.
    NoFiles,
    /// The requested profile does not exist.
    UnknownProfile,
    /// The spec requests more than the operator allows.
    OverCeiling,
    /// The operator's config is invalid.
    BadConfig,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.code().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Older logs contain the name instead of the number.
        let found = crate::code::error_code::ErrorCode::find(&text);
        let code = Self::ALL.iter().find(|code| Some(code.code()) == found);
        code.copied()
            .ok_or_else(|| serde::de::Error::custom(format!("{} is not an error code of Proctor", quoted(&text))))
    }
}

impl JsonSchema for Code {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let codes: Vec<String> = Self::ALL.iter().map(|code| code.code().to_string()).collect();
        schemars::json_schema!({ "description": "The kind of the problem; `proctor explain P0123` describes it.", "type": "string", "enum": codes })
    }
}

/// An additional position that a diagnostic refers to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Label {
    /// The position.
    pub span: Span,
    /// A phrase that explains the position.
    pub text: String,
}

/// One problem with a spec or config.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// The kind of the problem.
    pub code: Code,
    /// The severity.
    pub severity: Severity,
    /// A one-line message, as a lower-case fragment. Quoted text from the spec is escaped and shortened.
    pub message: String,
    /// The position; `null` if the problem has none, such as a requested profile that does not exist.
    pub span: Option<Span>,
    /// Additional positions.
    pub labels: Vec<Label>,
    /// Hints on how to fix the problem, one line each.
    pub hints: Vec<String>,
}

impl Diagnostic {
    /// Creates an error at `span`.
    pub fn error(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { span: Some(span), ..Self::without_span(code, message) }
    }

    /// Creates a warning at `span`.
    pub fn warning(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, span, message) }
    }

    /// Creates an error without a position.
    pub fn without_span(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, severity: Severity::Error, message, span: None, labels: vec![], hints: vec![] }
    }

    /// Adds an additional position.
    #[must_use]
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into() });
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.hints.push(text.into());
        self
    }

    /// Adds the hint "did you mean" if one of `candidates` is similar to `given`.
    #[must_use]
    pub fn did_you_mean<'a>(self, given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        match closest_match(given, candidates) {
            Some(name) => self.hint(format!("did you mean {}?", quoted(name))),
            None => self,
        }
    }
}

/// Formats the diagnostic as `code: message at line:column`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        match self.span {
            Some(span) => write!(f, " at {span}"),
            None => Ok(()),
        }
    }
}

/// Returns the candidate most similar to `given`, if it is similar enough. To bound the cost, it compares only the
/// first 1000 candidates, and only those of similar length.
pub fn closest_match<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const MAX_NAME_BYTES: usize = 200;
    const MAX_CANDIDATES: usize = 1000;
    if given.len() > MAX_NAME_BYTES {
        return None;
    }
    let given = given.to_lowercase();
    let allowed = |name: &str| (given.chars().count().max(name.chars().count()) / 3).max(1);
    candidates
        .into_iter()
        .take(MAX_CANDIDATES)
        .filter(|name| name.len() <= MAX_NAME_BYTES && name.len().abs_diff(given.len()) <= 4 * allowed(name))
        .map(|name| (strsim::damerau_levenshtein(&given, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= allowed(name))
        .min()
        .map(|(_, name)| name)
}

/// Sorts diagnostics by position; those without a position come first.
pub(super) fn sort_by_position(diagnostics: &mut [Diagnostic]) {
    diagnostics.sort_by_key(|d| (d.span.map(|span| (span.file, span.start, span.end)), d.severity, d.code));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggests_only_similar_names() {
        assert_eq!(closest_match("timout_ms", ["timeout_ms", "name"]), Some("timeout_ms"));
        assert_eq!(closest_match("Deny", ["deny", "allow"]), Some("deny"));
        assert_eq!(closest_match("verify.lnit", ["verify.lint", "verify.unit"]), Some("verify.lint"));
        assert_eq!(closest_match("x", ["timeout_ms"]), None);
        assert_eq!(closest_match("foo", ["bar"]), None);
        assert_eq!(closest_match("a", []), None);
    }

    #[test]
    fn escapes_and_truncates_quoted_text() {
        assert_eq!(quoted("a\x1b[1m\nb"), "`a\\x1b[1m\\nb`");
        assert_eq!(quoted(&"x".repeat(100)), format!("`{}…`", "x".repeat(80)));
    }

    #[test]
    fn codes_are_unique() {
        let texts: std::collections::BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
    }
}
