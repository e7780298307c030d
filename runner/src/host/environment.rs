//! Builds the environment of a step: our variables, then the caller's variables on the allow-list, then those of
//! the spec. Has no side effects; steps and `explain` use the same result.

use std::collections::BTreeMap;
use std::fmt;

use proctor_core::model::names::EnvName;
use proctor_core::model::plan::{Network, PlannedStep};
use proctor_core::telemetry::{TRACEPARENT, TRACESTATE, TraceContext, is_trace_variable};

/// The facts that an environment is built from.
#[derive(Debug, Clone)]
pub struct EnvironmentInputs {
    /// Path of the home directory. In the sandbox, it is empty except for toolchains.
    pub home: String,
    /// Program directories, in the order of `PATH`.
    pub path: Vec<String>,
    /// Name of the user inside the step.
    pub user: String,
    /// Variables that mounted toolchains need, such as `CARGO_HOME`.
    pub toolchain_variables: BTreeMap<String, String>,
    /// The caller's environment. A step gets only the variables on its allow-list.
    pub caller_env: BTreeMap<String, String>,
}

/// The source of a variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VariableOrigin {
    /// Set by us for every step.
    Standard,
    /// Set by us for a mounted toolchain.
    Toolchain,
    /// Set by the caller and allowed by `env_allowlist`.
    Caller,
    /// Set by `env` in the spec.
    Spec,
    /// Set from the trace of the run and allowed by `env_allowlist`.
    Trace,
}

impl fmt::Display for VariableOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standard => "given to every step",
            Self::Toolchain => "given for a mounted toolchain",
            Self::Caller => "from the caller, by `env_allowlist`",
            Self::Spec => "set by `env` in the spec",
            Self::Trace => "from the trace of the run, by `env_allowlist`",
        })
    }
}

/// The environment of one step: name → value and source.
pub type Environment = BTreeMap<String, (String, VariableOrigin)>;

/// Explains why a variable of the caller is not in a step's environment, or names its source.
pub fn explain_missing(name: &str, environment: &Environment) -> String {
    if let Some((_, origin)) = environment.get(name) {
        return format!("`{name}` is set: {origin}");
    }
    let reason = if never_from_caller(name) {
        "it controls git, a proxy, a loader or an interpreter, so the caller's value is never used; set it in `env` if the step needs it"
    } else if EnvName::new(name).is_err() {
        "its name is not permitted in `env_allowlist`"
    } else {
        "it is not in `env_allowlist`, or the caller has not set it"
    };
    format!("`{name}` is missing: {reason}")
}

/// Returns whether a variable could let a caller change what a step runs. `env` may set such a variable; an
/// allow-list with its name has no effect.
pub fn never_from_caller(name: &str) -> bool {
    const PREFIXES: [&str; 5] = ["GIT_", "LD_", "DYLD_", "PROCTOR_", "BASH_FUNC_"];
    const NAMES: [&str; 21] = [
        "ALL_PROXY",
        "BASH_ENV",
        "CDPATH",
        "ENV",
        "FTP_PROXY",
        "GCONV_PATH",
        "HTTPS_PROXY",
        "HTTP_PROXY",
        "IFS",
        "JAVA_TOOL_OPTIONS",
        "NODE_OPTIONS",
        "NODE_PATH",
        "NO_PROXY",
        "PERL5LIB",
        "PERL5OPT",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "RUBYLIB",
        "RUBYOPT",
        "_JAVA_OPTIONS",
    ];
    let upper = name.to_ascii_uppercase();
    PREFIXES.iter().any(|prefix| upper.starts_with(prefix)) || NAMES.contains(&upper.as_str())
}

/// Builds the environment of `step` without the trace of the run, which [`add_trace`] adds.
pub fn build(step: &PlannedStep, inputs: &EnvironmentInputs) -> Environment {
    let mut environment = standard_variables(step, inputs);
    for name in &step.env_allowlist {
        let name = name.as_str();
        if !never_from_caller(name)
            && !is_trace_variable(name)
            && let Some(value) = inputs.caller_env.get(name)
        {
            environment.insert(name.to_owned(), (value.clone(), VariableOrigin::Caller));
        }
    }
    for (name, value) in &step.env {
        environment.insert(name.as_str().to_owned(), (value.clone(), VariableOrigin::Spec));
    }
    environment
}

/// Adds the variables of the trace context that `step` continues, if its `env_allowlist` names them and its `env`
/// does not set them.
pub fn add_trace(environment: &mut Environment, step: &PlannedStep, context: &TraceContext) {
    let variables = [(TRACEPARENT, Some(context.traceparent())), (TRACESTATE, context.tracestate().map(str::to_owned))];
    for (name, value) in variables {
        let is_wanted = step.env_allowlist.iter().any(|allowed| allowed.as_str() == name);
        if let Some(value) = value.filter(|_| is_wanted && !environment.contains_key(name)) {
            environment.insert(name.to_owned(), (value, VariableOrigin::Trace));
        }
    }
}

fn standard_variables(step: &PlannedStep, inputs: &EnvironmentInputs) -> Environment {
    let fixed = [
        ("HOME", inputs.home.as_str()),
        ("USER", &inputs.user),
        ("LOGNAME", &inputs.user),
        ("SHELL", "/bin/sh"),
        ("TMPDIR", "/tmp"),
        ("LANG", "C.UTF-8"),
        ("TZ", "UTC"),
        ("TERM", "dumb"),
        ("CI", "true"),
    ];
    let mut environment: Environment = fixed
        .into_iter()
        .map(|(name, value)| (name.to_owned(), (value.to_owned(), VariableOrigin::Standard)))
        .collect();
    environment.insert("PATH".to_owned(), (inputs.path.join(":"), VariableOrigin::Standard));
    for (name, value) in &inputs.toolchain_variables {
        environment.insert(name.clone(), (value.clone(), VariableOrigin::Toolchain));
    }
    if step.network == Network::Allow {
        environment.remove("CARGO_NET_OFFLINE");
    }
    environment
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::step;
    use proctor_core::model::names::VarName;

    fn inputs(caller: &[(&str, &str)]) -> EnvironmentInputs {
        EnvironmentInputs {
            home: "/home/a".into(),
            path: vec!["/usr/bin".into(), "/bin".into()],
            user: "a".into(),
            toolchain_variables: BTreeMap::from([("CARGO_NET_OFFLINE".into(), "true".into())]),
            caller_env: caller.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        }
    }

    fn name(text: &str) -> EnvName {
        EnvName::new(text).expect("a name")
    }

    fn variable(text: &str) -> VarName {
        VarName::new(text).expect("a name")
    }

    #[test]
    fn ignores_caller_variables_not_on_allow_list() {
        let environment =
            build(&step("s", &["true"]), &inputs(&[("AWS_SECRET", "x"), ("PATH", "/evil"), ("HOME", "/x")]));
        assert!(!environment.contains_key("AWS_SECRET"));
        assert_eq!(environment["PATH"].0, "/usr/bin:/bin");
        assert_eq!(environment["HOME"].0, "/home/a");
    }

    #[test]
    fn spec_overrides_allow_list_and_standard_variables() {
        let mut planned = step("s", &["true"]);
        planned.env_allowlist = vec![name("LANG"), name("TZ"), name("ABSENT")];
        planned.env = BTreeMap::from([(variable("TZ"), "CET".to_owned())]);
        let environment = build(&planned, &inputs(&[("LANG", "de"), ("TZ", "JST")]));
        assert_eq!(environment["LANG"], ("de".to_owned(), VariableOrigin::Caller));
        assert_eq!(environment["TZ"], ("CET".to_owned(), VariableOrigin::Spec));
        assert!(!environment.contains_key("ABSENT"));
    }

    #[test]
    fn takes_controlling_variables_only_from_spec() {
        let mut planned = step("s", &["true"]);
        planned.env_allowlist = vec![name("GIT_DIR"), name("LD_PRELOAD"), name("HTTP_PROXY"), name("BASH_ENV")];
        planned.env = BTreeMap::from([(variable("GIT_DIR"), "x".to_owned())]);
        let caller = [("GIT_DIR", "1"), ("LD_PRELOAD", "1"), ("HTTP_PROXY", "1"), ("BASH_ENV", "1")];
        let environment = build(&planned, &inputs(&caller));
        assert_eq!(environment["GIT_DIR"].0, "x");
        for absent in ["LD_PRELOAD", "HTTP_PROXY", "BASH_ENV"] {
            assert!(!environment.contains_key(absent), "{absent}");
            assert!(explain_missing(absent, &environment).contains("never used"), "{absent}");
        }
    }

    #[test]
    fn trace_reaches_step_only_by_allow_list() {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(parent, Some("a=1")).expect("valid");
        let variables = |allowed: &[&str], set: &[(&str, &str)]| {
            let mut planned = step("s", &["true"]);
            planned.env_allowlist = allowed.iter().map(|allowed| name(allowed)).collect();
            planned.env = set.iter().map(|(name, value)| (variable(name), (*value).to_owned())).collect();
            let mut environment = build(&planned, &inputs(&[(TRACEPARENT, "the caller's"), (TRACESTATE, "b=1")]));
            add_trace(&mut environment, &planned, &context);
            [TRACEPARENT, TRACESTATE].map(|name| environment.get(name).map(|(value, _)| value.clone()))
        };
        let owned = |text: &str| Some(text.to_owned());
        assert_eq!(variables(&[], &[]), [None, None]);
        assert_eq!(variables(&[TRACEPARENT], &[]), [owned(parent), None]);
        assert_eq!(variables(&[TRACEPARENT, TRACESTATE], &[]), [owned(parent), owned("a=1")]);
        assert_eq!(variables(&[TRACEPARENT], &[(TRACEPARENT, "x")]), [owned("x"), None]);
    }

    #[test]
    fn cargo_is_offline_only_without_network() {
        let mut planned = step("s", &["true"]);
        assert!(build(&planned, &inputs(&[])).contains_key("CARGO_NET_OFFLINE"));
        planned.network = Network::Allow;
        assert!(!build(&planned, &inputs(&[])).contains_key("CARGO_NET_OFFLINE"));
    }
}
