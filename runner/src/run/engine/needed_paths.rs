//! Makes the paths available that skills need and that no commit contains: copies them from the worktree, or has a
//! command write them.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::sync::Arc;

use proctor_core::decision::verdict::{InconclusiveDetail, InconclusiveReason};
use proctor_core::model::drift::display_path;
use proctor_core::model::plan::{Ignored, NeededPath, PathSource, Plan, PlannedSkill, PlannedStep, RelPath};
use proctor_core::model::tier::Tier;
use proctor_core::record::unverified_inputs::{InputShown, UnverifiedInput};
use proctor_core::text::canonical;
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{CACHE_UPPER, CacheForm, StepUser};
use proctor_snapshot::StepRights;
use serde::Serialize;

use super::Engine;
use crate::error::{EngineError, one_line};
use crate::host::environment::{self, VariableOrigin};
use crate::host::repository::Repository;
use crate::run::dispatch;
use crate::run::path_keys::{self, KeyFiles};
use crate::run::preflight;
use crate::run::run_context::RunContext;
use crate::step::needed_paths::{PathState, Preparation};
use crate::step::path_preparation;
use crate::store::StoreError;
use crate::store::caches::prepared::{
    CommandRecord, HeldPath, NewPath, PathOrigin, PathRecord, PathScope, source_state,
};
use crate::store::caches::{CacheStore, SkillCacheError};
use crate::store::directory::Directory;

/// Maximum number of attempts to copy a directory that changes.
const MAX_COPIES: u32 = 3;
/// Version of the digest of a command's inputs.
const INPUTS_VERSION: u32 = 1;
/// File that names the distribution of the host.
const OS_RELEASE: &str = "/etc/os-release";

/// Everything that determines the result of a preparing command, as far as it is known.
#[derive(Serialize)]
struct PreparationInputs<'a> {
    version: u32,
    path: &'a str,
    command: &'a PlannedStep,
    /// The environment of the command, without the values of the caller's variables.
    env: BTreeMap<&'a str, &'a str>,
    files: KeyFiles,
    platform: [String; 2],
    tools: Sha256Hex,
}

impl Engine {
    /// Makes the needed paths of all skills available that may run with `max_tier`. Returns the reasons why some of them
    /// are not.
    pub(super) async fn provide_needed_paths(
        &self,
        context: &Arc<RunContext>,
        plan: &Plan,
        max_tier: Tier,
        preparation: Preparation,
    ) -> Vec<InconclusiveDetail> {
        let skills = plan.skills.iter().filter(|skill| dispatch::needed_tier(skill) <= max_tier);
        let mut wanted: Vec<&NeededPath> = Vec::new();
        for needed in skills.flat_map(|skill| &skill.needs_paths) {
            if !wanted.contains(&needed) {
                wanted.push(needed);
            }
        }
        let mut states = Vec::new();
        for needed in wanted {
            let state = self.provide_path(context, plan, needed, preparation).await;
            states.push((needed.clone(), state));
        }
        let doubt = |(_, state): &(NeededPath, PathState)| match state {
            PathState::Unavailable(reason) => Some(InconclusiveReason::NeededPath.with_message(reason.clone())),
            PathState::InTree { .. } | PathState::Stored(_) | PathState::Unprepared(_) => None,
        };
        let doubts = states.iter().filter_map(doubt).collect();
        context.needed_paths.set(states);
        doubts
    }

    async fn provide_path(
        &self,
        context: &Arc<RunContext>,
        plan: &Plan,
        needed: &NeededPath,
        preparation: Preparation,
    ) -> PathState {
        let path = &needed.path;
        if context.cancel.is_cancelled() {
            return PathState::Unavailable(format!("`{path}` was not prepared: the run was cancelled"));
        }
        let is_in_tree = context.tree.source.is_worktree()
            && (plan.ignored == Ignored::Worktree || context.tree.private_copy.is_none());
        if is_in_tree && needed.source == PathSource::Worktree {
            return match state_in_tree(context, needed) {
                PathState::InTree { .. } if may_use_workers(context, plan, needed) => {
                    let copied = self.copy_for_workers(context, needed).await;
                    copied.unwrap_or_else(|reason| PathState::InTree { not_copied: Some(reason) })
                }
                state => state,
            };
        }
        if let Some(hidden) = context.tree.snapshot.first_covered_in(path) {
            return PathState::Unavailable(hidden_part(path, &hidden));
        }
        match &needed.source {
            PathSource::Worktree => {
                let copied = self.copy_path(context, needed, KeyFilesRule::Required).await;
                copied.unwrap_or_else(PathState::Unavailable)
            }
            PathSource::Prepare { run } => match self.prepare_path(context, plan, needed, run, preparation).await {
                Ok(Some(held)) => PathState::Stored(Arc::new(held)),
                Ok(None) => PathState::Unprepared(format!("a run would prepare `{path}` first, by `{}`", run.cmd)),
                Err(reason) => PathState::Unavailable(reason),
            },
        }
    }

    /// Copies a path of a worktree that the run verifies, because workers get only stored paths. The steps on this machine
    /// then see the same copy.
    ///
    /// # Errors
    /// The reason why there is no copy.
    async fn copy_for_workers(&self, context: &Arc<RunContext>, needed: &NeededPath) -> Result<PathState, String> {
        if let Some(hidden) = context.tree.snapshot.first_covered_in(&needed.path) {
            return Err(hidden_part(&needed.path, &hidden));
        }
        self.copy_path(context, needed, KeyFilesRule::Optional).await
    }

    async fn copy_path(
        &self,
        context: &Arc<RunContext>,
        needed: &NeededPath,
        rule: KeyFilesRule,
    ) -> Result<PathState, String> {
        let (shared, copied) = (Arc::clone(context), needed.clone());
        let rights = self.worktree_rights(&context.tree.worktree);
        let work = tokio::task::spawn_blocking(move || provide_from_worktree(&shared, &copied, rights?, rule));
        let held = work.await.map_err(|error| format!("`{}` cannot be copied: {error}", needed.path))??;
        Ok(PathState::Stored(Arc::new(held)))
    }

    /// Returns the rights with which the worktree must be readable, if they are not our own.
    fn worktree_rights(&self, worktree: &Repository) -> Result<Option<StepRights>, String> {
        let user = StepUser::choose(self.launcher.host(), &worktree.facts).map_err(|error| one_line(&error))?;
        Ok(preflight::step_rights(user))
    }

    /// Finds the stored result of a preparing command, or runs the command. Returns `None` if it must not run.
    async fn prepare_path(
        &self,
        context: &Arc<RunContext>,
        plan: &Plan,
        needed: &NeededPath,
        command: &PlannedStep,
        preparation: Preparation,
    ) -> Result<Option<HeldPath>, String> {
        let (path, cmd) = (&needed.path, &command.cmd);
        let (key, inputs) = self.preparation_key(context, plan, needed, command)?;
        let trust = &context.caches.scopes.trust;
        let scope_in = |trust_scope: &String| {
            let origin = PathOrigin::Command { trust_scope: trust_scope.clone(), inputs: inputs.clone() };
            path_scope(context, needed, origin)
        };
        let scopes: Vec<PathScope> = std::iter::once(&trust.own).chain(&trust.fallbacks).map(scope_in).collect();
        let (shared, candidates) = (Arc::clone(context), scopes.clone());
        let found = tokio::task::spawn_blocking(move || find_stored(&shared, &candidates)).await;
        let found = found.map_err(|error| format!("`{path}` cannot be searched for: {error}"))?;
        if let Some(held) = found.map_err(|error| format!("`{path}` cannot be searched for: {}", one_line(&error)))? {
            return Ok(Some(held));
        }
        if preparation == Preparation::Stored {
            return Ok(None);
        }
        tracing::info!(%path, %cmd, "preparing a path");
        let failed = |reason: String| format!("`{cmd}`, which prepares `{path}`, {reason}");
        let (_, room) =
            context.caches.create_room().map_err(|error| failed(format!("cannot run: {}", one_line(&error))))?;
        path_preparation::run(context, command, path, &room).await.map_err(failed)?;
        // The result must belong to the tools that the key names.
        if self.preparation_key(context, plan, needed, command)?.1 != inputs {
            return Err(failed("used tools that changed while it ran; run again".to_owned()));
        }
        let mut text = cmd.to_string();
        context.redactor().redact_in_place(&mut text);
        let record = CommandRecord { cmd: text, key, network: command.network, at: context.clock.now_text() };
        let scope = scopes.into_iter().next().ok_or_else(|| failed("has no scope".to_owned()))?;
        let shared = Arc::clone(context);
        let stored = tokio::task::spawn_blocking(move || {
            let (store, _) = shared.caches.opened_store()?;
            let is_empty = Directory::open(&room.join(CACHE_UPPER))?.entries(1)?.is_empty();
            if is_empty {
                return Ok(None);
            }
            let new = NewPath {
                scope,
                source: None,
                command: Some(record),
                room: &room,
                is_overlay: matches!(shared.caches.form, CacheForm::Layers),
                owner: shared.caches.committed_owner(),
                max_bytes: shared.caches.max_bytes,
            };
            store.store_path(new).map(Some)
        });
        match stored.await {
            Ok(Ok(Some(held))) => Ok(Some(held)),
            Ok(Ok(None)) => Err(failed(format!("wrote nothing to `{path}`"))),
            Ok(Err(error)) => Err(failed(format!("has a result that cannot be stored: {}", one_line(&error)))),
            Err(error) => Err(failed(format!("has a result that cannot be stored: {error}"))),
        }
    }

    /// Returns the digest of the known inputs of a preparing command without the caller's values, which may be secret,
    /// and the digest with them.
    fn preparation_key(
        &self,
        context: &RunContext,
        plan: &Plan,
        needed: &NeededPath,
        command: &PlannedStep,
    ) -> Result<(Sha256Hex, Sha256Hex), String> {
        let path = &needed.path;
        let files = path_keys::of_tree(&context.tree.snapshot, needed)
            .and_then(|files| path_keys::require_key(needed, &files).map(|()| files))
            .map_err(|error| format!("`{path}` cannot be prepared: {error}"))?;
        let alone = plan_of_command(plan, command);
        let tools = self
            .search_tools(context, &alone)
            .map_err(|error| format!("`{path}` cannot be prepared: its tools cannot be searched for: {error}"))?;
        let environment = environment::build(command, &context.host_view.environment_inputs);
        let mut env = BTreeMap::new();
        let mut of_caller = BTreeMap::new();
        for (name, (value, origin)) in &environment {
            match origin {
                VariableOrigin::Caller => {
                    of_caller.insert(name.as_str(), value.as_str());
                    env.insert(name.as_str(), "");
                }
                _ => {
                    env.insert(name.as_str(), value.as_str());
                }
            }
        }
        let inputs = PreparationInputs {
            version: INPUTS_VERSION,
            path: path.as_str(),
            command,
            env,
            files,
            platform: platform(),
            tools,
        };
        let key = Sha256Hex::digest(&canonical::to_vec(&inputs));
        let with_caller = Sha256Hex::digest(&canonical::to_vec(&(&key, of_caller)));
        Ok((key, with_caller))
    }

    /// Returns whether a run of this repository would show its steps the same stored paths as an earlier run, which
    /// recorded `inputs`. The caller has compared the tree, the plan and the tools.
    pub(super) fn has_same_mounted_inputs(
        &self,
        repository: &Repository,
        plan: &Plan,
        inputs: &[&UnverifiedInput],
    ) -> Result<bool, EngineError> {
        let paths: std::collections::BTreeSet<&str> =
            plan.skills.iter().flat_map(|skill| &skill.needs_paths).map(|needed| needed.path.as_str()).collect();
        let mounted: Vec<_> = inputs.iter().filter(|input| input.shown == InputShown::Mounted).collect();
        let recorded: std::collections::BTreeSet<&str> = mounted.iter().map(|input| input.path.as_str()).collect();
        if paths != recorded {
            return Ok(false);
        }
        if mounted.is_empty() {
            return Ok(true);
        }
        let store = CacheStore::open(&self.state, &self.state_path)?;
        let caller = self.owner.unwrap_or_else(|| rustix::process::geteuid().as_raw());
        let at = display_path(repository.path().as_os_str().as_encoded_bytes());
        let user = StepUser::choose(self.launcher.host(), &repository.facts)?;
        let rights = preflight::step_rights(user);
        let is_same = |input: &UnverifiedInput| {
            let sha256 = input.sha256.as_ref()?;
            let stored = (caller, at.as_str(), input.path.as_str());
            if let Some(prepared) = &input.prepared {
                let has_key =
                    |record: &PathRecord| record.command.as_ref().map(|command| &command.key) == Some(&prepared.key);
                return Some(store.has_path(stored, |record, _| has_key(record) && record.content.sha256 == *sha256));
            }
            let source = Directory::open(repository.path()).ok()?.descend(&input.path).ok()?;
            let state = source_state(source.as_fd(), rights).ok()?;
            Some(store.has_copy(stored, (&source, &state), sha256))
        };
        Ok(mounted.into_iter().all(|input| is_same(input).unwrap_or(false)))
    }
}

/// Returns whether any skill of a plan needs a path.
pub(super) fn needs_paths(plan: &Plan) -> bool {
    plan.skills.iter().any(|skill| !skill.needs_paths.is_empty())
}

/// Returns a plan whose only command is `command`, for the search for its tools.
fn plan_of_command(plan: &Plan, command: &PlannedStep) -> Plan {
    let skill = plan.skills.first().map(|skill| PlannedSkill {
        steps: vec![command.clone()],
        needs_paths: vec![],
        caches: vec![],
        ..skill.clone()
    });
    Plan { skills: skill.into_iter().collect(), toolchain: vec![], ..plan.clone() }
}

fn platform() -> [String; 2] {
    let release = std::fs::read(OS_RELEASE).unwrap_or_default();
    [std::env::consts::ARCH.to_owned(), Sha256Hex::digest(&release).to_string()]
}

fn path_scope(context: &RunContext, needed: &NeededPath, origin: PathOrigin) -> PathScope {
    let scopes = &context.caches.scopes;
    PathScope {
        caller: scopes.caller,
        owner: scopes.owner,
        repository: scopes.repository.clone(),
        path: needed.path.to_string(),
        origin,
    }
}

fn find_stored(context: &RunContext, scopes: &[PathScope]) -> Result<Option<HeldPath>, SkillCacheError> {
    let (store, _) = context.caches.opened_store()?;
    for scope in scopes {
        if let Some(held) = store.find_path(scope, None)? {
            return Ok(Some(held));
        }
    }
    Ok(None)
}

/// Returns whether a step that needs the path can run on a worker.
fn may_use_workers(context: &RunContext, plan: &Plan, needed: &NeededPath) -> bool {
    let Some(remote) = context.remote.get().filter(|_| context.tree.private_copy.is_some()) else { return false };
    let users = plan.skills.iter().filter(|skill| skill.needs_paths.contains(needed));
    users.flat_map(|skill| &skill.steps).any(|step| remote.executes(step))
}

fn hidden_part(path: &RelPath, hidden: &[u8]) -> String {
    format!("`{path}` of `needs_paths` would hide `{}`, a part of the tree", display_path(hidden))
}

/// The requirement that key files determine the content of a path. A run of the worktree does not need them, because
/// the path and the verified files come from the same worktree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyFilesRule {
    Required,
    Optional,
}

/// Returns the state of a path that a run of the worktree shows among the ignored files.
fn state_in_tree(context: &RunContext, needed: &NeededPath) -> PathState {
    let path = &needed.path;
    match context.tree.repository.path().join(path.as_str()).symlink_metadata() {
        Ok(_) => PathState::InTree { not_copied: None },
        Err(_) => PathState::Unavailable(format!("`{path}` is not in the worktree; create it, and run again")),
    }
}

/// Copies a path from the worktree, if its key files are those of the verified tree. Uses the stored copy if the path
/// has not changed since.
fn provide_from_worktree(
    context: &RunContext,
    needed: &NeededPath,
    rights: Option<StepRights>,
    rule: KeyFilesRule,
) -> Result<HeldPath, String> {
    let (path, worktree) = (&needed.path, &context.tree.worktree);
    let missing = |reason: String| format!("`{path}` is not part of a commit, and {reason}");
    if let CacheForm::Empty { reason } = &context.caches.form {
        return Err(missing(format!("the directory in the worktree cannot be used: {reason}")));
    }
    let source = open_in_worktree(worktree, needed).map_err(missing)?;
    let copy = || copy_from_worktree(context, needed, &source, rights).map_err(|error| one_line(&error));
    copy_between_checks(|| require_same_keys(context, needed, rule), copy).map_err(missing)
}

/// Copies a path, and checks its key files before and after that: another program may change both in between, such as a
/// package manager that writes its lock file last.
fn copy_between_checks<T>(
    check: impl Fn() -> Result<(), String>,
    copy: impl FnOnce() -> Result<T, String>,
) -> Result<T, String> {
    check()?;
    let copied = copy()?;
    check()?;
    Ok(copied)
}

/// Requires that the key files of the worktree are those of the verified tree.
///
/// # Errors
/// A phrase that names the files that differ, or the reason why they cannot be compared.
fn require_same_keys(context: &RunContext, needed: &NeededPath, rule: KeyFilesRule) -> Result<(), String> {
    let in_tree = path_keys::of_tree(&context.tree.snapshot, needed).map_err(|error| error.to_string())?;
    let on_disk = path_keys::of_worktree(&context.tree.worktree, needed).map_err(|error| one_line(&error))?;
    match path_keys::differences(&in_tree, &on_disk).as_slice() {
        [] if rule == KeyFilesRule::Optional => Ok(()),
        [] => path_keys::require_key(needed, &in_tree).map_err(|error| error.to_string()),
        [one] => Err(format!("`{one}` differs from the file in the worktree")),
        [one, others @ ..] => {
            Err(format!("`{one}` and {} more files differ from the files in the worktree", others.len()))
        }
    }
}

/// Opens a directory of the worktree, without following a link.
fn open_in_worktree(worktree: &Repository, needed: &NeededPath) -> Result<Directory, String> {
    let opened = Directory::open(worktree.path()).and_then(|top| top.descend(needed.path.as_str()));
    opened.map_err(|error| match &error {
        StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            "the worktree does not have it".to_owned()
        }
        StoreError::Io { source, .. } if source.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            "in the worktree it is a symbolic link".to_owned()
        }
        StoreError::Symlink { .. } => "in the worktree it is a symbolic link".to_owned(),
        StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::NotADirectory => {
            "in the worktree it is not a directory".to_owned()
        }
        _ => one_line(&error),
    })
}

/// The reason why a directory of the worktree cannot be copied.
#[derive(Debug, thiserror::Error)]
enum WorktreeCopyError {
    /// The directory cannot be read, or the copy cannot be written.
    #[error("the directory in the worktree cannot be copied: {0}")]
    Copy(#[from] SkillCacheError),
    /// Another program writes to the directory.
    #[error("the directory in the worktree changes while it is copied")]
    Changes,
}

impl From<StoreError> for WorktreeCopyError {
    fn from(error: StoreError) -> Self {
        Self::Copy(error.into())
    }
}

fn copy_from_worktree(
    context: &RunContext,
    needed: &NeededPath,
    source: &Directory,
    rights: Option<StepRights>,
) -> Result<HeldPath, WorktreeCopyError> {
    let scope = path_scope(context, needed, PathOrigin::Worktree);
    for _ in 0..MAX_COPIES {
        let state = source_state(source.as_fd(), rights)?;
        let (store, room) = context.caches.create_room()?;
        if let Some(held) = store.find_copy(&scope, source, &state)? {
            return Ok(held);
        }
        let opened = source.as_fd().try_clone_to_owned().map_err(|source| SkillCacheError::Entry {
            action: "open",
            path: needed.path.to_string(),
            source,
        })?;
        CacheStore::copy_directory(opened, &room, context.caches.copies_owner())?;
        let after = source_state(source.as_fd(), rights)?;
        if !after.has_same_stat_data(&state) {
            continue;
        }
        let new = NewPath {
            scope,
            source: Some(state.recorded()),
            command: None,
            room: &room,
            is_overlay: false,
            owner: None,
            max_bytes: context.caches.max_bytes,
        };
        return Ok(store.store_path(new)?);
    }
    Err(WorktreeCopyError::Changes)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn refuses_copy_if_key_files_change_meanwhile() {
        let differs = Cell::new(false);
        let check = || if differs.get() { Err("differs".to_owned()) } else { Ok(()) };
        assert_eq!(copy_between_checks(check, || Ok(1)), Ok(1));
        let copied = copy_between_checks(check, || {
            differs.set(true);
            Ok(1)
        });
        assert_eq!(copied, Err("differs".to_owned()));
        assert_eq!(copy_between_checks::<()>(check, || panic!("nothing is copied")), Err("differs".to_owned()));
    }
}
