//! Finds imported checks that a step of the existing spec makes already: the same tool with the same options over the same
//! files.

use std::collections::BTreeSet;

use crate::adopt::import::check_mode::program_name;
use crate::model::names::ProfileName;
use crate::model::plan::{FILES_PLACEHOLDER, FileRules};
use crate::spec::{Skill, Spec, SpecCommand, Step};

/// Words that do not change what a tool checks.
const NEUTRAL_WORDS: [&str; 6] =
    [FILES_PLACEHOLDER, "--no-cache", "--cache-dir=/dev/null", FORCE_EXCLUDE, "-q", "--quiet"];
/// The option that makes a tool honour its own exclusions for files that are named on its command line.
const FORCE_EXCLUDE: &str = "--force-exclude";
/// The argument that makes a tool search for files.
const EVERY_FILE: &str = ".";

/// An imported skill whose check an existing step makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RepeatedCheck {
    /// The name of the imported skill.
    pub(super) imported: String,
    /// The toolchains that the existing skill does not name, but needs for the version of its tool.
    pub(super) toolchains: Vec<String>,
    /// The name of the existing skill, and the number of its step.
    pub(super) skill: String,
    pub(super) step: usize,
    pub(super) step_name: String,
    /// The changes of the step, if the imported one checks more files.
    pub(super) change: Option<StepChange>,
}

/// The fields of a step that checks the files of an imported step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StepChange {
    pub(super) files: FileRules,
    pub(super) cmd: Vec<String>,
    pub(super) fix: Option<Vec<String>>,
}

/// Returns the imported skills that repeat a step of the profile.
pub(super) fn repeated_checks(old: &Spec, new: &Spec, profile: &ProfileName) -> Vec<RepeatedCheck> {
    let Some(included) = old.profiles.get(profile.as_str()).map(|profile| &profile.include.value) else {
        return Vec::new();
    };
    let mut used = BTreeSet::new();
    let mut found = Vec::new();
    for (name, imported) in new.skills.iter() {
        let [step] = imported.steps.value.as_slice() else { continue };
        let existing = old.skills.iter().filter(|(name, _)| included.iter().any(|one| one.value == name.value));
        let steps = existing.flat_map(|(name, skill)| {
            skill.steps.value.iter().enumerate().map(move |(number, step)| (name.value.as_str(), skill, number, step))
        });
        let repeated =
            steps.filter(|(_, skill, ..)| is_at_top(skill, old)).find_map(|(skill_name, skill, number, existing)| {
                let change = compare(existing, step)?;
                let toolchains =
                    if starts_program_on_path(existing) { missing_toolchains(skill, imported) } else { Vec::new() };
                Some(RepeatedCheck {
                    imported: name.value.to_string(),
                    toolchains,
                    skill: skill_name.to_owned(),
                    step: number,
                    step_name: existing.name.value.to_string(),
                    change,
                })
            });
        // Two imported checks must not change one step.
        found.extend(repeated.filter(|one| used.insert((one.skill.clone(), one.step))));
    }
    found
}

/// Returns whether the steps of a skill run at the top of the repository, and not in a way of its own.
fn is_at_top(skill: &Skill, spec: &Spec) -> bool {
    let default = spec.defaults.as_ref().and_then(|defaults| defaults.workdir.as_ref());
    [&skill.workdir, &default.cloned()].into_iter().flatten().all(|workdir| workdir.value.is_repository())
}

fn starts_program_on_path(step: &Step) -> bool {
    argv(step.cmd.as_ref().map(|cmd| &cmd.value)).is_some_and(|argv| !argv[0].contains('/'))
}

fn missing_toolchains(skill: &Skill, imported: &Skill) -> Vec<String> {
    let names = |skill: &Skill| {
        skill
            .toolchains
            .as_ref()
            .map(|list| -> Vec<String> { list.value.iter().map(|name| name.value.to_string()).collect() })
    };
    // A skill without the key uses all toolchains.
    let Some(own) = names(skill).filter(|own| !own.is_empty()) else { return Vec::new() };
    names(imported).unwrap_or_default().into_iter().filter(|name| !own.contains(name)).collect()
}

/// Compares an existing step with an imported one. Returns the change that makes the existing step check everything, which
/// is `None` if it does already, or `None` if the steps are not the same check.
fn compare(existing: &Step, imported: &Step) -> Option<Option<StepChange>> {
    let is_plain = |step: &Step| {
        step.workdir.as_ref().is_none_or(|workdir| workdir.value.is_repository())
            && step.env.is_none()
            && step.inputs.is_none()
    };
    if !is_plain(existing) || !is_plain(imported) {
        return None;
    }
    let cmd = argv(existing.cmd.as_ref().map(|cmd| &cmd.value))?;
    let imported_cmd = argv(imported.cmd.as_ref().map(|cmd| &cmd.value))?;
    if check_words(&cmd) != check_words(&imported_cmd) {
        return None;
    }
    let rules = |step: &Step| step.files.as_ref().map(|files| files.value.to_rules(1, false));
    match (rules(existing), rules(imported)) {
        (Some(own), Some(other)) if has_files(&cmd) && has_files(&imported_cmd) => {
            same_rules(&own, &other).then_some(None)
        }
        (None, None) => Some(None),
        (None, Some(files)) if has_files(&imported_cmd) && cmd.last().is_some_and(|word| word == EVERY_FILE) => {
            // The tool itself finds fewer files: it does not know scripts by their first line.
            if !files.include.is_empty() || !files.exclude.is_empty() {
                return None;
            }
            let forces = imported_cmd.iter().any(|word| word == FORCE_EXCLUDE);
            let fix = argv(existing.fix.as_ref().map(|fix| &fix.value));
            let fix = match fix {
                Some(fix) => Some(with_files(&fix, forces)?),
                None => None,
            };
            Some(Some(StepChange { files, cmd: with_files(&cmd, forces)?, fix }))
        }
        _ => None,
    }
}

/// Returns the command for named files instead of all files.
fn with_files(argv: &[String], forces_exclude: bool) -> Option<Vec<String>> {
    let (last, words) = argv.split_last()?;
    if last != EVERY_FILE {
        return None;
    }
    let force = forces_exclude && !words.iter().any(|word| word == FORCE_EXCLUDE);
    let more = force.then_some(FORCE_EXCLUDE).into_iter().chain([FILES_PLACEHOLDER]);
    Some(words.iter().cloned().chain(more.map(str::to_owned)).collect())
}

fn argv(command: Option<&SpecCommand>) -> Option<Vec<String>> {
    command?.argv().ok().map(Vec::from)
}

fn has_files(argv: &[String]) -> bool {
    argv.iter().any(|word| word == FILES_PLACEHOLDER)
}

/// Returns the words that decide what a command checks: the name of the program, and the options in any order.
fn check_words(argv: &[String]) -> (String, Vec<&str>) {
    let words = argv.last().filter(|word| *word == EVERY_FILE).map_or(argv, |_| &argv[..argv.len() - 1]);
    let mut options: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    options.retain(|word| !NEUTRAL_WORDS.contains(word));
    // A script, or a value of an option, depends on the order.
    if options.iter().all(|word| word.starts_with("--")) {
        options.sort_unstable();
    }
    (argv.first().map(|program| program_name(program).to_owned()).unwrap_or_default(), options)
}

fn same_rules(one: &FileRules, other: &FileRules) -> bool {
    let lists = |rules: &FileRules| {
        [&rules.include, &rules.exclude, &rules.types, &rules.types_or, &rules.exclude_types]
            .map(|list| list.iter().cloned().collect::<BTreeSet<String>>())
    };
    lists(one) == lists(other)
}
