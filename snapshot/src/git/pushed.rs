//! Which commits a push sends: what each pushed id is, and what of its history no remote has.

use std::collections::BTreeSet;

use git2::{ObjectType, Oid, Repository, Revwalk, Sort};

use super::GitError;
use super::protocol::{NamedCommit, Push, Pushed, PushedTip};
use super::reader::{Opened, unreadable};
use super::revision::named;

/// What every ref that follows a remote is called.
const FOLLOWED: &str = "refs/remotes/*";

/// What the ids of `push` are, and the commits to look at: each of them once, oldest first.
pub(super) fn pushed(top: &Opened, push: &Push) -> Result<Pushed, GitError> {
    let tips = push.tips.iter().map(|id| tip(top, id)).collect::<Result<Vec<_>, _>>()?;
    let failed = |error: git2::Error| unreadable(&top.worktree, &error);
    let mut ids = Vec::new();
    for tip in &tips {
        if let PushedTip::Commit { id } = tip {
            ids.push(Oid::from_str(id).map_err(failed)?);
        }
    }
    let found = if push.each { unknown_to_remotes(top, push, &ids)? } else { each_once(&ids) };
    if found.len() > push.limit {
        return Err(GitError::TooMany {
            path: top.worktree.clone(),
            limit: push.limit,
            what: "commits to verify in this push".to_owned(),
        });
    }
    let commits = found.into_iter().map(|id| named(top, id)).collect::<Result<Vec<NamedCommit>, _>>()?;
    Ok(Pushed { git_dir: top.git_dir.clone(), tips, commits })
}

/// What an id names, behind the tags that lead to it.
fn tip(top: &Opened, id: &str) -> Result<PushedTip, GitError> {
    let found = Oid::from_str(id).and_then(|id| top.repository.find_object(id, None));
    let behind_tags = found.and_then(|object| match object.kind() {
        Some(ObjectType::Tag) => object.peel(ObjectType::Any),
        _ => Ok(object),
    });
    let object = behind_tags.map_err(|_| GitError::Revision {
        path: top.worktree.clone(),
        revision: id.to_owned(),
        problem: "there is no such object in this repository".to_owned(),
        mend: "`git fsck` says what is missing".to_owned(),
    })?;
    Ok(match object.peel(ObjectType::Commit) {
        Ok(commit) => PushedTip::Commit { id: commit.id().to_string() },
        Err(_) => PushedTip::Other { kind: object.kind().map_or("object", |kind| kind.str()).to_owned() },
    })
}

fn each_once(ids: &[Oid]) -> Vec<Oid> {
    let mut seen = BTreeSet::new();
    ids.iter().copied().filter(|id| seen.insert(*id)).collect()
}

/// The commits that no remote is known to have, and the pushed ones themselves.
fn unknown_to_remotes(top: &Opened, push: &Push, tips: &[Oid]) -> Result<Vec<Oid>, GitError> {
    let walk = || {
        let mut walk = top.repository.revwalk()?;
        walk.set_sorting(Sort::TOPOLOGICAL | Sort::REVERSE)?;
        tips.iter().try_for_each(|id| walk.push(*id))?;
        hide_known(&top.repository, push, &mut walk)?;
        walk.take(push.limit + 1).collect::<Result<Vec<Oid>, _>>()
    };
    let found: Vec<Oid> = walk().map_err(|error| unreadable(&top.worktree, &error))?;
    // One that is on a remote already, under another name, is pushed all the same.
    Ok(each_once(&[found.as_slice(), tips].concat()))
}

fn hide_known(repository: &Repository, push: &Push, walk: &mut Revwalk<'_>) -> Result<(), git2::Error> {
    for id in &push.known {
        // What the remote has need not be here: somebody else has pushed it.
        let commit = Oid::from_str(id).and_then(|id| repository.find_object(id, None));
        if let Ok(commit) = commit.and_then(|object| object.peel(ObjectType::Commit)) {
            walk.hide(commit.id())?;
        }
    }
    for found in repository.references_glob(FOLLOWED)? {
        if let Ok(commit) = found.and_then(|reference| reference.peel_to_commit()) {
            walk.hide(commit.id())?;
        }
    }
    Ok(())
}
