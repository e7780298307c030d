//! Reads a repository with libgit2 in `proctor-git`, a process that does nothing else.
//!
//! The caller must run as the repository's owner, with an empty environment and under a deadline; this module does
//! not bound the time that a hostile repository can take.

use std::io::{self as std_io, Write};
use std::path::Path;

use super::commit_tree::WantedBlobs;
use super::commit_tree::commit_content::{self, IdentifyTree};
use super::history::RepositoryHistory;
use super::open_repository::OpenRepository;
use super::{
    changed_files, commit_objects, commit_tree, listing, pushed_commits, ref_history, revision, staged_commit,
};
use crate::config::bounded_read::io_error;
use crate::error::GitError;
use crate::ignore::WorktreeIgnoreRules;
use crate::protocol::{CommitRef, GitAnswer, GitRequest};
use crate::repository_paths::RepositoryPaths;
use crate::wire::answer_frames;

/// Answers one request in frames, the last of which is the answer. `program_output` is output of the `git` program,
/// sent after an earlier answer that libgit2 cannot read the format. `identify` computes the identity of a commit's
/// tree.
///
/// # Errors
/// The frames cannot be written.
pub fn serve(
    request: &GitRequest,
    program_output: Option<&[u8]>,
    identify: IdentifyTree,
    out: &mut dyn Write,
) -> std_io::Result<()> {
    let answered = answer_request(request, program_output, identify, out);
    let answer = answered.unwrap_or_else(|why| GitAnswer::Refused { why });
    let written = answer_frames::write_answer(out, &answer);
    // The process exits right after this, so freeing the memory would waste time.
    std::mem::forget(answer);
    written
}

fn answer_request(
    request: &GitRequest,
    program_output: Option<&[u8]>,
    identify: IdentifyTree,
    out: &mut dyn Write,
) -> Result<GitAnswer, GitError> {
    match request {
        GitRequest::List { repo } => {
            let top = OpenRepository::open(repo)?;
            let mut ahead = Ok(());
            let listing = listing::list(&top, &mut |worktree, index, file| {
                ahead = answer_frames::write_early_index(out, worktree, index, file);
            });
            ahead.map_err(|error| io_error(repo, &error))?;
            with_outermost_paths(top.paths(), listing).map(GitAnswer::List)
        }
        GitRequest::Ignored { repo, submodules, directories, paths } => {
            let top = OpenRepository::open(repo)?;
            let places = top.paths();
            let mut rules = WorktreeIgnoreRules::new(top, submodules.as_deref())?;
            let of_directories = directories.iter().map(|path| (path, true));
            let queried = of_directories.chain(paths.iter().map(|path| (path, false)));
            let ignored = queried.map(|(path, is_directory)| rules.is_ignored(&path.0, is_directory));
            Ok(GitAnswer::Ignored { ignored: with_outermost_paths(places, ignored.collect())? })
        }
        GitRequest::Resolve { repo, revision, limit } => {
            let commits = revision::resolve(&RepositoryHistory::open(repo, program_output)?, revision, *limit)?;
            Ok(GitAnswer::Resolved { commits })
        }
        GitRequest::Pushed { repo, push } => {
            pushed_commits::resolve_push(&RepositoryHistory::open(repo, program_output)?, push).map(GitAnswer::Pushed)
        }
        GitRequest::Staged { repo, index } => {
            staged_commit::staged_commit(&OpenRepository::open(repo)?, index).map(GitAnswer::Staged)
        }
        GitRequest::Changed { repo, base, target } => {
            changed_files::changed_files(OpenRepository::open(repo)?, base.as_deref(), target.as_ref())
                .map(GitAnswer::Changed)
        }
        GitRequest::Content { repo, commit, paths, identity } => {
            let history = open_with_commit(repo, commit, program_output)?;
            let identify = identity.then_some(identify);
            commit_content::read_content(&history, &commit.id, paths, identify).map(GitAnswer::Content)
        }
        GitRequest::Files { repo, commit, paths } => {
            let files =
                commit_content::read_files(&open_with_commit(repo, commit, program_output)?, &commit.id, paths)?;
            Ok(GitAnswer::Files { files })
        }
        GitRequest::Tree { repo, commit, submodules } => {
            commit_tree::tree(&open_with_commit(repo, commit, program_output)?, commit, *submodules)
                .map(GitAnswer::Tree)
        }
        GitRequest::Blobs { repo, commit, submodules, wanted, held_bytes } => {
            let history = open_with_commit(repo, commit, program_output)?;
            let wanted = WantedBlobs { submodules: *submodules, leaves: wanted, held_bytes: *held_bytes };
            commit_tree::blobs(&history, commit, wanted, out).map(|()| GitAnswer::Blobs)
        }
        GitRequest::Objects { repo, wanted } => {
            commit_objects::read_objects(&RepositoryHistory::open(repo, program_output)?, wanted)
                .map(GitAnswer::Objects)
        }
        GitRequest::History { repo, nested } => {
            let opened = RepositoryHistory::open(repo, program_output)?;
            // Determined before anything is read, so that a concurrent change is noticed later.
            let sources = if nested.is_empty() { ref_history::sources(&opened)? } else { None };
            let history = ref_history::read_history(&opened, nested)?;
            Ok(GitAnswer::History { history, sources })
        }
    }
}

/// Opens the repository that has `commit`, which may exist only as staged content.
fn open_with_commit<'t>(
    repo: &Path,
    commit: &CommitRef,
    program_output: Option<&'t [u8]>,
) -> Result<RepositoryHistory<'t>, GitError> {
    if commit.staged.is_none() {
        return RepositoryHistory::open(repo, program_output);
    }
    let top = OpenRepository::open(repo)?;
    staged_commit::add_staged_commit(&top, commit)?;
    Ok(RepositoryHistory::from_opened(top))
}

/// Adjusts the error for a format that only the `git` program reads: even if only a repository inside the tree has
/// this format, the error names the whole work tree.
fn with_outermost_paths<T>(places: RepositoryPaths, answered: Result<T, GitError>) -> Result<T, GitError> {
    answered.map_err(|error| match error {
        GitError::Format { what, mend, objects, .. } => GitError::Format { places, what, mend, objects },
        other => other,
    })
}
