//! Where `--patch` goes: a file that appears whole or not at all, or standard output.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use proctor_runner::Patch;
use rustix::fs::{AtFlags, Mode, OFlags};

use crate::error::CliError;
use crate::installation::show;
use crate::screen::Screen;

/// What stands for standard output.
const STDOUT: &str = "-";

/// Whether a patch goes to standard output.
pub(super) fn is_stdout(file: &Path) -> bool {
    file == Path::new(STDOUT)
}

/// Where a patch goes; looked at before anything runs.
pub(super) enum Target {
    /// Standard output.
    Stdout,
    /// A file in a directory that is open.
    File {
        /// The directory.
        directory: File,
        /// The file's name in it.
        name: OsString,
        /// For messages.
        path: PathBuf,
    },
}

impl Target {
    /// Looks at the place that the caller named.
    ///
    /// # Errors
    /// Its directory is not there, it lies in a `.git`, or something else than a file of the caller's
    /// stands there.
    pub(super) fn find(file: &Path, cwd: &Path) -> Result<Self, CliError> {
        if is_stdout(file) {
            return Ok(Self::Stdout);
        }
        let path = cwd.join(file);
        let refused = |problem: &str| CliError::Usage {
            message: format!("the patch is not written to `{}`: {problem}", show(&path)),
            hint: "name a new file, or `-` for standard output".to_owned(),
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
        Ok(Self::File { directory: directory.into(), name, path })
    }

    /// Whether it is standard output.
    pub(super) fn is_stdout(&self) -> bool {
        matches!(self, Self::Stdout)
    }

    /// Puts the patch there.
    ///
    /// # Errors
    /// There is none, or it cannot be written.
    pub(super) fn write(&self, patch: Option<&Patch>, screen: &mut Screen) -> Result<(), CliError> {
        let failed = |problem: String, hint: &str| CliError::Environment {
            message: format!("there is no patch: {problem}"),
            hint: hint.to_owned(),
        };
        let bytes = match patch {
            Some(Patch::Made(bytes)) => bytes,
            Some(Patch::Refused(problem)) => {
                return Err(failed(problem.clone(), "the evidence names what was changed"));
            }
            None => return Err(failed("the run made none".to_owned(), "the report says why")),
        };
        match self {
            Self::Stdout => screen.out_raw(bytes),
            Self::File { directory, name, path } => put(directory, name, bytes)
                .map_err(|error| failed(format!("`{}`: {error}", show(path)), "mend that, or name another file"))?,
        }
        Ok(())
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

/// Writes a file beside its place, and renames it there.
fn put(directory: &File, name: &OsStr, bytes: &[u8]) -> io::Result<()> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let temporary = format!(".proctor-{}.patch", random.map(|byte| format!("{byte:02x}")).concat());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(directory, &temporary, flags, Mode::from_raw_mode(0o644))?);
    let put = file.write_all(bytes).and_then(|()| file.sync_all()).and_then(|()| replace(directory, &temporary, name));
    if put.is_err() {
        // The first error is the one to report.
        let _ = rustix::fs::unlinkat(directory, &temporary, AtFlags::empty());
    }
    put
}

/// What stands there may have become something else while the steps ran.
fn replace(directory: &File, temporary: &str, name: &OsStr) -> io::Result<()> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if !rustix::fs::FileType::from_raw_mode(found.st_mode).is_file() => {
            return Err(io::Error::other("something else than a regular file stands there"));
        }
        Ok(_) | Err(rustix::io::Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    rustix::fs::renameat(directory, temporary, directory, name)?;
    Ok(rustix::fs::fsync(directory)?)
}
