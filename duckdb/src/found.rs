//! Finds DuckDB's shared library.

use std::path::{Path, PathBuf};

/// File name of the library.
const NAME: &str = "libduckdb.so";
/// Library directories of the system.
const SYSTEM: [&str; 4] = ["/usr/lib", "/usr/local/lib", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu"];
/// Library directories of a user, relative to the home.
const OWN: [&str; 2] = [".local/lib", ".cache/proctor/duckdb"];

/// Returns the library that `given` names, or without it the first one in the directories of the system and of the
/// user with this `home`.
///
/// # Errors
/// There is no library; the message says how to get one.
pub fn find(given: Option<&Path>, home: Option<&Path>) -> Result<PathBuf, String> {
    let found = places(given, home).into_iter().find(|path| path.is_file());
    found.ok_or_else(|| match given {
        Some(given) => format!("there is no DuckDB at `{}`", given.display()),
        None => {
            "there is no `libduckdb.so` in the directories of the system, `~/.local/lib` or `~/.cache/proctor/duckdb`; \
         take it from a release of DuckDB (libduckdb-linux-amd64.zip) or out of the npm package \
         `@duckdb/node-bindings-linux-x64`, and put it there or name it in `PROCTOR_DUCKDB`"
                .to_owned()
        }
    })
}

/// Returns the possible paths of the library, in search order.
pub fn places(given: Option<&Path>, home: Option<&Path>) -> Vec<PathBuf> {
    if let Some(given) = given {
        return vec![given.join(NAME), given.to_owned()];
    }
    let own = home.into_iter().flat_map(|home| OWN.iter().map(move |place| home.join(place)));
    SYSTEM.iter().map(PathBuf::from).chain(own).map(|place| place.join(NAME)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_given_decides() {
        let place = tempfile::tempdir().unwrap();
        let library = place.path().join(NAME);
        assert!(find(Some(&library), None).unwrap_err().contains("no DuckDB at"));
        std::os::unix::fs::symlink("/proc/self/exe", &library).unwrap();
        assert_eq!(find(Some(&library), None).unwrap(), library);
        assert_eq!(find(Some(place.path()), None).unwrap(), library);
    }

    #[test]
    fn the_users_own_place_is_found() {
        let home = tempfile::tempdir().unwrap();
        let place = home.path().join(OWN[1]);
        std::fs::create_dir_all(&place).unwrap();
        std::os::unix::fs::symlink("/proc/self/exe", place.join(NAME)).unwrap();
        // A system library, if there is one, takes precedence.
        let found = find(None, Some(home.path())).unwrap();
        assert!(found.starts_with(home.path()) || SYSTEM.iter().any(|system| found.starts_with(system)));
    }
}
