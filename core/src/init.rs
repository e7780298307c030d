//! Generates a spec for a repository: the pure part of `proctor init`, without file access and output.
//!
//! The input is a [`Tree`], whose size the caller bounds. The output is a [`Draft`], whose text this module has
//! parsed again to check it. Each tool has its own file here.

mod cargo;
mod catalog;
mod go;
mod make;
mod node;
mod project;
mod python;
mod ranges;
mod shell;
#[cfg(test)]
mod tests;
mod text;
mod tree;

pub use catalog::{MAX_DEPTH, MAX_MARKER, MAX_MARKERS, PROGRAMS, Reading, is_entered, reading};
pub use tree::{Content, Tree};

use std::collections::BTreeSet;

use project::Project;

/// Maximum number of projects of one repository that get skills.
pub const MAX_PROJECTS: usize = 32;

/// A generated spec, with messages for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The text of the spec.
    pub text: String,
    /// The recognized projects, ordered by directory.
    pub found: Vec<Found>,
    /// The skills of the spec, in the order of the profile `pr`.
    pub skills: Vec<Planned>,
    /// Messages for the user before the first run.
    pub notes: Vec<Note>,
}

/// A recognized project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The kind of the project, such as `Rust workspace`.
    pub title: String,
    /// The directory, relative to the repository; `.` for the repository itself.
    pub dir: String,
    /// The files that identified it, relative to the repository.
    pub files: Vec<String>,
}

/// A skill of the spec, for display.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// The name of the skill.
    pub name: String,
    /// The purpose of the skill.
    pub about: String,
    /// True if the profile `quick` includes it.
    pub is_quick: bool,
    /// The number of its steps.
    pub steps: usize,
}

/// A message about something that may make the spec fail, or that was left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// The problem and its location.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Note {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// The reason why no spec was generated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// No supported project was found.
    #[error("found no supported project from which a spec could be generated")]
    Nothing {
        /// Projects that were found and left out.
        notes: Vec<Note>,
    },
    /// The generated spec does not parse to the intended skills.
    #[error("the generated spec does not parse as intended: {0}")]
    Unsound(String),
}

/// Generates a spec for a repository.
///
/// # Errors
/// The repository contains no supported project, or the generated text does not parse as intended, which would be a
/// bug.
pub fn draft(tree: &Tree) -> Result<Draft, InitError> {
    let (projects, mut notes) = projects(tree);
    if projects.is_empty() {
        return Err(InitError::Nothing { notes });
    }
    notes.extend(projects.iter().flat_map(|project| project.notes_about(tree)));
    let skills = project::named_skills(&projects);
    let text = text::render(&projects, &skills);
    text::read_back(&text, &projects, &skills).map_err(InitError::Unsound)?;
    let mut seen = BTreeSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    Ok(Draft {
        text,
        found: projects.iter().map(Project::found).collect(),
        skills: skills.iter().map(project::NamedSkill::planned).collect(),
        notes,
    })
}

/// Returns the recognized projects, at most [`MAX_PROJECTS`], and messages about the ones that were left out.
fn projects(tree: &Tree) -> (Vec<Project>, Vec<Note>) {
    let mut notes = tree.notes();
    let mut found = Vec::new();
    for dir in tree.directories() {
        let before = found.len();
        for look in [cargo::look, node::look, python::look, go::look] {
            found.extend(look(tree, dir, &mut notes));
        }
        // The targets of a Makefile next to the files of another tool usually just call that tool.
        match found.len() == before {
            true => found.extend(make::look(tree, dir)),
            false => notes.extend(make::note_on_unused(tree, dir)),
        }
    }
    found.extend(shell::look(tree));
    if found.len() > MAX_PROJECTS {
        let left: Vec<String> = found.drain(MAX_PROJECTS..).map(|project| project.shown_dir()).collect();
        notes.push(Note::new(
            format!("{} more projects were found, and {MAX_PROJECTS} have skills", left.len()),
            format!("add skills for them by hand; the first of them is in {}", text::quoted(&left[0])),
        ));
    }
    (found, notes)
}
