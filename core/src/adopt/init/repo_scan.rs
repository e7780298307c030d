//! The searched part of a repository: file names, the text of a few files, and the installed programs. This module
//! reads no files.

use std::collections::{BTreeMap, BTreeSet};

use super::search_scope::{is_shell_script_name, is_venv_name};
use crate::adopt::init::detected_project::InitNote;
use crate::adopt::init::path_text::join;

/// The known content of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ScannedContent {
    /// Only its name is known.
    NameOnly,
    /// The text of the file; of a script, the part within the bound.
    Text(String),
    /// A script that another program completes.
    Template,
    /// The file could not be read; the reason is a phrase that follows the file name.
    Unreadable(String),
}

/// The searched part of a repository. Paths are relative to it, with `/`.
#[derive(Debug, Clone, Default)]
pub struct RepoScan {
    files: BTreeMap<String, ScannedContent>,
    /// Existing directories, searched or not.
    directories: BTreeSet<String>,
    programs: BTreeSet<String>,
    notes: Vec<InitNote>,
}

impl RepoScan {
    /// Adds a file.
    pub fn add_file(&mut self, path: impl Into<String>, content: ScannedContent) {
        self.files.insert(path.into(), content);
    }

    /// Adds an existing directory, searched or not.
    pub fn add_directory(&mut self, path: impl Into<String>) {
        self.directories.insert(path.into());
    }

    /// Adds an installed program.
    pub fn add_program(&mut self, name: impl Into<String>) {
        self.programs.insert(name.into());
    }

    /// Adds a note about something that the search left out.
    pub fn add_note(&mut self, message: impl Into<String>, hint: impl Into<String>) {
        self.notes.push(InitNote::new(message, hint));
    }

    /// Returns notes about everything that the search left out or could not read.
    pub(super) fn notes(&self) -> Vec<InitNote> {
        let unread = self.files.iter().filter_map(|(path, content)| match content {
            ScannedContent::Unreadable(why) => Some(InitNote::new(
                format!("{} was left out: it {why}", crate::adopt::init::path_text::quoted(path)),
                "the spec has no checks for it; add them yourself",
            )),
            ScannedContent::NameOnly | ScannedContent::Text(_) | ScannedContent::Template => None,
        });
        self.notes.iter().cloned().chain(unread).chain(self.unusable_dir_notes()).collect()
    }

    /// Returns notes about directories with relevant files whose names are unusable in a spec.
    fn unusable_dir_notes(&self) -> impl Iterator<Item = InitNote> {
        let relevant = self
            .files
            .iter()
            .filter(|(_, content)| **content != ScannedContent::NameOnly)
            .map(|(path, _)| parent(path));
        let dirs: BTreeSet<&str> = relevant.filter(|dir| !is_hidden(dir) && !is_usable_name(dir)).collect();
        dirs.into_iter().map(|dir| {
            let message = format!(
                "{} was left out: its name is not one line of plain text",
                crate::adopt::init::path_text::quoted(dir)
            );
            InitNote::new(message, "rename it, or add its skills yourself")
        })
    }

    /// Returns the directories that may contain a project, the root (`""`) first. Leaves out those whose names are
    /// unusable in a spec.
    pub(super) fn directories(&self) -> impl Iterator<Item = &str> {
        let parents: BTreeSet<&str> = self.files.keys().map(|path| parent(path)).collect();
        parents.into_iter().filter(|dir| !is_hidden(dir) && is_usable_name(dir))
    }

    /// Returns whether a file exists.
    pub(super) fn has_file(&self, dir: &str, name: &str) -> bool {
        self.files.contains_key(&join(dir, name))
    }

    /// Returns whether a directory exists.
    pub(super) fn has_directory(&self, dir: &str, name: &str) -> bool {
        self.directories.contains(&join(dir, name))
    }

    /// Returns whether a program is installed.
    pub(super) fn has_program(&self, name: &str) -> bool {
        self.programs.contains(name)
    }

    /// Returns the text of a file if it exists and was read.
    pub(super) fn file_text(&self, dir: &str, name: &str) -> Option<&str> {
        match self.files.get(&join(dir, name)) {
            Some(ScannedContent::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// Returns the names of the files in a directory.
    pub(super) fn file_names(&self, dir: &str) -> impl Iterator<Item = &str> {
        self.files.keys().filter(move |path| parent(path) == dir).map(|path| file_name(path))
    }

    /// Returns the paths and first lines of the repository's own shell scripts.
    pub(super) fn shell_scripts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, content)| match content {
            ScannedContent::Text(text) if is_shell_script_name(file_name(path)) && !is_hidden(parent(path)) => {
                Some((path.as_str(), text.lines().next().unwrap_or_default()))
            }
            _ => None,
        })
    }

    /// Returns the paths of scripts that another program completes.
    pub(super) fn script_templates(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter(|(_, content)| **content == ScannedContent::Template).map(|(path, _)| path.as_str())
    }

    /// Returns whether a directory with this name exists anywhere.
    pub(super) fn has_directory_named(&self, name: &str) -> bool {
        self.directories.iter().any(|path| file_name(path) == name)
    }

    /// Returns the texts of the workflows of GitHub Actions.
    pub(super) fn workflow_texts(&self) -> impl Iterator<Item = &str> {
        self.files.iter().filter_map(|(path, content)| match content {
            ScannedContent::Text(text) if parent(path) == ".github/workflows" => Some(text.as_str()),
            _ => None,
        })
    }

    /// Returns whether an existing configuration for checks (CI, hooks, Makefiles) contains a command.
    pub(super) fn checks_mention(&self, command: &str) -> bool {
        const CHECK_CONFIGS: [&str; 9] = [
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
            ScannedContent::Text(text) => {
                (path.starts_with(".github/") || CHECK_CONFIGS.contains(&path.as_str())) && text.contains(command)
            }
            ScannedContent::NameOnly | ScannedContent::Template | ScannedContent::Unreadable(_) => false,
        })
    }
}

/// Returns the directory of a path.
pub(super) fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

/// Returns the parent directories, the nearest first, the root (`""`) last.
pub(super) fn ancestors(dir: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(dir), |dir| (!dir.is_empty()).then(|| parent(dir))).skip(1)
}

fn file_name(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn is_hidden(dir: &str) -> bool {
    dir.split('/').any(|part| part.starts_with('.') || is_venv_name(part))
}

/// Returns whether a directory name is usable in a spec without escapes: no control characters, nothing that
/// changes the direction of text, and a limited length.
fn is_usable_name(dir: &str) -> bool {
    dir.len() <= 200
        && dir.split('/').all(|part| part.trim() == part && (dir.is_empty() || !part.is_empty()))
        && dir.chars().all(|c| c == ' ' || crate::adopt::init::path_text::is_visible(c))
}
