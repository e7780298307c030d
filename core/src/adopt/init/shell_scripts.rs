//! Recognizes shell scripts: one project for all scripts of a repository.

use super::project::{ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft};
use super::repo_scan::RepoScan;

/// Calls a command for each script that is tracked or untracked but not ignored. Fails if no script is left,
/// because then the skill should be removed.
macro_rules! each_script {
    ($command:literal) => {
        concat!(
            "list=$(mktemp)\n",
            "git ls-files -z --cached --others --exclude-standard -- '*.sh' '*.bash' > \"$list\"\n",
            "test -s \"$list\" || { echo 'no script is left: take this skill out of the spec' >&2; exit 1; }\n",
            "xargs -0 sh -c 'bad=0; for file; do if test -f \"$file\"; then ",
            $command,
            " \"$file\" || bad=1; fi; done; exit $bad' sh < \"$list\"\n"
        )
    };
}

const SH_SYNTAX_SCRIPT: &str = each_script!("sh -n");
const BASH_SYNTAX_SCRIPT: &str = each_script!("bash -n");
const SHELLCHECK_SCRIPT: &str = each_script!("shellcheck");
const SHELLCHECK_ERRORS_SCRIPT: &str = each_script!("shellcheck --severity=error");

/// Returns the project for the scripts of a repository.
pub(super) fn detect(tree: &RepoScan) -> Option<Project> {
    let scripts: Vec<(&str, &str)> = tree.shell_scripts().collect();
    if scripts.is_empty() {
        return None;
    }
    let mut project = Project::new("shell", "Shell scripts", "");
    project.files.extend(scripts.iter().map(|(path, _)| (*path).to_owned()));
    project.require(git_requirement());
    // bash can parse sh scripts, but not the other way round.
    let is_sh = |line: &str| line.starts_with("#!") && !["bash", "zsh", "ksh"].iter().any(|other| line.contains(other));
    let (name, script) = match scripts.iter().all(|(_, line)| is_sh(line)) {
        true => ("sh_syntax", SH_SYNTAX_SCRIPT),
        false => ("bash_syntax", BASH_SYNTAX_SCRIPT),
    };
    if name == "bash_syntax" {
        project.require(ProgramRequirement::on_path("bash", &["bash", "--version"]));
    }
    let mut steps = vec![StepDraft::new(name, &["sh", "-ec", script])];
    if let Some(step) = shellcheck_step(tree) {
        project.require(ProgramRequirement::on_path("shellcheck", &["shellcheck", "--version"]));
        steps.push(step);
    }
    project
        .skills
        .push(SkillDraft::new(SkillKind::Lint, "Shell scripts: syntax and lint", steps).quick().reproducible());
    Some(project)
}

fn shellcheck_step(tree: &RepoScan) -> Option<StepDraft> {
    let is_set_up = tree.has_file("", ".shellcheckrc") || tree.checks_mention("shellcheck");
    if is_set_up {
        return Some(StepDraft::new("shellcheck", &["sh", "-ec", SHELLCHECK_SCRIPT]));
    }
    let found = StepDraft::new("shellcheck", &["sh", "-ec", SHELLCHECK_ERRORS_SCRIPT]);
    tree.has_program("shellcheck").then(|| found.with_comment("Without `--severity=error` it also reports warnings."))
}

/// Returns the requirement of steps that list files with git.
pub(super) fn git_requirement() -> ProgramRequirement {
    ProgramRequirement::on_path("git", &["git", "--version"])
}
