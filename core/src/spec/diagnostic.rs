//! What is wrong with a spec, as values: a stable code, one line, where it stands, what to do.
//!
//! Excerpts and carets are drawn by whoever has a screen; nothing here renders.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};

use super::span::Span;
use crate::code::Coded as _;

/// How much a diagnostic weighs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// The spec cannot be used.
    Error,
    /// The spec can be used, and probably does not say what was meant.
    Warning,
}

impl Severity {
    /// The word of the screen.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident,)*) => {
        /// What kind of thing is wrong. The text of a code never changes and is never reused.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $variant,)*
        }

        impl Code {
            /// Every code, in the order in which a spec meets them.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The code's name, such as `spec::unknown_key`; [`crate::code`] has its number.
            pub fn as_str(self) -> &'static str {
                self.code().name()
            }
        }
    };
}

codes! {
    /// The file has more bytes than a spec may have.
    TooLarge,
    /// The file is not UTF-8.
    NotUtf8,
    /// A control character, or one that YAML readers take for different things.
    ForbiddenCharacter,
    /// The file is no YAML.
    Syntax,
    /// There is nothing in the file.
    Empty,
    /// Values are nested too deep.
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
    /// A key that stands twice in one map.
    DuplicateKey,
    /// Two YAML readers read different things.
    ReadersDisagree,
    /// More is wrong than is worth listing.
    TooManyProblems,
    /// A key that means nothing there.
    UnknownKey,
    /// A key that must be there.
    MissingKey,
    /// A value of another type than is expected.
    WrongType,
    /// A value that is not one of those allowed.
    BadValue,
    /// A name that breaks its rule.
    BadName,
    /// A path that does not lie below the repository.
    BadPath,
    /// An SQL step.
    SqlStep,
    /// A version of the format that is not 1.
    UnsupportedVersion,
    /// A profile without skills.
    EmptyProfile,
    /// A profile names a skill that is not there.
    UnknownSkill,
    /// A profile names a skill twice.
    DuplicateInclude,
    /// A skill without steps.
    NoSteps,
    /// Two steps of a skill have one name.
    DuplicateStep,
    /// A skill declares tier 3.
    TierThree,
    /// A command without a program.
    EmptyCommand,
    /// A command string that only a shell could run.
    NeedsShell,
    /// A command string that cannot be split into words.
    BadCommand,
    /// A bound of zero where something must be able to run.
    Zero,
    /// A skill needs one that is not there.
    UnknownNeed,
    /// A skill needs itself.
    SelfNeed,
    /// A skill needs another twice.
    DuplicateNeed,
    /// Skills that need each other.
    NeedCycle,
    /// A profile includes a skill without one that it needs.
    NeedNotIncluded,
    /// Two skills whose evidence would be one file.
    ArtifactClash,
    /// A version range that is none.
    BadVersionRange,
    /// A glob that is none.
    BadGlob,
    /// A list that must not be empty.
    EmptyList,
    /// A cache that would hide the repository or its git directory.
    BadCache,
    /// A skill that no profile includes.
    UnusedSkill,
    /// A toolchain that checks nothing.
    NoChecks,
    /// A `parallel` that changes nothing.
    IdleParallel,
    /// The profile that was asked for is not there.
    UnknownProfile,
    /// The spec asks for more than the operator allows.
    OverCeiling,
    /// The operator's config cannot be read.
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
        // Older logs have the name.
        let found = crate::code::Code::find(&text);
        let code = Self::ALL.iter().find(|code| Some(code.code()) == found);
        code.copied().ok_or_else(|| serde::de::Error::custom(format!("{} is no code of ours", quoted(&text))))
    }
}

impl JsonSchema for Code {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Code".into()
    }
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let codes: Vec<String> = Self::ALL.iter().map(|code| code.code().to_string()).collect();
        schemars::json_schema!({ "description": "What kind of thing is wrong; `proctor explain P0123` says more.", "type": "string", "enum": codes })
    }
}

/// A second place that a diagnostic points at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Label {
    /// The place.
    pub span: Span,
    /// What is to be seen there, as a phrase.
    pub text: String,
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnostic {
    /// What kind of thing.
    pub code: Code,
    /// How much it weighs.
    pub severity: Severity,
    /// One line, a lower-case fragment. Text from the spec in it is escaped and bounded.
    pub message: String,
    /// Where; `None` where it has no place in the text, such as a profile asked for by a caller.
    pub span: Option<Span>,
    /// Other places that matter.
    pub labels: Vec<Label>,
    /// What to do, one line each.
    pub hints: Vec<String>,
}

impl Diagnostic {
    /// An error at `span`.
    pub fn error(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { span: Some(span), ..Self::unplaced(code, message) }
    }

    /// A warning at `span`.
    pub fn warning(code: Code, span: Span, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(code, span, message) }
    }

    /// An error that has no place in the text.
    pub fn unplaced(code: Code, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, severity: Severity::Error, message, span: None, labels: vec![], hints: vec![] }
    }

    /// The same, with one more place.
    #[must_use]
    pub fn label(mut self, span: Span, text: impl Into<String>) -> Self {
        self.labels.push(Label { span, text: text.into() });
        self
    }

    /// The same, with one more hint.
    #[must_use]
    pub fn hint(mut self, text: impl Into<String>) -> Self {
        self.hints.push(text.into());
        self
    }

    /// The same, with what `candidates` offers for `given`.
    #[must_use]
    pub fn did_you_mean<'a>(self, given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Self {
        match nearest(given, candidates) {
            Some(name) => self.hint(format!("did you mean {}?", quoted(name))),
            None => self,
        }
    }
}

/// `code: message at line:column`.
impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.message)?;
        match self.span {
            Some(span) => write!(f, " at {span}"),
            None => Ok(()),
        }
    }
}

/// The candidate that differs least from `given`, where it is near enough to be meant. Only so
/// many candidates are looked at, and only such as are of about its length.
pub fn nearest<'a>(given: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    const LONGEST: usize = 200;
    const CANDIDATES: usize = 1000;
    if given.len() > LONGEST {
        return None;
    }
    let given = given.to_lowercase();
    let allowed = |name: &str| (given.chars().count().max(name.chars().count()) / 3).max(1);
    candidates
        .into_iter()
        .take(CANDIDATES)
        .filter(|name| name.len() <= LONGEST && name.len().abs_diff(given.len()) <= 4 * allowed(name))
        .map(|name| (strsim::damerau_levenshtein(&given, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= allowed(name))
        .min()
        .map(|(_, name)| name)
}

/// Text from outside as it may stand in a message: in backticks, control characters escaped,
/// cut after 80 characters.
pub fn quoted(text: &str) -> String {
    const SHOWN: usize = 80;
    let shown: String = text.chars().take(SHOWN).collect();
    let ellipsis = if shown.len() < text.len() { "…" } else { "" };
    let escaped = crate::evidence::escape_output(shown.as_bytes()).replace('\n', "\\n").replace('\t', "\\t");
    format!("`{escaped}{ellipsis}`")
}

/// A list of names for a message: quoted, at most ten.
pub(super) fn listed<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    const SHOWN: usize = 10;
    let names: Vec<&str> = names.into_iter().collect();
    let mut text = names.iter().take(SHOWN).map(|name| quoted(name)).collect::<Vec<_>>().join(", ");
    if names.len() > SHOWN {
        text.push_str(&format!(" and {} more", names.len() - SHOWN));
    }
    text
}

/// Sorts diagnostics by where they stand; those without a place come first.
pub(super) fn sort(diagnostics: &mut [Diagnostic]) {
    diagnostics.sort_by_key(|d| (d.span.map(|span| (span.start, span.end)), d.severity, d.code));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant_is_found_and_what_was_not_is_not_offered() {
        assert_eq!(nearest("timout_ms", ["timeout_ms", "name"]), Some("timeout_ms"));
        assert_eq!(nearest("Deny", ["deny", "allow"]), Some("deny"));
        assert_eq!(nearest("verify.lnit", ["verify.lint", "verify.unit"]), Some("verify.lint"));
        assert_eq!(nearest("x", ["timeout_ms"]), None);
        assert_eq!(nearest("foo", ["bar"]), None);
        assert_eq!(nearest("a", []), None);
    }

    #[test]
    fn text_of_a_spec_cannot_reach_a_terminal_unescaped() {
        assert_eq!(quoted("a\x1b[1m\nb"), "`a\\x1b[1m\\nb`");
        assert_eq!(quoted(&"x".repeat(100)), format!("`{}…`", "x".repeat(80)));
    }

    #[test]
    fn codes_are_unique() {
        let texts: std::collections::BTreeSet<&str> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(texts.len(), Code::ALL.len());
    }
}
