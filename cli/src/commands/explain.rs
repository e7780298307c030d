//! Implements `proctor explain`, which shows the origin of each value of a step, the setup of its sandbox, the origin
//! of its environment variables, and whether its stored result would be used. It shows exactly what the engine would use.

mod cache;
mod variable;

use std::collections::BTreeMap;
use std::path::Path;

use proctor_core::model::names::SkillName;
use proctor_core::model::plan::{Determinism, Plan, PlannedCheck, PlannedSkill, PlannedStep};
use proctor_core::model::tier::Tier;
use proctor_core::spec::{Profile, ResolvedPlan, SourcedValue, Spec};
use proctor_runner::environment::{Environment, VariableOrigin, explain_missing};
use proctor_runner::{Engine, SandboxPreview};

use crate::args::ExplainArgs;
use crate::caller::Caller;
use crate::engine::{self, engine_error};
use crate::error::CliError;
use crate::installation;
use crate::loaded_spec::LoadedSpec;
use crate::screen::Screen;
use crate::style::{DIM, STRONG, paint};
use crate::text::escape_line;

/// Target that selects the environment.
const ENV: &str = "env";
/// Target that selects the sandbox setup.
const SANDBOX: &str = "sandbox";
/// Target that selects the reuse of results.
const CACHE: &str = "cache";
/// Number of steps that a message lists.
const MAX_LISTED_STEPS: usize = 10;

/// Explains a step, its environment, or its sandbox.
///
/// # Errors
/// The step does not exist, or the engine cannot determine what the step would receive.
pub(crate) async fn explain(args: &ExplainArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller)?;
    let operator = installation::operator(&args.operator, caller)?;
    let spec = LoadedSpec::from_repository(&repo, caller)?;
    let resolved = spec.resolve(&args.profile, &operator, caller)?;
    let steps = steps_by_path(&resolved.plan)?;
    let target = args.target.as_deref().unwrap_or_default();
    // The path of a step contains a slash, so no step has the name of an aspect.
    let aspect = ExplainedAspect::parse(target);
    if let (None, Some(extra)) = (aspect, &args.step) {
        return Err(CliError::Usage {
            message: format!("`{}` cannot follow a step", escape_line(extra)),
            hint: format!("name one step, or `{ENV}`, `{SANDBOX}` or `{CACHE}` with a step"),
        });
    }
    if let (None | Some(ExplainedAspect::Sandbox | ExplainedAspect::Cache), Some(name)) = (aspect, &args.var) {
        return Err(CliError::Usage {
            message: format!("`--var {name}` requires `{ENV}`"),
            hint: format!("run `proctor explain {ENV} --var {name}`"),
        });
    }
    let wanted = if aspect.is_some() { args.step.as_deref() } else { Some(target) };
    let chosen =
        select_steps(&steps, wanted).map_err(|error| other_profile_error(&spec.spec, wanted).unwrap_or(error))?;
    let engine = engine::open(&args.state, operator, caller, screen)?;
    if aspect == Some(ExplainedAspect::Cache) {
        let preview = engine.preview_reuse(&repo, &args.profile).await.map_err(engine_error)?;
        screen.out(&cache::render(&preview, args.step.as_deref(), args.verbose));
        return Ok(0);
    }
    let previews = previews(&engine, &repo, &chosen)?;
    if aspect.is_none() {
        screen.out(&format!("{}\n{}", paint(STRONG, "the run"), origin_table(resolved.provenance.run_values())));
    }
    for (path, subject, preview) in &previews {
        if aspect.is_none() {
            screen.out(&render_values(path, &resolved));
            screen.out(&render_environment(&preview.environment, &subject.step, caller));
            screen.out(&render_sandbox(preview));
        }
    }
    match (aspect, &args.var) {
        (Some(ExplainedAspect::Env), Some(name)) => screen.out(&render_groups(&previews, |subject, preview| {
            variable::explain_variable(name, &preview.environment, &subject.step, caller)
        })),
        (Some(ExplainedAspect::Env), None) => {
            screen.out(&render_groups(&previews, |subject, preview| {
                render_environment(&preview.environment, &subject.step, caller)
            }));
        }
        (Some(ExplainedAspect::Sandbox), _) => {
            screen.out(&render_groups(&previews, |_, preview| render_sandbox(preview)));
        }
        (None | Some(ExplainedAspect::Cache), _) => {}
    }
    Ok(0)
}

/// An aspect that is explained without the values of the step, for one step or for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExplainedAspect {
    Env,
    Sandbox,
    Cache,
}

impl ExplainedAspect {
    fn parse(target: &str) -> Option<Self> {
        match target {
            ENV => Some(Self::Env),
            SANDBOX => Some(Self::Sandbox),
            CACHE => Some(Self::Cache),
            _ => None,
        }
    }
}

/// Computes what the engine would use for each of the chosen steps.
fn previews<'a>(
    engine: &Engine,
    repo: &Path,
    chosen: &[(&'a str, &'a ExplainedStep)],
) -> Result<Vec<StepPreview<'a>>, CliError> {
    chosen.iter().map(|(path, subject)| Ok((*path, *subject, subject.preview(engine, repo)?))).collect()
}

/// A step with its path and the values that the engine would use for it.
type StepPreview<'a> = (&'a str, &'a ExplainedStep, SandboxPreview);

/// Renders several steps; steps with the same text share one heading.
fn render_groups(previews: &[StepPreview<'_>], render: impl Fn(&ExplainedStep, &SandboxPreview) -> String) -> String {
    let mut groups: Vec<(Vec<&str>, String)> = Vec::new();
    for (path, subject, preview) in previews {
        let text = render(subject, preview);
        match groups.iter_mut().find(|(_, other)| *other == text) {
            Some((paths, _)) => paths.push(path),
            None => groups.push((vec![path], text)),
        }
    }
    let group =
        |(paths, text): (Vec<&str>, String)| format!("{} {}\n{text}", paint(DIM, "of"), escape_line(&paths.join(", ")));
    groups.into_iter().map(group).collect()
}

/// A step that can be explained, with its skill.
struct ExplainedStep {
    skill: PlannedSkill,
    step: PlannedStep,
}

impl ExplainedStep {
    fn preview(&self, engine: &Engine, repo: &Path) -> Result<SandboxPreview, CliError> {
        engine.preview_step(repo, &self.skill, &self.step).map_err(engine_error)
    }
}

/// Returns all steps and toolchain checks of a plan, by the path that the plan's provenance uses.
fn steps_by_path(plan: &Plan) -> Result<BTreeMap<String, ExplainedStep>, CliError> {
    let mut subjects = BTreeMap::new();
    for check in &plan.toolchain {
        let skill = check_skill(check)?;
        subjects.insert(
            format!("{}/{}", check.toolchain, check.run.name),
            ExplainedStep { skill, step: check.run.clone() },
        );
    }
    for skill in &plan.skills {
        for step in &skill.steps {
            let subject = ExplainedStep { skill: skill.clone(), step: step.clone() };
            subjects.insert(format!("{}/{}", skill.name, step.name), subject);
        }
    }
    Ok(subjects)
}

/// Wraps a toolchain check in a skill. The preview uses only the caches of the skill, and a check has none.
fn check_skill(check: &PlannedCheck) -> Result<PlannedSkill, CliError> {
    Ok(PlannedSkill {
        name: SkillName::new(check.toolchain.as_str()).map_err(|bad| CliError::Internal(bad.to_string()))?,
        description: String::new(),
        determinism: Determinism::D0,
        declared_tier: Tier::ONE,
        needs: Vec::new(),
        caches: Vec::new(),
        transparent_caches: Vec::new(),
        needs_paths: vec![],
        toolchains: Default::default(),
        platform: BTreeMap::new(),
        container: String::new(),
        steps: vec![check.run.clone()],
    })
}

fn select_steps<'a>(
    subjects: &'a BTreeMap<String, ExplainedStep>,
    wanted: Option<&str>,
) -> Result<Vec<(&'a str, &'a ExplainedStep)>, CliError> {
    let all = || subjects.iter().map(|(path, subject)| (path.as_str(), subject));
    let Some(wanted) = wanted else { return Ok(all().collect()) };
    let found: Vec<_> = all().filter(|(path, _)| *path == wanted).collect();
    if !found.is_empty() {
        return Ok(found);
    }
    let names: Vec<String> =
        subjects.keys().take(MAX_LISTED_STEPS).map(|path| format!("`{}`", escape_line(path))).collect();
    let more = if subjects.len() > MAX_LISTED_STEPS {
        format!(" and {} more", subjects.len() - MAX_LISTED_STEPS)
    } else {
        String::new()
    };
    Err(CliError::Usage {
        message: format!("the profile has no step `{}`", escape_line(wanted)),
        hint: format!("there are {}{more}, and `{ENV}`, `{SANDBOX}` and `{CACHE}`", names.join(", ")),
    })
}

/// Returns a better error if another profile has the step: it names that profile.
fn other_profile_error(spec: &Spec, wanted: Option<&str>) -> Option<CliError> {
    let (skill, step) = wanted?.rsplit_once('/')?;
    spec.skills.get(skill)?.steps.value.iter().find(|written| written.name.value.as_str() == step)?;
    let includes = |profile: &Profile| profile.include.value.iter().any(|name| name.value.as_str() == skill);
    let hint = match spec.profiles.iter().find(|(_, profile)| includes(profile)) {
        Some((name, _)) => format!("the profile `{0}` has it; use `--profile {0}`", escape_line(name.value.as_str())),
        None => format!("no profile includes the skill `{}`", escape_line(skill)),
    };
    Some(CliError::Usage {
        message: format!("the profile has no step `{}`", escape_line(&format!("{skill}/{step}"))),
        hint,
    })
}

fn render_values(path: &str, resolved: &ResolvedPlan) -> String {
    let mut text = format!("{}\n", paint(STRONG, escape_line(path)));
    let fields: &[SourcedValue] = resolved.provenance.step_values(path).unwrap_or_default();
    text.push_str(&origin_table(fields));
    text
}

fn origin_table(fields: &[SourcedValue]) -> String {
    let rows: Vec<[String; 3]> =
        fields.iter().map(|field| [field.field.clone(), field.origin.to_string(), escape_line(&field.value)]).collect();
    table(&rows)
}

/// Formats rows of name, origin and value. Values can be long, so they are the last column.
fn table(rows: &[[String; 3]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    let line = |[name, origin, value]: &[String; 3]| {
        format!("  {name:<first$}  {}  {value}\n", paint(DIM, format!("{origin:<second$}")))
    };
    rows.iter().map(line).collect()
}

fn render_environment(environment: &Environment, step: &PlannedStep, caller: &Caller) -> String {
    let rows: Vec<[String; 3]> = environment
        .iter()
        .map(|(name, (value, origin))| [escape_line(name), origin.to_string(), displayed_value(value, *origin)])
        .collect();
    format!("{}\n{}{}", paint(STRONG, "environment"), table(&rows), render_missing_variables(environment, step, caller))
}

/// Returns the displayed value. Values from the caller are hidden: they may be secret, and screens end up in logs.
fn displayed_value(value: &str, origin: VariableOrigin) -> String {
    match origin {
        VariableOrigin::Caller => "(the caller's)".to_owned(),
        VariableOrigin::Standard | VariableOrigin::Toolchain | VariableOrigin::Spec | VariableOrigin::Trace => {
            escape_line(value)
        }
    }
}

/// Renders the reasons for missing variables: the caller's variables grouped by reason, and allowed variables that
/// the caller does not have.
fn render_missing_variables(environment: &Environment, step: &PlannedStep, caller: &Caller) -> String {
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in caller.env.keys().filter(|name| !environment.contains_key(*name)) {
        let why = explain_missing(name, environment);
        let reason = why.split_once(" is missing: ").map_or(why.as_str(), |(_, reason)| reason);
        reasons.entry(reason.to_owned()).or_default().push(escape_line(name));
    }
    for name in step.env_allowlist.iter().filter(|name| !caller.env.contains_key(name.as_str())) {
        let reason = "it is in `env_allowlist`, and the caller does not have it".to_owned();
        reasons.entry(reason).or_default().push(name.to_string());
    }
    if !caller.unreadable.is_empty() {
        reasons.insert("its name or its value is not UTF-8".to_owned(), caller.unreadable.clone());
    }
    let blocks = reasons.iter().map(|(reason, names)| format!("  {}\n    {}\n", paint(DIM, reason), names.join(" ")));
    let blocks: String = blocks.collect();
    if blocks.is_empty() { blocks } else { format!("{}\n{blocks}", paint(STRONG, "not passed on")) }
}

fn render_sandbox(preview: &SandboxPreview) -> String {
    let lines = preview
        .ops
        .iter()
        .enumerate()
        .map(|(index, op)| format!("  {:>3}  {}\n", index + 1, escape_line(&op.to_string())));
    format!("{}\n{}", paint(STRONG, "sandbox, in this order"), lines.collect::<String>())
}
