//! Mounts the paths that skills need and that no commit contains. Each skill writes to a separate layer above the
//! stored content; the layer is discarded when the run ends.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use proctor_core::model::drift::display_path;
use proctor_core::model::names::SkillName;
use proctor_core::model::plan::{Argv, NeededPath, PlannedSkill, RelPath};
use proctor_core::record::unverified_inputs::{InputKind, InputShown, PreparedInput, UnverifiedInput};
use proctor_core::reuse::{MountedContent, MountedDirectory, NeededPathOrigin};
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{CACHE_UPPER, CacheForm, CacheMount, CacheSource, RunSpace};
use rustix::fs::RawMode;

use crate::step::skill_caches::RunCaches;
use crate::store::caches::prepared::{self, ContentDigest, HeldPath, PathOrigin};
use crate::store::caches::{CacheStore, SkillCacheError};
use crate::store::directory::Directory;

/// The availability of a needed path in a run.
#[derive(Debug)]
pub(crate) enum PathState {
    /// The path is in the tree that steps see, among the ignored files of the worktree.
    InTree {
        /// The reason why the path could not be copied for workers, if the run uses workers.
        not_copied: Option<String>,
    },
    /// The path is stored and is mounted for the skills that need it.
    Stored(Arc<HeldPath>),
    /// The path is not available; the value is the reason.
    Unavailable(String),
    /// A command would prepare the path first, as this text describes. Occurs only in a preview, which runs no command.
    Unprepared(String),
}

/// The policy whether commands may prepare paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Preparation {
    /// A command runs if its result is not stored.
    Run,
    /// Only stored results are used.
    Stored,
}

/// The mount of a needed path of one skill.
#[derive(Debug, Clone)]
struct NeededMount {
    mount: CacheMount,
    /// The state before the first step. A later comparison shows whether a step changed the path.
    baseline: Baseline,
    /// The writes of earlier steps of the skill, if a step on a worker wrote to the path since: directories of an
    /// overlay, newest first.
    sealed: Vec<PathBuf>,
}

/// A stored path for a worker.
#[derive(Debug)]
pub(crate) struct PathForWorker {
    pub(crate) at: RelPath,
    pub(crate) held: Arc<HeldPath>,
    /// True if only toolchain checks see it.
    pub(crate) is_for_checks_only: bool,
}

/// The state of a mount before the first step.
#[derive(Debug, Clone)]
enum Baseline {
    /// The directory for writes is empty, and has this mode.
    NoWrites { mode: RawMode },
    /// The mount is a copy, whose names and stat data have this digest.
    Copy(Sha256Hex),
}

/// The needed paths of one run.
#[derive(Debug, Default)]
pub(crate) struct NeededPaths {
    /// Set before the first command.
    states: OnceLock<Vec<(NeededPath, PathState)>>,
    /// The mounts of each skill.
    mounts: Mutex<BTreeMap<SkillName, Arc<Vec<NeededMount>>>>,
}

/// The reason why the changes of a step cannot be transferred between machines.
const NO_OVERLAYS: &str = "this machine has no overlays";

impl NeededMount {
    /// Returns whether a step has changed the path.
    fn is_changed(&self) -> Result<bool, SkillCacheError> {
        let upper = self.mount.source.upper();
        Ok(match &self.baseline {
            Baseline::NoWrites { mode } => {
                // A mode that denies access hides the whole path, and makes the directory unreadable for this process too.
                !self.sealed.is_empty()
                    || directory_mode(&upper)? != *mode
                    || !Directory::open(&upper)?.entries(1)?.is_empty()
            }
            Baseline::Copy(seal) => prepared::stat_digest(Directory::open(&upper)?.as_fd())? != *seal,
        })
    }
}

impl NeededPaths {
    pub(crate) fn set(&self, states: Vec<(NeededPath, PathState)>) {
        self.states.get_or_init(|| states);
    }

    fn states(&self) -> &[(NeededPath, PathState)] {
        self.states.get().map(Vec::as_slice).unwrap_or_default()
    }

    fn state_of(&self, needed: &NeededPath) -> Option<&PathState> {
        self.states().iter().find(|(known, _)| known == needed).map(|(_, state)| state)
    }

    /// Returns the reason why a path of a skill is not available.
    pub(crate) fn problem_of(&self, skill: &PlannedSkill) -> Option<&str> {
        skill.needs_paths.iter().find_map(|needed| match self.state_of(needed)? {
            PathState::Unavailable(reason) => Some(reason.as_str()),
            PathState::InTree { .. } | PathState::Stored(_) | PathState::Unprepared(_) => None,
        })
    }

    /// Returns whether every path of a skill is in the tree or stored.
    pub(crate) fn are_available(&self, skill: &PlannedSkill) -> bool {
        let is_available =
            |needed| matches!(self.state_of(needed), Some(PathState::InTree { .. } | PathState::Stored(_)));
        skill.needs_paths.iter().all(is_available)
    }

    /// Returns which command would prepare a path of a skill first, in a preview.
    pub(crate) fn missing_preparation(&self, skill: &PlannedSkill) -> Option<&str> {
        skill.needs_paths.iter().find_map(|needed| match self.state_of(needed)? {
            PathState::Unprepared(command) => Some(command.as_str()),
            PathState::InTree { .. } | PathState::Stored(_) | PathState::Unavailable(_) => None,
        })
    }

    /// Returns whether the program of a command is in a path that is not available.
    pub(crate) fn lacks_program(&self, cmd: &Argv) -> bool {
        let is_unavailable = |state: &PathState| matches!(state, PathState::Unavailable(_));
        self.states().iter().any(|(needed, state)| is_unavailable(state) && has_program(&needed.path, cmd))
    }

    /// Returns the stored paths that a skill needs.
    fn stored<'s>(&'s self, skill: &'s PlannedSkill) -> impl Iterator<Item = (&'s RelPath, &'s HeldPath)> {
        skill.needs_paths.iter().filter_map(|needed| match self.state_of(needed)? {
            PathState::Stored(held) => Some((&needed.path, held.as_ref())),
            PathState::InTree { .. } | PathState::Unavailable(_) | PathState::Unprepared(_) => None,
        })
    }

    /// Returns the paths that are mounted for the steps of a skill.
    pub(crate) fn mounted_paths(&self, skill: &PlannedSkill) -> Vec<RelPath> {
        self.stored(skill).map(|(path, _)| path.clone()).collect()
    }

    /// Returns the identity of the stored paths that are mounted for the steps of a skill. A path that is in the tree is
    /// not mounted, and the view observes it.
    pub(crate) fn mounted_directories(&self, caches: &RunCaches, skill: &PlannedSkill) -> Vec<MountedDirectory> {
        let is_copy = !matches!(caches.form, CacheForm::Layers);
        let directory = |(path, held): (&RelPath, &HeldPath)| {
            let origin = match &held.record.scope.origin {
                PathOrigin::Worktree => NeededPathOrigin::Worktree,
                PathOrigin::Command { .. } => NeededPathOrigin::Command,
            };
            let ContentDigest { sha256, modified_sha256, .. } = held.record.content.clone();
            let modified_sha256 = Some(modified_sha256);
            let content = MountedContent::NeededPath { origin, sha256, modified_sha256, is_copy };
            MountedDirectory { path: path.to_string(), content }
        };
        self.stored(skill).map(directory).collect()
    }

    /// Returns the mounts for the steps of a skill. All steps of the skill share them.
    ///
    /// # Errors
    /// The state directory cannot be written.
    pub(crate) fn mounts(&self, caches: &RunCaches, skill: &PlannedSkill) -> Result<Vec<CacheMount>, SkillCacheError> {
        let known = self.all_mounts().get(&skill.name).cloned();
        let made = match known {
            Some(known) => known,
            None => {
                let made = self.stored(skill).map(|(path, held)| mount(caches, path, held));
                let made = Arc::new(made.collect::<Result<_, _>>()?);
                // If another task was faster, its mounts are used.
                Arc::clone(self.all_mounts().entry(skill.name.clone()).or_insert(made))
            }
        };
        Ok(made.iter().map(|needed| needed.mount.clone()).collect())
    }

    /// Returns the paths that the steps of a skill changed.
    ///
    /// # Errors
    /// The state directory cannot be read.
    pub(crate) fn changed_paths(&self, skill: &PlannedSkill) -> Result<Vec<RelPath>, SkillCacheError> {
        let Some(mounts) = self.all_mounts().get(&skill.name).cloned() else { return Ok(vec![]) };
        let mut changed = Vec::new();
        for needed in mounts.iter() {
            if needed.is_changed()? {
                changed.push(needed.mount.at.clone());
            }
        }
        Ok(changed)
    }

    /// Returns the reason why workers cannot get a path of a skill.
    pub(crate) fn worker_obstacle(&self, skill: &PlannedSkill) -> Option<String> {
        skill.needs_paths.iter().find_map(|needed| match self.state_of(needed) {
            Some(PathState::Stored(_)) => None,
            Some(PathState::InTree { not_copied: Some(reason) }) => Some(reason.clone()),
            Some(PathState::Unavailable(reason) | PathState::Unprepared(reason)) => Some(reason.clone()),
            Some(PathState::InTree { not_copied: None }) | None => {
                Some(format!("`{}` of `needs_paths` has no copy", needed.path))
            }
        })
    }

    /// Returns the stored paths that a worker gets for a step of a skill after checks with these commands: those of the
    /// skill, and those with the program of a check.
    pub(crate) fn for_worker(&self, skill: &PlannedSkill, checks: &[&Argv]) -> Vec<PathForWorker> {
        let mut paths: Vec<PathForWorker> = Vec::new();
        for (needed, state) in self.states() {
            let PathState::Stored(held) = state else { continue };
            let is_of_skill = skill.needs_paths.contains(needed);
            let overlaps = |known: &NeededPath| {
                let (one, other) = (Path::new(known.path.as_str()), Path::new(needed.path.as_str()));
                one.starts_with(other) || other.starts_with(one)
            };
            let is_checked = || checks.iter().any(|cmd| has_program(&needed.path, cmd));
            let is_for_checks_only = !is_of_skill && !skill.needs_paths.iter().any(overlaps) && is_checked();
            let is_known = paths.iter().any(|known| known.at == needed.path);
            if is_of_skill || (is_for_checks_only && !is_known) {
                paths.push(PathForWorker { at: needed.path.clone(), held: Arc::clone(held), is_for_checks_only });
            }
        }
        paths
    }

    /// Returns the writes of earlier steps of a skill to its paths: for each path, the directories of an overlay, oldest
    /// first.
    ///
    /// # Errors
    /// The state directory cannot be read, or the writes are not in such directories.
    pub(crate) fn writes(&self, skill: &PlannedSkill) -> Result<Vec<(RelPath, Vec<PathBuf>)>, SkillCacheError> {
        let Some(mounts) = self.all_mounts().get(&skill.name).cloned() else { return Ok(vec![]) };
        let mut writes = Vec::new();
        for needed in mounts.iter().filter(|needed| needed.is_changed().unwrap_or(true)) {
            let at = &needed.mount.at;
            if let Baseline::Copy(_) = needed.baseline {
                return Err(SkillCacheError::with_reason("list the changes of", at.as_str(), NO_OVERLAYS));
            }
            let newest = needed.mount.source.upper();
            writes.push((at.clone(), needed.sealed.iter().rev().cloned().chain([newest]).collect()));
        }
        Ok(writes)
    }

    /// Adds the writes of a step on a worker to the paths of its skill, so that later steps of the skill see them.
    /// `fill` creates the writes to one path in an empty upper directory for the given owner. If `fill` fails for one
    /// path, nothing is added.
    ///
    /// # Errors
    /// The state directory cannot be written, there are no overlays, or `fill` fails.
    pub(crate) fn add_writes<T, E: From<SkillCacheError>>(
        &self,
        (caches, space): (&RunCaches, &RunSpace),
        (skill, writes): (&PlannedSkill, &BTreeMap<RelPath, T>),
        fill: impl Fn(BorrowedFd<'_>, Option<(u32, u32)>, &T) -> Result<(), E>,
    ) -> Result<(), E> {
        if writes.is_empty() {
            return Ok(());
        }
        self.mounts(caches, skill)?;
        let mut mounts = self.all_mounts().get(&skill.name).map(|known| (**known).clone()).unwrap_or_default();
        let mut filled = Vec::new();
        for (path, content) in writes {
            let Some(position) = mounts.iter().position(|needed| needed.mount.at == *path) else {
                return Err(SkillCacheError::with_reason("change", path.as_str(), "it is not mounted").into());
            };
            let CacheSource::Layers { lowers, .. } = &mounts[position].mount.source else {
                return Err(SkillCacheError::with_reason("change", path.as_str(), NO_OVERLAYS).into());
            };
            let (_, room) = caches.create_room().map_err(SkillCacheError::from)?;
            let newest = room.join(CACHE_UPPER);
            let directory = Directory::open(&newest).map_err(SkillCacheError::from)?;
            let owner = caches.copies_owner();
            fill(directory.as_fd(), owner, content)?;
            prepared::set_owner(&directory, owner)?;
            filled.push((position, newest, lowers.clone()));
        }
        for (position, newest, lowers) in filled {
            let needed = &mut mounts[position];
            // No sandbox may have the overlay mounted while its upper directory becomes a lower one.
            space.release_cache(&needed.mount.source);
            let upper = Directory::open(&needed.mount.source.upper()).map_err(SkillCacheError::from)?;
            let is_empty = upper.entries(1).map_err(SkillCacheError::from)?.is_empty();
            let mut newer = vec![newest];
            if !is_empty {
                prepared::seal_writes(&upper, caches.committed_owner())?;
                newer.push(needed.mount.source.upper());
            }
            let (_, room) = caches.create_room().map_err(SkillCacheError::from)?;
            needed.mount.source = CacheSource::Layers { room, lowers: newer.iter().cloned().chain(lowers).collect() };
            needed.sealed.splice(0..0, newer);
        }
        self.all_mounts().insert(skill.name.clone(), Arc::new(mounts));
        Ok(())
    }

    /// Releases the mounts of all skills, so that their layers can be removed. Skills that run later get new ones.
    pub(crate) fn release_mounts(&self, space: &RunSpace) {
        let released = std::mem::take(&mut *self.all_mounts());
        let mounts = released.values().flat_map(|mounts| mounts.iter());
        mounts.for_each(|needed| space.release_cache(&needed.mount.source));
    }

    /// Returns the record of the stored paths.
    pub(crate) fn inputs(&self) -> Vec<UnverifiedInput> {
        let mut inputs: Vec<UnverifiedInput> = self
            .states()
            .iter()
            .filter_map(|(needed, state)| match state {
                PathState::Stored(held) => Some(record_input(&needed.path, held)),
                PathState::InTree { .. } | PathState::Unavailable(_) | PathState::Unprepared(_) => None,
            })
            .collect();
        inputs.dedup();
        inputs
    }

    fn all_mounts(&self) -> MutexGuard<'_, BTreeMap<SkillName, Arc<Vec<NeededMount>>>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether the program of a command is in a path.
fn has_program(path: &RelPath, cmd: &Argv) -> bool {
    cmd.program().strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the mount of a stored path, with a new directory for the writes.
fn mount(caches: &RunCaches, path: &RelPath, held: &HeldPath) -> Result<NeededMount, SkillCacheError> {
    let (_, room) = caches.create_room()?;
    let (source, baseline) = match &caches.form {
        CacheForm::Layers => {
            let mode = directory_mode(&room.join(CACHE_UPPER))?;
            (CacheSource::Layers { room, lowers: vec![held.content.clone()] }, Baseline::NoWrites { mode })
        }
        CacheForm::Copy { .. } | CacheForm::Empty { .. } => {
            CacheStore::copy_directory(open_directory(&held.content)?, &room, caches.copies_owner())?;
            let copy = room.join(CACHE_UPPER);
            let seal = prepared::stat_digest(open_directory(&copy)?.as_fd())?;
            (CacheSource::Directory(copy), Baseline::Copy(seal))
        }
    };
    Ok(NeededMount { mount: CacheMount { at: path.clone(), source }, baseline, sealed: Vec::new() })
}

/// Opens a directory of the state directory for reading.
fn open_directory(path: &Path) -> Result<std::os::fd::OwnedFd, SkillCacheError> {
    let opened = Directory::open(path)?.as_fd().try_clone_to_owned();
    opened.map_err(|source| directory_error("open", path, source))
}

/// Returns the mode of a directory of the state directory.
fn directory_mode(path: &Path) -> Result<RawMode, SkillCacheError> {
    let stat = rustix::fs::lstat(path).map_err(|errno| directory_error("examine", path, errno.into()))?;
    Ok(stat.st_mode)
}

fn directory_error(action: &'static str, path: &Path, source: std::io::Error) -> SkillCacheError {
    SkillCacheError::Entry { action, path: display_path(path.as_os_str().as_encoded_bytes()), source }
}

fn record_input(path: &RelPath, held: &HeldPath) -> UnverifiedInput {
    let record = &held.record;
    let prepared = record.command.as_ref().map(|command| PreparedInput {
        cmd: command.cmd.clone(),
        key: command.key.clone(),
        scope: match &record.scope.origin {
            PathOrigin::Command { trust_scope, .. } => trust_scope.clone(),
            PathOrigin::Worktree => String::new(),
        },
        network: command.network,
        at: command.at.clone(),
    });
    UnverifiedInput {
        path: path.to_string(),
        kind: InputKind::Directory,
        files: record.content.files,
        bytes: record.content.bytes,
        sha256: Some(record.content.sha256.clone()),
        permissions: None,
        shown: InputShown::Mounted,
        prepared,
        reason: None,
    }
}
