//! Transfers the writes of steps to needed paths between this machine, where a needed path is a mount point with separate
//! layers, and workers, where it is a directory of the tree.

use std::collections::BTreeMap;
use std::path::PathBuf;

use proctor_core::model::drift::display_path;
use proctor_core::model::plan::RelPath;
use proctor_git::files::paths;
use proctor_remote::Bytes;
use proctor_sandbox::agent::{LayerChange, LayerChangeKind};
use proctor_sandbox::layer_changes::{LayerBounds, LayerChangeError, read_directory};
use rustix::fs::{Mode, OFlags};

use crate::step::layer_stack::LayerStack;

/// Bounds on the files that are transferred between this machine and a worker: files that earlier steps left, and files
/// that the step writes.
pub(crate) const CHANGES: LayerBounds = LayerBounds { entries: 200_000, bytes: 256 << 20 };

/// The reason why the files of steps cannot be transferred.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TransferError {
    /// A layer cannot be read.
    #[error(transparent)]
    Layer(#[from] LayerChangeError),
    /// A step replaced or removed a needed path, or a directory above it.
    #[error("a step replaced `{}`, which is or contains the needed path `{needed}`", display_path(.path))]
    Replaced {
        /// The path that the step replaced.
        path: Vec<u8>,
        needed: RelPath,
    },
}

/// The changes of one step.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SplitChanges {
    /// The changes of the tree.
    pub(crate) tree: Vec<LayerChange>,
    /// The changes of each needed path, relative to it.
    pub(crate) needed: BTreeMap<RelPath, Vec<LayerChange>>,
}

/// Divides the changes of a step on a worker into changes of the tree and of needed paths.
///
/// # Errors
/// The step replaced a needed path, which is a mount point on this machine.
pub(crate) fn split_changes(changes: Vec<LayerChange>, needed: &[RelPath]) -> Result<SplitChanges, TransferError> {
    let mut split = SplitChanges::default();
    for change in changes {
        require_kept(&change, needed)?;
        match needed.iter().find(|path| is_at_or_below(&change.path, path)) {
            None => split.tree.push(change),
            // The step has changed entries of the path.
            Some(path) if change.path == path.as_str().as_bytes() => {}
            Some(path) => {
                let below = change.path[path.as_str().len() + 1..].to_vec();
                let changes = split.needed.entry(path.clone()).or_default();
                changes.push(LayerChange { path: below, ..change });
            }
        }
    }
    remove_empty_parents(&mut split.tree, needed);
    Ok(split)
}

/// Removes the directories above needed paths in which nothing else has changed.
fn remove_empty_parents(changes: &mut Vec<LayerChange>, needed: &[RelPath]) {
    let is_parent =
        |change: &LayerChange| needed.iter().any(|path| paths::is_below(path.as_str().as_bytes(), &change.path));
    for at in (0..changes.len()).rev().filter(|at| is_parent(&changes[*at])).collect::<Vec<_>>() {
        // A directory precedes its entries.
        let has_entries = changes[at + 1..].iter().any(|below| paths::is_below(&below.path, &changes[at].path));
        if !has_entries {
            changes.remove(at);
        }
    }
}

fn is_at_or_below(path: &[u8], needed: &RelPath) -> bool {
    path == needed.as_str().as_bytes() || paths::is_below(path, needed.as_str().as_bytes())
}

/// Requires that a change neither removes nor replaces a needed path or a directory above it.
fn require_kept(change: &LayerChange, needed: &[RelPath]) -> Result<(), TransferError> {
    if matches!(change.kind, LayerChangeKind::Directory { opaque: false, .. }) {
        return Ok(());
    }
    let is_replaced = |path: &&RelPath| {
        let path = path.as_str().as_bytes();
        path == change.path || paths::is_below(path, &change.path)
    };
    match needed.iter().find(is_replaced) {
        None => Ok(()),
        Some(path) => Err(TransferError::Replaced { path: change.path.clone(), needed: path.clone() }),
    }
}

/// Reads the files that earlier steps left in the tree and in the needed paths, oldest first. Files of the tree at or
/// below a needed path are hidden by it, and left out. `writes` contains the directories of each path, oldest first.
/// Blocks the thread.
///
/// # Errors
/// A layer cannot be read, the layers exceed the bounds, or a layer replaces a needed path.
pub(crate) fn read_layers(
    stack: &LayerStack,
    needed: &[RelPath],
    writes: &[(RelPath, Vec<PathBuf>)],
) -> Result<(Vec<Vec<LayerChange>>, Bytes), TransferError> {
    let (mut layers, mut content) = (Vec::new(), Vec::new());
    for upper in stack.uppers().into_iter().rev() {
        // A needed path hides files that earlier skills wrote at its path.
        let is_hidden = |path: &[u8]| needed.iter().any(|needed| is_at_or_below(path, needed));
        let changes = read_layer(upper, &is_hidden, &mut content)?;
        changes.iter().try_for_each(|change| require_kept(change, needed))?;
        layers.push(changes);
    }
    for (path, upper) in writes.iter().flat_map(|(path, uppers)| uppers.iter().map(move |upper| (path, upper))) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(upper, flags, Mode::empty());
        let opened = opened.map_err(|errno| LayerChangeError::Content(errno.into()))?;
        let mut changes = read_layer(std::os::fd::AsFd::as_fd(&opened), &|_| false, &mut content)?;
        for change in &mut changes {
            change.path = [path.as_str().as_bytes(), b"/", &change.path].concat();
        }
        layers.push(changes);
    }
    Ok((layers, Bytes::from(content)))
}

/// Reads one layer, and appends the content of its files. The positions in the list count from the start of the content.
fn read_layer(
    upper: std::os::fd::BorrowedFd<'_>,
    is_left_out: &dyn Fn(&[u8]) -> bool,
    content: &mut Vec<u8>,
) -> Result<Vec<LayerChange>, LayerChangeError> {
    let start = content.len() as u64;
    let bounds = LayerBounds { bytes: CHANGES.bytes.saturating_sub(start), ..CHANGES };
    let mut changes = read_directory(upper, bounds, is_left_out, content)?;
    for change in &mut changes {
        if let LayerChangeKind::File { offset, .. } = &mut change.kind {
            *offset += start;
        }
    }
    Ok(changes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> RelPath {
        RelPath::new(path).expect("a path")
    }

    fn change(path: &str, kind: LayerChangeKind) -> LayerChange {
        LayerChange { path: path.into(), kind }
    }

    fn directory(path: &str) -> LayerChange {
        change(path, LayerChangeKind::Directory { mode: 0o755, opaque: false })
    }

    fn deleted(path: &str) -> LayerChange {
        change(path, LayerChangeKind::Deleted)
    }

    #[test]
    fn divides_changes_of_the_tree_and_of_needed_paths() {
        let needed = [path("web/deps"), path(".venv")];
        let changes = vec![
            directory(".venv"),
            directory(".venv/bin"),
            deleted(".venv/bin/tool"),
            deleted(".venvs"),
            directory("web"),
            directory("web/deps"),
            deleted("web/deps/a"),
        ];
        let split = split_changes(changes.clone(), &needed).expect("divided");
        assert_eq!(split.tree, [deleted(".venvs")], "nothing else in `web` has changed");
        let expected =
            [(path(".venv"), vec![directory("bin"), deleted("bin/tool")]), (path("web/deps"), vec![deleted("a")])];
        assert_eq!(split.needed, BTreeMap::from(expected));
        let with_sibling = [&changes[..], &[deleted("web/other")]].concat();
        let split = split_changes(with_sibling, &needed).expect("divided");
        assert_eq!(split.tree, [deleted(".venvs"), directory("web"), deleted("web/other")]);
        assert_eq!(split_changes(changes.clone(), &[]).expect("divided").tree, changes);
    }

    #[test]
    fn refuses_changes_that_replace_a_mount_point() {
        let needed = [path("web/deps")];
        let opaque = |at: &str| change(at, LayerChangeKind::Directory { mode: 0o755, opaque: true });
        for refused in [deleted("web/deps"), deleted("web"), opaque("web/deps"), opaque("web")] {
            let error = split_changes(vec![refused], &needed).expect_err("refused").to_string();
            assert!(error.contains("contains the needed path `web/deps`"), "{error}");
        }
        split_changes(vec![deleted("web/dep"), opaque("web/depsx"), opaque("web/deps/a")], &needed).expect("kept");
    }
}
