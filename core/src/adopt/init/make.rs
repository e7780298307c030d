//! Recognizes Makefile targets with the names of checks. If the directory has another known tool, only targets that a
//! workflow makes and that the tool does not cover are used, because such targets usually call that tool.

use std::collections::BTreeMap;

use super::ci_commands::{CI_COMMENT, MAX_CI_STEPS, check_kind, ci_commands, step_name, tool_commands};
use super::project::{ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft};
use super::repo_scan::RepoScan;
use crate::adopt::init::detected_project::InitNote;
use crate::adopt::init::path_text::join;

/// File names in the order in which make searches for them.
const MAKEFILE_NAMES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];

/// The known targets and their purpose.
const CHECK_TARGETS: [(&str, SkillKind); 13] = [
    ("fmt-check", SkillKind::Format),
    ("format-check", SkillKind::Format),
    ("check-fmt", SkillKind::Format),
    ("check-format", SkillKind::Format),
    ("fmtcheck", SkillKind::Format),
    ("lint", SkillKind::Lint),
    ("vet", SkillKind::Lint),
    ("typecheck", SkillKind::Types),
    ("check-types", SkillKind::Types),
    ("check", SkillKind::Check),
    ("verify", SkillKind::Check),
    ("test", SkillKind::Test),
    ("tests", SkillKind::Test),
];

/// Returns the project for the Makefile in a directory without another known tool.
pub(super) fn detect(tree: &RepoScan, dir: &str) -> Option<Project> {
    let (name, makefile) = makefile(tree, dir)?;
    let chosen = select_targets(makefile);
    let mut project = make_project(dir, name);
    for kind in [SkillKind::Format, SkillKind::Lint, SkillKind::Types, SkillKind::Check, SkillKind::Test] {
        let targets: Vec<&str> =
            chosen.iter().filter(|(_, target_kind)| *target_kind == kind).map(|(target, _)| *target).collect();
        if targets.is_empty() {
            continue;
        }
        let steps = targets.iter().map(|target| {
            StepDraft::new(format!("make_{target}"), &["make", target])
                .with_comment("Build output must be ignored by git, or be below a directory in `caches`.")
        });
        let about = format!("What `make {}` does", targets.join(" "));
        project.skills.push(SkillDraft::new(kind, about, steps.collect()));
    }
    add_workflow_targets(&mut project, tree, makefile, |target, _| {
        chosen.iter().any(|(chosen, _)| *chosen == target || parse_rules(makefile)[chosen].contains(&target))
    });
    (!project.skills.is_empty()).then_some(project)
}

/// Returns the project for the targets that workflows make in a directory with other known tools, `found`. A target of
/// the same kind as a check of these tools usually just calls it.
pub(super) fn detect_workflow_targets(tree: &RepoScan, dir: &str, found: &[Project]) -> Option<Project> {
    let (name, makefile) = makefile(tree, dir)?;
    let mut project = make_project(dir, name);
    add_workflow_targets(&mut project, tree, makefile, |_, kind| found.iter().any(|project| project.has_kind(kind)));
    (!project.skills.is_empty()).then_some(project)
}

fn make_project(dir: &str, name: &str) -> Project {
    let mut project = Project::new("make", "Makefile", dir);
    project.add_marker(name);
    project.require(ProgramRequirement::on_path("make", &["make", "--version"]));
    project
}

/// Adds the targets that the workflows make at the top of the repository, if they are checks according to their names
/// and not `covered`.
fn add_workflow_targets(
    project: &mut Project,
    tree: &RepoScan,
    makefile: &str,
    covered: impl Fn(&str, SkillKind) -> bool,
) {
    let commands = if project.dir.is_empty() { ci_commands(tree) } else { Vec::new() };
    let rules = parse_rules(makefile);
    let is_plain = |words: &&[String]| words.iter().all(|word| !word.starts_with('-') && !word.contains('='));
    let targets = tool_commands(&commands, "make").into_iter().filter(is_plain).flat_map(|words| &words[1..]);
    let mut chosen: Vec<(&str, SkillKind)> = Vec::new();
    for target in targets.map(String::as_str).filter(|target| rules.contains_key(target)) {
        let Some(kind) = check_kind(target).filter(|kind| !covered(target, *kind)) else { continue };
        let is_new = chosen.iter().all(|(other, _)| *other != target && !rules[other].contains(&target));
        if is_new && chosen.len() < MAX_CI_STEPS {
            chosen.push((target, kind));
        }
    }
    for (target, kind) in chosen {
        let step = StepDraft::new(format!("make_{}", step_name(target)), &["make", target]).with_comment(CI_COMMENT);
        project.add_skill(SkillDraft::new(kind, format!("What `make {target}` does"), vec![step]));
    }
}

/// Returns a note about targets that no step of `found` uses because the directory has another known tool.
pub(super) fn unused_targets_note(tree: &RepoScan, dir: &str, found: &[Project]) -> Option<InitNote> {
    let (name, makefile) = makefile(tree, dir)?;
    let steps = || found.iter().flat_map(|project| &project.skills).flat_map(|skill| &skill.steps);
    let is_used = |target: &str| steps().any(|step| step.argv == ["make", target]);
    let chosen = select_targets(makefile).into_iter().filter(|(target, _)| !is_used(target));
    let targets: Vec<String> = chosen.map(|(target, _)| format!("`{target}`")).collect();
    (!targets.is_empty()).then(|| {
        InitNote::new(
            format!(
                "{} has {}, which no step uses: the steps run the tools directly",
                crate::adopt::init::path_text::quoted(&join(dir, name)),
                targets.join(", ")
            ),
            "if a target checks more, add a step with `cmd: [\"make\", \"TARGET\"]`",
        )
    })
}

/// Returns the file that make would read.
fn makefile<'a>(tree: &'a RepoScan, dir: &str) -> Option<(&'static str, &'a str)> {
    MAKEFILE_NAMES.iter().find_map(|name| Some((*name, tree.file_text(dir, name)?)))
}

/// Returns the known targets of a Makefile except those that other known targets depend on. If targets depend on each
/// other in a cycle, none is left; make reports the cycle.
fn select_targets(makefile: &str) -> Vec<(&'static str, SkillKind)> {
    let rules = parse_rules(makefile);
    let known: Vec<(&str, SkillKind)> =
        CHECK_TARGETS.iter().copied().filter(|(target, _)| rules.contains_key(*target)).collect();
    let is_prerequisite =
        |target: &str| known.iter().any(|(other, _)| *other != target && rules[*other].contains(&target));
    known.iter().copied().filter(|(target, _)| !is_prerequisite(target)).collect()
}

/// Parses the rules of a Makefile: targets with their prerequisites. Does not support includes or variables in
/// names.
fn parse_rules(makefile: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut rules: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in makefile.lines().filter(|line| !line.starts_with(['\t', ' ', '#'])) {
        let Some((targets, rest)) = line.split_once(':') else { continue };
        let rest = rest.strip_prefix(':').unwrap_or(rest);
        if targets.contains('=') || rest.trim_start().starts_with('=') || rest.starts_with(":=") {
            continue;
        }
        let needed = rest.split([';', '#']).next().unwrap_or_default();
        for target in targets.split_whitespace() {
            rules.entry(target).or_default().extend(needed.split_whitespace());
        }
    }
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selects_known_targets_once() {
        let makefile = "CC := cc\ntest: build\n\t@lint: no\nlint fmt-check:\n\tx\n.PHONY: check\ncheck: lint test\n\
                        # verify: no\nverify = 1\nvet::\nLATER ::= x\n";
        let names: Vec<&str> = select_targets(makefile).into_iter().map(|(target, _)| target).collect();
        assert_eq!(names, ["fmt-check", "vet", "check"]);
    }
}
