//! Implements `proctor explain env --var NAME`: where a step's variable comes from, or why it is missing and how to
//! add it. This module is pure; the engine builds the environment.

use proctor_core::model::names::EnvName;
use proctor_core::model::plan::PlannedStep;
use proctor_core::telemetry::is_trace_variable;
use proctor_runner::environment::{Environment, VariableOrigin, never_from_caller};

use crate::caller::Caller;
use crate::style::{BAD, GOOD, hint_lines, paint};
use crate::text::escape_line;

/// Renders whether a step has the variable and why, and hints on how to change that.
pub(super) fn explain_variable(name: &str, environment: &Environment, step: &PlannedStep, caller: &Caller) -> String {
    let word = escape_line(name);
    match environment.get(name) {
        Some((value, origin)) => render_present(&word, value, *origin, caller.env.get(name)),
        None => render_missing(&word, VariableAbsence::for_variable(name, step, caller)),
    }
}

fn render_present(name: &str, value: &str, origin: VariableOrigin, caller_value: Option<&String>) -> String {
    // A value from the caller may be secret, and screens end up in logs.
    let value_is = match origin {
        VariableOrigin::Caller => "the caller's".to_owned(),
        VariableOrigin::Standard | VariableOrigin::Toolchain | VariableOrigin::Spec | VariableOrigin::Trace => {
            format!("`{}`", escape_line(value))
        }
    };
    let other = caller_value.is_some_and(|own| own != value) && origin != VariableOrigin::Caller;
    let instead = if other { "; the caller's own value is not passed on" } else { "" };
    let mut text = format!("{} {name}: {origin}; its value is {value_is}{instead}\n", paint(GOOD, "there"));
    if other && origin != VariableOrigin::Spec {
        text.push_str(&hint_lines(&[format!("`env: {{ {name}: … }}` in the spec sets a different value")]));
    }
    text
}

/// The reason why a step does not have a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VariableAbsence {
    /// The variable changes the behaviour of programs and is never passed on.
    NeverPassedOn,
    /// The name is not valid in an allow-list.
    InvalidName,
    /// The variable is in the allow-list, and set only for runs that are traced.
    TraceOnly,
    /// The variable is in the allow-list, but the caller has not set it.
    NotSet,
    /// The caller has the variable, but its value is not UTF-8.
    NotUtf8,
    /// The caller has the variable, but it is not in the allow-list.
    NotAllowed,
    /// The variable is not in the allow-list, and the caller has not set it.
    Unknown,
}

impl VariableAbsence {
    fn for_variable(name: &str, step: &PlannedStep, caller: &Caller) -> Self {
        let is_allowed = step.env_allowlist.iter().any(|allowed| allowed.as_str() == name);
        let is_set = caller.env.contains_key(name);
        match () {
            () if never_from_caller(name) => Self::NeverPassedOn,
            () if EnvName::new(name).is_err() => Self::InvalidName,
            () if caller.unreadable.iter().any(|unreadable| unreadable == name) => Self::NotUtf8,
            () if is_allowed && is_trace_variable(name) => Self::TraceOnly,
            () if is_allowed => Self::NotSet,
            () if is_set => Self::NotAllowed,
            () => Self::Unknown,
        }
    }

    fn reason(self) -> &'static str {
        match self {
            Self::NeverPassedOn => {
                "it controls git, a proxy, a loader or an interpreter, so the caller's value is never used"
            }
            Self::InvalidName => "its name is not permitted in `env_allowlist`, so the caller's value is never used",
            Self::TraceOnly => {
                "`env_allowlist` includes it; if the run is traced, the run gives each step a different value"
            }
            Self::NotSet => "`env_allowlist` includes it, but the caller has not set it",
            Self::NotUtf8 => "its name or its value is not UTF-8, so it cannot be passed on",
            Self::NotAllowed => "the caller has set it, but `env_allowlist` does not include it",
            Self::Unknown => "neither the caller nor the spec sets it",
        }
    }

    fn hints(self, name: &str) -> Vec<String> {
        let set = format!("`env: {{ {name}: … }}` sets it for the steps of the spec, a skill or one step");
        let allow = format!("`env_allowlist: [{name}]` passes the caller's value; only the nearest list applies");
        match self {
            Self::NeverPassedOn | Self::InvalidName | Self::NotUtf8 => vec![set],
            Self::TraceOnly => {
                vec!["`OTEL_EXPORTER_OTLP_ENDPOINT` exports the spans of runs, see docs/telemetry.md".to_owned()]
            }
            Self::NotSet => vec![format!("`export {name}=…` before `proctor run` sets it"), set],
            Self::NotAllowed => vec![allow, set],
            Self::Unknown => vec![set, allow],
        }
    }
}

fn render_missing(name: &str, absence: VariableAbsence) -> String {
    format!("{} {name}: {}\n{}", paint(BAD, "missing"), absence.reason(), hint_lines(&absence.hints(name)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fixture;

    /// Returns the explanation of one variable, without colours.
    fn explanation(name: &str, caller: &[(&str, &str)], unreadable: &[&str]) -> String {
        let mut step = fixture::planned("it", &["true"]);
        step.env_allowlist = ["CI", "TOKEN", "TRACEPARENT"].map(|name| EnvName::new(name).expect("a name")).to_vec();
        let mut caller = Caller::for_tests(caller);
        caller.environment.unreadable = unreadable.iter().map(|name| (*name).to_owned()).collect();
        let environment: Environment = BTreeMap::from([
            ("CI".to_owned(), ("secret".to_owned(), VariableOrigin::Caller)),
            ("TERM".to_owned(), ("dumb".to_owned(), VariableOrigin::Standard)),
            ("GIT_DIR".to_owned(), ("x\u{1b}".to_owned(), VariableOrigin::Spec)),
        ]);
        anstream::adapter::strip_str(&explain_variable(name, &environment, &step, &caller)).to_string()
    }

    #[test]
    fn present_variable_shows_origin_but_no_caller_value() {
        let allowed = explanation("CI", &[("CI", "secret")], &[]);
        assert!(allowed.starts_with("there CI: from the caller") && !allowed.contains("secret"), "{allowed}");
        let given = explanation("TERM", &[("TERM", "xterm")], &[]);
        assert!(given.contains("`dumb`; the caller's own value is not passed on\nhint: `env: { TERM"), "{given}");
        assert!(!explanation("TERM", &[], &[]).contains("hint:"));
        let set = explanation("GIT_DIR", &[], &[]);
        assert!(set.contains("set by `env` in the spec") && set.contains("`x\\x1b`"), "{set}");
    }

    #[test]
    fn missing_variable_shows_reason_and_hint() {
        type MissingVariableCase<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str], &'a str);
        let cases: [MissingVariableCase<'_>; 7] = [
            ("TRACEPARENT", &[("TRACEPARENT", "x")], &[], "if the run is traced"),
            ("LD_PRELOAD", &[("LD_PRELOAD", "x")], &[], "it controls git"),
            ("lower", &[("lower", "x")], &[], "is not permitted in `env_allowlist`"),
            ("TOKEN", &[], &[], "the caller has not set it"),
            ("TOKEN", &[], &["TOKEN"], "is not UTF-8"),
            ("AWS_KEY", &[("AWS_KEY", "x")], &[], "the caller has set it, but `env_allowlist` does not include it"),
            ("AWS_KEY", &[], &[], "neither the caller nor the spec sets it"),
        ];
        for (name, caller, unreadable, why) in cases {
            let text = explanation(name, caller, unreadable);
            assert!(text.starts_with(&format!("missing {name}: ")) && text.contains(why), "{text}");
            assert!(text.contains("\nhint: `"), "{text}");
        }
    }
}
