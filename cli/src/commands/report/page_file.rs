//! Stores the pages that a browser shows, in the user's cache directory.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use proctor_core::model::names::RunId;
use rustix::fs::{Mode, OFlags};

use crate::caller::Caller;
use crate::error::CliError;
use crate::installation::show;

/// Maximum number of pages that are kept; the oldest are removed.
const MAX_PAGES: usize = 20;
const DIRECTORY_MODE: u32 = 0o700;

/// Writes the page of a run to the cache directory, and returns its path. Only the user can read the page.
///
/// # Errors
/// There is no home directory, the directory belongs to another user, or the page cannot be written.
pub(super) fn write_page(caller: &Caller, run: &RunId, page: &str) -> Result<PathBuf, CliError> {
    let cache = caller.xdg_dir("XDG_CACHE_HOME", ".cache").ok_or_else(|| CliError::Environment {
        message: "the page cannot be stored: there is no cache directory".to_owned(),
        hint: "set XDG_CACHE_HOME or HOME, or name a file with `--report html=FILE`".to_owned(),
    })?;
    let directory = cache.join("proctor/reports");
    write_to(&directory, run, page).map_err(|error| CliError::Environment {
        message: format!("the page cannot be written to `{}`: {error}", show(&directory)),
        hint: "fix this, or name a file with `--report html=FILE`".to_owned(),
    })
}

fn write_to(directory: &Path, run: &RunId, page: &str) -> io::Result<PathBuf> {
    create_private(directory)?;
    // The temporary file has mode 0600.
    let mut file = tempfile::Builder::new().prefix(".page-").tempfile_in(directory)?;
    file.write_all(page.as_bytes())?;
    let path = directory.join(format!("{run}.html"));
    file.persist(&path).map_err(|error| error.error)?;
    remove_oldest(directory, &path)?;
    Ok(path)
}

/// Creates a directory with mode 0700, or gives this mode to the user's existing one.
fn create_private(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = File::from(rustix::fs::open(directory, flags, Mode::empty())?);
    let found = opened.metadata()?;
    if found.uid() != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if found.mode() & 0o777 != DIRECTORY_MODE {
        rustix::fs::fchmod(&opened, Mode::from_raw_mode(DIRECTORY_MODE))?;
    }
    Ok(())
}

/// Removes the oldest files beyond [`MAX_PAGES`], among them those that killed commands left behind. Keeps `written`.
fn remove_oldest(directory: &Path, written: &Path) -> io::Result<()> {
    let mut files: Vec<(SystemTime, PathBuf)> = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        // Another command may have removed the file.
        if let Ok(found) = entry.metadata()
            && found.is_file()
            && entry.path() != written
        {
            files.push((found.modified()?, entry.path()));
        }
    }
    files.sort();
    let excess = (files.len() + 1).saturating_sub(MAX_PAGES);
    for (_, path) in files.into_iter().take(excess) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn run(number: usize) -> RunId {
        RunId::new(format!("01JZZZZZZZZZZZZZZZZZZZZZ{number:02}")).expect("an id")
    }

    #[test]
    fn keeps_the_newest_private_pages() {
        let temp = tempfile::tempdir().expect("temp");
        let directory = temp.path().join("cache/proctor/reports");
        fs::create_dir_all(&directory).expect("makes");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).expect("opens it to others");
        let paths: Vec<PathBuf> =
            (0..MAX_PAGES + 3).map(|number| write_to(&directory, &run(number), "page").expect("writes")).collect();
        let mode = |path: &Path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!((mode(&directory), mode(&paths[MAX_PAGES + 2])), (0o700, 0o600));
        assert_eq!(fs::read_dir(&directory).expect("lists").count(), MAX_PAGES);
        let last = write_to(&directory, &run(MAX_PAGES + 2), "again").expect("writes");
        assert_eq!(fs::read_to_string(last).expect("reads"), "again");
        assert_eq!(fs::read_dir(&directory).expect("lists").count(), MAX_PAGES, "the same run has one page");
    }

    #[test]
    fn refuses_a_link_as_directory() {
        let temp = tempfile::tempdir().expect("temp");
        let directory = temp.path().join("reports");
        std::os::unix::fs::symlink(temp.path(), &directory).expect("links");
        assert!(write_to(&directory, &run(0), "page").is_err());
    }
}
