//! Implements `proctor explain env --var NAME`: where a step's variable comes from, or why it is missing and how to
//! add it. This module is pure; the engine builds the environment.

use proctor_core::names::EnvName;
use proctor_core::plan::PlannedStep;
use proctor_core::telemetry::is_trace_variable;
use proctor_runner::environment::{Environment, Origin, never_from_caller};

use crate::caller::Caller;
use crate::style::{BAD, GOOD, lines_of, paint};
use crate::text::shown_line;

/// Renders whether a step has the variable and why, and hints on how to change that.
pub(super) fn explained(name: &str, environment: &Environment, step: &PlannedStep, caller: &Caller) -> String {
    let word = shown_line(name);
    match environment.get(name) {
        Some((value, origin)) => present(&word, value, *origin, caller.env.get(name)),
        None => absent(&word, Absence::of(name, step, caller)),
    }
}

fn present(name: &str, value: &str, origin: Origin, of_caller: Option<&String>) -> String {
    // A value from the caller may be secret, and screens end up in logs.
    let value_is = match origin {
        Origin::Allowed => "the caller's".to_owned(),
        Origin::Given | Origin::Toolchain | Origin::Spec | Origin::Trace => format!("`{}`", shown_line(value)),
    };
    let other = of_caller.is_some_and(|own| own != value) && origin != Origin::Allowed;
    let instead = if other { "; the caller's own value is not passed on" } else { "" };
    let mut text = format!("{} {name}: {origin}; its value is {value_is}{instead}\n", paint(GOOD, "there"));
    if other && origin != Origin::Spec {
        text.push_str(&lines_of(&[format!("`env: {{ {name}: … }}` in the spec sets another one")]));
    }
    text
}

/// The reason why a step does not have a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Absence {
    /// The variable changes the behaviour of programs and is never passed on.
    Steers,
    /// The name is not valid in an allow-list.
    Unnameable,
    /// The variable is in the allow-list, and set only for runs that are traced.
    OfTrace,
    /// The variable is in the allow-list, but the caller does not have it.
    NotSet,
    /// The caller has the variable, but its value is not UTF-8.
    NotText,
    /// The caller has the variable, but it is not in the allow-list.
    NotAllowed,
    /// The variable is not in the allow-list, and the caller does not have it.
    Unknown,
}

impl Absence {
    fn of(name: &str, step: &PlannedStep, caller: &Caller) -> Self {
        let is_allowed = step.env_allowlist.iter().any(|allowed| allowed.as_str() == name);
        let is_set = caller.env.contains_key(name);
        match () {
            () if never_from_caller(name) => Self::Steers,
            () if EnvName::new(name).is_err() => Self::Unnameable,
            () if caller.unreadable.iter().any(|unreadable| unreadable == name) => Self::NotText,
            () if is_allowed && is_trace_variable(name) => Self::OfTrace,
            () if is_allowed => Self::NotSet,
            () if is_set => Self::NotAllowed,
            () => Self::Unknown,
        }
    }

    fn why(self) -> &'static str {
        match self {
            Self::Steers => "it steers git, a proxy, a loader or an interpreter, so it is never taken from the caller",
            Self::Unnameable => "its name cannot stand in `env_allowlist`, so it is never taken from the caller",
            Self::OfTrace => "`env_allowlist` lets it in; a run gives each step its own value where the run is traced",
            Self::NotSet => "`env_allowlist` lets it in, and the caller does not have it",
            Self::NotText => "its name or its value is not UTF-8, so it cannot be passed on",
            Self::NotAllowed => "the caller has it, and `env_allowlist` does not name it",
            Self::Unknown => "neither the caller nor the spec sets it",
        }
    }

    fn hints(self, name: &str) -> Vec<String> {
        let set = format!("`env: {{ {name}: … }}` sets it for the steps of the spec, a skill or one step");
        let allow = format!("`env_allowlist: [{name}]` lets the caller's in; the nearest list counts, as a whole");
        match self {
            Self::Steers | Self::Unnameable | Self::NotText => vec![set],
            Self::OfTrace => {
                vec!["`OTEL_EXPORTER_OTLP_ENDPOINT` exports the spans of runs, as docs/telemetry.md says".to_owned()]
            }
            Self::NotSet => vec![format!("`export {name}=…` before `proctor run` gives it"), set],
            Self::NotAllowed => vec![allow, set],
            Self::Unknown => vec![set, allow],
        }
    }
}

fn absent(name: &str, absence: Absence) -> String {
    format!("{} {name}: {}\n{}", paint(BAD, "missing"), absence.why(), lines_of(&absence.hints(name)))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fixture;

    /// Returns the explanation of one variable, without colours.
    fn told(name: &str, caller: &[(&str, &str)], unreadable: &[&str]) -> String {
        let mut step = fixture::planned("it", &["true"]);
        step.env_allowlist = ["CI", "TOKEN", "TRACEPARENT"].map(|name| EnvName::new(name).expect("a name")).to_vec();
        let mut caller = Caller::for_tests(caller);
        caller.around.unreadable = unreadable.iter().map(|name| (*name).to_owned()).collect();
        let environment: Environment = BTreeMap::from([
            ("CI".to_owned(), ("secret".to_owned(), Origin::Allowed)),
            ("TERM".to_owned(), ("dumb".to_owned(), Origin::Given)),
            ("GIT_DIR".to_owned(), ("x\u{1b}".to_owned(), Origin::Spec)),
        ]);
        anstream::adapter::strip_str(&explained(name, &environment, &step, &caller)).to_string()
    }

    #[test]
    fn what_is_there_says_who_gave_it_and_shows_no_value_of_the_caller() {
        let let_in = told("CI", &[("CI", "secret")], &[]);
        assert!(let_in.starts_with("there CI: from the caller") && !let_in.contains("secret"), "{let_in}");
        let given = told("TERM", &[("TERM", "xterm")], &[]);
        assert!(given.contains("`dumb`; the caller's own value is not passed on\nhint: `env: { TERM"), "{given}");
        assert!(!told("TERM", &[], &[]).contains("hint:"));
        let set = told("GIT_DIR", &[], &[]);
        assert!(set.contains("set by `env` in the spec") && set.contains("`x\\x1b`"), "{set}");
    }

    #[test]
    fn what_is_missing_says_why_and_what_lets_it_in() {
        type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], &'a [&'a str], &'a str);
        let cases: [Case<'_>; 7] = [
            ("TRACEPARENT", &[("TRACEPARENT", "x")], &[], "where the run is traced"),
            ("LD_PRELOAD", &[("LD_PRELOAD", "x")], &[], "it steers git"),
            ("lower", &[("lower", "x")], &[], "cannot stand in `env_allowlist`"),
            ("TOKEN", &[], &[], "the caller does not have it"),
            ("TOKEN", &[], &["TOKEN"], "is not UTF-8"),
            ("AWS_KEY", &[("AWS_KEY", "x")], &[], "the caller has it, and `env_allowlist` does not name it"),
            ("AWS_KEY", &[], &[], "neither the caller nor the spec sets it"),
        ];
        for (name, caller, unreadable, why) in cases {
            let told = told(name, caller, unreadable);
            assert!(told.starts_with(&format!("missing {name}: ")) && told.contains(why), "{told}");
            assert!(told.contains("\nhint: `"), "{told}");
        }
    }
}
