//! Recognizes Python projects: the checkers that a project configures or depends on, run by the interpreter of its
//! virtual environment if it has one.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::ci_commands::{CI_COMMENT, MAX_CI_STEPS, ci_commands, tool_commands};
use super::project::{
    DraftedPath, EnvVariable, ProgramPresence, ProgramRequirement, Project, SkillDraft, SkillKind, StepDraft,
    VARYING_OUTPUT,
};
use super::repo_scan::{RepoScan, ancestors};
use super::search_scope::is_venv_name;
use super::version_ranges;
use crate::adopt::import::{HookCheck, excluding_hook, hook_check};
use crate::adopt::init::detected_project::InitNote;
use crate::adopt::init::path_text::join;
use crate::model::plan::{FILES_PLACEHOLDER, is_lock_file};

const MANIFEST: &str = "pyproject.toml";

const ENV: [EnvVariable; 2] = [
    EnvVariable { name: "PYTHONDONTWRITEBYTECODE", value: "1", comment: "keeps `__pycache__` out of the tree" },
    EnvVariable { name: "COVERAGE_FILE", value: "/tmp/.coverage", comment: "keeps coverage data out of the tree" },
];

/// Files that identify a Python project.
const MARKER_FILES: [&str; 10] = [
    MANIFEST,
    "setup.cfg",
    "setup.py",
    "requirements.txt",
    "pytest.ini",
    "tox.ini",
    "mypy.ini",
    "ruff.toml",
    ".ruff.toml",
    "requirements-dev.txt",
];

/// Returns the project in a directory.
pub(super) fn detect(tree: &RepoScan, dir: &str, notes: &mut Vec<InitNote>) -> Option<Project> {
    let files: Vec<&str> = MARKER_FILES.into_iter().filter(|name| tree.has_file(dir, name)).collect();
    if files.is_empty() {
        return None;
    }
    let manifest = read_manifest(tree, dir, notes);
    let dependencies = read_dependencies(tree, dir, &manifest);
    let mut project = Project::new("python", "Python project", dir);
    files.iter().for_each(|name| project.add_marker(name));
    let interpreter = PythonInterpreter::detect(tree, dir);
    let facts = PythonFacts { tree, dir, manifest: &manifest, dependencies, interpreter };
    facts.add_skills(&mut project);
    if project.skills.is_empty() {
        if is_part_of_project(tree, dir) {
            return None;
        }
        notes.push(InitNote::new(
            format!(
                "the Python project in {} was left out: it configures no supported checker",
                crate::adopt::init::path_text::quoted(&project.spec_dir())
            ),
            "pytest, ruff, black and mypy are supported; add them to its dependencies, or configure them",
        ));
        return None;
    }
    project.env.extend(ENV);
    facts.add_interpreter(&mut project);
    project.needs_paths.extend(facts.needed_venv());
    Some(project)
}

/// Returns whether a directory above has files of a Python project. Then the files of the directory, such as requirements
/// of the documentation or data of tests, belong to that project.
fn is_part_of_project(tree: &RepoScan, dir: &str) -> bool {
    ancestors(dir).any(|above| MARKER_FILES.into_iter().any(|name| tree.has_file(above, name)))
}

struct PythonFacts<'a> {
    tree: &'a RepoScan,
    dir: &'a str,
    manifest: &'a Table,
    /// The names of the dependencies.
    dependencies: BTreeSet<String>,
    interpreter: PythonInterpreter,
}

/// The Python interpreter of a project.
struct PythonInterpreter {
    /// The directory of the virtual environment, relative to the repository.
    venv: Option<String>,
    /// True if that directory exists.
    venv_exists: bool,
    /// The names of the packages that uv or Poetry install in it; `None` if neither maintains it.
    locked: Option<BTreeSet<String>>,
    /// The relative path from the project to the root of the repository.
    path_to_root: String,
}

impl PythonFacts<'_> {
    fn add_skills(&self, project: &mut Project) {
        type AddTool<'a> = fn(&PythonFacts<'a>, &mut Project);
        let tools: [(&'static str, bool, AddTool<'_>); 4] = [
            ("ruff", self.has_any_file(&["ruff.toml", ".ruff.toml"]), Self::add_ruff),
            ("black", false, Self::add_black),
            ("mypy", self.has_any_file(&["mypy.ini"]) || self.has_section("setup.cfg", "[mypy"), Self::add_mypy),
            ("pytest", self.has_any_file(&["pytest.ini"]) || self.has_pytest_section(), Self::add_pytest),
        ];
        for (tool, has_file, add) in tools {
            let is_set_up = self.manifest.get("tool").is_some_and(|tools| tools.get(tool).is_some());
            if has_file || is_set_up || self.dependencies.contains(tool) {
                add(self, project);
            } else if self.dir.is_empty() {
                // The workflows run at the top of the repository.
                self.add_workflow_tool(project, tool);
            }
        }
    }

    /// Adds the commands of the workflows that call a tool which the project neither configures nor depends on.
    fn add_workflow_tool(&self, project: &mut Project, tool: &'static str) {
        let commands = ci_commands(self.tree);
        let commands = tool_commands(&commands, tool);
        let checks = commands.into_iter().filter_map(|words| workflow_check(tool, &words[1..]));
        for (number, (kind, about, name, arguments)) in checks.take(MAX_CI_STEPS).enumerate() {
            let program = match tool {
                "pytest" => {
                    project.require(self.interpreter.module_requirement("pytest", self));
                    vec![self.interpreter.program_path("python3", "python", self), "-m".to_owned(), tool.to_owned()]
                }
                _ => vec![self.require_tool(project, tool)],
            };
            let words: Vec<&str> = program.iter().map(String::as_str).chain(arguments).collect();
            let name = if number == 0 { name.to_owned() } else { format!("{name}_{}", number + 1) };
            let skill = SkillDraft::new(kind, about, vec![StepDraft::new(name, &words).with_comment(CI_COMMENT)]);
            project.add_skill(if tool == "ruff" || tool == "black" { skill.quick() } else { skill });
        }
    }

    fn add_ruff(&self, project: &mut Project) {
        let ruff = self.require_tool(project, "ruff");
        // The configuration may contain `fix = true`.
        let words = [&ruff, "check", "--no-cache", "--no-fix"];
        let lint = self.step_with_excludes("ruff", &words, "--force-exclude", &["ruff", "check"]);
        project.skills.push(SkillDraft::new(SkillKind::Lint, "Python lint", vec![lint]).quick().reproducible());
        if self.formats_by_ruff() {
            let words = [&ruff, "format", "--check", "--no-cache"];
            let format = self.step_with_excludes("ruff_format", &words, "--force-exclude", &["ruff", "format"]);
            project
                .skills
                .push(SkillDraft::new(SkillKind::Format, "Python formatting", vec![format]).quick().reproducible());
        }
    }

    fn add_black(&self, project: &mut Project) {
        let black = self.require_tool(project, "black");
        let step = self.step_with_excludes("black", &[&black, "--check"], "-q", &["black"]);
        let skill = SkillDraft {
            determinism_reason: "files are listed in the order in which they are read",
            ..SkillDraft::new(SkillKind::Format, "Python formatting", vec![step])
        };
        project.skills.push(skill.quick());
    }

    fn add_mypy(&self, project: &mut Project) {
        let mypy = self.require_tool(project, "mypy");
        let settings = self.manifest.get("tool").and_then(|tools| tools.get("mypy"));
        let in_file = ["mypy.ini", "setup.cfg"].iter().filter_map(|name| self.tree.file_text(self.dir, name));
        let sets_paths = settings
            .is_some_and(|table| ["files", "packages", "modules"].iter().any(|key| table.get(*key).is_some()))
            || in_file.flat_map(str::lines).any(|line| line.starts_with("files") || line.starts_with("packages"));
        let words = [mypy.as_str(), "--cache-dir=/dev/null"];
        let config = self.tree.file_text("", ".pre-commit-config.yaml").filter(|_| self.dir.is_empty() && !sets_paths);
        let step = match config.and_then(|config| hook_check(config.as_bytes(), &["mypy"])) {
            Some(HookCheck { cmd, files: Some(files) }) => {
                let arguments = cmd[1..].iter().map(String::as_str);
                StepDraft::new("mypy", &words.into_iter().chain(arguments).collect::<Vec<&str>>())
                    .with_files(files)
                    .with_comment("The files and the options of the hook in `.pre-commit-config.yaml`.")
            }
            _ if sets_paths => StepDraft::new("mypy", &words),
            _ => StepDraft::new("mypy", &[&words[..], &["."]].concat()),
        };
        let skill = SkillDraft::new(SkillKind::Types, "Python types", vec![step]);
        project.skills.push(SkillDraft { determinism_reason: VARYING_OUTPUT, ..skill });
    }

    fn add_pytest(&self, project: &mut Project) {
        let python = self.interpreter.program_path("python3", "python", self);
        project.require(self.interpreter.module_requirement("pytest", self));
        let words = [&python, "-m", "pytest", "-q", "-o", "cache_dir=/tmp/.pytest_cache"];
        let step = StepDraft::new("pytest", &words).with_comment("The cache of pytest is not written to the tree.");
        project.skills.push(SkillDraft::new(SkillKind::Test, "The tests", vec![step]));
    }

    /// Returns a step that checks the whole project, or the files that the hook of pre-commit with this check does not
    /// exclude. `option` is added if the files are named.
    fn step_with_excludes(&self, name: &str, words: &[&str], option: &str, hook: &[&str]) -> StepDraft {
        let config = self.tree.file_text("", ".pre-commit-config.yaml");
        match config.and_then(|config| excluding_hook(config.as_bytes(), hook)) {
            Some(files) => StepDraft::new(name, &[words, &[option, FILES_PLACEHOLDER]].concat())
                .with_files(files)
                .with_comment("The hook in `.pre-commit-config.yaml` excludes the same files."),
            None => StepDraft::new(name, &[words, &["."]].concat()),
        }
    }

    /// Returns a checker's program as the steps call it, and adds it to the requirements.
    fn require_tool(&self, project: &mut Project, tool: &'static str) -> String {
        project.require(self.interpreter.tool_requirement(tool, self));
        self.interpreter.program_path(tool, tool, self)
    }

    fn add_interpreter(&self, project: &mut Project) {
        let (range, key) = self.required_python();
        let range = range.map(|range| {
            (range, format!("`{key}` of {}", crate::adopt::init::path_text::quoted(&join(self.dir, MANIFEST))))
        });
        project.requirements.insert(0, self.interpreter.python_requirement(range));
        if let Some(environment) = self.interpreter.venv.as_ref().filter(|_| !self.interpreter.venv_exists) {
            project.notes.push(InitNote::new(
                format!(
                    "there is no virtual environment at {}, which the steps use",
                    crate::adopt::init::path_text::quoted(environment)
                ),
                self.venv_hint(),
            ));
        }
    }

    /// Returns the virtual environment with the files that determine its content, if the steps use one.
    fn needed_venv(&self) -> Option<DraftedPath> {
        let path = self.interpreter.venv.clone()?;
        let beside = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        if self.tree.file_names(beside).any(|name| is_lock_file(name.as_bytes())) {
            return Some(DraftedPath { path, key: Vec::new() });
        }
        let markers = MARKER_FILES.into_iter().filter(|name| self.tree.has_file(beside, name));
        let mut key: Vec<String> = markers.map(|name| join(beside, name)).collect();
        if key.is_empty() {
            let own = MARKER_FILES.into_iter().filter(|name| self.tree.has_file(self.dir, name));
            key = own.map(|name| join(self.dir, name)).collect();
        }
        Some(DraftedPath { path, key })
    }

    fn required_python(&self) -> (Option<String>, &'static str) {
        let project = self.manifest.get("project").and_then(|project| project.get("requires-python")?.as_str());
        let tools = self.manifest.get("tool").and_then(|tools| tools.get("poetry"));
        let poetry = tools.and_then(|poetry| poetry.get("dependencies")?.get("python")?.as_str());
        match project {
            Some(range) => (version_ranges::from_python(range), "requires-python"),
            None => (poetry.and_then(version_ranges::from_python), "python"),
        }
    }

    fn venv_hint(&self) -> &'static str {
        if self.tree.has_file(self.dir, "poetry.lock") {
            "`poetry config virtualenvs.in-project true`, then `poetry install`"
        } else {
            "`uv sync`"
        }
    }

    fn has_any_file(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.tree.has_file(self.dir, name))
    }

    fn has_section(&self, file: &str, section: &str) -> bool {
        self.tree.file_text(self.dir, file).is_some_and(|text| text.lines().any(|line| line.starts_with(section)))
    }

    fn has_pytest_section(&self) -> bool {
        self.has_section("setup.cfg", "[tool:pytest]")
            || self.tree.file_text(self.dir, "tox.ini").is_some_and(|text| text.contains("pytest"))
    }

    fn formats_by_ruff(&self) -> bool {
        let ruff = self.manifest.get("tool").and_then(|tools| tools.get("ruff"));
        ruff.is_some_and(|ruff| ruff.get("format").is_some())
            || self.has_section("ruff.toml", "[format]")
            || self.has_section(".ruff.toml", "[format]")
            || self.tree.checks_mention("ruff format")
            || self.tree.checks_mention("ruff-format")
    }
}

/// Returns the check that a tool does with these arguments: the kind, its description, the name of its step, and the
/// arguments to use. `None` for a command that changes or installs something.
fn workflow_check<'c>(
    tool: &str,
    arguments: &'c [String],
) -> Option<(SkillKind, &'static str, &'static str, Vec<&'c str>)> {
    let has = |option: &str| arguments.iter().any(|word| word == option);
    let all = || arguments.iter().map(String::as_str);
    let first = arguments.first().map(String::as_str);
    if ["--fix", "--fix-only", "--unsafe-fixes", "--version", "--help", "--install-types"].into_iter().any(has) {
        return None;
    }
    match tool {
        "ruff" if first == Some("check") => {
            let words = with_missing_option(all().collect(), &["--no-cache", "-n"]);
            Some((SkillKind::Lint, "Python lint", "ruff", with_missing_option(words, &["--no-fix"])))
        }
        "ruff" if first == Some("format") && (has("--check") || has("--diff")) => {
            let words = with_missing_option(all().collect(), &["--no-cache", "-n"]);
            Some((SkillKind::Format, "Python formatting", "ruff_format", words))
        }
        "black" if has("--check") => Some((SkillKind::Format, "Python formatting", "black", all().collect())),
        "mypy" => Some((
            SkillKind::Types,
            "Python types",
            "mypy",
            ["--cache-dir=/dev/null"].into_iter().chain(all()).collect(),
        )),
        "pytest" => {
            let words = without_reports(arguments).into_iter().chain(["-o", "cache_dir=/tmp/.pytest_cache"]).collect();
            Some((SkillKind::Test, "The tests", "pytest", words))
        }
        _ => None,
    }
}

/// Adds the first of the spellings of an option, unless the arguments contain one of them. ruff rejects options that are
/// given twice.
fn with_missing_option<'c>(mut arguments: Vec<&'c str>, spellings: &[&'static str]) -> Vec<&'c str> {
    if !arguments.iter().any(|word| spellings.contains(word)) {
        arguments.extend(spellings.first());
    }
    arguments
}

/// Returns the arguments of pytest without the options that write coverage and reports to the tree.
fn without_reports(arguments: &[String]) -> Vec<&str> {
    const PREFIXES: [&str; 4] = ["--cov", "--junit", "--html", "--report"];
    const FLAGS: [&str; 2] = ["--cov-append", "--cov-branch"];
    let mut kept = Vec::new();
    let mut words = arguments.iter().map(String::as_str).peekable();
    while let Some(word) = words.next() {
        if !PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
            kept.push(word);
        } else if !word.contains('=') && !FLAGS.contains(&word) {
            // The next word is the value of the option.
            words.next_if(|next| !next.starts_with('-'));
        }
    }
    kept
}

impl PythonInterpreter {
    /// Finds the environment of the project or of a parent directory. If a lockfile of uv or Poetry exists, expects
    /// the environment where that tool would create it.
    fn detect(tree: &RepoScan, dir: &str) -> Self {
        let dirs = || std::iter::once(dir).chain(ancestors(dir));
        let there = dirs().flat_map(|dir| [(dir, ".venv"), (dir, "venv")]);
        let there = there.filter(|(dir, name)| is_venv_name(name) && tree.has_directory(dir, name));
        let there = there.map(|(dir, name)| join(dir, name)).next();
        let locked = dirs().find(|dir| tree.has_file(dir, "uv.lock") || tree.has_file(dir, "poetry.lock"));
        let is_there = there.is_some();
        let names = locked.map(|dir| read_dependencies(tree, dir, &read_manifest(tree, dir, &mut Vec::new())));
        let up = if dir.is_empty() { String::new() } else { "../".repeat(dir.split('/').count()) };
        Self {
            venv: there.or_else(|| Some(join(locked?, ".venv"))),
            venv_exists: is_there,
            locked: names,
            path_to_root: up,
        }
    }

    /// Returns a program of the environment if the environment has it, will have it according to the dependencies, or is
    /// the only place where a user could install it; otherwise the machine's program.
    fn program_path(&self, on_machine: &str, in_environment: &str, facts: &PythonFacts<'_>) -> String {
        match &self.venv {
            Some(environment) if self.is_in_venv(in_environment, facts) => {
                let own = join(facts.dir, "").trim_end_matches('/').to_owned();
                let below = if own.is_empty() {
                    Some(environment.as_str())
                } else {
                    environment.strip_prefix(&format!("{own}/"))
                };
                match below {
                    Some(below) => format!("{below}/bin/{in_environment}"),
                    None => format!("{}{environment}/bin/{in_environment}", self.path_to_root),
                }
            }
            _ => on_machine.to_owned(),
        }
    }

    fn is_in_venv(&self, tool: &str, facts: &PythonFacts<'_>) -> bool {
        let Some(environment) = &self.venv else { return false };
        if tool == "python" || facts.tree.has_file("", &format!("{environment}/bin/{tool}")) {
            return true;
        }
        match &self.locked {
            Some(locked) => locked.contains(tool) || facts.dependencies.contains(tool),
            None => !facts.tree.has_program(tool),
        }
    }

    fn tool_requirement(&self, tool: &'static str, facts: &PythonFacts<'_>) -> ProgramRequirement {
        match &self.venv {
            Some(environment) if self.is_in_venv(tool, facts) => {
                let path = format!("{environment}/bin/{tool}");
                ProgramRequirement {
                    argv: vec![path.clone(), "--version".to_owned()],
                    range: None,
                    presence: ProgramPresence::File(path),
                }
            }
            _ => ProgramRequirement::on_path(tool, &[tool, "--version"]),
        }
    }

    fn python_requirement(&self, range: Option<(String, String)>) -> ProgramRequirement {
        let demand = match &self.venv {
            Some(environment) => {
                let words = vec![format!("{environment}/bin/python"), "--version".to_owned()];
                ProgramRequirement { argv: words, range: None, presence: ProgramPresence::CheckOnly }
            }
            None => ProgramRequirement::on_path("python3", &["python3", "--version"]),
        };
        demand.with_range(range)
    }

    fn module_requirement(&self, module: &str, facts: &PythonFacts<'_>) -> ProgramRequirement {
        let python = match &self.venv {
            Some(environment) if self.is_in_venv("python", facts) => format!("{environment}/bin/python"),
            _ => "python3".to_owned(),
        };
        let words = [python.as_str(), "-m", module, "--version"].map(str::to_owned).to_vec();
        ProgramRequirement { argv: words, range: None, presence: ProgramPresence::CheckOnly }
    }
}

fn read_manifest(tree: &RepoScan, dir: &str, notes: &mut Vec<InitNote>) -> Table {
    let Some(text) = tree.file_text(dir, MANIFEST) else { return Table::new() };
    text.parse().unwrap_or_else(|_| {
        let path = crate::adopt::init::path_text::quoted(&join(dir, MANIFEST));
        notes.push(InitNote::new(
            format!("{path} was ignored: it is not valid TOML"),
            "fix it, and run the command again",
        ));
        Table::new()
    })
}

/// Returns the names of a project's dependencies from all known files.
fn read_dependencies(tree: &RepoScan, dir: &str, manifest: &Table) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for name in tree.file_names(dir).filter(|name| name.contains("requirements")) {
        let lines = tree.file_text(dir, name).into_iter().flat_map(str::lines);
        names.extend(lines.filter_map(requirement_name));
    }
    names.extend(tree.file_text(dir, "setup.cfg").into_iter().flat_map(str::lines).filter_map(requirement_name));
    for (key, value) in manifest {
        collect_dependencies(key, value, false, &mut names);
    }
    names
}

/// Collects the names below a key for dependencies: strings in lists, and keys of tables.
fn collect_dependencies(key: &str, value: &Value, is_inside: bool, names: &mut BTreeSet<String>) {
    let is_inside = is_inside || key.contains("dependencies") || key == "dependency-groups" || key == "extras";
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                if is_inside {
                    names.extend(requirement_name(key));
                }
                collect_dependencies(key, value, is_inside, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_dependencies("", item, is_inside, names)),
        Value::String(text) if is_inside => names.extend(requirement_name(text)),
        _ => {}
    }
}

/// Returns the name at the start of a requirement such as `ruff[x]>=0.4`.
fn requirement_name(text: &str) -> Option<String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(text.len());
    let is_name = end > 0 && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    is_name.then(|| text[..end].to_ascii_lowercase())
}
