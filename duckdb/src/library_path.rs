//! Finds DuckDB's shared library.

use std::path::{Path, PathBuf};

use crate::error::LibraryNotFound;

/// File name of the library.
const LIBRARY_NAME: &str = "libduckdb.so";
/// Library directories of the system.
const SYSTEM_DIRS: [&str; 4] =
    ["/usr/lib", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
/// Library directories of a user, relative to the home.
const USER_DIRS: [&str; 2] = [".local/lib", ".cache/proctor/duckdb"];

/// Returns the library that `given` names, or without it the first one in the directories of the system and of the
/// user with this `home`.
///
/// # Errors
/// There is no library; the message describes how to install one.
pub fn find(given: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, LibraryNotFound> {
    let found = library_candidates(given, home).into_iter().find(|path| path.is_file());
    found.ok_or_else(|| {
        given.map_or(LibraryNotFound::InSearchedDirectories, |given| LibraryNotFound::AtPath(given.to_owned()))
    })
}

/// Returns the possible paths of the library, in search order.
pub fn library_candidates(given: Option<&Path>, home: Option<&Path>) -> Vec<PathBuf> {
    if let Some(given) = given {
        return vec![given.join(LIBRARY_NAME), given.to_owned()];
    }
    let own = home.into_iter().flat_map(|home| USER_DIRS.iter().map(move |dir| home.join(dir)));
    SYSTEM_DIRS.iter().map(PathBuf::from).chain(own).map(|dir| dir.join(LIBRARY_NAME)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_given_path_only() {
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join(LIBRARY_NAME);
        assert!(find(Some(&library), None).unwrap_err().to_string().contains("no DuckDB at"));
        std::os::unix::fs::symlink("/proc/self/exe", &library).unwrap();
        assert_eq!(find(Some(&library), None).unwrap(), library);
        assert_eq!(find(Some(dir.path()), None).unwrap(), library);
    }

    #[test]
    fn finds_library_in_user_directory() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join(USER_DIRS[1]);
        std::fs::create_dir_all(&dir).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", dir.join(LIBRARY_NAME)).unwrap();
        // A system library, if there is one, takes precedence.
        let found = find(None, Some(home.path())).unwrap();
        assert!(found.starts_with(home.path()) || SYSTEM_DIRS.iter().any(|system| found.starts_with(system)));
    }
}
