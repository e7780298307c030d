//! What is looked at in a repository, and how far: which directories are entered, which files are
//! read, which programs are looked for. The bounds of a look stand here too.

/// How deep below the repository's top files are looked for.
pub const MAX_DEPTH: usize = 5;
/// How many bytes of a file are read; a larger one is not read at all.
pub const MAX_MARKER: u64 = 1 << 20;
/// How many files are read.
pub const MAX_MARKERS: usize = 512;

/// The programs that a draft may name, which the caller looks for in `PATH`.
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

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reading {
    /// Its name is enough.
    Name,
    /// Its first line.
    FirstLine,
    /// All of it, up to [`MAX_MARKER`].
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

/// Directories whose projects are not the repository's own: installed, built, or material for tests.
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

/// Whether a directory, as a path relative to the repository, is looked into. Of a virtual
/// environment only its programs are.
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

/// Whether a directory name is one that virtual environments of Python have by custom.
pub(super) fn is_environment(name: &str) -> bool {
    matches!(name, ".venv" | "venv")
}

/// How a file, as a path relative to the repository, is read.
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

/// Whether a file name is that of a shell script.
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
