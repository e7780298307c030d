//! Lets `proctor-git` read a repository as its owner, even if the owner cannot search a directory above it.
//!
//! Root can keep its state directory, and with it private copies that belong to other users, below a directory that only
//! root can search. The helper then starts as root, and sees only the repository there: it enters a mount namespace in
//! which an empty directory covers the one that refuses the search, and mounts the repository at its own path. Then it
//! becomes the owner, before it reads anything of the repository.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode};
use rustix::mount::{MountFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags};
use rustix::thread::{Gid, Uid};

/// The first argument of a helper that starts as root.
const FLAG: &str = "--owner";

/// The owner that the helper becomes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnerRights {
    uid: u32,
    gid: u32,
    /// The topmost directory that the owner cannot search.
    closed: PathBuf,
    /// The work tree.
    repo: PathBuf,
}

impl OwnerRights {
    /// Returns the rights of a helper for `repo` that has to start as root; `None` if the owner can reach the repository,
    /// or if its path leads through a link.
    pub(crate) fn find(repo: &Path, uid: u32, gid: u32) -> Option<Self> {
        if repo.canonicalize().ok()? != repo {
            return None;
        }
        let above: Vec<&Path> = repo.ancestors().skip(1).collect();
        let closed = above.into_iter().rev().find(|directory| {
            std::fs::metadata(directory)
                .is_ok_and(|meta| !may_search(meta.mode(), (meta.uid(), meta.gid()), (uid, gid)))
        })?;
        // The root directory cannot be covered.
        closed.parent()?;
        Some(Self { uid, gid, closed: closed.to_owned(), repo: repo.to_owned() })
    }

    /// Returns the arguments of the helper.
    pub(crate) fn arguments(&self) -> [OsString; 5] {
        let text = |number: u32| OsString::from(number.to_string());
        [FLAG.into(), text(self.uid), text(self.gid), self.closed.clone().into(), self.repo.clone().into()]
    }

    /// Reads the arguments of the helper, without its name; `None` if there are none.
    ///
    /// # Errors
    /// There are other arguments.
    pub fn from_arguments(arguments: &[OsString]) -> io::Result<Option<Self>> {
        let number = |text: &OsStr| text.to_str()?.parse().ok();
        match arguments {
            [] => Ok(None),
            [flag, uid, gid, closed, repo] if flag == FLAG => {
                let ids = number(uid).zip(number(gid));
                let (uid, gid) = ids.ok_or_else(|| io::Error::other("the user or the group is not a number"))?;
                Ok(Some(Self { uid, gid, closed: closed.into(), repo: repo.into() }))
            }
            _ => Err(io::Error::other("unknown arguments")),
        }
    }

    /// Makes the repository reachable, and becomes its owner permanently. If the repository cannot be made reachable, the
    /// owner fails to read it, and the answer says so.
    ///
    /// # Errors
    /// The process cannot become the owner.
    pub fn assume(&self) -> io::Result<()> {
        let shown = self.show_repository();
        rustix::thread::set_thread_groups(&[])?;
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_thread_res_gid(gid, gid, gid)?;
        rustix::thread::set_thread_res_uid(uid, uid, uid)?;
        if let Err(error) = shown {
            eprintln!("{} cannot be made visible to its owner: {error}", self.repo.display());
        }
        Ok(())
    }

    fn show_repository(&self) -> io::Result<()> {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNS)?;
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
        let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
        let tree = rustix::mount::open_tree(CWD, &self.repo, flags)?;
        let empty = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        rustix::mount::mount("proctor", &self.closed, "tmpfs", empty, Some(c"mode=755,size=256k"))?;
        let mut point = self.closed.clone();
        for part in self.repo.strip_prefix(&self.closed).map_err(io::Error::other)? {
            point.push(part);
            rustix::fs::mkdir(&point, Mode::empty())?;
            // The mode must not depend on the umask.
            rustix::fs::chmod(&point, Mode::from_raw_mode(0o755))?;
        }
        Ok(rustix::mount::move_mount(&tree, "", CWD, &self.repo, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
    }
}

/// Returns whether the mode of a directory permits a user to search it.
fn may_search(mode: u32, (uid, gid): (u32, u32), user: (u32, u32)) -> bool {
    let shift = match user {
        (user, _) if user == uid => 6,
        (_, group) if group == gid => 3,
        _ => 0,
    };
    mode >> shift & 0o1 != 0
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn one_class_of_the_mode_decides() {
        assert!(may_search(0o711, (1, 1), (2, 2)) && !may_search(0o710, (1, 1), (2, 2)));
        assert!(may_search(0o710, (1, 2), (2, 2)) && !may_search(0o701, (1, 2), (2, 2)));
        assert!(may_search(0o700, (2, 1), (2, 2)) && !may_search(0o077, (2, 2), (2, 2)));
    }

    #[test]
    fn finds_the_topmost_directory_that_refuses_the_search() {
        let temp = tempfile::tempdir().expect("temp");
        let root = temp.path().canonicalize().expect("a path");
        let repo = root.join("a/b/repo");
        fs::create_dir_all(&repo).expect("creates");
        let chmod = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
        for (path, mode) in [("", 0o755), ("a", 0o755), ("a/b", 0o755), ("a/b/repo", 0o700)] {
            chmod(&root.join(path), mode);
        }
        let closed = || OwnerRights::find(&repo, 4_000_001, 4_000_002).map(|rights| rights.closed);
        assert_eq!(closed(), None, "the owner's rights on the repository itself do not matter");
        chmod(&root.join("a/b"), 0o700);
        assert_eq!(closed(), Some(root.join("a/b")));
        chmod(&root.join("a"), 0o700);
        assert_eq!(closed(), Some(root.join("a")));
        std::os::unix::fs::symlink("a", root.join("link")).expect("links");
        assert_eq!(OwnerRights::find(&root.join("link/b/repo"), 4_000_001, 4_000_002), None);
    }

    #[test]
    fn arguments_round_trip() {
        let rights = OwnerRights { uid: 1, gid: 2, closed: "/root".into(), repo: "/root/a b".into() };
        assert_eq!(OwnerRights::from_arguments(&rights.arguments()).expect("reads"), Some(rights));
        assert_eq!(OwnerRights::from_arguments(&[]).expect("reads"), None);
        OwnerRights::from_arguments(&["x".into()]).expect_err("unknown");
    }
}
