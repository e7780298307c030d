//! The binaries under test, as cargo built them.

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

/// What a run needs beside each other.
const PROGRAMS: [&str; 5] = ["proctor", "proctord", "proctor-sandbox", "proctor-git", "proctor-sql"];

/// Where the binaries lie, as built.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let this = std::env::current_exe().expect("the path of this test binary");
    let has_all = |dir: &&Path| PROGRAMS.iter().all(|program| dir.join(program).is_file());
    let found = this.ancestors().find(has_all);
    found.unwrap_or_else(|| panic!("{PROGRAMS:?} are not beside {}: run `make test`", this.display())).to_owned()
});

/// A copy that every user of the machine can reach: the build may lie below a private home.
static SHARED: OnceLock<tempfile::TempDir> = OnceLock::new();

/// The Rust toolchain, the same way.
static TOOLCHAIN: OnceLock<tempfile::TempDir> = OnceLock::new();

/// A program of a client that `scripts/clients` installs, by its path below them.
pub(crate) fn client(path: &str) -> PathBuf {
    BUILT.parent().unwrap_or(&BUILT).join("clients").join(path)
}

/// A program of ours, as built.
pub(crate) fn built(program: &str) -> PathBuf {
    BUILT.join(program)
}

/// A program of ours, with its companions, where every user can run it.
pub(crate) fn for_all(program: &str) -> PathBuf {
    SHARED.get_or_init(share).path().join(program)
}

/// The toolchain that built the tests, where every user can run it. It is nobody's to give away.
pub(crate) fn toolchain_for_all(own: &Path) -> PathBuf {
    let share = || {
        let dir = open_dir();
        crate::machine::copy_toolchain(own, dir.path());
        dir
    };
    TOOLCHAIN.get_or_init(share).path().to_owned()
}

fn open_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("proctor-bin-").tempdir().expect("a directory for binaries");
    crate::machine::open_to_all(dir.path());
    dir
}

fn share() -> tempfile::TempDir {
    let dir = open_dir();
    for program in PROGRAMS {
        std::fs::copy(BUILT.join(program), dir.path().join(program)).expect("a copy of a binary");
    }
    dir
}

/// Removes the copies, since nothing drops a static.
pub(crate) fn clean_up() {
    for dir in [SHARED.get(), TOOLCHAIN.get()].into_iter().flatten() {
        // What is left behind then is a few files in the temporary directory.
        let _ = std::fs::remove_dir_all(dir.path());
    }
}
