//! Implements `proctor plan`, which shows the resolved plan of a profile. Nothing runs.

use proctor_core::model::plan::{
    Ignored, Inputs, Leaks, NeededPath, Plan, PlannedCheck, PlannedSkill, PlannedStep, RelPath, SkillOrder,
    VersionDemand,
};

use crate::args::{OutputFormat, PlanArgs};
use crate::caller::Caller;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::human_report::{command_line, serialized_name};
use crate::installation;
use crate::loaded_spec::LoadedSpec;
use crate::screen::Screen;
use crate::style::{DIM, STRONG, paint};
use crate::text::{count, escape_line, exact_duration};

/// Resolves a profile and shows the plan. The JSON form is the plan's canonical JSON, whose sha256 is the plan's
/// digest.
///
/// # Errors
/// There is no valid spec or no such profile, or with `--last-failed` no earlier run that could be used.
pub(crate) fn plan(args: &PlanArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let operator = installation::operator(&args.operator, caller)?;
    let repo = installation::repository(&args.repo, caller)?;
    let spec = LoadedSpec::from_repository(&repo, caller)?;
    let mut plan = spec.resolve(&args.profile, &operator, caller)?.plan;
    if args.last_failed {
        let engine = engine::open(&args.state, operator, caller, screen)?;
        plan = engine.select_not_passed(&repo, plan).map_err(engine_error)?.0;
    }
    match args.format {
        OutputFormat::Human => screen.out(&render(&plan)),
        OutputFormat::Json => {
            screen.out_bytes(&proctor_core::text::canonical::to_vec(&plan));
            if caller.stdout_is_terminal {
                screen.out("\n");
            }
        }
    }
    Ok(0)
}

/// Renders a plan as human-readable text.
pub(crate) fn render(plan: &Plan) -> String {
    let steps: usize = plan.skills.iter().map(|skill| skill.steps.len()).sum();
    let profile = paint(STRONG, escape_line(plan.profile.as_str()));
    let order = match plan.order {
        SkillOrder::Sequence => "one after the other".to_owned(),
        SkillOrder::Graph { parallel } => format!("by what they need, at most {parallel} at once"),
    };
    let mut text = format!(
        "profile {profile}: {} in {}, {order}\n{}\n{}\n",
        count(steps, "step"),
        count(plan.skills.len(), "skill"),
        paint(DIM, format!("plan sha256 {}", plan.digest())),
        paint(DIM, format!("spec sha256 {}", plan.spec_sha256)),
    );
    if plan.ignored == Ignored::Hidden {
        text.push_str(&format!("{} {}\n", paint(DIM, "ignored files:"), plan.ignored.as_str()));
    }
    if !plan.left_out.is_empty() {
        let left_out: Vec<&str> = plan.left_out.iter().map(|name| name.as_str()).collect();
        text.push_str(&format!("{} {}\n", paint(DIM, "left out:"), escape_line(&left_out.join(", "))));
    }
    for checks in plan.toolchain.chunk_by(|a, b| a.toolchain == b.toolchain) {
        text.push_str(&checks_block(checks));
    }
    text.extend(plan.skills.iter().map(skill_block));
    text
}

/// Renders the checks of one toolchain.
fn checks_block(checks: &[PlannedCheck]) -> String {
    let Some(first) = checks.first() else { return String::new() };
    let mut text = format!("\ntoolchain {}\n", paint(STRONG, escape_line(first.toolchain.as_str())));
    for check in checks {
        let demand = match &check.version {
            VersionDemand::Any => String::new(),
            VersionDemand::Range { range } => format!(", version `{}`", escape_line(range)),
        };
        text.push_str(&step_block(&check.run, &demand));
    }
    text
}

fn skill_block(skill: &PlannedSkill) -> String {
    let name = paint(STRONG, escape_line(skill.name.as_str()));
    let mut text = format!("\nskill {name}, {}, tier {}\n", serialized_name(&skill.determinism), skill.declared_tier);
    if !skill.description.is_empty() {
        text.push_str(&format!("  {}\n", paint(DIM, escape_line(&skill.description))));
    }
    let needs: Vec<&str> = skill.needs.iter().map(|name| name.as_str()).collect();
    let caches: Vec<String> = skill.caches.iter().map(|path| describe_cache(skill, path)).collect();
    let caches: Vec<&str> = caches.iter().map(String::as_str).collect();
    let paths: Vec<String> = skill.needs_paths.iter().map(describe_path).collect();
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    for (label, list) in [("needs", needs), ("caches", caches), ("needs_paths", paths)] {
        if !list.is_empty() {
            text.push_str(&format!("  {label} {}\n", escape_line(&list.join(", "))));
        }
    }
    text.extend(skill.steps.iter().map(|step| step_block(step, "")));
    text
}

/// Returns a cache, with a note if its content does not change results.
fn describe_cache(skill: &PlannedSkill, path: &RelPath) -> String {
    let note = if skill.transparent_caches.contains(path) { " (transparent)" } else { "" };
    format!("{path}{note}")
}

/// Returns a needed path with the command that prepares it, if it has one.
fn describe_path(needed: &NeededPath) -> String {
    match needed.prepare() {
        None => needed.path.to_string(),
        Some(command) => format!("{} by `{}` (network: {})", needed.path, command.cmd, command.network.as_str()),
    }
}

fn step_block(step: &PlannedStep, demand: &str) -> String {
    let rows = [
        command_line(step),
        rule_row(step),
        environment_row(step),
        format!("limits {}", step.limits.phrase()),
        exceptions_row(step),
    ];
    let rows: String = rows.iter().filter(|row| !row.is_empty()).map(|row| format!("    {row}\n")).collect();
    format!("  {}{demand}\n{rows}", paint(STRONG, &step.name))
}

fn rule_row(step: &PlannedStep) -> String {
    let (network, read_only) = (serialized_name(&step.network), serialized_name(&step.read_only));
    let (timeout, grace) = (exact_duration(step.timeout_ms), exact_duration(step.grace_ms));
    format!("timeout {timeout} + {grace} grace, network {network}, read_only {read_only}")
}

fn environment_row(step: &PlannedStep) -> String {
    let list = |names: Vec<&str>| if names.is_empty() { "nothing".to_owned() } else { names.join(", ") };
    let set = list(step.env.keys().map(|name| name.as_str()).collect());
    let allowed = list(step.env_allowlist.iter().map(|name| name.as_str()).collect());
    format!("env sets {set}; from the caller {allowed}")
}

/// Renders settings that differ from their usual values.
fn exceptions_row(step: &PlannedStep) -> String {
    let mut parts = Vec::new();
    if step.retries > 0 {
        parts.push(format!("retries {}", step.retries));
    }
    if step.leaks != Leaks::default() {
        parts.push(format!("leaks {}", step.leaks.as_str()));
    }
    if step.expect_exit != [0] {
        let codes: Vec<String> = step.expect_exit.iter().map(u8::to_string).collect();
        parts.push(format!("expects exit code {}", codes.join(" or ")));
    }
    if let Inputs::Globs(globs) = &step.inputs {
        parts.push(format!("depends on {}", escape_line(&globs.join(", "))));
    }
    parts.extend(
        step.reports
            .iter()
            .map(|report| format!("writes {} {}", serialized_name(&report.format), escape_line(report.path.as_str()))),
    );
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::planned;
    use proctor_core::model::names::{EnvName, ProfileName, SkillName, ToolchainName, VarName};
    use proctor_core::model::plan::{Determinism, RelPath, ReportFile, ReportFormat};
    use proctor_core::model::tier::Tier;
    use proctor_core::text::digest::Sha256Hex;
    use std::collections::BTreeMap;

    fn check(name: &str, range: &str) -> PlannedCheck {
        PlannedCheck {
            toolchain: ToolchainName::new("rust").expect("a toolchain"),
            version: VersionDemand::Range { range: range.to_owned() },
            run: planned(name, &["cargo", "--version"]),
        }
    }

    #[test]
    fn renders_a_plan() {
        let mut step = planned("test", &["sh", "-c", "echo 'a b' | cat\u{1b}"]);
        step.env = BTreeMap::from([(VarName::new("A").expect("a name"), "secret\nvalue".to_owned())]);
        step.env_allowlist = vec![EnvName::new("CI").expect("a name")];
        step.retries = 2;
        step.expect_exit = vec![0, 3];
        step.inputs = Inputs::Globs(vec!["src/**".into()]);
        let path = RelPath::new("out.xml").expect("a path");
        step.reports = vec![ReportFile { format: ReportFormat::Junit, path }];
        let name = |text: &str| SkillName::new(text).expect("a skill");
        let skill = PlannedSkill {
            name: name("verify.test"),
            description: "Tests".into(),
            determinism: Determinism::D1,
            declared_tier: Tier::TWO,
            needs: vec![name("build")],
            caches: vec![RelPath::new("target").expect("a path"), RelPath::new("out").expect("a path")],
            transparent_caches: vec![RelPath::new("target").expect("a path")],
            needs_paths: vec![],
            toolchains: Default::default(),
            platform: BTreeMap::new(),
            container: String::new(),
            steps: vec![step],
        };
        let plan = Plan {
            version: 1,
            profile: ProfileName::new("pr").expect("a profile"),
            spec_sha256: Sha256Hex::digest(b"spec"),
            spec_dir: RelPath::repository(),
            order: SkillOrder::Graph { parallel: 2 },
            ignored: Ignored::Hidden,
            toolchain: vec![check("rust.1", ">=1.80"), check("rust.2", "*")],
            skills: vec![skill],
            left_out: vec![name("verify.lint")],
            scope: None,
        };
        insta::assert_snapshot!(anstream::adapter::strip_str(&render(&plan)).to_string());
    }
}
