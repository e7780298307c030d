//! Takes a fingerprint of the directories that a command may write, and checks whether they still match it afterwards.
//! The helper takes the fingerprint when everything is mounted; PID 1 compares when no process is left that could
//! write.
//!
//! A timestamp of the kernel shows most changes, but none within the clock tick in which it was taken. So names,
//! modes, links, contents and extended attributes are compared as well.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The largest number of files and directories in a fingerprint; a new sandbox has some dozens.
const MAX_ENTRIES: usize = 512;
/// The longest file in a fingerprint, in bytes; a new sandbox has a short `.gitconfig`.
const MAX_FILE_SIZE: u64 = 4 << 10;

/// The fingerprint of directories and everything in them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScratchFingerprint {
    files: Vec<FileFingerprint>,
    /// A scratch directory and the free space of its file system, if package stores have layers there.
    space: Option<(PathBuf, FreeSpace)>,
}

/// The free space of the file system of all scratch directories. It also holds the layers for writes of package stores,
/// which no path shows: each write to a store needs at least one file of the layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FreeSpace {
    files: u64,
    blocks: u64,
}

impl FreeSpace {
    fn read(path: &Path) -> io::Result<Self> {
        let found = rustix::fs::statvfs(path)?;
        Ok(Self { files: found.f_ffree, blocks: found.f_bfree })
    }
}

/// One file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileFingerprint {
    path: PathBuf,
    stamp: ScratchFileStat,
    /// The names of the extended attributes, except those of security modules.
    attributes: Vec<u8>,
    holds: FingerprintContent,
}

/// The content of a file or a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FingerprintContent {
    /// Names, sorted.
    Names(Vec<String>),
    /// Bytes.
    Bytes(Vec<u8>),
    /// A device, which is not opened: the multiplexer of the step's terminals.
    Device(u64),
    /// The root of the tree, without its content: changes of the content are found in the layer.
    Tree,
}

/// The kernel's metadata of a file. It excludes the owner, since PID 1 sees other ids than the helper, and no step
/// can change the owner of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct ScratchFileStat {
    device: u64,
    inode: u64,
    mode: u32,
    links: u64,
    size: u64,
    accessed: (i64, i64),
    modified: (i64, i64),
    changed: (i64, i64),
}

impl ScratchFingerprint {
    /// Takes the fingerprint of the directories `scratch`, without other file systems mounted below them, and of the
    /// roots of `trees`. `space` is a directory of the file system that also has the layers of package stores, if there
    /// are any.
    ///
    /// # Errors
    /// A file cannot be read, or is of a kind that no new sandbox contains.
    pub(crate) fn capture<'a>(
        scratch: impl IntoIterator<Item = &'a Path>,
        trees: impl IntoIterator<Item = &'a Path>,
        space: Option<&Path>,
    ) -> io::Result<Self> {
        let of_tree = |tree: &Path| FileFingerprint::capture(tree, |_| Ok(FingerprintContent::Tree));
        let mut traces = trees.into_iter().map(of_tree).collect::<io::Result<Vec<_>>>()?;
        let with_device = |path: &Path| Ok::<_, io::Error>((ScratchFileStat::read(path)?.device, path.to_owned()));
        let mut waiting = scratch.into_iter().map(with_device).collect::<io::Result<Vec<(u64, PathBuf)>>>()?;
        let space = space.map(|path| Ok::<_, io::Error>((path.to_owned(), FreeSpace::read(path)?))).transpose()?;
        while let Some((device, path)) = waiting.pop() {
            // Other mounts are not scratch space; their names are recorded in the parent directory.
            if ScratchFileStat::read(&path)?.device != device {
                continue;
            }
            if traces.len() >= MAX_ENTRIES {
                return Err(io::Error::other("the scratch directories have too many entries"));
            }
            let trace = FileFingerprint::capture(&path, |stamp| FingerprintContent::read(&path, stamp))?;
            if let FingerprintContent::Names(names) = &trace.holds {
                waiting.extend(names.iter().map(|name| (device, path.join(name))));
            }
            traces.push(trace);
        }
        Ok(Self { files: traces, space })
    }

    /// Returns whether all of it is unchanged.
    pub(crate) fn is_unchanged(&self) -> bool {
        let is_same_space = |(path, free): &(PathBuf, FreeSpace)| FreeSpace::read(path).is_ok_and(|now| now == *free);
        self.files.iter().all(FileFingerprint::is_unchanged) && self.space.iter().all(is_same_space)
    }
}

impl FileFingerprint {
    /// Reads the content before the times, since reading may change the access time.
    fn capture(
        path: &Path,
        holds: impl FnOnce(&ScratchFileStat) -> io::Result<FingerprintContent>,
    ) -> io::Result<Self> {
        let holds = holds(&ScratchFileStat::read(path)?)?;
        Ok(Self {
            path: path.to_owned(),
            stamp: ScratchFileStat::read(path)?,
            attributes: attribute_names(path)?,
            holds,
        })
    }

    fn is_unchanged(&self) -> bool {
        let is_so = || {
            let same =
                ScratchFileStat::read(&self.path)? == self.stamp && attribute_names(&self.path)? == self.attributes;
            Ok::<_, io::Error>(
                same && (self.holds == FingerprintContent::Tree
                    || FingerprintContent::read(&self.path, &self.stamp)? == self.holds),
            )
        };
        is_so().unwrap_or(false)
    }
}

impl FingerprintContent {
    fn read(path: &Path, stamp: &ScratchFileStat) -> io::Result<Self> {
        match stamp.mode & libc::S_IFMT {
            libc::S_IFDIR => {
                let name = |entry: io::Result<fs::DirEntry>| {
                    entry?.file_name().into_string().map_err(|_| io::Error::other("a name that is not UTF-8"))
                };
                let mut names = fs::read_dir(path)?.map(name).collect::<io::Result<Vec<String>>>()?;
                names.sort();
                Ok(Self::Names(names))
            }
            libc::S_IFREG if stamp.size <= MAX_FILE_SIZE => Ok(Self::Bytes(fs::read(path)?)),
            libc::S_IFCHR => Ok(Self::Device(fs::symlink_metadata(path)?.rdev())),
            _ => Err(io::Error::other("neither a directory, a short file nor a device")),
        }
    }
}

impl ScratchFileStat {
    fn read(path: &Path) -> io::Result<Self> {
        let found = fs::symlink_metadata(path)?;
        Ok(Self {
            device: found.dev(),
            inode: found.ino(),
            mode: found.mode(),
            links: found.nlink(),
            size: found.size(),
            accessed: (found.atime(), found.atime_nsec()),
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }
}

/// Returns the names of the extended attributes of a file, except those of security modules, which a step cannot set.
/// A file system without attribute support has none.
fn attribute_names(path: &Path) -> io::Result<Vec<u8>> {
    let mut names = [0_u8; MAX_ATTRIBUTE_LIST];
    let length = match rustix::fs::llistxattr(path, &mut names[..]) {
        Err(rustix::io::Errno::NOTSUP) => 0,
        other => other?,
    };
    let given = |name: &&[u8]| !name.is_empty() && !name.starts_with(b"security.");
    Ok(names[..length].split(|byte| *byte == 0).filter(given).collect::<Vec<_>>().join(&0))
}

/// The longest list of attribute names, in bytes. The attributes of security modules need less.
const MAX_ATTRIBUTE_LIST: usize = 512;

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests write plain files")]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Creates a scratch directory with a file and a directory, and a tree; applies a change, and returns whether the
    /// fingerprint still matches.
    fn is_unchanged_after(what: impl FnOnce(&Path)) -> bool {
        let place = tempfile::tempdir().expect("tempdir");
        let scratch = place.path().join("scratch");
        for name in ["scratch/inner", "tree"] {
            fs::create_dir_all(place.path().join(name)).expect("made");
        }
        fs::write(scratch.join(".gitconfig"), "[core]\n").expect("written");
        let traces = ScratchFingerprint::capture([scratch.as_path()], [place.path().join("tree").as_path()], None)
            .expect("taken");
        assert!(traces.is_unchanged(), "nothing has happened");
        what(place.path());
        let text = serde_json::to_vec(&traces).expect("text");
        serde_json::from_slice::<ScratchFingerprint>(&text).expect("read").is_unchanged()
    }

    /// The name of a change, and a function that makes it below a path.
    type ScratchChange = (&'static str, fn(&Path));

    #[test]
    fn reading_changes_nothing() {
        assert!(is_unchanged_after(|place| {
            fs::read(place.join("scratch/.gitconfig")).expect("read");
            assert_eq!(fs::read_dir(place.join("scratch/inner")).expect("listed").count(), 0);
        }));
    }

    #[test]
    fn detects_every_change() {
        let changes: [ScratchChange; 9] = [
            ("a file", |place| fs::write(place.join("scratch/inner/new"), "x").expect("written")),
            ("a directory", |place| fs::create_dir(place.join("scratch/new")).expect("made")),
            ("a link", |place| std::os::unix::fs::symlink("/", place.join("scratch/link")).expect("made")),
            ("a second name", |place| {
                fs::hard_link(place.join("scratch/.gitconfig"), place.join("scratch/inner/other")).expect("linked");
            }),
            ("the same length", |place| fs::write(place.join("scratch/.gitconfig"), "[evil]\n").expect("written")),
            ("a removal", |place| fs::remove_dir(place.join("scratch/inner")).expect("removed")),
            ("a mode", |place| {
                let mode = fs::Permissions::from_mode(0o700);
                fs::set_permissions(place.join("scratch/inner"), mode).expect("set");
            }),
            ("another in its place", |place| {
                fs::remove_file(place.join("scratch/.gitconfig")).expect("removed");
                fs::write(place.join("scratch/.gitconfig"), "[core]\n").expect("written");
            }),
            ("the tree's mode", |place| {
                fs::set_permissions(place.join("tree"), fs::Permissions::from_mode(0o700)).expect("set");
            }),
        ];
        for (what, change) in changes {
            assert!(!is_unchanged_after(change), "{what}");
        }
    }

    #[test]
    fn rejects_unexpected_file_types() {
        let place = tempfile::tempdir().expect("tempdir");
        std::os::unix::fs::symlink("/", place.path().join("link")).expect("made");
        assert!(ScratchFingerprint::capture([place.path()], [place.path()], None).is_err());
    }
}
