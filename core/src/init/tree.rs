//! A repository as far as it was looked at: names, the text of a few files, and which programs
//! the machine has. Nothing is read here.

use std::collections::{BTreeMap, BTreeSet};

use super::catalog::{is_environment, is_script};
use super::{Note, text};

/// What is known of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    /// Its name.
    Name,
    /// Its text, or its first line.
    Text(String),
    /// It should have been read and was not, for this reason: a phrase that follows its name.
    Unread(String),
}

/// A repository as far as it was looked at. Paths are relative to it, with `/`.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    files: BTreeMap<String, Content>,
    /// Directories that are there, entered or not.
    directories: BTreeSet<String>,
    programs: BTreeSet<String>,
    notes: Vec<Note>,
}

impl Tree {
    /// Adds a file.
    pub fn add_file(&mut self, path: impl Into<String>, content: Content) {
        self.files.insert(path.into(), content);
    }

    /// Adds a directory, entered or not.
    pub fn add_directory(&mut self, path: impl Into<String>) {
        self.directories.insert(path.into());
    }

    /// Adds a program that the machine has.
    pub fn add_program(&mut self, name: impl Into<String>) {
        self.programs.insert(name.into());
    }

    /// Adds something that was left out of the look.
    pub fn add_note(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.notes.push(Note::new(message, hint));
    }

    /// What was left out of the look, and files that tell something and could not be read.
    pub(super) fn notes(&self) -> Vec<Note> {
        let unread = self.files.iter().filter_map(|(path, content)| match content {
            Content::Unread(why) => Some(Note::new(
                format!("{} was left out: it {why}", text::quoted(path)),
                "its checks are missing in the spec; add them yourself",
            )),
            Content::Name | Content::Text(_) => None,
        });
        self.notes.iter().cloned().chain(unread).chain(self.unwritable()).collect()
    }

    /// Directories whose files tell something, and whose names no person would write.
    fn unwritable(&self) -> impl Iterator<Item = Note> {
        let told = self.files.iter().filter(|(_, content)| **content != Content::Name).map(|(path, _)| parent(path));
        let dirs: BTreeSet<&str> = told.filter(|dir| !is_hidden(dir) && !is_plain(dir)).collect();
        dirs.into_iter().map(|dir| {
            let message =
                format!("{} was left out: its name cannot be written in one line of plain text", text::quoted(dir));
            Note::new(message, "rename it, or add its skills yourself")
        })
    }

    /// The directories in which a project may be, the repository itself (`""`) first. One whose name
    /// cannot stand in a spec as a person would write it is left out.
    pub(super) fn directories(&self) -> impl Iterator<Item = &str> {
        let parents: BTreeSet<&str> = self.files.keys().map(|path| parent(path)).collect();
        parents.into_iter().filter(|dir| !is_hidden(dir) && is_plain(dir))
    }

    /// Whether a file is there.
    pub(super) fn has(&self, dir: &str, name: &str) -> bool {
        self.files.contains_key(&join(dir, name))
    }

    /// Whether a directory is there.
    pub(super) fn has_directory(&self, dir: &str, name: &str) -> bool {
        self.directories.contains(&join(dir, name))
    }

    /// Whether the machine has a program.
    pub(super) fn has_program(&self, name: &str) -> bool {
        self.programs.contains(name)
    }

    /// The text of a file, where it is there and was read.
    pub(super) fn text(&self, dir: &str, name: &str) -> Option<&str> {
        match self.files.get(&join(dir, name)) {
            Some(Content::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The names of the files of a directory.
    pub(super) fn names(&self, dir: &str) -> impl Iterator<Item = &str> {
        self.files.keys().filter(move |path| parent(path) == dir).map(|path| file_name(path))
    }

    /// The first lines of the shell scripts that are the repository's own.
    pub(super) fn scripts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, content)| match content {
            Content::Text(line) if is_script(file_name(path)) && !is_hidden(parent(path)) => {
                Some((path.as_str(), line.as_str()))
            }
            _ => None,
        })
    }

    /// Whether something that runs checks already (CI, hooks, Makefiles) names a command.
    pub(super) fn mentions(&self, command: &str) -> bool {
        const RUNNERS: [&str; 9] = [
            ".gitlab-ci.yml",
            ".pre-commit-config.yaml",
            "GNUmakefile",
            "Makefile",
            "justfile",
            "lefthook.yml",
            "makefile",
            "noxfile.py",
            "tox.ini",
        ];
        self.files.iter().any(|(path, content)| match content {
            Content::Text(text) => {
                (path.starts_with(".github/") || RUNNERS.contains(&path.as_str())) && text.contains(command)
            }
            Content::Name | Content::Unread(_) => false,
        })
    }
}

/// `dir/name`, where `""` is the repository.
pub(super) fn join(dir: &str, name: &str) -> String {
    if dir.is_empty() { name.to_owned() } else { format!("{dir}/{name}") }
}

/// The directory of a path.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// The directories above one, the nearest first, the repository (`""`) last.
pub(super) fn ancestors(dir: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(dir), |dir| (!dir.is_empty()).then(|| parent(dir))).skip(1)
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn is_hidden(dir: &str) -> bool {
    dir.split('/').any(|part| part.starts_with('.') || is_environment(part))
}

/// Whether a directory name is one that reads in a spec as it is: no control characters, nothing
/// that changes the direction of text, no more than a line can hold.
fn is_plain(dir: &str) -> bool {
    dir.len() <= 200
        && dir.split('/').all(|part| part.trim() == part && (dir.is_empty() || !part.is_empty()))
        && dir.chars().all(|c| c == ' ' || text::is_shown(c))
}
