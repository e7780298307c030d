//! Builds a Merkle tree from entries whose digests are known.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message as _;

use super::{MAX_DEPTH, MAX_ENTRIES, MerkleError, MerkleTree};
use crate::blob::{BlobDigest, BlobSource};
use crate::messages::{Directory, DirectoryNode, FileNode, SymlinkNode};

/// A tree that is being built.
#[derive(Debug, Default)]
pub struct TreeBuilder {
    top: BuiltDirectory,
    blobs: BTreeMap<BlobDigest, BlobSource>,
    entries: usize,
}

/// The entries of a directory, sorted by name as the API requires.
#[derive(Debug, Default)]
struct BuiltDirectory {
    entries: BTreeMap<String, BuiltEntry>,
}

#[derive(Debug)]
enum BuiltEntry {
    File {
        digest: BlobDigest,
        is_executable: bool,
    },
    Symlink {
        target: String,
    },
    Directory(BuiltDirectory),
    /// A directory whose blobs have already been built.
    Tree(BlobDigest),
}

impl TreeBuilder {
    /// Adds a file.
    ///
    /// # Errors
    /// The path is not usable, or the tree is too large.
    pub fn file(
        &mut self,
        path: &str,
        digest: BlobDigest,
        is_executable: bool,
        source: BlobSource,
    ) -> Result<(), MerkleError> {
        self.insert(path, BuiltEntry::File { digest: digest.clone(), is_executable })?;
        self.blobs.insert(digest, source);
        Ok(())
    }

    /// Adds a file with this content.
    ///
    /// # Errors
    /// Those of [`TreeBuilder::file`].
    pub fn content(&mut self, path: &str, content: impl Into<Bytes>) -> Result<(), MerkleError> {
        let content = content.into();
        self.file(path, BlobDigest::for_bytes(&content), false, BlobSource::Bytes(content))
    }

    /// Adds a symbolic link.
    ///
    /// # Errors
    /// Those of [`TreeBuilder::file`].
    pub fn symlink(&mut self, path: &str, target: String) -> Result<(), MerkleError> {
        self.insert(path, BuiltEntry::Symlink { target })
    }

    /// Adds a directory, unless there is one.
    ///
    /// # Errors
    /// Those of [`TreeBuilder::file`].
    pub fn directory(&mut self, path: &str) -> Result<(), MerkleError> {
        self.count(path)?;
        self.top.descend(path, path).map(|_| ())
    }

    /// Adds the tree with this digest, whose blobs are stored elsewhere.
    ///
    /// # Errors
    /// Those of [`TreeBuilder::file`].
    pub fn tree(&mut self, path: &str, root: BlobDigest) -> Result<(), MerkleError> {
        self.insert(path, BuiltEntry::Tree(root))
    }

    /// Returns the tree with its blobs.
    pub fn finish(self) -> MerkleTree {
        let mut blobs = self.blobs;
        let root = self.top.encode(&mut blobs);
        MerkleTree { root, blobs }
    }

    fn count(&mut self, path: &str) -> Result<(), MerkleError> {
        self.entries += 1;
        if self.entries > MAX_ENTRIES || path.split('/').count() > MAX_DEPTH {
            return Err(MerkleError::TooLarge(path.into()));
        }
        Ok(())
    }

    fn insert(&mut self, path: &str, entry: BuiltEntry) -> Result<(), MerkleError> {
        self.count(path)?;
        let (directory, name) = match path.rsplit_once('/') {
            Some((parent, name)) => (self.top.descend(parent, path)?, name),
            None => (&mut self.top, path),
        };
        if !is_name(name) || directory.entries.contains_key(name) {
            return Err(MerkleError::BadPath(path.to_owned()));
        }
        directory.entries.insert(name.to_owned(), entry);
        Ok(())
    }
}

fn is_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains('\0')
}

impl BuiltDirectory {
    /// Returns the directory at `path`, and creates what is missing. `whole` is the path for the error.
    fn descend(&mut self, path: &str, whole: &str) -> Result<&mut Self, MerkleError> {
        let mut directory = self;
        for name in path.split('/') {
            if !is_name(name) {
                return Err(MerkleError::BadPath(whole.to_owned()));
            }
            let entry =
                directory.entries.entry(name.to_owned()).or_insert_with(|| BuiltEntry::Directory(Self::default()));
            match entry {
                BuiltEntry::Directory(below) => directory = below,
                _ => return Err(MerkleError::BadPath(whole.to_owned())),
            }
        }
        Ok(directory)
    }

    fn encode(self, blobs: &mut BTreeMap<BlobDigest, BlobSource>) -> BlobDigest {
        let mut message = Directory::default();
        for (name, entry) in self.entries {
            match entry {
                BuiltEntry::File { digest, is_executable } => {
                    message.files.push(FileNode { name, digest: Some(digest.to_message()), is_executable });
                }
                BuiltEntry::Symlink { target } => message.symlinks.push(SymlinkNode { name, target }),
                BuiltEntry::Directory(below) => {
                    let digest = Some(below.encode(blobs).to_message());
                    message.directories.push(DirectoryNode { name, digest });
                }
                BuiltEntry::Tree(root) => {
                    message.directories.push(DirectoryNode { name, digest: Some(root.to_message()) });
                }
            }
        }
        let content = message.encode_to_vec();
        let digest = BlobDigest::for_bytes(&content);
        blobs.insert(digest.clone(), BlobSource::Bytes(Bytes::from(content)));
        digest
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of the test")]
    fn built_tree_equals_the_tree_of_the_directory() {
        let top = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(top.path().join("a/b")).expect("a directory");
        std::fs::create_dir(top.path().join("empty")).expect("a directory");
        std::fs::write(top.path().join("a/b/file"), "content").expect("written");
        std::fs::write(top.path().join("a/tool"), "tool").expect("written");
        std::fs::set_permissions(top.path().join("a/tool"), std::fs::Permissions::from_mode(0o755)).expect("set");
        symlink("a/tool", top.path().join("link")).expect("a link");
        let read = MerkleTree::read(top.path()).expect("a tree");

        let mut builder = TreeBuilder::default();
        builder.symlink("link", "a/tool".to_owned()).expect("added");
        builder.content("a/b/file", "content").expect("added");
        let digest = BlobDigest::for_bytes(b"tool");
        builder.file("a/tool", digest, true, BlobSource::Bytes(Bytes::from_static(b"tool"))).expect("added");
        builder.directory("empty").expect("added");
        builder.directory("a/b").expect("exists");
        let built = builder.finish();
        assert_eq!(built.root, read.root);
        assert_eq!(built.blobs.keys().collect::<Vec<_>>(), read.blobs.keys().collect::<Vec<_>>());

        let mut outer = TreeBuilder::default();
        outer.tree("tree", built.root).expect("added");
        assert_eq!(outer.finish().blobs.len(), 1, "the blobs of the inner tree are elsewhere");
    }

    #[test]
    fn refuses_paths_that_are_not_entries() {
        for path in ["", "/a", "a//b", "a/../b", ".", "a/", "file/below", "file"] {
            let mut builder = TreeBuilder::default();
            builder.content("file", "x").expect("added");
            builder.content(path, "y").expect_err(path);
        }
    }
}
