//! Resolving a spec to a plan: defaults, their precedence and their source, and the operator's limits.

use std::collections::BTreeMap;

use proctor_core::model::names::{ProfileName, StepName};
use proctor_core::model::plan::{
    Argv, Ignored, Leaks, Limit, LimitSettings, Limits, Network, Plan, PlannedStep, ReadOnly, SkillOrder,
};
use proctor_core::spec::{self, AdhocCommand, Code, Diagnostic, OperatorConfig, ResolvedPlan, Spec};
use proctor_core::text::digest::Sha256Hex;

fn parse_spec(text: &str) -> Spec {
    spec::parse(text.as_bytes()).expect(text).spec
}

fn resolve(text: &str, operator: &str) -> Result<ResolvedPlan, Vec<Diagnostic>> {
    let profile = ProfileName::new("p").expect("a name");
    let operator = OperatorConfig::parse(operator).expect(operator);
    spec::resolve(&parse_spec(text), &profile, &operator, Sha256Hex::digest(text.as_bytes()), 3)
}

fn plan(text: &str) -> Plan {
    resolve(text, "").expect(text).plan
}

/// Returns a spec of one skill `s` with one step `a`; each argument is YAML inside its section.
fn single_step_spec(defaults: &str, skill: &str, step: &str) -> String {
    format!(
        "version: 1\n{defaults}\nprofiles: {{ p: {{ include: [s] }} }}\n\
         skills: {{ s: {{ {skill} steps: [{{ name: a, cmd: make {step} }}] }} }}\n"
    )
}

fn planned_step(text: &str) -> PlannedStep {
    plan(text).skills[0].steps[0].clone()
}

#[test]
fn empty_defaults_equal_absent_defaults() {
    let absent = planned_step(&single_step_spec("", "", ""));
    for section in ["defaults:", "defaults: {}", "defaults: null", "defaults: { timeout_ms: , env: {} }"] {
        assert_eq!(planned_step(&single_step_spec(section, "", "")), absent, "{section}");
    }
    assert_eq!(absent.timeout_ms, 600_000);
    assert_eq!(absent.grace_ms, 5_000);
    assert_eq!((absent.network, absent.read_only), (Network::Deny, ReadOnly::Tracked));
    assert_eq!((absent.retries, absent.expect_exit.as_slice()), (0, &[0][..]));
    assert_eq!(absent.workdir.as_str(), ".");
    assert_eq!(absent.limits, Limits::BUILT_IN);
    assert!(absent.env.is_empty() && absent.env_allowlist.is_empty());
}

#[test]
fn nearest_setting_wins() {
    let defaults = "defaults: { timeout_ms: 1, network: allow, env_allowlist: [A, B], env: { X: d, Y: d, Z: d } }";
    let skill = "timeout_ms: 2, env_allowlist: [C], env: { Y: k, Z: k },";
    let step = planned_step(&single_step_spec(defaults, skill, ", timeout_ms: 3, env: { Z: s }"));
    assert_eq!((step.timeout_ms, step.network), (3, Network::Allow));
    assert_eq!(
        step.env_allowlist.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
        ["C"],
        "a list wins as a whole"
    );
    let env: Vec<_> = step.env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    assert_eq!(env, [("X", "d"), ("Y", "k"), ("Z", "s")], "a map is merged by name");
    assert_eq!(planned_step(&single_step_spec(defaults, skill, "")).timeout_ms, 2);
    assert_eq!(planned_step(&single_step_spec(defaults, "", "")).timeout_ms, 1);
}

#[test]
fn plan_contains_ignored_only_if_hidden() {
    let text = |line: &str| {
        format!(
            "version: 1\n{line}profiles: {{ p: {{ include: [s] }} }}\nskills: {{ s: {{ steps: [{{ name: a, cmd: make }}] }} }}\n"
        )
    };
    for line in ["", "ignored:\n", "ignored: worktree\n"] {
        let plan = plan(&text(line));
        assert_eq!(plan.ignored, Ignored::Worktree, "{line}");
        assert_eq!(serde_json::to_value(&plan).expect("JSON").get("ignored"), None, "{line}");
    }
    let hidden = plan(&text("ignored: hidden\n"));
    assert_eq!(hidden.ignored, Ignored::Hidden);
    let shown = Plan { ignored: Ignored::Worktree, ..hidden.clone() };
    assert_ne!(hidden.digest(), shown.digest());
    let read: Plan = serde_json::from_value(serde_json::to_value(&hidden).expect("JSON")).expect("reads");
    assert_eq!(read, hidden);
    let run_values = |line: &str| {
        let values = resolve(&text(line), "").expect("resolves").provenance.run_values().to_vec();
        values.into_iter().map(|field| format!("{} {} {}", field.field, field.origin, field.value)).collect::<Vec<_>>()
    };
    assert_eq!(run_values("ignored: hidden\n"), ["ignored spec at 2:10 hidden"]);
    assert_eq!(run_values(""), ["ignored built in worktree"]);
}

#[test]
fn rejects_unknown_ignored_value() {
    let text = "version: 1\nignored: hiden\nprofiles: { p: { include: [s] } }\nskills: { s: { steps: [{ name: a, cmd: make }] } }\n";
    let problems = spec::parse(text.as_bytes()).expect_err("no such value");
    assert_eq!((problems.len(), problems[0].code), (1, Code::BadValue));
    let rendered = format!("{:?}", problems[0]);
    assert!(
        rendered.contains("is not one of `worktree` or `hidden`") && rendered.contains("did you mean `hidden`?"),
        "{rendered}"
    );
}

#[test]
fn leaks_is_inherited_and_omitted_by_default() {
    let leaks = |defaults: &str, skill: &str, step: &str| planned_step(&single_step_spec(defaults, skill, step)).leaks;
    assert_eq!(leaks("", "", ""), Leaks::Warn);
    assert_eq!(leaks("defaults: { leaks: fail }", "", ""), Leaks::Fail);
    assert_eq!(leaks("defaults: { leaks: fail }", "leaks: ignore,", ""), Leaks::Ignore);
    assert_eq!(leaks("defaults: { leaks: fail }", "leaks: ignore,", ", leaks: warn"), Leaks::Warn);
    // A plan without the key has the same hash as before the key existed.
    let planned =
        |step: &str| serde_json::to_string(&planned_step(&single_step_spec("", "", step))).expect("serialises");
    assert!(!planned("").contains("leaks"));
    assert_eq!(planned(", leaks: warn"), planned(""));
    assert!(planned(", leaks: fail").contains(r#""leaks":"fail""#));
    let wrong = spec::parse(single_step_spec("", "", ", leaks: fails").as_bytes()).expect_err("no such mode");
    assert!(format!("{wrong:?}").contains("is not one of `ignore`, `warn` or `fail`"), "{wrong:?}");
}

#[test]
fn determinism_and_tier_of_a_skill_default_to_those_of_defaults() {
    let planned = |defaults: &str, skill: &str| {
        let resolved = resolve(&single_step_spec(defaults, skill, ""), "").expect("resolves");
        let fields = resolved.provenance.step_values("s/a").expect("the step");
        let origins = ["determinism", "tier"].map(|name| {
            let field = fields.iter().find(|field| field.field == name).expect("recorded");
            format!("{} {}", field.value, field.origin)
        });
        let skill = &resolved.plan.skills[0];
        assert_eq!(origins[0].split(' ').next(), Some(format!("{:?}", skill.determinism).as_str()));
        assert_eq!(origins[1].split(' ').next(), Some(skill.declared_tier.to_string().as_str()));
        origins.join(", ")
    };
    let both = "defaults: { determinism: D1, tier: 1 }";
    assert_eq!(planned("", ""), "D2 built in, 2 built in");
    assert_eq!(planned(both, ""), "D1 defaults at 2:26, 1 defaults at 2:36");
    assert_eq!(planned("defaults: { tier: 1 }", ""), "D2 built in, 1 defaults at 2:19");
    assert_eq!(planned(both, "determinism: D2, tier: 2,"), "D2 skill at 4:29, 2 skill at 4:39");
    assert_eq!(planned("defaults: { determinism: D2, tier: 2 }", "tier: 1,"), "D2 defaults at 2:26, 1 skill at 4:22");
}

#[test]
fn declarations_in_defaults_mean_the_same_as_in_each_skill() {
    let fields = "network: allow,";
    let inherited = plan(&single_step_spec("defaults: { determinism: D1, tier: 1 }", fields, ""));
    let declared = plan(&single_step_spec("", &format!("determinism: D1, tier: 1, {fields}"), ""));
    assert_eq!(inherited, Plan { spec_sha256: inherited.spec_sha256.clone(), ..declared });
}

/// Commands without a skill have no determinism and no tier from the spec.
#[test]
fn declarations_in_defaults_apply_to_skills_only() {
    let text = |defaults: &str| {
        format!("{defaults}\ntoolchains: {{ t: {{ required: [{{ cmd: t }}] }} }}\n") + &single_step_spec("", "", "")
    };
    let with = resolve(&text("defaults: { determinism: D1, tier: 1 }"), "").expect("resolves");
    let without = resolve(&text(""), "").expect("resolves");
    assert_eq!(with.plan.toolchain, without.plan.toolchain);
    let fields = |resolved: &ResolvedPlan| {
        let fields = resolved.provenance.step_values("t/t.1").expect("the check").iter();
        fields.map(|field| (field.field.clone(), field.value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(fields(&with), fields(&without));
    let adhoc = AdhocCommand {
        cmd: Argv::new(vec!["make".into()]).expect("a command"),
        workdir: None,
        timeout_ms: None,
        grace_ms: None,
        network: None,
        read_only: None,
        leaks: None,
        env_allowlist: None,
        env: BTreeMap::new(),
        limits: LimitSettings::default(),
    };
    let step = |text: &str| {
        let name = StepName::new("a").expect("a name");
        spec::adhoc_step(&adhoc, name, Some(&parse_spec(text)), &OperatorConfig::default()).expect("a step")
    };
    assert_eq!(step(&text("defaults: { determinism: D0, tier: 1 }")), step(&text("")));
}

#[test]
fn rejects_tier_three_and_wrong_values_in_defaults() {
    let problems = |defaults: &str| {
        let found = spec::parse(single_step_spec(defaults, "", "").as_bytes()).expect_err("invalid");
        found.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let found = problems("defaults: { determinism: D3, tier: 0 }");
    assert!(found.len() == 2 && found[0].starts_with("spec::bad_value"), "{found:#?}");
    let found = problems("defaults: { tier: 3 }");
    assert!(found.len() == 1 && found[0].starts_with("spec::tier_three") && found[0].ends_with("2:19"), "{found:#?}");
    // The operator has no such defaults, so a config cannot set them by accident.
    assert!(OperatorConfig::parse("[defaults]\ntier = 1\n").is_err());
    assert!(OperatorConfig::parse("[defaults]\ndeterminism = 'D1'\n").is_err());
}

#[test]
fn records_origin_of_every_value() {
    let text = single_step_spec("defaults: { network: allow }", "read_only: strict,", ", timeout_ms: 3");
    let resolved = resolve(&text, "[defaults]\ngrace_ms = 7\n[defaults.limits]\nmemory = '1GiB'\n").expect("a plan");
    let fields = resolved.provenance.step_values("s/a").expect("the step");
    let found: BTreeMap<&str, String> =
        fields.iter().map(|f| (f.field.as_str(), format!("{} ({})", f.value, f.origin))).collect();
    assert_eq!(found["timeout_ms"], "3 (step at 4:78)");
    assert_eq!(found["read_only"], "strict (skill at 4:27)");
    assert_eq!(found["network"], "allow (defaults at 2:22)");
    assert_eq!(found["grace_ms"], "7 (operator)");
    assert_eq!(found["limits.memory"], "1GiB (operator)");
    assert_eq!(found["limits.pids"], "4096 (built in)");
    assert_eq!(found["workdir"], ". (built in)");
    assert_eq!(resolved.provenance.step_values("s/b"), None);
}

#[test]
fn rejects_values_above_ceiling_with_position() {
    let operator = "allow_network = false\nleast_read_only = 'tracked'\nmax_timeout_ms = 1000\nmax_grace_ms = 10\n\
        max_retries = 1\n[ceiling]\nmemory = '1GiB'\npids = 10\n";
    let text = single_step_spec(
        "defaults: { network: allow }",
        "read_only: off,",
        ", timeout_ms: 1001, grace_ms: 11, retries: 2, limits: { memory: 2GiB, pids: 11 }",
    );
    let found = resolve(&text, operator).expect_err("over the ceiling");
    let messages: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(messages.len(), 7, "{messages:#?}");
    assert!(found.iter().all(|problem| problem.code == Code::OverCeiling && problem.span.is_some()));
    assert_eq!(
        messages[0],
        "operator::over_ceiling: `network` is `allow`, but the operator allows `deny` only at 2:22"
    );
}

#[test]
fn lowers_defaults_to_ceiling() {
    let operator = "least_read_only = 'strict'\nmax_timeout_ms = 1000\nmax_grace_ms = 10\n[ceiling]\nmemory = '1GiB'\n";
    let resolved = resolve(&single_step_spec("", "", ""), operator).expect("a plan");
    let step = &resolved.plan.skills[0].steps[0];
    assert_eq!((step.timeout_ms, step.grace_ms, step.read_only), (1000, 10, ReadOnly::Strict));
    assert_eq!(step.limits.memory, Limit::Max(1 << 30));
    let fields = resolved.provenance.step_values("s/a").expect("the step");
    assert!(fields.iter().any(|f| f.field == "timeout_ms" && f.origin == spec::ValueOrigin::Operator));
}

#[test]
fn reports_default_above_ceiling_once() {
    let text = "version: 1\ndefaults: { network: allow }\ntoolchains: { t: { required: [{ cmd: t }] } }\n\
        profiles: { p: { include: [s] } }\nskills: { s: { steps: [{ name: a, cmd: x }, { name: b, cmd: x }] } }\n";
    assert_eq!(resolve(text, "allow_network = false").expect_err("over").len(), 1);
}

#[test]
fn skills_run_in_sequence_unless_some_skill_uses_needs() {
    let text = |needs: &str, profile: &str| {
        format!(
            "version: 1\nprofiles: {{ p: {{ include: [b, a]{profile} }}, q: {{ include: [c] }} }}\nskills:\n  \
             a: {{ steps: [{{ name: x, cmd: x }}] }}\n  b: {{ {needs} steps: [{{ name: x, cmd: x }}] }}\n  \
             c: {{ steps: [{{ name: x, cmd: x }}] }}\n"
        )
    };
    assert_eq!(plan(&text("", "")).order, SkillOrder::Sequence);
    assert_eq!(plan(&text("needs: [],", "")).order, SkillOrder::Graph { parallel: 3 });
    let needing = plan(&text("needs: [a],", ", parallel: 9"));
    assert_eq!(needing.order, SkillOrder::Graph { parallel: 9 });
    assert_eq!(needing.skills[0].needs, [needing.skills[1].name.clone()]);
    assert!(resolve(&text("needs: [a],", ", parallel: 9"), "max_parallel = 8").is_err());
    assert_eq!(
        resolve(&text("needs: [a],", ""), "max_parallel = 2").expect("a plan").plan.order,
        SkillOrder::Graph { parallel: 2 }
    );
}

#[test]
fn gives_toolchain_checks_unique_names() {
    let text = "version: 1\ntoolchains:\n  a b: { required: [{ cmd: x }] }\n  a/b: { required: [{ cmd: [y], version: '>=1' }] }\n  \
        s: { required: [{ cmd: z }] }\ndefaults: { timeout_ms: 9, read_only: off }\n\
        profiles: { p: { include: [s] } }\nskills: { s: { steps: [{ name: s.1, cmd: x }] } }\n";
    let resolved = resolve(text, "").expect("a plan");
    let names: Vec<&str> = resolved.plan.toolchain.iter().map(|check| check.run.name.as_str()).collect();
    assert_eq!(names, ["a_b.1", "a_b.1-2", "s.1-2"]);
    for check in &resolved.plan.toolchain {
        assert_eq!((check.run.timeout_ms, check.run.read_only), (9, ReadOnly::Tracked));
    }
    assert_eq!(resolved.provenance.paths().collect::<Vec<_>>(), ["a b/a_b.1", "a/b/a_b.1-2", "s/s.1", "s/s.1-2"]);
}

#[test]
fn suggests_existing_profiles() {
    let spec = parse_spec(&single_step_spec("", "", "").replace("{ p:", "{ pre-push: { include: [s] }, p:"));
    let profile = ProfileName::new("prepush").expect("a name");
    let found =
        spec::resolve(&spec, &profile, &OperatorConfig::default(), Sha256Hex::digest(b""), 1).expect_err("unknown");
    assert_eq!(found[0].code, Code::UnknownProfile);
    assert_eq!(found[0].hints, ["did you mean `pre-push`?", "its profiles are `pre-push`, `p`"]);
}

#[test]
fn plans_adhoc_command_like_a_step() {
    let spec =
        parse_spec(&single_step_spec("defaults: { timeout_ms: 5, env: { A: d, B: d }, env_allowlist: [CI] }", "", ""));
    let adhoc = AdhocCommand {
        cmd: Argv::new(vec!["make".into()]).expect("a command"),
        workdir: None,
        timeout_ms: None,
        grace_ms: None,
        network: Some(Network::Allow),
        read_only: Some(ReadOnly::Off),
        leaks: Some(Leaks::Fail),
        env_allowlist: None,
        env: BTreeMap::from([("B".parse().expect("a name"), "c".to_owned())]),
        limits: LimitSettings::default(),
    };
    let name = || StepName::new("a").expect("a name");
    let step = spec::adhoc_step(&adhoc, name(), Some(&spec), &OperatorConfig::default()).expect("a step");
    let written = single_step_spec(
        "defaults: { timeout_ms: 5, env: { A: d, B: d }, env_allowlist: [CI] }",
        "",
        ", network: allow, read_only: off, leaks: fail, env: { B: c }",
    );
    assert_eq!(step, planned_step(&written));
    let without = spec::adhoc_step(&adhoc, name(), None, &OperatorConfig::default()).expect("a step");
    assert_eq!(
        without,
        planned_step(&single_step_spec("", "", ", network: allow, read_only: off, leaks: fail, env: { B: c }"))
    );
    let strict = OperatorConfig { allow_network: false, ..OperatorConfig::default() };
    let found = spec::adhoc_step(&adhoc, name(), None, &strict).expect_err("over the ceiling");
    assert_eq!((found.len(), found[0].span), (1, None));
}

#[test]
fn checks_adhoc_limits_against_ceiling() {
    let limits =
        LimitSettings { memory: Some(Limit::Max(1 << 20)), disk: Some(Limit::Unlimited), ..Default::default() };
    let adhoc = AdhocCommand {
        cmd: Argv::new(vec!["make".into()]).expect("a command"),
        workdir: None,
        timeout_ms: None,
        grace_ms: Some(7),
        network: None,
        read_only: None,
        leaks: None,
        env_allowlist: None,
        env: BTreeMap::new(),
        limits,
    };
    let name = || StepName::new("a").expect("a name");
    let step = spec::adhoc_step(&adhoc, name(), None, &OperatorConfig::default()).expect("a step");
    let expected = Limits { memory: Limit::Max(1 << 20), disk: Limit::Unlimited, ..Limits::BUILT_IN };
    assert_eq!((step.grace_ms, step.limits), (7, expected));
    let ceiling =
        Limits { memory: Limit::Max(1 << 19), disk: Limit::Max(1 << 30), ..OperatorConfig::default().ceiling };
    let strict = OperatorConfig { ceiling, max_grace_ms: Limit::Max(6), ..OperatorConfig::default() };
    let found = spec::adhoc_step(&adhoc, name(), None, &strict).expect_err("over the ceiling");
    let messages: Vec<&str> = found.iter().map(|problem| problem.message.as_str()).collect();
    for field in ["`grace_ms` is 7", "`limits.memory` is 1MiB", "`limits.disk` is unlimited"] {
        assert!(messages.iter().any(|message| message.starts_with(field)), "{messages:?}");
    }
}

#[test]
fn equal_bytes_have_equal_plan_digest() {
    let text = single_step_spec("defaults: { env: { B: x, A: y } }", "", ", limits: { memory: 1GiB }");
    assert_eq!(plan(&text).digest(), plan(&text).digest());
    let other = text.replace("1GiB", "2GiB");
    assert_ne!(plan(&text).digest(), plan(&other).digest());
}

#[test]
fn per_file_requires_files_as_arguments() {
    let text = |step: &str| {
        format!(
            "version: 1\nprofiles: {{ p: {{ include: [a] }} }}\nskills:\n  a: {{ steps: [{{ name: x, {step} }}] }}\n"
        )
    };
    let resolved = plan(&text("cmd: [lint, '{files}'], files: {}, per_file: true"));
    assert!(resolved.skills[0].steps[0].files.as_ref().is_some_and(|rules| rules.per_file));
    let resolved = plan(&text("cmd: [lint, '{files}'], files: {}, per_file: false"));
    assert!(resolved.skills[0].steps[0].files.as_ref().is_some_and(|rules| !rules.per_file));
    for step in ["cmd: [lint, src], files: {}, per_file: true", "cmd: [lint, '{files}'], files: {}, per_file: 1"] {
        assert!(spec::parse(text(step).as_bytes()).is_err(), "{step}");
    }
}
