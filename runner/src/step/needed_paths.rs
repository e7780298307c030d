//! Mounts the paths that skills need and that no commit contains. Each skill writes to a separate layer above the
//! stored content; the layer is discarded when the run ends.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use proctor_core::model::drift::display_path;
use proctor_core::model::names::SkillName;
use proctor_core::model::plan::{Argv, NeededPath, PlannedSkill, RelPath};
use proctor_core::record::unverified_inputs::{InputKind, InputShown, PreparedInput, UnverifiedInput};
use proctor_core::reuse::{MountedContent, MountedDirectory, NeededPathOrigin};
use proctor_core::text::digest::Sha256Hex;
use proctor_sandbox::{CACHE_UPPER, CacheForm, CacheMount, CacheSource, RunSpace};

use crate::step::skill_caches::RunCaches;
use crate::store::caches::prepared::{self, HeldPath, PathOrigin};
use crate::store::caches::{CacheStore, SkillCacheError};
use crate::store::directory::Directory;

/// The availability of a needed path in a run.
#[derive(Debug)]
pub(crate) enum PathState {
    /// The path is in the tree that steps see, among the ignored files of the worktree.
    InTree,
    /// The path is stored and is mounted for the skills that need it.
    Stored(Box<HeldPath>),
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

/// The mounts of the needed paths of one skill, with what shows later whether a step changed them.
type NeededMounts = Vec<(CacheMount, Baseline)>;

/// The state of a mount before the first step.
#[derive(Debug, Clone)]
enum Baseline {
    /// The directory for writes is empty.
    NoWrites,
    /// The mount is a copy, whose names and stat data have this digest.
    Copy(Sha256Hex),
}

/// The needed paths of one run.
#[derive(Debug, Default)]
pub(crate) struct NeededPaths {
    /// Set before the first command.
    states: OnceLock<Vec<(NeededPath, PathState)>>,
    /// The mounts of each skill.
    mounts: Mutex<BTreeMap<SkillName, Arc<NeededMounts>>>,
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
            PathState::InTree | PathState::Stored(_) | PathState::Unprepared(_) => None,
        })
    }

    /// Returns whether every path of a skill is in the tree or stored.
    pub(crate) fn are_available(&self, skill: &PlannedSkill) -> bool {
        let is_available = |needed| matches!(self.state_of(needed), Some(PathState::InTree | PathState::Stored(_)));
        skill.needs_paths.iter().all(is_available)
    }

    /// Returns which command would prepare a path of a skill first, in a preview.
    pub(crate) fn missing_preparation(&self, skill: &PlannedSkill) -> Option<&str> {
        skill.needs_paths.iter().find_map(|needed| match self.state_of(needed)? {
            PathState::Unprepared(command) => Some(command.as_str()),
            PathState::InTree | PathState::Stored(_) | PathState::Unavailable(_) => None,
        })
    }

    /// Returns whether the program of a command is in a path that is not available.
    pub(crate) fn lacks_program(&self, cmd: &Argv) -> bool {
        let is_below =
            |path: &RelPath| cmd.program().strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'));
        self.states().iter().any(|(needed, state)| matches!(state, PathState::Unavailable(_)) && is_below(&needed.path))
    }

    /// Returns the stored paths that a skill needs.
    fn stored<'s>(&'s self, skill: &'s PlannedSkill) -> impl Iterator<Item = (&'s RelPath, &'s HeldPath)> {
        skill.needs_paths.iter().filter_map(|needed| match self.state_of(needed)? {
            PathState::Stored(held) => Some((&needed.path, held.as_ref())),
            PathState::InTree | PathState::Unavailable(_) | PathState::Unprepared(_) => None,
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
            let sha256 = held.record.content.sha256.clone();
            let content = MountedContent::NeededPath { origin, sha256, is_copy };
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
        Ok(made.iter().map(|(mount, _)| mount.clone()).collect())
    }

    /// Returns the paths that the steps of a skill changed.
    ///
    /// # Errors
    /// The state directory cannot be read.
    pub(crate) fn changed_paths(&self, skill: &PlannedSkill) -> Result<Vec<RelPath>, SkillCacheError> {
        let Some(mounts) = self.all_mounts().get(&skill.name).cloned() else { return Ok(vec![]) };
        let mut changed = Vec::new();
        for (mount, baseline) in mounts.iter() {
            let upper = Directory::open(&mount.source.upper())?;
            let is_changed = match baseline {
                Baseline::NoWrites => !upper.entries(1)?.is_empty(),
                Baseline::Copy(seal) => prepared::source_state(upper.as_fd(), None)? != *seal,
            };
            if is_changed {
                changed.push(mount.at.clone());
            }
        }
        Ok(changed)
    }

    /// Releases the mounts of all skills, so that their layers can be removed. Skills that run later get new ones.
    pub(crate) fn release_mounts(&self, space: &RunSpace) {
        let released = std::mem::take(&mut *self.all_mounts());
        released.values().flat_map(|mounts| mounts.iter()).for_each(|(mount, _)| space.release_cache(&mount.source));
    }

    /// Returns the record of the stored paths.
    pub(crate) fn inputs(&self) -> Vec<UnverifiedInput> {
        let mut inputs: Vec<UnverifiedInput> = self
            .states()
            .iter()
            .filter_map(|(needed, state)| match state {
                PathState::Stored(held) => Some(record_input(&needed.path, held)),
                PathState::InTree | PathState::Unavailable(_) | PathState::Unprepared(_) => None,
            })
            .collect();
        inputs.dedup();
        inputs
    }

    fn all_mounts(&self) -> MutexGuard<'_, BTreeMap<SkillName, Arc<NeededMounts>>> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the mount of a stored path, with a new directory for the writes.
fn mount(caches: &RunCaches, path: &RelPath, held: &HeldPath) -> Result<(CacheMount, Baseline), SkillCacheError> {
    let (_, room) = caches.create_room()?;
    let (source, baseline) = match &caches.form {
        CacheForm::Layers => (CacheSource::Layers { room, lowers: vec![held.content.clone()] }, Baseline::NoWrites),
        CacheForm::Copy { .. } | CacheForm::Empty { .. } => {
            CacheStore::copy_directory(open_directory(&held.content)?, &room, caches.copies_owner())?;
            let copy = room.join(CACHE_UPPER);
            let seal = prepared::source_state(open_directory(&copy)?.as_fd(), None)?;
            (CacheSource::Directory(copy), Baseline::Copy(seal))
        }
    };
    Ok((CacheMount { at: path.clone(), source }, baseline))
}

/// Opens a directory of the state directory for reading.
fn open_directory(path: &Path) -> Result<std::os::fd::OwnedFd, SkillCacheError> {
    let opened = Directory::open(path)?.as_fd().try_clone_to_owned();
    opened.map_err(|source| SkillCacheError::Entry {
        action: "open",
        path: display_path(path.as_os_str().as_encoded_bytes()),
        source,
    })
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
