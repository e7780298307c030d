//! Implements `proctor init`, which generates a spec from the files of a repository. The core recognises the files
//! and drafts the spec; this module reads and writes the files and reports the result.

mod new_spec_file;
mod repository_scan;

use std::path::Path;

use proctor_core::adopt::init::{self, DetectedProject, DraftedSkill, InitError, InitNote, SpecDraft};
use proctor_core::spec;
use proctor_runner::Directory;

use crate::args::InitArgs;
use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::{self, show};
use crate::screen::Screen;
use crate::style::{DIM, GOOD, STRONG, paint, warning, warning_with_hints};
use crate::text::{count, escape_line};

/// The shortest valid spec, as an example for users who write their own.
const SHORTEST: &str = "{version: 1, profiles: {pr: {include: [verify.test]}}, \
                        skills: {verify.test: {steps: [{name: test, cmd: [./test.sh]}]}}}";

/// Number of notes about omitted parts that are shown.
const MAX_NOTES: usize = 20;

/// Inspects the repository, and writes its spec or prints it.
///
/// # Errors
/// There is no repository, nothing in it is recognised, it already has a spec, or the spec cannot be written.
pub(crate) fn init(args: &InitArgs, caller: &Caller, screen: &mut Screen) -> Result<u8, CliError> {
    let repo = installation::repository(&args.repo, caller).map_err(add_git_init_hint)?;
    check_git_repository(&repo)?;
    let directory = Directory::open(&repo).map_err(|error| new_spec_file::store_error(&error))?;
    if !args.dry_run {
        new_spec_file::check_writable(&directory, args.force)?;
    }
    let tree = repository_scan::scan_repository(&directory, caller)?;
    let draft = init::draft_spec(&tree).map_err(|error| draft_error(&error))?;
    let found: String = draft.projects.iter().map(found_line).collect();
    if args.dry_run {
        screen.err(&(found + &warnings(&draft.notes)));
        screen.out(&draft.text);
        return Ok(0);
    }
    new_spec_file::write(&directory, &draft.text, args.force)?;
    screen.out(&(found + &summary(&draft)));
    screen.err(&warnings(&draft.notes));
    Ok(0)
}

/// Adds a hint for users who have no repository yet.
fn add_git_init_hint(error: CliError) -> CliError {
    match error {
        CliError::Usage { message, hint } => {
            CliError::Usage { message, hint: format!("{hint}; `git init` creates one") }
        }
        other => other,
    }
}

/// Checks that the directory is in a git repository: runs only cover files that git knows.
fn check_git_repository(repo: &Path) -> Result<(), CliError> {
    if repo.ancestors().any(|dir| dir.join(".git").symlink_metadata().is_ok()) {
        return Ok(());
    }
    Err(CliError::Usage {
        message: format!("`{}` is not a git repository", show(repo)),
        hint: "run `git init` there; Proctor verifies only files that git knows".to_owned(),
    })
}

fn draft_error(error: &InitError) -> CliError {
    match error {
        InitError::NoProjects { notes } => {
            let seen: String = notes.iter().take(MAX_NOTES).map(|note| format!("\n  {}", note.message)).collect();
            CliError::Usage {
                message: format!("{error}: no Cargo, npm, pnpm, yarn, Python, Go, Make or shell checks{seen}"),
                hint: format!("write `{}` yourself; the shortest spec is: {SHORTEST}", spec::PATH),
            }
        }
        InitError::InvalidDraft(_) => CliError::Internal(error.to_string()),
    }
}

fn found_line(found: &DetectedProject) -> String {
    let files = escape_line(&found.files.join(", "));
    format!("found {} in `{}` {}\n", found.title, escape_line(&found.dir), paint(DIM, format!("({files})")))
}

fn summary(draft: &SpecDraft) -> String {
    let width = draft.skills.iter().map(|skill| skill.name.len()).max().unwrap_or_default();
    let skills: String = draft.skills.iter().map(|skill| skill_line(skill, width)).collect();
    let path = paint(STRONG, spec::PATH);
    let has_quick = draft.skills.iter().any(|skill| skill.is_quick);
    let (profiles, quick) = match has_quick {
        true => ("those with * are in the profile quick, all in pr", "  proctor run --profile quick\n"),
        false => ("all in the profile pr", ""),
    };
    let next = format!(
        "next:\n{quick}  proctor run\n  git add {} && git commit\n  proctor hook install pre-push\n",
        spec::PATH
    );
    let number = count(draft.skills.len(), "skill");
    format!("{} {path}: {number}; {profiles}\n{skills}{next}", paint(GOOD, "wrote"))
}

fn skill_line(skill: &DraftedSkill, width: usize) -> String {
    let mark = if skill.is_quick { '*' } else { ' ' };
    format!("  {mark} {:width$}  {}\n", skill.name, escape_line(&skill.description))
}

/// Renders at most [`MAX_NOTES`] notes as warnings.
fn warnings(notes: &[InitNote]) -> String {
    let line = |note: &InitNote| warning_with_hints(&escape_line(&note.message), &[escape_line(&note.hint)]);
    let mut text: String = notes.iter().take(MAX_NOTES).map(line).collect();
    if notes.len() > MAX_NOTES {
        text.push_str(&warning(&format!("and {} more of this kind", notes.len() - MAX_NOTES)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortest_spec_is_valid() {
        let reading = spec::parse(SHORTEST.as_bytes()).expect("a spec");
        assert_eq!(reading.warnings, []);
    }
}
