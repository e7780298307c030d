//! Locates the binaries under test.

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

/// Programs that must be in the same directory.
const PROGRAMS: [&str; 5] = ["proctor", "proctord", "proctor-sandbox", "proctor-git", "proctor-sql"];

/// Directory of the built binaries.
static BUILT: LazyLock<PathBuf> = LazyLock::new(|| {
    let this = std::env::current_exe().expect("the path of this test binary");
    let has_all = |dir: &&Path| PROGRAMS.iter().all(|program| dir.join(program).is_file());
    let found = this.ancestors().find(has_all);
    found.unwrap_or_else(|| panic!("{PROGRAMS:?} are not next to {}: run `make test`", this.display())).to_owned()
});

/// A copy of the binaries that all users can read, because the build may be in a private home directory.
static SHARED: OnceLock<tempfile::TempDir> = OnceLock::new();

/// A copy of the Rust toolchain that all users can read.
static TOOLCHAIN: OnceLock<tempfile::TempDir> = OnceLock::new();

/// Returns the path of a client program that `scripts/clients` installs.
pub(crate) fn client(path: &str) -> PathBuf {
    BUILT.parent().unwrap_or(&BUILT).join("clients").join(path)
}

/// Returns the path of one of the binaries in the build directory.
pub(crate) fn built(program: &str) -> PathBuf {
    BUILT.join(program)
}

/// Returns the path of one of the binaries, with its companions, in a directory that all users can read.
pub(crate) fn for_all(program: &str) -> PathBuf {
    SHARED.get_or_init(share).path().join(program)
}

/// Returns a copy of the toolchain that all users can read. A copy is needed because the original's ownership must
/// not change.
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

/// Removes the copies, because statics are never dropped.
pub(crate) fn clean_up() {
    for dir in [SHARED.get(), TOOLCHAIN.get()].into_iter().flatten() {
        // Ignore the error: at worst a few files stay in the temporary directory.
        let _ = std::fs::remove_dir_all(dir.path());
    }
}
