//! Opens paths below a directory with openat2(2). If the call is refused, the module resolves the path in user
//! space. Container runtimes and our own sandbox refuse openat2, since a seccomp filter cannot inspect its
//! arguments.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2, readlinkat};
use rustix::io::Errno;

/// How symbolic links are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkPolicy {
    /// A link in any part of the path is an error, ELOOP.
    Reject,
    /// Links are followed if they stay below the root; otherwise the error is EXDEV.
    FollowWithin,
}

/// Maximum number of links that are followed, as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Opens `path` below `root` and never leaves `root`; `.` is `root` itself.
///
/// # Errors
/// The errno of openat2(2): ELOOP or EXDEV for links, depending on [`LinkPolicy`]; EXDEV for an absolute path or one
/// that leaves `root`; otherwise the error of opening the file.
pub fn open_beneath(root: BorrowedFd<'_>, path: &Path, flags: OFlags, links: LinkPolicy) -> Result<OwnedFd, Errno> {
    let mut resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    resolve.set(ResolveFlags::NO_SYMLINKS, links == LinkPolicy::Reject);
    let flags = flags | OFlags::CLOEXEC;
    match openat2(root, path, flags, Mode::empty(), resolve) {
        Err(Errno::NOSYS | Errno::PERM) => PathResolver::new(root, links)?.open(path, flags),
        other => other,
    }
}

/// Resolves a path component by component.
struct PathResolver {
    links: LinkPolicy,
    /// The root, and the directories below it that lead to the current position.
    directories: Vec<OwnedFd>,
    pending: VecDeque<OsString>,
    followed: usize,
}

impl PathResolver {
    fn new(root: BorrowedFd<'_>, links: LinkPolicy) -> Result<Self, Errno> {
        let root = openat(root, ".", DIRECTORY_FLAGS, Mode::empty())?;
        Ok(Self { links, directories: vec![root], pending: VecDeque::new(), followed: 0 })
    }

    fn open(mut self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.push_components(path)?;
        while let Some(name) = self.pending.pop_front() {
            if name == ".." {
                self.directories.pop();
                // The root itself must not be left.
                if self.directories.is_empty() {
                    return Err(Errno::XDEV);
                }
                continue;
            }
            let found = openat(
                self.current_directory()?,
                &name,
                OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            match FileType::from_raw_mode(fstat(&found)?.st_mode) {
                // A final link that is not followed is not a directory, so `O_DIRECTORY` fails with ENOTDIR.
                FileType::Symlink if self.pending.is_empty() && flags.contains(OFlags::NOFOLLOW) => {
                    return match (flags.contains(OFlags::DIRECTORY), flags.contains(OPEN_LINK_ITSELF)) {
                        (true, _) => Err(Errno::NOTDIR),
                        (false, true) => Ok(found),
                        (false, false) => Err(Errno::LOOP),
                    };
                }
                FileType::Symlink => self.follow_link(&found)?,
                FileType::Directory if !self.pending.is_empty() => self.directories.push(found),
                _ if !self.pending.is_empty() => return Err(Errno::NOTDIR),
                // If another file has replaced this entry, that file is opened; a link is refused.
                _ => return self.open_last(&name, flags),
            }
        }
        openat(self.current_directory()?, ".", flags, Mode::empty())
    }

    fn open_last(&self, name: &OsString, flags: OFlags) -> Result<OwnedFd, Errno> {
        let opened = openat(self.current_directory()?, name, flags | OFlags::NOFOLLOW, Mode::empty())?;
        let is_link = || fstat(&opened).map(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
        // With O_PATH, openat would open the link itself.
        if flags.contains(OFlags::PATH) && !flags.contains(OPEN_LINK_ITSELF) && is_link()? {
            Err(Errno::LOOP)
        } else {
            Ok(opened)
        }
    }

    fn follow_link(&mut self, link: &OwnedFd) -> Result<(), Errno> {
        self.followed += 1;
        if self.links == LinkPolicy::Reject || self.followed > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let target = readlinkat(link, "", Vec::new())?;
        self.push_components(Path::new(&OsString::from_vec(target.into_bytes())))
    }

    fn push_components(&mut self, path: &Path) -> Result<(), Errno> {
        if path.as_os_str().as_bytes().is_empty() {
            return Err(Errno::NOENT);
        }
        for part in path.components().rev() {
            match part {
                Component::Normal(name) => self.pending.push_front(name.to_owned()),
                Component::ParentDir => self.pending.push_front("..".into()),
                Component::CurDir => {}
                Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV),
            }
        }
        Ok(())
    }

    fn current_directory(&self) -> Result<BorrowedFd<'_>, Errno> {
        self.directories.last().map(AsFd::as_fd).ok_or(Errno::XDEV)
    }
}

/// With these flags a final link itself is opened.
const OPEN_LINK_ITSELF: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW);
const DIRECTORY_FLAGS: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const NOFOLLOW: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW);
    const FLAG_SETS: [OFlags; 7] = [
        OFlags::PATH,
        OPEN_LINK_ITSELF,
        OFlags::RDONLY,
        NOFOLLOW,
        OFlags::RDONLY.union(OFlags::DIRECTORY),
        OPEN_LINK_ITSELF.union(OFlags::DIRECTORY),
        NOFOLLOW.union(OFlags::DIRECTORY),
    ];

    /// Compares the results of the kernel with those of our resolution, for each path, kind of link and set of
    /// flags.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "a fixture")]
    fn resolver_matches_kernel() {
        let temp = tempfile::tempdir().expect("temp");
        let at = |name: &str| temp.path().join("root").join(name);
        std::fs::create_dir_all(at("a/b")).expect("makes");
        std::fs::write(at("a/b/file"), "x").expect("writes");
        std::fs::write(temp.path().join("outside"), "x").expect("writes");
        for (link, target) in [("in", "a/b"), ("a/up", "../a/b/file"), ("out", "../outside"), ("abs", "/etc")] {
            symlink(target, at(link)).expect("links");
        }
        symlink("loop", at("loop")).expect("links");
        symlink("nowhere", at("dangling")).expect("links");
        let root = std::fs::File::open(temp.path().join("root")).expect("opens");
        let paths = [
            ".",
            "a",
            "a/b/file",
            "a/./b/../b/file",
            "in",
            "in/file",
            "a/up",
            "out",
            "abs",
            "loop",
            "dangling",
            "..",
            "a/../..",
            "/etc",
            "a/b/file/x",
            "missing",
            "missing/x",
            "in/missing",
            "a/b/..",
            "out/x",
        ];
        let is_refused = openat2(&root, ".", OFlags::PATH, Mode::empty(), ResolveFlags::BENEATH).is_err();
        for path in paths {
            for links in [LinkPolicy::Reject, LinkPolicy::FollowWithin] {
                for flags in FLAG_SETS {
                    let ino = |fd: Result<OwnedFd, Errno>| fd.and_then(|fd| Ok(fstat(fd)?.st_ino));
                    let by_kernel = ino(open_beneath(root.as_fd(), Path::new(path), flags, links));
                    let by_hand =
                        PathResolver::new(root.as_fd(), links).and_then(|walk| walk.open(Path::new(path), flags));
                    assert_eq!(ino(by_hand), by_kernel, "{path} {links:?} {flags:?}, refused: {is_refused}");
                }
            }
        }
    }
}
