//! Checks, between the snapshot and the first command, that steps will see the recorded tree. Each error tells the
//! user how to fix the problem.

use std::path::Path;

use proctor_core::model::drift::{Entry, EntryKind, display_path};
use proctor_core::model::names::ChangesetId;
use proctor_core::model::plan::Plan;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{Host, StepUser, is_hidden};
use proctor_snapshot::{Snapshot, SnapshotError, StepRights};

use crate::error::EngineError;
use crate::host::alternates;
use crate::host::repository::Repository;
use crate::host::spec_file::SpecFile;
use crate::run::request::RunRequest;
use crate::run::run_context::HostView;

/// Checks that the plan and the snapshot come from the same spec, since the plan was made from bytes that were read
/// before the snapshot. A spec that is a link, or that the snapshot does not cover, is only identified by its own
/// hash.
pub(crate) fn require_same_spec(
    snapshot: &Snapshot,
    repository: &Repository,
    file: &SpecFile,
) -> Result<(), EngineError> {
    file.file_digests(repository.spec_path())
        .try_for_each(|(path, sha256)| require_same_hash(snapshot.entries.get(path.as_bytes()).as_ref(), &sha256, file))
}

/// Refuses a private copy whose spec differs from the one that the run was planned from.
pub(crate) fn require_same_spec_in_copy(tree: &Repository, file: &SpecFile) -> Result<(), EngineError> {
    if SpecFile::read_in(tree)?.sha256 == file.sha256 {
        Ok(())
    } else {
        Err(EngineError::SpecChanged(file.path.clone()))
    }
}

fn require_same_hash(covered: Option<&Entry>, sha256: &Sha256Hex, file: &SpecFile) -> Result<(), EngineError> {
    match covered {
        Some(entry) if entry.kind == EntryKind::File && entry.sha256 != *sha256 => {
            Err(EngineError::SpecChanged(file.path.clone()))
        }
        _ => Ok(()),
    }
}

/// Returns the rights with which a user's steps read the files of a repository; `None` if they are our own.
pub(crate) fn step_rights(user: StepUser) -> Option<StepRights> {
    match user {
        StepUser::Own { .. } => None,
        StepUser::Owner { uid, gid } | StepUser::Copy { uid, gid, .. } => Some(StepRights { uid, gid }),
        // Files of root appear to the step as its own.
        StepUser::Mapped { .. } => Some(StepRights { uid: 0, gid: 0 }),
    }
}

/// Refuses a tree with files that root has hashed but a step cannot read. An ordinary user could not have taken the
/// snapshot, and a check that skips unreadable files would pass.
pub(crate) fn require_readable_by_steps(snapshot: &Snapshot, user: StepUser) -> Result<(), EngineError> {
    let Some(rights) = step_rights(user) else { return Ok(()) };
    let unreadable = |path: String, source: std::io::Error| EngineError::Snapshot(SnapshotError::Io { path, source });
    match snapshot.first_unreadable(rights) {
        Ok(None) => Ok(()),
        Ok(Some(path)) => Err(unreadable(display_path(&path), rustix::io::Errno::ACCESS.into())),
        Err(error) => Err(unreadable(".".to_owned(), error)),
    }
}

/// Refuses a cache at a path with covered files: in a sandbox, the cache would hide them.
pub(crate) fn reject_hiding_caches(snapshot: &Snapshot, plan: &Plan) -> Result<(), EngineError> {
    let mounts = plan.skills.iter().flat_map(|skill| skill.caches.iter().map(move |cache| (skill, cache)));
    for (skill, cache) in mounts {
        if let Some(hidden) = snapshot.first_covered_in(cache) {
            return Err(EngineError::CacheHidesTree {
                skill: skill.name.to_string(),
                cache: cache.to_string(),
                hidden: display_path(&hidden),
            });
        }
    }
    Ok(())
}

/// Refuses borrowed objects that steps cannot see: git in a step must find every object that it finds outside.
pub(crate) fn reject_hidden_alternates(
    common: &Path,
    repo: &Path,
    host: &Host,
    host_view: &HostView,
) -> Result<(), EngineError> {
    let tool = |path: &Path| host_view.tools.iter().any(|tool| path.starts_with(&tool.at));
    let shown = |path: &Path| path.starts_with(repo) || path.starts_with(common) || tool(path);
    match alternates::first_hidden(common, |path| is_hidden(path, host, &host_view.hidden) && !shown(path)) {
        Ok(None) => Ok(()),
        Ok(Some(objects)) => Err(EngineError::HiddenAlternate(objects)),
        Err(source) => Err(EngineError::UnreadableAlternates { path: common.to_path_buf(), source }),
    }
}

/// Refuses a repository that does not belong to the caller: a daemon that serves many callers can read more than
/// each of them. (`proctor-snapshot` checks the owner of the history when it reads it.)
pub(crate) fn require_owner(repository: &Repository, owner: Option<u32>) -> Result<(), EngineError> {
    match owner.filter(|owner| *owner != repository.facts.uid) {
        None => Ok(()),
        Some(owner) => Err(EngineError::NotTheOwner { path: repository.path().to_path_buf(), owner }),
    }
}

/// Refuses a changeset of a spec in a subdirectory. The tree does not cover the evidence in `changes/` at the top only.
/// In other directories, the evidence of a run would change the tree that the run verified.
pub(crate) fn require_changeset_at_top(repository: &Repository, id: &ChangesetId) -> Result<(), EngineError> {
    match repository.spec_dir.is_repository() {
        true => Ok(()),
        false => {
            Err(EngineError::ChangesetBelowTop { changeset: id.clone(), directory: repository.spec_dir.to_string() })
        }
    }
}

/// Refuses a plan other than the one that the caller expects: the caller's claims apply to that plan only.
pub(crate) fn require_expected_plan(plan: &Plan, request: &RunRequest, file: &SpecFile) -> Result<(), EngineError> {
    match request.plan_sha256.as_ref().is_some_and(|known| *known != plan.digest()) {
        true => Err(EngineError::PlanChanged(file.path.clone())),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proctor_core::model::plan::RelPath;

    #[test]
    fn refuses_repository_of_another_user() {
        let temp = tempfile::tempdir().expect("temp");
        let repository = Repository::open(temp.path()).expect("opens");
        let uid = repository.facts.uid;
        assert!(require_owner(&repository, None).is_ok() && require_owner(&repository, Some(uid)).is_ok());
        let refused = require_owner(&repository, Some(uid + 1)).expect_err("another's");
        assert!(matches!(refused, EngineError::NotTheOwner { owner, .. } if owner == uid + 1));
    }

    #[test]
    fn refuses_spec_changed_before_snapshot() {
        let (bytes, sha256) = (b"read".to_vec(), Sha256Hex::digest(b"read"));
        let file = SpecFile { path: "s".into(), bytes, sha256, directory: RelPath::repository(), included: Vec::new() };
        let entry = |kind, text: &[u8]| Entry { kind, executable: false, sha256: Sha256Hex::digest(text) };
        let changed = require_same_hash(Some(&entry(EntryKind::File, b"covered")), &file.sha256, &file);
        assert!(matches!(changed, Err(EngineError::SpecChanged(_))));
        for fine in [None, Some(entry(EntryKind::File, b"read")), Some(entry(EntryKind::Symlink, b"target"))] {
            assert!(require_same_hash(fine.as_ref(), &file.sha256, &file).is_ok(), "{fine:?}");
        }
    }
}
