//! Describes the tree of a run and its git directory as Merkle trees.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::drift::{EntryKind, display_path};
use proctor_core::reuse::{TreeEntry, TreeListing};
use proctor_core::text::digest::Sha256Hex;
use proctor_git::index::entries_digest;
use proctor_remote::{BlobDigest, BlobSource, MerkleError, MerkleTree, TreeBuilder};
use proctor_sandbox::agent::sent_link_target;
use proctor_snapshot::EntryTree;

use super::git_objects::{GitObjects, is_directory};

/// The directory of git objects. The private copy borrows all of them.
const OBJECTS: &str = "objects";
/// The refs. Git fails at a ref whose object is missing.
const REFS: &str = "packed-refs";
/// The list of commits whose parents git does not look for.
const SHALLOW: &str = "shallow";
/// The index.
const INDEX: &str = "index";
/// Directories of a git directory that git expects to exist.
const REQUIRED_IN_GIT: [&str; 2] = ["objects", "refs"];
/// Maximum depth of directories in a git directory.
const MAX_GIT_DEPTH: usize = 32;
const EXECUTABLE: u32 = 0o100;
/// The largest file that is sent, in bytes. A file is in memory while it is sent.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The reason why a tree cannot be sent to a worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputTreeError {
    /// The API cannot describe an entry.
    #[error("`{}` {problem}, which workers cannot get", display_path(.path))]
    Entry {
        /// The path.
        path: Vec<u8>,
        /// The problem of the entry.
        problem: &'static str,
    },
    /// A file of the private copy cannot be read.
    #[error("`{}` cannot be read: {source}", path.display())]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The tree cannot be described.
    #[error(transparent)]
    Merkle(#[from] MerkleError),
}

impl InputTreeError {
    fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Unreadable { path: path.to_owned(), source }
    }
}

/// Describes the covered files of a tree, or those of them that a step sees. Their content is in `directory`. Blocks the
/// thread.
///
/// # Errors
/// The API cannot describe an entry, or the directory cannot be read.
pub(crate) fn input_tree(
    entries: &EntryTree,
    directory: &Path,
    inputs: Option<&InputFilter>,
) -> Result<MerkleTree, InputTreeError> {
    let mut builder = TreeBuilder::default();
    for (path, entry) in entries.iter() {
        if inputs.is_some_and(|inputs| !inputs.shows(&path, false)) {
            continue;
        }
        let failed = |problem| InputTreeError::Entry { path: path.clone(), problem };
        let name = std::str::from_utf8(&path).map_err(|_| failed("has a name that is not UTF-8"))?;
        let file = directory.join(OsStr::from_bytes(&path));
        match entry.kind {
            EntryKind::File => {
                let bytes = fs::symlink_metadata(&file).map_err(InputTreeError::unreadable(&file))?.len();
                if bytes > MAX_FILE_BYTES {
                    return Err(failed("has more than 1 GiB"));
                }
                let digest = BlobDigest { sha256: entry.sha256, bytes };
                builder.file(name, digest, entry.executable, BlobSource::File(file))?;
            }
            EntryKind::Symlink => {
                let target = fs::read_link(&file).map_err(InputTreeError::unreadable(&file))?;
                let sent = sent_link_target(target.as_os_str().as_bytes());
                builder.symlink(name, sent.ok_or_else(|| failed("has a target that is too long"))?.into_owned())?;
            }
            EntryKind::Directory => builder.directory(name)?,
            EntryKind::Gitlink => return Err(failed("is a nested repository")),
            EntryKind::Special => return Err(failed("is neither a file, a directory nor a link")),
        }
    }
    Ok(builder.finish())
}

/// The git directory that a worker gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct GitTree {
    pub(crate) tree: MerkleTree,
    /// A digest of the tree without the stat data in the index. They belong to the files of the private copy, and never match
    /// those of a worker.
    pub(crate) identity: Sha256Hex,
    /// The entries of that tree.
    pub(crate) listing: TreeListing,
}

/// Returns the list of a tree's entries.
pub(crate) fn list_tree(tree: &MerkleTree) -> TreeListing {
    TreeListing::new(tree.entries().into_iter().map(|entry| {
        let proctor_remote::TreeEntry { path, sha256, is_directory } = entry;
        TreeEntry { path, sha256, is_directory }
    }))
}

/// Describes the git directory of a private copy with these objects; `None` if there is none. Blocks the thread.
///
/// # Errors
/// The directory cannot be read or described.
pub(crate) fn git_tree(directory: &Path, objects: Option<&GitObjects>) -> Result<Option<GitTree>, InputTreeError> {
    if !is_directory(directory) {
        return Ok(None);
    }
    let tree = describe_git(directory, objects, |index| index)?;
    let entries = |index: Vec<u8>| entries_digest(&index).map_or(index, |entries| entries.to_vec());
    let without_stats = describe_git(directory, objects, entries)?;
    let listing = list_tree(&without_stats);
    Ok(Some(GitTree { tree, identity: without_stats.root.sha256, listing }))
}

/// Describes a git directory, with `index` applied to the content of its index.
fn describe_git(
    directory: &Path,
    objects: Option<&GitObjects>,
    index: fn(Vec<u8>) -> Vec<u8>,
) -> Result<MerkleTree, InputTreeError> {
    let mut builder = TreeBuilder::default();
    add_git_files(&mut builder, directory, "", 0)?;
    if let Some(content) = read_optional(&directory.join(INDEX))? {
        builder.content(INDEX, index(content))?;
    }
    if let Some(refs) = read_optional(&directory.join(REFS))? {
        builder.content(REFS, objects.map_or_else(|| refs.clone(), |objects| objects.select_refs(&refs)))?;
    }
    for object in objects.iter().flat_map(|objects| &objects.files) {
        let (path, source) = (format!("{OBJECTS}/{}", object.path), BlobSource::Bytes(object.content.clone()));
        builder.file(&path, object.digest.clone(), false, source)?;
    }
    if let Some(list) = shallow_list(directory, objects)? {
        builder.content(SHALLOW, list)?;
    }
    for name in REQUIRED_IN_GIT {
        builder.directory(name)?;
    }
    Ok(builder.finish())
}

/// Returns the commits whose parents git does not look for: those of a shallow clone, and the commit of HEAD.
fn shallow_list(directory: &Path, objects: Option<&GitObjects>) -> Result<Option<Vec<u8>>, InputTreeError> {
    let own = read_optional(&directory.join(SHALLOW))?;
    let own = own.map(|list| String::from_utf8_lossy(&list).into_owned());
    let cut = objects.and_then(|objects| objects.cut.as_ref()).map(ToString::to_string);
    if own.is_none() && cut.is_none() {
        return Ok(None);
    }
    let ids: BTreeSet<&str> = own.iter().flat_map(|list| list.lines()).chain(cut.as_deref()).collect();
    Ok(Some(ids.into_iter().flat_map(|id| [id, "\n"].concat().into_bytes()).collect()))
}

fn read_optional(path: &Path) -> Result<Option<Vec<u8>>, InputTreeError> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(InputTreeError::unreadable(path)(error)),
    }
}

fn add_git_files(
    builder: &mut TreeBuilder,
    directory: &Path,
    prefix: &str,
    depth: usize,
) -> Result<(), InputTreeError> {
    if depth > MAX_GIT_DEPTH {
        return Err(MerkleError::TooLarge(directory.to_owned()).into());
    }
    let unreadable = || InputTreeError::unreadable(directory);
    for entry in fs::read_dir(directory).map_err(unreadable())? {
        let entry = entry.map_err(unreadable())?;
        // git itself writes no other names.
        let Ok(name) = entry.file_name().into_string() else { continue };
        if prefix.is_empty() && [OBJECTS, SHALLOW, REFS, INDEX].contains(&name.as_str()) {
            continue;
        }
        let (path, name) = (entry.path(), if prefix.is_empty() { name } else { format!("{prefix}/{name}") });
        let metadata = fs::symlink_metadata(&path).map_err(InputTreeError::unreadable(&path))?;
        if metadata.is_dir() {
            add_git_files(builder, &path, &name, depth + 1)?;
        } else if metadata.is_file() {
            let content = fs::read(&path).map_err(InputTreeError::unreadable(&path))?;
            let is_executable = metadata.permissions().mode() & EXECUTABLE != 0;
            let digest = BlobDigest::for_bytes(&content);
            builder.file(&name, digest, is_executable, BlobSource::Bytes(content.into()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proctor_git::object::object_id::ObjectId;
    use proctor_git::object::object_pack::ObjectPack;
    use proctor_git::protocol::CommitObjects;

    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of the test")]
    fn git_directory_has_only_given_objects() {
        let top = tempfile::tempdir().expect("a directory");
        let git = top.path().join(".git");
        assert!(git_tree(&git, None).expect("no directory").is_none());
        for directory in ["objects/pack", "refs/heads"] {
            fs::create_dir_all(git.join(directory)).expect("a directory");
        }
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").expect("written");
        fs::write(git.join("refs/heads/main"), "0123\n").expect("written");
        fs::write(git.join("objects/pack/large.pack"), "objects").expect("written");
        let contents = |objects: Option<&GitObjects>| -> Vec<Vec<u8>> {
            let tree = git_tree(&git, objects).expect("described").expect("a tree").tree;
            let content = |source| match source {
                BlobSource::Bytes(content) => Some(content.to_vec()),
                BlobSource::File(_) => None,
            };
            tree.blobs.into_values().filter_map(content).collect()
        };
        let without = contents(None);
        assert!(without.contains(&b"0123\n".to_vec()) && !without.contains(&b"objects".to_vec()));
        let id = |digit: &str| ObjectId::from_hex(digit.repeat(40).as_bytes()).expect("an id");
        let pack = ObjectPack { checksum: id("d"), pack: b"object".to_vec(), index: b"index".to_vec() };
        let found = CommitObjects { exceeded: None, has_parents: true, tags: vec![id("e")], packs: vec![pack] };
        let objects = GitObjects::new(id("b"), found);
        let with = contents(Some(&objects));
        assert!(with.contains(&b"object".to_vec()) && with.contains(&format!("{}\n", id("b")).into_bytes()));
        // Git fails at refs whose objects are missing.
        let refs = [("a", "refs/heads/x"), ("b", "refs/heads/main"), ("e", "refs/tags/v1")];
        let refs = refs.map(|(digit, name)| format!("{} {name}\n", id(digit)));
        fs::write(git.join("packed-refs"), refs.concat()).expect("written");
        assert!(contents(Some(&objects)).contains(&refs[1..].concat().into_bytes()));
        assert!(contents(None).contains(&refs.concat().into_bytes()));
        let identity = || git_tree(&git, Some(&objects)).expect("described").expect("a tree").identity;
        let before = identity();
        fs::write(git.join("HEAD"), "ref: refs/heads/other\n").expect("written");
        assert_ne!(identity(), before);
        // A shallow clone keeps its own boundary.
        fs::write(git.join("shallow"), format!("{}\n{}\n", id("c"), id("a"))).expect("written");
        let list = |ids: &[&str]| ids.iter().map(|digit| format!("{}\n", id(digit))).collect::<String>().into_bytes();
        assert!(contents(Some(&objects)).contains(&list(&["a", "b", "c"])));
        assert!(contents(None).contains(&list(&["a", "c"])));
    }
}
