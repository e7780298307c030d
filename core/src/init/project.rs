//! What a tool's file answers: a project with its checks, its demands on the machine and the skills
//! that come of it; and how all of these are named in one spec.

use std::collections::BTreeSet;

use super::tree::{Tree, join};
use super::{Found, Note, Planned, text};
use crate::plan::Determinism;

/// Something that has checks of its own.
#[derive(Debug, Clone)]
pub(super) struct Project {
    /// The name of its toolchain, and in the names of its skills.
    pub language: &'static str,
    /// What it is, for people.
    pub title: String,
    /// Its directory; `""` is the repository.
    pub dir: String,
    /// The files that told, relative to the repository.
    pub files: Vec<String>,
    /// What must be there before it is checked.
    pub demands: Vec<Demand>,
    /// What its steps need in their environment.
    pub env: Vec<Variable>,
    /// Its checks.
    pub skills: Vec<Skill>,
    /// What the caller should know.
    pub notes: Vec<Note>,
}

/// A program that must be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Demand {
    /// The command that proves it, as it runs at the top of the repository.
    pub words: Vec<String>,
    /// The versions that will do, and where that was read.
    pub range: Option<(String, String)>,
    /// What tells that it is there.
    pub proof: Proof,
}

/// What tells that a program is there, without running one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Proof {
    /// A program in `PATH`.
    Program(&'static str),
    /// A file of the repository.
    File(String),
    /// Only the check itself can tell.
    Run,
}

/// An environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Variable {
    pub name: &'static str,
    pub value: &'static str,
    pub why: &'static str,
}

/// What a skill is for; the order is that of the profiles.
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
    /// Why it is of that class, as a comment.
    pub because: &'static str,
    pub is_quick: bool,
    pub timeout_ms: u64,
    /// Directories that outlive a run, relative to the project.
    pub caches: Vec<String>,
    pub steps: Vec<Step>,
}

/// One command.
#[derive(Debug, Clone)]
pub(super) struct Step {
    pub name: String,
    pub words: Vec<String>,
    /// Where it runs, relative to the project; `""` is the project itself.
    pub dir: String,
    /// What a reader should know, as a comment; empty where the command says it all.
    pub why: &'static str,
}

/// A skill with its name in the spec.
#[derive(Debug, Clone)]
pub(super) struct NamedSkill<'a> {
    pub name: String,
    pub project: &'a Project,
    pub skill: &'a Skill,
}

/// How long a skill that only reads may take.
pub(super) const SHORT: u64 = 120_000;
/// How long a skill that compiles or tests may take.
pub(super) const LONG: u64 = 1_800_000;

/// Why most skills promise no more than their outcome.
pub(super) const TIMES: &str = "the output has times and an order that vary";

impl Project {
    /// A project without checks.
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

    /// The directory as the spec has it.
    pub(super) fn shown_dir(&self) -> String {
        if self.dir.is_empty() { ".".to_owned() } else { self.dir.clone() }
    }

    /// What was recognised.
    pub(super) fn found(&self) -> Found {
        let mut files = self.files.clone();
        files.truncate(4);
        Found { title: self.title.clone(), dir: self.shown_dir(), files }
    }

    /// What the caller should know: its own notes, and which programs are not there.
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

    /// A file of this project that told.
    pub(super) fn told_by(&mut self, name: &str) {
        self.files.push(join(&self.dir, name));
    }

    /// Adds what a program must be, where it is not demanded already.
    pub(super) fn demand(&mut self, demand: Demand) {
        if !self.demands.contains(&demand) {
            self.demands.push(demand);
        }
    }
}

impl Demand {
    /// A program of `PATH`, proved by `words`.
    pub(super) fn program(program: &'static str, words: &[&str]) -> Self {
        Self { words: owned(words), range: None, proof: Proof::Program(program) }
    }

    /// The same, in these versions.
    pub(super) fn in_range(self, range: Option<(String, String)>) -> Self {
        Self { range, ..self }
    }

    /// What is not there, where that can be told.
    fn missing(&self, tree: &Tree) -> Option<String> {
        match &self.proof {
            Proof::Program(name) => (!tree.has_program(name)).then(|| format!("the program `{name}`")),
            Proof::File(path) => (!tree.has("", path)).then(|| format!("the program {}", text::quoted(path))),
            Proof::Run => None,
        }
    }
}

impl Skill {
    /// A skill that promises its outcome.
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

    /// One that only reads, and ends soon.
    pub(super) fn quick(self) -> Self {
        Self { is_quick: true, timeout_ms: SHORT, ..self }
    }

    /// One whose output is the same on the same tree.
    pub(super) fn reproducible(self) -> Self {
        Self { determinism: Determinism::D0, because: "the same tree gives the same output", ..self }
    }

    /// One with directories that outlive a run.
    pub(super) fn with_caches(self, caches: Vec<String>) -> Self {
        Self { caches, ..self }
    }
}

impl Step {
    /// A step of a project.
    pub(super) fn new(name: impl Into<String>, words: &[&str]) -> Self {
        Self { name: name.into(), words: owned(words), dir: String::new(), why: "" }
    }

    /// The same with a comment.
    pub(super) fn because(self, why: &'static str) -> Self {
        Self { why, ..self }
    }

    /// The same in a directory of the project.
    pub(super) fn within(self, dir: &str) -> Self {
        Self { dir: dir.to_owned(), ..self }
    }
}

impl NamedSkill<'_> {
    /// The skill for people.
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

/// Words as a command has them.
pub(super) fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// All skills, named: `verify.test` where one project is all there is, `verify.rust.test` where
/// there are several, `verify.web.test` for one in the directory `web`. What ends soon comes first.
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

/// `name`, or with a number where that is taken.
fn free(name: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = std::iter::once(name.to_owned()).chain((2u32..).map(|number| format!("{name}-{number}")));
    let free = numbered.into_iter().find(|name| !taken.contains(name)).unwrap_or_else(|| name.to_owned());
    taken.insert(free.clone());
    free
}
