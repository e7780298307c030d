//! Recognizes Go modules: one project for each module.

use super::ci_commands::{CI_COMMENT, MAX_CI_STEPS, ci_commands, tool_commands};
use super::project::{EnvVariable, ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft, to_owned_strings};
use super::repo_scan::RepoScan;
use super::{shell_scripts, version_ranges};
use crate::adopt::init::detected_project::InitNote;
use crate::adopt::init::path_text::join;

const MODULE_FILE: &str = "go.mod";

const ENV: [EnvVariable; 2] = [
    EnvVariable {
        name: "GOPROXY",
        value: "off",
        comment: "go uses modules from its cache, and fails immediately if they are missing",
    },
    EnvVariable { name: "GOTOOLCHAIN", value: "local", comment: "go does not switch to another version" },
];

/// The build cache of go; the default location in the home directory does not survive a step.
const BUILD_CACHE_DIR: &str = ".cache/go-build";

const GOFMT_SCRIPT: &str = "\
list=$(mktemp)
git ls-files -z --cached --others --exclude-standard -- '*.go' ':(exclude,glob)**/testdata/**' ':(exclude,glob)**/vendor/**' > \"$list\"
test -s \"$list\"
xargs -0 sh -ec 'for file; do if test -f \"$file\"; then gofmt -l \"$file\"; fi; done' sh < \"$list\" > \"$list.not\"
sed 's/$/: not as gofmt writes it/' \"$list.not\" >&2
test ! -s \"$list.not\"
";

const GOFMT_FIX_SCRIPT: &str = "\
git ls-files -z --cached --others --exclude-standard -- '*.go' ':(exclude,glob)**/testdata/**' ':(exclude,glob)**/vendor/**' |
xargs -0 sh -ec 'for file; do if test -f \"$file\"; then gofmt -w \"$file\"; fi; done' sh
";

/// Returns the module in a directory.
pub(super) fn detect(tree: &RepoScan, dir: &str, _: &mut Vec<InitNote>) -> Option<Project> {
    let module = tree.file_text(dir, MODULE_FILE)?;
    let mut project = Project::new("go", "Go module", dir);
    project.add_marker(MODULE_FILE);
    project.env.extend(ENV);
    project.require(ProgramRequirement::on_path("go", &["go", "version"]).with_range(required_go(module, dir)));
    project.require(ProgramRequirement::on_path("gofmt", &["sh", "-c", "command -v gofmt"]));
    project.require(shell_scripts::git_requirement());
    let format = StepDraft::new("gofmt", &["sh", "-ec", GOFMT_SCRIPT])
        .with_fix(Some(to_owned_strings(&["sh", "-ec", GOFMT_FIX_SCRIPT])))
        .with_comment("gofmt itself never fails, so a file that it lists fails the step.");
    project.skills.push(SkillDraft::new(SkillKind::Format, "Go formatting", vec![format]).quick().reproducible());
    let caches = vec![BUILD_CACHE_DIR.to_owned()];
    // The workflows run at the top of the repository.
    let ci_commands = if dir.is_empty() { ci_commands(tree) } else { Vec::new() };
    let mut vet = ci_steps(&ci_commands, "go_vet", &["go", "vet"]);
    if vet.is_empty() {
        vet.push(go_step("go_vet", "go vet ./..."));
    }
    project.skills.push(SkillDraft::new(SkillKind::Lint, "go vet over all packages", vet).with_caches(caches.clone()));
    let linter = ci_steps(&ci_commands, "golangci_lint", &["golangci-lint", "run"]);
    if !linter.is_empty() {
        project.require(ProgramRequirement::on_path("golangci-lint", &["golangci-lint", "--version"]));
        project.add_skill(SkillDraft::new(SkillKind::Lint, "Go lint", linter).with_caches(caches.clone()));
    }
    let mut test = ci_steps(&ci_commands, "go_test", &["go", "test"]);
    if test.is_empty() {
        test.push(
            go_step("go_test", "go test -count=1 ./...").with_comment("`-count=1` disables cached test results."),
        );
    }
    project.skills.push(SkillDraft::new(SkillKind::Test, "The tests of all packages", test).with_caches(caches));
    Some(project)
}

/// Returns the steps for the commands of the workflows that begin with `start` and check all packages. Leaves out
/// commands that write files, measure, or need quotes.
fn ci_steps(commands: &[Vec<String>], name: &str, start: &[&str]) -> Vec<StepDraft> {
    const UNSUITABLE_OPTIONS: [&str; 10] =
        ["-bench", "-c", "-coverprofile", "-cpuprofile", "-fix", "-fuzz", "-memprofile", "-o", "-trace", "-update"];
    let is_plain = |word: &String| word.chars().all(|c| c.is_ascii_alphanumeric() || "-_./,=:".contains(c));
    let option = |word: &String| format!("-{}", word.trim_start_matches('-').split('=').next().unwrap_or_default());
    let is_suitable = |words: &&[String]| {
        let is_tool = words.len() >= start.len() && words.iter().zip(start).all(|(word, start)| word == start);
        let checks_all = start[0] != "go" || words.iter().any(|word| word == "./...");
        let options = || words.iter().filter(|word| word.starts_with('-')).map(option);
        is_tool
            && checks_all
            && words.iter().all(is_plain)
            && !options().any(|option| UNSUITABLE_OPTIONS.contains(&option.as_str()))
    };
    let tools = tool_commands(commands, start[0]);
    let suitable = tools.into_iter().filter(is_suitable).take(MAX_CI_STEPS).enumerate();
    let step = |(number, words): (usize, &[String])| {
        let name = if number == 0 { name.to_owned() } else { format!("{name}_{}", number + 1) };
        go_step(&name, &words.join(" ")).with_comment(CI_COMMENT)
    };
    suitable.map(step).collect()
}

/// Returns a go command with `GOCACHE` set, which go requires to be an absolute path.
fn go_step(name: &str, command: &str) -> StepDraft {
    StepDraft::new(name, &["sh", "-c", &format!("GOCACHE=\"$PWD/{BUILD_CACHE_DIR}\" exec {command}")])
}

fn required_go(module: &str, dir: &str) -> Option<(String, String)> {
    let version = module.lines().find_map(|line| line.trim().strip_prefix("go "))?;
    let version = version.split("//").next().unwrap_or_default().trim();
    Some((
        version_ranges::at_least(version)?,
        format!("`go` of {}", crate::adopt::init::path_text::quoted(&join(dir, MODULE_FILE))),
    ))
}
