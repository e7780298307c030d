//! Object directories that a repository borrows from others (`git clone --shared`). Git inside a
//! sandbox fails without them, and to show what a file of the repository names would let it
//! widen what its steps see. So a hidden one is refused, with the way to mend it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The largest list that is read, in bytes.
const MAX_BYTES: u64 = 64 << 10;
/// How far git follows lists of lists (gitrepository-layout(5)).
const MAX_DEPTH: u32 = 5;

/// The first borrowed object directory that `is_hidden` says a step would not see.
///
/// # Errors
/// A list is there and cannot be read, or is larger than any that git writes.
pub(crate) fn first_hidden(common: &Path, is_hidden: impl Fn(&Path) -> bool) -> io::Result<Option<PathBuf>> {
    // Each is read once: lists that name each other many times would never come to an end.
    let mut seen = BTreeSet::new();
    let mut level = borrowed(&common.join("objects"))?;
    for _ in 0..MAX_DEPTH {
        let mut next = Vec::new();
        for objects in level {
            // Where it leads counts, not what it is called; one that is gone is git's to report.
            let Ok(objects) = objects.canonicalize() else { continue };
            if is_hidden(&objects) {
                return Ok(Some(objects));
            }
            if seen.insert(objects.clone()) {
                next.extend(borrowed(&objects)?);
            }
        }
        level = next;
    }
    Ok(None)
}

/// What the list of `objects` names; paths in it are relative to `objects`.
fn borrowed(objects: &Path) -> io::Result<Vec<PathBuf>> {
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
    fn lists_of_lists_are_followed_and_relative_paths_too() {
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
    fn lists_that_name_each_other_come_to_an_end() {
        let temp = tempfile::tempdir().expect("temp");
        let root = temp.path().canonicalize().expect("resolves");
        let names = (0..1_000).map(|n| format!("../../{}/objects\n", ["one", "two"][n % 2])).collect::<String>();
        let common = object_directory(&root, "one", Some(&names));
        object_directory(&root, "two", Some(&names));
        assert_eq!(first_hidden(&common, |_| false).expect("reads"), None);
    }

    #[test]
    fn a_list_that_is_no_file_is_refused() {
        let temp = tempfile::tempdir().expect("temp");
        let common = object_directory(temp.path(), "own", None);
        std::fs::create_dir(common.join("objects/info/alternates")).expect("makes");
        assert!(first_hidden(&common, |_| false).is_err());
    }
}
