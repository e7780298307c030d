//! Recognizes JavaScript and TypeScript projects: the scripts of a `package.json`, run by the package manager of
//! the lockfile. A script counts as a check if it has a known name and does not change files.

use globset::Glob;
use serde_json::{Map, Value};

use super::project::{Demand, Kind, Project, Proof, Skill, Step, Variable, owned};
use super::tree::{Tree, ancestors, join};
use super::{Note, ranges, text};

const MANIFEST: &str = "package.json";

/// Maximum number of packages of a workspace that get their own steps.
const MAX_MEMBERS: usize = 24;

/// Conventional names of scripts; of each kind, the first existing one is used.
const SCRIPTS: [(Kind, &[&str]); 4] = [
    (Kind::Format, &["format:check", "format-check", "fmt:check", "check:format", "check-format", "prettier:check"]),
    (Kind::Lint, &["lint:check", "lint:ci", "lint", "eslint"]),
    (Kind::Types, &["typecheck", "type-check", "check-types", "check:types", "types:check", "tsc"]),
    (Kind::Test, &["test:ci", "test", "test:unit"]),
];

/// Words in a script that changes files, waits for input, or is not a test.
const NOT_A_CHECK: [&str; 5] = ["--fix", "--write", "--watch", "no test specified", "--interactive"];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manager {
    Npm,
    Pnpm,
    Yarn,
}

/// A parsed `package.json`.
struct Package {
    dir: String,
    fields: Map<String, Value>,
}

/// Returns the package in a directory, including the packages of its workspace.
pub(super) fn look(tree: &Tree, dir: &str, notes: &mut Vec<Note>) -> Option<Project> {
    let root = package(tree, dir, notes)?;
    if is_member(tree, dir) {
        return None;
    }
    let Some(manager) = manager(tree, &root) else {
        notes.push(Note::new(
            format!("{} was left out: its package manager is not known here", text::quoted(&join(dir, MANIFEST))),
            "npm, pnpm and yarn are; add its skills by hand",
        ));
        return None;
    };
    let members = members(tree, &root);
    let title = match members.is_empty() {
        true => format!("{} package", manager.word()),
        false => format!("{} workspace", manager.word()),
    };
    let mut project = Project::new("node", title, dir);
    project.told_by(MANIFEST);
    manager.locks().iter().filter(|lock| tree.has(dir, lock)).for_each(|lock| project.told_by(lock));
    let facts = Facts { tree, root: &root, members: &members, manager };
    facts.add_skills(&mut project, notes);
    if project.skills.is_empty() {
        return None;
    }
    facts.add_demands(&mut project);
    facts.add_notes(&mut project);
    Some(project)
}

struct Facts<'a> {
    tree: &'a Tree,
    root: &'a Package,
    members: &'a [Package],
    manager: Manager,
}

impl Facts<'_> {
    fn add_skills(&self, project: &mut Project, notes: &mut Vec<Note>) {
        for (kind, names) in SCRIPTS {
            let mut steps = self.steps(kind, names, notes);
            if steps.is_empty() {
                continue;
            }
            if let Some(install) = self.install() {
                steps.insert(0, install);
            }
            let skill = Skill::new(kind, about(kind), steps);
            project.skills.push(match kind {
                Kind::Format | Kind::Lint => Skill { is_quick: true, ..skill },
                Kind::Types | Kind::Check | Kind::Test => skill,
            });
        }
    }

    /// Returns the steps of a kind: the script of the root package, or else an installed tool, or else the scripts
    /// of the workspace's packages.
    fn steps(&self, kind: Kind, names: &[&str], notes: &mut Vec<Note>) -> Vec<Step> {
        if let Some(script) = self.root.script(names, notes) {
            return vec![Step::new(step_name(script), &self.manager.run(script))];
        }
        if let Some(step) = self.tool(kind) {
            return vec![step];
        }
        let mut steps: Vec<Step> = Vec::new();
        for member in self.members {
            let Some(script) = member.script(names, notes) else { continue };
            let below = member.dir.strip_prefix(&self.root.dir).unwrap_or_default().trim_start_matches('/');
            let name = format!("{}-{}", step_name(script), steps.len() + 1);
            steps.push(Step::new(name, &self.manager.run(script)).within(below));
        }
        steps
    }

    /// Returns a step for an installed and configured checker that has no script.
    fn tool(&self, kind: Kind) -> Option<Step> {
        let config = self.tree.text(&self.root.dir, "tsconfig.json");
        match kind {
            Kind::Format if self.root.depends_on("prettier") => {
                Some(Step::new("prettier", &["node_modules/.bin/prettier", "--check", "."]))
            }
            // With a config that only references other configs, `tsc` checks nothing.
            Kind::Types
                if self.root.depends_on("typescript") && config.is_some_and(|it| !it.contains("\"references\"")) =>
            {
                Some(Step::new("tsc", &["node_modules/.bin/tsc", "--noEmit"]))
            }
            _ => None,
        }
    }

    /// Returns the step that provides the dependencies. It uses those of the worktree if they exist. Otherwise, as
    /// in a commit that `--rev` checks out, it installs them from the package manager's cache.
    fn install(&self) -> Option<Step> {
        if !self.root.has_dependencies() && self.members.is_empty() {
            return None;
        }
        let has_lock = self.manager.locks().iter().any(|lock| self.tree.has(&self.root.dir, lock));
        let command = match (self.manager, has_lock) {
            (Manager::Npm, true) => "npm ci --offline --no-audit --no-fund",
            (Manager::Npm, false) => "npm install --offline --no-audit --no-fund --no-package-lock",
            (Manager::Pnpm, _) => "pnpm install --offline --frozen-lockfile",
            (Manager::Yarn, _) => "yarn install --offline --frozen-lockfile",
        };
        let plug_and_play = if self.manager == Manager::Yarn { "test -f .pnp.cjs || " } else { "" };
        let script = format!("{plug_and_play}test -d node_modules || {command}");
        let step = Step::new("dependencies", &["sh", "-c", &script]);
        Some(step.because("The worktree's own, or else from the cache of the package manager: there is no network."))
    }

    fn add_demands(&self, project: &mut Project) {
        let range = self.root.text(&["engines", "node"]).and_then(ranges::node);
        let range =
            range.map(|range| (range, format!("`engines` of {}", text::quoted(&join(&self.root.dir, MANIFEST)))));
        project.demand(Demand::program("node", &["node", "--version"]).in_range(range));
        let word = self.manager.word();
        project.demand(Demand { words: owned(&[word, "--version"]), range: None, proof: Proof::Program(word) });
        project.env.extend(self.manager.env());
    }

    fn add_notes(&self, project: &mut Project) {
        if self.install().is_none() || self.tree.has_directory(&self.root.dir, "node_modules") {
            return;
        }
        let at = text::quoted(&join(&self.root.dir, "node_modules"));
        let word = self.manager.word();
        project.notes.push(Note::new(
            format!("{at} is missing: the steps install from the cache of {word}, which may not have everything"),
            format!("run `{word} install` first"),
        ));
    }
}

impl Package {
    /// Returns the first of `names` that is a script and a check.
    fn script<'n>(&self, names: &[&'n str], notes: &mut Vec<Note>) -> Option<&'n str> {
        let scripts = self.fields.get("scripts")?.as_object()?;
        for name in names {
            let Some(command) = scripts.get(*name).and_then(Value::as_str) else { continue };
            match NOT_A_CHECK.iter().find(|word| command.contains(**word)) {
                None => return Some(name),
                Some(&word) => notes.push(Note::new(
                    format!(
                        "the script `{name}` of {} is not called: it has `{word}`",
                        text::quoted(&join(&self.dir, MANIFEST))
                    ),
                    format!("add a script that only checks, such as `{}`", names[0]),
                )),
            }
        }
        None
    }

    fn text(&self, path: &[&str]) -> Option<&str> {
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

    /// Returns the globs of its workspace's packages.
    fn workspaces(&self, tree: &Tree) -> Vec<String> {
        let list = self.fields.get("workspaces");
        let list = list.and_then(|list| list.as_array().or_else(|| list.get("packages")?.as_array()));
        let own = list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        own.chain(tree.text(&self.dir, "pnpm-workspace.yaml").map(pnpm_packages).unwrap_or_default()).collect()
    }
}

impl Manager {
    fn word(self) -> &'static str {
        match self {
            Self::Npm => "npm",
            Self::Pnpm => "pnpm",
            Self::Yarn => "yarn",
        }
    }

    fn locks(self) -> &'static [&'static str] {
        match self {
            Self::Npm => &["package-lock.json", "npm-shrinkwrap.json"],
            Self::Pnpm => &["pnpm-lock.yaml"],
            Self::Yarn => &["yarn.lock"],
        }
    }

    fn run(self, script: &str) -> [&str; 3] {
        [self.word(), "run", script]
    }

    fn env(self) -> &'static [Variable] {
        const COREPACK: Variable =
            Variable { name: "COREPACK_ENABLE_NETWORK", value: "0", why: "corepack fetches no other version" };
        match self {
            Self::Npm => &[Variable {
                name: "npm_config_update_notifier",
                value: "false",
                why: "npm does not ask for a newer one of itself",
            }],
            Self::Pnpm => &[
                COREPACK,
                Variable {
                    name: "npm_config_manage_package_manager_versions",
                    value: "false",
                    why: "pnpm stays the version that it is",
                },
            ],
            Self::Yarn => {
                &[COREPACK, Variable { name: "YARN_ENABLE_TELEMETRY", value: "0", why: "yarn reports nothing" }]
            }
        }
    }
}

fn about(kind: Kind) -> &'static str {
    match kind {
        Kind::Format => "Formatting",
        Kind::Lint => "Lint",
        Kind::Types => "Types",
        Kind::Check | Kind::Test => "Tests",
    }
}

/// Converts the name of a script to the name of a step.
fn step_name(script: &str) -> String {
    script.replace(':', "-")
}

fn package(tree: &Tree, dir: &str, notes: &mut Vec<Note>) -> Option<Package> {
    let text = tree.text(dir, MANIFEST)?;
    let Ok(fields) = serde_json::from_str(text.trim_start_matches('\u{feff}')) else {
        let path = text::quoted(&join(dir, MANIFEST));
        notes.push(Note::new(format!("{path} was left out: it is not a JSON object"), "fix it, and start again"));
        return None;
    };
    Some(Package { dir: dir.to_owned(), fields })
}

/// Returns the package manager according to the lockfile, or else `packageManager`, or else npm. `None` if the
/// project uses an unsupported one.
fn manager(tree: &Tree, package: &Package) -> Option<Manager> {
    let all = [Manager::Npm, Manager::Pnpm, Manager::Yarn];
    let locked = all.into_iter().find(|manager| manager.locks().iter().any(|lock| tree.has(&package.dir, lock)));
    let named = package.text(&["packageManager"]).map(|named| named.split('@').next().unwrap_or_default());
    let is_bun = ["bun.lock", "bun.lockb"].iter().any(|lock| tree.has(&package.dir, lock));
    match (locked, named) {
        (Some(manager), _) => Some(manager),
        (None, Some(named)) => all.into_iter().find(|manager| manager.word() == named),
        (None, None) => (!is_bun).then_some(Manager::Npm),
    }
}

fn is_member(tree: &Tree, dir: &str) -> bool {
    ancestors(dir).any(|above| package(tree, above, &mut Vec::new()).is_some_and(|root| root.has_member(tree, dir)))
}

impl Package {
    fn has_member(&self, tree: &Tree, dir: &str) -> bool {
        let below = if self.dir.is_empty() { Some(dir) } else { dir.strip_prefix(&format!("{}/", self.dir)) };
        let matches = |glob: &str| {
            let glob = glob.trim_start_matches("./").trim_end_matches('/');
            below.is_some_and(|below| Glob::new(glob).is_ok_and(|glob| glob.compile_matcher().is_match(below)))
        };
        let globs = self.workspaces(tree);
        let (not, of): (Vec<&str>, Vec<&str>) =
            globs.iter().map(String::as_str).partition(|glob| glob.starts_with('!'));
        of.iter().any(|glob| matches(glob)) && !not.iter().any(|glob| matches(&glob[1..]))
    }
}

fn members(tree: &Tree, root: &Package) -> Vec<Package> {
    let dirs = tree.directories().filter(|dir| *dir != root.dir && root.has_member(tree, dir));
    dirs.filter_map(|dir| package(tree, dir, &mut Vec::new())).take(MAX_MEMBERS).collect()
}

/// Returns the list `packages` of a `pnpm-workspace.yaml` in the usual layout, one item per line.
fn pnpm_packages(text: &str) -> Vec<String> {
    let below = text.lines().skip_while(|line| line.trim_end() != "packages:").skip(1);
    let items = below.take_while(|line| line.starts_with([' ', '-', '#']) || line.is_empty());
    let items = items.filter_map(|line| line.trim().strip_prefix("- "));
    items.map(|item| item.trim().trim_matches(['"', '\'']).to_owned()).collect()
}
