//! Describes a directory as a Merkle tree of the API.
//!
//! The entries of each directory are sorted by name, so that equal directories have equal digests. The API has no place
//! for owners, times, and modes other than "executable".

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use proctor_core::text::digest::Sha256Hex;
use prost::Message as _;
use sha2::{Digest as _, Sha256};

use crate::blob::{BlobDigest, BlobSource};
use crate::messages::{Directory, DirectoryNode, FileNode, SymlinkNode};

mod builder;

pub use builder::TreeBuilder;

/// Maximum number of entries of a tree.
pub const MAX_ENTRIES: usize = 1_000_000;
/// Maximum depth of a tree.
const MAX_DEPTH: usize = 200;
const BUFFER: usize = 128 << 10;
const EXECUTABLE: u32 = 0o100;

/// A directory with everything below it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MerkleTree {
    /// The digest of the top directory.
    pub root: BlobDigest,
    /// The blobs of all directories and files.
    pub blobs: BTreeMap<BlobDigest, BlobSource>,
}

/// The reason why a directory cannot be described.
#[derive(Debug, thiserror::Error)]
pub enum MerkleError {
    /// A path cannot be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A name or target is not UTF-8, which the API requires.
    #[error("`{}` has a name or a target that is not UTF-8", .0.display())]
    NotText(PathBuf),
    /// A path is neither a file, a directory nor a link.
    #[error("`{}` is neither a file, a directory nor a link", .0.display())]
    SpecialFile(PathBuf),
    /// A path is not relative, has an empty or special component, or names an entry that exists.
    #[error("`{0}` cannot be an entry of a tree")]
    BadPath(String),
    /// The tree is too large.
    #[error("`{}` has more than {MAX_ENTRIES} entries, or is nested deeper than {MAX_DEPTH} directories", .0.display())]
    TooLarge(PathBuf),
}

impl MerkleTree {
    /// Reads a directory. Blocks the thread.
    ///
    /// # Errors
    /// A path cannot be read or described.
    pub fn read(top: &Path) -> Result<Self, MerkleError> {
        let mut reader = TreeReader { blobs: BTreeMap::new(), entries: 0 };
        let root = reader.directory(top, 0)?;
        Ok(Self { root, blobs: reader.blobs })
    }
}

/// An entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TreeEntry {
    /// The path.
    pub path: String,
    /// A digest of the content, and of whether a file is executable. For a link, that of its target.
    pub sha256: Sha256Hex,
    /// True for a directory.
    pub is_directory: bool,
}

impl MerkleTree {
    /// Returns all entries of the tree, except those in directories whose blobs are elsewhere.
    pub fn entries(&self) -> Vec<TreeEntry> {
        let (mut entries, mut open) = (Vec::new(), vec![(String::new(), self.root.clone())]);
        while let Some((path, digest)) = open.pop() {
            let Some(BlobSource::Bytes(content)) = self.blobs.get(&digest) else { continue };
            let Ok(directory) = Directory::decode(content.clone()) else { continue };
            let at = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
            for node in &directory.directories {
                let Ok(digest) = BlobDigest::from_message(node.digest.as_ref()) else { continue };
                let path = at(&node.name);
                entries.push(TreeEntry { path: path.clone(), sha256: digest.sha256.clone(), is_directory: true });
                open.push((path, digest));
            }
            let files = directory.files.iter().map(|node| (&node.name, node.encode_to_vec()));
            let links = directory.symlinks.iter().map(|node| (&node.name, node.encode_to_vec()));
            for (name, node) in files.chain(links) {
                entries.push(TreeEntry { path: at(name), sha256: Sha256Hex::digest(&node), is_directory: false });
            }
        }
        entries
    }
}

struct TreeReader {
    blobs: BTreeMap<BlobDigest, BlobSource>,
    entries: usize,
}

impl TreeReader {
    fn directory(&mut self, path: &Path, depth: usize) -> Result<BlobDigest, MerkleError> {
        let unreadable = |source| MerkleError::Unreadable { path: path.to_owned(), source };
        let mut entries: Vec<fs::DirEntry> = fs::read_dir(path).and_then(Iterator::collect).map_err(unreadable)?;
        self.entries += entries.len();
        if self.entries > MAX_ENTRIES || depth > MAX_DEPTH {
            return Err(MerkleError::TooLarge(path.to_owned()));
        }
        // The order of the bytes of UTF-8 is that of the code points.
        entries.sort_by_key(fs::DirEntry::file_name);
        let mut directory = Directory::default();
        for entry in entries {
            let path = entry.path();
            let name = entry.file_name().into_string().map_err(|_| MerkleError::NotText(path.clone()))?;
            let kind = entry.file_type().map_err(unreadable)?;
            if kind.is_dir() {
                let digest = Some(self.directory(&path, depth + 1)?.to_message());
                directory.directories.push(DirectoryNode { name, digest });
            } else if kind.is_symlink() {
                directory.symlinks.push(SymlinkNode { name, target: link_target(&path)? });
            } else if kind.is_file() {
                directory.files.push(self.file(&path, name)?);
            } else {
                return Err(MerkleError::SpecialFile(path));
            }
        }
        let content = directory.encode_to_vec();
        let digest = BlobDigest::for_bytes(&content);
        self.blobs.insert(digest.clone(), BlobSource::Bytes(Bytes::from(content)));
        Ok(digest)
    }

    fn file(&mut self, path: &Path, name: String) -> Result<FileNode, MerkleError> {
        let (digest, mode) =
            hash_file(path).map_err(|source| MerkleError::Unreadable { path: path.to_owned(), source })?;
        let node = FileNode { name, digest: Some(digest.to_message()), is_executable: mode & EXECUTABLE != 0 };
        self.blobs.insert(digest, BlobSource::File(path.to_owned()));
        Ok(node)
    }
}

fn link_target(path: &Path) -> Result<String, MerkleError> {
    let target = fs::read_link(path).map_err(|source| MerkleError::Unreadable { path: path.to_owned(), source })?;
    target.into_os_string().into_string().map_err(|_| MerkleError::NotText(path.to_owned()))
}

/// Returns the digest and mode of a file.
fn hash_file(path: &Path) -> io::Result<(BlobDigest, u32)> {
    let mut file = fs::File::open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0u64, vec![0; BUFFER]);
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => {
                hash.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
    Ok((BlobDigest { sha256: Sha256Hex::from_raw(hash.finalize().into()), bytes }, mode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "files of the test")]
    fn write(path: PathBuf, content: &str) {
        fs::write(path, content).expect("written");
    }

    fn tree(order: &[&str]) -> (tempfile::TempDir, MerkleTree) {
        let top = tempfile::tempdir().expect("a directory");
        fs::create_dir(top.path().join("sub")).expect("a directory");
        for name in order {
            write(top.path().join("sub").join(name), name);
        }
        symlink("sub/b", top.path().join("link")).expect("a link");
        fs::set_permissions(top.path().join("sub/b"), fs::Permissions::from_mode(0o755)).expect("executable");
        let tree = MerkleTree::read(top.path()).expect("a tree");
        (top, tree)
    }

    #[test]
    fn equal_directories_have_equal_digests() {
        let (first, second) = (tree(&["a", "b", "ä"]), tree(&["ä", "b", "a"]));
        assert_eq!(first.1.root, second.1.root);
        let BlobSource::Bytes(top) = &first.1.blobs[&first.1.root] else { panic!("a directory is in memory") };
        let top = Directory::decode(top.clone()).expect("a directory");
        assert_eq!(top.symlinks, [SymlinkNode { name: "link".to_owned(), target: "sub/b".to_owned() }]);
        let sub = BlobDigest::from_message(top.directories[0].digest.as_ref()).expect("a digest");
        let BlobSource::Bytes(sub) = &first.1.blobs[&sub] else { panic!("a directory is in memory") };
        let sub = Directory::decode(sub.clone()).expect("a directory");
        let files: Vec<_> = sub.files.iter().map(|file| (file.name.as_str(), file.is_executable)).collect();
        assert_eq!(files, [("a", false), ("b", true), ("ä", false)]);
    }

    #[test]
    fn every_change_changes_the_root() {
        let (top, before) = tree(&["a", "b"]);
        write(top.path().join("sub/a"), "other");
        let changed = MerkleTree::read(top.path()).expect("a tree");
        assert_ne!(changed.root, before.root);
        fs::set_permissions(top.path().join("sub/a"), fs::Permissions::from_mode(0o755)).expect("executable");
        assert_ne!(MerkleTree::read(top.path()).expect("a tree").root, changed.root);
    }

    #[test]
    fn entries_have_digests_of_everything_in_them() {
        let (top, before) = tree(&["a", "b"]);
        let digests = |tree: &MerkleTree| -> BTreeMap<String, Sha256Hex> {
            tree.entries().into_iter().map(|entry| (entry.path, entry.sha256)).collect()
        };
        let of_before = digests(&before);
        assert_eq!(of_before.keys().collect::<Vec<_>>(), ["link", "sub", "sub/a", "sub/b"]);
        assert_eq!(before.entries().iter().filter(|entry| entry.is_directory).count(), 1);
        fs::set_permissions(top.path().join("sub/a"), fs::Permissions::from_mode(0o755)).expect("executable");
        let now = digests(&MerkleTree::read(top.path()).expect("a tree"));
        let changed: Vec<_> =
            now.iter().filter(|(path, digest)| of_before[*path] != **digest).map(|(path, _)| path).collect();
        assert_eq!(changed, ["sub", "sub/a"]);
    }

    #[test]
    fn refuses_what_the_api_cannot_describe() {
        use std::ffi::OsStr;
        use std::os::unix::ffi::OsStrExt as _;
        let (top, _) = tree(&["a", "b"]);
        write(top.path().join(OsStr::from_bytes(b"\xff")), "");
        assert!(matches!(MerkleTree::read(top.path()), Err(MerkleError::NotText(_))));
    }
}
