//! Resolves a spec, a profile and the operator's config to a plan. All defaults are applied here and nowhere else.
//!
//! Each value is recorded with its origin when it enters the plan, so the output of `explain` cannot differ from the
//! plan.

mod displayed_values;
mod needed_paths;
mod used_toolchains;

use std::collections::{BTreeMap, BTreeSet};

use super::command::SpecCommand;
use super::diagnostic::{self, Code, Diagnostic};
use super::operator_config::{OperatorConfig, exceeds};
use super::provenance::{Provenance, SourcedValue, ValueOrigin};
use super::setting_layers::{
    AdhocCommand, CallerSettings, SettingsLayer, StepOnlySettings, ValueWithOrigin, built_in_value, default_limit,
    nearest_setting, skill_setting,
};
use super::span::{Span, Spanned};
use super::spec_types::{Profile, Skill, SpannedMap, Spec, Step};
use super::{built_in, rules};
use crate::model::names::{EnvName, ProfileName, SkillName, StepName, ToolchainName, VarName};
use crate::model::plan::{
    Argv, FileRules, Ignored, Inputs, Leaks, Limit, LimitUnit, Limits, Network, Plan, PlannedCheck, PlannedSkill,
    PlannedStep, ReadOnly, RelPath, ReportFile, ReportFormat, SkillOrder, VersionDemand,
};
use crate::model::tier::Tier;
use crate::record::evidence::step_path;
use crate::spec::spec_text::SpecText;
use crate::text::digest::Sha256Hex;
use crate::text::escape::{list_names, quoted};
use displayed_values::{show_count, show_list, show_size};

/// A plan and the origins of its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResolvedPlan {
    /// The plan.
    pub plan: Plan,
    /// The origin of each value.
    pub provenance: Provenance,
}

/// Resolves a profile of a spec that [`super::parse`] accepted. `cpus` is the number of processors. It limits the
/// number of skills that run at once if the profile does not set `parallel`.
///
/// # Errors
/// Returns diagnostics, sorted by position, if the profile does not exist or the spec requests more than the operator
/// allows.
pub fn resolve(
    spec: &Spec,
    profile: &ProfileName,
    operator: &OperatorConfig,
    spec_sha256: Sha256Hex,
    cpus: u32,
) -> Result<ResolvedPlan, Vec<Diagnostic>> {
    let Some(written) = spec.profiles.get(profile.as_str()) else {
        return Err(vec![unknown_profile(spec, profile)]);
    };
    let mut resolver = Resolver::new(operator);
    let ignored = resolver.ignored(spec);
    let toolchain = resolver.checks(spec);
    let skills = resolver.skills(spec, written);
    let toolchain = used_toolchains::used_checks(toolchain, &skills);
    let order = resolver.order(spec, written, cpus);
    let provenance = resolver.finish()?;
    let plan = Plan {
        version: 1,
        profile: profile.clone(),
        spec_sha256,
        spec_dir: RelPath::repository(),
        order,
        ignored,
        toolchain,
        skills,
        left_out: Vec::new(),
        scope: None,
    };
    Ok(ResolvedPlan { plan, provenance })
}

/// Plans a single command like a step of `spec` with the settings in `adhoc`. Without a spec, the operator's and the
/// built-in values apply.
///
/// # Errors
/// Returns one diagnostic for each setting that exceeds the operator's ceiling.
pub fn adhoc_step(
    adhoc: &AdhocCommand,
    name: StepName,
    spec: Option<&Spec>,
    operator: &OperatorConfig,
) -> Result<PlannedStep, Vec<Diagnostic>> {
    let overrides = CallerSettings::from_adhoc(adhoc);
    let layers = [overrides.as_layer(), SettingsLayer::from_defaults(spec.and_then(|spec| spec.defaults.as_ref()))];
    let mut resolver = Resolver::new(operator);
    let step = resolver.step(
        &step_key("exec", name.as_str()),
        name,
        adhoc.cmd.clone(),
        ValueOrigin::CommandLine,
        &layers,
        StepOnlySettings::CommandLine(adhoc),
    );
    resolver.finish().map(|_| step)
}

fn unknown_profile(spec: &Spec, profile: &ProfileName) -> Diagnostic {
    let message = format!("the spec has no profile {}", quoted(profile.as_str()));
    Diagnostic::without_span(Code::UnknownProfile, message)
        .did_you_mean(profile.as_str(), spec.profiles.keys())
        .hint(format!("its profiles are {}", list_names(spec.profiles.keys())))
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
    fn for_spec(spec: &Spec) -> Self {
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
    operator: &'a OperatorConfig,
    problems: Vec<Diagnostic>,
    provenance: Provenance,
    fields: Vec<SourcedValue>,
}

impl<'a> Resolver<'a> {
    fn new(operator: &'a OperatorConfig) -> Self {
        Self { operator, problems: vec![], provenance: Provenance::default(), fields: vec![] }
    }

    fn finish(mut self) -> Result<Provenance, Vec<Diagnostic>> {
        if self.problems.is_empty() {
            return Ok(self.provenance);
        }
        diagnostic::sort_by_position(&mut self.problems);
        // A value of `defaults` is reported once for each step that uses it.
        self.problems.dedup();
        Err(self.problems)
    }

    /// Records the origin of a value and returns the value.
    fn record<T>(&mut self, field: &str, chosen: ValueWithOrigin<T>, show: impl Fn(&T) -> String) -> T {
        self.fields.push(SourcedValue { field: field.to_owned(), value: show(&chosen.value), origin: chosen.origin });
        chosen.value
    }

    /// Reports a value that exceeds the operator's ceiling.
    fn report_excess(&mut self, field: &str, requested: &str, allowed: &str, origin: ValueOrigin) {
        let message = format!("`{field}` is {requested}, but the operator allows {allowed}");
        let mut problem = Diagnostic::without_span(Code::OverCeiling, message)
            .hint("request less, or ask the operator to raise the limit in `proctord.toml`");
        problem.span = origin.span();
        self.problems.push(problem);
    }

    fn ignored(&mut self, spec: &Spec) -> Ignored {
        let chosen = match spec.ignored {
            Some(ignored) => ValueWithOrigin { value: ignored.value, origin: ValueOrigin::Spec(ignored.span) },
            None => built_in_value(built_in::IGNORED),
        };
        let ignored = self.record("ignored", chosen, |ignored| ignored.as_str().to_owned());
        self.provenance.run_values = std::mem::take(&mut self.fields);
        ignored
    }

    fn checks(&mut self, spec: &Spec) -> Vec<PlannedCheck> {
        let mut taken = CheckNames::for_spec(spec);
        let mut planned = Vec::new();
        for (toolchain, written) in spec.toolchains.iter().flat_map(SpannedMap::iter) {
            for (index, check) in written.required.iter().flatten().enumerate() {
                let Some(cmd) = self.command(&check.cmd) else { continue };
                let Some(name) = self.check_name(&toolchain.value, index + 1, &mut taken) else { continue };
                let origin = ValueOrigin::Step(check.cmd.span);
                let tracked = Spanned::new(built_in::READ_ONLY, Span::default());
                // A check only reads a version, so the spec cannot lower the protection of the tree for it.
                let fixed = SettingsLayer {
                    origin: |_| ValueOrigin::BuiltIn,
                    read_only: Some(&tracked),
                    ..SettingsLayer::from_defaults(None)
                };
                let layers = [fixed, SettingsLayer::from_defaults(spec.defaults.as_ref())];
                let key = step_key(toolchain.value.as_str(), name.as_str());
                let run = self.step(&key, name, cmd, origin, &layers, StepOnlySettings::ToolchainCheck);
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
                self.problems.push(Diagnostic::without_span(Code::BadName, bad.to_string()));
                None
            }
        }
    }

    fn skills(&mut self, spec: &Spec, profile: &Profile) -> Vec<PlannedSkill> {
        let written: BTreeMap<&str, &Skill> = spec.skills.iter().map(|(name, s)| (name.value.as_str(), s)).collect();
        let include = &profile.include.value;
        let positions: BTreeMap<&SkillName, usize> = include.iter().enumerate().map(|(at, n)| (&n.value, at)).collect();
        let mut planned = Vec::new();
        for name in include {
            match written.get(name.value.as_str()) {
                Some(skill) => planned.push(self.skill(spec, &name.value, skill, &positions)),
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
        positions: &BTreeMap<&SkillName, usize>,
    ) -> PlannedSkill {
        let defaults = spec.defaults.as_ref();
        let determinism =
            skill_setting(skill.determinism, defaults.and_then(|all| all.determinism), built_in::DETERMINISM);
        let tier = skill_setting(skill.tier, defaults.and_then(|all| all.tier), built_in::TIER);
        let mut steps = Vec::new();
        for step in &skill.steps.value {
            let Some(planned) = self.written_step(spec, name, skill, step) else { continue };
            self.record("determinism", determinism, |class| format!("{class:?}"));
            self.record("tier", tier, Tier::to_string);
            let key = step_path(name, &planned.name);
            self.provenance.step_values.entry(key).or_default().append(&mut self.fields);
            steps.push(planned);
        }
        let needs: BTreeMap<usize, &SkillName> =
            skill.needs().filter_map(|need| positions.get(&need.value).map(|at| (*at, &need.value))).collect();
        let text = |text: Option<&SpecText>| text.map(|text| text.0.clone()).unwrap_or_default();
        let platform = skill.platform.iter().flat_map(SpannedMap::iter);
        let caches = || skill.caches.iter().flatten();
        let transparent = caches().filter(|cache| cache.value.is_transparent());
        PlannedSkill {
            name: name.clone(),
            description: text(skill.description.as_ref()),
            determinism: determinism.value,
            declared_tier: tier.value,
            needs: needs.into_values().cloned().collect(),
            caches: caches().map(|cache| cache.value.path().clone()).collect(),
            transparent_caches: transparent.map(|cache| cache.value.path().clone()).collect(),
            needs_paths: self.needed_paths(spec, skill),
            toolchains: used_toolchains::of_skill(skill),
            platform: platform.map(|(name, value)| (name.value.0.clone(), value.0.clone())).collect(),
            container: text(skill.container.as_ref().map(|container| &container.value)),
            steps,
        }
    }

    fn written_step(&mut self, spec: &Spec, skill_name: &SkillName, skill: &Skill, step: &Step) -> Option<PlannedStep> {
        let (cmd, span) = match (&step.cmd, &step.sql) {
            (Some(cmd), _) => (self.command(cmd)?, cmd.span),
            (None, Some(sql)) => (sql.value.to_check().to_argv(), sql.span),
            (None, None) => {
                let span = step.name.span;
                self.problems.push(Diagnostic::error(Code::MissingKey, span, "the step has no `cmd` and no `sql`"));
                return None;
            }
        };
        let defaults = SettingsLayer::from_defaults(spec.defaults.as_ref());
        let layers = [SettingsLayer::from_step(step), SettingsLayer::from_skill(skill), defaults];
        let key = step_path(skill_name, &step.name.value);
        let origin = ValueOrigin::Step(span);
        Some(self.step(&key, step.name.value.clone(), cmd, origin, &layers, StepOnlySettings::Step(step)))
    }

    /// Plans one step; each value comes from the nearest layer that sets it.
    fn step(
        &mut self,
        key: &str,
        name: StepName,
        cmd: Argv,
        origin: ValueOrigin,
        layers: &[SettingsLayer<'_>],
        own: StepOnlySettings<'_>,
    ) -> PlannedStep {
        self.fields.clear();
        let step = PlannedStep {
            name,
            cmd: self.record("cmd", ValueWithOrigin { value: cmd, origin }, Argv::to_string),
            sql: own.sql_dialect(),
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
            files: self.files(own),
            fix: self.fix(own),
            fixes: None,
            inputs: self.inputs(own),
            reports: self.reports(own),
        };
        self.provenance.step_values.insert(key.to_owned(), std::mem::take(&mut self.fields));
        step
    }

    fn workdir(&mut self, layers: &[SettingsLayer<'_>]) -> RelPath {
        let chosen =
            nearest_setting(layers, |layer| layer.workdir).unwrap_or_else(|| built_in_value(RelPath::repository()));
        self.record("workdir", chosen, RelPath::to_string)
    }

    fn timeout_ms(&mut self, layers: &[SettingsLayer<'_>]) -> u64 {
        let ceiling = self.operator.max_timeout_ms;
        let requested = nearest_setting(layers, |layer| layer.timeout_ms);
        let fallback =
            default_limit(self.operator.defaults.timeout_ms.map(Limit::Max), Limit::Max(built_in::TIMEOUT_MS), ceiling);
        self.milliseconds("timeout_ms", requested, fallback, ceiling)
    }

    fn grace_ms(&mut self, own: StepOnlySettings<'_>) -> u64 {
        let ceiling = self.operator.max_grace_ms;
        let fallback =
            default_limit(self.operator.defaults.grace_ms.map(Limit::Max), Limit::Max(built_in::GRACE_MS), ceiling);
        self.milliseconds("grace_ms", own.grace_ms(), fallback, ceiling)
    }

    fn milliseconds(
        &mut self,
        field: &str,
        requested: Option<ValueWithOrigin<u64>>,
        fallback: ValueWithOrigin<Limit>,
        ceiling: Limit,
    ) -> u64 {
        let chosen = match requested {
            Some(requested) => ValueWithOrigin { value: Limit::Max(requested.value), origin: requested.origin },
            None => fallback,
        };
        self.within_ceiling(field, chosen, ceiling, show_count).get_or_max()
    }

    /// Records and returns the value of a limit. Reports it if it exceeds the operator's ceiling.
    fn within_ceiling(
        &mut self,
        field: &str,
        chosen: ValueWithOrigin<Limit>,
        ceiling: Limit,
        show: fn(&Limit) -> String,
    ) -> Limit {
        if exceeds(chosen.value, ceiling) {
            self.report_excess(field, &show(&chosen.value), &format!("{} at most", show(&ceiling)), chosen.origin);
        }
        self.record(field, chosen, show)
    }

    fn network(&mut self, layers: &[SettingsLayer<'_>]) -> Network {
        let chosen =
            nearest_setting(layers, |layer| layer.network).unwrap_or_else(|| built_in_value(built_in::NETWORK));
        if chosen.value == Network::Allow && !self.operator.allow_network {
            self.report_excess("network", "`allow`", "`deny` only", chosen.origin);
        }
        self.record("network", chosen, |network| network.as_str().to_owned())
    }

    fn read_only(&mut self, layers: &[SettingsLayer<'_>]) -> ReadOnly {
        let least = self.operator.least_read_only;
        let fallback = if protection_rank(built_in::READ_ONLY) < protection_rank(least) {
            ValueWithOrigin { value: least, origin: ValueOrigin::Operator }
        } else {
            built_in_value(built_in::READ_ONLY)
        };
        let mut chosen = nearest_setting(layers, |layer| layer.read_only).unwrap_or(fallback);
        if protection_rank(chosen.value) < protection_rank(least) {
            match chosen.origin {
                ValueOrigin::BuiltIn => chosen = ValueWithOrigin { value: least, origin: ValueOrigin::Operator },
                origin => {
                    let (requested, allowed) = (chosen.value.as_str(), least.as_str());
                    self.report_excess(
                        "read_only",
                        &format!("`{requested}`"),
                        &format!("`{allowed}` at least"),
                        origin,
                    );
                }
            }
        }
        self.record("read_only", chosen, |mode| mode.as_str().to_owned())
    }

    fn leaks(&mut self, layers: &[SettingsLayer<'_>]) -> Leaks {
        let chosen = nearest_setting(layers, |layer| layer.leaks).unwrap_or_else(|| built_in_value(built_in::LEAKS));
        self.record("leaks", chosen, |mode| mode.as_str().to_owned())
    }

    fn env_allowlist(&mut self, layers: &[SettingsLayer<'_>]) -> Vec<EnvName> {
        let chosen = nearest_setting(layers, |layer| layer.env_allowlist).unwrap_or_else(|| built_in_value(vec![]));
        let names: Vec<EnvName> = chosen.value.into_iter().map(|name| name.value).collect();
        let chosen = ValueWithOrigin { value: names, origin: chosen.origin };
        self.record("env_allowlist", chosen, |names| show_list(names.iter().map(EnvName::as_str)))
    }

    fn env(&mut self, layers: &[SettingsLayer<'_>]) -> BTreeMap<VarName, String> {
        let mut merged: BTreeMap<VarName, ValueWithOrigin<String>> = BTreeMap::new();
        for layer in layers {
            for (name, value) in layer.env.iter().flat_map(|env| env.iter()) {
                let origin = (layer.origin)(name.span);
                merged.entry(name.value.clone()).or_insert_with(|| ValueWithOrigin { value: value.0.clone(), origin });
            }
        }
        let mut env = BTreeMap::new();
        for (name, chosen) in merged {
            let value = self.record(&format!("env.{name}"), chosen, String::clone);
            env.insert(name, value);
        }
        env
    }

    fn limits(&mut self, own: StepOnlySettings<'_>) -> Limits {
        let operator = self.operator.defaults.limits.zip(self.operator.ceiling);
        own.limits().zip(operator).map_all(|definition, (requested, (default, ceiling))| {
            let chosen = requested.unwrap_or_else(|| default_limit(default, definition.built_in, ceiling));
            let show = match definition.unit {
                LimitUnit::Bytes => show_size,
                LimitUnit::Count | LimitUnit::Seconds => show_count,
            };
            self.within_ceiling(&format!("limits.{}", definition.key), chosen, ceiling, show)
        })
    }

    fn retries(&mut self, own: StepOnlySettings<'_>) -> u32 {
        let chosen = match own.get(|step| step.retries.as_ref()) {
            Some(retries) => ValueWithOrigin { value: retries.value, origin: ValueOrigin::Step(retries.span) },
            None => built_in_value(built_in::RETRIES),
        };
        let (requested, ceiling) = (Limit::Max(chosen.value.into()), self.operator.max_retries);
        if exceeds(requested, ceiling) {
            self.report_excess(
                "retries",
                &show_count(&requested),
                &format!("{} at most", show_count(&ceiling)),
                chosen.origin,
            );
        }
        self.record("retries", chosen, u32::to_string)
    }

    fn expect_exit(&mut self, own: StepOnlySettings<'_>) -> Vec<u8> {
        let chosen = match own.get(|step| step.expect.as_ref().and_then(|expect| expect.exit.as_ref())) {
            Some(codes) => ValueWithOrigin { value: codes.value.clone(), origin: ValueOrigin::Step(codes.span) },
            None => built_in_value(built_in::EXPECT_EXIT.to_vec()),
        };
        self.record("expect.exit", chosen, |codes| format!("{codes:?}"))
    }

    fn files(&mut self, own: StepOnlySettings<'_>) -> Option<FileRules> {
        let written = own.get(|step| step.files.as_ref())?;
        let parallel = own.get(|step| step.parallel.as_ref()).map_or(1, |parallel| parallel.value);
        let per_file = own.get(|step| step.per_file.as_ref()).is_some_and(|per_file| per_file.value);
        let rules = written.value.to_rules(parallel, per_file);
        let lists = [
            ("include", &rules.include),
            ("exclude", &rules.exclude),
            ("types", &rules.types),
            ("types_or", &rules.types_or),
            ("exclude_types", &rules.exclude_types),
        ];
        let shown = lists.iter().filter(|(_, list)| !list.is_empty());
        let shown: Vec<String> = shown.map(|(key, list)| format!("{key} {}", list.join(", "))).collect();
        let origin = ValueOrigin::Step(written.span);
        Some(self.record("files", ValueWithOrigin { value: rules, origin }, |_| match shown.is_empty() {
            true => "all files".to_owned(),
            false => shown.join("; "),
        }))
    }

    fn fix(&mut self, own: StepOnlySettings<'_>) -> Option<Argv> {
        let written = own.get(|step| step.fix.as_ref())?;
        let argv = self.command(written)?;
        let origin = ValueOrigin::Step(written.span);
        Some(self.record("fix", ValueWithOrigin { value: argv, origin }, Argv::to_string))
    }

    fn inputs(&mut self, own: StepOnlySettings<'_>) -> Inputs {
        let chosen = match own.get(|step| step.inputs.as_ref()) {
            Some(globs) => {
                let texts = globs.value.iter().map(|glob| glob.value.0.clone()).collect();
                ValueWithOrigin { value: Inputs::Globs(texts), origin: ValueOrigin::Step(globs.span) }
            }
            None => built_in_value(Inputs::Tree),
        };
        self.record("inputs", chosen, |inputs| match inputs {
            Inputs::Tree => "the whole tree".to_owned(),
            Inputs::Globs(globs) => show_list(globs.iter().map(String::as_str)),
        })
    }

    fn reports(&mut self, own: StepOnlySettings<'_>) -> Vec<ReportFile> {
        let StepOnlySettings::Step(Step { reports: written, .. }) = own else { return vec![] };
        let written = written.as_ref();
        let formats = [
            ("reports.junit", ReportFormat::Junit, written.and_then(|reports| reports.junit.as_ref())),
            ("reports.sarif", ReportFormat::Sarif, written.and_then(|reports| reports.sarif.as_ref())),
        ];
        let mut files = Vec::new();
        for (field, format, path) in formats {
            if let Some(path) = path {
                let chosen = ValueWithOrigin { value: path.value.clone(), origin: ValueOrigin::Step(path.span) };
                files.push(ReportFile { format, path: self.record(field, chosen, RelPath::to_string) });
            }
        }
        files
    }

    fn order(&mut self, spec: &Spec, profile: &Profile, cpus: u32) -> SkillOrder {
        if !crate::spec::rules::spec_index::uses_needs(spec) {
            return SkillOrder::Sequence;
        }
        let ceiling = self.operator.max_parallel;
        let parallel = match profile.parallel {
            Some(setting) => {
                let limit = Limit::Max(setting.value.into());
                if exceeds(limit, ceiling) {
                    let allowed = format!("{} at most", show_count(&ceiling));
                    self.report_excess("parallel", &show_count(&limit), &allowed, ValueOrigin::Step(setting.span));
                }
                setting.value
            }
            None => u32::try_from(ceiling.get_or_max()).unwrap_or(u32::MAX).min(cpus),
        };
        SkillOrder::Graph { parallel: parallel.max(1) }
    }

    fn command(&mut self, cmd: &Spanned<SpecCommand>) -> Option<Argv> {
        match cmd.value.argv() {
            Ok(argv) => Some(argv),
            Err(bad) => {
                self.problems.push(rules::bad_command(cmd, &bad));
                None
            }
        }
    }
}

/// Returns a rank that orders modes by protection.
fn protection_rank(mode: ReadOnly) -> u8 {
    match mode {
        ReadOnly::Off => 0,
        ReadOnly::Tracked => 1,
        ReadOnly::Strict => 2,
    }
}
