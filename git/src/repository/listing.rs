//! Lists the contents of a work tree: tracked paths, untracked paths, and repositories inside it.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use git2::{ObjectType, Oid, Tree};

use crate::error::GitError;
use crate::files::paths;
use crate::files::repo_path::RepoPath;
use crate::ignore::absolute_path;
use crate::ignore::external_rules::ExternalRules;
use crate::index::{GITLINK_MODE, GitIndex, IndexEntry};
use crate::object::object_id::ObjectId;
use crate::protocol::{GitSourceFile, NestedRepository, SearchedDirectory, WorktreeListing};
use crate::repository::index_reader::{self, EarlyIndexSender};
use crate::repository::open_repository::{OpenRepository, is_directory_without_links, is_repository, libgit2_error};
use crate::repository::source_files;
use crate::repository::worktree_walk::{MAX_PATHS, WalkResult, walk};

/// Maximum depth of nested repositories and directories; the functions that read them are recursive.
pub(crate) const MAX_DEPTH: usize = 256;

/// Lists the work tree of `top`.
pub(crate) fn list(top: &OpenRepository, send_early: EarlyIndexSender<'_>) -> Result<WorktreeListing, GitError> {
    let mut found = CollectedListing { sources: Some(Vec::new()), ..CollectedListing::default() };
    let head = collect(top, b"", 0, &mut found, Some(send_early))?;
    let as_paths = |paths: Vec<Vec<u8>>| paths.into_iter().map(RepoPath).collect();
    found.untracked.sort_unstable();
    found.ignored.sort_unstable();
    Ok(WorktreeListing {
        worktree: top.worktree.clone(),
        git_dir: top.git_dir.clone(),
        common_dir: top.common_dir.clone(),
        head_commit: head.map(|id| id.to_string()),
        branch: branch(top)?,
        tracked: as_paths(found.tracked),
        untracked: as_paths(found.untracked),
        nested: found.nested,
        indexes: found.indexes,
        rules: as_paths(found.rules),
        ignored: as_paths(found.ignored),
        directories: found.directories,
        external_rules: ExternalRules::sort_and_combine(found.external_rules, &top.worktree),
        skips_rules: found.skips_rules,
        sources: found.sources,
        sent_early: found.sent_early,
    })
}

#[derive(Default)]
struct CollectedListing {
    tracked: Vec<Vec<u8>>,
    untracked: Vec<Vec<u8>>,
    rules: Vec<Vec<u8>>,
    ignored: Vec<Vec<u8>>,
    directories: Vec<SearchedDirectory>,
    nested: Vec<NestedRepository>,
    indexes: Vec<Arc<GitIndex>>,
    external_rules: Vec<ExternalRules>,
    skips_rules: bool,
    sources: Option<Vec<GitSourceFile>>,
    sent_early: bool,
}

impl CollectedListing {
    fn check_path_count(&self, top: &Path) -> Result<(), GitError> {
        if self.tracked.len() + self.untracked.len() + self.ignored.len() + self.nested.len() <= MAX_PATHS {
            return Ok(());
        }
        Err(GitError::TooMany { path: top.to_owned(), limit: MAX_PATHS, what: "paths".into() })
    }

    /// Adds the results of a walk, whose paths are relative to the repository at `prefix`.
    fn add_walk(&mut self, opened: &OpenRepository, prefix: &[u8], walked: WalkResult) -> Result<(), GitError> {
        self.untracked.extend(to_outermost_paths(opened, prefix, walked.untracked)?);
        self.rules.extend(to_outermost_paths(opened, prefix, walked.rules)?);
        self.ignored.extend(to_outermost_paths(opened, prefix, walked.ignored)?);
        self.external_rules.extend(walked.external_rules.into_iter().map(|rules| rules.with_prefix(prefix)));
        self.directories.extend(walked.directories.into_iter().map(|(path, stamp)| SearchedDirectory {
            path: RepoPath(if path.is_empty() { prefix.to_vec() } else { paths::join(prefix, &path) }),
            stat: stamp,
        }));
        for path in walked.missing_heads {
            if let Some(sources) = &mut self.sources {
                source_files::add_missing_head(opened, &path, sources);
            }
        }
        self.check_path_count(&opened.worktree)
    }

    fn add_sources(&mut self, opened: &OpenRepository) -> Result<(), GitError> {
        let Some(mut sources) = self.sources.take() else { return Ok(()) };
        self.sources = source_files::add_source_files(opened, &mut sources)?.then_some(sources);
        Ok(())
    }
}

/// Adds the contents of the repository at `prefix` and of the repositories inside it. Returns the commit of its
/// HEAD.
fn collect(
    opened: &OpenRepository,
    prefix: &[u8],
    depth: usize,
    found: &mut CollectedListing,
    send_early: Option<EarlyIndexSender<'_>>,
) -> Result<Option<Oid>, GitError> {
    if depth > MAX_DEPTH {
        let what = "levels of nested repositories".into();
        return Err(GitError::TooMany { path: opened.worktree.clone(), limit: MAX_DEPTH, what });
    }
    // The stat data are recorded before anything is read, so that a concurrent change is noticed later.
    found.add_sources(opened)?;
    let head = head_commit(opened)?;
    let (index, was_sent_early) = index_reader::read_index(opened, prefix, head, send_early)?;
    let mut tracked: Vec<&[u8]> = index.files().collect();
    check_depth(opened, &tracked)?;
    if was_sent_early {
        found.sent_early = true;
    } else {
        found.tracked.extend(to_outermost_paths(opened, prefix, tracked.iter().map(|path| path.to_vec()).collect())?);
    }
    let in_head = head_paths(opened, head, &index)?;
    found.tracked.extend(to_outermost_paths(opened, prefix, in_head.clone())?);
    if !in_head.is_empty() {
        tracked.extend(in_head.iter().map(Vec::as_slice));
        tracked.sort_unstable();
    }
    let gitlinks = gitlinks(&index);
    let skipped = skipped_rules(&index);
    found.skips_rules |= !skipped.is_empty();
    let mut walked = walk(opened, &tracked, &gitlinks, &skipped)?;
    found.indexes.push(Arc::new(if found.sent_early && prefix.is_empty() { index.without_entries() } else { index }));
    walked.missing_heads.extend(unvisited_submodules(opened, &gitlinks, &walked)?);
    let repositories = walked.repositories.clone();
    found.add_walk(opened, prefix, walked)?;
    for (path, recorded) in &gitlinks {
        if is_directory_without_links(opened, path)? {
            collect_nested(opened, prefix, path, Some(recorded.to_string()), depth, found)?;
        }
    }
    for path in repositories {
        collect_nested(opened, prefix, &path, None, depth, found)?;
    }
    Ok(head)
}

/// Returns the ignore files with `skip-worktree` in an index, which may be missing in the work tree, by path.
fn skipped_rules(index: &GitIndex) -> HashMap<Vec<u8>, Oid> {
    let is_skipped = |entry: &&IndexEntry| {
        entry.skip_worktree && entry.stage == 0 && paths::file_name(&entry.path.0) == b".gitignore"
    };
    let skipped = index.entries.iter().filter(is_skipped);
    skipped.filter_map(|entry| Some((entry.path.0.clone(), Oid::from_bytes(entry.id.as_bytes()).ok()?))).collect()
}

/// Returns the submodules of an index, and the commits that are recorded for them.
fn gitlinks(index: &GitIndex) -> Vec<(Vec<u8>, ObjectId)> {
    let entries = index.entries.iter().filter(|entry| entry.mode == GITLINK_MODE);
    entries.map(|entry| (entry.path.0.clone(), entry.id)).collect()
}

/// Returns the submodules that are not checked out and that the walk did not reach, for example below an ignored
/// directory. Only a new HEAD file would reveal that they were checked out later.
fn unvisited_submodules(
    opened: &OpenRepository,
    gitlinks: &[(Vec<u8>, ObjectId)],
    walked: &WalkResult,
) -> Result<Vec<Vec<u8>>, GitError> {
    if gitlinks.is_empty() {
        return Ok(Vec::new());
    }
    let seen: HashSet<&[u8]> = walked.directories.iter().map(|(path, _)| path.as_slice()).collect();
    let mut unseen = Vec::new();
    for (path, _) in gitlinks.iter().filter(|(path, _)| !seen.contains(paths::split(path).0)) {
        if !is_repository(&absolute_path(opened, path))? {
            unseen.push(path.clone());
        }
    }
    Ok(unseen)
}

/// Converts the paths of one repository to paths relative to the outermost one.
fn to_outermost_paths(opened: &OpenRepository, prefix: &[u8], inside: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>, GitError> {
    let whole: Vec<_> = match prefix {
        b"" => inside,
        _ => inside.into_iter().map(|path| paths::join(prefix, &path)).collect(),
    };
    check_depth(opened, &whole.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    Ok(whole)
}

fn check_depth(opened: &OpenRepository, paths: &[&[u8]]) -> Result<(), GitError> {
    let is_too_deep = |path: &&[u8]| path.iter().filter(|byte| **byte == b'/').count() > MAX_DEPTH;
    if paths.iter().any(is_too_deep) {
        let what = "levels of directories".into();
        return Err(GitError::TooMany { path: opened.worktree.clone(), limit: MAX_DEPTH, what });
    }
    Ok(())
}

/// Adds the repository at `path` inside `outer`. If it is not checked out, its commit is the recorded one.
fn collect_nested(
    outer: &OpenRepository,
    prefix: &[u8],
    path: &[u8],
    recorded: Option<String>,
    depth: usize,
    found: &mut CollectedListing,
) -> Result<(), GitError> {
    let place = absolute_path(outer, path);
    let whole = paths::join(prefix, path);
    let at = found.nested.len();
    found.nested.push(NestedRepository { path: RepoPath(whole.clone()), commit: recorded });
    if is_repository(&place)? {
        let inner = collect(&OpenRepository::open(&place)?, &whole, depth + 1, found, None)?;
        found.nested[at].commit = inner.map(|id| id.to_string());
    }
    Ok(())
}

/// Returns the commit of HEAD, or `None` before the first commit.
fn head_commit(opened: &OpenRepository) -> Result<Option<Oid>, GitError> {
    match opened.repository.head() {
        Ok(head) => Ok(head.target()),
        Err(error) if matches!(error.code(), git2::ErrorCode::UnbornBranch | git2::ErrorCode::NotFound) => Ok(None),
        Err(error) => Err(libgit2_error(&opened.worktree, &error)),
    }
}

/// Returns the branch that HEAD names, in human-readable form.
fn branch(opened: &OpenRepository) -> Result<Option<String>, GitError> {
    let head = opened.repository.find_reference("HEAD").map_err(|error| libgit2_error(&opened.worktree, &error))?;
    let name = head.symbolic_target_bytes().and_then(|name| name.strip_prefix(b"refs/heads/"));
    Ok(name.map(proctor_core::model::drift::display_path))
}

/// Returns the paths in HEAD, since files removed with `git rm --cached` are still covered. Returns nothing if the
/// index has exactly HEAD's tree.
fn head_paths(opened: &OpenRepository, head: Option<Oid>, index: &GitIndex) -> Result<Vec<Vec<u8>>, GitError> {
    let failed = |error: git2::Error| libgit2_error(&opened.worktree, &error);
    let mut paths = Vec::new();
    let Some(head) = head else { return Ok(paths) };
    let tree = opened.repository.find_commit(head).and_then(|commit| commit.tree()).map_err(failed)?;
    if ObjectId::from_raw(tree.id().as_bytes()).is_none_or(|head| index.tree() != Some(head)) {
        collect_tree_paths(opened, &tree, b"", 0, &mut paths)?;
    }
    Ok(paths)
}

fn collect_tree_paths(
    opened: &OpenRepository,
    tree: &Tree<'_>,
    prefix: &[u8],
    depth: usize,
    tracked: &mut Vec<Vec<u8>>,
) -> Result<(), GitError> {
    let too_many =
        |limit, what: &str| GitError::TooMany { path: opened.worktree.clone(), limit, what: what.to_owned() };
    if depth > MAX_DEPTH {
        return Err(too_many(MAX_DEPTH, "levels of directories in HEAD"));
    }
    for entry in tree {
        let name = entry.name_bytes();
        // A tree object can contain names that no file can have.
        if matches!(name, b"" | b"." | b".." | b".git") || name.contains(&b'/') {
            continue;
        }
        let path = paths::join(prefix, name);
        match entry.kind() {
            Some(ObjectType::Tree) => {
                let inner = opened.repository.find_tree(entry.id());
                let inner = inner.map_err(|error| libgit2_error(&opened.worktree, &error))?;
                collect_tree_paths(opened, &inner, &path, depth + 1, tracked)?;
            }
            Some(ObjectType::Blob) => {
                tracked.push(path);
            }
            _ => {}
        }
        if tracked.len() > MAX_PATHS {
            return Err(too_many(MAX_PATHS, "paths"));
        }
    }
    Ok(())
}
