//! A file that a caller names for a result: it appears whole or not at all, and takes the place of nothing but a
//! regular file of the caller's.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags};

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
        let real = parent.canonicalize().map_err(|error| refused(&error.to_string()))?;
        let is_git = |part: &OsStr| part.eq_ignore_ascii_case(".git");
        if real.iter().chain([name.as_os_str()]).any(is_git) {
            return Err(refused("it lies in a `.git`"));
        }
        match real.join(&name).symlink_metadata() {
            Ok(found) => may_be_replaced(&found).map_err(refused)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(refused(&error.to_string())),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| refused(&errno.to_string()))?;
        Ok(Self { directory: directory.into(), name, path })
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

/// A link, a device or somebody else's file is not what a caller wants to lose.
fn may_be_replaced(found: &Metadata) -> Result<(), &'static str> {
    if !found.is_file() {
        return Err("something else than a regular file stands there");
    }
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err("the file there is somebody else's");
    }
    Ok(())
}
