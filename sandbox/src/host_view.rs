//! Records the parts of the host that a prepared sandbox shows and hides. A sandbox that has waited is used only if a
//! new one would show and hide the same.
//!
//! Mounts pin the objects they were made from. An older sandbox would miss a directory that was replaced, a socket
//! that was bound or a file system that was mounted in the meantime.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{AtFlags, CWD};
use rustix::io::Errno;

use crate::helper::masks::sockets;
use crate::policy::Frame;
use crate::setup::SetupOp;

/// The parts of the host on which the operations of one sandbox depend.
#[derive(Debug)]
pub(crate) struct HostView {
    objects: Vec<HostObject>,
    /// Paths at which a step would find sockets of the host, all of which are masked.
    sockets: BTreeSet<PathBuf>,
    /// The table of mounts. Polling it shows whether the table has changed since it was opened.
    mounts: File,
}

/// A file or directory by its path.
#[derive(Debug, PartialEq, Eq)]
struct HostObject {
    path: PathBuf,
    /// Device and inode; `None` if the path does not exist.
    device_and_inode: Option<(u64, u64)>,
}

impl HostView {
    /// Records the objects that `ops` will show and hide. Call it before they are executed: a change in between then
    /// makes the view differ, and never hides a difference.
    ///
    /// # Errors
    /// An object cannot be examined.
    pub(crate) fn capture(ops: &[SetupOp], frame: &Frame) -> io::Result<Self> {
        // Must come first: a mount may change which object a path names.
        let mounts = File::open("/proc/self/mountinfo")?;
        let objects =
            ops.iter().filter_map(SetupOp::host_object).map(HostObject::examine).collect::<io::Result<_>>()?;
        Ok(Self { objects, sockets: reachable_sockets(ops, frame)?, mounts })
    }

    /// Returns whether a sandbox made now would show and hide the same. An object that cannot be examined counts as
    /// changed.
    pub(crate) fn is_current(&self, ops: &[SetupOp], frame: &Frame) -> bool {
        let objects =
            || self.objects.iter().all(|object| HostObject::examine(&object.path).is_ok_and(|now| now == *object));
        let sockets = || reachable_sockets(ops, frame).is_ok_and(|now| now.is_subset(&self.sockets));
        // Must come last, so that it also covers the time of the checks before it.
        objects() && sockets() && self.has_same_mounts()
    }

    /// Returns whether the mount table is unchanged. proc_pid_mountinfo(5): the file is pollable, and reports an
    /// exceptional condition after a change of the table since it was opened.
    fn has_same_mounts(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.mounts.as_fd(), PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let changed = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&now)));
        changed.is_ok_and(|ready| ready == 0)
    }
}

impl HostObject {
    fn examine(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let found = match rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some((stat.st_dev, stat.st_ino)),
            Err(Errno::NOENT | Errno::NOTDIR) => None,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { path: path.to_owned(), device_and_inode: found })
    }
}

/// Returns the paths at which a step could connect to sockets of the host if they were not masked.
fn reachable_sockets(ops: &[SetupOp], frame: &Frame) -> io::Result<BTreeSet<PathBuf>> {
    let hidden = ops.iter().find_map(|op| match op {
        SetupOp::MaskSockets { hidden } => Some(hidden),
        _ => None,
    });
    let skip: Vec<&Path> = hidden.into_iter().flatten().map(PathBuf::as_path).collect();
    let shown: Vec<_> = frame.tools.iter().map(|tool| (tool.source.as_path(), tool.at.as_path())).collect();
    let bound = sockets::bound_sockets(&File::open("/proc/net/unix")?)?;
    Ok(sockets::HostSockets { bound: &bound, skip: &skip, shown: &shown }.reachable_paths())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use proctor_core::model::enforcement::Tolerated;
    use proctor_core::model::plan::{Limits, Network};

    use super::*;
    use crate::policy::GitDirs;
    use crate::setup::{AbsentAction, CloneKind, CoverKind};

    fn frame() -> Frame {
        Frame {
            repo: "/r".into(),
            checkout: None,
            git: GitDirs::default(),
            network: Network::Deny,
            home: "/h".into(),
            hide: vec![],
            tools: vec![],
            caches: vec![],
            tolerated: Tolerated::default(),
            limits: Limits::UNLIMITED,
            view: false,
            inputs: None,
        }
    }

    /// Other processes and tests bind sockets at any time, so one undisturbed attempt of many is enough.
    const ATTEMPTS: usize = 100;

    fn clone_op(source: &Path) -> SetupOp {
        SetupOp::Clone { source: source.to_owned(), at: source.to_owned(), kind: CloneKind::Git { mapped: false } }
    }

    fn is_current_after(ops: &[SetupOp], change: impl FnOnce()) -> bool {
        let capture = || HostView::capture(ops, &frame()).expect("a look");
        let view = std::iter::repeat_with(capture).take(ATTEMPTS).find(|view| view.is_current(ops, &frame()));
        let view = view.expect("nothing has happened");
        change();
        view.is_current(ops, &frame())
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a file of a test")]
    fn notices_replaced_directory() {
        let dir = tempfile::tempdir().expect("a directory");
        let git = dir.path().join(".git");
        std::fs::create_dir(&git).expect("made");
        let replace = || {
            std::fs::rename(&git, dir.path().join("old")).expect("moved");
            std::fs::create_dir(&git).expect("made");
        };
        let ops = [clone_op(&git), SetupOp::MaskSockets { hidden: vec!["/".into()] }];
        assert!(!is_current_after(&ops, replace));
        assert!(!is_current_after(&ops, || std::fs::remove_dir(&git).expect("removed")));
        assert!(!is_current_after(&ops, || std::fs::create_dir(&git).expect("made")));
        assert!(is_current_after(&ops, || std::fs::write(git.join("HEAD"), "x").expect("written")));
    }

    #[test]
    fn notices_new_directory_to_hide() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = dir.path().join("home");
        let cover = vec![SetupOp::Cover { at: at.clone(), kind: CoverKind::Hidden, absent: AbsentAction::PassOver }];
        assert!(!is_current_after(&cover, || std::fs::create_dir(&at).expect("made")));
    }

    #[test]
    fn notices_unmasked_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let ops = [clone_op(dir.path()), SetupOp::MaskSockets { hidden: vec![] }];
        let socket = dir.path().join("s");
        let bind = || {
            let _ = std::fs::remove_file(&socket);
            UnixListener::bind(&socket).expect("bound")
        };
        let mut bound = None;
        assert!(!is_current_after(&ops, || bound = Some(bind())));
        let is_current_without = |ops: &[SetupOp]| {
            let bound = bind();
            is_current_after(ops, || drop(bound))
        };
        assert!((0..ATTEMPTS).any(|_| is_current_without(&ops)), "one that is gone needs no mask");
        let hidden = [SetupOp::MaskSockets { hidden: vec![dir.path().to_owned()] }];
        assert!((0..ATTEMPTS).any(|_| is_current_after(&hidden, || drop(bind()))));
    }
}
