//! Locates the binaries under test.

use std::path::{Path, PathBuf};
use std::sync::{LazyLock, OnceLock};

/// Programs that must be in the same directory.
const PROGRAMS: [&str; 5] = ["proctor", "proctord", "proctor-sandbox", "proctor-git", "proctor-sql"];

/// Directory of the built binaries.
static BUILD_DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    let this = std::env::current_exe().expect("the path of this test binary");
    let has_all = |dir: &&Path| PROGRAMS.iter().all(|program| dir.join(program).is_file());
    let found = this.ancestors().find(has_all);
    found.unwrap_or_else(|| panic!("{PROGRAMS:?} are not next to {}: run `make test`", this.display())).to_owned()
});

/// A copy of the binaries that all users can read, because the build may be in a private home directory.
static PUBLIC_PROGRAMS: OnceLock<tempfile::TempDir> = OnceLock::new();

/// A copy of the Rust toolchain that all users can read.
static PUBLIC_TOOLCHAIN: OnceLock<tempfile::TempDir> = OnceLock::new();

/// The template of all repositories that the harness creates.
static GIT_TEMPLATE: OnceLock<tempfile::TempDir> = OnceLock::new();

/// Returns a template for `git init` that has the same directories as git's own, but not its 13 sample hooks, which
/// take longer to copy than the rest of a test's repository. Commits start no maintenance process.
pub(crate) fn git_template() -> &'static Path {
    let create = || {
        let dir = public_temp_dir();
        crate::machine::write(&dir.path().join("info/exclude"), "# ignored files of this repository\n");
        crate::machine::write(&dir.path().join("config"), "[maintenance]\n\tauto = false\n");
        std::fs::create_dir(dir.path().join("hooks")).expect("a directory of the template");
        dir
    };
    GIT_TEMPLATE.get_or_init(create).path()
}

/// Returns the path of a client program that `scripts/clients` installs.
pub(crate) fn client_program(path: &str) -> PathBuf {
    BUILD_DIR.parent().unwrap_or(&BUILD_DIR).join("clients").join(path)
}

/// Returns the path of one of the binaries in the build directory.
pub(crate) fn built_program(program: &str) -> PathBuf {
    BUILD_DIR.join(program)
}

/// Returns the path of one of the binaries, with its companions, in a directory that all users can read.
pub(crate) fn public_program(program: &str) -> PathBuf {
    PUBLIC_PROGRAMS.get_or_init(copy_programs).path().join(program)
}

/// Returns a copy of the toolchain that all users can read. A copy is needed because the original's ownership must
/// not change.
pub(crate) fn public_toolchain(original: &Path) -> PathBuf {
    let copy_original = || {
        let dir = public_temp_dir();
        crate::machine::copy_toolchain(original, dir.path());
        dir
    };
    PUBLIC_TOOLCHAIN.get_or_init(copy_original).path().to_owned()
}

fn public_temp_dir() -> tempfile::TempDir {
    let dir = tempfile::Builder::new().prefix("proctor-bin-").tempdir().expect("a directory for binaries");
    crate::machine::make_dir_public(dir.path());
    dir
}

fn copy_programs() -> tempfile::TempDir {
    let dir = public_temp_dir();
    for program in PROGRAMS {
        std::fs::copy(BUILD_DIR.join(program), dir.path().join(program)).expect("a copy of a binary");
    }
    dir
}

/// Removes the copies, because statics are never dropped.
pub(crate) fn remove_copies() {
    for dir in [PUBLIC_PROGRAMS.get(), PUBLIC_TOOLCHAIN.get(), GIT_TEMPLATE.get()].into_iter().flatten() {
        // Ignore the error: at worst a few files stay in the temporary directory.
        let _ = std::fs::remove_dir_all(dir.path());
    }
}
