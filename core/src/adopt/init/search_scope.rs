//! Lists the directories, files and programs that `proctor init` inspects, and the limits of that search.

use super::prettier_config::is_prettier_config;

/// Maximum depth of the search below the root of the repository.
pub const MAX_DEPTH: usize = 5;
/// Maximum size of a file to read, in bytes; larger files are not read at all.
pub const MAX_MARKER_BYTES: u64 = 1 << 20;
/// Maximum number of files to read.
pub const MAX_MARKERS: usize = 512;

/// The programs that a generated spec may use; the caller searches for them in `PATH`.
pub const PROGRAMS: [&str; 27] = [
    "autoreconf",
    "bash",
    "black",
    "bun",
    "cargo",
    "cargo-clippy",
    "cargo-fmt",
    "cargo-nextest",
    "cc",
    "git",
    "go",
    "gofmt",
    "golangci-lint",
    "make",
    "mypy",
    "node",
    "nox",
    "npm",
    "pnpm",
    "pytest",
    "python3",
    "ruff",
    "sh",
    "shellcheck",
    "tox",
    "uv",
    "yarn",
];

/// The part of a file that the caller reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadScope {
    /// Nothing; only the name matters.
    Name,
    /// The first [`MAX_SCRIPT_BYTES`] of a script.
    Script,
    /// The whole file, up to [`MAX_MARKER_BYTES`].
    Whole,
}

const MARKER_FILES: [&str; 22] = [
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
const SKIPPED_DIRS: [&str; 20] = [
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
pub fn is_searched(path: &str) -> bool {
    let mut parts = path.rsplit('/');
    let (name, parent) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
    match name {
        ".github" | ".cargo" | ".config" => !path.contains('/'),
        "workflows" => parent == ".github" || !parent.starts_with('.'),
        "bin" if is_venv_name(parent) => true,
        _ if is_venv_name(parent) => false,
        _ if is_venv_name(name) => true,
        _ => !name.starts_with('.') && !parent.starts_with('.') && !SKIPPED_DIRS.contains(&name),
    }
}

/// Returns whether a directory has a usual name of a Python virtual environment.
pub(super) fn is_venv_name(name: &str) -> bool {
    matches!(name, ".venv" | "venv")
}

/// Returns the part to read of a file, given as a path relative to the repository.
pub fn read_scope(path: &str) -> ReadScope {
    let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
    let is_requirements = name.contains("requirements") && name.ends_with(".txt");
    let is_workflow = dir == ".github/workflows" && (name.ends_with(".yml") || name.ends_with(".yaml"));
    let is_config = path == ".cargo/config.toml" || is_prettier_config(name);
    if MARKER_FILES.contains(&name) || is_requirements || is_workflow || is_config {
        ReadScope::Whole
    } else if is_shell_script_name(name) {
        ReadScope::Script
    } else {
        ReadScope::Name
    }
}

/// Maximum number of bytes of a script that are read.
pub const MAX_SCRIPT_BYTES: usize = 64 << 10;

/// Returns whether the text of a script has gaps that another program fills, as in ERB or Jinja. A shell cannot parse it.
pub fn is_template(script: &str) -> bool {
    [("<%", "%>"), ("{%", "%}")].iter().any(|(begin, end)| {
        script.lines().any(|line| line.find(begin).is_some_and(|at| line[at + begin.len()..].contains(end)))
    })
}

/// Returns whether a file has the name of a shell script.
pub(super) fn is_shell_script_name(name: &str) -> bool {
    name.ends_with(".sh") || name.ends_with(".bash")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_has_a_complete_tag_on_a_line() {
        for template in ["#!/bin/sh\nunset <%= UNSETS.join(' ') %>\n", "{% if x %}\necho\n"] {
            assert!(is_template(template), "{template}");
        }
        for script in ["printf '<%s>\\n' x", "echo ${x%>*} <%a", "docker ps --format '{{.Names}}'", "a{%b\n%}"] {
            assert!(!is_template(script), "{script}");
        }
    }

    #[test]
    fn skips_dirs_outside_own_code() {
        for path in ["src", "web", "a/b", ".github", ".github/workflows", ".cargo", ".venv", "a/.venv/bin", "venv/bin"]
        {
            assert!(is_searched(path), "{path}");
        }
        for path in
            [".git", "node_modules", "a/target", "tests/fixtures", ".venv/lib", ".github/x", "a/.github", ".tox"]
        {
            assert!(!is_searched(path), "{path}");
        }
    }

    #[test]
    fn reads_only_relevant_files() {
        for path in
            ["Cargo.toml", "a/package.json", "dev-requirements.txt", ".github/workflows/ci.yml", ".prettierrc.yaml"]
        {
            assert_eq!(read_scope(path), ReadScope::Whole, "{path}");
        }
        assert_eq!(read_scope("a/b.sh"), ReadScope::Script);
        for path in ["src/main.rs", "Cargo.lock", "x/workflows/ci.yml"] {
            assert_eq!(read_scope(path), ReadScope::Name, "{path}");
        }
    }
}
