//! Describes stored needed paths as Merkle trees, which the steps of a run share.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proctor_core::text::digest::Sha256Hex;
use proctor_remote::{BlobDigest, BlobSource, MerkleError, MerkleTree, TreeBuilder};
use proctor_sandbox::agent::{InputLink, NEEDED_PATH_CONTENT, NEEDED_PATH_LINKS};
use tokio::sync::Mutex;

use crate::error::one_line;
use crate::store::caches::prepared::{HeldPath, ListedEntry, ListedKind, PathListing};

/// The Merkle trees of the needed paths of a run, by the digest of their content.
#[derive(Debug, Default)]
pub(crate) struct NeededPathTrees {
    known: Mutex<BTreeMap<Sha256Hex, Result<Arc<MerkleTree>, String>>>,
}

impl NeededPathTrees {
    /// Returns the tree of a stored path. `list` returns the entries of the path; it blocks, and is called once for equal
    /// content.
    ///
    /// # Errors
    /// The reason why workers cannot get the path, as a phrase that follows the path.
    pub(crate) async fn tree_of(
        &self,
        content: &Sha256Hex,
        list: impl FnOnce() -> Result<Arc<MerkleTree>, String> + Send + 'static,
    ) -> Result<Arc<MerkleTree>, String> {
        // The lock is held during the work, so that the files of a path are hashed once.
        let mut known = self.known.lock().await;
        if let Some(tree) = known.get(content) {
            return tree.clone();
        }
        let tree = tokio::task::spawn_blocking(list).await.unwrap_or_else(|error| Err(error.to_string()));
        known.insert(content.clone(), tree.clone());
        tree
    }
}

/// Describes a stored path. The digests of its files are those of the verified content; each file is compared with them
/// again when it is sent. Blocks the thread.
///
/// # Errors
/// The reason why workers cannot get the path, as a phrase that follows the path.
pub(crate) fn needed_path_tree(held: &HeldPath) -> Result<Arc<MerkleTree>, String> {
    match held.listing().map_err(|error| format!("cannot be listed: {}", one_line(&error)))? {
        PathListing::Refused(reason) => Err(reason),
        PathListing::Entries(entries) => {
            let tree = describe(entries, &held.content);
            Ok(Arc::new(tree.map_err(|error| format!("cannot be described: {}", one_line(&error)))?))
        }
    }
}

/// Describes the entries of the directory `content`: directories and files as a tree, and the symbolic links as a list,
/// because servers may refuse links with absolute targets.
fn describe(entries: Vec<ListedEntry>, content: &Path) -> Result<MerkleTree, MerkleError> {
    let (mut builder, mut links) = (TreeBuilder::default(), Vec::new());
    builder.directory(NEEDED_PATH_CONTENT)?;
    for ListedEntry { path, kind } in entries {
        let at = format!("{NEEDED_PATH_CONTENT}/{path}");
        match kind {
            ListedKind::Directory => builder.directory(&at)?,
            ListedKind::File { sha256, bytes, executable } => {
                let source = BlobSource::File(content.join(&path));
                builder.file(&at, BlobDigest { sha256, bytes }, executable, source)?;
            }
            ListedKind::Symlink { target } => links.push(InputLink { path: path.into_bytes(), target }),
        }
    }
    // Serializing these types cannot fail.
    builder.content(NEEDED_PATH_LINKS, serde_json::to_vec(&links).unwrap_or_default())?;
    Ok(builder.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_a_list_and_other_entries_a_tree() {
        let entry = |path: &str, kind| ListedEntry { path: path.to_owned(), kind };
        let file = |text: &str, executable| ListedKind::File {
            sha256: Sha256Hex::digest(text.as_bytes()),
            bytes: text.len() as u64,
            executable,
        };
        let entries = |link: &str| {
            vec![
                entry("bin", ListedKind::Directory),
                entry("bin/python", ListedKind::Symlink { target: link.into() }),
                entry("bin/tool", file("tool", true)),
                entry("empty", ListedKind::Directory),
            ]
        };
        let tree = describe(entries("/usr/bin/python3"), Path::new("/state/content")).expect("described");
        let tool = BlobDigest::for_bytes(b"tool");
        assert_eq!(tree.blobs[&tool], BlobSource::File("/state/content/bin/tool".into()));
        let link = InputLink { path: b"bin/python".to_vec(), target: b"/usr/bin/python3".to_vec() };
        let links = serde_json::to_vec(&[link]).expect("JSON");
        assert!(tree.blobs.contains_key(&BlobDigest::for_bytes(&links)));
        let mut expected = TreeBuilder::default();
        expected.content("links.json", links).expect("added");
        expected.file("content/bin/tool", tool, true, BlobSource::Bytes(b"tool".as_slice().into())).expect("added");
        expected.directory("content/empty").expect("added");
        assert_eq!(tree.root, expected.finish().root);
        let other = describe(entries("python3"), Path::new("/state/content")).expect("described");
        assert_ne!(other.root, tree.root, "the target of a link is part of the identity");
    }
}
