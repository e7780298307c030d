//! Records where the values of a plan came from.

use std::collections::BTreeMap;
use std::fmt;

use super::span::Span;

/// The origins of a plan's values: those of the whole run, and those of each step and toolchain check by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    pub(super) run_values: Vec<SourcedValue>,
    pub(super) step_values: BTreeMap<String, Vec<SourcedValue>>,
}

impl Provenance {
    /// Returns the values that apply to the whole run.
    pub fn run_values(&self) -> &[SourcedValue] {
        &self.run_values
    }

    /// Returns the values of `skill/step`, or of `toolchain/check` for a check, in a fixed order.
    pub fn step_values(&self, path: &str) -> Option<&[SourcedValue]> {
        self.step_values.get(path).map(Vec::as_slice)
    }

    /// Returns all paths that [`Self::step_values`] accepts, sorted.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.step_values.keys().map(String::as_str)
    }
}

/// One value of a plan with its origin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourcedValue {
    /// The field, such as `timeout_ms`, `limits.memory` or `env.CI`.
    pub field: String,
    /// The value as text.
    pub value: String,
    /// Origin of the value.
    pub origin: ValueOrigin,
}

/// Origin of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOrigin {
    /// The caller's command line.
    CommandLine,
    /// The top level of the spec.
    Spec(Span),
    /// The step or the toolchain check.
    Step(Span),
    /// The skill of the step.
    Skill(Span),
    /// The `defaults` of the spec.
    Defaults(Span),
    /// The operator's config.
    Operator,
    /// The built-in default.
    BuiltIn,
}

impl ValueOrigin {
    /// Returns the position in the spec, if the value comes from the spec.
    pub fn span(self) -> Option<Span> {
        match self {
            Self::Spec(span) | Self::Step(span) | Self::Skill(span) | Self::Defaults(span) => Some(span),
            Self::CommandLine | Self::Operator | Self::BuiltIn => None,
        }
    }
}

/// Formats the origin, such as `skill at 12:5` or `built in`.
impl fmt::Display for ValueOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CommandLine => f.write_str("command line"),
            Self::Spec(span) => write!(f, "spec at {span}"),
            Self::Step(span) => write!(f, "step at {span}"),
            Self::Skill(span) => write!(f, "skill at {span}"),
            Self::Defaults(span) => write!(f, "defaults at {span}"),
            Self::Operator => f.write_str("operator"),
            Self::BuiltIn => f.write_str("built in"),
        }
    }
}
