//! Copies the needed paths of a request: the checks see a tree that has nothing else, and the step sees them in the tree.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;

use proctor_core::model::plan::RelPath;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::agent_error::AgentError;
use super::input_root::InputRoot;
use super::tree_import;
use crate::agent::{AgentRequest, InputLink, NEEDED_PATH_CONTENT, NEEDED_PATH_LINKS, NEEDED_PATHS_DIRECTORY};

/// Maximum size of the list of links of a path, in bytes.
const MAX_LINKS_BYTES: u64 = 256 << 20;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const NEW_DIRECTORY: Mode = Mode::from_raw_mode(0o755);

/// Copies the needed paths to the directory `tree`, which has nothing else.
pub(super) fn import(request: &AgentRequest, root: &InputRoot, tree: &Path) -> Result<(), AgentError> {
    for (number, needed) in request.needed_paths.iter().enumerate() {
        let input = format!("{NEEDED_PATHS_DIRECTORY}/{number}");
        let content = root.open_directory(&format!("{input}/{NEEDED_PATH_CONTENT}"))?;
        let links = read_links(root, &format!("{input}/{NEEDED_PATH_LINKS}"))?;
        let failed = || AgentError::path("cannot copy a needed path to", tree.join(needed.at.as_str()));
        let target = open_top(tree).and_then(|top| create_directories(top, needed.at.as_str()));
        tree_import::import_with_links(&content, target.map_err(failed())?.as_fd(), links).map_err(failed())?;
    }
    Ok(())
}

/// Moves the paths that the step needs from the directory `from` to the tree.
pub(super) fn place(request: &AgentRequest, from: &Path, tree: &Path) -> Result<(), AgentError> {
    for needed in request.needed_paths.iter().filter(|needed| !needed.is_for_checks_only) {
        let placed = place_one(&needed.at, from, tree);
        placed.map_err(AgentError::path("cannot move a needed path to", tree.join(needed.at.as_str())))?;
    }
    Ok(())
}

fn place_one(at: &RelPath, from: &Path, tree: &Path) -> io::Result<()> {
    let (parent, name) = at.as_str().rsplit_once('/').unwrap_or(("", at.as_str()));
    let parent = create_directories(open_top(tree)?, parent)?;
    rustix::fs::renameat(open_top(from)?, at.as_str(), &parent, name)?;
    Ok(rustix::fs::futimens(&parent, &tree_import::input_times())?)
}

fn open_top(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, DIRECTORY, Mode::empty())?)
}

/// Opens a directory below `top`, and creates what is missing. Follows no link.
fn create_directories(top: OwnedFd, path: &str) -> io::Result<OwnedFd> {
    let mut directory = top;
    for name in path.split('/').filter(|name| !name.is_empty()) {
        let inner = match rustix::fs::mkdirat(&directory, name, NEW_DIRECTORY) {
            Ok(()) => {
                // The new entry has changed the time of the directory above it.
                rustix::fs::futimens(&directory, &tree_import::input_times())?;
                rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?
            }
            Err(Errno::EXIST) => rustix::fs::openat(&directory, name, DIRECTORY, Mode::empty())?,
            Err(errno) => return Err(errno.into()),
        };
        directory = inner;
    }
    Ok(directory)
}

fn read_links(root: &InputRoot, name: &str) -> Result<Vec<InputLink>, AgentError> {
    use std::io::Read as _;
    let bad = |error: &dyn std::fmt::Display| AgentError::BadRequest(format!("`{name}`: {error}"));
    let mut text = Vec::new();
    let file = root.open_input(name).map_err(|error| bad(&error))?;
    file.take(MAX_LINKS_BYTES).read_to_end(&mut text).map_err(|error| bad(&error))?;
    serde_json::from_slice(&text).map_err(|error| bad(&error))
}
