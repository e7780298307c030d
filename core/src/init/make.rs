//! Recognizes Makefile targets with the names of checks. They are used only if the directory has no other known
//! tool, because such targets usually call that tool.

use std::collections::BTreeMap;

use super::project::{Demand, Kind, Project, Skill, Step};
use super::tree::{Tree, join};
use super::{Note, text};

/// File names in the order in which make searches for them.
const NAMES: [&str; 3] = ["GNUmakefile", "makefile", "Makefile"];

/// The known targets and their purpose.
const TARGETS: [(&str, Kind); 13] = [
    ("fmt-check", Kind::Format),
    ("format-check", Kind::Format),
    ("check-fmt", Kind::Format),
    ("check-format", Kind::Format),
    ("fmtcheck", Kind::Format),
    ("lint", Kind::Lint),
    ("vet", Kind::Lint),
    ("typecheck", Kind::Types),
    ("check-types", Kind::Types),
    ("check", Kind::Check),
    ("verify", Kind::Check),
    ("test", Kind::Test),
    ("tests", Kind::Test),
];

/// Returns the project for the Makefile in a directory.
pub(super) fn look(tree: &Tree, dir: &str) -> Option<Project> {
    let (name, chosen) = chosen(tree, dir)?;
    let mut project = Project::new("make", "Makefile", dir);
    project.told_by(name);
    project.demand(Demand::program("make", &["make", "--version"]));
    for kind in [Kind::Format, Kind::Lint, Kind::Types, Kind::Check, Kind::Test] {
        let targets: Vec<&str> = chosen.iter().filter(|(_, of)| *of == kind).map(|(target, _)| *target).collect();
        if targets.is_empty() {
            continue;
        }
        let steps = targets.iter().map(|target| {
            Step::new(format!("make_{target}"), &["make", target])
                .because("Build output must be ignored by git, or be below a directory in `caches`.")
        });
        let about = format!("What `make {}` does", targets.join(" "));
        project.skills.push(Skill::new(kind, about, steps.collect()));
    }
    Some(project)
}

/// Returns a note about targets that are not used because the directory has another known tool.
pub(super) fn note_on_unused(tree: &Tree, dir: &str) -> Option<Note> {
    let (name, chosen) = chosen(tree, dir)?;
    let targets: Vec<String> = chosen.iter().map(|(target, _)| format!("`{target}`")).collect();
    Some(Note::new(
        format!(
            "{} has {}, which no step calls: the tools' own commands do",
            text::quoted(&join(dir, name)),
            targets.join(", ")
        ),
        "where a target checks more than they do, add a step with `cmd: [\"make\", \"TARGET\"]`",
    ))
}

/// Returns the name of the file that make would read, and its known targets except those that other known targets
/// depend on.
fn chosen<'a>(tree: &'a Tree, dir: &str) -> Option<(&'static str, Vec<(&'static str, Kind)>)> {
    let (name, makefile): (_, &'a str) = NAMES.iter().find_map(|name| Some((*name, tree.text(dir, name)?)))?;
    let rules = rules(makefile);
    let known: Vec<(&str, Kind)> = TARGETS.iter().copied().filter(|(target, _)| rules.contains_key(*target)).collect();
    let is_made = |target: &str| known.iter().any(|(other, _)| *other != target && rules[*other].contains(&target));
    let chosen: Vec<(&str, Kind)> = known.iter().copied().filter(|(target, _)| !is_made(target)).collect();
    // If targets depend on each other in a cycle, none is left; make reports the cycle.
    if chosen.is_empty() { None } else { Some((name, chosen)) }
}

/// Parses the rules of a Makefile: targets with their prerequisites. Does not support includes or variables in
/// names.
fn rules(makefile: &str) -> BTreeMap<&str, Vec<&str>> {
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
    use crate::init::Content;

    #[test]
    fn only_targets_count_and_each_once() {
        let makefile = "CC := cc\ntest: build\n\t@lint: no\nlint fmt-check:\n\tx\n.PHONY: check\ncheck: lint test\n\
                        # verify: no\nverify = 1\nvet::\nLATER ::= x\n";
        let mut tree = Tree::default();
        tree.add_file("Makefile", Content::Text(makefile.to_owned()));
        let (_, chosen) = chosen(&tree, "").expect("targets");
        let names: Vec<&str> = chosen.iter().map(|(target, _)| *target).collect();
        assert_eq!(names, ["fmt-check", "vet", "check"]);
    }
}
