//! A recognized project with its checks and required programs, and the names of all skills in the spec.

use std::collections::BTreeSet;

use super::repo_scan::RepoScan;
use crate::adopt::import::to_fix_mode;
use crate::adopt::init::detected_project::{DetectedProject, DraftedSkill, InitNote};
use crate::adopt::init::path_text::join;
use crate::model::plan::{Determinism, FileRules};

/// A project with checks.
#[derive(Debug, Clone)]
pub(super) struct Project {
    /// The name of the toolchain; also used in the names of its skills.
    pub language: &'static str,
    /// The kind of the project, for display.
    pub title: String,
    /// The directory; `""` is the root of the repository.
    pub dir: String,
    /// The files that identified it, relative to the repository.
    pub files: Vec<String>,
    /// The programs that the steps need.
    pub requirements: Vec<ProgramRequirement>,
    /// The environment variables that the steps need.
    pub env: Vec<EnvVariable>,
    /// The ignored directories that the steps need.
    pub needs_paths: Vec<DraftedPath>,
    /// The checks of the project.
    pub skills: Vec<SkillDraft>,
    /// Messages for the user.
    pub notes: Vec<InitNote>,
}

/// An ignored directory that steps need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DraftedPath {
    /// The path, relative to the repository.
    pub path: String,
    /// The files that determine its content, relative to the repository; empty if a lock file is in the same directory.
    pub key: Vec<String>,
}

/// A required program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ProgramRequirement {
    /// The command of the toolchain check, which runs at the root of the repository.
    pub argv: Vec<String>,
    /// The required version range, and its source.
    pub range: Option<(String, String)>,
    /// How to find out whether the program is installed.
    pub presence: ProgramPresence,
}

/// How to find out whether a program is installed, without running it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ProgramPresence {
    /// A program in `PATH`.
    Program(&'static str),
    /// A file of the repository.
    File(String),
    /// Only by running the check.
    CheckOnly,
}

/// An environment variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EnvVariable {
    pub name: &'static str,
    pub value: &'static str,
    pub comment: &'static str,
}

/// The purpose of a skill, in the order of the profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SkillKind {
    Format,
    Lint,
    Types,
    Check,
    Test,
}

/// A group of steps with one purpose.
#[derive(Debug, Clone)]
pub(super) struct SkillDraft {
    pub kind: SkillKind,
    pub description: String,
    pub determinism: Determinism,
    /// The reason for the determinism class, as a comment.
    pub determinism_reason: &'static str,
    pub is_quick: bool,
    pub timeout_ms: u64,
    /// Directories that are kept between runs, relative to the project. The tools that use them guarantee that their
    /// content does not change a result.
    pub caches: Vec<String>,
    pub steps: Vec<StepDraft>,
}

/// A command.
#[derive(Debug, Clone)]
pub(super) struct StepDraft {
    pub name: String,
    pub argv: Vec<String>,
    /// The command that fixes what the step finds, for `run --fix`.
    pub fix: Option<Vec<String>>,
    /// The working directory, relative to the project; `""` is the project itself.
    pub dir: String,
    /// The files that the command is for; `None` if it always runs.
    pub files: Option<FileRules>,
    /// An explanation for readers of the spec, as a comment; empty if the command needs none.
    pub comment: &'static str,
}

/// A skill with its name in the spec.
#[derive(Debug, Clone)]
pub(super) struct NamedSkill<'a> {
    pub name: String,
    pub project: &'a Project,
    pub skill: &'a SkillDraft,
}

/// Timeout of a skill that only reads, in milliseconds.
pub(super) const QUICK_TIMEOUT_MS: u64 = 120_000;
/// Timeout of a skill that compiles or runs tests, in milliseconds.
pub(super) const DEFAULT_TIMEOUT_MS: u64 = 1_800_000;

/// The reason why most skills are D1.
pub(super) const VARYING_OUTPUT: &str = "the times and the order in the output vary";

impl Project {
    /// Creates a project without checks.
    pub(super) fn new(language: &'static str, title: impl Into<String>, dir: &str) -> Self {
        Self {
            language,
            title: title.into(),
            dir: dir.to_owned(),
            files: Vec::new(),
            requirements: Vec::new(),
            env: Vec::new(),
            needs_paths: Vec::new(),
            skills: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Returns the directory in the spelling of the spec.
    pub(super) fn spec_dir(&self) -> String {
        if self.dir.is_empty() { ".".to_owned() } else { self.dir.clone() }
    }

    /// Returns the description for the user.
    pub(super) fn to_detected_project(&self) -> DetectedProject {
        let mut files = self.files.clone();
        files.truncate(4);
        DetectedProject { title: self.title.clone(), dir: self.spec_dir(), files }
    }

    /// Returns the messages for the user: the project's notes, and the programs that are missing.
    pub(super) fn all_notes(&self, tree: &RepoScan) -> Vec<InitNote> {
        let missing = self.requirements.iter().filter_map(|demand| demand.missing_program(tree));
        let missing = missing.map(|what| {
            InitNote::new(
                format!("{what} is missing; the toolchain check of `{}` fails, so no run passes", self.language),
                format!("install it, or remove its step and its check `{}` from the spec", self.language),
            )
        });
        self.notes.iter().cloned().chain(missing).collect()
    }

    /// Adds a skill, or its steps to a skill of the same kind with the same properties.
    pub(super) fn add_skill(&mut self, skill: SkillDraft) {
        let is_same = |other: &&mut SkillDraft| {
            (other.kind, other.determinism, other.timeout_ms) == (skill.kind, skill.determinism, skill.timeout_ms)
                && other.caches == skill.caches
        };
        let Some(same) = self.skills.iter_mut().find(is_same) else {
            return self.skills.push(skill);
        };
        for step in skill.steps {
            let mut taken: BTreeSet<String> = same.steps.iter().map(|step| step.name.clone()).collect();
            let name = unused_name(&step.name, &mut taken);
            same.steps.push(StepDraft { name, ..step });
        }
    }

    /// Returns whether the project has checks of this kind.
    pub(super) fn has_kind(&self, kind: SkillKind) -> bool {
        self.skills.iter().any(|skill| skill.kind == kind)
    }

    /// Adds a file that identified the project.
    pub(super) fn add_marker(&mut self, name: &str) {
        self.files.push(join(&self.dir, name));
    }

    /// Adds a required program, unless it is already required.
    pub(super) fn require(&mut self, demand: ProgramRequirement) {
        if !self.requirements.contains(&demand) {
            self.requirements.push(demand);
        }
    }
}

impl ProgramRequirement {
    /// Creates the requirement for a program in `PATH`, checked by the command `words`.
    pub(super) fn on_path(program: &'static str, words: &[&str]) -> Self {
        Self { argv: to_owned_strings(words), range: None, presence: ProgramPresence::Program(program) }
    }

    /// Sets the required version range.
    pub(super) fn with_range(self, range: Option<(String, String)>) -> Self {
        Self { range, ..self }
    }

    /// Returns what is missing, if that is known without running the check.
    fn missing_program(&self, tree: &RepoScan) -> Option<String> {
        match &self.presence {
            ProgramPresence::Program(name) => (!tree.has_program(name)).then(|| format!("the program `{name}`")),
            ProgramPresence::File(path) => (!tree.has_file("", path))
                .then(|| format!("the program {}", crate::adopt::init::path_text::quoted(path))),
            ProgramPresence::CheckOnly => None,
        }
    }
}

impl SkillDraft {
    /// Creates a D1 skill.
    pub(super) fn new(kind: SkillKind, about: impl Into<String>, steps: Vec<StepDraft>) -> Self {
        let (determinism, because) = (Determinism::D1, VARYING_OUTPUT);
        Self {
            kind,
            description: about.into(),
            determinism,
            determinism_reason: because,
            is_quick: false,
            timeout_ms: DEFAULT_TIMEOUT_MS,
            caches: Vec::new(),
            steps,
        }
    }

    /// Marks a skill that only reads and ends quickly.
    pub(super) fn quick(self) -> Self {
        Self { is_quick: true, timeout_ms: QUICK_TIMEOUT_MS, ..self }
    }

    /// Marks a skill that has the same output for the same tree (D0).
    pub(super) fn reproducible(self) -> Self {
        Self { determinism: Determinism::D0, determinism_reason: "the same tree gives the same output", ..self }
    }

    /// Sets directories that are kept between runs. Their content must never change a result.
    pub(super) fn with_caches(self, caches: Vec<String>) -> Self {
        Self { caches, ..self }
    }
}

impl StepDraft {
    /// Creates a step that runs in the directory of the project.
    pub(super) fn new(name: impl Into<String>, words: &[&str]) -> Self {
        let argv = to_owned_strings(words);
        let fix = to_fix_mode(&argv);
        Self { name: name.into(), argv, fix, dir: String::new(), files: None, comment: "" }
    }

    /// Sets the command that fixes what the step finds.
    pub(super) fn with_fix(self, fix: Option<Vec<String>>) -> Self {
        Self { fix, ..self }
    }

    /// Sets the comment.
    pub(super) fn with_comment(self, why: &'static str) -> Self {
        Self { comment: why, ..self }
    }

    /// Sets the files that the command is for.
    pub(super) fn with_files(self, files: FileRules) -> Self {
        Self { files: Some(files), ..self }
    }

    /// Sets a directory of the project as working directory.
    pub(super) fn with_dir(self, dir: &str) -> Self {
        Self { dir: dir.to_owned(), ..self }
    }
}

impl NamedSkill<'_> {
    /// Returns the description for the user.
    pub(super) fn to_drafted_skill(&self) -> DraftedSkill {
        DraftedSkill {
            name: self.name.clone(),
            description: self.skill.description.clone(),
            is_quick: self.skill.is_quick,
            steps: self.skill.steps.len(),
        }
    }
}

impl SkillKind {
    fn as_str(self) -> &'static str {
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
pub(super) fn to_owned_strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Names all skills, the quick ones first: `verify.test` for a single project; with several projects
/// `verify.rust.test`, or `verify.web.test` for a project in the directory `web`.
pub(super) fn name_skills(projects: &[Project]) -> Vec<NamedSkill<'_>> {
    let mut taken = BTreeSet::new();
    let mut skills = Vec::new();
    let scopes: Vec<String> = projects.iter().map(name_scope).collect();
    for project in projects {
        let (scope, language) = (name_scope(project), project.language);
        let is_shared = scopes.iter().filter(|other| **other == scope).count() > 1;
        let prefix = match (projects.len(), is_shared && scope != language) {
            (1, _) => "verify".to_owned(),
            (_, true) => format!("verify.{scope}-{language}"),
            (_, false) => format!("verify.{scope}"),
        };
        for skill in &project.skills {
            let name = unused_name(&format!("{prefix}.{}", skill.kind.as_str()), &mut taken);
            skills.push(NamedSkill { name, project, skill });
        }
    }
    skills.sort_by_key(|named| (!named.skill.is_quick, named.skill.kind));
    skills
}

fn name_scope(project: &Project) -> String {
    let slug: String = project.dir.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let slug = slug.trim_matches('-');
    let start = slug.len().saturating_sub(60);
    match slug.is_empty() {
        true => project.language.to_owned(),
        false => slug[start..].to_ascii_lowercase(),
    }
}

/// Returns `name`, with a number appended if it is in use.
fn unused_name(name: &str, taken: &mut BTreeSet<String>) -> String {
    let numbered = std::iter::once(name.to_owned()).chain((2u32..).map(|number| format!("{name}-{number}")));
    let free = numbered.into_iter().find(|name| !taken.contains(name)).unwrap_or_else(|| name.to_owned());
    taken.insert(free.clone());
    free
}
