//! Recognizes shell scripts: one project for all scripts of a repository.

use super::project::{Demand, Kind, Project, Skill, Step};
use super::tree::Tree;

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

const SH: &str = each_script!("sh -n");
const BASH: &str = each_script!("bash -n");
const SHELLCHECK: &str = each_script!("shellcheck");
const SHELLCHECK_ERRORS: &str = each_script!("shellcheck --severity=error");

/// Returns the project for the scripts of a repository.
pub(super) fn look(tree: &Tree) -> Option<Project> {
    let scripts: Vec<(&str, &str)> = tree.scripts().collect();
    if scripts.is_empty() {
        return None;
    }
    let mut project = Project::new("shell", "Shell scripts", "");
    project.files.extend(scripts.iter().map(|(path, _)| (*path).to_owned()));
    project.demand(git());
    // bash can parse sh scripts, but not the other way round.
    let is_sh = |line: &str| line.starts_with("#!") && !["bash", "zsh", "ksh"].iter().any(|other| line.contains(other));
    let (name, script) = match scripts.iter().all(|(_, line)| is_sh(line)) {
        true => ("sh_syntax", SH),
        false => ("bash_syntax", BASH),
    };
    if name == "bash_syntax" {
        project.demand(Demand::program("bash", &["bash", "--version"]));
    }
    let mut steps = vec![Step::new(name, &["sh", "-ec", script])];
    if let Some(step) = shellcheck(tree) {
        project.demand(Demand::program("shellcheck", &["shellcheck", "--version"]));
        steps.push(step);
    }
    project.skills.push(Skill::new(Kind::Lint, "Shell scripts: syntax and lint", steps).quick().reproducible());
    Some(project)
}

fn shellcheck(tree: &Tree) -> Option<Step> {
    let is_set_up = tree.has("", ".shellcheckrc") || tree.mentions("shellcheck");
    if is_set_up {
        return Some(Step::new("shellcheck", &["sh", "-ec", SHELLCHECK]));
    }
    let found = Step::new("shellcheck", &["sh", "-ec", SHELLCHECK_ERRORS]);
    tree.has_program("shellcheck")
        .then(|| found.because("Without `--severity=error` it says what it would warn of too."))
}

/// Returns the requirement of steps that list files with git.
pub(super) fn git() -> Demand {
    Demand::program("git", &["git", "--version"])
}
