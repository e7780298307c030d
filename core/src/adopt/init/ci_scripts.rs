//! Recognizes scripts of the repository that workflows run as checks, and the checks of autotools. They become steps only if
//! the job runs nothing before them that a step lacks, so that they pass where the workflow passes.

use std::collections::BTreeSet;

use super::ci_commands::{CI_COMMENT, CiLine, MAX_CI_STEPS, check_kind, ci_jobs, step_name};
use super::project::{ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft};
use super::repo_scan::RepoScan;
use super::search_scope::MAX_SCRIPT_BYTES;
use crate::adopt::import::quote_all;

/// Text of a script that needs the network, other privileges, or the CI system.
const UNSAFE_TEXTS: [&str; 24] = [
    "GITHUB_",
    "apk add",
    "apt ",
    "apt-get",
    "brew ",
    "cargo install",
    "curl",
    "dnf ",
    "docker",
    "gem install",
    "git clone",
    "git fetch",
    "git pull",
    "go install",
    "npm ci",
    "npm install",
    "pip install",
    "pip3 install",
    "pnpm install",
    "podman",
    "sudo",
    "uv sync",
    "wget",
    "yarn install",
];

/// Programs that only install packages of the system.
const INSTALLERS: [&str; 6] = ["apk", "apt", "apt-get", "brew", "dnf", "sudo"];

/// Files that identify a project of autotools.
const AUTOTOOLS_FILES: [&str; 2] = ["configure.ac", "configure.in"];
/// Scripts that create `configure`.
const BOOTSTRAP_SCRIPTS: [&str; 3] = ["autogen.sh", "bootstrap", "bootstrap.sh"];

/// Returns the project for the scripts at the top of the repository or below that workflows run. A script of the same kind
/// as a check of `found` usually just calls its tool.
pub(super) fn detect(tree: &RepoScan, found: &[Project]) -> Option<Project> {
    let mut project = Project::new("script", "Scripts that workflows run", "");
    let mut known: BTreeSet<Vec<String>> = BTreeSet::new();
    for job in ci_jobs(tree) {
        for line in job {
            let CiLine::Command(words) = line else { break };
            if is_installer(&words) {
                continue;
            }
            let Some((path, kind)) = script_check(tree, &words) else { break };
            let is_covered = found.iter().any(|project| project.has_kind(kind));
            if is_covered || known.len() == MAX_CI_STEPS || !known.insert(words.clone()) {
                continue;
            }
            let shell = if words[0] == "bash" { "bash" } else { "sh" };
            project.require(ProgramRequirement::on_path(shell, &["sh", "-c", &format!("command -v {shell}")]));
            project.files.push(path.to_owned());
            let stem = path.rsplit('/').next().unwrap_or(path).split('.').next().unwrap_or(path);
            let argv: Vec<&str> = words.iter().map(String::as_str).collect();
            let step = StepDraft::new(step_name(stem), &argv).with_comment(CI_COMMENT);
            project.add_skill(SkillDraft::new(kind, format!("What `{}` does", quote_all(&words)), vec![step]));
        }
    }
    (!project.skills.is_empty()).then_some(project)
}

fn is_installer(words: &[String]) -> bool {
    INSTALLERS.contains(&words[0].as_str())
}

/// Returns the path and the purpose of the script that a command starts, if the script is a check that needs only the tree.
fn script_check<'t>(tree: &'t RepoScan, words: &[String]) -> Option<(&'t str, SkillKind)> {
    let named = match words {
        [shell, script, ..] if shell == "bash" || shell == "sh" => script.strip_prefix("./").unwrap_or(script),
        [script, ..] => script.strip_prefix("./")?,
        [] => return None,
    };
    let (path, _) = tree.shell_scripts().find(|(path, _)| *path == named)?;
    let text = tree.file_text("", path)?;
    let is_safe = text.len() < MAX_SCRIPT_BYTES && !UNSAFE_TEXTS.iter().any(|word| text.contains(word));
    let stem = path.rsplit('/').next()?.split('.').next()?;
    is_safe.then_some((path, check_kind(stem)?))
}

/// Returns the project for `make check` or `make test` of autotools, with the commands of a workflow. They run in a copy of
/// the tree, because they write many files next to the sources.
pub(super) fn detect_autotools(tree: &RepoScan) -> Option<Project> {
    let marker = AUTOTOOLS_FILES.into_iter().find(|name| tree.has_file("", name))?;
    let lines = ci_jobs(tree).into_iter().find_map(|job| autotools_lines(tree, &job))?;
    let mut project = Project::new("make", "autotools", "");
    project.add_marker(marker);
    project.require(ProgramRequirement::on_path("make", &["make", "--version"]));
    project.require(ProgramRequirement::on_path("cc", &["cc", "--version"]));
    if lines.iter().any(|words| words[0] != "make" && words[0] != "./configure") {
        project.require(ProgramRequirement::on_path("autoreconf", &["autoreconf", "--version"]));
    }
    let commands: String = lines.iter().map(|words| quote_all(words) + "\n").collect();
    let script = format!("cp -a . /tmp/tree\ncd /tmp/tree\n{commands}");
    let step = StepDraft::new("make_check", &["sh", "-ec", &script])
        .with_comment("The commands of the repository's workflow, in a copy of the tree.");
    project.add_skill(SkillDraft::new(SkillKind::Test, "The checks of autotools", vec![step]));
    Some(project)
}

/// Returns the commands of a job from the creation of `configure` to the check; `None` if the job does anything else.
fn autotools_lines(tree: &RepoScan, job: &[CiLine]) -> Option<Vec<Vec<String>>> {
    let mut lines: Vec<Vec<String>> = Vec::new();
    for line in job {
        let CiLine::Command(words) = line else { return None };
        let script = words[0].strip_prefix("./").unwrap_or_default();
        match words[0].as_str() {
            _ if is_installer(words) && lines.is_empty() => continue,
            "autoreconf" | "./configure" => {}
            "make" if words[1..].iter().any(|word| word.contains("install") || word.contains("dist")) => return None,
            "make" => {}
            _ if BOOTSTRAP_SCRIPTS.contains(&script) && tree.has_file("", script) => {}
            _ => return None,
        }
        let is_check = words[0] == "make" && words[1..].iter().any(|word| word == "check" || word == "test");
        lines.push(words.clone());
        if is_check {
            let configures = lines.iter().any(|words| words[0] == "./configure");
            return configures.then_some(lines);
        }
    }
    None
}
