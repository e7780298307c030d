//! Recognizes Python projects: the checkers that a project configures or depends on, run by the interpreter of its
//! virtual environment if it has one.

use std::collections::BTreeSet;

use toml::{Table, Value};

use super::catalog::is_environment;
use super::project::{Demand, Kind, Project, Proof, Skill, Step, TIMES, Variable};
use super::tree::{Tree, ancestors, join};
use super::{Note, ranges, text};

const MANIFEST: &str = "pyproject.toml";

const ENV: [Variable; 2] = [
    Variable { name: "PYTHONDONTWRITEBYTECODE", value: "1", why: "keeps `__pycache__` out of the tree" },
    Variable { name: "COVERAGE_FILE", value: "/tmp/.coverage", why: "keeps coverage data out of the tree" },
];

/// Files that identify a Python project.
const FILES: [&str; 10] = [
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
pub(super) fn look(tree: &Tree, dir: &str, notes: &mut Vec<Note>) -> Option<Project> {
    let files: Vec<&str> = FILES.into_iter().filter(|name| tree.has(dir, name)).collect();
    if files.is_empty() {
        return None;
    }
    let manifest = manifest(tree, dir, notes);
    let asked = asked_for(tree, dir, &manifest);
    let mut project = Project::new("python", "Python project", dir);
    files.iter().for_each(|name| project.told_by(name));
    let interpreter = Interpreter::of(tree, dir);
    let facts = Facts { tree, dir, manifest: &manifest, asked, interpreter };
    facts.add_skills(&mut project);
    if project.skills.is_empty() {
        notes.push(Note::new(
            format!(
                "the Python project in {} was left out: it asks for no checker that is known",
                text::quoted(&project.shown_dir())
            ),
            "pytest, ruff, black and mypy are known; name them in its dependencies, or set them up",
        ));
        return None;
    }
    project.env.extend(ENV);
    facts.add_interpreter(&mut project);
    Some(project)
}

struct Facts<'a> {
    tree: &'a Tree,
    dir: &'a str,
    manifest: &'a Table,
    /// The names of its dependencies.
    asked: BTreeSet<String>,
    interpreter: Interpreter,
}

/// The Python interpreter of a project.
struct Interpreter {
    /// The directory of its virtual environment, relative to the repository.
    environment: Option<String>,
    /// True if that directory exists.
    is_there: bool,
    /// The relative path from the project to the root of the repository.
    up: String,
}

impl Facts<'_> {
    fn add_skills(&self, project: &mut Project) {
        type Add<'a> = fn(&Facts<'a>, &mut Project);
        let tools: [(&'static str, bool, Add<'_>); 4] = [
            ("ruff", self.has(&["ruff.toml", ".ruff.toml"]), Self::add_ruff),
            ("black", false, Self::add_black),
            ("mypy", self.has(&["mypy.ini"]) || self.has_section("setup.cfg", "[mypy"), Self::add_mypy),
            ("pytest", self.has(&["pytest.ini"]) || self.has_pytest_section(), Self::add_pytest),
        ];
        for (tool, has_file, add) in tools {
            let is_set_up = self.manifest.get("tool").is_some_and(|tools| tools.get(tool).is_some());
            if has_file || is_set_up || self.asked.contains(tool) {
                add(self, project);
            }
        }
    }

    fn add_ruff(&self, project: &mut Project) {
        let ruff = self.command(project, "ruff");
        let lint = Step::new("ruff", &[&ruff, "check", "--no-cache", "."]);
        project.skills.push(Skill::new(Kind::Lint, "Python lint", vec![lint]).quick().reproducible());
        if self.formats_by_ruff() {
            let format = Step::new("ruff_format", &[&ruff, "format", "--check", "--no-cache", "."]);
            project.skills.push(Skill::new(Kind::Format, "Python formatting", vec![format]).quick().reproducible());
        }
    }

    fn add_black(&self, project: &mut Project) {
        let black = self.command(project, "black");
        let step = Step::new("black", &[&black, "--check", "."]);
        let skill = Skill {
            because: "files are named in the order in which they are read",
            ..Skill::new(Kind::Format, "Python formatting", vec![step])
        };
        project.skills.push(skill.quick());
    }

    fn add_mypy(&self, project: &mut Project) {
        let mypy = self.command(project, "mypy");
        let settings = self.manifest.get("tool").and_then(|tools| tools.get("mypy"));
        let in_file = ["mypy.ini", "setup.cfg"].iter().filter_map(|name| self.tree.text(self.dir, name));
        let says_where = settings
            .is_some_and(|table| ["files", "packages", "modules"].iter().any(|key| table.get(*key).is_some()))
            || in_file.flat_map(str::lines).any(|line| line.starts_with("files") || line.starts_with("packages"));
        let mut words = vec![mypy.as_str(), "--cache-dir=/dev/null"];
        words.extend((!says_where).then_some("."));
        let skill = Skill::new(Kind::Types, "Python types", vec![Step::new("mypy", &words)]);
        project.skills.push(Skill { because: TIMES, ..skill });
    }

    fn add_pytest(&self, project: &mut Project) {
        let python = self.interpreter.program("python3", "python", self);
        project.demand(self.interpreter.demand_module("pytest", self));
        let words = [&python, "-m", "pytest", "-q", "-o", "cache_dir=/tmp/.pytest_cache"];
        let step = Step::new("pytest", &words).because("What pytest remembers of a run stays out of the tree.");
        project.skills.push(Skill::new(Kind::Test, "The tests", vec![step]));
    }

    /// Returns a checker's program as the steps call it, and adds it to the requirements.
    fn command(&self, project: &mut Project, tool: &'static str) -> String {
        project.demand(self.interpreter.demand(tool, self));
        self.interpreter.program(tool, tool, self)
    }

    fn add_interpreter(&self, project: &mut Project) {
        let (range, key) = self.required_python();
        let range = range.map(|range| (range, format!("`{key}` of {}", text::quoted(&join(self.dir, MANIFEST)))));
        project.demands.insert(0, self.interpreter.demand_itself(range));
        if let Some(environment) = self.interpreter.environment.as_ref().filter(|_| !self.interpreter.is_there) {
            project.notes.push(Note::new(
                format!("there is no virtual environment at {}, which the steps use", text::quoted(environment)),
                self.how_to_make_one(),
            ));
        }
    }

    fn required_python(&self) -> (Option<String>, &'static str) {
        let project = self.manifest.get("project").and_then(|project| project.get("requires-python")?.as_str());
        let tools = self.manifest.get("tool").and_then(|tools| tools.get("poetry"));
        let poetry = tools.and_then(|poetry| poetry.get("dependencies")?.get("python")?.as_str());
        match project {
            Some(range) => (ranges::python(range), "requires-python"),
            None => (poetry.and_then(ranges::python), "python"),
        }
    }

    fn how_to_make_one(&self) -> &'static str {
        if self.tree.has(self.dir, "poetry.lock") {
            "`poetry config virtualenvs.in-project true`, then `poetry install`"
        } else {
            "`uv sync`"
        }
    }

    fn has(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.tree.has(self.dir, name))
    }

    fn has_section(&self, file: &str, section: &str) -> bool {
        self.tree.text(self.dir, file).is_some_and(|text| text.lines().any(|line| line.starts_with(section)))
    }

    fn has_pytest_section(&self) -> bool {
        self.has_section("setup.cfg", "[tool:pytest]")
            || self.tree.text(self.dir, "tox.ini").is_some_and(|text| text.contains("pytest"))
    }

    fn formats_by_ruff(&self) -> bool {
        let ruff = self.manifest.get("tool").and_then(|tools| tools.get("ruff"));
        ruff.is_some_and(|ruff| ruff.get("format").is_some())
            || self.has_section("ruff.toml", "[format]")
            || self.has_section(".ruff.toml", "[format]")
            || self.tree.mentions("ruff format")
            || self.tree.mentions("ruff-format")
    }
}

impl Interpreter {
    /// Finds the environment of the project or of a parent directory. If a lockfile of uv or Poetry exists, expects
    /// the environment where that tool would create it.
    fn of(tree: &Tree, dir: &str) -> Self {
        let dirs = || std::iter::once(dir).chain(ancestors(dir));
        let there = dirs().flat_map(|dir| [(dir, ".venv"), (dir, "venv")]);
        let there = there.filter(|(dir, name)| is_environment(name) && tree.has_directory(dir, name));
        let there = there.map(|(dir, name)| join(dir, name)).next();
        let locked = dirs().find(|dir| tree.has(dir, "uv.lock") || tree.has(dir, "poetry.lock"));
        let is_there = there.is_some();
        let up = if dir.is_empty() { String::new() } else { "../".repeat(dir.split('/').count()) };
        Self { environment: there.or_else(|| Some(join(locked?, ".venv"))), is_there, up }
    }

    /// Returns a program of the environment if the environment has it or the machine lacks it; otherwise the
    /// machine's program.
    fn program(&self, on_machine: &str, in_environment: &str, facts: &Facts<'_>) -> String {
        match &self.environment {
            Some(environment) if self.is_inside(in_environment, facts) => {
                let own = join(facts.dir, "").trim_end_matches('/').to_owned();
                let below = if own.is_empty() {
                    Some(environment.as_str())
                } else {
                    environment.strip_prefix(&format!("{own}/"))
                };
                match below {
                    Some(below) => format!("{below}/bin/{in_environment}"),
                    None => format!("{}{environment}/bin/{in_environment}", self.up),
                }
            }
            _ => on_machine.to_owned(),
        }
    }

    fn is_inside(&self, tool: &str, facts: &Facts<'_>) -> bool {
        let Some(environment) = &self.environment else { return false };
        tool == "python" || facts.tree.has("", &format!("{environment}/bin/{tool}")) || !facts.tree.has_program(tool)
    }

    fn demand(&self, tool: &'static str, facts: &Facts<'_>) -> Demand {
        match &self.environment {
            Some(environment) if self.is_inside(tool, facts) => {
                let path = format!("{environment}/bin/{tool}");
                Demand { words: vec![path.clone(), "--version".to_owned()], range: None, proof: Proof::File(path) }
            }
            _ => Demand::program(tool, &[tool, "--version"]),
        }
    }

    fn demand_itself(&self, range: Option<(String, String)>) -> Demand {
        let demand = match &self.environment {
            Some(environment) => {
                let words = vec![format!("{environment}/bin/python"), "--version".to_owned()];
                Demand { words, range: None, proof: Proof::Run }
            }
            None => Demand::program("python3", &["python3", "--version"]),
        };
        demand.in_range(range)
    }

    fn demand_module(&self, module: &str, facts: &Facts<'_>) -> Demand {
        let python = match &self.environment {
            Some(environment) if self.is_inside("python", facts) => format!("{environment}/bin/python"),
            _ => "python3".to_owned(),
        };
        let words = [python.as_str(), "-m", module, "--version"].map(str::to_owned).to_vec();
        Demand { words, range: None, proof: Proof::Run }
    }
}

fn manifest(tree: &Tree, dir: &str, notes: &mut Vec<Note>) -> Table {
    let Some(text) = tree.text(dir, MANIFEST) else { return Table::new() };
    text.parse().unwrap_or_else(|_| {
        let path = text::quoted(&join(dir, MANIFEST));
        notes.push(Note::new(format!("{path} was ignored: it is not valid TOML"), "fix it, and start again"));
        Table::new()
    })
}

/// Returns the names of a project's dependencies from all known files.
fn asked_for(tree: &Tree, dir: &str, manifest: &Table) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for name in tree.names(dir).filter(|name| name.contains("requirements")) {
        let lines = tree.text(dir, name).into_iter().flat_map(str::lines);
        names.extend(lines.filter_map(requirement));
    }
    names.extend(tree.text(dir, "setup.cfg").into_iter().flat_map(str::lines).filter_map(requirement));
    for (key, value) in manifest {
        collect(key, value, false, &mut names);
    }
    names
}

/// Collects the names below a key for dependencies: strings in lists, and keys of tables.
fn collect(key: &str, value: &Value, is_inside: bool, names: &mut BTreeSet<String>) {
    let is_inside = is_inside || key.contains("dependencies") || key == "dependency-groups" || key == "extras";
    match value {
        Value::Table(table) => {
            for (key, value) in table {
                if is_inside {
                    names.extend(requirement(key));
                }
                collect(key, value, is_inside, names);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect("", item, is_inside, names)),
        Value::String(text) if is_inside => names.extend(requirement(text)),
        _ => {}
    }
}

/// Returns the name at the start of a requirement such as `ruff[x]>=0.4`.
fn requirement(text: &str) -> Option<String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c)).unwrap_or(text.len());
    let is_name = end > 0 && text.starts_with(|c: char| c.is_ascii_alphanumeric());
    is_name.then(|| text[..end].to_ascii_lowercase())
}
