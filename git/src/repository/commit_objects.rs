//! Reads the objects that a git directory needs without its history: a commit with its trees and blobs, the tags that
//! lead to it, and the blobs of the index.

use std::collections::HashSet;

use crate::error::GitError;
use crate::index::GITLINK_MODE;
use crate::object::object_id::{ObjectId, ObjectKind};
use crate::object::object_pack::{self, PackedObject};
use crate::object::object_parser;
use crate::object::tree_identity::TREE_MODE;
use crate::protocol::{CommitObjects, MAX_OBJECT_BYTES, MAX_OBJECTS, ObjectBound, WantedObjects};
use crate::repository::commit_tree::open_commit::OpenCommit;
use crate::repository::history::RepositoryHistory;

/// Maximum length of a chain of tags.
const MAX_TAGS: usize = 64;

/// Returns the wanted objects, or the bound that they exceed.
pub(crate) fn read_objects(history: &RepositoryHistory<'_>, wanted: &WantedObjects) -> Result<CommitObjects, GitError> {
    read_bounded(history, wanted, Budget { objects: MAX_OBJECTS, bytes: MAX_OBJECT_BYTES })
}

fn read_bounded(
    history: &RepositoryHistory<'_>,
    wanted: &WantedObjects,
    budget: Budget,
) -> Result<CommitObjects, GitError> {
    let source = OpenCommit::open(history, &wanted.commit.to_string())?;
    let has_parents = source.commit.has_parents;
    let (seen, objects, tags) = (HashSet::new(), Vec::new(), Vec::new());
    let mut selected = SelectedObjects { history, source: &source, budget, seen, objects, tags };
    match selected.read(wanted) {
        Ok(()) => {
            let packs = object_pack::encode_packs(wanted.commit.format(), selected.objects);
            Ok(CommitObjects { exceeded: None, has_parents, tags: selected.tags, packs })
        }
        Err(Stop::Exceeded(bound)) => {
            Ok(CommitObjects { exceeded: Some(bound), has_parents, ..CommitObjects::default() })
        }
        Err(Stop::Failed(error)) => Err(error),
    }
}

/// The remaining number of objects, and their size in bytes.
#[derive(Debug, Clone, Copy)]
struct Budget {
    objects: usize,
    bytes: u64,
}

impl Budget {
    fn charge(&mut self, bytes: u64) -> Result<(), Stop> {
        self.objects = self.objects.checked_sub(1).ok_or(Stop::Exceeded(ObjectBound::Objects))?;
        self.bytes = self.bytes.checked_sub(bytes).ok_or(Stop::Exceeded(ObjectBound::Bytes))?;
        Ok(())
    }
}

/// The reason why reading ended early.
enum Stop {
    Exceeded(ObjectBound),
    Failed(GitError),
}

impl From<GitError> for Stop {
    fn from(error: GitError) -> Self {
        Self::Failed(error)
    }
}

/// The objects that were read so far.
struct SelectedObjects<'a> {
    history: &'a RepositoryHistory<'a>,
    source: &'a OpenCommit<'a>,
    budget: Budget,
    seen: HashSet<ObjectId>,
    objects: Vec<PackedObject>,
    tags: Vec<ObjectId>,
}

impl SelectedObjects<'_> {
    fn read(&mut self, wanted: &WantedObjects) -> Result<(), Stop> {
        self.require(wanted.commit, ObjectKind::Commit)?;
        let mut trees = vec![self.source.tree_id()];
        while let Some(id) = trees.pop() {
            if self.seen.contains(&id) {
                continue;
            }
            let content = self.require(id, ObjectKind::Tree)?;
            let entries = object_parser::parse_tree(id.format(), &content)
                .ok_or_else(|| self.history.unreadable(format!("the tree {id} is malformed")))?;
            for entry in entries {
                match entry.mode {
                    TREE_MODE => trees.push(entry.id),
                    // The commit of a submodule is an object of another repository.
                    GITLINK_MODE => {}
                    _ => self.add_blob(entry.id)?,
                }
            }
        }
        wanted.blobs.iter().try_for_each(|id| self.add_blob(*id))?;
        wanted.tags.iter().try_for_each(|id| self.add_tags(*id, wanted.commit))
    }

    /// Adds a blob, unless the repository lacks it: git needs a blob only if a command reads its content.
    fn add_blob(&mut self, id: ObjectId) -> Result<(), Stop> {
        if !self.seen.contains(&id) && self.header(id)?.is_some_and(|(kind, _)| kind == ObjectKind::Blob) {
            self.require(id, ObjectKind::Blob)?;
        }
        Ok(())
    }

    /// Adds the tags from `id` to the commit, if `id` is such a tag.
    fn add_tags(&mut self, id: ObjectId, commit: ObjectId) -> Result<(), Stop> {
        let (mut chain, mut at) = (Vec::new(), id);
        while chain.len() < MAX_TAGS && self.header(at)?.is_some_and(|(kind, _)| kind == ObjectKind::Tag) {
            let content = self.content(at, ObjectKind::Tag)?;
            chain.push(at);
            match object_parser::parse_tag_target(at.format(), &content) {
                Some(target) => at = target,
                None => return Ok(()),
            }
        }
        if at != commit || chain.is_empty() {
            return Ok(());
        }
        self.tags.push(id);
        for tag in chain {
            if !self.seen.contains(&tag) {
                self.require(tag, ObjectKind::Tag)?;
            }
        }
        Ok(())
    }

    /// Reads an object, adds it, and returns its content.
    fn require(&mut self, id: ObjectId, kind: ObjectKind) -> Result<Vec<u8>, Stop> {
        let size = self.header(id)?.map_or(0, |(_, size)| size);
        self.budget.charge(size)?;
        let content = self.content(id, kind)?;
        let object = PackedObject::encode(id, kind, &content);
        self.objects.push(object.map_err(|error| self.history.unreadable(error.to_string()))?);
        self.seen.insert(id);
        Ok(content)
    }

    fn header(&self, id: ObjectId) -> Result<Option<(ObjectKind, u64)>, GitError> {
        self.source.objects.read_header(id).map_err(|error| self.history.unreadable(error.to_string()))
    }

    fn content(&self, id: ObjectId, kind: ObjectKind) -> Result<Vec<u8>, GitError> {
        match self.source.objects.read(id).map_err(|error| self.history.unreadable(error.to_string()))? {
            Some((found, content)) if found == kind => Ok(content.into_owned()),
            Some((found, _)) => {
                let (found, kind) = (found.as_str(), kind.as_str());
                Err(self.history.unreadable(format!("{id} is a {found}, not a {kind}")))
            }
            None => Err(self.history.unreadable(format!("the {} {id} is missing", kind.as_str()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use git2::{Repository, Signature};

    use super::*;
    use crate::repository::object_reader::from_oid;

    fn write_commit(repository: &Repository) -> ObjectId {
        let blob = repository.blob(b"content").expect("a blob");
        let mut tree = repository.treebuilder(None).expect("a tree");
        tree.insert("a", blob, 0o100_644).expect("an entry");
        tree.insert("b", blob, 0o100_755).expect("an entry");
        let tree = repository.find_tree(tree.write().expect("written")).expect("a tree");
        let author = Signature::now("a", "a@example.com").expect("an author");
        from_oid(repository.commit(None, &author, &author, "m", &tree, &[]).expect("a commit")).expect("an id")
    }

    #[test]
    fn exceeded_bound_results_in_no_objects() {
        let directory = tempfile::tempdir().expect("a directory");
        let commit = write_commit(&Repository::init(directory.path()).expect("a repository"));
        let history = RepositoryHistory::open(directory.path(), None).unwrap_or_else(|error| panic!("{error}"));
        let wanted = WantedObjects { commit, tags: vec![commit], blobs: Vec::new() };
        let read = |objects, bytes| read_bounded(&history, &wanted, Budget { objects, bytes }).expect("read");
        // A commit, a tree and a blob. Blobs are in another pack.
        let complete = read(3, 1000);
        assert_eq!((complete.exceeded, complete.has_parents, complete.packs.len()), (None, false, 2));
        for (objects, bytes, bound) in [(2, 1000, ObjectBound::Objects), (3, 10, ObjectBound::Bytes)] {
            let found = read(objects, bytes);
            assert_eq!((found.exceeded, found.packs), (Some(bound), Vec::new()));
        }
    }
}
