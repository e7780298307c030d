//! Writes the git directory of a private copy. It is complete except for the objects, which are borrowed.
//!
//! The directory contains no hooks and none of the repository's settings: git in a step can read history, refs and the
//! index, and runs no program.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};

use crate::error::GitError;
use crate::files::file_stat::FileTime;
use crate::object::object_id::ObjectFormat;
use crate::repository::history::{HistoryBackend, RepositoryHistory};
use crate::repository::open_repository::{OpenRepository, libgit2_error};

/// The names of all files that [`GitDir::write`] writes.
pub const GIT_FILES: [&str; 7] =
    ["config", "objects/info/alternates", "shallow", "info/exclude", "packed-refs", "index", "HEAD"];
/// Maximum number of refs.
const MAX_REFS: usize = 1_000_000;
/// The largest list of a shallow clone's boundary commits, in bytes.
const MAX_SHALLOW: u64 = 16 << 20;
const SETTINGS: &str = "\tfilemode = true\n\tbare = false\n\tlogallrefupdates = false\n\ttrustctime = false\n";

/// The content of a git directory.
pub struct GitDir {
    /// The format of the object ids.
    pub format: ObjectFormat,
    /// The line in `HEAD`.
    pub head: String,
    /// The directory of the objects.
    pub objects: PathBuf,
    /// The refs in the format of `packed-refs`.
    pub refs: Vec<u8>,
    /// The boundary commits of a shallow clone.
    pub shallow: Option<Vec<u8>>,
    /// The ignore rules in `info/exclude`; `None` removes the file.
    pub exclude: Option<Vec<u8>>,
    /// True if ignore rules are case-insensitive.
    pub ignore_case: bool,
    /// The user and group of the files; `None` means our own.
    pub owner: Option<(u32, u32)>,
}

impl GitDir {
    /// Writes the files of the git directory at `git`. The `index` gets the modification time `written`.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn write(&self, git: &Path, index: &[u8], written: FileTime) -> io::Result<()> {
        for dir in ["", "objects", "objects/info", "objects/pack", "refs", "info"] {
            create_directory(&git.join(dir), self.owner)?;
        }
        let put = |name: &str, bytes: &[u8]| replace_file(&git.join(name), bytes, self.owner);
        put("config", config(self.format, self.ignore_case).as_bytes())?;
        put("objects/info/alternates", &alternates(&self.objects)?)?;
        for (name, bytes) in [("shallow", &self.shallow), ("info/exclude", &self.exclude)] {
            match bytes {
                Some(bytes) => put(name, bytes)?,
                None => remove_if_present(&git.join(name))?,
            }
        }
        put("packed-refs", &self.refs)?;
        put("index", index)?;
        set_mtime(&git.join("index"), written)?;
        put("HEAD", format!("{}\n", self.head).as_bytes())
    }
}

fn config(format: ObjectFormat, ignore_case: bool) -> String {
    let ignore_case = if ignore_case { "\tignorecase = true\n" } else { "" };
    let (version, extensions) = match format {
        ObjectFormat::Sha1 => (0, ""),
        ObjectFormat::Sha256 => (1, "[extensions]\n\tobjectFormat = sha256\n"),
    };
    format!("[core]\n\trepositoryformatversion = {version}\n{SETTINGS}{ignore_case}{extensions}")
}

fn alternates(objects: &Path) -> io::Result<Vec<u8>> {
    let bytes = objects.as_os_str().as_bytes();
    if bytes.contains(&b'\n') {
        return Err(io::Error::other("git cannot borrow objects from a directory whose path contains a line break"));
    }
    Ok([bytes, b"\n"].concat())
}

fn create_directory(dir: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(dir) {
        // The mode must not depend on the umask: steps see it.
        Ok(()) => std::fs::set_permissions(dir, Permissions::from_mode(0o755)).and_then(|()| set_owner(dir, owner)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn set_owner(path: &Path, owner: Option<(u32, u32)>) -> io::Result<()> {
    owner.map_or(Ok(()), |(uid, gid)| std::os::unix::fs::lchown(path, Some(uid), Some(gid)))
}

fn set_mtime(path: &Path, (tv_sec, nanoseconds): FileTime) -> io::Result<()> {
    let moment = Timespec { tv_sec, tv_nsec: nanoseconds.into() };
    let times = Timestamps { last_access: moment, last_modification: moment };
    Ok(utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Removes a file that an earlier update may have written.
fn remove_if_present(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces a file atomically.
fn replace_file(path: &Path, bytes: &[u8], owner: Option<(u32, u32)>) -> io::Result<()> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let beside = path.with_extension(format!("{}.new", random.map(|byte| format!("{byte:02x}")).concat()));
    let mut file = File::options().write(true).create_new(true).mode(0o644).open(&beside)?;
    let written = file
        .write_all(bytes)
        .and_then(|()| file.set_permissions(Permissions::from_mode(0o644)))
        .and_then(|()| set_owner(&beside, owner))
        .and_then(|()| std::fs::rename(&beside, path));
    if written.is_err() {
        // The first error is the one to report.
        let _ = std::fs::remove_file(&beside);
    }
    written
}

/// Returns all refs of a repository in the format of `packed-refs` (gitrepository-layout(5)). A symbolic ref is
/// resolved to its commit, or omitted if it cannot be resolved.
pub(crate) fn packed_refs(history: &RepositoryHistory<'_>) -> Result<Vec<u8>, GitError> {
    match (&history.backend, history.program_output()?) {
        (_, Some(output)) => output.refs().map_err(|error| history.unreadable(error.to_string())),
        (HistoryBackend::Libgit2(opened), None) => libgit2_refs(opened),
        (_, None) => Ok(Vec::new()),
    }
}

fn libgit2_refs(top: &OpenRepository) -> Result<Vec<u8>, GitError> {
    let unreadable = |error: git2::Error| libgit2_error(&top.worktree, &error);
    let mut text = Vec::new();
    for (count, found) in top.repository.references().map_err(unreadable)?.enumerate() {
        if count >= MAX_REFS {
            return Err(GitError::TooMany { path: top.worktree.clone(), limit: MAX_REFS, what: "refs".into() });
        }
        let Ok(found) = found else { continue };
        let name = found.name_bytes();
        let is_plain = name.starts_with(b"refs/") && !name.iter().any(|byte| *byte <= b' ' || *byte == 0x7f);
        let target = found.target().or_else(|| found.resolve().ok().and_then(|end| end.target()));
        if let (true, Some(id)) = (is_plain, target) {
            text.extend_from_slice(format!("{id} ").as_bytes());
            text.extend_from_slice(name);
            text.push(b'\n');
        }
    }
    Ok(text)
}

/// Returns the boundary commits of a shallow clone.
pub(crate) fn read_shallow(common_dir: &Path) -> Result<Option<Vec<u8>>, GitError> {
    let path = common_dir.join("shallow");
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let custom = i32::try_from(flags.bits()).unwrap_or_default();
    let file = match File::options().read(true).custom_flags(custom).open(&path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(checkout_error(&path, &error)),
    };
    let mut edges = Vec::new();
    let read = file.metadata().and_then(|meta| {
        if !meta.is_file() {
            return Err(io::Error::other("it is not a regular file"));
        }
        file.take(MAX_SHALLOW + 1).read_to_end(&mut edges)
    });
    match read {
        Ok(_) if edges.len() as u64 <= MAX_SHALLOW => Ok(Some(edges)),
        Ok(_) => Err(checkout_error(&path, &io::Error::other(format!("it is larger than {MAX_SHALLOW} bytes")))),
        Err(error) => Err(checkout_error(&path, &error)),
    }
}

fn checkout_error(path: &Path, error: &io::Error) -> GitError {
    GitError::CheckOut { path: path.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_files_of_earlier_state() {
        let place = tempfile::tempdir().expect("a directory");
        let git = place.path().join(".git");
        let state = |rest: Option<&str>| GitDir {
            format: ObjectFormat::Sha1,
            head: "ref: refs/heads/main".to_owned(),
            objects: "/nonexistent".into(),
            refs: Vec::new(),
            shallow: rest.map(Into::into),
            exclude: rest.map(Into::into),
            ignore_case: false,
            owner: None,
        };
        let there = || ["shallow", "info/exclude"].map(|name| git.join(name).exists());
        state(Some("text\n")).write(&git, b"", (1, 0)).expect("writes");
        assert_eq!(there(), [true, true]);
        for _ in 0..2 {
            state(None).write(&git, b"", (1, 0)).expect("writes");
            assert_eq!(there(), [false, false]);
        }
    }
}
