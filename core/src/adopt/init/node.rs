//! Recognizes JavaScript and TypeScript projects: the scripts of a `package.json`, run by the package manager of
//! the lockfile. A script counts as a check if it has a known name and does not change files.

mod script_fixes;

use globset::Glob;
use serde_json::{Map, Value};

use super::check_tools::{CheckTool, step_tool, tool_call};
use super::ci_commands::{CI_COMMENT, MAX_CI_STEPS, check_kind, ci_commands, step_name};
use super::prettier_config::{is_prettier_config, unusual_prettier_setting};
use super::project::{
    DraftedPath, EnvVariable, ProgramPresence, ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft,
    to_owned_strings,
};
use super::repo_scan::{RepoScan, ancestors};
use super::version_ranges;
use crate::adopt::init::detected_project::InitNote;
use crate::adopt::init::path_text::join;

const MANIFEST: &str = "package.json";
/// Directory of a package's dependencies.
const MODULES: &str = "node_modules";

/// Maximum depth of scripts that call scripts.
const MAX_SCRIPT_DEPTH: usize = 3;

/// Maximum number of packages of a workspace that get their own steps.
const MAX_MEMBERS: usize = 24;

/// Conventional names of scripts; of each kind, the first existing one is used.
const CHECK_SCRIPTS: [(SkillKind, &[&str]); 4] = [
    (
        SkillKind::Format,
        &["format:check", "format-check", "fmt:check", "check:format", "check-format", "prettier:check"],
    ),
    (SkillKind::Lint, &["lint:check", "lint:ci", "check:lint", "check-lint", "lint", "eslint"]),
    (
        SkillKind::Types,
        &[
            "typecheck",
            "type-check",
            "type:check",
            "check-types",
            "check:types",
            "check-type",
            "check:type",
            "types:check",
            "tsc",
        ],
    ),
    (SkillKind::Test, &["test:ci", "test", "test:unit"]),
];

/// Words in a script that changes files, waits for input, or is not a test.
const UNSUITABLE_WORDS: [&str; 5] = ["--fix", "--write", "--watch", "no test specified", "--interactive"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PackageManager {
    Npm,
    Pnpm,
    Yarn,
    Bun,
}

/// A parsed `package.json`.
struct NodePackage {
    dir: String,
    fields: Map<String, Value>,
}

/// Returns the package in a directory, including the packages of its workspace.
pub(super) fn detect(tree: &RepoScan, dir: &str, notes: &mut Vec<InitNote>) -> Option<Project> {
    let root = read_package(tree, dir, notes)?;
    if is_workspace_member(tree, dir) {
        return None;
    }
    let Some(manager) = detect_manager(tree, &root) else {
        notes.push(InitNote::new(
            format!(
                "{} was left out: its package manager is not supported",
                crate::adopt::init::path_text::quoted(&join(dir, MANIFEST))
            ),
            "npm, pnpm, yarn and bun are supported; add its skills yourself",
        ));
        return None;
    };
    let members = workspace_members(tree, &root);
    let title = match members.is_empty() {
        true => format!("{} package", manager.program()),
        false => format!("{} workspace", manager.program()),
    };
    let mut project = Project::new("node", title, dir);
    project.add_marker(MANIFEST);
    manager.lockfiles().iter().filter(|lock| tree.has_file(dir, lock)).for_each(|lock| project.add_marker(lock));
    let facts = NodeFacts { tree, root: &root, members: &members, manager };
    facts.add_skills(&mut project, notes);
    if project.skills.is_empty() {
        return None;
    }
    facts.add_requirements(&mut project);
    project.needs_paths = facts.needed_modules();
    facts.add_notes(&mut project);
    Some(project)
}

struct NodeFacts<'a> {
    tree: &'a RepoScan,
    root: &'a NodePackage,
    members: &'a [NodePackage],
    manager: PackageManager,
}

impl NodeFacts<'_> {
    fn add_skills(&self, project: &mut Project, notes: &mut Vec<InitNote>) {
        for (kind, names) in CHECK_SCRIPTS {
            let steps = self.steps(kind, names, notes);
            if steps.is_empty() {
                continue;
            }
            let skill = SkillDraft::new(kind, skill_description(kind), steps);
            project.skills.push(match kind {
                SkillKind::Format | SkillKind::Lint => SkillDraft { is_quick: true, ..skill },
                SkillKind::Types | SkillKind::Check | SkillKind::Test => skill,
            });
        }
        self.add_workflow_scripts(project);
    }

    /// Adds the scripts that the workflows run at the top of the repository, unless a step runs the same check.
    fn add_workflow_scripts(&self, project: &mut Project) {
        let commands = if self.root.dir.is_empty() { ci_commands(self.tree) } else { Vec::new() };
        let mut added = 0;
        for words in &commands {
            let Some(skill) = self.workflow_skill(words) else { continue };
            if added < MAX_CI_STEPS && !self.repeats_step(words, project) {
                added += 1;
                project.add_skill(skill);
            }
        }
    }

    /// Returns the skill for a command of a workflow that runs a script of the package, a program of its dependencies, or
    /// bun's own tests.
    fn workflow_skill(&self, words: &[String]) -> Option<SkillDraft> {
        if let Some((tool, options)) = tool_call(words) {
            let known = CheckTool::find(tool).filter(|known| known.checks(options))?;
            let program = self.root.depends_on(known.package).then(|| format!("node_modules/.bin/{tool}"))?;
            let argv: Vec<&str> = std::iter::once(program.as_str()).chain(options.iter().map(String::as_str)).collect();
            return Some(workflow_step(known.kind, step_name(tool), &argv));
        }
        let (kind, name, argv) = match script_call(words) {
            Some((script, more)) => {
                self.root.script(script).filter(|text| !UNSUITABLE_WORDS.iter().any(|word| text.contains(word)))?;
                let argv = self.manager.run_command(script).into_iter().chain(more.iter().map(String::as_str));
                (check_kind(script)?, step_name(script), argv.collect())
            }
            None if words.starts_with(&["bun".to_owned(), "test".to_owned()]) && !has_option(words, "--watch") => {
                (SkillKind::Test, "bun-test".to_owned(), words.iter().map(String::as_str).collect::<Vec<&str>>())
            }
            None => return None,
        };
        Some(workflow_step(kind, name, &argv))
    }

    /// Returns whether the steps of the project do what a command does: one runs the same script or calls it, one starts the
    /// tool that the script starts, or the script only calls scripts that other steps run.
    fn repeats_step(&self, words: &[String], project: &Project) -> bool {
        let mut steps = project.skills.iter().flat_map(|skill| &skill.steps);
        if let Some((tool, _)) = tool_call(words) {
            let starts_tool = |text: &str| text.split_whitespace().any(|word| word == tool);
            return steps.any(|step| {
                let script = step.argv.get(2).and_then(|script| self.root.script(script));
                step_tool(step) == Some(tool) || script.is_some_and(starts_tool)
            });
        }
        let Some((script, _)) = script_call(words) else {
            return project.has_kind(SkillKind::Test);
        };
        self.is_script_covered(script, project, MAX_SCRIPT_DEPTH)
    }

    /// Returns whether the steps of the project do what a script does.
    fn is_script_covered(&self, script: &str, project: &Project, depth: usize) -> bool {
        let text = self.root.script(script).unwrap_or_default();
        let is_covered_by = |step: &StepDraft| match self.script_of_step(step) {
            None => step_tool(step) == text.split_whitespace().next(),
            Some((other, other_text)) => other == script || other_text == text || calls_script(other_text, script),
        };
        let mut steps = project.skills.iter().flat_map(|skill| &skill.steps);
        steps.any(is_covered_by) || depth > 0 && self.only_calls_covered_scripts(text, project, depth - 1)
    }

    /// Returns whether each command of a script's text calls scripts, all of which are covered.
    fn only_calls_covered_scripts(&self, text: &str, project: &Project, depth: usize) -> bool {
        let scripts = self.root.fields.get("scripts").and_then(Value::as_object);
        text.split("&&").flat_map(|part| part.split(';')).all(|command| {
            let names = scripts.into_iter().flat_map(Map::keys);
            let mut called = names.filter(|name| calls_script(command, name)).peekable();
            called.peek().is_some() && called.all(|name| self.is_script_covered(name, project, depth))
        })
    }

    /// Returns the name and text of the script that a step runs; `None` if it starts a program.
    fn script_of_step<'s>(&'s self, step: &'s StepDraft) -> Option<(&'s str, &'s str)> {
        let [manager, run, script, ..] = step.argv.as_slice() else { return None };
        let is_run = manager == self.manager.program() && run == "run";
        is_run.then(|| (script.as_str(), self.root.script(script).unwrap_or_default()))
    }

    /// Returns the steps of a kind: the script of the root package, or else an installed tool, or else the scripts
    /// of the workspace's packages.
    fn steps(&self, kind: SkillKind, names: &[&str], notes: &mut Vec<InitNote>) -> Vec<StepDraft> {
        if let Some(script) = self.root.check_script(names, notes) {
            return vec![self.script_step(self.root, script, step_name(script))];
        }
        if let Some(step) = self.tool_step(kind) {
            return vec![step];
        }
        let mut steps: Vec<StepDraft> = Vec::new();
        for member in self.members {
            let Some(script) = member.check_script(names, notes) else { continue };
            let below = member.dir.strip_prefix(&self.root.dir).unwrap_or_default().trim_start_matches('/');
            let name = format!("{}-{}", step_name(script), steps.len() + 1);
            steps.push(self.script_step(member, script, name).with_dir(below));
        }
        steps
    }

    /// Returns a step for an installed checker whose script has no usual name: for the script that starts it, or else for
    /// the checker itself. `None` if another step or a workflow starts it.
    fn tool_step(&self, kind: SkillKind) -> Option<StepDraft> {
        let tool = CheckTool::find(match kind {
            SkillKind::Format => "prettier",
            SkillKind::Types => "tsc",
            SkillKind::Lint | SkillKind::Check | SkillKind::Test => return None,
        })?;
        if !self.root.depends_on(tool.package) || self.is_run_by_workflow(tool) {
            return None;
        }
        let scripts: Vec<&str> = self.root.scripts_with(tool).collect();
        if scripts.iter().any(|script| self.is_run_by_checks(script)) {
            return None;
        }
        let names_tool = |script: &str| script.split(|c: char| !c.is_alphanumeric()).any(|word| word == tool.program);
        if let Some(script) = scripts.into_iter().find(|script| check_kind(script).is_some() || names_tool(script)) {
            return Some(self.script_step(self.root, script, step_name(script)));
        }
        let config = self.tree.file_text(&self.root.dir, "tsconfig.json");
        match kind {
            SkillKind::Format => Some(StepDraft::new("prettier", &["node_modules/.bin/prettier", "--check", "."])),
            // With a config that only references other configs, `tsc` checks nothing.
            _ if config.is_some_and(|it| !it.contains("\"references\"")) => {
                Some(StepDraft::new("tsc", &["node_modules/.bin/tsc", "--noEmit"]))
            }
            _ => None,
        }
    }

    /// Returns whether a workflow starts a checker in a way that becomes a step.
    fn is_run_by_workflow(&self, tool: &CheckTool) -> bool {
        let commands = if self.root.dir.is_empty() { ci_commands(self.tree) } else { Vec::new() };
        let mut calls = commands.iter().filter_map(|words| tool_call(words));
        calls.any(|(program, options)| program == tool.program && tool.checks(options))
    }

    /// Returns whether one of the scripts that become steps is this script, or calls it.
    fn is_run_by_checks(&self, script: &str) -> bool {
        let chosen = CHECK_SCRIPTS.iter().filter_map(|(_, names)| self.root.check_script(names, &mut Vec::new()));
        chosen
            .into_iter()
            .any(|name| name == script || self.root.script(name).is_some_and(|text| calls_script(text, script)))
    }

    /// Returns the directories of dependencies: that of the package, and those of the workspace's packages that exist.
    /// The plug-and-play mode of yarn has none.
    fn needed_modules(&self) -> Vec<DraftedPath> {
        let is_plug_and_play = self.manager == PackageManager::Yarn && self.tree.has_file(&self.root.dir, ".pnp.cjs");
        let has_modules = |package: &&NodePackage| self.tree.has_directory(&package.dir, MODULES);
        let has_any = self.root.has_dependencies()
            || has_modules(&self.root)
            || self.members.iter().any(|member| member.has_dependencies() || has_modules(&member));
        if is_plug_and_play || !has_any {
            return Vec::new();
        }
        let locks = self.manager.lockfiles().iter().filter(|lock| self.tree.has_file(&self.root.dir, lock));
        let locks: Vec<String> = locks.map(|lock| join(&self.root.dir, lock)).collect();
        let key = |package: &NodePackage| match locks.is_empty() {
            true => vec![join(&package.dir, MANIFEST)],
            false if package.dir == self.root.dir => Vec::new(),
            false => locks.clone(),
        };
        let members = self.members.iter().filter(has_modules);
        let all = std::iter::once(self.root).chain(members);
        all.map(|package| DraftedPath { path: join(&package.dir, MODULES), key: key(package) }).collect()
    }

    fn add_requirements(&self, project: &mut Project) {
        let range = self.root.string_at(&["engines", "node"]).and_then(version_ranges::from_node_engines);
        let range = range.map(|range| {
            (range, format!("`engines` of {}", crate::adopt::init::path_text::quoted(&join(&self.root.dir, MANIFEST))))
        });
        if self.manager != PackageManager::Bun {
            project.require(ProgramRequirement::on_path("node", &["node", "--version"]).with_range(range));
        }
        let word = self.manager.program();
        project.require(ProgramRequirement {
            argv: to_owned_strings(&[word, "--version"]),
            range: None,
            presence: ProgramPresence::Program(word),
        });
        project.env.extend(self.manager.env());
    }

    fn add_notes(&self, project: &mut Project) {
        project.notes.extend(self.prettier_note(project));
        if project.needs_paths.is_empty() || self.tree.has_directory(&self.root.dir, MODULES) {
            return;
        }
        let at = crate::adopt::init::path_text::quoted(&join(&self.root.dir, MODULES));
        let word = self.manager.program();
        project.notes.push(InitNote::new(
            format!("{at} is missing, which the steps need"),
            format!("run `{word} install` before the first run"),
        ));
    }
}

impl NodeFacts<'_> {
    /// Returns a note if prettier checks the repository with settings that the layout of the spec does not follow.
    fn prettier_note(&self, project: &Project) -> Option<InitNote> {
        let names = self.tree.file_names(&self.root.dir).filter(|name| is_prettier_config(name));
        let mut configs: Vec<String> =
            names.filter_map(|name| self.tree.file_text(&self.root.dir, name)).map(str::to_owned).collect();
        configs.extend(self.root.fields.get("prettier").map(Value::to_string));
        let setting = configs.iter().find_map(|text| unusual_prettier_setting(text))?;
        let mut steps = project.skills.iter().flat_map(|skill| &skill.steps);
        let is_prettier = |step: &StepDraft| {
            let script = self.script_of_step(step).map_or("", |(_, text)| text);
            step_tool(step) == Some("prettier") || script.contains("prettier")
        };
        steps.any(is_prettier).then(|| {
            InitNote::new(
                format!(
                    "prettier may reject the layout of `{}`: its configuration sets `{setting}`",
                    crate::spec::PATH
                ),
                format!(
                    "`node_modules/.bin/prettier --write {}`, or name the file in `.prettierignore`",
                    crate::spec::PATH
                ),
            )
        })
    }
}

impl NodePackage {
    fn script(&self, name: &str) -> Option<&str> {
        self.fields.get("scripts")?.as_object()?.get(name)?.as_str()
    }

    /// Returns the first of `names` that is a script and a check.
    fn check_script<'n>(&self, names: &[&'n str], notes: &mut Vec<InitNote>) -> Option<&'n str> {
        let scripts = self.fields.get("scripts")?.as_object()?;
        for name in names {
            let Some(command) = scripts.get(*name).and_then(Value::as_str) else { continue };
            match UNSUITABLE_WORDS.iter().find(|word| command.contains(**word)) {
                None => return Some(name),
                Some(&word) => notes.push(InitNote::new(
                    format!(
                        "the script `{name}` of {} is not used: it contains `{word}`",
                        crate::adopt::init::path_text::quoted(&join(&self.dir, MANIFEST))
                    ),
                    format!("add a script that only checks, such as `{}`", names[0]),
                )),
            }
        }
        None
    }

    /// Returns the scripts that start a checker, and neither change files nor wait for input.
    fn scripts_with<'n>(&'n self, tool: &'n CheckTool) -> impl Iterator<Item = &'n str> {
        let scripts = self.fields.get("scripts").and_then(Value::as_object).into_iter().flatten();
        let texts = scripts.filter_map(|(name, text)| Some((name.as_str(), text.as_str()?)));
        let checks = texts.filter(|(_, text)| !UNSUITABLE_WORDS.iter().any(|word| text.contains(word)));
        checks.filter(|(_, text)| tool.is_started_by(text)).map(|(name, _)| name)
    }

    fn string_at(&self, path: &[&str]) -> Option<&str> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.fields.get(*first)?, |value, key| value.get(*key))?.as_str()
    }

    fn depends_on(&self, name: &str) -> bool {
        self.dependencies().any(|table| table.contains_key(name))
    }

    fn has_dependencies(&self) -> bool {
        self.dependencies().any(|table| !table.is_empty())
    }

    fn dependencies(&self) -> impl Iterator<Item = &Map<String, Value>> {
        ["dependencies", "devDependencies"].iter().filter_map(|key| self.fields.get(*key)?.as_object())
    }

    /// Returns the globs of the workspace's packages.
    fn workspace_globs(&self, tree: &RepoScan) -> Vec<String> {
        let list = self.fields.get("workspaces");
        let list = list.and_then(|list| list.as_array().or_else(|| list.get("packages")?.as_array()));
        let own = list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        own.chain(tree.file_text(&self.dir, "pnpm-workspace.yaml").map(parse_pnpm_packages).unwrap_or_default())
            .collect()
    }
}

impl PackageManager {
    fn program(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pnpm => "pnpm",
            Self::Yarn => "yarn",
            Self::Bun => "bun",
        }
    }

    fn lockfiles(self) -> &'static [&'static str] {
        match self {
            Self::Npm => &["package-lock.json", "npm-shrinkwrap.json"],
            Self::Pnpm => &["pnpm-lock.yaml"],
            Self::Yarn => &["yarn.lock"],
            Self::Bun => &["bun.lock", "bun.lockb"],
        }
    }

    fn run_command(self, script: &str) -> [&str; 3] {
        [self.program(), "run", script]
    }

    fn env(self) -> &'static [EnvVariable] {
        const COREPACK: EnvVariable = EnvVariable {
            name: "COREPACK_ENABLE_NETWORK",
            value: "0",
            comment: "corepack does not download another version",
        };
        match self {
            Self::Npm => &[EnvVariable {
                name: "npm_config_update_notifier",
                value: "false",
                comment: "npm does not search for a newer version of itself",
            }],
            Self::Pnpm => &[
                COREPACK,
                EnvVariable {
                    name: "npm_config_manage_package_manager_versions",
                    value: "false",
                    comment: "pnpm does not switch to another version",
                },
            ],
            Self::Yarn => {
                &[COREPACK, EnvVariable { name: "YARN_ENABLE_TELEMETRY", value: "0", comment: "yarn reports nothing" }]
            }
            Self::Bun => &[],
        }
    }
}

fn skill_description(kind: SkillKind) -> &'static str {
    match kind {
        SkillKind::Format => "Formatting",
        SkillKind::Lint => "Lint",
        SkillKind::Types => "Types",
        SkillKind::Check => "Checks",
        SkillKind::Test => "Tests",
    }
}

fn workflow_step(kind: SkillKind, name: String, argv: &[&str]) -> SkillDraft {
    let step = StepDraft::new(name, argv).with_comment(CI_COMMENT);
    let is_quick = matches!(kind, SkillKind::Format | SkillKind::Lint);
    SkillDraft { is_quick, ..SkillDraft::new(kind, skill_description(kind), vec![step]) }
}

/// Splits a command of a package manager that runs a script: the name of the script, and the words for it. `None` for
/// all other commands, and for options whose effect depends on the package manager.
fn script_call(words: &[String]) -> Option<(&str, &[String])> {
    let (program, rest) = words.split_first()?;
    let (script, more) = match (program.as_str(), rest.split_first()?) {
        ("npm" | "pnpm" | "yarn" | "bun", (run, rest)) if run == "run" || run == "run-script" => rest.split_first()?,
        ("npm", (word, rest)) if word == "test" || word == "t" => return Some(("test", rest)).filter(is_plain_call),
        ("pnpm" | "yarn", call) => call,
        _ => return None,
    };
    Some((script.as_str(), more)).filter(is_plain_call)
}

/// Returns whether a call names a script, and passes further words to it only behind `--`.
fn is_plain_call((script, more): &(&str, &[String])) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":_.-".contains(c);
    !script.starts_with('-') && script.chars().all(is_plain) && more.first().is_none_or(|word| word == "--")
}

/// Returns whether the text of a script calls another script.
fn calls_script(text: &str, name: &str) -> bool {
    let words: Vec<&str> = text.split(|c: char| c.is_whitespace() || "&;|\"'".contains(c)).collect();
    let runs_several = words.iter().any(|word| matches!(*word, "run-s" | "run-p" | "npm-run-all" | "concurrently"));
    let is_manager = |word: &str| matches!(word, "npm" | "pnpm" | "yarn" | "bun" | "run");
    words.windows(2).any(|pair| pair[1] == name && (runs_several || is_manager(pair[0])))
        || (runs_several && words.iter().any(|word| word.trim_start_matches("npm:") == name))
}

fn has_option(words: &[String], option: &str) -> bool {
    words.iter().any(|word| word == option)
}

fn read_package(tree: &RepoScan, dir: &str, notes: &mut Vec<InitNote>) -> Option<NodePackage> {
    let text = tree.file_text(dir, MANIFEST)?;
    let Ok(fields) = serde_json::from_str(text.trim_start_matches('\u{feff}')) else {
        let path = crate::adopt::init::path_text::quoted(&join(dir, MANIFEST));
        notes.push(InitNote::new(
            format!("{path} was left out: it is not a JSON object"),
            "fix it, and run the command again",
        ));
        return None;
    };
    Some(NodePackage { dir: dir.to_owned(), fields })
}

/// Returns the package manager according to the lockfile, or else `packageManager`, or else npm. `None` if the
/// project uses an unsupported one.
fn detect_manager(tree: &RepoScan, package: &NodePackage) -> Option<PackageManager> {
    let all = [PackageManager::Npm, PackageManager::Pnpm, PackageManager::Yarn, PackageManager::Bun];
    let locked =
        all.into_iter().find(|manager| manager.lockfiles().iter().any(|lock| tree.has_file(&package.dir, lock)));
    let named = package.string_at(&["packageManager"]).map(|named| named.split('@').next().unwrap_or_default());
    match (locked, named) {
        (Some(manager), _) => Some(manager),
        (None, Some(named)) => all.into_iter().find(|manager| manager.program() == named),
        (None, None) => Some(PackageManager::Npm),
    }
}

fn is_workspace_member(tree: &RepoScan, dir: &str) -> bool {
    ancestors(dir)
        .any(|above| read_package(tree, above, &mut Vec::new()).is_some_and(|root| root.has_member(tree, dir)))
}

impl NodePackage {
    fn has_member(&self, tree: &RepoScan, dir: &str) -> bool {
        let below = if self.dir.is_empty() { Some(dir) } else { dir.strip_prefix(&format!("{}/", self.dir)) };
        let matches = |glob: &str| {
            let glob = glob.trim_start_matches("./").trim_end_matches('/');
            below.is_some_and(|below| Glob::new(glob).is_ok_and(|glob| glob.compile_matcher().is_match(below)))
        };
        let globs = self.workspace_globs(tree);
        let (excluded, included): (Vec<&str>, Vec<&str>) =
            globs.iter().map(String::as_str).partition(|glob| glob.starts_with('!'));
        included.iter().any(|glob| matches(glob)) && !excluded.iter().any(|glob| matches(&glob[1..]))
    }
}

fn workspace_members(tree: &RepoScan, root: &NodePackage) -> Vec<NodePackage> {
    let dirs = tree.directories().filter(|dir| *dir != root.dir && root.has_member(tree, dir));
    dirs.filter_map(|dir| read_package(tree, dir, &mut Vec::new())).take(MAX_MEMBERS).collect()
}

/// Returns the list `packages` of a `pnpm-workspace.yaml` in the usual layout, one item per line.
fn parse_pnpm_packages(text: &str) -> Vec<String> {
    let below = text.lines().skip_while(|line| line.trim_end() != "packages:").skip(1);
    let items = below.take_while(|line| line.starts_with([' ', '-', '#']) || line.is_empty());
    let items = items.filter_map(|line| line.trim().strip_prefix("- "));
    items.map(|item| item.trim().trim_matches(['"', '\'']).to_owned()).collect()
}
