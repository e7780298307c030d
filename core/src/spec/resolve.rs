//! Resolves a spec, a profile and the operator's config to a plan. All defaults are applied here and nowhere else.
//!
//! Each value is recorded with its origin when it enters the plan, so the output of `explain` cannot differ from the
//! plan.

use std::collections::{BTreeMap, BTreeSet};

use super::built_in;
use super::command::Command;
use super::diagnostic::{self, Code, Diagnostic, listed, quoted};
use super::layer::{Adhoc, Chosen, Overrides, Own, Settings, by_default, nearest, unspoken};
use super::operator::{Operator, exceeds};
use super::provenance::{Origin, Provenance, Sourced};
use super::rules;
use super::size::Size;
use super::span::{Span, Spanned};
use super::written::{Profile, Skill, Spec, Step, Table, Text};
use crate::digest::Sha256Hex;
use crate::evidence::step_path;
use crate::names::{EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName};
use crate::plan::{
    Argv, Determinism, Ignored, Inputs, Leaks, Limit, Limits, Network, Plan, PlannedCheck, PlannedSkill, PlannedStep,
    ReadOnly, RelPath, ReportFile, ReportFormat, SkillOrder, VersionDemand,
};
use crate::tier::Tier;

/// A plan and the origins of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The plan.
    pub plan: Plan,
    /// The origin of each value.
    pub provenance: Provenance,
}

/// Resolves a profile of a spec that [`super::read`] accepted. `cpus` is the number of processors. It limits the number
/// of skills that run at once if the profile does not set `parallel`.
///
/// # Errors
/// Returns diagnostics, sorted by position, if the profile does not exist or the spec requests more than the operator
/// allows.
pub fn resolve(
    spec: &Spec,
    profile: &ProfileName,
    operator: &Operator,
    spec_sha256: Sha256Hex,
    cpus: u32,
) -> Result<Resolved, Vec<Diagnostic>> {
    let Some(written) = spec.profiles.get(profile.as_str()) else {
        return Err(vec![unknown_profile(spec, profile)]);
    };
    let mut resolver = Resolver::new(operator);
    let ignored = resolver.ignored(spec);
    let toolchain = resolver.checks(spec);
    let skills = resolver.skills(spec, written);
    let order = resolver.order(spec, written, cpus);
    let provenance = resolver.finish()?;
    let plan = Plan {
        version: 1,
        profile: profile.clone(),
        spec_sha256,
        order,
        ignored,
        toolchain,
        skills,
        left_out: Vec::new(),
    };
    Ok(Resolved { plan, provenance })
}

/// Plans a single command like a step of `spec` with the settings in `adhoc`. Without a spec, the operator's and the
/// built-in values apply.
///
/// # Errors
/// Returns one diagnostic for each setting that exceeds the operator's ceiling.
pub fn adhoc_step(
    adhoc: &Adhoc,
    name: StepName,
    spec: Option<&Spec>,
    operator: &Operator,
) -> Result<PlannedStep, Vec<Diagnostic>> {
    let overrides = Overrides::of(adhoc);
    let layers = [overrides.settings(), Settings::of_defaults(spec.and_then(|spec| spec.defaults.as_ref()))];
    let mut resolver = Resolver::new(operator);
    let step = resolver.step(
        &step_key("exec", name.as_str()),
        name,
        adhoc.cmd.clone(),
        Origin::CommandLine,
        &layers,
        Own::CommandLine(adhoc),
    );
    resolver.finish().map(|_| step)
}

fn unknown_profile(spec: &Spec, profile: &ProfileName) -> Diagnostic {
    let message = format!("the spec has no profile {}", quoted(profile.as_str()));
    Diagnostic::unplaced(Code::UnknownProfile, message)
        .did_you_mean(profile.as_str(), spec.profiles.names())
        .hint(format!("its profiles are {}", listed(spec.profiles.names())))
}

fn step_key(group: &str, step: &str) -> String {
    format!("{group}/{step}")
}

/// Names that are not available for toolchain checks.
struct CheckNames {
    names: BTreeSet<String>,
    /// `skill/step` paths of all steps. Provenance keys of checks have the same form and must not collide with them.
    steps: BTreeSet<String>,
    /// The last numeric suffix used for each base name, so that the search does not start over.
    suffixes: BTreeMap<String, usize>,
}

impl CheckNames {
    fn of(spec: &Spec) -> Self {
        let steps = |(name, skill): (&Spanned<SkillName>, &Skill)| {
            let names = skill.steps.value.iter().map(|step| step_path(&name.value, &step.name.value));
            names.collect::<Vec<String>>()
        };
        let steps = spec.skills.iter().flat_map(steps).collect();
        Self { names: BTreeSet::new(), steps, suffixes: BTreeMap::new() }
    }
}

/// Collects the values of a plan, their origins and the problems.
struct Resolver<'a> {
    operator: &'a Operator,
    problems: Vec<Diagnostic>,
    provenance: Provenance,
    fields: Vec<Sourced>,
}

impl<'a> Resolver<'a> {
    fn new(operator: &'a Operator) -> Self {
        Self { operator, problems: vec![], provenance: Provenance::default(), fields: vec![] }
    }

    fn finish(mut self) -> Result<Provenance, Vec<Diagnostic>> {
        if self.problems.is_empty() {
            return Ok(self.provenance);
        }
        diagnostic::sort(&mut self.problems);
        // A value of `defaults` is reported once for each step that uses it.
        self.problems.dedup();
        Err(self.problems)
    }

    /// Records the origin of a value and returns the value.
    fn take<T>(&mut self, field: &str, chosen: Chosen<T>, show: impl Fn(&T) -> String) -> T {
        self.fields.push(Sourced { field: field.to_owned(), value: show(&chosen.value), origin: chosen.origin });
        chosen.value
    }

    /// Reports a value that exceeds the operator's ceiling.
    fn refuse(&mut self, field: &str, asked: &str, allowed: &str, origin: Origin) {
        let message = format!("`{field}` is {asked}, and the operator allows {allowed}");
        let mut problem = Diagnostic::unplaced(Code::OverCeiling, message)
            .hint("request less, or ask the operator to raise the limit in `proctord.toml`");
        problem.span = origin.span();
        self.problems.push(problem);
    }

    fn ignored(&mut self, spec: &Spec) -> Ignored {
        let chosen = match spec.ignored {
            Some(ignored) => Chosen { value: ignored.value, origin: Origin::Spec(ignored.span) },
            None => by_default(built_in::IGNORED),
        };
        let ignored = self.take("ignored", chosen, |ignored| ignored.as_str().to_owned());
        self.provenance.of_run = std::mem::take(&mut self.fields);
        ignored
    }

    fn checks(&mut self, spec: &Spec) -> Vec<PlannedCheck> {
        let mut taken = CheckNames::of(spec);
        let mut planned = Vec::new();
        for (toolchain, written) in spec.toolchains.iter().flat_map(Table::iter) {
            for (index, check) in written.required.iter().flatten().enumerate() {
                let Some(cmd) = self.command(&check.cmd) else { continue };
                let Some(name) = self.check_name(&toolchain.value, index + 1, &mut taken) else { continue };
                let origin = Origin::Step(check.cmd.span);
                let tracked = Spanned::new(built_in::READ_ONLY, Span::default());
                // A check only reads a version, so the spec cannot lower the protection of the tree for it.
                let fixed =
                    Settings { origin: |_| Origin::BuiltIn, read_only: Some(&tracked), ..Settings::of_defaults(None) };
                let layers = [fixed, Settings::of_defaults(spec.defaults.as_ref())];
                let key = step_key(toolchain.value.as_str(), name.as_str());
                let run = self.step(&key, name, cmd, origin, &layers, Own::Nothing);
                let version = match &check.version {
                    Some(range) => VersionDemand::Range { range: range.value.clone() },
                    None => VersionDemand::Any,
                };
                planned.push(PlannedCheck { toolchain: toolchain.value.clone(), version, run });
            }
        }
        planned
    }

    /// Returns the step name `<toolchain>.<n>`, with a suffix if the name is in `taken` or if a skill with the
    /// toolchain's name has such a step.
    fn check_name(&mut self, toolchain: &ToolchainName, number: usize, taken: &mut CheckNames) -> Option<StepName> {
        let keep = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
        let base = format!("{}.{number}", toolchain.as_str().chars().map(keep).collect::<String>());
        let mut text = base.clone();
        while taken.steps.contains(&step_key(toolchain.as_str(), &text)) || taken.names.contains(&text) {
            let next = taken.suffixes.entry(base.clone()).or_insert(1);
            *next += 1;
            text = format!("{base}-{next}");
        }
        taken.names.insert(text.clone());
        match StepName::new(text) {
            Ok(name) => Some(name),
            Err(bad) => {
                self.problems.push(Diagnostic::unplaced(Code::BadName, bad.to_string()));
                None
            }
        }
    }

    fn skills(&mut self, spec: &Spec, profile: &Profile) -> Vec<PlannedSkill> {
        let written: BTreeMap<&str, &Skill> = spec.skills.iter().map(|(name, s)| (name.value.as_str(), s)).collect();
        let include = &profile.include.value;
        let places: BTreeMap<&SkillName, usize> = include.iter().enumerate().map(|(at, n)| (&n.value, at)).collect();
        let mut planned = Vec::new();
        for name in include {
            match written.get(name.value.as_str()) {
                Some(skill) => planned.push(self.skill(spec, &name.value, skill, &places)),
                None => self.problems.push(rules::unknown_skill(spec, name)),
            }
        }
        planned
    }

    fn skill(
        &mut self,
        spec: &Spec,
        name: &SkillName,
        skill: &Skill,
        places: &BTreeMap<&SkillName, usize>,
    ) -> PlannedSkill {
        let steps = skill.steps.value.iter().filter_map(|step| self.written_step(spec, name, skill, step)).collect();
        let needs: BTreeMap<usize, &SkillName> =
            skill.needs().filter_map(|need| places.get(&need.value).map(|at| (*at, &need.value))).collect();
        let text = |text: Option<&Text>| text.map(|text| text.0.clone()).unwrap_or_default();
        let platform = skill.platform.iter().flat_map(Table::iter);
        PlannedSkill {
            name: name.clone(),
            description: text(skill.description.as_ref()),
            determinism: skill.determinism.map_or(built_in::DETERMINISM, |class: Spanned<Determinism>| class.value),
            declared_tier: skill.tier.map_or(built_in::TIER, |tier: Spanned<Tier>| tier.value),
            needs: needs.into_values().cloned().collect(),
            caches: skill.caches.iter().flatten().map(|path| path.value.clone()).collect(),
            platform: platform.map(|(name, value)| (name.value.0.clone(), value.0.clone())).collect(),
            container: text(skill.container.as_ref().map(|container| &container.value)),
            steps,
        }
    }

    fn written_step(&mut self, spec: &Spec, skill_name: &SkillName, skill: &Skill, step: &Step) -> Option<PlannedStep> {
        let (cmd, span) = match (&step.cmd, &step.sql) {
            (Some(cmd), _) => (self.command(cmd)?, cmd.span),
            (None, Some(sql)) => (sql.value.check().argv(), sql.span),
            (None, None) => {
                let span = step.name.span;
                self.problems.push(Diagnostic::error(Code::MissingKey, span, "the step has no `cmd` and no `sql`"));
                return None;
            }
        };
        let defaults = Settings::of_defaults(spec.defaults.as_ref());
        let layers = [Settings::of_step(step), Settings::of_skill(skill), defaults];
        let key = step_path(skill_name, &step.name.value);
        let origin = Origin::Step(span);
        Some(self.step(&key, step.name.value.clone(), cmd, origin, &layers, Own::Step(step)))
    }

    /// Plans one step; each value comes from the nearest layer that sets it.
    fn step(
        &mut self,
        key: &str,
        name: StepName,
        cmd: Argv,
        origin: Origin,
        layers: &[Settings<'_>],
        own: Own<'_>,
    ) -> PlannedStep {
        self.fields.clear();
        let step = PlannedStep {
            name,
            cmd: self.take("cmd", Chosen { value: cmd, origin }, Argv::to_string),
            sql: own.sql(),
            workdir: self.workdir(layers),
            timeout_ms: self.timeout_ms(layers),
            grace_ms: self.grace_ms(own),
            network: self.network(layers),
            read_only: self.read_only(layers),
            env_allowlist: self.env_allowlist(layers),
            env: self.env(layers),
            limits: self.limits(own),
            retries: self.retries(own),
            leaks: self.leaks(layers),
            expect_exit: self.expect_exit(own),
            inputs: self.inputs(own),
            reports: self.reports(own),
        };
        self.provenance.of_steps.insert(key.to_owned(), std::mem::take(&mut self.fields));
        step
    }

    fn workdir(&mut self, layers: &[Settings<'_>]) -> RelPath {
        let chosen = nearest(layers, |layer| layer.workdir).unwrap_or_else(|| by_default(RelPath::repository()));
        self.take("workdir", chosen, RelPath::to_string)
    }

    fn timeout_ms(&mut self, layers: &[Settings<'_>]) -> u64 {
        let most = self.operator.max_timeout_ms;
        let asked = nearest(layers, |layer| layer.timeout_ms);
        let unspoken =
            unspoken(self.operator.defaults.timeout_ms.map(Limit::Max), Limit::Max(built_in::TIMEOUT_MS), most);
        self.milliseconds("timeout_ms", asked, unspoken, most)
    }

    fn grace_ms(&mut self, own: Own<'_>) -> u64 {
        let most = self.operator.max_grace_ms;
        let unspoken = unspoken(self.operator.defaults.grace_ms.map(Limit::Max), Limit::Max(built_in::GRACE_MS), most);
        self.milliseconds("grace_ms", own.grace_ms(), unspoken, most)
    }

    fn milliseconds(&mut self, field: &str, asked: Option<Chosen<u64>>, unspoken: Chosen<Limit>, most: Limit) -> u64 {
        let chosen = match asked {
            Some(asked) => Chosen { value: Limit::Max(asked.value), origin: asked.origin },
            None => unspoken,
        };
        self.bounded(field, chosen, most, show_count).get_or_max()
    }

    /// Records and returns the value of a limit. Reports it if it exceeds the operator's ceiling.
    fn bounded(&mut self, field: &str, chosen: Chosen<Limit>, most: Limit, show: fn(&Limit) -> String) -> Limit {
        if exceeds(chosen.value, most) {
            self.refuse(field, &show(&chosen.value), &format!("{} at most", show(&most)), chosen.origin);
        }
        self.take(field, chosen, show)
    }

    fn network(&mut self, layers: &[Settings<'_>]) -> Network {
        let chosen = nearest(layers, |layer| layer.network).unwrap_or_else(|| by_default(built_in::NETWORK));
        if chosen.value == Network::Allow && !self.operator.allow_network {
            self.refuse("network", "`allow`", "`deny` only", chosen.origin);
        }
        self.take("network", chosen, |network| network.as_str().to_owned())
    }

    fn read_only(&mut self, layers: &[Settings<'_>]) -> ReadOnly {
        let least = self.operator.least_read_only;
        let unspoken = if strength(built_in::READ_ONLY) < strength(least) {
            Chosen { value: least, origin: Origin::Operator }
        } else {
            by_default(built_in::READ_ONLY)
        };
        let mut chosen = nearest(layers, |layer| layer.read_only).unwrap_or(unspoken);
        if strength(chosen.value) < strength(least) {
            match chosen.origin {
                Origin::BuiltIn => chosen = Chosen { value: least, origin: Origin::Operator },
                origin => {
                    let (asked, allowed) = (chosen.value.as_str(), least.as_str());
                    self.refuse("read_only", &format!("`{asked}`"), &format!("`{allowed}` at least"), origin);
                }
            }
        }
        self.take("read_only", chosen, |mode| mode.as_str().to_owned())
    }

    fn leaks(&mut self, layers: &[Settings<'_>]) -> Leaks {
        let chosen = nearest(layers, |layer| layer.leaks).unwrap_or_else(|| by_default(built_in::LEAKS));
        self.take("leaks", chosen, |mode| mode.as_str().to_owned())
    }

    fn env_allowlist(&mut self, layers: &[Settings<'_>]) -> Vec<EnvName> {
        let chosen = nearest(layers, |layer| layer.env_allowlist).unwrap_or_else(|| by_default(vec![]));
        let names: Vec<EnvName> = chosen.value.into_iter().map(|name| name.value).collect();
        let chosen = Chosen { value: names, origin: chosen.origin };
        self.take("env_allowlist", chosen, |names| show_list(names.iter().map(EnvName::as_str)))
    }

    fn env(&mut self, layers: &[Settings<'_>]) -> BTreeMap<VarName, String> {
        let mut merged: BTreeMap<VarName, Chosen<String>> = BTreeMap::new();
        for layer in layers {
            for (name, value) in layer.env.iter().flat_map(|env| env.iter()) {
                let origin = (layer.origin)(name.span);
                merged.entry(name.value.clone()).or_insert_with(|| Chosen { value: value.0.clone(), origin });
            }
        }
        let mut env = BTreeMap::new();
        for (name, chosen) in merged {
            let value = self.take(&format!("env.{name}"), chosen, String::clone);
            env.insert(name, value);
        }
        env
    }

    fn limits(&mut self, own: Own<'_>) -> Limits {
        let (operator, most) = (self.operator.defaults.limits, self.operator.ceiling);
        macro_rules! limit {
            ($name:ident, $show:ident) => {{
                let asked = own.limit(|limits| limits.$name, |said| said.$name);
                let chosen = asked.unwrap_or_else(|| unspoken(operator.$name, built_in::LIMITS.$name, most.$name));
                self.bounded(concat!("limits.", stringify!($name)), chosen, most.$name, $show)
            }};
        }
        Limits {
            memory: limit!(memory, show_size),
            pids: limit!(pids, show_count),
            disk: limit!(disk, show_size),
            output: limit!(output, show_size),
            cpu_seconds: limit!(cpu_seconds, show_count),
            open_files: limit!(open_files, show_count),
        }
    }

    fn retries(&mut self, own: Own<'_>) -> u32 {
        let chosen = match own.get(|step| step.retries.as_ref()) {
            Some(retries) => Chosen { value: retries.value, origin: Origin::Step(retries.span) },
            None => by_default(built_in::RETRIES),
        };
        let (asked, most) = (Limit::Max(chosen.value.into()), self.operator.max_retries);
        if exceeds(asked, most) {
            self.refuse("retries", &show_count(&asked), &format!("{} at most", show_count(&most)), chosen.origin);
        }
        self.take("retries", chosen, u32::to_string)
    }

    fn expect_exit(&mut self, own: Own<'_>) -> Vec<u8> {
        let chosen = match own.get(|step| step.expect.as_ref().and_then(|expect| expect.exit.as_ref())) {
            Some(codes) => Chosen { value: codes.value.clone(), origin: Origin::Step(codes.span) },
            None => by_default(built_in::EXPECT_EXIT.to_vec()),
        };
        self.take("expect.exit", chosen, |codes| format!("{codes:?}"))
    }

    fn inputs(&mut self, own: Own<'_>) -> Inputs {
        let chosen = match own.get(|step| step.inputs.as_ref()) {
            Some(globs) => {
                let texts = globs.value.iter().map(|glob| glob.value.0.clone()).collect();
                Chosen { value: Inputs::Globs(texts), origin: Origin::Step(globs.span) }
            }
            None => by_default(Inputs::Tree),
        };
        self.take("inputs", chosen, |inputs| match inputs {
            Inputs::Tree => "the whole tree".to_owned(),
            Inputs::Globs(globs) => show_list(globs.iter().map(String::as_str)),
        })
    }

    fn reports(&mut self, own: Own<'_>) -> Vec<ReportFile> {
        let Own::Step(Step { reports: written, .. }) = own else { return vec![] };
        let written = written.as_ref();
        let formats = [
            ("reports.junit", ReportFormat::Junit, written.and_then(|reports| reports.junit.as_ref())),
            ("reports.sarif", ReportFormat::Sarif, written.and_then(|reports| reports.sarif.as_ref())),
        ];
        let mut files = Vec::new();
        for (field, format, path) in formats {
            if let Some(path) = path {
                let chosen = Chosen { value: path.value.clone(), origin: Origin::Step(path.span) };
                files.push(ReportFile { format, path: self.take(field, chosen, RelPath::to_string) });
            }
        }
        files
    }

    fn order(&mut self, spec: &Spec, profile: &Profile, cpus: u32) -> SkillOrder {
        if !rules::uses_needs(spec) {
            return SkillOrder::Sequence;
        }
        let most = self.operator.max_parallel;
        let parallel = match profile.parallel {
            Some(asked) => {
                let limit = Limit::Max(asked.value.into());
                if exceeds(limit, most) {
                    let allowed = format!("{} at most", show_count(&most));
                    self.refuse("parallel", &show_count(&limit), &allowed, Origin::Step(asked.span));
                }
                asked.value
            }
            None => u32::try_from(most.get_or_max()).unwrap_or(u32::MAX).min(cpus),
        };
        SkillOrder::Graph { parallel: parallel.max(1) }
    }

    fn command(&mut self, cmd: &Spanned<Command>) -> Option<Argv> {
        match cmd.value.argv() {
            Ok(argv) => Some(argv),
            Err(bad) => {
                self.problems.push(rules::bad_command(cmd, &bad));
                None
            }
        }
    }
}

fn show_count(limit: &Limit) -> String {
    match limit {
        Limit::Max(count) => count.to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
    }
}

fn show_size(limit: &Limit) -> String {
    match limit {
        Limit::Max(bytes) => Size(*bytes).to_string(),
        Limit::Unlimited => "unlimited".to_owned(),
    }
}

fn show_list<'a>(items: impl Iterator<Item = &'a str>) -> String {
    let items: Vec<&str> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(", ") }
}
/// Returns a rank that orders modes by protection.
fn strength(mode: ReadOnly) -> u8 {
    match mode {
        ReadOnly::Off => 0,
        ReadOnly::Tracked => 1,
        ReadOnly::Strict => 2,
    }
}
