//! Formats a draft as the text of a spec, with comments that explain the format to new users. Text from the
//! repository is always quoted, and the result is parsed again to check it.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::project::{DraftedPath, EnvVariable, NamedSkill, ProgramRequirement, Project, StepDraft};
use crate::adopt::import::files_field;
use crate::adopt::init::path_text::{is_visible, join};
use crate::model::names::SkillName;
use crate::model::plan::Determinism;
use crate::spec::{self, Diagnostic, Skill, Spanned};

const HEADER: &str = "\
# The checks for changes to this repository. `proctor init` generated them from the files that it
# found; edit them as you like, and run `proctor validate` afterwards.
#
#   proctor run --profile quick    fast checks only
#   proctor run                    everything (`--profile pr`)
#   proctor explain SKILL/STEP     where each value of a step comes from
#   proctor exec -- COMMAND        try a command as a step would run
#   proctor schema spec            the format, for editors
#
# Each step runs in a sandbox: no network, an empty home, and a tree that it may write
# to but not change. Ignored files may be written; declare directories to keep as `caches`.
version: 1
";

const TOOLCHAINS: &str = "
# Requirements of the skills that name the toolchain. A check that fails makes the run
# inconclusive, which is neither a pass nor a failure. `version` is a range in cargo's syntax,
# compared with the output.
toolchains:
";

const DEFAULTS: &str = "
# Defaults for every step, unless the skill or the step sets another value.
defaults:
  network: deny # `allow` gives a step the host's network, and raises its tier to 2
  read_only: tracked # a change to a tracked file, or a new one that git does not ignore, is drift
  env_allowlist: [CI] # the only variables of the caller that a step sees
";

const PROFILES: &str = "
# A profile is a list of skills, in the order in which they run. Commands use `pr` if no other
# profile is named.
profiles:
";

const SKILLS: &str = "
# A skill is a group of steps with one purpose. `determinism` is what a rerun on the same tree
# guarantees: D0 the same output, D1 the same outcome, D2 nothing. `tier: 1` lets anyone run it,
# including agents. The first step that fails ends its skill.
skills:
";

/// Returns the text of a spec with these skills.
pub(super) fn render(projects: &[Project], skills: &[NamedSkill<'_>]) -> String {
    let mut text = HEADER.to_owned();
    text.push_str(TOOLCHAINS);
    for (language, demands) in toolchain_requirements(projects) {
        let _ = writeln!(text, "  {language}:\n    required:");
        demands.iter().for_each(|demand| text.push_str(&render_toolchain_check(demand)));
    }
    text.push_str(DEFAULTS);
    let env = merged_env(projects);
    if !env.is_empty() {
        text.push_str("  env:\n");
    }
    for variable in env {
        let _ = writeln!(text, "    {}: {} # {}", variable.name, quote_yaml(variable.value), variable.comment);
    }
    text.push_str(PROFILES);
    text.push_str(&render_profiles(skills));
    text.push_str(SKILLS);
    let written: Vec<String> = skills.iter().map(render_skill).collect();
    text.push_str(&written.join("\n"));
    text
}

/// Returns the required programs of all projects by toolchain, without duplicates.
fn toolchain_requirements(projects: &[Project]) -> BTreeMap<&'static str, Vec<&ProgramRequirement>> {
    let mut toolchains: BTreeMap<_, Vec<&ProgramRequirement>> = BTreeMap::new();
    for project in projects {
        let demands = toolchains.entry(project.language).or_default();
        for demand in &project.requirements {
            if !demands.contains(&demand) {
                demands.push(demand);
            }
        }
    }
    for demands in toolchains.values_mut() {
        // A check of the version includes that the program exists.
        let with_version: Vec<_> = demands.iter().filter(|one| one.range.is_some()).map(|one| &one.argv).collect();
        let is_repeated = |demand: &&ProgramRequirement| demand.range.is_none() && with_version.contains(&&demand.argv);
        let kept = demands.iter().copied().filter(|demand| !is_repeated(demand)).collect();
        *demands = kept;
    }
    toolchains
}

fn render_toolchain_check(demand: &ProgramRequirement) -> String {
    let cmd = flow_list(&demand.argv);
    let version = demand.range.as_ref().map(|(range, why)| (quote_yaml(range), why));
    let line = match &version {
        None => format!("      - {{ cmd: {cmd} }}"),
        Some((range, _)) => format!("      - {{ cmd: {cmd}, version: {range} }}"),
    };
    match version {
        None if fits_on_line(&line) => format!("{line}\n"),
        Some((_, why)) if fits_on_line(&line) => format!("{line} # {why}\n"),
        None => format!("      - cmd:\n{}", render_list(10, &demand.argv)),
        Some((range, why)) => {
            format!("      - version: {range} # {why}\n        cmd:\n{}", render_list(10, &demand.argv))
        }
    }
}

fn merged_env(projects: &[Project]) -> Vec<EnvVariable> {
    let mut env: Vec<EnvVariable> = Vec::new();
    for variable in projects.iter().flat_map(|project| &project.env) {
        if env.iter().all(|other| other.name != variable.name) {
            env.push(*variable);
        }
    }
    env
}

fn render_profiles(skills: &[NamedSkill<'_>]) -> String {
    let list = |listed: &[&NamedSkill<'_>]| -> String {
        listed.iter().map(|skill| format!("      - {}\n", skill.name)).collect()
    };
    let all: Vec<&NamedSkill<'_>> = skills.iter().collect();
    let quick: Vec<&NamedSkill<'_>> = skills.iter().filter(|named| named.skill.is_quick).collect();
    let (why, quick) = match quick.is_empty() {
        true => ("  # No fast check was found, so `quick` contains every skill.\n", &all),
        false => ("", &quick),
    };
    format!("{why}  quick:\n    include:\n{}  pr:\n    include:\n{}", list(quick), list(&all))
}

/// Formats the ignored directories that the steps of a skill need.
fn render_needed_paths(paths: &[DraftedPath]) -> String {
    if paths.is_empty() {
        return String::new();
    }
    let mut text = "    needs_paths: # ignored by git; a commit's steps see those of the worktree\n".to_owned();
    for DraftedPath { path, key } in paths {
        let _ = match key.is_empty() {
            true => writeln!(text, "      - {}", quote_yaml(path)),
            false => writeln!(text, "      - path: {}\n        key: {}", quote_yaml(path), flow_list(key)),
        };
    }
    text
}

fn render_skill(named: &NamedSkill<'_>) -> String {
    let (skill, project) = (named.skill, named.project);
    let class = match skill.determinism {
        Determinism::D0 => "D0",
        Determinism::D1 => "D1",
        Determinism::D2 => "D2",
    };
    let mut text = format!("  {}:\n    description: {}\n", named.name, quote_yaml(&skill.description));
    let _ = writeln!(text, "    determinism: {class} # {}\n    tier: 1", skill.determinism_reason);
    // A missing tool of one language must not stop the skills of another, even if the user adds toolchains later.
    let _ = writeln!(text, "    toolchains: [{}]", project.language);
    if !project.dir.is_empty() {
        let _ = writeln!(text, "    workdir: {}", quote_yaml(&project.dir));
    }
    let _ = writeln!(text, "    timeout_ms: {}", skill.timeout_ms);
    if !skill.caches.is_empty() {
        text.push_str("    caches: # kept between runs; they change how long a step takes, not its result\n");
        for cache in &skill.caches {
            let path = quote_yaml(&join(&project.dir, cache));
            let _ = writeln!(text, "      - {{ path: {path}, transparent: true }}");
        }
    }
    text.push_str(&render_needed_paths(&project.needs_paths));
    text.push_str("    steps:\n");
    skill.steps.iter().for_each(|step| text.push_str(&render_step(step, &project.dir)));
    text
}

fn render_step(step: &StepDraft, dir: &str) -> String {
    let mut text = String::new();
    if !step.comment.is_empty() {
        let _ = writeln!(text, "      # {}", step.comment);
    }
    let _ = writeln!(text, "      - name: {}", step.name);
    if !step.dir.is_empty() {
        let _ = writeln!(text, "        workdir: {}", quote_yaml(&join(dir, &step.dir)));
    }
    if let Some(files) = &step.files {
        text.push_str(&files_field(files));
    }
    text.push_str(&command_field("cmd", &step.argv));
    if let Some(fix) = &step.fix {
        text.push_str(&command_field("fix", fix));
    }
    text
}

fn command_field(key: &str, argv: &[String]) -> String {
    let line = format!("        {key}: {}", flow_list(argv));
    if fits_on_line(&line) && argv.iter().all(|word| !word.contains('\n')) {
        return format!("{line}\n");
    }
    let words: String = argv.iter().map(|word| render_word(word)).collect();
    format!("        {key}:\n{words}")
}

/// Returns whether a flow-style list fits on this line. Formatters such as prettier break longer lines, and they
/// also check the spec.
fn fits_on_line(line: &str) -> bool {
    line.chars().count() <= 80
}

/// Formats a list with one item per line.
fn render_list(indent: usize, words: &[String]) -> String {
    words.iter().map(|word| format!("{:indent$}- {}\n", "", quote_yaml(word))).collect()
}

/// Formats a word as a list item; uses a block scalar for a script of several lines.
fn render_word(word: &str) -> String {
    if !word.contains('\n') {
        return format!("          - {}\n", quote_yaml(word));
    }
    let lines: String = word.lines().map(|line| format!("            {line}\n")).collect();
    format!("          - |\n{lines}")
}

fn flow_list(words: &[String]) -> String {
    let words: Vec<String> = words.iter().map(|word| quote_yaml(word)).collect();
    format!("[{}]", words.join(", "))
}

/// Formats text as a double-quoted scalar of YAML 1.2 (5.7), in which all but visible characters are escaped. Uses
/// single quotes if the text contains double quotes and needs no other escape, as formatters prefer.
pub(super) fn quote_yaml(text: &str) -> String {
    if text.contains('"') && text.chars().all(|c| c != '\\' && (c == ' ' || is_visible(c))) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            ' ' => quoted.push(' '),
            _ if is_visible(c) => quoted.push(c),
            _ if u32::from(c) <= 0xff => drop(write!(quoted, "\\x{:02x}", u32::from(c))),
            _ if u32::from(c) <= 0xffff => drop(write!(quoted, "\\u{:04x}", u32::from(c))),
            _ => drop(write!(quoted, "\\U{:08x}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// The difference between a generated spec and the intended one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The text has errors or warnings.
    #[error("{}", .0.first().map_or("", |first| first.message.as_str()))]
    Diagnostics(Vec<Diagnostic>),
    /// The steps differ.
    #[error("its steps differ")]
    Steps,
    /// The needed paths differ.
    #[error("its needed paths differ")]
    NeededPaths,
    /// The caches differ.
    #[error("its caches differ")]
    Caches,
    /// The toolchain checks differ.
    #[error("its toolchain checks differ")]
    ToolchainChecks,
}

/// Parses the text and compares the result with the intended skills.
///
/// # Errors
/// The text does not parse, or the result differs.
pub(super) fn verify_text(text: &str, projects: &[Project], skills: &[NamedSkill<'_>]) -> Result<(), DraftError> {
    let reading = spec::parse(text.as_bytes()).map_err(DraftError::Diagnostics)?;
    if !reading.warnings.is_empty() {
        return Err(DraftError::Diagnostics(reading.warnings));
    }
    let meant: Vec<IntendedStep> = skills.iter().flat_map(intended_steps).collect();
    let written = reading.spec.skills.iter().flat_map(|(name, skill)| {
        skill.steps.value.iter().map(move |step| {
            let workdir = step.workdir.as_ref().or(skill.workdir.as_ref());
            let workdir = workdir.map_or_else(|| ".".to_owned(), |dir| dir.value.as_str().to_owned());
            let argv = step.cmd.as_ref().and_then(|cmd| cmd.value.argv().ok()).map(Vec::from).unwrap_or_default();
            let fix = step.fix.as_ref().and_then(|fix| fix.value.argv().ok()).map(Vec::from);
            (name.value.to_string(), step.name.value.to_string(), workdir, argv, fix)
        })
    });
    if !written.eq(meant) {
        return Err(DraftError::Steps);
    }
    let paths = |(_, skill): (&Spanned<SkillName>, &Skill)| -> Vec<String> {
        let written = skill.needs_paths.iter().flat_map(|list| &list.value);
        written.map(|needed| needed.value.path().to_string()).collect()
    };
    let intended = |named: &NamedSkill<'_>| -> Vec<String> {
        named.project.needs_paths.iter().map(|needed| needed.path.clone()).collect()
    };
    if !reading.spec.skills.iter().map(paths).eq(skills.iter().map(intended)) {
        return Err(DraftError::NeededPaths);
    }
    let caches = |(_, skill): (&Spanned<SkillName>, &Skill)| -> Vec<(String, bool)> {
        let written = skill.caches.iter().flatten();
        written.map(|cache| (cache.value.path().to_string(), cache.value.is_transparent())).collect()
    };
    let intended = |named: &NamedSkill<'_>| -> Vec<(String, bool)> {
        named.skill.caches.iter().map(|cache| (join(&named.project.dir, cache), true)).collect()
    };
    if !reading.spec.skills.iter().map(caches).eq(skills.iter().map(intended)) {
        return Err(DraftError::Caches);
    }
    let wanted: usize = toolchain_requirements(projects).values().map(Vec::len).sum();
    let checks = reading.spec.toolchains.iter().flat_map(|table| table.iter());
    let checks: usize = checks.map(|(_, toolchain)| toolchain.required.as_ref().map_or(0, Vec::len)).sum();
    if wanted == checks { Ok(()) } else { Err(DraftError::ToolchainChecks) }
}

/// The names of a step and its skill, its directory, its command, and its fix.
type IntendedStep = (String, String, String, Vec<String>, Option<Vec<String>>);

/// Returns the intended result for a skill.
fn intended_steps<'a>(named: &'a NamedSkill<'_>) -> impl Iterator<Item = IntendedStep> + 'a {
    named.skill.steps.iter().map(|step| {
        let dir = join(&named.project.dir, &step.dir);
        let dir = dir.trim_matches('/').to_owned();
        let dir = if dir.is_empty() { ".".to_owned() } else { dir };
        (named.name.clone(), step.name.clone(), dir, step.argv.clone(), step.fix.clone())
    })
}
