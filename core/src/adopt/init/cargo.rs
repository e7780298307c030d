//! Recognizes Rust crates and workspaces. A crate in a workspace belongs to the workspace.

use toml::{Table, Value};

use super::ci_commands::{CI_COMMENT, MAX_CI_STEPS, ci_commands};
use super::project::{EnvVariable, ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft};
use super::repo_scan::{RepoScan, ancestors};
use super::version_ranges;
use crate::adopt::init::detected_project::InitNote;
use crate::adopt::init::path_text::join;

const MANIFEST: &str = "Cargo.toml";

const ENV: [EnvVariable; 2] = [
    EnvVariable { name: "CARGO_NET_OFFLINE", value: "true", comment: "cargo uses only downloaded crates" },
    EnvVariable { name: "CARGO_TERM_COLOR", value: "never", comment: "the recorded output has no colours" },
];

/// Returns the crate or workspace in a directory.
pub(super) fn detect(tree: &RepoScan, dir: &str, notes: &mut Vec<InitNote>) -> Option<Project> {
    if !tree.has_file(dir, MANIFEST) {
        return None;
    }
    let manifest: Table = match tree.file_text(dir, MANIFEST)?.parse() {
        Ok(manifest) => manifest,
        Err(_) => {
            let path = crate::adopt::init::path_text::quoted(&join(dir, MANIFEST));
            notes.push(InitNote::new(
                format!("{path} was left out: it is not valid TOML"),
                "fix it, and run the command again",
            ));
            return None;
        }
    };
    if is_workspace_member(tree, dir) {
        return None;
    }
    let is_workspace = manifest.contains_key("workspace");
    let has_lock = tree.has_file(dir, "Cargo.lock");
    if !dir.is_empty() && !is_workspace && !has_lock {
        notes.push(skipped_crate_note(dir));
        return None;
    }
    let title = if is_workspace { "Rust workspace" } else { "Rust crate" };
    let mut project = Project::new("rust", title, dir);
    project.add_marker(MANIFEST);
    project.env.extend(ENV);
    project.require(
        ProgramRequirement::on_path("cargo", &["cargo", "--version"]).with_range(required_rust(&manifest, dir)),
    );
    if !has_lock {
        project.notes.push(missing_lock_note(dir));
    }
    // The commands of workflows run at the top of the repository.
    let ci_commands = if dir.is_empty() { ci_commands(tree) } else { Vec::new() };
    let facts = CargoFacts { tree, dir, manifest: &manifest, is_workspace, has_lock, ci_commands };
    facts.add_format(&mut project);
    facts.add_lint(&mut project);
    facts.add_doc(&mut project);
    facts.add_test(&mut project);
    Some(project)
}

struct CargoFacts<'a> {
    tree: &'a RepoScan,
    dir: &'a str,
    manifest: &'a Table,
    is_workspace: bool,
    has_lock: bool,
    /// The commands of the CI system.
    ci_commands: Vec<Vec<String>>,
}

impl CargoFacts<'_> {
    fn add_format(&self, project: &mut Project) {
        let is_set_up = ["rustfmt.toml", ".rustfmt.toml"].iter().any(|name| self.tree.has_file(self.dir, name));
        if !is_set_up && !self.tree.checks_mention("cargo fmt") && !self.tree.checks_mention("rustfmt") {
            return;
        }
        let words: &[&str] =
            if self.is_workspace { &["cargo", "fmt", "--all", "--check"] } else { &["cargo", "fmt", "--check"] };
        project.require(ProgramRequirement::on_path("cargo-fmt", &["cargo", "fmt", "--version"]));
        let steps = vec![StepDraft::new("cargo_fmt", words)];
        project.skills.push(SkillDraft::new(SkillKind::Format, "Rust formatting", steps).quick().reproducible());
    }

    fn add_lint(&self, project: &mut Project) {
        if !self.has_lints() && !self.tree.checks_mention("clippy") {
            return;
        }
        project.require(ProgramRequirement::on_path("cargo-clippy", &["cargo", "clippy", "--version"]));
        let mut steps = self.ci_steps("cargo_clippy", &["clippy"]);
        if self.lacks_whole_check(&steps) {
            let words = self.command_words(&["clippy"], &["--all-targets"]);
            let step = StepDraft::new("cargo_clippy", &[&words[..], &["--", "-D", "warnings"]].concat());
            add_whole_check(&mut steps, step);
        }
        let skill = SkillDraft::new(SkillKind::Lint, "Clippy", steps);
        project.skills.push(skill.with_caches(self.caches()));
    }

    /// Adds the build of the documentation, if the CI system has one.
    fn add_doc(&self, project: &mut Project) {
        let steps = self.ci_steps("cargo_doc", &["doc"]);
        if steps.is_empty() {
            return;
        }
        let skill = SkillDraft::new(SkillKind::Check, "The documentation", steps);
        project.skills.push(skill.with_caches(self.caches()));
    }

    fn add_test(&self, project: &mut Project) {
        let mut steps = self.ci_steps("cargo_nextest", &["nextest", "run"]);
        let has_nextest = !steps.is_empty() || self.tree.has_file(&join(self.dir, ".config"), "nextest.toml");
        if has_nextest {
            project.require(ProgramRequirement::on_path("cargo-nextest", &["cargo", "nextest", "--version"]));
        }
        if has_nextest && self.lacks_whole_check(&steps) {
            let step = StepDraft::new("cargo_nextest", &self.command_words(&["nextest", "run"], &[]));
            add_whole_check(&mut steps, step);
        }
        let mut tests = self.ci_steps("cargo_test", &["test"]);
        if !has_nextest && self.lacks_whole_check(&tests) {
            let step = StepDraft::new("cargo_test", &self.command_words(&["test"], &[]));
            add_whole_check(&mut tests, step);
        }
        steps.extend(tests);
        let about = if has_nextest { "The tests" } else { "The tests, including doc tests" };
        project.skills.push(SkillDraft::new(SkillKind::Test, about, steps).with_caches(self.caches()));
    }

    /// Returns whether steps of the CI system check only single packages of a workspace. The workflow then often checks
    /// the other packages with a command that is not read, such as one of a matrix.
    fn lacks_whole_check(&self, steps: &[StepDraft]) -> bool {
        let names_package = |step: &StepDraft| {
            let own = step.argv.iter().take_while(|word| *word != "--");
            own.skip(1).any(|word| word.starts_with("-p") || word.starts_with("--package"))
        };
        steps.is_empty() || self.is_workspace && steps.iter().all(names_package)
    }

    /// Returns the steps for the commands of the CI system that run a subcommand of cargo.
    fn ci_steps(&self, name: &str, subcommand: &[&str]) -> Vec<StepDraft> {
        let runs = |words: &&Vec<String>| {
            words.split_first().is_some_and(|(program, rest)| {
                program == "cargo" && rest.len() >= subcommand.len() && rest.iter().zip(subcommand).all(|(a, b)| a == b)
            })
        };
        let mut commands: Vec<&Vec<String>> = Vec::new();
        for words in self.ci_commands.iter().filter(runs) {
            if !commands.contains(&words) {
                commands.push(words);
            }
        }
        commands.truncate(MAX_CI_STEPS);
        let step = |(number, words): (usize, &Vec<String>)| {
            let name = if number == 0 { name.to_owned() } else { format!("{name}_{}", number + 1) };
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            StepDraft::new(name, &words).with_comment(CI_COMMENT)
        };
        commands.into_iter().enumerate().map(step).collect()
    }

    /// Returns a cargo command that compiles.
    fn command_words(&self, command: &[&'static str], more: &[&'static str]) -> Vec<&'static str> {
        let workspace = self.is_workspace.then_some("--workspace");
        let locked = self.has_lock.then_some("--locked");
        let command = ["cargo"].into_iter().chain(command.iter().copied());
        command.chain(workspace).chain(more.iter().copied()).chain(locked).collect()
    }

    fn has_lints(&self) -> bool {
        let lints = |table: Option<&Value>| table.and_then(|lints| lints.get("clippy")).is_some();
        let in_workspace = self.manifest.get("workspace").and_then(|workspace| workspace.get("lints"));
        ["clippy.toml", ".clippy.toml"].iter().any(|name| self.tree.has_file(self.dir, name))
            || lints(self.manifest.get("lints"))
            || lints(in_workspace)
    }

    /// Returns cargo's target directory as a cache. A directory outside of the project cannot be one.
    fn caches(&self) -> Vec<String> {
        let config: Option<Table> = self.tree.file_text("", ".cargo/config.toml").and_then(|text| text.parse().ok());
        let target_dir = config.as_ref().and_then(|config| config.get("build")?.get("target-dir")?.as_str());
        match target_dir {
            None => vec!["target".to_owned()],
            Some(set) if self.dir.is_empty() && is_usable_cache(set) => vec![set.to_owned()],
            Some(_) => Vec::new(),
        }
    }
}

/// Puts the check of all packages before the steps of the CI system, which are numbered from 2.
fn add_whole_check(steps: &mut Vec<StepDraft>, whole: StepDraft) {
    for (number, step) in steps.iter_mut().enumerate() {
        step.name = format!("{}_{}", whole.name, number + 2);
    }
    steps.insert(0, whole);
}

/// Returns whether a directory name from the repository is usable as a cache in the spec.
fn is_usable_cache(dir: &str) -> bool {
    let is_plain = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
    dir.len() <= 100 && dir != "changes" && dir.split('/').all(is_plain)
}

/// Returns whether the directory is a member of a workspace in a parent directory.
fn is_workspace_member(tree: &RepoScan, dir: &str) -> bool {
    ancestors(dir).any(|above| {
        let manifest: Option<Table> = tree.file_text(above, MANIFEST).and_then(|text| text.parse().ok());
        let workspace = manifest.as_ref().and_then(|manifest| manifest.get("workspace"));
        workspace.is_some_and(|workspace| !is_excluded(workspace, above, dir))
    })
}

fn is_excluded(workspace: &Value, above: &str, dir: &str) -> bool {
    let excluded = workspace.get("exclude").and_then(Value::as_array);
    let paths = excluded.into_iter().flatten().filter_map(Value::as_str);
    paths
        .map(|path| join(above, path.trim_end_matches('/')))
        .any(|path| dir == path || dir.strip_prefix(path.as_str()).is_some_and(|below| below.starts_with('/')))
}

fn required_rust(manifest: &Table, dir: &str) -> Option<(String, String)> {
    let workspace = manifest.get("workspace").and_then(|workspace| workspace.get("package"));
    let package = manifest.get("package");
    let read = |key: &str| {
        let values = [package, workspace].into_iter().flatten().filter_map(|table| table.get(key)?.as_str());
        values.map(str::to_owned).next()
    };
    let source = |key: &str| format!("`{key}` of {}", crate::adopt::init::path_text::quoted(&join(dir, MANIFEST)));
    let version = read("rust-version").and_then(|version| version_ranges::at_least(&version));
    let version = version.map(|range| (range, source("rust-version")));
    version.or_else(|| {
        Some((read("edition").and_then(|edition| version_ranges::for_edition(&edition))?, source("edition")))
    })
}

fn skipped_crate_note(dir: &str) -> InitNote {
    InitNote::new(
        format!(
            "the crate in {} was left out: it is in no workspace and has no `Cargo.lock`",
            crate::adopt::init::path_text::quoted(dir)
        ),
        "make it a member of a workspace, or commit its `Cargo.lock`, and run the command again",
    )
}

fn missing_lock_note(dir: &str) -> InitNote {
    InitNote::new(
        format!(
            "there is no {}: a step would create one, which is drift",
            crate::adopt::init::path_text::quoted(&join(dir, "Cargo.lock"))
        ),
        "`cargo generate-lockfile`, then commit it (or have git ignore it)",
    )
}
