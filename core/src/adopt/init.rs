//! Generates a spec for a repository: the pure part of `proctor init`, without file access and output.
//!
//! The input is a [`RepoScan`], whose size the caller bounds. The output is a [`SpecDraft`], whose text this module has
//! parsed again to check it. Each tool has its own file here.

mod cargo;
mod check_tools;
mod ci_commands;
mod ci_scripts;
pub(crate) mod detected_project;
mod go;
mod make;
mod node;
pub(crate) mod path_text;
mod prettier_config;
mod project;
mod python;
mod repo_scan;
mod search_scope;
mod sessions;
mod shell_scripts;
mod spec_text;
#[cfg(test)]
mod tests;
mod version_ranges;

pub use crate::adopt::init::detected_project::{DetectedProject, DraftedSkill, InitNote};
pub use repo_scan::{RepoScan, ScannedContent};
pub use search_scope::{
    MAX_DEPTH, MAX_MARKER_BYTES, MAX_MARKERS, MAX_SCRIPT_BYTES, PROGRAMS, ReadScope, is_searched, is_template,
    read_scope,
};
pub use spec_text::DraftError;

use std::collections::BTreeSet;

use crate::adopt::import::Source;
use project::Project;

/// Maximum number of projects of one repository that get skills.
pub const MAX_PROJECTS: usize = 32;

/// A generated spec, with messages for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpecDraft {
    /// The text of the spec.
    pub text: String,
    /// The recognized projects, ordered by directory.
    pub projects: Vec<DetectedProject>,
    /// The skills of the spec, in the order of the profile `pr`.
    pub skills: Vec<DraftedSkill>,
    /// Messages for the user before the first run.
    pub notes: Vec<InitNote>,
}

/// The reason why no spec was generated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitError {
    /// No supported project was found.
    #[error("found no supported project from which a spec could be generated")]
    NoProjects {
        /// Projects that were found and left out.
        notes: Vec<InitNote>,
    },
    /// The generated spec does not parse to the intended skills.
    #[error("the generated spec does not parse as intended: {0}")]
    InvalidDraft(#[from] DraftError),
}

/// Generates a spec for a repository.
///
/// # Errors
/// The repository contains no supported project, or the generated text does not parse as intended, which would be a
/// bug.
pub fn draft_spec(tree: &RepoScan) -> Result<SpecDraft, InitError> {
    let (projects, mut notes) = detect_projects(tree);
    if projects.is_empty() {
        return Err(InitError::NoProjects { notes });
    }
    notes.extend(projects.iter().flat_map(|project| project.all_notes(tree)));
    let skills = project::name_skills(&projects);
    let text = spec_text::render(&projects, &skills);
    spec_text::verify_text(&text, &projects, &skills)?;
    let mut seen = BTreeSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    Ok(SpecDraft {
        text,
        projects: projects.iter().map(Project::to_detected_project).collect(),
        skills: skills.iter().map(project::NamedSkill::to_drafted_skill).collect(),
        notes,
    })
}

/// Returns the recognized projects, at most [`MAX_PROJECTS`], and messages about the ones that were left out.
fn detect_projects(tree: &RepoScan) -> (Vec<Project>, Vec<InitNote>) {
    let mut notes = tree.notes();
    notes.extend(hook_config_note(tree));
    let mut found = Vec::new();
    for dir in tree.directories() {
        let before = found.len();
        for detect in [cargo::detect, node::detect, python::detect, go::detect] {
            found.extend(detect(tree, dir, &mut notes));
        }
        // The targets of a Makefile next to the files of another tool usually just call that tool.
        if dir.is_empty() {
            let sessions = sessions::detect(tree, &found[before..]);
            found.extend(sessions);
        }
        if found.len() == before {
            found.extend(make::detect(tree, dir));
        } else {
            let targets = make::detect_workflow_targets(tree, dir, &found[before..]);
            found.extend(targets);
            notes.extend(make::unused_targets_note(tree, dir, &found[before..]));
        }
    }
    found.extend(ci_scripts::detect_autotools(tree));
    let at_top: Vec<Project> = found.iter().filter(|project| project.dir.is_empty()).cloned().collect();
    found.extend(ci_scripts::detect(tree, &at_top));
    found.extend(shell_scripts::detect(tree));
    if found.len() > MAX_PROJECTS {
        let left_out: Vec<String> = found.drain(MAX_PROJECTS..).map(|project| project.spec_dir()).collect();
        notes.push(InitNote::new(
            format!("{} more projects were found, and {MAX_PROJECTS} have skills", left_out.len()),
            format!(
                "add skills for them by hand; the first of them is in {}",
                crate::adopt::init::path_text::quoted(&left_out[0])
            ),
        ));
    }
    (found, notes)
}

/// Returns a note about the configuration of a hook runner, which has more checks.
fn hook_config_note(tree: &RepoScan) -> Option<InitNote> {
    let mut names = [Source::PreCommit, Source::Lefthook].into_iter().flat_map(Source::files);
    let name = names.find(|name| tree.has_file("", name))?;
    Some(InitNote::new(
        format!("the spec does not run the hooks of `{name}`"),
        "`proctor import --into` adds them to the spec as skills",
    ))
}
