//! Copies the inputs of the action to a directory of the agent.
//!
//! The inputs may be hard links to files in the worker's store, or be on a FUSE file system, so no step may write them:
//! every file is a copy, whose blocks are shared only if the file system copies them on write. All copies have the same
//! time, since the times of inputs differ from worker to worker.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};

use crate::agent::{InputLink, received_link_target};
use crate::helper::tree_copier;

/// Modification time of every input: 2000-01-01, 00:00:00 UTC.
const INPUT_TIME: i64 = 946_684_800;
/// Maximum depth of nested directories. Each level takes descriptors and stack space.
const MAX_DEPTH: usize = 256;
/// Mode of directories, and of files that can be executed.
const EXECUTABLE: Mode = Mode::from_raw_mode(0o755);
/// Mode of all other files.
const PLAIN: Mode = Mode::from_raw_mode(0o644);

/// Copies the content of a directory into an empty one, and sets the mode and time of both.
///
/// # Errors
/// An input cannot be read or is neither a file, a directory nor a symbolic link; or there is no space left.
pub(super) fn import(from: &OwnedFd, to: BorrowedFd<'_>) -> io::Result<()> {
    import_entries(from, to, &mut Links::new(), b"", 0)
}

/// Does the same as [`import`], and creates these symbolic links in the copied directories.
///
/// # Errors
/// Those of [`import`], or there is no directory for a link.
pub(super) fn import_with_links(from: &OwnedFd, to: BorrowedFd<'_>, links: Vec<InputLink>) -> io::Result<()> {
    let mut by_directory = Links::new();
    for link in links {
        let slash = link.path.iter().rposition(|byte| *byte == b'/');
        let (directory, name) = slash.map_or((&[][..], &link.path[..]), |at| (&link.path[..at], &link.path[at + 1..]));
        by_directory.entry(directory.to_vec()).or_default().push((name.to_vec(), link.target));
    }
    import_entries(from, to, &mut by_directory, b"", 0)?;
    match by_directory.first_key_value() {
        None => Ok(()),
        Some((directory, _)) => {
            let shown = String::from_utf8_lossy(directory).into_owned();
            Err(io::Error::other(format!("`{shown}` is not a directory, but has a symbolic link")))
        }
    }
}

/// The names and targets of symbolic links, by the path of their directory.
type Links = BTreeMap<Vec<u8>, Vec<(Vec<u8>, Vec<u8>)>>;

fn import_entries(from: &OwnedFd, to: BorrowedFd<'_>, links: &mut Links, path: &[u8], depth: usize) -> io::Result<()> {
    if depth > MAX_DEPTH {
        return Err(io::Error::other(format!("directories are nested more than {MAX_DEPTH} levels deep")));
    }
    for name in tree_copier::entry_names(from)? {
        let path = tree_copier::join_path(path, &name);
        import_entry(from, to, links, &name, &path, depth).map_err(|error| with_path(error, &path))?;
    }
    for (name, target) in links.remove(path).unwrap_or_default() {
        let path = tree_copier::join_path(path, &name);
        create_link(to, &name, &target).map_err(|error| with_path(error, &path))?;
    }
    rustix::fs::fchmod(to, EXECUTABLE)?;
    Ok(rustix::fs::futimens(to, &input_times())?)
}

fn with_path(error: io::Error, path: &[u8]) -> io::Error {
    match error.raw_os_error() {
        Some(_) => io::Error::other(format!("`{}`: {error}", String::from_utf8_lossy(path))),
        None => error,
    }
}

fn import_entry(
    from: &OwnedFd,
    to: BorrowedFd<'_>,
    links: &mut Links,
    name: &[u8],
    path: &[u8],
    depth: usize,
) -> io::Result<()> {
    let stat = rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => {
            let source = rustix::fs::openat(from, name, flags | OFlags::DIRECTORY, Mode::empty())?;
            rustix::fs::mkdirat(to, name, Mode::RWXU)?;
            let target = rustix::fs::openat(to, name, flags | OFlags::DIRECTORY, Mode::empty())?;
            import_entries(&source, target.as_fd(), links, path, depth + 1)
        }
        FileType::RegularFile => {
            let source = rustix::fs::openat(from, name, flags | OFlags::NOCTTY, Mode::empty())?;
            let file = tree_copier::copy_content(&source, to, name)?;
            rustix::fs::fchmod(&file, if is_executable(&stat) { EXECUTABLE } else { PLAIN })?;
            Ok(rustix::fs::futimens(&file, &input_times())?)
        }
        FileType::Symlink => {
            let sent = rustix::fs::readlinkat(from, name, Vec::new())?;
            let damaged = || format!("`{}` has a damaged target", String::from_utf8_lossy(path));
            let target = received_link_target(sent.as_bytes()).ok_or_else(|| io::Error::other(damaged()))?;
            create_link(to, name, &target)
        }
        _ => Err(io::Error::other(format!(
            "`{}` is neither a file, a directory nor a symbolic link",
            String::from_utf8_lossy(path)
        ))),
    }
}

fn create_link(to: BorrowedFd<'_>, name: &[u8], target: &[u8]) -> io::Result<()> {
    rustix::fs::symlinkat(target, to, name)?;
    Ok(rustix::fs::utimensat(to, name, &input_times(), AtFlags::SYMLINK_NOFOLLOW)?)
}

fn is_executable(stat: &Stat) -> bool {
    stat.st_mode & 0o111 != 0
}

/// Returns the times of all inputs.
pub(super) fn input_times() -> Timestamps {
    let time = Timespec { tv_sec: INPUT_TIME, tv_nsec: 0 };
    Timestamps { last_access: time, last_modification: time }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests use plain files")]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

    use super::*;
    use crate::agent::sent_link_target;

    #[test]
    fn copies_files_and_normalises_their_metadata() {
        let dir = tempfile::tempdir().expect("a directory");
        let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
        fs::create_dir_all(from.join("a/empty")).expect("made");
        fs::create_dir(&to).expect("made");
        fs::write(from.join("a/program"), "x").expect("written");
        fs::write(from.join("file"), "y").expect("written");
        fs::hard_link(from.join("file"), dir.path().join("store")).expect("linked");
        symlink("../outside", from.join("link")).expect("made");
        symlink(&*sent_link_target(b"./a//b").expect("encoded"), from.join("encoded")).expect("made");
        for (name, mode) in [("a/program", 0o510), ("file", 0o400)] {
            fs::set_permissions(from.join(name), fs::Permissions::from_mode(mode)).expect("set");
        }
        let open = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        import(&open(&from), open(&to).as_fd()).expect("copied");
        let modes = ["a", "a/empty", "a/program", "file"].map(|name| {
            let found = fs::metadata(to.join(name)).expect("there");
            assert_eq!(found.mtime(), INPUT_TIME, "{name}");
            found.mode() & 0o7777
        });
        assert_eq!(modes, [0o755, 0o755, 0o755, 0o644]);
        assert_eq!(fs::symlink_metadata(to.join("link")).expect("there").mtime(), INPUT_TIME);
        for (name, target) in [("link", "../outside"), ("encoded", "./a//b")] {
            assert_eq!(fs::read_link(to.join(name)).expect("a link").as_os_str(), target);
        }
        fs::write(to.join("file"), "changed").expect("written");
        assert_eq!(fs::read_to_string(dir.path().join("store")).expect("read"), "y");
    }

    #[test]
    fn creates_links_in_copied_directories_only() {
        let link = |path: &str, target: &str| InputLink { path: path.into(), target: target.into() };
        let dir = tempfile::tempdir().expect("a directory");
        fs::create_dir_all(dir.path().join("bin")).expect("made");
        symlink("/", dir.path().join("outside")).expect("made");
        let open = |path: &std::path::Path| {
            rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened")
        };
        let import = |links| {
            let to = tempfile::tempdir().expect("a directory");
            import_with_links(&open(dir.path()), open(to.path()).as_fd(), links).map(|()| to)
        };
        let to = import(vec![link("bin/python", "/usr/bin/python3"), link("lib64", "lib")]).expect("imported");
        assert_eq!(
            fs::read_link(to.path().join("bin/python")).expect("a link"),
            std::path::Path::new("/usr/bin/python3")
        );
        for name in ["bin", "bin/python", "lib64"] {
            assert_eq!(fs::symlink_metadata(to.path().join(name)).expect("there").mtime(), INPUT_TIME, "{name}");
        }
        for refused in ["absent/link", "outside/link", "bin", "bin/..", "../link", ""] {
            import(vec![link(refused, "target")]).expect_err(refused);
        }
    }

    #[test]
    fn refuses_other_inputs() {
        let dir = tempfile::tempdir().expect("a directory");
        let open = |path| rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).expect("opened");
        let from = open(dir.path());
        rustix::fs::mknodat(&from, "fifo", FileType::Fifo, Mode::RUSR, 0).expect("made");
        let to = tempfile::tempdir().expect("a directory");
        let error = import(&from, open(to.path()).as_fd()).expect_err("refused").to_string();
        assert!(error.contains("fifo"), "{error}");
    }
}
