//! Recognizes Go modules: one project for each module.

use super::project::{EnvVariable, ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft};
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
        .with_comment("gofmt itself never fails, so a file that it lists fails the step.");
    project.skills.push(SkillDraft::new(SkillKind::Format, "Go formatting", vec![format]).quick().reproducible());
    let caches = vec![BUILD_CACHE_DIR.to_owned()];
    let vet = SkillDraft::new(SkillKind::Lint, "go vet over all packages", vec![go_step("go_vet", "go vet ./...")]);
    project.skills.push(vet.with_caches(caches.clone()));
    let test = go_step("go_test", "go test -count=1 ./...").with_comment("`-count=1` disables cached test results.");
    project.skills.push(SkillDraft::new(SkillKind::Test, "The tests of all packages", vec![test]).with_caches(caches));
    Some(project)
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
