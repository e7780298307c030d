//! Recognizes shell scripts: one project for all scripts of a repository.

use super::project::{ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft};
use super::repo_scan::RepoScan;
use crate::model::plan::{FILES_PLACEHOLDER, FileRules};

/// Calls a parser for each script, since it reads only one.
macro_rules! each_script {
    ($command:literal) => {
        concat!("bad=0; for file; do ", $command, " \"$file\" || bad=1; done; exit $bad")
    };
}

/// Returns the project for the scripts of a repository.
pub(super) fn detect(tree: &RepoScan) -> Option<Project> {
    let scripts: Vec<(&str, &str)> = tree.shell_scripts().collect();
    if scripts.is_empty() {
        return None;
    }
    let mut project = Project::new("shell", "Shell scripts", "");
    project.require(ProgramRequirement::on_path("sh", &["sh", "-c", "command -v sh"]));
    project.files.extend(scripts.iter().map(|(path, _)| (*path).to_owned()));
    // bash can parse sh scripts, but not the other way round.
    let is_sh = |line: &str| line.starts_with("#!") && !["bash", "zsh", "ksh"].iter().any(|other| line.contains(other));
    let (name, script) = match scripts.iter().all(|(_, line)| is_sh(line)) {
        true => ("sh_syntax", each_script!("sh -n")),
        false => ("bash_syntax", each_script!("bash -n")),
    };
    if name == "bash_syntax" {
        project.require(ProgramRequirement::on_path("bash", &["bash", "--version"]));
    }
    let files = script_files(tree);
    let on_scripts = |step: StepDraft| step.with_files(files.clone());
    let mut steps = vec![on_scripts(StepDraft::new(name, &["sh", "-c", script, "sh", FILES_PLACEHOLDER]))];
    if tree.has_file("", ".shellcheckrc") || tree.checks_mention("shellcheck") {
        project.require(ProgramRequirement::on_path("shellcheck", &["shellcheck", "--version"]));
        steps.push(on_scripts(StepDraft::new("shellcheck", &["shellcheck", FILES_PLACEHOLDER])));
    }
    project
        .skills
        .push(SkillDraft::new(SkillKind::Lint, "Shell scripts: syntax and lint", steps).quick().reproducible());
    Some(project)
}

/// Directories whose scripts need not be valid, or are not the repository's own.
const OTHER_SCRIPTS: [&str; 6] = ["external", "fixtures", "templates", "testdata", "third_party", "vendor"];

fn script_files(tree: &RepoScan) -> FileRules {
    let directories = OTHER_SCRIPTS.iter().filter(|name| tree.has_directory_named(name));
    let directories = directories.map(|name| format!("**/{name}/**"));
    FileRules {
        include: vec!["**/*.sh".to_owned(), "**/*.bash".to_owned()],
        exclude: directories.chain(tree.script_templates().map(globset::escape)).collect(),
        parallel: 1,
        ..FileRules::default()
    }
}

/// Returns the requirement of steps that list files with git.
pub(super) fn git_requirement() -> ProgramRequirement {
    ProgramRequirement::on_path("git", &["git", "--version"])
}
