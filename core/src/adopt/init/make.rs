//! Recognizes Makefile targets with the names of checks. They are used only if the directory has no other known
//! tool, because such targets usually call that tool.

use std::collections::BTreeMap;

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

/// Returns the project for the Makefile in a directory.
pub(super) fn detect(tree: &RepoScan, dir: &str) -> Option<Project> {
    let (name, chosen) = select_targets(tree, dir)?;
    let mut project = Project::new("make", "Makefile", dir);
    project.add_marker(name);
    project.require(ProgramRequirement::on_path("make", &["make", "--version"]));
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
    Some(project)
}

/// Returns a note about targets that are not used because the directory has another known tool.
pub(super) fn unused_targets_note(tree: &RepoScan, dir: &str) -> Option<InitNote> {
    let (name, chosen) = select_targets(tree, dir)?;
    let targets: Vec<String> = chosen.iter().map(|(target, _)| format!("`{target}`")).collect();
    Some(InitNote::new(
        format!(
            "{} has {}, which no step uses: the steps run the tools directly",
            crate::adopt::init::path_text::quoted(&join(dir, name)),
            targets.join(", ")
        ),
        "if a target checks more, add a step with `cmd: [\"make\", \"TARGET\"]`",
    ))
}

/// Returns the name of the file that make would read, and its known targets except those that other known targets
/// depend on.
fn select_targets<'a>(tree: &'a RepoScan, dir: &str) -> Option<(&'static str, Vec<(&'static str, SkillKind)>)> {
    let (name, makefile): (_, &'a str) =
        MAKEFILE_NAMES.iter().find_map(|name| Some((*name, tree.file_text(dir, name)?)))?;
    let rules = parse_rules(makefile);
    let known: Vec<(&str, SkillKind)> =
        CHECK_TARGETS.iter().copied().filter(|(target, _)| rules.contains_key(*target)).collect();
    let is_prerequisite =
        |target: &str| known.iter().any(|(other, _)| *other != target && rules[*other].contains(&target));
    let chosen: Vec<(&str, SkillKind)> = known.iter().copied().filter(|(target, _)| !is_prerequisite(target)).collect();
    // If targets depend on each other in a cycle, none is left; make reports the cycle.
    if chosen.is_empty() { None } else { Some((name, chosen)) }
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
    use crate::adopt::init::ScannedContent;

    #[test]
    fn selects_known_targets_once() {
        let makefile = "CC := cc\ntest: build\n\t@lint: no\nlint fmt-check:\n\tx\n.PHONY: check\ncheck: lint test\n\
                        # verify: no\nverify = 1\nvet::\nLATER ::= x\n";
        let mut tree = RepoScan::default();
        tree.add_file("Makefile", ScannedContent::Text(makefile.to_owned()));
        let (_, chosen) = select_targets(&tree, "").expect("targets");
        let names: Vec<&str> = chosen.iter().map(|(target, _)| *target).collect();
        assert_eq!(names, ["fmt-check", "vet", "check"]);
    }
}
