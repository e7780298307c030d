//! Finds object directories that a repository borrows from others (`git clone --shared`). Git in a sandbox fails
//! without them. Mounting what a file of the repository names would let the repository extend what its steps see,
//! so a hidden directory is refused, with a hint.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// Maximum size of a list, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// Maximum depth of nested lists, the same as git's (gitrepository-layout(5)).
const MAX_DEPTH: u32 = 5;

/// Returns the first borrowed object directory for which `is_hidden` is true.
///
/// # Errors
/// A list cannot be read, or is larger than any that git writes.
pub(crate) fn first_hidden(common: &Path, is_hidden: impl Fn(&Path) -> bool) -> io::Result<Option<PathBuf>> {
    // Each list is read once: lists that name each other could otherwise multiply without end.
    let mut seen = BTreeSet::new();
    let mut level = read_alternates(&common.join("objects"))?;
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for objects in level {
            // The resolved path matters. A directory that no longer exists is skipped, since git reports it.
            let Ok(objects) = objects.canonicalize() else { continue };
            if is_hidden(&objects) {
                return Ok(Some(objects));
            }
            if seen.insert(objects.clone()) {
                next.extend(read_alternates(&objects)?);
            }
        }
        level = next;
    }
    Ok(None)
}

/// Returns the directories in the list of `objects`; relative paths start at `objects`.
fn read_alternates(objects: &Path) -> io::Result<Vec<PathBuf>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = match rustix::fs::open(objects.join("info/alternates"), flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(vec![]),
        Err(errno) => return Err(errno.into()),
    };
    let mut text = Vec::new();
    if !file.metadata()?.is_file() || file.take(MAX_BYTES + 1).read_to_end(&mut text)? as u64 > MAX_BYTES {
        return Err(io::Error::other("git does not write such a file"));
    }
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty() && !line.starts_with(b"#"));
    Ok(lines.map(|line| objects.join(OsStr::from_bytes(line))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::directory::Directory;

    fn object_directory(parent: &Path, name: &str, borrows: Option<&str>) -> PathBuf {
        let objects = parent.join(name).join("objects");
        std::fs::create_dir_all(objects.join("info")).expect("makes");
        if let Some(text) = borrows {
            Directory::open(&objects.join("info"))
                .expect("opens")
                .write("alternates", text.as_bytes())
                .expect("writes");
        }
        parent.join(name)
    }

    #[test]
    fn follows_nested_and_relative_lists() {
        let temp = tempfile::tempdir().expect("temp");
        let root = temp.path().canonicalize().expect("resolves");
        object_directory(&root, "far", None);
        object_directory(&root, "near", Some("../../far/objects\n"));
        let common = object_directory(&root, "own", Some(&format!("# ours\n{}/near/objects\n", root.display())));
        let far = root.join("far/objects");
        assert_eq!(first_hidden(&common, |path| path == far).expect("reads"), Some(far.clone()));
        assert_eq!(first_hidden(&common, |_| false).expect("reads"), None);
        assert_eq!(first_hidden(&root.join("far"), |_| true).expect("reads"), None);
    }

    #[test]
    fn stops_at_cyclic_lists() {
        let temp = tempfile::tempdir().expect("temp");
        let root = temp.path().canonicalize().expect("resolves");
        let names = (0..1_000).map(|n| format!("../../{}/objects\n", ["one", "two"][n % 2])).collect::<String>();
        let common = object_directory(&root, "one", Some(&names));
        object_directory(&root, "two", Some(&names));
        assert_eq!(first_hidden(&common, |_| false).expect("reads"), None);
    }

    #[test]
    fn refuses_list_that_is_not_a_file() {
        let temp = tempfile::tempdir().expect("temp");
        let common = object_directory(temp.path(), "own", None);
        std::fs::create_dir(common.join("objects/info/alternates")).expect("makes");
        assert!(first_hidden(&common, |_| false).is_err());
    }
}
