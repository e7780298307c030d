//! From what lies in a repository to a spec for it: `proctor init` without its files and its
//! screen. A [`Tree`] comes in, bounded by whoever read it; a [`Draft`] goes out, whose text our own
//! reader has read back. Each tool has one file here that knows it.

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

/// How many projects of one repository get skills.
pub const MAX_PROJECTS: usize = 32;

/// A spec that can be written, and what is said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Draft {
    /// The text of the spec.
    pub text: String,
    /// What was recognised, in order of its directories.
    pub found: Vec<Found>,
    /// The skills of the spec, in the order of the profile `pr`.
    pub skills: Vec<Planned>,
    /// What the caller should know before the first run.
    pub notes: Vec<Note>,
}

/// Something that was recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What it is, such as `Rust workspace`.
    pub title: String,
    /// Its directory, relative to the repository; `.` is the repository itself.
    pub dir: String,
    /// The files that told, relative to the repository.
    pub files: Vec<String>,
}

/// A skill of the draft, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub about: String,
    /// Whether the profile `quick` has it.
    pub is_quick: bool,
    /// How many steps it has.
    pub steps: usize,
}

/// Something that may keep the spec from passing, or that was left out.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Note {
    /// What, and where.
    pub message: String,
    /// What to do.
    pub hint: String,
}

impl Note {
    fn new(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { message: message.into(), hint: hint.into() }
    }
}

/// Why there is no draft.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// There is nothing that a spec could be made of.
    #[error("found no supported project from which a spec could be generated")]
    Nothing {
        /// What was seen and left out.
        notes: Vec<Note>,
    },
    /// What was made does not mean what was meant.
    #[error("the generated spec does not parse as intended: {0}")]
    Unsound(String),
}

/// Makes a spec for a repository.
///
/// # Errors
/// Nothing in it is recognised, or the text that was made does not read back, which would be
/// our bug.
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

/// What is recognised, at most [`MAX_PROJECTS`], and what of it was left out.
fn projects(tree: &Tree) -> (Vec<Project>, Vec<Note>) {
    let mut notes = tree.notes();
    let mut found = Vec::new();
    for dir in tree.directories() {
        let before = found.len();
        for look in [cargo::look, node::look, python::look, go::look] {
            found.extend(look(tree, dir, &mut notes));
        }
        // The targets of a Makefile beside a tool's own files are mostly other names for the same.
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
