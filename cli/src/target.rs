//! A file that a caller names for a result: it appears whole or not at all, and takes the place of nothing but a
//! regular file of the caller's.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};

use crate::error::CliError;
use crate::installation::show;

/// A place for a file, in a directory that is open; looked at before anything runs.
pub(crate) struct Target {
    directory: File,
    name: OsString,
    /// For messages.
    path: PathBuf,
}

impl Target {
    /// Looks at the place that the caller named for `what`, such as `the patch`.
    ///
    /// # Errors
    /// Its directory is not there, it lies in a `.git`, or something else than a file of the caller's
    /// stands there.
    pub(crate) fn find(what: &str, file: &Path, cwd: &Path) -> Result<Self, CliError> {
        let path = cwd.join(file);
        let refused = |problem: &str| CliError::Usage {
            message: format!("{what} is not written to `{}`: {problem}", show(&path)),
            hint: "name a new file in a directory that is there".to_owned(),
        };
        let name = path.file_name().ok_or_else(|| refused("it has no name"))?.to_owned();
        let parent = path.parent().unwrap_or(Path::new("/"));
        let (directory, real) = open_directory(parent).map_err(|error| refused(&error.to_string()))?;
        let is_git = |part: &OsStr| part.eq_ignore_ascii_case(".git");
        if real.iter().chain([name.as_os_str()]).any(is_git) {
            return Err(refused("it lies in a `.git`"));
        }
        match rustix::fs::statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => may_be_replaced(&found).map_err(refused)?,
            Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(refused(&io::Error::from(errno).to_string())),
        }
        Ok(Self { directory, name, path })
    }

    /// The file as a message names it.
    pub(crate) fn shown(&self) -> String {
        show(&self.path).to_string()
    }

    /// Writes the file beside its place, and renames it there.
    ///
    /// # Errors
    /// It cannot be written, or something else stands there by now.
    pub(crate) fn put(&self, bytes: &[u8]) -> io::Result<()> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let temporary = format!(".proctor-{}.tmp", random.map(|byte| format!("{byte:02x}")).concat());
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.directory, &temporary, flags, Mode::from_raw_mode(0o644))?;
        let mut file = File::from(opened);
        let put = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| self.replace(&temporary));
        if put.is_err() {
            // The first error is the one to report.
            let _ = rustix::fs::unlinkat(&self.directory, &temporary, AtFlags::empty());
        }
        put
    }

    /// What stands there may have become something else while the steps ran.
    fn replace(&self, temporary: &str) -> io::Result<()> {
        match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() => {
                return Err(io::Error::other("something else than a regular file stands there"));
            }
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(errno) => return Err(errno.into()),
        }
        rustix::fs::renameat(&self.directory, temporary, &self.directory, &self.name)?;
        Ok(rustix::fs::fsync(&self.directory)?)
    }
}

/// How many links a path may lead through; the kernel follows as many.
const MAX_LINKS: usize = 40;

/// Opens a directory one part of its path after the other, and returns where it is. Where root asks, a link of another
/// user is refused: that user could lead a file of root's to any place.
fn open_directory(path: &Path) -> io::Result<(File, PathBuf)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = || rustix::fs::open("/", flags | OFlags::DIRECTORY, Mode::empty());
    let (mut here, mut real, mut links) = (root()?, PathBuf::from("/"), 0);
    let mut to_come: Vec<OsString> = path.iter().rev().map(OsStr::to_owned).collect();
    while let Some(part) = to_come.pop() {
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
        to_come.extend(target.iter().rev().map(OsStr::to_owned));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok((rustix::fs::openat(&here, ".", flags, Mode::empty())?.into(), real))
}

/// A link, a device or somebody else's file is not what a caller wants to lose.
fn may_be_replaced(found: &Stat) -> Result<(), &'static str> {
    if !FileType::from_raw_mode(found.st_mode).is_file() {
        return Err("something else than a regular file stands there");
    }
    if found.st_uid != rustix::process::geteuid().as_raw() {
        return Err("the file there is somebody else's");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{lchown, symlink};

    #[test]
    fn a_link_of_another_user_leads_no_file_of_root_elsewhere() {
        let temp = tempfile::tempdir().expect("temp");
        let (real, link) = (temp.path().join("real"), temp.path().join("link"));
        std::fs::create_dir(&real).expect("makes");
        symlink("real", &link).expect("links");
        let find = || Target::find("the report", Path::new("link/../link/f"), temp.path());
        find().expect("a link of our own").put(b"x").expect("writes");
        assert_eq!(std::fs::read(real.join("f")).expect("reads"), b"x");
        if rustix::process::geteuid().is_root() {
            lchown(&link, Some(1001), Some(1001)).expect("gives away");
            let Err(error) = find() else { panic!("followed") };
            assert!(error.to_string().contains("symbolic link of user 1001"), "{error}");
        }
    }

    #[test]
    fn links_end() {
        let temp = tempfile::tempdir().expect("temp");
        symlink("loop", temp.path().join("loop")).expect("links");
        assert!(Target::find("the report", Path::new("loop/f"), temp.path()).is_err());
        assert!(Target::find("the report", Path::new("absent/f"), temp.path()).is_err());
    }
}
