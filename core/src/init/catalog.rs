//! Lists the directories, files and programs that `proctor init` inspects, and the limits of that search.

/// Maximum depth of the search below the root of the repository.
pub const MAX_DEPTH: usize = 5;
/// Maximum size of a file to read, in bytes; larger files are not read at all.
pub const MAX_MARKER: u64 = 1 << 20;
/// Maximum number of files to read.
pub const MAX_MARKERS: usize = 512;

/// The programs that a generated spec may use; the caller searches for them in `PATH`.
pub const PROGRAMS: [&str; 20] = [
    "bash",
    "black",
    "cargo",
    "cargo-clippy",
    "cargo-fmt",
    "git",
    "go",
    "gofmt",
    "make",
    "mypy",
    "node",
    "npm",
    "pnpm",
    "pytest",
    "python3",
    "ruff",
    "sh",
    "shellcheck",
    "uv",
    "yarn",
];

/// The part of a file that the caller reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Nothing; only the name matters.
    Name,
    /// The first line.
    FirstLine,
    /// The whole file, up to [`MAX_MARKER`].
    Whole,
}

const MARKERS: [&str; 22] = [
    ".gitlab-ci.yml",
    ".pre-commit-config.yaml",
    "Cargo.toml",
    "GNUmakefile",
    "Makefile",
    "go.mod",
    "justfile",
    "lefthook.yml",
    "makefile",
    "mypy.ini",
    "noxfile.py",
    "package.json",
    "pnpm-workspace.yaml",
    "pyproject.toml",
    "pytest.ini",
    "ruff.toml",
    ".ruff.toml",
    "rust-toolchain",
    "rust-toolchain.toml",
    "setup.cfg",
    "tox.ini",
    "tsconfig.json",
];

/// Directories whose projects are not part of the repository's own code: installed packages, build results,
/// examples, templates, and test data.
const FOREIGN: [&str; 20] = [
    "__pycache__",
    "__snapshots__",
    "build",
    "changes",
    "deps",
    "dist",
    "env",
    "example",
    "examples",
    "external",
    "fixtures",
    "node_modules",
    "out",
    "site-packages",
    "spec",
    "target",
    "templates",
    "testdata",
    "third_party",
    "vendor",
];

/// Returns whether to search a directory, given as a path relative to the repository. In a virtual environment,
/// only the directory of its programs is searched.
pub fn is_entered(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let (name, parent) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match name {
        ".github" | ".cargo" => !path.contains('/'),
        "workflows" => parent == ".github" || !parent.starts_with('.'),
        "bin" if is_environment(parent) => true,
        _ if is_environment(parent) => false,
        _ if is_environment(name) => true,
        _ => !name.starts_with('.') && !parent.starts_with('.') && !FOREIGN.contains(&name),
    }
}

/// Returns whether a directory has a usual name of a Python virtual environment.
pub(super) fn is_environment(name: &str) -> bool {
    matches!(name, ".venv" | "venv")
}

/// Returns the part to read of a file, given as a path relative to the repository.
pub fn reading(path: &str) -> Reading {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let is_requirements = name.contains("requirements") && name.ends_with(".txt");
    let is_workflow = dir == ".github/workflows" && (name.ends_with(".yml") || name.ends_with(".yaml"));
    if MARKERS.contains(&name) || is_requirements || is_workflow || path == ".cargo/config.toml" {
        Reading::Whole
    } else if is_script(name) {
        Reading::FirstLine
    } else {
        Reading::Name
    }
}

/// Returns whether a file has the name of a shell script.
pub(super) fn is_script(name: &str) -> bool {
    name.ends_with(".sh") || name.ends_with(".bash")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_the_repositorys_own_is_not_entered() {
        for path in ["src", "web", "a/b", ".github", ".github/workflows", ".cargo", ".venv", "a/.venv/bin", "venv/bin"]
        {
            assert!(is_entered(path), "{path}");
        }
        for path in
            [".git", "node_modules", "a/target", "tests/fixtures", ".venv/lib", ".github/x", "a/.github", ".tox"]
        {
            assert!(!is_entered(path), "{path}");
        }
    }

    #[test]
    fn only_what_tells_something_is_read() {
        for path in ["Cargo.toml", "a/package.json", "dev-requirements.txt", ".github/workflows/ci.yml"] {
            assert_eq!(reading(path), Reading::Whole, "{path}");
        }
        assert_eq!(reading("a/b.sh"), Reading::FirstLine);
        for path in ["src/main.rs", "Cargo.lock", "x/workflows/ci.yml"] {
            assert_eq!(reading(path), Reading::Name, "{path}");
        }
    }
}
