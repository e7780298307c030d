//! Finds the commits that a push sends: resolves each pushed id, and finds the commits in its history that no
//! remote has.

use std::collections::BTreeSet;

use git2::{ObjectType, Oid, Repository, Revwalk, Sort};

use crate::error::GitError;
use crate::object::object_error::ObjectError;
use crate::object::object_id::{ObjectId, ObjectKind};
use crate::protocol::{NamedCommit, Push, PushedTip, RangeBase, ResolvedPush};
use crate::repository::history::{HistoryBackend, RepositoryHistory};
use crate::repository::object_reader::{ObjectReader, from_oid, to_oid};
use crate::repository::revision::named_commit;

/// The refs of remote-tracking branches.
const REMOTE_REFS: &str = "refs/remotes/*";

/// Resolves the ids of `push`, and returns the commits to verify without duplicates, oldest first.
pub(crate) fn resolve_push(history: &RepositoryHistory<'_>, push: &Push) -> Result<ResolvedPush, GitError> {
    let objects = history.objects()?;
    let tips = push.tips.iter().map(|id| resolve_tip(history, &objects, id)).collect::<Result<Vec<_>, _>>()?;
    let mut ids = Vec::new();
    for tip in &tips {
        if let PushedTip::Commit { id } = tip {
            ids.push(history.parse_id(id)?);
        }
    }
    let found = if push.each { commits_unknown_to_remotes(history, push, &ids)? } else { without_duplicates(&ids) };
    if found.len() > push.limit {
        return Err(GitError::TooMany {
            path: history.paths.worktree.clone(),
            limit: push.limit,
            what: "commits to verify in this push".to_owned(),
        });
    }
    let former_of = |id: &ObjectId| {
        let updates = tips.iter().zip(&push.former);
        let own = updates.filter(|(tip, _)| matches!(tip, PushedTip::Commit { id: tip } if *tip == id.to_string()));
        own.filter_map(|(_, former)| former.as_deref()).collect::<Vec<&str>>()
    };
    let bases = found.iter().map(|id| range_base(history, push, *id, &former_of(id))).collect();
    let named = |id| named_commit(&objects, id).map_err(|error| history.unreadable(error.to_string()));
    let commits = found.into_iter().map(named).collect::<Result<Vec<NamedCommit>, _>>()?;
    Ok(ResolvedPush { git_dir: history.paths.git_dir.clone(), tips, commits, bases })
}

/// Resolves an id, following tags.
fn resolve_tip(history: &RepositoryHistory<'_>, objects: &ObjectReader<'_>, id: &str) -> Result<PushedTip, GitError> {
    let id_of = ObjectId::from_hex(id.as_bytes()).filter(|id| id.format() == objects.format());
    let found = id_of.map(|id| objects.peel_tags(id)).transpose();
    match found.map_err(|error| history.unreadable(error.to_string()))?.flatten() {
        Some((ObjectKind::Commit, id)) => Ok(PushedTip::Commit { id: id.to_string() }),
        Some((kind, _)) => Ok(PushedTip::Other { kind: kind.as_str().to_owned() }),
        None => Err(GitError::Revision {
            path: history.paths.worktree.clone(),
            revision: id.to_owned(),
            problem: "the object does not exist in this repository".to_owned(),
            mend: "`git fsck` lists missing objects".to_owned(),
        }),
    }
}

fn without_duplicates(ids: &[ObjectId]) -> Vec<ObjectId> {
    let mut seen = BTreeSet::new();
    ids.iter().copied().filter(|id| seen.insert(*id)).collect()
}

/// Returns the commits that no remote is known to have, and the pushed commits themselves.
fn commits_unknown_to_remotes(
    history: &RepositoryHistory<'_>,
    push: &Push,
    tips: &[ObjectId],
) -> Result<Vec<ObjectId>, GitError> {
    let found = match (&history.backend, history.program_output()?) {
        (_, Some(output)) => output.walked_commits().map_err(|error| history.unreadable(error.to_string()))?,
        (HistoryBackend::Libgit2(opened), None) => {
            walk_commits(&opened.repository, push, tips).map_err(|error| history.unreadable(error.to_string()))?
        }
        (_, None) => Vec::new(),
    };
    // A commit that is already on a remote under another name is verified all the same.
    Ok(without_duplicates(&[found.as_slice(), tips].concat()))
}

fn walk_commits(repository: &Repository, push: &Push, tips: &[ObjectId]) -> Result<Vec<ObjectId>, ObjectError> {
    let tips = tips.iter().map(|id| to_oid(*id)).collect::<Result<Vec<_>, _>>()?;
    let walk = || -> Result<Vec<Oid>, git2::Error> {
        let mut walk = repository.revwalk()?;
        walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)?;
        tips.iter().try_for_each(|id| walk.push(*id))?;
        hide_known_commits(repository, push, RemoteRefs::All, &mut walk)?;
        walk.take(push.limit + 1).collect()
    };
    walk()?.into_iter().map(from_oid).collect()
}

/// Returns the commit from which the pushed range of a commit starts: the first parent of the oldest commit that the
/// remote is not known to have. Another remote does not count: its commits can be new to this one. `former` are the ids
/// that the refs of the commit have on the remote.
///
/// Returns `None` if there is no such parent, if the remote has the commit already, if libgit2 cannot read the
/// repository, or if the push removes several commits from refs, or commits that this repository lacks.
fn range_base(history: &RepositoryHistory<'_>, push: &Push, tip: ObjectId, former: &[&str]) -> Option<RangeBase> {
    let HistoryBackend::Libgit2(opened) = &history.backend else { return None };
    let repository = &opened.repository;
    let mut walk = repository.revwalk().ok()?;
    walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE).ok()?;
    walk.push(to_oid(tip).ok()?).ok()?;
    hide_known_commits(repository, push, RemoteRefs::OfPush, &mut walk).ok()?;
    let oldest = walk.next()?.ok()?;
    let since = repository.find_commit(oldest).ok()?.parent_id(0).ok()?.to_string();
    let tip = to_oid(tip).ok()?;
    let mut replaced = BTreeSet::new();
    for former in former {
        let former = Oid::from_str(former).and_then(|id| repository.find_object(id, None)).ok()?;
        let former = former.peel(ObjectType::Commit).ok()?.id();
        if former != tip && !repository.graph_descendant_of(tip, former).ok()? {
            replaced.insert(former.to_string());
        }
    }
    let replaced = match replaced.len() {
        0 | 1 => replaced.pop_first(),
        _ => return None,
    };
    Some(RangeBase { since, replaced })
}

/// The remotes whose remote-tracking branches count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RemoteRefs {
    /// Those of all remotes.
    All,
    /// Those of the remote of the push.
    OfPush,
}

fn hide_known_commits(
    repository: &Repository,
    push: &Push,
    counted: RemoteRefs,
    walk: &mut Revwalk<'_>,
) -> Result<(), git2::Error> {
    for id in &push.known {
        // Commits that the remote has may be missing here, since another user may have pushed them.
        let commit = Oid::from_str(id).and_then(|id| repository.find_object(id, None));
        if let Ok(commit) = commit.and_then(|object| object.peel(ObjectType::Commit)) {
            walk.hide(commit.id())?;
        }
    }
    let prefix = push.remote.as_ref().map(|remote| format!("refs/remotes/{remote}/"));
    for found in repository.references_glob(REMOTE_REFS)? {
        let Ok(reference) = found else { continue };
        let is_of_push = prefix.as_ref().is_some_and(|prefix| reference.name_bytes().starts_with(prefix.as_bytes()));
        if (counted == RemoteRefs::All || is_of_push)
            && let Ok(commit) = reference.peel_to_commit()
        {
            walk.hide(commit.id())?;
        }
    }
    Ok(())
}
