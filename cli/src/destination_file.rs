//! Writes a result to a file that the user names. The file appears whole or not at all, and replaces nothing but a
//! regular file of the same user.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use crate::error::CliError;
use crate::installation::show;

/// A destination file in an open directory. The destination is checked before anything runs.
pub(crate) struct DestinationFile {
    directory: File,
    name: OsString,
    /// The path, for messages.
    path: PathBuf,
}

impl DestinationFile {
    /// Checks the destination that the user named for `what`, such as `the patch`.
    ///
    /// # Errors
    /// The parent directory does not exist, the path leads into a `.git`, or something other than a file of the
    /// caller exists there.
    pub(crate) fn prepare(label: &str, file: &Path, cwd: &Path) -> Result<Self, CliError> {
        let path = cwd.join(file);
        let usage_error = |problem: &str| CliError::Usage {
            message: format!("{label} is not written to `{}`: {problem}", show(&path)),
            hint: "name a new file in an existing directory".to_owned(),
        };
        let name = path.file_name().ok_or_else(|| usage_error("it has no name"))?.to_owned();
        let parent = path.parent().unwrap_or(Path::new("/"));
        let (directory, real) = open_directory(parent).map_err(|error| usage_error(&error.to_string()))?;
        let is_git = |part: &OsStr| part.eq_ignore_ascii_case(".git");
        if real.iter().chain([name.as_os_str()]).any(is_git) {
            return Err(usage_error("it is in a `.git`"));
        }
        match rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => check_replaceable(&found).map_err(usage_error)?,
            Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(usage_error(&io::Error::from(errno).to_string())),
        }
        Ok(Self { directory, name, path })
    }

    /// Returns the path as a message shows it.
    pub(crate) fn display_path(&self) -> String {
        show(&self.path).to_string()
    }

    /// Writes a temporary file in the same directory and renames it to the destination.
    ///
    /// # Errors
    /// The file cannot be written, or an entry other than a regular file now exists at the path.
    pub(crate) fn write_atomically(&self, bytes: &[u8]) -> io::Result<()> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let temporary = format!(".proctor-{}.tmp", random.map(|byte| format!("{byte:02x}")).concat());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.directory, &temporary, flags, Mode::from_raw_mode(0o644))?;
        let mut file = File::from(opened);
        let put = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| self.replace(&temporary));
        if put.is_err() {
            // Ignore the result: the first error is the one to report.
            let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        put
    }

    /// Renames the temporary file to the destination. The destination is checked again, because a step may have
    /// replaced it.
    fn replace(&self, temporary: &str) -> io::Result<()> {
        match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() => {
                return Err(io::Error::other("it is not a regular file"));
            }
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name)?;
        Ok(rustix::fs::fsync(&self.directory)?)
    }
}

/// Largest number of symbolic links in a path; the limit of the kernel is the same.
const MAX_LINKS: usize = 40;

/// Opens a directory component by component, and returns it with its resolved path. For root, a link that belongs to
/// another user is refused: that user could redirect root's file to any place.
fn open_directory(path: &Path) -> io::Result<(File, PathBuf)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::open("/", flags | OFlags::DIRECTORY, Mode::empty());
    let (mut here, mut real, mut links) = (root()?, PathBuf::from("/"), 0);
    let mut remaining_parts: Vec<OsString> = path.iter().rev().map(OsStr::to_owned).collect();
    while let Some(part) = remaining_parts.pop() {
        if part == "/" {
            (here, real) = (root()?, PathBuf::from("/"));
            continue;
        }
        let next = rustix::fs::openat(&here, &part, flags, Mode::empty())?;
        let found = rustix::fs::fstat(&next)?;
        if !FileType::from_raw_mode(found.st_mode).is_symlink() {
            here = next;
            if part == ".." {
                real.pop();
            } else if part != "." {
                real.push(&part);
            }
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(rustix::io::Errno::LOOP.into());
        }
        if rustix::process::geteuid().is_root() && found.st_uid != 0 {
            let link = real.join(&part);
            let owner = found.st_uid;
            return Err(io::Error::other(format!("`{}` is a symbolic link of user {owner}", show(&link))));
        }
        let target = rustix::fs::readlinkat(&next, "", Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        remaining_parts.extend(target.iter().rev().map(OsStr::to_owned));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::openat(&here, ".", flags, Mode::empty())?.into(), real))
}

/// Checks that the existing file may be replaced: a link, a device or another user's file may not.
fn check_replaceable(found: &Stat) -> Result<(), &'static str> {
    if !FileType::from_raw_mode(found.st_mode).is_file() {
        return Err("it is not a regular file");
    }
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err("the existing file belongs to another user");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn refuses_link_of_another_user_for_root() {
        let temp = tempfile::tempdir().expect("temp");
        let (real, link) = (temp.path().join("real"), temp.path().join("link"));
        std::fs::create_dir(&real).expect("makes");
        symlink("real", &link).expect("links");
        let find = || DestinationFile::prepare("the report", Path::new("link/../link/f"), temp.path());
        find().expect("a link of our own").write_atomically(b"x").expect("writes");
        assert_eq!(std::fs::read(real.join("f")).expect("reads"), b"x");
        if rustix::process::geteuid().is_root() {
            lchown(&link, Some(1001), Some(1001)).expect("gives away");
            let Err(error) = find() else { panic!("followed") };
            assert!(error.to_string().contains("symbolic link of user 1001"), "{error}");
        }
    }

    #[test]
    fn rejects_link_loops_and_missing_directories() {
        let temp = tempfile::tempdir().expect("temp");
        symlink("loop", temp.path().join("loop")).expect("links");
        assert!(DestinationFile::prepare("the report", Path::new("loop/f"), temp.path()).is_err());
        assert!(DestinationFile::prepare("the report", Path::new("absent/f"), temp.path()).is_err());
    }
}
