//! Tests the resolution of `needs_paths` and of the `toolchains` of a skill.

use proctor_core::model::names::ProfileName;
use proctor_core::model::plan::{Network, PathKey, PathSource, Plan, PlannedSkill, RelPath, SkillToolchains};
use proctor_core::spec::{self, Code, OperatorConfig};
use proctor_core::text::digest::Sha256Hex;

fn resolve(text: &str, operator: &str) -> Result<Plan, Vec<Code>> {
    let spec = spec::parse(text.as_bytes()).expect(text).spec;
    let operator = OperatorConfig::parse(operator).expect(operator);
    let profile = ProfileName::new("p").expect("a name");
    let resolved = spec::resolve(&spec, &profile, &operator, Sha256Hex::digest(text.as_bytes()), 3);
    resolved.map(|resolved| resolved.plan).map_err(|problems| problems.iter().map(|problem| problem.code).collect())
}

fn plan(rest: &str) -> Plan {
    resolve(&format!("version: 1\n{rest}"), "").expect(rest)
}

fn paths(skill: &PlannedSkill) -> Vec<&str> {
    skill.needs_paths.iter().map(|needed| needed.path.as_str()).collect()
}

fn files(names: &[&str]) -> PathKey {
    PathKey::Files(names.iter().map(|name| RelPath::new(*name).expect("a path")).collect())
}

#[test]
fn merges_paths_of_defaults_skill_and_steps() {
    let planned = plan(
        "defaults: { needs_paths: [.venv, deps] }\nprofiles: { p: { include: [s, t] } }\nskills:\n  \
         s:\n    needs_paths: [{ path: deps, key: [a] }]\n    \
         steps: [{ name: a, cmd: make, needs_paths: [node_modules, { path: .venv, key: [b, c] }] }]\n  \
         t: { steps: [{ name: a, cmd: make }] }\n",
    );
    assert_eq!(paths(&planned.skills[0]), [".venv", "deps", "node_modules"]);
    let keys: Vec<&PathKey> = planned.skills[0].needs_paths.iter().map(|needed| &needed.key).collect();
    assert_eq!(keys, [&files(&["b", "c"]), &files(&["a"]), &PathKey::LockFiles]);
    assert_eq!(paths(&planned.skills[1]), [".venv", "deps"]);
    assert!(planned.skills[1].needs_paths.iter().all(|needed| needed.source == PathSource::Worktree));
}

#[test]
fn preparing_command_has_its_own_settings_and_those_of_defaults() {
    let planned = plan(
        "defaults: { env: { CI: x }, timeout_ms: 5 }\nprofiles: { p: { include: [s] } }\nskills:\n  \
         s:\n    env: { ONLY_STEPS: y }\n    \
         needs_paths: [{ path: web/node_modules, prepare: { cmd: [npm, ci], key: [k], workdir: web, network: allow } }]\n    \
         steps: [{ name: a, cmd: make }]\n",
    );
    let skill = &planned.skills[0];
    let run = skill.needs_paths[0].prepare().expect("a command");
    assert_eq!((run.cmd.to_string().as_str(), run.workdir.as_str(), run.timeout_ms), ("npm ci", "web", 5));
    assert_eq!((run.network, skill.steps[0].network), (Network::Allow, Network::Deny));
    assert_eq!(run.env.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["CI"]);
    assert_eq!(skill.needs_paths[0].key, files(&["k"]));
    assert!(skill.prepares_with_network());
}

#[test]
fn operator_can_forbid_the_network_of_preparing_commands() {
    let text = "version: 1\nprofiles: { p: { include: [s] } }\nskills: { s: { needs_paths: [{ path: d, prepare: \
                { cmd: make, network: allow } }], steps: [{ name: a, cmd: make }] } }\n";
    assert!(resolve(text, "").is_ok());
    assert_eq!(resolve(text, "allow_network = false").expect_err("too much"), [Code::OverCeiling]);
}

#[test]
fn plan_checks_only_toolchains_that_a_skill_uses() {
    let text = |skill: &str| {
        format!(
            "toolchains: {{ a: {{ required: [{{ cmd: a }}] }}, b: {{ required: [{{ cmd: b }}] }} }}\n\
             profiles: {{ p: {{ include: [s] }} }}\nskills: {{ s: {{ {skill} steps: [{{ name: a, cmd: make }}] }} }}\n"
        )
    };
    let checked = |skill: &str| -> Vec<String> {
        plan(&text(skill)).toolchain.iter().map(|check| check.toolchain.to_string()).collect()
    };
    assert_eq!(checked(""), ["a", "b"]);
    assert_eq!(checked("toolchains: [b],"), ["b"]);
    assert_eq!(checked("toolchains: [],"), Vec::<String>::new());
    assert_eq!(plan(&text("")).skills[0].toolchains, SkillToolchains::All);
}

/// A plan without the new keys keeps its digest.
#[test]
fn plan_without_needed_paths_does_not_mention_them() {
    let planned = plan("profiles: { p: { include: [s] } }\nskills: { s: { steps: [{ name: a, cmd: make }] } }\n");
    let text = serde_json::to_string(&planned).expect("writes");
    assert!(!text.contains("needs_paths") && !text.contains("\"toolchains\""), "{text}");
    assert_eq!(serde_json::from_str::<Plan>(&text).expect("reads"), planned);
}
