//! The id that `git write-tree` would give the index, without writing an object.

use git2::{ObjectType, Oid};

/// One file of the index.
pub(super) struct IndexFile<'a> {
    pub(super) path: &'a [u8],
    pub(super) mode: u32,
    pub(super) id: Oid,
}

const TREE_MODE: u32 = 0o40000;

/// The id of the tree of `files`, which are in the order of the index: by the bytes of their
/// paths. That is git's order inside each tree too, where a directory sorts as if its name
/// ended in `/`.
pub(super) fn tree_id(files: &[IndexFile<'_>]) -> Result<Oid, git2::Error> {
    level(files, 0)
}

fn level(files: &[IndexFile<'_>], depth: usize) -> Result<Oid, git2::Error> {
    let mut object = Vec::new();
    let mut rest = files;
    while let Some(first) = rest.first() {
        let tail = &first.path[depth..];
        let (mode, name, id, count) = match tail.iter().position(|b| *b == b'/') {
            None => (first.mode, tail, first.id, 1),
            Some(end) => {
                let prefix = &first.path[..=depth + end];
                let count = rest.iter().take_while(|file| file.path.starts_with(prefix)).count();
                (TREE_MODE, &tail[..end], level(&rest[..count], prefix.len())?, count)
            }
        };
        object.extend_from_slice(format!("{mode:o} ").as_bytes());
        object.extend_from_slice(name);
        object.push(0);
        object.extend_from_slice(id.as_bytes());
        rest = &rest[count..];
    }
    Oid::hash_object(ObjectType::Tree, &object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_tree_has_gits_own_id() {
        let id = tree_id(&[]).expect("hashes").to_string();
        assert_eq!(id, "4b825dc642cb6eb9a060e54bf8d69288fbee4904");
    }
}
