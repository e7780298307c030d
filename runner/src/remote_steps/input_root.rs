//! Describes the tree of a run and its git directory as Merkle trees.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use proctor_core::decision::input_filter::InputFilter;
use proctor_core::model::drift::{EntryKind, display_path};
use proctor_remote::{BlobDigest, BlobSource, MerkleError, MerkleTree, TreeBuilder};
use proctor_snapshot::EntryTree;

/// The directory of git objects, which workers do not get.
const OBJECTS: &str = "objects";
/// Directories of a git directory that git expects to exist.
const REQUIRED_IN_GIT: [&str; 2] = ["objects", "refs"];
/// Maximum depth of directories in a git directory.
const MAX_GIT_DEPTH: usize = 32;
const EXECUTABLE: u32 = 0o100;

/// The reason why a tree cannot be sent to a worker.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InputTreeError {
    /// The API cannot describe an entry.
    #[error("`{}` {problem}, which workers cannot get", display_path(.path))]
    Entry {
        /// The path.
        path: Vec<u8>,
        /// What is wrong with it.
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
                let digest = BlobDigest { sha256: entry.sha256, bytes };
                builder.file(name, digest, entry.executable, BlobSource::File(file))?;
            }
            EntryKind::Symlink => {
                let target = fs::read_link(&file).map_err(InputTreeError::unreadable(&file))?;
                let target = target.into_os_string().into_string();
                builder.symlink(name, target.map_err(|_| failed("has a target that is not UTF-8"))?)?;
            }
            EntryKind::Directory => builder.directory(name)?,
            EntryKind::Gitlink => return Err(failed("is a nested repository")),
            EntryKind::Special => return Err(failed("is neither a file, a directory nor a link")),
        }
    }
    Ok(builder.finish())
}

/// Describes the git directory of a private copy without its objects; `None` if there is none. Blocks the thread.
///
/// # Errors
/// The directory cannot be read or described.
pub(crate) fn git_tree(directory: &Path) -> Result<Option<MerkleTree>, InputTreeError> {
    if !fs::symlink_metadata(directory).is_ok_and(|metadata| metadata.is_dir()) {
        return Ok(None);
    }
    let mut builder = TreeBuilder::default();
    add_git_files(&mut builder, directory, "", 0)?;
    for name in REQUIRED_IN_GIT {
        builder.directory(name)?;
    }
    Ok(Some(builder.finish()))
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
        if prefix.is_empty() && name == OBJECTS {
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
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of the test")]
    fn git_directory_has_no_objects() {
        let top = tempfile::tempdir().expect("a directory");
        let git = top.path().join(".git");
        assert!(git_tree(&git).expect("no directory").is_none());
        for directory in ["objects/pack", "refs/heads"] {
            fs::create_dir_all(git.join(directory)).expect("a directory");
        }
        fs::write(git.join("HEAD"), "ref: refs/heads/main\n").expect("written");
        fs::write(git.join("refs/heads/main"), "0123\n").expect("written");
        fs::write(git.join("objects/pack/large.pack"), "objects").expect("written");
        let tree = git_tree(&git).expect("described").expect("a tree");
        let contents: Vec<&[u8]> = tree
            .blobs
            .values()
            .filter_map(|source| match source {
                BlobSource::Bytes(content) => Some(content.as_ref()),
                BlobSource::File(_) => None,
            })
            .collect();
        assert!(contents.contains(&b"0123\n".as_slice()) && !contents.contains(&b"objects".as_slice()));
    }
}
