//! Reads the git objects that workers get: those of HEAD and of the index. The same commit is verified repeatedly, so
//! the objects of the last tree are kept.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use proctor_core::text::digest::Sha256Hex;
use proctor_git::helper::GitHelper;
use proctor_git::object::object_id::ObjectId;
use proctor_git::object::object_pack::ObjectPack;
use proctor_git::protocol::{CommitObjects, WantedObjects};
use proctor_remote::{BlobDigest, Bytes};

use crate::error::one_line;

/// Maximum size of the objects that are remembered, in bytes.
const MAX_REMEMBERED: usize = 64 << 20;

/// The git objects for a worker.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GitObjects {
    /// The files below `objects/`.
    pub(crate) files: Vec<ObjectFile>,
    /// The commit of HEAD, if it has parents: workers do not get them.
    pub(crate) cut: Option<ObjectId>,
    /// The ids of the refs that workers get: the commit and its tags.
    refs: BTreeSet<String>,
}

/// A file below `objects/`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ObjectFile {
    pub(crate) path: String,
    pub(crate) digest: BlobDigest,
    pub(crate) content: Bytes,
}

impl GitObjects {
    pub(super) fn new(commit: ObjectId, found: CommitObjects) -> Self {
        let file = |(path, content)| {
            let content = Bytes::from(content);
            ObjectFile { path, digest: BlobDigest::for_bytes(&content), content }
        };
        let files = found.packs.into_iter().flat_map(ObjectPack::into_files).map(file).collect();
        let cut = found.has_parents.then_some(commit);
        Self { files, cut, refs: found.tags.into_iter().chain([commit]).map(|id| id.to_string()).collect() }
    }

    /// Returns the refs whose objects are here, of those in the format of `packed-refs`.
    pub(super) fn select_refs(&self, refs: &[u8]) -> Vec<u8> {
        let is_known = |line: &&[u8]| {
            let id = line.split(|byte| *byte == b' ').next().unwrap_or_default();
            std::str::from_utf8(id).is_ok_and(|id| self.refs.contains(id))
        };
        refs.split_inclusive(|byte| *byte == b'\n').filter(is_known).flatten().copied().collect()
    }
}

/// Reads git objects, and remembers those of the last tree.
#[derive(Debug, Default)]
pub(crate) struct GitObjectReader {
    last: Mutex<Option<(Sha256Hex, Arc<GitObjects>)>>,
}

impl GitObjectReader {
    /// Returns the objects that the git directory `git` of a private copy of `repo` needs; `None` if there is no commit.
    /// Blocks the thread.
    ///
    /// # Errors
    /// The reason why there are no objects, in one line.
    pub(crate) fn read(&self, helper: &GitHelper, repo: &Path, git: &Path) -> Result<Option<Arc<GitObjects>>, String> {
        if !is_directory(git) {
            return Ok(None);
        }
        let wanted = WantedObjects::for_git_dir(git).map_err(|error| error.to_string())?;
        let Some(wanted) = wanted else { return Ok(None) };
        let key = serde_json::to_vec(&wanted).map_err(|error| error.to_string())?;
        let key = Sha256Hex::digest(&key);
        if let Some(known) = self.remembered(&key) {
            return Ok(Some(known));
        }
        let found = helper.objects(repo, &wanted).map_err(|error| one_line(&error))?;
        if let Some(bound) = found.exceeded {
            return Err(bound.to_string());
        }
        let objects = Arc::new(GitObjects::new(wanted.commit, found));
        self.remember(key, &objects);
        Ok(Some(objects))
    }

    fn remembered(&self, key: &Sha256Hex) -> Option<Arc<GitObjects>> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.as_ref().filter(|(known, _)| known == key).map(|(_, objects)| Arc::clone(objects))
    }

    fn remember(&self, key: Sha256Hex, objects: &Arc<GitObjects>) {
        let bytes: usize = objects.files.iter().map(|file| file.content.len()).sum();
        if bytes <= MAX_REMEMBERED {
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some((key, Arc::clone(objects)));
        }
    }
}

/// Returns whether a path is a directory, and not a link to one.
pub(super) fn is_directory(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_dir())
}
