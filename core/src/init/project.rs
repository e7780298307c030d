//! A recognized project with its checks and required programs, and the names of all skills in the spec.

use std::collections::BTreeSet;

use super::tree::{Tree, join};
use super::{Found, Note, Planned, text};
use crate::plan::Determinism;

/// A project with checks.
#[derive(Debug, Clone)]
pub(super) struct Project {
    /// The name of its toolchain; also used in the names of its skills.
    pub language: &'static str,
    /// The kind of the project, for display.
    pub title: String,
    /// The directory; `""` is the root of the repository.
    pub dir: String,
    /// The files that identified it, relative to the repository.
    pub files: Vec<String>,
    /// The programs that its steps need.
    pub demands: Vec<Demand>,
    /// The environment variables that its steps need.
    pub env: Vec<Variable>,
    /// The checks of the project.
    pub skills: Vec<Skill>,
    /// Messages for the user.
    pub notes: Vec<Note>,
}

/// A required program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Demand {
    /// The command of its toolchain check, which runs at the root of the repository.
    pub words: Vec<String>,
    /// The required version range, and its source.
    pub range: Option<(String, String)>,
    /// How to find out whether the program is installed.
    pub proof: Proof,
}

/// How to find out whether a program is installed, without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Proof {
    /// A program in `PATH`.
    Program(&'static str),
    /// A file of the repository.
    File(String),
    /// Only by running the check.
    Run,
}

/// An environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variable {
    pub name: &'static str,
    pub value: &'static str,
    pub why: &'static str,
}

/// The purpose of a skill, in the order of the profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Format,
    Lint,
    Types,
    Check,
    Test,
}

/// A group of steps with one purpose.
#[derive(Debug, Clone)]
pub(super) struct Skill {
    pub kind: Kind,
    pub about: String,
    pub determinism: Determinism,
    /// The reason for its determinism class, as a comment.
    pub because: &'static str,
    pub is_quick: bool,
    pub timeout_ms: u64,
    /// Directories that are kept between runs, relative to the project.
    pub caches: Vec<String>,
    pub steps: Vec<Step>,
}

/// A command.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub name: String,
    pub words: Vec<String>,
    /// The working directory, relative to the project; `""` is the project itself.
    pub dir: String,
    /// An explanation for readers of the spec, as a comment; empty if the command needs none.
    pub why: &'static str,
}

/// A skill with its name in the spec.
#[derive(Debug, Clone)]
pub(super) struct NamedSkill<'a> {
    pub name: String,
    pub project: &'a Project,
    pub skill: &'a Skill,
}

/// Timeout of a skill that only reads, in milliseconds.
pub(super) const SHORT: u64 = 120_000;
/// Timeout of a skill that compiles or runs tests, in milliseconds.
pub(super) const LONG: u64 = 1_800_000;

/// The reason why most skills are D1.
pub(super) const TIMES: &str = "the output has times and an order that vary";

impl Project {
    /// Creates a project without checks.
    pub(super) fn new(language: &'static str, title: impl Into<String>, dir: &str) -> Self {
        Self {
            language,
            title: title.into(),
            dir: dir.to_owned(),
            files: Vec::new(),
            demands: Vec::new(),
            env: Vec::new(),
            skills: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the directory in the spelling of the spec.
    pub(super) fn shown_dir(&self) -> String {
        if self.dir.is_empty() { ".".to_owned() } else { self.dir.clone() }
    }

    /// Returns the description for the user.
    pub(super) fn found(&self) -> Found {
        let mut files = self.files.clone();
        files.truncate(4);
        Found { title: self.title.clone(), dir: self.shown_dir(), files }
    }

    /// Returns the messages for the user: the project's notes, and the programs that are missing.
    pub(super) fn notes_about(&self, tree: &Tree) -> Vec<Note> {
        let missing = self.demands.iter().filter_map(|demand| demand.missing(tree));
        let missing = missing.map(|what| {
            Note::new(
                format!("{what} is missing; the toolchain check of `{}` says so, and no run passes", self.language),
                format!("install it, or take its step and its check `{}` out of the spec", self.language),
            )
        });
        self.notes.iter().cloned().chain(missing).collect()
    }

    /// Adds a file that identified the project.
    pub(super) fn told_by(&mut self, name: &str) {
        self.files.push(join(&self.dir, name));
    }

    /// Adds a required program, unless it is already required.
    pub(super) fn demand(&mut self, demand: Demand) {
        if !self.demands.contains(&demand) {
            self.demands.push(demand);
        }
    }
}

impl Demand {
    /// Creates the requirement for a program in `PATH`, checked by the command `words`.
    pub(super) fn program(program: &'static str, words: &[&str]) -> Self {
        Self { words: owned(words), range: None, proof: Proof::Program(program) }
    }

    /// Sets the required version range.
    pub(super) fn in_range(self, range: Option<(String, String)>) -> Self {
        Self { range, ..self }
    }

    /// Returns what is missing, if that is known without running the check.
    fn missing(&self, tree: &Tree) -> Option<String> {
        match &self.proof {
            Proof::Program(name) => (!tree.has_program(name)).then(|| format!("the program `{name}`")),
            Proof::File(path) => (!tree.has("", path)).then(|| format!("the program {}", text::quoted(path))),
            Proof::Run => None,
        }
    }
}

impl Skill {
    /// Creates a D1 skill.
    pub(super) fn new(kind: Kind, about: impl Into<String>, steps: Vec<Step>) -> Self {
        let (determinism, because) = (Determinism::D1, TIMES);
        Self {
            kind,
            about: about.into(),
            determinism,
            because,
            is_quick: false,
            timeout_ms: LONG,
            caches: Vec::new(),
            steps,
        }
    }

    /// Marks a skill that only reads and ends quickly.
    pub(super) fn quick(self) -> Self {
        Self { is_quick: true, timeout_ms: SHORT, ..self }
    }

    /// Marks a skill that has the same output for the same tree (D0).
    pub(super) fn reproducible(self) -> Self {
        Self { determinism: Determinism::D0, because: "the same tree gives the same output", ..self }
    }

    /// Sets directories that are kept between runs.
    pub(super) fn with_caches(self, caches: Vec<String>) -> Self {
        Self { caches, ..self }
    }
}

impl Step {
    /// Creates a step that runs in the directory of the project.
    pub(super) fn new(name: impl Into<String>, words: &[&str]) -> Self {
        Self { name: name.into(), words: owned(words), dir: String::new(), why: "" }
    }

    /// Sets the comment.
    pub(super) fn because(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    /// Sets a directory of the project as working directory.
    pub(super) fn within(self, dir: &str) -> Self {
        Self { dir: dir.to_owned(), ..self }
    }
}

impl NamedSkill<'_> {
    /// Returns the description for the user.
    pub(super) fn planned(&self) -> Planned {
        Planned {
            name: self.name.clone(),
            about: self.skill.about.clone(),
            is_quick: self.skill.is_quick,
            steps: self.skill.steps.len(),
        }
    }
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Self::Format => "format",
            Self::Lint => "lint",
            Self::Types => "types",
            Self::Check => "check",
            Self::Test => "test",
        }
    }
}

/// Copies the words of a command.
pub(super) fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Names all skills, the quick ones first: `verify.test` for a single project; with several projects
/// `verify.rust.test`, or `verify.web.test` for a project in the directory `web`.
pub(super) fn named_skills(projects: &[Project]) -> Vec<NamedSkill<'_>> {
    let mut taken = BTreeSet::new();
    let mut skills = Vec::new();
    let scopes: Vec<String> = projects.iter().map(scope).collect();
    for project in projects {
        let (scope, language) = (scope(project), project.language);
        let is_shared = scopes.iter().filter(|other| **other == scope).count() > 1;
        let prefix = match (projects.len(), is_shared && scope != language) {
            (1, _) => "verify".to_owned(),
            (_, true) => format!("verify.{scope}-{language}"),
            (_, false) => format!("verify.{scope}"),
        };
        for skill in &project.skills {
            let name = free(&format!("{prefix}.{}", skill.kind.word()), &mut taken);
            skills.push(NamedSkill { name, project, skill });
        }
    }
    skills.sort_by_key(|named| (!named.skill.is_quick, named.skill.kind));
    skills
}

fn scope(project: &Project) -> String {
    let slug: String = project.dir.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let slug = slug.trim_matches('-');
    let start = slug.len().saturating_sub(60);
    match slug.is_empty() {
        true => project.language.to_owned(),
        false => slug[start..].to_ascii_lowercase(),
    }
}

/// Returns `name`, with a number appended if it is in use.
fn free(name: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = std::iter::once(name.to_owned()).chain((2u32..).map(|number| format!("{name}-{number}")));
    let free = numbered.into_iter().find(|name| !taken.contains(name)).unwrap_or_else(|| name.to_owned());
    taken.insert(free.clone());
    free
}
